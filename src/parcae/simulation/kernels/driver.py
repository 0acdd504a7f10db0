"""Driver time in the world of cores: what passes while no task of a job may run.

The driver plans, lists files and waits for results before it submits a stage (its *gap*, after the
ends of all parents), serialises and broadcasts its tasks before the first one starts (its *lag*),
and collects the result after the last stage (the job's *tail*). No core is held meanwhile. A stage
has the driver as one more parent until its tasks may be launched.

`state` is a `ClusterState`, `future` the `Future` of the same simulator with timers, `tables` the
`WorkloadTables`.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import NOTHING, deferred, inlined, kernel
from parcae.cluster.kernels.cores import complete_job, reveal_stage
from parcae.cluster.kernels.tables import edges_of, stages_of
from parcae.simulation.future import NEVER_MS, Timer
from parcae.simulation.kernels.events import go_on_with_session, place_of, run_of_job

_SUBMIT = int(Timer.SUBMIT)
_LAUNCH = int(Timer.LAUNCH)
_RESULT = int(Timer.RESULT)
_KINDS = len(Timer)


@inlined
def _fires_before(timers, first, second):  # type: ignore[no-untyped-def]
    if timers.time_ms[first] != timers.time_ms[second]:
        return timers.time_ms[first] < timers.time_ms[second]
    return timers.number[first] < timers.number[second]


@inlined
def _swap(timers, first, second):  # type: ignore[no-untyped-def]
    timers.time_ms[first], timers.time_ms[second] = timers.time_ms[second], timers.time_ms[first]
    timers.number[first], timers.number[second] = timers.number[second], timers.number[first]
    timers.what[first], timers.what[second] = timers.what[second], timers.what[first]


@kernel
def _set_timer(state, future, delay_ms, what):  # type: ignore[no-untyped-def]
    """Let something happen after a delay."""
    timers = future.timers
    events = future.events
    row = events.num_timers[0]
    timers.time_ms[row] = state.now.clock_ms[0] + delay_ms
    timers.number[row] = events.num_timers_set[0]
    timers.what[row] = what
    events.num_timers[0] = row + 1
    events.num_timers_set[0] += 1
    events.next_other_ms[0] = min(events.next_other_ms[0], timers.time_ms[row])
    while row > 0 and _fires_before(timers, row, (row - 1) // 2):
        _swap(timers, row, (row - 1) // 2)
        row = (row - 1) // 2


@kernel
def _take_timer(future):  # type: ignore[no-untyped-def]
    """Remove the next timer. Returns what happens."""
    timers = future.timers
    last = future.events.num_timers[0] - 1
    future.events.num_timers[0] = last
    what = timers.what[0]
    _swap(timers, 0, last)
    row = 0
    while 2 * row + 1 < last:
        child = 2 * row + 1
        if child + 1 < last and _fires_before(timers, child + 1, child):
            child += 1
        if not _fires_before(timers, child, row):
            break
        _swap(timers, row, child)
        row = child
    return what


@inlined
def _driver_row(state, future, stage):  # type: ignore[no-untyped-def]
    """The row of the stage's run in the workload's `driver`."""
    job = state.stages.job[stage]
    return future.driver_row[job] + stage - state.jobs.stage_start[job]


@deferred(NOTHING)
def begin_driver(state, future, tables, job):  # type: ignore[no-untyped-def]
    """Choose the recorded run whose driver time the job has; its stages wait for the driver."""
    events = future.events
    arrival = events.next_arrival[0] - 1
    profile = future.job_profile[arrival]
    num_stages = state.jobs.num_stages[job]
    run = run_of_job(events.seed[0], place_of(future, arrival), tables.num_runs[profile])
    row = tables.first_driver[profile] + run * (num_stages + 1)
    future.driver_row[job] = row
    # The last row of a run is that of the job.
    state.jobs.has_tail[job] = 1 if tables.driver.gap_ms[row + num_stages] > 0 else 0
    for stage in stages_of(state, job):
        state.stages.num_parents_unfinished[stage] += 1


@kernel
def _number_stage(state, future, tables, stage):  # type: ignore[no-untyped-def]
    """Number the Spark job of a stage that is submitted, and all stages of it, unless that was done
    with another of them; a stage whose Spark job is not known is one of its own.
    """
    stages = state.stages
    if stages.first_rank[stage] >= 0:
        return
    spark_job = tables.spark_job[future.stage_profile[stage]]
    for other in stages_of(state, stages.job[stage]):
        is_same = spark_job >= 0 and tables.spark_job[future.stage_profile[other]] == spark_job
        if is_same or other == stage:
            stages.first_rank[other] = state.now.num_revealed[0]
            stages.serial[other] = future.events.num_numbered[0]
            future.events.num_numbered[0] += 1
    state.now.num_revealed[0] += 1


@kernel
def _launch(state, stage):  # type: ignore[no-untyped-def]
    state.stages.num_parents_unfinished[stage] = 0
    reveal_stage(state, stage)


@kernel
def _submit(state, future, tables, stage):  # type: ignore[no-untyped-def]
    """Submit a stage; its tasks may be launched after its lag, which passes only while there are
    cores.
    """
    has_no_core = state.now.num_executors[0] == 0 and future.slots.shape[0] > 0
    if has_no_core and future.elastic.next_ms[0] < NEVER_MS:
        delay_ms = future.elastic.next_ms[0] - state.now.clock_ms[0]
        _set_timer(state, future, delay_ms, stage * _KINDS + _SUBMIT)
        return
    _number_stage(state, future, tables, stage)
    lag_ms = tables.driver.lag_ms[_driver_row(state, future, stage)]
    if lag_ms > 0:
        _set_timer(state, future, lag_ms, stage * _KINDS + _LAUNCH)
    else:
        _launch(state, stage)


@deferred(NOTHING)
def parents_ended(state, future, tables, stage):  # type: ignore[no-untyped-def]
    """Let the driver prepare a stage whose parents have all ended."""
    gap_ms = tables.driver.gap_ms[_driver_row(state, future, stage)]
    if gap_ms > 0:
        _set_timer(state, future, gap_ms, stage * _KINDS + _SUBMIT)
    else:
        _submit(state, future, tables, stage)


@deferred(NOTHING)
def stage_ended(state, future, tables, stage):  # type: ignore[no-untyped-def]
    """Let the driver prepare the children of a stage that is complete, or the job's result."""
    for edge in edges_of(state, stage):
        child = state.children[edge]
        if state.stages.num_parents_unfinished[child] == 1:
            parents_ended(state, future, tables, child)
    job = state.stages.job[stage]
    jobs = state.jobs
    if jobs.num_done[job] == jobs.num_stages[job] and jobs.has_tail[job]:
        tail_ms = tables.driver.gap_ms[future.driver_row[job] + jobs.num_stages[job]]
        _set_timer(state, future, tail_ms, job * _KINDS + _RESULT)


@deferred(NOTHING)
def fire_timer(state, future, tables):  # type: ignore[no-untyped-def]
    """Carry out what the next timer stands for."""
    what = _take_timer(future)
    kind = what % _KINDS
    row = what // _KINDS
    if kind == _SUBMIT:
        _submit(state, future, tables, row)
    elif kind == _LAUNCH:
        _launch(state, row)
    else:
        complete_job(state, row)
        go_on_with_session(state, future, row)
