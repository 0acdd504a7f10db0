"""Executor classes as policies see them: which is smaller, which fits best, what an executor of each is of the cluster."""

from __future__ import annotations

import math

from parcae.cluster.state import ANY_CLASS
from parcae.kernels import inlined, kernel

_SMALLEST = 1e-9
_LARGEST = 1e9


@inlined
def is_smaller(seen, executor_class, other):  # type: ignore[no-untyped-def]
    """Whether a class has less memory than another; of equal memory, fewer cores."""
    memory = seen.classes.memory
    cpu = seen.classes.cpu
    if memory[executor_class] != memory[other]:
        return memory[executor_class] < memory[other]
    return cpu[executor_class] < cpu[other]


@kernel
def best_fitting(seen, stage):  # type: ignore[no-untyped-def]
    """The smallest class that is offered and large enough for the stage, or ANY_CLASS where there is none."""
    best = ANY_CLASS
    for c in range(seen.classes.shape[0]):
        is_candidate = seen.source_count[c] > 0 and (seen.stages.fits[stage] >> c) & 1
        if is_candidate and (best == ANY_CLASS or is_smaller(seen, c, best)):
            best = c
    return best


@inlined
def of_total(seen, amount, total):  # type: ignore[no-untyped-def]
    """An executor's share of the cluster in one resource; where that knows no bounds, its share of the executors."""
    if total > 0.0 and not math.isinf(total):
        return amount / total
    return 1.0 / seen.now.num_executors[0]


@kernel
def totals(seen):  # type: ignore[no-untyped-def]
    """The cluster's cores and memory."""
    cpu = 0.0
    memory = 0.0
    for c in range(seen.classes.shape[0]):
        cpu += seen.classes.num_executors[c] * seen.classes.cpu[c]
        memory += seen.classes.num_executors[c] * seen.classes.memory[c]
    return cpu, memory


@inlined
def class_size(seen, executor_class):  # type: ignore[no-untyped-def]
    """Cores x memory of an executor of the class."""
    cpu = seen.classes.cpu[executor_class]
    memory = seen.classes.memory[executor_class]
    return min(_LARGEST, max(_SMALLEST, cpu)) * min(_LARGEST, max(_SMALLEST, memory))


@inlined
def own_class(seen, stage):  # type: ignore[no-untyped-def]
    """The smallest class that fits the stage, offered or not."""
    best = ANY_CLASS
    best_size = math.inf
    for c in range(seen.classes.shape[0]):
        if (seen.stages.fits[stage] >> c) & 1 and class_size(seen, c) < best_size:
            best = c
            best_size = class_size(seen, c)
    return best


@inlined
def oversize(seen, stage, executor_class):  # type: ignore[no-untyped-def]
    """Log of the size of the class (ANY_CLASS: of the smallest) / size of the smallest that fits the stage."""
    if seen.classes.shape[0] == 1 or executor_class == ANY_CLASS:
        return 0.0
    return math.log(class_size(seen, executor_class) / class_size(seen, own_class(seen, stage)))


@inlined
def quarter_of(seen, executor_class):  # type: ignore[no-untyped-def]
    """Which quarter of the classes by size the class is in, 0 to 3."""
    rank = 0
    own_size = class_size(seen, executor_class)
    for c in range(seen.classes.shape[0]):
        rank += class_size(seen, c) < own_size
    return rank * 4 // seen.classes.shape[0]
