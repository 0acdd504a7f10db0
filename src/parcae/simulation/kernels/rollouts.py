"""Rollouts: runs that start from the present state of a cluster and try one decision each.

A rollout knows what a scheduler knows. Everything else is drawn anew: the durations of tasks that
have not started, the remaining times of running tasks (given how long they have run), and the jobs
to come.

Source: Bertsekas and Castanon, "Rollout algorithms for stochastic scheduling problems" (1999).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.state import NO_PROFILE, NO_STAGE
from parcae.kernels import inlined, kernel, mix, row_of, unit
from parcae.simulation.future import NEVER_MS
from parcae.simulation.kernels.event_loop import resume, step
from parcae.simulation.kernels.event_queue import clear, push
from parcae.simulation.kernels.simulations import Simulation
from parcae.simulation.kernels.task_durations import job_bits, task_bits, task_duration_ms

_NEVER = np.int64(NEVER_MS)
_REST = 2
#: Draws of the duration of a running task, until one is longer than the task has run already.
_MOST_DRAWS = 24
#: If no draw is: the remaining time relative to the time that the task has run.
_BEYOND = 0.1
_RUNNING = np.uint64(0x52554E4E494E47)
_ARRIVALS = np.uint64(0x4152524956414C)


class Rollouts(NamedTuple):
    """Many rollouts from one state; a leading axis of the tables is the rollout."""

    states: Any  # ClusterState
    futures: Any  # Future
    tables: Any  # WorkloadTables
    # What is tried first, int64[num_rollouts] each.
    stage: Any
    limit: Any
    executor_class: Any
    seed: Any  # uint64[num_rollouts]: rollouts of one seed draw the same luck
    # Receives the integral over time of the number of jobs in the system, in ms.
    cost_ms: Any  # float64[num_rollouts]
    status: Any  # int64[num_rollouts]
    # Arrivals to come: mean gap in ms (0: none), and until when they are drawn.
    mean_gap_ms: Any  # float64[1]
    horizon_ms: Any  # float64[1]
    end_after_ms: Any  # float64[1]: rollouts stop after this time; 0: at their end
    decay_ms: Any  # float64[1]: later job time counts less, by exp(-time / decay_ms); 0: not
    job_share: Any  # float64[num_profiles], cumulated probability of every recurring job


@kernel
def _copy_sources(view, state):  # type: ignore[no-untyped-def]
    """Copy the pools and the executors bound to stages; the tables' sizes may differ."""
    num_classes = view.classes.shape[0]
    shift = (state.jobs.shape[0] - view.jobs.shape[0]) * num_classes
    first_stage = (view.jobs.shape[0] + 1) * num_classes
    for row in range((view.now.num_jobs[0] + 1) * num_classes):
        state.sources[row] = view.sources[row]
    for row in range((view.now.num_jobs[0] + 1) * num_classes, state.sources.shape[0]):
        state.sources.num_idle[row] = 0
        state.sources.num_committed[row] = 0
    for row in range(first_stage, first_stage + view.now.num_stages[0] * num_classes):
        state.sources[row + shift] = view.sources[row]
    for row in range(view.now.num_commitment_rows[0]):
        state.commitments[row] = view.commitments[row]
        if view.commitments.source[row] >= first_stage:
            state.commitments.source[row] += shift
    if view.now.source[0] >= first_stage:
        state.now.source[0] += shift


@kernel
def _copy_cluster(view, state):  # type: ignore[no-untyped-def]
    """Copy the tables of an observed cluster; `state` has room for at least as many jobs."""
    now = view.now
    state.now[0] = view.now[0]
    state.now.num_commands[0] = 0
    for row in range(now.num_jobs[0]):
        state.jobs[row] = view.jobs[row]
    for row in range(now.num_stages[0]):
        state.stages[row] = view.stages[row]
    for row in range(now.num_edges[0]):
        state.children[row] = view.children[row]
    for row in range(now.num_active[0]):
        state.active[row] = view.active[row]
    for row in range(now.num_executors[0]):
        state.executors[row] = view.executors[row]
    for row in range(now.num_holds[0]):
        state.holds[row] = view.holds[row]
    for row in range(view.classes.shape[0]):
        state.classes[row] = view.classes[row]
        state.source_count[row] = view.source_count[row]
    _copy_sources(view, state)


