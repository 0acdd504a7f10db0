"""Decisions as training data: those that the network draws, or those that a rule would make."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.decima.graph.kernels.decisions import (
    clear_cache,
    held_executors,
    score_limits,
)
from parcae.decima.graph.kernels.embeddings import embed
from parcae.decima.graph.kernels.features import is_unfinished
from parcae.decima.graph.kernels.heads import score_classes
from parcae.decima.graph.kernels.tables import GraphNetwork
from parcae.decima.kernels.recording import (
    clear,
    has_room,
    write_decision,
    write_demonstration,
    write_state,
)

# Columns of `Workspace.recorded`.
_FIRST = 0
_NUMBER = 1
_STATE = 2
_STAMP = 3
_OFFERED = 4
# Columns of `Workspace.recorded_stage`.
_ROW = 0
_STAGE_STAMP = 1
_STAGE_OFFERED = 2


class GraphRecord(NamedTuple):
    """Decisions as training data; each decision lists its jobs, and the stages it may choose.

    Lists of different lengths lie one after another in flat tables: the jobs of decision d are rows
    first_job[d] to first_job[d + 1] - 1, its options are rows first_option[d] to
    first_option[d] + num_options[d] - 1. A job's unfinished stages are listed once for each state
    of the job, so that successive decisions share the list: that of job row j is the entries
    first_listed[j] to first_listed[j] + num_listed_of[j] - 1 of `listed`. These are rows of stages,
    which are written once for each embedding of a stage. After the last decision one more entry
    holds the final state.
    """

    count: Any  # int64[1]
    num_jobs: Any  # int64[1], rows of jobs so far
    num_listed: Any  # int64[1], listed stages so far
    num_rows: Any  # int64[1], rows of stages so far
    num_states: Any  # int64[1], states of jobs so far
    all_options: Any  # int64[1], rows of options so far
    end_ms: Any  # int64[1], when the recording ended
    end_cost: Any  # float64[1], cost accrued until then
    clock_ms: Any  # int64[capacity]
    cost: Any  # float64[capacity], accrued before the decision
    first_job: Any  # int64[capacity + 1]
    first_option: Any  # int64[capacity]
    num_options: Any  # int64[capacity]
    choice: Any  # int64[capacity], the chosen option, counted from the decision's first one
    level: Any  # int64[capacity], column of the chosen limit
    held: Any  # int64[capacity], executors that limits are counted from; limits must be higher
    last_level: Any  # int64[capacity], column of the largest limit that could be chosen
    limit_x: Any  # float32[capacity, num_levels, num_limit_features]
    log_prob: Any  # float32[capacity]
    structure: Any  # int64[job_capacity], row of the job in the workload
    state: Any  # int64[job_capacity], number of the job's state
    first_listed: Any  # int64[job_capacity]
    num_listed_of: Any  # int64[job_capacity]
    listed: Any  # int64[row_capacity], rows of stages
    x: Any  # float32[row_capacity, num_features]
    index: Any  # int64[row_capacity], stage index within the job
    option_job: Any  # int64[row_capacity], position of the option's job in the decision
    option_stage: Any  # int64[row_capacity], the option's stage, counted from its job's first entry
    option_x: Any  # float32[row_capacity, num_direct]
    # A network without a class head has num_classes = 0, one without an idle head no lengths:
    class_choice: Any  # int64[capacity]
    can_class: Any  # uint8[capacity, num_classes]
    class_x: Any  # float32[capacity, num_classes, number of ClassFeature]
    idle_choice: Any  # int64[capacity]
    can_idle: Any  # uint8[capacity, G + 1]


@inlined
def _row_of(view, work, record, stage, offered):  # type: ignore[no-untyped-def]
    """Return the row of a stage, which is written if its embedding is not that of its last row."""
    recorded = work.recorded_stage[stage]
    if recorded[_STAGE_STAMP] == work.stage_stamp[stage] and recorded[_STAGE_OFFERED] == offered:
        return recorded[_ROW]
    row = record.num_rows[0]
    record.num_rows[0] += 1
    recorded[_ROW] = row
    recorded[_STAGE_STAMP] = work.stage_stamp[stage]
    recorded[_STAGE_OFFERED] = offered
    for feature in range(record.x.shape[1]):
        record.x[row, feature] = work.x[stage, feature]
    record.index[row] = stage - view.jobs.stage_start[view.stages.job[stage]]
    return row


@inlined
def _write_state(view, work, record, job, offered):  # type: ignore[no-untyped-def]
    """List the rows of a job's unfinished stages, as a new state."""
    recorded = work.recorded[job]
    first = view.jobs.stage_start[job]
    entry = record.num_listed[0]
    recorded[_FIRST] = entry
    recorded[_STATE] = record.num_states[0]
    recorded[_STAMP] = work.stamp[job]
    recorded[_OFFERED] = offered
    record.num_states[0] += 1
    for stage in range(first, first + view.jobs.num_stages[job]):
        if is_unfinished(view, stage):
            record.listed[entry] = _row_of(view, work, record, stage, offered)
            entry += 1
    recorded[_NUMBER] = entry - record.num_listed[0]
    record.num_listed[0] = entry


