"""Figures 3 and 9a: batches of TPC-H jobs, with schedules of one batch and statistics of many."""

from __future__ import annotations

from functools import partial

from parcae.base.texts import MS_PER_S
from parcae.evaluation.gantt import cluster_charts, write_gantt
from parcae.evaluation.statistics import with_interval
from parcae.learning.scenario import Scenario
from parcae.papers.contest import averages_s, contest, named
from parcae.papers.learners import learned_contenders
from parcae.papers.pictures import cdf_panel, save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.simulation.metrics import jct_ms, makespan_ms


def fig3(request: StudyRequest) -> StudyResult:
    """Schedules of ten random jobs under FIFO, shortest job first, fair sharing and Decima.

    Source: Decima, Figure 3 and section 2.3.
    """
    scenario = Scenario(request.workload, request.config, "batch", request.jobs(10, 10))
    learned, notes = learned_contenders(request, scenario, ("decima",))
    outcome = contest(
        request, scenario, [*named("fifo", "sjf-cp", "fair"), *learned], request.runs(20, 100)
    )
    # The charts show the first of the runs.
    traces = outcome.traces(request.first_seed)
    rows = []
    shown = {}
    for label, result in outcome.results.items():
        jct_s = float(jct_ms(traces[label]).mean()) / MS_PER_S
        span_s = makespan_ms(traces[label]) / MS_PER_S
        rows.append(
            [label, f"{jct_s:,.1f}", f"{span_s:,.1f}", with_interval(result.ratio_to_first)]
        )
        shown[label] = {"average_jct_s": jct_s, "makespan_s": span_s}
    return StudyResult(
        f"schedules of {scenario.num_jobs} random jobs on "
        f"{scenario.config.total_executors} executors",
        "Decima improves the average JCT of ten random TPC-H queries by 45% over FIFO and by 19% "
        "over fair sharing, and the makespan by 30% over SJF (Figure 3, section 2.3)",
        ("policy", "average JCT (s)", "makespan (s)", "average JCT / FIFO's, all runs"),
        rows,
        {"shown": shown, "all": outcome.to_json()},
        [
            f"the picture and the first two columns show the run of seed {request.first_seed}",
            *outcome.notes(),
            *notes,
        ],
        partial(
            write_gantt,
            cluster_charts(traces),
            title=f"{scenario.num_jobs} jobs of {scenario.workload.name}",
        ),
    )


def fig9a(request: StudyRequest) -> StudyResult:
    """Distribution of the average JCT over batches of 20 jobs.

    Source: Decima, Figure 9a and section 7.2.
    """
    scenario = Scenario(request.workload, request.config, "batch", request.jobs(20, 20))
    learned, notes = learned_contenders(request, scenario)
    baselines = named("weighted-fair:oracle", "fifo", "sjf-cp", "fair", "naive-weighted-fair")
    outcome = contest(request, scenario, [*baselines, *learned], request.runs(20, 100))
    samples = {label: averages_s(result) for label, result in outcome.results.items()}
    return StudyResult(
        f"average JCT of batches of {scenario.num_jobs} jobs",
        "SJF-CP and fair sharing beat FIFO by 1.6 and 2.5 times, optimally weighted fair beats "
        "fair by 11%, and Decima beats optimally weighted fair by 21% (Figure 9a, section 7.2)",
        outcome.columns,
        outcome.rows(),
        outcome.to_json(),
        [
            *outcome.notes(),
            "weighted-fair:oracle uses the best exponent in hindsight for every batch, as the "
            "paper's opt. weighted fair does",
            *notes,
        ],
        partial(
            save,
            lambda figure: cdf_panel(
                figure.subplots(), samples, ("average JCT of a batch (s)", "share of the batches")
            ),
            (7.0, 4.0),
        ),
    )
