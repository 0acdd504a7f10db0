"""Runs of one recurring job are matched stage by stage; jobs that are left out do not warm up
executors.
"""

import numpy as np

from parcae.workloads.durations import Wave
from parcae.workloads.spark_log.application import TaskColumns
from parcae.workloads.spark_log.dag import JobRun, StageRun
from parcae.workloads.spark_log.durations import StageSamples, place_tasks
from parcae.workloads.spark_log.profile import merge_runs


def _stage(kind: str, num_tasks: int, *parents: int) -> StageRun:
    samples = tuple(
        np.array(values, np.int64) for values in ([], [num_tasks], [num_tasks] * (num_tasks - 1))
    )
    return StageRun(
        kind, kind, num_tasks, frozenset(parents), frozenset(), StageSamples(2, samples)
    )


def test_similar_stages_are_distinguished_by_the_task_counts_around_them() -> None:
    """A scan of 2 tasks is joined with one of 6 and one of 28; the order of the joins differs."""
    scans = [_stage("scan", tasks) for tasks in (2, 28, 6)]
    small = _stage("join", 64, 0, 2)
    large = _stage("join", 64, 0, 1)
    one = JobRun("q20", 0, [*scans, small, large, _stage("join", 64, 3, 4)])
    other = JobRun("q20", 100, [*scans, large, small, _stage("join", 64, 3, 4)])
    (profile,) = merge_runs([one, other], keep_first_runs=True)
    assert profile.num_runs == 2
    assert [stage.parents for stage in profile.job.stages[3:]] == [(0, 2), (0, 1), (3, 4)]
    assert profile.job.stages[1].durations.first[0].tolist() == [28, 28]


def test_jobs_do_not_depend_on_the_order_of_the_logs() -> None:
    """60 tasks are close to 40 and to 90, which are not close to each other."""
    runs = [JobRun("q", 100 * tasks, [_stage("scan", tasks)]) for tasks in (40, 60, 90)]
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        profiles = merge_runs([runs[row] for row in order], keep_first_runs=True)
        assert [profile.num_runs for profile in profiles] == [2, 1]
        assert [profile.job.num_tasks for profile in profiles] == [40, 90]


def test_equal_chains_do_not_cross_where_their_counts_change() -> None:
    """Two scans, each with an aggregate behind it: which aggregate is smaller changes."""
    runs = []
    for number, (few, many) in enumerate([(3, 2), (3, 2), (2, 3), (3, 3)]):
        chains = [
            *(_stage("scan", tasks) for tasks in (10, 100)),
            _stage("aggregate", few, 0),
            _stage("aggregate", many, 1),
        ]
        runs.append(JobRun("q", 100 * number, [*chains, _stage("join", 1, 2, 3)]))
    (profile,) = merge_runs(runs, keep_first_runs=True)
    assert profile.num_runs == 4


def test_a_schema_reading_stage_leaves_the_executor_fresh_for_the_job_that_is_looked_for() -> None:
    column = np.array([0, 0, 0, 0], np.int64)
    stage_id = np.array([0, 1, 1, 2], np.int64)
    launch = np.array([0, 10, 20, 30], np.int64)
    tasks = TaskColumns(
        stage_id, np.arange(4), launch, launch + 9, column, column, column, launch * 0 + 9, column
    )
    assert place_tasks(tasks, [1], ignored_stages={0}).wave.tolist()[1:] == [
        Wave.FRESH,
        Wave.REST,
        Wave.FIRST,
    ]
    assert place_tasks(tasks, [1]).wave.tolist() == [Wave.FRESH, Wave.FIRST, Wave.REST, Wave.FIRST]
