"""Two runs of one workload on a real cluster, compared job by job: before and after a policy, say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parcae.evaluation.statistics import Estimate, ratio_estimate
from parcae.units import s_from_ms
from parcae.workloads.recorded_run import JobKey, JobOutcome, RecordedJob, RecordedRun
from parcae.workloads.spark_run import read_spark_run

#: Seed of the bootstrap's resamples, and fewest pairs for which its interval is not known to be too narrow.
_BOOTSTRAP_SEED = 20_190_819
_MANY_PAIRS = 20
#: Fewest pairs of one recurring name for an interval.
_MIN_PAIRS = 5
#: What the logs are called in results.
LABELS = ("A", "B")


@dataclass(frozen=True)
class LogSummary:
    """What one run came to; averages are over completed jobs, NaN without any.

    Args:
        path: what was read.
        num_applications: logs that it holds.
        num_jobs: jobs in all; `completed`, `failed` and `unfinished` (the log ended first) add up to it.
        average_jct_s, median_jct_s, p95_jct_s: completion - submission.
        makespan_s: last completion (or failure) - first submission.
        num_tasks, task_s: attempts of tasks, and the time for which cores worked for them.
        num_cores: cores ("slots": what one task runs on) of all executors that ever were.
        core_utilization: share of the cores' time in which they worked; None where the log does not tell the cores.
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

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, times in seconds."""
        return {name: _json_number(value) for name, value in vars(self).items()}


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True)
class NameComparison:
    """The jobs of one recurring name: how many in each log, and of its pairs the average JCT in each and their ratio.

    `num_pairs` are those that completed in both logs; without any, averages are NaN and the ratio is None; with fewer than
    five, its interval is unknown.
    """

    name: str
    num_jobs: tuple[int, int]
    num_pairs: int
    average_jct_s: tuple[float, float]
    ratio: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """{"name":, "jobs": {"A":, "B":}, "pairs":, "average_jct_s": {...}, "ratio": {...} or null}"""
        return {
            "name": self.name,
            "jobs": dict(zip(LABELS, self.num_jobs, strict=True)),
            "pairs": self.num_pairs,
            "average_jct_s": dict(zip(LABELS, map(_json_number, self.average_jct_s), strict=True)),
            "ratio": self.ratio.to_json() if self.ratio else None,
        }


@dataclass(frozen=True)
class LogComparison:
    """What came of comparing run A with run B.

    Args:
        runs: what was read, A and B.
        summaries: one each.
        num_pairs: jobs that were matched and completed in both.
        ratio: mean JCT of the pairs in B / in A, with its interval; None without pairs.
        names: by recurring name, in order of first submission.
        unmatched: jobs of each run without a counterpart in the other.
        not_compared: (A, B) that were matched, but did not complete in both.
    """

    runs: tuple[RecordedRun, RecordedRun]
    summaries: tuple[LogSummary, LogSummary]
    num_pairs: int
    ratio: Estimate | None
    names: tuple[NameComparison, ...]
    unmatched: tuple[tuple[RecordedJob, ...], tuple[RecordedJob, ...]]
    not_compared: tuple[tuple[RecordedJob, RecordedJob], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user: what reading left out, and how far the interval can be trusted."""
        notes = [
            f"{label}: {note}"
            for label, run in zip(LABELS, self.runs, strict=True)
            for note in run.notes
        ]
        if self.num_pairs == 0:
            notes.append(
                "No job of A was matched with one of B: are these logs of one workload? --key names jobs otherwise."
            )
        elif self.num_pairs < _MANY_PAIRS:
            notes.append(
                f"The interval rests on {self.num_pairs} pairs; below some {_MANY_PAIRS} it is too narrow."
            )
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """{"logs": {"A":, "B":}, "ratio": {"mean":, "ci95": [], "pairs":}, "names": [], "unmatched": {}, ...}"""
        unmatched = [[_job_json(job) for job in jobs] for jobs in self.unmatched]
        return {
            "logs": {
                label: summary.to_json()
                for label, summary in zip(LABELS, self.summaries, strict=True)
            },
            "ratio": {**self.ratio.to_json(), "pairs": self.num_pairs} if self.ratio else None,
            "names": [name.to_json() for name in self.names],
            "unmatched": dict(zip(LABELS, unmatched, strict=True)),
            "not_compared": [
                dict(zip(LABELS, map(_job_json, pair), strict=True)) for pair in self.not_compared
            ],
            "notes": list(self.notes),
        }


