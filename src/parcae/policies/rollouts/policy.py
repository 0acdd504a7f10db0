"""`RolloutPolicy`: tries decisions in rollouts of a base policy and makes the best one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parcae.cluster.decision import Decision
from parcae.cluster.kernels.tables import may_idle
from parcae.cluster.observation import Observation
from parcae.cluster.state import World, allocate, select
from parcae.policies.heuristics.policy import HeuristicPolicy
from parcae.policies.rollouts.candidates import candidates
from parcae.policies.rollouts.race import Budget, Clock, Costs, race
from parcae.policies.rule.policy import RulePolicy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Future, Status, allocate_future
from parcae.simulation.kernels.rollouts import Arrivals, Trials
from parcae.simulation.kernels.simulations import Simulation
from parcae.simulation.tables import workload_tables
from parcae.workloads.job import Workload

#: Most jobs that arrive in a rollout.
_MOST_ARRIVALS = 64
#: Most decisions that are tried.
_MOST_CANDIDATES = 16
#: Rollouts that a thread plays between two looks at the clock.
_SLICE = 8
#: The cost of a rollout that did not end.
_NO_END = 1e30
_SEED = 0x726F6C6C


@dataclass(frozen=True)
class RolloutModel:
    """What rollouts know of the cluster besides its present state.

    Args:
        workload: the profiles of recurring jobs. Durations are drawn from them.
        config: the cluster.
        mean_gap_ms: mean time between arrivals; 0: no job will arrive.
    """

    workload: Workload
    config: SimulationConfig
    mean_gap_ms: float = 0.0


@dataclass
class RolloutPolicy:
    """A policy that tries its decisions first.

    It plays every candidate decision in rollouts that go on under a fast policy, with everything
    unknown drawn anew, and takes the one after which jobs spend the least time in the system. If
    none is surely better, it takes the decision of its base policy.

    Args:
        name: name in tables and reports.
        base: the policy whose decisions it improves; any policy that decides.
        player: the compiled policy that rollouts go on with.
        model: what rollouts know.
        budget: what a decision may cost.
        num_threads: threads that play rollouts; the decisions do not depend on it (unless the
            budget is a time).

    Source: Bertsekas and Castanon 1999.
    """

    name: str
    base: Any
    player: RulePolicy | HeuristicPolicy
    model: RolloutModel
    budget: Budget = field(default_factory=Budget)
    num_threads: int = 1
    _runs: list[Simulation] = field(default_factory=list, init=False, repr=False)
    _room: tuple[int, int, int] = field(default=(0, 0, 0), init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """The policy without its tables, which every process makes itself."""
        return {**self.__dict__, "_runs": [], "_room": (0, 0, 0)}

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event."""
        clock = Clock(self.budget)
        base = self.base.decide(observation)
        others = [] if self.player is self.base else [self.player.decide(observation)]
        can_idle = bool(may_idle(observation))
        options = candidates(observation, base, others, may_idle=can_idle)[:_MOST_CANDIDATES]
        if len(options) == 1:
            return base
        self._make_room(observation)
        rounds = _Rounds(self, observation, options, clock)
        return options[race(rounds.play, len(options), self.budget, clock)]

    def _make_room(self, observation: Observation) -> None:
        """Allocate the tables of a run for each thread, if the present ones are too small."""
        shape = (len(observation.jobs), len(observation.stages), len(observation.children))
        if self._runs and all(a <= b for a, b in zip(shape, self._room, strict=True)):
            return
        workload = self.model.workload
        config = self.model.config
        num_more = _MOST_ARRIVALS if self.model.mean_gap_ms > 0 else 0
        most_stages = max(len(job.stages) for job in workload.jobs)
        most_edges = max(sum(len(s.parents) for s in job.stages) for job in workload.jobs)
        num_jobs = shape[0] + num_more
        num_stages = shape[1] + num_more * most_stages
        num_edges = max(1, shape[2] + num_more * most_edges)
        states = allocate(self.num_threads, config.classes, num_jobs, num_stages, num_edges)
        futures = allocate_future(
            self.num_threads, config.total_executors, num_jobs, num_stages, 0, 0
        )
        futures.events.moving_delay_ms[:] = config.moving_delay_ms
        futures.events.warmup_delay_ms[:] = config.warmup_delay_ms
        tables = workload_tables(workload, config.durations, config.interpolation, World.EXECUTORS)
        self._runs = [
            Simulation(select(states, row), Future(*(table[row] for table in futures)), tables)
            for row in range(self.num_threads)
        ]
        self._room = shape

    def arrivals(self, observation: Observation) -> Arrivals:
        """The jobs to come: they arrive until the present work would be done."""
        weights = self.model.workload.weights
        shares = np.ones(len(self.model.workload.jobs)) if weights is None else np.array(weights)
        work_ms = float(observation.jobs.remaining_ms[observation.active_jobs].sum())
        horizon_ms = work_ms / self.model.config.total_executors
        return Arrivals(
            np.array([self.model.mean_gap_ms]), np.array([horizon_ms]), np.cumsum(shares)
        )

    @property
    def runs(self) -> list[Simulation]:
        """The runs in which rollouts are played, one for each thread."""
        return self._runs


