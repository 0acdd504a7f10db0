"""Explain what a policy changes in a log: the queries whose time changes most, and why.

The log is replayed as in `parcae.evaluation.forecast`. The policy's run is then played once more,
plan by plan, to see how the policy ordered a query and those that had the cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from parcae.base.errors import ConfigError, PolicyError
from parcae.base.options import option
from parcae.base.texts import plain, s_from_ms, seconds_text
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, Planner
from parcae.cluster.trace import Trace
from parcae.evaluation.benchmark import begin_run
from parcae.evaluation.forecast import size_error
from parcae.evaluation.gantt import Bars, Chart, Panel
from parcae.evaluation.log_check import Replayed, replayed_applications
from parcae.evaluation.pictures import shortened
from parcae.policies.additions import named_policy, tier_unit_ms
from parcae.policies.formula.policy import FormulaPolicy
from parcae.simulation.future import Status
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.durations import MOST_EXECUTORS
from parcae.workloads.job import JobSpec, no_driver_time
from parcae.workloads.spark_log.event_log import LoggedRuns

#: A query is said to have waited for so many others, those with most core time.
_MOST_OTHERS = 3
#: How well a meeting of two queries explains a change: both were there, both waited, and the order
#: was that which the change shows.
_THERE = 1
_AGREED = 3
#: Most characters of a policy's name above a picture.
_LONGEST_NAME = 80


class Asked(BaseModel):
    """What a policy is compared with, on which queries and cores, and how many are explained."""

    model_config = ConfigDict(frozen=True)

    against: str | None = option(
        None, "What it is compared with, as in fair. (default: the log's own order)", check="policy"
    )
    cores: int | None = option(
        None,
        "Cores of the cluster. (default: as many as the log had at every time)",
        ge=1,
        le=MOST_EXECUTORS,
    )
    arrivals: str = option(
        "recorded", "recorded (as in the log) | batch | poisson:25s | bursts:25s | load:0.85"
    )
    jobs: int | None = option(
        None, "Queries that arrive. (default: as many as in the log)", ge=1, le=1_000_000
    )
    seed: int = option(0, "Seed of the arrivals and of the errors of known sizes.", ge=0)
    queries: int = option(5, "Number of queries that are explained.", ge=1, le=100)


class Term(NamedTuple):
    """A number by which a policy orders queries, and its unit ("": it has none)."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        number = seconds_text(self.value) if self.unit == "s" else f"{self.value:,.6g}"
        return f"{self.name} {number} {self.unit}".rstrip()


class Meeting(NamedTuple):
    """How a policy ordered a query and another one at a time: the least is served first."""

    at_s: float
    query: tuple[Term, ...]
    other: tuple[Term, ...]


