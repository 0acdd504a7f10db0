"""Logs in steps and units."""

from __future__ import annotations

from pathlib import Path

import pytest

from parcae.base.errors import WorkloadError
from parcae.rigid.jobs import RigidJobs, to_steps
from parcae.rigid.logs import read_log

_LOG = Path(__file__).parents[2] / "../shared/data/swf/DOST-ASTI_COARE-Saliksik-2020-cln.swf"


def _log() -> RigidJobs:
    return RigidJobs(
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
    jobs = to_steps(_log(), step_s=3_600, num_units=4, horizon=10)
    assert jobs.arrival.tolist() == [0, 1, 1, 2]
    assert jobs.duration.tolist() == jobs.estimate.tolist() == [2, 1, 1, 10]
    assert jobs.demand.tolist() == [[2], [4], [1], [3]]
    assert (jobs.capacity.tolist(), jobs.ids.tolist(), jobs.step) == ([4], [5, 6, 7, 8], "step")


def test_jobs_larger_than_a_smaller_cluster_are_left_out() -> None:
    jobs = to_steps(_log(), step_s=3_600, num_units=4, horizon=30, capacity=(32,))
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


@pytest.mark.skipif(not _LOG.exists(), reason="needs the logs in ../shared/data/swf")
def test_an_academic_clusters_log_keeps_all_its_jobs_on_54_units() -> None:
    jobs = to_steps(read_log(_LOG).jobs, step_s=3_600, num_units=54, horizon=48)
    assert (len(jobs), int(jobs.duration.max())) == (19_760, 48)
    assert 0.6 < jobs.load[0] < 0.85