class _Rounds:
    """Plays the rollouts of one decision.

    Args:
        policy: the policy that decides; it has room for the observation.
        observation: what the rollouts start from.
        options: the decisions to try.
        clock: the decision's clock.
    """

    def __init__(
        self,
        policy: RolloutPolicy,
        observation: Observation,
        options: Sequence[Decision],
        clock: Clock,
    ) -> None:
        self._policy = policy
        self._observation = observation
        self._options = options
        self._clock = clock
        self._arrivals = policy.arrivals(observation)
        # The same observation has the same random bits again.
        number = int(observation.now.num_decisions[0])
        self._seeds = np.random.default_rng([_SEED, int(observation.now.clock_ms[0]), number])

    def play(self, rows: list[int], count: int) -> Costs | None:
        """Play samples of options; None if the deadline passed meanwhile.

        Args:
            rows: rows of the options.
            count: number of samples of each.

        Returns:
            float64[options, samples], job time in ms.
        """
        seeds = self._seeds.integers(0, 1 << 63, count).astype(np.uint64)
        total = len(rows) * count
        trials = Trials(
            np.repeat([self._options[row].stage for row in rows], count),
            np.repeat([self._options[row].limit for row in rows], count),
            np.repeat([self._options[row].executor_class for row in rows], count),
            np.tile(seeds, len(rows)),
            np.zeros(total),
            np.zeros(total, np.int64),
        )
        if not self._play_all(trials, total):
            return None
        costs = trials.job_ms
        costs[trials.status != Status.COMPLETE] = _NO_END
        return costs.reshape(len(rows), count)

    def _play_all(self, trials: Trials, total: int) -> bool:
        """Play all trials on the policy's threads. Returns False if the deadline passed."""
        runs = self._policy.runs
        bounds = np.linspace(0, total, len(runs) + 1).astype(int)
        parts = list(itertools.pairwise(bounds.tolist()))
        if len(runs) == 1:
            return self._play_part(runs[0], trials, *parts[0])
        with ThreadPoolExecutor(len(runs)) as pool:
            done = [
                pool.submit(self._play_part, run, trials, first, last)
                for run, (first, last) in zip(runs, parts, strict=True)
            ]
            # Every part is awaited, also after one that was late.
            results = [part.result() for part in done]
        return all(results)

    def _play_part(self, run: Simulation, trials: Trials, first: int, last: int) -> bool:
        """Play some of the trials, in slices. Returns False if the deadline passed."""
        player = self._policy.player
        arguments = player.arguments_for(run.state)
        for begin in range(first, last, _SLICE):
            if self._clock.is_late:
                return False
            end = min(begin + _SLICE, last)
            player.roll_out(
                run, self._observation, trials, self._arrivals, *arguments, begin, end
            )
        return True
