"""The compiled rule: a function of the observation, the rule's parameters and the solo curves.

Every job has a price of executors. Its cap is the number p of executors that minimises
T(p) (1 + price p), where T(p) is its solo duration on p executors. Jobs are served by score,
smallest first, up to their caps. Executors that are left over may exceed the caps ("spill").

With several executor classes, a stage takes executors of the smallest class that it may use. A
class that is larger than necessary is borrowed. Whether a stage may borrow depends on its job, on
the number of jobs in the system and on the demand of other stages for such executors.

The rule can keep some executors idle in reserve for future jobs. It can also withhold executors
from a stage whose parents still run, because executors that wait there cannot work for other jobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.errors import PolicyError
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.policies import decide
from parcae.cluster.kernels.tables import (
    demand,
    first_schedulable,
    is_runnable,
    is_schedulable,
    may_idle,
    num_held,
    stages_of,
    wait_ms,
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_PROFILE, NO_STAGE
from parcae.decima.queries import (
    class_size,
    fits,
    is_waiting,
    num_fitting,
    oversize,
    own_class,
    quarter_of,
)
from parcae.decima.solo_curves import SoloCurves
from parcae.policies.compiled import CompiledDecider


class RuleParameter(IntEnum):
    """Indices of the rule's parameters. A parameter of 0 switches its term off.

    The parameters of a group are summed, each multiplied ("x") by its feature. "Mean work" is the
    mean work of the workload's jobs.
    """

    # The price of executors, which determines a job's cap: log of the price of the whole cluster.
    PRICE = 0  # constant
    PRICE_JOBS = 1  # x log(jobs in the system)
    PRICE_OPEN = 2  # x log(jobs that want executors)
    PRICE_REMAINING = 3  # x log(the job's remaining work / mean work)
    PRICE_WORK = 4  # x log(the job's total work / mean work)
    PRICE_TOTAL = 5  # x log(remaining work of all jobs / mean work)
    PRICE_STARTED = 6  # x share of the job's work that has started
    # The score of a job, added to log(remaining work); the smallest is served first.
    SCORE_WORK = 7  # x log(total work)
    SCORE_STRETCH = 8  # x log(solo duration at the cap / mean work)
    SCORE_CAP = 9  # x log(cap)
    SCORE_HELD = 10  # x held / cap
    # Factors on the cap.
    LOCAL_CAP = 11  # log of (cap for executors that the job already has / cap)
    JOIN_CAP = 12  # log of (cap for executors from elsewhere / cap)
    SPILL = 13  # log of (cap for executors that no job below its cap can use / cap)
    SPILL_JOBS = 14  # the same, x log(jobs in the system)
    # When executors move to another job.
    LOCAL_SCORE = 15  # how much smaller another job's score must be to take the job's executors
    # log of (remaining work per executor that a job must have for an executor to move to it /
    # (mean work / 1000))
    WORTH = 16
    # The score of a stage, added to log(downstream work); the largest is served first.
    STAGE_RUNNABLE = 17  # added if the stage is runnable
    STAGE_TASK = 18  # x log(duration of its tasks)
    STAGE_DEMAND = 19  # x log(executors that it can take)
    # One more term of the price.
    PRICE_CLUSTER = 20  # x log(executors of the cluster / 50)
    # Executor classes: a stage may take an executor larger than it needs if the sum is <= 0.
    BORROW = 21  # constant
    BORROW_REMAINING = 22  # x log(the job's remaining work / mean work)
    BORROW_JOBS = 23  # x log(jobs in the system)
    # x log(demand of stages that need such a large executor / offered executors of the class)
    BORROW_WAITING = 24
    BORROW_SIZE = 25  # x log(size of the executor / size of the smallest that fits)
    # The choice of a class, added to -log(size): x log(share of the class that is offered).
    CLASS_OFFERED = 26
    # The score of a job: x log(size of the class it would get / size of the smallest that fits).
    SCORE_OVERSIZE = 27
    STAGE_OVERSIZE = 28  # the same for the score of a stage
    # The reserve: tenths of the executors that fit a stage which stay idle, if the sum is > 0. Only
    # executors of the global pool can be reserved.
    RESERVE = 29  # constant
    RESERVE_REMAINING = 30  # x log(the job's remaining work / mean work)
    # A stage whose parents still run gets executors if the sum is <= 0.
    AHEAD = 31  # constant
    AHEAD_WAIT = 32  # x log(longest task of its parents that are not complete, in s)


NUM_PARAMETERS = len(RuleParameter)
#: The parameters about executor classes. They have no effect on a cluster with a single class.
CLASS_PARAMETERS = range(RuleParameter.BORROW, RuleParameter.RESERVE)
#: Number of parameters of earlier versions: before executor classes, and before the reserve.
EARLIER_COUNTS = (CLASS_PARAMETERS.start, CLASS_PARAMETERS.stop)


@inlined
def _may_borrow(view, rule, facts, job, smallest, executor_class):  # type: ignore[no-untyped-def]
    """Whether a stage of the job that needs the class `smallest` may take a larger one."""
    theta = rule.theta
    remaining_ms = max(1.0, view.jobs.remaining_ms[job])
    reluctance = theta[RuleParameter.BORROW] + theta[RuleParameter.BORROW_JOBS] * facts.log_jobs
    if theta[RuleParameter.BORROW_REMAINING] != 0.0:
        reluctance += theta[RuleParameter.BORROW_REMAINING] * math.log(
            remaining_ms / rule.mean_work_ms[0]
        )
    if theta[RuleParameter.BORROW_WAITING] != 0.0:
        # Demand of stages that need more than the smallest class, but not more than this one.
        low = quarter_of(view, smallest)
        high = quarter_of(view, executor_class)
        wanted = facts.waiting.medium if low < 1 <= high else 0
        wanted += facts.waiting.large if low < 2 <= high else 0
        wanted += facts.waiting.largest if low < 3 <= high else 0
        reluctance += theta[RuleParameter.BORROW_WAITING] * math.log(
            (1.0 + wanted) / (1.0 + view.source_count[executor_class])
        )
    if theta[RuleParameter.BORROW_SIZE] != 0.0:
        reluctance += theta[RuleParameter.BORROW_SIZE] * math.log(
            class_size(view, executor_class) / class_size(view, smallest)
        )
    return reluctance <= 0.0


@kernel
def class_for(view, rule, facts, stage):  # type: ignore[no-untyped-def]
    """Return the offered class that the rule chooses for the stage; ANY_CLASS if it may take
    none.
    """
    if view.classes.shape[0] == 1:
        return 0
    best = ANY_CLASS
    best_value = -math.inf
    smallest = own_class(view, stage)
    theta = rule.theta
    for c in range(view.classes.shape[0]):
        offered = view.source_count[c]
        if offered == 0 or not fits(view, stage, c):
            continue
        if class_size(view, c) > class_size(view, smallest) and not _may_borrow(
            view, rule, facts, view.stages.job[stage], smallest, c
        ):
            continue
        value = theta[RuleParameter.CLASS_OFFERED] * math.log(
            offered / view.classes.num_executors[c]
        ) - math.log(class_size(view, c))
        if value > best_value:
            best = c
            best_value = value
    return best


@inlined
def command_class(view, rule, facts, stage):  # type: ignore[no-untyped-def]
    """Return the class for a decision about the stage.

    This is ANY_CLASS (best-fitting executors first) if the parameters restrict no class.
    """
    for parameter in range(RuleParameter.BORROW, RuleParameter.SCORE_OVERSIZE):
        if view.classes.shape[0] > 1 and rule.theta[parameter] != 0.0:
            return class_for(view, rule, facts, stage)
    return ANY_CLASS


@inlined
def _may_go_ahead(view, rule, stage):  # type: ignore[no-untyped-def]
    """Whether executors may go to the stage now: it is runnable, or the wait is short enough.

    The wait lasts until the tasks of the stage's parents finish.
    """
    if is_runnable(view, stage):
        return True
    reluctance = rule.theta[RuleParameter.AHEAD]
    if rule.theta[RuleParameter.AHEAD_WAIT] != 0.0:
        wait_s = max(1.0, wait_ms(view, stage)) / MS_PER_S
        reluctance += rule.theta[RuleParameter.AHEAD_WAIT] * math.log(wait_s)
    return reluctance <= 0.0


@kernel
def best_stage(view, rule, facts, job, binds):  # type: ignore[no-untyped-def]
    """Return the job's schedulable stage with the best score, or NO_STAGE."""
    best = NO_STAGE
    best_score = -math.inf
    theta = rule.theta
    stages = view.stages
    if view.jobs.num_schedulable[job] == 0:
        return best
    for stage in stages_of(view, job):
        if not is_schedulable(view, stage) or (binds and not _may_go_ahead(view, rule, stage)):
            continue
        executor_class = class_for(view, rule, facts, stage)
        if executor_class == ANY_CLASS and binds:
            continue
        value = theta[RuleParameter.STAGE_OVERSIZE] * oversize(view, stage, executor_class) + (
            math.log(1.0 + stages.downstream_ms[stage])
            + theta[RuleParameter.STAGE_TASK] * math.log(1.0 + stages.task_ms[stage])
            + theta[RuleParameter.STAGE_DEMAND] * math.log(max(1, demand(view, stage)))
        )
        if is_runnable(view, stage):
            value += theta[RuleParameter.STAGE_RUNNABLE]
        if value > best_score:
            best = stage
            best_score = value
    return best


