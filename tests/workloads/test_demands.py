from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.decima.alibaba import DECIMA_STEPS, read_alibaba
from parcae.workloads.demands import (
    half,
    in_memory_units,
    prepare,
    with_cpu_at_most,
    with_drawn_memory,
    with_work,
    without_largest,
)
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload
from tests.conftest import shared_data


def _job(
    name: str, seconds: int, memory: float, cpu: float = 1.0, arrival_ms: int | None = None
) -> JobSpec:
    return JobSpec(
        name,
        (StageSpec(1, TaskDurations.constant(1_000 * seconds), cpu=cpu, memory=memory),),
        arrival_ms,
    )


_TRACE = Workload(
    "trace",
    (
        _job("late", 2, 0.4, 0.5, 9_000),
        _job("giant", 100, 0.1, 1.0, 5_000),
        _job("a", 1, 0.2, 3.0, 0),
        _job("b", 3, 0.5, 1.0, 7_000),
    ),
    weights=(1.0, 2.0, 3.0, 4.0),
)


#: Ten tasks of 14 ms.
_FOURTEENS = np.full(10, 14, np.int64)


def _memory(workload: Workload) -> list[float]:
    return [stage.memory for job in workload.jobs for stage in job.stages]


def test_the_largest_jobs_are_left_out_and_reported() -> None:
    kept, note = without_largest(0.9)(_TRACE)
    assert [job.name for job in kept.jobs] == ["late", "a", "b"]
    assert kept.weights == (1.0, 3.0, 4.0)
    assert "1 of 4 jobs were left out" in note
    assert "94.34% of all work" in note


def test_memory_is_normalised_by_a_quantile_and_cut_to_one_unit() -> None:
    whole, _ = in_memory_units(1.0)(_TRACE)
    assert _memory(whole) == [0.8, 0.2, 0.4, 1.0]
    median, note = in_memory_units(0.5)(_TRACE)
    assert _memory(median) == pytest.approx([1.0, 1 / 3, 2 / 3, 1.0])
    assert "2 of 4 stages asked for more" in note


def test_work_is_multiplied() -> None:
    larger, note = with_work(10.0)(_TRACE)
    for before, after in zip(_TRACE.jobs, larger.jobs, strict=True):
        assert after.work_ms == pytest.approx(10.0 * before.work_ms)
        for old, new in zip(before.stages, after.stages, strict=True):
            assert new.num_tasks == old.num_tasks
            assert new.durations.rest[0].tolist() == (10 * old.durations.rest[0]).tolist()
    assert note == "all task durations were multiplied by 10"
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="write a number above 0"):
            with_work(factor)
    with pytest.raises(ConfigError, match="makes the longest task, of 100,000 ms, longer than"):
        with_work(1e30)(_TRACE)


def test_smaller_work_keeps_the_mean_of_short_durations() -> None:
    short = Workload("short", (JobSpec("j", (StageSpec(10, TaskDurations.of(_FOURTEENS)),)),))
    smaller, _ = with_work(0.1)(short)
    (stage,) = smaller.jobs[0].stages
    assert [stage.durations.mean_ms, stage.mean_task_ms] == pytest.approx([1.4, 1.4])


def test_cpu_is_cut() -> None:
    cut, note = with_cpu_at_most(1.0)(_TRACE)
    assert [job.stages[0].cpu for job in cut.jobs] == [0.5, 1.0, 1.0, 1.0]
    assert note.startswith("1 of 4 stages")


def test_drawn_memory_is_even_above_zero_and_the_same_for_a_seed() -> None:
    wide = Workload("wide", tuple(_job(str(row), 1, 0.0) for row in range(2_000)))
    drawn = np.array(_memory(with_drawn_memory("uniform:7")(wide)[0]))
    assert 0 < drawn.min() < 0.01
    assert 0.99 < drawn.max() <= 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.02)
    assert drawn.tolist() == _memory(with_drawn_memory("uniform:7")(wide)[0])
    assert drawn.tolist() != _memory(with_drawn_memory("uniform")(wide)[0])


def test_the_first_half_trains_and_the_second_tests() -> None:
    first, note = half("first")(_TRACE)
    second, _ = half("second")(_TRACE)
    assert [job.name for job in first.jobs] == ["a", "giant"]
    assert [job.name for job in second.jobs] == ["b", "late"]
    assert first.weights == (3.0, 2.0)
    assert note == "the first half by arrival: 2 of 4 jobs"


def test_steps_run_in_order_and_are_remembered() -> None:
    prepared, notes = prepare(_TRACE, [without_largest(0.9), half("second")])
    assert [job.name for job in prepared.jobs] == ["b", "late"]
    assert prepared.provenance["prepared"] == "; ".join(notes)
    again, _ = prepare(prepared, [with_cpu_at_most(1)])
    assert again.provenance["prepared"].startswith(notes[0])
    assert prepare(_TRACE, []) == (_TRACE, ())


def test_what_cannot_be_prepared_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"write a share above 0"):
        without_largest(1.5)
    with pytest.raises(ConfigError, match="uniform:7"):
        with_drawn_memory("normal")
    with pytest.raises(ConfigError, match="number of cores"):
        with_cpu_at_most(0)
    with pytest.raises(ConfigError, match="first or second"):
        half("third")
    unrecorded = Workload("plain", (_job("a", 1, 0.0), _job("b", 1, 0.0)))
    with pytest.raises(ConfigError, match="no recorded arrivals"):
        half("first")(unrecorded)
    with pytest.raises(ConfigError, match="--memory-demands uniform"):
        in_memory_units(0.99)(unrecorded)


def test_the_public_sample_of_alibabas_trace_becomes_a_workload_for_four_classes() -> None:
    trace, _ = read_alibaba(shared_data("alibaba-2018/alibaba_set_0_6600_dags.jsonl.gz"))
    prepared, notes = prepare(trace, DECIMA_STEPS)
    assert (len(prepared.jobs), prepared.num_stages) == (6_533, 24_476)
    assert prepared.num_tasks == 2_250_004
    assert "66 of 6599 jobs were left out" in notes[0]
    assert "99.85% of all work" in notes[0]
    assert "0.0079, the 0.999 quantile" in notes[1]
    assert max(_memory(prepared)) == 1.0
