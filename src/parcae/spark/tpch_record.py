"""Reads and writes the work folder of `parcae spark tpch`: its settings and one record per run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError, FormatError
from parcae.base.files import write_text
from parcae.base.loader import parsed_json, read_file
from parcae.evaluation.kept_runs import files_in_names
from parcae.spark.tpch_log import CoreUse
from parcae.spark.tpch_plan import RunKey, TpchConfig
from parcae.spark.tpch_spark import SILENCE, Ending

#: The name of the file of settings.
SETTINGS = "settings.json"


@dataclass(frozen=True)
class RunRecord:
    """The record of a complete run."""

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
        """How often the plugin had no order in force for a while, so that Spark scheduled alone."""
        return sum(SILENCE in line for line in self.plugin_lines)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last result, in s."""
        return makespan_s(self.endings)

    def write(self, path: Path) -> None:
        """Write the record to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")


def makespan_s(endings: tuple[Ending, ...]) -> float:
    """From the first arrival to the last result, in s."""
    return max(ending.arrival_s + ending.seconds for ending in endings)


def read_record(path: Path) -> RunRecord:
    """Read a record."""
    try:
        fields = parsed_json(path, read_file(path), "a record of a run")
        fields["key"] = RunKey(**fields["key"])
        fields["endings"] = tuple(Ending(**ending) for ending in fields["endings"])
        fields["use"] = CoreUse(**fields["use"])
        for name in ("wrong", "load", "plugin_lines"):
            fields[name] = tuple(fields[name])
        return RunRecord(**fields)
    except (FormatError, ValueError, TypeError, KeyError) as error:
        problem = f"{path} is no record of a run of this version ({error})"
        raise FormatError(f"{problem}; remove it to run it again") from error


def record_path(work: Path, key: RunKey) -> Path:
    """The path of the record of a judged run."""
    return work / "runs" / f"{key.file_name}.json"


def read_records(work: Path) -> list[RunRecord]:
    """The records of all complete judged runs of a work folder."""
    return [read_record(path) for path in sorted((work / "runs").glob("*.json"))]


def check_settings(config: TpchConfig, work: Path) -> None:
    """Write the settings into a new work folder, or compare them with those of an old one."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / SETTINGS
    # Through JSON, so that both sides of the comparison hold the same types.
    settings = json.loads(json.dumps(config.of_folder()))
    if not path.exists():
        write_text(path, json.dumps(settings, indent=1) + "\n")
        return
    check_same(settings, read_settings(work), f"this command and {work}")


def check_policy_files(config: TpchConfig, work: Path) -> None:
    """Note what is in the files that names of policies mention, or compare it with the note."""
    path = work / "policy-files.json"
    noted: dict[str, str] = parsed_json(path, read_file(path), "hashes") if path.exists() else {}
    files = files_in_names(config.policies)
    for name in files.keys() & noted.keys():
        if files[name] != noted[name]:
            raise ConfigError(
                f"{name} is not what it was in earlier runs of {work}; name another file, or use "
                "another --work"
            )
    if files.keys() - noted.keys():
        write_text(path, json.dumps({**noted, **files}, indent=1) + "\n")


def read_settings(work: Path) -> dict[str, Any]:
    """Read the settings of a work folder."""
    try:
        path = work / SETTINGS
        settings: dict[str, Any] = parsed_json(path, read_file(path), "settings")
    except FileNotFoundError as error:
        what = f"{work} is no work folder of `parcae spark tpch`"
        raise ConfigError(f"{what}: it has no {SETTINGS}") from error
    return settings


def check_same(one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Refuse settings that differ."""
    for name in one:
        if one[name] != other.get(name):
            values = f"{one[name]} and {other.get(name)}"
            raise ConfigError(f"{where} differ in {name}: {values}; use another --work")
