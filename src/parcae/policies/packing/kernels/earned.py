"""Compiled runs in which a policy must earn that it decides: virtual runs go along.

With exact times, four virtual runs of the same jobs follow the real one: under EASY, EASY that
backfills the shortest job first, shortest job first, and the policy. The policy decides in the real
run while its virtual run had the smallest bounded slowdowns lately, and while the real run has done
nearly as much work as EASY's; but a job that alone would make the run longer starts first. The
virtual runs know what a scheduler knows: until a job has ended in the real run, its duration counts
as its estimate times the error of an estimate of another job that has ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcae.kernels import inlined, kernel, mix, row_of
from parcae.packing.kernels.transitions import (
    advance,
    begin,
    cluster_of,
    next_event,
    place,
    take,
)
from parcae.packing.kernels.views import show
from parcae.packing.layout import NO_JOB, NOT_YET, VOID, Cost, Packing, SequenceTables, View
from parcae.policies.jobset.kernels import decide as decide_by_network
from parcae.policies.packing.kernels.backfilling import backfill, easy
from parcae.policies.packing.kernels.decisions import PackingKind, best_score, choose

#: The virtual runs, in this order.
_EASY = 0
_BACKFILLING = 1
_SHORTEST = 2
_POLICY = 3
NUM_VIRTUAL = 4
#: Columns of `Virtual.waits`.
_TOTAL = 0
_RATE = 1
_TIME = 2
#: Columns of `Virtual.sums`.
_JOBS = 0
_DONE = 1
_UTILIZATION = int(Cost.UTILIZATION)
#: What is left of all sums after each arrival: what happened long ago counts less.
_MEMORY = 0.999
#: By how much the mean bounded slowdown must be below EASY's.
_LEAST_GAIN = 0.01
#: Where jobs wait less than this under EASY, on average and as a share of their durations, there is
#: nothing to earn, and EASY decides.
_LITTLE_WAIT = 1.0
#: Share of EASY's work that may be missing before jobs may no longer be withheld, and before one of
#: the two kinds of EASY decides.
_MOST_IDLE = 0.03
_MOST_BEHIND = 0.06
#: Share of EASY's work that may be missing in a virtual run whose policy decides.
_MOST_BEHIND_ALONE = 0.1
#: Share of the time since the first arrival by which a job may start later than under EASY if it
#: takes longer than the cluster will be busy.
_MOST_LATER = 0.03


class Virtual(NamedTuple):
    """The virtual runs, and what is known of the jobs' durations."""

    states: Packing  # of NUM_VIRTUAL clusters
    specs: Any  # SPEC[num_jobs], with durations as far as they are known
    seen: View  # of the virtual run that decides now
    weight: Any  # float64[num_jobs], 1 / bounded duration as far as it is known
    has_ended: Any  # int64[num_jobs], 1 if the job has ended in the real run
    # float64[NUM_VIRTUAL, 3], of every virtual run: sum over jobs of (wait x weight) up to a time,
    # its growth per unit of time, the time
    waits: Any
    error: Any  # float64[num_jobs], duration / estimate of the jobs that have ended, in this order
    num_ended: Any  # int64[1]
    # float64[2, 2]: arrived jobs, work done in the real run; below, both without forgetting
    sums: Any
    work: Any  # float64[2, NUM_VIRTUAL]: the same of the virtual runs
    is_settled: Any  # int64[NUM_VIRTUAL], 1 if no further job starts before the next event


@inlined
def _expect(virtual, sequence, job):  # type: ignore[no-untyped-def]
    """Set the duration and the weight that a job that arrives is expected to have."""
    ended = virtual.num_ended[0]
    error = 1.0
    if ended > 0:
        error = virtual.error[mix(np.uint64(job)) % np.uint64(ended)]
    expected = max(1.0, sequence.specs.estimate[job] * error)
    virtual.specs.duration[job] = int(expected)
    virtual.weight[job] = 1.0 / max(sequence.rules.bound[0], expected)


@inlined
def _known_sequence(virtual, sequence):  # type: ignore[no-untyped-def]
    """Return the sequence as the virtual runs know it."""
    return SequenceTables(virtual.specs, sequence.demand, sequence.num_jobs, sequence.rules)


@inlined
def _accrue(virtual, run, now):  # type: ignore[no-untyped-def]
    """Add the waits of a virtual run up to now."""
    waits = virtual.waits
    waits[run, _TOTAL] += waits[run, _RATE] * (now - waits[run, _TIME])
    waits[run, _TIME] = now


