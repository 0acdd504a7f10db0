"""The settings of an environment of the cluster, read strictly."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parcae.errors import ConfigError
from parcae.metrics.objectives import Objective, parse_objective
from parcae.simulation.config import SimulationConfig
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.catalog import load_workload
from parcae.workloads.job import Workload
from parcae.workloads.parallelism import with_parallelism_model
from parcae.workloads.random_streams import RandomStreams

#: The objectives that accrue while time passes, so that a decision can be charged for what followed it.
ACCRUING = (Objective.AVERAGE_JCT, Objective.MAKESPAN)
#: What a second (of a job in the system, or of the makespan) costs unless `reward_scale` says otherwise.
REWARD_SCALE = 0.01


class ClusterSettings(BaseModel):
    """Episodes of `num_jobs` jobs on a cluster, what is to be small, and how much is shown.

    Args:
        workload: its name or file, or the workload itself.
        arrivals: batch, poisson:25s, load:0.85, ...; see `parcae.workloads.arrivals`.
        parallelism_model: none or decima-cluster; see `parcae.workloads.parallelism`.
        objective: average-jct or makespan.
        reward_scale: what a second costs; the undiscounted return is minus the sum of the job completion times in seconds
            (or minus the makespan) times this.
        max_jobs, max_stages: rows to show; None for as many as there can ever be. Where there are more, those that may be
            chosen come first, then those that arrived first.
        num_limits: limits to choose from, evenly spaced up to all executors; None for every number of executors.
        cluster: everything else, e.g. moving_delay_ms; see `SimulationConfig`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    workload: Workload | str = "tpch"
    num_jobs: int = Field(default=10, ge=1)
    arrivals: str = "batch"
    parallelism_model: str = "none"
    objective: Objective = Objective.AVERAGE_JCT
    reward_scale: float = Field(default=REWARD_SCALE, gt=0)
    max_jobs: int | None = Field(default=None, ge=1)
    max_stages: int | None = Field(default=None, ge=1)
    num_limits: int | None = Field(default=None, ge=1)
    cluster: SimulationConfig = SimulationConfig()

    def load(self) -> Workload:
        """The workload under its model of parallelism."""
        workload = load_workload(self.workload) if isinstance(self.workload, str) else self.workload
        return with_parallelism_model(workload, self.parallelism_model)

    def sequence(self, workload: Workload, seed: int) -> JobSequence:
        """The jobs of the episode of one seed: those of `parcae simulate --seed`."""
        return draw_sequence(workload, self.arrivals, self.num_jobs, self.cluster.total_executors, RandomStreams(seed))


def read_settings(given: Mapping[str, Any]) -> ClusterSettings:
    """The settings of an environment; `executors` and all fields of `SimulationConfig` but their number stand beside the others.

    Raises:
        ConfigError: an unknown key (the message suggests one), a value out of range, or an objective that does not accrue.
    """
    of_cluster = {"executors": "num_executors", **{k: k for k in SimulationConfig.model_fields if k != "num_executors"}}
    own = [key for key in ClusterSettings.model_fields if key != "cluster"]
    for key in given:
        if key not in of_cluster and key not in own:
            close = difflib.get_close_matches(key, [*own, *of_cluster], n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join([*own, *of_cluster])}"
            raise ConfigError(f"setting {key!r} does not exist; {hint}")
    values = {key: value for key, value in given.items() if key in own}
    if "objective" in values:
        values["objective"] = _accruing(str(values["objective"]))
    try:
        cluster = SimulationConfig.model_validate({of_cluster[k]: v for k, v in given.items() if k in of_cluster})
        settings = ClusterSettings(**values, cluster=cluster)
    except ValidationError as error:
        raise ConfigError("; ".join(_in_words(detail) for detail in error.errors())) from None
    if settings.num_limits is not None and settings.num_limits > settings.cluster.total_executors:
        raise ConfigError(
            f"setting num_limits = {settings.num_limits}: there are {settings.cluster.total_executors} executors; "
            f"ask for at most as many limits"
        )
    return settings


def _accruing(text: str) -> Objective:
    objective = parse_objective(text)
    if objective not in ACCRUING:
        raise ConfigError(f"objective {text!r} does not accrue while time passes; write one of {', '.join(ACCRUING)}")
    return objective


def _in_words(detail: Any) -> str:
    key = ".".join(str(part) for part in detail["loc"]).replace("num_executors", "executors")
    return f"setting {key} = {detail['input']!r}: {detail['msg']}" if key else str(detail["msg"])
