"""`RolloutPolicy`: a policy that tries its decisions in rollouts first.

Source: Bertsekas and Castanon, "Rollout algorithms for stochastic scheduling problems" (1999).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parcae.cluster.decision import Decision, objection
from parcae.cluster.kernels.tables import may_idle
from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rollouts.playing import Assumptions, Rollouts, Trials, roll_out
from parcae.decima.rollouts.race import Clock, Costs, choose
from parcae.decima.rule.policy import RulePolicy
from parcae.policies.compiled import size_of
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.kernels.playing import Simulation
from parcae.simulation.many import SimulatorRows, room_for
from parcae.workloads.workload import Workload

#: Stages that Decima's network proposes.
_PROPOSALS = 8
#: Other limits that are tried for the base's stage, relative to its own.
_LIMIT_FACTORS = (0.5, 0.75, 1.5, 2.0)
#: Most other stages of the same job, and most other jobs, that are tried.
_MOST_STAGES = 3
_MOST_JOBS = 3
#: Most decisions that are tried.
_MOST_CANDIDATES = 16
#: Most jobs that arrive in a rollout.
_MOST_ARRIVALS = 64
#: How long a rollout with jobs to come is, relative to the mean time that a job needs on the whole
#: cluster.
_HORIZON = 6.0
#: The same without jobs to come: long enough that it usually ends with the last job.
_LONG_HORIZON = 60.0
#: Rollouts that a thread plays at once, unless the decision has a time.
_SLICE = 8
#: The cost of a rollout that did not end.
_NO_END = 1e30
_SEED = 0x726F6C6C

#: A policy that rollouts can go on under.
Player = RulePolicy | HeuristicPolicy | DecimaPolicy


@dataclass(frozen=True)
class RolloutModel:
    """What rollouts know of the cluster besides its present state."""

    workload: Workload
    config: SimulationConfig
    mean_gap_ms: float = 0.0

    def assumptions(self, horizon: float, mean_gap_ms: float) -> Assumptions:
        """What a kind of rollouts assumes."""
        jobs = self.workload.jobs
        weights = self.workload.weights
        executors = self.config.total_executors
        # The mean time that a job needs on the whole cluster.
        alone_ms = np.average(
            [max(job.critical_path_ms, job.work_ms / executors) for job in jobs], weights=weights
        )
        error = self.config.estimate_error
        return Assumptions(
            np.array([max(1, round(horizon * float(alone_ms)))]),
            np.array([mean_gap_ms]),
            np.cumsum(np.ones(len(jobs)) if weights is None else np.array(weights)),
            np.array([job.work_sigma if error == "log" else error for job in jobs], np.float64),
        )


class RolloutRuns:
    """Runs for rollouts, one for each thread."""

    def __init__(self, model: RolloutModel, num_threads: int) -> None:
        self._model = model
        self._num_threads = num_threads
        self._room: tuple[int, ...] = ()
        self._runs: list[Simulation] = []
        #: What rollouts assume that play the jobs in the system, and no others.
        self.present = model.assumptions(_LONG_HORIZON, mean_gap_ms=0.0)
        #: What rollouts assume in which jobs arrive; None: no job will arrive.
        self.to_come: Assumptions | None = None
        if model.mean_gap_ms > 0:
            self.to_come = model.assumptions(_HORIZON, model.mean_gap_ms)

    def __getstate__(self) -> dict[str, Any]:
        """The runs without their tables, which every process makes itself."""
        return {**self.__dict__, "_runs": [], "_room": ()}

    def fit(self, observation: Observation) -> None:
        """Make room for the observed cluster, and for jobs that will arrive."""
        shape = (len(observation.jobs), len(observation.stages), len(observation.children))
        if self._runs and all(a <= b for a, b in zip(shape, self._room, strict=True)):
            return
        # What happens to executors is as unknown as what happens to jobs.
        config = self._model.config.model_copy(update={"faults": None, "elastic": None})
        workload = self._model.workload
        more = room_for(workload, _MOST_ARRIVALS if self.to_come is not None else 0)
        many = SimulatorRows(
            self._num_threads,
            workload,
            config,
            num_jobs=shape[0] + more["num_jobs"],
            num_stages=shape[1] + more["num_stages"],
            num_edges=shape[2] + more["num_edges"],
            num_tasks=0,
        )
        many.futures.events.moving_delay_ms[:] = config.moving_delay_ms
        many.futures.events.warmup_delay_ms[:] = config.warmup_delay_ms
        self._room = shape
        self._runs = [
            Simulation(many.state(row), many.future(row), many.tables) for row in range(len(many))
        ]

    def play(self, play: Callable[[Simulation, int, int], None], total: int, clock: Clock) -> bool:
        """Play trials on all threads. Returns False if the deadline passed meanwhile."""

        def play_part(run: Simulation, first: int, last: int) -> bool:
            # A rollout of a cluster with many jobs can take as long as a decision may.
            count = _SLICE if clock.ms is None else 1
            for begin in range(first, last, count):
                if clock.is_late:
                    return False
                play(run, begin, min(begin + count, last))
            return True

        bounds = np.linspace(0, total, len(self._runs) + 1).astype(int).tolist()
        parts = list(itertools.pairwise(bounds))
        if len(parts) == 1:
            return play_part(self._runs[0], 0, total)
        with ThreadPoolExecutor(len(parts)) as pool:
            return all(list(pool.map(play_part, self._runs, *zip(*parts, strict=True))))


class Sampler:
    """Samples of the options of one decision, whose rollouts go on under a player."""

    def __init__(
        self,
        runs: RolloutRuns,
        observation: Observation,
        options: Sequence[Decision],
        player: Player,
        clock: Clock,
    ) -> None:
        runs.fit(observation)
        self._runs = runs
        self._observation = observation
        self._options = np.array(options, np.int64)
        self._player = player
        self._clock = clock
        # The same observation gets the same random bits.
        number = int(observation.now.num_decisions[0])
        self._rng = np.random.default_rng([_SEED, int(observation.now.clock_ms[0]), number])

    def __call__(self, assumed: Assumptions, rows: list[int], count: int) -> Costs | None:
        """Play samples of options. Returns the time of all jobs in ms, float64[options, samples];
        None if the deadline passed meanwhile.
        """
        decisions = np.repeat(self._options[rows].T, count, axis=1)
        seeds = self._rng.integers(0, 1 << 63, count).astype(np.uint64)
        total = len(rows) * count
        trials = Trials._make(
            [*decisions, np.tile(seeds, len(rows)), np.zeros(total), np.zeros(total, np.int64)]
        )
        rollouts = Rollouts(self._observation, trials, assumed)

        def play(run: Simulation, first: int, last: int) -> None:
            roll_out(run, rollouts, self._player.tables_for(*size_of(run.state)), first, last)

        if not self._runs.play(play, total, self._clock):
            return None
        has_ended = (trials.status == Status.COMPLETE) | (trials.status == Status.ENDED)
        return np.where(has_ended, trials.job_ms, _NO_END).reshape(len(rows), count)


@dataclass
class RolloutPolicy:
    """A policy of Decima's world that tries its decisions first.

    It plays every candidate decision in rollouts that go on under a fast policy, with everything
    unknown drawn anew, and takes the one after which jobs spend the least time in the system. If
    none is surely better, it takes the decision of its base policy. A decision may have a time.
    """

    name: str
    base: Any
    player: Player
    model: RolloutModel
    budget_ms: float | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        self._runs = RolloutRuns(self.model, self.num_threads)

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event."""
        clock = Clock(self.budget_ms)
        options = self.options(observation)
        if len(options) == 1:
            return options[0]
        runs = self._runs
        sampler = Sampler(runs, observation, options, self.player, clock)
        with_arrivals = None if runs.to_come is None else partial(sampler, runs.to_come)
        return options[choose(partial(sampler, runs.present), len(options), clock, with_arrivals)]

    def options(self, observation: Observation) -> list[Decision]:
        """The decisions that it tries, its base's own first."""
        base: Decision = self.base.decide(observation)
        others = [] if self.player is self.base else [self.player.decide(observation)]
        if isinstance(self.base, DecimaPolicy):
            others += self.base.proposals(observation, _PROPOSALS)
        return candidates(observation, base, others, may_idle=bool(may_idle(observation)))


