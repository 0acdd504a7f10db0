"""Runs to learn from: with the decisions that a network draws, or beside those of a rule."""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.policies import decide
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.decima.queries import (
    best_fitting,
    clear,
    draw_decision,
    has_room,
    recording_of,
    write_decision,
    write_demonstration,
    write_state,
)
from parcae.policies.networks.kernels import uniform
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import resume, start, step
from parcae.simulation.kernels.playing import cost_so_far, simulation_of

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@inlined
def _count(state, future, recording, log_prob):  # type: ignore[no-untyped-def]
    """Complete the row of a recorded decision, before it is carried out."""
    record = recording.record
    row = record.count[0]
    record.cost[row] = cost_so_far(state, future, recording.costing)
    record.log_prob[row] = log_prob
    record.count[0] = row + 1


@inlined
def _demonstrate(state, future, net, recording, teacher, drawn, is_choice):  # type: ignore[no-untyped-def]
    """Record what the teacher's rule would choose beside a drawn decision, and return one of both.

    If the rule lets executors idle, nothing is recorded, because Decima cannot choose that. If the
    rule leaves the class open, the best-fitting class is recorded, and later decisions add the next
    ones.
    """
    stage, limit, executor_class, hold_ms = decide(state, teacher.rule)
    if net.has_classes and stage != NO_STAGE and executor_class == ANY_CLASS:
        executor_class = best_fitting(state, stage)
    if is_choice and stage != NO_STAGE:
        decision = (stage, limit, executor_class)
        if write_demonstration(state, future, recording, decision, net):
            _count(state, future, recording, 0.0)
    # Another seed than that of the drawn decisions, so that the two are independent.
    if uniform(recording.draw_seed + np.uint64(1), state.now.num_decisions[0]) >= teacher.share:
        return drawn
    return stage, limit, executor_class, hold_ms


@kernel
def _explore(simulation, net, recording, teacher, is_new):  # type: ignore[no-untyped-def]
    """Play a run with drawn decisions, and record every decision that leaves a choice. Returns the
    Status in which the run stopped.

    The recording ends with the run, at the episode's end time, or when the record is full. The run
    goes on after that if the recording is to know the cost of the whole run (`is_whole`). With a
    teacher its choices are recorded, and it makes a share of the decisions.
    """
    state, future, tables = simulation
    clear(recording, net)
    status = start(state, future, tables) if is_new else resume(state, future, tables)
    is_full = False
    while status == _NEEDS_DECISION:
        # What was left out once is never followed by more.
        is_full = is_full or not has_room(state, recording.record, net)
        if is_full and not recording.is_whole:
            break
        stage, limit, executor_class, hold_ms, log_prob, is_choice = draw_decision(
            state, recording.work, recording.draw_seed, net
        )
        if teacher is not None:
            drawn = (stage, limit, executor_class, hold_ms)
            stage, limit, executor_class, hold_ms = _demonstrate(
                state, future, net, recording, teacher, drawn, is_choice
            )
        elif is_choice and not is_full:
            write_decision(state, future, recording, net)
            _count(state, future, recording, log_prob)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    record = recording.record
    record.end_ms[0] = state.now.clock_ms[0]
    record.end_cost[0] = cost_so_far(state, future, recording.costing)
    # A critic may have to judge the state in which the run was cut off. A run that went on when the
    # record was full needs no final state, for which there is no room.
    if not is_full or not recording.is_whole:
        write_state(state, future, recording, net)
    return status


@kernel
def explore_many(simulations, net, recordings, teacher, is_new, first, last):  # type: ignore[no-untyped-def]
    """Play the runs `first` to `last - 1` of many; see `_explore`. Without a teacher it is None."""
    for row in range(first, last):
        simulations.status[row] = _explore(
            simulation_of(simulations, row), net, recording_of(recordings, row), teacher, is_new
        )
