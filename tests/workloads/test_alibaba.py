from __future__ import annotations

import json
import tracemalloc
from codecs import BOM_UTF8
from pathlib import Path

import pytest

from parcae.base import codecs
from parcae.base.errors import ConfigError, FormatError
from parcae.decima.alibaba import SHORTEST_TASK_MS, read_alibaba


def _csv(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "batch_task.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_task_names_give_the_dag_and_demands_are_normalised(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "M1,2,j_1,1,Terminated,100,110,100,0.5",
        "R2_1,3,j_1,1,Terminated,110,130,50,1",
        "J3_1_2,1,j_1,1,Terminated,130,130,200,",
        "task_Nzg3,4,j_2,1,Terminated,90,95,100,0.3",
    )
    workload, report = read_alibaba(path)
    lone, job = workload.jobs
    assert (lone.name, lone.arrival_ms, job.name, job.arrival_ms) == ("j_2", 0, "j_1", 10_000)
    assert [stage.parents for stage in job.stages] == [(), (0,), (0, 1)]
    assert [(s.cpu, s.memory) for s in job.stages] == [(1.0, 0.005), (0.5, 0.01), (2.0, 0.0)]
    assert [s.mean_task_ms for s in job.stages] == [10_000, 20_000, SHORTEST_TASK_MS]
    assert (report.num_rows, report.num_bad_rows) == (4, 0)


def test_bad_rows_are_counted_with_their_lines(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "M1,1,j_1,1,Terminated,100,110,100,0.5",
        "M2,nan,j_1,1,Terminated,100,110,100,0.5",
        "M3,1",
    )
    with pytest.raises(FormatError, match=r'batch_task.csv:2: job j_1: instance_num is "nan"'):
        read_alibaba(path)
    _, report = read_alibaba(path, max_bad_share=0.7)
    assert report.num_bad_rows == 2
    assert report.bad_samples[1].startswith(f"{path}:3: 2 columns")


@pytest.mark.parametrize("header", [[], ["task_name,instance_num,job_name"]])
def test_a_byte_order_mark_belongs_to_no_name(tmp_path: Path, header: list[str]) -> None:
    rows = ["M1,1,j_1,1,Terminated,10,20,100,1", "R2_1,1,j_1,1,Terminated,20,30,100,1"]
    path = _csv(tmp_path, *header, *rows)
    path.write_bytes(BOM_UTF8 + path.read_bytes())
    (job,) = read_alibaba(path)[0].jobs
    assert [(stage.name, stage.parents) for stage in job.stages] == [("M1", ()), ("R2_1", (0,))]


def test_rows_behind_a_quoted_line_break_have_the_numbers_of_their_lines(tmp_path: Path) -> None:
    path = _csv(tmp_path, '"M\n1",1,j_1,1,Terminated,100,110,100,0.5', "", "M3,1")
    with pytest.raises(FormatError, match=r"batch_task.csv:4: 2 columns"):
        read_alibaba(path)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("M1,0,j_2,1,Terminated,100,110", 'instance_num is "0"; it must be a number from 1 to'),
        ("M1,2.5,j_2,1,Terminated,100,110", "instance_num is 2.5, not a whole number"),
        ("M1,20000000,j_2,1,Terminated,100,110", 'instance_num is "20000000"; it must be'),
        ("M1,1,j_2,1,Terminated,0,110", "start_time is 0: the task never started"),
        ("M1,1,j_2,1,Terminated,110,100", "the duration in s is -10.0; it must be a number from 0"),
        ("M1,5,j_2,1,Terminated,100,2e9", "the duration in s is 1999999900.0; it must be"),
        ("M1,1,j_1,1,Terminated,100,110", "its task M1 is in an earlier row"),
    ],
)
def test_tasks_that_cannot_have_run_are_bad_rows(tmp_path: Path, row: str, why: str) -> None:
    path = _csv(tmp_path, "M1,2,j_1,1,Terminated,100,110,100,0.5", f"{row},100,0.5")
    workload, report = read_alibaba(path, max_bad_share=0.5)
    assert [(job.name, job.num_tasks) for job in workload.jobs] == [("j_1", 2)]
    assert (report.num_rows, report.num_bad_rows, report.notes) == (2, 1, ())
    assert report.bad_samples[0].startswith(f"{path}:2: job {row.split(',')[2]}: {why}")


