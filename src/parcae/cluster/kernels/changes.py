"""Transitions of the world of cores that change the number of cores while a run goes on.

Cores come and go with the executors of an elastic cluster, and with executors that are lost.

`now.num_executors` is the number of cores that are up. This is what policies see, as in a live
cluster. From one plan or arrival to the next, a virtual run has the mean number of cores that were
up (`parcae.cluster.kernels.virtual`).
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.tables import pop_idle, push_idle


@kernel
def begin_changes(state):  # type: ignore[no-untyped-def]
    """Begin to count the core time of an elastic cluster."""
    state.now.is_elastic[0] = 1
    state.now.core_ms[0] = 0
    state.now.core_until_ms[0] = state.now.clock_ms[0]


@inlined
def core_time_ms(state):  # type: ignore[no-untyped-def]
    """Return the integral over time of an elastic cluster's number of cores, to the present."""
    now = state.now
    return now.core_ms[0] + now.num_executors[0] * (now.clock_ms[0] - now.core_until_ms[0])


@kernel
def _change_cores(state, change):  # type: ignore[no-untyped-def]
    """Add `change` to the number of cores. A plan is due."""
    now = state.now
    now.core_ms[0] = core_time_ms(state)
    now.core_until_ms[0] = now.clock_ms[0]
    now.num_executors[0] += change
    now.is_plan_due[0] = 1


@kernel
def add_cores(state, first, count):  # type: ignore[no-untyped-def]
    """Add cores to the cluster, behind the other idle cores."""
    _change_cores(state, count)
    for core in range(first, first + count):
        push_idle(state, 0, core)


@kernel
def remove_cores(state, first, count):  # type: ignore[no-untyped-def]
    """Remove cores that run no task from the cluster; the idle cores that stay keep their order."""
    _change_cores(state, -count)
    for _ in range(state.now.num_idle[0]):
        core = pop_idle(state, 0)
        if not first <= core < first + count:
            push_idle(state, 0, core)
