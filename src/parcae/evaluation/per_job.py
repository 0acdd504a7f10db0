"""Tables of runs and comparisons as frames and as files: of jobs, tasks, decisions, policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from parcae.base.errors import ConfigError
from parcae.base.files import check_place, replacing
from parcae.base.texts import printable
from parcae.cluster.trace import DECISION_RECORD, NOT_COMPLETED, TASK_RECORD, Trace
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.who_pays import by_group
from parcae.simulation.future import NEVER_MS


def jobs_frame(trace: Trace) -> pl.DataFrame:
    """One row a job of a run, in order of arrival.

    Columns:
        position: the job's row; job: the recurring job's name;
        arrival_ms: null for a job of a session whose predecessor had not ended;
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
    return frame.with_columns(
        pl.when(is_complete).then(pl.col("completion_ms", "jct_ms")),
        pl.when(pl.col("arrival_ms") < int(NEVER_MS)).then("arrival_ms"),
    )


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
    With deadlines, also of every estimate about them the columns NAME, NAME_low and NAME_high.
    What is unknown, as every interval of one seed, is null.
    """
    rows = []
    for policy in comparison.policies:
        numbers = {key: v for key, v in policy.numbers.items() if isinstance(v, float)}
        del numbers["worst_ratio_to_first"]
        row = {
            "policy": printable(policy.name),
            "variant": printable(comparison.resolved.variants.get(policy.name, policy.name)),
            **numbers,
            "average_jct_low_s": policy.average_jct_s.low,
            "average_jct_high_s": policy.average_jct_s.high,
            "ratio_to_first": policy.ratio_to_first.mean,
            "ratio_low": policy.ratio_to_first.low,
            "ratio_high": policy.ratio_to_first.high,
            "later_share": policy.estimates["later_than_first_share"].mean,
        }
        for name, one in policy.estimates.items():
            if name.startswith("deadlines."):
                key = name.removeprefix("deadlines.")
                row |= {key: one.mean, f"{key}_low": one.low, f"{key}_high": one.high}
        rows.append(row)
    return pl.DataFrame(rows).fill_nan(None)


#: File name endings of the table of every job, and of that of recurring jobs.
FORMATS = (".csv", ".parquet")
RECURRING_FORMATS = (".csv", ".json", ".parquet")
#: The columns of the table of recurring jobs; the last three only where there are deadlines.
RECURRING_COLUMNS = {
    "job": pl.String, "policy": pl.String, "runs": pl.Int64, "mean_jct_s": pl.Float64,
    "p99_jct_s": pl.Float64, "worst_jct_s": pl.Float64, "sd_over_seeds_s": pl.Float64,
    "ratio_to_first": pl.Float64, "ratio_low": pl.Float64, "ratio_high": pl.Float64,
    "verdict": pl.String, "deadline_s": pl.Float64, "missed_share": pl.Float64,
    "tardiness_s": pl.Float64,
}  # fmt: skip


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
    policies = pl.Series([printable(policy.name) for policy in comparison.policies])
    is_complete = pl.col("completion_ms").is_not_null()
    counts = pl.col("has_arrived") & pl.col("deadline_ms").is_not_null()
    due = [
        pl.when(counts).then("deadline_ms"),
        pl.when(counts).then(pl.col("jct_ms") > pl.col("deadline_ms")).alias("missed"),
    ]
    return comparison.jobs.select(
        "seed",
        "position",
        "job",
        "arrival_ms",
        pl.lit(policies).gather(pl.col("column")).alias("policy"),
        "completion_ms",
        *(pl.when(is_complete).then(name) for name in ("jct_ms", "ratio_to_first")),
        *(due if comparison.world.has_deadlines else ()),
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
        verdict: "gains", "loses", "same" or "unclear"; see `who_pays.Group.verdict`.
        deadline_s, missed_share, tardiness_s: only with deadlines: the deadline after arrival, the
            share of the occurrences that miss it, and their mean time beyond it; null for a job
            without one.
    """
    names = [printable(policy.name) for policy in comparison.policies]
    rows = [
        (
            job.name, names[job.column], job.runs, job.mean_s, job.p99_s, job.worst_s,
            job.spread_s, job.ratio.mean, job.ratio.low, job.ratio.high, job.verdict,
            job.deadline_s, job.missed_share, job.tardiness_s,
        )
        for job in by_group(comparison.jobs, "job")
    ]  # fmt: skip
    table = pl.DataFrame(rows, RECURRING_COLUMNS, orient="row").fill_nan(None)
    deadlines = ("deadline_s", "missed_share", "tardiness_s")
    return table if comparison.world.has_deadlines else table.drop(deadlines)


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a table in the format of the file's ending; the file appears when it is complete."""
    ending = Path(path).suffix.lower()
    with replacing(path) as stream:
        if ending == ".csv":
            table.write_csv(stream)
        elif ending == ".json":
            stream.write(table.write_json().encode())
        else:
            table.write_parquet(stream)
