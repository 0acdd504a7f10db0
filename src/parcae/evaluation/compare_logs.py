"""Compare two runs of one workload on a real cluster job by job, for example before and after."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from parcae.base.texts import plain, s_from_ms
from parcae.evaluation.statistics import Estimate, ratio_estimate
from parcae.workloads.import_report import counted
from parcae.workloads.recorded_run import JobKey, JobOutcome, RecordedJob, RecordedRun

#: Fewest pairs of one recurring name for an interval.
_MIN_PAIRS = 5
#: Names of the two logs in results.
LABELS = ("A", "B")


@dataclass(frozen=True)
class LogSummary:
    """The figures of one run. Averages are over completed jobs; they are NaN if none completed.

    Args:
        path: the file or folder that was read.
        num_applications: number of application logs in it.
        num_jobs: number of jobs: the sum of `completed`, `failed` and `unfinished` (jobs still
            running when the log ended).
        average_jct_s, median_jct_s, p95_jct_s: completion - submission.
        makespan_s: last completion (or failure) - first submission.
        num_tasks: number of task attempts.
        task_s: time that cores spent on these attempts, summed.
        num_cores: the most cores that were up at once; a task may take several.
        core_utilization: share of the cores' time spent on tasks; None if the log does not state
            the number of cores.
        num_lost_ends: number of tasks without an end in the log, for which it is too low.
    """

    path: str
    num_applications: int
    num_jobs: int
    completed: int
    failed: int
    unfinished: int
    average_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    makespan_s: float
    num_tasks: int
    task_s: float
    num_cores: int
    core_utilization: float | None
    num_lost_ends: int


@dataclass(frozen=True)
class NameComparison:
    """The comparison of the jobs that share one recurring name, user or queue."""

    name: str
    jobs: dict[str, int]
    pairs: int
    average_jct_s: dict[str, float]
    ratio: Estimate | None


@dataclass(frozen=True)
class LogComparison:
    """The result of comparing run A with run B.

    Args:
        runs: the two runs, A and B.
        summaries: one summary for each run.
        num_pairs: number of jobs that were matched and completed in both runs.
        ratio: mean JCT of the pairs in B / in A, with its interval; None without pairs.
        names: the comparison by recurring name, in order of first submission.
        users, queues: the comparison by user and by YARN's queue, where the logs name any.
        unmatched: jobs of each run without a counterpart in the other.
        not_compared: pairs (A, B) that were matched but did not complete in both runs.
    """

    runs: tuple[RecordedRun, RecordedRun]
    summaries: tuple[LogSummary, LogSummary]
    num_pairs: int
    ratio: Estimate | None
    names: tuple[NameComparison, ...]
    users: tuple[NameComparison, ...]
    queues: tuple[NameComparison, ...]
    unmatched: tuple[tuple[RecordedJob, ...], tuple[RecordedJob, ...]]
    not_compared: tuple[tuple[RecordedJob, RecordedJob], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user: what the reader left out, and how reliable the interval is."""
        notes = [
            f"{label}: {note}"
            for label, run in zip(LABELS, self.runs, strict=True)
            for note in run.notes
        ]
        if self.num_pairs == 0 and self.not_compared:
            matched = counted(len(self.not_compared), "job")
            notes.append(
                f"{matched} {'matches' if len(self.not_compared) == 1 else 'match'}, but none "
                "completed in both runs."
            )
        elif self.num_pairs == 0:
            notes.append(
                "No job of A matches a job of B. Check that both logs come from the same workload, "
                "or use --key to name jobs by another property."
            )
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain numbers and text, by log where both have them."""
        found = {
            **{of: getattr(self, of) for of in ("names", "users", "queues", "notes")},
            "logs": _by_log(self.summaries),
            "ratio": {**self.ratio.to_json(), "pairs": self.num_pairs} if self.ratio else None,
            "unmatched": _by_log([_job_json(job) for job in jobs] for jobs in self.unmatched),
            "not_compared": [_by_log(map(_job_json, pair)) for pair in self.not_compared],
        }
        return plain(found)  # type: ignore[no-any-return]


def _by_log(values: Iterable[Any]) -> dict[str, Any]:
    return dict(zip(LABELS, values, strict=True))


def _job_json(job: RecordedJob) -> dict[str, Any]:
    return {
        "name": job.name,
        "order": job.order,
        "submission_s": s_from_ms(job.submission_ms),
        "outcome": job.outcome.value,
    }


def summarize_run(run: RecordedRun) -> LogSummary:
    """Compute the figures of one run.

    Example: completion times of 1, 2 and 9 seconds average 4 with a median of 2.
    """
    count = {outcome: sum(job.outcome is outcome for job in run.jobs) for outcome in JobOutcome}
    jct_s = [s_from_ms(job.jct_ms) for job in run.jobs if job.outcome is JobOutcome.COMPLETED]
    p50, p95 = np.percentile(jct_s, [50, 95]) if jct_s else (math.nan, math.nan)
    return LogSummary(
        path=run.label,
        num_applications=len(run.applications),
        num_jobs=len(run.jobs),
        completed=count[JobOutcome.COMPLETED],
        failed=count[JobOutcome.FAILED],
        unfinished=count[JobOutcome.UNFINISHED],
        average_jct_s=_mean(jct_s),
        median_jct_s=float(p50),
        p95_jct_s=float(p95),
        makespan_s=s_from_ms(run.makespan_ms),
        num_tasks=run.num_tasks,
        task_s=s_from_ms(run.task_ms),
        num_cores=run.cores_at_once or run.num_cores,
        core_utilization=run.core_utilization,
        num_lost_ends=run.num_lost_ends,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def compare_runs(a: RecordedRun, b: RecordedRun) -> LogComparison:
    """Match the jobs of two runs and compare the completion times of the pairs.

    The first job of a recurring name in A is matched with the first of that name in B, the second
    with the second, and so on. Failed jobs count in this order, so that later jobs of the name keep
    their counterparts. The ratio is mean(B) / mean(A) over the pairs that completed in both runs;
    its interval is over pairs. Completion times below 1 ms count as 1 ms.

    Example: jobs of 2 and 4 s that take 1 and 3 s in B have the ratio 4/6.
    """
    in_a: dict[JobKey, RecordedJob] = {job.key: job for job in a.jobs}
    in_b: dict[JobKey, RecordedJob] = {job.key: job for job in b.jobs}
    matched = [(job, in_b[key]) for key, job in in_a.items() if key in in_b]
    # A job that failed or did not end has no completion time to compare.
    pairs = [pair for pair in matched if _is_completed(pair)]
    only_a = tuple(job for key, job in in_a.items() if key not in in_b)
    only_b = tuple(job for key, job in in_b.items() if key not in in_a)
    return LogComparison(
        runs=(a, b),
        summaries=(summarize_run(a), summarize_run(b)),
        num_pairs=len(pairs),
        ratio=_ratio(pairs),
        names=_compare_by("name", (a, b), pairs),
        users=_compare_by("user", (a, b), pairs),
        queues=_compare_by("queue", (a, b), pairs),
        unmatched=(only_a, only_b),
        not_compared=tuple(pair for pair in matched if not _is_completed(pair)),
    )


def _is_completed(pair: tuple[RecordedJob, RecordedJob]) -> bool:
    return all(job.outcome is JobOutcome.COMPLETED for job in pair)


def _jct_s(pairs: Iterable[tuple[RecordedJob, RecordedJob]], side: int) -> list[float]:
    return [s_from_ms(max(1, pair[side].jct_ms)) for pair in pairs]


def _ratio(pairs: Sequence[tuple[RecordedJob, RecordedJob]], min_pairs: int = 2) -> Estimate | None:
    """Ratio of the means; None without pairs. With fewer than `min_pairs` it has no interval."""
    if not pairs:
        return None
    estimate = ratio_estimate(_jct_s(pairs, 1), _jct_s(pairs, 0))
    return estimate if len(pairs) >= min_pairs else Estimate(estimate.mean, math.nan, math.nan)


def _compare_by(
    key: str,
    runs: tuple[RecordedRun, RecordedRun],
    pairs: Sequence[tuple[RecordedJob, RecordedJob]],
) -> tuple[NameComparison, ...]:
    """The comparison by "name", "user" or "queue"; a pair counts for that which it has in A."""
    of = attrgetter(key)
    of_a, of_b = (Counter(map(of, run.jobs)) for run in runs)
    by_name = defaultdict[str, list[tuple[RecordedJob, RecordedJob]]](list)
    for pair in pairs:
        by_name[of(pair[0])].append(pair)
    compared = []
    for name in filter(None, {**of_a, **of_b}):
        own = by_name[name]
        jobs = _by_log((of_a[name], of_b[name]))
        means = _by_log(_mean(_jct_s(own, side)) for side in (0, 1))
        compared.append(NameComparison(name, jobs, len(own), means, _ratio(own, _MIN_PAIRS)))
    return tuple(compared)
