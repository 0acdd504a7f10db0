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


@kernel
def _begin(simulation, net, recording, is_new):  # type: ignore[no-untyped-def]
    """Empty the record, and start a new run or resume the current one. Returns a Status."""
    state, future, tables = simulation
    clear(recording, net)
    return start(state, future, tables) if is_new else resume(state, future, tables)


@inlined
def _count(state, future, recording, log_prob):  # type: ignore[no-untyped-def]
    """Complete the row of a recorded decision, before it is carried out."""
    record = recording.record
    row = record.count[0]
    record.cost[row] = cost_so_far(state, future, recording.costing)
    record.log_prob[row] = log_prob
    record.count[0] = row + 1


@kernel
def _end(state, future, net, recording, is_full):  # type: ignore[no-untyped-def]
    """Record the cost at the run's end, and its state if a critic may have to judge it."""
    record = recording.record
    record.end_ms[0] = state.now.clock_ms[0]
    record.end_cost[0] = cost_so_far(state, future, recording.costing)
    # A run that went on when the record was full needs no final state, for which there is no room.
    if not is_full or not recording.is_whole:
        write_state(state, future, recording, net)


@kernel
def _explore(simulation, net, recording, is_new):  # type: ignore[no-untyped-def]
    """Play a run with drawn decisions, and record every decision that leaves a choice. Returns the
    Status in which the run stopped.

    The recording ends with the run, at the episode's end time, or when the record is full. The run
    goes on after that if the recording is to know the cost of the whole run (`is_whole`).
    """
    state, future, tables = simulation
    status = _begin(simulation, net, recording, is_new)
    is_full = False
    while status == _NEEDS_DECISION:
        # What was left out once is never followed by more.
        is_full = is_full or not has_room(state, recording.record, net)
        if is_full and not recording.is_whole:
            break
        stage, limit, executor_class, hold_ms, log_prob, is_choice = draw_decision(
            state, recording.work, recording.draw_seed, net
        )
        if is_choice and not is_full:
            write_decision(state, future, recording, net)
            _count(state, future, recording, log_prob)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    _end(state, future, net, recording, is_full)
    return status


@kernel
def explore_many(simulations, net, recordings, is_new, first, last):  # type: ignore[no-untyped-def]
    """Play the runs `first` to `last - 1` of many with drawn decisions, which are recorded."""
    for row in range(first, last):
        simulations.status[row] = _explore(
            simulation_of(simulations, row), net, recording_of(recordings, row), is_new
        )


@kernel
def _demonstrate(simulation, net, recording, teacher, is_new):  # type: ignore[no-untyped-def]
    """Play like `_explore`, but record what the teacher's rule would choose. Returns a Status.

    The rule also makes a share of the decisions; the network draws the others. If the rule lets
    executors idle, nothing is recorded, because Decima cannot choose that. If the rule leaves the
    class open, the best-fitting class is recorded, and later decisions add the next ones.
    """
    state, future, tables = simulation
    draw_seed = recording.draw_seed
    status = _begin(simulation, net, recording, is_new)
    # Nothing is learned from the cost of demonstrations, so they end when the record is full.
    while status == _NEEDS_DECISION and has_room(state, recording.record, net):
        drawn_stage, drawn_limit, drawn_class, drawn_hold_ms, _, is_choice = draw_decision(
            state, recording.work, draw_seed, net
        )
        stage, limit, executor_class, hold_ms = decide(state, teacher.rule)
        if net.has_classes and stage != NO_STAGE and executor_class == ANY_CLASS:
            executor_class = best_fitting(state, stage)
        if is_choice and stage != NO_STAGE:
            decision = (stage, limit, executor_class)
            if write_demonstration(state, future, recording, decision, net):
                _count(state, future, recording, 0.0)
        # Another seed than that of the drawn decisions, so that the two are independent.
        if uniform(draw_seed + np.uint64(1), state.now.num_decisions[0]) >= teacher.share:
            stage = drawn_stage
            limit = drawn_limit
            executor_class = drawn_class
            hold_ms = drawn_hold_ms
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    _end(state, future, net, recording, False)
    return status


@kernel
def demonstrate_many(  # type: ignore[no-untyped-def]
    simulations, net, recordings, teacher, is_new, first, last
):
    """Play the runs `first` to `last - 1` of many, and record the choices of a rule."""
    for row in range(first, last):
        simulations.status[row] = _demonstrate(
            simulation_of(simulations, row), net, recording_of(recordings, row), teacher, is_new
        )
