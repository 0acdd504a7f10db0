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

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from parcae.cluster.decision import Decision
from parcae.cluster.kernels.tables import slot_ms
from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.environment.adapters import Array, Arrays, BoolArray, EpisodeEnv, EpisodeVectorEnv
from parcae.environment.kernels import has_choice, write_view
from parcae.environment.layout import (
    BOUND,
    NO_ROW,
    ClassFeature,
    ClusterFeature,
    ClusterView,
    FitFeature,
    JobFeature,
    ShownRows,
    SlotFeature,
    StageFeature,
    scales_of,
)
from parcae.environment.settings import ClusterSettings, read_cluster
from parcae.errors import PolicyError
from parcae.metrics.objectives import Objective
from parcae.metrics.summary import summarize
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator, check_fits
from parcae.units import s_from_ms
from parcae.workloads.arrivals import JobSequence

#: The policy's name in the trace of an episode.
_POLICY = "environment"
#: Entries of the observation that are shown only with several executor classes or with idle slots.
_CLASS_ENTRIES = ("classes", "stage_fit", "class_mask")
_SLOT_ENTRIES = ("stage_slot", "slot_mask")


def _first_unmasked(mask: BoolArray, choice: int) -> int:
    """Return the choice if it is unmasked, otherwise the first unmasked one."""
    return choice if mask[choice] else int(np.argmax(mask))


