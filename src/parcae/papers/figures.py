"""What single figures do in their own way: their settings, and how they are measured.

`parcae.papers.table` says which figure uses what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from scipy import stats

from parcae.base.arrays import AnyArray, Float64Array
from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S, ms_from_s
from parcae.cluster.observation import Policy
from parcae.cluster.trace import Trace
from parcae.decima.bounds import best_job_order, check_orders, simplified
from parcae.decima.checkpoints import deciding_policy
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.idle_theory import (
    DiscreteDistribution,
    best_slot,
    best_slot_exponential,
    expected_average_jct,
)
from parcae.decima.learning.recipes import fair_runs, mean_gap_s
from parcae.evaluation.applications import AUTO, ApplicationsWorld, read_applications
from parcae.evaluation.benchmark import answer_ms, begin_run
from parcae.evaluation.compare import compare
from parcae.evaluation.gantt import Bars, Chart, Panel, write_gantt
from parcae.learning.scenario import Scenario
from parcae.papers.contenders import (
    GREEDY,
    SHORT_JOBS,
    Part,
    Request,
    RigidTraining,
    Training,
    drawn,
    named,
    pieces,
    rigid_policies,
)
from parcae.papers.drawing import time_edges
from parcae.papers.runner import JCT, PartOutcome, StudyRun, by_measure, compare_parts
from parcae.policies.names import PolicyName
from parcae.rigid.a2c.layout import Architecture
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import to_steps
from parcae.rigid.logs import read_log
from parcae.rigid.metrics import mean_of_started, slowdown, waiting_spans
from parcae.rigid.sources import CODE, DrawnSource, RigidLogSource, load_of_rate
from parcae.rigid.world import RigidOutcome
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.config import SimulationConfig, WorldName, decima_classes
from parcae.simulation.elastic import Elastic
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
from parcae.simulation.simulator import Simulator
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import half, prepare, with_drawn_memory, with_work
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

#: Numbers by default and with --full.
Jobs = tuple[int, int]
#: By key, how trainings differ from the usual ones.
Variants = Mapping[str, Mapping[str, Any]]


# Settings on the request's cluster.


def setting(
    arrivals: str,
    jobs: Jobs,
    policies: Mapping[str, str],
    trainings: Variants,
    name: str = "",
    **cluster: Any,
) -> Callable[[Request], list[Part]]:
    """One setting on the request's cluster with these changes; arrivals "" are the request's.

    A training is for the average JCT unless it names another objective.
    """

    def parts(request: Request) -> list[Part]:
        base = request.scenario(arrivals or request.stream, *jobs)
        scenario = replace(base, config=base.config.model_copy(update=cluster))
        made = {}
        for key, variant in trainings.items():
            own = {"objective": scenario.objective, **variant}
            made[key] = Training((replace(scenario, objective=own.pop("objective")),), **own)
        notes: tuple[str, ...] = ()
        if scenario.arrivals != "batch":
            notes = (f"mean gap between arrivals {mean_gap_s(scenario):,.2f} s",)
        return [Part(name, scenario, policies, made, notes)]

    return parts


def several(*settings: Callable[[Request], list[Part]]) -> Callable[[Request], list[Part]]:
    """Several settings."""
    return lambda request: [part for one in settings for part in one(request)]


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
    edges = time_edges(traces)
    present = mean_over_spans(*concurrency(first), edges)
    is_busy = present >= np.quantile(present, 1 - 1 / _EIGHTHS)
    span = np.searchsorted(edges[:-1], jobs.arrival_ms, side="right") - 1
    comes_then = is_busy[np.clip(span, 0, len(is_busy) - 1)]
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
            "busy_jct_s": mean(jct_s[comes_then]),
        }
    return facts


def mean(values: AnyArray) -> float:
    """The mean, NaN without values."""
    return float(values.mean()) if len(values) else math.nan


def bin_edges_ms(workload: Workload) -> Float64Array:
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
        f"{size}: {name}": mean(np.asarray(of_jobs)[bins == row])
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


def worlds(request: Request, jobs: Jobs = (200, 1_000)) -> list[tuple[Part, Scenario]]:
    """TPC-H with drawn memory demands and, if the request has one, the recorded trace.

    For each, the part without policies, and the scenario of its trainings.
    """
    workload = request.jobs_to_draw
    notes: tuple[str, ...] = (
        "for the paper's other workload, give Alibaba's trace with --trace FILE",
    )
    if not any(stage.memory > 0 for job in workload.jobs for stage in job.stages):
        workload, drawn = prepare(workload, [with_drawn_memory(_MEMORY_DRAW)])
        notes += drawn
    config = in_classes(request.config, _TPCH_EXECUTORS)
    halves: Sequence[Workload] = (workload, workload)
    rows = [("TPC-H", halves, config, request.stream, notes)]
    trace = request.recorded
    if trace is not None:
        halves = [prepare(trace.workload, [half(which)])[0] for which in ("second", "first")]
        config = in_classes(trace.config, _TRACE_EXECUTORS[request.is_full])
        notes = ("trained on the first half of the jobs by arrival and tested on the second",)
        rows.append((trace.workload.name, halves, config, trace.arrivals, notes))
    num_jobs = request.jobs(*jobs)
    counts = (num_jobs, num_jobs if request.is_full else min(num_jobs, SHORT_JOBS))
    found = []
    for name, halves, config, arrivals, notes in rows:
        test, train = (
            Scenario(one, config, usable_arrivals(arrivals, one, config), count)
            for one, count in zip(halves, counts, strict=True)
        )
        classes = ", ".join(f"{c.num_executors} of memory {c.memory:g}" for c in config.classes)
        share = usable_share(test.workload, config.classes)
        words = f"executors: {classes}; loads are shares of what they can serve, {share:.2f}"
        found.append((Part(name, test, {}, notes=(words, *notes)), train))
    return found


def class_parts(request: Request) -> list[Part]:
    """For each workload the heuristics, the rule, the network over it, and Decima with a class head
    that first imitates the rule.
    """
    parts = []
    for part, train in worlds(request):
        rule = f"tuned ({part.name})"
        trainings = {
            rule: Training((train,), "tuned"),
            f"corrector ({part.name})": Training((train,), "corrector", over=(rule,)),
            f"decima ({part.name})": Training((train,), network=_CLASS_HEAD, over=(rule,)),
        }
        parts.append(replace(part, policies=named(*BASELINES, *trainings), trainings=trainings))
    return parts


def parts_by_size(run: StudyRun) -> list[PartOutcome]:
    """Measure the parts, and cut each into one for every fifth of the jobs by work."""
    return [
        PartOutcome(
            replace(outcome.part, name=f"{outcome.part.name}, {size}"),
            {
                label: {
                    key.removeprefix(f"{size}: "): numbers
                    for key, numbers in measured.items()
                    if key.startswith(f"{size}: ") and not key.endswith("JCT")
                }
                for label, measured in outcome.values.items()
            },
            outcome.notes,
        )
        for outcome in compare_parts(run)
        for size in BINS
    ]


#: Table 3: number of jobs of the test; the small trainings have this many times fewer jobs, or
#: executors.
_SCALE_JOBS = (150, 150)
_FEWER_JOBS = 15
_FEWER_EXECUTORS = 10


def scale_parts(request: Request) -> list[Part]:
    """Decima trained at the test's size, with 15 times fewer jobs, and 10 times fewer executors.

    The last world is the trace, if there is one, otherwise TPC-H.
    """
    part, train = worlds(request, _SCALE_JOBS)[-1]
    size = part.scenario.num_jobs
    train = replace(train, num_jobs=size)
    batch = replace(train, arrivals="batch")
    few = max(1, size // _FEWER_JOBS)
    # Every class keeps at least one executor.
    config = train.config
    fewer = max(len(config.classes), config.total_executors // _FEWER_EXECUTORS)
    small = replace(train, config=config.resized(fewer))
    rule = "rule to imitate"
    trainings = {rule: Training((train,), "tuned")}
    parts = []
    for name, pair, words in (
        ("all jobs at once", (batch, replace(batch, num_jobs=few)), f"with {few} jobs at once"),
        ("arrivals", (train, small), "with a tenth of the executors"),
    ):
        keys = {SAME_SIZE: f"{SAME_SIZE}, {name}", SMALLER: f"decima, trained {words}"}
        for key, scenario in zip(keys.values(), pair, strict=True):
            trainings[key] = Training((scenario,), network=_CLASS_HEAD, over=(rule,))
        parts.append(
            Part(
                name,
                replace(part.scenario, arrivals=pair[0].arrivals),
                {**keys, **named(GRAPHENE)},
                trainings,
                (f"trained small: {words}", *part.notes),
            )
        )
    return parts


SAME_SIZE = "decima, trained at the test's size"
SMALLER = "decima, trained small"


# Variants of Decima: objectives, ablations, encodings, durations, arrivals.

BEST = "weighted-fair:tuned"


def load_parts(
    request: Request, loads: tuple[Sequence[float], Sequence[float]], variants_of: Variants
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


#: Table 2's shortest and longest mean gap / that of the test: 42 and 75 s against 45 s.
_SHORTEST = 42 / 45
_LONGEST = 75 / 45
#: Number of gaps in the mix.
_NUM_GAPS = 3


def gap_parts(request: Request) -> list[Part]:
    """Table 2: Decima trained on the test's mean gap, on a longer one, and on a mix of gaps."""
    drawn = request.scenario(request.stream, 60, 1_000)
    gap_s = mean_gap_s(drawn)
    shares = (1.0, _LONGEST, *np.linspace(_SHORTEST, _LONGEST, _NUM_GAPS).tolist())
    same, slow, *mix = (
        replace(drawn, arrivals=f"poisson:{share * gap_s * 1e3:.3f}ms") for share in shares
    )
    trainings = {
        SAME_GAP: Training((same,)),
        SLOW_GAP: Training((slow,)),
        MIX: Training(tuple(mix)),
        KNOWING: Training(tuple(mix), network=DecimaSettings(knows_gap=True)),
    }
    notes = (
        f"the test's mean gap is {gap_s:,.2f} s; the others keep the paper's ratios",
        f"the mix: a training takes {', '.join(one.arrivals for one in mix)} in turn",
    )
    return [Part("", same, named(BEST, *trainings), trainings, notes)]


