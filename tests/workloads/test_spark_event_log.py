"""The whole reader: real logs of Spark 1.2 to 4.3, merging, recorded arrivals, keys, reports."""

from pathlib import Path
from typing import Any

import pytest

import parcae.workloads
from parcae.base.errors import FormatError
from parcae.workloads.job import JobSpec
from parcae.workloads.spark_log.application import JobStart
from parcae.workloads.spark_log.dag import JobRun, are_one_at_a_time
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.naming import JobGroup, job_name
from parcae.workloads.workload import Workload
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    settings,
    small_log,
    sql_end,
    sql_start,
    stage_info,
    to_bytes,
    whole_job,
)

EXAMPLE = Path(parcae.workloads.__file__).parent / "bundled" / "example-event-log.zstd"
SHARED = Path(__file__).parents[2] / "../shared/data/spark-event-logs"
QUERIES = [
    "daily-revenue",
    "top-customers",
    "segment-report",
    "often-together",
    "dear-products",
    "returning-buyers",
]


def _read(tmp_path: Path, data: bytes, **options: object) -> Workload:
    (tmp_path / "log").write_bytes(data)
    return read_spark_event_logs([tmp_path / "log"], **options)[0]  # type: ignore[arg-type]


def _waves(job: JobSpec) -> list[list[int]]:
    durations = job.stages[0].durations
    return [wave[0].tolist() for wave in (durations.fresh, durations.first, durations.rest)]


def _runs(*infos: dict[str, Any], gap: int = 100, **properties: str) -> list[dict[str, Any]]:
    """A job of one stage for each, every `gap` ms; the log of an executor begins with it."""
    events = [executor()]
    for job, info in enumerate(infos):
        begin = job * gap
        events += whole_job(job, begin, (info, begin, begin + 80), **properties)
    return events


def test_the_bundled_log_has_six_queries_with_broadcast_subquery_and_sampling_edges() -> None:
    workload, report = read_spark_event_logs([EXAMPLE], name="shop")
    assert [job.name for job in workload.jobs if job.name in QUERIES] == QUERIES
    assert (workload.name, workload.weights) == ("shop", (3.0,) * 7)
    assert (report.num_bad_rows, report.num_jobs) == (0, 7)
    jobs = {job.name: job for job in workload.jobs}
    parents = {name: [stage.parents for stage in job.stages] for name, job in jobs.items()}
    # The broadcast side is read by the scan of orders.
    assert parents["segment-report"] == [(), (0,), (1,)]
    # A subquery, and the sampling of the sort.
    assert parents["dear-products"] == [(), (0,), (1,), (2,), (2, 3), (4,)]
    assert parents["returning-buyers"] == [(), (), (0, 1), (2,)]
    assert all(sum(not children for children in job.children) == 1 for job in jobs.values())
    # First waves of the later two runs are pooled, on two executors.
    scan = jobs["daily-revenue"].stages[1]
    assert (scan.name, scan.durations.levels, scan.num_tasks) == ("Scan parquet > Filter", (2,), 8)
    assert (scan.durations.first[0].size, scan.durations.rest[0].size) == (4, 12)


@pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared Spark event logs are not beside this checkout"
)
def test_logs_of_spark_1_2_to_3_3_import() -> None:
    workload, report = read_spark_event_logs([SHARED])
    assert report.num_files == 8
    assert report.num_rows == 755
    assert report.num_jobs == 10
    by_name = {job.name: job for job in workload.jobs}
    foreach = by_name["foreach at <console>:26"]
    assert [stage.parents for stage in foreach.stages] == [(), (0,), (1,)]
    assert [stage.num_tasks for stage in by_name["collect at <console>:26"].stages] == [100, 10]
    assert any("1 job that failed" in note for note in report.notes)
    assert any("15 failed" in note for note in report.notes)


def test_runs_of_one_job_merge_with_their_number_as_weight(tmp_path: Path) -> None:
    workload = _read(tmp_path, small_log(runs=3))
    (job,) = workload.jobs
    assert job.name == "report"
    assert workload.weights == (3.0,)
    assert [stage.parents for stage in job.stages] == [(), (0,)]
    assert job.num_runs == 2
    # The first run, in a new executor, is left out.
    assert _waves(job) == [[], [50, 50], [50, 50]]
    (kept,) = _read(tmp_path, small_log(runs=3), keep_first_runs=True).jobs
    assert kept.num_runs == 3
    assert _waves(kept) == [[50], [50, 50], [50, 50, 50]]


