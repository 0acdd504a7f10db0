"""Figure 11, and where the studies of executor classes take place: TPC-H with drawn memory, and a recorded trace.

Source: Decima, section 7.3 and Appendix F.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from parcae.cluster.trace import Trace
from parcae.errors import FormatError
from parcae.evaluation.tuning import resolve_policies
from parcae.evaluation.tuning import tune as sweep
from parcae.files import write_text
from parcae.learning.scenario import Scenario
from parcae.metrics.classes import usable_share
from parcae.policies.decima.layout import DecimaSettings
from parcae.policies.learned import find_checkpoint, is_learned
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.run import simulate
from parcae.studies.reproduce.contest import Arena, Contender, Contest, contest
from parcae.studies.reproduce.learners import (
    Learned,
    budget_notes,
    given,
    train_decima,
    train_parcae,
    tune,
)
from parcae.studies.reproduce.pictures import bar_panel, save
from parcae.studies.reproduce.study import RecordedSetting, StudyRequest, StudyResult
from parcae.workloads.arrivals import ArrivalProcess, JobSequence
from parcae.workloads.demands import half, prepare, with_drawn_memory
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload

#: The best competing heuristic of the paper, to which all ratios are, and the other heuristics.
GRAPHENE = "graphene:tuned"
BASELINES = (GRAPHENE, "weighted-fair:tuned", "tetris", "tetris:tuned")
#: What sweeps found, beside the studies' results: sisters that run on the same use it again.
_SWEEPS_FILE = "tuned-heuristics.json"
#: Jobs of the runs that sweeps and trainings run on, but with --full: Graphene*'s sweep has 450 combinations.
_SHORT_JOBS = 60
#: Executors unless the request says otherwise: of TPC-H; of a trace, and with --full.
_TPCH_EXECUTORS = 200
_TRACE_EXECUTORS = 1_000
_FULL_TRACE_EXECUTORS = 10_000
#: With this draw of the memory the classes can serve nearly all loads of both TPC-H profiles (other draws: from 0.7 on).
_MEMORY_DRAW = "uniform:1"
#: Policies that are learned for every workload.
_KINDS = 3


@dataclass(frozen=True)
class World:
    """A workload on executors of several classes.

    Args:
        name: in tables, e.g. "TPC-H". test: where policies meet. train: what the learned ones learn on. notes: on both.
    """

    name: str
    test: Arena
    train: Scenario
    notes: tuple[str, ...]

    def sized(self, num_jobs: int, trained: int) -> World:
        """The same with so many jobs in the runs of the test, and in those of the training."""
        return replace(
            self,
            test=replace(self.test, num_jobs=num_jobs),
            train=replace(self.train, num_jobs=trained),
        )


@dataclass(frozen=True)
class Lineup:
    """Who meets in a world, and what was learned for it."""

    contenders: Sequence[Contender]
    notes: Sequence[str]
    learned: Sequence[Learned] = ()


def in_classes(config: SimulationConfig, num_executors: int) -> SimulationConfig:
    """The cluster with its own executor classes, or with Decima's, of so many executors."""
    if config.executor_classes:
        return config
    return config.model_copy(
        update={"num_executors": num_executors, "executor_classes": decima_classes(num_executors)}
    )


def usable_arrivals(arrivals: str, workload: Workload, config: SimulationConfig) -> str:
    """The arrivals with a load that is a share of what the classes can serve, not of all executors' time.

    Example: where the classes can serve a load of 0.75 at most, "load:0.8" becomes "load:0.6000".
    """
    process = ArrivalProcess.parse(arrivals)
    if process.kind not in ("load", "trace"):
        return arrivals
    return f"{process.kind}:{process.value * usable_share(workload, config.classes):.4f}"


def worlds(request: StudyRequest) -> list[World]:
    """TPC-H with drawn memory, and the trace where the request brings one.

    Runs have 200 jobs, those of the training 60; with --full both have 1,000.
    """
    found = [_tpch(request)] + (
        [] if request.recorded is None else [_trace(request, request.recorded)]
    )
    num_jobs = request.jobs(200, 1_000)
    trained = num_jobs if request.is_full else min(num_jobs, _SHORT_JOBS)
    return [world.sized(num_jobs, trained) for world in found]


def missing_notes(request: StudyRequest) -> list[str]:
    """A word where the request brings no trace."""
    if request.recorded is not None:
        return []
    return ["TPC-H only: give Alibaba's trace with --trace FILE for the paper's other workload"]


