"""Tables of stages: their columns, units and contradictions, in three formats."""

from __future__ import annotations

import gzip
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard

from parcae.base.errors import ConfigError, FormatError
from parcae.simulation.config import SimulationConfig
from parcae.workloads.import_report import ImportReport
from parcae.workloads.readers import read_workload
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.stage_table import MAX_RELATIVE_SPREAD, samples_of_spread
from parcae.workloads.workload import Workload
from tests.workloads.spark_log_builder import lz4_blocks, small_log

#: Two runs of one job; the second scans for twice as long.
ROWS: list[dict[str, Any]] = [
    {"job": "r1", "name": "report", "stage": "scan", "parents": [], "tasks": 3}
    | {"durations_ms": [100, 110, 120], "arrival_s": 0.5},
    {"job": "r1", "name": "report", "stage": "join", "parents": ["scan"], "tasks": 2}
    | {"durations_ms": [50, 60], "arrival_s": 0.5},
    {"job": "r2", "name": "report", "stage": "scan", "parents": [], "tasks": 3}
    | {"durations_ms": [200, 220, 240], "arrival_s": 60.5},
    {"job": "r2", "name": "report", "stage": "join", "parents": ["scan"], "tasks": 2}
    | {"durations_ms": [50, 60], "arrival_s": 60.5},
]


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write the rows as CSV, Parquet, JSON or JSON lines, by the ending of the path."""
    if path.suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(path)
    elif path.suffix == ".csv":
        text = [
            {name: ";".join(map(str, c)) if isinstance(c, list) else c for name, c in row.items()}
            for row in rows
        ]
        pl.DataFrame(text, strict=False, infer_schema_length=None).write_csv(path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        path.write_text(json.dumps(rows))
    return path


def _read(path: Path, rows: list[dict[str, Any]], **options: Any) -> tuple[Workload, ImportReport]:
    kind = {".jsonl": "json"}.get(path.suffix, path.suffix[1:])
    return read_workload(kind, [_write(path, rows)], **options)


@pytest.mark.parametrize("file", ["s.csv", "s.parquet", "s.json", "s.jsonl"])
def test_runs_of_a_recurring_name_become_one_job_with_their_spread(
    tmp_path: Path, file: str
) -> None:
    workload, report = _read(tmp_path / file, ROWS)
    (job,) = workload.jobs
    scan, join = job.stages
    assert (job.name, job.num_runs, workload.weights) == ("report", 2, (2.0,))
    assert (scan.num_tasks, scan.name, scan.parents) == (3, "scan", ())
    assert (join.num_tasks, join.name, join.parents) == (2, "join", (0,))
    assert job.work_sigma > 0
    assert (report.num_rows, report.num_bad_rows, report.num_jobs) == (4, 0, 1)


@pytest.mark.parametrize("file", ["s.csv", "s.parquet", "s.json", "s.jsonl"])
def test_recorded_runs_keep_their_arrivals_and_durations(tmp_path: Path, file: str) -> None:
    workload, _ = _read(tmp_path / file, ROWS, recorded=True)
    assert workload.is_recorded
    assert [job.arrival_ms for job in workload.jobs] == [0, 60_000]
    assert workload.jobs[1].stages[0].durations.first[0].tolist() == [200, 220, 240]
    assert workload.jobs[1].work_ms == pytest.approx(3 * 220 + 2 * 55)


def test_a_mean_and_its_spread_stand_for_durations(tmp_path: Path) -> None:
    row = {"job": 1, "stage": 0, "tasks": 4, "duration_mean_s": 2.0, "duration_sd_ms": 500}
    workload, report = _read(tmp_path / "s.csv", [row])
    (stage,) = workload.jobs[0].stages
    samples = stage.durations.first[0]
    assert (workload.jobs[0].name, stage.num_tasks) == ("1", 4)
    assert samples.mean() == pytest.approx(2_000, abs=0.01)
    assert samples.std() == pytest.approx(500, abs=0.5)
    assert "no column parents" in report.notes[0]


@pytest.mark.parametrize("relative", [0.01, 0.3, 1.0, MAX_RELATIVE_SPREAD])
def test_samples_have_the_mean_and_the_spread_that_they_stand_for(relative: float) -> None:
    samples = samples_of_spread(10_000, 10_000 * relative)
    assert samples.min() >= 0
    assert samples.mean() == pytest.approx(10_000, abs=0.01)
    assert samples.std() == pytest.approx(10_000 * relative, rel=0.001)


def test_times_of_typed_columns_need_no_unit(tmp_path: Path) -> None:
    frame = pl.DataFrame({"job": [1, 2], "stage": [0, 0], "durations": [[1_500], [2_500]]})
    second = datetime(2024, 5, 1, 12, 0, 30, tzinfo=UTC)
    frame = frame.with_columns(
        pl.col("durations").cast(pl.List(pl.Duration("ms"))),
        arrival=pl.Series([datetime(2024, 5, 1, 12, tzinfo=UTC), second]),
    )
    frame.write_parquet(tmp_path / "s.parquet")
    workload, _ = read_workload("parquet", [tmp_path / "s.parquet"], recorded=True)
    assert [job.arrival_ms for job in workload.jobs] == [0, 30_000]
    assert [job.work_ms for job in workload.jobs] == [1_500, 2_500]


def test_times_may_be_text_in_a_csv_of_another_separator(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(
        "Job;Stage;Parents;Durations_s;Arrival\n"
        "a;0;;1.5 2.5;2024-05-01T12:00:00Z\n"
        "a;1;0;4;\n"
        "b;0;;1;2024-05-01T14:00:10+02:00\n"
    )
    workload, _ = read_workload("csv", [path], recorded=True)
    assert [job.arrival_ms for job in workload.jobs] == [0, 10_000]
    assert [stage.num_tasks for stage in workload.jobs[0].stages] == [2, 1]
    assert workload.jobs[0].work_ms == 8_000


def test_digits_alone_are_a_number_also_where_they_could_be_a_date(tmp_path: Path) -> None:
    rows = [row | {"arrival_s": {"r1": "20240501", "r2": "20240502"}[row["job"]]} for row in ROWS]
    workload, _ = _read(tmp_path / "s.json", rows, recorded=True)
    assert [job.arrival_ms for job in workload.jobs] == [0, 1_000]


def test_json_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8-sig")
    workload, _ = read_workload("json", [path])
    assert [job.name for job in workload.jobs] == ["report"]


def test_bytes_of_parquet_are_text_or_shown_as_escapes(tmp_path: Path) -> None:
    rows = [{**row, "parents": ";".join(row["parents"])} for row in ROWS]
    texts = pl.col("job", "name", "stage", "parents").cast(pl.Binary)
    hashes = pl.Series("plan_hash", [b"\xff\x00"] * len(rows))
    frame = pl.DataFrame(rows).with_columns(texts).with_columns(hashes)
    frame.write_parquet(tmp_path / "s.parquet")
    # A path may be text.
    workload, report = read_workload("parquet", [str(tmp_path / "s.parquet")])
    assert [job.name for job in workload.jobs] == ["report"]
    assert [stage.name for stage in workload.jobs[0].stages] == ["scan", "join"]
    assert workload.jobs[0].stages[1].parents == (0,)
    assert report.notes[0] == "Ignored the columns plan_hash."


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
@pytest.mark.parametrize("stem", ["stages[1]", "st*", "\udcffs"])
def test_a_name_may_have_brackets_stars_and_bytes_that_are_no_text(
    tmp_path: Path, stem: str, suffix: str
) -> None:
    _write(tmp_path / f"stages1.{suffix}", ROWS[:2])
    path = _write(tmp_path / f"s.{suffix}", ROWS).rename(tmp_path / f"{stem}.{suffix}")
    assert read_workload(suffix, [path])[0].jobs[0].num_runs == 2


def test_the_rows_of_a_parquet_file_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parcae.workloads.stage_table._MOST_ROWS", 3)
    with pytest.raises(FormatError, match=r"s\.parquet: more than 3 rows"):
        _read(tmp_path / "s.parquet", ROWS)


def test_columns_may_have_other_names_and_further_columns_are_ignored(tmp_path: Path) -> None:
    row = {"run_id": 7, "stage": 1, "times": "2 4", "owner": "x", "job": "not this"}
    path = tmp_path / "s.csv"
    workload, report = _read(path, [row], columns="job=run_id,durations=times", unit="s")
    assert (workload.jobs[0].name, workload.jobs[0].work_ms) == ("7", 6_000)
    assert report.notes[0] == "Ignored the columns owner, job."
    with pytest.raises(ConfigError, match="did you mean 'durations'"):
        read_workload("csv", [path], columns="duration=times")
    with pytest.raises(ConfigError, match="no such column; did you mean 'times'"):
        read_workload("csv", [path], columns="durations=time")
    with pytest.raises(ConfigError, match="expected MEANING=COLUMN"):
        read_workload("csv", [path], columns="durations")
    for columns, twice in (("job=user,job=run_id", "job"), ("job=run_id,name=run_id", "run_id")):
        with pytest.raises(ConfigError, match=f"{twice} is there twice"):
            read_workload("csv", [path], columns=columns)
    with pytest.raises(ConfigError, match="no unit 'hours'"):
        read_workload("csv", [path], unit="hours")


def test_stages_whose_ids_go_on_counting_are_matched_by_their_dag(tmp_path: Path) -> None:
    numbered = [
        row | {"stage": 10 * index, "parents": [10 * (index - 1)] if row["parents"] else []}
        for index, row in enumerate(ROWS)
    ]
    workload, _ = _read(tmp_path / "s.json", numbered)
    assert [job.num_runs for job in workload.jobs] == [2]
    single = [ROWS[0], ROWS[1] | {"job": "r2", "parents": []}, ROWS[2] | {"job": "r3"}]
    workload, _ = _read(tmp_path / "s.json", [row | {"arrival_s": 0} for row in single])
    assert [job.num_runs for job in workload.jobs] == [2, 1]


@pytest.mark.parametrize(
    ("stages", "num_runs"),
    [
        (["scan orders", "join", "read users", "count"], [1, 1]),
        (["scan 1", "join 2", "read 3", "count 4"], [1, 1]),
        (["scan 1", "join 2", "scan 3", "join 4"], [2]),
        (["task-1", "task-2", "0c6f-a1", "b2d4-e0"], [2]),
    ],
)
def test_words_of_ids_that_go_on_counting_tell_stages_apart(
    tmp_path: Path, stages: list[str], num_runs: list[int]
) -> None:
    rows = [
        row | {"stage": stages[index], "parents": [stages[index - 1]] if row["parents"] else []}
        for index, row in enumerate(ROWS)
    ]
    workload, _ = _read(tmp_path / "s.json", rows)
    assert [job.num_runs for job in workload.jobs] == num_runs


def test_empty_arrivals_leave_the_runs_in_the_order_of_the_file(tmp_path: Path) -> None:
    rows = [row | {"name": row["job"], "arrival_s": None} for row in ROWS]
    rows[0]["arrival_s"] = 99
    workload, _ = _read(tmp_path / "s.json", rows)
    assert [job.name for job in workload.jobs] == ["r1", "r2"]


BAD: list[tuple[int, dict[str, Any], str]] = [
    (1, {"parents": ["sort"]}, r"s.json:2: job r1: stage join has the unknown parent 'sort'"),
    (0, {"parents": ["join"]}, r"s.json:1: job r1: a cycle through some of the stages scan, join"),
    (1, {"stage": "scan", "parents": []}, r"s.json:2: job r1: stage scan is there twice \(row 1\)"),
    (2, {"durations_ms": [5, float("nan")]}, r"s.json:3: job r2: nan is not a finite number"),
    (2, {"durations_ms": [5, float("inf")]}, r"s.json:3: job r2: inf is not a finite number"),
    (2, {"durations_ms": [5, -1]}, r"s.json:3: job r2: -1 is negative"),
    (2, {"durations_ms": [1e300]}, r"s.json:3: job r2: 1e\+300 is a duration of more than 31"),
    (2, {"durations_ms": ["ten"]}, r"s.json:3: job r2: 'ten' is not a number"),
    (2, {"durations_ms": [True]}, r"s.json:3: job r2: True is not a number"),
    (2, {"durations_ms": []}, r"s.json:3: job r2: neither durations nor duration_mean"),
    (2, {"duration_mean_ms": 5}, r"s.json:3: job r2: both durations and duration_mean"),
    (3, {"tasks": 1}, r"s.json:4: job r2: 2 durations of 1 tasks"),
    (3, {"tasks": 1.5}, r"s.json:4: job r2: 1.5 tasks: expected a whole number"),
    (3, {"tasks": 10**400}, r"s.json:4: job r2: 1\d+\.\.\. is not a number"),
    (3, {"name": "other"}, r"s.json:4: job r2: another name than in row 3"),
    (3, {"arrival_s": 61}, r"s.json:4: job r2: another arrival than in row 3"),
    (3, {"arrival_s": "soon"}, r"s.json:4: job r2: 'soon' is not a number"),
    (3, {"stage": None}, r"s.json:4: job r2: the cell of stage is empty"),
    (3, {"job": [1]}, r"s.json:4: \[1\] is not a name"),
    (3, {"job": float("nan")}, r"s.json:4: nan is not a name"),
    *(
        (
            3,
            {"durations_ms": None, "duration_mean_ms": mean, "duration_sd_ms": spread},
            rf"s.json:4: job r2: a spread of {spread} ms around {mean} ms; it may be at most 5",
        )
        for mean, spread in ((100, 501), (0, 1))
    ),
]


@pytest.mark.parametrize(("index", "change", "message"), BAD)
def test_a_bad_row_is_named_and_its_job_left_out(
    tmp_path: Path, index: int, change: dict[str, Any], message: str
) -> None:
    rows = [dict(row) for row in ROWS]
    rows[index] |= change
    path = tmp_path / "s.json"
    with pytest.raises(FormatError, match=message):
        _read(path, rows)
    workload, report = _read(path, rows, max_bad_share=0.5)
    assert report.num_bad_rows == 1
    if rows[index]["job"] in ("r1", "r2"):
        assert workload.jobs[0].num_runs == 1
        assert "Left out 1 job with bad rows" in report.notes[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"no column job, stage"),
        ([{"job": 1, "stage": 1}], r"no column durations \(or duration_mean\), tasks"),
        ([{"job": 1, "stage": 1, "tasks": 2, "duration_sd_ms": 2}], "no column durations"),
        ([{"job": 1, "stage": 1, "duration_mean_ms": 5}], "no column tasks"),
        (
            [{"job": 1, "stage": 1, "durations_ms": [5], "durations_s": [1]}],
            "the columns 'durations_ms' and 'durations_s' both give durations",
        ),
        ([{"job": 1, "stage": 1, "durations": [5]}], "does not say its unit"),
        ([5], "s.json:1: not an object"),
    ],
)
def test_columns_that_are_missing_or_contradict_each_other_are_refused(
    tmp_path: Path, rows: list[Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        _read(tmp_path / "s.json", rows)


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("job,stage,tasks,durations_ms\n\nr1,1,2,5;6\n\n\nr2,1,x,5;6\n\n")
    with pytest.raises(FormatError, match=r"1 of 2 rows .*s\.csv:6"):
        read_workload("csv", [path])
    workload, _ = read_workload("csv", [path], max_bad_share=0.5)
    assert [job.name for job in workload.jobs] == ["r1"]


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    text = "job,stage,tasks,durations_ms,durations_ms,x,x\nr1,1,2,5;6,7;8,0,1\n"
    path.write_text(text)
    message = "the columns 'durations_ms' and 'durations_ms' both give durations"
    with pytest.raises(FormatError, match=message):
        read_workload("csv", [path])
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(FormatError, match=message):
        read_workload("csv", [path.with_suffix(".csv.gz")])
    # Columns that mean nothing are ignored, also two of one name.
    path.write_text(text.replace("durations_ms,durations_ms", "durations_ms,y"))
    workload, _ = read_workload("csv", [path])
    assert len(workload.jobs) == 1


def test_durations_that_become_0_are_noted(tmp_path: Path) -> None:
    rows = [
        {"job": "r1", "stage": 1, "tasks": 3, "durations_ms": [0.2, 0, 0.4]},
        {"job": "r2", "stage": 1, "tasks": 1, "durations_ms": [1.2]},
    ]
    _, report = _read(tmp_path / "s.json", rows)
    assert "2 durations below 0.5 ms became 0" in " ".join(report.notes)
    means = [{"job": "r1", "stage": 1, "tasks": 3, "duration_mean_s": 1e-4}]
    _, report = _read(tmp_path / "s.json", means)
    assert "1 duration below 0.5 ms became 0" in " ".join(report.notes)
    _, report = _read(tmp_path / "s.json", ROWS)
    assert "became 0" not in " ".join(report.notes)


def test_a_unit_that_no_column_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--unit s has no effect"):
        _read(tmp_path / "s.json", ROWS, unit="s")


def test_half_a_character_is_no_name(tmp_path: Path) -> None:
    rows = [row | {"name": "a\ud800"} if row["job"] == "r2" else row for row in ROWS]
    with pytest.raises(FormatError, match=r"s.json:3: job r2: .* is not a name"):
        _read(tmp_path / "s.json", rows)


def test_recorded_needs_an_arrival_of_every_run(tmp_path: Path) -> None:
    rows = [row | {"arrival_s": None} if row["job"] == "r2" else row for row in ROWS]
    with pytest.raises(FormatError, match=r"s.json:3: job r2: its arrival is missing"):
        _read(tmp_path / "s.json", rows, recorded=True)
    without = [{name: c for name, c in row.items() if name != "arrival_s"} for row in ROWS]
    with pytest.raises(FormatError, match="no column arrival, which --recorded needs"):
        _read(tmp_path / "s.json", without, recorded=True)


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
def test_folders_and_pipes_are_refused_and_compressed_text_is_bounded(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(FormatError, match="expected a file with a table"):
            read_workload(kind, [path])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_workload(kind, [tmp_path / "nowhere"])
    if kind == "parquet":
        return
    packed = tmp_path / f"s.{kind}.gz"
    for pack in (lz4_blocks, zstandard.compress, gzip.compress):
        name = packed if pack is gzip.compress else packed.with_suffix("")
        name.write_bytes(pack(_write(tmp_path / f"s.{kind}", ROWS).read_bytes()))
        assert read_workload(kind, [name])[1].num_rows == len(ROWS)
    monkeypatch.setattr("parcae.base.loader.MAX_FILE_BYTES", 100)
    with pytest.raises(FormatError, match=r"more than .* of data"):
        read_workload(kind, [packed])


def test_recorded_runs_of_a_log_are_the_same_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(small_log(runs=4))
    of_log, _ = read_spark_event_logs([tmp_path / "log"], recorded=True)
    rows = [
        {"job": number, "name": job.name, "stage": index, "parents": list(stage.parents)}
        | {"tasks": stage.num_tasks, "duration_mean_ms": stage.mean_task_ms}
        | {"arrival_ms": 1_000_000 + (job.arrival_ms or 0)}
        for number, job in enumerate(of_log.jobs)
        for index, stage in enumerate(job.stages)
    ]
    of_table, _ = _read(tmp_path / "s.parquet", rows, recorded=True)

    def content(workload: Workload) -> list[tuple[Any, ...]]:
        return [
            (job.name, job.arrival_ms, job.work_ms, [stage.parents for stage in job.stages])
            for job in workload.jobs
        ]

    assert content(of_table) == content(of_log)
    arrival_ms = of_table.draw(4, "recorded", SimulationConfig(), seed=1).arrival_ms
    assert arrival_ms.tolist() == [0, 1_000, 2_000, 3_000]


def _text(path: Path, *lines: str) -> Workload:
    path.write_text("\n".join(lines) + "\n")
    return read_workload("csv", [path])[0]


def test_a_decimal_comma_is_refused_in_a_table_separated_by_semicolons(tmp_path: Path) -> None:
    head = "job;stage;tasks"
    for column in ("durations_s", "duration_mean_s"):
        with pytest.raises(FormatError, match="'1,5' is not a number; write a decimal point"):
            _text(tmp_path / "s.csv", f"{head};{column}", "1;a;3;1,5")
    (job,) = _text(tmp_path / "s.csv", f"{head};durations_s", "1;a;3;1.5 2.5").jobs
    assert job.stages[0].durations.first[0].tolist() == [1_500, 2_500]


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ("Stage 1", (0,)),
        ("Stage 1; Stage 2", (0, 1)),
        ('"Stage 1,Stage 2"', (0, 1)),
        ("x;Stage 1", (0, 2)),
        ("3.0", (3,)),
        ("3.0 x", (2, 3)),
        ("x 3", (2, 3)),
        ("scan (1);[b]", (4, 5)),
        ('"[b],scan (1)"', (4, 5)),
        ('"[x, scan (1)]"', (2, 4)),
        ("[[b]; x]", (2, 5)),
        ("[x 3]", (2, 3)),
    ],
)
def test_parents_are_matched_as_whole_names_first(
    tmp_path: Path, parents: str, expected: tuple[int, ...]
) -> None:
    names = ("Stage 1", "Stage 2", "x", "3", "scan (1)", "[b]")
    rows = [f"1,{name},,100" for name in names]
    (job,) = _text(
        tmp_path / "s.csv", "job,stage,parents,durations_ms", *rows, f"1,last,{parents},9"
    ).jobs
    last = next(stage for stage in job.stages if stage.name == "last")
    assert tuple(names.index(job.stages[row].name) for row in last.parents) == expected
