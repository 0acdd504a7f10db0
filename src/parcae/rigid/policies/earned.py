"""Compiled runs in which a policy must earn that it decides: virtual runs go along.

EASY in order of expansion factors decides. The policy does while its virtual run had the smallest
bounded slowdowns lately, and while the real run has done nearly as much work as EASY's; but a job
that alone would make the run longer starts first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, mix, row_of
from parcae.base.compiled.tables import allocate_tables, doubles, empty_tables, integers, records
from parcae.base.errors import ConfigError
from parcae.cluster.kernels.policies import decide
from parcae.rigid.kernels.transitions import advance, begin, cluster_of, next_event, place, take
from parcae.rigid.kernels.views import show
from parcae.rigid.layout import (
    NO_JOB,
    NOT_YET,
    SPEC,
    VOID,
    Clusters,
    Cost,
    Packing,
    SequenceTables,
    View,
    allocate_view,
    copy_units,
)
from parcae.rigid.policies.backfilling import Order, backfill, easy
from parcae.rigid.policies.policy import CompiledPackingPolicy, PackingPolicy

#: The virtual runs: EASY in each order, and the policy.
EASY = int(Order.ARRIVAL)
EXPANSION = int(Order.EXPANSION)
SHORTEST = int(Order.SHORTEST)
POLICY = 3
NUM_VIRTUAL = 4
#: Columns of `Virtual.waits`.
TOTAL = 0
_RATE = 1
_TIME = 2
#: Columns of `Virtual.sums`.
JOBS = 0
DONE = 1
_UTILIZATION = int(Cost.UTILIZATION)
#: What is left of all sums after each arrival: what happened long ago counts less.
_MEMORY = 0.999


class Virtual(NamedTuple):
    """The virtual runs, and what is known of the jobs' durations."""

    states: Packing  # of NUM_VIRTUAL clusters
    seen: View  # of the virtual run that decides now
    specs: Any = records(SPEC, "jobs")  # with durations as far as they are known
    weight: Any = doubles("jobs")  # 1 / bounded duration as far as it is known
    has_ended: Any = integers("jobs")  # 1 if the job has ended in the real run
    # Of every virtual run: sum over jobs of (wait x weight) up to a time, its growth per unit of
    # time, the time.
    waits: Any = doubles(NUM_VIRTUAL, 3)
    error: Any = doubles("jobs")  # duration / estimate of the jobs that have ended, in this order
    num_ended: Any = integers(1)
    error_sum: Any = doubles(1)  # sum of `error`
    # Arrived jobs, and work done in the real run; below, both without forgetting.
    sums: Any = doubles(2, 2)
    work: Any = doubles(2, NUM_VIRTUAL)  # the same of the virtual runs
    is_settled: Any = integers(NUM_VIRTUAL)  # 1 if no further job starts before the next event


@inlined
def _expect(virtual, sequence, job):  # type: ignore[no-untyped-def]
    """Set the duration and the weight that a job that arrives is expected to have."""
    ended = virtual.num_ended[0]
    error = 1.0
    if ended > 0:
        error = virtual.error[mix(np.uint64(job)) % np.uint64(ended)]
    expected = max(1.0, sequence.specs.estimate[job] * error)
    virtual.specs.duration[job] = int(expected)
    virtual.weight[job] = 1.0 / max(sequence.rules[0].bound, expected)


@inlined
def _known_sequence(virtual, sequence):  # type: ignore[no-untyped-def]
    """Return the sequence as the virtual runs know it."""
    return SequenceTables(virtual.specs, sequence.demand, sequence.num_jobs, sequence.rules)


@inlined
def _accrue(virtual, run, now):  # type: ignore[no-untyped-def]
    waits = virtual.waits
    waits[run, TOTAL] += waits[run, _RATE] * (now - waits[run, _TIME])
    waits[run, _TIME] = now


