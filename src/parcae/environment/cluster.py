"""`parcae/Cluster-v0`: Decima's cluster as a Gymnasium environment; it steps the simulator and keeps no state of its own.

An episode is one sequence of jobs, a step one decision: which stage the executors that are asked about go to, and how many of
them at most; of which class, where there are several; and how long they wait for it, where there are idle slots. Stage and limit
are masked apart, and every pair of unmasked choices can be carried out; what may be chosen of the others depends on the stage.

Source: Decima, section 5 (states, actions, rewards) and 7.3 (classes); Duan & Wu, section III (idle slots).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from parcae.cluster.decision import Decision
from parcae.cluster.kernels.tables import slot_ms
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.environment.adapters import Array, Arrays, BoolArray, EpisodeEnv, EpisodeVectorEnv
from parcae.environment.kernels import has_choice, show
from parcae.environment.layout import (
    BOUND,
    NO_ROW,
    ClassFeature,
    ClusterFeature,
    ClusterView,
    FitFeature,
    JobFeature,
    Shown,
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

#: The name of the policy in the trace of an episode.
_POLICY = "environment"
#: What is shown only where there are several executor classes, or idle slots.
_OF_CLASSES = ("classes", "stage_fit", "class_mask")
_OF_SLOTS = ("stage_slot", "slot_mask")


def _first_unmasked(mask: BoolArray, choice: int) -> int:
    return choice if mask[choice] else int(np.argmax(mask))


class ClusterEpisodes:
    """Clusters side by side.

    Args:
        count: how many.
        settings: the same for all.

    Raises:
        ConfigError: no such workload, model or arrivals.
        WorkloadError: a stage that fits no executor class.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def __init__(self, count: int, settings: ClusterSettings) -> None:
        self.count = count
        self.settings = settings
        self.workload = settings.load()
        settings.sequence(self.workload, 0)  # refuses arrivals that cannot be drawn
        every_job = np.arange(len(self.workload.jobs))
        check_fits(JobSequence(self.workload, every_job, 0 * every_job), settings.cluster)
        self.scales = scales_of(self.workload, settings.cluster.classes)
        largest_job = max(len(job.stages) for job in self.workload.jobs)
        most_edges = max(
            sum(len(stage.parents) for stage in job.stages) for job in self.workload.jobs
        )
        self.max_jobs = min(settings.max_jobs or settings.num_jobs, settings.num_jobs)
        self.max_stages = min(
            settings.max_stages or self.max_jobs * largest_job, self.max_jobs * largest_job
        )
        executors = settings.cluster.total_executors
        num_limits = settings.num_limits or executors
        self.levels = -(-executors * np.arange(1, num_limits + 1) // num_limits)
        self.num_classes = len(settings.cluster.classes) if len(settings.cluster.classes) > 1 else 0
        self._allocate(max(1, self.max_jobs * most_edges), settings.num_jobs * largest_job)
        self.observation_space, self.action_space = self._spaces()

    def _allocate(self, max_edges: int, num_stages: int) -> None:
        n = self.count
        num_rows = self.max_stages
        num_classes = self.num_classes
        self._sizes = np.array(
            [num_rows + 1, len(self.levels), num_classes + 1, self.settings.idle_lengths + 1]
        )
        self._is_chosen = np.array([True, True, num_classes > 0, self.settings.idle_lengths > 0])
        left_out = (_OF_CLASSES if num_classes == 0 else ()) + (
            _OF_SLOTS if self.settings.idle_lengths == 0 else ()
        )
        self._entries = [name for name in ClusterView._fields if name not in left_out]
        self._views = ClusterView(
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
        self._shown = Shown(
            stages=np.full((n, self.max_stages), NO_STAGE, np.int64),
            jobs=np.full((n, self.max_jobs), NO_JOB, np.int64),
            row_of_stage=np.full((n, num_stages), NO_ROW, np.int64),
            row_of_job=np.full((n, self.settings.num_jobs), NO_ROW, np.int64),
        )
        self._simulators: list[Simulator | None] = [None] * n
        self._num_masked = np.zeros(n, np.int64)

    def _spaces(self) -> tuple[spaces.Dict, spaces.MultiDiscrete]:
        views = self._views
        last = {"stage_job": self.max_jobs - 1, "edges": self.max_stages - 1}
        boxes: dict[str, spaces.Space[Any]] = {}
        for name in self._entries:
            array = getattr(views, name)
            if name in last:  # rows that may be left over
                boxes[name] = spaces.Box(NO_ROW, max(0, last[name]), array.shape[1:], np.int32)
            else:
                high = 1 if array.dtype == np.bool_ else BOUND
                boxes[name] = spaces.Box(0, high, array.shape[1:], array.dtype)
        return spaces.Dict(boxes), spaces.MultiDiscrete(self._sizes[self._is_chosen])

    def simulator(self, row: int) -> Simulator:
        """The simulator of an episode that was started."""
        simulator = self._simulators[row]
        assert simulator is not None, f"episode {row} was not started"
        return simulator

    def start(self, row: int, seed: int) -> None:
        """Begin the episode of that seed: the jobs and the luck of `parcae simulate --seed`."""
        simulator = Simulator(
            self.settings.sequence(self.workload, seed), self.settings.cluster, seed
        )
        simulator.start()
        self._simulators[row] = simulator
        self._num_masked[row] = 0
        self._show(row)

    def step(
        self, actions: Array, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], BoolArray, BoolArray]:
        """Decide in some rows; the reward of a decision is minus what accrued from it to the next one."""
        rewards = np.zeros(self.count)
        terminated, truncated = np.zeros((2, self.count), np.bool_)
        for row in rows:
            simulator = self.simulator(row)
            before = self._cost_s(simulator)
            simulator.step(self.decision(row, actions[row]))
            self._show(row)
            rewards[row] = -self.settings.reward_scale * (self._cost_s(simulator) - before)
            terminated[row] = simulator.status is Status.COMPLETE
            truncated[row] = simulator.status is Status.ENDED
        return rewards, terminated, truncated

    def decision(self, row: int, action: Array) -> Decision:
        """What an action means now. A masked choice counts as the first one that is not masked, given those before it.

        Masked limits mean all executors asked about. A masked idle slot is one that is over, or would be at the chosen limit.

        Raises:
            PolicyError: no such action.
        """
        choice, level, executor_class, length = self._whole(action)
        view = ClusterView(*(a[row] for a in self._views))
        state = self.simulator(row).state
        taken = _first_unmasked(view.action_mask[: self.max_stages + 1], choice)
        if taken == self.max_stages:
            self._num_masked[row] += taken != choice
            return Decision()
        stage = int(self._shown.stages[row, taken])
        limit = min(int(self.levels[level]), int(state.now.num_source[0]))
        taken_class = _first_unmasked(view.class_mask[taken], executor_class)
        hold_ms = (
            int(slot_ms(state, stage, limit, length, self.settings.idle_lengths))
            if length > 0
            else 0
        )
        self._num_masked[row] += (taken, taken_class, hold_ms > 0) != (
            choice,
            executor_class,
            length > 0,
        )
        return Decision(
            stage, limit, ANY_CLASS if taken_class == self.num_classes else taken_class, hold_ms
        )

    def _whole(self, action: Array) -> list[int]:
        """Stage, limit, class and idle slot: what there is no choice of is the only one, any class or no slot."""
        if not self.action_space.contains(action):
            raise PolicyError(
                f"action {action} is not in {self.action_space}; sample one from there to see what it looks like"
            )
        whole = np.zeros(len(self._sizes), np.int64)
        whole[self._is_chosen] = action
        choices: list[int] = whole.tolist()
        return choices

    def action(self, row: int, decision: Decision) -> npt.NDArray[np.int64]:
        """The action that means a decision, e.g. a heuristic's; limit and idle slot are the first that are as large.

        Example: `env.step(episodes.action(0, policy.decide(episodes.simulator(0).observe())))`.

        Raises:
            PolicyError: the stage has no row, or there are no idle slots to choose from.
        """
        if decision.stage == NO_STAGE:
            return self._chosen(self.max_stages, 0, self.num_classes, 0)
        choice = int(self._shown.row_of_stage[row, decision.stage])
        if choice == NO_ROW:
            raise PolicyError(
                f"stage {decision.stage} is not shown; make max_jobs and max_stages larger"
            )
        of_source = int(self.simulator(row).state.now.num_source[0])
        level = int(np.searchsorted(self.levels, min(decision.limit, of_source)))
        executor_class = (
            self.num_classes if decision.executor_class == ANY_CLASS else decision.executor_class
        )
        return self._chosen(
            choice,
            level,
            executor_class,
            self._length(row, decision, min(int(self.levels[level]), of_source)),
        )

    def _chosen(self, *choices: int) -> npt.NDArray[np.int64]:
        """The action of a stage, a limit, a class and an idle slot: those that there is a choice of."""
        action: npt.NDArray[np.int64] = np.array(choices, np.int64)[self._is_chosen]
        return action

    def _length(self, row: int, decision: Decision, limit: int) -> int:
        """The shortest idle slot at a limit that is as long as a decision's, or the longest."""
        if not decision.hold_ms:
            return 0
        num_lengths = self.settings.idle_lengths
        state = self.simulator(row).state
        if not num_lengths:
            raise PolicyError(
                f"stage {decision.stage} gets an idle slot, and there are none to choose from; set idle_lengths"
            )
        slots = [
            int(slot_ms(state, decision.stage, limit, k, num_lengths))
            for k in range(1, num_lengths + 1)
        ]
        return 1 + min(int(np.searchsorted(slots, decision.hold_ms)), num_lengths - 1)

    def observations(self) -> Arrays:
        """What every episode shows, each [count, ...]: new arrays."""
        return {name: getattr(self._views, name).copy() for name in self._entries}

    def outcome(self, row: int) -> dict[str, float]:
        """What an episode that is over came to; jobs that its end cut off count up to it."""
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

    def _show(self, row: int) -> None:
        """Go on to a decision with a choice, and write what it shows."""
        simulator = self.simulator(row)
        while simulator.status is Status.NEEDS_DECISION and not has_choice(simulator.state):
            simulator.step(Decision())
        shown = Shown(*(a[row] for a in self._shown))
        view = ClusterView(*(a[row] for a in self._views))
        show(simulator.state, shown, view, self.levels, self.scales)

    def _cost_s(self, simulator: Simulator) -> float:
        """The objective as it has accrued: seconds of jobs in the system, or seconds."""
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

    Example: `gymnasium.make("parcae/Cluster-v0", workload="tpch", num_jobs=10, executors=10, moving_delay_ms=200)`.
    """

    episodes: ClusterEpisodes

    def __init__(self, *, render_mode: None = None, **settings: Any) -> None:
        super().__init__(ClusterEpisodes(1, read_cluster(settings)))


class ClusterVectorEnv(EpisodeVectorEnv):
    """Many of `parcae/Cluster-v0`: `gymnasium.make_vec(..., vectorization_mode="vector_entry_point")`."""

    episodes: ClusterEpisodes

    def __init__(self, num_envs: int = 1, **settings: Any) -> None:
        super().__init__(ClusterEpisodes(num_envs, read_cluster(settings)))