@kernel
def begin_virtual(virtual, state, sequence):  # type: ignore[no-untyped-def]
    """Begin the virtual runs of a cluster that has just begun.

    Args:
        virtual: the Virtual, written.
        state: the cluster's state.
        sequence: the cluster's job sequence.
    """
    virtual.waits[:] = 0.0
    virtual.sums[:] = 0.0
    virtual.work[:] = 0.0
    virtual.num_ended[0] = 0
    for job in range(sequence.num_jobs[0]):
        virtual.has_ended[job] = 0
        virtual.specs.arrival[job] = sequence.specs.arrival[job]
        virtual.specs.estimate[job] = sequence.specs.estimate[job]
        virtual.specs.log_estimate[job] = sequence.specs.log_estimate[job]
        _expect(virtual, sequence, job)
    known = _known_sequence(virtual, sequence)
    for run in range(NUM_VIRTUAL):
        one = row_of(virtual.states, run)
        for resource in range(state.capacity.shape[0]):
            one.capacity[resource] = state.capacity[resource]
        begin(one, known)
        virtual.is_settled[run] = 0
        virtual.waits[run, _TIME] = state.clock.now[0]
        for job in range(state.clock.num_arrived[0]):
            virtual.waits[run, _RATE] += virtual.weight[job]


@inlined
def _extra(estimate, length):  # type: ignore[no-untyped-def]
    """Return by how much longer a job will run that has run for a length: at most as long again."""
    return length if estimate <= length else min(estimate - length, length)


@inlined
def _postpone(virtual, one, real, then):  # type: ignore[no-untyped-def]
    """Let jobs run on in a virtual run that have already run longer in the real one.

    Returns whether there was one among those that would end by `then`.
    """
    is_any = False
    for row in range(one.clock.num_running[0]):
        job = one.running[row]
        if one.jobs.finish[job] > then or virtual.has_ended[job] == 1:
            continue
        length = one.jobs.finish[job] - one.jobs.start[job]
        if real.jobs.start[job] != NOT_YET and then - real.jobs.start[job] >= length:
            one.jobs.finish[job] += _extra(virtual.specs.estimate[job], length)
            is_any = True
    return is_any


@kernel
def must_decide(virtual, run, real, sequence):  # type: ignore[no-untyped-def]
    """Run a virtual cluster on to its next decision, or to the real cluster's time.

    Args:
        virtual: the Virtual, changed; `seen` shows the virtual cluster if it must decide.
        run: which virtual run.
        real: the real cluster's state.
        sequence: its job sequence; of its durations only those of jobs are used that have ended.

    Returns:
        Whether there is a decision to take, see `answer`.
    """
    one = row_of(virtual.states, run)
    clock = one.clock
    known = _known_sequence(virtual, sequence)
    while clock.is_over[0] == 0:
        if virtual.is_settled[run] == 0:
            show(one, known, virtual.seen)
            return True
        then = next_event(one, known)
        if then > real.clock.now[0]:
            return False
        if _postpone(virtual, one, real, then):
            continue
        before = clock.num_arrived[0]
        if clock.num_running[0] == 0 and before == sequence.num_jobs[0]:
            return False
        advance(one, known)
        virtual.is_settled[run] = 0
        for job in range(before, clock.num_arrived[0]):
            _accrue(virtual, run, clock.now[0])
            virtual.waits[run, _RATE] += virtual.weight[job]
    return False


@kernel
def answer(virtual, run, sequence, slot):  # type: ignore[no-untyped-def]
    """Take a decision in a virtual run.

    Args:
        virtual: the Virtual, changed.
        run: which virtual run.
        sequence: the real cluster's job sequence.
        slot: the slot, or VOID to let time pass.
    """
    one = row_of(virtual.states, run)
    job = NO_JOB if slot == VOID else one.slots[slot]
    # Time passes also if the job cannot be placed, as in a real run.
    if slot == VOID or not place(one, _known_sequence(virtual, sequence), slot):
        virtual.is_settled[run] = 1
        return
    _accrue(virtual, run, one.clock.now[0])
    virtual.waits[run, _RATE] -= virtual.weight[job]


@inlined
def _end(virtual, sequence, job, now):  # type: ignore[no-untyped-def]
    """Learn the duration of a job that ends in the real run."""
    specs = sequence.specs
    duration = specs.duration[job]
    virtual.error[virtual.num_ended[0]] = duration / specs.estimate[job]
    virtual.num_ended[0] += 1
    weight = 1.0 / max(sequence.rules.bound[0], float(duration))
    change = weight - virtual.weight[job]
    virtual.weight[job] = weight
    virtual.has_ended[job] = 1
    virtual.specs.duration[job] = duration
    for run in range(NUM_VIRTUAL):
        jobs = virtual.states.jobs[run]
        waits = virtual.waits
        if jobs.start[job] == NOT_YET:
            waits[run, _TOTAL] += change * (waits[run, _TIME] - specs.arrival[job])
            waits[run, _RATE] += change
        else:
            waits[run, _TOTAL] += change * (jobs.start[job] - specs.arrival[job])
            if jobs.finish[job] > now:
                jobs.finish[job] = max(now, jobs.start[job] + duration)


