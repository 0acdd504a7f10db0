"""The files of a work folder of `parcae spark tpch`: settings, and one record a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parcae.errors import ConfigError, FormatError
from parcae.files import write_text
from parcae.spark.tpch_log import CoreUse
from parcae.spark.tpch_plan import RunKey, TpchConfig
from parcae.spark.tpch_spark import SILENCE, Ending

SETTINGS = "settings.json"


@dataclass(frozen=True)
class RunRecord:
    """A run that is over.

    Args:
        key: which run.
        gap_s: mean time between arrivals.
        endings: of every query, in order of arrival.
        use: what the cores did.
        wrong: queries whose result was not that of the first run.
        known_share: of the queries whose plan the profile knows.
        setup_s: what it took to start Spark, open the tables and warm up, in s.
        wall_s: what the run took with all that belongs to it, in s.
        driver_cpu_s: processor time of the driver's JVM, from the first arrival to the last result,
            beside that of tasks.
        python_cpu_s: processor time of this program meanwhile.
        service_cpu_s: processor time of the service; 0 without one.
        other_cores: cores that all other processes of the machine kept busy meanwhile, on average.
        load: the machine's load averages over a minute, before and after.
        plugin_lines: what the plugin said in Spark's log.
        spark: its version.
        at: when it ended (UTC).
    """

    key: RunKey
    gap_s: float
    endings: tuple[Ending, ...]
    use: CoreUse
    wrong: tuple[int, ...]
    known_share: float
    setup_s: float
    wall_s: float
    driver_cpu_s: float
    python_cpu_s: float
    service_cpu_s: float
    other_cores: float
    load: tuple[float, float]
    plugin_lines: tuple[str, ...]
    spark: str
    at: str

    @property
    def seconds(self) -> tuple[float, ...]:
        """Completion times in s, in order of arrival."""
        return tuple(ending.seconds for ending in self.endings)

    @property
    def num_silences(self) -> int:
        """How often the plugin had no orders for so long that Spark was as stock meanwhile."""
        return sum(SILENCE in line for line in self.plugin_lines)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last result, in s."""
        return makespan_s(self.endings)

    def write(self, path: Path) -> None:
        """Write the record."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")


def makespan_s(endings: tuple[Ending, ...]) -> float:
    """From the first arrival to the last result, in s."""
    return max(ending.arrival_s + ending.seconds for ending in endings)


def read_record(path: Path) -> RunRecord:
    """Read a record.

    Raises:
        FormatError: it is none of this version.
    """
    try:
        told = json.loads(path.read_text())
        told["key"] = RunKey(**told["key"])
        told["endings"] = tuple(Ending(**ending) for ending in told["endings"])
        told["use"] = CoreUse(**told["use"])
        for name in ("wrong", "load", "plugin_lines"):
            told[name] = tuple(told[name])
        return RunRecord(**told)
    except (ValueError, TypeError, KeyError) as error:
        told = f"{path} is no record of a run of this version ({error})"
        raise FormatError(f"{told}; remove it to run it again") from error


def record_path(work: Path, key: RunKey) -> Path:
    """Where the record of a judged run lies."""
    return work / "runs" / f"{key.file_name}.json"


def read_records(work: Path) -> list[RunRecord]:
    """All judged runs of a work folder that are over."""
    return [read_record(path) for path in sorted((work / "runs").glob("*.json"))]


def check_settings(config: TpchConfig, work: Path) -> None:
    """Write the settings into a new work folder; those of an old one must be the same.

    Raises:
        ConfigError: they differ.
    """
    work.mkdir(parents=True, exist_ok=True)
    path = work / SETTINGS
    told = json.loads(json.dumps(config.of_folder()))
    if not path.exists():
        write_text(path, json.dumps(told, indent=1) + "\n")
        return
    check_same(told, read_settings(work), f"this command and {work}")


def read_settings(work: Path) -> dict[str, Any]:
    """The settings of a work folder.

    Raises:
        ConfigError: it is none.
    """
    try:
        told: dict[str, Any] = json.loads((work / SETTINGS).read_text())
    except FileNotFoundError as error:
        what = f"{work} is no work folder of `parcae spark tpch`"
        raise ConfigError(f"{what}: it has no {SETTINGS}") from error
    return told


def check_same(one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Refuse settings that differ.

    Raises:
        ConfigError: they differ; the message names the first that does.
    """
    for name in one:
        if one[name] != other.get(name):
            values = f"{one[name]} and {other.get(name)}"
            raise ConfigError(f"{where} differ in {name}: {values}; use another --work")
