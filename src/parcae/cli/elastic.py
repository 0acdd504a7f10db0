"""Options of elastic clusters: a range of cores, and the settings of dynamic allocation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.checks import Only
from parcae.workloads.durations import MOST_EXECUTORS

if TYPE_CHECKING:
    from parcae.simulation.config import SimulationConfig
    from parcae.simulation.elastic import Elastic

#: The options of the fields of `Elastic`.
_OPTIONS = {
    "cores_per_executor": "--cores-per-executor",
    "start_ms": "--executor-start (in ms)",
    "backlog_ms": "--backlog-timeout (in ms)",
    "idle_ms": "--idle-timeout (in ms)",
}


class CoreRange(int):
    """The most cores of an elastic cluster; `least` is its minimum."""

    least: int

    def __new__(cls, least: int, most: int) -> CoreRange:
        """The range `least..most`."""
        made = super().__new__(cls, most)
        made.least = least
        return made

    def __str__(self) -> str:
        return f"{self.least}..{int(self)}"


def core_range(text: str) -> CoreRange | None:
    """The range in a text such as "8..64"; None for any other text or an empty range."""
    found = re.fullmatch(r"(\d{1,7})\.\.(\d{1,7})", text.strip())
    if found is None:
        return None
    least = int(found[1])
    most = int(found[2])
    return CoreRange(least, most) if max(1, least) <= most <= MOST_EXECUTORS else None


def parse_cores(text: str) -> int:
    """A number of cores, or the `CoreRange` of a text such as "8..64"."""
    from parcae.base.errors import ConfigError

    found = core_range(str(text))
    if found is not None:
        return found
    if not re.fullmatch(r"\d{1,7}", str(text)) or not 1 <= int(text) <= MOST_EXECUTORS:
        raise ConfigError(
            f"--cores {text}: write a number from 1 to {MOST_EXECUTORS:,}, or a range of an "
            "elastic cluster, as in 8..64"
        )
    return int(text)


@dataclass(frozen=True)
class ElasticOptions:
    """How an elastic cluster grows and shrinks; the defaults are Spark's, where it has one."""

    cores_per_executor: Annotated[
        int | None,
        typer.Option(
            "--cores-per-executor",
            min=1,
            max=MOST_EXECUTORS,
            help="With --cores MIN..MAX: cores of an executor. (default: 4)",
        ),
    ] = None
    executor_start: Annotated[
        str | None,
        typer.Option(
            "--executor-start",
            help="With --cores MIN..MAX: time from the request of an executor until it runs tasks. "
            "(default: 5s)",
        ),
    ] = None
    backlog_timeout: Annotated[
        str | None,
        typer.Option(
            "--backlog-timeout",
            help="With --cores MIN..MAX: tasks wait so long before each request for executors. "
            "(default: 1s)",
        ),
    ] = None
    idle_timeout: Annotated[
        str | None,
        typer.Option(
            "--idle-timeout",
            help="With --cores MIN..MAX: an executor that is idle for so long is removed. "
            "(default: 60s)",
        ),
    ] = None

    def applied(self, config: SimulationConfig, cores: int | None) -> SimulationConfig:
        """The config of the elastic cluster that `--cores MIN..MAX` asks for."""
        from pydantic import ValidationError

        from parcae.base.errors import ConfigError, problem
        from parcae.simulation.config import SimulationConfig, WorldName

        if not isinstance(cores, CoreRange):
            return config
        if config.world is not WorldName.CORES:
            raise ConfigError(
                f"--cores {cores}: elastic clusters exist in the world of cores only: give one "
                "number, or leave out --world executors and the options that exist only there"
            )
        fields = {**dict(config), "num_executors": int(cores)}
        try:
            return SimulationConfig(**{**fields, "elastic": self.elastic(cores)})
        except ValidationError as error:
            first = error.errors()[0]
            setting = _OPTIONS.get(str(first["loc"][0]) if first["loc"] else "", f"--cores {cores}")
            message = problem(first)
            raise ConfigError(f"{setting}: {message}") from None

    def elastic(self, cores: CoreRange) -> Elastic:
        """The settings of an elastic cluster."""
        from parcae.simulation.elastic import Elastic

        given: dict[str, Any] = {
            "min_cores": cores.least,
            "cores_per_executor": self.cores_per_executor,
            "start_ms": _ms("--executor-start", self.executor_start),
            "backlog_ms": _ms("--backlog-timeout", self.backlog_timeout),
            "idle_ms": _ms("--idle-timeout", self.idle_timeout),
        }
        return Elastic(**{key: value for key, value in given.items() if value is not None})


#: The options of `ElasticOptions` have no effect on clusters of fixed sizes.
FOR_ELASTIC = Only(
    ("cores_per_executor", "executor_start", "backlog_timeout", "idle_timeout"),
    lambda given: ".." in str(given["cores"]),
    "to elastic clusters (--cores MIN..MAX, as in 8..64)",
)


def _ms(option: str, text: str | None) -> int | None:
    """The time in a text such as "30s", in ms; None for no text."""
    from parcae.base.errors import ConfigError
    from parcae.base.texts import ms_from_text

    if text is None:
        return None
    found_ms = ms_from_text(text)
    if found_ms is None:
        raise ConfigError(f"{option} {text}: write a time in ms, s, m or h, as in 30s")
    return round(found_ms)
