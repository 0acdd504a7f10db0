"""Rollouts: runs that start from the present state of a cluster, each with something to try.

A rollout knows what a scheduler knows. Everything else is drawn anew: the durations of tasks that
have not started, the remaining times of running tasks (given how long they have run), and the jobs
to come.

A rollout ends with its last job, or at a horizon. With jobs to come, what is later depends little
on one decision but much on chance, so that it would hide the difference between two decisions; an
estimate takes its place.

Source: Bertsekas and Castanon, "Rollout algorithms for stochastic scheduling problems" (1999).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.kernels import inlined, kernel, mix, unit
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.policies import begin_run
from parcae.cluster.kernels.tables import correction, finished_tasks
from parcae.cluster.state import NO_PROFILE, NO_STAGE
from parcae.simulation.future import NEVER_MS
from parcae.simulation.kernels.event_loop import resume, step
from parcae.simulation.kernels.events import clear, job_bits, push, task_bits, task_duration_ms
from parcae.simulation.kernels.playing import go_on

#: Samples of each option that is still in the race, by round. After these, the last repeats.
ROUNDS = (4, 8, 16)
#: An option leaves the race if it is worse than the best by more than this many standard errors.
_KEEP = 1.5
#: It also leaves if it is worse than the base's decision by more than this many standard errors.
_HOPE = 1.0
#: An option wins the race if it is better than the base's decision by more than this many standard
#: errors.
_ACCEPT = 1.0
#: Among jobs to come, the winner must be better by more than this many standard errors.
_CONFIRM = 0.5
#: Share of a time that the race may use where the winner is to be confirmed.
_RACE_SHARE = 0.7
#: A race that takes this many times its budget ends with the base's decision.
_DEADLINE = 2.0
#: Fewest samples that are worth another round.
_FEWEST = 2

Costs = npt.NDArray[np.float64]
#: Plays samples of options: (rows of the options, number of samples) -> costs[options, samples];
#: None: the deadline passed. Sample i of every option has the same random bits.
PlaySamples = Callable[[list[int], int], Costs | None]


class Clock:
    """The wall-clock time that a decision has used of its budget in ms, if it has one."""

    def __init__(self, ms: float | None = None) -> None:
        self.ms = ms
        self._began_s = time.perf_counter()
        #: Rollouts that were played in the time used so far.
        self.played = 0

    @property
    def used_ms(self) -> float:
        """Time since the decision was asked for."""
        return (time.perf_counter() - self._began_s) * MS_PER_S

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.ms is not None and self.used_ms > _DEADLINE * self.ms

    def affordable(self, wanted: int, num_options: int, share: float = 1.0) -> int:
        """How many samples of so many options the rest of the budget pays for."""
        if self.ms is None or self.played == 0:
            return wanted
        used_ms = self.used_ms
        each_ms = used_ms / self.played
        return min(wanted, int((share * self.ms - used_ms) / (each_ms * num_options)))


def choose(
    play: PlaySamples,
    num_options: int,
    clock: Clock,
    play_with_arrivals: PlaySamples | None = None,
) -> int:
    """Return the row of the option to take; row 0 is the base's decision."""
    if play_with_arrivals is None:
        return race(play, num_options, clock)
    row = race(play, num_options, clock, _RACE_SHARE)
    return row if row != 0 and _is_confirmed(play_with_arrivals, row, clock) else 0


def _is_confirmed(play: PlaySamples, row: int, clock: Clock) -> bool:
    """Whether an option is better than the base's decision in these samples, too."""
    count = clock.affordable(sum(ROUNDS), num_options=2)
    if count < _FEWEST:
        return False
    costs = play([0, row], count)
    if costs is None:
        return False
    means, errors = mean_differences(costs)
    return bool(means[1] < -_CONFIRM * errors[1])


def race(play: PlaySamples, num_options: int, clock: Clock, share: float = 1.0) -> int:
    """Return the row of the option that wins the race; row 0 is the base's decision.

    Source: Bertsekas and Castanon 1999; racing after Maron and Moore, "Hoeffding races" (1994).
    """
    alive = list(range(num_options))
    costs = np.zeros((num_options, 0))
    # Without a time there is an end to the rounds.
    for wanted in ROUNDS if clock.ms is None else chain(ROUNDS, repeat(ROUNDS[-1])):
        count = clock.affordable(wanted, len(alive), share)
        if count < _FEWEST:
            break
        sample = play(alive, count)
        if sample is None:
            return 0
        clock.played += len(alive) * count
        costs = np.concatenate([costs, sample], axis=1)
        means, errors = mean_differences(costs)
        best = int(np.argmin(means))
        limit = np.minimum(means[best] + _KEEP * np.hypot(errors, errors[best]), _HOPE * errors)
        # The base's decision always stays in the race.
        kept = [row for row in range(len(means)) if row == 0 or means[row] <= limit[row]]
        alive = [alive[row] for row in kept]
        costs = costs[kept]
        if len(alive) == 1:
            return 0
    if costs.shape[1] < _FEWEST:
        return 0
    means, errors = mean_differences(costs)
    best = int(np.argmin(means))
    return alive[best] if means[best] < -_ACCEPT * errors[best] else 0