#: Cluster size for which the term PRICE_CLUSTER is 0.
_USUAL_CLUSTER = 50.0


class Rule(NamedTuple):
    """What the rule needs besides the observation: parameters, and solo curves (`SoloCurves`)."""

    theta: Any  # float64[NUM_PARAMETERS]
    levels: Any  # int64[num_levels]
    stretch: Any  # float64[num_profiles + 1, num_levels]
    mean_work_ms: Any  # float64[1]


class WaitingDemand(NamedTuple):
    """Demand of all schedulable stages by the quarter of the classes, ordered by size, that the
    smallest class belongs to that fits a stage. That of the first quarter is not needed.
    """

    medium: Any
    large: Any
    largest: Any


class SystemFacts(NamedTuple):
    """Features that all jobs share at one decision."""

    log_jobs: Any  # log of the number of jobs in the system
    log_open: Any  # log of the number of jobs that have an unsaturated stage
    log_total: Any  # log of (remaining work of all jobs / mean work)
    log_cluster: Any  # log of (number of executors / 50)
    waiting: Any  # WaitingDemand; zeros if the rule's parameters do not use it


@inlined
def system_facts(view, rule):  # type: ignore[no-untyped-def]
    """Return the features that all jobs share. Arguments: the observation, and the Rule."""
    total_ms = 0.0
    for position in range(view.now.num_active[0]):
        total_ms += view.jobs.remaining_ms[view.active[position]]
    return SystemFacts(
        math.log(max(1, view.now.num_active[0])),
        math.log(max(1, view.now.num_open[0])),
        math.log(max(1.0, total_ms) / rule.mean_work_ms[0]),
        math.log(view.now.num_executors[0] / _USUAL_CLUSTER),
        waiting_demand(view, rule),
    )


