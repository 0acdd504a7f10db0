"""Hold the simulator against a log: the log's own runs, replayed, beside what happened there.

Every application is replayed with its recorded arrivals, its own durations and driver time, its
task slots over time and the order that it had. What a replay cannot match, no prediction can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.texts import s_from_ms
from parcae.cluster.state import MAX_POOLS
from parcae.cluster.trace import Trace
from parcae.policies.names import OLD_JOBS_POOLS, PolicyName
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables, pools_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.elastic import Slots
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.durations import TaskDurations
from parcae.workloads.import_report import counted
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.spark_log.dag import JobRun
from parcae.workloads.spark_log.event_log import LoggedRuns
from parcae.workloads.spark_log.profile import driver_time
from parcae.workloads.workload import JobSequence, Workload

Int64Array = npt.NDArray[np.int64]


#: A query whose simulated time differs by more than this from the logged one gets a reason.
_DIFFERS = 0.05
#: Number of replays with drawn durations.
_DRAWN = 10


@dataclass(frozen=True)
class CheckedQuery:
    """One query of a log: how long it took there and in the replay, for how much of the logged time
    the driver had submitted none of its stages, and why the two differ ("" if they hardly do).
    """

    name: str
    logged_s: float
    simulated_s: float
    driver_s: float
    why: str


@dataclass(frozen=True, eq=False)
class ReplayedLog:
    """One application's replay.

    `ratio` is the simulated mean completion time / the log's. The other ratios are those of replays
    that leave something out: slots that change (`at_constant_cores`: as many as there ever were at
    once), the driver's time, both; and (`drawn_durations`) the mean of ten whose tasks draw their
    durations from those of their stage, as predictions do.
    """

    application: str
    ratio: float
    at_constant_cores: float
    without_driver_time: float
    without_both: float
    drawn_durations: float
    queries: tuple[CheckedQuery, ...]


def check_log(logged: LoggedRuns) -> list[ReplayedLog]:
    """Replay every application of a log, also without what the replay knows."""
    return [_checked(replayed) for replayed in replayed_applications(logged)]


def replay_note(logged: LoggedRuns) -> str:
    """The one number of a log, in words."""
    replayed = list(replayed_applications(logged))
    logged_ms = np.concatenate([one.logged_ms for one in replayed])
    simulated_ms = np.concatenate([one.replay(one.workload, one.slots) for one in replayed])
    return (
        f"Replayed with its own durations, the log's mean completion time comes out at "
        f"{simulated_ms.mean() / logged_ms.mean():.3f} of what it was (parcae workload check)."
    )


class Replayed(NamedTuple):
    """An application's runs, in order of submission, as a replay needs them."""

    name: str
    runs: list[JobRun]
    workload: Workload
    slots: Slots
    logged_ms: Int64Array
    order: OrderPolicy

    def replay(self, workload: Workload, slots: Slots, seed: int | None = None) -> Int64Array:
        """Completion times in ms on these slots, in the order that the application had."""
        return replay(workload, slots, seed, self.order)

    def config(self, size_error: float) -> SimulationConfig:
        """The application's cluster, for policies that know sizes with this error."""
        return _config(self.slots, None).model_copy(update={"estimate_error": size_error})

    def trace(
        self, policy: Any, config: SimulationConfig, seed: int, record: bool = False
    ) -> Trace:
        """The application's jobs under a policy; the seed draws the errors of sizes."""
        return simulate(_sequence(self.workload), policy, config, seed, record=record)


def replayed_applications(logged: LoggedRuns) -> Iterator[Replayed]:
    by_application: dict[str, list[JobRun]] = {}
    for run in sorted(logged.runs, key=lambda run: run.submission_ms):
        if run.end_ms > run.submission_ms:
            by_application.setdefault(run.application, []).append(run)
    for name, runs in by_application.items():
        start_ms = runs[0].submission_ms
        slots = tuple((ms - start_ms, change) for ms, change in runs[0].slots)
        logged_ms = np.array([run.end_ms - run.submission_ms for run in runs], np.int64)
        workload = replayed_workload(runs)
        order = _as_logged(workload, logged.orders[name].policy)
        yield Replayed(name, runs, workload, slots, logged_ms, order)


_FIFO = OrderPolicy("as logged", OrderKind.FIFO_SPARK_JOBS, plan_tables())


