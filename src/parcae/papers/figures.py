"""What single figures do in their own way: their settings, and how they are measured.

`parcae.papers.table` says which figure uses what.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from scipy import stats

from parcae.base.errors import ConfigError, FormatError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S, ms_from_s
from parcae.cluster.decision import Decision, Policy
from parcae.cluster.observation import Observation
from parcae.cluster.trace import Trace
from parcae.decima.bounds import best_job_order, check_orders, simplified
from parcae.decima.catalog import make_policy
from parcae.decima.checkpoints import deciding_policy
from parcae.decima.graph.layout import EMBEDDING, SLOPE, DecimaSettings, initial_weights
from parcae.decima.idle.theory import (
    DiscreteDistribution,
    best_slot,
    best_slot_exponential,
    expected_average_jct,
)
from parcae.decima.learning.recipes import fair_runs, mean_gap_s
from parcae.evaluation.gantt import Bars, Chart, Panel, write_gantt
from parcae.evaluation.policies import resolve_policies
from parcae.evaluation.tuning import describe
from parcae.evaluation.tuning import tune as sweep
from parcae.learning.scenario import Scenario
from parcae.papers.contenders import (
    GREEDY,
    Learned,
    Part,
    PieceStage,
    Request,
    RigidTraining,
    Stage,
    Training,
    named,
    rigid_policies,
)
from parcae.papers.drawing import NUM_SPANS
from parcae.papers.runner import JCT, PartOutcome, Study, StudyRun, compare_parts, policy_names
from parcae.policies.learned import SHIPPED
from parcae.policies.names import PolicyName
from parcae.rigid.a2c.layout import Architecture
from parcae.rigid.bernoulli import CODE, load_of_rate
from parcae.rigid.config import PackingConfig
from parcae.rigid.deeprm.learner import RECIPES
from parcae.rigid.jobs import RigidJobs, to_steps
from parcae.rigid.layout import select
from parcae.rigid.sources import DrawnSource, RigidLogSource
from parcae.rigid.swf import read_swf
from parcae.rigid.world import PackingBatch
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.future import Status
from parcae.simulation.metrics import (
    concurrency,
    executor_share,
    executors_per_job,
    executors_used,
    jct_ms,
    last_completion_ms,
    makespan_ms,
    mean_over_spans,
    usable_share,
)
from parcae.simulation.objectives import Objective
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import half, prepare, with_drawn_memory, with_work
from parcae.workloads.describe import fingerprint
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.synthetic import (
    MEAN_GAP_S,
    SHORT_MS,
    RandomDags,
    mixed,
    random_dags,
    synthetic_jobs,
)
from parcae.workloads.workload import ArrivalProcess, JobSequence, RandomStreams, Workload

if TYPE_CHECKING:
    import torch

FloatArray = npt.NDArray[np.float64]
Made = dict[str, Learned]


# One setting, with policies that are named and policies that ship.


def one_setting(
    arrivals: str, jobs: tuple[int, int], names: Sequence[str], ships: Sequence[str]
) -> Callable[[Request], list[Part]]:
    """The parts of a study of one setting; arrivals "" are those of the request.

    `ships` are kinds of learned policies, each under its own name.
    """

    def parts(request: Request) -> list[Part]:
        scenario = request.scenario(arrivals or request.stream, *jobs)
        trainings = {
            # The network corrects the rule.
            kind: Training(
                (scenario,), kind, over=("tuned",) if kind == "corrector" else (), ships=True
            )
            for kind in ships
        }
        notes: tuple[str, ...] = ()
        if scenario.arrivals != "batch":
            notes = (f"mean gap between arrivals {mean_gap_s(scenario):,.2f} s",)
        return [Part("", scenario, named(*names, *sorted(ships)), trainings, notes)]

    return parts


# Streams of jobs, and jobs by size.

#: The stream is cut into this many parts, by jobs and by time: one of them is the busiest.
_EIGHTHS = 8
#: Share of the jobs, by work, that count as small.
_SMALL = 0.2
#: Jobs are compared in fifths by work; the first fifth are the paper's small jobs.
BINS = ("smallest 20%", "20-40%", "40-60%", "60-80%", "largest 20%")


def stream_facts(jobs: JobSequence, traces: Mapping[str, Trace]) -> dict[str, dict[str, float]]:
    """Figures of one stream under several policies; what is busy is so under the first one."""
    first = next(iter(traces.values()))
    work = np.array([job.work_ms for job in jobs.jobs])
    is_small = work <= np.quantile(work, _SMALL)
    eighths = np.array_split(np.arange(jobs.num_jobs), min(_EIGHTHS, jobs.num_jobs))
    slowest = max(eighths, key=lambda rows: float(jct_ms(first)[rows].mean()))
    edges = np.linspace(0, max(1, *map(last_completion_ms, traces.values())), NUM_SPANS + 1)
    present = mean_over_spans(*concurrency(first), edges)
    is_busy = present >= np.quantile(present, 1 - 1 / _EIGHTHS)
    span = np.searchsorted(edges[:-1], jobs.arrival_ms, side="right") - 1
    comes_then = is_busy[np.clip(span, 0, NUM_SPANS - 1)]
    facts = {}
    for label, trace in traces.items():
        jct_s = jct_ms(trace) / MS_PER_S
        times, count = concurrency(trace)
        facts[label] = {
            # Each job counts for the time that it is in the system.
            "mean_jobs": jct_s.sum() * MS_PER_S / max(1, last_completion_ms(trace)),
            "most_jobs": count.max(),
            "slowest_eighth_jct_s": jct_s[slowest].mean(),
            "small_jct_s": jct_s[is_small].mean(),
            "small_executors": executor_share(trace)[is_small].mean(),
            "inflation": trace.executed_ms.sum() / max(1, first.executed_ms.sum()),
            "busy_jobs": mean_over_spans(times, count, edges)[is_busy].mean(),
            "busy_executors": executors_per_job(trace, edges)[is_busy].mean(),
            "busy_jct_s": jct_s[comes_then].mean() if comes_then.any() else math.nan,
        }
    return facts


def bin_edges_ms(workload: Workload) -> FloatArray:
    """The work that separates the fifths of the workload's weighted jobs: float64[num_bins - 1]."""
    work = np.array([job.work_ms for job in workload.jobs])
    weights = np.ones(len(work)) if workload.weights is None else np.asarray(workload.weights)
    order = np.argsort(work)
    share = np.cumsum(weights[order]) / weights.sum()
    # The small constant keeps rounding errors from moving a job to the next fifth.
    rows = np.searchsorted(share, np.arange(1, len(BINS)) / len(BINS) - 1e-9)
    return np.asarray(work[order][rows], np.float64)


def means_by_size(jobs: JobSequence, **values: npt.ArrayLike) -> dict[str, float]:
    """Means of values of the jobs over each fifth: "FIFTH: NAME"; NaN for a fifth without jobs."""
    bins = np.searchsorted(bin_edges_ms(jobs.workload), [job.work_ms for job in jobs.jobs])
    return {
        f"{size}: {name}": np.asarray(of_jobs)[bins == row].mean()
        if (bins == row).any()
        else math.nan
        for name, of_jobs in values.items()
        for row, size in enumerate(BINS)
    }


def sizes(jobs: JobSequence, traces: Mapping[str, Trace]) -> dict[str, dict[str, float]]:
    """Completion times by size of the jobs, and the executors of each class that they use."""
    facts = {}
    for label, trace in traces.items():
        used = executors_used(trace)
        by_class = {f"memory {one.memory:g}": used[:, row] for row, one in enumerate(trace.classes)}
        by_class["all executors"] = used.sum(axis=1)
        facts[label] = means_by_size(jobs, JCT=jct_ms(trace) / MS_PER_S, **by_class)
    return facts


def machines(jobs: JobSequence, traces: Mapping[str, Trace]) -> dict[str, dict[str, float]]:
    """Machines per job by its size: executor time of its tasks / its time in the system."""
    return {
        label: means_by_size(jobs, machines=executor_share(trace))
        for label, trace in traces.items()
    }


# Executor classes.

