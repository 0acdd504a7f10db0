"""`parcae simulate`: simulates one job sequence, or the job sets of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import typer

from parcae.base.errors import ConfigError, FormatError
from parcae.base.options import argument, option
from parcae.cli.checks import names_in
from parcae.cli.commands import Only, Values, command
from parcae.cli.options import (
    DEADLINES,
    DRAWN_JOBS,
    FOR_ELASTIC,
    JOB_SET,
    PLAYED_ARRIVALS,
    POLICY,
    SEED,
    SET,
    SOURCE_HELP,
    Options,
    SimulatedClusterOptions,
    number_of_jobs,
    usual_arrivals,
)
from parcae.cluster.state import World
from parcae.cluster.trace import Trace
from parcae.evaluation.gantt import Chart, cluster_chart, write_gantt
from parcae.evaluation.job_sets import CONFORMANCE_ORDERS, resolve_set, set_config
from parcae.evaluation.policies import ResolvedPolicies, resolve_policies
from parcae.evaluation.sections import delay_warning
from parcae.simulation.config import SimulationConfig
from parcae.simulation.elastic import Elastic
from parcae.simulation.metrics import class_utilization, missed_and_tardiness, summarize
from parcae.simulation.simulator import simulate as simulate_one
from parcae.workloads.job_sets import holds_spark_world_sets, read_job_sets, read_spark_world_sets
from parcae.workloads.workload import JobSequence

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


class PlayedRun(NamedTuple):
    """A run to show."""

    sequence: int
    result: dict[str, Any]
    run: Any


class ShowOptions(Options):
    """How runs are shown."""

    as_json: bool = option(False, "Print each run as a line of JSON.", "--json")
    gantt: Path | None = option(
        None,
        "Draw the runs of the first job sequence (*.html, *.png, *.svg or *.pdf).",
        check="chart",
    )

    def show(
        self,
        runs: Iterable[PlayedRun],
        print_runs: Callable[[Iterator[PlayedRun]], None],
        chart: Callable[[PlayedRun], Chart],
        title: str = "",
    ) -> None:
        """Print runs as they come, and draw those of the first sequence."""
        charts: list[Chart] = []

        def noted(group: Iterator[PlayedRun]) -> Iterator[PlayedRun]:
            for run in group:
                if self.gantt is not None and run.sequence == 0:
                    charts.append(chart(run))
                yield run

        for _, group in groupby(runs, lambda run: run.sequence):
            if self.as_json:
                for run in noted(group):
                    typer.echo(json.dumps(run.result))
            else:
                print_runs(noted(group))
        if self.gantt is not None:
            write_gantt(charts, self.gantt, title)
            typer.echo(f"Gantt chart: {self.gantt}", err=True)


def policy_names(policy: str, every: Sequence[str]) -> tuple[str, ...]:
    """The policies that `--policy` names; `every` are those of `--policy all`."""
    return tuple(every if policy == "all" else names_in(policy))


class DrawOptions(Options):
    """How the jobs of the run are drawn, or the file that says which jobs arrive when."""

    jobs: int | None = DRAWN_JOBS
    arrivals: str | None = PLAYED_ARRIVALS
    deadlines: Path | None = DEADLINES
    seed: int = SEED
    job_set: Path | None = JOB_SET
    set_id: str = SET

    def chosen(self, found: dict[str, Any]) -> list[Any]:
        """The job sets of a file that `--set` names."""
        if self.set_id == "all":
            return list(found.values())
        if self.set_id not in found:
            raise ConfigError(
                f"{self.job_set}: no job set {self.set_id!r}; it has {', '.join(found)}"
            )
        return [found[self.set_id]]


def _draws(given: Values) -> bool:
    return given["job_set"] is None


@command(
    Only(("set_id",), lambda given: not _draws(given), "with --job-set"),
    Only(
        ("jobs", "arrivals", "deadlines"),
        _draws,
        "to jobs that are drawn (--job-set says which jobs arrive when)",
    ),
    Only(
        ("durations",),
        lambda given: _draws(given) or not _contains_jobs(given["workload"], given["job_set"]),
        "to durations of a workload (this --job-set file lists that of every task)",
    ),
    FOR_ELASTIC,
)
def simulate(
    cluster: SimulatedClusterOptions,
    draw: DrawOptions,
    elastic: Elastic,
    shown: ShowOptions,
    # The workload is left out if the file of job sets contains the jobs itself.
    workload: str | None = argument(SOURCE_HELP, "[NAME|FILE]", "read", default=None),
    policy: str = POLICY,
) -> None:
    """Simulate a workload under one or more policies.

    Example: parcae simulate tpch --policy fair --cores 50 --jobs 20 --arrivals batch --seed 1

    Example: parcae simulate tpch --cores 0..64 --arrivals poisson:25s --idle-timeout 30s

    Example: parcae simulate tpch.parcae --job-set sets.json --policy all --reference-semantics

    Example: parcae simulate --job-set spark-world.json --policy fifo,fair,srpt,orders --json
    """
    has_own_jobs = draw.job_set is not None and _contains_jobs(workload, draw.job_set)
    # Job sets that only name jobs are those of the reference runs, in the world of executors.
    implying = {"--job-set with sets of named jobs": draw.job_set is not None and not has_own_jobs}
    config = cluster.config(implying, elastic)
    # A Gantt chart needs the record of all tasks; recording takes time and memory.
    record = shown.gantt is not None
    if has_own_jobs:
        runs = _run_spark_world(draw, policy, config, cluster.size, record)
    elif workload is None:
        raise ConfigError(
            "give a workload (tpch, synthetic, toy, or a *.parcae file), or a --job-set file that "
            "contains its jobs"
        )
    elif draw.job_set is not None:
        runs = _run_job_sets(workload, draw, policy, cluster)
    else:
        runs = _run_drawn(workload, policy, config, cluster, draw, record)
    shown.show(runs, _print_runs, lambda run: cluster_chart(run.run, run.result["policy"]))


def _contains_jobs(workload: str | None, path: Path) -> bool:
    """Whether a file of job sets contains the jobs themselves (these are for the world of cores).

    Otherwise it only names jobs, and a workload must describe them.
    """
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
    draw: DrawOptions, policy: str, config: SimulationConfig, cores: int | None, record: bool
) -> Iterator[PlayedRun]:
    """Run job sets that contain their jobs; `record` keeps every task in the traces."""
    assert draw.job_set is not None
    if config.world.value != "cores":
        raise ConfigError(
            f"{draw.job_set}: these job sets run in the world of cores only; leave out --world "
            "executors and options that exist only there"
        )
    names = policy_names(policy, CONFORMANCE_ORDERS)
    for number, job_set in enumerate(draw.chosen(read_spark_world_sets(draw.job_set))):
        resolved = resolve_set(names, job_set, set_config(job_set, config, cores))
        for labels, trace in _played(resolved, job_set.sequence, draw.seed, record):
            result = {
                "set": job_set.name,
                **labels,
                "seed": draw.seed,
                **run_json(trace, job_set.sequence),
                "completion_ms": job_set.by_position(trace.completion_ms),
            }
            yield PlayedRun(number, result, trace)


def _run_drawn(
    source: str,
    policy: str,
    config: SimulationConfig,
    cluster: SimulatedClusterOptions,
    draw: DrawOptions,
    record: bool,
) -> Iterator[PlayedRun]:
    """Run jobs that are drawn from a workload; `record` keeps every task in the traces."""
    workload = cluster.load(source, draw.deadlines)
    arrivals = draw.arrivals or usual_arrivals(workload)
    num_jobs = number_of_jobs(draw.jobs, arrivals, workload)
    sequence = workload.draw(num_jobs, arrivals, config, seed=draw.seed)
    # All policies of the world that need no tuning.
    of_world = ("sjf", "srpt", "fsp", "psbs", "las") if config.world.value == "cores" else ()
    every = ("fifo", "fair", *of_world, "sjf-cp", "weighted-fair:-1", "srpt-cap")
    names = policy_names(policy, every)
    resolved = resolve_policies(workload, names, config, arrivals, num_jobs)
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
            "arrivals": arrivals,
            **run_json(trace, sequence),
        }
        yield PlayedRun(0, result, trace)


def _run_job_sets(
    source: str, draw: DrawOptions, policy: str, cluster: SimulatedClusterOptions
) -> Iterator[PlayedRun]:
    """Run job sets that name the jobs of a workload."""
    assert draw.job_set is not None
    workload = cluster.load(source)
    names = policy_names(policy, CONFORMANCE_POLICIES)
    for number, job_set in enumerate(draw.chosen(read_job_sets(draw.job_set))):
        # A job set gives what the options of the cluster leave out.
        delays = ("moving_delay_ms", "warmup_delay_ms")
        left_out = {key: getattr(job_set, key) for key in delays if getattr(cluster, key) is None}
        # A list of classes says how many executors there are; `decima` takes any number.
        if cluster.size is None and cluster.executor_classes in (None, "decima"):
            left_out["executors"] = job_set.num_executors
        config = cluster.model_copy(update=left_out).config()
        sequence = job_set.sequence(config.jobs_of(workload))
        arrivals = sequence.nearest_process
        resolved = resolve_policies(workload, names, config, arrivals, sequence.num_jobs)
        # Recorded for the hash of the decisions, which is compared with that of the reference.
        for labels, trace in _played(resolved, sequence, draw.seed, record=True):
            result = {
                "set": job_set.id,
                **labels,
                "durations": config.durations.value,
                **run_json(trace, sequence),
                "completion_ms": job_set.by_position(trace.completion_ms),
            }
            yield PlayedRun(number, result, trace)


def _played(
    resolved: ResolvedPolicies, sequence: JobSequence, seed: int, record: bool
) -> Iterator[tuple[dict[str, str], Trace]]:
    """Run a job sequence under each policy."""
    for name, policy in resolved.for_sequence(sequence, seed).items():
        trace = simulate_one(sequence, policy, resolved.config, seed, record=record)
        yield {"policy": name, "variant": resolved.variants[name]}, trace


def run_json(trace: Trace, sequence: JobSequence) -> dict[str, Any]:
    """The results of one run as JSON, with times in ms: its metrics, those against deadlines, and
    with several executor classes the utilization of each.

    `makespan_ms` is the clock at the last event in Decima's world, as in the reference runs. In the
    world of cores a policy may wake up after the last completion: it is the makespan proper.
    """
    summary = asdict(summarize(trace, sequence))
    result = {
        **{name: value for name, value in summary.items() if value is not None},
        "completion_ms": trace.completion_ms.tolist(),
        "work_ms": int(trace.executed_ms.sum()),
        "executors": trace.num_executors,
        **missed_and_tardiness(trace, sequence),
    }
    if trace.world is not World.CORES:
        result["makespan_ms"] = trace.clock_ms
    if "fragmentation" in result:
        result["class_utilization"] = class_utilization(trace).tolist()
    if trace.decisions is not None:
        result["decision_trace_sha256"] = trace.decision_trace_sha256()
    return result


#: What a line says of some runs only, by the figure that these have.
_MORE_FIGURES = {
    "arrivals": ", arrivals {arrivals}",
    "fragmentation": "   {fragmentation:.1%} of the memory unused",
    "deadlines": "   {missed_deadline_share:.1%} of {deadlines} deadlines missed",
    "failed_attempts": ", {failed_attempts} attempts failed, {lost_executors} executors lost with "
    "{interrupted_attempts} attempts, {speculative_copies} copies, {wasted_share:.1%} of the core "
    "time wasted",
    "cores_held": ", {cores_held:.1f} cores held, {utilization:.0%} busy",
}


def _print_runs(runs: Iterator[PlayedRun]) -> None:
    for run in runs:
        result = run.result
        where = f"{result['set']}  " if "set" in result else ""
        more = (text.format(**result) for key, text in _MORE_FIGURES.items() if key in result)
        typer.echo(
            f"{where}{result['policy']:<24} "
            f"average JCT {result['average_jct_ms'] / 1000:10.2f} s   "
            f"last completion {result['last_completion_ms'] / 1000:10.2f} s   "
            f"{result['decisions']} decisions, {result['tasks']} tasks{''.join(more)}"
        )
