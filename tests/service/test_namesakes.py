"""Jobs of one name with several DAGs, as the service and the policy file know them."""

from __future__ import annotations

import pytest

from parcae.cluster.state import NO_PROFILE
from parcae.service.jobs import DurationModel
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload, rows_by_name, usual_row
from tests.service.speaking import job_of

_JOBS = (chain(1, 1, 10, "etl"), chain(1, 100, 1_000, "etl (2)"), chain(1, 7, 50, "report (2)"))
_WORKLOAD = Workload("w", _JOBS, (1.0, 3.0, 1.0))


def test_variants_have_the_name_of_the_job_that_they_vary() -> None:
    assert rows_by_name(_WORKLOAD) == {"etl": (0, 1), "etl (2)": (1,), "report (2)": (2,)}
    assert usual_row(_WORKLOAD, (0, 1)) == 1
    assert usual_row(Workload("w", _JOBS), (0, 1, 2)) == 2  # the median work


@pytest.mark.parametrize(("tasks", "row", "task_ms"), [(1, 0, 10.0), (100, 1, 1_000.0)])
def test_a_live_job_gets_the_durations_of_the_variant_with_its_stages(
    tasks: int, row: int, task_ms: float
) -> None:
    model = DurationModel(_WORKLOAD)
    job = job_of("live", (tasks, ()), name="etl")
    recurring = model.look_up("app", job.names, job.stages)
    found = model.rows(job, recurring)
    assert (found.profile, found.specs.task_ms.tolist()) == (row, [task_ms])
    # Until its stages are known, it is expected to be as large as its runs were on average.
    tasks_left, left_ms = model.hidden_stage(recurring, 0.0)
    assert tasks_left * left_ms == pytest.approx((10 + 3 * 100_000) / 4)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_live_job_with_other_stages_is_the_usual_job_of_its_name(is_open: bool) -> None:
    """So that it has that job's deadline, and that job's name for policies in Python."""
    model = DurationModel(_WORKLOAD)
    for name, profile in (("etl", 1), ("report (2)", 2), ("new", NO_PROFILE)):
        job = job_of("live", (3, ()), (5, (0,)), name=name, is_open=is_open)
        assert model.rows(job, model.look_up("app", job.names, job.stages)).profile == profile


def test_jobs_without_weight_have_a_mean_too() -> None:
    model = DurationModel(Workload("w", _JOBS, (0.0, 0.0, 1.0)))
    job = job_of("live", (1, ()), name="etl")
    tasks_left, left_ms = model.hidden_stage(model.look_up("app", job.names, job.stages), 0.0)
    assert tasks_left * left_ms == pytest.approx((10 + 100_000) / 2)


def test_unlike_jobs_of_one_call_site_learn_durations_of_their_own() -> None:
    model = DurationModel(None)
    small = job_of("a", (2, ()), name="collect at x.py:10")
    large = job_of("b", (200, ()), (10, (0,)), name="collect at x.py:10")
    for job, task_ms in ((small, 10), (large, 1_000)):
        recurring = model.look_up("app", job.names, job.stages)
        num_tasks = sum(stage.tasks for stage in job.stages)
        for position, stage in enumerate(job.stages):
            model.tasks_finished(recurring, position, stage.tasks, stage.tasks * task_ms)
        model.job_finished(recurring, num_tasks * task_ms)
    for job, task_ms, work_ms in ((small, 10.0, 20.0), (large, 1_000.0, 210_000.0)):
        recurring = model.look_up("app", job.names, job.stages)
        assert set(model.durations(recurring, job.stages)) == {task_ms}
        tasks_left, left_ms = model.hidden_stage(recurring, 0.0)
        assert tasks_left * left_ms == pytest.approx(work_ms)
    # A job unlike both gets what is known of the name.
    other = job_of("c", (50, ()), name="collect at x.py:10")
    recurring = model.look_up("app", other.names, other.stages)
    assert model.durations(recurring, other.stages) == [pytest.approx(200_020 / 202)]