def _tpch(request: StudyRequest) -> World:
    workload = request.workload
    notes = tuple[str, ...]()
    if not any(stage.memory > 0 for job in workload.jobs for stage in job.stages):
        workload, notes = prepare(workload, [with_drawn_memory(_MEMORY_DRAW)])
    config = in_classes(request.config, _TPCH_EXECUTORS)
    arrivals = usable_arrivals(request.stream, workload, config)
    test = Arena(workload, config, arrivals, 1)
    train = Scenario(workload, config, arrivals, 1)
    return World(
        "TPC-H", test, train, (_cluster_note("TPC-H", test), *(f"TPC-H: {note}" for note in notes))
    )


def _trace(request: StudyRequest, recorded: RecordedSetting) -> World:
    config = in_classes(
        recorded.config, _FULL_TRACE_EXECUTORS if request.is_full else _TRACE_EXECUTORS
    )
    (first, _), (second, _) = (
        prepare(recorded.workload, [half(which)]) for which in ("first", "second")
    )
    own = [usable_arrivals(recorded.arrivals, workload, config) for workload in (first, second)]
    test = Arena(second, config, own[1], 1)
    train = Scenario(first, config, own[0], 1)
    name = recorded.workload.name
    notes = (
        _cluster_note(name, test),
        f"{name}: learned policies are trained on the first half of the jobs by arrival and tested on the second; :tuned "
        f"heuristics are tuned on the second half itself (on seeds of their own), as the paper tunes them in each experiment",
        *(
            [f"{name}: {recorded.workload.provenance['prepared']}"]
            if "prepared" in recorded.workload.provenance
            else []
        ),
    )
    return World(name, test, train, notes)


def _cluster_note(name: str, arena: Arena) -> str:
    classes = ", ".join(
        f"{c.num_executors} of {c.cpu:g} cpu and {c.memory:g} memory" for c in arena.config.classes
    )
    return (
        f"{name}: executors: {classes}; arrivals {arena.arrivals}: the classes can serve a load of "
        f"{usable_share(arena.workload, arena.config.classes):.2f} at most, of which the load asked for is a share"
    )


def heuristics(
    request: StudyRequest, world: World, names: Sequence[str] = BASELINES
) -> tuple[list[Contender], list[str]]:
    """Heuristics by name, `:tuned` ones with the values that a sweep found on the test's own workload, and a note on each sweep.

    Raises:
        FormatError: a file of earlier sweeps that is torn or foreign.
    """
    found = list[Contender]()
    notes = list[str]()
    for name in names:
        family, _, how = name.partition(":")
        if how != "tuned":
            found.append(Contender(name, name))
            continue
        swept = _swept(request, world, family)
        found.append(Contender(name, swept["policy"]))
        notes.append(f"{world.name}: {name}: {swept['words']}")
    return found, notes


def _swept(request: StudyRequest, world: World, family: str) -> dict[str, str]:
    """The values of a heuristic's parameters, {"policy":, "words":}; from the file, or swept and written there."""
    arena = world.test
    path = request.output.parent / _SWEEPS_FILE
    is_short = not request.is_full and arena.arrivals != "batch"
    num_jobs = min(arena.num_jobs, _SHORT_JOBS) if is_short else arena.num_jobs
    setting = [
        fingerprint(arena.workload),
        arena.config.model_dump(mode="json"),
        arena.arrivals,
        num_jobs,
        family,
    ]
    key = hashlib.sha256(json.dumps(setting).encode()).hexdigest()[:16]
    try:
        known: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
        own = {part: known[key][part] for part in ("policy", "words")} if key in known else None
    except (ValueError, KeyError, TypeError):
        raise FormatError(
            f"{path}: not what a study of executor classes wrote there; remove it"
        ) from None
    if own is None:
        request.say(f"tuning {family} on {world.name}")
        best = sweep(arena.workload, family, arena.config, arena.arrivals, num_jobs)
        policy = ":".join([family, *(f"{value:g}" for value in best.best)])
        own = {"policy": policy, "words": f"{best.describe()} of {num_jobs} jobs"}
        request.output.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known | {key: own}, indent=2) + "\n")
    return own


