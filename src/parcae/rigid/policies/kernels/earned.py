"""Compiled runs in which a policy must earn that it decides: virtual runs go along.

EASY in order of expansion factors decides. The policy does while its virtual run had the smallest
bounded slowdowns lately, and while the real run has done nearly as much work as EASY's; but a job
that alone would make the run longer starts first.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.cluster.kernels.policies import decide
from parcae.rigid.kernels.transitions import begin, cluster_of
from parcae.rigid.kernels.views import show
from parcae.rigid.layout import NOT_YET, VOID
from parcae.rigid.policies.kernels.backfilling import Order, backfill, easy
from parcae.rigid.policies.kernels.virtual_runs import (
    DONE,
    EASY,
    EXPANSION,
    JOBS,
    POLICY,
    SHORTEST,
    TOTAL,
    act,
    answer,
    begin_virtual,
    forget,
    must_decide,
)

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
