"""Runs that are recorded to learn from: of what the network draws, or of what a rule would choose."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.kernels.tables import is_schedulable, select_cluster
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.classes.kernels import best_fitting
from parcae.policies.decima.kernels.decisions import draw_decision, forget, held_executors
from parcae.policies.decima.kernels.embeddings import embed, is_unfinished
from parcae.policies.decima.kernels.heads import score_classes, write_fit
from parcae.policies.decima.kernels.tables import select_workspace
from parcae.policies.networks.kernels import uniform
from parcae.policies.rule.kernels import decide as decide_by_rule
from parcae.simulation.future import Status
from parcae.simulation.kernels.costs import cost_so_far
from parcae.simulation.kernels.event_loop import resume, select_future, start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


class Record(NamedTuple):
    """Decisions as training data: every decision lists its jobs, every job its unfinished stages."""

    count: Any  # int64[1]
    num_jobs: Any  # int64[1], rows of jobs so far
    num_rows: Any  # int64[1], rows of stages so far
    end_ms: Any  # int64[1]
    end_cost: Any  # float64[1]
    clock_ms: Any  # int64[capacity]
    cost: Any  # float64[capacity]
    first_job: Any  # int64[capacity + 1]
    choice: Any  # int64[capacity], row of the chosen stage, counted from the decision's first
    level: Any  # int64[capacity]
    held: Any  # int64[capacity], limits must be above this
    log_prob: Any  # float32[capacity]
    structure: Any  # int64[job_capacity], row of the job in the workload
    first_row: Any  # int64[job_capacity + 1]
    x: Any  # float32[row_capacity, num_features + num_fits]
    index: Any  # int64[row_capacity], stage index within the job
    can_choose: Any  # uint8[row_capacity]
    # With a class head (else no classes: 0) and an idle head (else no lengths: 0):
    class_choice: Any  # int64[capacity]
    can_class: Any  # uint8[capacity, num_classes]
    class_x: Any  # float32[capacity, num_classes, number of ClassFeature]
    idle_choice: Any  # int64[capacity]
    can_idle: Any  # uint8[capacity, G + 1]


@inlined
def select_record(many, row):  # type: ignore[no-untyped-def]
    """The record of one simulator out of many."""
    return Record(
        many.count[row], many.num_jobs[row], many.num_rows[row], many.end_ms[row], many.end_cost[row], many.clock_ms[row],
        many.cost[row], many.first_job[row], many.choice[row], many.level[row], many.held[row], many.log_prob[row],
        many.structure[row], many.first_row[row], many.x[row], many.index[row], many.can_choose[row],
        many.class_choice[row], many.can_class[row], many.class_x[row], many.idle_choice[row], many.can_idle[row],
    )  # fmt: skip


@kernel
def _write(seen, future, work, record, chosen):  # type: ignore[no-untyped-def]
    """Copy the state's jobs and unfinished stages into the record. Returns the chosen stage's row, counted from the first."""
    row = record.count[0]
    choice = 0
    job_row = record.num_jobs[0]
    stage_row = record.num_rows[0]
    first_row = stage_row
    record.clock_ms[row] = seen.now.clock_ms[0]
    record.first_job[row] = job_row
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        first = seen.jobs.stage_start[job]
        record.structure[job_row] = future.job_profile[job]
        record.first_row[job_row] = stage_row
        job_row += 1
        for stage in range(first, first + seen.jobs.num_stages[job]):
            if is_unfinished(seen, stage):
                if stage == chosen:
                    choice = stage_row - first_row
                for feature in range(record.x.shape[1]):
                    record.x[stage_row, feature] = (
                        work.x[stage, feature] if feature < work.x.shape[1] else 0.0
                    )
                record.index[stage_row] = stage - first
                record.can_choose[stage_row] = 0
                stage_row += 1
        record.first_row[job_row] = stage_row
    record.first_job[row + 1] = job_row
    record.num_jobs[0] = job_row
    record.num_rows[0] = stage_row
    return choice


@kernel
def _mark_choices(seen, net, work, record, row):  # type: ignore[no-untyped-def]
    """Which stages may be chosen, and how they fit the executors asked about."""
    top = net.levels[net.levels.shape[0] - 1]
    at = record.first_row[record.first_job[row]]
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        for stage in range(
            seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]
        ):
            if is_unfinished(seen, stage):
                record.can_choose[at] = (
                    is_schedulable(seen, stage) and held_executors(seen, net, stage) < top
                )
                if net.has_classes and record.can_choose[at]:
                    write_fit(seen, work, stage, record.x[at], work.x.shape[1])
                at += 1


@inlined
def _has_room(seen, record):  # type: ignore[no-untyped-def]
    jobs = seen.now.num_active[0]
    stages = 0
    for position in range(jobs):
        stages += seen.jobs.num_stages[seen.active[position]]
    return (
        record.count[0] + 1 < record.clock_ms.shape[0]
        and record.num_jobs[0] + 2 * jobs < record.structure.shape[0]
        and record.num_rows[0] + 2 * stages < record.x.shape[0]
    )


@kernel
def _begin(state, future, tables, work, record, is_new):  # type: ignore[no-untyped-def]
    """An empty record of a run that starts, or goes on where it stopped. Returns a Status."""
    record.count[0] = record.num_jobs[0] = record.num_rows[0] = 0
    forget(work)
    return start(state, future, tables) if is_new else resume(state, future, tables)


@kernel
def _note_heads(work, record, row, executor_class, length):  # type: ignore[no-untyped-def]
    """Write down what was scored of classes and idle slots, where there are such heads."""
    record.class_choice[row] = executor_class
    record.idle_choice[row] = length
    for other in range(record.can_class.shape[1]):
        record.can_class[row, other] = work.class_logits[other] > -np.inf
        for feature in range(record.class_x.shape[2]):
            record.class_x[row, other, feature] = work.class_x[other, feature]
    for other in range(record.can_idle.shape[1]):
        record.can_idle[row, other] = work.idle_logits[other] > -np.inf


@kernel
def _record(state, future, net, work, record, costing, stage, level, held, log_prob):  # type: ignore[no-untyped-def]
    """Write down a choice, before it is carried out."""
    row = record.count[0]
    record.choice[row] = _write(state, future, work, record, stage)
    _mark_choices(state, net, work, record, row)
    record.cost[row] = cost_so_far(state, costing)
    record.log_prob[row] = log_prob
    record.level[row] = level
    record.held[row] = held
    record.count[0] = row + 1


@kernel
def _end(state, future, net, work, record, costing):  # type: ignore[no-untyped-def]
    """Write down where the recording ended, for its value."""
    record.end_ms[0] = state.now.clock_ms[0]
    record.end_cost[0] = cost_so_far(state, costing)
    embed(state, net, work)
    _write(state, future, work, record, NO_STAGE)


@kernel
def explore(state, future, tables, net, work, record, costing, luck_seed, is_new):  # type: ignore[no-untyped-def]
    """Run with drawn decisions from the start, or on from where the run stopped, and record every choice.

    Ends with the run, at the episode's end time, or where the record is full. Returns a Status.
    """
    status = _begin(state, future, tables, work, record, is_new)
    while status == _NEEDS_DECISION and _has_room(state, record):
        stage, limit, executor_class, idle_ms, log_prob, is_choice = draw_decision(
            state, net, work, luck_seed
        )
        if is_choice:
            _note_heads(work, record, record.count[0], work.answer[3], work.answer[4])
            _record(
                state,
                future,
                net,
                work,
                record,
                costing,
                stage,
                work.answer[1],
                work.answer[2],
                log_prob,
            )
        status = step(state, future, tables, stage, limit, executor_class, idle_ms)
    _end(state, future, net, work, record, costing)
    return status


@kernel
def explore_many(
    states, futures, tables, net, works, records, costing, luck, is_new, first, last, status
):  # type: ignore[no-untyped-def]
    """`explore` with simulators first..last-1 of many; fills `status`."""
    for row in range(first, last):
        state = select_cluster(states, row)
        future = select_future(futures, row)
        work = select_workspace(works, row)
        record = select_record(records, row)
        status[row] = explore(state, future, tables, net, work, record, costing, luck[row], is_new)


@kernel
def _level_of(net, wanted):  # type: ignore[no-untyped-def]
    """Column of the smallest level that is at least `wanted`, or the last."""
    for column in range(net.levels.shape[0]):
        if net.levels[column] >= wanted:
            return column
    return net.levels.shape[0] - 1


@kernel
def _record_lesson(state, future, net, work, record, costing, lesson):  # type: ignore[no-untyped-def]
    """Write down what the rule would choose; `lesson` is (stage, limit, executor_class).

    Rules add no idle slots. A lesson says that none was possible, so that the idle head stays as it is.
    """
    stage, limit, executor_class = lesson
    held = held_executors(state, net, stage)
    if held >= net.levels[net.levels.shape[0] - 1]:
        return
    if net.has_classes:
        score_classes(state, net, work, stage, limit)
    work.idle_logits[0] = 0.0
    work.idle_logits[1:] = -np.inf
    _note_heads(work, record, record.count[0], executor_class, 0)
    _record(
        state, future, net, work, record, costing, stage, _level_of(net, held + limit), held, 0.0
    )


@kernel
def demonstrate(state, future, tables, net, work, record, costing, luck_seed, is_new, rule, share):  # type: ignore[no-untyped-def]
    """As `explore`, but what is recorded is what the rule would choose; it also decides in `share` of the cases.

    Where the rule lets executors idle, nothing is recorded: Decima cannot choose that. Where it leaves the class open, the
    best-fitting one is shown, one after another.
    """
    status = _begin(state, future, tables, work, record, is_new)
    while status == _NEEDS_DECISION and _has_room(state, record):
        own_stage, own_limit, own_class, own_hold_ms, _, is_choice = draw_decision(
            state, net, work, luck_seed
        )
        stage, limit, executor_class, idle_ms = decide_by_rule(state, rule)
        if net.has_classes and stage != NO_STAGE and executor_class == ANY_CLASS:
            executor_class = best_fitting(state, stage)
        if is_choice and stage != NO_STAGE:
            _record_lesson(
                state, future, net, work, record, costing, (stage, limit, executor_class)
            )
        if uniform(luck_seed + np.uint64(1), state.now.num_decisions[0]) >= share:
            stage = own_stage
            limit = own_limit
            executor_class = own_class
            idle_ms = own_hold_ms
        status = step(state, future, tables, stage, limit, executor_class, idle_ms)
    _end(state, future, net, work, record, costing)
    return status


@kernel
def demonstrate_many(  # type: ignore[no-untyped-def]
    states,
    futures,
    tables,
    net,
    works,
    records,
    costing,
    luck,
    is_new,
    first,
    last,
    status,
    rule,
    share,
):
    """`demonstrate` with simulators first..last-1 of many; fills `status`."""
    for row in range(first, last):
        state = select_cluster(states, row)
        future = select_future(futures, row)
        work = select_workspace(works, row)
        record = select_record(records, row)
        status[row] = demonstrate(
            state, future, tables, net, work, record, costing, luck[row], is_new, rule, share
        )
