"""The file of every job under every policy."""

import os
from pathlib import Path

import polars as pl
import pytest

from parcae.evaluation.comparison import Comparison
from parcae.evaluation.per_job import (
    RECURRING_COLUMNS,
    comparison_frame,
    per_job_table,
    recurring_table,
    write_table,
)
from tests.evaluation.made import comparison_of, run_of

#: Two seeds. The last job is cut off in the first seed under the second policy, and in the second
#: seed under the first policy.
_RUNS = (
    run_of(
        ("q1", 'q,"2'), (4_000, 2_000), (5_000, -1), arrival_ms=(0, 1_000), clock_ms=(4_000, 6_000)
    ),
    run_of(("q1",), (-1,), (3_000,), clock_ms=(6_000, 3_000)),
)
_ROWS = [
    (7, 0, "q1", 0, "fair", 4_000, 4_000, 1.0),
    (7, 0, "q1", 0, "fifo", 5_000, 5_000, 1.25),
    (7, 1, 'q,"2', 1_000, "fair", 2_000, 1_000, 1.0),
    (7, 1, 'q,"2', 1_000, "fifo", None, None, None),
    (8, 0, "q1", 0, "fair", None, None, None),
    (8, 0, "q1", 0, "fifo", 3_000, 3_000, None),
]
_COLUMNS = [
    "seed",
    "position",
    "job",
    "arrival_ms",
    "policy",
    "completion_ms",
    "jct_ms",
    "ratio_to_first",
]


def _comparison(*names: str) -> Comparison:
    averages = dict.fromkeys(names or ("fair", "fifo"), (1.0, 1.0))
    return comparison_of(averages, _RUNS, first_seed=7)


def test_every_job_has_a_row_for_every_policy() -> None:
    table = per_job_table(_comparison())
    assert table.columns == _COLUMNS
    assert table.rows() == _ROWS
    types = ["Int64", "Int64", "String", "Int64", "String", "Int64", "Int64", "Float64"]
    assert [str(dtype) for dtype in table.dtypes] == types


@pytest.mark.parametrize(
    ("name", "read"), [("jobs.csv", pl.read_csv), ("jobs.PARQUET", pl.read_parquet)]
)
def test_the_file_holds_the_table(tmp_path: Path, name: str, read: object) -> None:
    write_table(per_job_table(_comparison()), tmp_path / name)
    assert callable(read)
    assert read(tmp_path / name).rows() == _ROWS
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_name_of_a_policy_may_be_a_path_in_another_encoding(tmp_path: Path) -> None:
    comparison = _comparison("fair", os.fsdecode(b"caf\xe9.safetensors"))
    write_table(comparison.jobs_frame(), tmp_path / "jobs.csv")
    write_table(comparison.recurring_frame(), tmp_path / "recurring.json")
    frames = (
        pl.read_csv(tmp_path / "jobs.csv"),
        pl.read_json(tmp_path / "recurring.json"),
        comparison_frame(comparison),
    )
    for frame in frames:
        assert set(frame["policy"]) == {"fair", "caf\ufffd.safetensors"}


_RECURRING_COLUMNS = tuple(RECURRING_COLUMNS)[:-3]
#: Only q1 of the first seed completed under both policies.
_RECURRING = [
    ("q1", "fair", 1, 4.0, 4.0, 4.0, None, 1.0, None, None, "unclear"),
    ("q1", "fifo", 1, 5.0, 5.0, 5.0, None, 1.25, None, None, "unclear"),
]


@pytest.mark.parametrize(
    ("name", "read"),
    [("r.csv", pl.read_csv), ("r.json", pl.read_json), ("r.parquet", pl.read_parquet)],
)
def test_every_recurring_job_has_a_row_for_every_policy(
    tmp_path: Path, name: str, read: object
) -> None:
    comparison = _comparison()
    assert comparison.recurring_frame().rows() == _RECURRING
    write_table(comparison.recurring_frame(), tmp_path / name)
    assert callable(read)
    written = read(tmp_path / name)
    assert tuple(written.columns) == _RECURRING_COLUMNS
    assert written.rows() == _RECURRING


def test_recurring_jobs_that_never_complete_leave_a_table_without_rows() -> None:
    table = recurring_table(comparison_of({"fair": (1.0,), "fifo": (1.0,)}, _RUNS[1:]))
    assert tuple(table.columns) == _RECURRING_COLUMNS
    assert table.is_empty()
