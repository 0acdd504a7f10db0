"""`parcae size`: how many cores a workload needs to meet a target."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from parcae.base.errors import ConfigError
from parcae.base.files import write_text
from parcae.base.options import REQUIRED, argument, option, same
from parcae.base.urls import address_of
from parcae.cli.checks import names_in
from parcae.cli.commands import Only, command
from parcae.cli.options import (
    DEADLINES,
    FOR_ELASTIC,
    JSON_FILE,
    MOST,
    PROCESSES,
    SEED_START,
    EventOptions,
    Options,
    SimulatedClusterOptions,
    core_range,
    with_deadlines,
    with_range,
    write_each,
)
from parcae.cli.progress import counting, print_reading
from parcae.cli.tables import print_fitted
from parcae.evaluation import sizing as sizes
from parcae.evaluation.sizing import (
    ElasticSize,
    Question,
    Sizing,
    parse_cores,
    parse_target,
    size_cluster,
)
from parcae.simulation.config import SimulationConfig
from parcae.simulation.elastic import Elastic
from parcae.workloads.archive import BUILT_IN, load_workload
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.tables import read_deadlines
from parcae.workloads.workload import Workload


class GoalOptions(Options):
    """What the cluster should reach, at what price, and which sizes and policies are tried."""

    cores: str = option(
        REQUIRED,
        "Sizes to try, ascending, as in 8,16,32,64; and elastic clusters, as in 64,8..64.",
    )
    policies: str = option("fifo,fair,parcae", "Policies, separated by commas.", check="policies")
    target: str | None = option(
        None,
        'average, p95 or p99 below a time ("p95 < 60s", "average < 2min"), or a share of the '
        'deadlines ("deadlines 99%").',
    )
    deadlines: Path | None = DEADLINES
    price: float = option(0.0, "Price of a core for an hour.")
    search: bool = option(False, "Also try sizes between the given ones, by bisection.", "--search")


class ArrivalOptions(Options):
    """The runs that are played at every size."""

    arrivals: str | None = option(
        None,
        "recorded (resampled in blocks) | sessions, sessions:4 (each job a pause after the last "
        "one's end) | poisson:25s (mean gap) | bursts:25s | batch (default: sessions where the log "
        "is one of sessions, else recorded)",
    )
    growth: float = option(
        1.0, "Divide the gaps between jobs by this: 1.5 is 50% more. Of sessions there are more."
    )
    jobs: int | None = option(
        None,
        "Number of jobs in a run. (default: as many as recorded, or 100 drawn ones)",
        ge=1,
        le=MOST,
    )
    block: int | None = option(
        None, "Recorded jobs in a block. (default: the square root of their number)", ge=1
    )
    seeds: int = option(20, "Number of runs at every size.", ge=2, le=100_000)
    seed_start: int = SEED_START
    processes: int | None = PROCESSES


class KnowledgeOptions(Options):
    """What policies know, and what happens to tasks."""

    durations: str = same(SimulationConfig, "durations")
    unknown_share: float = same(SimulationConfig, "unknown_share")
    estimate_error: str = same(SimulationConfig, "estimate_error", default="log")
    faults: str = same(SimulationConfig, "faults", default="none")


class SizeOutputOptions(Options):
    """Files to write."""

    json_path: Path | None = JSON_FILE
    csv: Path | None = option(None, "Write a row for each size and policy.", check="write")
    plot: Path | None = option(
        None, "Draw times and costs by size (.png, .svg or .html).", check="picture"
    )

    def write(self, sizing: Sizing) -> None:
        """Print the table, the headline and the warnings, and write the files that are given."""
        print_fitted(sizes.sizing_table(sizing))
        for text in sizes.warnings(sizing):
            typer.echo(f"warning: {text}")
        typer.echo(f"\n{sizes.headline(sizing)}")
        as_json = json.dumps(sizing.to_json(), indent=2) + "\n"
        as_csv = sizes.sizing_frame(sizing).write_csv()
        write_each(
            ("JSON", self.json_path, lambda path: write_text(path, as_json)),
            ("CSV", self.csv, lambda path: write_text(path, as_csv)),
            ("picture", self.plot, lambda path: sizes.write_plot(sizing, path)),
        )


@command(
    Only(("search",), lambda given: given["target"] is not None, "with --target"),
    Only(("block",), lambda given: given["arrivals"] in (None, "recorded"), "to recorded arrivals"),
    Only(("growth",), lambda given: given["arrivals"] != "batch", "to jobs that arrive over time"),
    FOR_ELASTIC,
    Only(("key", "user", "queue"), lambda given: _are_logs(given["source"]), "to event logs"),
)
def size(
    goal: GoalOptions,
    runs: ArrivalOptions,
    known: KnowledgeOptions,
    elastic: Elastic,
    output: SizeOutputOptions,
    wanted: EventOptions,
    source: list[str] = argument(
        "Spark event logs, or folders of them; or one workload: a name or a *.parcae file.",
        "LOGS|WORKLOAD",
        "read",
    ),
) -> None:
    """Find how many cores a workload needs: times and costs by size and policy, and a target.

    Example: parcae size tpch --cores 8,16,32 --arrivals poisson:25s --target "p95 < 60s"
    """
    # Checked before logs are read and runs are played, which may take minutes.
    config = SimulatedClusterOptions(world="cores", **dict(known)).config()
    fixed, ranges = _sizes(goal.cores, elastic, config)
    target = None if goal.target is None else parse_target(goal.target)
    if output.plot is not None:
        sizes.picture_format(output.plot)
    if goal.deadlines is not None:
        read_deadlines(goal.deadlines)
    workload = _read(source, wanted, recorded=runs.arrivals in (None, "recorded"))
    question = Question(
        with_deadlines(workload, goal.deadlines),
        fixed,
        tuple(names_in(goal.policies)),
        target,
        goal.price,
        arrivals=runs.arrivals or ("sessions" if workload.num_sessions else "recorded"),
        num_jobs=runs.jobs,
        block=runs.block,
        growth=runs.growth,
        num_seeds=runs.seeds,
        seed_start=runs.seed_start,
        search=goal.search,
        config=config,
        processes=runs.processes,
        elastic=ranges,
    )
    question.check()  # before the bar, which would put an empty line before an error
    with counting("simulating", has_counts=True) as progress:
        sizing = size_cluster(question, progress)
    output.write(sizing)


def _sizes(
    text: str, settings: Elastic, config: SimulationConfig
) -> tuple[tuple[int, ...], tuple[ElasticSize, ...]]:
    """The fixed sizes and the elastic clusters of a text such as "8,64,8..64"."""
    words = text.split(",")
    ranges = [found for word in words if (found := core_range(word)) is not None]
    fixed = [word for word in words if core_range(word) is None]
    if not fixed:
        raise ConfigError(
            f"--cores {text}: give a fixed size to compare with, as in {ranges[-1][1]},{text}"
        )
    elastic = []
    for found in ranges:
        wanted = with_range(config, found, settings).elastic
        assert wanted is not None
        elastic.append(ElasticSize(found[1], wanted))
    return parse_cores(",".join(fixed)), tuple(elastic)


def _are_logs(source: list[str]) -> bool:
    first = source[0]
    is_there = address_of(first) is not None or Path(first).exists()
    is_name = first in BUILT_IN or first.startswith("mixed:") or not is_there
    return len(source) > 1 or not (is_name or first.endswith(".parcae"))


def _read(source: list[str], wanted: EventOptions, recorded: bool) -> Workload:
    """The workload, or that of event logs: every run with its arrival, or the recurring jobs."""
    if not _are_logs(source):
        return load_workload(source[0])
    with counting("reading") as progress:
        workload, report = read_spark_event_logs(
            source, **dict(wanted), recorded=recorded, progress=progress
        )
    print_reading(report)
    return workload
