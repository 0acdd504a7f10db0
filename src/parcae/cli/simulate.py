"""`parcae simulate`: simulates one job sequence, or the job sets of a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.groups import with_groups
from parcae.cli.options import SOURCE_HELP, ArrivalsOption, JobsOption, SimulatedClusterOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parcae.cluster.trace import Trace
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.arrivals import JobSequence
    from parcae.workloads.job import Workload

#: The workload is left out if the file of job sets contains the jobs itself.
OptionalWorkload = Annotated[
    str | None, typer.Argument(metavar="[NAME|FILE]", help=SOURCE_HELP, show_default=False)
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

    jobs: JobsOption = 20
    arrivals: ArrivalsOption = "batch"
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the arrivals and of the task durations.")
    ] = 0


@dataclass(frozen=True)
class JobSetOptions:
    """Job sets of a file, instead of drawn jobs."""

    job_set: Annotated[
        Path | None,
        typer.Option("--job-set", help="Run the job sets of this JSON file instead of drawn jobs."),
    ] = None
    set_id: Annotated[
        str, typer.Option("--set", help="Which job set of the file: its id, or all.")
    ] = "all"


@with_groups
def simulate_command(
    *,
    cluster: SimulatedClusterOptions,
    draw: DrawOptions,
    sets: JobSetOptions,
    workload: OptionalWorkload = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", help="Policies, separated by commas (see `parcae policies`), or: all"
        ),
    ] = "fair",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each run as a line of JSON.")
    ] = False,
    gantt: Annotated[
        Path | None, typer.Option("--gantt", help="Write a Gantt chart (HTML) of the first run.")
    ] = None,
) -> None:
    """Simulate a workload under one or more policies.

    Example: parcae simulate tpch --policy fair --cores 50 --jobs 20 --arrivals batch --seed 1

    Example: parcae simulate tpch.parcae --job-set sets.json --policy all --reference-semantics

    Example: parcae simulate --job-set spark-world.json --policy fifo,fair,srpt,orders --json
    """
    has_own_jobs = sets.job_set is not None and _contains_jobs(workload, sets.job_set)
    config = cluster.config(
        # Job sets that only name jobs are those of the reference runs, in the world of executors.
        {"--job-set with sets of named jobs": sets.job_set is not None and not has_own_jobs}
    )
    # A Gantt chart needs the record of all tasks; recording takes time and memory.
    record = gantt is not None
    if sets.job_set is not None and has_own_jobs:
        results = _run_spark_world(
            sets.job_set, sets.set_id, policy, config, cluster.size, draw.seed, record
        )
    elif workload is None:
        raise _no_workload()
    elif sets.job_set is not None:
        names = CONFORMANCE_POLICIES if policy == "all" else tuple(policy.split(","))
        # Options take precedence over the settings in the file.
        given = {
            "num_executors": cluster.size,
            "moving_delay_ms": cluster.moving_delay_ms,
            "warmup_delay_ms": cluster.warmup_delay_ms,
        }
        results = _run_job_sets(
            cluster.load(workload), sets.job_set, sets.set_id, names, config, given, draw.seed
        )
    else:
        loaded = cluster.load(workload)
        results = _run_drawn(
            loaded,
            _policy_names(policy, config),
            config,
            draw.arrivals,
            draw.jobs,
            draw.seed,
            record,
        )
    for row, (result, trace) in enumerate(results):
        if gantt is not None and row == 0:
            from parcae.evaluation.gantt import write_gantt

            write_gantt(trace, gantt)
        if as_json:
            typer.echo(json.dumps(result))
        else:
            _print(result)
    if gantt is not None:
        typer.echo(f"Gantt chart: {gantt}", err=True)


def _policy_names(policy: str, config: SimulationConfig) -> tuple[str, ...]:
    """The policies that `--policy` names; `all` are those of the world that need no tuning."""
    if policy != "all":
        return tuple(policy.split(","))
    of_world = ("sjf", "srpt", "fsp", "psbs", "las") if config.world.value == "cores" else ()
    return ("fifo", "fair", *of_world, "sjf-cp", "weighted-fair:-1", "srpt-cap")


def _no_workload() -> Exception:
    from parcae.errors import ConfigError

    return ConfigError(
        "give a workload (tpch, synthetic, toy, or a *.parcae file), or a --job-set file that "
        "contains its jobs"
    )


def _contains_jobs(workload: str | None, path: Path) -> bool:
    """Whether a file of job sets contains the jobs themselves (these are for the world of cores).

    Otherwise it only names jobs, and a workload must describe them.

    Raises:
        ConfigError: a workload is given although the file contains the jobs, or it is missing.
        FormatError, OSError: the file cannot be read.
    """
    from parcae.errors import ConfigError, FormatError
    from parcae.workloads.job_set import read_job_sets
    from parcae.workloads.spark_world_set import holds_spark_world_sets

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


def _run_spark_world(
    path: Path,
    set_id: str,
    policy: str,
    config: SimulationConfig,
    cores: int | None,
    seed: int,
    record: bool,
) -> Iterator[tuple[dict[str, Any], Trace]]:
    from parcae.errors import ConfigError
    from parcae.evaluation.spark_world_runs import CONFORMANCE_ORDERS, run_sets
    from parcae.workloads.spark_world_set import read_spark_world_sets

    if config.world.value != "cores":
        raise ConfigError(
            f"{path}: these job sets run in the world of cores only; leave out --world executors "
            "and options that exist only there"
        )
    sets = read_spark_world_sets(path)
    if set_id != "all" and set_id not in sets:
        raise ConfigError(f"{path}: no job set {set_id!r}; it has {', '.join(sets)}")
    chosen = list(sets.values()) if set_id == "all" else [sets[set_id]]
    names = CONFORMANCE_ORDERS if policy == "all" else tuple(policy.split(","))
    for run in run_sets(chosen, names, config, seed, cores=cores, record=record):
        result: dict[str, Any] = {
            "set": run.job_set.name,
            "policy": run.policy,
            "variant": run.variant,
            "seed": seed,
        }
        result |= run_json(run.trace, run.job_set.sequence)
        result["completion_ms"] = run.job_set.by_position(run.trace.completion_ms)
        yield result, run.trace


def _run_drawn(
    workload: Workload,
    policies: Sequence[str],
    config: SimulationConfig,
    arrivals: str,
    jobs: int,
    seed: int,
    record: bool,
) -> Iterator[tuple[dict[str, Any], Trace]]:
    from parcae.evaluation.tuning import resolve_policies
    from parcae.simulation.run import simulate
    from parcae.workloads.arrivals import draw_sequence
    from parcae.workloads.random_streams import RandomStreams

    sequence = draw_sequence(workload, arrivals, jobs, config.total_executors, RandomStreams(seed))
    resolved = resolve_policies(workload, policies, config, arrivals, jobs)
    for name, policy in resolved.for_sequence(sequence, seed).items():
        trace = simulate(
            # The metrics of executor classes need the record, too.
            sequence,
            policy,
            config,
            seed,
            record=record or bool(config.executor_classes),
        )
        labels = {"policy": name, "variant": resolved.variants[name], "world": config.world.value}
        yield (
            {
                **labels,
                "durations": config.durations.value,
                "seed": seed,
                **run_json(trace, sequence),
            },
            trace,
        )


def _run_job_sets(
    workload: Workload,
    path: Path,
    set_id: str,
    policies: Sequence[str],
    config: SimulationConfig,
    given: dict[str, int | None],
    seed: int,
) -> Iterator[tuple[dict[str, Any], Trace]]:
    from parcae.errors import ConfigError
    from parcae.evaluation.tuning import resolve_policies
    from parcae.simulation.run import simulate
    from parcae.workloads.job_set import read_job_sets

    sets = read_job_sets(path)
    if set_id != "all" and set_id not in sets:
        raise ConfigError(f"{path}: no job set {set_id!r}; it has {', '.join(sets)}")
    for job_set in sets.values() if set_id == "all" else [sets[set_id]]:
        settings = {
            "num_executors": job_set.num_executors,
            "moving_delay_ms": job_set.moving_delay_ms,
            "warmup_delay_ms": job_set.warmup_delay_ms,
        }
        settings.update({key: value for key, value in given.items() if value is not None})
        set_config = config.model_copy(update=settings)
        sequence = job_set.sequence(workload)
        resolved = resolve_policies(workload, policies, set_config, "batch", sequence.num_jobs)
        for name, policy in resolved.for_sequence(sequence, seed).items():
            # Recorded for the hash of the decisions, which is compared with that of the reference.
            trace = simulate(sequence, policy, set_config, seed, record=True)
            result: dict[str, Any] = {
                "set": job_set.id,
                "policy": name,
                "variant": resolved.variants[name],
            }
            result |= {"durations": config.durations.value, **run_json(trace, sequence)}
            result["completion_ms"] = job_set.by_position(trace.completion_ms)
            yield result, trace


def run_json(trace: Trace, sequence: JobSequence) -> dict[str, Any]:
    """The results of one run as JSON, with times in ms.

    `makespan_ms` is the clock at the last event, as in the reference runs. With several executor
    classes, the results include the share of memory that running tasks left unused, and the
    utilization of each class.
    """
    from parcae.metrics.classes import class_utilization, memory_fragmentation
    from parcae.metrics.jobs import jct_ms

    jct = jct_ms(trace)
    result = {
        "average_jct_ms": float(jct.mean()),
        "makespan_ms": trace.clock_ms,
        "last_completion_ms": int(trace.completion_ms.max()),
        "completion_ms": trace.completion_ms.tolist(),
        "decisions": trace.num_decisions,
        "events": trace.num_events,
        "tasks": trace.num_tasks,
        "work_ms": int(trace.executed_ms.sum()),
        "executors": trace.num_executors,
    }
    fragmentation = memory_fragmentation(trace, sequence)
    if fragmentation is not None:
        result["memory_fragmentation"] = fragmentation
        result["class_utilization"] = class_utilization(trace).tolist()
    if trace.decisions is not None:
        result["decision_trace_sha256"] = trace.decision_trace_sha256()
    return result


def _print(result: dict[str, Any]) -> None:
    where = f"{result['set']}  " if "set" in result else ""
    unused = (
        f"   {result['memory_fragmentation']:.1%} of the memory unused"
        if "memory_fragmentation" in result
        else ""
    )
    typer.echo(
        f"{where}{result['policy']:<24} average JCT {result['average_jct_ms'] / 1000:10.2f} s   "
        f"last completion {result['last_completion_ms'] / 1000:10.2f} s   "
        f"{result['decisions']} decisions, {result['tasks']} tasks{unused}"
    )
