"""Options that several commands share, and how they become a simulation config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parcae.simulation.config import SimulationConfig, WorldName
    from parcae.workloads.job import Workload

SOURCE_HELP = "A built-in workload (tpch, synthetic, toy) or a workload file (*.parcae)."
WorkloadArgument = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help=SOURCE_HELP, show_default=False)
]
WorldOption = Annotated[
    str | None,
    typer.Option(
        "--world",
        help="cores (one Spark application: a core is free after every task) | executors (Decima's: they move between jobs). "
        "[default: cores, or executors where another option exists only there]",
        show_default=False,
    ),
]
ExecutorsOption = Annotated[
    int | None,
    typer.Option("--executors", min=1, help="Executors of the cluster, or cores. [default: 50]"),
]
CoresOption = Annotated[
    int | None,
    typer.Option("--cores", min=1, help="The same number as --executors.", show_default=False),
]
ClassesOption = Annotated[
    str | None,
    typer.Option(
        "--executor-classes",
        help="decima (1 core; .25, .5, .75 and 1 of memory; a quarter of --executors each), or EXECUTORSxCPUxMEMORY,...",
        show_default=False,
    ),
]
UnknownOption = Annotated[
    float,
    typer.Option(
        "--unknown-share",
        min=0,
        max=1,
        help="Share of the jobs whose durations schedulers are not told.",
    ),
]
ErrorOption = Annotated[
    str,
    typer.Option(
        "--estimate-error",
        help="log (runs differ from their profiles as they did in the workload's log), or the sigma of a log-normal error on the "
        "durations that schedulers are told.",
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="Jobs of a run.")]
ArrivalsOption = Annotated[
    str,
    typer.Option(
        "--arrivals",
        help="batch | poisson:25s (mean gap) | bursts:25s | load:0.85 (busy share) | recorded | trace:0.85 (pieces of it)",
    ),
]
DurationsOption = Annotated[
    str, typer.Option("--durations", help="sampled | first | mean (the last two: deterministic)")
]
ReferenceOption = Annotated[
    bool,
    typer.Option(
        "--reference-semantics",
        help="As Decima's released code where it departs from the paper (interpolation).",
    ),
]
MovingOption = Annotated[
    int | None, typer.Option("--moving-delay-ms", min=0, help="Moving delay. [default: 2000]")
]
WarmupOption = Annotated[
    int | None, typer.Option("--warmup-delay-ms", min=0, help="Warm-up delay. [default: 1000]")
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--parallelism-model",
        help="Durations above the measured parallelism: none (as measured) | decima-cluster (ratios of that cluster).",
    ),
]


#: The model of parallelism that leaves durations as they were measured.
_NO_MODEL = "none"


def world_of(world: str | None, executors_only: Mapping[str, object]) -> WorldName:
    """The world that was asked for, or that the other options imply; cores where nothing says otherwise.

    Args:
        executors_only: by option, whether something was asked for that only the world of executors has.

    Raises:
        ConfigError: no such world, or cores beside such an option.
    """
    from parcae.errors import ConfigError
    from parcae.simulation.config import WorldName

    asked = [option for option, value in executors_only.items() if value]
    if world is None:
        return WorldName.EXECUTORS if asked else WorldName.CORES
    if world not in set(WorldName):
        raise ConfigError(f"--world {world}: write {' or '.join(WorldName)}")
    if asked and world == WorldName.CORES:
        raise ConfigError(
            f"{asked[0]} exists in the world of executors only: leave it out, or choose --world executors"
        )
    return WorldName(world)


def one_size(executors: int | None, cores: int | None) -> int | None:
    """The number that `--executors` or `--cores` gives, if any.

    Raises:
        ConfigError: they differ.
    """
    from parcae.errors import ConfigError

    if None not in (executors, cores) and executors != cores:
        raise ConfigError(
            f"--executors {executors} and --cores {cores} are the same number: give one of them"
        )
    return cores if executors is None else executors


def simulation_config(
    *,
    world: str | None = None,
    executors: int | None = None,
    cores: int | None = None,
    durations: str = "sampled",
    reference_semantics: bool = False,
    moving_delay_ms: int | None = None,
    warmup_delay_ms: int | None = None,
    parallelism_model: str = _NO_MODEL,
    executor_classes: str | None = None,
    unknown_share: float = 0.0,
    estimate_error: str = "log",
    executors_only: Mapping[str, object] | None = None,
) -> SimulationConfig:
    """The config that the options describe.

    Args:
        executors_only: other options that exist in the world of executors only, and whether they are given.

    Raises:
        ConfigError: an option that is not understood, options of two worlds, or classes of another number of executors than
            was asked for.
    """
    from parcae.errors import ConfigError
    from parcae.simulation.config import SimulationConfig
    from parcae.simulation.tables import DurationMode
    from parcae.simulation.uncertainty import parse_estimate_error

    implying = {
        "--reference-semantics": reference_semantics,
        "--moving-delay-ms": moving_delay_ms is not None,
        "--warmup-delay-ms": warmup_delay_ms is not None,
        "--executor-classes": executor_classes is not None,
        "--parallelism-model": parallelism_model != _NO_MODEL,
    }
    chosen = world_of(world, {**implying, **(executors_only or {})})
    size = one_size(executors, cores)
    if durations not in set(DurationMode):
        raise ConfigError(f"--durations {durations}: write one of {', '.join(DurationMode)}")
    given = {
        "world": chosen,
        "num_executors": size,
        "moving_delay_ms": moving_delay_ms,
        "warmup_delay_ms": warmup_delay_ms,
        "durations": DurationMode(durations),
        "executor_classes": executor_classes,
        "unknown_share": unknown_share,
        "estimate_error": parse_estimate_error(estimate_error),
    }
    config = SimulationConfig.model_validate(
        {key: value for key, value in given.items() if value is not None}
    )
    if size not in (None, config.total_executors):
        raise ConfigError(
            f"--executor-classes {executor_classes} has {config.total_executors} executors, not {size}; leave out --executors"
        )
    return config.with_reference_semantics() if reference_semantics else config


def load(source: str, parallelism_model: str) -> Workload:
    """The workload, under a model of parallelism."""
    from parcae.workloads.catalog import load_workload
    from parcae.workloads.parallelism import with_parallelism_model

    return with_parallelism_model(load_workload(source), parallelism_model)
