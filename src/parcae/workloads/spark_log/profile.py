"""Merges the runs of a recurring job into one profile; stages are matched by recursive signatures.

The profile is that of the median run. How much the runs differ is stored with it
(`parcae.workloads.spark_log.profile`).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from parcae.base.arrays import Float64Array, Int64Array
from parcae.workloads.durations import NUM_WAVES, TaskDurations, Wave
from parcae.workloads.job import DriverTime, JobSpec, StageSpec, refined_classes
from parcae.workloads.spark_log.dag import JobRun, StageRun
from parcae.workloads.spark_log.durations import StageSamples
from parcae.workloads.spark_log.losses import LeftOut


class RunSpread(NamedTuple):
    """The spread of the runs of one recurring job."""

    work_sigma: float
    duration_sigma: Float64Array
    scale: Float64Array
    factors: Float64Array


def log_sigma(values: Float64Array) -> float:
    """Standard deviation of the logarithms around their median.

    Values of 0 are ignored; fewer than two values above 0 give 0. The sum of squares is divided by
    the number of values minus one, as for a sample.

    Example: `log_sigma(np.array([1.0, 2.0, 4.0]))` is log 2 = 0.693: the squares of two deviations
    of log 2, divided by 2.
    """
    logs = np.log(values[values > 0])
    if logs.size < 2:
        return 0.0
    return float(np.sqrt(np.square(logs - np.median(logs)).sum() / (logs.size - 1)))


def _log_median(values: Float64Array) -> float:
    """The median of the logarithms, as a value; 0 if no value is above 0.

    Values of 0 are ignored. Between two values it is their geometric mean.
    """
    positive = values[values > 0]
    return float(np.exp(np.median(np.log(positive)))) if positive.size else 0.0


def spread_of_runs(mean_ms: Float64Array, num_tasks: Int64Array, level: Int64Array) -> RunSpread:
    """The spread of the runs of one recurring job.

    Example: three runs of 100, 110 and 130 ms per task, with one stage and equal task counts.
    `work_sigma` is the spread of the three numbers, `duration_sigma` is [0] (the runs' factors
    explain all), and `scale` is [[1.1], [1], [0.846]]. `factors` is the inverse of it here: the
    work of a run's stage / that of the profile, [[0.909], [1], [1.182]].
    """
    work_ms = (mean_ms * num_tasks).sum(axis=1)
    median_ms = _log_median(work_ms)
    factor = (
        np.where(work_ms > 0, work_ms / median_ms, 1.0) if median_ms > 0 else np.ones(len(work_ms))
    )
    relative_ms = mean_ms / factor[:, None]
    scale = np.ones_like(mean_ms)
    # A simulated run has as many tasks as the profile, whose counts are those of the first run.
    factors = num_tasks / num_tasks[0]
    for stage in range(mean_ms.shape[1]):
        # Durations are only comparable at the same parallelism.
        for stage_level in np.unique(level[:, stage]):
            is_level = level[:, stage] == stage_level
            rows = np.flatnonzero(is_level & (mean_ms[:, stage] > 0))
            typical_ms = _log_median(relative_ms[rows, stage])
            scale[rows, stage] = typical_ms / mean_ms[rows, stage]
            if typical_ms > 0:
                factors[is_level, stage] *= mean_ms[is_level, stage] / typical_ms
    duration_sigma = np.array([log_sigma(column) for column in relative_ms.T])
    return RunSpread(log_sigma(work_ms), duration_sigma, scale, factors)


def scaled(samples: Int64Array, scale: float) -> Int64Array:
    """Durations times `scale` in whole ms (int64).

    They are rounded so that their sum is correct to half a ms. Rounding each value separately would
    change the mean of short tasks: 1 ms times 1.4 would stay 1 ms.

    Example: `scaled(np.array([1, 1, 1, 1, 1]), 1.4)` is [1, 2, 1, 2, 1].
    """
    ends = np.rint(np.cumsum(samples * scale)).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), np.int64)


#: Runs are the same job if their task counts differ by at most this factor, or by at most
#: SAME_TASKS_SLACK tasks, in every stage.
SAME_TASKS_FACTOR = 1.5
SAME_TASKS_SLACK = 2

Edges = frozenset[tuple[int, int]]
_NO_END = "had a stage without a successful task in the log"


class Profile(NamedTuple):
    """A recurring job and its number of runs.

    `variant` numbers the different DAGs of one name, from 1. `num_runs` counts all runs, including
    the `num_left_out` runs that were left out of the profile.
    """

    job: JobSpec
    num_runs: int
    variant: int = 1
    num_left_out: int = 0


@dataclass(eq=False)
class _OrderedRun:
    """A run with its stages in canonical order.

    `shape` is equal for runs with the same operators and edges.
    """

    run: JobRun
    order: list[int]
    shape: tuple[tuple[int, ...], tuple[str, ...], Edges]

    @property
    def stages(self) -> list[StageRun]:
        return [self.run.stages[index] for index in self.order]

    @property
    def task_counts(self) -> tuple[int, ...]:
        return tuple(stage.num_tasks for stage in self.stages)


def merge_runs(runs: Sequence[JobRun], *, keep_first_runs: bool = False) -> list[Profile]:
    """Merge runs into one profile for each recurring job, in order of first run.

    Runs are the same job if they have the same name, the same operators and edges, and similar task
    counts. Other jobs of the same name are called "name (2)", "name (3)", ...
    """
    count_of_name: dict[str, int] = defaultdict(int)
    names = {run.name for run in runs}
    profiles = []
    for cluster in _recurring(runs):
        name = cluster[0].run.name
        number = count_of_name[name] + 1
        # A job may itself be called "name (2)".
        while number > 1 and f"{name} ({number})" in names:
            number += 1
        count_of_name[name] = number
        kept = cluster if keep_first_runs else _without_first_runs(cluster)
        job = _merged(name if number == 1 else f"{name} ({number})", kept)
        profiles.append(Profile(job, len(cluster), number, len(cluster) - len(kept)))
    return profiles


def filled(runs: Sequence[JobRun], left_out: LeftOut) -> list[JobRun]:
    """The runs, with durations for stages of which the log has no end of any task.

    They are those of the same stage in the nearest run of the same job. A run without such another
    one is left out.
    """
    if not any(stage.is_lost for run in runs for stage in run.stages):
        return list(runs)
    kept = []
    for cluster in _recurring(runs):
        rows = [(one.run, one.stages) for one in cluster]
        donors = [
            [row for row in rows if not row[1][place].is_lost] for place in range(len(rows[0][1]))
        ]
        for run, stages in rows:
            lost = [place for place, stage in enumerate(stages) if stage.is_lost]
            if not all(donors[place] for place in lost):
                left_out.add(_NO_END, run.task_ms, run.name)
                continue
            for place in lost:
                nearest = _nearest(donors[place], run.submission_ms)[place]
                own = stages[place]
                own.samples = nearest.samples
                own.replayed_ms = np.resize(nearest.replayed_ms, own.num_tasks)
                own.is_filled = True
            kept.append(run)
    return kept


def _nearest(rows: Sequence[tuple[JobRun, list[StageRun]]], time_ms: int) -> list[StageRun]:
    return min(rows, key=lambda row: abs(row[0].submission_ms - time_ms))[1]


def _recurring(runs: Sequence[JobRun]) -> list[list[_OrderedRun]]:
    """The runs of every recurring job, jobs in order of their first run."""
    by_shape: dict[tuple[str, object], list[_OrderedRun]] = defaultdict(list)
    # Neither the jobs nor the numbers in their names depend on the order of the logs.
    for run in sorted(runs, key=lambda run: run.submission_ms):
        ordered = _in_canonical_order(run)
        by_shape[run.name, ordered.shape].append(ordered)
    clusters = itertools.chain.from_iterable(map(_with_similar_tasks, by_shape.values()))
    return sorted(clusters, key=lambda cluster: min(one.run.submission_ms for one in cluster))


def job_of_run(run: JobRun, arrival_ms: int | None) -> JobSpec:
    """A job that consists of this single run."""
    stages = tuple(_merged_stage([stage], stage, 0.0) for stage in run.stages)
    return JobSpec(
        run.name,
        stages,
        arrival_ms,
        pool=run.pool,
        user=run.user,
        queue=run.queue,
        driver_time=driver_time([(run, run.stages)], keep_startup=True),
        session=run.session,
        pauses_ms=_pauses_ms([run]),
        recorded_ms=run.end_ms - run.submission_ms if run.end_ms >= run.submission_ms else None,
        scan_bytes=run.scan_bytes,
    )


def driver_time(
    runs: Sequence[tuple[JobRun, Sequence[StageRun]]], *, keep_startup: bool = False
) -> DriverTime:
    """The driver time of runs, with their stages in the order of the job.

    Without `keep_startup`, an application's first stage has no lag: it waited for the driver and
    the executors to start, which happens once and not in every run of a recurring job.
    """
    return DriverTime(
        np.array([[stage.gap_ms for stage in stages] for _, stages in runs], np.int64),
        np.array(
            [
                [0 if stage.is_startup and not keep_startup else stage.lag_ms for stage in stages]
                for _, stages in runs
            ],
            np.int64,
        ),
        np.array([run.tail_ms for run, _ in runs], np.int64),
    )


def _in_canonical_order(run: JobRun) -> _OrderedRun:
    """Order the stages by signature, so that runs can be compared stage by stage."""
    stages = run.stages
    parents = [stage.parents for stage in stages]
    signature = refined_classes(parents, [stage.kind for stage in stages])
    order = _order(parents, signature, [stage.num_tasks for stage in stages])
    rank = {index: position for position, index in enumerate(order)}
    edges = frozenset(
        (rank[parent], rank[child]) for child, above in enumerate(parents) for parent in above
    )
    signatures = tuple(signature[i] for i in order)
    kinds = tuple(stages[i].kind for i in order)
    return _OrderedRun(run, order, (signatures, kinds, edges))


def _order(
    parents: Sequence[frozenset[int]], signature: Sequence[int], num_tasks: Sequence[int]
) -> list[int]:
    """The indices of the stages by signature.

    Stages of equal kind, ancestors and descendants are ordered by their task counts and those of
    the stages around them, then by submission.
    """
    stages = range(len(parents))
    # Zero-padded numbers sort like numbers.
    by_count = refined_classes(parents, [f"{signature[i]:09d} {num_tasks[i]:09d}" for i in stages])
    numbers = list(signature)
    while True:
        groups = defaultdict[int, list[int]](list)
        for index, number in enumerate(numbers):
            groups[number].append(index)
        tied = [alike for alike in groups.values() if len(alike) > 1]
        if not tied:
            return sorted(stages, key=numbers.__getitem__)
        # The order of one group decides that of the stages around it: otherwise equal chains of
        # stages would cross. The group whose counts differ most is the least likely to change.
        first = max(tied, key=lambda alike: _ratio([num_tasks[i] for i in alike]))
        place = {i: n for n, i in enumerate(sorted(first, key=lambda i: (by_count[i], i)))}
        labels = [f"{numbers[i]:09d} {place.get(i, 0):09d}" for i in stages]
        numbers = refined_classes(parents, labels)


def _ratio(counts: Sequence[int]) -> float:
    return max(counts) / max(1, min(counts))


def _with_similar_tasks(runs: list[_OrderedRun]) -> list[list[_OrderedRun]]:
    """Split runs of one shape by task counts.

    The most frequent counts attract those close to them; of equally frequent ones the earliest.
    """
    by_counts: dict[tuple[int, ...], list[_OrderedRun]] = defaultdict(list)
    for run in runs:
        by_counts[run.task_counts].append(run)
    clusters: list[list[_OrderedRun]] = []
    for counts, equal_runs in sorted(by_counts.items(), key=lambda item: -len(item[1])):
        similar = next((c for c in clusters if _are_close(c[0].task_counts, counts)), None)
        if similar is None:
            clusters.append(list(equal_runs))
        else:
            similar.extend(equal_runs)
    return clusters


def _are_close(counts: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return all(
        max(a, b) <= SAME_TASKS_FACTOR * min(a, b) or abs(a - b) <= SAME_TASKS_SLACK
        for a, b in zip(counts, others, strict=True)
    )


def _without_first_runs(cluster: list[_OrderedRun]) -> list[_OrderedRun]:
    in_order = sorted(cluster, key=lambda ordered: ordered.run.submission_ms)
    num_runs = Counter(ordered.run.application for ordered in in_order)
    first: dict[str, _OrderedRun] = {}
    for ordered in in_order:
        first.setdefault(ordered.run.application, ordered)
    return [
        ordered
        for ordered in cluster
        if num_runs[ordered.run.application] == 1 or first[ordered.run.application] is not ordered
    ]


def _merged(name: str, cluster: list[_OrderedRun]) -> JobSpec:
    """The job of a cluster.

    DAG, order and task counts are those of its first run; the samples are those of all runs.
    """
    first = cluster[0]
    canonical = {index: position for position, index in enumerate(first.order)}
    rows = []
    for ordered in cluster:
        stages_of_run = ordered.stages
        rows.append([stages_of_run[canonical[i]] for i in range(len(stages_of_run))])
    in_order = list(zip(*rows, strict=True))
    spread = _spread(in_order)
    stages = tuple(
        _merged_stage(
            _at_median(runs, spread.scale[:, i]),
            first.run.stages[i],
            float(spread.duration_sigma[i]),
        )
        for i, runs in enumerate(in_order)
    )
    runs = [ordered.run for ordered in cluster]
    return JobSpec(
        name,
        stages,
        work_sigma=spread.work_sigma,
        num_runs=len(runs),
        pool=_most_frequent(run.pool for run in runs),
        user=_most_frequent(run.user for run in runs),
        queue=_most_frequent(run.queue for run in runs),
        driver_time=driver_time(list(zip(runs, rows, strict=True))),
        pauses_ms=_pauses_ms(runs),
        run_factors=spread.factors if len(runs) > 1 else (),
        scan_bytes=float(np.mean([run.scan_bytes for run in runs])),
    )


def _pauses_ms(runs: Iterable[JobRun]) -> tuple[int, ...]:
    return tuple(run.pause_ms for run in runs if run.pause_ms >= 0)


def _most_frequent(names: Iterable[str]) -> str:
    return Counter(names).most_common(1)[0][0]


def _spread(stages: Sequence[Sequence[StageRun]]) -> RunSpread:
    mean_ms = np.array([[_mean_ms(run.samples) for run in runs] for runs in stages], np.float64).T
    num_tasks = np.array([[run.num_tasks for run in runs] for runs in stages], np.int64).T
    level = np.array([[run.samples.level for run in runs] for runs in stages], np.int64).T
    return spread_of_runs(mean_ms, num_tasks, level)


def _mean_ms(samples: StageSamples) -> float:
    """Mean duration without the tasks of fresh executors, if there are others.

    The extra time of fresh executors is not a difference between runs.
    """
    warm = np.concatenate([samples.by_wave[Wave.FIRST], samples.by_wave[Wave.REST]])
    return float((warm if warm.size else samples.by_wave[Wave.FRESH]).mean())


def _at_median(runs: Sequence[StageRun], scale: Float64Array) -> list[StageRun]:
    """The runs of a stage with durations scaled to the median run.

    Durations of fresh executors are not scaled, unless they are all that the run has of the stage.
    """
    scaled_runs = []
    for run, factor in zip(runs, scale.tolist(), strict=True):
        fresh, first, rest = run.samples.by_wave
        is_warm = first.size + rest.size > 0
        fresh = fresh if is_warm else scaled(fresh, factor)
        by_wave = (fresh, scaled(first, factor), scaled(rest, factor))
        scaled_runs.append(replace(run, samples=replace(run.samples, by_wave=by_wave)))
    return scaled_runs


def _merged_stage(runs: Sequence[StageRun], like: StageRun, duration_sigma: float) -> StageSpec:
    """A stage with the DAG and the task count of the run `like`, and the samples of all runs."""
    levels = sorted({run.samples.level for run in runs})
    of_level = [[run.samples for run in runs if run.samples.level == level] for level in levels]
    waves = [
        tuple(np.concatenate([one.by_wave[wave] for one in samples]) for samples in of_level)
        for wave in range(NUM_WAVES)
    ]
    durations = TaskDurations(tuple(levels), *waves)
    warm = np.concatenate([*durations.first, *durations.rest])
    # Durations of fresh executors are not scaled to the median run, so they do not enter its mean.
    is_median = len(runs) > 1 and warm.size > 0
    return StageSpec(
        like.num_tasks,
        durations,
        tuple(like.parents | like.control_parents),
        name=runs[0].name,
        mean_task_ms=float(warm.mean()) if is_median else durations.mean_ms,
        duration_sigma=duration_sigma,
        input_bytes=float(np.mean([run.samples.input_bytes for run in runs])),
        spark_job=like.spark_job,
    )
