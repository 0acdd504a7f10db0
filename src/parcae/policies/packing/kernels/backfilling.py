"""First come first served, alone and with backfilling: what batch clusters run."""

from __future__ import annotations

from parcae.kernels import inlined
from parcae.packing.layout import VOID


@inlined
def _eldest(view):  # type: ignore[no-untyped-def]
    """Row of the job that has waited longest; the first of equals; VOID if none waits."""
    eldest = VOID
    for row in range(view.head.num_jobs[0]):
        if eldest == VOID or view.jobs.age[row] > view.jobs.age[eldest]:
            eldest = row
    return eldest


@inlined
def first_come(view):  # type: ignore[no-untyped-def]
    """The eldest job if it can start now, else VOID: nobody overtakes."""
    eldest = _eldest(view)
    if eldest == VOID or view.jobs.can_start[eldest] == 0:
        return VOID
    return int(view.jobs.slot[eldest])


@inlined
def _shadow(view, row):  # type: ignore[no-untyped-def]
    """Point of the profile from which on the job fits, as far as is planned."""
    point = view.head.num_points[0] - 1
    while point > 0:
        for resource in range(view.free.shape[0]):
            if view.free_from[point - 1, resource] < view.demand[row, resource]:
                return point
        point -= 1
    return point


@inlined
def easy(view, is_shortest_first):  # type: ignore[no-untyped-def]
    """The eldest if it fits; else a job that does not delay it: it ends before the eldest can start, or fits beside it.

    Source: Lifka, "The ANL/IBM SP scheduling system" (EASY, aggressive backfilling).
    """
    eldest = _eldest(view)
    if eldest == VOID or view.jobs.can_start[eldest] == 1:
        return VOID if eldest == VOID else int(view.jobs.slot[eldest])
    shadow = _shadow(view, eldest)
    best = VOID
    for row in range(view.head.num_jobs[0]):
        if view.jobs.can_start[row] == 1 and _delays_nobody(view, row, eldest, shadow):
            if not is_shortest_first:
                return int(view.jobs.slot[row])
            if best == VOID or view.jobs.told[row] < view.jobs.told[best]:
                best = row
    return VOID if best == VOID else int(view.jobs.slot[best])


@inlined
def _delays_nobody(view, row, eldest, shadow):  # type: ignore[no-untyped-def]
    if view.head.now[0] + view.jobs.told[row] <= view.points[shadow]:
        return True
    for resource in range(view.free.shape[0]):
        if view.free_from[shadow, resource] - view.demand[eldest, resource] < view.demand[row, resource]:
            return False
    return True


@inlined
def conservative(view, plan, depth):  # type: ignore[no-untyped-def]
    """The first job in order of arrival that can start now without delaying any before it; the `depth` eldest get reservations.

    Source: Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2
    with backfilling" (conservative backfilling). Reservations are made afresh at every event (compression).
    """
    rows = min(depth, view.head.num_jobs[0])
    can_any = False
    for row in range(rows):
        can_any = can_any or view.jobs.can_start[row] == 1
    if not can_any:
        return VOID
    _copy_profile(view, plan)
    for row in range(rows):
        point = _earliest(view, plan, row)
        if plan.points[point] == view.head.now[0]:
            return int(view.jobs.slot[row])
        _reserve(view, plan, row, point)
    return VOID


@inlined
def _copy_profile(view, plan):  # type: ignore[no-untyped-def]
    plan.num_points[0] = view.head.num_points[0]
    for point in range(view.head.num_points[0]):
        plan.points[point] = view.points[point]
        for resource in range(view.free.shape[0]):
            plan.free_from[point, resource] = view.free_from[point, resource]


@inlined
def _earliest(view, plan, row):  # type: ignore[no-untyped-def]
    """Point of the plan at which the job fits to its end."""
    first, point, told = 0, 0, view.jobs.told[row]
    while point < plan.num_points[0] and plan.points[point] < plan.points[first] + told:
        fits = True
        for resource in range(view.free.shape[0]):
            fits = fits and plan.free_from[point, resource] >= view.demand[row, resource]
        point += 1
        if not fits:
            first = point
    return first


@inlined
def _reserve(view, plan, row, first):  # type: ignore[no-untyped-def]
    end = plan.points[first] + view.jobs.told[row]
    last = first
    while last < plan.num_points[0] and plan.points[last] < end:
        last += 1
    if last == plan.num_points[0] or plan.points[last] != end:
        _split(plan, last, end)
    for point in range(first, last):
        for resource in range(view.free.shape[0]):
            plan.free_from[point, resource] -= view.demand[row, resource]


@inlined
def _split(plan, at, time):  # type: ignore[no-untyped-def]
    """A point more, before which nothing changes."""
    point = plan.num_points[0]
    while point > at:
        plan.points[point] = plan.points[point - 1]
        for resource in range(plan.free_from.shape[1]):
            plan.free_from[point, resource] = plan.free_from[point - 1, resource]
        point -= 1
    plan.points[at] = time
    for resource in range(plan.free_from.shape[1]):
        plan.free_from[at, resource] = plan.free_from[at - 1, resource]
    plan.num_points[0] += 1
