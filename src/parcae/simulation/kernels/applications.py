"""What the manager of a shared cluster sees of an application, and does to its executors.

Every application is a simulator of its own, with tables for an elastic cluster and for faults. It
runs for a moment, then the manager looks at all of them and grants, takes and kills executors.

`state` is a `ClusterState`, `future` the `Future` of the same simulator.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import kernel
from parcae.cluster.kernels.policies import begin_run
from parcae.cluster.kernels.tables import active_jobs, begin_changes, remaining_ms
from parcae.cluster.state import NO_JOB, NO_STAGE, NOT_YET
from parcae.simulation.future import NEVER_MS, Manager
from parcae.simulation.kernels.cores_loop import find_next_other, resume_cores, start_cores
from parcae.simulation.kernels.elastic import (
    cores_of,
    executors_needed,
    first_idle,
    remove_executor,
)
from parcae.simulation.kernels.events import next_ms
from parcae.simulation.kernels.faults import interrupt
from parcae.simulation.kernels.playing import go_on, simulation_of

_TELLS = int(Manager.TELLS)


@kernel
def play_until(simulations, policy, view, end_ms, is_new):  # type: ignore[no-untyped-def]
    """Start the first of these runs or go on with it, until a time; then `look` at it. `status`
    says how it stopped.
    """
    simulation = simulation_of(simulations, 0)
    state, future, tables = simulation
    future.events.end_ms[0] = end_ms
    if is_new:
        status = start_cores(state, future, tables)
        begin_run(state, policy)
    else:
        status = resume_cores(state, future, tables)
    simulations.status[0] = go_on(simulation, status, policy)
    look(state, future, view)


@kernel
def look(state, future, view):  # type: ignore[no-untyped-def]
    """Write what a manager sees of an application to a row of `VIEW`, and open the run's end."""
    elastic = future.elastic
    executors = future.elastic_executors
    view.up[0] = elastic.num_up[0]
    view.leaving[0] = elastic.num_leaving[0]
    granted = 0
    asked = 0
    for executor in range(executors.shape[0]):
        ready_ms = executors.ready_ms[executor]
        granted += ready_ms != NOT_YET and ready_ms != NEVER_MS
        asked += ready_ms == NEVER_MS
    view.starting[0] = granted
    view.asked[0] = asked
    view.needed[0] = executors_needed(state, future)
    work_ms = 0.0
    for job in active_jobs(state):
        work_ms += remaining_ms(state, job)
    # Running tasks are half done.
    for core in range(state.executors.shape[0]):
        if state.executors.stage[core] != NO_STAGE:
            work_ms += 0.5 * state.stages.task_ms[state.executors.stage[core]]
    view.work_ms[0] = work_ms
    future.events.end_ms[0] = NEVER_MS
    find_next_other(state, future)
    view.next_ms[0] = min(next_ms(future), future.events.next_other_ms[0])


@kernel
def grant(future, ready_ms):  # type: ignore[no-untyped-def]
    """Let one more executor start, which was asked for unless a service tells how many there are.
    Returns whether there was room for one.
    """
    elastic = future.elastic
    executors = future.elastic_executors
    tells = elastic.manager[0] == _TELLS
    for executor in range(executors.shape[0]):
        is_free = not executors.is_up[executor] and executors.ready_ms[executor] == NOT_YET
        if (tells and is_free) or (not tells and executors.ready_ms[executor] == NEVER_MS):
            elastic.num_starting[0] += tells
            executors.ready_ms[executor] = ready_ms
            elastic.next_ms[0] = min(elastic.next_ms[0], ready_ms)
            return True
    return False


@kernel
def withdraw(future):  # type: ignore[no-untyped-def]
    """Let one executor stay that was to go. Returns whether there was one with all its cores."""
    executors = future.elastic_executors
    for executor in range(executors.shape[0]):
        if executors.is_leaving[executor] and executors.num_left[executor] == 0:
            executors.is_leaving[executor] = 0
            future.elastic.num_leaving[0] -= 1
            return True
    return False


@kernel
def release(state, future, least_idle_ms):  # type: ignore[no-untyped-def]
    """Remove the executor that is idle longest, if that is so long. Returns whether one was."""
    executor = first_idle(state, future, least_idle_ms)
    if executor < 0:
        return False
    begin_changes(state)
    remove_executor(state, future, executor)
    return True


@kernel
def drain(state, future):  # type: ignore[no-untyped-def]
    """Let one more executor go: an idle one at once, else the youngest at its tasks' ends. Returns
    whether there was one.
    """
    if release(state, future, 0):
        return True
    executor = _youngest(future)
    if executor < 0:
        return False
    future.elastic_executors.is_leaving[executor] = 1
    future.elastic.num_leaving[0] += 1
    return True


@kernel
def kill(state, future):  # type: ignore[no-untyped-def]
    """Kill the youngest executor and the tasks that run there. Returns whether there was one."""
    executor = _youngest(future)
    if executor < 0:
        return False
    begin_changes(state)
    for core in cores_of(future, executor):
        if state.executors.job[core] != NO_JOB:
            interrupt(state, future, core)
    remove_executor(state, future, executor)
    future.faults.num_losses[0] += 1
    return True


@kernel
def _youngest(future):  # type: ignore[no-untyped-def]
    """The executor that came up last, of those that are up and not to go; -1 without one."""
    executors = future.elastic_executors
    youngest = -1
    for executor in range(executors.shape[0]):
        if not executors.is_up[executor] or executors.is_leaving[executor]:
            continue
        if youngest < 0 or executors.up_ms[executor] >= executors.up_ms[youngest]:
            youngest = executor
    return youngest