SAME_GAP = "decima, trained on the test's gap"
SLOW_GAP = "decima, trained on a gap 5/3 as long"
MIX = "decima, trained on a mix"
KNOWING = "decima, trained on a mix, knows the gap"


# Other settings than those of the training.

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
    # On a small cluster or with few jobs, some of these are the same setting.
    own = {f"batch of {count}": (executors, "batch", count) for count in (5, small, large)}
    own |= {f"load {load}": (executors, f"load:{load}", large) for load in (0.35, 0.6, 0.8)}
    cases = {f"{name}, {executors} executors": (workload, *case) for name, case in own.items()}
    for size in [max(least, round(executors * share)) for share in (0.3, 0.5, 2, 4)]:
        cases[f"batch of {small}, {size} executors"] = (workload, size, "batch", small)
        cases[f"load 0.6, {size} executors"] = (workload, size, "load:0.6", large)
    bursts = (workload, executors, f"bursts:{gap_s:.3f}s", large)
    cases[f"load 0.6 in bursts, {executors} executors"] = bursts
    for kind, jobs in kinds.items():
        cases[f"{kind}, batch"] = (jobs, executors, "batch", small)
        cases[f"{kind}, load 0.6"] = (jobs, executors, "load:0.6", large)
    policies = named(*HEURISTICS, *(request.policies or _LEARNED))
    return [
        Part(name, Scenario(jobs, request.config.resized(size), arrivals, num_jobs), policies)
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


def with_search(run: StudyRun) -> list[PartOutcome]:
    """Measure the parts, and beside them the best of all orders of each batch."""
    (outcome,) = compare_parts(run)
    scenario = outcome.part.scenario
    best = []
    for seed in run.seeds:
        run.request.say(f"searching the best order of the jobs of seed {seed}")
        order = best_job_order(scenario.sequence(seed), scenario.config, seed)
        best.append(order.average_jct_ms / MS_PER_S)
    return [replace(outcome, values={SEARCH: {JCT: best}, **outcome.values})]


# Applications on an unmodified cluster manager.

#: By label, who has executors and who orders an application's jobs.
ALLOCATED = {
    "FairScheduler": "dynamic:preempt/fifo",
    "static split": "static/fifo",
    "split that lends": "serve/srpt",
    "one application": "shared/account",
}
#: As on the real YARN: when an executor starts and goes; the mean task, which parts multiply.
_YARN = Elastic(cores_per_executor=1, min_cores=1, start_ms=3_000, idle_ms=3_000)
_START_SIGMA = 0.5
_YARN_TASK_MS = 750.0
_APPLICATIONS = ("smallest", "small", "medium", "large")


def application_parts(_: Request) -> list[Part]:
    """Tasks of several lengths beside an executor's start."""
    lengths = {x: x * _YARN_TASK_MS / MS_PER_S for x in (1.0, 3.0, 10.0)}
    return [Part(f"tasks of {s:g} s", None, named(*ALLOCATED), x=x) for x, s in lengths.items()]


def between_applications(run: StudyRun) -> list[PartOutcome]:
    """Compare who has executors, each with its own order in every application.

    Jobs belong to four applications, by their work.
    """
    request = run.request
    jobs = request.jobs_to_draw.jobs
    config = SimulationConfig(
        world=WorldName.CORES, num_executors=request.config.num_executors, elastic=_YARN
    )
    by_work = np.argsort([job.work_ms for job in jobs], kind="stable")
    users = np.empty(len(jobs), np.int64)
    users[by_work] = np.arange(len(jobs)) * len(_APPLICATIONS) // len(jobs)
    owned = [replace(job, user=_APPLICATIONS[row]) for job, row in zip(jobs, users, strict=True)]
    tasks = sum(job.num_tasks for job in jobs)
    mean_ms = sum(job.work_ms for job in jobs) / tasks
    outcomes = []
    for part in run.parts:
        request.say(f"comparing {part.name}")
        step = with_work(part.x * _YARN_TASK_MS / mean_ms)
        workload, _ = step(Workload(request.jobs_to_draw.name, tuple(owned)))
        cluster = read_applications(AUTO, workload, config, _YARN, _START_SIGMA)
        values = {}
        for label, both in ALLOCATED.items():
            allocation, _, policy = both.partition("/")
            world = ApplicationsWorld(
                workload,
                config.model_copy(update={"elastic": None}),
                request.stream,
                request.jobs(30, 60),
                cluster=cluster,
                allocations=(allocation,),
            )
            (result,) = compare(
                world,
                [policy],
                num_seeds=len(run.seeds),
                seed_start=run.seeds[0],
                processes=request.processes,
            ).policies
            values[label] = by_measure(result.runs)
        outcomes.append(PartOutcome(part, values))
    return outcomes


# Figure 15b: the time of a decision, and the time between scheduling events.

#: Number of first decisions that are not counted, because the first calls load compiled code.
_WARM_UP = 5


def measure_latencies(
    sequence: JobSequence, policy: Policy, config: SimulationConfig, seed: int
) -> tuple[Float64Array, Float64Array]:
    """Step one run. Returns the time of each decision of the policy, and the simulated times
    between the events at which it has to decide, in ms.
    """
    simulator = Simulator(sequence, config, seed)
    answers = begin_run(simulator, policy)
    simulator.start()
    decision_ms = list[float]()
    event_ms = list[int]()
    while simulator.status is Status.NEEDS_DECISION:
        event_ms.append(int(simulator.state.now.clock_ms[0]))
        decision_ms.append(answer_ms(simulator, answers))
    # Several decisions can fall on one simulated time.
    intervals = np.diff(np.unique(np.array(event_ms, np.int64))).astype(np.float64)
    return np.array(decision_ms[_WARM_UP:] or decision_ms), intervals


def latencies(run: StudyRun) -> list[PartOutcome]:
    """The times of all decisions in one run, and the intervals between events, by policy."""
    (part,) = run.parts
    one = part.scenario
    names = run.names(part)
    seed = run.request.first_seed
    sequence = one.sequence(seed)
    policies = part.world.resolve(list(names.values())).for_sequence(sequence, seed)
    values = {}
    for label, name in names.items():
        run.request.say(f"timing the decisions of {label}")
        policy = cast(Policy, policies[name])
        latency, interval = measure_latencies(sequence, policy, one.config, seed)
        # A run with one event has no interval.
        known = interval if len(interval) else np.zeros(1)
        values[label] = {
            "latency_ms": latency,
            "latency_p99_ms": np.percentile(latency, 99),
            "interval_ms": interval,
            "interval_median_ms": np.median(known),
            "interval / latency": known.mean() / max(1e-9, latency.mean()),
        }
    notes = [f"one run of {one.num_jobs} jobs, seed {seed}; latency depends on this machine"]
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


def with_slots(run: StudyRun) -> list[PartOutcome]:
    """Measure the parts; for each length of the first of two jobs, four slots before it: none, that
    of Theorem 2, the best one if the next arrival ends it, and the learned one.
    """
    outcomes = compare_parts(run)
    scenario = pairs()
    policy = deciding_policy(PolicyName(run.made[PAIRS_KEY].name), scenario.setting)
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
        values = {
            label: {
                "slot_s": slot_s,
                "expected_jct_s": expected_average_jct(
                    length_s, slot_s, gaps, lengths, is_redecided=True
                ),
            }
            for label, slot_s in slots.items()
        }
        outcomes.append(PartOutcome(Part(f"pair, first job {length_s:g} s", scenario, {}), values))
    return outcomes


# Rigid jobs (DeepRM and A2cScheduler).

#: Durations of DeepRM's small and large jobs.
_SHORT_JOB = 3
_LONG_JOB = 10


def rate_parts(
    request: Request,
    rates: Sequence[float],
    trainings: Variants,
    names: Mapping[str, str] = MappingProxyType({}),
    by_load: bool = True,
    has_greedy: bool = True,
    is_watched: bool = False,
) -> list[Part]:
    """A part for each rate: DeepRM's jobs, what is trained, and hand-made policies by label.

    A part is named by the rate, which is the arrival probability per step, or by the paper's label
    of the load: the labels 10%, 30%, ..., 190% are the rates 0.1, 0.2, ..., 1.0 of its code. Of
    each trained policy there is one that draws its actions, and a greedy one. The curves of
    trainings that are watched are about the sequences of the part.
    """
    parts = []
    for rate in rates:
        place = round(200 * rate - 10) if by_load else rate
        name = f"load {place}%" if by_load else f"rate {place:g}"
        source = DrawnSource(rates=(rate,))
        stage = drawn(source, request, request.runs((100, 100)))
        keys = {label: f"{label} at {name}" for label in trainings}
        made = {
            keys[label]: RigidTraining(source, **one, watched_on=stage if is_watched else None)
            for label, one in trainings.items()
        }
        policies = {
            label + how: key + how
            for label, key in keys.items()
            for how in ("", GREEDY)[: 1 + has_greedy]
        }
        notes = (f"rate {rate:g}, measured load {load_of_rate(CODE, rate):.0%}",)
        parts.append(Part(name, stage, {**policies, **names}, made, notes, float(place)))
    return parts


def withheld(run: StudyRun) -> list[PartOutcome]:
    """Figure 7: which jobs a policy withholds, and how small and large jobs fare."""
    (part,) = run.parts
    stage = part.stage
    values = {}
    for label, policy in rigid_policies(part, run.made, run.request.processes).items():
        run.request.say(f"measuring which jobs {label} withholds")
        outcomes = stage.play(policy).outcomes()
        shares = withholding(outcomes, stage.source.config.num_slots)
        values[label] = {**shares, **slowdowns_by_size(outcomes)}
    return [PartOutcome(part, values)]


def withholding(outcomes: Sequence[RigidOutcome], num_slots: int) -> dict[str, float]:
    """The shares of steps, of steps with jobs waiting, and of withheld jobs."""
    spans = [one for outcome in outcomes for one in waiting_spans(outcome, num_slots)]
    waited = sum(span for span, _ in spans)
    held = [(span, durations) for span, durations in spans if len(durations)]
    num_held = sum(span for span, _ in held)
    none = np.zeros(0, np.int64)
    jobs = np.concatenate([none, *(np.repeat(durations, span) for span, durations in held)])
    return {
        "withheld": num_held / max(1, sum(outcome.end for outcome in outcomes)),
        "withheld_of_waiting": num_held / max(1, waited),
        "large_of_withheld": mean(jobs >= _LONG_JOB),
    }


def slowdowns_by_size(outcomes: Sequence[RigidOutcome]) -> dict[str, list[float]]:
    """Mean slowdown of the small and of the large jobs of every sequence; NaN if it has none.

    Jobs that never started do not count.
    """
    found: dict[str, list[float]] = {"slowdown, small jobs": [], "slowdown, large jobs": []}
    for outcome in outcomes:
        duration = outcome.jobs.duration
        are_chosen = (duration <= _SHORT_JOB, duration >= _LONG_JOB)
        for each, is_chosen in zip(found.values(), are_chosen, strict=True):
            each.append(mean_of_started(slowdown(outcome)[is_chosen]))
    return found


def with_crossings(run: StudyRun) -> list[PartOutcome]:
    """Measure the parts, and in which iteration each training passed each other policy."""
    (outcome,) = compare_parts(run)
    policies = outcome.part.policies
    fixed = [x for x, name in policies.items() if name.removesuffix(GREEDY) not in run.made]
    lines = {label: outcome.estimate(label, "slowdown").mean for label in fixed}
    passed = {
        label: {
            f"passed {other} in iteration": crossing(learned.curve, line)
            for other, line in lines.items()
        }
        for label, learned in run.learned(outcome.part).items()
    }
    return [outcome.having(passed)]


def crossing(points: Sequence[tuple[int, float, float]], line: float) -> float:
    """The first of three measured iterations in a row whose slowdown is below a line, or NaN."""
    # Three in a row, because single measurements are noisy.
    for row in range(len(points) - 2):
        if all(cost < line for _, _, cost in points[row : row + 3]):
            return points[row][0]
    return math.nan


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


def with_convergence(run: StudyRun) -> list[PartOutcome]:
    """Measure the parts, and where the training of each policy converged."""
    (outcome,) = compare_parts(run)
    facts = {}
    for label, learned in run.learned(outcome.part).items():
        assert learned.result is not None
        progress = learned.result.curve
        row = convergence([cost for _, _, cost in learned.curve], progress[0].numbers["cost"])
        iteration, seconds = (math.nan, math.nan) if row is None else learned.curve[row][:2]
        decisions = sum(one.numbers["decisions"] for one in progress)
        facts[label] = {
            "converged_iteration": iteration,
            "converged_s": seconds,
            "decisions_per_s": decisions / learned.result.seconds,
        }
    return [outcome.having(facts)]


class LogSetting(NamedTuple):
    """How a log is converted to a packing world, and what is trained on its first half.

    The cluster has at most `processors`, in at most `num_units` units; the actor's rate is for the
    recipe "fast".
    """

    num_jobs: int
    train_jobs: int
    processors: float
    num_units: int
    backlog: int
    architecture: Architecture
    actor_rate: float
    runs: Jobs


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
        2_400, 256, math.inf, 54, 2_000, Architecture.CONV_16_POOL, 0.005, (8, 20)
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
    parts = []
    for name, one in LOG_SETTINGS.items():
        sources = []
        halves = read_log(request.log, estimates="actual").jobs.halves()
        for jobs, num_jobs in zip(halves, (one.train_jobs, one.num_jobs), strict=True):
            # The cluster is never larger than the log's.
            size = int(min(one.processors, jobs.capacity[0]))
            units = min(one.num_units, size)
            stepped = to_steps(
                jobs, step_s=_STEP_S, num_units=units, horizon=_HORIZON, capacity=(size,)
            )
            world = PackingConfig(num_slots=10, backlog_size=one.backlog, horizon=_HORIZON)
            sources.append(RigidLogSource(stepped, min(num_jobs, len(stepped)), world))
        tuned_on, source = sources
        size = source.num_jobs or 0
        place = name if size == one.num_jobs else f"{size:,} jobs (for {name})"
        rate = (f"actor_rate={one.actor_rate}",) if request.recipe == "fast" else ()
        options = (f"architecture={one.architecture.value}", *rate)
        key = f"a2c at pieces of {name}"
        training = RigidTraining(
            tuned_on, "a2c", options=options, select_every=20, num_selection=50
        )
        notes = (
            f"consecutive pieces of the log's second half, load {source.jobs.load[0]:.2f}, steps "
            f"of {_STEP_S:,} s; trained on pieces of {tuned_on.num_jobs} jobs of the first half",
        )
        policies = {**names, "a2c": key, f"a2c{GREEDY}": key + GREEDY}
        stage = pieces(source, request, request.runs(one.runs), tuned_on)
        parts.append(Part(place, stage, policies, {key: training}, notes))
    return parts


# Figure 16: a DAG with two branches that join, where the critical path first is not optimal.

#: The example's epsilon, in s, and its number of executors.
EPSILON_S = 0.1
NUM_EXECUTORS = 5
LEAST = "lower bound"
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


def join_parts(request: Request) -> list[Part]:
    """The DAG on its five executors."""
    scenario = Scenario(Workload("join", (join_job(),)), cluster(), "batch", 1)
    # Of one job, it serves the stage with the most work on its path first.
    return [Part("", scenario, {"critical path": "sjf-cp", **named("fair")})]


def with_bound(run: StudyRun) -> list[PartOutcome]:
    """Measure the parts, and beside them a lower bound of the makespans of all schedules."""
    (outcome,) = compare_parts(run)
    scenario = outcome.part.scenario
    bounds = [
        lower_bounds(scenario.sequence(seed), NUM_EXECUTORS).makespan_ms / MS_PER_S
        for seed in run.seeds
    ]
    return [outcome.having({LEAST: {"makespan_s": bounds}})]


def draw_join(run: StudyRun, path: Path) -> None:
    """The schedules: one bar per task, by executor, with a colour for each stage."""
    (outcome,) = run.outcomes
    charts = []
    for name, trace in run.first_run(outcome)[1].items():
        tasks: Any = trace.tasks
        start_s, finish_s = (tasks[key] / MS_PER_S for key in ("start_ms", "finish_ms"))
        height = np.ones(len(tasks), np.int64)
        bars = Bars(tasks["executor"], start_s, finish_s, tasks["stage"], height)
        panel = Panel("executor", NUM_EXECUTORS, bars, _STAGES)
        end_s = makespan_ms(trace) / MS_PER_S
        charts.append(Chart(f"{name}: {end_s:.1f} s", [panel], end_s, "time (s)"))
    write_gantt(charts, path, legend=_STAGES)
