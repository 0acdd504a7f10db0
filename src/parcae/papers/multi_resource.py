"""Figure 11, and the settings of all studies of executor classes.

There are two settings: TPC-H with randomly drawn memory demands, and a recorded trace.

Source: Decima, section 7.3 and Appendix F.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from parcae.base.errors import FormatError
from parcae.base.files import write_text
from parcae.cluster.trace import Trace
from parcae.decima.graph.layout import DecimaSettings
from parcae.evaluation.policies import resolve_policies
from parcae.evaluation.tuning import describe
from parcae.evaluation.tuning import tune as sweep
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contender, Contest, contest, labels_of
from parcae.papers.learners import (
    DecimaVariant,
    StudiedPolicy,
    budget_notes,
    requested,
    train_decima,
    train_parcae,
    tune,
)
from parcae.papers.pictures import bar_panels, save
from parcae.papers.study import RecordedSetting, StudyRequest, StudyResult
from parcae.policies.learned import find_checkpoint, is_learned
from parcae.policies.names import parse_name
from parcae.policies.registry import PolicySetting
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.metrics import usable_share
from parcae.simulation.simulator import simulate
from parcae.workloads.arrivals import ArrivalProcess, JobSequence
from parcae.workloads.demands import half, prepare, with_drawn_memory
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload

#: The paper's best competing heuristic; all ratios are relative to it.
GRAPHENE = "graphene:tuned"
#: All heuristics.
BASELINES = (GRAPHENE, "weighted-fair:tuned", "tetris", "tetris:tuned")
#: File with the results of parameter sweeps, beside the studies' results. Other studies of the same
#: setting reuse it.
_SWEEPS_FILE = "tuned-heuristics.json"
#: Largest number of jobs in the runs of sweeps and trainings, except with --full: the sweep of
#: Graphene* has 450 combinations.
_SHORT_JOBS = 60
#: Default number of executors for TPC-H, for a trace, and for a trace with --full.
_TPCH_EXECUTORS = 200
_TRACE_EXECUTORS = 1_000
_FULL_TRACE_EXECUTORS = 10_000
#: With this draw of memory demands the classes can serve nearly all loads of both TPC-H profiles;
#: with other draws the largest load is as low as 0.7.
_MEMORY_DRAW = "uniform:1"
#: Number of policies that are learned for every workload.
_KINDS = 3


@dataclass(frozen=True)
class StudyWorld:
    """A workload on executors of several classes."""

    name: str
    test: Scenario
    train: Scenario
    notes: tuple[str, ...]

    def sized(self, num_jobs: int, trained: int) -> StudyWorld:
        """The same world with `num_jobs` jobs in test runs and `trained` jobs in training runs."""
        return replace(
            self,
            test=replace(self.test, num_jobs=num_jobs),
            train=replace(self.train, num_jobs=trained),
        )


@dataclass(frozen=True)
class Lineup:
    """The policies that are compared in a world."""

    contenders: Sequence[Contender]
    notes: Sequence[str]
    learned: Sequence[StudiedPolicy] = ()


def in_classes(config: SimulationConfig, num_executors: int) -> SimulationConfig:
    """The cluster itself if it has executor classes; otherwise with Decima's classes.

    `num_executors` is the size of the cluster in the latter case.
    """
    if config.executor_classes:
        return config
    return config.model_copy(
        update={"num_executors": num_executors, "executor_classes": decima_classes(num_executors)}
    )


def usable_arrivals(arrivals: str, workload: Workload, config: SimulationConfig) -> str:
    """Convert a load relative to what the classes can serve into a load relative to all executors.

    Example: if the classes can serve a load of at most 0.75, "load:0.8" becomes "load:0.6000".
    """
    process = ArrivalProcess.parse(arrivals)
    if process.kind not in ("load", "trace"):
        return arrivals
    return f"{process.kind}:{process.value * usable_share(workload, config.classes):.4f}"


def worlds(request: StudyRequest) -> list[StudyWorld]:
    """TPC-H with drawn memory demands and, if the request has one, the recorded trace.

    Test runs have 200 jobs and training runs 60; with --full both have 1,000.
    """
    study_worlds = [_tpch(request)] + (
        [] if request.recorded is None else [_trace(request, request.recorded)]
    )
    num_jobs = request.jobs(200, 1_000)
    trained = num_jobs if request.is_full else min(num_jobs, _SHORT_JOBS)
    return [world.sized(num_jobs, trained) for world in study_worlds]


def missing_notes(request: StudyRequest) -> list[str]:
    """A note if the request has no trace."""
    if request.recorded is not None:
        return []
    return ["TPC-H only: for the paper's other workload, give Alibaba's trace with --trace FILE"]


def _tpch(request: StudyRequest) -> StudyWorld:
    workload = request.workload
    notes = tuple[str, ...]()
    if not any(stage.memory > 0 for job in workload.jobs for stage in job.stages):
        # TPC-H has no memory demands: draw them.
        workload, notes = prepare(workload, [with_drawn_memory(_MEMORY_DRAW)])
    config = in_classes(request.config, _TPCH_EXECUTORS)
    arrivals = usable_arrivals(request.stream, workload, config)
    setting = Scenario(workload, config, arrivals, 1)
    words = (_cluster_note("TPC-H", setting), *(f"TPC-H: {note}" for note in notes))
    return StudyWorld("TPC-H", setting, setting, words)


def _trace(request: StudyRequest, recorded: RecordedSetting) -> StudyWorld:
    config = in_classes(
        recorded.config, _FULL_TRACE_EXECUTORS if request.is_full else _TRACE_EXECUTORS
    )
    (first, _), (second, _) = (
        prepare(recorded.workload, [half(which)]) for which in ("first", "second")
    )
    arrivals = [
        usable_arrivals(recorded.arrivals, workload, config) for workload in (first, second)
    ]
    test = Scenario(second, config, arrivals[1], 1)
    train = Scenario(first, config, arrivals[0], 1)
    name = recorded.workload.name
    notes = (
        _cluster_note(name, test),
        f"{name}: learned policies are trained on the first half of the jobs by arrival and tested "
        "on the second; :tuned heuristics are tuned on the second half itself (with tuning seeds), "
        "as the paper tunes them in each experiment",
        *(
            [f"{name}: {recorded.workload.provenance['prepared']}"]
            if "prepared" in recorded.workload.provenance
            else []
        ),
    )
    return StudyWorld(name, test, train, notes)


def _cluster_note(name: str, scenario: Scenario) -> str:
    classes = ", ".join(
        f"{c.num_executors} of {c.cpu:g} cpu and {c.memory:g} memory"
        for c in scenario.config.classes
    )
    return (
        f"{name}: executors: {classes}; arrivals {scenario.arrivals}; the classes can "
        f"serve a load of at most {usable_share(scenario.workload, scenario.config.classes):.2f}, "
        "and the requested load is a share of that"
    )


def heuristics(
    request: StudyRequest, world: StudyWorld, names: Sequence[str] = BASELINES
) -> tuple[list[Contender], list[str]]:
    """Make the heuristics; `:tuned` ones get the best values of a sweep on the test workload.
    Returns the heuristics, and a note on each sweep.
    """
    contenders = list[Contender]()
    notes = list[str]()
    for name in names:
        family, _, how = name.partition(":")
        if how != "tuned":
            contenders.append(Contender(name, name))
            continue
        swept = _swept(request, world, family)
        contenders.append(Contender(name, swept["policy"]))
        notes.append(f"{world.name}: {name}: {swept['words']}")
    return contenders, notes


def _known_sweeps(path: Path, key: str) -> tuple[dict[str, dict[str, str]], dict[str, str] | None]:
    """All earlier sweeps in the file by key, and the one of the key if there is one."""
    try:
        # Anything but a mapping raises TypeError.
        known: dict[str, dict[str, str]] = {**json.loads(path.read_text())} if path.exists() else {}
        entry = {part: known[key][part] for part in ("policy", "words")} if key in known else None
    except (ValueError, KeyError, TypeError):
        raise FormatError(
            f"{path}: not a file of sweeps written by a study of executor classes; remove it"
        ) from None
    return known, entry


def _swept(request: StudyRequest, world: StudyWorld, family: str) -> dict[str, str]:
    """The best parameters of a heuristic, as {"policy":, "words":}.

    They come from the file of earlier sweeps, or from a new sweep that is added to the file.
    """
    scenario = world.test
    path = request.output.parent / _SWEEPS_FILE
    # A batch must keep its size; a stream can be shorter for tuning.
    is_short = not request.is_full and scenario.arrivals != "batch"
    num_jobs = min(scenario.num_jobs, _SHORT_JOBS) if is_short else scenario.num_jobs
    setting = [
        fingerprint(scenario.workload),
        scenario.config.model_dump(mode="json"),
        scenario.arrivals,
        num_jobs,
        family,
    ]
    # The key identifies the setting of the sweep.
    key = hashlib.sha256(json.dumps(setting).encode()).hexdigest()[:16]
    known, entry = _known_sweeps(path, key)
    if entry is None:
        request.say(f"tuning {family} on {world.name}")
        best = sweep(scenario.workload, family, scenario.config, scenario.arrivals, num_jobs)
        policy = ":".join([family, *(f"{value:g}" for value in best.best)])
        entry = {"policy": policy, "words": f"{describe(best)} of {num_jobs} jobs"}
        request.output.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known | {key: entry}, indent=2) + "\n")
    return entry


def gather(request: StudyRequest, world: StudyWorld, all_worlds: Sequence[StudyWorld]) -> Lineup:
    """The heuristics and the learned policies of a world.

    Learned policies are those of the request; without any, they are trained here.
    """
    for each in all_worlds:
        test = each.test
        test.sequence(request.first_seed)
        if not request.policies:
            each.train.sequence(request.first_seed)
        # Policies with `:tuned` take a sweep of their own and are left for later.
        texts = [text for text in asked_for(request, each, all_worlds) if ":tuned" not in text]
        resolve_policies(test.workload, texts, test.config, test.arrivals, test.num_jobs)
    rivals, notes = heuristics(request, world)
    # Policies of the request replace all trainings.
    if request.policies:
        fitting = asked_for(request, world, all_worlds)
        return Lineup(
            [*rivals, *requested(fitting)],
            [*notes, f"{world.name}: learned policies as requested: {', '.join(fitting)}"],
        )
    learned = make_learned(request, world, request.budget_s / (_KINDS * len(all_worlds)))
    return Lineup(
        [*rivals, *(entry.contender for entry in learned)],
        [*notes, *(entry.words for entry in learned)],
        learned,
    )


def asked_for(
    request: StudyRequest, world: StudyWorld, all_worlds: Sequence[StudyWorld]
) -> list[str]:
    """The request's policies without checkpoints for another workload of the study."""
    # Checkpoints for an unknown workload stay: the user asked for them.
    others = {other.train.workload.name for other in all_worlds} - {world.train.workload.name}
    return [text for text in request.policies if _made_for(text, world) not in others]