def gather(request: StudyRequest, world: World, all_worlds: Sequence[World]) -> Lineup:
    """The heuristics and the learned policies of a world: those that the request gives, else made here."""
    rivals, notes = heuristics(request, world)
    if request.policies:
        fitting = asked_for(request, world, all_worlds)
        return Lineup(
            [*rivals, *map(given, fitting)],
            [*notes, f"{world.name}: learned policies as asked for: {', '.join(fitting)}"],
        )
    learned = make_learned(request, world, request.budget_s / (_KINDS * len(all_worlds)))
    return Lineup(
        [*rivals, *(own.contender for own in learned)],
        [*notes, *(own.words for own in learned)],
        learned,
    )


def asked_for(request: StudyRequest, world: World, all_worlds: Sequence[World]) -> list[str]:
    """The request's policies but for checkpoints that were made for another of the study's workloads."""
    others = {other.train.workload.name for other in all_worlds} - {world.train.workload.name}
    return [text for text in request.policies if _made_for(text, world) not in others]


def _made_for(text: str, world: World) -> str | None:
    """The workload that a learned policy was made for."""
    if not is_learned(text):
        return None
    return find_checkpoint(
        text, world.test.workload, world.test.config, world.test.arrivals
    ).card.get("workload")


def make_learned(request: StudyRequest, world: World, share_s: float) -> list[Learned]:
    """The rule tuned on the classes, parcae over it, and Decima's network with its class head, which imitates it first."""
    rule = tune(request, world.train, f"tuned ({world.name})", share_s)
    parcae = train_parcae(request, world.train, f"parcae ({world.name})", share_s, rule)
    head = DecimaSettings(executor_classes=True)
    decima = train_decima(
        request, world.train, f"decima ({world.name})", share_s, decima=head, teacher=rule
    )
    return [rule, parcae, decima]


def recorded_runs(
    request: StudyRequest, world: World, contenders: Sequence[Contender], num_runs: int
) -> Iterator[tuple[JobSequence, dict[str, Trace]]]:
    """Runs with every task recorded, one evaluation seed after another: the jobs, and the trace of every policy by label."""
    arena = world.test
    labels = {contender.name: contender.label for contender in contenders}
    resolved = resolve_policies(
        arena.workload, list(labels), arena.config, arena.arrivals, arena.num_jobs
    )
    for seed in range(request.first_seed, request.first_seed + num_runs):
        request.say(f"running seed {seed} on {world.name}")
        sequence = arena.sequence(seed)
        policies = resolved.for_sequence(sequence, seed)
        yield (
            sequence,
            {
                labels[name]: simulate(sequence, p, arena.config, seed, record=True)
                for name, p in policies.items()
            },
        )


def fig11(request: StudyRequest) -> StudyResult:
    """Average JCT on executors of several classes against every baseline.

    Source: Decima, Figure 11 and section 7.3.
    """
    all_worlds = worlds(request)
    lineups = {world.name: gather(request, world, all_worlds) for world in all_worlds}
    found = {
        w.name: contest(request, w.test, lineups[w.name].contenders, request.runs(10, 40))
        for w in all_worlds
    }
    columns = next(iter(found.values())).columns
    return StudyResult(
        "executors of several sizes: average JCT against every baseline",
        "Decima's average JCT is 32% below Graphene*'s on Alibaba's trace (11a) and 43% on TPC-H with drawn memory (11b); its "
        "memory fragmentation is within 4% to 13% of Tetris's, its average JCT 52% below (section 7.3)",
        ("workload", *columns),
        [[name, *row] for name, own in found.items() for row in own.rows()],
        {name: _numbers(own, lineups[name]) for name, own in found.items()},
        [
            *missing_notes(request),
            *(
                note
                for world in all_worlds
                for note in _notes(world, found[world.name], lineups[world.name])
            ),
            "memory unused: the share of the busy executors' memory that their tasks did not need, weighed by time",
            *budget_notes(request, trained=not request.policies),
        ],
        partial(save, partial(_draw, found), (6.0 * len(found) + 1.0, 4.0)),
    )


def _notes(world: World, found: Contest, lineup: Lineup) -> list[str]:
    return [*world.notes, *(f"{world.name}: {note}" for note in found.notes()), *lineup.notes]


def _numbers(found: Contest, own: Lineup) -> dict[str, Any]:
    return {**found.to_json(), "learned": [policy.to_json() for policy in own.learned]}


def _draw(found: dict[str, Contest], figure: Any) -> None:
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for axis, (name, own) in zip(axes, found.items(), strict=True):
        bar_panel(
            axis,
            {label: result.average_jct_s for label, result in own.results.items()},
            "average JCT (s)",
        )
        axis.set_title(name, fontsize=9, loc="left")