@dataclass(frozen=True)
class Waiting:
    """A query under one order; times in seconds since the application's first arrival.

    Args:
        jct_s: its completion time.
        waited_s: for how long a task of it could have started and had no core.
        waits_s: when that was, and who had most of the core time then: (begin, end, row).
        cores_had: who had the cores in all that time, itself among them: (row, share), most first.
        ran_s: when a task of it ran: (begin, end).
    """

    jct_s: float
    waited_s: float
    waits_s: tuple[tuple[float, float, int], ...]
    cores_had: tuple[tuple[int, float], ...]
    ran_s: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class ExplainedQuery:
    """One query under both orders.

    Args:
        query: its place in its application, by arrival.
        names: the names of all queries there.
        application: the application's name in the log.
        user: who ran it; "" where nobody is known.
        arrival_s: since the application's first arrival.
        against, policy: the query in the order that is compared with, and under the policy.
        meetings: how the policy ordered it and others, by their places.
    """

    query: int
    names: tuple[str, ...]
    application: str
    user: str
    arrival_s: float
    against: Waiting
    policy: Waiting
    meetings: dict[int, Meeting]

    def label(self, row: int) -> str:
        """A query of the application by its number and name."""
        return f"{row}: {self.names[row]}"

    @property
    def slower(self) -> Waiting:
        """The query where it took longer."""
        return max(self.against, self.policy, key=lambda one: one.jct_s)

    @property
    def other(self) -> int | None:
        """The query for which it waited most where it took longer; None: for none."""
        return next((row for row, _ in self.slower.cores_had if row != self.query), None)

    @property
    def when(self) -> str:
        """The longest wait where the query took longer, in words."""
        waits = self.slower.waits_s
        if not waits:
            return "never"
        begin, end, _ = max(waits, key=lambda one: one[1] - one[0])
        longest = f"{begin:,.1f} to {end:,.1f} s"
        return f"{longest} and {len(waits) - 1} more" if len(waits) > 1 else longest

    @property
    def for_whom(self) -> str:
        """Who had the cores meanwhile, in words."""
        shares = self.slower.cores_had[:_MOST_OTHERS]
        named = (
            ("itself" if row == self.query else self.label(row), share) for row, share in shares
        )
        return ", ".join(f"{name} {share:.0%}" for name, share in named)

    @property
    def why(self) -> str:
        """How the policy ordered the query and the one that it waited for, in words."""
        if self.other is None:
            return "no other query had its cores"
        if self.other not in self.meetings:
            return f"under the policy it never meets {self.label(self.other)}"
        met = self.meetings[self.other]
        own, other = (", ".join(map(str, terms)) for terms in (met.query, met.other))
        return f"at {met.at_s:,.1f} s: {own}; {self.label(self.other)}: {other}"

    def to_json(self) -> dict[str, Any]:
        """The query as plain numbers and text; rows are places of queries."""
        found = {
            **vars(self),
            "name": self.names[self.query],
            "waited_for": None if self.other is None else self.label(self.other),
            "order": self.meetings.get(-1 if self.other is None else self.other),
            "why": self.why,
        }
        del found["names"], found["meetings"]
        return plain(found)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Explanation:
    """What a policy changes.

    Args:
        policy, against: the names of the policy and of the order that it is compared with.
        jobs: number of queries.
        mean_jct_s: mean completion time in that order (`against`) and under the policy (`policy`).
        queries: the queries whose completion time changes most, those first.
    """

    policy: str
    against: str
    jobs: int
    mean_jct_s: dict[str, float]
    queries: tuple[ExplainedQuery, ...]

    def charts(self) -> tuple[list[Chart], list[str]]:
        """A chart an order, and the legend: when a query ran, in its colour, and waited, in the
        colour of who had most of the cores.
        """
        legend = [query.label(query.query) for query in self.queries]
        colors = {(query.application, query.query): n for n, query in enumerate(self.queries)}
        sides = {
            self.against: [query.against for query in self.queries],
            self.policy: [query.policy for query in self.queries],
        }
        charts = []
        end_s = max(one.jct_s for side in sides.values() for one in side)
        for order, side in sides.items():
            bars = []
            for number, (query, one) in enumerate(zip(self.queries, side, strict=True)):
                # What ran is drawn over what waited at the same time.
                for begin, end, row in (*one.waits_s, *((*run, query.query) for run in one.ran_s)):
                    color = colors.setdefault((query.application, row), len(colors))
                    legend += [query.label(row)] * (color == len(legend))
                    bars.append((number, begin - query.arrival_s, end - query.arrival_s, color))
            place, first, last, job = np.array(bars, np.float64).reshape(-1, 4).T
            rows = place.astype(np.int64)
            drawn = Bars(rows, first, last, job.astype(np.int64), np.ones_like(rows))
            panel = Panel("query", len(self.queries), drawn, legend, low=0.5)
            title = f"under {shortened(order, _LONGEST_NAME)}"
            charts.append(Chart(title, [panel], end_s, "time since its arrival (s)"))
        return charts, legend