#: The paper's best competing heuristic; all ratios are relative to it.
GRAPHENE = "graphene:tuned"
BASELINES = (GRAPHENE, "weighted-fair:tuned", "tetris", "tetris:tuned")
#: File with the results of parameter sweeps, beside the studies' results. Other studies of the same
#: setting reuse it.
_SWEEPS_FILE = "tuned-heuristics.json"
#: Largest number of jobs in the runs of sweeps and trainings, except with --full: the sweep of
#: Graphene* has 450 combinations.
_SHORT_JOBS = 60
#: Default number of executors for TPC-H, and for a trace by default and with --full.
_TPCH_EXECUTORS = 200
_TRACE_EXECUTORS = (1_000, 10_000)
#: With this draw of memory demands the classes can serve nearly all loads of both TPC-H profiles;
#: with other draws the largest load is as low as 0.7.
_MEMORY_DRAW = "uniform:1"
#: The network chooses an executor class with every decision.
_CLASS_HEAD = DecimaSettings(executor_classes=True)


def in_classes(config: SimulationConfig, num_executors: int) -> SimulationConfig:
    """The cluster itself if it has executor classes; else Decima's classes, of this size."""
    if config.executor_classes:
        return config
    classes = decima_classes(num_executors)
    return config.model_copy(update={"num_executors": num_executors, "executor_classes": classes})


def usable_arrivals(arrivals: str, workload: Workload, config: SimulationConfig) -> str:
    """Convert a load relative to what the classes can serve into a load relative to all executors.

    Example: if the classes can serve a load of at most 0.75, "load:0.8" becomes "load:0.6000".
    """
    process = ArrivalProcess.parse(arrivals)
    if process.kind not in ("load", "trace"):
        return arrivals
    return f"{process.kind}:{process.value * usable_share(workload, config.classes):.4f}"


@dataclass(frozen=True)
class ClassWorld:
    """A workload on executors of several classes: for tests, and for trainings."""

    name: str
    test: Scenario
    train: Scenario
    notes: tuple[str, ...]


def worlds(request: Request, jobs: tuple[int, int] = (200, 1_000)) -> list[ClassWorld]:
    """TPC-H with drawn memory demands and, if the request has one, the recorded trace."""
    num_jobs = request.jobs(*jobs)
    trained = num_jobs if request.is_full else min(num_jobs, _SHORT_JOBS)
    workload = request.jobs_to_draw
    notes: tuple[str, ...] = (
        "for the paper's other workload, give Alibaba's trace with --trace FILE",
    )
    if not any(stage.memory > 0 for job in workload.jobs for stage in job.stages):
        workload, drawn = prepare(workload, [with_drawn_memory(_MEMORY_DRAW)])
        notes += drawn
    halves = [(workload, request.stream, in_classes(request.config, _TPCH_EXECUTORS), notes)] * 2
    every = [("TPC-H", halves)]
    recorded = request.recorded
    if recorded is not None:
        config = in_classes(recorded.config, _TRACE_EXECUTORS[request.is_full])
        notes = ("trained on the first half of the jobs by arrival and tested on the second",)
        halves = [
            (prepare(recorded.workload, [half(which)])[0], recorded.arrivals, config, notes)
            for which in ("second", "first")
        ]
        every.append((recorded.workload.name, halves))
    found = []
    for name, of_world in every:
        test, train = (
            Scenario(jobs_of, config, usable_arrivals(arrivals, jobs_of, config), count)
            for (jobs_of, arrivals, config, _), count in zip(
                of_world, (num_jobs, trained), strict=True
            )
        )
        share = usable_share(test.workload, test.config.classes)
        classes = ", ".join(
            f"{c.num_executors} of memory {c.memory:g}" for c in test.config.classes
        )
        words = f"executors: {classes}; loads are shares of what they can serve, {share:.2f}"
        found.append(ClassWorld(name, test, train, (words, *of_world[0][3])))
    return found


def class_parts(request: Request) -> list[Part]:
    """For each workload the heuristics, the rule, the network over it, and Decima with a class head
    that first imitates the rule.
    """
    parts = []
    for world in worlds(request):
        trained = (world.train,)
        rule = f"tuned ({world.name})"
        trainings = {
            rule: Training(trained, "tuned"),
            f"corrector ({world.name})": Training(trained, "corrector", over=(rule,)),
            f"decima ({world.name})": Training(trained, network=_CLASS_HEAD, over=(rule,)),
        }
        policies = named(*BASELINES, *trainings)
        parts.append(Part(world.name, world.test, policies, trainings, world.notes))
    return parts


def tuned_parts(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """Measure the parts with `:tuned` heuristics of sweeps that the studies of classes share."""
    swept = []
    for part in parts:
        policies = {}
        notes = [*part.notes]
        for label, name in part.policies.items():
            family, _, how = name.partition(":")
            is_swept = how == "tuned" and family not in made
            if is_swept:
                entry = _swept(request, part, family)
                notes.append(f"{label}: {entry['words']}")
            policies[label] = entry["policy"] if is_swept else name
        swept.append(replace(part, policies=policies, notes=tuple(notes)))
    return compare_parts(study, request, swept, made)


def _swept(request: Request, part: Part, family: str) -> dict[str, str]:
    """The best parameters of a heuristic, as {"policy":, "words":}.

    They come from the file of earlier sweeps, or from a new sweep that is added to the file.
    """
    scenario = part.setting
    assert isinstance(scenario, Scenario)
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
    key = hashlib.sha256(json.dumps(setting).encode()).hexdigest()[:16]
    try:
        # Anything but a mapping raises TypeError.
        known: dict[str, dict[str, str]] = {**json.loads(path.read_text())} if path.exists() else {}
        if key in known:
            return {part: known[key][part] for part in ("policy", "words")}
    except (ValueError, KeyError, TypeError):
        raise FormatError(
            f"{path}: not a file of sweeps written by a study of executor classes; remove it"
        ) from None
    request.say(f"tuning {family} on {part.name}")
    best = sweep(scenario.workload, family, scenario.config, scenario.arrivals, num_jobs)
    policy = ":".join([family, *(f"{value:g}" for value in best.best)])
    entry = {"policy": policy, "words": f"{describe(best)} of {num_jobs} jobs"}
    request.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(known | {key: entry}, indent=2) + "\n")
    return entry


