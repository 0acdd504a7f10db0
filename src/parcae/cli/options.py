"""Options that several commands share, and the simulation config that they describe."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from parcae.base.errors import ConfigError, problem
from parcae.base.options import argument, option, same
from parcae.cli.commands import Only
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.elastic import Elastic
from parcae.simulation.tables import DurationMode, parse_estimate_error
from parcae.workloads import tables
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import with_parallelism_model
from parcae.workloads.durations import MOST_EXECUTORS
from parcae.workloads.readers import BAD_SHARE, KEY_HELP, QUEUE_HELP, USER_HELP
from parcae.workloads.workload import ArrivalProcess, Workload

#: Largest number of jobs, seeds, runs and the like in an option: more is a slip of the hand.
MOST = 1_000_000
#: Default number of jobs in a run, except for recorded arrivals.
_NUM_DRAWN = 20
#: The parallelism model that leaves durations as measured.
NO_MODEL = "none"
#: Options that imply the world of executors where `--world` is not given.
_IMPLYING = (
    "reference_semantics",
    "moving_delay_ms",
    "warmup_delay_ms",
    "parallelism_model",
    "executor_classes",
)

SOURCE_HELP = "A built-in workload (tpch, synthetic, toy, one-stage) or a workload file (*.parcae)."
WORKLOAD = argument(SOURCE_HELP, "NAME|FILE", "read")
JSON = option(False, "Print the result as JSON.", "--json")
JSON_FILE = option(None, "Write the result as JSON to this file.", "--json", check="write")
JOBS = option(20, "Number of jobs in a run.", "--jobs", ge=1, le=MOST)
DRAWN_JOBS = option(
    None,
    "Number of jobs in a run. (default: all recorded jobs with --arrivals recorded or sessions, "
    f"else {_NUM_DRAWN})",
    "--jobs",
    ge=1,
    le=MOST,
)
ARRIVALS = option(
    "batch",
    "batch (all at time 0) | poisson:25s (mean gap) | bursts:25s | load:0.85 (offered load) | "
    "recorded (as in the log) | trace:0.85 (pieces of the log, at this load) | sessions (as in the "
    "log, each job a pause after the last one's end) | sessions:4 | sessions:load:0.85",
    "--arrivals",
)
PLAYED_ARRIVALS = option(
    None,
    f"{ARRIVALS.description} (default: sessions where the log is one of sessions, else batch)",
    "--arrivals",
)
DEADLINES = option(
    None,
    "Deadlines by job name: a CSV table `job,deadline` with lines such as etl-*,5m. Missed ones "
    "are counted, and the policy edf orders by them.",
    "--deadlines",
    check="read",
)
SEED = option(0, "Seed of the arrivals and of the task durations.", "--seed", ge=0)
SEED_START = option(0, "First seed.", "--seed-start", ge=0)
PROCESSES = option(
    None, "Number of worker processes. (default: all cores)", "--processes", ge=1, le=MOST
)
POLICY_HELP = "Policies, separated by commas (the command `policies` lists them), or: all"
POLICY = option("fair", POLICY_HELP, "--policy", check="policies")
JOB_SET = option(
    None, "Run the job sequences of this JSON file instead of drawn jobs.", check="read"
)
SET = option("all", "Which sequence of the file: its name (or position), or all.", "--set")
MODEL = option(
    NO_MODEL,
    "How task durations grow above the highest measured parallelism: none (not at all) | "
    "decima-cluster (as on Decima's cluster).",
    "--parallelism-model",
)
WORLD = option(
    None,
    "cores (one Spark application; any job can use a core after each task) | executors (Decima's "
    "cluster; executors belong to jobs and move between them). (default: cores, or executors if "
    "another option exists only there)",
    "--world",
)


LOG = argument("Event log of Spark: a file, rolling folder, zip, or folder.", "LOG", "read")


class Options(BaseModel):
    """A group of options."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)


class EventOptions(Options):
    """Which jobs of event logs are read, and what names them."""

    key: str | None = option(None, KEY_HELP)
    user: str | None = option(None, USER_HELP)
    queue: str | None = option(None, QUEUE_HELP)


