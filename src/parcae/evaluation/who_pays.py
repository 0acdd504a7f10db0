"""The jobs of paired runs as a frame, and who pays for a policy's better average.

`paired_jobs` makes the frame of one run. `later_estimates` counts the jobs that end later than
under the first policy, `deadline_estimates` missed deadlines, both over all runs. `by_group` says
what happens to the jobs of a name, of a pool or of a user.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    NO_MATTER,
    RESAMPLE_SEED,
    UNKNOWN,
    Estimate,
    Method,
    is_no_matter,
    mean_over_jobs,
    ratio_estimate,
    share_estimate,
    with_interval,
)

FloatArray = npt.NDArray[np.float64]

#: A job counts as later if it takes more than this many times as long as under the first policy.
LATER = 1.05
#: A job counts as much later if it takes more than this many times as long.
MUCH_LATER = 1.10
#: Sums of samples, beside those under the first policy; see `ratio_of`.
_PAIRS = ("total", "count", "total_first", "count_first")
#: The columns of `paired_jobs` that say whose a job is, and the names of their groups in JSON.
TENANTS = {"pool": "pools", "user": "users", "queue": "queues"}
#: The columns of `paired_jobs`.
JOBS: dict[str, pl.DataType | type[pl.DataType]] = {
    "position": pl.Int64,
    "column": pl.Int64,
    "job": pl.String,
    **dict.fromkeys(TENANTS, pl.String),
    "arrival_ms": pl.Int64,
    "completion_ms": pl.Int64,
    "jct_ms": pl.Int64,
    "ratio_to_first": pl.Float64,
    "has_arrived": pl.Boolean,
    "ideal_ms": pl.Float64,
    "deadline_ms": pl.Float64,
    "user_fair_ms": pl.Float64,
}


_TIMES = ("arrival_ms", "completion_ms")


def paired_jobs(
    traces: Sequence[Trace],
    ideal_ms: FloatArray | None = None,
    deadline_ms: FloatArray | None = None,
    pools: Sequence[str] = (),
    users: Sequence[str] = (),
    user_fair_ms: Sequence[FloatArray] = (),
    queues: Sequence[str] = (),
) -> pl.DataFrame:
    """A row a job and policy, of runs of one job sequence; times in simulated ms.

    Columns:
        position: the job's place in order of arrival; column: the policy's place, the first's is 0;
        job: the recurring job's name; pool: null without pools; user, queue: null where it is not
            known;
        completion_ms: null where the run ended before the job;
        jct_ms: completion - arrival; for a job that its run's end cut off, the time up to the end,
            a lower bound;
        ratio_to_first: jct_ms / that under the first policy, a lower bound if the job is cut off
            under a later one; null if it is cut off under the first. Times below 1 ms, the
            resolution of the clock, count as 1 ms;
        has_arrived: whether the job arrived before the run ended;
        ideal_ms; deadline_ms: null for a job without one;
        user_fair_ms: the time under `user-fair` at the arrivals of the run, null if not known.
    """
    if not traces:
        raise ConfigError("paired runs need at least one run")
    first = traces[0]
    for trace in traces:
        # In a session, jobs arrive after others have ended, under each policy at other times.
        same_times = trace.has_sessions or np.array_equal(trace.arrival_ms, first.arrival_ms)
        if trace.job_names != first.job_names or not same_times:
            raise ConfigError(
                f"the runs of {first.policy} and {trace.policy} are not of the same jobs"
            )
    num_jobs = len(first.job_names)
    unknown = np.full(num_jobs, np.nan)
    no_one = pl.Series([None] * num_jobs)
    of_jobs = {
        "position": np.arange(num_jobs),
        "job": first.job_names,
        "pool": pools or no_one,
        "user": [user or None for user in users] or no_one,
        "queue": [queue or None for queue in queues] or no_one,
        "ideal_ms": unknown if ideal_ms is None else ideal_ms,
        "deadline_ms": unknown if deadline_ms is None else deadline_ms,
    }
    runs = [
        pl.DataFrame({**of_jobs, **{of: np.asarray(getattr(trace, of), np.int64) for of in _TIMES}})
        .with_columns(user_fair_ms=user_fair_ms[column] if user_fair_ms else unknown)
        # The clock at the end of the run.
        .with_columns(column=pl.lit(column), clock_ms=pl.lit(int(trace.clock_ms)))
        for column, trace in enumerate(traces)
    ]
    is_complete = pl.col("completion_ms") != NOT_COMPLETED
    jct_ms = pl.when(is_complete).then("completion_ms").otherwise("clock_ms") - pl.col("arrival_ms")
    counted_ms = jct_ms.clip(1)
    first_ms = pl.when(is_complete).then(counted_ms).first().over("position")
    frame = pl.concat(runs).with_columns(
        completion_ms=pl.when(is_complete).then("completion_ms"),
        jct_ms=jct_ms.clip(0),
        ratio_to_first=counted_ms / first_ms,
        # What would happen at the very time at which a run ends does not happen any more.
        has_arrived=is_complete | (pl.col("arrival_ms") < pl.col("clock_ms")),
        deadline_ms=pl.when(pl.col("deadline_ms").is_finite()).then("deadline_ms"),
    )
    typed = frame.select(pl.col(name).cast(kind) for name, kind in JOBS.items())
    return typed.sort("position", "column").fill_nan(None)


def later_estimates(
    counts: pl.DataFrame, rng: np.random.Generator | None = None
) -> dict[str, Estimate]:
    """How many jobs end later than under the first policy on the same seed, over all seeds.

    Jobs that were cut off under the first policy do not count. A job that was cut off only under
    this policy counts with the time up to the end of the run, which is a lower bound.

    Example: two seeds with the ratios (1.0, 1.2) and (0.5, 1.07): half of the jobs are later, a
    quarter much later.
    """
    known = counts.filter(pl.col("known") > 0)

    def share(column: str) -> Estimate:
        if known.is_empty():
            return UNKNOWN
        return share_estimate(known[column], known["known"], rng=rng)

    return {
        "later_than_first_share": share("later"),
        "later_than_first_by_10_percent_share": share("much_later"),
    }


def later_counts() -> list[pl.Expr]:
    """Of the jobs of a run: with a known ratio, later, much later, and the worst ratio."""
    ratio = pl.col("ratio_to_first")
    return [
        ratio.count().alias("known"),
        (ratio > LATER).sum().alias("later"),
        (ratio > MUCH_LATER).sum().alias("much_later"),
        ratio.max().alias("worst"),
    ]


def later_sentence(share: float, worst: float, first: str) -> str:
    """Who ends later, in one sentence: the share of the jobs, and the worst ratio."""
    if math.isnan(share):
        return f"No job completed under {first}, so it is unknown which jobs end later."
    if share == 0:
        return f"No job ends more than {LATER - 1:.0%} later than under {first}."
    shown = f"{share:.1%}" if share >= 0.0005 else "Less than 0.1%"
    return (
        f"{shown} of the jobs end more than {LATER - 1:.0%} later than under {first}, "
        f"the worst {worst:,.2f} times as late."
    )


def deadline_counts() -> list[pl.Expr]:
    """Of the jobs of a run: with a deadline, how many miss it, and the sum of their tardiness.

    Jobs that had not arrived do not count; those that were cut off count with the time up to then.
    """
    due = pl.col("deadline_ms").filter("has_arrived")
    late_ms = (pl.col("jct_ms") - pl.col("deadline_ms")).filter("has_arrived").clip(0)
    return [
        due.count().alias("due"),
        (late_ms > 0).sum().alias("missed"),
        (late_ms.sum() / MS_PER_S).alias("tardiness_s"),
    ]


#: Names of the estimates about deadlines.
MISSED = "deadlines.missed_share"
MISSED_MINUS_FIRST = "deadlines.missed_minus_first"
TARDINESS = "deadlines.tardiness_s"
TARDINESS_MINUS_FIRST = "deadlines.tardiness_minus_first_s"


def deadline_estimates(
    counts: pl.DataFrame,
    first: pl.DataFrame,
    rng: np.random.Generator | None = None,
) -> dict[str, Estimate]:
    """How a policy does against deadlines, from the counts of its runs and of the first's."""
    # A seed on which no job has a deadline says nothing.
    is_known = (counts["due"] > 0) & (first["due"] > 0)
    if not is_known.any():
        names = (MISSED, MISSED_MINUS_FIRST, TARDINESS, TARDINESS_MINUS_FIRST)
        return dict.fromkeys(names, UNKNOWN)
    own, other = counts.filter(is_known), first.filter(is_known)

    def mean(column: str, base: Sequence[float] | pl.Series | int) -> Estimate:
        return mean_over_jobs(own[column].cast(pl.Float64) - base, own["due"], rng=rng)

    return {
        MISSED: share_estimate(own["missed"], own["due"], rng=rng),
        MISSED_MINUS_FIRST: mean("missed", other["missed"]).within(-1.0, 1.0),
        TARDINESS: mean("tardiness_s", 0).within(0.0),
        TARDINESS_MINUS_FIRST: mean("tardiness_s", other["tardiness_s"]),
    }


