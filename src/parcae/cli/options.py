"""Options that several commands share, and the simulation config that they describe."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.checks import file_to_read, finite
from parcae.cli.elastic import parse_cores
from parcae.workloads.durations import MOST_EXECUTORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parcae.simulation.config import SimulationConfig, WorldName
    from parcae.workloads.job import Workload

# Types of options. Commands use them as annotations of their parameters, so that an option has the
# same name and help text in every command.

SOURCE_HELP = "A built-in workload (tpch, synthetic, toy, one-stage) or a workload file (*.parcae)."
WorkloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", help=SOURCE_HELP, show_default=False, callback=file_to_read
    ),
]
# The default depends on other options, so it is None here, and the help text says what applies.
WorldOption = Annotated[
    str | None,
    typer.Option(
        "--world",
        help="cores (one Spark application; any job can use a core after each task) | executors "
        "(Decima's cluster; executors belong to jobs and move between them). (default: cores, or "
        "executors if another option exists only there)",
        show_default=False,
    ),
]


def executors_option(default: str) -> Any:
    """The option for the size of the cluster, whose default the help states."""
    return typer.Option(
        "--executors",
        min=1,
        max=MOST_EXECUTORS,
        help=f"Number of executors (or cores) of the cluster. (default: {default})",
    )


ExecutorsOption = Annotated[int | None, executors_option("50")]
CoresOption = Annotated[
    int | None,
    typer.Option(
        "--cores",
        min=1,
        max=MOST_EXECUTORS,
        help="Another name for --executors.",
        show_default=False,
    ),
]
CoresOrRangeOption = Annotated[
    int | None,
    typer.Option(
        "--cores",
        parser=parse_cores,
        metavar="N|MIN..MAX",
        help="Another name for --executors; or MIN..MAX for an elastic cluster (Spark's dynamic "
        "allocation).",
        show_default=False,
    ),
]
ClassesOption = Annotated[
    str | None,
    typer.Option(
        "--executor-classes",
        help="decima (four classes of 1 core and .25, .5, .75 or 1 unit of memory, a quarter of "
        "--executors each), or a list EXECUTORSxCPUxMEMORY,...",
        show_default=False,
    ),
]
UnknownOption = Annotated[
    float,
    typer.Option(
        "--unknown-share",
        min=0,
        max=1,
        help="Share of the jobs whose durations the policies do not know.",
        callback=finite,
    ),
]
ErrorOption = Annotated[
    str,
    typer.Option(
        "--estimate-error",
        help="log (runs differ from their profiles as in the workload's log), or the sigma of a "
        "log-normal error of the durations that the policies know.",
    ),
]
FaultsOption = Annotated[
    str,
    typer.Option(
        "--faults",
        help="none | log (at the rates of the workload's event logs) | KEY=VALUE,... such as "
        "failures=0.01,lost=0.5,speculation=on: what goes wrong in the world of cores.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="Spark property that names the recurring job; or plan | shape: name SQL queries by "
        "their physical plan.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
#: Largest number of jobs, seeds, runs and the like in an option: more is a slip of the hand.
MOST = 1_000_000

JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, max=MOST, help="Number of jobs in a run.")
]
#: Default number of jobs in a run, except for recorded arrivals.
_NUM_DRAWN = 20
DrawnJobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        max=MOST,
        help="Number of jobs in a run. (default: all recorded jobs with --arrivals recorded, else "
        f"{_NUM_DRAWN})",
    ),
]
SeedStartOption = Annotated[int, typer.Option("--seed-start", min=0, help="First seed.")]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes", min=1, max=MOST, help="Number of worker processes. (default: all cores)"
    ),
]
ArrivalsOption = Annotated[
    str,
    typer.Option(
        "--arrivals",
        help="batch (all at time 0) | poisson:25s (mean gap) | bursts:25s | load:0.85 (offered "
        "load) | recorded (as in the log) | trace:0.85 (pieces of the log, at this load)",
    ),
]
DeadlinesOption = Annotated[
    Path | None,
    typer.Option(
        "--deadlines",
        help="Deadlines by job name: a CSV table `job,deadline` with lines such as etl-*,5m. "
        "Missed ones are counted, and the policy edf orders by them.",
        callback=file_to_read,
    ),
]
DurationsOption = Annotated[
    str,
    typer.Option(
        "--durations",
        help="Task durations: sampled | first (sample) | mean. The last two are deterministic.",
    ),
]
ReferenceOption = Annotated[
    bool,
    typer.Option(
        "--reference-semantics",
        help="Do as Decima's released code where it differs from the paper (interpolation).",
    ),
]


def moving_option(default: str) -> Any:
    """The option for the moving delay, whose default the help states."""
    return typer.Option(
        "--moving-delay-ms",
        min=0,
        max=10**12,
        help=f"Time that an executor needs to move to another job, in ms. (default: {default})",
    )


def warmup_option(default: str) -> Any:
    """The option for the warm-up delay, whose default the help states."""
    return typer.Option(
        "--warmup-delay-ms",
        min=0,
        max=10**12,
        help="Extra duration of the first task of a newly moved executor, if the profile has no "
        f"measured durations of such tasks, in ms. (default: {default})",
    )


MovingOption = Annotated[int | None, moving_option("2000")]
WarmupOption = Annotated[int | None, warmup_option("1000")]
ModelOption = Annotated[
    str,
    typer.Option(
        "--parallelism-model",
        help="How task durations grow above the highest measured parallelism: none (not at all) | "
        "decima-cluster (as on Decima's cluster).",
    ),
]


#: The parallelism model that leaves durations as measured.
NO_MODEL = "none"


def world_of(world: str | None, executors_only: Mapping[str, object]) -> WorldName:
    """The world that `--world` names or that the other options imply; the default is cores."""
    from parcae.base.errors import ConfigError
    from parcae.simulation.config import WorldName

    given = [option for option, value in executors_only.items() if value]
    if world is None:
        return WorldName.EXECUTORS if given else WorldName.CORES
    if world not in set(WorldName):
        raise ConfigError(f"--world {world}: write {' or '.join(WorldName)}")
    if given and world == WorldName.CORES:
        raise ConfigError(
            f"{given[0]} exists in the world of executors only: leave it out, or choose --world "
            "executors"
        )
    return WorldName(world)


def in_cores(given: Mapping[str, Any]) -> bool:
    """Whether a command with these values of its parameters runs in the world of cores."""
    if given["world"] is not None:
        return bool(given["world"] == "cores")
    implying = ("moving_delay_ms", "warmup_delay_ms", "executor_classes")
    is_implied = given["reference_semantics"] or given["parallelism_model"] != NO_MODEL
    return not is_implied and all(given.get(name) is None for name in implying)


def one_size(executors: int | None, cores: int | None) -> int | None:
    """The number that `--executors` or `--cores` gives, or None."""
    from parcae.base.errors import ConfigError

    if None not in (executors, cores) and executors != cores:
        raise ConfigError(
            f"--executors {executors} and --cores {cores} are the same number: give one of them"
        )
    return cores if executors is None else executors


@dataclass(frozen=True)
class SizeOptions:
    """The world and the size of the simulated cluster."""

    world: WorldOption = None
    executors: ExecutorsOption = None
    cores: CoresOption = None

    @property
    def size(self) -> int | None:
        """The number of executors or cores, or None for the default."""
        return one_size(self.executors, self.cores)


@dataclass(frozen=True)
class ClusterOptions(SizeOptions):
    """The simulated cluster, and what its scheduler knows."""

    moving_delay_ms: MovingOption = None
    warmup_delay_ms: WarmupOption = None
    reference_semantics: ReferenceOption = False
    parallelism_model: ModelOption = NO_MODEL
    unknown_share: UnknownOption = 0.0
    estimate_error: ErrorOption = "log"

    def as_words(self) -> str:
        """The options that were given, as a command takes them; empty if all are defaults."""
        words = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                words.append(f"--{one.name.replace('_', '-')}")
                words += [] if value is True else [shlex.quote(str(value))]
        return " ".join(words)

    def load(self, source: str) -> Workload:
        """Load a workload by name or file, and apply the parallelism model to it."""
        return load(source, self.parallelism_model)

    def config(self, executors_only: Mapping[str, object] | None = None) -> SimulationConfig:
        """The simulation config that the options describe."""
        from parcae.simulation.config import SimulationConfig

        given = self._given()
        given["world"] = world_of(self.world, {**self._implying(), **(executors_only or {})})
        # Values that were not given are left out, so that the defaults of the config apply.
        config = SimulationConfig.model_validate(
            {key: value for key, value in given.items() if value is not None}
        )
        return config.with_reference_semantics() if self.reference_semantics else config

    def _implying(self) -> dict[str, object]:
        """The options that imply the world of executors where `--world` is not given."""
        # A default (such as the parallelism model "none") implies nothing.
        return {
            "--reference-semantics": self.reference_semantics,
            "--moving-delay-ms": self.moving_delay_ms is not None,
            "--warmup-delay-ms": self.warmup_delay_ms is not None,
            "--parallelism-model": self.parallelism_model != NO_MODEL,
        }

    def _given(self) -> dict[str, Any]:
        """The values of the config's fields; None for a default."""
        from parcae.simulation.tables import parse_estimate_error

        return {
            "num_executors": self.size,
            "moving_delay_ms": self.moving_delay_ms,
            "warmup_delay_ms": self.warmup_delay_ms,
            "unknown_share": self.unknown_share,
            "estimate_error": parse_estimate_error(self.estimate_error),
        }


