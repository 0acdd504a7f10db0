"""A policy per objective, each measured on every objective (Decima, section 8)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parcae.evaluation.statistics import Estimate, ratio_estimate
from parcae.learning.scenario import Scenario
from parcae.metrics.objectives import Objective
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.learned import bind
from parcae.studies.reproduce.contest import with_interval
from parcae.studies.reproduce.learners import Learned, tune
from parcae.studies.reproduce.pictures import save, tidy
from parcae.studies.reproduce.study import StudyRequest, StudyResult
from parcae.workloads.random_streams import SELECTION_SEED_START

#: Runs on which the rule that a search goes on from is chosen.
_NUM_SELECTION = 200


def _costs(
    learned: Learned, scenario: Scenario, seeds: range
) -> np.ndarray[Any, np.dtype[np.float64]]:
    policy = bind(read_checkpoint(learned.path), learned.label, scenario.workload, scenario.config)
    return scenario.batch(list(seeds)).cost(policy.play_many)


def _learn(request: StudyRequest, scenario: Scenario) -> dict[Objective, Learned]:
    """A rule for each objective, in two rounds: the second goes on from whichever rule of the first is best at it.

    Objectives that count (missed deadlines) or look at the tail are noisy, and a search for a smooth relative of theirs may
    get further at first. What is best is measured on the selection runs.
    """
    share_s = request.budget_s / (2 * len(Objective))
    first = {
        o: tune(request, replace(scenario, objective=o), f"first rule for {o}", share_s)
        for o in Objective
    }
    seeds = range(SELECTION_SEED_START, SELECTION_SEED_START + _NUM_SELECTION)
    found = {}
    for objective in Objective:
        own = replace(scenario, objective=objective)
        start = min(first.values(), key=lambda rule: float(_costs(rule, own, seeds).mean()))
        found[objective] = tune(request, own, f"rule for {objective}", share_s, start=start)
    return found


def cross_objectives(request: StudyRequest) -> StudyResult:
    """Tune a rule for each of five objectives; on held-out runs every one should be best at its own.

    Source: Decima, section 8 (other learning objectives) and Figure 13.
    """
    num_jobs = request.jobs(20, 60)
    num_runs = request.runs(100, 400)
    scenario = Scenario(request.workload, request.config, request.stream, num_jobs)
    learned = _learn(request, scenario)
    seeds = range(request.first_seed, request.first_seed + num_runs)
    ratios: dict[str, dict[str, Estimate]] = {}
    for measured in Objective:
        request.say(f"measuring {measured}")
        own = replace(scenario, objective=measured)
        costs = {made: _costs(policy, own, seeds) + 1e-9 for made, policy in learned.items()}
        rng = np.random.default_rng(0)
        ratios[measured] = {
            made: ratio_estimate(c, costs[measured], "t", rng) for made, c in costs.items()
        }
    beaten = sum(e.mean > 1.0 for m, row in ratios.items() for made, e in row.items() if made != m)
    sure = sum(e.low > 1.0 for m, row in ratios.items() for made, e in row.items() if made != m)
    total = len(Objective) * (len(Objective) - 1)
    return StudyResult(
        "a policy per objective, on every objective",
        "Decima learns qualitatively different policies for different objectives (section 7.4, Figure 13, section 8)",
        ("policy made for", *(str(measured) for measured in Objective)),
        [
            [str(made), *(with_interval(ratios[measured][made]) for measured in Objective)]
            for made in Objective
        ],
        {
            "ratios": {
                m: {made: e.to_json() for made, e in row.items()} for m, row in ratios.items()
            },
            "learned": [policy.to_json() for policy in learned.values()],
        },
        [
            f"cells: the column's objective / that of the policy made for it, {num_runs} runs of {num_jobs} jobs, arrivals "
            f"{request.stream}, seeds {seeds.start} to {seeds.stop - 1}, paired, 95% intervals",
            f"{beaten} of {total} other policies are worse at an objective than the policy made for it, {sure} of them with an "
            f"interval that excludes 1",
            *(policy.words for policy in learned.values()),
        ],
        partial(_draw, ratios),
    )


def _draw(ratios: dict[str, dict[str, Estimate]], path: Path) -> None:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        table = np.array([[ratios[m][made].mean for m in Objective] for made in Objective])
        image = axis.imshow(table, cmap="RdYlGn_r", vmin=0.8, vmax=1.2)
        for (row, column), value in np.ndenumerate(table):
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
        axis.set_xticks(range(len(Objective)), list(Objective), rotation=30, fontsize=8)
        axis.set_yticks(range(len(Objective)), list(Objective), fontsize=8)
        tidy(
            axis,
            ("measured on", "made for"),
            "ratio to the policy made for the objective",
            has_legend=False,
        )
        axis.grid(visible=False)
        figure.colorbar(image, ax=axis, shrink=0.8)

    save(draw, (7.0, 5.0), path)
