"""The virtual run of fair sharing with literal numbers.

A stage of n > 1 tasks needs a little more than n times its mean: the slowest task outlasts the
others. Most stages here have one task, so that the numbers are plain.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import pytest

from parcae.cluster.kernels.virtual import (
    _count_wanted,
    _width,
    advance_virtual_run,
    find_critical_paths,
    predict_ends,
)
from parcae.cluster.state import VirtualRun
from tests.cluster.cores import Cores


def _advance(cores: Cores, clock_ms: int) -> VirtualRun:
    """Set the clock and advance the virtual run to it. Returns the run."""
    virtual = cores.virtual
    cores.state.now.clock_ms[0] = clock_ms
    advance_virtual_run(cores.state, virtual)
    return virtual


def _members(virtual: VirtualRun) -> list[int]:
    members: list[int] = virtual.jobs.member[: virtual.now.num_members[0]].tolist()
    return members


def test_jobs_share_the_cores_and_a_job_takes_no_more_than_it_has_tasks() -> None:
    cores = Cores(3)
    cores.arrive([(1, 100.0, ())])
    cores.arrive([(1, 100.0, ()), (1, 80.0, ()), (1, 80.0, ())])
    virtual = _advance(cores, 60)
    assert virtual.jobs.rate[:2].tolist() == [1.0, 2.0]  # of the second job's three stages, two run
    assert virtual.stages.attained_ms[:4].tolist() == [60.0, 60.0, 60.0, 0.0]
    virtual = _advance(cores, 100)  # at 80 a stage ends, and the last one begins
    assert virtual.stages.attained_ms[:4].tolist() == [100.0, 100.0, 80.0, 20.0]
    assert _members(virtual) == [1]
    assert (virtual.jobs.has_ended[0], virtual.jobs.end_ms[0]) == (1, 100.0)
    virtual = _advance(cores, 500)
    assert virtual.jobs.end_ms[1] == pytest.approx(160.0)


def test_if_there_are_more_jobs_than_cores_the_older_ones_run() -> None:
    cores = Cores(1)
    cores.arrive([(1, 100.0, ())])
    cores.arrive([(1, 50.0, ())])
    virtual = _advance(cores, 120)
    assert virtual.jobs.end_ms[0] == pytest.approx(100.0)
    assert virtual.stages.attained_ms[1] == pytest.approx(20.0)


def test_a_stage_waits_for_its_parents() -> None:
    cores = Cores(2)
    cores.arrive([(1, 100.0, ()), (1, 40.0, ()), (1, 10.0, (0, 1))])
    virtual = _advance(cores, 90)
    assert virtual.stages.num_waiting[:3].tolist() == [0, 0, 1]
    assert virtual.stages.attained_ms[:3].tolist() == pytest.approx([90.0, 40.0, 0.0])
    virtual = _advance(cores, 105)
    assert virtual.stages.attained_ms[2] == pytest.approx(5.0)


def test_the_slowest_of_n_tasks_outlasts_the_others() -> None:
    cores = Cores(2)
    job = cores.arrive([(2, 100.0, ())])
    virtual = _advance(cores, 0)
    # The tail of two tasks is 0.5 - 0.5 / 2 of a mean task: 2.25 tasks of work in all.
    assert virtual.stages.need_ms[0] == 225.0
    assert virtual.stages.path_ms[0] == 125.0
    _advance(cores, 90)
    assert virtual.stages.rate[0] == 2.0
    _advance(cores, 120)  # at 100 the last 25 ms of work are left, for one core
    assert virtual.stages.rate[0] == 1.0
    virtual = _advance(cores, 200)
    assert virtual.jobs.end_ms[job] == pytest.approx(125.0)


def test_a_rest_below_the_rounding_of_large_work_is_none() -> None:
    cores = Cores(8)
    cores.arrive([(4, 1e10, ())])
    virtual = _advance(cores, 1)
    need_ms = float(virtual.stages.need_ms[0])
    slowest_ms = need_ms - 4e10
    # 3.8e-6 ms are the spacing of numbers of this size: such a rest may never become smaller.
    virtual.stages.attained_ms[0] = need_ms - slowest_ms - 3.9e-6
    assert _width(cores.state, virtual, 0)[0] == 1.0
    virtual.stages.attained_ms[0] = need_ms - 3.9e-6
    assert _count_wanted(cores.state, virtual, 0) == 0.0
    assert virtual.stages.is_ended[0] == 1


def test_an_arrival_is_taken_into_account_at_its_time() -> None:
    cores = Cores(2)
    cores.arrive([(1, 100.0, ()), (1, 100.0, ())])
    cores.state.now.clock_ms[0] = 50
    cores.arrive([(1, 30.0, ())])
    virtual = _advance(cores, 60)
    # Until 50 the first job has both cores, then one.
    assert virtual.stages.attained_ms[:3].tolist() == pytest.approx([60.0, 50.0, 10.0])


def test_finished_tasks_correct_the_estimates_of_the_virtual_run() -> None:
    cores = Cores(1)
    state = cores.state
    state.now.is_corrected[0] = 1
    job = cores.arrive([(1, 100.0, ()), (1, 100.0, ())])
    cores.reveal(job, 0)
    cores.reveal(job, 1)
    virtual = _advance(cores, 0)
    assert virtual.jobs.total_ms[job] == 200.0
    cores.follow()
    cores.offer()
    state.now.clock_ms[0] = 300
    cores.end_stage(0)
    # One task took three times its estimate; the prior counts as three tasks: (3 + 3) / (1 + 3).
    virtual = _advance(cores, 300)
    assert virtual.stages.need_ms[:2].tolist() == [300.0, 150.0]
    # In the virtual run the job had ended at 200 by the old estimate; its time is stretched.
    assert virtual.jobs.total_ms[job] == 450.0


def test_a_job_that_ended_virtually_and_turns_out_longer_has_ended_later() -> None:
    cores = Cores(1)
    state = cores.state
    state.now.is_corrected[0] = 1
    job = cores.arrive([(1, 100.0, ()), (1, 100.0, ())])
    virtual = _advance(cores, 250)
    assert virtual.jobs.end_ms[job] == pytest.approx(200.0)
    state.stages.num_started[0] = 1
    state.stages.num_finished[0] = 1
    state.stages.executed_ms[0] = 300
    virtual = _advance(cores, 300)
    assert virtual.jobs.end_ms[job] == pytest.approx(450.0)  # 200 x 450 / 200


def test_critical_paths_follow_the_edges_however_stages_are_numbered() -> None:
    cores = Cores(1)
    job = cores.arrive([(1, 5.0, (2,)), (1, 70.0, (2,)), (1, 10.0, (3,)), (1, 1.0, ())])
    virtual = cores.virtual
    find_critical_paths(cores.state, virtual, job)
    assert virtual.stages.path_ms[:4].tolist() == [5.0, 70.0, 80.0, 81.0]


def test_ends_are_predicted_by_equal_shares_and_by_critical_paths() -> None:
    cores = Cores(2)
    cores.arrive([(1, 100.0, ()), (1, 300.0, ())])
    cores.arrive([(1, 50.0, ()), (1, 50.0, ())])
    virtual = _advance(cores, 0)
    predict_ends(cores.state, virtual)
    # 100 ms of each job by 100, then 300 ms of the first on two cores by 250; its path says 300.
    assert virtual.jobs.end_ms[:2].tolist() == [300.0, 100.0]
    assert virtual.jobs.left_ms[:2].tolist() == [400.0, 100.0]
    assert virtual.jobs.by_left[:2].tolist() == [1, 0]
