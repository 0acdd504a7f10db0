"""Compiled whole runs, and recorded runs to learn from."""

from __future__ import annotations

from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.corrector.kernels import (
    _C,
    _F,
    _IMPOSSIBLE,
    _L,
    _class_of,
    _encode_limits,
    _score_jobs,
    _score_limits,
    decide,
    encode,
)
from parcae.policies.networks.kernels import draw, recording_of, uniform
from parcae.simulation.future import Status
from parcae.simulation.kernels.costs import cost_so_far
from parcae.simulation.kernels.event_loop import resume, start, step
from parcae.simulation.kernels.rollouts import begin_rollout, end_rollout
from parcae.simulation.kernels.simulations import simulation_of

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(simulation, net, work):  # type: ignore[no-untyped-def]
    """Simulate a whole run with the most probable decisions.

    Args:
        simulation: the run (Simulation); modified in place.
        net: Network.
        work: Workspace; written.

    Returns:
        The Status in which the run stopped.
    """
    state, future, tables = simulation
    return _go_on(simulation, start(state, future, tables), net, work)


@kernel
def _go_on(simulation, status, net, work):  # type: ignore[no-untyped-def]
    """Play a run from a Status to its end. Returns the Status in which it stopped."""
    state, future, tables = simulation
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, net, work)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    return status


@kernel
def roll_out(simulation, rollouts, net, work, first, last):  # type: ignore[no-untyped-def]
    """Play rollouts under the policy, one after another, each after what it tries.

    Args:
        simulation: the run (Simulation) in which they are played; overwritten.
        rollouts: Rollouts; their trials are written.
        net: Network.
        work: Workspace; written.
        first: first trial.
        last: one past the last trial.
    """
    for row in range(first, last):
        status = begin_rollout(simulation, rollouts, row)
        end_rollout(simulation, rollouts.trials, row, _go_on(simulation, status, net, work))


@kernel
def _num_choices(work, num_jobs):  # type: ignore[no-untyped-def]
    """Number of possible choices: jobs that can be chosen, and hold."""
    count = 0
    for position in range(num_jobs + 1):
        count += work.logits[position] != _IMPOSSIBLE
    return count


@kernel
def _draw_decision(view, net, work, draw_seed):  # type: ignore[no-untyped-def]
    """Draw a decision at random, and write the drawn position and column to `work.choices`.

    Returns (stage, limit, log probability, whether there was more than one possible decision).
    """
    work.choices[2] = -1
    work.choices[3] = -1
    num_jobs = encode(view, net, work)
    count = view.now.num_decisions[0]
    _score_jobs(net, work, num_jobs)
    num_choices = _num_choices(work, num_jobs)
    if num_choices == 0:
        return NO_STAGE, view.now.num_source[0], 0.0, False
    # Each decision uses two draws: an even counter for the job, an odd one for the level.
    position, log_prob = draw(work.logits, num_jobs + 1, uniform(draw_seed, 2 * count))
    work.choices[2] = position
    for column in range(work.limits.shape[0]):
        work.limit_logits[column] = _IMPOSSIBLE
    if position == num_jobs:
        work.limits[:] = 0.0
        return NO_STAGE, view.now.num_source[0], log_prob, num_choices > 1
    num_levels = _encode_limits(view, net, work, position)
    _score_limits(net, work, position)
    num_columns = work.limits.shape[0]
    column, limit_log = draw(work.limit_logits, num_columns, uniform(draw_seed, 2 * count + 1))
    log_prob += limit_log
    work.choices[3] = column
    limit = min(net.rule.levels[column] - work.held[position], view.now.num_source[0])
    return work.stage[position], limit, log_prob, num_choices > 1 or num_levels > 1


@kernel
def _record_state(view, work, record, num_jobs):  # type: ignore[no-untyped-def]
    """Copy time and features from the workspace to row `count` of the record."""
    row = record.count[0]
    first = record.num_rows[0]
    record.clock_ms[row] = view.now.clock_ms[0]
    record.first_row[row] = first
    record.first_row[row + 1] = first + num_jobs
    for feature in range(_C):
        record.shared[row, feature] = work.shared[feature]
    for position in range(num_jobs):
        for feature in range(_F):
            record.rows[first + position, feature] = work.features[position, feature]
        record.can_choose[first + position] = work.stage[position] != NO_STAGE
    record.num_rows[0] = first + num_jobs


@kernel
def _record_limits(work, record):  # type: ignore[no-untyped-def]
    """Copy the features of the levels from the workspace to row `count` of the record."""
    row = record.count[0]
    for column in range(work.limits.shape[0]):
        record.can_limit[row, column] = work.limit_logits[column] != _IMPOSSIBLE
        for feature in range(_L):
            record.limits[row, column, feature] = work.limits[column, feature]


@inlined
def _has_room(view, record):  # type: ignore[no-untyped-def]
    """Return whether the record has room for one more decision and the final state."""
    # Until the final state, all jobs of the run may arrive.
    jobs = view.now.num_active[0] + view.jobs.shape[0]
    return (
        record.count[0] + 1 < record.clock_ms.shape[0]
        and record.num_rows[0] + jobs <= record.rows.shape[0]
    )


@kernel
def explore(simulation, net, recording, is_new):  # type: ignore[no-untyped-def]
    """Simulate a run with decisions drawn at random, and record every real choice.

    A decision with a single possibility is carried out, but not recorded. The recording ends with
    the run, at the episode's end time, or when the record is full. The run goes on after that if
    the recording is to know the cost of the whole run (`is_whole`).

    Args:
        simulation: the run (Simulation); modified in place.
        net: Network.
        recording: Recording; its workspace and record are written.
        is_new: true: start the run; false: continue the run where it stopped.

    Returns:
        The Status in which the run stopped.
    """
    state, future, tables = simulation
    work = recording.work
    record = recording.record
    costing = recording.costing
    record.count[0] = record.num_rows[0] = 0
    status = start(state, future, tables) if is_new else resume(state, future, tables)
    is_full = False
    while status == _NEEDS_DECISION:
        # What was left out once is never followed by more.
        is_full = is_full or not _has_room(state, record)
        if is_full and not recording.is_whole:
            break
        stage, limit, log_prob, is_choice = _draw_decision(state, net, work, recording.draw_seed)
        if is_choice and not is_full:
            row = record.count[0]
            _record_state(state, work, record, state.now.num_active[0])
            record.cost[row] = cost_so_far(state, future, costing)
            record.choice[row] = work.choices[2]
            record.level[row] = work.choices[3]
            record.log_prob[row] = log_prob
            _record_limits(work, record)
            record.count[0] = row + 1
        executor_class = _class_of(state, net, stage) if stage != NO_STAGE else ANY_CLASS
        status = step(state, future, tables, stage, limit, executor_class, 0)
    record.end_ms[0] = state.now.clock_ms[0]
    record.end_cost[0] = cost_so_far(state, future, costing)
    # A run that went on needs no final state: no critic judges it.
    if not is_full or not recording.is_whole:
        _record_state(state, work, record, encode(state, net, work))
    return status


@kernel
def explore_many(simulations, net, recordings, is_new, first, last):  # type: ignore[no-untyped-def]
    """Call `explore` for the simulators `first` to `last - 1` of many, one after another.

    Args:
        simulations: the runs (Simulations); modified in place.
        net: Network.
        recordings: a recording of every run (Recordings); written.
        is_new: true: start the runs; false: continue them.
        first: first simulator to run.
        last: one past the last simulator to run.
    """
    for row in range(first, last):
        simulations.status[row] = explore(
            simulation_of(simulations, row), net, recording_of(recordings, row), is_new
        )
