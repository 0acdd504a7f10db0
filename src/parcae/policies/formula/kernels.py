"""A formula over features of a query, as a postfix program that one kernel evaluates.

Every number is finite: a result beyond `LARGEST` is `LARGEST`. Only operations that IEEE 754 rounds
in one way are used, logarithms and powers included, so that the plugin has the same bits.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.accounts import PLAN_AGAIN_MS, has_two_users
from parcae.cluster.kernels.policies import begin_run, plan
from parcae.cluster.kernels.tables import active_jobs, remaining_ms, total_ms
from parcae.cluster.kernels.virtual import (
    advance_virtual_run,
    empty_virtual_run,
    find_new_paths,
    predict_ends,
)
from parcae.cluster.state import NOT_YET, VirtualRun
from parcae.policies.orders.kernels import service_ms, time_to_deadline
from parcae.policies.rule.kernels import job_facts, rank_stages


class Feature(IntEnum):
    """What a formula may name; `parcae.policies.formula.language` has units and meanings."""

    REM = 0
    TOTAL = 1
    SERVICE = 2
    PATH = 3
    WIDTH = 4
    STAGES = 5
    ERROR = 6
    AGE = 7
    RUNNING = 8
    FAIR = 9
    SLACK = 10
    OVERDRAFT = 11
    SHARE = 12
    QUERIES = 13
    CORES = 14


class Operation(IntEnum):
    """A step of a program; `-1 - feature` puts a feature on the stack."""

    NUMBER = 0  # puts the number of this step on the stack
    ABS = 1
    SQRT = 2
    LOG = 3
    EXP = 4
    ADD = 5  # from here on, of two
    SUBTRACT = 6
    MULTIPLY = 7
    DIVIDE = 8
    MIN = 9
    MAX = 10
    LESS = 11  # 1 or 0
    CHOOSE = 12  # of (a, condition, b) a where the condition is not 0, else b


#: No result is larger, and no logarithm is taken of less than its reciprocal.
LARGEST = 1e300
_SMALLEST = 1e-300
_LARGEST_EXPONENT = 690.0
#: ln 2 as a number of 32 bits, whose multiples are exact, and the rest.
_LN2 = 0.6931471803691238
_LN2_REST = 1.9082149292705877e-10
#: The slack of a query without a deadline: more than 30 years.
NO_DEADLINE_MS = 1e12


class Program(NamedTuple):
    """A formula for the kernels, and what they keep while they evaluate it."""

    steps: Any  # int64[num_steps], Operation or -1 - Feature
    numbers: Any  # float64[num_steps]
    has_facts: Any  # int64, whether it needs more than `rem` and what the job's row says
    has_fair_run: Any  # int64, whether it needs the virtual run
    is_timed: Any  # int64, whether the order changes with time alone
    has_users: Any  # int64, the same where there are several users
    deadline_ms: Any  # float64[num_profiles + 1], as in `PlanTables`
    theta: Any  # float64[NUM_ORDER_PARAMETERS], a rule that orders stages by critical path alone
    virtual: VirtualRun  # of fair sharing, which the kernels keep between plans; or paths alone
    values: Any  # float64[len(Feature)], the features of one job
    stack: Any  # float64[most values at once + 1]
    running: Any  # float64[num_jobs], tasks that users run, by the rows of their accounts


@inlined
def logarithm(x):  # type: ignore[no-untyped-def]
    """The natural logarithm by its series in (m - 1) / (m + 1), for x = m 2**k."""
    mantissa, power = math.frexp(max(x, _SMALLEST))
    if mantissa < 0.7071067811865476:
        mantissa *= 2.0
        power -= 1
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    total = 0.0
    for term in range(10, -1, -1):
        total = total * (ratio * ratio) + 2.0 / (2.0 * term + 1.0)
    return power * _LN2 + (ratio * total + power * _LN2_REST)


@inlined
def exponential(x):  # type: ignore[no-untyped-def]
    """e**x by its series for what is left of x beyond whole multiples of ln 2."""
    x = min(max(x, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)
    power = math.floor(x / _LN2 + 0.5)
    rest = (x - power * _LN2) - power * _LN2_REST
    total = 1.0
    for term in range(14, 0, -1):
        total = 1.0 + total * rest / term
    return math.ldexp(total, int(power))


@inlined
def quotient(a, b):  # type: ignore[no-untyped-def]
    """a / b; by 0 it is the largest number with the sign of a, and 0 / 0 is 0."""
    if b != 0.0:
        return a / b
    return 0.0 if a == 0.0 else math.copysign(LARGEST, a)


@inlined
def _result(step, a, b):  # type: ignore[no-untyped-def]
    if step == Operation.ABS:
        return abs(a)
    if step == Operation.SQRT:
        return math.sqrt(max(a, 0.0))
    if step == Operation.LOG:
        return logarithm(a)
    if step == Operation.EXP:
        return exponential(a)
    if step == Operation.ADD:
        return a + b
    if step == Operation.SUBTRACT:
        return a - b
    if step == Operation.MULTIPLY:
        return a * b
    if step == Operation.DIVIDE:
        return quotient(a, b)
    if step == Operation.LESS:
        return 1.0 if a < b else 0.0
    is_second = b < a if step == Operation.MIN else b > a
    return b if is_second else a


@kernel
def evaluate(program):  # type: ignore[no-untyped-def]
    """The formula's value for the features in `program.values`."""
    stack = program.stack
    top = -1
    for position in range(program.steps.shape[0]):
        step = program.steps[position]
        if step <= Operation.NUMBER:
            top += 1
            value = program.numbers[position] if step == 0 else program.values[-1 - step]
        elif step == Operation.CHOOSE:
            top -= 2
            value = stack[top] if stack[top + 1] != 0.0 else stack[top + 2]
        else:
            top -= 1 if step >= Operation.ADD else 0
            value = _result(step, stack[top], stack[top + 1])
        stack[top] = min(max(value, -LARGEST), LARGEST)
    return stack[0]