def _made_for(text: str, world: StudyWorld) -> str | None:
    """The workload that a learned policy was trained for; None for other policies."""
    name = parse_name(text)
    if not is_learned(name):
        return None
    setting = PolicySetting(world.test.workload, world.test.config, world.test.arrivals)
    return find_checkpoint(name, setting).card.get("workload")


def make_learned(request: StudyRequest, world: StudyWorld, share_s: float) -> list[StudiedPolicy]:
    """Train three policies for a world.

    They are the tuned rule, the network corrector that corrects it, and Decima's network with its
    class head, which first imitates the rule.
    """
    rule = tune(request, world.train, f"tuned ({world.name})", share_s)
    parcae = train_parcae(request, world.train, f"corrector ({world.name})", share_s, rule)
    # The network chooses an executor class with every decision.
    head = DecimaSettings(executor_classes=True)
    decima = train_decima(
        request, world.train, f"decima ({world.name})", share_s, DecimaVariant(head), teacher=rule
    )
    return [rule, parcae, decima]


def recorded_runs(
    request: StudyRequest, world: StudyWorld, contenders: Sequence[Contender], num_runs: int
) -> Iterator[tuple[JobSequence, dict[str, Trace]]]:
    """Run all policies on one evaluation seed after another, with recorded tasks. Returns for every
    seed, the jobs and the trace of every policy by label.
    """
    scenario = world.test
    labels = labels_of(contenders)
    resolved = resolve_policies(
        scenario.workload, list(labels), scenario.config, scenario.arrivals, scenario.num_jobs
    )
    for seed in range(request.first_seed, request.first_seed + num_runs):
        request.say(f"running seed {seed} on {world.name}")
        sequence = scenario.sequence(seed)
        policies = resolved.for_sequence(sequence, seed)
        yield (
            sequence,
            {
                labels[name]: simulate(sequence, p, scenario.config, seed, record=True)
                for name, p in policies.items()
            },
        )


