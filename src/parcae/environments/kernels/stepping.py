"""Compiled steps of many episodes of the cluster: one action in each per call.

In all kernels `episodes` is an `EpisodeTables`.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.tables import slot_ms
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.environments.kernels.views import has_choice, write_view
from parcae.environments.layout import NO_ROW
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.kernels.playing import simulation_of

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_COMPLETE = int(Status.COMPLETE)
_ENDED = int(Status.ENDED)


@inlined
def _first_unmasked(mask, first, count, choice):  # type: ignore[no-untyped-def]
    """Return the choice if it is unmasked, otherwise the first unmasked one, or 0 without any."""
    if mask[first + choice]:
        return choice
    for other in range(count):
        if mask[first + other]:
            return other
    return 0


@kernel
def decision_of(state, shown, view, levels, action):  # type: ignore[no-untyped-def]
    """Return the decision that an action stands for, and whether it chose something masked.

    A masked choice is replaced by the first unmasked one, given the choices before it. A masked
    limit means all offered executors. A masked idle slot is one that has ended, or would have ended
    at the chosen limit: the stage runs instead.
    """
    max_stages = shown.stages.shape[0]
    any_class = view.classes.shape[0]
    chosen = _first_unmasked(view.action_mask, 0, max_stages + 1, action[0])
    if chosen == max_stages:
        return NO_STAGE, 0, ANY_CLASS, 0, chosen != action[0]
    stage = shown.stages[chosen]
    limit = min(levels[action[1]], state.now.num_source[0])
    executor_class = _first_unmasked(view.class_mask[chosen], 0, any_class + 1, action[2])
    hold_ms = 0
    if action[3] > 0:
        hold_ms = slot_ms(state, stage, limit, action[3], view.slot_mask.shape[1] - 1)
    is_masked = chosen != action[0] or executor_class != action[2]
    is_masked = is_masked or (hold_ms > 0) != (action[3] > 0)
    if executor_class == any_class:
        executor_class = ANY_CLASS
    return stage, limit, executor_class, hold_ms, is_masked


@inlined
def _cost_s(state, status, is_makespan):  # type: ignore[no-untyped-def]
    """Return the objective so far: seconds of jobs in the system, or seconds of makespan."""
    now = state.now
    if not is_makespan:
        open_ms = now.num_active[0] * (now.clock_ms[0] - now.accounted_ms[0])
        return (now.job_ms[0] + open_ms) / MS_PER_S
    if status != _COMPLETE:
        return now.clock_ms[0] / MS_PER_S
    last_ms = 0
    for job in range(now.num_jobs[0]):
        last_ms = max(last_ms, state.jobs.completion_ms[job])
    return last_ms / MS_PER_S


@inlined
def _to_next_choice(episodes, row, status):  # type: ignore[no-untyped-def]
    """Advance to the next decision with a choice, and write the observation. Returns the new
    Status.
    """
    state, future, tables = simulation_of(episodes.simulations, row)
    while status == _NEEDS_DECISION and not has_choice(state):
        status = step(state, future, tables, NO_STAGE, 0, ANY_CLASS, 0)
    shown = row_of(episodes.shown, row)
    write_view(state, shown, row_of(episodes.views, row), episodes.levels, episodes.scales)
    episodes.simulations.status[row] = status
    return status


@inlined
def _has_failed(episodes, row):  # type: ignore[no-untyped-def]
    """Whether the run stopped with an error, or completed although jobs are in the system."""
    status = episodes.simulations.status[row]
    is_stalled = status == _COMPLETE and episodes.simulations.states.now[row].num_active[0] > 0
    return is_stalled or status > _ENDED


@kernel
def start_many(episodes, rows):  # type: ignore[no-untyped-def]
    """Start the runs in the given rows, up to the first decision with a choice. Returns the first
    of these rows whose run failed, or NO_ROW.
    """
    failed = NO_ROW
    for position in range(rows.shape[0] - 1, -1, -1):
        row = rows[position]
        state, future, tables = simulation_of(episodes.simulations, row)
        episodes.num_masked[row] = 0
        episodes.rewarded_s[row] = 0.0
        _to_next_choice(episodes, row, start(state, future, tables))
        failed = row if _has_failed(episodes, row) else failed
    return failed


@kernel
def find_outside(actions, sizes, rows):  # type: ignore[no-untyped-def]
    """Return the first of the given rows whose action is outside of the action space, or NO_ROW."""
    for position in range(rows.shape[0]):
        for choice in range(sizes.shape[0]):
            if not 0 <= actions[rows[position], choice] < sizes[choice]:
                return rows[position]
    return NO_ROW


@inlined
def _act(episodes, row, action):  # type: ignore[no-untyped-def]
    """Apply an action and advance to the next choice. Returns the increase of the objective since
    the last action in seconds.
    """
    state, future, tables = simulation_of(episodes.simulations, row)
    shown = row_of(episodes.shown, row)
    view = row_of(episodes.views, row)
    stage, limit, executor_class, hold_ms, is_masked = decision_of(
        state, shown, view, episodes.levels, action
    )
    episodes.num_masked[row] += 1 if is_masked else 0
    status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    status = _to_next_choice(episodes, row, status)
    before_s = episodes.rewarded_s[row]
    episodes.rewarded_s[row] = _cost_s(state, status, episodes.is_makespan)
    return episodes.rewarded_s[row] - before_s


@kernel
def step_many(episodes, actions, rows, costs_s):  # type: ignore[no-untyped-def]
    """Apply one action in each of the given episodes and advance to the next choice. Returns the
    first of these rows whose run failed, or NO_ROW.
    """
    failed = NO_ROW
    for position in range(rows.shape[0] - 1, -1, -1):
        row = rows[position]
        costs_s[row] = _act(episodes, row, actions[row])
        failed = row if _has_failed(episodes, row) else failed
    return failed
