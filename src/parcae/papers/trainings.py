"""A study whose trainings are repeated, and what all of them say of the paper's findings."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError
from parcae.evaluation.pictures import tidy
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import UNKNOWN_TEXT
from parcae.learning.scenario import NUM_SEARCH_SEEDS
from parcae.papers.catalog import reproduce
from parcae.papers.findings import Finding, over_trainings
from parcae.papers.pictures import save
from parcae.papers.study import (
    LOG_FINGERPRINT,
    SEEDS_APART,
    Origin,
    PackingRequest,
    StudyFiles,
    StudyRequest,
    StudyResult,
    settings_of,
    write_study,
)

#: The studies that hold findings of their paper against what they train. Tables 1 and 2 of
#: A2cScheduler are not among them: their agent ships.
STUDIES_WITH_FINDINGS = (
    "decima-fig13",
    "decima-fig14",
    "decima-fig15a",
    "decima-fig23",
    "decima-table2",
    "decima-table3",
    "idle-table1",
    "idle-fig3",
    "a2c-table3",
    "a2c-table4",
)


def reproduce_often(
    name: str, request: StudyRequest | PackingRequest, num_trainings: int, command: str = ""
) -> tuple[StudyResult, StudyFiles]:
    """Run a study several times, each time with other seeds, and sum up its findings.

    Every run has a folder of its own, NAME-seed-N. A run whose result is there already is not
    repeated.

    See `reproduce` for further errors.
    """
    if name not in STUDIES_WITH_FINDINGS:
        raise ConfigError(
            "--trainings sums up findings of a paper about policies that a study trains, and "
            f"{name} has none; it applies to {', '.join(STUDIES_WITH_FINDINGS)}"
        )
    if request.policies:
        raise ConfigError(
            "--trainings trains the policies anew in every run, and --policy names policies that "
            "are not trained: leave out one of them"
        )
    if num_trainings > 1 and (request.num_runs or 0) > SEEDS_APART:
        raise ConfigError(
            f"--trainings with --runs {request.num_runs}: the runs of successive trainings would "
            f"have seeds in common, so give at most --runs {SEEDS_APART}"
        )
    seeds = range(request.seed, request.seed + num_trainings)
    if seeds[0] < 0 or seeds[-1] >= NUM_SEARCH_SEEDS:
        raise ConfigError(
            f"--trainings {num_trainings} from --seed {request.seed} on would have the seeds "
            f"{seeds[0]} to {seeds[-1]}, but seeds of trainings are 0 to {NUM_SEARCH_SEEDS - 1}: "
            "give a smaller --seed or fewer trainings"
        )
    cards = [_card(name, request, seed, command) for seed in seeds]
    result = _summary(name, seeds, cards)
    settings = {**settings_of(request), "trainings": num_trainings}
    origin = Origin(name, sum(card["seconds"] for card in cards), command, settings)
    return result, write_study(result, origin, request.output)


def _card(
    name: str, request: StudyRequest | PackingRequest, seed: int, command: str
) -> dict[str, Any]:
    """The numbers of the run of a seed, from its folder if they are there."""
    request = replace(request, seed=seed, output=request.output / f"{name}-seed-{seed}")
    path = request.output / f"{name}.json"
    if not path.exists():
        request.say(f"seed {seed}")
        reproduce(name, request, command)
    card = _read(path)
    wanted = json.loads(json.dumps(settings_of(request)))
    found = card["settings"]
    # Earlier versions wrote no fingerprint of the log.
    if LOG_FINGERPRINT not in found:
        wanted.pop(LOG_FINGERPRINT, None)
    # Some settings are there only where they are not the usual ones.
    other = sorted(key for key in wanted | found if wanted.get(key) != found.get(key))
    if other:
        raise ConfigError(
            f"{path} has the result of other settings ({', '.join(other)}): choose another "
            "--output, or remove that folder"
        )
    return card


def _read(path: Path) -> dict[str, Any]:
    """The numbers of a run."""
    try:
        card: dict[str, Any] = json.loads(path.read_text())
        missing = {"settings", "findings", "seconds"} - card.keys()
    except (ValueError, AttributeError):
        missing = {"JSON"}
    if missing:
        raise ConfigError(f"{path} is not the result of a study: remove it")
    return card


def _summary(name: str, seeds: Sequence[int], cards: Sequence[dict[str, Any]]) -> StudyResult:
    """The findings of all runs in one table."""
    runs = [[Finding.from_json(one) for one in card["findings"]] for card in cards]
    first = cards[0]
    minutes = first["settings"]["training_budget_s"] / 60
    log = first["settings"].get("log")
    # Two trainings on pieces of one log are compared on nearly the same jobs.
    rows = [_Row(of_trainings, log is not None) for of_trainings in zip(*runs, strict=True)]
    of_runs = "which each have other evaluation runs"
    if log is not None:
        of_runs = (
            "widened by the intervals within them, since all runs are pieces of "
            f"{log}: it is about this log's jobs"
        )
    pages = (f"[seed {seed}]({name}-seed-{seed}/{name}.md)" for seed in seeds)
    return StudyResult(
        f"{first['title']}, in {len(seeds)} trainings",
        first["paper"],
        ("the paper's finding", "holds below", "all trainings", "each training", "verdict"),
        [row.cells() for row in rows],
        {f"seed {seed}": card["findings"] for seed, card in zip(seeds, cards, strict=True)},
        [
            "all trainings: geometric mean of the ratios, with a 95% interval over the trainings "
            f"(Student's t on the logarithm), {of_runs}. The verdict is about this interval",
            f"in each, all policies together were trained for {minutes:g} minutes by recipe "
            f"{first['settings']['recipe']}. A verdict says nothing about longer trainings",
            f"tables, pictures and trainings: {', '.join(pages)}",
        ],
        partial(save, partial(_draw, seeds, rows), (9.0, 1.2 + 0.5 * len(rows))),
    )


class _Row:
    """A finding in every training, and over all of them."""

    def __init__(self, of_trainings: Sequence[Finding], are_on_same_jobs: bool) -> None:
        self.of_trainings = of_trainings
        self.overall = over_trainings(of_trainings, are_on_same_jobs=are_on_same_jobs)

    def cells(self) -> list[str]:
        """The cells of a table's row: the ratio over all trainings and in each, and the verdict."""
        claim, ratio, most, verdict = self.overall.row()
        means = (finding.ratio.mean for finding in self.of_trainings)
        each = ", ".join(UNKNOWN_TEXT if math.isnan(mean) else f"{mean:.3f}" for mean in means)
        return [claim, most, ratio, each, verdict]


def _draw(seeds: Sequence[int], rows: Sequence[_Row], figure: Any) -> None:
    """Draw every finding's ratio / its limit: a small dot for each training, and all of them."""
    axis = figure.subplots()
    for place, row in enumerate(rows):
        most = row.overall.most
        ratios = [finding.ratio.mean / most for finding in row.of_trainings]
        label = "one training" if place == 0 else None
        axis.plot(ratios, [place] * len(seeds), ".", color=policy_color(0), label=label)
        ratio = row.overall.ratio
        label = f"{len(seeds)} trainings, 95% interval" if place == 0 else None
        bounds = [ratio.low / most, ratio.high / most]
        color = policy_color(1)
        axis.plot([ratio.mean / most], [place + 0.25], "D", color=color, label=label)
        axis.plot(bounds, [place + 0.25] * 2, color=color, linewidth=1.5)
    claims = [row.overall.claim for row in rows]
    axis.set_yticks(range(len(claims)), claims, fontsize=8)
    axis.set_ylim(len(claims) - 0.5, -0.5)
    axis.axvline(1.0, color="#1d232a", linewidth=1, linestyle="--")
    tidy(axis, ("ratio / the limit below which the finding holds", ""))