class ClusterEpisodes:
    """Episodes of the cluster, several side by side.

    Args:
        count: number of episodes.
        settings: the settings of all of them.

    Raises:
        ConfigError: an unknown workload, parallelism model or arrival process.
        WorkloadError: a stage fits no executor class.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def __init__(self, count: int, settings: ClusterSettings) -> None:
        self.count = count
        self.settings = settings
        self.workload = settings.load()
        settings.sequence(self.workload, 0)  # raises now if the arrivals are invalid
        # Check the demands of every job of the workload, not only of those that the first seed
        # draws.
        every_job = np.arange(len(self.workload.jobs))
        check_fits(JobSequence(self.workload, every_job, 0 * every_job), settings.cluster)
        self.scales = scales_of(self.workload, settings.cluster.classes)
        jobs = self.workload.jobs
        largest_job = max(len(job.stages) for job in jobs)
        most_edges = max(sum(len(stage.parents) for stage in job.stages) for job in jobs)
        self.max_jobs = min(settings.max_jobs or settings.num_jobs, settings.num_jobs)
        all_stages = self.max_jobs * largest_job
        self.max_stages = min(settings.max_stages or all_stages, all_stages)
        executors = settings.cluster.total_executors
        num_limits = settings.num_limits or executors
        # Evenly spaced limits, rounded up; the last one is all executors.
        self.levels = -(-executors * np.arange(1, num_limits + 1) // num_limits)
        self.num_classes = len(settings.cluster.classes) if len(settings.cluster.classes) > 1 else 0
        self._allocate(max(1, self.max_jobs * most_edges), settings.num_jobs * largest_job)
        self.observation_space, self.action_space = self._spaces()

    def _allocate(self, max_edges: int, num_stages: int) -> None:
        """Allocate the arrays of the observations and find out which choices an action has."""
        n = self.count
        num_classes = self.num_classes
        self._sizes = np.array(
            [self.max_stages + 1, len(self.levels), num_classes + 1, self.settings.idle_lengths + 1]
        )
        self._is_chosen = np.array([True, True, num_classes > 0, self.settings.idle_lengths > 0])
        hidden = (_CLASS_ENTRIES if num_classes == 0 else ()) + (
            _SLOT_ENTRIES if self.settings.idle_lengths == 0 else ()
        )
        self._entries = [name for name in ClusterView._fields if name not in hidden]
        self._views = self._allocate_views(max_edges)
        self._shown = ShownRows(
            stages=np.full((n, self.max_stages), NO_STAGE, np.int64),
            jobs=np.full((n, self.max_jobs), NO_JOB, np.int64),
            row_of_stage=np.full((n, num_stages), NO_ROW, np.int64),
            row_of_job=np.full((n, self.settings.num_jobs), NO_ROW, np.int64),
        )
        self._simulators: list[Simulator | None] = [None] * n
        # What the shown observation was read from: a simulator's state, or a followed cluster's.
        self._states: list[Any] = [None] * n
        self._num_masked = np.zeros(n, np.int64)

    def _allocate_views(self, max_edges: int) -> ClusterView:
        """Allocate the arrays of the observations."""
        n = self.count
        num_rows = self.max_stages
        num_classes = self.num_classes
        return ClusterView(
            stages=np.zeros((n, num_rows, len(StageFeature)), np.float32),
            stage_job=np.full((n, num_rows), NO_ROW, np.int32),
            edges=np.full((n, max_edges, 2), NO_ROW, np.int32),
            jobs=np.zeros((n, self.max_jobs, len(JobFeature)), np.float32),
            cluster=np.zeros((n, len(ClusterFeature)), np.float32),
            classes=np.zeros((n, num_classes, len(ClassFeature)), np.float32),
            stage_fit=np.zeros((n, num_rows, len(FitFeature) + num_classes), np.float32),
            stage_slot=np.zeros((n, num_rows, len(SlotFeature)), np.float32),
            class_mask=np.zeros((n, num_rows + 1, num_classes + 1), np.bool_),
            slot_mask=np.zeros((n, num_rows + 1, self.settings.idle_lengths + 1), np.bool_),
            action_mask=np.zeros((n, self._sizes[self._is_chosen].sum()), np.bool_),
        )

    def _spaces(self) -> tuple[spaces.Dict, spaces.MultiDiscrete]:
        """Return the space of the observations and that of the actions."""
        views = self._views
        largest_row = {"stage_job": self.max_jobs - 1, "edges": self.max_stages - 1}
        boxes: dict[str, spaces.Space[Any]] = {}
        for name in self._entries:
            array = getattr(views, name)
            if name in largest_row:  # row numbers, NO_ROW in unused rows
                boxes[name] = spaces.Box(
                    NO_ROW, max(0, largest_row[name]), array.shape[1:], np.int32
                )
            else:
                high = 1 if array.dtype == np.bool_ else BOUND
                boxes[name] = spaces.Box(0, high, array.shape[1:], array.dtype)
        return spaces.Dict(boxes), spaces.MultiDiscrete(self._sizes[self._is_chosen])

    def simulator(self, row: int) -> Simulator:
        """Return the simulator of an episode that was started."""
        simulator = self._simulators[row]
        assert simulator is not None, f"episode {row} was not started"
        return simulator

    def start(self, row: int, seed: int) -> None:
        """Begin the episode of a seed: jobs and random draws of `parcae simulate --seed`."""
        simulator = Simulator(
            self.settings.sequence(self.workload, seed), self.settings.cluster, seed
        )
        simulator.start()
        self._simulators[row] = simulator
        self._states[row] = simulator.state
        self._num_masked[row] = 0
        self._observe_next(row)

    def step(
        self, actions: Array, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], BoolArray, BoolArray]:
        """Apply one action in each of the given episodes; see `Episodes.step`.

        The reward of an action is minus the increase of the objective up to the next decision,
        times `reward_scale`.
        """
        rewards = np.zeros(self.count)
        terminated, truncated = np.zeros((2, self.count), np.bool_)
        for row in rows:
            simulator = self.simulator(row)
            before = self._cost_s(simulator)
            simulator.step(self.decision(row, actions[row]))
            self._observe_next(row)
            rewards[row] = -self.settings.reward_scale * (self._cost_s(simulator) - before)
            terminated[row] = simulator.status is Status.COMPLETE
            truncated[row] = simulator.status is Status.ENDED
        return rewards, terminated, truncated

    def decision(self, row: int, action: Array) -> Decision:
        """Return the decision that an action stands for in the present state.

        A masked choice is replaced by the first unmasked one, given the choices before it. A masked
        limit means all offered executors. A masked idle slot is one that has ended, or would have
        ended at the chosen limit: the stage runs instead.

        Raises:
            PolicyError: the action is not in the action space.
        """
        choice, level, executor_class, length = self._all_choices(action)
        view = ClusterView(*(a[row] for a in self._views))
        state = self._states[row]
        chosen = _first_unmasked(view.action_mask[: self.max_stages + 1], choice)
        if chosen == self.max_stages:
            self._num_masked[row] += chosen != choice
            return Decision()
        stage = int(self._shown.stages[row, chosen])
        limit = min(int(self.levels[level]), int(state.now.num_source[0]))
        chosen_class = _first_unmasked(view.class_mask[chosen], executor_class)
        hold_ms = (
            int(slot_ms(state, stage, limit, length, self.settings.idle_lengths))
            if length > 0
            else 0
        )
        # Count actions that had to be changed; the count is part of an episode's outcome.
        self._num_masked[row] += (chosen, chosen_class, hold_ms > 0) != (
            choice,
            executor_class,
            length > 0,
        )
        return Decision(
            stage, limit, ANY_CLASS if chosen_class == self.num_classes else chosen_class, hold_ms
        )

    def _all_choices(self, action: Array) -> list[int]:
        """Return the choices of stage, limit, class and idle slot.

        A choice that is not part of the action has a single value: any class, no idle slot.
        """
        if not self.action_space.contains(action):
            raise PolicyError(
                f"action {action} is not in {self.action_space}; "
                f"call action_space.sample() for an example of an action"
            )
        full_action = np.zeros(len(self._sizes), np.int64)
        full_action[self._is_chosen] = action
        choices: list[int] = full_action.tolist()
        return choices

    def action(self, row: int, decision: Decision) -> npt.NDArray[np.int64]:
        """Return the action that stands for a decision, e.g. one of a heuristic.

        The limit and the idle slot are the first choices that are at least as large as the
        decision's.

        Example: `env.step(episodes.action(0, policy.decide(episodes.simulator(0).observe())))`.

        Raises:
            PolicyError: the stage has no row, or there are no idle slots to choose from.
        """
        if decision.stage == NO_STAGE:
            return self._to_action(self.max_stages, 0, self.num_classes, 0)
        choice = int(self._shown.row_of_stage[row, decision.stage])
        if choice == NO_ROW:
            raise PolicyError(
                f"stage {decision.stage} is not shown; make max_jobs and max_stages larger"
            )
        num_offered = int(self._states[row].now.num_source[0])
        level = int(np.searchsorted(self.levels, min(decision.limit, num_offered)))
        executor_class = (
            self.num_classes if decision.executor_class == ANY_CLASS else decision.executor_class
        )
        return self._to_action(
            choice,
            level,
            executor_class,
            self._slot_length(row, decision, min(int(self.levels[level]), num_offered)),
        )

    def _to_action(self, *choices: int) -> npt.NDArray[np.int64]:
        """Return the action with the given choices, without those that no action has."""
        action: npt.NDArray[np.int64] = np.array(choices, np.int64)[self._is_chosen]
        return action

    def _slot_length(self, row: int, decision: Decision, limit: int) -> int:
        """Return the shortest idle slot that is as long as the decision's, or the longest one."""
        if not decision.hold_ms:
            return 0
        num_lengths = self.settings.idle_lengths
        state = self._states[row]
        if not num_lengths:
            raise PolicyError(
                f"stage {decision.stage} gets an idle slot, but the environment has none to "
                f"choose from; set idle_lengths"
            )
        slots = [
            int(slot_ms(state, decision.stage, limit, k, num_lengths))
            for k in range(1, num_lengths + 1)
        ]
        return 1 + min(int(np.searchsorted(slots, decision.hold_ms)), num_lengths - 1)

    def observations(self) -> Arrays:
        """Return the observation of every episode in new arrays, each [count, ...]."""
        return {name: getattr(self._views, name).copy() for name in self._entries}

    def outcome(self, row: int) -> dict[str, float]:
        """Return the metrics of an episode that is over.

        For a job that is not complete, the time up to the end of the episode is used.
        """
        simulator = self.simulator(row)
        summary = summarize(simulator.trace(_POLICY), simulator.sequence)
        return {
            "seed": simulator.seed,
            "average_jct_s": s_from_ms(summary.average_jct_ms),
            "p95_jct_s": s_from_ms(summary.p95_jct_ms),
            "makespan_s": s_from_ms(summary.makespan_ms),
            "mean_slowdown": summary.mean_slowdown,
            "utilization": summary.utilization,
            "num_unfinished": summary.unfinished,
            "num_decisions": summary.decisions,
            "num_masked_actions": int(self._num_masked[row]),
        }

    def _observe_next(self, row: int) -> None:
        """Advance to the next decision with a choice, and write the observation."""
        simulator = self.simulator(row)
        while simulator.status is Status.NEEDS_DECISION and not has_choice(simulator.state):
            simulator.step(Decision())
        self._write(row)

    def follow(self, row: int, observation: Observation) -> bool:
        """Show a cluster that is stepped elsewhere, as a policy does that was trained here.

        `observations` and `decision` of the episode in this row then refer to that cluster.

        Returns:
            Whether there is a choice; where there is none, nothing is shown.
        """
        self._states[row] = observation
        if not has_choice(observation):
            return False
        num_stages = max(self._shown.row_of_stage.shape[1], len(observation.stages))
        num_jobs = max(self._shown.row_of_job.shape[1], len(observation.jobs))
        if (num_jobs, num_stages) != (
            self._shown.row_of_job.shape[1],
            self._shown.row_of_stage.shape[1],
        ):
            self._shown = self._shown._replace(
                row_of_stage=np.full((self.count, num_stages), NO_ROW, np.int64),
                row_of_job=np.full((self.count, num_jobs), NO_ROW, np.int64),
            )
        self._write(row)
        return True

    def _write(self, row: int) -> None:
        """Write the observation of the cluster of one row."""
        shown = ShownRows(*(a[row] for a in self._shown))
        view = ClusterView(*(a[row] for a in self._views))
        write_view(self._states[row], shown, view, self.levels, self.scales)

    def _cost_s(self, simulator: Simulator) -> float:
        """Return the objective so far: seconds of jobs in the system, or seconds of makespan."""
        now = simulator.state.now
        if self.settings.objective is Objective.AVERAGE_JCT:
            return s_from_ms(
                int(now.job_ms[0])
                + int(now.num_active[0]) * int(now.clock_ms[0] - now.accounted_ms[0])
            )
        if simulator.status is Status.COMPLETE:
            return s_from_ms(int(simulator.state.jobs.completion_ms.max()))
        return s_from_ms(int(now.clock_ms[0]))


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

    def __init__(self, num_envs: int = 1, **settings: Any) -> None:
        super().__init__(ClusterEpisodes(num_envs, read_cluster(settings)))
