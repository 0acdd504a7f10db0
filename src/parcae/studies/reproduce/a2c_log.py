"""The A2cScheduler paper's table 4: a log of an academic cluster.

The log is run in pieces of 60 jobs, as in the paper, and in pieces of thousands of jobs. The pieces
have no job in common; a short log has fewer or smaller ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

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
    slowdown_findings,
    unfinished_notes,
)
from parcae.studies.reproduce.a2c_trainings import LearnedA2c, learned_a2c, require_fitting_a2c
from parcae.studies.reproduce.packing import Stage
from parcae.studies.reproduce.pictures import save
from parcae.studies.reproduce.study import PackingRequest, StudyResult
from parcae.workloads.rigid import RigidJobs
from parcae.workloads.stepped import SteppedJobs, to_steps
from parcae.workloads.swf import read_swf


@dataclass(frozen=True)
class LogSetting:
    """How a log is converted to a packing world.

    Args:
        num_jobs: number of jobs in a piece for evaluation.
        train_jobs: number of jobs in a piece for training.
        processors: number of processors of the cluster; None for the log's number.
        num_units: number of units of the resource; see `to_steps`.
        backlog: size of the backlog.
        architecture: the network's architecture.
        actor_rate: the actor's learning rate under the recipe "fast".
        quick: largest number of pieces that are evaluated.
        full: largest number of pieces that are evaluated with --full.
        step_s: length of a time step in seconds.
        horizon: number of time steps that a cluster's schedule covers.
    """

    num_jobs: int
    train_jobs: int
    processors: int | None
    num_units: int
    backlog: int
    architecture: Architecture
    actor_rate: float
    quick: int
    full: int
    step_s: int = 3600
    horizon: int = 48

    @property
    def world(self) -> PackingConfig:
        """The cluster's settings."""
        return PackingConfig(num_slots=10, backlog_size=self.backlog, horizon=self.horizon)

    def stepped(self, jobs: RigidJobs) -> SteppedJobs:
        """Convert a part of the log to steps and units."""
        # The cluster is never larger than the log's.
        size = min(self.processors or int(jobs.capacity[0]), int(jobs.capacity[0]))
        return to_steps(
            jobs,
            step_s=self.step_s,
            num_units=min(self.num_units, size),
            horizon=self.horizon,
            capacity=(size,),
        )

    def learning(self, recipe: str) -> list[str]:
        """Changes of the recipe's settings; the recipe "paper" stays as it is."""
        return [f"actor_rate={self.actor_rate}"] if recipe == "fast" else []

    def source(self, stepped: SteppedJobs, num_jobs: int) -> LogSource:
        """A source of pieces of `num_jobs` jobs, or of the whole part if it is shorter."""
        return LogSource(stepped.jobs, min(num_jobs, len(stepped.jobs)), self.world)

    def place(self, name: str, stepped: SteppedJobs) -> str:
        """The name of the results: that of the setting, or the real size of smaller pieces."""
        size = min(self.num_jobs, len(stepped.jobs))
        return name if size == self.num_jobs else f"{size:,} jobs (for {name})"