def mean_differences(costs: Costs) -> tuple[Costs, Costs]:
    """Mean difference of every option's cost from the base's, and its standard error."""
    differences = costs - costs[0]
    errors = differences.std(axis=1, ddof=1) / np.sqrt(costs.shape[1])
    return differences.mean(axis=1), errors


_REST = 2
#: Draws of the duration of a running task, until one is as long as the task has run already.
_MOST_DRAWS = 24
#: If no draw is: the remaining time relative to the time that the task has run.
_BEYOND = 0.1
#: How far the duration of one finished task is from what it says of the job, as a sigma.
_TASK_SIGMA = 0.5
_RUNNING = np.uint64(0x52554E4E494E47)
_FACTOR = np.uint64(0x464143544F52)
_ARRIVALS = np.uint64(0x4152524956414C)


class Assumptions(NamedTuple):
    """What rollouts assume besides the observed cluster."""

    horizon_ms: Any  # int64[1], a rollout ends at most so long after the present
    # The jobs to come are a Poisson process of the workload's recurring jobs.
    mean_gap_ms: Any  # float64[1]; 0: no job will arrive
    job_share: Any  # float64[num_profiles], cumulated probability of every recurring job
    # float64[num_profiles], how far a job's durations are from their estimates: the standard
    # deviation of the logarithm of their ratio.
    sigma: Any


@inlined
def _num_stages_of(tables, profile):  # type: ignore[no-untyped-def]
    """Number of stages of a recurring job."""
    return tables.job_first_stage[profile + 1] - tables.job_first_stage[profile]


@kernel
def _draw_factor(state, job, sigma, bits):  # type: ignore[no-untyped-def]
    """Draw by how much the job's durations exceed their estimates, given its finished tasks.
    Returns the factor. Where estimates are taken to be right, it is the estimator's correction.

    The logarithm of the factor is normal. A finished task shows it, with some error.
    """
    if sigma <= 0.0:
        return correction(state, job)
    num_finished, executed_ms, expected_ms = finished_tasks(state, job)
    weight = 0.0
    shown = 0.0
    if executed_ms > 0.0 and expected_ms > 0.0:
        shown = math.log(executed_ms / expected_ms)
        precision = num_finished * (sigma / _TASK_SIGMA) ** 2
        weight = precision / (1.0 + precision)
    # Box and Muller's transform of two uniform numbers.
    radius = math.sqrt(-2.0 * math.log(1.0 - unit(bits)))
    normal = radius * math.cos(2.0 * math.pi * unit(mix(bits)))
    return math.exp(weight * shown + math.sqrt(1.0 - weight) * sigma * normal)


@kernel
def _redraw_stages(state, future, tables, assumed):  # type: ignore[no-untyped-def]
    """Give every stage of the jobs in the system its row in the tables, and new random bits."""
    num_rows = np.uint64(tables.specs.shape[0])
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        profile = state.jobs.profile[job]
        bits = job_bits(future.events.seed[0], job)
        sigma = assumed.sigma[profile] if profile != NO_PROFILE else 0.0
        factor = _draw_factor(state, job, sigma, mix(bits ^ _FACTOR))
        # Estimated durations relative to real ones.
        future.knowledge[job] = 1.0 / factor
        for index in range(state.jobs.num_stages[job]):
            stage = state.jobs.stage_start[job] + index
            future.stage_bits[stage] = bits + (np.uint64(index) << np.uint64(32))
            row = np.int64(mix(bits + np.uint64(index)) % num_rows)
            # A live job may have more stages than its profile. A stage without any data
            # is like any stage of the workload.
            if profile != NO_PROFILE and index < _num_stages_of(tables, profile):
                row = tables.job_first_stage[profile] + index
            future.stage_profile[stage] = row
            future.run_factor[stage] = 1.0
            task_ms = state.stages.task_ms[stage]
            if task_ms > 0.0 and tables.specs.task_ms[row] > 0.0:
                future.run_factor[stage] = factor * task_ms / tables.specs.task_ms[row]


@kernel
def _remaining_ms(state, future, tables, executor):  # type: ignore[no-untyped-def]
    """Draw the remaining time of the executor's task, given how long it has run."""
    stage = state.executors.stage[executor]
    profile = future.stage_profile[stage]
    attached = state.jobs.num_attached[state.stages.job[stage]]
    elapsed_ms = state.now.clock_ms[0] - state.executors.started_ms[executor]
    bits = mix(future.stage_bits[stage] ^ (_RUNNING + np.uint64(executor)))
    warmup_ms = future.events.warmup_delay_ms[0]
    for draw in range(_MOST_DRAWS):
        random_bits = task_bits(bits, draw)
        duration_ms = task_duration_ms(
            tables, profile, draw, attached, _REST, bits, random_bits, warmup_ms
        )
        duration_ms = np.int64(math.floor(duration_ms * future.run_factor[stage] + 0.5))
        if duration_ms >= elapsed_ms:
            return duration_ms - elapsed_ms
    return np.int64(1 + _BEYOND * elapsed_ms)


