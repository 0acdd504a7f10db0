"""One policy per objective, each measured on every objective (Decima, section 8)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parcae.evaluation.pictures import tidy
from parcae.evaluation.statistics import UNKNOWN, Estimate, ratio_estimate, with_interval
from parcae.learning.scenario import Scenario
from parcae.papers.learners import StudiedPolicy, tune
from parcae.papers.pictures import save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.registry import bind
from parcae.simulation.objectives import Objective
from parcae.workloads.arrivals import SELECTION_SEED_START

#: Number of runs on which the start of the second search is chosen.
_NUM_SELECTION = 200
_TINY = 1e-9


def _costs(
    learned: StudiedPolicy, scenario: Scenario, seeds: range
) -> np.ndarray[Any, np.dtype[np.float64]]:
    policy = bind(read_checkpoint(learned.path), learned.label, scenario.setting)
    return scenario.batch(list(seeds)).cost(policy.play_many)


def _learn(request: StudyRequest, scenario: Scenario) -> dict[Objective, StudiedPolicy]:
    """Tune a rule for each objective in two rounds.

    The second round starts from that rule of the first round which is best at the objective on the
    selection runs. Objectives that count jobs (missed deadlines) or measure the tail are noisy, so
    a search for a similar smooth objective may find a better start.
    """
    share_s = request.budget_s / (2 * len(Objective))
    first = {
        o: tune(request, replace(scenario, objective=o), f"first rule for {o}", share_s)
        for o in Objective
    }
    seeds = range(SELECTION_SEED_START, SELECTION_SEED_START + _NUM_SELECTION)
    rules = {}
    for objective in Objective:
        own_scenario = replace(scenario, objective=objective)
        # The rule of the first round with the least cost at this objective.
        start = min(
            first.values(), key=lambda rule: float(_costs(rule, own_scenario, seeds).mean())
        )
        rules[objective] = tune(
            request, own_scenario, f"rule for {objective}", share_s, start=start
        )
    return rules


def cross_objectives(request: StudyRequest) -> StudyResult:
    """Tune a rule for each of five objectives, and measure it on all objectives on held-out runs.

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
        ratios[measured] = _ratios_to_own(learned, scenario, measured, seeds)
    return StudyResult(
        "one policy per objective, measured on every objective",
        "Decima learns qualitatively different policies for different objectives "
        "(section 7.4, Figure 13, section 8)",
        ("policy made for", *(str(measured) for measured in Objective)),
        [_row(trained_for, ratios) for trained_for in Objective],
        {
            "ratios": {
                m: {trained_for: e.to_json() for trained_for, e in row.items()}
                for m, row in ratios.items()
            },
            "learned": [policy.to_json() for policy in learned.values()],
        },
        [
            "cells: the column's objective / that of the policy tuned for it, "
            f"{num_runs} runs of {num_jobs} jobs, arrivals {request.stream}, "
            f"seeds {seeds.start} to {seeds.stop - 1}, paired, 95% intervals",
            *_unknown_notes(ratios),
            _beaten_note(ratios),
            *(policy.words for policy in learned.values()),
        ],
        partial(_draw, ratios),
    )


def _ratios_to_own(
    learned: dict[Objective, StudiedPolicy], scenario: Scenario, measured: Objective, seeds: range
) -> dict[str, Estimate]:
    """An objective under every policy / under the policy that was tuned for it.

    They are unknown if that one has none of it in any run, such as missed deadlines.
    """
    own_scenario = replace(scenario, objective=measured)
    costs = {
        # The ratio needs a cost above 0 on every seed.
        trained_for: _costs(policy, own_scenario, seeds) + _TINY
        for trained_for, policy in learned.items()
    }
    if (costs[measured] <= _TINY).all():
        return dict.fromkeys(costs, UNKNOWN)
    rng = np.random.default_rng(0)
    return {
        trained_for: ratio_estimate(c, costs[measured], "t", rng)
        for trained_for, c in costs.items()
    }


def _row(trained_for: Objective, ratios: dict[str, dict[str, Estimate]]) -> list[str]:
    cells = [with_interval(ratios[measured][trained_for]) for measured in Objective]
    return [str(trained_for), *cells]


def _unknown_notes(ratios: dict[str, dict[str, Estimate]]) -> list[str]:
    return [
        f"{measured}: the policy tuned for it costs nothing in any run, so no ratio is known"
        for measured, row in ratios.items()
        if all(estimate is UNKNOWN for estimate in row.values())
    ]


def _beaten_note(ratios: dict[str, dict[str, Estimate]]) -> str:
    # Every policy is compared on all objectives but its own.
    others = [
        estimate
        for measured, row in ratios.items()
        for trained_for, estimate in row.items()
        if trained_for != measured
    ]
    beaten = sum(estimate.mean > 1.0 for estimate in others)
    sure = sum(estimate.low > 1.0 for estimate in others)
    return (
        f"in {beaten} of {len(others)} cases another policy is worse at an objective than the "
        f"policy tuned for it; in {sure} of these the difference is significant at the 95% level"
    )


def _means(ratios: dict[str, dict[str, Estimate]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The ratios by the objective that a policy is made for, and the one that is measured."""
    return np.array([[ratios[m][trained_for].mean for m in Objective] for trained_for in Objective])


def _draw(ratios: dict[str, dict[str, Estimate]], path: Path) -> None:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        names = list(Objective)
        table = _means(ratios)
        image = axis.imshow(table, cmap="RdYlGn_r", vmin=0.8, vmax=1.2)
        for (row, column), value in np.ndenumerate(table):
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
        axis.set_xticks(range(len(names)), names, rotation=30, fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        tidy(
            axis,
            ("measured on", "made for"),
            "ratio to the policy made for the objective",
            has_legend=False,
        )
        axis.grid(visible=False)
        figure.colorbar(image, ax=axis, shrink=0.8)

    save(draw, (7.0, 5.0), path)