@kernel
def begin_virtual(virtual, state, sequence):  # type: ignore[no-untyped-def]
    """Begin the virtual runs of a cluster that has just begun."""
    clock = state.clock[0]
    virtual.waits[:] = 0.0
    virtual.sums[:] = 0.0
    virtual.work[:] = 0.0
    virtual.num_ended[0] = 0
    virtual.error_sum[0] = 0.0
    for job in range(sequence.num_jobs[0]):
        virtual.has_ended[job] = 0
        virtual.specs.arrival[job] = sequence.specs.arrival[job]
        virtual.specs.estimate[job] = sequence.specs.estimate[job]
        virtual.specs.log_estimate[job] = sequence.specs.log_estimate[job]
        _expect(virtual, sequence, job)
    known = _known_sequence(virtual, sequence)
    for run in range(NUM_VIRTUAL):
        one = row_of(virtual.states, run)
        copy_units(state.capacity, one.capacity)
        begin(one, known)
        virtual.is_settled[run] = 0
        virtual.waits[run, _TIME] = clock.now
        for job in range(clock.num_arrived):
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
    for row in range(one.clock[0].num_running):
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
    """Run a virtual cluster on to its next decision, or to the real cluster's time. Returns whether
    there is a decision to take, see `answer`.
    """
    one = row_of(virtual.states, run)
    clock = one.clock[0]
    known = _known_sequence(virtual, sequence)
    while clock.is_over == 0:
        if virtual.is_settled[run] == 0:
            show(one, known, virtual.seen)
            return True
        then = next_event(one, known)
        if then > real.clock[0].now:
            return False
        if _postpone(virtual, one, real, then):
            continue
        before = clock.num_arrived
        if clock.num_running == 0 and before == sequence.num_jobs[0]:
            return False
        advance(one, known)
        virtual.is_settled[run] = 0
        for job in range(before, clock.num_arrived):
            _accrue(virtual, run, clock.now)
            virtual.waits[run, _RATE] += virtual.weight[job]
    return False


@kernel
def answer(virtual, run, sequence, slot):  # type: ignore[no-untyped-def]
    """Take a decision in a virtual run."""
    one = row_of(virtual.states, run)
    job = NO_JOB if slot == VOID else one.slots[slot]
    # Time passes also if the job cannot be placed, as in a real run.
    if slot == VOID or not place(one, _known_sequence(virtual, sequence), slot):
        virtual.is_settled[run] = 1
        return
    _accrue(virtual, run, one.clock[0].now)
    virtual.waits[run, _RATE] -= virtual.weight[job]


@inlined
def _end(virtual, sequence, job, before):  # type: ignore[no-untyped-def]
    """Learn the duration of a job that ends in the real run.

    The virtual runs have been played up to the time `before`, that of the last real event.
    """
    specs = sequence.specs
    duration = specs.duration[job]
    virtual.error[virtual.num_ended[0]] = duration / specs.estimate[job]
    virtual.num_ended[0] += 1
    virtual.error_sum[0] += duration / specs.estimate[job]
    weight = 1.0 / max(sequence.rules[0].bound, float(duration))
    change = weight - virtual.weight[job]
    virtual.weight[job] = weight
    virtual.has_ended[job] = 1
    virtual.specs.duration[job] = duration
    for run in range(NUM_VIRTUAL):
        jobs = virtual.states.jobs[run]
        waits = virtual.waits
        if jobs.start[job] == NOT_YET:
            waits[run, TOTAL] += change * (waits[run, _TIME] - specs.arrival[job])
            waits[run, _RATE] += change
        else:
            waits[run, TOTAL] += change * (jobs.start[job] - specs.arrival[job])
            if jobs.finish[job] > before:
                jobs.finish[job] = max(before, jobs.start[job] + duration)


@kernel
def act(virtual, state, sequence, slot):  # type: ignore[no-untyped-def]
    """Take one decision in the real run. Returns whether time passed, so that the virtual runs must
    follow.
    """
    clock = state.clock[0]
    if slot != VOID:
        return not take(state, sequence, slot)
    then = next_event(state, sequence)
    for row in range(clock.num_running):
        job = state.running[row]
        if state.jobs.finish[job] <= then:
            _end(virtual, sequence, job, clock.now)
    before = clock.num_arrived
    take(state, sequence, VOID)
    for job in range(before, clock.num_arrived):
        _expect(virtual, sequence, job)
    return True


@inlined
def _update(sums, column, whole, left):  # type: ignore[no-untyped-def]
    """Add what a sum without forgetting has grown by, and let the sum count less."""
    sums[0, column] = (sums[0, column] + whole - sums[1, column]) * left
    sums[1, column] = whole


