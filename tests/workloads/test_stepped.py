"""Logs in steps and units."""

from __future__ import annotations

from pathlib import Path

import pytest

from parcae.base.errors import ConfigError, WorkloadError
from parcae.rigid.jobs import RigidJobs, to_steps
from parcae.rigid.swf import read_swf

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


def test_durations_and_demands_are_rounded_up_and_arrivals_down() -> None:
    stepped = to_steps(_log(), step_s=3_600, num_units=4, horizon=10)
    jobs = stepped.jobs
    assert jobs.arrival.tolist() == [0, 1, 1, 2]
    assert jobs.duration.tolist() == jobs.estimate.tolist() == [2, 1, 1, 10]
    assert jobs.demand.tolist() == [[2], [4], [1], [3]]
    assert (jobs.capacity.tolist(), jobs.ids.tolist(), jobs.step, stepped.unit) == (
        [4],
        [5, 6, 7, 8],
        "step",
        (16.0,),
    )


def test_what_is_longer_than_the_horizon_is_cut_and_counted() -> None:
    stepped = to_steps(_log(), step_s=3_600, num_units=4, horizon=10)
    assert stepped.num_clipped == 1
    assert stepped.clipped_share == pytest.approx(3 * 18 / (2 * 2 + 4 + 1 + 3 * 28))
    assert stepped.growth == pytest.approx(
        (2 * 2 + 4 + 1 + 3 * 28) * 3_600 * 16 / (20 * 4_000 + 64 * 3_600 + 1 + 33 * 100_000)
    )


def test_jobs_larger_than_a_smaller_cluster_are_left_out_and_counted() -> None:
    stepped = to_steps(_log(), step_s=3_600, num_units=4, horizon=30, capacity=(32,))
    assert stepped.jobs.ids.tolist() == [5, 7]
    assert stepped.jobs.demand.tolist() == [[3], [1]]
    assert stepped.num_left_out == 2
    assert str(stepped).startswith(
        "2 jobs in steps of 3,600 s and units of 8 of resource 0; "
        "2 jobs larger than the cluster left out"
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"step_s": 0}, "each must be at least 1"),
        ({"num_units": 65}, r"a cluster of .64. cannot be divided into 65 units"),
        ({"capacity": (65,)}, r"the capacity .65. must have .* from 1 up to the log's .64."),
        ({"capacity": (8, 8)}, "one number for each resource"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], match: str) -> None:
    settings: dict[str, object] = {"step_s": 60, "num_units": 4, "horizon": 10} | change
    with pytest.raises(ConfigError, match=match):
        to_steps(_log(), **settings)  # type: ignore[arg-type]


def test_jobs_in_steps_and_clusters_that_nothing_fits_are_refused() -> None:
    with pytest.raises(WorkloadError, match="its times are in steps already"):
        to_steps(RigidJobs("a", [0], [1], [[1]], [4]), step_s=60, num_units=4, horizon=4)
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
    stepped = to_steps(read_swf(_LOG).jobs, step_s=3_600, num_units=54, horizon=48)
    assert (len(stepped.jobs), stepped.num_left_out, stepped.unit) == (19_760, 0, (32.0,))
    assert int(stepped.jobs.duration.max()) == 48
    assert 0.6 < stepped.jobs.load[0] < 0.85