@inlined
def curve_row(rule, view, job):  # type: ignore[no-untyped-def]
    """Return the job's row of the solo curves; the last row if the profile does not know the
    job.
    """
    profile = view.jobs.profile[job]
    if profile == NO_PROFILE or profile >= rule.stretch.shape[0] - 1:
        return rule.stretch.shape[0] - 1
    return profile


@inlined
def best_level(rule, row, price):  # type: ignore[no-untyped-def]
    """Return the column of the level p that minimises T(p) (1 + price p / cluster size)."""
    best = 0
    best_cost = math.inf
    levels = rule.levels
    scale = price / levels[levels.shape[0] - 1]
    for column in range(levels.shape[0]):
        cost = rule.stretch[row, column] * (1.0 + scale * levels[column])
        if cost < best_cost:
            best = column
            best_cost = cost
    return best


@inlined
def log_price(view, rule, facts, job):  # type: ignore[no-untyped-def]
    """Return the log of the price of the whole cluster for a job."""
    theta = rule.theta
    mean_ms = rule.mean_work_ms[0]
    work_ms = max(1.0, view.jobs.work_ms[job])
    remaining_ms = max(1.0, view.jobs.remaining_ms[job])
    return (
        theta[RuleParameter.PRICE]
        + theta[RuleParameter.PRICE_JOBS] * facts.log_jobs
        + theta[RuleParameter.PRICE_OPEN] * facts.log_open
        + theta[RuleParameter.PRICE_REMAINING] * math.log(remaining_ms / mean_ms)
        + theta[RuleParameter.PRICE_WORK] * math.log(work_ms / mean_ms)
        + theta[RuleParameter.PRICE_TOTAL] * facts.log_total
        + theta[RuleParameter.PRICE_STARTED] * (1.0 - remaining_ms / work_ms)
        + theta[RuleParameter.PRICE_CLUSTER] * facts.log_cluster
    )