def explain(logged: LoggedRuns, policy: str, asked: Asked) -> Explanation:
    """Replay a log under two orders, and explain the queries whose time changes most.

    The policy knows sizes as badly as in `parcae.evaluation.forecast.forecast`.
    """
    replays = list(replayed_applications(logged))
    if not replays:
        raise ConfigError("no query of the log took any time: there is nothing to explain")
    error = size_error([run for one in replays for run in one.runs])
    pairs = [_Pair(one, policy, asked, error) for one in replays]
    changes = sorted(
        (-abs(change_ms), number, row)
        for number, pair in enumerate(pairs)
        for row, change_ms in enumerate((jct_ms(pair.after) - jct_ms(pair.before)).tolist())
        if change_ms
    )[: asked.queries]
    found = [pair.explained([r for _, n, r in changes if n == i]) for i, pair in enumerate(pairs)]
    before_ms, after_ms = (
        float(np.concatenate([jct_ms(getattr(pair, side)) for pair in pairs]).mean())
        for side in ("before", "after")
    )
    return Explanation(
        policy,
        asked.against or "the log's order",
        sum(len(pair.after.job_names) for pair in pairs),
        {"against": s_from_ms(before_ms), "policy": s_from_ms(after_ms)},
        tuple(found[number][row] for _, number, row in changes),
    )


class _Pair:
    """An application under both orders."""

    def __init__(self, one: Replayed, policy: str, asked: Asked, error: float) -> None:
        config = one.config(error)
        if asked.cores is not None:
            config = config.model_copy(update={"num_executors": asked.cores, "slots": ()})
        self.name = one.name
        self.setting = config, asked.seed
        num_jobs = len(one.runs) if asked.jobs is None else asked.jobs
        self.sequence = one.workload.draw(num_jobs, asked.arrivals, config, seed=asked.seed)
        if self.sequence.has_sessions:
            raise ConfigError(
                f"--arrivals {asked.arrivals}: when a query of a session arrives depends on the "
                "order, so no query can be compared; give recorded, poisson:25s or load:0.85"
            )
        names = (asked.against, policy)
        self.policies = [
            one.order if name is None else named_policy(name, one.workload, config, asked.arrivals)
            for name in names
        ]
        self.before, self.after = (
            simulate(self.sequence, one, *self.setting, record=True) for one in self.policies
        )

    def explained(self, rows: Sequence[int]) -> dict[int, ExplainedQuery]:
        """Some queries, by row."""
        if not rows:
            return {}
        meetings = self._meetings(rows)
        return {
            row: ExplainedQuery(
                row,
                self.after.job_names,
                self.name,
                self.sequence.jobs[row].user,
                s_from_ms(int(self.after.arrival_ms[row])),
                _waiting(self.before, row, self.sequence.jobs[row]),
                _waiting(self.after, row, self.sequence.jobs[row]),
                meetings[row],
            )
            for row in rows
        }

    def _meetings(self, rows: Sequence[int]) -> dict[int, dict[int, Meeting]]:
        """How the policy ordered queries and others, by both their rows: at the first plan at which
        both had tasks to start and the order was that which the change shows; without one, when
        both first had tasks to start, or were there.
        """
        simulator = Simulator(self.sequence, *self.setting)
        planner = begin_run(simulator, self.policies[1])
        if not isinstance(planner, Planner):
            raise PolicyError(
                f"policy {planner.name!r} decides which stage gets a core and plans no order, so "
                "none can be explained: choose one that orders queries, such as srpt or a formula"
            )
        is_later = self.after.completion_ms > self.before.completion_ms
        end_ms = max(int(self.after.completion_ms[row]) for row in rows)
        meetings: dict[int, dict[int, Meeting]] = {row: {} for row in rows}
        known: dict[tuple[int, int], int] = {}
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION:
            view = simulator.observe()
            clock_ms = int(view.now.clock_ms[0])
            if clock_ms > end_ms:
                break
            orders = planner.plan(view)
            active = set(view.active_jobs.tolist())
            for row in meetings.keys() & active:
                for other in active - {row}:
                    if known.get((row, other), 0) == _AGREED:
                        continue
                    own, others = (_terms(planner, view, orders, job) for job in (row, other))
                    agrees = (own[-1].value > others[-1].value) == is_later[row]
                    both_wait = _has_waiting(view, row) and _has_waiting(view, other)
                    how = _THERE + both_wait + (both_wait and agrees)
                    if how > known.get((row, other), 0):
                        known[row, other] = how
                        meetings[row][other] = Meeting(s_from_ms(clock_ms), own, others)
            simulator.follow(orders)
        return meetings


