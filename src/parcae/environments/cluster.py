"""`parcae/Cluster-v0`: Decima's cluster as a Gymnasium environment on top of the simulator.

An episode is one job sequence, a step is one decision: the stage that the offered executors go to;
the most executors that go there; their class, if there are several classes; and how long they wait
for the stage, if there are idle slots. Stage and limit have independent masks: every pair of
unmasked choices can be carried out. The classes and idle slots that can be chosen depend on the
stage.

Source: Decima, section 5 (states, actions, rewards) and 7.3 (classes); Duan & Wu, section III (idle
slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from parcae.base.errors import PolicyError
from parcae.base.texts import s_from_ms
from parcae.cluster.kernels.tables import slot_ms
from parcae.cluster.observation import Decision, Observation, observe
from parcae.cluster.state import ANY_CLASS, NO_STAGE, ClusterState
from parcae.environments.adapters import (
    Array,
    Arrays,
    BoolArray,
    EpisodeEnv,
    EpisodeVectorEnv,
    checked_actions,
    checked_num_envs,
)
from parcae.environments.kernels import decision_of, has_choice, start_many, step_many, write_view
from parcae.environments.layout import (
    BOUND,
    NO_ROW,
    ClusterFeature,
    ClusterView,
    EpisodeTables,
    FitFeature,
    ObservedClassFeature,
    ObservedJobFeature,
    SlotFeature,
    StageFeature,
    allocate_shown,
    scales_of,
)
from parcae.environments.settings import ClusterSettings, read_cluster
from parcae.simulation.faults import check_elastic, resolve_faults
from parcae.simulation.future import Status
from parcae.simulation.metrics import summarize
from parcae.simulation.objectives import Objective
from parcae.simulation.simulator import SimulatorRows, check_fits, room_for
from parcae.workloads.workload import JobSequence

Int64Array = npt.NDArray[np.int64]
#: Entries of the observation that are shown only with several executor classes or with idle slots.
_CLASS_ENTRIES = ("classes", "stage_fit", "class_mask")
_SLOT_ENTRIES = ("stage_slot", "slot_mask")


class ClusterEpisodes:
    """Episodes of the cluster, several side by side.

    Raises:
        ConfigError: an unknown workload, parallelism model or arrival process, or losses of
            executors on an elastic cluster.
        WorkloadError: a stage fits no executor class.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def __init__(self, count: int, settings: ClusterSettings, *, copies: bool = True) -> None:
        self.count = count
        self.copies = copies
        self.settings = settings
        self.workload = settings.load()
        settings.sequence(self.workload, 0)  # raises now if the arrivals are invalid
        # Check the demands of every job of the workload, not only of those that the first seed
        # draws.
        every_job = np.arange(len(self.workload.jobs))
        check_fits(JobSequence(self.workload, every_job, 0 * every_job), settings.cluster)
        faults = resolve_faults(settings.cluster.faults, self.workload)
        if settings.cluster.elastic is not None:
            check_elastic(faults)
        classes = settings.cluster.classes
        self.scales = scales_of(self.workload, classes)
        self.num_classes = len(classes) if len(classes) > 1 else 0
        num_jobs = settings.num_jobs
        self.max_jobs = min(settings.max_jobs or num_jobs, num_jobs)
        room = room_for(self.workload, num_jobs)
        all_stages = self.max_jobs * room["num_stages"] // num_jobs
        self.max_stages = min(settings.max_stages or all_stages, all_stages)
        executors = settings.cluster.total_executors
        num_limits = settings.num_limits or executors
        # Evenly spaced limits, rounded up; the last one is all executors.
        self.levels = -(-executors * np.arange(1, num_limits + 1) // num_limits)
        self._sizes = np.array(
            [self.max_stages + 1, num_limits, self.num_classes + 1, settings.idle_lengths + 1]
        )
        # The choices that an action has; the first two always exist.
        self._columns = np.flatnonzero((self._sizes > 1) | [True, True, False, False])
        self.action_space = spaces.MultiDiscrete(self._sizes[self._columns])
        boxes = self._boxes(max(1, self.max_jobs * room["num_edges"] // num_jobs))
        # Indices of rows begin as NO_ROW, all else as 0: their lowest values.
        self._views = ClusterView(
            *(np.full((count, *boxes[name].shape), boxes[name].low) for name in ClusterView._fields)
        )
        hidden = (_CLASS_ENTRIES if self.num_classes == 0 else ()) + (
            _SLOT_ENTRIES if settings.idle_lengths == 0 else ()
        )
        self._entries = [name for name in boxes if name not in hidden]
        self.observation_space = spaces.Dict({name: boxes[name] for name in self._entries})
        self._shown = allocate_shown(
            count, self.max_jobs, self.max_stages, num_jobs, room["num_stages"]
        )
        self.simulators = SimulatorRows(count, self.workload, settings.cluster, **room)
        self.seeds = [0] * count
        # Clusters that are stepped elsewhere and shown in place of an episode's own.
        self._followed: dict[int, Observation] = {}
        self._num_masked = np.zeros(count, np.int64)
        self._rewarded_s = np.zeros(count)

    def _boxes(self, max_edges: int) -> dict[str, spaces.Box]:
        """The space of every array of an observation, also of those that are not shown."""
        rows, classes, lengths = self.max_stages, self.num_classes, self.settings.idle_lengths

        def box(*shape: int, dtype: Any = np.float32) -> spaces.Box:
            return spaces.Box(0, 1 if dtype is np.bool_ else BOUND, shape, dtype)

        return {
            "stages": box(rows, len(StageFeature)),
            "stage_job": spaces.Box(NO_ROW, self.max_jobs - 1, (rows,), np.int32),
            "edges": spaces.Box(NO_ROW, rows - 1, (max_edges, 2), np.int32),
            "jobs": box(self.max_jobs, len(ObservedJobFeature)),
            "cluster": box(len(ClusterFeature)),
            "classes": box(classes, len(ObservedClassFeature)),
            "stage_fit": box(rows, len(FitFeature) + classes),
            "stage_slot": box(rows, len(SlotFeature)),
            "class_mask": box(rows + 1, classes + 1, dtype=np.bool_),
            "slot_mask": box(rows + 1, lengths + 1, dtype=np.bool_),
            "action_mask": box(int(self._sizes[self._columns].sum()), dtype=np.bool_),
        }

    @property
    def _tables(self) -> EpisodeTables:
        """The tables, as kernels take them."""
        return EpisodeTables(
            self.simulators.simulations,
            self._shown,
            self._views,
            self._num_masked,
            self._rewarded_s,
            self.levels,
            self.scales,
            self.settings.objective is Objective.MAKESPAN,
        )

    def state(self, row: int) -> ClusterState:
        """Return the state of an episode's cluster, as views."""
        return self.simulators.state(row)

    def observe(self, row: int) -> Observation:
        """Return what a policy sees of an episode's cluster now."""
        return observe(self.state(row))

    def start(self, rows: Int64Array, seeds: Sequence[int]) -> None:
        """Begin the episodes of seeds: jobs and random draws of `parcae simulate --seed`."""
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            self.simulators.put(row, self.settings.sequence(self.workload, seed), seed)
            self.seeds[row] = seed
            self._followed.pop(row, None)
        self._check(start_many(self._tables, rows))

    def step(
        self, actions: Array, rows: Int64Array
    ) -> tuple[npt.NDArray[np.float64], BoolArray, BoolArray]:
        """Apply one action in each of the given episodes; see `Episodes.step`.

        The reward of an action is minus the increase of the objective up to the next decision,
        times `reward_scale`. The first one counts the time before it, too: on an elastic cluster
        jobs wait for the first executor.
        """
        choices = self._all_choices(actions, rows)
        costs_s = np.zeros(self.count)
        self._check(step_many(self._tables, choices, rows, costs_s))
        acted = np.zeros(self.count, np.bool_)
        acted[rows] = True
        status = self.simulators.status
        terminated = acted & (status == Status.COMPLETE)
        truncated = acted & (status == Status.ENDED)
        return -self.settings.reward_scale * costs_s, terminated, truncated

    def _check(self, failed: int) -> None:
        """Raise the error of a run that failed; NO_ROW if none did."""
        if failed != NO_ROW:
            self.simulators.check(failed)

    def decision(self, row: int, action: Array) -> Decision:
        """Return the decision that an action stands for in the present state.

        A masked choice is replaced by the first unmasked one; see `decision_of`.
        """
        actions = np.zeros((self.count, len(action)), np.asarray(action).dtype)
        actions[row] = action
        chosen = self._all_choices(actions, np.array([row]))[row]
        state = self._shown_state(row)
        shown, view = _row(self._shown, row), _row(self._views, row)
        *decision, is_masked = decision_of(state, shown, view, self.levels, chosen)
        self._num_masked[row] += is_masked
        return Decision(*decision)

    def _shown_state(self, row: int) -> Any:
        """Return the state that the observation was read from: its own, or a followed cluster's."""
        return self._followed[row] if row in self._followed else self.state(row)

    def _all_choices(self, actions: Array, rows: Int64Array) -> Int64Array:
        """Return the choices of stage, limit, class and idle slot, int64[count, 4].

        A choice that is not part of an action has a single value: any class, no idle slot.
        """
        choices = np.zeros((self.count, len(self._sizes)), np.int64)
        choices[:, self._columns] = checked_actions(actions, rows, self.action_space, self.count)
        return choices

    def action(self, row: int, decision: Decision) -> Int64Array:
        """Return the action that stands for a decision, e.g. one of a heuristic.

        The limit and the idle slot are the first choices that are at least as large as the
        decision's.

        Example: `env.step(episodes.action(0, policy.decide(episodes.observe(0))))`.
        """
        choice, level, executor_class, length = self.max_stages, 0, decision.executor_class, 0
        if decision.stage != NO_STAGE:
            choice = int(self._shown.row_of_stage[row, decision.stage])
            # The row of a stage that is not shown any more stands for another one.
            if choice == NO_ROW or int(self._shown.stages[row, choice]) != decision.stage:
                raise PolicyError(
                    f"stage {decision.stage} is not shown; make max_jobs and max_stages larger"
                )
            num_offered = int(self._shown_state(row).now.num_source[0])
            level = int(np.searchsorted(self.levels, min(decision.limit, num_offered)))
            limit = min(int(self.levels[level]), num_offered)
            length = self._slot_length(row, decision, limit) if decision.hold_ms else 0
        if decision.stage == NO_STAGE or executor_class == ANY_CLASS:
            executor_class = self.num_classes
        chosen: Int64Array = np.array([choice, level, executor_class, length])[self._columns]
        return chosen

    def _slot_length(self, row: int, decision: Decision, limit: int) -> int:
        """Return the shortest idle slot that is as long as the decision's, or the longest one."""
        num_lengths = self.settings.idle_lengths
        if not num_lengths:
            raise PolicyError(
                f"stage {decision.stage} gets an idle slot, but the environment has none to "
                f"choose from; set idle_lengths"
            )
        state = self._shown_state(row)
        slots = [
            int(slot_ms(state, decision.stage, limit, k, num_lengths))
            for k in range(1, num_lengths + 1)
        ]
        return 1 + min(int(np.searchsorted(slots, decision.hold_ms)), num_lengths - 1)

    def observations(self) -> Arrays:
        """Return the observation of every episode, each [count, ...]; in new arrays if `copies`."""
        shown = {name: getattr(self._views, name) for name in self._entries}
        return {name: array.copy() for name, array in shown.items()} if self.copies else shown

    def outcome(self, row: int) -> dict[str, float]:
        """Return the metrics of an episode that is over.

        For a job that is not complete, the time up to the end of the episode is used.
        """
        trace = self.simulators.trace(row, "environment")
        run = summarize(trace, self.simulators.sequence(row))
        return {
            "seed": self.seeds[row],
            "average_jct_s": s_from_ms(run.average_jct_ms),
            "p95_jct_s": s_from_ms(run.p95_jct_ms),
            "makespan_s": s_from_ms(run.makespan_ms),
            "mean_slowdown": run.mean_slowdown,
            "utilization": run.utilization,
            "num_unfinished": run.unfinished,
            "num_decisions": run.decisions,
            "num_masked_actions": int(self._num_masked[row]),
        }

    def follow(self, row: int, observation: Observation) -> bool:
        """Show a cluster that is stepped elsewhere, as a policy does that was trained here. Returns
        whether there is a choice; where there is none, nothing is shown.

        `observations` and `decision` of the episode in this row then refer to that cluster.
        """
        if self.num_classes not in (0, len(observation.classes)):
            raise PolicyError(
                f"a cluster with {len(observation.classes)} executor class(es) cannot be shown in "
                f"an environment with {self.num_classes}; give both the same executor_classes"
            )
        self._followed[row] = observation
        if not has_choice(observation):
            return False
        jobs = max(len(observation.jobs), self._shown.row_of_job.shape[1])
        stages = max(len(observation.stages), self._shown.row_of_stage.shape[1])
        if (jobs, stages) != (self._shown.row_of_job.shape[1], self._shown.row_of_stage.shape[1]):
            larger = allocate_shown(self.count, self.max_jobs, self.max_stages, jobs, stages)
            # The rows that are in use must be known, to be cleared.
            self._shown = larger._replace(stages=self._shown.stages, jobs=self._shown.jobs)
        shown, view = _row(self._shown, row), _row(self._views, row)
        write_view(observation, shown, view, self.levels, self.scales)
        return True


def _row(tables: Any, row: int) -> Any:
    """The tables of one episode, as views."""
    return type(tables)(*(table[row] for table in tables))


class ClusterEnv(EpisodeEnv):
    """`parcae/Cluster-v0`; keyword arguments are those of `ClusterSettings` and `SimulationConfig`.

    Example: `gymnasium.make("parcae/Cluster-v0", workload="tpch", num_jobs=10, executors=10,
    moving_delay_ms=200)`.
    """

    episodes: ClusterEpisodes

    def __init__(self, *, render_mode: None = None, **settings: Any) -> None:
        super().__init__(ClusterEpisodes(1, read_cluster(settings)))


class ClusterVectorEnv(EpisodeVectorEnv):
    """Several `parcae/Cluster-v0` side by side.

    Example: `gymnasium.make_vec("parcae/Cluster-v0", num_envs=4,
    vectorization_mode="vector_entry_point")`.
    """

    episodes: ClusterEpisodes

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        **settings: Any,
    ) -> None:
        """Make the environments."""
        episodes = ClusterEpisodes(checked_num_envs(num_envs), read_cluster(settings), copies=copy)
        super().__init__(episodes, autoreset_mode)
