"""`parcae size`: how many cores a workload needs to meet a target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.cli.checks import Only, file_to_read, file_to_write, finite, picture_to_write, refusing
from parcae.cli.elastic import FOR_ELASTIC, ElasticOptions
from parcae.cli.groups import with_groups
from parcae.cli.options import (
    DeadlinesOption,
    DurationsOption,
    ErrorOption,
    FaultsOption,
    ProcessesOption,
    SeedStartOption,
    UnknownOption,
    check_deadlines,
    with_deadlines,
)
from parcae.cli.policy_names import names_in, policies_to_read
from parcae.cli.progress import counting, print_reading

if TYPE_CHECKING:
    from parcae.evaluation.sizing import ElasticSize, Question, Sizing
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.job import Workload


@dataclass(frozen=True)
class GoalOptions:
    """What the cluster should reach, and at what price."""

    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help='average, p95 or p99 below a time ("p95 < 60s", "average < 2min"), or a share of '
            'the deadlines ("deadlines 99%").',
        ),
    ] = None
    deadlines: DeadlinesOption = None
    price: Annotated[
        float,
        typer.Option("--price", help="Price of a core for an hour.", callback=finite),
    ] = 0.0
    search: Annotated[
        bool,
        typer.Option("--search", help="Also try sizes between the given ones, by bisection."),
    ] = False


@dataclass(frozen=True)
class ArrivalOptions:
    """The runs that are played at every size."""

    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals",
            help="recorded (resampled in blocks) | poisson:25s (mean gap) | bursts:25s | batch",
        ),
    ] = "recorded"
    growth: Annotated[
        float,
        typer.Option(
            "--growth",
            help="Divide the gaps between jobs by this: 1.5 is 50% more.",
            callback=finite,
        ),
    ] = 1.0
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            max=1_000_000,
            help="Number of jobs in a run. (default: as many as recorded, or 100 drawn ones)",
        ),
    ] = None
    block: Annotated[
        int | None,
        typer.Option(
            "--block",
            min=1,
            help="Recorded jobs in a block. (default: the square root of their number)",
        ),
    ] = None
    seeds: Annotated[
        int, typer.Option("--seeds", min=2, max=100_000, help="Number of runs at every size.")
    ] = 20
    seed_start: SeedStartOption = 0


@dataclass(frozen=True)
class PlayOptions:
    """What policies know, and how runs are played."""

    durations: DurationsOption = "sampled"
    unknown_share: UnknownOption = 0.0
    estimate_error: ErrorOption = "log"
    faults: FaultsOption = "none"
    processes: ProcessesOption = None

    def config(self) -> SimulationConfig:
        """The simulation config that the options describe."""
        from parcae.cli.options import SimulatedClusterOptions

        return SimulatedClusterOptions(
            world="cores",
            unknown_share=self.unknown_share,
            estimate_error=self.estimate_error,
            durations=self.durations,
            faults=self.faults,
        ).config()


@dataclass(frozen=True)
class SizeOutputOptions:
    """Files to write."""

    json_path: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write the result as JSON to this file.", callback=file_to_write
        ),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option("--csv", help="Write a row for each size and policy.", callback=file_to_write),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw times and costs by size (.png, .svg or .html).",
            callback=picture_to_write,
        ),
    ] = None

    def write(self, sizing: Sizing) -> None:
        """Print the table, the headline and the warnings, and write the files that are given."""
        from parcae.cli.tables import print_whole
        from parcae.evaluation import sizing as sizes

        print_whole(sizes.sizing_table(sizing))
        for text in sizes.warnings(sizing):
            typer.echo(f"warning: {text}")
        typer.echo(f"\n{sizes.headline(sizing)}")
        if self.json_path is not None:
            sizes.write_json(sizing, self.json_path)
            typer.echo(f"JSON: {self.json_path}")
        if self.csv is not None:
            sizes.write_csv(sizing, self.csv)
            typer.echo(f"CSV: {self.csv}")
        if self.plot is not None:
            sizes.write_plot(sizing, self.plot)
            typer.echo(f"picture: {self.plot}")


@refusing(
    Only(("search",), lambda given: given["target"] is not None, "with --target"),
    Only(("block",), lambda given: given["arrivals"] == "recorded", "to recorded arrivals"),
    Only(("growth",), lambda given: given["arrivals"] != "batch", "to jobs that arrive over time"),
    FOR_ELASTIC,
)
@with_groups
def size_command(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="LOGS|WORKLOAD",
            help="Spark event logs, or folders of them; or one workload: a name or a *.parcae "
            "file.",
            show_default=False,
            callback=file_to_read,
        ),
    ],
    *,
    cores: Annotated[
        str,
        typer.Option(
            "--cores",
            help="Sizes to try, ascending, as in 8,16,32,64; and elastic clusters, as in 64,8..64.",
        ),
    ],
    policies: Annotated[
        str,
        typer.Option(
            "--policies", help="Policies, separated by commas.", callback=policies_to_read
        ),
    ] = "fifo,fair,parcae",
    goal: GoalOptions,
    runs: ArrivalOptions,
    play: PlayOptions,
    elastic: ElasticOptions,
    output: SizeOutputOptions,
) -> None:
    """Find how many cores a workload needs: times and costs by size and policy, and a target.

    Example: parcae size tpch --cores 8,16,32 --arrivals poisson:25s --target "p95 < 60s"
    """
    from parcae.evaluation.sizing import Question, parse_target, picture_format

    # Checked before logs are read and runs are played, which may take minutes.
    config = play.config()
    sizes, ranges = _sizes(cores, elastic, config)
    wanted = None if goal.target is None else parse_target(goal.target)
    if output.plot is not None:
        picture_format(output.plot)
    check_deadlines(goal.deadlines)
    workload = _read(source, recorded=runs.arrivals == "recorded")
    question = Question(
        with_deadlines(workload, goal.deadlines),
        sizes,
        tuple(names_in(policies)),
        wanted,
        goal.price,
        arrivals=runs.arrivals,
        num_jobs=runs.jobs,
        block=runs.block,
        growth=runs.growth,
        num_seeds=runs.seeds,
        seed_start=runs.seed_start,
        search=goal.search,
        config=config,
        processes=play.processes,
        elastic=ranges,
    )
    output.write(_sized(question))


def _sizes(
    text: str, options: ElasticOptions, config: SimulationConfig
) -> tuple[tuple[int, ...], tuple[ElasticSize, ...]]:
    """The fixed sizes and the elastic clusters of a text such as "8,64,8..64"."""
    from parcae.base.errors import ConfigError
    from parcae.cli.elastic import core_range
    from parcae.evaluation.sizing import ElasticSize, parse_cores

    words = text.split(",")
    ranges = [found for word in words if (found := core_range(word)) is not None]
    fixed = [word for word in words if core_range(word) is None]
    if not fixed:
        raise ConfigError(
            f"--cores {text}: give a fixed size to compare with, as in {int(ranges[-1])},{text}"
        )
    elastic = []
    for cores in ranges:
        settings = options.applied(config, cores).elastic
        assert settings is not None
        elastic.append(ElasticSize(int(cores), settings))
    return parse_cores(",".join(fixed)), tuple(elastic)


def _sized(question: Question) -> Sizing:
    """Play the runs with a progress bar."""
    from parcae.evaluation.sizing import size_cluster

    question.check()  # before the bar, which would put an empty line before an error
    with counting("simulating", has_counts=True) as progress:
        return size_cluster(question, progress)


def _read(source: list[str], recorded: bool) -> Workload:
    """The workload, or that of event logs: every run with its arrival, or the recurring jobs."""
    from parcae.workloads.archive import BUILT_IN, load_workload
    from parcae.workloads.spark_log.event_log import read_spark_event_logs

    first = source[0]
    is_name = first in BUILT_IN or first.startswith("mixed:") or not Path(first).exists()
    if len(source) == 1 and (is_name or first.endswith(".parcae")):
        return load_workload(first)
    workload, report = read_spark_event_logs([Path(one) for one in source], recorded=recorded)
    print_reading(report)
    return workload