@kernel
def _redraw_stages(state, future, tables):  # type: ignore[no-untyped-def]
    """Give every stage of the jobs in the system its row in the tables, and new random bits."""
    num_rows = tables.specs.shape[0]
    # Those of the jobs to come have no error.
    future.run_factor[:] = 1.0
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        profile = state.jobs.profile[job]
        bits = job_bits(future.events.seed[0], job)
        for index in range(state.jobs.num_stages[job]):
            stage = state.jobs.stage_start[job] + index
            future.stage_bits[stage] = bits + (np.uint64(index) << np.uint64(32))
            if profile == NO_PROFILE:
                # Nothing is known of the stage: it is like any stage of the workload.
                future.stage_profile[stage] = np.int64(mix(bits + np.uint64(index)) % np.uint64(num_rows))
                continue
            row = tables.job_first_stage[profile] + index
            future.stage_profile[stage] = row
            if tables.specs.task_ms[row] > 0.0:
                future.run_factor[stage] = state.stages.task_ms[stage] / tables.specs.task_ms[row]


@kernel
def _remaining_ms(state, future, tables, executor):  # type: ignore[no-untyped-def]
    """Draw the remaining time of the executor's task, given how long it has run."""
    stage = state.executors.stage[executor]
    profile = future.stage_profile[stage]
    attached = state.jobs.num_attached[state.stages.job[stage]]
    elapsed_ms = state.now.clock_ms[0] - state.executors.started_ms[executor]
    bits = mix(future.stage_bits[stage] ^ (_RUNNING + np.uint64(executor)))
    for draw in range(_MOST_DRAWS):
        duration_ms = task_duration_ms(
            tables, profile, draw, attached, _REST, task_bits(bits, draw),
            future.events.warmup_delay_ms[0],
        )
        duration_ms = np.int64(math.floor(duration_ms * future.run_factor[stage] + 0.5))
        if duration_ms > elapsed_ms:
            return duration_ms - elapsed_ms
    return np.int64(1 + _BEYOND * elapsed_ms)


@kernel
def _redraw_running(state, future, tables):  # type: ignore[no-untyped-def]
    """Push the ends of running tasks and the arrivals of moving executors.

    Returns:
        False if an event is too far away for an event key.
    """
    executors = state.executors
    clock_ms = state.now.clock_ms[0]
    in_range = True
    for executor in range(state.now.num_executors[0]):
        if executors.destination[executor] != NO_STAGE:
            arrival_ms = executors.started_ms[executor] + future.events.moving_delay_ms[0]
            in_range &= push(future, executor, max(clock_ms, arrival_ms))
        elif (
            executors.stage[executor] != NO_STAGE and executor != state.now.acting_executor[0]
        ):
            left_ms = _remaining_ms(state, future, tables, executor)
            in_range &= push(future, executor, clock_ms + left_ms)
    return in_range