def test_jobs_whose_tasks_wait_for_each_other_are_left_out_with_a_note(tmp_path: Path) -> None:
    rows = ("M1_2,1,j_1,1,Terminated,100,110,100,0.5", "R2_1,1,j_1,1,Terminated,100,110,100,0.5")
    path = _csv(tmp_path, *rows, "M1,1,j_2,1,Terminated,100,110,100,0.5")
    workload, report = read_alibaba(path)
    assert [job.name for job in workload.jobs] == ["j_2"]
    assert report.notes[0].startswith("left out 1 job with a cycle in the names of tasks")
    with pytest.raises(FormatError, match="none of its jobs is a DAG"):
        read_alibaba(_csv(tmp_path, *rows))


@pytest.mark.parametrize("name", ["dags.jsonl", "dags.ndjson", "dags"])
def test_the_span_of_a_task_or_the_mean_of_its_instances(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    task = {"task_name": "M1", "instance_num": 3, "start_time": 100, "end_time": 130}
    rows = [{"job_name": "a", "tasks": [task | {"duration_s": 12.5}]}]
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n \n")

    def task_ms(duration: str) -> float:
        return read_alibaba(path, duration=duration)[0].jobs[0].stages[0].mean_task_ms

    assert [task_ms(way) for way in ("auto", "mean", "span")] == [12_500, 12_500, 30_000]
    path.write_text(json.dumps({"job_name": "a", "tasks": [task]}))
    assert task_ms("auto") == 30_000
    with pytest.raises(FormatError, match=rf"{name}:1: job a: task M1 has no duration_s"):
        task_ms("mean")


def test_parents_that_are_not_in_the_file_are_left_out_with_a_note(tmp_path: Path) -> None:
    workload, report = read_alibaba(_csv(tmp_path, "R2_1,1,j_1,1,Terminated,100,110,100,0.5"))
    assert workload.jobs[0].stages[0].parents == ()
    assert "1 job with parents" in report.notes[0]


def test_names_that_the_trace_cut_keep_the_parents_that_they_still_have(tmp_path: Path) -> None:
    numbers = [str(number) for number in range(2, 20)]
    cut = f"J30_{'_'.join(numbers)}_"
    torn = f"J31_1_{'_'.join(numbers[:-1])}_2"  # of _20
    assert (len(cut), len(torn)) == (50, 50)
    names = ["M2", "M18", "M19", cut, torn, "R32_30_31"]
    path = _csv(tmp_path, *(f"{name},1,j_1,1,Terminated,100,110,100,0.5" for name in names))
    workload, report = read_alibaba(path)
    assert [stage.parents for stage in workload.jobs[0].stages[3:]] == [(0, 1, 2), (0, 1), (3, 4)]
    assert report.notes[1].startswith("2 names of tasks, which the trace cut after 50 characters")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no usable task"):
        read_alibaba(_csv(tmp_path))


_INSTANCE_COLUMNS = (
    "instance_name,task_name,job_name,task_type,status,start_time,end_time,"
    "machine_id,seq_no,total_seq_no,cpu_avg,cpu_max,mem_avg,mem_max"
)


def _instance(task: str, job: str, start: object, end: object, status: str = "Terminated") -> str:
    return f"i_1,{task},{job},1,{status},{start},{end},m_1,1,1,50,90,0.1,0.2"


def _instances(tmp_path: Path, *rows: str) -> str:
    path = tmp_path / "batch_instance.csv"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


_TWO_TASKS = ("M1,3,j_1,1,Terminated,100,160,100,0.5", "R2_1,2,j_1,1,Terminated,160,200,50,1")


def test_the_mean_duration_of_instances_is_read_from_their_file(tmp_path: Path) -> None:
    path = _csv(tmp_path, *_TWO_TASKS)
    rows = [
        _instance("M1", "j_1", 100, 110),
        _instance("R2_1", "j_1", 160, 160),
        _instance("M1", "j_1", 110, 120),
        _instance("M1", "other", 0, 10_000),
        _instance("M1", "j_1", 100, 100_000, "Failed"),
        _instance("M1", "j_1", 120, 160),
        _instance("R2_1", "j_1", 161, 163),
    ]
    for header in ((), (_INSTANCE_COLUMNS,)):
        instances = _instances(tmp_path, *header, *rows)
        for duration in ("auto", "mean"):
            workload, report = read_alibaba(path, duration=duration, instances=instances)
            stages = workload.jobs[0].stages
            assert [stage.mean_task_ms for stage in stages] == [20_000, 1_250]
            assert [stage.num_tasks for stage in stages] == [3, 2]
            assert (report.num_files, report.num_rows, report.num_bad_rows) == (2, 9, 0)
            assert report.notes == ()
            assert "batch_instance" in workload.provenance["source"]


def test_a_task_without_completed_instances_keeps_its_span(tmp_path: Path) -> None:
    path = _csv(tmp_path, *_TWO_TASKS)
    instances = _instances(tmp_path, _instance("M1", "j_1", 100, 107))
    workload, report = read_alibaba(path, instances=instances)
    assert [stage.mean_task_ms for stage in workload.jobs[0].stages] == [7_000, 40_000]
    (note,) = report.notes
    assert note.startswith("1 of 2 tasks have no completed instance in batch_instance.csv")
    # A row that is there twice does not count as a task without an instance.
    instances = _instances(
        tmp_path, _instance("M1", "j_1", 100, 107), _instance("R2_1", "j_1", 100, 107)
    )
    again = _csv(tmp_path, *_TWO_TASKS, _TWO_TASKS[0])
    assert read_alibaba(again, instances=instances, max_bad_share=0.5)[1].notes == ()


def test_bad_rows_of_instances_are_counted_and_refused(tmp_path: Path) -> None:
    path = _csv(tmp_path, *_TWO_TASKS)
    bad = (_instance("M1", "j_1", "x", 107), "1,2", _instance("M1", "j_1", 9, 7))
    instances = _instances(tmp_path, _instance("M1", "j_1", 100, 107), *bad)
    with pytest.raises(FormatError, match=r"batch_instance.csv:2: start_time"):
        read_alibaba(path, instances=instances)
    _, report = read_alibaba(path, instances=instances, max_bad_share=0.8)
    assert report.num_bad_rows == 3
    assert report.bad_samples[1].startswith(f"{instances}:3: 2 columns, expected 14")
    with pytest.raises(FormatError, match="no completed instance of any task"):
        read_alibaba(path, instances=_instances(tmp_path, _instance("M1", "other", 1, 2)))


@pytest.mark.parametrize(
    ("is_json", "duration", "has_instances", "message"),
    [
        (False, "spam", False, "did you mean 'span'"),
        (False, "mean", False, "has no durations of instances"),
        (False, "span", True, "--duration span would not use it"),
        (True, "auto", True, "JSON lines would not use it"),
    ],
)
def test_durations_that_are_not_there_and_instances_that_would_not_be_used_are_refused(
    tmp_path: Path, is_json: bool, duration: str, has_instances: bool, message: str
) -> None:
    path = _csv(tmp_path, "{}" if is_json else _TWO_TASKS[0])
    instances = _instances(tmp_path, _instance("M1", "j_1", 100, 107)) if has_instances else None
    with pytest.raises((ConfigError, FormatError), match=message):
        read_alibaba(path, duration=duration, instances=instances)


def test_what_is_kept_of_instances_does_not_grow_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "CHUNK_BYTES", 1 << 15)
    path = _csv(tmp_path, *_TWO_TASKS)

    def peak(num_rows: int) -> int:
        row = _instance("M1", "j_1", 1, 5)
        instances = _instances(tmp_path, *[row, _instance("M1", "j_2", 1, 5)] * num_rows)
        tracemalloc.start()
        try:
            (job,) = read_alibaba(path, instances=instances)[0].jobs
            return tracemalloc.get_traced_memory()[1]
        finally:
            assert job.stages[0].mean_task_ms == 4_000
            tracemalloc.stop()

    assert peak(9_000) < peak(3_000) + 20_000