def _has_waiting(view: Observation, job: int) -> bool:
    """Whether a task of a query could start, given a core."""
    rows = view.stages_of(job)
    stages = view.stages[rows.start : rows.stop]
    is_ready = stages["frontier_rank"] >= 0
    return bool((is_ready & (stages["num_started"] < stages["num_tasks"])).any())


def _terms(planner: Any, view: Observation, orders: Orders, job: int) -> tuple[Term, ...]:
    """By what the planner has just ordered a query."""
    if isinstance(planner, FormulaPolicy):
        return tuple(Term(*term) for term in planner.terms_of(view, job))
    tier = float(orders.jobs.tier[job])
    unit_ms = tier_unit_ms(planner)
    if unit_ms is None:
        return (Term("order", tier, ""),)
    left_ms = tier if unit_ms == 0 else -1.0 / tier
    if unit_ms > 0:
        left_ms = math.exp(tier) * unit_ms
    terms = [Term("work left", s_from_ms(left_ms), "s")]
    now = view.now
    if now.keeps_accounts[0] and now.account_factor[0] > 0:
        account = view.accounts[view.jobs.account[job]]
        over_ms = float(account.received_ms - account.split_ms)
        charged_ms = left_ms + float(now.account_factor[0]) * over_ms
        charged_ms = max(charged_ms, float(now.account_floor[0]) * left_ms)
        terms.append(Term("overdraft", s_from_ms(over_ms), "s"))
        terms.append(Term("counts as", s_from_ms(charged_ms), "s"))
    return tuple(terms)


def _waiting(trace: Trace, row: int, job: JobSpec) -> Waiting:
    """When a query waited and ran, and who had the cores meanwhile."""
    tasks: Any = trace.tasks
    own = tasks[tasks["job"] == row]
    driver = job.driver_time or no_driver_time(len(job.stages))
    spans = []
    ended_ms: dict[int, int] = {}
    for stage in job.topological_order:
        of_stage = own[own["stage"] == stage]
        ended_ms[stage] = int(of_stage["finish_ms"].max())
        before_ms = [ended_ms[parent] for parent in job.stages[stage].parents]
        ready_ms = max([int(trace.arrival_ms[row]), *before_ms])
        ready_ms += int(driver.gap_ms[0, stage] + driver.lag_ms[0, stage])
        spans.append((ready_ms, int(of_stage["start_ms"].max())))
    waits = []
    had_ms = np.zeros(len(trace.job_names))
    for begin, end in _united(spans):
        times = np.minimum(tasks["finish_ms"], end) - np.maximum(tasks["start_ms"], begin)
        meanwhile_ms = np.bincount(tasks["job"], np.maximum(0, times), len(had_ms))
        had_ms += meanwhile_ms
        waits.append((begin, end, int(meanwhile_ms.argmax())))
    most = [other for other in np.argsort(-had_ms, kind="stable").tolist() if had_ms[other] > 0]
    ran = _united(zip(own["start_ms"].tolist(), own["finish_ms"].tolist(), strict=True))
    return Waiting(
        s_from_ms(int(trace.completion_ms[row] - trace.arrival_ms[row])),
        s_from_ms(sum(end - begin for begin, end, _ in waits)),
        tuple((s_from_ms(begin), s_from_ms(end), other) for begin, end, other in waits),
        tuple((other, float(had_ms[other] / had_ms.sum())) for other in most),
        tuple((s_from_ms(begin), s_from_ms(end)) for begin, end in ran),
    )


def _united(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of spans, in order of time."""
    united: list[tuple[int, int]] = []
    for begin, end in sorted(span for span in spans if span[1] > span[0]):
        if united and begin <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((begin, end))
    return united