@dataclass(frozen=True)
class ClassClusterOptions(ClusterOptions):
    """The simulated cluster, which may have several executor classes."""

    executor_classes: ClassesOption = None

    def config(self, executors_only: Mapping[str, object] | None = None) -> SimulationConfig:
        """As `ClusterOptions.config`."""
        from parcae.base.errors import ConfigError

        config = super().config(executors_only)
        # Executor classes fix the number of executors, so that both options must agree.
        if self.size not in (None, config.total_executors):
            raise ConfigError(
                f"--executor-classes {self.executor_classes} has {config.total_executors} "
                f"executors, not {self.size}; leave out --executors"
            )
        return config

    def _implying(self) -> dict[str, object]:
        return {**super()._implying(), "--executor-classes": self.executor_classes is not None}

    def _given(self) -> dict[str, Any]:
        return {**super()._given(), "executor_classes": self.executor_classes}


@dataclass(frozen=True)
class SimulatedClusterOptions(ClassClusterOptions):
    """The simulated cluster, with the way in which task durations are drawn."""

    # Whole numbers and, for an elastic cluster, a `CoreRange`.
    cores: CoresOrRangeOption = None
    durations: DurationsOption = "sampled"
    faults: FaultsOption = "none"

    def config(self, executors_only: Mapping[str, object] | None = None) -> SimulationConfig:
        """As `ClusterOptions.config`."""
        from parcae.base.errors import ConfigError
        from parcae.simulation.faults import parse_faults

        config = super().config(executors_only)
        faults = parse_faults(self.faults)
        if faults is not None and config.world.value != "cores":
            raise ConfigError(
                f"--faults {self.faults} exists in the world of cores only: leave it out, or leave "
                "out --world executors and the options that exist only there"
            )
        return config.model_copy(update={"faults": faults})

    def _given(self) -> dict[str, Any]:
        from parcae.base.errors import ConfigError
        from parcae.simulation.tables import DurationMode

        if self.durations not in set(DurationMode):
            raise ConfigError(
                f"--durations {self.durations}: write one of {', '.join(DurationMode)}"
            )
        return {**super()._given(), "durations": DurationMode(self.durations)}


