"""`parcae simulate`: simulates one job sequence, or the job sets of a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.checks import Only, file_to_read, refusing
from parcae.cli.elastic import FOR_ELASTIC, ElasticOptions
from parcae.cli.groups import with_groups
from parcae.cli.options import (
    SOURCE_HELP,
    ArrivalsOption,
    DeadlinesOption,
    DrawnJobsOption,
    SimulatedClusterOptions,
    number_of_jobs,
    with_deadlines,
)
from parcae.cli.runs import JobSetOptions, PlayedRun, PolicyOption, ShowOptions, policy_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from parcae.cluster.trace import Trace
    from parcae.evaluation.gantt import Chart
    from parcae.evaluation.policies import ResolvedPolicies
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.arrivals import JobSequence
    from parcae.workloads.job import Workload
    from parcae.workloads.job_sets import JobSet

#: The workload is left out if the file of job sets contains the jobs itself.
OptionalWorkload = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME|FILE]", help=SOURCE_HELP, show_default=False, callback=file_to_read
    ),
]
#: The policies of `--policy all` with a file of job sets in the world of executors: those of the
#: released simulator's conformance runs.
CONFORMANCE_POLICIES = (
    "spark_fifo",
    "spark_static_10",
    "dynamic_partition",
    "wfair_-1",
    "wfair_1",
    "sjf_cp",
)


@dataclass(frozen=True)
class DrawOptions:
    """How the jobs of the run are drawn."""

    jobs: DrawnJobsOption = None
    arrivals: ArrivalsOption = "batch"
    deadlines: DeadlinesOption = None
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the arrivals and of the task durations.")
    ] = 0


@refusing(
    Only(("set_id",), lambda given: given["job_set"] is not None, "with --job-set"),
    Only(
        ("jobs", "arrivals"),
        lambda given: given["job_set"] is None,
        "to jobs that are drawn (--job-set says which jobs arrive when)",
    ),
    Only(
        ("durations",),
        lambda given: (
            given["job_set"] is None or not _contains_jobs(given["workload"], given["job_set"])
        ),
        "to durations of a workload (this --job-set file lists that of every task)",
    ),
    FOR_ELASTIC,
)
@with_groups
def simulate_command(
    *,
    cluster: SimulatedClusterOptions,
    draw: DrawOptions,
    sets: JobSetOptions,
    workload: OptionalWorkload = None,
    policy: PolicyOption = "fair",
    elastic: ElasticOptions,
    shown: ShowOptions,
) -> None:
    """Simulate a workload under one or more policies.

    Example: parcae simulate tpch --policy fair --cores 50 --jobs 20 --arrivals batch --seed 1

    Example: parcae simulate tpch --cores 0..64 --arrivals poisson:25s --idle-timeout 30s

    Example: parcae simulate tpch.parcae --job-set sets.json --policy all --reference-semantics

    Example: parcae simulate --job-set spark-world.json --policy fifo,fair,srpt,orders --json
    """
    from parcae.base.errors import ConfigError

    if sets.job_set is not None and draw.deadlines is not None:
        raise ConfigError("--deadlines is for drawn jobs: leave out --deadlines or --job-set")
    has_own_jobs = sets.job_set is not None and _contains_jobs(workload, sets.job_set)
    config = cluster.config(
        # Job sets that only name jobs are those of the reference runs, in the world of executors.
        {"--job-set with sets of named jobs": sets.job_set is not None and not has_own_jobs}
    )
    config = elastic.applied(config, cluster.cores)
    # A Gantt chart needs the record of all tasks; recording takes time and memory.
    record = shown.gantt is not None
    if sets.job_set is not None and has_own_jobs:
        runs = _run_spark_world(sets, policy, config, cluster.size, draw.seed, record)
    elif workload is None:
        raise ConfigError(
            "give a workload (tpch, synthetic, toy, or a *.parcae file), or a --job-set file that "
            "contains its jobs"
        )
    elif sets.job_set is not None:
        names = policy_names(policy, CONFORMANCE_POLICIES)
        runs = _run_job_sets(workload, sets, names, cluster, draw.seed)
    else:
        loaded = with_deadlines(cluster.load(workload), draw.deadlines)
        runs = _run_drawn(loaded, policy, config, draw, record)
    shown.show(runs, _print_runs, _chart)


def _policy_names(policy: str, config: SimulationConfig) -> tuple[str, ...]:
    """The policies that `--policy` names; `all` are those of the world that need no tuning."""
    of_world = ("sjf", "srpt", "fsp", "psbs", "las") if config.world.value == "cores" else ()
    every = ("fifo", "fair", *of_world, "sjf-cp", "weighted-fair:-1", "srpt-cap")
    return policy_names(policy, every)


def _contains_jobs(workload: str | None, path: Path) -> bool:
    """Whether a file of job sets contains the jobs themselves (these are for the world of cores).

    Otherwise it only names jobs, and a workload must describe them.
    """
    from parcae.base.errors import ConfigError, FormatError
    from parcae.workloads.job_sets import holds_spark_world_sets, read_job_sets

    if holds_spark_world_sets(path):
        if workload is not None:
            raise ConfigError(f"{path} contains its own jobs: leave out {workload}")
        return True
    if workload is not None:
        return False
    try:
        read_job_sets(path)
    except FormatError:
        # The file is of neither kind. Reading it again as sets with jobs reports what is wrong.
        return True
    raise ConfigError(
        f"{path} only names the jobs of a workload: give the workload, too (parcae simulate "
        f"WORKLOAD --job-set {path})"
    )


def _chosen_sets(sets: JobSetOptions, found: dict[str, Any]) -> list[Any]:
    """The job sets of a file that `--set` names."""
    from parcae.base.errors import ConfigError

    if sets.set_id == "all":
        return list(found.values())
    if sets.set_id not in found:
        raise ConfigError(f"{sets.job_set}: no job set {sets.set_id!r}; it has {', '.join(found)}")
    return [found[sets.set_id]]


def _run_spark_world(
    sets: JobSetOptions,
    policy: str,
    config: SimulationConfig,
    cores: int | None,
    seed: int,
    record: bool,
) -> Iterator[PlayedRun]:
    """Run job sets that contain their jobs; `record` keeps every task in the traces."""
    from parcae.base.errors import ConfigError
    from parcae.evaluation.job_sets import CONFORMANCE_ORDERS, run_sets
    from parcae.workloads.job_sets import read_spark_world_sets

    assert sets.job_set is not None
    if config.world.value != "cores":
        raise ConfigError(
            f"{sets.job_set}: these job sets run in the world of cores only; leave out --world "
            "executors and options that exist only there"
        )
    chosen = _chosen_sets(sets, read_spark_world_sets(sets.job_set))
    names = policy_names(policy, CONFORMANCE_ORDERS)
    for run in run_sets(chosen, names, config, seed, cores=cores, record=record):
        result = {
            "set": run.job_set.name,
            "policy": run.policy,
            "variant": run.variant,
            "seed": seed,
            **run_json(run.trace, run.job_set.sequence),
            "completion_ms": run.job_set.by_position(run.trace.completion_ms),
        }
        yield PlayedRun(chosen.index(run.job_set), result, run.trace)


def _run_drawn(
    workload: Workload, policy: str, config: SimulationConfig, draw: DrawOptions, record: bool
) -> Iterator[PlayedRun]:
    """Run jobs that are drawn from a workload; `record` keeps every task in the traces."""
    from parcae.evaluation.doubts import delay_warning
    from parcae.evaluation.policies import resolve_policies

    num_jobs = number_of_jobs(draw.jobs, draw.arrivals, workload)
    sequence = workload.draw(num_jobs, draw.arrivals, config, seed=draw.seed)
    names = _policy_names(policy, config)
    resolved = resolve_policies(workload, names, config, draw.arrivals, num_jobs)
    if warning := delay_warning(workload, config):
        typer.echo(f"warning: {warning}", err=True)
    # The metrics of executor classes need the record, too.
    record = record or bool(config.executor_classes)
    for labels, trace in _played(resolved, sequence, draw.seed, record):
        result = {
            **labels,
            "world": config.world.value,
            "durations": config.durations.value,
            "seed": draw.seed,
            **run_json(trace, sequence),
        }
        yield PlayedRun(0, result, trace)


def _run_job_sets(
    source: str,
    sets: JobSetOptions,
    policies: Sequence[str],
    cluster: SimulatedClusterOptions,
    seed: int,
) -> Iterator[PlayedRun]:
    from parcae.evaluation.policies import resolve_policies
    from parcae.workloads.job_sets import read_job_sets

    assert sets.job_set is not None
    workload = cluster.load(source)
    for number, job_set in enumerate(_chosen_sets(sets, read_job_sets(sets.job_set))):
        set_config = _of_set(cluster, job_set).config()
        sequence = job_set.sequence(workload)
        arrivals = sequence.nearest_process
        resolved = resolve_policies(workload, policies, set_config, arrivals, sequence.num_jobs)
        # Recorded for the hash of the decisions, which is compared with that of the reference.
        for labels, trace in _played(resolved, sequence, seed, record=True):
            result = {
                "set": job_set.id,
                **labels,
                "durations": set_config.durations.value,
                **run_json(trace, sequence),
                "completion_ms": job_set.by_position(trace.completion_ms),
            }
            yield PlayedRun(number, result, trace)


def _of_set(cluster: SimulatedClusterOptions, job_set: JobSet) -> SimulatedClusterOptions:
    """The options of the cluster; a job set gives what they leave out."""
    delays = ("moving_delay_ms", "warmup_delay_ms")
    left_out = {key: getattr(job_set, key) for key in delays if getattr(cluster, key) is None}
    # A list of classes says how many executors there are; `decima` takes any number.
    if cluster.size is None and cluster.executor_classes in (None, "decima"):
        left_out["executors"] = job_set.num_executors
    return replace(cluster, **left_out)


def _played(
    resolved: ResolvedPolicies, sequence: JobSequence, seed: int, record: bool
) -> Iterator[tuple[dict[str, str], Trace]]:
    """Run a job sequence under each policy."""
    from parcae.simulation.simulator import simulate

    for name, policy in resolved.for_sequence(sequence, seed).items():
        trace = simulate(sequence, policy, resolved.config, seed, record=record)
        yield {"policy": name, "variant": resolved.variants[name]}, trace


def run_json(trace: Trace, sequence: JobSequence) -> dict[str, Any]:
    """The results of one run as JSON, with times in ms.

    `makespan_ms` is the clock at the last event in Decima's world, as in the reference runs. In the
    world of cores a guard may wake up after the last completion, so it is the makespan proper. With
    several executor classes, the results include the share of memory that running tasks left
    unused, and the utilization of each class; those of an elastic cluster include the cores that
    were held; with deadlines, what `parcae.simulation.metrics` counts.
    """
    from parcae.cluster.state import World
    from parcae.simulation.metrics import (
        class_utilization,
        core_hours_per_job,
        cores_held,
        jct_ms,
        makespan_ms,
        memory_fragmentation,
        missed_and_tardiness,
        utilization,
        wasted_share,
    )

    jct = jct_ms(trace)
    result = {
        "average_jct_ms": float(jct.mean()),
        "makespan_ms": makespan_ms(trace) if trace.world is World.CORES else trace.clock_ms,
        "last_completion_ms": int(trace.completion_ms.max()),
        "completion_ms": trace.completion_ms.tolist(),
        "decisions": trace.num_decisions,
        "events": trace.num_events,
        "tasks": trace.num_tasks,
        "work_ms": int(trace.executed_ms.sum()),
        "executors": trace.num_executors,
        **missed_and_tardiness(trace, sequence),
    }
    fragmentation = memory_fragmentation(trace, sequence)
    if fragmentation is not None:
        result["memory_fragmentation"] = fragmentation
        result["class_utilization"] = class_utilization(trace).tolist()
    if trace.faults is not None:
        result["faults"] = {**asdict(trace.faults), "wasted_share": wasted_share(trace)}
    if trace.held_ms is not None:
        result["cores_held"] = cores_held(trace)
        result["core_hours_per_job"] = core_hours_per_job(trace)
        result["utilization"] = utilization(trace)
    if trace.decisions is not None:
        result["decision_trace_sha256"] = trace.decision_trace_sha256()
    return result


def _print_runs(runs: Iterator[PlayedRun]) -> None:
    for run in runs:
        result = run.result
        where = f"{result['set']}  " if "set" in result else ""
        unused = (
            f"   {result['memory_fragmentation']:.1%} of the memory unused"
            if "memory_fragmentation" in result
            else ""
        )
        missed = (
            f"   {result['missed_deadline_share']:.1%} of {result['deadlines']} deadlines missed"
            if "deadlines" in result
            else ""
        )
        typer.echo(
            f"{where}{result['policy']:<24} "
            f"average JCT {result['average_jct_ms'] / 1000:10.2f} s   "
            f"last completion {result['last_completion_ms'] / 1000:10.2f} s   "
            f"{result['decisions']} decisions, {result['tasks']} tasks{unused}{missed}"
            f"{_faults_text(result)}{_held_text(result)}"
        )


def _faults_text(result: dict[str, Any]) -> str:
    """What went wrong in a run; no text without faults."""
    if "faults" not in result:
        return ""
    faults = result["faults"]
    return (
        f", {faults['failed']} attempts failed, {faults['lost_executors']} executors lost with "
        f"{faults['interrupted']} attempts, "
        f"{faults['copies']} copies, {faults['wasted_share']:.1%} of the core time wasted"
    )


def _held_text(result: dict[str, Any]) -> str:
    """The cores that an elastic cluster held in a run; no text for a fixed cluster."""
    if "cores_held" not in result:
        return ""
    return f", {result['cores_held']:.1f} cores held, {result['utilization']:.0%} busy"


def _chart(run: PlayedRun) -> Chart:
    from parcae.evaluation.gantt import cluster_chart

    return cluster_chart(run.run, run.result["policy"])
