"""`parcae simulate`: one run, or the job sets of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.options import (
    SOURCE_HELP,
    ArrivalsOption,
    ClassesOption,
    CoresOption,
    DurationsOption,
    ErrorOption,
    ExecutorsOption,
    JobsOption,
    ModelOption,
    MovingOption,
    ReferenceOption,
    UnknownOption,
    WarmupOption,
    WorldOption,
    load,
    one_size,
    simulation_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parcae.cluster.trace import Trace
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.arrivals import JobSequence
    from parcae.workloads.job import Workload

#: Left out where a job-set file brings its own jobs.
OptionalWorkload = Annotated[
    str | None, typer.Argument(metavar="[NAME|FILE]", help=SOURCE_HELP, show_default=False)
]
#: What `--policy all` means with a job-set file: the policies of the released simulator's conformance runs.
CONFORMANCE_POLICIES = (
    "spark_fifo",
    "spark_static_10",
    "dynamic_partition",
    "wfair_-1",
    "wfair_1",
    "sjf_cp",
)


def simulate_command(
    workload: OptionalWorkload = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", help="Policies, separated by commas (see `parcae policies`), or all."
        ),
    ] = "fair",
    world: WorldOption = None,
    executors: ExecutorsOption = None,
    cores: CoresOption = None,
    executor_classes: ClassesOption = None,
    jobs: JobsOption = 20,
    arrivals: ArrivalsOption = "batch",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the arrivals and of the tasks' luck.")
    ] = 0,
    job_set: Annotated[
        Path | None, typer.Option("--job-set", help="Run the job sets of this JSON file instead.")
    ] = None,
    set_id: Annotated[str, typer.Option("--set", help="Which job set: its id, or all.")] = "all",
    durations: DurationsOption = "sampled",
    reference_semantics: ReferenceOption = False,
    moving_delay_ms: MovingOption = None,
    warmup_delay_ms: WarmupOption = None,
    parallelism_model: ModelOption = "none",
    unknown_share: UnknownOption = 0.0,
    estimate_error: ErrorOption = "log",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    gantt: Annotated[
        Path | None, typer.Option("--gantt", help="Write a Gantt chart (HTML) of the (first) run.")
    ] = None,
) -> None:
    """Simulate a workload under one or more policies.

    Example: parcae simulate tpch --policy fair --cores 50 --jobs 20 --arrivals batch --seed 1

    Example: parcae simulate tpch.parcae --job-set sets.json --set all --policy all --durations first --reference-semantics --json

    Example: parcae simulate --job-set spark-world.json --policy fifo,fair,fair-pools,sjf,srpt,orders --json
    """
    is_own_world = job_set is not None and _brings_its_jobs(workload, job_set)
    config = simulation_config(
        world=world,
        executors=executors,
        cores=cores,
        durations=durations,
        reference_semantics=reference_semantics,
        moving_delay_ms=moving_delay_ms,
        warmup_delay_ms=warmup_delay_ms,
        parallelism_model=parallelism_model,
        executor_classes=executor_classes,
        unknown_share=unknown_share,
        estimate_error=estimate_error,
        executors_only={
            "--job-set with sets of named jobs": job_set is not None and not is_own_world
        },
    )
    record = gantt is not None
    if job_set is not None and is_own_world:
        results = _run_spark_world(
            job_set, set_id, policy, config, one_size(executors, cores), seed, record
        )
    elif workload is None:
        raise _no_workload()
    elif job_set is not None:
        names = CONFORMANCE_POLICIES if policy == "all" else tuple(policy.split(","))
        given = {
            "num_executors": one_size(executors, cores),
            "moving_delay_ms": moving_delay_ms,
            "warmup_delay_ms": warmup_delay_ms,
        }
        results = _run_job_sets(
            load(workload, parallelism_model), job_set, set_id, names, config, given, seed
        )
    else:
        loaded = load(workload, parallelism_model)
        results = _run_drawn(loaded, _named(policy, config), config, arrivals, jobs, seed, record)
    for row, (result, trace) in enumerate(results):
        if gantt is not None and row == 0:
            _write_gantt(trace, gantt)
        if as_json:
            typer.echo(json.dumps(result))
        else:
            _print(result)
    if gantt is not None:
        typer.echo(f"Gantt chart: {gantt}", err=True)


def _named(policy: str, config: SimulationConfig) -> tuple[str, ...]:
    if policy != "all":
        return tuple(policy.split(","))
    own = ("sjf", "srpt", "fsp", "psbs", "las") if config.world.value == "cores" else ()
    return ("fifo", "fair", *own, "sjf-cp", "weighted-fair:-1", "srpt-cap")


def _no_workload() -> Exception:
    from parcae.errors import ConfigError

    return ConfigError(
        "name a workload (tpch, synthetic, toy, or a *.parcae file), or give --job-set a file that brings its jobs"
    )


def _brings_its_jobs(workload: str | None, path: Path) -> bool:
    """Whether the sets of a file are of Spark's own world; False for sets of jobs that a workload describes.

    Raises:
        ConfigError: a workload beside sets that bring their jobs, or none beside sets that need one.
        FormatError, OSError: a file that cannot be read.
    """
    from parcae.errors import ConfigError, FormatError
    from parcae.workloads.job_set import read_job_sets
    from parcae.workloads.spark_world_set import holds_spark_world_sets

    if holds_spark_world_sets(path):
        if workload is not None:
            raise ConfigError(f"{path} brings its own jobs: leave out {workload}")
        return True
    if workload is not None:
        return False
    try:
        read_job_sets(path)
    except FormatError:
        return (
            True  # neither kind: reading it as the kind that needs no workload says what is wrong
        )
    raise ConfigError(
        f"{path} names the jobs of a workload: name that, too (parcae simulate WORKLOAD --job-set {path})"
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
            f"{path}: sets of Spark's own world run in the world of cores; leave out what asks for executors"
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
            sequence, policy, config, seed, record=record or bool(config.executor_classes)
        )
        told = {"policy": name, "variant": resolved.variants[name], "world": config.world.value}
        yield (
            {
                **told,
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
        own = {
            "num_executors": job_set.num_executors,
            "moving_delay_ms": job_set.moving_delay_ms,
            "warmup_delay_ms": job_set.warmup_delay_ms,
        }
        own.update({key: value for key, value in given.items() if value is not None})
        set_config = config.model_copy(update=own)
        sequence = job_set.sequence(workload)
        resolved = resolve_policies(workload, policies, set_config, "batch", sequence.num_jobs)
        for name, policy in resolved.for_sequence(sequence, seed).items():
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
    """What one run came to, as JSON; times in ms. `makespan_ms` is the clock at the last event, as in the reference runs.

    Where executors have several sizes: the share of their memory that running tasks left unused, and how busy each class was.
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


def _write_gantt(trace: Trace, path: Path) -> None:
    from parcae.evaluation.gantt import write_gantt

    write_gantt(trace, path)