def load(source: str, parallelism_model: str) -> Workload:
    """Load a workload by name or file, and apply a parallelism model to it."""
    from parcae.workloads.archive import load_workload
    from parcae.workloads.demands import with_parallelism_model

    return with_parallelism_model(load_workload(source), parallelism_model)


def check_deadlines(path: Path | None) -> None:
    """Read a file of deadlines before work that takes time."""
    if path is not None:
        from parcae.workloads.tables import read_deadlines

        read_deadlines(path)


def number_of_jobs(jobs: int | None, arrivals: str, workload: Workload) -> int:
    """The number of jobs in a run: as given, or all recorded jobs, or 20."""
    if jobs is not None:
        return jobs
    return len(workload.jobs) if arrivals == "recorded" else _NUM_DRAWN


def with_deadlines(workload: Workload, path: Path | None) -> Workload:
    """The workload with the deadlines of a file, which is described on the standard error
    output.
    """
    if path is None:
        return workload
    from parcae.workloads.tables import deadline_notes, read_deadlines, with_deadlines

    deadlines = read_deadlines(path)
    applied = with_deadlines(workload, deadlines)
    for note in deadline_notes(applied, deadlines):
        typer.echo(f"note: {note}", err=True)
    return applied


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers that an option gives, separated by commas."""
    from parcae.base.errors import ConfigError

    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{option} {text}: write numbers separated by commas, as in 1,1.5,2"
        ) from None