class CheckedEventOptions(EventOptions):
    """The same, and how much of the logs may be invalid."""

    max_bad_share: float = option(BAD_SHARE.default, BAD_SHARE.help, ge=0, le=1)


def world_of(world: str | None, executors_only: Mapping[str, object]) -> WorldName:
    """The world that `--world` names or that the other options imply; the default is cores."""
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
    return not any(_is_given(given.get(name)) for name in _IMPLYING)


def _is_given(value: Any) -> bool:
    """Whether a value is another than the default of such an option."""
    return value is not None and value is not False and value != NO_MODEL


def core_range(text: str | None) -> tuple[int, int] | None:
    """The range in a text such as "8..64"; None for any other text or an empty range."""
    found = re.fullmatch(r"(\d{1,7})\.\.(\d{1,7})", (text or "").strip())
    if found is None:
        return None
    least, most = int(found[1]), int(found[2])
    return (least, most) if max(1, least) <= most <= MOST_EXECUTORS else None


class SizeOptions(Options):
    """The world and the size of the simulated cluster."""

    world: str | None = WORLD
    executors: int | None = same(SimulationConfig, "num_executors", unset=True)
    cores: str | None = option(None, "Another name for --executors.", metavar="N")

    @property
    def size(self) -> int | None:
        """The number of executors or cores (the most of an elastic cluster); None by default."""
        if self.cores is None:
            return self.executors
        found = core_range(self.cores) if isinstance(self, SimulatedClusterOptions) else None
        is_number = re.fullmatch(r"\d{1,7}", self.cores) and 1 <= int(self.cores) <= MOST_EXECUTORS
        if not is_number and found is None:
            raise ConfigError(
                f"--cores {self.cores}: write a number from 1 to {MOST_EXECUTORS:,}, or "
                f"to simulate "
                "and compare on an elastic cluster a range, as in 8..64"
            )
        size = int(self.cores) if found is None else found[1]
        if self.executors not in (None, size):
            raise ConfigError(
                f"--executors {self.executors} and --cores {self.cores} are the same number: give "
                "one of them"
            )
        return size


class ClusterOptions(SizeOptions):
    """The simulated cluster, and what its scheduler knows."""

    moving_delay_ms: int | None = same(SimulationConfig, "moving_delay_ms", unset=True)
    warmup_delay_ms: int | None = same(SimulationConfig, "warmup_delay_ms", unset=True)
    reference_semantics: bool = option(
        False, "Do as Decima's released code where it differs from the paper (interpolation)."
    )
    parallelism_model: str = MODEL
    unknown_share: float = same(SimulationConfig, "unknown_share")
    estimate_error: str = same(SimulationConfig, "estimate_error", default="log")

    def as_words(self) -> list[str]:
        """The options that were given, as a command takes them; empty if all are defaults."""
        words = []
        for name, value in self.model_dump(exclude_defaults=True).items():
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
        return words

    def load(self, source: str, deadlines: Path | None = None) -> Workload:
        """Load a workload by name or file, with the parallelism model and deadlines."""
        loaded = with_parallelism_model(load_workload(source), self.parallelism_model)
        return with_deadlines(loaded, deadlines)

    def config(
        self,
        executors_only: Mapping[str, object] | None = None,
        elastic: Elastic | None = None,
    ) -> SimulationConfig:
        """The simulation config that the options describe.

        `executors_only` are further options of the command that exist in that world only; `elastic`
        are the settings of an elastic cluster, if it is one.
        """
        given = {name: getattr(self, name, None) for name in SimulationConfig.model_fields}
        implying = {
            f"--{name.replace('_', '-')}": _is_given(getattr(self, name, None))
            for name in _IMPLYING
        }
        world = world_of(self.world, {**implying, **(executors_only or {})})
        given |= {
            "num_executors": self.size,
            "estimate_error": parse_estimate_error(self.estimate_error),
            "world": world,
        }
        if given["durations"] not in (None, *DurationMode):
            raise ConfigError(
                f"--durations {given['durations']}: write one of {', '.join(DurationMode)}"
            )
        if _is_given(given["faults"]) and world is not WorldName.CORES:
            raise ConfigError(
                f"--faults {given['faults']} exists in the world of cores only: leave it out, or "
                "leave out --world executors and the options that exist only there"
            )
        # Values that were not given are left out, so that the defaults of the config apply.
        config = SimulationConfig.model_validate(
            {key: value for key, value in given.items() if value is not None}
        )
        # Executor classes fix the number of executors, so that both options must agree.
        if self.size not in (None, config.total_executors):
            raise ConfigError(
                f"--executor-classes {given['executor_classes']} has {config.total_executors} "
                f"executors, not {self.size}; leave out --executors"
            )
        if self.reference_semantics:
            config = config.with_reference_semantics()
        found = core_range(self.cores)
        return config if found is None or elastic is None else with_range(config, found, elastic)


