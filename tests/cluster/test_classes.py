"""Executor classes with literal numbers: which executors fit a stage, and who is offered again.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

from parcae.cluster.kernels.tables import first_for_class, is_offered, is_schedulable
from parcae.cluster.state import NO_JOB, NO_STAGE, ExecutorClass
from tests.cluster.executors import Executors


def _cluster() -> Executors:
    """Executors 0 and 1 have memory 1, executor 2 has memory 0.5."""
    large = ExecutorClass(2, 1.0, 1.0)
    small = ExecutorClass(1, 1.0, 0.5)
    return Executors(large, small)


def test_a_stage_fits_the_classes_that_have_its_memory() -> None:
    cluster = _cluster()
    cluster.submit([(1, 10.0, ()), (1, 10.0, ()), (1, 10.0, ())], memory=[0.5, 0.6, 2.0])
    state = cluster.state
    assert state.stages.fits[:3].tolist() == [0b11, 0b01, 0]
    assert state.classes.num_schedulable.tolist() == [2, 1]
    assert state.source_count.tolist() == [2, 1]
    assert [bool(is_offered(state, stage)) for stage in range(3)] == [True, True, False]
    assert [bool(is_schedulable(state, stage)) for stage in range(3)] == [True, True, False]


def test_any_class_means_the_smallest_that_fits_first() -> None:
    cluster = _cluster()
    cluster.submit([(2, 10.0, ()), (2, 10.0, ())], memory=[0.5, 1.0])
    assert cluster.decide(0, limit=2) == 2
    assert cluster.state.source_count.tolist() == [1, 0]
    assert cluster.decide(1, limit=2) == 1
    assert cluster.commands() == [("move", 0, 0), ("move", 1, 1), ("move", 2, 0)]


def test_a_decision_may_name_the_class() -> None:
    cluster = _cluster()
    cluster.submit([(2, 10.0, ())], memory=[0.5])
    assert cluster.decide(0, limit=2, executor_class=0) == 2
    assert cluster.state.source_count.tolist() == [0, 1]
    cluster = _cluster()
    cluster.submit([(2, 10.0, ())], memory=[1.0])
    assert cluster.decide(0, limit=1, executor_class=1) == -1  # the class is too small


def test_idle_executors_are_offered_again_when_a_stage_that_fits_them_appears() -> None:
    cluster = _cluster()
    cluster.submit([(1, 10.0, ()), (1, 10.0, (0,))], memory=[0.4, 1.0])
    assert cluster.decide(0) == 1  # by the small executor
    assert cluster.decide(1) == 1  # by a large one; its parent is saturated
    assert cluster.idle() == 1
    assert cluster.commands() == [("move", 0, 1), ("move", 2, 0)]
    cluster.arrive(0)
    cluster.arrive(2)
    cluster.submit([(1, 10.0, ())], memory=[1.0])
    assert cluster.offered() == (0, 1)  # with several classes every pool is offered
    cluster.idle()
    assert cluster.offered() == (NO_JOB, 1)
    assert cluster.state.source_count.tolist() == [1, 0]


def test_the_first_stage_for_a_class_is_runnable_or_schedulable() -> None:
    cluster = _cluster()
    stages = [(1, 10.0, (1,)), (1, 10.0, ()), (9, 10.0, ())]
    cluster.submit(stages, memory=[0.4, 0.4, 1.0])
    state = cluster.state
    assert first_for_class(state, 0, 1, True) == 1
    assert first_for_class(state, 0, 0, False) == 1
    cluster.decide(1)
    assert first_for_class(state, 0, 1, True) == NO_STAGE  # the other runnable stage is too large
    assert first_for_class(state, 0, 0, True) == 2
    assert first_for_class(state, 0, 1, False) == 0  # schedulable: its parent is saturated