@inlined
def cap_level(view, rule, facts, job):  # type: ignore[no-untyped-def]
    """Return the column of the level that is the job's cap."""
    price = math.exp(min(30.0, max(-30.0, log_price(view, rule, facts, job))))
    return best_level(rule, curve_row(rule, view, job), price)


@inlined
def score(view, rule, job, column, held):  # type: ignore[no-untyped-def]
    """Return the job's score; the job with the smallest score is served first."""
    theta = rule.theta
    mean_ms = rule.mean_work_ms[0]
    cap = rule.levels[column]
    work_ms = max(1.0, view.jobs.work_ms[job])
    solo_ms = work_ms * rule.stretch[curve_row(rule, view, job), column]
    return (
        math.log(max(1.0, view.jobs.remaining_ms[job]) / mean_ms)
        + theta[RuleParameter.SCORE_WORK] * math.log(work_ms / mean_ms)
        + theta[RuleParameter.SCORE_STRETCH] * math.log(solo_ms / mean_ms)
        + theta[RuleParameter.SCORE_CAP] * math.log(cap)
        + theta[RuleParameter.SCORE_HELD] * held / cap
    )


@kernel
def waiting_demand(view, rule):  # type: ignore[no-untyped-def]
    """Return the WaitingDemand of all jobs' schedulable stages.

    Visits all stages of all jobs, so it is computed only if the rule's parameters use it.
    """
    medium = 0
    large = 0
    largest = 0
    if view.classes.shape[0] > 1 and rule.theta[RuleParameter.BORROW_WAITING] != 0.0:
        for job in view.active[: view.now.num_active[0]]:
            if view.jobs.num_schedulable[job] == 0:
                continue
            for stage in stages_of(view, job):
                if is_waiting(view, stage):
                    quarter = quarter_of(view, own_class(view, stage))
                    wanted = demand(view, stage)
                    medium += wanted if quarter == 1 else 0
                    large += wanted if quarter == 2 else 0
                    largest += wanted if quarter == 3 else 0
    return WaitingDemand(medium, large, largest)


#: Largest share of the executors that may be kept in reserve.
_LARGEST_RESERVE = 0.9


@inlined
def _scaled_cap(cap, log_factor):  # type: ignore[no-untyped-def]
    """The cap times a factor, rounded, at least 1."""
    return max(1, math.floor(cap * math.exp(log_factor) + 0.5))


@inlined
def _is_worth_moving(view, rule, stage):  # type: ignore[no-untyped-def]
    """Whether the stage's job has enough work left for an executor to move to it."""
    theta = rule.theta
    job = view.stages.job[stage]
    work_ms = view.jobs.remaining_ms[job] / (1 + num_held(view, job))
    return work_ms >= rule.mean_work_ms[0] * 1e-3 * math.exp(theta[RuleParameter.WORTH])