@kernel
def _write(view, future, net, work, record):  # type: ignore[no-untyped-def]
    """Copy the state's jobs and their unfinished stages into the record."""
    row = record.count[0]
    job_row = record.num_jobs[0]
    record.clock_ms[row] = view.now.clock_ms[0]
    record.first_job[row] = job_row
    record.first_option[row] = record.all_options[0]
    record.num_options[row] = 0
    # Elsewhere this number is a feature of all stages.
    offered = 0 if net.num_direct > 0 else view.now.num_source[0]
    for position in range(view.now.num_active[0]):
        job = view.active[position]
        recorded = work.recorded[job]
        if recorded[_STAMP] != work.stamp[job] or recorded[_OFFERED] != offered:
            _write_state(view, work, record, job, offered)
        record.structure[job_row] = future.job_profile[job]
        record.state[job_row] = recorded[_STATE]
        record.first_listed[job_row] = recorded[_FIRST]
        record.num_listed_of[job_row] = recorded[_NUMBER]
        job_row += 1
    record.first_job[row + 1] = job_row
    record.num_jobs[0] = job_row


@inlined
def _offset_of(view, stage):  # type: ignore[no-untyped-def]
    """Return where an unfinished stage is among the unfinished stages of its job."""
    offset = 0
    for before in range(view.jobs.stage_start[view.stages.job[stage]], stage):
        offset += 1 if is_unfinished(view, before) else 0
    return offset


@kernel
def _record_options(view, work, record, stage):  # type: ignore[no-untyped-def]
    """Record the stages that may be chosen. Returns the option that is `stage`."""
    row = record.count[0]
    first = record.all_options[0]
    choice = 0
    for option in range(work.now[3]):
        at = first + option
        if work.stage[option] == stage:
            choice = option
        record.option_job[at] = work.place[option]
        record.option_stage[at] = _offset_of(view, work.stage[option])
        for feature in range(record.option_x.shape[1]):
            record.option_x[at, feature] = work.direct[option, feature]
    record.num_options[row] = work.now[3]
    record.all_options[0] = first + work.now[3]
    return choice


@kernel
def _record_limits(net, work, record, held):  # type: ignore[no-untyped-def]
    """Record which limits could be chosen, and their features if there are any."""
    row = record.count[0]
    last = 0
    for column in range(net.levels.shape[0]):
        if work.limit_logits[column] == -np.inf:
            continue
        last = column
        for feature in range(record.limit_x.shape[2]):
            record.limit_x[row, column, feature] = work.limit_x[column, feature]
    record.held[row] = held
    record.last_level[row] = last


