"""Figure 22: a simplified setting in which an exhaustive search finds the best order of jobs."""

from __future__ import annotations

import math
from functools import partial

from parcae.base.texts import MS_PER_S
from parcae.decima.bounds import BestOrder, best_job_order, check_orders, simplified
from parcae.evaluation.statistics import (
    mean_estimate,
    ratio_estimate,
    with_half_width,
    with_interval,
)
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contender, averages_s, contest, named
from parcae.papers.learners import budget_notes, learned_contenders, train_decima, tune
from parcae.papers.pictures import save_bars
from parcae.papers.study import StudyRequest, StudyResult

_SEARCH = "exhaustive search"
_FIRST = "sjf-cp"


def fig22(request: StudyRequest) -> StudyResult:
    """Policies compared with the best order of the jobs, without delays and waves.

    Source: Decima, Figure 22 and Appendix H.
    """
    num_jobs = request.jobs(10, 10)
    num_runs = request.runs(10, 100)
    # The search comes after the trainings.
    check_orders(num_jobs, request.config)
    drawn = Scenario(request.workload, request.config, "batch", num_jobs)
    # Only the simplified workload and cluster are used; every seed draws its own batch.
    plain, cluster = simplified(drawn.sequence(request.first_seed), request.config)
    scenario = Scenario(plain.workload, cluster, "batch", num_jobs)
    learned, notes = _learned(request, scenario)
    outcome = contest(
        request, scenario, [*named(_FIRST, "weighted-fair:tuned", "fair"), *learned], num_runs
    )
    searched = _search(request, scenario, num_runs)
    # The baseline of all ratios, by seed.
    best_s = [order.average_jct_ms / MS_PER_S for order in searched]
    samples = {
        _SEARCH: best_s,
        **{label: averages_s(result) for label, result in outcome.results.items()},
    }
    estimates = {label: mean_estimate(values) for label, values in samples.items()}
    ratios = {label: ratio_estimate(values, best_s) for label, values in samples.items()}
    rows = [
        [label, with_half_width(estimates[label]), with_interval(ratios[label])]
        for label in samples
    ]
    return StudyResult(
        "a simplified setting in which an exhaustive search finds the best order of the jobs",
        "SJF-CP beats tuned weighted fair, the exhaustive search beats SJF-CP, and Decima matches "
        "the search or beats it slightly, by 9% on average (Figure 22, Appendix H)",
        ("policy", "average JCT (s)", f"ratio to the {_SEARCH}"),
        rows,
        {
            "average_jct_s": samples,
            "ratio_to_search": {label: ratio.to_json() for label, ratio in ratios.items()},
            "orders": [
                {"order": order.order, "beginnings": order.num_beginnings} for order in searched
            ],
            "contest": outcome.to_json(),
        },
        [
            "every task takes its stage's mean duration and executors move without delay; an order "
            "gives all executors to the first job that can use them, with stages by critical path; "
            "the search finds the best of all orders and knows the batch in advance, the policies "
            "do not",
            f"{num_jobs} jobs per batch, so {math.factorial(num_jobs):,} orders each, searched by "
            "branch and bound "
            f"(at most {max(order.num_beginnings for order in searched):,} prefixes simulated)",
            *outcome.notes(),
            *notes,
        ],
        partial(save_bars, estimates, "average JCT (s)"),
    )


def _learned(request: StudyRequest, scenario: Scenario) -> tuple[list[Contender], list[str]]:
    """The policies of the request; without any, a network and a rule trained in this setting.

    The paper's agent is also trained in this setting.
    """
    if request.policies:
        return learned_contenders(request, scenario)
    share_s = request.budget_s / 2
    made = [
        train_decima(request, scenario, "decima (made here)", share_s),
        tune(request, scenario, "rule (made here)", share_s),
    ]
    return [policy.contender for policy in made], [
        *(policy.words for policy in made),
        *budget_notes(request),
    ]


def _search(request: StudyRequest, scenario: Scenario, num_runs: int) -> list[BestOrder]:
    """The best order of the jobs of every run."""
    return [
        best_job_order(
            scenario.sequence(seed), scenario.config, seed, partial(_report_progress, request, seed)
        )
        for seed in range(request.first_seed, request.first_seed + num_runs)
    ]


def _report_progress(request: StudyRequest, seed: int, tried: int, best_ms: float) -> None:
    request.say(
        f"batch of seed {seed}: {tried:,} prefixes of orders simulated, "
        f"best average JCT so far {best_ms / MS_PER_S:,.1f} s"
    )
