"""Write a table of every job under every policy of a comparison, as CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from parcae.errors import ConfigError
from parcae.evaluation.compare import Comparison
from parcae.files import check_place, replacing

if TYPE_CHECKING:
    import polars as pl

    from parcae.metrics.later import PairedRuns

#: Supported file name endings.
FORMATS = (".csv", ".parquet")


def check_per_job(path: Path) -> None:
    """Check that `write_per_job` can write this file. Call it before a long run.

    Raises:
        ConfigError: the file's ending is not in FORMATS.
        OSError: the folder does not exist or cannot be written, or the path is a folder.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ConfigError(
            f"{path}: jobs are written as {' or '.join(FORMATS)}; "
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
    """
    import polars as pl

    first_seed = comparison.settings["seeds"][0]
    policies = [policy.name for policy in comparison.policies]
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
    return table.with_columns(
        pl.when(known).then(pl.col("completion_ms", "jct_ms")),
        pl.when(both_known).then(pl.col("ratio_to_first")),
    )


def write_per_job(comparison: Comparison, path: Path) -> None:
    """Write `per_job_table` as CSV or Parquet, depending on the file's ending.

    The file appears only when it is complete.

    Raises:
        ConfigError: as in `check_per_job`.
        OSError: as in `check_per_job`.
    """
    check_per_job(path)
    table = per_job_table(comparison)
    with replacing(path) as stream:
        if Path(path).suffix.lower() == ".csv":
            table.write_csv(stream)
        else:
            table.write_parquet(stream)
