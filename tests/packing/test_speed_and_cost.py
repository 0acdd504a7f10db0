"""Logs whose jobs arrive faster, and the cost that weighs slowdown and makespan."""

import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from parcae.base.errors import ConfigError
from parcae.rigid.config import PackingConfig, TimeMode, most_steps
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import VOID, Cost
from parcae.rigid.metrics import makespan
from parcae.rigid.policies.catalog import make_packing_policy
from parcae.rigid.sources import MixedSource, RigidLogSource, require_waiting, sped_up
from parcae.rigid.world import PackingBatch, shortest_makespan
from tests.packing.images import masks_of

_JOBS = RigidJobs("three", np.array([0, 10, 20]), [40, 30, 20], [[3], [2], [4]], [4], step="step")


def test_a_whole_log_arrives_faster_too() -> None:
    drawn = RigidLogSource(_JOBS, None, speeds=(1.0, 2.0)).draw(range(20))
    assert {tuple(jobs.arrival.tolist()) for jobs in drawn} == {(0, 10, 20), (0, 5, 10)}


def test_logs_in_which_no_job_waits_teach_nothing_unless_jobs_arrive_faster() -> None:
    quiet = RigidLogSource(RigidJobs("quiet", [0, 40], [40, 30], [[3], [2]], [4], step="s"), 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"in quiet every job can start.*nothing to learn"):
        require_waiting(quiet)
    with pytest.raises(ConfigError, match="in quiet, quiet every job can start"):
        require_waiting(MixedSource((quiet, quiet)))
    faster = replace(quiet, speeds=(1.0, 1.1))
    require_waiting(faster)
    require_waiting(MixedSource((quiet, faster)))


def test_the_shortest_makespan_counts_arrivals_and_work() -> None:
    # 40 x 3 + 30 x 2 + 20 x 4 units of work on 4 units.
    assert shortest_makespan(_JOBS) == 65.0
    assert shortest_makespan(sped_up(_JOBS, 0.1)) == 200.0 + 20.0


@pytest.mark.parametrize(
    "config",
    [
        PackingConfig(horizon=40),
        PackingConfig(horizon=40, window=500),
        PackingConfig.for_log(_JOBS),
    ],
    ids=["steps", "a long window", "exact"],
)
def test_the_makespan_counts_from_the_first_arrival_like_its_metric(config: PackingConfig) -> None:
    late = replace(_JOBS, arrival=_JOBS.arrival + 7)
    batch = PackingBatch([late], config)
    batch.run(make_packing_policy("sjf").play_many, 1)
    found = batch.costs(Cost.MAKESPAN)[0]
    assert found == makespan(batch.outcome(0))
    both = batch.costs(Cost.SLOWDOWN_MAKESPAN)[0] - batch.costs(Cost.BOUNDED_SLOWDOWN)[0]
    assert both == pytest.approx(3 * found / shortest_makespan(late))


@pytest.mark.parametrize(
    ("config", "most"),
    [
        # 3 starts, and 20 steps of arrivals and 90 of durations.
        (PackingConfig(horizon=40), 20_000 + 3 + 110),
        (PackingConfig(horizon=40, window=150), 20_000 + 3 + 150),
        # 3 starts, arrivals and finishes.
        (PackingConfig.for_log(_JOBS), 20_000 + 9),
        (PackingConfig(horizon=40, max_decisions=7), 7),
    ],
    ids=["steps", "a long window", "exact", "given"],
)
def test_a_run_ends_whose_policy_never_starts_a_job(config: PackingConfig, most: int) -> None:
    batch = PackingBatch([_JOBS], config)
    batch.begin()
    while not batch.is_over.all():
        batch.step(np.array([VOID]))
    assert batch.outcome(0).num_decisions == config.most_decisions(_JOBS) == most
    assert (batch.outcome(0).start < 0).all()


@pytest.mark.parametrize(("as_coded", "may_book"), [(False, 1), (True, 0)])
def test_the_released_code_leaves_the_last_step_of_the_horizon_free(
    as_coded: bool, may_book: int
) -> None:
    jobs = RigidJobs("two", [0, 0], [2, 3], [[4], [4]], [4])
    batch = PackingBatch([jobs], PackingConfig(num_slots=2, horizon=5, as_coded=as_coded))
    batch.begin()
    batch.step(np.array([0]))
    assert masks_of(batch)[0].tolist() == [0, may_book, 1]


def test_quirks_of_the_released_code_are_refused_with_exact_times() -> None:
    assert PackingConfig(as_coded=True).as_coded
    with pytest.raises(ValidationError, match="leave out as_coded, or the mode 'exact'"):
        PackingConfig(mode=TimeMode.EXACT, as_coded=True)


def test_the_most_steps_are_those_of_the_longest_piece() -> None:
    late = RigidJobs("late", [2, 5, 6], [3, 1, 7], [[1]] * 3, [4])
    assert most_steps(late) == 6 + 11
    # The pieces of two jobs take 3 + 4 and 1 + 8 steps.
    assert most_steps(late, 2) == 9
    assert most_steps(late, 4) == most_steps(late.piece(0, 0)) == 0


@pytest.mark.parametrize("speeds", [(), (1.0, 0.0), (math.nan,), (1e-300,), (math.inf,)])
def test_speeds_that_no_log_can_have_are_refused(speeds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"give one or more numbers from 0\.001 to 1000"):
        RigidLogSource(_JOBS, 1, speeds=speeds)
