"""Write tables of the jobs of a comparison: of every job, and of every recurring job.

`write_per_job` writes CSV or Parquet, `write_recurring` JSON, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from parcae.base.errors import ConfigError
from parcae.base.files import check_place, replacing
from parcae.base.texts import printable
from parcae.cluster.trace import DECISION_RECORD, NOT_COMPLETED, TASK_RECORD, Trace
from parcae.evaluation.compare import Comparison
from parcae.evaluation.who_pays import RecurringJob, recurring_jobs, verdict

if TYPE_CHECKING:
    import polars as pl

    from parcae.evaluation.compare import Comparison
    from parcae.evaluation.who_pays import PairedRuns


def jobs_frame(trace: Trace) -> pl.DataFrame:
    """One row a job of a run, in order of arrival.

    Columns:
        position: the job's row; job: the recurring job's name; arrival_ms;
        completion_ms, jct_ms: null where the run's end cut the job off;
        executed_ms: time that its tasks that finished took on cores.
    """
    frame = pl.DataFrame(
        {
            "position": range(len(trace.job_names)),
            "job": list(trace.job_names),
            "arrival_ms": trace.arrival_ms,
            "completion_ms": trace.completion_ms,
            "jct_ms": trace.completion_ms - trace.arrival_ms,
            "executed_ms": trace.executed_ms,
        }
    )
    is_complete = pl.Series(trace.completion_ms != NOT_COMPLETED)
    return frame.with_columns(pl.when(is_complete).then(pl.col("completion_ms", "jct_ms")))


def tasks_frame(trace: Trace) -> pl.DataFrame:
    """One row a task of a run, in order of start.

    Columns:
        job: the job's row; stage: its index within the job; task: its index within the stage;
        executor: the core (or executor) that ran it; start_ms; finish_ms.
    """
    if trace.tasks is None:
        raise ConfigError("the run's tasks were not recorded; simulate with record=True")
    return pl.DataFrame({name: trace.tasks[name] for name in TASK_RECORD.names or ()})


def decisions_frame(trace: Trace) -> pl.DataFrame:
    """One row a decision of a run in Decima's world, in order of time.

    Columns:
        clock_ms; source_job: the job whose executors were given away, -1 for idle ones of no job;
        num_source: how many they were; num_schedulable: stages to choose from;
        job, stage: what was chosen, -1 where nothing was; num_executors: how many it got.
    """
    if trace.decisions is None:
        raise ConfigError(
            "the run has no recorded decisions: simulate with record=True in Decima's world "
            "(a cluster with executors); in the world of cores policies plan orders"
        )
    return pl.DataFrame({name: trace.decisions[name] for name in DECISION_RECORD.names or ()})


def comparison_frame(comparison: Comparison) -> pl.DataFrame:
    """One row a policy of a comparison, in the order asked for; times in seconds.

    Columns:
        policy; variant: what the name became; every mean of the summaries;
        average_jct_low_s, average_jct_high_s: the 95% interval of average_jct_s;
        ratio_to_first, ratio_low, ratio_high: average JCT / the first policy's, paired by seed;
        later_share: jobs that end more than 5% later than under the first policy.
    With deadlines, also of every estimate of `parcae.evaluation.deadlines.DeadlineResult` the
    columns NAME, NAME_low and NAME_high. What is unknown, as every interval of one seed, is null.
    """
    rows = []
    for policy in comparison.policies:
        jct = policy.average_jct_s
        ratio = policy.ratio_to_first
        rows.append(
            {
                "policy": printable(policy.name),
                "variant": printable(comparison.resolved.variants.get(policy.name, policy.name)),
                **policy.means(),
                "average_jct_low_s": jct.low,
                "average_jct_high_s": jct.high,
                "ratio_to_first": ratio.mean,
                "ratio_low": ratio.low,
                "ratio_high": ratio.high,
                "later_share": policy.who_pays.later_share.mean,
                **({} if policy.deadlines is None else policy.deadlines.to_columns()),
            }
        )
    return pl.DataFrame(rows).fill_nan(None)


#: File name endings of the table of every job, and of that of recurring jobs.
FORMATS = (".csv", ".parquet")
RECURRING_FORMATS = (".csv", ".json", ".parquet")
RECURRING_COLUMNS = (
    "job", "policy", "runs", "mean_jct_s", "p99_jct_s", "worst_jct_s", "sd_over_seeds_s",
    "ratio_to_first", "ratio_low", "ratio_high", "verdict",
)  # fmt: skip

#: Further columns of recurring jobs where there are deadlines.
DEADLINE_COLUMNS = ("deadline_s", "missed_share", "tardiness_s")


def check_per_job(path: Path, formats: Sequence[str] = FORMATS) -> None:
    """Check that a table of jobs can be written to this file. Call it before a long run."""
    if Path(path).suffix.lower() not in formats:
        raise ConfigError(
            f"{path}: jobs are written as {' or '.join(formats)}; "
            "choose a file name with one of these endings"
        )
    check_place(path)


def per_job_table(comparison: Comparison) -> pl.DataFrame:
    """A table with one row for every seed, job and policy, sorted in this order.

    Columns:
        seed: the seed of the run.
        position: the job's position in order of arrival.
        job: the recurring job's name.
        arrival_ms: time of arrival.
        policy: the policy's name.
        completion_ms, jct_ms: simulated ms; null if the run ended before the job.
        ratio_to_first: jct_ms / that under the first policy; null if either run ended first.
        deadline_ms, missed: only with deadlines: the deadline after arrival, and whether the job
            misses it; null for a job without one.
    """
    import polars as pl

    first_seed = comparison.settings["seeds"][0]
    policies = [printable(policy.name) for policy in comparison.policies]
    seeds = enumerate(comparison.runs, first_seed)
    return pl.concat([_seed_table(seed, runs, policies) for seed, runs in seeds])


def _seed_table(seed: int, runs: PairedRuns, policies: list[str]) -> pl.DataFrame:
    import polars as pl

    num_jobs = len(runs.names)
    num_policies = len(policies)
    complete = runs.is_complete
    # The arrays are [policies, jobs]; transposed, the rows are sorted by job, then policy.
    known = pl.Series(complete.T.ravel())
    both_known = pl.Series((complete & complete[0]).T.ravel())
    table = pl.DataFrame(
        {
            "seed": np.full(num_jobs * num_policies, seed, np.int64),
            "position": np.repeat(np.arange(num_jobs), num_policies),
            "job": np.repeat(np.array(runs.names, object), num_policies).tolist(),
            "arrival_ms": np.repeat(runs.arrival_ms, num_policies),
            "policy": policies * num_jobs,
            "completion_ms": runs.completion_ms.T.ravel(),
            "jct_ms": runs.jct_ms.T.ravel(),
            "ratio_to_first": runs.ratio_to_first.T.ravel(),
        }
    )
    if runs.deadline_ms is not None:
        due = pl.Series(runs.has_deadline.T.ravel())
        table = table.with_columns(
            pl.Series("deadline_ms", np.repeat(runs.deadline_ms, num_policies)),
            pl.Series("missed", runs.missed.T.ravel()),
        ).with_columns(pl.when(due).then(pl.col("deadline_ms", "missed")))
    return table.with_columns(
        pl.when(known).then(pl.col("completion_ms", "jct_ms")),
        pl.when(both_known).then(pl.col("ratio_to_first")),
    )


def recurring_table(comparison: Comparison) -> pl.DataFrame:
    """A table with one row for every recurring job and policy, sorted by the job's name.

    Columns:
        job: the recurring job's name.
        policy: the policy's name.
        runs: number of occurrences over all seeds that completed under every policy.
        mean_jct_s, p99_jct_s, worst_jct_s: mean, 99th percentile and largest JCT, in seconds.
        sd_over_seeds_s: standard deviation over seeds of a seed's mean JCT; null for one seed.
        ratio_to_first, ratio_low, ratio_high: mean JCT / that under the first policy, paired by
            seed, with its 95% interval; null where it is unknown.
        verdict: "gains", "loses" or "unclear"; see `parcae.evaluation.who_pays.verdict`.
        deadline_s, missed_share, tardiness_s: only with deadlines: the deadline after arrival, the
            share of the occurrences that miss it, and their mean time beyond it; null for a job
            without one.
    """
    import polars as pl

    jobs = sorted(recurring_jobs(comparison.runs, 0, comparison.method), key=lambda job: job.name)
    rows = [
        _recurring_row(job, column, printable(policy.name))
        for job in jobs
        for column, policy in enumerate(comparison.policies)
    ]
    # With a schema, the columns are there even if no job completed under every policy.
    texts = dict.fromkeys(("job", "policy", "verdict"), pl.String)
    has_deadlines = comparison.policies[0].deadlines is not None
    columns = (*RECURRING_COLUMNS, *(DEADLINE_COLUMNS if has_deadlines else ()))
    types = {name: texts.get(name, pl.Float64) for name in columns}
    return pl.DataFrame(rows, {**types, "runs": pl.Int64}).fill_nan(None)


def _recurring_row(job: RecurringJob, column: int, policy: str) -> dict[str, object]:
    ratio = job.ratio(column)
    row: dict[str, object] = {
        "job": job.name,
        "policy": policy,
        "runs": job.num_runs,
        "mean_jct_s": job.mean_jct_s[column],
        "p99_jct_s": job.percentile_s(column, 99),
        "worst_jct_s": job.worst_s(column),
        "sd_over_seeds_s": job.spread_s(column),
        "ratio_to_first": ratio.mean,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "verdict": verdict(ratio),
    }
    if job.deadline_s is not None:
        row |= {
            "deadline_s": job.deadline_s,
            "missed_share": job.missed_share(column),
            "tardiness_s": job.tardiness_s(column),
        }
    return row


def write_recurring(comparison: Comparison, path: Path) -> None:
    """Write `recurring_table` as CSV, JSON or Parquet, depending on the file's ending.

    The file appears only when it is complete.
    """
    check_per_job(path, RECURRING_FORMATS)
    _write(recurring_table(comparison), path)


def write_per_job(comparison: Comparison, path: Path) -> None:
    """Write `per_job_table` as CSV or Parquet, depending on the file's ending.

    The file appears only when it is complete.
    """
    check_per_job(path)
    _write(per_job_table(comparison), path)


def _write(table: pl.DataFrame, path: Path) -> None:
    """Write a table in the format of the file's ending."""
    ending = Path(path).suffix.lower()
    with replacing(path) as stream:
        if ending == ".csv":
            table.write_csv(stream)
        elif ending == ".json":
            stream.write(table.write_json().encode())
        else:
            table.write_parquet(stream)