@kernel
def _redraw_running(state, future, tables):  # type: ignore[no-untyped-def]
    """Push the ends of running tasks and the arrivals of moving executors.

    An event that is too far away for an event key is left out.
    """
    executors = state.executors
    clock_ms = state.now.clock_ms[0]
    for executor in range(executors.shape[0]):
        if executors.destination[executor] != NO_STAGE:
            arrival_ms = executors.started_ms[executor] + future.events.moving_delay_ms[0]
            push(future, executor, max(clock_ms, arrival_ms))
        elif executors.stage[executor] != NO_STAGE and executor != state.now.acting_executor[0]:
            left_ms = _remaining_ms(state, future, tables, executor)
            push(future, executor, clock_ms + left_ms)


@kernel
def _draw_profile(job_share, bits):  # type: ignore[no-untyped-def]
    """A recurring job, drawn by its share (bisection)."""
    last = job_share.shape[0] - 1
    value = unit(bits) * job_share[last]
    low = 0
    high = last
    while low < high:
        middle = (low + high) // 2
        if job_share[middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _redraw_arrivals(state, future, tables, assumed):  # type: ignore[no-untyped-def]
    """Draw the jobs that arrive until the horizon, as far as the tables have room."""
    first = state.now.num_jobs[0]
    future.events.next_arrival[0] = first
    future.arrival_ms[first:] = NEVER_MS
    if assumed.mean_gap_ms[0] <= 0.0:
        return
    bits = mix(future.events.seed[0] ^ _ARRIVALS)
    after_ms = 0.0
    stage = state.now.num_stages[0]
    for row in range(first, future.arrival_ms.shape[0]):
        bits = mix(bits + np.uint64(1))
        after_ms -= assumed.mean_gap_ms[0] * math.log(1.0 - unit(bits))
        if after_ms > assumed.horizon_ms[0]:
            return
        bits = mix(bits + np.uint64(1))
        profile = _draw_profile(assumed.job_share, bits)
        future.job_profile[row] = profile
        future.knowledge[row] = 1.0
        future.arrival_ms[row] = state.now.clock_ms[0] + 1 + np.int64(after_ms)
        num_stages = _num_stages_of(tables, profile)
        future.run_factor[stage : stage + num_stages] = 1.0
        stage += num_stages


@inlined
def _real_remaining_ms(state, future, job):  # type: ignore[no-untyped-def]
    """Work of the job's tasks that have not started, as they were drawn."""
    return state.jobs.remaining_ms[job] / future.knowledge[job]


@kernel
def _left_job_ms(state, future):  # type: ignore[no-untyped-def]
    """The time that the jobs in the system still need, summed over the jobs. Returns a time in ms,
    float64.

    It is what they would need if the whole cluster served one after another, the least remaining
    work first.
    """
    now = state.now
    total_ms = 0.0
    for position in range(now.num_active[0]):
        own_ms = _real_remaining_ms(state, future, state.active[position])
        total_ms += own_ms
        # Of two jobs, the one with more work waits for the other.
        for other in range(position):
            total_ms += min(own_ms, _real_remaining_ms(state, future, state.active[other]))
    return total_ms / max(1, now.num_executors[0])


@kernel
def roll_out(simulation, assumed, seed, decision, policy):  # type: ignore[no-untyped-def]
    """Play a rollout after a decision, from a state that is a copy of the observed one. Returns the
    Status in which it stopped, and the time of all jobs in the system: until the horizon, and an
    estimate of what is left then. Rollouts of one seed draw the same random bits.
    """
    state, future, tables = simulation
    events = future.events
    clear(future, state.now.clock_ms[0])
    events.seed[0] = seed
    events.end_ms[0] = state.now.clock_ms[0] + assumed.horizon_ms[0]
    events.num_moves[0] = 0
    events.num_tasks[0] = 0
    events.stall_count[0] = -1
    events.next_fault_ms[0] = NEVER_MS
    state.now.job_ms[0] = 0
    _redraw_stages(state, future, tables, assumed)
    _redraw_running(state, future, tables)
    _redraw_arrivals(state, future, tables, assumed)
    # Finds the next event besides those of executors. The round that is due stays due.
    resume(state, future, tables)
    stage, limit, executor_class, hold_ms = decision
    status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    begin_run(state, policy)
    status = go_on(simulation, status, policy)
    return status, state.now.job_ms[0] + _left_job_ms(state, future)