@kernel
def forget(virtual, state):  # type: ignore[no-untyped-def]
    """Bring all sums up to the present, and let them count less by the arrivals since."""
    now = state.clock[0].now
    sums = virtual.sums
    work = virtual.work
    arrived = state.clock[0].num_arrived - sums[1, JOBS]
    left = _MEMORY**arrived
    _update(sums, JOBS, float(state.clock[0].num_arrived), left)
    _update(sums, DONE, -state.costs[_UTILIZATION], left)
    for run in range(NUM_VIRTUAL):
        one = row_of(virtual.states, run)
        since = now - one.clock[0].now
        _update(work, run, one.clock[0].used * since - one.costs[_UTILIZATION], left)
        _accrue(virtual, run, now)
        virtual.waits[run, TOTAL] *= left


#: By how much the mean bounded slowdown must be below that in order of expansion factors.
_LEAST_GAIN = 0.01
#: Where jobs wait less than this under EASY, on average and as a share of their durations, there is
#: nothing to earn.
_LITTLE_WAIT = 1.0
#: Share of EASY's work that may be missing before jobs may no longer be withheld, and before only
#: expansion factors decide.
_MOST_IDLE = 0.03
_MOST_BEHIND = 0.06
#: Share of EASY's work that may be missing in a virtual run whose policy decides.
_MOST_BEHIND_ALONE = 0.1
#: How long a job may take, relative to what estimates were worth so far, where it could make the
#: run longer; never longer than its estimate.
_LONGEST = 1.5
#: Share of the run, up to the end of such a job, by which the job may start later than under EASY.
_MOST_LATER = 0.03


@inlined
def _missing(done, usually_done):  # type: ignore[no-untyped-def]
    """Return the share of EASY's work that has not been done."""
    return 1.0 - done / usually_done if usually_done > 0.0 else 0.0


