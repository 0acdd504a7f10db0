"""`RolloutPolicy`: a policy that tries its decisions in rollouts first.

Source: Bertsekas and Castanon, "Rollout algorithms for stochastic scheduling problems" (1999).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.errors import PolicyError
from parcae.base.texts import ms_from_text
from parcae.cluster.kernels.tables import may_idle
from parcae.cluster.observation import Decision, Observation, objection
from parcae.cluster.state import ANY_CLASS, NO_STAGE, ClusterState
from parcae.decima.checkpoints import deciding_policy
from parcae.decima.corrector.policy import CorrectorPolicy
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rollouts.playing import (
    Assumptions,
    Clock,
    Costs,
    choose,
    roll_out,
)
from parcae.decima.rule import RulePolicy
from parcae.policies.compiled import size_of
from parcae.policies.learned import is_learned, shipped_policy
from parcae.policies.names import PolicyName
from parcae.policies.registry import TUNED_WORDS, PolicySetting, in_words, make
from parcae.simulation.config import SimulationConfig, mean_gap_ms
from parcae.simulation.future import Status
from parcae.simulation.kernels.playing import Simulation
from parcae.simulation.simulator import SimulatorRows, room_for
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
#: The cost of a rollout that did not end.
_NO_END = 1e30
_SEED = 0x726F6C6C

#: A policy that rollouts can go on under.
Player = RulePolicy | HeuristicPolicy | DecimaPolicy


class RolloutRuns:
    """Runs for rollouts, one for each thread, and what they know besides the present state."""

    def __init__(
        self,
        workload: Workload,
        config: SimulationConfig,
        mean_gap_ms: float = 0.0,
        num_threads: int = 1,
    ) -> None:
        self.workload = workload
        self.config = config
        self.mean_gap_ms = mean_gap_ms
        self._num_threads = num_threads
        self._room: tuple[int, ...] = ()
        self._runs: SimulatorRows | None = None
        #: The tables of all states, as int64[runs, size].
        self._blocks: list[npt.NDArray[np.int64]] = []
        #: What rollouts assume that play the jobs in the system, and no others.
        self.present = self._assumptions(_LONG_HORIZON, mean_gap_ms=0.0)
        #: What rollouts assume in which jobs arrive; None: no job will arrive.
        self.to_come: Assumptions | None = None
        if mean_gap_ms > 0:
            self.to_come = self._assumptions(_HORIZON, mean_gap_ms)

    def _assumptions(self, horizon: float, mean_gap_ms: float) -> Assumptions:
        """What a kind of rollouts assumes."""
        jobs = self.workload.jobs
        weights = self.workload.weights
        executors = self.config.total_executors
        # The mean time that a job needs on the whole cluster.
        alone_ms = np.average([job.ideal_ms(executors, False) for job in jobs], weights=weights)
        error = self.config.estimate_error
        return Assumptions(
            np.array([max(1, round(horizon * float(alone_ms)))]),
            np.array([mean_gap_ms]),
            np.cumsum(np.ones(len(jobs)) if weights is None else np.array(weights)),
            self.workload.runs.sigma if error == "log" else np.full(len(jobs), float(error)),
        )

    def __getstate__(self) -> dict[str, Any]:
        """The runs without their tables, which every process makes itself."""
        return {**self.__dict__, "_runs": None, "_blocks": []}

    def fit(self, observation: Observation) -> None:
        """Make room for the observed cluster, and for jobs that will arrive, and copy the cluster.

        The last row is the copy, and the others are played.
        """
        shape = (len(observation.jobs), len(observation.stages), len(observation.children))
        if self._runs is None or any(a > b for a, b in zip(shape, self._room, strict=True)):
            # What happens to executors is as unknown as what happens to jobs.
            config = self.config.model_copy(update={"faults": None, "elastic": None})
            more = room_for(self.workload, _MOST_ARRIVALS if self.to_come else 0)
            self._runs = many = SimulatorRows(
                self._num_threads + 1,
                self.workload,
                config,
                num_jobs=shape[0] + more["num_jobs"],
                num_stages=shape[1] + more["num_stages"],
                num_edges=shape[2] + more["num_edges"],
                num_tasks=0,
            )
            many.futures.events.moving_delay_ms[:] = config.moving_delay_ms
            many.futures.events.warmup_delay_ms[:] = config.warmup_delay_ms
            self._room = shape
            self._blocks = [
                np.asarray(table).view(np.int64).reshape(len(many), -1)
                for table in many.states
                if table.size
            ]
        for block in self._blocks:
            block[-1] = 0
        _copy_cluster(observation, self._runs.state(self._num_threads))

    def play(
        self, roll: Callable[[int, Simulation, Any], None], player: Player, total: int, clock: Clock
    ) -> bool:
        """Play rollouts of the copy on all threads: call roll(number, run, the player's tables).

        Returns False if the deadline passed meanwhile.
        """
        many = self._runs
        assert many is not None, "the runs fit no observation yet"

        def play_part(row: int, first: int, last: int) -> bool:
            run = Simulation(many.state(row), many.future(row), many.tables)
            tables = player.tables_for(*size_of(run.state))
            for number in range(first, last):
                # A rollout of a cluster with many jobs can take as long as a decision may.
                if clock.is_late:
                    return False
                for block in self._blocks:
                    block[row] = block[-1]
                roll(number, run, tables)
            return True

        if self._num_threads == 1:
            return play_part(0, 0, total)
        bounds = np.linspace(0, total, self._num_threads + 1).astype(int)
        parts = (range(self._num_threads), bounds[:-1].tolist(), bounds[1:].tolist())
        with ThreadPoolExecutor(self._num_threads) as pool:
            return all(list(pool.map(play_part, *parts)))


def _copy_cluster(observation: Observation, state: ClusterState) -> None:
    """Copy what an observation shows to an empty state, which may have room for more."""
    now = observation.now
    for name in observation._fields:
        table = getattr(observation, name)
        if name != "sources":
            getattr(state, name)[: len(table)] = table
    state.now.num_commands[0] = 0
    # Sources of stages lie behind those of all jobs.
    num_classes = len(observation.classes)
    first, here = (num_classes * (len(tables.jobs) + 1) for tables in (observation, state))
    of_jobs = num_classes * (int(now.num_jobs[0]) + 1)
    of_stages = num_classes * int(now.num_stages[0])
    state.sources[:of_jobs] = observation.sources[:of_jobs]
    state.sources[here : here + of_stages] = observation.sources[first : first + of_stages]
    for source in (state.commitments.source, state.now.source):
        source[source >= first] += here - first


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
        self._options = options
        self._player = player
        self._clock = clock
        # The same observation gets the same random bits.
        number = int(observation.now.num_decisions[0])
        self._rng = np.random.default_rng([_SEED, int(observation.now.clock_ms[0]), number])

    def __call__(self, assumed: Assumptions, rows: list[int], count: int) -> Costs | None:
        """Play samples of options. Returns the time of all jobs in ms, float64[options, samples];
        None if the deadline passed meanwhile.
        """
        seeds = self._rng.integers(0, 1 << 63, count).astype(np.uint64)
        costs = np.full((len(rows), count), _NO_END)

        def roll(number: int, run: Simulation, tables: Any) -> None:
            row, sample = divmod(number, count)
            decision = tuple(map(int, self._options[rows[row]]))
            status, job_ms = roll_out(run, assumed, seeds[sample], decision, tables)
            if status in (Status.COMPLETE, Status.ENDED):
                costs[row, sample] = job_ms

        return costs if self._runs.play(roll, self._player, costs.size, self._clock) else None


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
    runs: RolloutRuns
    budget_ms: float | None = None

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event."""
        clock = Clock(self.budget_ms)
        options = self.options(observation)
        if len(options) == 1:
            return options[0]
        runs = self.runs
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


#: The base of `plan` without one.
_BASE = "corrector"
_USAGE = "write plan[:BASE][:BUDGET][:THREADS], e.g. plan:tuned:20ms or plan:tuned:20ms:2threads"
_TIME = r"[0-9.]+m?s"
_THREADS = r"[0-9]{1,9}threads?"
_PARTS = re.compile(
    rf"plan(?::(?P<base>.*?))??(?::(?P<time>{_TIME}))?(?::(?P<threads>{_THREADS}))?", re.DOTALL
)
_MOST_THREADS = 64


class PlanText(NamedTuple):
    """The parts of a name plan[:BASE][:BUDGET][:THREADS]."""

    base: PolicyName
    budget_ms: float | None
    num_threads: int


def split_plan(name: PolicyName) -> PlanText:
    """Split a name into its base, the time of a decision and the number of threads.

    Example: `plan:tuned:batch:20ms` has the base "tuned:batch".
    """
    text = name.name
    parts = _PARTS.fullmatch(text)
    assert parts is not None, "a name that is `plan` has such parts"
    base = PolicyName(parts["base"] or _BASE)
    num_threads = 1 if parts["threads"] is None else int(parts["threads"].partition("t")[0])
    budget_ms = None if parts["time"] is None else ms_from_text(parts["time"])
    wrong = ""
    if not 1 <= num_threads <= _MOST_THREADS:
        wrong = f"{parts['threads']!r} is not between 1 and {_MOST_THREADS} threads"
    elif parts["time"] is not None and not 0 < (budget_ms or 0) < math.inf:
        wrong = f"{parts['time']!r} is no time above 0"
    elif re.fullmatch(f"{_TIME}|{_THREADS}", base.name.rpartition(":")[2]):
        wrong = "write one budget, and after it one number of threads"
    elif base.word == "plan":
        wrong = "the base cannot be 'plan' itself"
    if wrong:
        raise PolicyError(f"policy {text!r}: {wrong}; {_USAGE}")
    return PlanText(base, budget_ms, num_threads)


def rollout_policy(name: PolicyName, setting: PolicySetting) -> RolloutPolicy:
    """Return the policy `plan` of a name; rollouts draw durations and jobs from the workload.

    Raises:
        PolicyError: the name is wrong, or the base cannot be tried in rollouts.
        FormatError, FileNotFoundError: see `shipped_policy`.
    """
    parts = split_plan(name)
    workload, config = setting.workload, setting.config
    gap_ms = mean_gap_ms(workload, config, setting.arrivals)
    base = _base(name.name, parts.base, setting)
    runs = RolloutRuns(workload, config, gap_ms, parts.num_threads)
    return RolloutPolicy(name.name, base, _player(base, setting), runs, parts.budget_ms)


def base_in_words(name: PolicyName, setting: PolicySetting) -> str:
    """What the base of a name was resolved to, its budget and the threads."""
    base, budget_ms, num_threads = split_plan(name)
    found = in_words(base, setting) if is_learned(base) else base.name
    budget = "" if budget_ms is None else f", {budget_ms:g} ms a decision"
    threads = "" if num_threads == 1 else f", {num_threads} threads"
    return f"rollouts on {found}{budget}{threads}"


def _base(text: str, base: PolicyName, setting: PolicySetting) -> Any:
    """The base in Decima's world."""
    if is_learned(base):
        return deciding_policy(base, setting)
    if base.argument in TUNED_WORDS:
        raise PolicyError(
            f"policy {text!r}: its base needs its parameters as numbers, as in "
            "plan:weighted-fair:-1; `parcae compare` shows those that it finds for the base itself"
        )
    if base.word == "order":
        raise PolicyError(
            f"policy {text!r}: its base orders the jobs of one run, but rollouts have other jobs; "
            "give another base"
        )
    try:
        return make(base, setting)
    except PolicyError as error:
        raise PolicyError(f"policy {text!r}: its base: {error}") from None


def _player(base: Any, setting: PolicySetting) -> Player:
    """The policy that rollouts in Decima's world go on with: the base, if it is fast."""
    if isinstance(base, RulePolicy | HeuristicPolicy):
        return base
    if isinstance(base, DecimaPolicy) and base.settings.has_job_features:
        return base
    if isinstance(base, CorrectorPolicy):
        return RulePolicy(base.name, base.parameters, base.curves)
    rule = shipped_policy(PolicyName("tuned"), setting)
    assert isinstance(rule, RulePolicy)
    return rule
