"""Solo curves: how long every recurring job takes alone on p executors.

Policies use them as a description of a job's parallelism.

Source: Decima, section 2.2 and Figure 2 (sweet spots of parallelism). Here the curves are measured
by simulating each job alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from parcae.decima.catalog import make_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import SimulatorBatch
from parcae.workloads.durations import Wave
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import JobSequence, Workload

#: Levels: numbers of executors for which there are limits and curves. They are dense for small
#: numbers, and grow by factors of about 1.25 further up.
_LEVELS = (1, 2, 3, 4, 5, 7, 9, 11, 14, 19, 24, 29, 34, 39, 49, 59, 69, 79, 99, 119, 149, 199)
_GROWTH = 1.25
#: Number of simulations of a job at every level, each with different random task durations.
_NUM_DRAWS = 3
#: Upper bounds for the simulators that are in memory at the same time: their number, and the size
#: of their tables.
_CHUNK = 512
_CHUNK_BYTES = 1 << 28
_BYTES_PER_EXECUTOR = 256


class SoloCurves(NamedTuple):
    """Solo durations of a workload's jobs.

    Args:
        levels: int64[num_levels], numbers of executors, ascending; the last is the whole cluster.
        stretch: float64[num_jobs + 1, num_levels], duration alone on that many executors / total
            work. The last row is for jobs that the profile does not know: the geometric mean over
            the jobs.
        mean_work_ms: float64[1], mean work of the workload's jobs: the unit of work and time.

    Example: a job of ideal parallelism has stretch 1, 1/2, 1/3 ... at 1, 2, 3 ... executors.
    """

    levels: npt.NDArray[np.int64]
    stretch: npt.NDArray[np.float64]
    mean_work_ms: npt.NDArray[np.float64]


def limit_levels(num_executors: int) -> npt.NDArray[np.int64]:
    """Return the levels for a cluster of this size, ascending; the last is the whole cluster.

    Example: `limit_levels(6)` is [1, 2, 3, 4, 5, 6].
    """
    levels = [level for level in _LEVELS if level < num_executors]
    while levels and levels[-1] >= _LEVELS[-1] and levels[-1] * _GROWTH < num_executors:
        levels.append(int(levels[-1] * _GROWTH))
    return np.array([*levels, num_executors], np.int64)


#: What of a cluster's settings counts, besides its size.
_SETTINGS = {"moving_delay_ms", "warmup_delay_ms", "durations", "interpolation"}
_CACHE: WeakKeyDictionary[Workload, dict[tuple[Any, ...], SoloCurves]] = WeakKeyDictionary()


def solo_curves(workload: Workload, config: SimulationConfig) -> SoloCurves:
    """Return the solo curves of a workload, measured by simulation and cached per workload.

    This takes about a second for the 154 TPC-H jobs. The simulated cluster has a single executor
    class, whatever the classes of `config`.
    """
    settings = config.model_dump(include=_SETTINGS)
    key = (config.total_executors, *settings.values())
    cached = _CACHE.setdefault(workload, {})
    if key not in cached:
        cached[key] = _measure(workload, limit_levels(config.total_executors), settings)
    return cached[key]


def _measure(
    workload: Workload, levels: npt.NDArray[np.int64], settings: dict[str, Any]
) -> SoloCurves:
    """Simulate every job alone at every level."""
    jobs = workload.jobs
    work_ms = np.array([max(1.0, job.work_ms) for job in jobs])
    stretch = np.ones((len(jobs) + 1, len(levels)))
    num_tasks = np.array([job.num_tasks for job in jobs])
    num_draws = np.array([_NUM_DRAWS if _is_random(job) else 1 for job in jobs])
    below = 0
    for column, level in enumerate(levels.tolist()):
        # Executors beyond a job's number of tasks cannot change its duration, so these levels are
        # copied from the previous one.
        stretch[:-1, column] = stretch[:-1, column - 1]
        changed = np.flatnonzero(num_tasks > below)
        if len(changed):
            cluster = SimulationConfig(num_executors=level, **settings)
            solo_ms = _solo_ms(workload, cluster, changed, num_draws)
            stretch[changed, column] = solo_ms / work_ms[changed]
        below = level
    stretch[-1] = np.exp(np.log(stretch[:-1]).mean(axis=0))
    return SoloCurves(levels, stretch, np.array([max(1.0, workload.mean_work_ms)]))


def _is_random(job: JobSpec) -> bool:
    """Whether a task's duration can differ between runs: it has several samples or levels."""
    tables = [stage.durations for stage in job.stages]
    samples = [values for table in tables for wave in Wave for values in table.by_wave(wave)]
    return any(len(table.levels) > 1 for table in tables) or any(
        len(values) > 0 and values.min() < values.max() for values in samples
    )


def _solo_ms(
    workload: Workload,
    cluster: SimulationConfig,
    jobs: npt.NDArray[np.int64],
    num_draws: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    """Mean duration of each of `jobs` alone on a cluster, in ms.

    `num_draws` has the number of simulations for every job of the workload.
    """
    executors = cluster.total_executors
    policy = make_policy("sjf-cp", executors)
    runs = [(job, draw) for job in jobs.tolist() for draw in range(num_draws[job])]
    durations: list[int] = []
    size = max(1, min(_CHUNK, _CHUNK_BYTES // (_BYTES_PER_EXECUTOR * executors)))
    for first in range(0, len(runs), size):
        chunk = runs[first : first + size]
        sequences = [JobSequence(workload, np.array([job]), np.zeros(1, int)) for job, _ in chunk]
        batch = SimulatorBatch(sequences, cluster, [_NUM_DRAWS * job + draw for job, draw in chunk])
        batch.run(policy.play_many)
        durations += batch.states.jobs.completion_ms[:, 0].tolist()
    totals = np.bincount([job for job, _ in runs], durations)
    return np.maximum(1.0, totals[jobs] / num_draws[jobs])