def fewest_missed(results: Mapping[str, Mapping[str, Estimate]], first: str) -> str:
    """Which policies miss the fewest deadlines, in one sentence; no text without deadlines.

    Example: "edf misses the fewest deadlines: 3.1% [2.0%, 4.2%]; less that share of fair, -5.0%
    [-7.0%, -3.0%]."
    """
    known = {
        name: one
        for name, one in results.items()
        if MISSED in one and not math.isnan(one[MISSED].mean)
    }
    if not known:
        return ""
    least = min(one[MISSED].mean for one in known.values())
    best, *also = (name for name, one in known.items() if one[MISSED].mean == least)
    who = f"{', '.join([best, *also[:-1]])} and {also[-1]} miss" if also else f"{best} misses"
    said = f"{who} the fewest deadlines: {with_interval(known[best][MISSED], '{:.1%}'.format)}"
    more = known[best][MISSED_MINUS_FIRST]
    if best != first and more.mean != 0:
        said += f"; less that share of {first}, {with_interval(more, '{:+.1%}'.format)}"
    return f"{said}."


def sample_sums(
    jobs: pl.DataFrame, value: str, by: Sequence[str] = (), sample: str = "seed"
) -> pl.DataFrame:
    """The sum (`total`) and the number (`count`) of the known values of a column, by sample.

    A row a group of `by`, policy and sample, sorted by sample.
    """
    sums = (pl.col(value).sum().alias("total"), pl.len().alias("count"))
    return jobs.drop_nulls(value).group_by(*by, "column", sample).agg(*sums).sort(sample)


