"""Whole simulated runs in one compiled call, under any policy with a kernel of its own.

What a policy's kernel is, see `parcae.cluster.kernels.policies`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from parcae.base.compiled.by_type import ByType
from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.cluster.kernels.policies import begin_run, decide, plan, with_weights
from parcae.cluster.orders import Orders
from parcae.cluster.state import NOT_YET
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores
from parcae.simulation.kernels.event_loop import start, step


class CostKind(IntEnum):
    """The kind of cost; the unit is ms unless stated otherwise."""

    JOB_TIME = 0  # sum over jobs of their time in the system
    CLOCK = 1  # elapsed time
    TAIL = 2  # sum over jobs of their time in the system beyond `threshold` ms
    SLOWDOWN = 3  # sum over jobs of their time in the system / ideal duration, at least 1 (no unit)
    MISSED = 4  # number of jobs whose time in the system exceeds `threshold` ideal durations


_JOB_TIME = int(CostKind.JOB_TIME)
_CLOCK = int(CostKind.CLOCK)
_TAIL = int(CostKind.TAIL)
_SLOWDOWN = int(CostKind.SLOWDOWN)


class Costing(NamedTuple):
    """An objective as a cost that grows with time."""

    kind: Any  # int64[1], CostKind
    threshold: Any  # float64[1], see CostKind
    ideal_ms: Any  # float64[num_profiles], ideal duration of each job of the workload


@inlined
def _job_cost(state, future, costing, job, kind):  # type: ignore[no-untyped-def]
    """The cost of one job so far, for the kinds TAIL, SLOWDOWN and MISSED."""
    completion_ms = state.jobs.completion_ms[job]
    end_ms = state.now.clock_ms[0] if completion_ms == NOT_YET else completion_ms
    age_ms = float(end_ms - state.jobs.arrival_ms[job])
    if kind == _TAIL:
        return max(0.0, age_ms - costing.threshold[0])
    # No policy sees the cost, so it may use the profile of a job that a scheduler does not know.
    ideal_ms = max(1.0, costing.ideal_ms[future.job_profile[job]])
    if kind == _SLOWDOWN:
        return max(1.0, age_ms / ideal_ms)
    return 1.0 if age_ms > costing.threshold[0] * ideal_ms else 0.0


@kernel
def cost_so_far(state, future, costing):  # type: ignore[no-untyped-def]
    """The cost of the run up to the present clock; writes nothing."""
    now = state.now
    kind = costing.kind[0]
    # The state keeps the sum of times in the system up to `accounted_ms`: no loop is needed.
    if kind == _JOB_TIME:
        return float(now.job_ms[0] + now.num_active[0] * (now.clock_ms[0] - now.accounted_ms[0]))
    if kind == _CLOCK:
        return float(now.clock_ms[0])
    total = 0.0
    for job in range(now.num_jobs[0]):
        total += _job_cost(state, future, costing, job, kind)
    return total


class Simulation(NamedTuple):
    """One simulated run; `state` and `future` are modified in place."""

    state: Any  # ClusterState
    future: Any  # Future
    tables: Any  # WorkloadTables, read only


class Simulations(NamedTuple):
    """Many simulated runs of one workload; a leading axis of `states` and `futures` is the run."""

    states: Any  # ClusterState
    futures: Any  # Future
    tables: Any  # WorkloadTables, shared by all and read only
    status: Any  # int64[num_simulators]; receives the Status in which each run stopped


@inlined
def simulation_of(simulations, row):  # type: ignore[no-untyped-def]
    """Return one run of many. Arguments: the Simulations, and the run's row."""
    return Simulation(
        row_of(simulations.states, row), row_of(simulations.futures, row), simulations.tables
    )


_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@inlined
def _start_planning(state, future, tables, policy):  # type: ignore[no-untyped-def]
    return start_cores(state, future, tables)


@inlined
def _start_deciding(state, future, tables, policy):  # type: ignore[no-untyped-def]
    return start(state, future, tables)


@kernel
def _follow_plans(simulation, status, policy):  # type: ignore[no-untyped-def]
    state, future, tables = simulation
    while status == _NEEDS_DECISION:
        orders = Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms)
        plan(state, orders, policy)
        status = follow_orders(state, future, tables)
    return status


@kernel
def _follow_decisions(simulation, status, policy):  # type: ignore[no-untyped-def]
    state, future, tables = simulation
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, policy)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    return status


_start = ByType("start", lambda kind: _start_planning if kind in plan else _start_deciding)
#: go_on(simulation, status, policy): play a run from a Status to its end. Returns the Status in
#: which it stopped.
go_on = ByType("go_on", lambda kind: _follow_plans if kind in plan else _follow_decisions)


@kernel
def play(simulation, policy):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the policy. Returns the Status in which the run stopped."""
    state, future, tables = simulation
    status = _start(state, future, tables, policy)
    begin_run(state, policy)
    return go_on(simulation, status, policy)


@kernel
def play_many(simulations, policy, first, last):  # type: ignore[no-untyped-def]
    """Simulate the runs `first` to `last - 1` of many, one after another."""
    for row in range(first, last):
        simulations.status[row] = play(simulation_of(simulations, row), policy)


@kernel
def play_each(simulations, weights, policy, first, last):  # type: ignore[no-untyped-def]
    """Simulate the runs `first` to `last - 1` of many, each with its own row of weights."""
    for row in range(first, last):
        simulations.status[row] = play(
            simulation_of(simulations, row), with_weights(weights[row], policy)
        )