def _job_json(job: RecordedJob) -> dict[str, Any]:
    return {
        "name": job.name,
        "order": job.order,
        "submission_s": s_from_ms(job.submission_ms),
        "outcome": job.outcome.value,
    }


def summarize_run(run: RecordedRun) -> LogSummary:
    """One run in a row of numbers.

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
        num_cores=run.num_cores,
        core_utilization=run.core_utilization,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def compare_runs(a: RecordedRun, b: RecordedRun) -> LogComparison:
    """Match the jobs of two runs by recurring name and order within it, and compare the completion times of the pairs.

    The ratio is of the means, mean(B) / mean(A), over pairs that completed in both, with a percentile bootstrap over pairs.
    Jobs that failed count for the order, so that the later ones of their name keep their counterparts. Completion times
    below 1 ms count as that.

    Example: jobs of 2 and 4 s that take 1 and 3 s in B have the ratio 4/6.
    """
    runs = (a, b)
    jobs: list[dict[JobKey, RecordedJob]] = [{job.key: job for job in run.jobs} for run in runs]
    matched = [(job, jobs[1][key]) for key, job in jobs[0].items() if key in jobs[1]]
    pairs = [pair for pair in matched if _is_completed(pair)]
    unmatched = [
        tuple(job for key, job in jobs[k].items() if key not in jobs[1 - k]) for k in (0, 1)
    ]
    return LogComparison(
        runs=runs,
        summaries=(summarize_run(a), summarize_run(b)),
        num_pairs=len(pairs),
        ratio=_ratio(pairs),
        names=_compare_names(runs, pairs),
        unmatched=(unmatched[0], unmatched[1]),
        not_compared=tuple(pair for pair in matched if not _is_completed(pair)),
    )


def _is_completed(pair: tuple[RecordedJob, RecordedJob]) -> bool:
    return all(job.outcome is JobOutcome.COMPLETED for job in pair)


def _jct_s(pairs: Iterable[tuple[RecordedJob, RecordedJob]], side: int) -> list[float]:
    return [s_from_ms(max(1, pair[side].jct_ms)) for pair in pairs]


def _ratio(pairs: Sequence[tuple[RecordedJob, RecordedJob]], min_pairs: int = 2) -> Estimate | None:
    """Ratio of the means; None without pairs, its interval unknown with fewer than `min_pairs`."""
    if not pairs:
        return None
    estimate = ratio_estimate(
        _jct_s(pairs, 1), _jct_s(pairs, 0), "bootstrap", np.random.default_rng(_BOOTSTRAP_SEED)
    )
    return estimate if len(pairs) >= min_pairs else Estimate(estimate.mean, math.nan, math.nan)


def _compare_names(
    runs: tuple[RecordedRun, RecordedRun], pairs: Sequence[tuple[RecordedJob, RecordedJob]]
) -> tuple[NameComparison, ...]:
    count = [Counter(job.name for job in run.jobs) for run in runs]
    own: dict[str, list[tuple[RecordedJob, RecordedJob]]] = {
        name: [] for name in {**count[0], **count[1]}
    }
    for pair in pairs:
        own[pair[0].name].append(pair)
    return tuple(
        NameComparison(
            name=name,
            num_jobs=(count[0][name], count[1][name]),
            num_pairs=len(alike),
            average_jct_s=(_mean(_jct_s(alike, 0)), _mean(_jct_s(alike, 1))),
            ratio=_ratio(alike, _MIN_PAIRS),
        )
        for name, alike in own.items()
    )


def compare_logs(
    a: Path,
    b: Path,
    *,
    key: str | None = None,
    max_bad_share: float = 0.01,
    progress: Callable[[str, int, int], None] | None = None,
) -> LogComparison:
    """Read the event logs at two paths and compare them; see `compare_runs`.

    Args:
        a, b: a log, a rolling directory, a zip, or a folder of logs, each taken for one run.
        key: the Spark property that names recurring jobs.
        max_bad_share: largest share of unreadable lines that is tolerated.
        progress: called with ("A" or "B", bytes read, bytes in all).

    Raises:
        FormatError: no event log, a damaged one, or none with a completed job.
    """

    def read(label: str, path: Path) -> RecordedRun:
        advance = None if progress is None else lambda done, total: progress(label, done, total)
        return read_spark_run([path], key=key, max_bad_share=max_bad_share, progress=advance)

    return compare_runs(read("A", a), read("B", b))
