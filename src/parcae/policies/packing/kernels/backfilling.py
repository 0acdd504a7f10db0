"""First come first served, alone and with backfilling: what batch clusters run."""

from __future__ import annotations

from parcae.kernels import inlined
from parcae.packing.layout import VOID


@inlined
def _next_eldest(view, row):  # type: ignore[no-untyped-def]
    """Row of the job that arrived next after that of `row`, of equals in order of rows; after VOID the eldest; VOID at the end.

    With exact times rows stand in order of arrival; slots do not, for the backlog's head takes any that becomes empty.
    """
    if view.head.is_exact[0] == 1:
        return row + 1 if row + 1 < view.head.num_jobs[0] else VOID
    found = VOID
    for other in range(view.head.num_jobs[0]):
        age = view.jobs.age[other]
        is_later = (
            row == VOID or age < view.jobs.age[row] or (age == view.jobs.age[row] and other > row)
        )
        if is_later and (found == VOID or age > view.jobs.age[found]):
            found = other
    return found


@inlined
def first_come(view):  # type: ignore[no-untyped-def]
    """The eldest job if it can start now, else VOID: nobody overtakes."""
    eldest = _next_eldest(view, VOID)
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
    """The eldest if it fits; else the first that does not delay it: it ends before the eldest can start, or fits beside it.

    Source: Lifka, "The ANL/IBM SP scheduling system" (EASY, aggressive backfilling).
    """
    eldest = _next_eldest(view, VOID)
    if eldest == VOID or view.jobs.can_start[eldest] == 1:
        return VOID if eldest == VOID else int(view.jobs.slot[eldest])
    shadow = _shadow(view, eldest)
    best = VOID
    row = _next_eldest(view, eldest)
    while row != VOID:
        if view.jobs.can_start[row] == 1 and _delays_nobody(view, row, eldest, shadow):
            if not is_shortest_first:
                return int(view.jobs.slot[row])
            if best == VOID or view.jobs.told[row] < view.jobs.told[best]:
                best = row
        row = _next_eldest(view, row)
    return VOID if best == VOID else int(view.jobs.slot[best])


@inlined
def _delays_nobody(view, row, eldest, shadow):  # type: ignore[no-untyped-def]
    if view.head.now[0] + view.jobs.told[row] <= view.points[shadow]:
        return True
    for resource in range(view.free.shape[0]):
        if (
            view.free_from[shadow, resource] - view.demand[eldest, resource]
            < view.demand[row, resource]
        ):
            return False
    return True


@inlined
def conservative(view, plan, depth):  # type: ignore[no-untyped-def]
    """The first job in order of arrival that can start now without delaying any before it; the `depth` eldest get reservations.

    Source: Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2
    with backfilling" (conservative backfilling). Reservations are made afresh at every event (compression).
    """
    left = min(depth, view.head.num_jobs[0])
    row = _next_eldest(view, VOID)
    if not _can_any_start(view, left):
        return VOID
    _copy_profile(view, plan)
    while left > 0:
        point = _earliest(view, plan, row)
        if plan.points[point] == view.head.now[0]:
            return int(view.jobs.slot[row])
        _reserve(view, plan, row, point)
        row = _next_eldest(view, row)
        left -= 1
    return VOID


@inlined
def _can_any_start(view, depth):  # type: ignore[no-untyped-def]
    """Whether one of the `depth` eldest can start now; in steps, one of the slots."""
    rows = depth if view.head.is_exact[0] == 1 else view.head.num_jobs[0]
    for row in range(rows):
        if view.jobs.can_start[row] == 1:
            return True
    return False


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
    first = 0
    point = 0
    told = view.jobs.told[row]
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