class ClassClusterOptions(ClusterOptions):
    """The simulated cluster, which may have several executor classes."""

    executor_classes: str | None = same(SimulationConfig, "executor_classes", default=None)


class SimulatedClusterOptions(ClassClusterOptions):
    """The simulated cluster, with the way in which task durations are drawn."""

    cores: str | None = option(
        None,
        "Another name for --executors; or MIN..MAX for an elastic cluster (Spark's dynamic "
        "allocation).",
        metavar="N|MIN..MAX",
    )
    durations: str = same(SimulationConfig, "durations")
    faults: str = same(SimulationConfig, "faults", default="none")


#: The options of `Elastic` have no effect on clusters of fixed sizes.
FOR_ELASTIC = Only(
    ("cores_per_executor", "start_ms", "backlog_ms", "idle_ms"),
    lambda given: ".." in str(given["cores"]) or given.get("applications") is not None,
    "to elastic clusters (--cores MIN..MAX, as in 8..64)",
)


def with_range(
    config: SimulationConfig, found: tuple[int, int], elastic: Elastic
) -> SimulationConfig:
    """The config of the elastic cluster that `--cores MIN..MAX` asks for."""
    least, most = found
    if config.world is not WorldName.CORES:
        raise ConfigError(
            f"--cores {least}..{most}: elastic clusters exist in the world of cores only: give one "
            "number, or leave out --world executors and the options that exist only there"
        )
    try:
        settings = Elastic(**{**dict(elastic), "min_cores": least})
        return SimulationConfig(**{**dict(config), "num_executors": most, "elastic": settings})
    except ValidationError as error:
        raise ConfigError(f"--cores {least}..{most}: {problem(error.errors()[0])}") from None


def number_of_jobs(jobs: int | None, arrivals: str, workload: Workload) -> int:
    """The number of jobs in a run: as given, or all recorded jobs, or 20."""
    if jobs is not None:
        return jobs
    is_log = ArrivalProcess.parse(arrivals).replays(workload)
    return len(workload.jobs) if is_log else _NUM_DRAWN


def usual_arrivals(workload: Workload) -> str:
    """The arrivals where none are given: those of the log if it is one of sessions."""
    if not workload.num_sessions:
        return "batch"
    return "sessions" if workload.is_recorded else f"sessions:{workload.usual_sessions}"


def with_deadlines(workload: Workload, path: Path | None) -> Workload:
    """The workload with the deadlines of a file, which is described on standard error."""
    if path is None:
        return workload
    deadlines = tables.read_deadlines(path)
    applied = workload.with_deadlines(deadlines)
    for note in tables.deadline_notes(applied.jobs, deadlines):
        typer.echo(f"note: {note}", err=True)
    return applied


def write_each(*outputs: tuple[str, Path | None, Callable[[Path], None]]) -> None:
    """Write the files that were given, each with its name for users, and say where they are."""
    for what, path, write in outputs:
        if path is not None:
            write(path)
            typer.echo(f"{what}: {path}")


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers that an option gives, separated by commas."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{option} {text}: write numbers separated by commas, as in 1,1.5,2"
        ) from None