@dataclass(frozen=True)
class PieceStage(Stage):
    """Consecutive pieces of a log without a common job, `num_runs` at most.

    The first one begins at a job that the seed draws. The source is a `LogSource`.
    """

    @cached_property
    def sequences(self) -> list[RigidJobs]:
        """The pieces, in order of their jobs."""
        source = self.source
        assert isinstance(source, LogSource)
        jobs = source.jobs
        size = source.num_jobs or len(jobs)
        total = min(self.num_runs, len(jobs) // size) * size
        first = int(np.random.default_rng(self.first_seed).integers(len(jobs) - total + 1))
        return [jobs.piece(at, at + size) for at in range(first, first + total, size)]


#: Fewest pieces from which a verdict is given: an interval needs two.
_FEWEST = 2
# Deviation: A2cScheduler 4.3 decides against pooling. The long pieces have it, because without it
# the dense layer of their wide image has four times as many weights; in our table 3 a training then
# plays half as many decisions in the same time.
# The actors' rates were chosen among 0.0003 to 0.005 by trainings of minutes on the log's first
# half. At the rate of the recipe "fast", which suits the paper's jobs, they hardly learn anything.
#: The paper's piece of 60 jobs, on a cluster so small that some jobs wait; and pieces of thousands
#: of jobs on the whole cluster, where jobs wait in bursts.
SETTINGS: Mapping[str, LogSetting] = {
    "60 jobs": LogSetting(60, 60, 256, 32, 60, Architecture.CONV_16, 0.002, 100, 100),
    "2,400 jobs": LogSetting(2_400, 256, None, 54, 2_000, Architecture.CONV_16_POOL, 0.005, 8, 20),
}


def table4(request: PackingRequest) -> StudyResult:
    """Evaluation on a log's second half; training and tuning use its first half.

    Raises:
        ConfigError: the request has no log.

    Source: A2cScheduler, Table 4.
    """
    log = _log_of(request)
    # The first half is for training and tuning, the second for evaluation.
    halves = read_swf(log, estimates="actual").jobs.halves()
    stepped = {name: tuple(map(one.stepped, halves)) for name, one in SETTINGS.items()}
    sources = {name: one.source(stepped[name][0], one.train_jobs) for name, one in SETTINGS.items()}
    require_fitting_a2c(request, list(sources.values()))
    measured: dict[str, Measured] = {}
    learned: dict[str, LearnedA2c] = {}
    notes: list[str] = []
    for name, setting in SETTINGS.items():
        first, second = stepped[name]
        place = setting.place(name, second)
        learned[place] = learned_a2c(
            request, sources[name], f"pieces of {name}",
            request.budget_s / len(SETTINGS), setting.architecture, num_selection=50,
            settings=setting.learning(request.recipe),
        )  # fmt: skip
        measured[place] = _measure(request, name, first, second, learned[place])
        notes.append(_pieces_note(place, measured[place].num_sequences, setting, first, second))
        if measured[place].num_sequences >= _FEWEST:
            notes += orderings(place, measured[place], PUBLISHED_LOG)
        else:
            notes.append(f"{place}: no verdict, since the log has a single piece of this size")
    return StudyResult(
        f"A2cScheduler on a real log ({log.name})",
        "60 jobs of an academic cluster's log: A2cScheduler reduces the slowdown to 1.01 and the "
        "waiting time to almost 0 (Table 4, section 4.5)",
        ("pieces", "policy", *METRICS, "slowdown to sjf", "the paper's three (60 jobs)"),
        [row for place, entry in measured.items() for row in rows_of(place, entry, PUBLISHED_LOG)],
        {
            place: {
                "policies": entry.to_json(),
                "paper": {k: list(v) for k, v in PUBLISHED_LOG.items()},
                "a2c": dict(learned[place].card),
            }
            for place, entry in measured.items()
        },
        [
            *notes,
            PUBLISHED_NOTE,
            "times are in steps of 3,600 s; slowdown uses durations rounded up to whole steps",
            *policy_notes(measured),
            *unfinished_notes(measured),
            *(entry.words for entry in learned.values()),
        ],
        partial(save, partial(draw_slowdowns, measured), (9.0, 4.2)),
        [
            finding
            for place, entry in measured.items()
            if entry.num_sequences >= _FEWEST
            for finding in slowdown_findings(place, entry, PUBLISHED_LOG)
        ],
    )


def _log_of(request: PackingRequest) -> Path:
    """The request's log.

    Raises:
        ConfigError: it has none.
    """
    if request.log is None:
        raise ConfigError(
            "a2c-table4 needs a log of a batch cluster: give --workload LOG.swf. The paper's log "
            "is not public; the DOST-ASTI log of the Parallel Workloads Archive is from an "
            "academic cluster"
        )
    return request.log


def _measure(
    request: PackingRequest, name: str, first: SteppedJobs, second: SteppedJobs, learned: LearnedA2c
) -> Measured:
    """Run all policies on pieces of the log's second half.

    Args:
        request: the study's request.
        name: name of the setting.
        first: the log's first half; Tetris is tuned on it, like the learned policy.
        second: the log's second half.
        learned: the learned policy.
    """
    setting = SETTINGS[name]
    source = setting.source(second, setting.num_jobs)
    num_runs = request.runs(setting.quick, setting.full)
    stage = PieceStage(source, request.first_seed, num_runs, request.processes)
    request.say(f"running all policies on pieces of {name}")
    tuning = setting.source(first, setting.train_jobs)
    return Measured.of(stage, {**rivals(tuning, request.processes), **learned.policies})


def _pieces_note(
    place: str, num_pieces: int, setting: LogSetting, first: SteppedJobs, second: SteppedJobs
) -> str:
    return (
        f"{place}: {num_pieces} consecutive pieces of the log's second half, without a common job; "
        f"{second}; load {second.jobs.load[0]:.2f}; 10 job slots, a "
        f"backlog of {setting.backlog}, a horizon of {setting.horizon} steps; trained on "
        f"pieces of {setting.source(first, setting.train_jobs).num_jobs} jobs of the first half: "
        f"{first}"
    )