@has_room.of(GraphNetwork)
@inlined
def _has_room(view, record, net):  # type: ignore[no-untyped-def]
    jobs = view.now.num_active[0]
    stages = 0
    for position in range(jobs):
        stages += view.jobs.num_stages[view.active[position]]
    # Until the final state, all jobs of the run may arrive.
    all_jobs = jobs + view.jobs.shape[0]
    all_stages = stages + view.stages.shape[0]
    return (
        record.count[0] + 1 < record.clock_ms.shape[0]
        and record.num_jobs[0] + all_jobs <= record.structure.shape[0]
        and record.num_listed[0] + all_stages <= record.listed.shape[0]
        and record.num_rows[0] + all_stages <= record.x.shape[0]
        and record.all_options[0] + stages <= record.option_job.shape[0]
    )


@clear.of(GraphNetwork)
@kernel
def _clear(recording, net):  # type: ignore[no-untyped-def]
    record = recording.record
    record.count[0] = record.num_jobs[0] = record.num_rows[0] = 0
    record.num_states[0] = record.all_options[0] = record.num_listed[0] = 0
    recording.work.recorded[:, _STAMP] = -1
    recording.work.recorded_stage[:, _STAGE_STAMP] = -1
    clear_cache(recording.work)


@kernel
def _record_heads(work, record, executor_class, length):  # type: ignore[no-untyped-def]
    """Record the choices and inputs of the heads for classes and idle slots, if there are any."""
    row = record.count[0]
    record.class_choice[row] = executor_class
    record.idle_choice[row] = length
    for other in range(record.can_class.shape[1]):
        record.can_class[row, other] = work.class_logits[other] > -np.inf
        for feature in range(record.class_x.shape[2]):
            record.class_x[row, other, feature] = work.class_x[other, feature]
    for other in range(record.can_idle.shape[1]):
        record.can_idle[row, other] = work.idle_logits[other] > -np.inf


@kernel
def _record(view, future, net, recording, stage, level, held):  # type: ignore[no-untyped-def]
    """Record a decision but for its cost and probability."""
    record = recording.record
    _write(view, future, net, recording.work, record)
    record.choice[record.count[0]] = _record_options(view, recording.work, record, stage)
    _record_limits(net, recording.work, record, held)
    record.level[record.count[0]] = level


@write_decision.of(GraphNetwork)
@kernel
def _write_decision(view, future, recording, net):  # type: ignore[no-untyped-def]
    work = recording.work
    chosen = work.chosen
    _record_heads(work, recording.record, chosen[3], chosen[4])
    _record(view, future, net, recording, work.stage[chosen[0]], chosen[1], chosen[2])


@write_state.of(GraphNetwork)
@kernel
def _write_state_now(view, future, recording, net):  # type: ignore[no-untyped-def]
    embed(view, net, recording.work)
    _write(view, future, net, recording.work, recording.record)


@kernel
def _smallest_level(net, wanted):  # type: ignore[no-untyped-def]
    """Return the column of the smallest level that is at least `wanted`, or the last column."""
    for column in range(net.levels.shape[0]):
        if net.levels[column] >= wanted:
            return column
    return net.levels.shape[0] - 1


@write_demonstration.of(GraphNetwork)
@kernel
def _write_demonstration(view, future, recording, decision, net):  # type: ignore[no-untyped-def]
    """Record what a rule would choose.

    Rules add no idle slots. The record says that no slot was possible, so that training leaves the
    idle head as it is.
    """
    stage, limit, executor_class = decision
    work = recording.work
    held = held_executors(view, net, stage)
    if held >= net.levels[net.levels.shape[0] - 1]:
        return False
    score_limits(view, net, work, stage)
    if net.has_classes:
        score_classes(view, net, work, stage, limit)
    work.idle_logits[0] = 0.0
    work.idle_logits[1:] = -np.inf
    _record_heads(work, recording.record, executor_class, 0)
    _record(view, future, net, recording, stage, _smallest_level(net, held + limit), held)
    return True