@kernel
def act(virtual, state, sequence, slot):  # type: ignore[no-untyped-def]
    """Take one decision in the real run.

    Args:
        virtual: the Virtual, changed.
        state: the cluster's state, changed.
        sequence: the cluster's job sequence.
        slot: the slot, or VOID to let time pass.

    Returns:
        Whether time passed, so that the virtual runs must follow.
    """
    clock = state.clock
    if slot != VOID:
        return not take(state, sequence, slot)
    then = next_event(state, sequence)
    for row in range(clock.num_running[0]):
        job = state.running[row]
        if state.jobs.finish[job] <= then:
            _end(virtual, sequence, job, then)
    before = clock.num_arrived[0]
    take(state, sequence, VOID)
    for job in range(before, clock.num_arrived[0]):
        _expect(virtual, sequence, job)
    return True


@inlined
def _update(sums, column, whole, left):  # type: ignore[no-untyped-def]
    """Add what a sum without forgetting has grown by, and let the sum count less."""
    sums[0, column] = (sums[0, column] + whole - sums[1, column]) * left
    sums[1, column] = whole


@inlined
def _missing(done, usually_done):  # type: ignore[no-untyped-def]
    """Return the share of EASY's work that has not been done."""
    return 1.0 - done / usually_done if usually_done > 0.0 else 0.0


@kernel
def forget(virtual, state):  # type: ignore[no-untyped-def]
    """Bring all sums up to the present, and let them count less by the arrivals since.

    Args:
        virtual: the Virtual, changed.
        state: the cluster's state.
    """
    now = state.clock.now[0]
    sums = virtual.sums
    work = virtual.work
    arrived = state.clock.num_arrived[0] - sums[1, _JOBS]
    left = _MEMORY**arrived
    _update(sums, _JOBS, float(state.clock.num_arrived[0]), left)
    _update(sums, _DONE, -state.costs[_UTILIZATION], left)
    for run in range(NUM_VIRTUAL):
        one = row_of(virtual.states, run)
        since = now - one.clock.now[0]
        _update(work, run, one.clock.used[0] * since - one.costs[_UTILIZATION], left)
        _accrue(virtual, run, now)
        virtual.waits[run, _TOTAL] *= left


@inlined
def _who_decides(virtual):  # type: ignore[no-untyped-def]
    """Return the run whose policy decides in the real run."""
    sums = virtual.sums
    work = virtual.work
    missing = _missing(sums[0, _DONE], work[0, _EASY])
    best = _EASY
    usual = virtual.waits[_EASY, _TOTAL]
    if usual < _LITTLE_WAIT * sums[0, _JOBS]:
        return _EASY
    least = usual - _LEAST_GAIN * (sums[0, _JOBS] + usual)
    last = _POLICY
    if missing > _MOST_BEHIND:
        last = _BACKFILLING
    elif missing > _MOST_IDLE:
        last = _SHORTEST
    for run in range(1, last + 1):
        is_behind = _missing(work[0, run], work[0, _EASY]) > _MOST_BEHIND_ALONE
        if not is_behind and virtual.waits[run, _TOTAL] < least:
            least = virtual.waits[run, _TOTAL]
            best = run
    return best


@inlined
def _remaining(virtual, state, sequence):  # type: ignore[no-untyped-def]
    """Return how long the cluster will be busy with the jobs in the system, as far as is expected.

    It is as long as the longest running job, and as all work on a cluster without gaps.
    """
    now = state.clock.now[0]
    expected = virtual.specs.duration
    longest = 0.0
    for resource in range(state.capacity.shape[0]):
        work = 0.0
        for slot in range(state.clock.num_waiting[0]):
            job = state.slots[slot]
            work += sequence.demand[job, resource] * expected[job]
        for row in range(state.clock.num_running[0]):
            job = state.running[row]
            left = max(0, state.jobs.start[job] + expected[job] - now)
            work += sequence.demand[job, resource] * left
            longest = max(longest, float(left))
        longest = max(longest, work / state.capacity[resource])
    return longest


