"""The queue of pending executor events: a winner tree with at most one event per executor.

A key packs (time - base) | push counter | executor. So the smallest key is the next event, and
events at the same time fire in the order in which they were pushed. An update costs log2(executors)
comparisons: 6 with 50 executors, 15 with 30,000.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, mix
from parcae.cluster.kernels.accounts import enter_account
from parcae.cluster.kernels.transitions import job_arrived, reset
from parcae.cluster.state import NO_JOB, NO_PROFILE, NOT_YET, CommandKind, World
from parcae.simulation.future import NEVER_MS, TIME_BITS, Followup

_IDLE = np.int64(NEVER_MS)
_KEY_BITS = 63
_LARGEST_TIME = 1 << TIME_BITS
#: A follow-up in the ring is its row times this number plus its kind.
KINDS = len(Followup)


@kernel
def clear(future, clock_ms):  # type: ignore[no-untyped-def]
    """Remove all pending events; later times are counted from `clock_ms`."""
    future.keys[:] = _IDLE
    future.events.base_ms[0] = clock_ms
    future.events.next_push[0] = 0


@inlined
def next_ms(future):  # type: ignore[no-untyped-def]
    """Time of the next executor event, or NEVER_MS if none is pending."""
    key = future.keys[1]
    if key == _IDLE:
        return _IDLE
    return future.events.base_ms[0] + (key >> (_KEY_BITS - TIME_BITS))


@inlined
def next_executor(future):  # type: ignore[no-untyped-def]
    """The executor whose event comes next."""
    return future.keys[1] & (future.events.num_leaves[0] - 1)


@inlined
def _set_key(future, executor, key):  # type: ignore[no-untyped-def]
    """Set the key of an executor's leaf and update the winners on the way to the root."""
    keys = future.keys
    node = future.events.num_leaves[0] + executor
    keys[node] = key
    while node > 1:
        key = min(key, keys[node ^ 1])
        node >>= 1
        keys[node] = key


@inlined
def pop(future, executor):  # type: ignore[no-untyped-def]
    """Remove the executor's event, for an executor that gets no new event at once.

    (`push` replaces the old event, so a `pop` before it is not needed.)
    """
    _set_key(future, executor, _IDLE)


@inlined
def has_event(future, executor):  # type: ignore[no-untyped-def]
    """Whether an event of the executor is pending."""
    return future.keys[future.events.num_leaves[0] + executor] != _IDLE


@inlined
def push(future, executor, time_ms):  # type: ignore[no-untyped-def]
    """Set the executor's next event to `time_ms`, replacing its present one. Returns false if the
    event is more than 24 days before or after another pending one.
    """
    events = future.events
    slot_bits = events.slot_bits[0]
    relative = time_ms - events.base_ms[0]
    is_in_range = 0 <= relative < _LARGEST_TIME
    if not is_in_range or events.next_push[0] >= 1 << (_KEY_BITS - TIME_BITS - slot_bits):
        future.keys[events.num_leaves[0] + executor] = _IDLE
        if not _rebase(future, time_ms):
            return False
        relative = time_ms - events.base_ms[0]
    counter = events.next_push[0]
    events.next_push[0] = counter + 1
    _set_key(
        future, executor, (relative << (_KEY_BITS - TIME_BITS)) | (counter << slot_bits) | executor
    )
    return True


@kernel
def _sift_down(values, root, end):  # type: ignore[no-untyped-def]
    while 2 * root + 1 < end:
        child = 2 * root + 1
        if child + 1 < end and values[child] < values[child + 1]:
            child += 1
        if values[root] >= values[child]:
            return
        values[root], values[child] = values[child], values[root]
        root = child


