"""The benchmark of planning with a profile of other runs: what it divides."""

import numpy as np
from benchmarks.planning_profile import two_profiles

from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload


def test_the_runs_that_are_known_share_no_duration_with_those_that_happen() -> None:
    samples = np.arange(1, 9) * 1_000
    durations = TaskDurations((2,), (samples,), (samples + 1,), (np.array([7]),))
    stage = StageSpec(4, durations)
    workload = Workload("made up", (JobSpec("job", (stage, StageSpec(2, durations, (0,)))),))
    happening, known = two_profiles(workload, seed=0)
    for new, old in zip(happening.jobs[0].stages, known.jobs[0].stages, strict=True):
        for wave in ("fresh", "first"):
            (a,), (b,) = getattr(new.durations, wave), getattr(old.durations, wave)
            assert len(a) == len(b) == 4
            both = np.sort(np.concatenate([a, b]))
            assert both.tolist() == getattr(durations, wave)[0].tolist()
        # A single sample is all that is known of its wave.
        assert new.durations.rest[0].tolist() == old.durations.rest[0].tolist() == [7]
        # Schedulers are told the mean of the other runs.
        assert new.mean_task_ms == old.mean_task_ms == old.durations.mean_ms
        assert new.parents == old.parents
