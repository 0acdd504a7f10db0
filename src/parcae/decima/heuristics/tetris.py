"""Tetris: each executor class goes to the stage whose resource request is best aligned with it.

Source: Decima, Appendix F; Grandl et al., Multi-resource packing for cluster schedulers
(SIGCOMM 2014), sections 3.2 and 3.3.
"""

from __future__ import annotations

import math

from parcae.base.compiled.kernels import DECISION, deferred, inlined, kernel
from parcae.cluster.kernels.tables import demand, is_schedulable, stages_of
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.decima.heuristics.shares import all_to
from parcae.decima.queries import fits, is_smaller


@inlined
def _product(request, available):  # type: ignore[no-untyped-def]
    """One term of the dot product; an unlimited resource contributes nothing."""
    return 0.0 if math.isinf(available) else request * available


@inlined
def _alignment(view, stage, executor_class):  # type: ignore[no-untyped-def]
    """(request . available) / (available . available); 1 for a task that fills its executor."""
    cpu = view.classes.cpu[executor_class]
    memory = view.classes.memory[executor_class]
    whole = _product(cpu, cpu) + _product(memory, memory)
    if whole == 0.0:
        return 0.0
    return (
        _product(view.stages.cpu[stage], cpu) + _product(view.stages.memory[stage], memory)
    ) / whole


@kernel
def _mean_remaining_ms(view):  # type: ignore[no-untyped-def]
    """Mean remaining work over the jobs in the system, at least 1 ms."""
    total_ms = 0.0
    num_jobs = view.now.num_active[0]
    for position in range(num_jobs):
        total_ms += view.jobs.remaining_ms[view.active[position]]
    return max(1.0, total_ms / max(1, num_jobs))


@kernel
def _best_for(view, knob, mean_ms, executor_class):  # type: ignore[no-untyped-def]
    """The schedulable stage with the highest score that fits the class, or NO_STAGE.

    Of equal scores, the stage of the job that arrived first wins.
    """
    best = NO_STAGE
    best_score = -math.inf
    for job in view.active[: view.now.num_active[0]]:
        if view.jobs.num_schedulable[job] == 0:
            continue
        penalty = knob * view.jobs.remaining_ms[job] / mean_ms
        for stage in stages_of(view, job):
            if fits(view, stage, executor_class) and is_schedulable(view, stage):
                score = _alignment(view, stage, executor_class) - penalty
                if score > best_score:
                    best = stage
                    best_score = score
    return best


@kernel
def _next_larger(view, executor_class):  # type: ignore[no-untyped-def]
    """The offered class that follows `executor_class` by size (of equal sizes: by row).

    ANY_CLASS as argument asks for the smallest class; as result it means that no class follows.
    """
    best = ANY_CLASS
    current = executor_class
    for c in range(view.classes.shape[0]):
        if view.source_count[c] == 0:
            continue
        follows = (
            current == ANY_CLASS
            or is_smaller(view, current, c)
            or (c > current and not is_smaller(view, c, current))
        )
        if follows and (best == ANY_CLASS or is_smaller(view, c, best)):
            best = c
    return best


@deferred(DECISION)
def tetris(view, params):  # type: ignore[no-untyped-def]
    """Decide for the smallest offered class that fits any stage: its best-aligned stage.

    The stage gets all executors of the class that it can use.

    `params[0]` weighs the job's remaining work (relative to the mean over the jobs in the system)
    against the alignment: Tetris combines packing with shortest remaining time first. With 0 only
    packing counts, as in Decima's Appendix F.

    # Deviation: Decima chooses a stage for each executor type, but does not say in which order.
    Here the smallest class comes first, so that a stage does not get larger executors than it needs
    while executors of the right size are offered.
    """
    if view.now.num_schedulable[0] == 0:
        return all_to(view, NO_STAGE)
    mean_ms = _mean_remaining_ms(view)
    executor_class = _next_larger(view, ANY_CLASS)
    while executor_class != ANY_CLASS:
        stage = _best_for(view, params[0], mean_ms, executor_class)
        if stage != NO_STAGE:
            return (
                stage,
                min(demand(view, stage), view.source_count[executor_class]),
                executor_class,
                0,
            )
        executor_class = _next_larger(view, executor_class)
    return all_to(view, NO_STAGE)
