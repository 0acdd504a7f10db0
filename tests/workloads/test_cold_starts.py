"""Fresh durations from runs in new executors."""

import numpy as np

from parcae.workloads.cold_starts import with_fresh_durations
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec


def _durations(
    fresh: list[int], first: list[int], rest: list[int], level: int = 2
) -> TaskDurations:
    return TaskDurations(
        (level,), (np.array(fresh, float),), (np.array(first, float),), (np.array(rest, float),)
    )


WARM = _durations([], [100], [50, 50])
COLD = _durations([3_000], [500], [400])


def test_a_stage_takes_the_fresh_samples_of_the_cold_run_and_nothing_else() -> None:
    warm = JobSpec("q", (StageSpec(3, WARM, name="scan"),))
    cold = JobSpec("q", (StageSpec(3, COLD, name="scan"),))
    durations = with_fresh_durations(warm, cold).stages[0].durations
    assert [
        durations.fresh[0].tolist(),
        durations.first[0].tolist(),
        durations.rest[0].tolist(),
    ] == [[3_000], [100], [50, 50]]


def test_the_known_mean_stays_that_of_the_warm_job() -> None:
    warm = JobSpec("q", (StageSpec(3, WARM, name="scan"),))
    cold = JobSpec("q", (StageSpec(3, COLD, name="scan"),))
    assert with_fresh_durations(warm, cold).stages[0].mean_task_ms == 200 / 3


def test_stages_are_found_again_in_another_order() -> None:
    warm = JobSpec(
        "q",
        (
            StageSpec(3, WARM, name="scan"),
            StageSpec(8, WARM, name="scan"),
            StageSpec(1, WARM, (0, 1)),
        ),
    )
    cold = JobSpec(
        "q",
        (
            StageSpec(8, COLD, name="scan"),
            StageSpec(3, WARM, name="scan"),
            StageSpec(1, WARM, (0, 1)),
        ),
    )
    merged = with_fresh_durations(warm, cold)
    assert [stage.durations.fresh[0].tolist() for stage in merged.stages] == [[], [3_000], []]


def test_similar_stages_are_distinguished_by_their_readers() -> None:
    def job(first: TaskDurations, second: TaskDurations, swap: bool) -> JobSpec:
        scans = (StageSpec(8, first, name="scan"), StageSpec(8, second, name="scan"))
        sort = StageSpec(4, WARM, (int(swap),), name="sort")
        join = StageSpec(4, WARM, (int(not swap), 2), name="join")
        return JobSpec("q", (*scans, sort, join))

    merged = with_fresh_durations(job(WARM, WARM, swap=False), job(COLD, WARM, swap=True))
    assert [stage.durations.fresh[0].tolist() for stage in merged.stages] == [[], [3_000], [], []]


def test_a_stage_that_the_cold_run_lacks_is_left_as_it_is() -> None:
    warm = JobSpec("q", (StageSpec(3, WARM, name="scan"),))
    cold = JobSpec("q", (StageSpec(4, COLD, name="scan"),))
    assert with_fresh_durations(warm, cold).stages[0].durations is WARM


def test_fresh_samples_of_another_level_go_to_the_nearest() -> None:
    warm = JobSpec("q", (StageSpec(3, WARM, name="scan"),))
    cold = JobSpec("q", (StageSpec(3, _durations([3_000], [], [], level=1), name="scan"),))
    durations = with_fresh_durations(warm, cold).stages[0].durations
    assert (durations.levels, durations.fresh[0].tolist()) == ((2,), [3_000])
