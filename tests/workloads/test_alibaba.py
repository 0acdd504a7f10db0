from __future__ import annotations

import json
from pathlib import Path

import pytest

from parcae.errors import ConfigError, FormatError
from parcae.workloads.alibaba import SHORTEST_TASK_MS, read_alibaba
from tests.conftest import shared_data


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
    with pytest.raises(FormatError, match=r'batch_task.csv:2: instance_num is "nan"'):
        read_alibaba(path)
    _, report = read_alibaba(path, max_bad_share=0.7)
    assert report.num_bad_rows == 2
    assert report.bad_samples[1].startswith(f"{path}:3: 2 columns")


def test_the_span_of_a_task_or_the_mean_of_its_instances(tmp_path: Path) -> None:
    path = tmp_path / "dags.jsonl"
    task = {"task_name": "M1", "instance_num": 3, "start_time": 100, "end_time": 130}
    rows = [{"job_name": "a", "tasks": [task | {"duration_s": 12.5}]}]
    path.write_text("\n".join(map(json.dumps, rows)))

    def task_ms(duration: str) -> float:
        return read_alibaba(path, duration=duration)[0].jobs[0].stages[0].mean_task_ms

    assert [task_ms(way) for way in ("auto", "mean", "span")] == [12_500, 12_500, 30_000]
    path.write_text(json.dumps({"job_name": "a", "tasks": [task]}))
    assert task_ms("auto") == 30_000
    with pytest.raises(FormatError, match=r"dags.jsonl:1: job a: task M1 has no duration_s"):
        task_ms("mean")
    with pytest.raises(ConfigError, match="did you mean 'span'"):
        task_ms("spam")
    rows_as_published = _csv(tmp_path, "M1,2,j_1,1,Terminated,100,110,100,0.5")
    with pytest.raises(FormatError, match="has no durations of instances"):
        read_alibaba(rows_as_published, duration="mean")


def test_parents_that_are_not_in_the_file_are_left_out_with_a_note(tmp_path: Path) -> None:
    workload, report = read_alibaba(_csv(tmp_path, "R2_1,1,j_1,1,Terminated,100,110,100,0.5"))
    assert workload.jobs[0].stages[0].parents == ()
    assert "1 jobs name parents" in report.notes[0]


def test_json_lines_are_read_by_job(tmp_path: Path) -> None:
    path = tmp_path / "dags.jsonl"
    task = {
        "task_name": "M1",
        "instance_num": 3,
        "start_time": 7,
        "end_time": 9,
        "duration_s": 1.25,
        "plan_cpu": 100,
        "plan_mem": 1,
    }
    path.write_text(json.dumps({"job_name": "j", "tasks": [task]}) + "\n")
    stage = read_alibaba(path)[0].jobs[0].stages[0]
    assert (stage.num_tasks, stage.mean_task_ms) == (3, 1_250)


def test_the_public_sample_of_6600_jobs_imports() -> None:
    workload, report = read_alibaba(shared_data("alibaba-2018/alibaba_set_0_6600_dags.jsonl.gz"))
    assert (len(workload.jobs), report.num_rows, report.num_bad_rows) == (6_599, 25_196, 37)
    assert workload.num_tasks == 3_293_015


def test_an_empty_or_torn_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no usable task"):
        read_alibaba(_csv(tmp_path))
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(
        shared_data("alibaba-2018/alibaba_set_0_6600_dags.jsonl.gz").read_bytes()[:5_000]
    )
    with pytest.raises(FormatError, match="truncated"):
        read_alibaba(torn)