@inlined
def _num_spare(view, rule, stage):  # type: ignore[no-untyped-def]
    """How many offered executors the stage may take, so that its reserve stays idle.

    The reserve applies to the global pool only. Executors that idle in a job's pool stay there, and
    no other job could use them.
    """
    theta = rule.theta
    job = view.stages.job[stage]
    tenths = theta[RuleParameter.RESERVE]
    if theta[RuleParameter.RESERVE_REMAINING] != 0.0:
        tenths += theta[RuleParameter.RESERVE_REMAINING] * math.log(
            max(1.0, view.jobs.remaining_ms[job]) / rule.mean_work_ms[0]
        )
    if tenths <= 0.0 or view.now.source_job[0] != NO_JOB:
        return view.now.num_executors[0]
    fitting = num_fitting(view, stage, view.classes.num_executors)
    reserved = math.ceil(fitting * min(_LARGEST_RESERVE, 0.1 * tenths))
    return num_fitting(view, stage, view.source_count) - reserved


@kernel
def _first_below(view, rule, facts, log_factor):  # type: ignore[no-untyped-def]
    """Find the job with the best score among those below their caps, scaled by exp(log_factor).

    Returns (its stage or NO_STAGE, number of executors that it may take, score).
    """
    best = NO_STAGE
    best_room = 0
    best_score = math.inf
    can_gain = rule.theta[RuleParameter.SCORE_OVERSIZE] < 0.0
    for job in view.active[: view.now.num_active[0]]:
        # With several classes, the offered executors may all be too small for the job.
        if view.jobs.num_schedulable[job] == 0 or (
            view.classes.shape[0] > 1 and first_schedulable(view, job) == NO_STAGE
        ):
            continue
        held = num_held(view, job)
        column = cap_level(view, rule, facts, job)
        room = _scaled_cap(rule.levels[column], log_factor) - held
        if room <= 0:
            continue
        value = score(view, rule, job, column, held)
        # The class can improve the score only if its parameter is negative; otherwise a job with a
        # worse score needs no further computation.
        if value >= best_score and not can_gain:
            continue
        stage = best_stage(view, rule, facts, job, True)
        if stage != NO_STAGE and (
            job == view.now.source_job[0] or _is_worth_moving(view, rule, stage)
        ):
            room = min(room, _num_spare(view, rule, stage))
            if room <= 0:
                continue
            value += _score_of_class(view, rule, facts, stage)
            if value < best_score:
                best = stage
                best_room = room
                best_score = value
    return best, best_room, best_score


@inlined
def _score_of_class(view, rule, facts, stage):  # type: ignore[no-untyped-def]
    """The term of the job's score that depends on the executor class of its stage."""
    if view.classes.shape[0] == 1 or rule.theta[RuleParameter.SCORE_OVERSIZE] == 0.0:
        return 0.0
    return rule.theta[RuleParameter.SCORE_OVERSIZE] * oversize(
        view, stage, class_for(view, rule, facts, stage)
    )


@inlined
def _decision_for(view, rule, facts, stage, room):  # type: ignore[no-untyped-def]
    """The decision that gives the stage up to `room` executors of the class the rule chooses."""
    executor_class = command_class(view, rule, facts, stage)
    num_offered = view.now.num_source[0]
    if executor_class != ANY_CLASS:
        num_offered = view.source_count[executor_class]
    return stage, min(room, num_offered), executor_class, 0


@decide.of(Rule)
@kernel
def decide_by_rule(view, rule):  # type: ignore[no-untyped-def]
    """Return the rule's decision for one scheduling event, as (stage, limit, executor class, hold).

    NO_STAGE lets all offered executors idle. Arguments: the observation, and the Rule.
    """
    now = view.now
    theta = rule.theta
    source = view.now.source_job[0]
    if now.num_schedulable[0] == 0:
        return NO_STAGE, now.num_source[0], ANY_CLASS, 0
    facts = system_facts(view, rule)
    stage, room, best = _first_below(view, rule, facts, theta[RuleParameter.JOIN_CAP])
    # Executors of a job stay with it unless another job's score is smaller by LOCAL_SCORE.
    if source != NO_JOB and view.jobs.num_schedulable[source] > 0:
        column = cap_level(view, rule, facts, source)
        held = num_held(view, source)
        local_room = _scaled_cap(rule.levels[column], theta[RuleParameter.LOCAL_CAP]) - held
        local = best_stage(view, rule, facts, source, True) if local_room > 0 else NO_STAGE
        if local != NO_STAGE:
            value = score(view, rule, source, column, held) + _score_of_class(
                view, rule, facts, local
            )
            if stage == NO_STAGE or value - theta[RuleParameter.LOCAL_SCORE] <= best:
                return _decision_for(view, rule, facts, local, local_room)
    if stage == NO_STAGE:
        stage, room, best = _first_below(
            view,
            rule,
            facts,
            theta[RuleParameter.SPILL] + theta[RuleParameter.SPILL_JOBS] * facts.log_jobs,
        )
    if stage != NO_STAGE:
        return _decision_for(view, rule, facts, stage, room)
    if may_idle(view):
        return NO_STAGE, now.num_source[0], ANY_CLASS, 0
    return _ignoring_caps(view, rule, facts), now.num_source[0], ANY_CLASS, 0


