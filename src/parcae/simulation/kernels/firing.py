"""What every event loop does: put jobs into the cluster, draw durations, carry out commands."""

from __future__ import annotations

import math

import numpy as np

from parcae.cluster.kernels.transitions import job_arrived, reset
from parcae.cluster.state import NO_PROFILE, CommandKind, World
from parcae.kernels import inlined, kernel
from parcae.simulation.future import Future
from parcae.simulation.kernels.event_queue import clear, push
from parcae.simulation.kernels.task_durations import job_luck, task_duration_ms, task_luck

_CORES = int(World.CORES)
_START = int(CommandKind.START_TASK)


@inlined
def select_future(many, simulator):  # type: ignore[no-untyped-def]
    """The future of one simulator out of many."""
    return Future(
        many.events[simulator],
        many.keys[simulator],
        many.job_profile[simulator],
        many.arrival_ms[simulator],
        many.knowledge[simulator],
        many.stage_profile[simulator],
        many.stage_luck[simulator],
        many.tasks[simulator],
        many.decisions[simulator],
        many.run_factor[simulator],
        many.followups[simulator],
    )


@kernel
def begin(state, future):  # type: ignore[no-untyped-def]
    """Empty the cluster and the event queue: nothing has happened yet."""
    events = future.events
    reset(state)
    clear(future, 0)
    events.next_arrival[0] = 0
    events.num_fired_arrivals[0] = 0
    events.num_moves[0] = 0
    events.num_tasks[0] = 0
    events.stall_count[0] = -1


@kernel
def submit(state, future, tables):  # type: ignore[no-untyped-def]
    """The next job of the sequence arrives. Returns its row."""
    events = future.events
    row = events.next_arrival[0]
    profile = future.job_profile[row]
    first = tables.job_first_stage[profile]
    last = tables.job_first_stage[profile + 1]
    arrival_ms = future.arrival_ms[row]
    knowledge = future.knowledge[row]
    specs = tables.specs
    children = tables.spec_children
    if (
        knowledge == 0.0 and state.now.world[0] == _CORES
    ):  # the scheduler guesses by what is known at submission
        job = job_arrived(
            state, tables.guesses, children, first, last - first, NO_PROFILE, arrival_ms, 1.0
        )
    else:
        job = job_arrived(
            state, specs, children, first, last - first, profile, arrival_ms, knowledge
        )
    luck = job_luck(events.seed[0], row)
    stage_start = state.jobs.stage_start[job]
    for index in range(last - first):
        future.stage_profile[stage_start + index] = first + index
        future.stage_luck[stage_start + index] = luck + (np.uint64(index) << np.uint64(32))
    events.next_arrival[0] = row + 1
    return job


@inlined
def draw_duration_ms(state, future, tables, executor, stage, task, wave, attached):  # type: ignore[no-untyped-def]
    """Draw the duration of a task that starts now, and record the task where tasks are recorded."""
    profile = future.stage_profile[stage]
    luck = task_luck(future.stage_luck[stage], task)
    duration_ms = task_duration_ms(
        tables, profile, task, attached, wave, luck, future.events.warmup_delay_ms[0]
    )
    factor = future.run_factor[stage]
    if factor != 1.0:
        duration_ms = np.int64(math.floor(duration_ms * factor + 0.5))
    if future.tasks.shape[0] > 0:
        _record_task(state, future, executor, stage, task, duration_ms)
    future.events.num_tasks[0] += 1
    return duration_ms


@inlined
def schedule_task(state, future, tables, executor, stage, task, wave, attached):  # type: ignore[no-untyped-def]
    """Draw the task's duration and push its finish."""
    duration_ms = draw_duration_ms(state, future, tables, executor, stage, task, wave, attached)
    return push(future, executor, state.now.clock_ms[0] + duration_ms)


@kernel
def _record_task(state, future, executor, stage, task, duration_ms):  # type: ignore[no-untyped-def]
    tasks = future.tasks
    row = future.events.num_tasks[0]
    job = state.stages.job[stage]
    tasks.job[row] = job
    tasks.stage[row] = stage - state.jobs.stage_start[job]
    tasks.task[row] = task
    tasks.executor[row] = executor
    tasks.start_ms[row] = state.now.clock_ms[0]
    tasks.finish_ms[row] = state.now.clock_ms[0] + duration_ms


@kernel
def carry_out_commands(state, future, tables):  # type: ignore[no-untyped-def]
    """Push the events that the last transition's commands lead to."""
    in_range = True
    commands = state.commands
    for row in range(state.now.num_commands[0]):
        executor = commands.executor[row]
        stage = commands.stage[row]
        if commands.kind[row] == _START:
            task = commands.task[row]
            wave = commands.wave[row]
            attached = commands.parallelism[row]
            in_range &= schedule_task(state, future, tables, executor, stage, task, wave, attached)
        else:
            future.events.num_moves[0] += 1
            in_range &= push(
                future, executor, state.now.clock_ms[0] + future.events.moving_delay_ms[0]
            )
    state.now.num_commands[0] = 0
    return in_range
