"""The queue of pending executor events: a winner tree with at most one event per executor.

A key packs (time - base) | push counter | executor. So the smallest key is the next event, and
events at the same time fire in the order in which they were pushed. An update costs log2(executors)
comparisons: 6 with 50 executors, 15 with 30,000.
"""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
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
