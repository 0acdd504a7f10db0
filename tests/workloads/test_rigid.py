from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parcae.base.errors import WorkloadError
from parcae.rigid.jobs import RigidJobs, to_steps
from parcae.rigid.logs import read_log
from tests.conftest import shared_data

_GOOD: dict[str, Any] = {
    "arrival": [0, 1],
    "duration": [3, 1],
    "demand": [[5, 1], [1, 6]],
    "capacity": [10, 10],
}


def _jobs(**changes: Any) -> RigidJobs:
    return RigidJobs("two", **{**_GOOD, **changes})


def test_what_is_not_given_follows_from_the_rest() -> None:
    jobs = _jobs()
    assert (len(jobs), jobs.estimate.tolist(), jobs.ids.tolist()) == (2, [3, 1], [0, 1])
    assert jobs.rows.tolist() == [0, 1]
    assert (jobs.resources, jobs.step) == (("resource 0", "resource 1"), "step")


def test_jobs_cannot_be_changed() -> None:
    arrival = np.array([0, 1])
    jobs = _jobs(arrival=arrival)
    arrival[0] = 1
    assert jobs.arrival.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        jobs.demand[0, 0] = 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival": [-1, 0]}, r"two: job 0 \(row 0\) arrives at -1, before time 0"),
        (
            {"arrival": [4, 1]},
            r"job 1 \(row 1\) arrives at 1, before the job listed above it: "
            r"sort the jobs by arrival",
        ),
        (
            {"duration": [3, 0], "ids": [7, 8]},
            r"job 8 \(row 1\) has duration 0: it must be at least 1",
        ),
        ({"estimate": [0, 1]}, "estimated duration of 0"),
        ({"capacity": [10, 0]}, r"capacity \[10, 0\]: every resource needs at least 1 unit"),
        (
            {"demand": [[5, 1], [-1, 6]]},
            r"row 1\) asks for \[-1, 6\]: demands must not be negative",
        ),
        ({"demand": [[0, 0], [1, 6]]}, r"row 0\) asks for \[0, 0\]: nothing at all"),
        (
            {"demand": [[5, 1], [1, 11]]},
            r"row 1\) asks for \[1, 11\], more than the cluster's \[10, 10\]",
        ),
        ({"demand": [[5], [1]]}, r"demand must be \[2 jobs, 2 resources\], not \(2, 1\)"),
        ({"capacity": [], "demand": np.zeros((2, 0))}, "0 resources"),
        ({"duration": [3]}, "one entry a job"),
        ({"resources": ("cpu",)}, "resources one name for each entry"),
        ({"duration": [3, 1.5]}, "duration holds a value that is not a whole number"),
        ({"arrival": [0, "soon"]}, "arrival must be numbers"),
        # The last finish would be 2^63, which is negative in 64 bits.
        ({"arrival": [0, 1e19]}, "arrival holds a number that does not fit into 64 bits"),
        ({"duration": [2**62, 2**62]}, r"until a time of more than 2\^62: use a larger unit"),
        ({"estimate": [2**62, 2**62]}, r"until a time of more than 2\^62: use a larger unit"),
    ],
)
def test_jobs_that_cannot_be_are_refused_with_the_first_of_them(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        _jobs(**changes)


def test_the_load_is_the_work_that_arrives_a_step() -> None:
    every_step = RigidJobs("steady", range(101), [2] * 101, [[5, 1]] * 101, [10, 10])
    assert every_step.span == 100
    np.testing.assert_allclose(every_step.load, [1.01, 0.202])


def test_the_load_of_much_memory_does_not_overflow() -> None:
    arrivals = [0] * 199 + [1]
    jobs = RigidJobs("large", arrivals, [86_400] * 200, [[10**12]] * 200, [2 * 10**12])
    np.testing.assert_allclose(jobs.load, [200 * 86_400 / 2])


def test_jobs_that_arrive_at_once_have_no_rate_and_none_no_load() -> None:
    empty = RigidJobs("none", [], [], np.zeros((0, 2)), [10, 10])
    assert (len(empty), empty.span, empty.load.tolist()) == (0, 0, [0.0, 0.0])
    jobs = RigidJobs("batch", [7, 7], [3, 1], [[5, 0], [5, 0]], [10, 10])
    assert (jobs.span, jobs.load.tolist()) == (0, [np.inf, np.inf])
    assert jobs.load_by_resource == {"resource 0": None, "resource 1": None}


def test_a_piece_counts_time_from_its_first_job_and_keeps_identities() -> None:
    jobs = RigidJobs(
        "three",
        [0, 4, 9],
        [1, 2, 3],
        [[1], [2], [3]],
        [4],
        estimate=[5, 6, 7],
        resources=("cpu",),
        step="s",
    )
    piece = jobs.piece(1, 3)
    assert (piece.name, piece.arrival.tolist()) == ("three[1:3]", [0, 5])
    assert (piece.duration.tolist(), piece.estimate.tolist()) == ([2, 3], [6, 7])
    assert (piece.ids.tolist(), piece.resources, piece.step) == ([1, 2], ("cpu",), "s")
    assert piece.capacity.tolist() == [4]


def test_halves_share_no_job_and_the_second_has_the_odd_one() -> None:
    first, second = RigidJobs("three", [0, 4, 9], [1, 2, 3], [[1], [2], [3]], [4]).halves()
    assert (first.ids.tolist(), second.ids.tolist()) == ([0], [1, 2])
    assert second.arrival.tolist() == [0, 5]
    with pytest.raises(WorkloadError, match="1 jobs cannot be split"):
        first.halves()


def test_jobs_never_wait_where_the_cluster_is_large_enough_for_all_that_run() -> None:
    def jobs(*arrivals: int) -> RigidJobs:
        return RigidJobs("jobs", list(arrivals), [4] * 3, [[6, 1]] * 3, [12, 2])  # type: ignore[arg-type]

    assert jobs(0, 0, 4).never_waits  # the first two end when the third arrives
    assert not jobs(0, 0, 3).never_waits
    assert jobs(0, 3, 5).never_waits


_LOG = RigidJobs(
    "log",
    [100, 3_700, 3_700, 9_000],
    [4_000, 3_600, 1, 100_000],
    [[20], [64], [1], [33]],
    [64],
    estimate=[9_000, 9_000, 9_000, 100_000],
    step="s",
    ids=[5, 6, 7, 8],
)


def test_durations_and_demands_are_rounded_up_to_the_horizon_and_arrivals_down() -> None:
    jobs = to_steps(_LOG, step_s=3_600, num_units=4, horizon=10)
    assert jobs.arrival.tolist() == [0, 1, 1, 2]
    assert jobs.duration.tolist() == jobs.estimate.tolist() == [2, 1, 1, 10]
    assert jobs.demand.tolist() == [[2], [4], [1], [3]]
    assert (jobs.capacity.tolist(), jobs.ids.tolist(), jobs.step) == ([4], [5, 6, 7, 8], "step")


def test_jobs_larger_than_a_smaller_cluster_are_left_out() -> None:
    jobs = to_steps(_LOG, step_s=3_600, num_units=4, horizon=30, capacity=(32,))
    assert (jobs.ids.tolist(), jobs.demand.tolist()) == ([5, 7], [[3], [1]])


def test_a_cluster_that_nothing_fits_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"none of 1 jobs fits a cluster of .2.: give it more"):
        to_steps(
            RigidJobs("a", [0], [1], [[3]], [4], step="s"),
            step_s=60,
            num_units=2,
            horizon=4,
            capacity=(2,),
        )


def test_an_academic_clusters_log_keeps_all_its_jobs_on_54_units() -> None:
    jobs = to_steps(
        read_log(shared_data("swf/DOST-ASTI_COARE-Saliksik-2020-cln.swf")).jobs,
        step_s=3_600,
        num_units=54,
        horizon=48,
    )
    assert (len(jobs), int(jobs.duration.max())) == (19_760, 48)
    assert 0.6 < jobs.load[0] < 0.85
