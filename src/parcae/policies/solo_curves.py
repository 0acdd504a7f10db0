"""How fast every recurring job runs alone on p executors: what a profile knows of a job's parallelism.

Source: Decima, section 2.2 and Figure 2 (sweet spots of parallelism); measured here by simulating each job alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from parcae.policies.catalog import make_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.many import SimulatorBatch
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec, Wave, Workload

#: Numbers of executors that limits and curves are given for: dense where jobs are small, then by factors of about 1.25.
_LEVELS = (1, 2, 3, 4, 5, 7, 9, 11, 14, 19, 24, 29, 34, 39, 49, 59, 69, 79, 99, 119, 149, 199)
_GROWTH = 1.25
#: Every job is simulated with so many different lucks at every level.
_NUM_LUCKS = 3
#: Simulators that stand side by side in memory: at most so many, and so many bytes of tables.
_CHUNK = 512
_CHUNK_BYTES = 1 << 28
_BYTES_PER_EXECUTOR = 256


class SoloCurves(NamedTuple):
    """Solo durations of a workload's jobs.

    Args:
        levels: int64[num_levels], numbers of executors, ascending; the last is the whole cluster.
        stretch: float64[num_jobs + 1, num_levels], duration alone on that many executors / total work. The last row, for
            jobs that the profile does not know, is the geometric mean over the jobs.
        mean_work_ms: float64[1], mean work of a job, the scale of all that depends on time.

    Example: a job of ideal parallelism has stretch 1, 1/2, 1/3 ... at 1, 2, 3 ... executors.
    """

    levels: npt.NDArray[np.int64]
    stretch: npt.NDArray[np.float64]
    mean_work_ms: npt.NDArray[np.float64]


def limit_levels(num_executors: int) -> npt.NDArray[np.int64]:
    """The numbers of executors that limits are chosen from on a cluster of this size, ascending; the last is all.

    Example: `limit_levels(6)` is [1, 2, 3, 4, 5, 6].
    """
    levels = [level for level in _LEVELS if level < num_executors]
    while levels and levels[-1] >= _LEVELS[-1] and levels[-1] * _GROWTH < num_executors:
        levels.append(int(levels[-1] * _GROWTH))
    return np.array([*levels, num_executors], np.int64)


_Key = tuple[int, int, int, str, str]
_CACHE: WeakKeyDictionary[Workload, dict[_Key, SoloCurves]] = WeakKeyDictionary()


def solo_curves(workload: Workload, config: SimulationConfig) -> SoloCurves:
    """Simulate every job alone at every level (a second for the 154 TPC-H jobs); kept for the next call.

    Executors are taken as alike, whatever the classes of `config`. More executors than a job has tasks change nothing, and are
    not simulated.
    """
    key = (
        config.total_executors,
        config.moving_delay_ms,
        config.warmup_delay_ms,
        str(config.durations),
        str(config.interpolation),
    )
    known = _CACHE.setdefault(workload, {})
    if key not in known:
        known[key] = _measure(workload, config)
    return known[key]


def _measure(workload: Workload, config: SimulationConfig) -> SoloCurves:
    levels = limit_levels(config.total_executors)
    work_ms = np.array([max(1.0, job.work_ms) for job in workload.jobs])
    stretch = np.ones((len(workload.jobs) + 1, len(levels)))
    most = np.array([sum(stage.num_tasks for stage in job.stages) for job in workload.jobs])
    lucks = [_NUM_LUCKS if _has_luck(job) else 1 for job in workload.jobs]
    for column, level in enumerate(levels):
        gains = np.flatnonzero(most > levels[column - 1]) if column > 0 else np.arange(len(most))
        stretch[:-1, column] = stretch[:-1, column - 1]
        stretch[gains, column] = (
            _solo_ms(workload, config, int(level), gains, lucks) / work_ms[gains]
        )
    stretch[-1] = np.exp(np.log(stretch[:-1]).mean(axis=0))
    return SoloCurves(levels, stretch, np.array([max(1.0, workload.mean_work_ms)]))


def _has_luck(job: JobSpec) -> bool:
    """Whether two lucks can differ: a task's duration is drawn from several samples, or levels."""
    laws = [stage.durations for stage in job.stages]
    samples = [sample for law in laws for wave in Wave for sample in law.by_wave(wave)]
    return any(len(law.levels) > 1 for law in laws) or any(
        len(own) > 0 and own.min() < own.max() for own in samples
    )


def _solo_ms(
    workload: Workload,
    config: SimulationConfig,
    num_executors: int,
    jobs: npt.NDArray[np.int64],
    lucks: Sequence[int],
) -> npt.NDArray[np.float64]:
    """Mean duration of each of the jobs alone on so many executors, over as many lucks as `lucks` says for it."""
    cluster = SimulationConfig(
        num_executors=num_executors,
        moving_delay_ms=config.moving_delay_ms,
        warmup_delay_ms=config.warmup_delay_ms,
        durations=config.durations,
        interpolation=config.interpolation,
    )
    policy = make_policy("sjf-cp", num_executors)
    now = np.zeros(1, np.int64)
    runs = [(int(job), luck) for job in jobs for luck in range(lucks[job])]
    durations = np.zeros(len(runs))
    size = max(1, min(_CHUNK, _CHUNK_BYTES // (_BYTES_PER_EXECUTOR * num_executors)))
    for first in range(0, len(runs), size):
        chunk = runs[first : first + size]
        sequences = [JobSequence(workload, np.array([job]), now) for job, _ in chunk]
        batch = SimulatorBatch(sequences, cluster, [_NUM_LUCKS * job + luck for job, luck in chunk])
        batch.run(policy.play_many)
        durations[first : first + len(chunk)] = batch.states.jobs.completion_ms[:, 0]
    starts = np.cumsum([0, *(lucks[job] for job in jobs[:-1])])
    means = (
        np.add.reduceat(durations, starts) / [lucks[job] for job in jobs]
        if len(jobs)
        else durations
    )
    return np.asarray(np.maximum(1.0, means))
