"""The one runner of all studies: it trains, compares, judges, draws and writes.

A study is a row (`Study`) of `parcae.papers.table`. `reproduce` runs it once, `reproduce_often`
several times with other seeds.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from polars.selectors import numeric

from parcae.base.arrays import Float64Array
from parcae.base.errors import ConfigError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S, __version__, plain
from parcae.cluster.trace import Trace
from parcae.decima.graph.layout import DecimaSettings
from parcae.evaluation.compare import compare
from parcae.evaluation.pictures import new_picture, tidy, write_picture
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    UNKNOWN,
    UNKNOWN_TEXT,
    Estimate,
    mean_estimate,
    ratio_estimate,
    with_distances,
    with_half_width,
    with_interval,
)
from parcae.learning.scenario import NUM_SEARCH_SEEDS, Scenario, check_search_seed
from parcae.papers.contenders import (
    QUICK_MINUTES,
    SEEDS_APART,
    Learned,
    Part,
    Request,
    Stage,
    Training,
    budget_notes,
    learn,
    rigid_policies,
    rigid_values,
    with_sweeps,
    without_trainings,
)
from parcae.policies.learned import find_checkpoint, is_learned
from parcae.policies.names import parse_name
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.describe import fingerprint
from parcae.workloads.workload import JobSequence, Workload

#: Measures of a run by label, from its jobs and the traces by label.
PerRun = Callable[[JobSequence, Mapping[str, Trace]], Mapping[str, Mapping[str, float]]]
#: Simulates the run of a seed again: its jobs, and the traces by label.
Replay = Callable[[int], tuple[JobSequence, dict[str, Trace]]]
#: Added to costs of which some runs have none, which have no ratio.
_TINY = 1e-9


class Verdict(StrEnum):
    """Whether the results show what the paper found."""

    SAME = "as in the paper"
    OTHER = "not as in the paper"
    OPEN = "cannot be told"


@dataclass(frozen=True)
class Finding:
    """What a paper found or printed, beside what came out here.

    Args:
        claim: a sentence.
        here: the value that came out: a measure, or a ratio of two policies' measures.
        most: the paper found the value to be below this. None: it prints a measure, of which a
            tenth more or less is the same.
        paper: the value that it prints, None where it prints none.
        source: where in the paper.
    """

    claim: str
    here: Estimate
    most: float | None = 1.0
    paper: float | None = None
    source: str = ""

    @property
    def ratio(self) -> Estimate:
        """The value here / the paper's; unknown where it prints none."""
        return self.over(self.paper) if self.paper else UNKNOWN

    def over(self, number: float) -> Estimate:
        """The value here / a number."""
        return Estimate(*(x / number for x in (self.here.mean, self.here.low, self.here.high)))

    @property
    def verdict(self) -> Verdict:
        """What the interval says; OPEN where it is unknown."""
        low, high = self.here.low, self.here.high
        if self.most is None:
            low, high = self.ratio.low, self.ratio.high
            is_same = low >= 1 - _SAME and high <= 1 + _SAME
            is_other = high < 1 - _SAME or low > 1 + _SAME
        else:
            is_same = high < self.most
            is_other = low >= self.most or self._is_slight
        return Verdict.SAME if is_same else Verdict.OTHER if is_other else Verdict.OPEN

    @property
    def _is_slight(self) -> bool:
        """Whether a difference of unknown sign is less than half of the paper's, on the logarithm.

        It then is not what the paper found, whatever its sign.
        """
        if self.paper is None or self.most is None:
            return False
        half = math.sqrt(self.most * self.paper)
        return half < self.here.low < self.most <= self.here.high

    def row(self) -> list[str]:
        """The cells of a table's row, below `FINDING_COLUMNS`."""
        verdict = str(self.verdict)
        if self._is_slight:
            verdict += ": less than half of that difference"
        paper = UNKNOWN_TEXT if self.paper is None else f"{self.paper:.4g}"
        here = with_interval(self.here, "{:.4g}".format)
        return [self.claim, self.source, paper, here, with_interval(self.ratio), verdict]

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        return {
            "claim": self.claim,
            "source": self.source,
            "paper": self.paper,
            "here": self.here.to_json(),
            "here / paper": self.ratio.to_json(),
            "most": self.most,
            "verdict": str(self.verdict),
        }

    @staticmethod
    def from_json(card: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote."""
        values = (card["here"]["mean"], *card["here"]["ci95"])
        here = Estimate(*(math.nan if value is None else value for value in values))
        return Finding(card["claim"], here, card["most"], card["paper"], card["source"])


#: A printed measure is the same within this share of it.
_SAME = 0.1
#: The columns of `Finding.row`.
FINDING_COLUMNS = ("the paper's finding", "where", "the paper", "here", "here / paper", "verdict")


@dataclass(frozen=True)
class Measure:
    """A column of a study's table, and perhaps one of its ratios.

    Args:
        key: its name in the results, or a pattern (with *) of several names.
        heading: of its column; "": the name.
        digits: after the decimal point.
        is_share: written in percent.
        over: the policies to which the ratio is taken, in the same part or else in another; of
            several, the one that is best in the part. Empty: the first policy. None: no ratio.
        has_value: whether there is a column beside that of the ratio.
    """

    key: str
    heading: str
    digits: int = 1
    is_share: bool = False
    over: tuple[str, ...] | None = None
    has_value: bool = True

    def cell(self, estimate: Estimate) -> str:
        """The value in the table."""
        if math.isnan(estimate.mean):
            return UNKNOWN_TEXT
        if self.is_share:
            return f"{estimate.mean:.1%}"
        return with_half_width(estimate, self.digits)


JCT = "average_jct_s"
#: The columns of comparisons on Decima's cluster. "memory unused" is the share of the busy
#: executors' memory that their tasks did not need; it is known only with executor classes.
CLUSTER = (
    Measure(JCT, "average JCT (s)", over=()),
    Measure("p95_jct_s", "p95 JCT (s)"),
    Measure("makespan_s", "makespan (s)"),
    Measure("moves", "moves", 0),
    Measure("utilization", "busy", is_share=True),
    Measure("fragmentation", "memory unused", is_share=True),
)


@dataclass(frozen=True)
class Claim:
    """What a paper found, a measure is smaller under the first policy than under the second; or a
    measure of a policy that it prints.

    Args:
        first, second: labels of policies; no second one: the measure of the first is printed.
        where: the part: its name, "each" or "last"; "": the first one that has the label.
        most: what the ratio (None: 1), or the measure (None: it is to be the paper's), must be
            below.
        key: the measure.
        paper: the ratio, or the measure, that the paper prints; None: it follows from the measures
            that it prints of both policies, if it does.
        source: where the paper says so; "": where the study's other claims are.
    """

    first: str
    second: str = ""
    where: str = ""
    most: float | None = None
    key: str = JCT
    paper: float | None = None
    source: str = ""

    def sentence(self, headings: Mapping[str, str]) -> str:
        """The claim in words, with the headings of measures."""
        most = "" if self.most is None else f"{self.most:g}"
        limit = " x ".join(filter(None, (most, self.second)))
        measure = "" if self.key == JCT and limit else f"{headings.get(self.key, self.key)}: "
        return f"{measure}{self.first}" + (f" below {limit}" if limit else "")


@dataclass
class PartOutcome:
    """What every policy did in a part.

    Args:
        part: the part.
        values: by label and measure, a number for every run, or one number; NaN where unknown.
        notes: about the runs.
        replay: simulates a run again.
    """

    part: Part
    values: Mapping[str, Mapping[str, Any]]
    notes: Sequence[str] = ()
    replay: Replay | None = None

    def __post_init__(self) -> None:
        self.values = {
            label: {key: np.atleast_1d(np.asarray(x, np.float64)) for key, x in found.items()}
            for label, found in self.values.items()
        }

    def having(self, more: Mapping[str, Mapping[str, Any]]) -> PartOutcome:
        """The outcome with further values, of these policies or of others."""
        labels = dict.fromkeys((*self.values, *more))
        values = {label: {**self.values.get(label, {}), **more.get(label, {})} for label in labels}
        return replace(self, values=values)

    def has(self, label: str, key: str) -> bool:
        """Whether the measure was taken of this policy."""
        return key in self.values.get(label, {})

    def estimate(self, label: str, key: str) -> Estimate:
        """The mean of a measure over the runs in which it is known."""
        values = self.values.get(label, {}).get(key, np.empty(0))
        known = values[np.isfinite(values)]
        return mean_estimate(known).within(0.0) if len(known) else UNKNOWN


def ratio_of(values: Float64Array, baseline: Float64Array) -> Estimate:
    """The ratio of two policies' means over the runs in which both are known.

    It is unknown if there is no such run, or if the baseline is 0 in all of them.
    """
    known = np.isfinite(values) & np.isfinite(baseline)
    above, below = values[known], baseline[known]
    if not (below > 0).any():
        return UNKNOWN
    tiny = 0.0 if (below > 0).all() and (above > 0).any() else _TINY
    return ratio_estimate(above + tiny, below + tiny)


@dataclass
class StudyRun:
    """A study that is run: its parts, what was learned for them, and then their outcomes."""

    study: Study
    request: Request
    parts: Sequence[Part]
    made: dict[str, Learned]
    outcomes: Sequence[PartOutcome] = ()

    def names(self, part: Part) -> dict[str, str]:
        """The names of a part's policies, or the paths of their checkpoints, by label."""
        learned = {label: one.name for label, one in self.learned(part).items()}
        return {**part.policies, **learned}

    @property
    def seeds(self) -> range:
        """The seeds of the evaluation."""
        first = self.request.first_seed
        return range(first, first + self.request.runs(self.study.runs))

    def places(self, claim: Claim) -> Sequence[PartOutcome]:
        """The outcomes that a claim is about."""
        if claim.where == "last":
            return self.outcomes[-1:]
        has = [one for one in self.outcomes if one.has(claim.first, claim.key)]
        if not claim.where:
            return has[:1]
        return [one for one in has if claim.where in ("each", one.part.name)]

    def can_hold(self, claim: Claim) -> bool:
        """Whether a claim can be held against the results: a measure only on the paper's jobs."""
        is_ratio = bool(claim.second) or claim.most is not None
        return is_ratio or not whose_jobs(self.study, self.request)

    def printed(self, outcome: PartOutcome, label: str, key: str, in_picture: bool = True) -> float:
        """A policy's measure as the paper prints it; NaN where it does not.

        In a picture, a printed ratio counts, too: times the other policy's mean here.
        """
        for claim in self.study.claims:
            places = self.places(claim) if (claim.first, claim.key) == (label, key) else ()
            if claim.paper is None or not any(one is outcome for one in places):
                continue
            other = self.values(claim.second, key, outcome)
            if in_picture and other is not None:
                return claim.paper * float(other.mean())
            if not claim.second and (self.can_hold(claim) or not in_picture):
                return claim.paper
        return math.nan

    def learned(self, part: Part) -> dict[str, Learned]:
        """The policies of a part that were learned, by label."""
        made = self.made
        return {label: made[x] for label, x in part.policies.items() if x in made}

    @cached_property
    def measures(self) -> list[Measure]:
        """The study's measures that were taken, one for each name that a pattern fits."""
        taken = dict.fromkeys(
            key for one in self.outcomes for found in one.values.values() for key in found
        )
        return [
            replace(one, key=key, heading=one.heading or key)
            for one in self.study.measures
            for key in fnmatch.filter(taken, one.key)
        ]

    def first_run(self, outcome: PartOutcome) -> tuple[JobSequence, dict[str, Trace]]:
        """The first run of a part: its jobs, and the traces by label."""
        assert outcome.replay is not None
        return outcome.replay(self.request.first_seed)

    def values(self, label: str, key: str, near: PartOutcome | None) -> Float64Array | None:
        """A measure of a policy in the part `near`, else in the first part that has it."""
        every = (*([] if near is None else [near]), *self.outcomes)
        return next((one.values[label][key] for one in every if one.has(label, key)), None)

    def baseline(self, outcome: PartOutcome, measure: Measure) -> str:
        """The label of the policy to which a measure's ratio is taken."""
        over = measure.over or tuple(outcome.values)[:1]
        present = [label for label in over if outcome.has(label, measure.key)]
        means = {label: outcome.estimate(label, measure.key).mean for label in present}
        return min(means, key=means.__getitem__) if means else over[0]

    def ratio(self, outcome: PartOutcome, label: str, measure: Measure) -> Estimate:
        """A policy's measure / that of the baseline on the same runs."""
        below = self.values(self.baseline(outcome, measure), measure.key, outcome)
        if below is None or not outcome.has(label, measure.key):
            return UNKNOWN
        return ratio_of(outcome.values[label][measure.key], below)


def compare_parts(run: StudyRun) -> list[PartOutcome]:
    """Run all policies of each part on the same evaluation seeds."""
    outcomes = []
    for part in run.parts:
        play = _play_rigid if isinstance(part.setting, Stage) else _play_cluster
        of_trainings = {label: one.numbers for label, one in run.learned(part).items()}
        outcomes.append(play(run, part).having(of_trainings))
    return outcomes


def _play_cluster(run: StudyRun, part: Part) -> PartOutcome:
    scenario, request = part.scenario, run.request
    labels = {name: label for label, name in run.names(part).items()}
    seeds = run.seeds
    request.say(f"comparing {', '.join(labels.values())} on {len(seeds)} runs")
    comparison = compare(
        part.world,
        list(labels),
        num_seeds=len(seeds),
        seed_start=seeds[0],
        processes=request.processes,
    )

    def replay(seed: int) -> tuple[JobSequence, dict[str, Trace]]:
        sequence = scenario.sequence(seed)
        traces = {
            labels[name]: simulate(sequence, policy, scenario.config, seed, record=True)
            # Oracles differ by sequence, so the policies are made for this one.
            for name, policy in comparison.resolved.for_sequence(sequence, seed).items()
        }
        return sequence, {label: replace(one, policy=label) for label, one in traces.items()}

    values = {labels[result.name]: by_measure(result.runs) for result in comparison.policies}
    if run.study.per_run is not None:
        found = [run.study.per_run(*replay(seed)) for seed in seeds]
        for label, measured in values.items():
            for key in found[0][label]:
                measured[key] = np.array([of_run[label][key] for of_run in found], np.float64)
    unfinished = sum(int(measured["unfinished"].sum()) for measured in values.values())
    notes = [
        f"{len(seeds)} runs of {scenario.num_jobs} jobs of {scenario.workload.name} on "
        f"{scenario.config.total_executors} executors, arrivals {scenario.arrivals}, seeds "
        f"{seeds[0]} to {seeds[-1]}, paired",
        *(f"{labels[name]}: {words}" for name, words in comparison.settings["tuned"].items()),
    ]
    if unfinished:
        notes.append(f"{unfinished} jobs cut off at the end of a run: such times are lower bounds")
    return PartOutcome(part, values, notes, replay)


def by_measure(runs: pl.DataFrame) -> dict[str, Float64Array]:
    """By measure, a number for every run; times in seconds. Unknown measures are left out."""
    found = {}
    for column in runs.select(numeric()).iter_columns():
        if column.null_count() == 0:
            name = column.name.removesuffix("_ms")
            is_time = name != column.name
            found[name + "_s" * is_time] = column.to_numpy() / (MS_PER_S if is_time else 1)
    return found


def _play_rigid(run: StudyRun, part: Part) -> PartOutcome:
    stage = part.stage
    run.request.say(f"running all policies {part.name}")
    policies = rigid_policies(part, run.made, run.request.processes)
    values = {label: rigid_values(stage.play(policy)) for label, policy in policies.items()}
    lost = {label: int(one["unfinished"].sum()) for label, one in values.items()}
    words = ", ".join(f"{label} {count}" for label, count in lost.items() if count)
    notes = [
        f"{len(stage.sequences)} sequences that no policy was trained on, from seed "
        f"{stage.first_seed} on, the same for all",
        *(f"{label} is {one.name}" for label, one in policies.items() if "tetris" in one.name),
    ]
    if words:
        notes.append(f"jobs never started or lost, charged as if they ran after the end: {words}")
    return PartOutcome(part, values, notes)


@dataclass(frozen=True)
class Study:
    """A figure or table of a paper, as a row of the table of studies.

    Args:
        name: its name at the command line.
        title, paper: what it shows, and what the paper says of it.
        parts: its settings, and who competes in each.
        draw: writes the picture.
        runs: number of runs of each part, by default and with --full.
        measures: the columns of the table.
        claims: what the paper found and printed, to be held against the results.
        notes: what one must know to read the table.
        play: measures the parts, if the study has a way of its own.
        per_run: further measures of each run, by label, from the traces of all policies.
        given: what --policy is for: "" (it compares trainings), "replaces" the trainings, or
            "agents" of the study's own, each instead of its training.
        ignores: the options that have no effect.
        takes_decima: whether all trainings go with any settings of Decima's network.
        ships: whether its policies ship, so that it trains only where the request says so.
        has_classes: whether it is about executor classes, and takes a recorded trace.
        is_rigid: whether it is about rigid jobs, with jobs and a cluster of its own.
        needs_log: whether it is about the log of a batch cluster.
        recipe: of the trainings, by default.
        minutes: of all trainings, by default.
    """

    name: str
    title: str
    paper: str
    parts: Callable[[Request], list[Part]]
    draw: Callable[[StudyRun, Path], None]
    runs: tuple[int, int] = (20, 100)
    measures: tuple[Measure, ...] = CLUSTER
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    play: Callable[[StudyRun], list[PartOutcome]] = compare_parts
    per_run: PerRun | None = None
    given: str = ""
    ignores: frozenset[str] = frozenset()
    takes_decima: bool = False
    ships: bool = False
    has_classes: bool = False
    is_rigid: bool = False
    needs_log: bool = False
    recipe: str = "fast"
    minutes: float = QUICK_MINUTES

    @property
    def source(self) -> str:
        """Where the paper says what it says: the last words in parentheses."""
        return self.paper.rpartition("(")[2].rstrip(")")


@dataclass(frozen=True)
class StudyResult:
    """The result of a study, and how it was made, for repeating it."""

    study: Study
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Mapping[str, Any]
    notes: Sequence[str]
    draw: Callable[[Path], None]
    findings: Sequence[Finding] = ()
    seconds: float = 0.0
    command: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    whose_jobs: str = ""


def run_study(study: Study, request: Request) -> StudyResult:
    """Run a study. Its checkpoints go to the request's folder."""
    parts = study.parts(request)
    if request.policies and study.given == "replaces" and not study.is_rigid:
        parts = [without_trainings(part, _asked_for(request, part, parts)) for part in parts]
    _check_settings(request, parts)
    if not study.ships:
        request = replace(request, trains_anew=True)
    made = learn(request, {key: one for part in parts for key, one in part.trainings.items()})
    if study.has_classes:
        parts = [with_sweeps(request, part) for part in parts]
    run = StudyRun(study, request, parts, made)
    run.outcomes = study.play(run)
    columns, *rows = _table(run)
    return StudyResult(
        study,
        columns,
        rows,
        _numbers(run),
        _notes(run),
        partial(study.draw, run),
        _findings(run),
    )


#: A word of the provenance of the profiles that Decima's authors measured.
_AUTHORS = "Decima authors"


def whose_jobs(study: Study, request: Request) -> str:
    """Where a study does not run on the paper's jobs: that it does not, and where to get them."""
    workload = request.workload
    words = []
    if study.needs_log:
        words.append("Not on the paper's log, which is not published.")
    elif workload is None or study.is_rigid or "workload" in study.ignores:
        pass
    elif _AUTHORS not in workload.provenance.get("measured", ""):
        words.append(
            f"Not on the paper's jobs but on {workload.name!r}: the authors' TPC-H profiles are in "
            "hongzimao/decima-sim (spark_env/tpch); `parcae workload import tpch-profiles` reads "
            "them, --workload takes them."
        )
    if study.has_classes and request.recorded is None:
        words.append(
            "Not on the paper's trace: it is cluster-trace-v2018 of alibaba/clusterdata; --trace "
            "takes its batch_task.csv."
        )
    return " ".join(words)


def _asked_for(request: Request, part: Part, parts: Sequence[Part]) -> list[str]:
    """The request's policies without checkpoints for another workload of the study."""
    scenario = part.scenario
    others = {one.scenario.workload.name for one in parts} - {scenario.workload.name}
    asked = []
    for text in request.policies:
        name = parse_name(text)
        card = find_checkpoint(name, scenario.setting).card if is_learned(name) else {}
        # Checkpoints for an unknown workload stay: the user asked for them.
        if card.get("workload") not in others:
            asked.append(text)
    return asked


def _check_settings(request: Request, parts: Sequence[Part]) -> None:
    """Draw the first jobs of every setting, and make the user's policies, before any training."""
    for part in parts:
        trained = [one for one in part.trainings.values() if isinstance(one, Training)]
        for one in (part.setting, *(scenario for each in trained for scenario in each.scenarios)):
            if isinstance(one, Scenario):
                one.sequence(request.first_seed)
        if isinstance(part.setting, Scenario):
            # Policies with `:tuned` take a sweep of their own and are left for later.
            given = set(part.policies.values()) & set(request.policies)
            part.world.resolve([name for name in given if ":tuned" not in name])


def _table(run: StudyRun) -> list[list[str]]:
    """The columns, and a row for each policy of each part."""
    head = ["setting", "policy"]
    for one in run.measures:
        head += [one.heading] * one.has_value
        if one.over is not None:
            other = " or ".join(one.over) or run.baseline(run.outcomes[0], one)
            head.append(f"{'ratio' if one.has_value else one.heading} to {other}")
    table = [head]
    for outcome in run.outcomes:
        name = outcome.part.name
        for label in outcome.values:
            row = [name, label]
            for one in run.measures:
                if one.has_value:
                    row.append(one.cell(outcome.estimate(label, one.key)))
                if one.over is not None:
                    row.append(with_interval(run.ratio(outcome, label, one)))
            table.append(row)
    # A study of one setting does not name it.
    first = 0 if any(outcome.part.name for outcome in run.outcomes) else 1
    return [row[first:] for row in table]


def _findings(run: StudyRun) -> list[Finding]:
    """The paper's claims about policies that were run, held against the results."""
    found = []
    headings = {one.key: one.heading for one in run.measures}
    for claim in filter(run.can_hold, run.study.claims):
        for place in run.places(claim):
            above = run.values(claim.first, claim.key, place)
            below = run.values(claim.second, claim.key, place)
            if above is None or (claim.second and below is None):
                continue
            own = place.estimate(claim.first, claim.key)
            here = own if below is None else ratio_of(above, below)
            first, second = (
                run.printed(place, label, claim.key, in_picture=False)
                for label in (claim.first, claim.second)
            )
            paper = plain(first / second) if claim.paper is None else claim.paper
            name = f"{place.part.name}: " if claim.where and place.part.name else ""
            words = name + claim.sentence(headings)
            source = claim.source or run.study.source
            most = claim.most or (1.0 if claim.second else None)
            found.append(Finding(words, here, most, paper, source))
    return found


def _numbers(run: StudyRun) -> dict[str, Any]:
    """All results as plain JSON: by part, policy and measure."""
    parts: dict[str, Any] = {}
    for outcome in run.outcomes:
        of_part = parts[outcome.part.name] = {}
        for label, measured in outcome.values.items():
            numbers = of_part[label] = {
                key: {**outcome.estimate(label, key).to_json(), "runs": values.tolist()}
                for key, values in measured.items()
            }
            for one in run.measures:
                if one.over is not None and one.key in measured:
                    ratio = run.ratio(outcome, label, one)
                    numbers[f"{one.key} / {run.baseline(outcome, one)}"] = ratio.to_json()
    learned = {
        key: {
            "policy": Path(one.name).name,
            **one.numbers,
            "curve": [list(point) for point in one.curve],
        }
        for key, one in run.made.items()
    }
    found: dict[str, Any] = plain({"parts": parts, "learned": learned})
    return found


def _notes(run: StudyRun) -> list[str]:
    notes = [*run.study.notes, METHODS[DEFAULT_METHOD]]
    for outcome in run.outcomes:
        name = f"{outcome.part.name}: " if outcome.part.name else ""
        notes += [f"{name}{note}" for note in (*outcome.part.notes, *outcome.notes)]
    notes += [one.words for one in run.made.values()]
    return [*notes, *budget_notes(run.request, run.made)]


class StudyFiles(NamedTuple):
    """The files of a study's result."""

    table: Path
    picture: Path
    numbers: Path


def settings_of(request: Request) -> dict[str, Any]:
    """Everything that is needed to run the study again."""
    settings: dict[str, Any] = {
        "full": request.is_full,
        "training_budget_s": request.budget_s,
        "recipe": str(request.recipe),
        "seed": request.seed,
        "first_evaluation_seed": request.first_seed,
        "runs": request.num_runs,
        "policies": list(request.policies),
        "version": __version__,
    }
    if request.log is not None:
        # Two logs may have one name.
        digest = hashlib.sha256(request.log.read_bytes()).hexdigest()
        settings |= {"log": request.log.name, "log_sha256": digest}
    # Studies of rigid jobs define their jobs and clusters themselves.
    if request.workload is not None:
        settings |= _of_jobs(request.workload, request.config)
        settings |= {"stream": request.stream, "jobs": request.num_jobs}
    if request.is_cluster_given:
        settings["is_cluster_given"] = True
    if request.decima != DecimaSettings():
        settings["decima"] = request.decima.model_dump(mode="json", exclude_defaults=True)
    trace = request.recorded
    if trace is not None:
        own = _of_jobs(trace.workload, trace.config)
        settings["recorded"] = {**own, "arrivals": trace.arrivals}
    return settings


def _of_jobs(workload: Workload, config: SimulationConfig) -> dict[str, Any]:
    return {
        "workload": workload.name,
        "fingerprint": fingerprint(workload),
        "config": config.model_dump(mode="json"),
    }


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example: `markdown_table(["a"], [["1"]])` has three lines, the second "| --- |".
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def page(result: StudyResult, picture: str) -> str:
    """The page of a study in Markdown."""
    study = result.study
    findings = [finding.row() for finding in result.findings]
    parts = [
        f"# {study.name}: {study.title}",
        result.whose_jobs,
        f"The paper: {study.paper}",
        markdown_table(result.columns, result.rows),
        markdown_table(FINDING_COLUMNS, findings) if findings else "",
        f"![{study.title}]({picture})",
        "\n".join(f"- {note}" for note in result.notes),
        f"Wall time {result.seconds:,.0f} s."
        + (f" Command:\n\n    {result.command}" if result.command else ""),
        "Settings:\n\n    " + json.dumps(result.settings, indent=2).replace("\n", "\n    "),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_study(result: StudyResult, folder: Path) -> StudyFiles:
    """Write NAME.md, NAME.png and NAME.json. Each file appears only when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    study = result.study
    files = StudyFiles(*(folder / f"{study.name}.{kind}" for kind in ("md", "png", "json")))
    result.draw(files.picture)
    card = {
        "study": study.name,
        "title": study.title,
        "paper": study.paper,
        "whose_jobs": result.whose_jobs,
        "table": {"columns": result.columns, "rows": result.rows},
        "findings": [finding.to_json() for finding in result.findings],
        "numbers": result.numbers,
        "notes": result.notes,
        "seconds": round(result.seconds, 1),
        "command": result.command,
        "settings": result.settings,
    }
    numbers = json.dumps(card, indent=2, allow_nan=False) + "\n"
    write_text(files.table, page(result, files.picture.name))
    # The last file: where it is, the result is complete (`reproduce_often` does not repeat it).
    write_text(files.numbers, numbers)
    return files


def reproduce(study: Study, request: Request, command: str = "") -> tuple[StudyResult, StudyFiles]:
    """Run a study and write its table, picture and numbers into the request's folder.

    Trained policies are written to the subfolder NAME-policies.
    """
    is_certain = request.trains_anew or not study.ships
    if is_certain and not request.policies and "budget" not in study.ignores:
        check_search_seed(request.seed)
    request.output.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    result = run_study(study, replace(request, output=request.output / f"{study.name}-policies"))
    seconds = time.perf_counter() - began
    return _written(result, request, seconds, command)


def _written(
    result: StudyResult, request: Request, seconds: float, command: str, **settings: int
) -> tuple[StudyResult, StudyFiles]:
    """The result with how it was made, and its files in the request's folder."""
    result = replace(
        result,
        seconds=seconds,
        command=command,
        settings=settings_of(request) | settings,
        whose_jobs=whose_jobs(result.study, request),
    )
    return result, write_study(result, request.output)


def reproduce_often(
    study: Study, request: Request, num_trainings: int, command: str = ""
) -> tuple[StudyResult, StudyFiles]:
    """Run a study several times, each time with other seeds, and sum up its findings.

    Every run has a folder of its own, NAME-seed-N. A run whose result is there already is not
    repeated.
    """
    if not study.claims or study.ships:
        raise ConfigError(
            "--trainings sums up findings of a paper about policies that a study trains, and "
            f"{study.name} has none: leave it out"
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
    cards = {seed: _card(study, request, seed, command) for seed in seeds}
    seconds = sum(card["seconds"] for card in cards.values())
    return _written(_summary(study, cards), request, seconds, command, trainings=num_trainings)


def _card(study: Study, request: Request, seed: int, command: str) -> dict[str, Any]:
    """The numbers of the run of a seed, from its folder if they are there."""
    request = replace(request, seed=seed, output=request.output / f"{study.name}-seed-{seed}")
    path = request.output / f"{study.name}.json"
    if not path.exists():
        request.say(f"seed {seed}")
        reproduce(study, request, command)
    try:
        card: dict[str, Any] = json.loads(path.read_text())
        found, _, _ = (card[key] for key in ("settings", "findings", "seconds"))
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{path} is not the result of a study: remove it") from None
    wanted = json.loads(json.dumps(settings_of(request)))
    # Some settings are there only where they are not the usual ones.
    other = sorted(key for key in wanted | found if wanted.get(key) != found.get(key))
    if other:
        raise ConfigError(
            f"{path} has the result of other settings ({', '.join(other)}): choose another "
            "--output, or remove that folder"
        )
    return card


def over_trainings(findings: Sequence[Finding], *, are_on_same_jobs: bool = False) -> Finding:
    """One finding over several trainings, with the interval over them. Returns the finding with the
    geometric mean of the values; the interval is Student's t on their logarithms. With one
    training, or a value that is unknown, the interval is unknown.
    """
    first = findings[0]
    ratios = np.array([[one.here.low, one.here.mean, one.here.high] for one in findings])
    means = ratios[:, 1]
    # A value that is NaN or not above 0 has no logarithm.
    if not (np.isfinite(means).all() and (means > 0).all()):
        return replace(first, here=UNKNOWN)
    overall = mean_estimate(np.log(means), "t")
    bounds = np.array([overall.low, overall.high])
    if are_on_same_jobs:
        # How far the findings' own intervals reach does not average out; below 0 is no ratio.
        with np.errstate(divide="ignore"):
            low, mean, high = np.log(np.maximum(0.0, ratios)).T
        reach = np.array([(mean - low).mean(), (high - mean).mean()])
        bounds = overall.mean + np.array([-1, 1]) * np.hypot(bounds - overall.mean, reach)
    return replace(first, here=Estimate(*np.exp([overall.mean, *bounds]).tolist()))


def _summary(study: Study, cards: Mapping[int, Mapping[str, Any]]) -> StudyResult:
    """The findings of all runs, by seed, in one table."""
    settings = next(iter(cards.values()))["settings"]
    log = settings.get("log")
    by_run = [[Finding.from_json(one) for one in card["findings"]] for card in cards.values()]
    by_claim = list(zip(*by_run, strict=True))
    # Two trainings on pieces of one log are compared on nearly the same jobs.
    overall = [over_trainings(each, are_on_same_jobs=log is not None) for each in by_claim]
    rows = []
    for one, each in zip(overall, by_claim, strict=True):
        *cells, ratio, verdict = one.row()
        values = (with_interval(replace(found.here, low=math.nan)) for found in each)
        rows.append([*cells, ", ".join(values), ratio, verdict])
    of_runs = "which each have other evaluation runs"
    if log is not None:
        of_runs = (
            "widened by the intervals within them, since all runs are pieces of "
            f"{log}: it is about this log's jobs"
        )
    pages = (f"[seed {seed}]({study.name}-seed-{seed}/{study.name}.md)" for seed in cards)
    return StudyResult(
        replace(study, title=f"{study.title}, in {len(cards)} trainings"),
        (*FINDING_COLUMNS[:4], "in each training", *FINDING_COLUMNS[4:]),
        rows,
        {f"seed {seed}": card["findings"] for seed, card in cards.items()},
        [
            "here: geometric mean of the values, with a 95% interval over the trainings "
            f"(Student's t on the logarithm), {of_runs}. The verdict is about this interval",
            "in each, all policies together were trained for "
            f"{settings['training_budget_s'] / 60:g} minutes by recipe {settings['recipe']}. "
            "A verdict says nothing about longer trainings",
            f"tables, pictures and trainings: {', '.join(pages)}",
        ],
        partial(_draw_trainings, overall),
    )


def _draw_trainings(overall: Sequence[Finding], path: Path) -> None:
    """Draw every finding / its limit (else the paper's value), and what the paper prints."""
    limits = [one.most or one.paper or 1.0 for one in overall]
    label = "value / the limit below which the finding holds, or the paper's value"
    ratios = [one.over(limit) for one, limit in zip(overall, limits, strict=True)]
    figure = new_picture(9.0, 1.2 + 0.5 * len(overall))
    axis = figure.subplots()
    rows = range(len(overall))
    means, *reach = with_distances(ratios)
    axis.errorbar(means, rows, xerr=reach, fmt="o", label="all trainings, 95% interval")
    papers = [(one.paper or math.nan) / limit for one, limit in zip(overall, limits, strict=True)]
    mark_paper(axis, papers, rows)
    axis.axvline(1.0, color="#1d232a", linewidth=1, linestyle="--")
    axis.set_yticks(rows, [one.claim for one in overall], fontsize=8)
    axis.invert_yaxis()
    tidy(axis, (label, ""))
    write_picture(figure, path)


def mark_paper(
    axis: Any, x: Sequence[float], y: Sequence[float], colors: str | Sequence[str] = "#1d232a"
) -> bool:
    """Draw the points that the paper prints (the others are NaN). Returns whether there are any."""
    is_any = bool((np.isfinite(x) & np.isfinite(y)).any())
    if is_any:
        style = {"marker": "D", "facecolors": "none", "zorder": 5, "label": "the paper"}
        axis.scatter(x, y, edgecolors=colors, **style)
    return is_any
