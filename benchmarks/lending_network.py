"""Decima's network as an allocation: to which application an executor goes, and up to which limit.

To the network an application is a job of Decima's: a graph of all open stages of its jobs, which
holds executors, and to which an executor moves by starting anew. It is offered what is free and
what owners leave idle. A stage more stands for what an owner's next job brings, after the rest of
its pause; to choose this one is to lend nothing. Splits and calls back stay those of `Lending`, so
nobody is later than alone by more than a start and a task. The rule's own choice adds to the scores
(the prior): a network whose heads are 0 is the rule.

Source: Decima (Mao et al., SIGCOMM 2019), sections 5.1 and 5.2; see `parcae.decima.graph.layout`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.kernels import kernel
from parcae.cluster.kernels.tables import stages_of
from parcae.cluster.state import NO_JOB, NO_PROFILE, ExecutorClass, allocate, select
from parcae.decima.graph.kernels.embeddings import embed
from parcae.decima.graph.kernels.heads import score_limits, score_stages
from parcae.decima.graph.layout import (
    DecimaSettings,
    FeatureSet,
    Magnitudes,
    decima_levels,
    initial_weights,
    shapes,
)
from parcae.decima.graph.policy import DecimaPolicy
from parcae.policies.networks.layout import flat
from parcae.simulation.allocations import Demand, Lending, Served
from parcae.simulation.applications import Application

#: What a start costs, compared with a task, is among these features.
SETTINGS = DecimaSettings(features=FeatureSet.RELATIVE)
#: What the rule's choices add to scores: at most 1 for whom it lends to, this for an owner that
#: would keep its executor, and so much less for each executor away from its limit.
_KEPT = 1.25
_AWAY = 0.5
#: Where the rule would not lend, and after nothing was lent, it is asked again after so long.
_AGAIN_MS = 1_000
Weights = npt.NDArray[Any]


def first_weights(seed: int) -> Weights:
    """The weights of a network that decides as the rule does, in the order of `layout.shapes`."""
    levels = len(decima_levels(1, SETTINGS))
    weights = initial_weights(np.random.default_rng(seed), SETTINGS, levels)
    for name in ("q.3.weight", "w.3.weight"):
        weights[name][:] = 0.0
    return flat(weights, shapes(SETTINGS, levels), "the first network")


@kernel
def _gather(view, row, state, next_ms, idle):  # type: ignore[no-untyped-def]
    """Add an application as a job: the stages of its jobs, and one that stands for the next job."""
    now, jobs, stages = view.now, view.jobs, view.stages
    first = now.num_stages[0]
    stage = first
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        apart = stage - state.jobs.stage_start[job]
        for old in stages_of(state, job):
            stages.num_tasks[stage] = state.stages.num_tasks[old]
            stages.num_started[stage] = state.stages.num_started[old]
            stages.num_finished[stage] = state.stages.num_finished[old]
            stages.num_bound[stage] = state.stages.num_bound[old]
            stages.num_parents_unfinished[stage] = state.stages.num_parents_unfinished[old]
            stages.task_ms[stage] = state.stages.task_ms[old]
            has_tasks = state.stages.num_started[old] < state.stages.num_tasks[old]
            stages.is_saturated[stage] = not (has_tasks and state.stages.frontier_rank[old] >= 0)
            stages.child_start[stage] = now.num_edges[0]
            stages.num_children[stage] = state.stages.num_children[old]
            for edge in range(state.stages.num_children[old]):
                child = state.children[state.stages.child_start[old] + edge]
                view.children[now.num_edges[0]] = child + apart
                now.num_edges[0] += 1
            stages.job[stage] = row
            stage += 1
    stages.num_tasks[stage] = 1
    stages.num_started[stage] = 1
    stages.num_finished[stage] = 0
    stages.num_bound[stage] = idle
    stages.num_parents_unfinished[stage] = 0
    stages.task_ms[stage] = next_ms
    stages.is_saturated[stage] = 1
    stages.num_children[stage] = 0
    stages.job[stage] = row
    now.num_stages[0] = stage + 1
    jobs.stage_start[row] = first
    jobs.num_stages[row] = stage + 1 - first


@kernel
def _score(view, net, work):  # type: ignore[no-untyped-def]
    """Score the stages that may be chosen. Returns how many there are."""
    embed(view, net, work)
    return score_stages(view, net, work)


@dataclass(eq=False)
class LendingByNetwork(Lending):
    """`Lending`, whose loans Decima's network decides.

    Args:
        applications: those of the run.
        weights: float32[number of weights], in the order of `layout.shapes`.
        start_ms: how long an executor takes to start.
    """

    applications: Sequence[Application] = ()
    weights: Weights = field(default_factory=lambda: first_weights(0))
    start_ms: float = 3_000.0
    _view: Any = field(default=None, init=False)
    _tables: Any = field(default=None, init=False)
    _again_ms: float = field(default=0.0, init=False)
    _has_declined: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        states = [one.simulator.state for one in self.applications]
        stages = sum(len(state.stages) + 1 for state in states)
        edges = sum(len(state.children) for state in states)
        count = self.num_executors
        many = allocate(1, (ExecutorClass(count),), len(states), stages, edges)
        view = self._view = select(many, 0)
        view.now.num_executors[0] = count
        view.now.num_active[0] = view.now.num_jobs[0] = len(states)
        # Nothing was chosen in this round, and any executor runs any task.
        view.now.round_id[0] = view.now.num_schedulable[0] = 1
        view.stages.fits[:] = 1
        view.jobs.profile[:] = NO_PROFILE
        view.jobs.num_schedulable[:] = 1
        view.active[:] = np.arange(len(states))
        jobs = self.applications[0].simulator.sequence.workload
        task_ms = jobs.mean_work_ms / jobs.mean_tasks
        usual = Magnitudes(jobs.mean_tasks, task_ms, self.start_ms, count)
        named = initial_weights(np.random.default_rng(0), SETTINGS, count)
        policy = DecimaPolicy("decima", named, SETTINGS, count, usual)
        tables = policy.tables_for(len(states), stages)
        weights = self.weights.astype(np.float32)
        self._tables = tables._replace(net=tables.net._replace(weights=weights))

    def _lend_spare(
        self, demands: Mapping[str, Demand], spare: dict[str, int], by_drain: Sequence[str]
    ) -> None:
        """Offer what is free, what the rule would lend, and what is idle beside it."""
        has_free = self._free() > 0
        would = any(
            self._gains(name, one)
            and (has_free or any(count > 0 and other != name for other, count in spare.items()))
            for name, one in demands.items()
        )
        if self._clock_ms < self._again_ms and (self._has_declined or not would):
            return
        self._again_ms = self._clock_ms + _AGAIN_MS
        idle = {name: max(0, self.goal[name] - one.needed) for name, one in demands.items()}
        most = sorted(demands, key=lambda name: -spare[name])
        offers: list[tuple[str | None, int, float]] = [(None, self._free(), 0.0)]
        offers += [(name, spare[name], 0.0) for name in most]
        offers += [(name, idle[name] - spare[name], _KEPT) for name in most]
        first_ms = {name: self._drain_ms(name, one) for name, one in demands.items()}
        self._gather_all(demands, idle)
        self._has_declined = would
        for source, count, kept in offers:
            left = count
            while left > 0 and self._wanting(demands, source):
                lent = self._offer(source, left, kept, demands, first_ms)
                if lent == 0:
                    break
                left -= lent
                self._has_declined = False

    def _wanting(self, demands: Mapping[str, Demand], source: str | None) -> list[str]:
        """Applications that have tasks for more executors."""
        return [
            name for name, one in demands.items() if name != source and self.goal[name] < one.needed
        ]

    def _gather_all(self, demands: Mapping[str, Demand], idle: Mapping[str, int]) -> None:
        now = self._view.now
        now.num_stages[0] = now.num_edges[0] = 0
        for row, one in enumerate(self.applications):
            next_ms = self._next_ms(one.name, demands[one.name].start_ms)
            _gather(self._view, row, one.simulator.state, next_ms, idle[one.name])

    def _next_ms(self, name: str, start_ms: float) -> float:
        """When the application's next job is expected, by its pauses that were longer."""
        past_ms = self._clock_ms - self._since_ms.get(name, self._clock_ms)
        rests_ms = [one - past_ms for one in self._pauses_ms.get(name, ()) if one > past_ms]
        return sum(rests_ms) / len(rests_ms) if rests_ms else max(past_ms, start_ms)

    def _offer(
        self,
        source: str | None,
        offered: int,
        kept: float,
        demands: Mapping[str, Demand],
        first_ms: Mapping[str, float],
    ) -> int:
        """Offer executors of an application, or free ones. Returns how many were lent."""
        view, (net, work) = self._view, self._tables
        names = [one.name for one in self.applications]
        wanting = self._wanting(demands, source)
        view.now.source_job[0] = NO_JOB if source is None else names.index(source)
        view.now.num_source[0] = view.source_count[0] = offered
        view.jobs.num_supplied[:] = [self.goal[name] for name in names]
        rests = view.jobs.stage_start + view.jobs.num_stages - 1
        view.stages.is_saturated[rests] = np.array(names) != source
        count = _score(view, net, work)
        # What is free and lent to nobody stays free.
        keeping = 0.0
        best = (-math.inf, 0.0, 0)
        for place in range(count):
            stage, logit = int(work.stage[place]), float(work.logits[place])
            name = names[view.stages.job[stage]]
            if name == source:
                # Of the owner, there are only tasks to come.
                keeping = logit + kept if stage == rests[names.index(name)] else keeping
            elif name in wanting:
                one = demands[name]
                # As under the rule, whoever gains goes on taking before those with less work.
                gains = self._gains(name, one)
                drain_ms = first_ms[name] if gains else self._drain_ms(name, one)
                over = math.log(max(1.0, drain_ms) / max(1.0, self.worth * one.start_ms))
                best = max(best, (logit + min(1.0, max(-1.0, over)), first_ms[name], stage))
        if best[0] <= keeping:
            return 0
        name = names[view.stages.job[best[2]]]
        lent = self._limit(name, best[2], offered, demands[name]) - self.goal[name]
        self.goal[name] += lent
        if source is not None:
            self.goal[source] -= lent
        return lent

    def _limit(self, name: str, stage: int, offered: int, demand: Demand) -> int:
        """How many executors the application is to have."""
        score_limits(self._view, *self._tables, stage)
        least, most = self.goal[name] + 1, min(self.goal[name] + offered, demand.needed)
        worth = math.ceil(demand.work_ms / max(1.0, self.worth * demand.start_ms))
        limits = np.arange(least, most + 1)
        logits = self._tables.work.limit_logits[limits - 1]
        away = np.abs(limits - min(most, max(least, worth)))
        return int(limits[np.argmax(logits - _AWAY * away)])


@dataclass(eq=False)
class ServedByNetwork(Served):
    """Under YARN, the split whose loans Decima's network decides."""

    weights: Weights = field(default_factory=lambda: first_weights(0))

    def begin(self, num_executors: int, applications: Sequence[Application]) -> list[int]:
        """Begin with the split."""
        split = super().begin(num_executors, applications)
        self._rule = LendingByNetwork(
            num_executors,
            **self.numbers,
            applications=applications,
            weights=self.weights,
            start_ms=self.start_ms,
        )
        return split
