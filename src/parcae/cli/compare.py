"""`parcae compare`: compares policies on paired seeds, with confidence intervals and a report."""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.cli.checks import file_to_write, refusing, report_to_write
from parcae.cli.elastic import FOR_ELASTIC, ElasticOptions
from parcae.cli.groups import with_groups
from parcae.cli.options import (
    MOST,
    ArrivalsOption,
    DeadlinesOption,
    DrawnJobsOption,
    ProcessesOption,
    SeedStartOption,
    SimulatedClusterOptions,
    WorkloadArgument,
    number_of_jobs,
    with_deadlines,
)
from parcae.cli.policy_names import names_in, policies_to_read
from parcae.cli.progress import counting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parcae.evaluation.comparison import Comparison

#: Policies that are compared by default, by world. The first is the baseline.
DEFAULT_POLICIES = {
    "cores": "fair,fifo,srpt,psbs,tuned",
    "executors": "fair,fifo,sjf-cp,naive-weighted-fair,weighted-fair:tuned,srpt-cap",
}


@dataclass(frozen=True)
class RunOptions:
    """The runs on which policies are compared."""

    jobs: DrawnJobsOption = None
    arrivals: ArrivalsOption = "batch"
    deadlines: DeadlinesOption = None
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", min=2, max=MOST, help="Number of seeds; all policies run on each of them."
        ),
    ] = 20
    seed_start: SeedStartOption = 0
    processes: ProcessesOption = None
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            help="Keep every finished seed in this file. The same command goes on from there after "
            "a stop, also with more seeds.",
            callback=file_to_write,
        ),
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """Files to write."""

    json_path: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write the result as JSON to this file.", callback=file_to_write
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="Write an HTML report (one self-contained file).",
            callback=report_to_write,
        ),
    ] = None

    def write(self, comparison: Comparison) -> None:
        """Print the tables of a comparison, and write its JSON if it is wanted."""
        from parcae.cli.tables import print_whole
        from parcae.evaluation.comparison import write_comparison

        for table in comparison.tables():
            print_whole(table)
        if self.json_path is not None:
            write_comparison(comparison, self.json_path)
            typer.echo(f"JSON: {self.json_path}")

    def write_report(self, comparison: Comparison) -> None:
        """Write the report if it is wanted. It is the last file, because it is the most work."""
        if self.report is not None:
            # Imported here: a comparison without a report needs no plotting library.
            from parcae.evaluation.report import write_report

            write_report(comparison, self.report, command=shlex.join(["parcae", *sys.argv[1:]]))
            typer.echo(f"report: {self.report}")


@dataclass(frozen=True)
class JobsOutputOptions(OutputOptions):
    """Files to write, among them the results of every job."""

    per_job: Annotated[
        Path | None,
        typer.Option(
            "--per-job",
            help="Write the results of every job under every policy to this file (.csv or "
            ".parquet).",
            callback=file_to_write,
        ),
    ] = None
    recurring: Annotated[
        Path | None,
        typer.Option(
            "--recurring",
            help="Write the times of every recurring job under every policy, and who gains and "
            "loses, to this file (.csv, .json or .parquet).",
            callback=file_to_write,
        ),
    ] = None

    def check_tables(self) -> None:
        """Check the names of the tables of jobs, before the runs, which take time."""
        from parcae.evaluation.per_job import FORMATS, RECURRING_FORMATS, check_per_job

        for path, formats in ((self.per_job, FORMATS), (self.recurring, RECURRING_FORMATS)):
            if path is not None:
                check_per_job(path, formats)

    def write_jobs(self, comparison: Comparison) -> None:
        """Write the tables of jobs."""
        from parcae.evaluation.per_job import write_per_job, write_recurring

        if self.per_job is not None:
            write_per_job(comparison, self.per_job)
            typer.echo(f"jobs: {self.per_job}")
        if self.recurring is not None:
            write_recurring(comparison, self.recurring)
            typer.echo(f"recurring jobs: {self.recurring}")


@contextlib.contextmanager
def _naming_kept(path: Path | None) -> Iterator[None]:
    """Say where the finished seeds are if the user interrupts the runs."""
    try:
        yield
    except KeyboardInterrupt:
        if path is not None and path.exists():
            kept = f"the finished seeds are in {path}; the same command goes on from there"
            typer.echo(kept, err=True)
        raise


@refusing(FOR_ELASTIC)
@with_groups
def compare_command(
    workload: WorkloadArgument,
    *,
    cluster: SimulatedClusterOptions,
    elastic: ElasticOptions,
    runs: RunOptions,
    output: JobsOutputOptions,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Policies, separated by commas. Ratios are relative to the first. "
            "(default: Spark's orders and the best heuristics of the world)",
            callback=policies_to_read,
        ),
    ] = None,
) -> None:
    """Compare policies on the same seeds, with 95% confidence intervals.

    Example: parcae compare tpch --policies fair,fifo,srpt --cores 50 --seeds 20 --report r.html
    """
    from parcae.evaluation.compare import ClusterWorld, compare

    output.check_tables()
    config = elastic.applied(cluster.config(), cluster.cores)
    loaded = with_deadlines(cluster.load(workload), runs.deadlines)
    num_jobs = number_of_jobs(runs.jobs, runs.arrivals, loaded)
    names = DEFAULT_POLICIES[config.world.value] if policies is None else policies
    with _naming_kept(runs.keep), counting("simulating", has_counts=True) as progress:
        comparison = compare(
            ClusterWorld(loaded, config, runs.arrivals, num_jobs),
            names_in(names),
            num_seeds=runs.seeds,
            seed_start=runs.seed_start,
            processes=runs.processes,
            keep=runs.keep,
            progress=progress,
        )
    output.write(comparison)
    output.write_jobs(comparison)
    output.write_report(comparison)