def fig11(request: StudyRequest) -> StudyResult:
    """Average JCT on executors of several classes, compared with every baseline.

    Source: Decima, Figure 11 and section 7.3.
    """
    all_worlds = worlds(request)
    lineups = {world.name: gather(request, world, all_worlds) for world in all_worlds}
    outcomes = {
        w.name: contest(request, w.test, lineups[w.name].contenders, request.runs(10, 40))
        for w in all_worlds
    }
    # All worlds have executor classes and thus the same columns.
    columns = next(iter(outcomes.values())).columns
    return StudyResult(
        "executors of several sizes: average JCT compared with every baseline",
        "Decima's average JCT is 32% below that of Graphene* on Alibaba's trace (11a) and 43% "
        "below it on TPC-H with drawn memory (11b); its memory fragmentation is within 4% to 13% "
        "of that of Tetris, its average JCT 52% below (section 7.3)",
        ("workload", *columns),
        [[name, *row] for name, entry in outcomes.items() for row in entry.rows()],
        {
            name: {
                **entry.to_json(),
                "learned": [policy.to_json() for policy in lineups[name].learned],
            }
            for name, entry in outcomes.items()
        },
        [
            *missing_notes(request),
            *(
                note
                for world in all_worlds
                for note in (
                    *world.notes,
                    *(f"{world.name}: {words}" for words in outcomes[world.name].notes()),
                    *lineups[world.name].notes,
                )
            ),
            "memory unused: the share of the busy executors' memory that their tasks did not need, "
            "weighted by time",
            *budget_notes(request, trained=not request.policies),
        ],
        partial(save, partial(_draw, outcomes), (6.0 * len(outcomes) + 1.0, 4.0)),
    )


def _draw(outcomes: dict[str, Contest], figure: Any) -> None:
    panels = {name: entry.averages for name, entry in outcomes.items()}
    bar_panels(figure, panels, "average JCT (s)")
