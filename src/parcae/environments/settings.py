"""The settings of the environments, with strict checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parcae.base.errors import ConfigError, refuse_unknown, refused_settings
from parcae.learning.config import Count
from parcae.rigid.config import PackingConfig, TimeMode, most_steps
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost
from parcae.rigid.metrics import parse_cost
from parcae.rigid.sources import DrawnSource, PackingSource, RigidLogSource, job_mix
from parcae.simulation.config import ONLY_EXECUTORS, SimulationConfig, WorldName
from parcae.simulation.objectives import Objective, parse_objective
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import with_parallelism_model
from parcae.workloads.workload import JobSequence, Workload

#: The objectives that accrue while time passes, so that every decision gets its own share of the
#: cost.
ACCRUING = (Objective.AVERAGE_JCT, Objective.MAKESPAN)
#: What users call fields of `SimulationConfig`, where that is another name.
_NAMES = {"num_executors": "executors"}
#: Default of `reward_scale`: the cost of a second (of a job in the system, or of the makespan).
REWARD_SCALE = 0.01
#: Settings of the jobs that the packing world draws; a log's jobs have all of this.
_OF_DRAWN_JOBS = ("rates", "window", "mix", "num_units", "num_resources")
#: Default of `max_decisions` of the packing world, per job: 2,000 for the 50 steps of DeepRM.
DECISIONS_PER_JOB = 40
_Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ClusterSettings(BaseModel):
    """Settings of `parcae/Cluster-v0`: the episodes, the reward and the observation."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    workload: Workload | str | Path = "tpch"
    num_jobs: Count = 10
    arrivals: str = "batch"
    parallelism_model: str = "none"
    objective: Objective = Objective.AVERAGE_JCT
    reward_scale: _Scale = REWARD_SCALE
    max_jobs: Count | None = None
    max_stages: Count | None = None
    num_limits: Count | None = None
    idle_lengths: int = Field(default=0, ge=0, le=100)
    cluster: SimulationConfig = SimulationConfig()

    def load(self) -> Workload:
        """Load the workload and apply the parallelism model."""
        given = self.workload
        workload = given if isinstance(given, Workload) else load_workload(str(given))
        return self.cluster.jobs_of(with_parallelism_model(workload, self.parallelism_model))

    def sequence(self, workload: Workload, seed: int) -> JobSequence:
        """Draw the jobs of the episode of a seed: those of `parcae simulate --seed`."""
        return workload.draw(self.num_jobs, self.arrivals, self.cluster, seed=seed)


def read_cluster(given: Mapping[str, Any]) -> ClusterSettings:
    """Check the keyword arguments of `parcae/Cluster-v0` and return the settings.

    Settings of the cluster (`executors` and the other fields of `SimulationConfig`) are given next
    to those of the environment.
    """
    values = {**given}
    if "objective" in values:
        values["objective"] = parse_objective(str(values["objective"]))
        if values["objective"] not in ACCRUING:
            raise ConfigError(
                f"objective {str(given['objective'])!r} does not accrue while time passes; "
                f"write one of {', '.join(ACCRUING)}"
            )
    keys = {_NAMES.get(key, key): key for key in SimulationConfig.model_fields}
    settings = _read(ClusterSettings, "cluster", SimulationConfig, values, keys)
    _check_choices(settings)
    return settings


def _check_choices(settings: ClusterSettings) -> None:
    """Refuse parts of an action that the cluster does not have, and settings of the other world."""
    cluster = settings.cluster
    is_cores = cluster.world is WorldName.CORES
    if settings.idle_lengths > 0 and is_cores:
        raise ConfigError(
            "setting idle_lengths: the world of cores has no idle slots; "
            "leave out idle_lengths, or leave out world"
        )
    given = cluster.model_fields_set
    unused = [key for key in ONLY_EXECUTORS if key in given and getattr(cluster, key) != ()]
    if settings.parallelism_model != "none":
        unused.append("parallelism_model")
    if unused and is_cores:
        raise ConfigError(
            f"setting {unused[0]}: it exists in the world of executors only; leave it out, or "
            "leave out world"
        )
    if settings.num_limits is not None and settings.num_limits > settings.cluster.total_executors:
        raise ConfigError(
            f"setting num_limits = {settings.num_limits}: there are "
            f"{settings.cluster.total_executors} executors; ask for at most as many limits"
        )