@kernel
def describe(view, program, job):  # type: ignore[no-untyped-def]
    """Write the features of a job to `program.values`."""
    now = view.now
    values = program.values
    values[Feature.REM] = remaining_ms(view, job)
    values[Feature.AGE] = now.clock_ms[0] - view.jobs.arrival_ms[job]
    values[Feature.RUNNING] = view.jobs.num_attached[job]
    values[Feature.SLACK] = min(NO_DEADLINE_MS, time_to_deadline(view, program, job))
    values[Feature.QUERIES] = now.num_active[0]
    values[Feature.CORES] = now.num_executors[0]
    if program.has_facts:
        facts = job_facts(view, program, job)
        values[Feature.TOTAL] = total_ms(view, job)
        values[Feature.SERVICE] = service_ms(view, job)
        values[Feature.PATH] = facts.path_ms
        values[Feature.WIDTH] = view.jobs.num_attached[job] + facts.num_pending
        values[Feature.STAGES] = facts.stages_left
        values[Feature.ERROR] = facts.factor
    if program.has_fair_run:
        values[Feature.FAIR] = program.virtual.jobs.end_ms[job] - now.clock_ms[0]
    if program.has_users:
        accounts = view.accounts
        row = view.jobs.account[job]
        values[Feature.OVERDRAFT] = accounts.received_ms[row] - accounts.split_ms[row]
        values[Feature.SHARE] = program.running[row] / now.num_executors[0]


@inlined
def _count_running(view, running):  # type: ignore[no-untyped-def]
    for job in active_jobs(view):
        running[view.jobs.account[job]] = 0.0
    for job in active_jobs(view):
        running[view.jobs.account[job]] += view.jobs.num_attached[job]


@plan.of(Program)
@kernel
def plan_by_program(view, orders, program):  # type: ignore[no-untyped-def]
    """Write new orders: the tier of a job is the value of the formula, and its stages are ordered
    by the critical path from them, the longest first.
    """
    orders.wake_ms[0] = NOT_YET
    if program.has_fair_run:
        advance_virtual_run(view, program.virtual)
        predict_ends(view, program.virtual)
    else:
        find_new_paths(view, program.virtual)
    if program.has_users:
        _count_running(view, program.running)
    for job in active_jobs(view):
        describe(view, program, job)
        orders.jobs.tier[job] = evaluate(program)
        rank_stages(view, orders, program, job)
    is_timed = program.is_timed and view.now.num_active[0] > 1
    if is_timed or (program.has_users and has_two_users(view)):
        orders.wake_ms[0] = view.now.clock_ms[0] + PLAN_AGAIN_MS


@begin_run.of(Program)
@kernel
def _begin(state, program):  # type: ignore[no-untyped-def]
    empty_virtual_run(program.virtual)