def ratio_of(pairs: Mapping[str, Any] | pl.DataFrame, method: Method = DEFAULT_METHOD) -> Estimate:
    """The ratio of the means over all jobs, from samples beside those of the first policy.

    `pairs` has the columns `total`, `count`, `total_first` and `count_first`.
    """
    above, below = (
        np.asarray(pairs[f"total{of}"]) / np.asarray(pairs[f"count{of}"]).mean()
        for of in ("", "_first")
    )
    return ratio_estimate(above, below, method, np.random.default_rng(RESAMPLE_SEED))


@dataclass(frozen=True)
class Group:
    """The jobs of one group that completed under every policy, under one policy.

    Args:
        name: the name of the recurring job, the pool, the user or the queue.
        column: the policy's place in the comparison.
        runs: number of jobs over all seeds.
        mean_s, p99_s, worst_s: mean, 99th percentile and largest completion time.
        spread_s: standard deviation over seeds of a seed's mean; NaN for one seed.
        later_share: share of the jobs that take more than LATER times their time under the first.
        deadline_s: the deadline; None for a job without one, as the next two.
        missed_share: share of the jobs that miss it.
        tardiness_s: mean time beyond it.
        ratio: mean / that under the first policy, paired by seed; unknown if it was not asked for.
        to_user_fair: mean / that under `user-fair` at the same arrivals; None if not known.
    """

    name: str
    column: int
    runs: int
    mean_s: float
    p99_s: float
    worst_s: float
    spread_s: float
    later_share: float
    deadline_s: float | None
    missed_share: float | None
    tardiness_s: float | None
    to_user_fair: float | None
    ratio: Estimate

    @property
    def verdict(self) -> str:
        """It "gains" or "loses"; "same": too little to matter, "unclear": it may be chance."""
        if all(abs(end - 1) < NO_MATTER for end in (self.ratio.low, self.ratio.high)):
            return "same"
        if not (self.ratio.high < 1 or self.ratio.low > 1):
            return "unclear"
        if is_no_matter(self.ratio):
            return "same"
        return "gains" if self.ratio.mean < 1 else "loses"


