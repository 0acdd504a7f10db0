"""`parcae spark tpch`: compares policies by TPC-H queries on a real Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.cli.checks import Only, file_to_write, finite, picture_to_write, refusing
from parcae.cli.groups import with_groups
from parcae.cli.options import MOST
from parcae.cli.policy_names import names_in, policies_to_read
from parcae.cli.progress import telling

if TYPE_CHECKING:
    from parcae.evaluation.statistics import Estimate
    from parcae.spark.tpch_plan import TpchConfig
    from parcae.spark.tpch_result import PolicyResult, TpchResult

#: Width of the tables in characters, and their columns.
_WIDTH = 150
_TIMES = (
    "policy",
    "seeds",
    "average s",
    "ratio to fair",
    "ratio to fifo",
    "foretold",
    "later x1.1",
    "worst",
    "p95 s",
    "makespan",
)
_CORES = (
    "policy",
    "busy",
    "busy to the end",
    "idle while waiting",
    "with gaps",
    "tasks",
    "driver CPU s",
    "service CPU s",
    "plans known",
    "no orders",
    "other cores",
    "load",
    "wrong",
)


@dataclass(frozen=True)
class TpchSettingOptions:
    """The tables, the queries and the Spark that runs them."""

    scale_factor: Annotated[
        float,
        typer.Option(
            "--scale-factor", help="Of the tables; 1 is about 1 GB of text.", callback=finite
        ),
    ] = 1.0
    load: Annotated[
        float,
        typer.Option(
            "--load", help="Share of the cores' time that is busy under FAIR.", callback=finite
        ),
    ] = 0.8
    queries: Annotated[
        int,
        typer.Option(
            "--queries", min=2, max=MOST, help="Queries of a run; the 22 of TPC-H repeat."
        ),
    ] = 44
    cores: Annotated[
        int | None,
        typer.Option(
            "--cores",
            min=1,
            max=1_000_000,
            help="Cores of the local Spark. (default: all that this process may use)",
        ),
    ] = None
    gap: Annotated[
        float | None,
        typer.Option(
            "--gap",
            help="Mean seconds between arrivals; else calibrated for --load.",
            callback=finite,
        ),
    ] = None
    memory: Annotated[
        str, typer.Option("--memory", help="Of the driver's JVM, which also runs the tasks.")
    ] = "4g"
    conf: Annotated[
        list[str] | None, typer.Option("--conf", help="NAME=VALUE, another Spark setting.")
    ] = None


@dataclass(frozen=True)
class TpchSeedOptions:
    """The judged runs."""

    seeds: Annotated[int, typer.Option("--seeds", min=0, max=MOST, help="0: prepare only.")] = 20
    seed_start: Annotated[int, typer.Option("--seed-start", min=0, help="The first seed.")] = 1000
    repeats: Annotated[
        int,
        typer.Option("--repeats", min=0, max=MOST, help="Further runs under FAIR for every seed."),
    ] = 1


@dataclass(frozen=True)
class PreparationOptions:
    """What runs before the judged runs."""

    profile_rounds: Annotated[
        int, typer.Option("--profile-rounds", min=1, help="Runs of every query alone.")
    ] = 2
    calibration_runs: Annotated[
        int,
        typer.Option(
            "--calibration-runs", min=1, help="At most so many runs to calibrate the gap."
        ),
    ] = 6
    warm_rounds: Annotated[
        int,
        typer.Option(
            "--warm-rounds", min=0, help="Runs of every query in a new JVM before any measurement."
        ),
    ] = 2


@dataclass(frozen=True)
class SparkOptions:
    """The Spark and the jar to use."""

    jar: Annotated[
        Path | None, typer.Option("--jar", help="The plugin's jar. (default: it is built)")
    ] = None
    spark_home: Annotated[
        Path | None, typer.Option("--spark-home", help="Else SPARK_HOME, else PySpark.")
    ] = None


@dataclass(frozen=True)
class TpchOutputOptions:
    """What is written."""

    foretell: Annotated[
        bool, typer.Option("--foretell/--no-foretell", help="Also simulate the same runs.")
    ] = True
    json_path: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write the result as JSON to this file.", callback=file_to_write
        ),
    ] = None
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            help="Draw ratios and completion times here. (default: ratios.png in --work)",
            callback=picture_to_write,
        ),
    ] = None


@refusing(
    Only(
        (
            *(
                field.name
                for group in (TpchSettingOptions, TpchSeedOptions, PreparationOptions, SparkOptions)
                for field in fields(group)
            ),
            *("policies", "work", "foretell"),
        ),
        lambda given: not given["merge"],
        "to runs (--merge runs nothing)",
    ),
    Only(
        ("json_path", "picture"),
        lambda given: given["seeds"] or given["merge"],
        "to judged runs (--seeds 0 has none)",
    ),
)
@with_groups
def tpch_command(
    *,
    setting: TpchSettingOptions,
    runs: TpchSeedOptions,
    preparation: PreparationOptions,
    spark: SparkOptions,
    output: TpchOutputOptions,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            help="fifo and fair are stock Spark; fair is required.",
            callback=policies_to_read,
        ),
    ] = "fifo,fair,srpt,tuned,parcae,parcae+guard:1.1",
    work: Annotated[
        Path, typer.Option("--work", help="Folder of all files; a stopped command continues there.")
    ] = Path("parcae-spark-tpch"),
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            "--merge", help="Run nothing; print the result of these work folders together."
        ),
    ] = None,
) -> None:
    """Run TPC-H queries on a local Spark under its own and Parcae's policies, and compare them.

    Example: parcae spark tpch --seeds 8 --work tpch-work --json tpch.json
    """
    from parcae.base.errors import ConfigError
    from parcae.base.extras import require
    from parcae.spark.tpch_plan import TpchConfig, usable_cores
    from parcae.spark.tpch_result import draw, read_result

    require("matplotlib")  # draws the picture, after all runs
    if not merge:
        config = TpchConfig(
            policies=tuple(names_in(policies)),
            scale_factor=setting.scale_factor,
            load=setting.load,
            num_queries=setting.queries,
            cores=setting.cores or usable_cores(),
            seeds=runs.seeds,
            seed_start=runs.seed_start,
            repeats=runs.repeats,
            warm_rounds=preparation.warm_rounds,
            profile_rounds=preparation.profile_rounds,
            calibration_runs=preparation.calibration_runs,
            gap_s=setting.gap,
            memory=setting.memory,
            conf=_settings(setting.conf or []),
        )
        if spark.jar is not None and not spark.jar.exists():
            raise ConfigError(f"--jar {spark.jar} does not exist")
        _run(config, work, spark.jar, spark.spark_home, output.foretell)
        if not runs.seeds:
            return
    result = read_result(merge or [work])
    if output.json_path is not None:
        from parcae.base.files import write_text

        write_text(output.json_path, json.dumps(result.to_json(), indent=1) + "\n")
    _print(result)
    path = output.picture or (merge or [work])[0] / "ratios.png"
    draw(result, path)
    typer.echo(f"picture: {path}")


def _settings(conf: list[str]) -> dict[str, str]:
    from parcae.base.errors import ConfigError

    if wrong := [text for text in conf if "=" not in text]:
        raise ConfigError(f"--conf {wrong[0]}: write NAME=VALUE")
    return {name.strip(): value for name, _, value in (text.partition("=") for text in conf)}


def _run(
    config: TpchConfig, work: Path, jar: Path | None, spark_home: Path | None, foretell: bool
) -> None:
    from parcae.base.errors import PolicyError
    from parcae.spark.home import find_spark
    from parcae.spark.tpch_calibration import calibration_of
    from parcae.spark.tpch_foretold import foretell_all
    from parcae.spark.tpch_study import run_tpch

    with telling() as progress:
        run_tpch(config, find_spark(spark_home), work, progress, jar)
        if foretell and config.seeds:
            try:
                foretell_all(config, work, lambda text: progress(text, 1.0))
            except PolicyError as error:  # the results on Spark are printed all the same
                typer.echo(f"not simulated: {error}", err=True)
    calibrated = calibration_of(work)
    if calibrated is not None:
        typer.echo(calibrated.describe(config.load if config.gap_s is None else None))


def _print(result: TpchResult) -> None:
    """Print the tables, the arrival rate, and which queries end later than under FAIR."""
    from parcae.cli.tables import print_rows
    from parcae.spark.tpch_plan import BASELINE

    settings = result.settings
    queries = (
        f"{settings['num_queries']} TPC-H queries of scale factor {settings['scale_factor']:g}"
    )
    title = f"Spark {', '.join(result.spark)}: {queries}"
    print_rows(
        f"{title}, {settings['cores']} cores",
        _TIMES,
        [_times(policy) for policy in result.policies.values()],
        _WIDTH,
    )
    print_rows(
        "Cores and processor time",
        _CORES,
        [_cores(policy) for policy in result.policies.values()],
        _WIDTH,
    )
    gaps = ", ".join(f"{gap:.2f}" for gap in result.gaps_s)
    typer.echo(f"A query every {gaps} s on average; ratios are paired by seed.")
    for name, policy in result.policies.items():
        if name != BASELINE:
            typer.echo(f"{name}: {policy.pays.describe(BASELINE)}")


def _times(policy: PolicyResult) -> tuple[str, ...]:
    """A row of the first table; the columns are `_TIMES`."""
    return (
        policy.name,
        str(len(policy.seeds)),
        f"{policy.average_s.mean:.2f}",
        _interval(policy.ratio_to_fair),
        _interval(policy.ratio_to_fifo),
        "" if policy.foretold_ratio is None else f"{policy.foretold_ratio.mean:.3f}",
        f"{policy.pays.later_than_promise_share.mean:.1%}",
        f"{policy.pays.worst_later:.2f}",
        f"{policy.p95_s:.1f}",
        _interval(policy.makespan_ratio),
    )


def _cores(policy: PolicyResult) -> tuple[str, ...]:
    """A row of the second table; the columns are `_CORES`."""
    return (
        policy.name,
        f"{policy.busy_share.mean:.1%}",
        f"{policy.makespan_busy_share.mean:.1%}",
        f"{policy.idle_while_waiting_share.mean:.2%}",
        f"{policy.unused_while_waiting_share.mean:.2%}",
        _interval(policy.task_ratio),
        f"{policy.driver_cpu_s.mean:.1f}",
        f"{policy.service_cpu_s.mean:.1f}",
        f"{policy.known_share:.0%}",
        str(policy.num_silences),
        f"{policy.other_cores.mean:.2f}",
        f"{policy.load:.1f}",
        str(policy.num_wrong),
    )


def _interval(estimate: Estimate | None) -> str:
    """A ratio with its confidence interval, if that is known."""
    from parcae.evaluation.statistics import with_interval

    return "" if estimate is None else with_interval(estimate)