@inlined
def _urgent(virtual, view, state, sequence):  # type: ignore[no-untyped-def]
    """Return the row of a job that must start now lest it end long after all others, or VOID.

    EASY started it in its virtual run a while ago, and its estimate is longer than the cluster will
    be busy. Of several such jobs it is the longest.
    """
    now = view.head.now[0]
    most_later = _MOST_LATER * (now - sequence.specs.arrival[0])
    starts = virtual.states.jobs[_EASY].start
    longest = VOID
    for row in range(view.head.num_jobs[0]):
        start = starts[state.slots[view.jobs.slot[row]]]
        if start == NOT_YET or now - start <= most_later:
            continue
        if longest == VOID or view.jobs.estimate[row] > view.jobs.estimate[longest]:
            longest = row
    if longest != VOID and view.jobs.estimate[longest] < _remaining(virtual, state, sequence):
        return VOID
    return longest


@inlined
def _decided(virtual, view, state, sequence, params, slot):  # type: ignore[no-untyped-def]
    """Return the decision in the real run, where the policy would take `slot`.

    `params` is any float64 array.
    """
    urgent = _urgent(virtual, view, state, sequence)
    if urgent != VOID:
        return backfill(view, urgent, True)
    who = _who_decides(virtual)
    if who == _POLICY:
        return slot
    if who == _SHORTEST:
        return best_score(view, PackingKind.SJF, params)
    return easy(view, who == _BACKFILLING)


@inlined
def _follow_others(virtual, state, sequence, params):  # type: ignore[no-untyped-def]
    """Run the virtual clusters of all but the policy up to the real cluster's time."""
    for run in (_EASY, _BACKFILLING):
        while must_decide(virtual, run, state, sequence):
            answer(virtual, run, sequence, easy(virtual.seen, run == _BACKFILLING))
    while must_decide(virtual, _SHORTEST, state, sequence):
        slot = best_score(virtual.seen, PackingKind.SJF, params)
        answer(virtual, _SHORTEST, sequence, slot)


@inlined
def _begun(clusters, virtual, row):  # type: ignore[no-untyped-def]
    """Begin a cluster's real run and its virtual runs. Returns its state and its sequence."""
    state, sequence = cluster_of(clusters, row)
    begin(state, sequence)
    begin_virtual(virtual, state, sequence)
    return state, sequence


@kernel
def play_rule_many(  # type: ignore[no-untyped-def]
    clusters, views, plan, kind, params, virtual, first, last
):
    """Run clusters first..last-1 with exact times under a heuristic that must earn its decisions.

    Args:
        clusters: the Clusters, changed.
        views: the views of all clusters with their profiles, written.
        plan: one Plan, a buffer for all of these clusters.
        kind: a PackingKind.
        params: float64 array, the heuristic's parameters.
        virtual: one Virtual, a buffer for all of these clusters.
        first: first cluster.
        last: one past the last cluster.
    """
    for row in range(first, last):
        state, sequence = _begun(clusters, virtual, row)
        view = row_of(views, row)
        is_later = True
        while state.clock.is_over[0] == 0:
            if is_later:
                _follow_others(virtual, state, sequence, params)
                while must_decide(virtual, _POLICY, state, sequence):
                    slot = choose(virtual.seen, plan, kind, params)
                    answer(virtual, _POLICY, sequence, slot)
                forget(virtual, state)
            show(state, sequence, view)
            slot = choose(view, plan, kind, params)
            slot = _decided(virtual, view, state, sequence, params, slot)
            is_later = act(virtual, state, sequence, slot)


@kernel
def play_network_many(  # type: ignore[no-untyped-def]
    clusters, views, net, work, virtual, first, last
):
    """Run clusters first..last-1 with exact times under the set network, which must earn it.

    Args:
        clusters: the Clusters, changed.
        views: the views of all clusters with their profiles, written.
        net: the set network.
        work: one workspace of the set network.
        virtual: one Virtual, a buffer for all of these clusters.
        first: first cluster.
        last: one past the last cluster.
    """
    for row in range(first, last):
        state, sequence = _begun(clusters, virtual, row)
        view = row_of(views, row)
        is_later = True
        while state.clock.is_over[0] == 0:
            if is_later:
                _follow_others(virtual, state, sequence, net.rule)
                while must_decide(virtual, _POLICY, state, sequence):
                    slot = decide_by_network(virtual.seen, net, work)
                    answer(virtual, _POLICY, sequence, slot)
                forget(virtual, state)
            show(state, sequence, view)
            slot = decide_by_network(view, net, work)
            slot = _decided(virtual, view, state, sequence, net.rule, slot)
            is_later = act(virtual, state, sequence, slot)
