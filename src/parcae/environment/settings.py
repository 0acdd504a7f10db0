"""The settings of the environments, read strictly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parcae.errors import ConfigError
from parcae.metrics.objectives import Objective, parse_objective
from parcae.packing.config import PackingConfig, TimeMode
from parcae.packing.layout import Cost
from parcae.packing.sources import DrawnSource, LogSource, PackingSource
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.bernoulli import job_mix
from parcae.workloads.catalog import load_workload
from parcae.workloads.job import Workload
from parcae.workloads.parallelism import with_parallelism_model
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.rigid import RigidJobs

#: The objectives that accrue while time passes, so that a decision can be charged for what followed it.
ACCRUING = (Objective.AVERAGE_JCT, Objective.MAKESPAN)
#: What a second (of a job in the system, or of the makespan) costs unless `reward_scale` says otherwise.
REWARD_SCALE = 0.01
#: Decisions that an episode of the packing world may take unless `max_decisions` says otherwise: 2,000 for DeepRM's 50 steps.
DECISIONS_PER_JOB = 40


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
        idle_lengths: G, idle slots of 0, 1/G, ... 1 of the stage's length to choose from; 0 for none.
        cluster: everything else, e.g. executor_classes, moving_delay_ms; see `SimulationConfig`.
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
    idle_lengths: int = Field(default=0, ge=0, le=100)
    cluster: SimulationConfig = SimulationConfig()

    def load(self) -> Workload:
        """The workload under its model of parallelism."""
        workload = load_workload(self.workload) if isinstance(self.workload, str) else self.workload
        return with_parallelism_model(workload, self.parallelism_model)

    def sequence(self, workload: Workload, seed: int) -> JobSequence:
        """The jobs of the episode of one seed: those of `parcae simulate --seed`."""
        return draw_sequence(
            workload,
            self.arrivals,
            self.num_jobs,
            self.cluster.total_executors,
            RandomStreams(seed),
        )


def read_cluster(given: Mapping[str, Any]) -> ClusterSettings:
    """The settings of `parcae/Cluster-v0`; `executors` and the other fields of `SimulationConfig` stand beside its own.

    Raises:
        ConfigError: an unknown key (the message suggests one), a value out of range, or an objective that does not accrue.
    """
    of_cluster = {
        "executors": "num_executors",
        **{k: k for k in SimulationConfig.model_fields if k != "num_executors"},
    }
    own = [key for key in ClusterSettings.model_fields if key != "cluster"]
    _refuse_unknown(given, [*own, *of_cluster])
    values = {key: value for key, value in given.items() if key in own}
    if "objective" in values:
        values["objective"] = _accruing(str(values["objective"]))
    try:
        cluster = SimulationConfig.model_validate(
            {of_cluster[k]: v for k, v in given.items() if k in of_cluster}
        )
        settings = ClusterSettings(**values, cluster=cluster)
    except ValidationError as error:
        raise ConfigError(_in_words(error)) from None
    if settings.idle_lengths > 0 and settings.cluster.world is WorldName.CORES:
        raise ConfigError(
            "setting idle_lengths: there are no idle slots in the world of cores; leave it out, or world as well"
        )
    if settings.num_limits is not None and settings.num_limits > settings.cluster.total_executors:
        raise ConfigError(
            f"setting num_limits = {settings.num_limits}: there are {settings.cluster.total_executors} executors; "
            f"ask for at most as many limits"
        )
    return settings


def _accruing(text: str) -> Objective:
    objective = parse_objective(text)
    if objective not in ACCRUING:
        raise ConfigError(
            f"objective {text!r} does not accrue while time passes; write one of {', '.join(ACCRUING)}"
        )
    return objective


class PackingSettings(BaseModel):
    """Episodes of the packing world: jobs that arrive at random, or those of a log.

    Args:
        rates: arrivals a step; of several, each episode has one.
        window: steps in which jobs arrive.
        mix: which jobs, code or paper; see `parcae.workloads.bernoulli`.
        num_units: capacity of each of `num_resources` resources.
        jobs: play these instead, in pieces of `num_jobs` from a random one on; None: all of them, in every episode.
        objective: slowdown, bounded-slowdown, completion, utilization or makespan (DeepRM, section 3.4).
        reward_scale: what a unit of the objective costs.
        has_image: show the image that DeepRM's network looks at; it is large where capacities are.
        world: everything else, e.g. num_slots; see `PackingConfig`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    rates: tuple[float, ...] = (0.7,)
    window: int = Field(default=50, ge=1)
    mix: str = "code"
    num_units: int = Field(default=10, ge=1)
    num_resources: int = Field(default=2, ge=1)
    jobs: RigidJobs | None = None
    num_jobs: int | None = Field(default=None, ge=1)
    objective: str = "slowdown"
    reward_scale: float = Field(default=1.0, gt=0)
    has_image: bool = True
    world: PackingConfig = PackingConfig()

    @property
    def cost(self) -> Cost:
        """The objective as the world accrues it."""
        return Cost[self.objective.upper().replace("-", "_")]

    @property
    def most_jobs(self) -> int:
        """No episode has more."""
        return self.window if self.jobs is None else self.num_jobs or len(self.jobs)

    def source(self) -> PackingSource:
        """Where the sequences come from; a policy that lets time pass for ever is stopped."""
        config = self.world
        if "max_decisions" not in config.model_fields_set:
            config = config.model_copy(update={"max_decisions": DECISIONS_PER_JOB * self.most_jobs})
        if self.jobs is not None:
            return LogSource(self.jobs, self.num_jobs, config)
        return DrawnSource(
            self.rates, self.window, self.mix, self.num_units, self.num_resources, config
        )


def read_packing(given: Mapping[str, Any]) -> PackingSettings:
    """The settings of `parcae/Packing-v0`; the fields of `PackingConfig` stand beside its own.

    Raises:
        ConfigError: an unknown key (the message suggests one), a value out of range, no such mix or objective, or exact times.
    """
    of_world = [key for key in PackingConfig.model_fields if key != "window"]
    own = [key for key in PackingSettings.model_fields if key != "world"]
    _refuse_unknown(given, [*own, *of_world])
    try:
        world = PackingConfig.model_validate({k: v for k, v in given.items() if k in of_world})
        settings = PackingSettings(**{k: v for k, v in given.items() if k in own}, world=world)
    except ValidationError as error:
        raise ConfigError(_in_words(error)) from None
    names = [cost.name.lower().replace("_", "-") for cost in Cost]
    if settings.objective not in names:
        raise ConfigError(f"objective {settings.objective!r}: write one of {', '.join(names)}")
    if world.mode is not TimeMode.STEPS:
        raise ConfigError("setting mode: the environment's time goes in steps; leave mode out")
    if settings.jobs is not None and not len(settings.jobs):
        raise ConfigError(
            "setting jobs: there are none; give at least one, or leave jobs out to have them drawn"
        )
    longest = job_mix(settings.mix).long[1]
    if settings.jobs is None and longest > world.horizon - world.as_coded:
        raise ConfigError(
            f"setting horizon = {world.horizon}: jobs last up to {longest} steps; give a longer horizon"
        )
    return settings


def _refuse_unknown(given: Iterable[str], known: list[str]) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            raise ConfigError(f"setting {key!r} does not exist; {hint}")


def _in_words(error: ValidationError) -> str:
    words = []
    for detail in error.errors():
        key = ".".join(str(part) for part in detail["loc"]).replace("num_executors", "executors")
        words.append(
            f"setting {key} = {detail['input']!r}: {detail['msg']}" if key else str(detail["msg"])
        )
    return "; ".join(words)
