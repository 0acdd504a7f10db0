"""Runs and comparisons as polars frames, which write CSV, Parquet and JSON.

Times are simulated ms, as in the traces; a time that never came is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from parcae.cluster.trace import DECISION_RECORD, NOT_COMPLETED, TASK_RECORD, Trace
from parcae.errors import ConfigError
from parcae.texts import printable

if TYPE_CHECKING:
    from parcae.evaluation.compare import Comparison


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

    Raises:
        ConfigError: the run's tasks were not recorded.
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

    Raises:
        ConfigError: the run's decisions were not recorded, or its policy planned orders.
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
