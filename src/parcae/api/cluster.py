"""A cluster in one line."""

from __future__ import annotations

from typing import Any, Literal

from parcae.errors import ConfigError
from parcae.simulation.config import SimulationConfig, WorldName


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

        Args:
            cores: cores of one Spark application: a core is free after every task.
            executors: executors of Decima's cluster instead, which move between jobs.
            estimate_error: how far the schedulers' estimates are off: "log" (as much as runs
                differed in the workload's log) or the sigma of a log-normal error.
            **settings: any other field of `parcae.simulation.config.SimulationConfig`.

        Raises:
            ConfigError: both `cores` and `executors`, or one of them and `num_executors`.
            pydantic.ValidationError: an unknown setting, or a value out of range.
        """
        if cores is not None and executors is not None:
            raise ConfigError(
                "give cores (one Spark application) or executors (Decima's), not both"
            )
        if "num_executors" in settings and (cores is not None or executors is not None):
            raise ConfigError(
                "num_executors is another name of the size: leave it out, or cores or executors"
            )
        if executors is not None:
            settings.setdefault("world", WorldName.EXECUTORS)
            settings["num_executors"] = executors
        elif cores is not None:
            settings.setdefault("world", WorldName.CORES)
            settings["num_executors"] = cores
        elif "executor_classes" not in settings:
            settings.setdefault("world", WorldName.CORES)
        super().__init__(estimate_error=estimate_error, **settings)