def _as_logged(workload: Workload, policy: str) -> OrderPolicy:
    """An application's order; where its allocation file is not here, all pools weigh the same."""
    name = PolicyName(policy)
    if name.word == "fifo":
        return _FIFO
    if len({job.pool for job in workload.jobs}) >= MAX_POOLS:
        # That many are made for one job each.
        return OrderPolicy("as logged", OrderKind.FAIR, plan_tables())
    path = name.pools_file
    is_known = path == OLD_JOBS_POOLS or Path(path).is_file()
    return pools_policy("as logged", path if is_known else "", workload)


def _checked(one: Replayed) -> ReplayedLog:
    jobs = tuple(replace(job, driver_time=None) for job in one.workload.jobs)
    bare = replace(one.workload, jobs=jobs)

    def ratio(simulated_ms: Int64Array) -> float:
        return float(simulated_ms.mean() / one.logged_ms.mean())

    simulated_ms = one.replay(one.workload, one.slots)
    rows = zip(one.runs, one.logged_ms.tolist(), simulated_ms.tolist(), strict=True)
    return ReplayedLog(
        one.name,
        ratio(simulated_ms),
        ratio(one.replay(one.workload, _constant(one.slots))),
        ratio(one.replay(bare, one.slots)),
        ratio(one.replay(bare, _constant(one.slots))),
        float(
            np.mean([ratio(one.replay(one.workload, one.slots, seed)) for seed in range(_DRAWN)])
        ),
        tuple(
            CheckedQuery(
                run.name, s_from_ms(a), s_from_ms(b), s_from_ms(_driver_ms(run)), _why(run, a, b)
            )
            for run, a, b in rows
        ),
    )


def _why(run: JobRun, logged_ms: int, simulated_ms: int) -> str:
    """Why a query took another time in the replay, as far as the log shows it."""
    difference_ms = abs(simulated_ms - logged_ms)
    if difference_ms <= _DIFFERS * logged_ms:
        return ""
    lost = sum(
        stage.num_tasks - (0 if stage.is_filled else len(stage.replayed_ms)) for stage in run.stages
    )
    if lost:
        return f"the ends of {counted(lost, 'task')} are missing in the log"
    waited_ms = sum(stage.waited_ms for stage in run.stages)
    if simulated_ms < logged_ms and waited_ms > difference_ms / 2:
        return (
            f"tasks waited {s_from_ms(waited_ms):.1f} s beside a free core (locality, new "
            "executors)"
        )
    return "queries that ran beside it, or attempts that failed"


def _constant(changes: Slots) -> Slots:
    return ((0, max(accumulate(change for _, change in changes))),)


def _driver_ms(run: JobRun) -> int:
    """For how long in a run none of its stages was submitted, if its stages form one chain."""
    return run.tail_ms + sum(stage.gap_ms for stage in run.stages)


def replayed_workload(runs: Sequence[JobRun]) -> Workload:
    """The runs with the durations that a replay needs, in order of launch."""
    start_ms = runs[0].submission_ms
    jobs = []
    for run in runs:
        stages = [
            StageSpec(
                len(stage.replayed_ms),
                TaskDurations.of(stage.replayed_ms),
                tuple(stage.parents | stage.control_parents),
                name=stage.name,
                spark_job=stage.spark_job,
            )
            for stage in run.stages
        ]
        driver = driver_time([(run, run.stages)], keep_startup=True)
        arrival_ms = run.submission_ms - start_ms
        job = JobSpec(run.name, tuple(stages), arrival_ms, pool=run.pool, driver_time=driver)
        jobs.append(replace(job, user=run.user))
    return Workload("log", tuple(jobs))


def replay(
    workload: Workload, slots: Slots, seed: int | None = None, order: OrderPolicy = _FIFO
) -> Int64Array:
    """Completion times in ms of a workload's recorded jobs, on these slots; with a seed, tasks draw
    their durations.
    """
    trace = simulate(_sequence(workload), order, _config(slots, seed), seed or 0)
    return trace.completion_ms - trace.arrival_ms


def _config(slots: Slots, seed: int | None) -> SimulationConfig:
    return SimulationConfig(
        world=WorldName.CORES,
        num_executors=max(1, *accumulate(change for _, change in slots)),
        durations=DurationMode.LISTED if seed is None else DurationMode.SAMPLED,
        slots=slots,
    )


def _sequence(workload: Workload) -> JobSequence:
    arrivals = np.array([job.arrival_ms for job in workload.jobs], np.int64)
    return JobSequence(workload, np.arange(len(arrivals)), arrivals)
