"""Learned policies in settings that they were not trained for.

The settings have other loads, cluster sizes, numbers of jobs, or another workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.pictures import tidy
from parcae.evaluation.statistics import Estimate, ratio_estimate, with_interval
from parcae.learning.scenario import Scenario
from parcae.papers.contest import contest, named
from parcae.papers.pictures import save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.policies.learned import SHIPPED
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import with_work
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import RandomDags, random_dags

#: The heuristics, which are tuned for every case. Learned policies are not.
_HEURISTICS = ("fair", "weighted-fair:tuned", "srpt-cap:tuned")
_LEARNED = ("tuned", "corrector", "decima")


@dataclass(frozen=True)
class _Case:
    """One setting: workload, executors, arrivals and number of jobs in a run."""

    label: str
    workload: Workload
    num_executors: int
    arrivals: str
    num_jobs: int


def _cases(request: StudyRequest) -> list[_Case]:
    workload = request.workload
    executors = request.config.total_executors
    # Clusters of 0.3 to 4 times the request's size; every class keeps an executor.
    least = max(2, len(request.config.classes))
    sizes = [max(least, round(executors * share)) for share in (0.3, 0.5, 2, 4)]
    small = request.jobs(20, 20)
    large = 3 * request.jobs(20, 40)

    def batch(num_jobs: int, size: int) -> _Case:
        label = f"batch of {num_jobs}, {size} executors"
        return _Case(label, workload, size, "batch", num_jobs)

    def stream(load: float, size: int) -> _Case:
        return _Case(f"load {load}, {size} executors", workload, size, f"load:{load}", large)

    # The mean gap that gives a load of 0.6.
    gap_s = workload.mean_work_ms / (0.6 * executors) / MS_PER_S
    bursts = f"load 0.6 in bursts, {executors} executors"
    # The same jobs with ten times the work, so that the same load has ten times the gaps.
    larger = with_work(10.0)(workload)[0]
    measured_elsewhere = load_workload("tpch")
    cases = [
        *(batch(num_jobs, executors) for num_jobs in (5, small, large)),
        *(stream(load, executors) for load in (0.35, 0.6, 0.8)),
        *(batch(small, size) for size in sizes),
        *(stream(0.6, size) for size in sizes),
        _Case(bursts, workload, executors, f"bursts:{gap_s:.3f}s", large),
        _Case("ten times the work, batch", larger, executors, "batch", small),
        _Case("ten times the work, load 0.6", larger, executors, "load:0.6", large),
        *(
            _Case(f"{label}, {arrivals}", dags, executors, arrivals, num_jobs)
            for label, dags in _random_dags().items()
            for arrivals, num_jobs in (("batch", small), ("load:0.6", large))
        ),
        _Case("bundled TPC-H, batch", measured_elsewhere, executors, "batch", small),
        _Case("bundled TPC-H, load 0.6", measured_elsewhere, executors, "load:0.6", large),
    ]
    # On a small cluster or with few jobs, some of these are the same setting.
    return list({case.label: case for case in cases}.values())


def _random_dags() -> dict[str, Workload]:
    """Profiles of random DAGs of several sizes."""
    small = RandomDags(max_depth=2, max_width=2)
    large = RandomDags(max_depth=12, max_width=8)
    return {
        "random DAGs": load_workload("synthetic"),
        "random DAGs of 1 to 4 stages": random_dags(small, np.random.default_rng(0)),
        "random DAGs of up to 96 stages": random_dags(large, np.random.default_rng(0)),
    }


def _best_heuristic(comparison: Comparison) -> str:
    """The best heuristic of a case on its runs, which favours the heuristics."""
    jct = _average_jct(comparison)
    return min(_HEURISTICS, key=lambda name: float(jct[name].mean()))


def _average_jct(comparison: Comparison) -> dict[str, npt.NDArray[np.float64]]:
    """The average JCT of every run, by policy."""
    return {p.name: p.runs["average_jct_ms"].to_numpy() for p in comparison.policies}


def _against(comparison: Comparison, learned: str, heuristic: str) -> Estimate:
    """The learned policy's ratio to a heuristic."""
    jct = _average_jct(comparison)
    return ratio_estimate(jct[learned], jct[heuristic], "t", np.random.default_rng(0))


def shifts(request: StudyRequest) -> StudyResult:
    """Learned policies, compared in many settings with the best heuristic tuned for each.

    Source: Decima, section 7.4 (Table 2) and Appendix I (Table 3).
    """
    # Without policies in the request, compare the shipped ones.
    kinds = request.policies or tuple(kind for kind in _LEARNED if SHIPPED.variants(kind))
    num_runs = request.runs(20, 100)
    rows = list[list[str]]()
    cases_json = dict[str, dict[str, Any]]()
    for case in _cases(request):
        config = request.config.resized(case.num_executors)
        scenario = Scenario(case.workload, config, case.arrivals, case.num_jobs)
        contenders = [*named(*_HEURISTICS), *named(*kinds)]
        comparison = contest(request, scenario, contenders, num_runs).comparison
        best = _best_heuristic(comparison)
        against = {kind: _against(comparison, kind, best) for kind in kinds}
        rows.append([case.label, best, *(with_interval(ratio) for ratio in against.values())])
        cases_json[case.label] = {
            "best_heuristic": best,
            **{kind: ratio.to_json() for kind, ratio in against.items()},
            "against_fair": {kind: _against(comparison, kind, "fair").to_json() for kind in kinds},
        }
    worst = {kind: _worst(cases_json, kind) for kind in kinds}
    return StudyResult(
        "learned policies in settings that they were not trained for",
        "trained with a mix of workloads, Decima beats the best heuristic on an unseen one by 10% "
        "(Table 2); trained on fewer jobs or a smaller cluster, it stays within 3% to 7% of a "
        "policy trained for the setting (Table 3)",
        ("setting", "best heuristic", *kinds),
        rows,
        {"cases": cases_json, "worst": worst},
        [
            "cells: average JCT / that of the best heuristic, tuned for every setting; "
            f"{num_runs} runs per setting, paired",
            *(
                f"{kind}: at worst {one['best_heuristic']:.3f} of the best heuristic, "
                f"{one['fair']:.3f} of fair"
                for kind, one in worst.items()
            ),
        ],
        partial(_draw, cases_json, kinds),
    )


def _worst(cases_json: dict[str, dict[str, Any]], kind: str) -> dict[str, float]:
    """A policy's largest ratios over all settings: to the best heuristic, and to fair."""
    cases = cases_json.values()
    return {
        "best_heuristic": max(case[kind]["mean"] for case in cases),
        "fair": max(case["against_fair"][kind]["mean"] for case in cases),
    }


def _draw(cases_json: dict[str, dict[str, Any]], kinds: tuple[str, ...], path: Path) -> None:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        place = np.arange(len(cases_json))
        for row, kind in enumerate(kinds):
            axis.plot(
                [case[kind]["mean"] for case in cases_json.values()],
                place + 0.1 * row,
                "o",
                label=kind,
            )
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_yticks(place, list(cases_json), fontsize=8)
        axis.invert_yaxis()
        tidy(axis, ("average JCT / best heuristic's", ""))

    save(draw, (8.0, 0.9 + 0.34 * len(cases_json)), path)
