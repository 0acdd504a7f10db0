"""Decisions as training data: those that the network draws, or those that a rule would make."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import copy_numbers
from parcae.base.compiled.tables import doubles, flags, floats, integers
from parcae.cluster.kernels.tables import stages_of
from parcae.decima.graph.kernels.embeddings import embed
from parcae.decima.graph.kernels.features import GraphNetwork, held_executors
from parcae.decima.graph.kernels.heads import clear_cache, score_classes, score_limits
from parcae.decima.graph.layout import ClassFeature
from parcae.decima.queries import (
    clear,
    has_room,
    is_unfinished,
    write_decision,
    write_demonstration,
    write_state,
)

# Columns of `GraphWorkspace.recorded`, the last two also of `recorded_stage`, whose first is a row.
_STATE = 0
_STAMP = 1
_OFFERED = 2
_FIRST = 3
_NUMBER = 4
_ROW = _STATE


class GraphRecord(NamedTuple):
    """Decisions as training data; each lists its jobs, and what may be chosen.

    Lists of different lengths lie one after another in flat tables: the jobs of decision d are
    "jobs" from first_job[d] on, the stages that it may choose "options" from first_option[d] on. A
    job's unfinished stages are listed once for each state of the job, so that successive decisions
    share the list: that of job row j is "listed" from first_listed[j] on. These are "rows" of
    stages, which are written once for each embedding of a stage. After the last decision one more
    entry holds the final state.
    """

    count: Any = integers(1)  # decisions
    all_jobs: Any = integers(1)  # rows in use
    all_listed: Any = integers(1)
    all_rows: Any = integers(1)
    all_states: Any = integers(1)  # states of jobs so far
    all_options: Any = integers(1)
    end_ms: Any = integers(1)  # when the recording ended
    end_cost: Any = doubles(1)  # cost accrued until then
    clock_ms: Any = integers("decisions")
    cost: Any = doubles("decisions")  # accrued before the decision
    log_prob: Any = floats("decisions")
    first_job: Any = integers("decisions", into="jobs")
    num_jobs: Any = integers("decisions")
    first_option: Any = integers("decisions", into="options")
    num_options: Any = integers("decisions")
    structure: Any = integers("jobs")  # row of the job in the workload
    state: Any = integers("jobs", into="states")  # equal numbers have equal stages
    first_listed: Any = integers("jobs", into="listed")
    num_listed: Any = integers("jobs")
    listed: Any = integers("listed", into="rows")
    x: Any = floats("rows", "features")
    stage_index: Any = integers("rows")  # within the job
    option_job: Any = integers("options")  # position of the option's job in the decision
    option_stage: Any = integers("options")  # the stage, counted from its job's first entry
    option_x: Any = floats("options", "direct")
    choice: Any = integers("decisions")  # the chosen option, counted from the first one
    # Of a head that the network lacks, the tables have no columns.
    level: Any = integers("decisions")  # column of the chosen limit
    can_limit: Any = flags("decisions", "limits")
    limit_x: Any = floats("decisions", "limits", "limit_features")
    class_choice: Any = integers("decisions")
    can_class: Any = flags("decisions", "classes")
    class_x: Any = floats("decisions", "classes", len(ClassFeature))
    idle_choice: Any = integers("decisions")
    can_idle: Any = flags("decisions", "lengths")
    idle_x: Any = floats("decisions", "lengths", 1)


@inlined
def _row_of(view, work, record, stage, offered):  # type: ignore[no-untyped-def]
    """Return the row of a stage, which is written if its embedding is not that of its last row."""
    recorded = work.recorded_stage[stage]
    if recorded[_STAMP] == work.stage_stamp[stage] and recorded[_OFFERED] == offered:
        return recorded[_ROW]
    row = record.all_rows[0]
    record.all_rows[0] += 1
    recorded[_ROW] = row
    recorded[_STAMP] = work.stage_stamp[stage]
    recorded[_OFFERED] = offered
    copy_numbers(work.x[stage], 0, record.x.shape[1], record.x[row])
    record.stage_index[row] = stage - view.jobs.stage_start[view.stages.job[stage]]
    return row


@inlined
def _write_state(view, work, record, job, offered):  # type: ignore[no-untyped-def]
    """List the rows of a job's unfinished stages, as a new state."""
    recorded = work.recorded[job]
    entry = record.all_listed[0]
    recorded[_STATE] = record.all_states[0]
    recorded[_STAMP] = work.stamp[job]
    recorded[_OFFERED] = offered
    recorded[_FIRST] = entry
    record.all_states[0] += 1
    for stage in stages_of(view, job):
        if is_unfinished(view, stage):
            record.listed[entry] = _row_of(view, work, record, stage, offered)
            entry += 1
    recorded[_NUMBER] = entry - record.all_listed[0]
    record.all_listed[0] = entry


