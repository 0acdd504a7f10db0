"""DAGs that are the same but for the order of their stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parcae.service.jobs import DurationBook
from parcae.service.protocol import JobMessage, StageMessage
from parcae.service.shapes import matching_order, stage_colors
from parcae.workloads.catalog import load_workload


def _matched(
    known: tuple[list[int], list[tuple[int, ...]]], other: tuple[list[int], list[tuple[int, ...]]]
) -> tuple[int, ...] | None:
    return matching_order(stage_colors(*known), known[1], stage_colors(*other), other[1], range(len(known[0])))


@st.composite
def _dags(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, ...]]]:
    count = draw(st.integers(1, 9))
    tasks = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    parents = [tuple(sorted(draw(st.sets(st.integers(0, stage - 1), max_size=3)))) if stage else () for stage in range(count)]
    return tasks, parents


@given(_dags(), st.randoms())
def test_a_shuffled_dag_matches_stage_by_stage(dag: tuple[list[int], list[tuple[int, ...]]], random: object) -> None:
    tasks, parents = dag
    place = list(range(len(tasks)))
    random.shuffle(place)  # type: ignore[attr-defined]
    shuffled_tasks, shuffled_parents = [0] * len(tasks), [()] * len(tasks)
    for stage, new in enumerate(place):
        shuffled_tasks[new] = tasks[stage]
        shuffled_parents[new] = tuple(place[parent] for parent in parents[stage])  # type: ignore[call-overload]
    order = _matched(dag, (shuffled_tasks, shuffled_parents))
    assert order is not None
    assert sorted(order) == list(range(len(tasks)))
    for stage, own in enumerate(parents):
        assert shuffled_tasks[order[stage]] == tasks[stage]
        assert set(shuffled_parents[order[stage]]) == {order[parent] for parent in own}


@pytest.mark.parametrize(
    "other",
    [
        ([2, 3], [(), ()]),  # no edge
        ([3, 3], [(), (0,)]),  # other tasks
        ([2, 3], [(1,), ()]),  # the edge the other way
        ([2, 3, 1], [(), (0,), ()]),  # one stage more
    ],
)
def test_unlike_dags_do_not_match(other: tuple[list[int], list[tuple[int, ...]]]) -> None:
    assert _matched(([2, 3], [(), (0,)]), other) is None


def test_a_client_that_numbers_the_stages_otherwise_gets_the_profiles_durations() -> None:
    workload = load_workload("tpch")
    spec = workload.jobs[8]
    order = list(reversed(range(len(spec.stages))))
    stages = tuple(
        StageMessage(
            stage_id=100 + stage, tasks=spec.stages[stage].num_tasks, parents=tuple(100 + p for p in spec.stages[stage].parents)
        )
        for stage in order
    )
    book = DurationBook(workload)
    told = book.as_profiled(JobMessage(job_id=1, name=spec.name, arrival_ms=0, stages=stages))
    rows = book.rows(told)
    assert rows.profile == 8
    assert np.asarray(rows.specs.num_tasks).tolist() == [stage.num_tasks for stage in spec.stages]
    assert [stage.tasks for stage in told.stages] == [stage.num_tasks for stage in spec.stages]
    assert book.as_profiled(told) == told
