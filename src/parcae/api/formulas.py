"""`learn_formula`: search a formula for a scenario, and hold it against the tuned rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parcae.api import study
from parcae.base.files import write_text
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import write_comparison
from parcae.evaluation.pictures import new_picture, tidy, write_picture
from parcae.evaluation.report import write_report
from parcae.evaluation.statistics import Estimate, with_distances
from parcae.learning.formulas import FoundFormula, search_formulas
from parcae.learning.worlds import world_of
from parcae.policies.names import FORMULA
from parcae.policies.policy_file import export_policy, write_policy

#: A formula is chosen over longer ones whose cost is not lower by more than this share.
_AS_GOOD = 0.003


def learn_formula(
    request: study.LearnRequest,
    progress: study.Progress,
    command: str,
    begin: Callable[[list[str]], None],
) -> study.LearnResult:
    """Tune the rule for half of the time and search formulas for the other half, on the same kind
    of runs; compare on held-out runs, and write all files to the folder.

    The files are tuned.safetensors (the rule), policy.json (the chosen formula), front.json and
    front.png, comparison.json, report.html and summary.txt; arguments and errors are those of
    `study.learn`.
    """
    scenario, folder, half_s = request.scenario, request.folder, request.budget_s / 2
    with study.learning_into(request, begin):
        tuning, rule = study.tuned(request, 0.5, progress)

        def show(seconds: float, best: FoundFormula) -> None:
            text = f"{best.ratio_to_fair:.3f} of fair in {best.terms} terms"
            progress(tuning.seconds + seconds, request.budget_s, f"searching formulas: {text}")

        found = search_formulas(scenario, budget_s=half_s, seed=request.seed, progress=show)
        progress(request.budget_s, request.budget_s, "comparing on held-out runs")
        names = [f"{FORMULA}: {one.text}" for one in found]
        comparison = compare(
            ClusterWorld(scenario.workload, scenario.config, scenario.arrivals, scenario.num_jobs),
            [*world_of(scenario).baselines, str(rule), *names],
            num_seeds=request.num_seeds,
            processes=request.processes,
        )
        objective = scenario.objective
        to_rule = [study.objective_ratio(comparison, objective, one, str(rule)) for one in names]
        place = chosen(found)
        paragraph = (
            f"{study.savings_paragraph(comparison, objective, names[place])} The formula has "
            f"{found[place].terms} terms and {study.change(to_rule[place])} "
            f"{study.in_words(objective)} than the rule that was tuned for as long."
        )
        rows: list[dict[str, Any]] = [
            {**asdict(one), "ratio_to_tuned": ratio.to_json(), "is_chosen": one is found[place]}
            for one, ratio in zip(found, to_rule, strict=True)
        ]
        exported, report = folder / study.EXPORTED, folder / study.REPORT
        write_text(folder / study.FRONT, json.dumps(rows, indent=2) + "\n")
        write_policy(export_policy(names[place], scenario.workload), exported)
        draw_front(found, to_rule, folder / study.FRONT_PICTURE)
        write_comparison(comparison, folder / study.COMPARISON)
        write_text(folder / study.SUMMARY, f"{names[place]}\n\n{paragraph}\n")
        write_report(comparison, report, command=command)
    front = tuple(zip(found, to_rule, strict=True))
    return study.LearnResult(
        comparison, tuning, paragraph, names[place], report, exported, front=front
    )


def draw_front(found: Sequence[FoundFormula], to_rule: Sequence[Estimate], path: Path) -> None:
    """Draw the objective of the formulas over their length."""
    means, *reach = with_distances(to_rule)
    figure = new_picture(6.0, 3.8)
    axis = figure.subplots()
    axis.axhline(1.0, color="gray", linewidth=0.8)
    axis.errorbar([one.terms for one in found], means, yerr=reach, marker="o", capsize=3)
    tidy(axis, ("terms", "objective / the tuned rule's"), "formulas, on held-out runs")
    write_picture(figure, path)


def chosen(front: tuple[FoundFormula, ...]) -> int:
    """The place of the shortest formula that is as good as the best, which is the last."""
    enough = front[-1].ratio_to_fair * (1 + _AS_GOOD)
    return next(place for place, one in enumerate(front) if one.ratio_to_fair <= enough)