def candidates(
    observation: Observation, base: Decision, others: list[Decision], *, may_idle: bool
) -> list[Decision]:
    """The decisions to try, the base's own first.

    They are other limits for its stage, other stages of its job, stages of the jobs with the least
    remaining work with half or all of the executors, and to idle.
    """
    offered = int(observation.now.num_source[0])
    jobs = observation.stages.job

    def effect(decision: Decision) -> tuple[int, int, int]:
        """The stage, the idle slot, and how many executors go there if all offered ones fit."""
        taken = offered
        if decision.stage != NO_STAGE:
            taken = min(decision.limit, observation.demand(decision.stage), offered)
        return decision.stage, decision.hold_ms, taken

    # No two have the same effect.
    found = {effect(base): base}

    def add(stage: int, limit: int) -> None:
        is_own = stage == base.stage or len(observation.classes) == 1
        executor_class = base.executor_class if is_own else ANY_CLASS
        decision = Decision(stage, max(1, limit), executor_class, 0)
        if effect(decision) not in found and objection(observation, decision) is None:
            found[effect(decision)] = decision

    for other in others:
        if other.stage != NO_STAGE:
            add(other.stage, other.limit)
    # The schedulable stages of every job, those with the heaviest path to a leaf first.
    of_job: dict[int, list[int]] = {}
    for stage in observation.schedulable_stages():
        of_job.setdefault(int(jobs[stage]), []).append(stage)
    for stages in of_job.values():
        stages.sort(key=lambda stage: -float(observation.stages.downstream_ms[stage]))
    if base.stage != NO_STAGE:
        *_, taken = effect(base)
        for factor in _LIMIT_FACTORS:
            add(base.stage, round(factor * taken))
        add(base.stage, offered)
        siblings = of_job.pop(int(jobs[base.stage]), [])
        for stage in [stage for stage in siblings if stage != base.stage][:_MOST_STAGES]:
            add(stage, base.limit)
    ranked = sorted(of_job, key=lambda job: float(observation.jobs.remaining_ms[job]))
    for job in ranked[:_MOST_JOBS]:
        add(of_job[job][0], offered)
        add(of_job[job][0], offered // 2)
    options = list(found.values())
    if may_idle and base.stage != NO_STAGE:
        options.append(Decision(NO_STAGE, offered, ANY_CLASS, 0))
    return options[:_MOST_CANDIDATES]
