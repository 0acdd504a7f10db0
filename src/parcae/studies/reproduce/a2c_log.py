"""The A2cScheduler paper's table 4: a log of an academic cluster, in pieces of 60 jobs as in the paper, and of thousands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from parcae.errors import ConfigError
from parcae.packing.config import PackingConfig
from parcae.packing.sources import LogSource
from parcae.policies.a2c.layout import Architecture
from parcae.studies.reproduce.a2c import (
    METRICS,
    PUBLISHED_LOG,
    PUBLISHED_NOTE,
    Measured,
    draw_slowdowns,
    orderings,
    policy_notes,
    rivals,
    rows_of,
    unfinished_notes,
)
from parcae.studies.reproduce.a2c_trainings import LearnedA2c, learned_a2c
from parcae.studies.reproduce.packing import Stage
from parcae.studies.reproduce.pictures import save
from parcae.studies.reproduce.study import PackingRequest, StudyResult
from parcae.workloads.rigid import RigidJobs
from parcae.workloads.stepped import Stepped, to_steps
from parcae.workloads.swf import read_swf


@dataclass(frozen=True)
class LogSetting:
    """How a log becomes a packing world.

    Args:
        num_jobs, train_jobs: of the pieces that are evaluated and trained on. processors: of the cluster, None for the log's.
        step_s, horizon, num_units, backlog: of the world, see `to_steps`.
        quick, full: pieces that are evaluated.
    """

    num_jobs: int
    train_jobs: int
    processors: int | None
    num_units: int
    backlog: int
    architecture: Architecture
    quick: int
    full: int
    step_s: int = 3600
    horizon: int = 48

    @property
    def world(self) -> PackingConfig:
        """The cluster."""
        return PackingConfig(num_slots=10, backlog_size=self.backlog, horizon=self.horizon)

    def stepped(self, jobs: RigidJobs) -> Stepped:
        """A part of the log in steps and units."""
        size = min(self.processors or int(jobs.capacity[0]), int(jobs.capacity[0]))
        return to_steps(
            jobs,
            step_s=self.step_s,
            num_units=min(self.num_units, size),
            horizon=self.horizon,
            capacity=(size,),
        )

    def source(self, stepped: Stepped, num_jobs: int) -> LogSource:
        """Pieces of it; of all of it if it is shorter."""
        return LogSource(stepped.jobs, min(num_jobs, len(stepped.jobs)), self.world)


#: The paper's piece, on a cluster so small that some jobs wait; and pieces of thousands on the whole cluster, whose bursts wait.
SETTINGS: Mapping[str, LogSetting] = {
    "60 jobs": LogSetting(60, 60, 256, 32, 60, Architecture.CONV_16, 100, 100),
    "2,400 jobs": LogSetting(2_400, 256, None, 54, 2_000, Architecture.CONV_16_POOL, 8, 20),
}


def table4(request: PackingRequest) -> StudyResult:
    """A log's second half; what is trained is trained on its first half.

    Raises:
        ConfigError: no log.

    Source: A2cScheduler, Table 4.
    """
    if request.log is None:
        raise ConfigError(
            "a2c-table4 needs a log of a batch cluster: --workload LOG.swf (the paper's is not public; DOST-ASTI's of the "
            "Parallel "
            "Workloads Archive is one of an academic cluster)"
        )
    halves = read_swf(request.log, estimates="actual").jobs.halves()
    found: dict[str, Measured] = {}
    learned: dict[str, LearnedA2c] = {}
    notes: list[str] = []
    for name, setting in SETTINGS.items():
        first, second = (setting.stepped(half) for half in halves)
        learned[name] = learned_a2c(
            request, setting.source(first, setting.train_jobs), f"pieces of {name}", request.budget_s / len(SETTINGS),
            setting.architecture, num_selection=50,
        )  # fmt: skip
        source = setting.source(second, setting.num_jobs)
        stage = Stage(
            source, request.first_seed, request.runs(setting.quick, setting.full), request.processes
        )
        request.say(f"playing pieces of {name}")
        tuning = setting.source(first, setting.train_jobs)
        found[name] = Measured.of(
            stage, {**rivals(tuning, request.processes), **learned[name].policies}
        )
        notes += [
            f"{name}: {stage.num_runs} pieces of the log's second half (they may overlap, which the intervals do not know); "
            f"{second}; load {second.jobs.load[0]:.2f}; 10 slots, a backlog of {setting.backlog}, a horizon of {setting.horizon} "
            f"steps; trained on pieces of {setting.train_jobs} jobs of the first half: {first}",
            *orderings(name, found[name], PUBLISHED_LOG),
        ]
    return StudyResult(
        f"A2cScheduler on a real log ({request.log.name})",
        "60 jobs of an academic cluster's log: A2cScheduler brings the slowdown to 1.01, waiting to almost 0 (Table 4, "
        "section 4.5)",
        ("pieces", "policy", *METRICS, "slowdown to sjf", "the paper's three (60 jobs)"),
        [row for name in SETTINGS for row in rows_of(name, found[name], PUBLISHED_LOG)],
        {
            name: {
                "policies": found[name].to_json(), "paper": {k: list(v) for k, v in PUBLISHED_LOG.items()},
                "a2c": dict(learned[name].card),
            }
            for name in SETTINGS
        },
        [
            *notes,
            PUBLISHED_NOTE,
            "times are in steps of 3,600 s; slowdown counts durations that are rounded up to whole steps",
            *policy_notes(),
            *unfinished_notes(found),
            *(own.words for own in learned.values()),
        ],
        partial(save, partial(draw_slowdowns, found), (9.0, 4.2)),
    )  # fmt: skip
