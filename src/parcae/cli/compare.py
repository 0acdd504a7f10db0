"""`parcae compare`: compares policies on paired seeds, with confidence intervals and a report."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

from parcae.base.errors import ConfigError
from parcae.base.options import option
from parcae.cli.checks import names_in
from parcae.cli.commands import Only, command
from parcae.cli.options import (
    DEADLINES,
    DRAWN_JOBS,
    FOR_ELASTIC,
    JSON_FILE,
    MOST,
    PLAYED_ARRIVALS,
    PROCESSES,
    SEED_START,
    WORKLOAD,
    Options,
    SimulatedClusterOptions,
    number_of_jobs,
    usual_arrivals,
    write_each,
)
from parcae.cli.progress import counting, naming_kept
from parcae.cli.tables import print_fitted
from parcae.evaluation.applications import ApplicationsWorld, read_applications
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.compare import compare as compare_policies
from parcae.evaluation.comparison import Comparison, write_comparison
from parcae.evaluation.per_job import FORMATS, RECURRING_FORMATS, check_per_job, write_table
from parcae.evaluation.report import write_report
from parcae.simulation.allocations import WORDS, parse_allocations
from parcae.simulation.config import WorldName
from parcae.simulation.elastic import Elastic

#: Policies that are compared by default, by world. The first is the baseline.
DEFAULT_POLICIES = {
    "cores": "fair,fifo,srpt,psbs,tuned",
    "executors": "fair,fifo,sjf-cp,naive-weighted-fair,weighted-fair:tuned,srpt-cap",
}


class RunOptions(Options):
    """The runs on which policies are compared."""

    jobs: int | None = DRAWN_JOBS
    arrivals: str | None = PLAYED_ARRIVALS
    deadlines: Path | None = DEADLINES
    seeds: int = option(20, "Number of seeds; all policies run on each of them.", ge=2, le=MOST)
    seed_start: int = SEED_START
    processes: int | None = PROCESSES
    keep: Path | None = option(
        None,
        "Keep every finished seed in this file. The same command goes on from there after a stop, "
        "also with more seeds.",
        check="write",
    )


class OutputOptions(Options):
    """Files to write."""

    json_path: Path | None = JSON_FILE
    report: Path | None = option(
        None, "Write an HTML report (one self-contained file).", check="picture"
    )

    def write(self, comparison: Comparison) -> None:
        """Print the tables of a comparison, and write its JSON if it is wanted."""
        for table in comparison.tables():
            print_fitted(table)
        write_each(("JSON", self.json_path, partial(write_comparison, comparison)))

    def write_report(self, comparison: Comparison) -> None:
        """Write the report if it is wanted. It is the last file, because it is the most work."""
        command = shlex.join(["parcae", *sys.argv[1:]])
        write_each(("report", self.report, partial(write_report, comparison, command=command)))


class JobsOutputOptions(OutputOptions):
    """Files to write, among them the results of every job."""

    per_job: Path | None = option(
        None,
        "Write the results of every job under every policy to this file (.csv or .parquet).",
        check="write",
    )
    recurring: Path | None = option(
        None,
        "Write the times of every recurring job under every policy, and who gains and loses, to "
        "this file (.csv, .json or .parquet).",
        check="write",
    )

    def check_tables(self) -> None:
        """Check the names of the tables of jobs, before the runs, which take time."""
        for path, formats in ((self.per_job, FORMATS), (self.recurring, RECURRING_FORMATS)):
            if path is not None:
                check_per_job(path, formats)

    def write_jobs(self, comparison: Comparison) -> None:
        """Write the tables of jobs."""
        write_each(
            ("jobs", self.per_job, lambda path: write_table(comparison.jobs_frame(), path)),
            (
                "recurring jobs",
                self.recurring,
                lambda path: write_table(comparison.recurring_frame(), path),
            ),
        )


class ApplicationsOptions(Options):
    """Several applications instead of one."""

    applications: str | None = option(
        None,
        "Several Spark applications on the cluster: auto (one for each user), or a file of pools, "
        "each of which is one. Cores then come as executors.",
        metavar="auto|FILE",
    )
    allocation: str = option(
        "dynamic:fair,static,shared",
        f"With --applications: who has executors, separated by commas: {', '.join(WORDS)}.",
    )
    start_sigma: float = option(
        0.5,
        "With --applications: sigma of the log-normal time that an executor takes to start.",
        ge=0,
        le=3,
    )

    def world(self, world: ClusterWorld, elastic: Elastic) -> ClusterWorld:
        """The world of these applications; the given one without any."""
        if self.applications is None:
            return world
        allocations = parse_allocations(self.allocation)
        if world.config.world is not WorldName.CORES:
            raise ConfigError("--applications exists in the world of cores only: leave out --world")
        own = world.config.elastic or elastic
        config = world.config.model_copy(update={"elastic": None})
        cluster = read_applications(
            self.applications, world.workload, config, own, self.start_sigma
        )
        return ApplicationsWorld(
            world.workload,
            config,
            world.arrivals,
            world.num_jobs,
            cluster=cluster,
            allocations=allocations,
        )


_WITH_APPLICATIONS = Only(
    ("allocation", "start_sigma"),
    lambda given: given["applications"] is not None,
    "with --applications",
)


@command(FOR_ELASTIC, _WITH_APPLICATIONS)
def compare(
    cluster: SimulatedClusterOptions,
    elastic: Elastic,
    runs: RunOptions,
    several: ApplicationsOptions,
    output: JobsOutputOptions,
    workload: str = WORKLOAD,
    policies: str | None = option(
        None,
        "Policies, separated by commas. Ratios are relative to the first. (default: Spark's orders "
        "and the best heuristics of the world)",
        check="policies",
    ),
) -> None:
    """Compare policies on the same seeds, with 95% confidence intervals.

    Example: parcae compare tpch --policies fair,fifo,srpt --cores 50 --seeds 20 --report r.html
    """
    output.check_tables()
    config = cluster.config(elastic=elastic)
    loaded = cluster.load(workload, runs.deadlines)
    arrivals = runs.arrivals or usual_arrivals(loaded)
    num_jobs = number_of_jobs(runs.jobs, arrivals, loaded)
    default = DEFAULT_POLICIES[config.world.value] if several.applications is None else "fair"
    names = default if policies is None else policies
    kept = f"the finished seeds are in {runs.keep}; the same command goes on from there"
    with naming_kept(runs.keep, kept), counting("simulating", has_counts=True) as progress:
        comparison = compare_policies(
            several.world(ClusterWorld(loaded, config, arrivals, num_jobs), elastic),
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
