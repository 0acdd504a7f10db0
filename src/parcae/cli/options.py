"""Options that several commands share, and how they become a simulation config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.job import Workload

SOURCE_HELP = "A built-in workload (tpch, synthetic, toy) or a workload file (*.parcae)."
WorkloadArgument = Annotated[str, typer.Argument(metavar="NAME|FILE", help=SOURCE_HELP, show_default=False)]
ExecutorsOption = Annotated[int | None, typer.Option("--executors", min=1, help="Executors of the cluster. [default: 50]")]
ClassesOption = Annotated[
    str | None,
    typer.Option(
        "--executor-classes",
        help="decima (1 core; .25, .5, .75 and 1 of memory; a quarter of --executors each), or EXECUTORSxCPUxMEMORY,...",
        show_default=False,
    ),
]
UnknownOption = Annotated[
    float, typer.Option("--unknown-share", min=0, max=1, help="Share of the jobs whose durations schedulers are not told.")
]
ErrorOption = Annotated[
    float, typer.Option("--estimate-error", min=0, help="Sigma of a log-normal error on the durations that schedulers are told.")
]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="Jobs of a run.")]
ArrivalsOption = Annotated[
    str,
    typer.Option(
        "--arrivals",
        help="batch | poisson:25s (mean gap) | bursts:25s | load:0.85 (busy share) | recorded | trace:0.85 (pieces of it)",
    ),
]
DurationsOption = Annotated[str, typer.Option("--durations", help="sampled | first | mean (the last two: deterministic)")]
ReferenceOption = Annotated[
    bool,
    typer.Option("--reference-semantics", help="As Decima's released code where it departs from the paper (interpolation)."),
]
MovingOption = Annotated[int | None, typer.Option("--moving-delay-ms", min=0, help="Moving delay. [default: 2000]")]
WarmupOption = Annotated[int | None, typer.Option("--warmup-delay-ms", min=0, help="Warm-up delay. [default: 1000]")]
ModelOption = Annotated[
    str,
    typer.Option(
        "--parallelism-model",
        help="Durations above the measured parallelism: none (as measured) | decima-cluster (ratios of that cluster).",
    ),
]


def simulation_config(
    executors: int | None,
    durations: str,
    reference_semantics: bool,
    moving_delay_ms: int | None,
    warmup_delay_ms: int | None,
    executor_classes: str | None = None,
    unknown_share: float = 0.0,
    estimate_error: float = 0.0,
) -> SimulationConfig:
    """The config that the options describe.

    Raises:
        ConfigError: an option that is not understood, or classes of another number of executors than was asked for.
    """
    from parcae.errors import ConfigError
    from parcae.simulation.config import SimulationConfig
    from parcae.simulation.tables import DurationMode

    if durations not in set(DurationMode):
        raise ConfigError(f"--durations {durations}: write one of {', '.join(DurationMode)}")
    given = {
        "num_executors": executors,
        "moving_delay_ms": moving_delay_ms,
        "warmup_delay_ms": warmup_delay_ms,
        "durations": DurationMode(durations),
        "executor_classes": executor_classes,
        "unknown_share": unknown_share,
        "estimate_error": estimate_error,
    }
    config = SimulationConfig.model_validate({key: value for key, value in given.items() if value is not None})
    if executors not in (None, config.total_executors):
        raise ConfigError(
            f"--executor-classes {executor_classes} has {config.total_executors} executors, not {executors}; leave out "
            "--executors"
        )
    return config.with_reference_semantics() if reference_semantics else config


def load(source: str, parallelism_model: str) -> Workload:
    """The workload, under a model of parallelism."""
    from parcae.workloads.catalog import load_workload
    from parcae.workloads.parallelism import with_parallelism_model

    return with_parallelism_model(load_workload(source), parallelism_model)
