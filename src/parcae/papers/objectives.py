"""Figure 13: the policies that result from other moving costs and other objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import Trace
from parcae.evaluation.gantt import cluster_charts, write_gantt
from parcae.evaluation.statistics import ratio_estimate, with_half_width
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contest, contest, named
from parcae.papers.findings import Finding
from parcae.papers.learners import StudiedPolicy, budget_notes, train_decima, tune
from parcae.papers.study import StudyRequest, StudyResult
from parcae.simulation.config import SimulationConfig
from parcae.simulation.metrics import makespan_ms
from parcae.simulation.objectives import Objective


@dataclass(frozen=True)
class _Case:
    """One panel of the figure."""

    key: str
    words: str
    objective: Objective
    is_moving_free: bool

    def config(self, request: StudyRequest) -> SimulationConfig:
        return (
            request.config.model_copy(update={"moving_delay_ms": 0})
            if self.is_moving_free
            else request.config
        )


_CASES = (
    _Case("a", "average JCT, moving costs time", Objective.AVERAGE_JCT, False),
    _Case("b", "average JCT, moving is free", Objective.AVERAGE_JCT, True),
    _Case("c", "makespan, moving costs time", Objective.MAKESPAN, False),
)


#: Share of the time of a case in which its rule is tuned. Rules learn faster than networks.
_RULE_SHARE = 0.25


def _learn(request: StudyRequest, case: _Case, num_jobs: int) -> list[StudiedPolicy]:
    scenario = Scenario(request.workload, case.config(request), "batch", num_jobs, case.objective)
    # A rule and a network for each case.
    share_s = request.budget_s / len(_CASES)
    rule_s = _RULE_SHARE * share_s
    return [
        tune(request, scenario, f"rule for ({case.key})", rule_s),
        train_decima(request, scenario, f"decima for ({case.key})", share_s - rule_s),
    ]


def _shown(outcome: Contest, best: StudiedPolicy, case: _Case, seed: int) -> tuple[str, Trace]:
    trace = outcome.traces(seed)[best.label]
    return (
        f"({case.key}) {case.words}: {best.label}, makespan {makespan_ms(trace) / MS_PER_S:,.1f} s",
        trace,
    )


def _rows(case: _Case, outcome: Contest) -> list[list[str]]:
    return [
        [
            "free" if case.is_moving_free else "costs time",
            label,
            with_half_width(result.average_jct_s),
            f"{result.means()['makespan_s']:,.1f}",
            f"{result.means()['moves']:,.0f}",
            f"{result.means()['utilization']:.0%}",
        ]
        for label, result in outcome.results.items()
    ]


def fig13(request: StudyRequest) -> StudyResult:
    """Policies for average JCT, for free moving and for makespan, each measured on all of them.

    Source: Decima, Figure 13 and section 7.4.
    """
    num_jobs = request.jobs(10, 20)
    num_runs = request.runs(20, 100)
    learned = {case.key: _learn(request, case, num_jobs) for case in _CASES}
    # Policies (a) and (c) are for costly moving, policy (b) is for free moving.
    costly = [policy.contender for key in ("a", "c") for policy in learned[key]]
    free = [policy.contender for policy in learned["b"]]
    contests = {}
    for case, contenders in ((_CASES[0], costly), (_CASES[1], free)):
        scenario = Scenario(request.workload, case.config(request), "batch", num_jobs)
        contests[case.is_moving_free] = contest(
            request, scenario, [*named("fair"), *contenders], num_runs
        )
    rows = [*_rows(_CASES[0], contests[False]), *_rows(_CASES[1], contests[True])]
    best = {
        case.key: min(learned[case.key], key=lambda policy: policy.ratio_to_fair) for case in _CASES
    }
    traces = dict(
        _shown(contests[c.is_moving_free], best[c.key], c, request.first_seed) for c in _CASES
    )
    every = [policy for case in _CASES for policy in learned[case.key]]
    return StudyResult(
        "policies for other objectives and for free moving",
        "with average JCT as the objective, Decima finishes small jobs early and moves executors "
        "rarely; if moving is free it moves them often; for makespan it completes many jobs "
        "together at the end (Figure 13, section 7.4)",
        ("moving", "policy", "average JCT (s)", "makespan (s)", "moves", "busy"),
        rows,
        {
            "moving_costs": contests[False].to_json(),
            "moving_is_free": contests[True].to_json(),
            "learned": [policy.to_json() for policy in every],
        },
        [
            *(f"({case.key}): {case.words}" for case in _CASES),
            f"the charts show the run of seed {request.first_seed} under the rule or the network, "
            "whichever is better on the selection runs",
            "free moving means no moving delay; the first tasks of a new executor are still slow",
            *contests[False].notes(),
            *(policy.words for policy in every),
            *budget_notes(request),
        ],
        partial(write_gantt, cluster_charts(traces)),
        _findings(learned, contests),
    )


def _findings(
    learned: Mapping[str, Sequence[StudiedPolicy]], contests: Mapping[bool, Contest]
) -> list[Finding]:
    """What the paper found about Decima's networks, which are the last of each case."""
    labels = {key: policies[-1].label for key, policies in learned.items()}
    quick = contests[False].results[labels["a"]].runs
    packed = contests[False].results[labels["c"]].runs
    free = contests[True].results[labels["b"]].runs

    def finding(claim: str, key: str, first: pl.DataFrame, second: pl.DataFrame) -> Finding:
        return Finding(claim, ratio_estimate(first[key], second[key]))

    return [
        finding("average JCT: (a) below (c)", "average_jct_ms", quick, packed),
        finding("makespan: (c) below (a)", "makespan_ms", packed, quick),
        finding("moves: fewer under (a) than under (b)", "moves", quick, free),
    ]