def by_group(
    jobs: pl.DataFrame,
    key: str,
    columns: Collection[int] | None = None,
) -> list[Group]:
    """The groups of a column of `paired_jobs` (with its `seed`), sorted by name, then by policy.

    Args:
        jobs: the jobs of all runs.
        key: the column: "job", "pool", "user" or "queue".
        columns: the policies whose ratios are wanted; None for all. Intervals take time.
    """
    if key == "queue" and jobs[key].n_unique() < 2:
        return []  # the queue of all jobs tells none apart
    is_whole = pl.col("completion_ms").is_not_null().all().over("seed", "position")
    # Whole ms have the same sum in any order: else rounding would decide who gains where a policy
    # only changes the order of equal jobs.
    jct_ms = pl.col("jct_ms").clip(1)
    jct_ms_of_known = pl.col("jct_ms").filter(pl.col("user_fair_ms").is_not_null())
    whole = jobs.filter(is_whole).drop_nulls(key).with_columns(jct_ms, name=pl.col(key))
    late_ms = (pl.col("jct_ms") - pl.col("deadline_ms")).clip(0)
    sums = sample_sums(whole, "jct_ms", ["name"])
    first = sums.filter(pl.col("column") == 0).drop("column")
    by_seed = (
        sums.join(first, on=["name", "seed"], suffix="_first", maintain_order="left")
        .group_by("name", "column", maintain_order=True)
        .agg((pl.col("total") / pl.col("count")).std().alias("spread_s"), *_PAIRS)
    )
    stats = (
        whole.group_by("name", "column")
        .agg(
            pl.len().alias("runs"),
            pl.col("jct_ms").mean().alias("mean_s"),
            pl.col("jct_ms").quantile(0.99, "linear").alias("p99_s"),
            pl.col("jct_ms").max().alias("worst_s"),
            (pl.col("ratio_to_first") > LATER).mean().alias("later_share"),
            pl.col("deadline_ms").max().alias("deadline_s"),
            (late_ms > 0).mean().alias("missed_share"),
            late_ms.mean().alias("tardiness_s"),
            (jct_ms_of_known.sum() / pl.col("user_fair_ms").sum())
            .fill_nan(None)
            .alias("to_user_fair"),
        )
        .join(by_seed, on=["name", "column"])
        .with_columns(
            pl.col("mean_s", "p99_s", "worst_s", "spread_s", "deadline_s", "tardiness_s") / MS_PER_S
        )
        .with_columns(pl.col("spread_s").fill_null(math.nan))
        .sort("name", "column")
    )
    groups = []
    for row in stats.iter_rows(named=True):
        is_wanted = columns is None or row["column"] in columns
        ratio = ratio_of(row) if is_wanted else UNKNOWN
        known = {key: value for key, value in row.items() if key not in _PAIRS}
        groups.append(Group(**known, ratio=ratio))
    return groups


def by_name(
    jobs: pl.DataFrame, key: str, columns: Collection[int] | None = None
) -> dict[str, list[Group]]:
    """The groups of `by_group` by name, those of a name in the order of the policies."""
    found: dict[str, list[Group]] = {}
    for group in by_group(jobs, key, columns):
        found.setdefault(group.name, []).append(group)
    return found


def over_user_fair(jobs: pl.DataFrame) -> dict[int, float]:
    """By column, the share of users who take more than MUCH_LATER times as long as under
    `user-fair` at the same arrivals; empty where no users are known.
    """
    found: dict[int, list[bool]] = {}
    for one in by_group(jobs, "user", []):
        if one.to_user_fair is not None:
            found.setdefault(one.column, []).append(one.to_user_fair > MUCH_LATER)
    return {column: sum(users) / len(users) for column, users in found.items()}


def user_fair_rows(jobs: pl.DataFrame) -> tuple[list[list[str]], list[str]]:
    """The texts of a row a user, name and ratio to `user-fair` under every policy; and of the
    shares of `over_user_fair`. Both are empty where no users are known.
    """
    over = over_user_fair(jobs)
    found = by_name(jobs, "user", []) if over else {}
    rows = [
        [name, *(f"{one.to_user_fair or math.nan:.3f}" for one in own)]
        for name, own in found.items()
    ]
    return rows, [f"{over[column]:.0%}" for column in sorted(over)]