@kernel
def _ignoring_caps(view, rule, facts):  # type: ignore[no-untyped-def]
    """A stage of the job with the least remaining work, ignoring caps and restrictions on classes.

    This keeps the cluster from stalling when no executor would work otherwise.
    """
    best = NO_STAGE
    best_ms = math.inf
    for job in view.active[: view.now.num_active[0]]:
        if view.jobs.remaining_ms[job] < best_ms:
            stage = best_stage(view, rule, facts, job, False)
            if stage != NO_STAGE:
                best = stage
                best_ms = view.jobs.remaining_ms[job]
    return best


Parameters = npt.NDArray[np.float64]

#: Where tuning starts (other parameters are 0): caps where doubling the executors no longer pays
#: off well, a job's executors prefer to stay with it, leftover executors go to jobs below twice
#: their cap, any executor class that fits, no reserve, and executors before the parents' end.
START: Mapping[RuleParameter, float] = {
    RuleParameter.PRICE: -1.5,
    RuleParameter.PRICE_JOBS: 1.0,
    RuleParameter.SPILL: 0.7,
    RuleParameter.LOCAL_SCORE: 2.0,
    RuleParameter.WORTH: -2.0,
    RuleParameter.STAGE_RUNNABLE: 3.0,
    RuleParameter.BORROW: -1.0,
    RuleParameter.RESERVE: -1.0,
    RuleParameter.AHEAD: -1.0,
}


def start_parameters() -> Parameters:
    """Return the parameters that tuning starts from, float64[NUM_PARAMETERS]."""
    theta = np.zeros(NUM_PARAMETERS)
    for column, value in START.items():
        theta[column] = value
    return theta


def padded(parameters: npt.ArrayLike) -> Parameters:
    """Return the parameters of any version of the rule as float64[NUM_PARAMETERS].

    Parameters that the version does not have become 0, which switches their terms off.

    Example: 21 numbers of a checkpoint from before executor classes become 33.
    """
    theta = np.asarray(parameters, np.float64)
    if theta.shape != (NUM_PARAMETERS,) and theta.shape not in [
        (count,) for count in EARLIER_COUNTS
    ]:
        raise PolicyError(
            f"a rule has {NUM_PARAMETERS} parameters "
            f"(earlier versions: {' or '.join(map(str, EARLIER_COUNTS))}), not {theta.size}"
        )
    return np.concatenate([theta, np.zeros(NUM_PARAMETERS - len(theta))])


@dataclass(frozen=True)
class RulePolicy(CompiledDecider):
    """The rule with its parameters and the solo curves of one workload.

    Args:
        name: name in tables and reports.
        parameters: one number for each `RuleParameter`.
        curves: the workload's solo curves.

    Raises:
        PolicyError: wrong number of parameters, or parameters that are not finite.
    """

    name: str
    parameters: tuple[float, ...]
    curves: SoloCurves
    _rule: Rule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        theta = np.array(self.parameters, np.float64)
        if theta.shape != (NUM_PARAMETERS,) or not np.isfinite(theta).all():
            raise PolicyError(
                f"policy {self.name!r}: a rule needs {NUM_PARAMETERS} finite parameters, "
                f"but got {len(theta)}, or some are not finite"
            )
        object.__setattr__(self, "_rule", Rule(theta, *self.curves))

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Rule:
        """The rule's tables."""
        return self._rule