@kernel
def _draw_profile(job_share, bits):  # type: ignore[no-untyped-def]
    """A recurring job, drawn by its share (bisection)."""
    value = unit(bits) * job_share[job_share.shape[0] - 1]
    low = 0
    high = job_share.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if job_share[middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _redraw_arrivals(state, future, rollouts):  # type: ignore[no-untyped-def]
    """Draw the jobs that arrive until the horizon, as a Poisson process."""
    first = state.now.num_jobs[0]
    future.events.next_arrival[0] = first
    future.arrival_ms[first:] = _NEVER
    if rollouts.mean_gap_ms[0] <= 0.0:
        return
    bits = mix(future.events.seed[0] ^ _ARRIVALS)
    after_ms = 0.0
    for row in range(first, future.arrival_ms.shape[0]):
        bits = mix(bits + np.uint64(1))
        after_ms -= rollouts.mean_gap_ms[0] * math.log(1.0 - unit(bits))
        if after_ms > rollouts.horizon_ms[0]:
            return
        bits = mix(bits + np.uint64(1))
        future.job_profile[row] = _draw_profile(rollouts.job_share, bits)
        future.knowledge[row] = 1.0
        future.arrival_ms[row] = state.now.clock_ms[0] + 1 + np.int64(after_ms)


@kernel
def begin_rollout(rollouts, view, row):  # type: ignore[no-untyped-def]
    """Copy the observed cluster into a rollout, draw its luck and apply its first decision.

    Args:
        rollouts: Rollouts; the tables of the row are written.
        view: the observation.
        row: the rollout.

    Returns:
        (the Simulation, its Status).
    """
    state = row_of(rollouts.states, row)
    future = row_of(rollouts.futures, row)
    tables = rollouts.tables
    _copy_cluster(view, state)
    clear(future, state.now.clock_ms[0])
    future.events.seed[0] = rollouts.seed[row]
    future.events.end_ms[0] = _NEVER
    if rollouts.end_after_ms[0] > 0.0:
        future.events.end_ms[0] = state.now.clock_ms[0] + 1 + np.int64(rollouts.end_after_ms[0])
    future.events.num_moves[0] = 0
    future.events.num_tasks[0] = 0
    future.events.stall_count[0] = -1
    _redraw_stages(state, future, tables)
    _redraw_running(state, future, tables)
    _redraw_arrivals(state, future, rollouts)
    resume(state, future, tables)
    status = step(
        state, future, tables, rollouts.stage[row], rollouts.limit[row],
        rollouts.executor_class[row], 0,
    )
    return Simulation(state, future, tables), status


@kernel
def _left_ms(state, future, job):  # type: ignore[no-untyped-def]
    """Work that is left of the job: its tasks that have not started, and the rest of those that run."""
    left_ms = state.jobs.remaining_ms[job]
    return left_ms


@kernel
def _cost_to_go_ms(state, future):  # type: ignore[no-untyped-def]
    """Job time that is still to come if jobs were served one after another, the shortest first."""
    total_ms = 0.0
    for position in range(state.now.num_active[0]):
        own_ms = _left_ms(state, future, state.active[position])
        before_ms = own_ms
        for other in range(state.now.num_active[0]):
            other_ms = _left_ms(state, future, state.active[other])
            if other_ms < own_ms or (other_ms == own_ms and other < position):
                before_ms += other_ms
        total_ms += before_ms / state.now.num_executors[0]
    return total_ms


@kernel
def _decayed_ms(rollouts, view, state):  # type: ignore[no-untyped-def]
    decay_ms = rollouts.decay_ms[0]
    clock_ms = view.now.clock_ms[0]
    total = 0.0
    for job in range(state.now.num_jobs[0]):
        done_ms = state.jobs.completion_ms[job]
        if done_ms < 0:
            done_ms = state.now.clock_ms[0]
        if done_ms > clock_ms:
            from_ms = max(clock_ms, state.jobs.arrival_ms[job]) - clock_ms
            total += decay_ms * (math.exp(-from_ms / decay_ms) - math.exp(-(done_ms - clock_ms) / decay_ms))
    return total


@kernel
def end_rollout(rollouts, view, row, status):  # type: ignore[no-untyped-def]
    """Write the cost of a rollout that stopped with a Status."""
    state = row_of(rollouts.states, row)
    future = row_of(rollouts.futures, row)
    rollouts.status[row] = status
    if rollouts.decay_ms[0] > 0.0:
        rollouts.cost_ms[row] = _decayed_ms(rollouts, view, state)
    else:
        rollouts.cost_ms[row] = state.now.job_ms[0] + _cost_to_go_ms(state, future)