@kernel
def _write(view, future, net, work, record):  # type: ignore[no-untyped-def]
    """Copy the state's jobs and their unfinished stages into the record."""
    row = record.count[0]
    job_row = record.all_jobs[0]
    record.clock_ms[row] = view.now.clock_ms[0]
    record.first_job[row] = job_row
    record.num_jobs[row] = view.now.num_active[0]
    record.first_option[row] = record.all_options[0]
    record.num_options[row] = 0
    # Elsewhere this number is a feature of all stages.
    offered = 0 if net.num_direct > 0 else view.now.num_source[0]
    for job in view.active[: view.now.num_active[0]]:
        recorded = work.recorded[job]
        if recorded[_STAMP] != work.stamp[job] or recorded[_OFFERED] != offered:
            _write_state(view, work, record, job, offered)
        record.structure[job_row] = future.job_profile[job]
        record.state[job_row] = recorded[_STATE]
        record.first_listed[job_row] = recorded[_FIRST]
        record.num_listed[job_row] = recorded[_NUMBER]
        job_row += 1
    record.all_jobs[0] = job_row


@inlined
def _offset_of(view, stage):  # type: ignore[no-untyped-def]
    """Return where an unfinished stage is among the unfinished stages of its job."""
    offset = 0
    for before in range(view.jobs.stage_start[view.stages.job[stage]], stage):
        offset += is_unfinished(view, before)
    return offset


@kernel
def _record_options(view, work, record, stage):  # type: ignore[no-untyped-def]
    """Record the stages that may be chosen, and that `stage` is."""
    row = record.count[0]
    first = record.all_options[0]
    for option in range(work.now[3]):
        at = first + option
        if work.stage[option] == stage:
            record.choice[row] = option
        record.option_job[at] = work.place[option]
        record.option_stage[at] = _offset_of(view, work.stage[option])
        copy_numbers(work.direct[option], 0, record.option_x.shape[1], record.option_x[at])
    record.num_options[row] = work.now[3]
    record.all_options[0] = first + work.now[3]


@inlined
def _record_head(logits, features, can, x):  # type: ignore[no-untyped-def]
    """Record which options of a head can be chosen, and their features, if there is such a head."""
    for option in range(can.shape[0]):
        can[option] = logits[option] > -np.inf
        copy_numbers(features[option], 0, x.shape[1], x[option])


@kernel
def _record(  # type: ignore[no-untyped-def]
    view, future, net, recording, stage, level, executor_class, length
):
    """Record a decision but for its cost and probability."""
    work = recording.work
    record = recording.record
    row = record.count[0]
    _write(view, future, net, work, record)
    _record_options(view, work, record, stage)
    _record_head(work.limit_logits, work.limit_x, record.can_limit[row], record.limit_x[row])
    _record_head(work.class_logits, work.class_x, record.can_class[row], record.class_x[row])
    _record_head(work.idle_logits, work.idle_x, record.can_idle[row], record.idle_x[row])
    record.level[row] = level
    record.class_choice[row] = executor_class
    record.idle_choice[row] = length


@has_room.of(GraphNetwork)
@inlined
def _has_room(view, record, net):  # type: ignore[no-untyped-def]
    stages = 0
    for job in view.active[: view.now.num_active[0]]:
        stages += view.jobs.num_stages[job]
    # Until the final state, all jobs of the run may arrive.
    all_jobs = view.now.num_active[0] + view.jobs.shape[0]
    all_stages = stages + view.stages.shape[0]
    return (
        record.count[0] + 1 < record.clock_ms.shape[0]
        and record.all_jobs[0] + all_jobs <= record.structure.shape[0]
        and record.all_listed[0] + all_stages <= record.listed.shape[0]
        and record.all_rows[0] + all_stages <= record.x.shape[0]
        and record.all_options[0] + stages <= record.option_job.shape[0]
    )


@clear.of(GraphNetwork)
@kernel
def _clear(recording, net):  # type: ignore[no-untyped-def]
    record = recording.record
    record.count[0] = record.all_jobs[0] = record.all_rows[0] = 0
    record.all_states[0] = record.all_options[0] = record.all_listed[0] = 0
    recording.work.recorded[:, _STAMP] = -1
    recording.work.recorded_stage[:, _STAMP] = -1
    clear_cache(recording.work)


@write_decision.of(GraphNetwork)
@kernel
def _write_decision(view, future, recording, net):  # type: ignore[no-untyped-def]
    work = recording.work
    chosen = work.chosen
    stage = work.stage[chosen[0]]
    _record(view, future, net, recording, stage, chosen[1], chosen[2], chosen[3])


@write_state.of(GraphNetwork)
@kernel
def _write_state_now(view, future, recording, net):  # type: ignore[no-untyped-def]
    embed(view, net, recording.work)
    _write(view, future, net, recording.work, recording.record)


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
    last = net.levels.shape[0] - 1
    if held >= net.levels[last]:
        return False
    score_limits(view, net, work, stage)
    if net.has_classes:
        score_classes(view, net, work, stage, limit)
    work.idle_logits[0] = 0.0
    work.idle_logits[1:] = -np.inf
    # The smallest level that is enough, or the last one.
    level = 0
    while level < last and net.levels[level] < held + limit:
        level += 1
    _record(view, future, net, recording, stage, level, executor_class, 0)
    return True
