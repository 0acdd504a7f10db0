import pytest

from parcae.base.errors import ConfigError
from parcae.workloads.archive import load_workload
from parcae.workloads.job import LoggedFaults
from parcae.workloads.synthetic import mixed, one_stage
from parcae.workloads.workload import RandomStreams, Workload, draw_sequence
from tests.conftest import job


def test_a_dag_is_one_stage_of_all_its_work_to_one_executor() -> None:
    dag = job("dag", (1, 2_000, ()), (1, 5_000, (0,)), (2, 4_000, (0,)), (3, 4_000, (1, 2)))
    assert one_stage(dag).work_ms == one_stage(dag).critical_path_ms == 27_000
    assert (len(one_stage(dag).stages), one_stage(dag).num_tasks) == (1, 1)
    assert one_stage(dag.at(7)).arrival_ms == 7


def test_synthetic_jobs_take_10_or_50_seconds_half_of_each() -> None:
    workload = load_workload("one-stage")
    assert [job.work_ms for job in workload.jobs] == [10_000, 50_000]
    assert workload.mean_work_ms == 30_000


def test_alpha_is_the_share_of_one_stage_jobs_in_a_mixture() -> None:
    two = Workload("two", (job("a", (1, 1_000, ())), job("b", (1, 3_000, ()))), (1.0, 3.0))
    assert mixed(two, 0.4).weights == pytest.approx((0.2, 0.2, 0.15, 0.45))
    assert mixed(two, 0.0).mean_work_ms == two.mean_work_ms
    assert mixed(two, 1.0).mean_work_ms == 30_000
    loaded = load_workload("mixed:0.5:toy")
    assert [job.name for job in loaded.jobs] == ["short", "long", "long", "middle", "short"]
    drawn = draw_sequence(loaded, "poisson:10s", 2_000, 4, RandomStreams(0))
    assert (drawn.job_index < 2).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("text", ["0.5", "x:toy", "0.5:", ":toy", "1.5:toy"])
def test_a_mixture_without_a_share_or_a_workload_is_refused(text: str) -> None:
    message = "between 0 and 1" if text == "1.5:toy" else "mixed:ALPHA:WORKLOAD"
    with pytest.raises(ConfigError, match=message):
        load_workload(f"mixed:{text}")


def test_a_mixture_keeps_what_went_wrong_in_the_logs() -> None:
    faults = LoggedFaults(num_attempts=100, num_failed=2)
    logged = Workload("w", (job("a", (1, 10, ())),), faults=faults)
    assert mixed(logged, 0.5).faults == faults