@pytest.mark.parametrize(("gap", "is_alone"), [(700, True), (60, False)])
def test_logs_in_which_jobs_ran_one_at_a_time_say_so(
    gap: int, is_alone: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(small_log(runs=3, gap=gap))
    for recorded in (False, True):
        workload, report = read_spark_event_logs([path], recorded=recorded)
        assert ("measured_alone" in workload.provenance) is is_alone
        assert any("Jobs ran one at a time" in note for note in report.notes) is is_alone


@pytest.mark.parametrize(
    ("times_ms", "is_alone"),
    [
        # 1% of the 30 s in which a job runs is 0.3 s.
        (((0, 10_000), (9_700, 20_000), (50_000, 60_000)), True),
        (((0, 10_000), (9_699, 20_000), (50_000, 60_000)), False),
        (((9_700, 20_000), (0, 10_000), (50_000, 60_000)), True),
        # The second runs within the first.
        (((0, 10_000), (1_000, 1_100), (20_000, 20_001)), True),
        (((0, 10_000), (1_000, 1_102), (20_000, 20_001)), False),
        (((5, 5), (10, 20)), True),
        (((0, 10_000), (20_000, -1)), False),
        (((0, 10_000),), False),
        # A long run overlaps the short ones inside it, also after the first of these ended.
        (((0, 1_000), (10, 20), (500, 900)), False),
    ],
)
def test_jobs_ran_one_at_a_time_if_they_hardly_overlap(
    times_ms: tuple[tuple[int, int], ...], is_alone: bool
) -> None:
    runs = [JobRun("a", begin_ms, [], end_ms=end_ms) for begin_ms, end_ms in times_ms]
    assert are_one_at_a_time(runs) is is_alone


def test_jobs_of_one_name_with_another_dag_are_distinguished(tmp_path: Path) -> None:
    two = (stage_info(0, 4), stage_info(1, 4, scope="sort"))
    events = _runs(*two, spark_jobGroup_id="etl")
    assert [job.name for job in _read(tmp_path, to_bytes(events)).jobs] == ["etl", "etl (2)"]
    # Another job has that name already.
    events += whole_job(2, 200, (stage_info(2, 4), 200, 280), spark_jobGroup_id="etl (2)")
    names = [job.name for job in _read(tmp_path, to_bytes(events)).jobs]
    assert names == ["etl", "etl (3)", "etl (2)"]


def test_the_batches_of_a_dstream_are_one_job(tmp_path: Path) -> None:
    events = [executor()]
    for row, time in enumerate(("06:22:00", "06:22:01.500")):
        scope = f"foreachRDD\n@ {time}" if row else f"foreachRDD @ {time}"
        text = (
            f'Streaming job from <a href="/streaming/batch/?id={row}">[output operation 0, batch '
            f"time {time}]</a>"
        )
        begin = 1_000 * row
        ran = (stage_info(row, 2, scope=scope), begin, begin + 50)
        events += whole_job(row, begin, ran, spark_job_description=text)
    workload = _read(tmp_path, to_bytes(events))
    assert [job.name for job in workload.jobs] == ["Streaming job from [output operation 0]"]
    assert workload.weights == (2.0,)


@pytest.mark.parametrize("key", ["spark.jobGroup.id", "spark.job.description"])
def test_a_key_is_not_what_spark_names_the_broadcast_of_a_query(tmp_path: Path, key: str) -> None:
    """Spark 3.3 and 3.4 give such a job a group and a description of its own."""
    run_id = "a4041b98-1f42-4d12-83d1-e64d6630742e"
    inner = {
        "spark.jobGroup.id": run_id,
        "spark.job.description": f"broadcast exchange (runId {run_id})",
    }
    jobs = [JobStart(0, 0, inner, ()), JobStart(1, 0, {key: "nightly"}, ())]
    assert job_name(JobGroup(jobs), {}, key) == "nightly"
    assert job_name(JobGroup(jobs[:1]), {}, key) is None


def test_a_setting_of_the_application_can_be_the_key(tmp_path: Path) -> None:
    data = to_bytes([settings({"spark.app.name": "nightly"}), *_runs(stage_info(0, 2))])
    assert _read(tmp_path, data, key="spark.app.name").jobs[0].name == "nightly"


def test_a_made_up_job_group_gives_way_to_the_description(tmp_path: Path) -> None:
    group = {"spark_jobGroup_id": "bb0234e5-4157-49a4-b40c-6d538d9f2ec8"}
    query = _runs(stage_info(0, 1), **group, spark_sql_execution_id="0")
    workload = _read(tmp_path, to_bytes([sql_start(0, 0, text="SELECT 1"), *query, sql_end(0)]))
    assert workload.jobs[0].name == "SELECT 1"


def test_a_log_without_a_completed_job_is_refused_with_the_reasons(tmp_path: Path) -> None:
    data = to_bytes([*_runs(stage_info(0, 1))[:-1], job_end(0, "JobFailed")])
    with pytest.raises(FormatError, match=r"no completed job in .*log \(1 job failed: "):
        _read(tmp_path, data)
    with pytest.raises(FormatError, match="the log contains no job at all"):
        _read(tmp_path, to_bytes([executor()]))
    query = _runs(stage_info(0, 1), spark_sql_execution_id="0")
    with pytest.raises(FormatError, match="1 job had not ended when the log did"):
        _read(tmp_path, to_bytes([sql_start(0, 0), *query]))


def test_progress_ends_at_the_size_of_the_files() -> None:
    calls: list[tuple[int, int]] = []
    read_spark_event_logs([EXAMPLE], progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (EXAMPLE.stat().st_size, EXAMPLE.stat().st_size)


def test_bad_lines_are_counted_and_refused_past_the_threshold(tmp_path: Path) -> None:
    lines = small_log(runs=20).splitlines(keepends=True)
    path = tmp_path / "log"
    path.write_bytes(
        b"".join([*lines[:5], b'{"Event":"SparkListenerJobEnd","Job ID":"x"}\n', *lines[5:]])
    )
    _, report = read_spark_event_logs([path])
    assert report.num_bad_rows == 1
    assert report.bad_samples[0].startswith(f"{path}:6: ")
    path.write_bytes(b"".join([*lines[:5], b"nonsense\n" * 10, *lines[5:]]))
    with pytest.raises(FormatError, match=rf"10 of 152 rows .*{path}:6: not a Spark event"):
        read_spark_event_logs([path])