class PackingSettings(BaseModel):
    """Settings of `parcae/Packing-v0`: jobs that are drawn at random, or jobs of a log."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    rates: tuple[float, ...] = (0.7,)
    window: Count = 50
    mix: str = "code"
    num_units: Count = 10
    num_resources: Count = 2
    jobs: RigidJobs | None = None
    num_jobs: Count | None = None
    objective: str = "slowdown"
    reward_scale: _Scale = 1.0
    has_image: bool = True
    world: PackingConfig = PackingConfig()

    @property
    def cost(self) -> Cost:
        """The objective as the world's cost."""
        return parse_cost(self.objective)

    @property
    def most_jobs(self) -> int:
        """The largest number of jobs in an episode."""
        return self.window if self.jobs is None else self.num_jobs or len(self.jobs)

    def source(self) -> PackingSource:
        """Return the source of the job sequences.

        The number of decisions is bounded, so that an episode ends even if a policy lets time pass
        for ever.
        """
        config = self.world
        if "max_decisions" not in config.model_fields_set:
            most = DECISIONS_PER_JOB * self.most_jobs
            if self.jobs is not None:
                # Every step without a placement is a decision.
                most += most_steps(self.jobs, self.num_jobs)
            config = config.model_copy(update={"max_decisions": most})
        if self.jobs is not None:
            if "bound" not in config.model_fields_set:
                # Jobs in seconds have the bound of a log.
                bound = PackingConfig.for_log(self.jobs).bound
                config = config.model_copy(update={"bound": bound})
            return RigidLogSource(self.jobs, self.num_jobs, config)
        return DrawnSource(
            self.rates, self.window, self.mix, self.num_units, self.num_resources, config
        )


def read_packing(given: Mapping[str, Any]) -> PackingSettings:
    """Check the keyword arguments of `parcae/Packing-v0` and return the settings.

    Settings of the world (the fields of `PackingConfig`) are given next to those of the
    environment.
    """
    keys = {key: key for key in PackingConfig.model_fields if key != "window"}
    settings = _read(PackingSettings, "world", PackingConfig, given, keys)
    world = settings.world
    parse_cost(settings.objective)  # raises an error if there is no such objective
    if world.mode is not TimeMode.STEPS:
        raise ConfigError("setting mode: the environment counts time in steps; leave mode out")
    _check_jobs(settings)
    return settings


def _check_jobs(settings: PackingSettings) -> None:
    """Refuse jobs that cannot be played, and settings that do not go with the jobs."""
    if settings.jobs is None and settings.num_jobs is not None:
        raise ConfigError(
            f"setting num_jobs = {settings.num_jobs}: it takes a part of `jobs`, and none are "
            "given; leave num_jobs out (rates and window say how many jobs are drawn), or give jobs"
        )
    unused = [key for key in _OF_DRAWN_JOBS if key in settings.model_fields_set]
    if settings.jobs is not None and unused:
        raise ConfigError(
            f"setting {unused[0]}: it is for jobs that are drawn, but `jobs` are given; leave out "
            f"{' and '.join(unused)}, or leave out jobs"
        )
    if settings.jobs is not None and not len(settings.jobs):
        raise ConfigError(
            "setting jobs: the list is empty; give at least one job, or leave jobs out to draw them"
        )
    world = settings.world
    if settings.jobs is not None and world.ends_early:
        raise ConfigError(
            "setting ends_early: an episode would end with the window in which jobs are drawn, and "
            "given `jobs` have none; leave out ends_early, or leave out jobs"
        )
    longest = job_mix(settings.mix).long[1]
    if settings.jobs is None and longest > world.horizon - world.as_coded:
        raise ConfigError(
            f"setting horizon = {world.horizon}: jobs last up to {longest} steps; "
            f"give a longer horizon"
        )


_Settings = TypeVar("_Settings", bound=BaseModel)


def _read(
    kind: type[_Settings],
    part: str,
    kind_of_part: type[BaseModel],
    given: Mapping[str, Any],
    keys_of_part: Mapping[str, str],
) -> _Settings:
    """The settings that keyword arguments give, among them those of a part with fields of its own.

    `keys_of_part` are the part's fields by the names that users give them. `render_mode=None`,
    which Gymnasium's tools pass on, asks for nothing.
    """
    asked = {k: v for k, v in given.items() if k != "render_mode" or v is not None}
    refuse_unknown(asked, [*(k for k in kind.model_fields if k != part), *keys_of_part])
    own = {k: v for k, v in asked.items() if k not in keys_of_part}
    try:
        of_part = {field: asked[k] for k, field in keys_of_part.items() if k in asked}
        return kind(**own, **{part: kind_of_part.model_validate(of_part)})
    except ValidationError as error:
        raise refused_settings(error.errors(), _NAMES) from None