@inlined
def _gaps(virtual, state, sequence):  # type: ignore[no-untyped-def]
    """Return how long the cluster would stand empty between a run's waiting jobs, all in all.

    Jobs wider than a half of the cluster run one after another, those wider than a third in pairs,
    and so on.
    """
    gaps = 0.0
    for slot in range(state.clock[0].num_waiting):
        job = state.slots[slot]
        share = 0.0
        used_up = 0.0
        for resource in range(state.capacity.shape[0]):
            demand = sequence.demand[job, resource]
            if demand > 0:
                capacity = state.capacity[resource]
                share = max(share, demand / capacity)
                used_up = max(used_up, 1.0 / (capacity // demand))
        gaps += virtual.specs.duration[job] * (used_up - share)
    return gaps


@inlined
def _who_decides(virtual, state, sequence):  # type: ignore[no-untyped-def]
    """Return the run whose policy decides in the real run."""
    sums = virtual.sums
    work = virtual.work
    if virtual.waits[EASY, TOTAL] < _LITTLE_WAIT * sums[0, JOBS]:
        return EXPANSION
    missing = _missing(sums[0, DONE], work[0, EASY])
    elapsed = state.clock[0].now - sequence.specs.arrival[0]
    if elapsed > 0:
        # Wide jobs that are left for the end make the run longer than their work does.
        usual_gaps = _gaps(virtual, row_of(virtual.states, EASY), sequence)
        missing += (_gaps(virtual, state, sequence) - usual_gaps) / elapsed
    best = EXPANSION
    usual = virtual.waits[EXPANSION, TOTAL]
    least = usual - _LEAST_GAIN * (sums[0, JOBS] + usual)
    last = POLICY
    if missing > _MOST_BEHIND:
        last = EXPANSION
    elif missing > _MOST_IDLE:
        last = SHORTEST
    for run in range(SHORTEST, last + 1):
        is_behind = _missing(work[0, run], work[0, EASY]) > _MOST_BEHIND_ALONE
        if not is_behind and virtual.waits[run, TOTAL] < least:
            least = virtual.waits[run, TOTAL]
            best = run
    return best


@inlined
def _remaining(virtual, state, sequence):  # type: ignore[no-untyped-def]
    """Return how long the cluster is expected to be busy with the jobs in the system.

    This is the time of the longest running job or of all work on a cluster without gaps, whichever
    is longer.
    """
    clock = state.clock[0]
    now = clock.now
    expected = virtual.specs.duration
    longest = 0.0
    for resource in range(state.capacity.shape[0]):
        work = 0.0
        for slot in range(clock.num_waiting):
            job = state.slots[slot]
            work += sequence.demand[job, resource] * expected[job]
        for row in range(clock.num_running):
            job = state.running[row]
            left = max(0, state.jobs.start[job] + expected[job] - now)
            work += sequence.demand[job, resource] * left
            longest = max(longest, float(left))
        longest = max(longest, work / state.capacity[resource])
    return longest


@inlined
def _urgent(virtual, view, state, sequence):  # type: ignore[no-untyped-def]
    """Return the row of a job that would end long after all others if it waited longer, or VOID.

    EASY started it in its virtual run a while ago, and it takes longer than the cluster will be
    busy. Of several such jobs it is the longest.
    """
    head = view.head[0]
    worth = 1.0
    if virtual.num_ended[0] > 0:
        worth = min(1.0, _LONGEST * virtual.error_sum[0] / virtual.num_ended[0])
    now = head.now
    elapsed = now - sequence.specs.arrival[0]
    starts = virtual.states.jobs[EASY].start
    longest = VOID
    length = 0.0
    for row in range(head.num_jobs):
        start = starts[state.slots[view.jobs.slot[row]]]
        own = worth * view.jobs.estimate[row]
        if start != NOT_YET and own > length and now - start > _MOST_LATER * (elapsed + own):
            longest = row
            length = own
    if longest != VOID and length < _remaining(virtual, state, sequence):
        return VOID
    return longest


@inlined
def _decided(virtual, view, state, sequence, slot):  # type: ignore[no-untyped-def]
    """Return the decision in the real run, where the policy would take `slot`."""
    urgent = _urgent(virtual, view, state, sequence)
    if urgent != VOID:
        return backfill(view, urgent, Order.SHORTEST)
    who = _who_decides(virtual, state, sequence)
    return slot if who == POLICY else easy(view, who, who)


@kernel
def play_earned(clusters, views, policy, virtual, first, last):  # type: ignore[no-untyped-def]
    """Run clusters first..last-1 with exact times under a policy that must earn its decisions."""
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        begin(state, sequence)
        begin_virtual(virtual, state, sequence)
        view = row_of(views, row)
        is_later = True
        while state.clock[0].is_over == 0:
            if is_later:
                for run in range(POLICY):
                    while must_decide(virtual, run, state, sequence):
                        answer(virtual, run, sequence, easy(virtual.seen, run, run))
                while must_decide(virtual, POLICY, state, sequence):
                    answer(virtual, POLICY, sequence, decide(virtual.seen, policy))
                forget(virtual, state)
            show(state, sequence, view)
            slot = _decided(virtual, view, state, sequence, decide(view, policy))
            is_later = act(virtual, state, sequence, slot)


class EarnedPolicy(PackingPolicy):
    """A policy for logs that decides only where it has proved better than backfilling lately.

    Virtual runs under EASY, EASY in order of expansion factors, EASY with the shortest job first
    and the policy go along. Expansion factors decide, unless one of the last two had smaller
    bounded slowdowns and the cluster does nearly as much work as under EASY. Only for clusters with
    exact times.

    Example: `EarnedPolicy(JobSetPolicy("set", weights))`
    """

    wants_profile = True

    def __init__(self, inner: CompiledPackingPolicy) -> None:
        self.inner = inner
        self.name = inner.name
        self.card = inner.card

    def play_many(self, clusters: Clusters, views: View, first: int, last: int) -> None:
        """Run clusters from start to end; see `PackingPolicy.play_many`."""
        # The virtual runs have no room for what steps need.
        if not clusters.sequences.rules["is_exact"].all():
            raise ConfigError(
                f"policy {self.name!r}: only with exact times can a policy earn its decisions; in "
                "steps, use the policy itself"
            )
        self.check_view(views)
        tables = self.inner.tables(views)
        virtual = allocate_virtual(clusters.states, views)
        play_earned(clusters, views, tables, virtual, first, last)


def allocate_virtual(states: Packing, views: View) -> Virtual:
    """Allocate virtual runs for clusters that are played one after another."""
    jobs, slots = states.jobs.shape[1], states.slots.shape[1]
    seen = {"slots": slots, "resources": states.capacity.shape[1]}
    view = allocate_view(1, wants_profile=True, points=views.points.shape[1], **seen)
    return Virtual(
        allocate_tables(Packing, NUM_VIRTUAL, jobs=jobs, backlog=0, horizon=1, **seen),
        row_of(view, 0),
        **empty_tables(Virtual, jobs=jobs),
    )