@kernel
def sort_in_place(values):  # type: ignore[no-untyped-def]
    """Sort ascending with heapsort, which needs no memory: kernels must not allocate."""
    for root in range(len(values) // 2 - 1, -1, -1):
        _sift_down(values, root, len(values))
    for end in range(len(values) - 1, 0, -1):
        values[0], values[end] = values[end], values[0]
        _sift_down(values, 0, end)


@kernel
def _rebase(future, time_ms):  # type: ignore[no-untyped-def]
    """Renumber all keys, so that times and push counters start from 0 again.

    Times become relative to the earliest pending event (or `time_ms` if that is earlier); the order
    of pushes stays. Returns False if a pending event or `time_ms` is too late to be relative to it.
    """
    events = future.events
    leaves = future.events.num_leaves[0]
    slot_bits = events.slot_bits[0]
    time_shift = _KEY_BITS - TIME_BITS
    old_base = events.base_ms[0]
    pending = future.keys[:leaves]  # the inner nodes serve as scratch memory: rebuilt below
    for leaf in range(leaves):
        pending[leaf] = future.keys[leaves + leaf]
        future.keys[leaves + leaf] = _IDLE
    sort_in_place(pending)
    base = time_ms if pending[0] == _IDLE else min(time_ms, old_base + (pending[0] >> time_shift))
    count = 0
    latest = time_ms
    while count < leaves and pending[count] != _IDLE:
        executor = pending[count] & (leaves - 1)
        latest = max(latest, old_base + (pending[count] >> time_shift))
        relative = old_base + (pending[count] >> time_shift) - base
        future.keys[leaves + executor] = (relative << time_shift) | (count << slot_bits) | executor
        count += 1
    events.base_ms[0] = base
    events.next_push[0] = count
    for node in range(leaves - 1, 0, -1):
        future.keys[node] = min(future.keys[2 * node], future.keys[2 * node + 1])
    return latest - base < _LARGEST_TIME


@inlined
def follow_up(future, kind, row):  # type: ignore[no-untyped-def]
    """Append a follow-up event at the present time to the ring (world of cores)."""
    events = future.events
    ring = future.followups
    place = (events.first_followup[0] + events.num_followups[0]) % ring.shape[0]
    ring[place] = row * KINDS + kind
    events.num_followups[0] += 1


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_JOB_STEP = np.uint64(0xD1342543DE82EF95)
_LOW_BITS = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_DEAL = np.uint64(0xA0761D6478BD642F)


@inlined
def job_bits(seed, job):  # type: ignore[no-untyped-def]
    """The hash input from which the random bits of all tasks of a job follow."""
    return mix(mix(seed ^ _GOLDEN) + np.uint64(job) * _JOB_STEP + np.uint64(1))


@inlined
def run_of_job(seed, job, num_runs):  # type: ignore[no-untyped-def]
    """Which of its recorded runs a job repeats, by random bits that no task has."""
    bits = mix(job_bits(seed, job) ^ _GOLDEN)
    return np.int64(((bits >> _HALF) * np.uint64(num_runs)) >> _HALF)


@kernel
def choose_runs(seed, run):  # type: ignore[no-untyped-def]
    """Put into `run`, which has the number of recorded runs of every job, the one it repeats."""
    for job in range(run.shape[0]):
        run[job] = run_of_job(seed, job, run[job])


@inlined
def task_bits(stage_bits, task):  # type: ignore[no-untyped-def]
    """The 64 random bits of one task; `stage_bits` is `job_bits` + (stage index << 32)."""
    return mix(stage_bits + np.uint64(task))


@inlined
def _below(random_bits, end):  # type: ignore[no-untyped-def]
    """A number from 0 to end - 1, by the lower half of the bits; without a division."""
    return np.int64(((random_bits & _LOW_BITS) * np.uint64(end)) >> _HALF)


@inlined
def permuted(place, size, key):  # type: ignore[no-untyped-def]
    """Where `place` goes in a random order of 0..size - 1 that follows from 64 random bits.

    Rounds of steps that can be undone permute the numbers below a power of two; what lands at
    `size` or above is permuted again (Black and Rogaway, Ciphers with arbitrary finite domains,
    2002). The turn at the end makes every place equally likely, however small `size` is.
    """
    mask = np.uint64(size - 1)
    mask |= mask >> np.uint64(1)
    mask |= mask >> np.uint64(2)
    mask |= mask >> np.uint64(4)
    mask |= mask >> np.uint64(8)
    mask |= mask >> np.uint64(16)
    end = np.uint64(size)
    x = np.uint64(place)
    while True:
        x = ((x + key) * ((key >> np.uint64(15)) | _ONE)) & mask
        x ^= (x >> np.uint64(1)) ^ (x >> np.uint64(3)) ^ (x >> np.uint64(7))
        x = ((x + (key >> np.uint64(45))) * ((key >> np.uint64(30)) | _ONE)) & mask
        x ^= (x >> np.uint64(1)) ^ (x >> np.uint64(2)) ^ (x >> np.uint64(5)) ^ (x >> np.uint64(11))
        if x < end:
            break
    x += ((key >> _HALF) * end) >> _HALF
    return np.int64(x if x < end else x - end)


@inlined
def dealt_sample(  # type: ignore[no-untyped-def]
    deals, stage_profile, task, deal_bits, random_bits
):
    """Which of the samples of a stage a task gets: the stage gets each equally often, so that its
    longest one is not drawn twice or never.

    Tasks of a group, which start one after another, get samples of their places in a random order.
    A recorded run has one sample for each place. Else the samples are in ascending order and the
    stage is one group: a place has a part of them, of which it takes a random one.
    """
    num_tasks = deals.num_tasks[stage_profile]
    num_samples = deals.num_samples[stage_profile]
    group_bits = deals.group_bits[stage_profile]
    deal_bits ^= _DEAL
    if task >= num_tasks:  # a live stage may have more tasks than its profile
        deal_bits = mix(deal_bits + np.uint64(task // num_tasks))
        task %= num_tasks
    group = task >> group_bits
    first = group << group_bits
    size = min(1 << group_bits, num_tasks - first)
    place = first + permuted(task - first, size, mix(deal_bits + np.uint64(group)))
    per_task = deals.per_task[stage_profile]
    if per_task > 0:  # without a division
        return place * per_task + _below(random_bits, per_task)
    return (place * num_samples + _below(random_bits, num_samples)) // num_tasks


@inlined
def task_duration_ms(  # type: ignore[no-untyped-def]
    tables, stage_profile, task, num_attached, wave, deal_bits, random_bits, warmup_delay_ms
):
    """Draw the duration in ms of a task; reads the tables, writes nothing.

    Args:
        tables: `WorkloadTables`.
        stage_profile: row of the stage in the tables.
        task: number of the task within the stage.
        num_attached: executors that the job holds when the task starts.
        wave: the `Wave` in which the task runs.
        deal_bits: 64 random bits of the stage, by which samples are dealt to its tasks.
        random_bits: 64 random bits of the task. The upper half chooses between the two measured
            levels of parallelism around `num_attached`, the lower half chooses the sample.
        warmup_delay_ms: added if samples of fresh executors were not measured.
    """
    durations = tables.durations
    if tables.deals.num_tasks[stage_profile] > 0:
        sample = dealt_sample(tables.deals, stage_profile, task, deal_bits, random_bits)
        return np.int64(tables.samples[tables.deals.first_sample[stage_profile] + sample])
    grid = durations.grid_row[stage_profile] + min(num_attached, durations.top[stage_profile])
    # Multiply and shift: scales 32 random bits to 0..span - 1 without a division.
    upper = ((random_bits >> _HALF) * np.uint64(tables.grids.span[grid])) >> _HALF
    level = (
        tables.grids.upper[grid]
        if np.int64(upper) < tables.grids.weight[grid]
        else tables.grids.lower[grid]
    )
    row = durations.list_row[stage_profile] + wave * durations.num_levels[stage_profile] + level
    if durations.is_listed[stage_profile]:
        sample = task % tables.lists.count[row]
    else:
        sample = _below(random_bits, tables.lists.count[row])
    duration_ms = np.int64(tables.samples[tables.lists.start[row] + sample])
    return duration_ms + tables.lists.adds_warmup[row] * warmup_delay_ms


_CORES = int(World.CORES)
_START = int(CommandKind.START_TASK)


@kernel
def begin(state, future):  # type: ignore[no-untyped-def]
    """Reset the cluster, the event queue and the counters of events."""
    events = future.events
    reset(state)
    clear(future, 0)
    events.next_arrival[0] = 0
    events.num_fired_arrivals[0] = 0
    events.num_moves[0] = 0
    events.num_tasks[0] = 0
    events.stall_count[0] = -1
    events.next_fault_ms[0] = NEVER_MS
    events.num_timers[0] = 0
    events.num_timers_set[0] = 0
    events.num_numbered[0] = 0
    if future.sessions.shape[0] > 0:
        _begin_sessions(future)


@kernel
def _begin_sessions(future):  # type: ignore[no-untyped-def]
    """Expect the first job of every session, and the jobs of none."""
    future.events.num_expected[0] = 0
    future.arrival_ms[:] = _IDLE
    for place in range(future.sessions.shape[0]):
        if future.sessions.begin_ms[place] != _IDLE:
            _expect(future, place, future.sessions.begin_ms[place])


@kernel
def _expect(future, place, time_ms):  # type: ignore[no-untyped-def]
    """Put a job of the sequence among those that are expected, by time and place."""
    row = future.events.num_expected[0]
    future.events.num_expected[0] = row + 1
    while row > future.events.next_arrival[0]:
        before_ms = future.arrival_ms[row - 1]
        if before_ms < time_ms or (before_ms == time_ms and future.sequence_row[row - 1] < place):
            break
        future.arrival_ms[row] = before_ms
        future.sequence_row[row] = future.sequence_row[row - 1]
        future.job_profile[row] = future.job_profile[row - 1]
        future.knowledge[row] = future.knowledge[row - 1]
        row -= 1
    future.arrival_ms[row] = time_ms
    future.sequence_row[row] = place
    future.job_profile[row] = future.sessions.profile[place]
    future.knowledge[row] = future.sessions.knowledge[place]


@inlined
def place_of(future, row):  # type: ignore[no-untyped-def]
    """The place in the sequence of the job with this row."""
    return future.sequence_row[row] if future.sessions.shape[0] > 0 else row


@inlined
def go_on_with_session(state, future, job):  # type: ignore[no-untyped-def]
    """If a job is complete since this event, expect the next one of its session."""
    if future.sessions.shape[0] > 0 and state.jobs.completion_ms[job] != NOT_YET:
        _go_on(state, future, job)


@kernel
def _go_on(state, future, job):  # type: ignore[no-untyped-def]
    place = future.sessions.successor[future.sequence_row[job]]
    if place != NO_JOB:
        time_ms = state.now.clock_ms[0] + future.sessions.pause_ms[place]
        _expect(future, place, time_ms)
        future.events.next_other_ms[0] = min(future.events.next_other_ms[0], time_ms)


@kernel
def submit(state, future, tables):  # type: ignore[no-untyped-def]
    """Add the next job of the sequence to the cluster. Returns the job's row in the state."""
    events = future.events
    row = events.next_arrival[0]
    profile = future.job_profile[row]
    first = tables.job_first_stage[profile]
    last = tables.job_first_stage[profile + 1]
    arrival_ms = future.arrival_ms[row]
    knowledge = future.knowledge[row]
    specs = tables.specs
    children = tables.spec_children
    # World of cores: an unknown job gets guesses by what the scheduler sees at submission. In
    # the executors world `job_arrived` itself hides the durations of a job with knowledge 0.
    if knowledge == 0.0 and state.now.world[0] == _CORES:
        job = job_arrived(
            state, tables.guesses, children, first, last - first, NO_PROFILE, arrival_ms, 1.0
        )
    else:
        job = job_arrived(
            state, specs, children, first, last - first, profile, arrival_ms, knowledge
        )
    if state.now.world[0] == _CORES:
        state.job_orders.pool[job] = tables.job_pool[profile]
        state.jobs.priority[job] = tables.job_priority[profile]
        if state.now.keeps_accounts[0]:
            user = tables.job_user[profile]
            enter_account(state, job, user, tables.user_weight[user])
    place = place_of(future, row)
    stage_start = state.jobs.stage_start[job]
    if future.sessions.shape[0] > 0:
        first_factor = future.sessions.first_factor[place]
        for index in range(last - first):
            factor = future.session_factors[first_factor + index]
            future.run_factor[stage_start + index] = factor
    bits = job_bits(events.seed[0], place)
    for index in range(last - first):
        future.stage_profile[stage_start + index] = first + index
        future.stage_bits[stage_start + index] = bits + (np.uint64(index) << np.uint64(32))
    events.next_arrival[0] = row + 1
    return job


@inlined
def sample_ms(  # type: ignore[no-untyped-def]
    future, tables, stage, task, wave, attached, deal_bits, random_bits
):
    """Sample the duration in ms of a task, by random bits and the factor of its stage."""
    duration_ms = task_duration_ms(
        tables,
        future.stage_profile[stage],
        task,
        attached,
        wave,
        deal_bits,
        random_bits,
        future.events.warmup_delay_ms[0],
    )
    # 1.0 is the usual case and must leave the sample exactly as it is.
    factor = future.run_factor[stage]
    if factor != 1.0:
        duration_ms = np.int64(math.floor(duration_ms * factor + 0.5))
    return duration_ms


@inlined
def draw_duration_ms(  # type: ignore[no-untyped-def]
    state, future, tables, executor, stage, task, wave, attached
):
    """Draw the duration in ms of a task that starts now."""
    stage_bits = future.stage_bits[stage]
    bits = task_bits(stage_bits, task)
    duration_ms = sample_ms(future, tables, stage, task, wave, attached, stage_bits, bits)
    if future.tasks.shape[0] > 0:
        record_task(state, future, executor, stage, task, duration_ms)
    future.events.num_tasks[0] += 1
    return duration_ms


@inlined
def schedule_task(  # type: ignore[no-untyped-def]
    state, future, tables, executor, stage, task, wave, attached
):
    """Draw the duration of a task that starts now and push the event of its end. Returns false if
    the end is too far away for an event key.
    """
    duration_ms = draw_duration_ms(state, future, tables, executor, stage, task, wave, attached)
    return push(future, executor, state.now.clock_ms[0] + duration_ms)


@kernel
def record_task(state, future, executor, stage, task, duration_ms):  # type: ignore[no-untyped-def]
    """Record a task that starts now, in the row after those of the tasks that have started."""
    tasks = future.tasks
    row = future.events.num_tasks[0]
    job = state.stages.job[stage]
    tasks.job[row] = job
    tasks.stage[row] = stage - state.jobs.stage_start[job]
    tasks.task[row] = task
    tasks.executor[row] = executor
    tasks.start_ms[row] = state.now.clock_ms[0]
    tasks.finish_ms[row] = state.now.clock_ms[0] + duration_ms


@inlined
def carry_out_commands(state, future, tables):  # type: ignore[no-untyped-def]
    """Carry out the commands of the last transition: push ends of tasks and of moves. Returns false
    if an event is too far away for an event key.
    """
    in_range = True
    commands = state.commands
    for row in range(state.now.num_commands[0]):
        executor = commands.executor[row]
        stage = commands.stage[row]
        if commands.kind[row] == _START:
            task = commands.task[row]
            wave = commands.wave[row]
            attached = commands.parallelism[row]
            in_range &= schedule_task(state, future, tables, executor, stage, task, wave, attached)
        else:
            future.events.num_moves[0] += 1
            in_range &= push(
                future, executor, state.now.clock_ms[0] + future.events.moving_delay_ms[0]
            )
    state.now.num_commands[0] = 0
    return in_range
