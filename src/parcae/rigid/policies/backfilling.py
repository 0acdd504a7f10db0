"""Compiled first come, first served, alone and with backfilling, as batch clusters use it."""

from __future__ import annotations

from enum import IntEnum

from parcae.base.compiled.kernels import inlined
from parcae.rigid.layout import VOID, add_units, copy_units, fits


class Order(IntEnum):
    """An order of waiting jobs; of equal ones the first row comes first."""

    ARRIVAL = 0  # the oldest first
    EXPANSION = 1  # the largest expansion factor first: (age + estimate) / estimate
    SHORTEST = 2  # the least estimate first


@inlined
def _next_oldest(view, row):  # type: ignore[no-untyped-def]
    """Return the row of the next job in order of arrival, or VOID at the end.

    After VOID comes the oldest job; of jobs that arrived together, the first row. With exact times
    the rows are in order of arrival. In steps they are not, because the first job of the backlog
    takes any slot that becomes empty.
    """
    head = view.head[0]
    if head.is_exact == 1:
        return row + 1 if row + 1 < head.num_jobs else VOID
    best = VOID
    for other in range(head.num_jobs):
        age = view.jobs.age[other]
        is_later = (
            row == VOID or age < view.jobs.age[row] or (age == view.jobs.age[row] and other > row)
        )
        if is_later and (best == VOID or age > view.jobs.age[best]):
            best = other
    return best


@inlined
def first_come(view):  # type: ignore[no-untyped-def]
    """Return the slot of the oldest job if it can start now, else VOID."""
    oldest = _next_oldest(view, VOID)
    if oldest == VOID or view.jobs.can_start[oldest] == 0:
        return VOID
    return int(view.jobs.slot[oldest])


@inlined
def _shadow(view, row):  # type: ignore[no-untyped-def]
    """Return the point of the profile from which on the job fits, as far as the profile reaches."""
    point = view.head[0].num_points - 1
    while point > 0 and fits(view.demand[row], view.free_from[point - 1]):
        point -= 1
    return point


@inlined
def _comes_before(view, row, other, order):  # type: ignore[no-untyped-def]
    jobs = view.jobs
    if order == Order.SHORTEST:
        return jobs.estimate[row] < jobs.estimate[other]
    if order == Order.EXPANSION:
        return jobs.age[row] / jobs.estimate[row] > jobs.age[other] / jobs.estimate[other]
    return jobs.age[row] > jobs.age[other]


@inlined
def easy(view, order, backfilling):  # type: ignore[no-untyped-def]
    """Return the slot that EASY backfilling chooses.

    Source: Lifka, "The ANL/IBM SP scheduling system" (EASY, aggressive backfilling). Other orders:
    Srinivasan et al., "Characterization of backfilling strategies for parallel job scheduling".
    """
    head = view.head[0]
    first = VOID
    for row in range(head.num_jobs):
        if first == VOID or _comes_before(view, row, first, order):
            first = row
        # With exact times the rows are in order of arrival.
        if order == Order.ARRIVAL and head.is_exact == 1:
            break
    return VOID if first == VOID else backfill(view, first, backfilling)


@inlined
def backfill(view, first, order):  # type: ignore[no-untyped-def]
    """Return the slot to start so that a certain job starts as early as possible.

    This is the job itself if it fits. Else it is the first job that does not delay it: one that
    ends before it can start, or fits beside it.
    """
    head = view.head[0]
    if view.jobs.can_start[first] == 1:
        return int(view.jobs.slot[first])
    shadow = _shadow(view, first)
    best = VOID
    for row in range(head.num_jobs):
        # The first job itself cannot start.
        if view.jobs.can_start[row] == 0:
            continue
        is_next = best == VOID or _comes_before(view, row, best, order)
        if is_next and _does_not_delay(view, row, first, shadow):
            best = row
            # With exact times the rows are in order of arrival.
            if order == Order.ARRIVAL and head.is_exact == 1:
                break
    return VOID if best == VOID else int(view.jobs.slot[best])


@inlined
def _does_not_delay(view, row, first, shadow):  # type: ignore[no-untyped-def]
    """Return whether a job can start now without delaying the job in row `first`.

    That job starts at the point `shadow` of the profile.
    """
    if view.head[0].now + view.jobs.estimate[row] <= view.points[shadow]:
        return True
    for resource in range(view.free.shape[0]):
        if (
            view.free_from[shadow, resource] - view.demand[first, resource]
            < view.demand[row, resource]
        ):
            return False
    return True


@inlined
def conservative(view, plan, depth):  # type: ignore[no-untyped-def]
    """Return the slot that conservative backfilling chooses.

    This is the first job in order of arrival that can start now without delaying any job before it.
    Only the `depth` oldest jobs are considered and get reservations.

    Source: Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime
    estimates in scheduling the IBM SP2 with backfilling" (conservative backfilling). Reservations
    are made anew at every event (compression).
    """
    head = view.head[0]
    remaining = _num_considered(view, min(depth, head.num_jobs))
    if remaining == 0:
        return VOID
    row = _next_oldest(view, VOID)
    _copy_profile(view, plan)
    while remaining > 0:
        point = _earliest(view, plan, row)
        if plan.points[point] == head.now:
            return int(view.jobs.slot[row])
        _reserve(view, plan, row, point)
        row = _next_oldest(view, row)
        remaining -= 1
    return VOID


@inlined
def _num_considered(view, depth):  # type: ignore[no-untyped-def]
    """Return how many of the `depth` oldest jobs may decide what starts now.

    Reservations behind the last job that can start now change nothing. In steps, where rows are not
    in order of arrival, these are all `depth` jobs or none.
    """
    head = view.head[0]
    if head.is_exact == 1:
        while depth > 0 and view.jobs.can_start[depth - 1] == 0:
            depth -= 1
        return depth
    for row in range(head.num_jobs):
        if view.jobs.can_start[row] == 1:
            return depth
    return 0


@inlined
def _copy_profile(view, plan):  # type: ignore[no-untyped-def]
    head = view.head[0]
    plan.num_points[0] = head.num_points
    for point in range(head.num_points):
        plan.points[point] = view.points[point]
        copy_units(view.free_from[point], plan.free_from[point])


@inlined
def _earliest(view, plan, row):  # type: ignore[no-untyped-def]
    """Return the first point of the plan from which on the job fits until its end."""
    first = 0
    point = 0
    duration = view.jobs.estimate[row]
    while point < plan.num_points[0] and plan.points[point] < plan.points[first] + duration:
        # Where the job does not fit, it can start behind this point at the earliest.
        if not fits(view.demand[row], plan.free_from[point]):
            first = point + 1
        point += 1
    return first


@inlined
def _reserve(view, plan, row, first):  # type: ignore[no-untyped-def]
    """Reserve the job's demand from a point of the plan on, for the job's duration."""
    end = plan.points[first] + view.jobs.estimate[row]
    last = first
    while last < plan.num_points[0] and plan.points[last] < end:
        last += 1
    if last == plan.num_points[0] or plan.points[last] != end:
        _split(plan, last, end)
    for point in range(first, last):
        add_units(plan.free_from[point], view.demand[row], -1)


@inlined
def _split(plan, at, time):  # type: ignore[no-untyped-def]
    """Add a point to the plan at a time; the free resources stay the same."""
    point = plan.num_points[0]
    while point > at:
        plan.points[point] = plan.points[point - 1]
        copy_units(plan.free_from[point - 1], plan.free_from[point])
        point -= 1
    plan.points[at] = time
    copy_units(plan.free_from[at - 1], plan.free_from[at])
    plan.num_points[0] += 1
