"""A cluster in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from parcae.base.errors import ConfigError, refuse_unknown, refused_settings
from parcae.simulation.config import ONLY_EXECUTORS, SimulationConfig, WorldName
from parcae.simulation.tables import parse_estimate_error


class Cluster(SimulationConfig):
    """A simulated cluster, with the defaults of the command line.

    Example:
        >>> Cluster(cores=50).world.value
        'cores'
        >>> Cluster(executors=20, moving_delay_ms=500).world.value
        'executors'
    """

    def __init__(
        self,
        cores: int | None = None,
        *,
        executors: int | None = None,
        estimate_error: float | Literal["log"] = "log",
        **settings: Any,
    ) -> None:
        """Describe a cluster; without a size it has 50 cores.

        As on the command line, a setting of Decima's world implies that world where neither
        `cores`, `executors` nor `world` names one: without a size it has 50 executors then.

        Args:
            cores: cores of one Spark application: a core is free after every task.
            executors: executors of Decima's cluster instead, which move between jobs.
            estimate_error: how far the schedulers' estimates are off: "log" (as much as runs
                differed in the workload's log) or the sigma of a log-normal error.
            **settings: any other field of `parcae.simulation.config.SimulationConfig`.

        Raises:
            ConfigError: both `cores` and `executors`, or one of them and `num_executors`; a setting
                of Decima's world in the world of cores; an unknown setting (the message suggests a
                similar one), or a value out of range.
        """
        if cores is not None and executors is not None:
            raise ConfigError(
                "give cores (one Spark application) or executors (Decima's), not both"
            )
        if "num_executors" in settings and (cores is not None or executors is not None):
            raise ConfigError(
                "num_executors is another name of the size: leave it out, or cores or executors"
            )
        refuse_unknown(settings, ["cores", "executors", *SimulationConfig.model_fields])
        settings.setdefault("world", _world(cores, executors, settings))
        _refuse_other_world(cores, settings)
        names = {}
        for name, size in (("cores", cores), ("executors", executors)):
            if size is not None:
                settings["num_executors"] = size
                names["num_executors"] = name
        error = parse_estimate_error(str(estimate_error))
        try:
            super().__init__(estimate_error=error, **settings)
        except ValidationError as refused:
            raise refused_settings(refused.errors(), names) from None


def _of_executors(settings: Mapping[str, Any]) -> list[str]:
    """The given settings that exist in the world of executors only; no classes are none.

    A whole description of a cluster, as results and files have it, names all of them. It gives
    those that are not the usual ones.
    """
    fields = SimulationConfig.model_fields
    is_whole = settings.keys() >= set(ONLY_EXECUTORS)
    return [
        key
        for key in ONLY_EXECUTORS
        if settings.get(key, ()) not in ((), [])
        and not (is_whole and settings[key] == fields[key].default)
    ]


def _world(cores: int | None, executors: int | None, settings: Mapping[str, Any]) -> WorldName:
    """The world that the size names, or else the settings imply."""
    is_implied = cores is None and bool(_of_executors(settings))
    return WorldName.EXECUTORS if executors is not None or is_implied else WorldName.CORES


def _refuse_other_world(cores: int | None, settings: Mapping[str, Any]) -> None:
    """Refuse settings of Decima's world in the world of cores.

    Raises:
        ConfigError: there is one.
    """
    given = _of_executors(settings)
    if given and settings["world"] == WorldName.CORES:
        other = "world='executors'" if cores is None else f"executors={cores!r} in place of cores"
        raise ConfigError(
            f"{given[0]} exists in the world of executors only: leave it out, or give {other}"
        )
