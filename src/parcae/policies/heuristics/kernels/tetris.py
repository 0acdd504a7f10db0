"""Tetris: every executor class takes the stage whose request is best aligned with it.

Source: Decima, Appendix F; Grandl et al., Multi-resource packing for cluster schedulers (SIGCOMM 2014), sections 3.2 and 3.3.
"""

from __future__ import annotations

import math

from parcae.cluster.kernels.tables import demand, is_schedulable
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.classes.kernels import is_smaller
from parcae.policies.heuristics.kernels.stages import all_to


@inlined
def _product(request, available):  # type: ignore[no-untyped-def]
    """One term of the dot product; a resource without bounds aligns with nothing."""
    return 0.0 if math.isinf(available) else request * available


@inlined
def _alignment(seen, stage, executor_class):  # type: ignore[no-untyped-def]
    """Requested . available / available . available, so that 1 is a task that fills its executor."""
    cpu = seen.classes.cpu[executor_class]
    memory = seen.classes.memory[executor_class]
    whole = _product(cpu, cpu) + _product(memory, memory)
    if whole == 0.0:
        return 0.0
    return (
        _product(seen.stages.cpu[stage], cpu) + _product(seen.stages.memory[stage], memory)
    ) / whole


@kernel
def _mean_remaining_ms(seen):  # type: ignore[no-untyped-def]
    total_ms = 0.0
    num_jobs = seen.now.num_active[0]
    for position in range(num_jobs):
        total_ms += seen.jobs.remaining_ms[seen.active[position]]
    return max(1.0, total_ms / max(1, num_jobs))


@kernel
def _best_for(seen, knob, mean_ms, executor_class):  # type: ignore[no-untyped-def]
    """The schedulable stage of the highest score that fits the class; of equals, the job that came first."""
    best = NO_STAGE
    best_score = -math.inf
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0:
            continue
        is_short = knob * seen.jobs.remaining_ms[job] / mean_ms
        for stage in range(
            seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]
        ):
            if (seen.stages.fits[stage] >> executor_class) & 1 and is_schedulable(seen, stage):
                score = _alignment(seen, stage, executor_class) - is_short
                if score > best_score:
                    best = stage
                    best_score = score
    return best


@kernel
def _next_larger(seen, executor_class):  # type: ignore[no-untyped-def]
    """The offered class that follows in size (of equals, in row); ANY_CLASS before the first and after the last."""
    best = ANY_CLASS
    own = executor_class
    for c in range(seen.classes.shape[0]):
        if seen.source_count[c] == 0:
            continue
        follows = (
            own == ANY_CLASS
            or is_smaller(seen, own, c)
            or (c > own and not is_smaller(seen, c, own))
        )
        if follows and (best == ANY_CLASS or is_smaller(seen, c, best)):
            best = c
    return best


@kernel
def tetris(seen, params):  # type: ignore[no-untyped-def]
    """The best-aligned stage of the smallest offered class that some stage fits, with all the executors that it can use.

    `params[0]` weighs the job's remaining work (over the mean of the jobs in the system) against the alignment, as Tetris
    combines packing with shortest remaining time first; 0 is packing alone, as in Decima's Appendix F.

    # Deviation: Decima says that the stage is chosen for each executor type, not in which order: here the smallest first, so
    that a stage is not given larger executors than it needs while right-sized ones are offered.
    """
    if seen.now.num_schedulable[0] == 0:
        return all_to(seen, NO_STAGE)
    mean_ms = _mean_remaining_ms(seen)
    executor_class = _next_larger(seen, ANY_CLASS)
    while executor_class != ANY_CLASS:
        stage = _best_for(seen, params[0], mean_ms, executor_class)
        if stage != NO_STAGE:
            return (
                stage,
                min(demand(seen, stage), seen.source_count[executor_class]),
                executor_class,
                0,
            )
        executor_class = _next_larger(seen, executor_class)
    return all_to(seen, NO_STAGE)