def parts_by_size(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """Measure the parts, and cut each into one for every fifth of the jobs by work."""
    outcomes = []
    for outcome in tuned_parts(study, request, parts, made):
        for size in BINS:
            values = {
                label: {
                    key.removeprefix(f"{size}: "): numbers
                    for key, numbers in measured.items()
                    if key.startswith(f"{size}: ") and not key.endswith("JCT")
                }
                for label, measured in outcome.values.items()
            }
            part = replace(outcome.part, name=f"{outcome.part.name}, {size}")
            outcomes.append(replace(outcome, part=part, values=values))
    return outcomes


#: Table 3: number of jobs of the test; the small trainings have this many times fewer jobs, or
#: executors.
_SCALE_JOBS = (150, 150)
_FEWER_JOBS = 15
_FEWER_EXECUTORS = 10


def scale_parts(request: Request) -> list[Part]:
    """Decima trained at the test's size, with 15 times fewer jobs, and 10 times fewer executors.

    The last world is the trace, if there is one, otherwise TPC-H.
    """
    world = worlds(request, _SCALE_JOBS)[-1]
    rule = "rule to imitate"
    size = world.test.num_jobs
    train = replace(world.train, num_jobs=size)
    config = train.config
    # Every class keeps at least one executor.
    fewer = max(len(config.classes), config.total_executors // _FEWER_EXECUTORS)
    few = max(1, size // _FEWER_JOBS)
    batch = replace(train, arrivals="batch")
    pairs = {
        "all jobs at once": (batch, replace(batch, num_jobs=few), f"with {few} jobs at once"),
        "arrivals": (
            train,
            replace(train, config=config.resized(fewer)),
            "with a tenth of the executors",
        ),
    }
    parts = []
    trainings: dict[str, Training] = {rule: Training((train,), "tuned")}
    for name, (same, small, words) in pairs.items():
        keys = {SAME_SIZE: f"{SAME_SIZE}, {name}", SMALLER: f"decima, trained {words}"}
        for key, scenario in zip(keys.values(), (same, small), strict=True):
            trainings[key] = Training((scenario,), network=_CLASS_HEAD, over=(rule,))
        test = replace(world.test, arrivals=same.arrivals)
        policies = {**keys, **named(GRAPHENE)}
        parts.append(
            Part(name, test, policies, trainings, (f"trained small: {words}", *world.notes))
        )
        trainings = {}
    return parts


SAME_SIZE = "decima, trained at the test's size"
SMALLER = "decima, trained small"


# Variants of Decima: objectives, ablations, encodings, durations, arrivals.

BEST = "weighted-fair:tuned"
#: Share of the time of a case of Figure 13 in which its rule is tuned. Rules learn faster.
_RULE_SHARE = 0.25


def objective_parts(request: Request) -> list[Part]:
    """Figure 13: policies for (a) average JCT, (b) free moving and (c) makespan.

    Policies (a) and (c) are for costly moving, policy (b) is for free moving.
    """
    costly = request.scenario("batch", 10, 20)
    free = replace(costly, config=request.config.model_copy(update={"moving_delay_ms": 0}))
    makespan = replace(costly, objective=Objective.MAKESPAN)
    parts = []
    for name, test, cases in (
        ("moving costs time", costly, {"a": costly, "c": makespan}),
        ("moving is free", free, {"b": free}),
    ):
        trainings: dict[str, Training] = {}
        for key, scenario in cases.items():
            trainings[f"rule for ({key})"] = Training((scenario,), "tuned", _RULE_SHARE)
            trainings[f"decima for ({key})"] = Training((scenario,), share=1 - _RULE_SHARE)
        parts.append(Part(name, test, named("fair", *trainings), trainings))
    return parts


def load_parts(
    request: Request, loads: tuple[Sequence[float], Sequence[float]], variants_of: Mapping[str, Any]
) -> list[Part]:
    """Figure 14: variants of Decima trained at every load. Those with "batches" in their name are
    trained on batches, and tested on the same stream as the others.
    """
    parts = []
    for load in loads[request.is_full]:
        scenario = request.scenario(f"load:{load:g}", 60, 1_000)
        batch = replace(scenario, arrivals="batch", num_jobs=min(20, scenario.num_jobs))
        trainings = {}
        policies = named(BEST)
        for label, variant in variants_of.items():
            trained = batch if "batches" in label else scenario
            policies[label] = f"{label} ({scenario.arrivals})"
            trainings[policies[label]] = Training((trained,), **variant)
        parts.append(Part(f"load {load:g}", scenario, policies, trainings, x=load))
    return parts


def trained_variants(
    arrivals: str,
    jobs: tuple[int, int],
    names: Sequence[str],
    variants_of: Mapping[str, Mapping[str, Any]],
) -> Callable[[Request], list[Part]]:
    """The parts of a study of one setting, with policies that are trained for it."""

    def parts(request: Request) -> list[Part]:
        scenario = request.scenario(arrivals or request.stream, *jobs)
        trainings = {
            label: Training((scenario,), **variant) for label, variant in variants_of.items()
        }
        return [Part("", scenario, named(*names, *trainings), trainings)]

    return parts


def duration_parts(request: Request) -> list[Part]:
    """Figure 23: Decima trained and run with and without task durations."""
    known = request.scenario("batch", 20, 20)
    hidden = request.config.model_copy(update={"unknown_share": 1.0})
    unknown = replace(known, config=hidden)
    blind = "decima without durations"
    return [
        Part(
            "durations known",
            known,
            named(BEST, "fair", "decima"),
            {"decima": Training((known,))},
        ),
        Part(
            "durations unknown",
            unknown,
            {
                **named(blind),
                "decima trained with durations, run without": "decima",
                **named("fair"),
            },
            {blind: Training((unknown,))},
        ),
    ]


#: Table 2's shortest and longest mean gap / that of the test: 42 and 75 s against 45 s.
_SHORTEST = 42 / 45
_LONGEST = 75 / 45
#: Number of gaps in the mix.
_NUM_GAPS = 3


def gap_arrivals(gap_s: float) -> str:
    """Poisson arrivals with a mean gap.

    Example: `gap_arrivals(0.5)` is "poisson:500.000ms".
    """
    return f"poisson:{gap_s * 1e3:.3f}ms"


def gap_parts(request: Request) -> list[Part]:
    """Table 2: Decima trained on the test's mean gap, on a longer one, and on a mix of gaps."""
    drawn = request.scenario(request.stream, 60, 1_000)
    gap_s = mean_gap_s(drawn)

    def at(share: float) -> Scenario:
        return replace(drawn, arrivals=gap_arrivals(share * gap_s))

    mix = tuple(at(float(share)) for share in np.linspace(_SHORTEST, _LONGEST, _NUM_GAPS))
    trainings = {
        SAME_GAP: Training((at(1.0),)),
        SLOW_GAP: Training((at(_LONGEST),)),
        MIX: Training(mix),
        KNOWING: Training(mix, network=DecimaSettings(knows_gap=True)),
    }
    notes = (
        f"the test's mean gap is {gap_s:,.2f} s; the others keep the paper's ratios",
        f"the mix: a training takes {', '.join(one.arrivals for one in mix)} in turn",
    )
    return [Part("", at(1.0), named(BEST, *trainings), trainings, notes)]


SAME_GAP = "decima, trained on the test's gap"
SLOW_GAP = "decima, trained on a gap 5/3 as long"
MIX = "decima, trained on a mix"
KNOWING = "decima, trained on a mix, knows the gap"


# Other settings and objectives than those of the training.


def objectives(request: Request) -> list[Part]:
    """A rule for each objective, tuned in two rounds: the second starts from the best of the first.

    They are all measured in one setting.
    """
    scenario = request.scenario(request.stream, 20, 60)
    own = {one: replace(scenario, objective=one) for one in Objective}
    first = {f"first rule for {one}": Training((own[one],), "tuned") for one in Objective}
    rules = {
        f"rule for {one}": Training((own[one],), "tuned", over=tuple(first)) for one in Objective
    }
    return [Part("", scenario, named(*rules), {**first, **rules})]


#: The heuristics, which are tuned for every case. Learned policies are not.
HEURISTICS = ("fair", BEST, "srpt-cap:tuned")
_LEARNED = ("tuned", "corrector", "decima")


def shifted_parts(request: Request) -> list[Part]:
    """Settings with other loads, clusters, numbers of jobs or jobs than those of the trainings.

    Without policies in the request, those that ship are compared.
    """
    workload = request.jobs_to_draw
    executors = request.config.total_executors
    # Clusters of 0.3 to 4 times the request's size; every class keeps an executor.
    least = max(2, len(request.config.classes))
    small = request.jobs(20, 20)
    large = 3 * request.jobs(20, 40)
    gap_s = workload.mean_work_ms / (0.6 * executors) / MS_PER_S
    rng = np.random.default_rng
    kinds = {
        # The same jobs with ten times the work, so that the same load has ten times the gaps.
        "ten times the work": with_work(10.0)(workload)[0],
        "random DAGs": load_workload("synthetic"),
        "random DAGs of 1 to 4 stages": random_dags(RandomDags(max_depth=2, max_width=2), rng(0)),
        "random DAGs of up to 96 stages": random_dags(
            RandomDags(max_depth=12, max_width=8), rng(0)
        ),
        "bundled TPC-H": load_workload("tpch"),
    }
    cases: dict[str, tuple[Workload, int, str, int]] = {}
    for num_jobs in (5, small, large):
        name = f"batch of {num_jobs}, {executors} executors"
        cases[name] = (workload, executors, "batch", num_jobs)
    for load in (0.35, 0.6, 0.8):
        name = f"load {load}, {executors} executors"
        cases[name] = (workload, executors, f"load:{load}", large)
    # On a small cluster or with few jobs, some of these are the same setting.
    for size in [max(least, round(executors * share)) for share in (0.3, 0.5, 2, 4)]:
        cases[f"batch of {small}, {size} executors"] = (workload, size, "batch", small)
        cases[f"load 0.6, {size} executors"] = (workload, size, "load:0.6", large)
    name = f"load 0.6 in bursts, {executors} executors"
    cases[name] = (workload, executors, f"bursts:{gap_s:.3f}s", large)
    for kind, jobs in kinds.items():
        cases[f"{kind}, batch"] = (jobs, executors, "batch", small)
        cases[f"{kind}, load 0.6"] = (jobs, executors, "load:0.6", large)
    learned = request.policies or tuple(kind for kind in _LEARNED if SHIPPED.variants(kind))
    return [
        Part(
            name,
            Scenario(jobs, request.config.resized(size), arrivals, num_jobs),
            named(*HEURISTICS, *learned),
        )
        for name, (jobs, size, arrivals, num_jobs) in cases.items()
    ]


# Figure 22: the best order of the jobs.

SEARCH = "exhaustive search"


def order_parts(request: Request) -> list[Part]:
    """The simplified setting in which the best order of the jobs can be searched.

    The paper's agent is also trained in this setting.
    """
    drawn = request.scenario("batch", 10, 10)
    # The search comes after the trainings.
    check_orders(drawn.num_jobs, request.config)
    # Only the simplified workload and cluster are used; every seed draws its own batch.
    plain, cluster_config = simplified(drawn.sequence(request.first_seed), request.config)
    scenario = Scenario(plain.workload, cluster_config, "batch", drawn.num_jobs)
    trainings = {
        "decima (made here)": Training((scenario,)),
        "rule (made here)": Training((scenario,), "tuned"),
    }
    return [Part("", scenario, named("sjf-cp", BEST, "fair", *trainings), trainings)]


def with_search(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """Measure the parts, and beside them the best of all orders of each batch."""
    (outcome,) = compare_parts(study, request, parts, made)
    scenario = outcome.part.setting
    assert isinstance(scenario, Scenario)
    best = []
    for seed in range(request.first_seed, request.first_seed + request.runs(study.runs)):
        request.say(f"searching the best order of the jobs of seed {seed}")
        order = best_job_order(scenario.sequence(seed), scenario.config, seed)
        best.append(order.average_jct_ms / MS_PER_S)
    return [replace(outcome, values={SEARCH: {JCT: np.array(best)}, **outcome.values})]


# Figure 15b: the time of a decision, and the time between scheduling events.

#: Number of first decisions that are not counted, because the first calls load compiled code.
_WARM_UP = 5


def measure_latencies(
    sequence: JobSequence, policy: Policy, config: SimulationConfig, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Step one run. Returns the time of each decision of the policy, and the simulated times
    between the events at which it has to decide, in ms.
    """
    simulator = Simulator(sequence, config, seed)
    simulator.start()
    decision_ms = list[float]()
    event_ms = list[int]()
    while simulator.status is Status.NEEDS_DECISION:
        observation = simulator.observe()
        event_ms.append(int(observation.now.clock_ms[0]))
        began = time.perf_counter()
        decision = policy.decide(observation)
        decision_ms.append((time.perf_counter() - began) * MS_PER_S)
        simulator.step(decision)
    # Several decisions can fall on one simulated time.
    intervals = np.diff(np.unique(np.array(event_ms, np.int64))).astype(np.float64)
    return np.array(decision_ms[_WARM_UP:] or decision_ms), intervals


def latencies(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """The times of all decisions in one run, and the intervals between events, by policy."""
    (part,) = parts
    scenario = part.setting
    assert isinstance(scenario, Scenario)
    names = policy_names(part, made)
    resolved = resolve_policies(
        scenario.workload,
        list(names.values()),
        scenario.config,
        scenario.arrivals,
        scenario.num_jobs,
    )
    seed = request.first_seed
    sequence = scenario.sequence(seed)
    policies = resolved.for_sequence(sequence, seed)
    values = {}
    for label, name in names.items():
        request.say(f"timing the decisions of {label}")
        policy = cast(Policy, policies[name])
        latency, interval = measure_latencies(sequence, policy, scenario.config, seed)
        mean = interval.mean() if len(interval) else 0.0
        values[label] = {
            "latency_ms": latency,
            "latency_p99_ms": np.percentile(latency, [99]),
            "interval_ms": interval,
            "interval_median_ms": np.array([np.median(interval) if len(interval) else 0.0]),
            "interval / latency": np.array([mean / max(1e-9, latency.mean())]),
        }
    notes = [f"one run of {scenario.num_jobs} jobs, seed {seed}; latency depends on this machine"]
    return [PartOutcome(part, values, notes)]


# Idle slots (Duan & Wu).

#: G: an idle slot is g / G of the stage's length, g = 0 ... G.
#: # Deviation: the paper does not state its G.
NUM_LENGTHS = 5
#: Settings of the agents, by label (features, idle slots) as in the paper; 0.5 is one of the two
#: features.
AGENTS: Mapping[str, DecimaSettings] = {
    "(0,0)": DecimaSettings(),
    "(1,0)": DecimaSettings(critical_path=True, average_width=True),
    "(0,1)": DecimaSettings(idle_lengths=NUM_LENGTHS),
    "(0.5,1) critical path": DecimaSettings(critical_path=True, idle_lengths=NUM_LENGTHS),
    "(0.5,1) average width": DecimaSettings(average_width=True, idle_lengths=NUM_LENGTHS),
    "(1,1)": DecimaSettings(critical_path=True, average_width=True, idle_lengths=NUM_LENGTHS),
}
PLAIN = "(0,0)"
WHOLE = "(1,1)"
#: Hand-made policies to compare with; for one-stage jobs srpt-cap is shortest job first.
BESIDE = ("srpt-cap", "idle-theory", BEST)
#: Mean gap between arrivals of the real-world data set.
_REAL_GAP_S = 40.0
#: The load stays below this share.
_MOST_LOAD = 0.8
#: Share of busy executors, for settings without a mean gap in the paper.
_BUSY = 0.75
#: Number of bisection steps in the search for arrivals with that share, and of jobs of its runs;
#: many, so that beginning and end of the run hardly count.
_HALVINGS = 7
_NUM_MEASURED_JOBS = 1_000
#: Training starts with gaps this many times longer (Duan & Wu, section V-A: load that grows).
_EARLY_GAP = {"early_gap": 2.0}


def smallest_cluster(workload: Workload, gap_s: float) -> int:
    """The smallest number of executors with a load below 80%.

    Example: 4 for the one-stage jobs with a mean gap of 10 s (load 75%).
    """
    return math.floor(workload.mean_work_ms / (gap_s * MS_PER_S * _MOST_LOAD)) + 1


def synthetic_scenario(request: Request, load: float | None = None) -> Scenario:
    """One-stage jobs on executors that move without delay.

    The mean gap is 10 s, unless a load is given.
    """
    workload = synthetic_jobs()
    config = SimulationConfig(
        num_executors=smallest_cluster(workload, MEAN_GAP_S), moving_delay_ms=0, warmup_delay_ms=0
    )
    arrivals = f"poisson:{MEAN_GAP_S:g}s" if load is None else f"load:{load:g}"
    return Scenario(workload, config, arrivals, request.jobs(200, 1_000))


def real_scenario(request: Request, busy: float | None = None) -> Scenario:
    """The request's workload on its cluster.

    If the user chose no cluster and the jobs take minutes, the study uses the smallest cluster that
    a mean gap of 40 s loads below 80%, with that gap. Otherwise arrivals keep the share `busy` of
    the executors busy (default 75%).
    """
    drawn = request.scenario(f"poisson:{_REAL_GAP_S:g}s", 200, 1_000)
    is_default = drawn.config == SimulationConfig() and not request.is_cluster_given
    if is_default:
        size = smallest_cluster(drawn.workload, _REAL_GAP_S)
        config = drawn.config.model_copy(update={"num_executors": size})
        drawn = replace(drawn, config=config)
    return drawn if is_default and busy is None else at_busy(drawn, busy or _BUSY)


def mixed_scenario(request: Request, busy: float | None = None) -> Scenario:
    """A mix of two data sets on the cluster of the real-world data set."""
    real = real_scenario(request, busy)
    return at_busy(replace(real, workload=mixed(request.jobs_to_draw, 0.5)), busy or _BUSY)


def at_busy(scenario: Scenario, busy: float) -> Scenario:
    """The scenario with arrivals that keep the share `busy` of the executors busy.

    Bisection finds them with fair sharing on the selection seeds.
    """
    # The busy share grows with the load: halve the interval [low, high] of loads.
    low = 0.02
    high = 1.5
    for _ in range(_HALVINGS):
        load = (low + high) / 2
        tried = replace(scenario, arrivals=f"load:{load:.3f}", num_jobs=_NUM_MEASURED_JOBS)
        low, high = (low, load) if fair_runs(tried).busy_share > busy else (load, high)
    return replace(scenario, arrivals=f"load:{low:.3f}")


DATA_SETS: Mapping[str, Callable[[Request, float | None], Scenario]] = {
    "synthetic": synthetic_scenario,
    "real-world": real_scenario,
    "mixed": mixed_scenario,
}


def idle_parts(
    request: Request,
    kinds: Sequence[str],
    agents: Sequence[str] = tuple(AGENTS),
    loads: tuple[Sequence[float | None], Sequence[float | None]] = ((None,), (None,)),
) -> list[Part]:
    """Agents and heuristics on several data sets, at several loads or at that of the paper.

    Agents are trained once on each data set, at the highest load, and measured at all of them.
    """
    parts = []
    for kind in kinds:
        scenarios = [DATA_SETS[kind](request, load) for load in loads[request.is_full]]
        policies = {**{label: f"{label} {kind}" for label in agents}, **named(*BESIDE)}
        trainings = {
            policies[label]: Training((scenarios[-1],), network=AGENTS[label], changes=_EARLY_GAP)
            for label in agents
        }
        for load, scenario in zip(loads[request.is_full], scenarios, strict=True):
            name = kind if load is None else f"{kind}, load {load:.0%}"
            notes = (f"mean gap {mean_gap_s(scenario):,.2f} s",)
            parts.append(Part(name, scenario, policies, trainings, notes, load or 0.0, kind))
            trainings = {}
    return parts


#: Lengths in s of the first of two jobs; the second job is short.
_FIRST_S = (15.0, 25.0, 50.0, 70.0)
#: Training settings for pairs of jobs: whole runs of two jobs, many at a time, in many small steps.
_PAIRS: Mapping[str, Any] = {
    "window_s": None,
    "horizon_s": None,
    "imitation": 0.0,
    "num_groups": 32,
    "num_selection": 400,
    "epochs": 4,
    "minibatch": 128,
    "learning_rate": 3e-3,
}
PAIRS_KEY = f"{WHOLE} pairs"


class Pairs(Scenario):
    """The setting of the theorem: one machine and two jobs with an exponential gap between them.

    The second job is short, so that a policy can distinguish it from the first by its length.
    Otherwise a policy that waits before the first job would also wait before the second, although
    no further job arrives.
    """

    def sequence(self, seed: int) -> JobSequence:
        """The two jobs of one seed."""
        streams = RandomStreams(seed)
        # Job 0 of the workload is the short one; the first job is one of the others.
        first = int(streams.jobs.integers(1, len(self.workload.jobs)))
        gap_s = streams.arrivals.exponential(MEAN_GAP_S)
        return JobSequence(
            self.workload, np.array([first, 0]), np.array([0, 1 + int(gap_s * MS_PER_S)])
        )


def pairs() -> Pairs:
    """The scenario of two jobs; the first has one of several lengths, equally likely."""
    short = synthetic_jobs().jobs[0]
    firsts = [
        JobSpec(f"first-{s:g}s", (StageSpec(1, TaskDurations.constant(round(s * MS_PER_S))),))
        for s in _FIRST_S
    ]
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    return Pairs(Workload("pairs", (short, *firsts)), config, f"poisson:{MEAN_GAP_S:g}s", 2)


def slot_parts(request: Request) -> list[Part]:
    """Figure 5: two agents on mixed jobs, and one that learns the pairs of the theory."""
    (part,) = idle_parts(request, ("mixed",), (PLAIN, WHOLE))
    alone = Training((pairs(),), network=AGENTS[WHOLE], changes=_PAIRS)
    return [replace(part, trainings={**part.trainings, PAIRS_KEY: alone})]


def first_slot_s(policy: Policy, scenario: Scenario, job: int) -> float:
    """The idle slot in seconds that a policy inserts before the first of two jobs."""
    # The second job arrives late enough not to matter.
    late_ms = 10 * round(max(_FIRST_S)) * MS_PER_S
    sequence = JobSequence(scenario.workload, np.array([job, 0]), np.array([0, late_ms]))
    simulator = Simulator(sequence, scenario.config, 0)
    simulator.start()
    return policy.decide(simulator.observe()).hold_ms / MS_PER_S


def with_slots(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """Measure the parts; for each length of the first of two jobs, four slots before it: none, that
    of Theorem 2, the best one if the next arrival ends it, and the learned one.
    """
    outcomes = compare_parts(study, request, parts, made)
    scenario = pairs()
    policy = deciding_policy(PolicyName(made[PAIRS_KEY].name), scenario.setting)
    # The second job always has the short length; the gap before it is exponential.
    lengths = DiscreteDistribution((SHORT_MS / MS_PER_S,), (1.0,))
    gaps = stats.expon(scale=MEAN_GAP_S)
    for job, length_s in enumerate(_FIRST_S, 1):
        slots = {
            "none": 0.0,
            "Theorem 2": best_slot_exponential(length_s, MEAN_GAP_S, lengths),
            "decided anew": best_slot(length_s, gaps, lengths, is_redecided=True),
            f"learned {WHOLE}": first_slot_s(policy, scenario, job),
        }
        values = {}
        for label, slot_s in slots.items():
            cost = expected_average_jct(length_s, slot_s, gaps, lengths, is_redecided=True)
            values[label] = {"slot_s": np.array([slot_s]), "expected_jct_s": np.array([cost])}
        part = Part(f"pair, first job {length_s:g} s", scenario, {})
        outcomes.append(PartOutcome(part, values))
    return outcomes


# Rigid jobs (DeepRM and A2cScheduler).

#: Durations of DeepRM's small and large jobs.
_SHORT_JOB = 3
_LONG_JOB = 10


def source_at(rate: float) -> DrawnSource:
    """DeepRM's jobs as its code draws them; `rate` is the arrival probability per step."""
    return DrawnSource(rates=(rate,))


def label_of(rate: float) -> str:
    """The paper's label of a load.

    The paper's labels 10%, 30%, ..., 190% correspond to the rates 0.1, 0.2, ..., 1.0 of its code.
    """
    return f"{round(200 * rate - 10)}%"


def load_at(rate: float) -> float:
    """Average demand that arrives per step, as a share of each resource's capacity."""
    return load_of_rate(CODE, rate)


def with_greedy(label: str, key: str) -> dict[str, str]:
    """A policy that draws its actions, and the same one with the most probable action each time."""
    return {label: key, label + GREEDY: key + GREEDY}


def rate_parts(
    request: Request,
    rates: Sequence[float],
    names: Mapping[str, str],
    trainings: Mapping[str, Mapping[str, Any]],
    by_load: bool = True,
) -> list[Part]:
    """A part for each rate: DeepRM's jobs, hand-made policies by label, and what is trained."""
    parts = []
    for rate in rates:
        name = f"load {label_of(rate)}" if by_load else f"rate {rate:g}"
        source = source_at(rate)
        policies: dict[str, str] = {}
        made = {}
        for label, training in trainings.items():
            key = f"{label} at {name}"
            made[key] = RigidTraining(source, **training)
            policies |= with_greedy(label, key)
        policies |= names
        stage = Stage(source, request.first_seed, request.runs((100, 100)), request.processes)
        notes = (f"rate {rate:g}, measured load {load_at(rate):.0%}",)
        parts.append(Part(name, stage, policies, made, notes, float(name.split()[1].rstrip("%"))))
    return parts


def withheld(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """Figure 7: which jobs a policy withholds, and how small and large jobs fare."""
    (part,) = parts
    stage = part.setting
    assert isinstance(stage, Stage)
    values = {}
    for label, policy in rigid_policies(part, made, request.processes).items():
        request.say(f"measuring which jobs {label} withholds")
        batch, measured = withholding_of(stage, policy)
        values[label] = {**measured, **slowdowns_by_size(batch)}
    return [PartOutcome(part, values)]


def withholding_of(stage: Stage, policy: Any) -> tuple[PackingBatch, dict[str, FloatArray]]:
    """Step every sequence to its end. Returns the runs, and the shares of steps, of steps with jobs
    waiting, and of withheld jobs.

    A job is withheld in every step in which time passes although it could have started.
    """
    batch = stage.batch(policy.wants_profile)
    batch.begin()
    num_waiting = 0
    # The jobs that could have started, for every step of every sequence in which time passed.
    durations: list[npt.NDArray[np.int64]] = []
    while not batch.is_over.all():
        views = batch.show()
        # Decide only for the sequences that have not ended; -1 stands for no decision.
        open_rows = np.flatnonzero(~batch.is_over).tolist()
        slots = np.full(len(batch), -1)
        for row in open_rows:
            slots[row] = policy.decide(select(views, row))
        is_placed = batch.step(slots)
        # A step that placed no job let time pass.
        for row in (row for row in open_rows if not is_placed[row]):
            # Rows beyond `num_jobs` are unused.
            jobs = views.jobs[row, : views.head["num_jobs"][row, 0]]
            num_waiting += len(jobs) > 0
            durations.append(np.array(jobs["estimate"][jobs["can_start"] == 1]))
    num_withheld = sum(len(held) > 0 for held in durations)
    held = np.concatenate(durations)
    shares = {
        "withheld": num_withheld / max(1, len(durations)),
        "withheld_of_waiting": num_withheld / max(1, num_waiting),
        "large_of_withheld": (held >= _LONG_JOB).mean() if len(held) else math.nan,
    }
    return batch, {key: np.array([float(share)]) for key, share in shares.items()}


def slowdowns_by_size(batch: PackingBatch) -> dict[str, FloatArray]:
    """Mean slowdown of the small and of the large jobs of every sequence; NaN if it has none.

    Jobs that never started do not count.
    """
    found: dict[str, list[float]] = {"small": [], "large": []}
    for outcome in batch.outcomes():
        jobs = outcome.jobs
        taken = (outcome.finish - jobs.arrival) / jobs.duration
        started = outcome.start >= 0
        for size, is_chosen in (
            ("small", started & (jobs.duration <= _SHORT_JOB)),
            ("large", started & (jobs.duration >= _LONG_JOB)),
        ):
            found[size].append(taken[is_chosen].mean() if is_chosen.any() else math.nan)
    return {f"slowdown, {size} jobs": np.array(each) for size, each in found.items()}


def recipe_parts(request: Request, rate: float, names: Mapping[str, str]) -> list[Part]:
    """Figure 6: a training with each recipe, whose slowdown is watched on the test's sequences."""
    (part,) = rate_parts(request, (rate,), names, {})
    assert isinstance(part.setting, Stage)
    trainings = {
        f"deeprm, {recipe}": RigidTraining(
            source_at(rate), "deeprm", recipe=recipe, is_always_new=True, watched_on=part.setting
        )
        for recipe in RECIPES
    }
    policies = {**names}
    for key in trainings:
        policies |= with_greedy(key, key)
    return [replace(part, policies=policies, trainings=trainings)]


def with_crossings(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """Measure the parts, and in which iteration each training passed each other policy."""
    (outcome,) = compare_parts(study, request, parts, made)
    values = dict(outcome.values)
    fixed = [label for label in values if label.removesuffix(GREEDY) not in made]
    for key, learned in made.items():
        passed = {
            f"passed {label} in iteration": np.array(
                [crossing(learned.curve, outcome.estimate(label, "slowdown").mean)]
            )
            for label in fixed
        }
        values[key] = {**values[key], **passed}
    return [replace(outcome, values=values)]


def crossing(points: Sequence[tuple[int, float, float]], line: float) -> float:
    """The first of three measured iterations in a row whose slowdown is below a line, or NaN."""
    # Three in a row, because single measurements are noisy.
    below = [slowdown < line for _, _, slowdown in points]
    rows = (row for row in range(len(below)) if below[row : row + 3] == [True] * 3)
    return next((float(points[row][0]) for row in rows), math.nan)


#: Constants of the criterion; see `convergence`.
_LEAST_GAIN = 0.1
_BAND = 0.05
_LEAST_POINTS = 8


def convergence(slowdowns: Sequence[float], first: float) -> int | None:
    """The index of the measurement at which a training has converged; None if it has not.

    There must be at least 8 measurements. A training has converged if the mean slowdown of the last
    quarter of them is at least 10% below that of the first iteration and at most 5% below that of
    the quarter before. It converged at the first measurement from which on all are within 5% of the
    last quarter's mean.
    """
    values = np.asarray(slowdowns)
    count = len(values) // 4
    if len(values) < _LEAST_POINTS:
        return None
    final = values[-count:].mean()
    before = values[-2 * count : -count].mean()
    if final > (1 - _LEAST_GAIN) * first or final < (1 - _BAND) * before:
        return None
    # The training converged right after the last measurement outside the band.
    outside = np.flatnonzero(np.abs(values - final) > _BAND * final)
    row = int(outside[-1]) + 1 if len(outside) else 0
    return row if row < len(values) else None


def architecture_parts(request: Request, rate: float) -> list[Part]:
    """Table 3: five architectures, each trained for a fifth of the budget."""
    (part,) = rate_parts(request, (rate,), {}, {}, by_load=False)
    trainings = {
        one.value: RigidTraining(
            source_at(rate),
            "a2c",
            options=(f"architecture={one.value}",),
            num_selection=200,
            is_always_new=True,
        )
        for one in Architecture
    }
    return [replace(part, policies=named(*trainings), trainings=trainings)]


def with_convergence(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """Measure the parts, and where the training of each policy converged."""
    (outcome,) = compare_parts(study, request, parts, made)
    values = dict(outcome.values)
    for key, learned in made.items():
        assert learned.result is not None
        progress = learned.result.curve
        row = convergence([cost for _, _, cost in learned.curve], progress[0].numbers["cost"])
        decisions = sum(one.numbers["decisions"] for one in progress)
        where = (math.nan, math.nan) if row is None else learned.curve[row][:2]
        facts = dict(zip(("converged_iteration", "converged_s"), where, strict=True))
        facts["decisions_per_s"] = decisions / learned.result.seconds
        values[key] = {**values[key], **{name: np.array([x]) for name, x in facts.items()}}
    return [replace(outcome, values=values)]


@dataclass(frozen=True)
class LogSetting:
    """How a log is converted to a packing world, and what is trained on its first half.

    The cluster has at most `processors`, in at most `num_units` units; the actor's rate is for the
    recipe "fast".
    """

    num_jobs: int
    train_jobs: int
    processors: int | None
    num_units: int
    backlog: int
    architecture: Architecture
    actor_rate: float
    runs: tuple[int, int]


_STEP_S = 3_600
_HORIZON = 48
# Deviation: A2cScheduler 4.3 decides against pooling. The long pieces have it, because without it
# the dense layer of their wide image has four times as many weights; in our table 3 a training then
# plays half as many decisions in the same time.
# The actors' rates were chosen among 0.0003 to 0.005 by trainings of minutes on the log's first
# half. At the rate of the recipe "fast", which suits the paper's jobs, they hardly learn anything.
#: The paper's piece of 60 jobs, on a cluster so small that some jobs wait; and pieces of thousands
#: of jobs on the whole cluster, where jobs wait in bursts.
LOG_SETTINGS: Mapping[str, LogSetting] = {
    "60 jobs": LogSetting(60, 60, 256, 32, 60, Architecture.CONV_16, 0.002, (100, 100)),
    "2,400 jobs": LogSetting(
        2_400, 256, None, 54, 2_000, Architecture.CONV_16_POOL, 0.005, (8, 20)
    ),
}


def log_parts(request: Request, names: Mapping[str, str]) -> list[Part]:
    """Table 4: pieces of a log's second half; training and tuning use its first half."""
    if request.log is None:
        raise ConfigError(
            "a2c-table4 needs a log of a batch cluster: give --workload LOG.swf. The paper's log "
            "is not public; the DOST-ASTI log of the Parallel Workloads Archive is from an "
            "academic cluster"
        )
    halves = read_swf(request.log, estimates="actual").jobs.halves()
    parts = []
    for name, setting in LOG_SETTINGS.items():
        first, second = (_pieces(setting, jobs) for jobs in halves)
        tuned_on = first(setting.train_jobs)
        source = second(setting.num_jobs)
        size = source.num_jobs or 0
        place = name if size == setting.num_jobs else f"{size:,} jobs (for {name})"
        key = f"a2c at pieces of {name}"
        rate = (f"actor_rate={setting.actor_rate}",) if request.recipe == "fast" else ()
        options = (f"architecture={setting.architecture.value}", *rate)
        training = RigidTraining(
            tuned_on, "a2c", options=options, select_every=20, num_selection=50
        )
        stage = PieceStage(
            source, request.first_seed, request.runs(setting.runs), request.processes
        )
        notes = (
            f"consecutive pieces of the log's second half, load {source.jobs.load[0]:.2f}, steps "
            f"of {_STEP_S:,} s; trained on pieces of {tuned_on.num_jobs} jobs of the first half",
        )
        policies = {**names, **with_greedy("a2c", key)}
        parts.append(Part(place, stage, policies, {key: training}, notes, tuned_on=tuned_on))
    return parts


def _pieces(setting: LogSetting, jobs: RigidJobs) -> Callable[[int], RigidLogSource]:
    """Makes sources of pieces of a number of jobs, or of the whole part if it is shorter."""
    # The cluster is never larger than the log's.
    size = min(setting.processors or int(jobs.capacity[0]), int(jobs.capacity[0]))
    units = min(setting.num_units, size)
    stepped = to_steps(jobs, step_s=_STEP_S, num_units=units, horizon=_HORIZON, capacity=(size,))
    world = PackingConfig(num_slots=10, backlog_size=setting.backlog, horizon=_HORIZON)
    return lambda num_jobs: RigidLogSource(stepped, min(num_jobs, len(stepped)), world)


# Figure 16: a DAG with two branches that join, where the critical path first is not optimal.

#: The example's epsilon, in s, and its number of executors.
EPSILON_S = 0.1
NUM_EXECUTORS = 5
_STAGES = ("first (left)", "first (right)", "green", "orange", "join")


def join_job(epsilon_s: float = EPSILON_S) -> JobSpec:
    """The DAG of Appendix A.

    It has a short left branch (green, one task of 10 s) and a wide right branch (orange, 90 tasks
    of 1 s) that join in the last stage. The text does not define the DAG of its picture; this DAG
    gives the numbers of the text: 10 and 90 task-seconds beside epsilon in the branches, 28 s + 3
    epsilon for the schedule of the critical path, 20 s + 3 epsilon for the best schedule.

    Source: Decima, Figure 16 and Appendix A.
    """
    # Deviation: Decima Figure 16: its caption names a blue stage, too, which the text does not
    # place. The right branch here has no stage of several seconds beside orange, because the
    # numbers of the text do not say how they would share its work.
    shapes = (
        (NUM_EXECUTORS, epsilon_s, ()),
        (NUM_EXECUTORS, epsilon_s, ()),
        (1, 10.0, (0,)),
        (90, 1.0, (1,)),
        (NUM_EXECUTORS, epsilon_s, (2, 3)),
    )
    stages = (
        StageSpec(count, TaskDurations.constant(ms_from_s(seconds)), parents, name=name)
        for name, (count, seconds, parents) in zip(_STAGES, shapes, strict=True)
    )
    return JobSpec("join", tuple(stages))


def cluster() -> SimulationConfig:
    """A cluster of five executors without delays."""
    return SimulationConfig(num_executors=NUM_EXECUTORS, moving_delay_ms=0, warmup_delay_ms=0)


@dataclass(frozen=True)
class CriticalPath:
    """The paper's critical-path heuristic.

    All executors go to the runnable stage with the most downstream work.
    """

    job: JobSpec
    name: str = "critical path"

    def decide(self, observation: Observation) -> Decision:
        """Decide at one scheduling event."""
        down = self.job.downstream_ms([stage.work_ms for stage in self.job.stages])
        stages = observation.schedulable_stages()
        return (
            Decision(max(stages, key=lambda s: (down[s], -s)), NUM_EXECUTORS)
            if stages
            else Decision()
        )


@dataclass(frozen=True)
class Scripted:
    """A policy that takes prepared decisions one after the other."""

    script: list[Decision]
    name: str = "best schedule"

    def decide(self, observation: Observation) -> Decision:
        """Return the next decision of the script."""
        return self.script.pop(0)


@dataclass(frozen=True)
class BestSchedule:
    """The best schedule of the search."""

    decisions: tuple[Decision, ...]
    makespan_ms: int
    num_schedules: int


def _choices(simulator: Simulator) -> list[Decision]:
    """All decisions to try: every stage with every number of executors, the largest first.

    Leaving executors idle is a choice only if no stage can run.
    """
    observation = simulator.observe()
    most = int(observation.now.num_source[0])
    choices = [
        Decision(stage, limit)
        for stage in observation.schedulable_stages()
        for limit in range(min(most, max(1, observation.demand(stage))), 0, -1)
    ]
    return choices or [Decision()]


def best_schedule(
    sequence: JobSequence, config: SimulationConfig, max_schedules: int = 200_000
) -> BestSchedule:
    """Search the schedule with the least makespan by trying all sequences of decisions.

    The first schedules tried differ least from "all executors to the first stage". The search ends
    when a schedule reaches a lower bound on the makespan, which proves that it is the best, or when
    all schedules were tried.
    """
    # A schedule that reaches this bound is optimal.
    bound = lower_bounds(sequence, config.total_executors).makespan_ms
    best: BestSchedule | None = None
    # Breadth-first over departures from the first choice: a prefix ends with its last departure.
    queue: deque[tuple[Decision, ...]] = deque([()])
    tried = 0
    while queue:
        script, span, others = _completed(queue.popleft(), sequence, config)
        queue += others
        tried += 1
        if best is None or span < best.makespan_ms:
            best = BestSchedule(script, span, tried)
        if best.makespan_ms <= bound:
            break
        if tried >= max_schedules:
            raise ConfigError(
                f"the search tried {tried:,} schedules without reaching the lower bound; "
                "use a smaller DAG"
            )
    assert best is not None
    return replace(best, num_schedules=tried)


def _completed(
    prefix: tuple[Decision, ...], sequence: JobSequence, config: SimulationConfig
) -> tuple[tuple[Decision, ...], int, list[tuple[Decision, ...]]]:
    """Go on from a prefix with the first choice every time. Returns the whole schedule, its
    makespan in ms, and the prefixes that end with another choice.
    """
    simulator = Simulator(sequence, config, 0)
    simulator.start()
    for decision in prefix:
        simulator.step(decision)
    script = list(prefix)
    departures = []
    while simulator.status is Status.NEEDS_DECISION:
        first, *others = _choices(simulator)
        departures += [(*script, other) for other in others]
        script.append(first)
        simulator.step(first)
    return tuple(script), makespan_ms(simulator.trace("search")), departures


def _chart(name: str, trace: Trace) -> Chart:
    """The chart of a schedule: one bar per task, by executor, with a colour for each stage."""
    tasks: Any = trace.tasks
    start_s, finish_s = (tasks[key] / MS_PER_S for key in ("start_ms", "finish_ms"))
    height = np.ones(len(tasks), np.int64)
    bars = Bars(tasks["executor"], start_s, finish_s, tasks["stage"], height)
    panel = Panel("executor", NUM_EXECUTORS, bars, _STAGES)
    end_s = makespan_ms(trace) / MS_PER_S
    return Chart(f"{name}: {end_s:.1f} s", [panel], end_s, "time (s)")


def join_parts(request: Request) -> list[Part]:
    """The DAG on its five executors."""
    workload = Workload("join", (join_job(),))
    policies = named("critical path", "sjf-cp", "fair", "best schedule")
    return [Part("", Scenario(workload, cluster(), "batch", 1), policies)]


def best_of_join(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """The makespans of heuristics, and of the best schedule of an exhaustive search."""
    (part,) = parts
    assert isinstance(part.setting, Scenario)
    sequence = part.setting.sequence(0)
    request.say("searching for the best schedule")
    best = best_schedule(sequence, cluster())
    policies = (
        CriticalPath(join_job()),
        make_policy("sjf-cp", NUM_EXECUTORS),
        make_policy("fair", NUM_EXECUTORS),
        Scripted(list(best.decisions)),
    )
    traces = {p.name: simulate(sequence, p, cluster(), 0, record=True) for p in policies}
    values = {
        label: {"makespan_s": np.array([makespan_ms(trace) / MS_PER_S])}
        for label, trace in traces.items()
    }
    notes = [
        f"the search tried {best.num_schedules:,} sequences of decisions; the makespan of the best "
        "schedule equals a lower bound, so no schedule is shorter"
    ]
    return [PartOutcome(part, values, notes, lambda _: (sequence, traces))]


def draw_join(run: StudyRun, path: Path) -> None:
    """The schedules, with a colour for each stage."""
    (outcome,) = run.outcomes
    assert outcome.replay is not None
    _, traces = outcome.replay(0)
    write_gantt([_chart(*one) for one in traces.items()], path, legend=_STAGES)


# Figure 19: whether a graph embedding can express the critical path.

#: The random DAGs: largest number of layers and of stages per layer, log-normal work.
SHAPE = RandomDags(max_depth=8, max_width=5, mean_tasks=10.0, sigma=0.5, edge_share=0.5)
_BATCH = 64
_TEST_GRAPHS = 512
#: Number of different training batches; training repeats them in turn.
_POOL = 160
#: Most training iterations of each embedding, by default and with --full.
_ITERATIONS = 5_000
_FULL_ITERATIONS = 20_000
_LEARNING_RATE = 1e-2
_FINAL_RATE = 1e-4
#: The table shows the mean accuracy of this many last tests.
_LAST = 3
#: Separate random streams for training and test DAGs.
_TRAIN_STREAM = 1
_TEST_STREAM = 2


@dataclass(frozen=True)
class GraphBatch:
    """Several DAGs, concatenated into tensors of S stages."""

    x: torch.Tensor
    edges: list[tuple[torch.Tensor, torch.Tensor]]
    target: torch.Tensor
    owner: npt.NDArray[np.int64]
    is_choice: npt.NDArray[np.bool_]


def graph_batch(jobs: Sequence[JobSpec], num_features: int) -> GraphBatch:
    """Convert DAGs to tensors. The unit of work is the mean work of a stage.

    Source: Decima, Appendix E; the critical path of Decima, section 5.1.
    """
    import torch

    # Normalise the work, so that the targets are near 1.
    unit = float(np.mean([stage.work_ms for job in jobs for stage in job.stages]))
    work = [[stage.work_ms / unit for stage in job.stages] for job in jobs]
    paths = [job.downstream_ms(of_job) for job, of_job in zip(jobs, work, strict=True)]
    target = np.concatenate(paths).astype(np.float32)
    x = np.zeros((len(target), num_features), np.float32)
    x[:, 0] = np.concatenate(work)
    owner = np.repeat(np.arange(len(jobs)), [len(job.stages) for job in jobs])
    # A DAG with several roots has a choice of the longest path.
    roots = np.array([sum(not stage.parents for stage in job.stages) for job in jobs])
    return GraphBatch(
        torch.from_numpy(x), _edges_by_height(jobs), torch.from_numpy(target), owner, roots > 1
    )


def _edges_by_height(jobs: Sequence[JobSpec]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For every height from 1 on, (parents, children); stages are numbered over all DAGs."""
    import torch

    from parcae.decima.graph.family import stage_heights

    by_height: dict[int, list[tuple[int, int]]] = {}
    first = 0
    for job in jobs:
        heights = stage_heights(job)
        for parent, children in enumerate(job.children):
            pairs = [(first + parent, first + child) for child in children]
            by_height.setdefault(heights[parent], []).extend(pairs)
        first += len(job.stages)
    edges = []
    for height, pairs in sorted(by_height.items()):
        if height > 0 and pairs:
            parents, children = torch.tensor(pairs).T.contiguous()
            edges.append((parents, children))
    return edges


def accuracy(prediction: npt.NDArray[np.float32], batch: GraphBatch) -> float:
    """Share of the DAGs in which the stage with the longest path is predicted correctly.

    Only DAGs with several stages without parents count.
    """
    target = batch.target.numpy()
    right = [
        int(np.argmax(prediction[batch.owner == graph]))
        == int(np.argmax(target[batch.owner == graph]))
        for graph in np.flatnonzero(batch.is_choice)
    ]
    return float(np.mean(right)) if right else 1.0


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy and relative error, by iteration."""

    iterations: tuple[int, ...]
    accuracy: tuple[float, ...]
    error: tuple[float, ...]

    @property
    def last(self) -> float:
        """Mean of the last few accuracies."""
        return float(np.mean(self.accuracy[-_LAST:]))


def _draw_batches(
    stream: int, seed: int, count: int, size: int, num_features: int
) -> list[GraphBatch]:
    streams = RandomStreams((stream << 32) + seed)
    shape = RandomDags(
        size,
        SHAPE.max_depth,
        SHAPE.max_width,
        SHAPE.mean_tasks,
        sigma=SHAPE.sigma,
        edge_share=SHAPE.edge_share,
    )
    return [graph_batch(random_dags(shape, streams.jobs).jobs, num_features) for _ in range(count)]


@dataclass(frozen=True)
class Examples:
    """Batches of DAGs for training, and one batch of other DAGs for testing."""

    train: list[GraphBatch]
    test: GraphBatch

    @classmethod
    def draw(cls, seed: int, num_batches: int = _POOL, num_test: int = _TEST_GRAPHS) -> Examples:
        """Draw random DAGs. Training and test DAGs come from separate random streams."""
        num_features = DecimaSettings().num_features
        test = _draw_batches(_TEST_STREAM, seed, 1, num_test, num_features)[0]
        return cls(_draw_batches(_TRAIN_STREAM, seed, num_batches, _BATCH, num_features), test)


class _Learner:
    """Decima's stage embedding and a linear readout that predicts every stage's critical path."""

    def __init__(self, has_two_transforms: bool, seed: int) -> None:
        import torch

        from parcae.decima.graph.network import DecimaNetwork

        self._has_two_transforms = has_two_transforms
        settings = DecimaSettings(has_two_transforms=has_two_transforms)
        levels = np.array([1, 2])
        torch.manual_seed(seed)
        weights = initial_weights(np.random.default_rng(seed), settings, len(levels))
        self._network = DecimaNetwork(weights, settings, levels)
        self._readout = torch.nn.Linear(EMBEDDING, 1)
        self._parts: list[Any] = [*self._network.parameters(), *self._readout.parameters()]
        self._optimizer = torch.optim.Adam(self._parts, lr=_LEARNING_RATE)

    def predict(self, batch: GraphBatch) -> torch.Tensor:
        """The predicted critical path of every stage."""
        import torch

        embedded = self._embed(batch)
        return torch.as_tensor(self._readout(embedded).squeeze(1))

    def _embed(self, batch: GraphBatch) -> torch.Tensor:
        """Decima's embedding of every stage, from leaves to roots (Decima, Eq. 1)."""
        import torch

        prepared = self._network.linear("prep.1", batch.x)
        e = prepared
        for parents, children in batch.edges:
            rows, position = torch.unique(parents, return_inverse=True)
            messages = self._transform("f_stage", e.index_select(0, children))
            total = messages.new_zeros(len(rows), EMBEDDING).index_add(0, position, messages)
            if self._has_two_transforms:
                total = self._transform("g_stage", total)
            e = e.index_copy(0, rows, prepared.index_select(0, rows) + total)
        return e

    def _transform(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Three layers with leaky rectifiers."""
        import torch

        for layer in (1, 2, 3):
            x = torch.nn.functional.leaky_relu(self._network.linear(f"{name}.{layer}", x), SLOPE)
        return x

    def step(self, batch: GraphBatch, done: float) -> None:
        """One step of Adam; the learning rate falls linearly with the progress `done`, 0..1."""
        import torch

        left = max(0.0, 1.0 - done)
        rate = _FINAL_RATE + (_LEARNING_RATE - _FINAL_RATE) * left
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.predict(batch), batch.target)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parts, 1.0)
        self._optimizer.step()

    def test(self, batch: GraphBatch) -> tuple[float, float]:
        """The accuracy and the relative error on DAGs that are not learned from."""
        import torch

        with torch.no_grad():
            prediction = self.predict(batch)
        error = float((prediction - batch.target).abs().mean() / batch.target.mean())
        return accuracy(prediction.numpy(), batch), error


def learn_critical_path(
    has_two_transforms: bool,
    examples: Examples,
    iterations: int,
    budget_s: float,
    seed: int,
    every: int = 10,
) -> Accuracy:
    """Train Decima's stage embedding and a linear readout to predict every stage's critical
    path.
    """
    learner = _Learner(has_two_transforms, seed)
    began = time.perf_counter()
    points = list[tuple[int, float, float]]()
    for iteration in range(1, iterations + 1):
        # The progress from 0 to 1, by iterations or by time, whichever is ahead.
        done = max(iteration / iterations, (time.perf_counter() - began) / budget_s)
        learner.step(examples.train[iteration % len(examples.train)], done)
        if iteration % every == 0 or done >= 1.0:
            points.append((iteration, *learner.test(examples.test)))
        if done >= 1.0:
            break
    return Accuracy(*(tuple(column) for column in zip(*points, strict=True)))


def no_setting(request: Request) -> list[Part]:
    """A part whose jobs the study itself makes."""
    return [Part("", None, {})]


def critical_paths(
    study: Study, request: Request, parts: Sequence[Part], made: Made
) -> list[PartOutcome]:
    """The accuracy of embeddings with two transforms and with one on unseen DAGs."""
    iterations = _FULL_ITERATIONS if request.is_full else _ITERATIONS
    request.say("drawing DAGs")
    examples = Examples.draw(request.training_seed)
    values = {}
    for name, has_two in (("two transforms (Decima)", True), ("one transform", False)):
        request.say(f"learning the critical path with {name}")
        curve = learn_critical_path(
            has_two, examples, iterations, request.budget_s / 2, request.training_seed
        )
        points = zip(curve.iterations, curve.iterations, curve.accuracy, strict=True)
        numbers = {"iterations": curve.iterations[-1]}
        made[name] = Learned(name, f"{name}: learned here", None, numbers, list(points))
        facts = {
            "accuracy": curve.last,
            "best_accuracy": max(curve.accuracy),
            "error": curve.error[-1],
            "iterations": curve.iterations[-1],
        }
        values[name] = {key: np.array([float(value)]) for key, value in facts.items()}
    return [PartOutcome(parts[0], values)]
