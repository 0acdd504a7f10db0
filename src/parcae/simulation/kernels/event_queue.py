"""Pending events: at most one an executor, in a winner tree of packed keys.

A key packs (time - base) | push counter | executor, so that the smallest key is the next event and ties at one time are
fired in the order of their pushes. An update costs log2(executors) comparisons: 6 at 50 executors, 15 at 30,000.
"""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, kernel
from parcae.simulation.future import NEVER_MS, TIME_BITS

_IDLE = np.int64(NEVER_MS)
_KEY_BITS = 63
_LARGEST_TIME = 1 << TIME_BITS


@kernel
def clear(future, clock_ms):  # type: ignore[no-untyped-def]
    """No event is pending."""
    future.keys[:] = _IDLE
    future.events.base_ms[0] = clock_ms
    future.events.next_push[0] = 0


@inlined
def next_ms(future):  # type: ignore[no-untyped-def]
    """Time of the next executor event; NEVER_MS where none is pending."""
    key = future.keys[1]
    if key == _IDLE:
        return _IDLE
    return future.events.base_ms[0] + (key >> (_KEY_BITS - TIME_BITS))


@inlined
def next_executor(future):  # type: ignore[no-untyped-def]
    """The executor that the next event belongs to."""
    return future.keys[1] & (future.events.num_leaves[0] - 1)


@inlined
def _set_key(future, executor, key):  # type: ignore[no-untyped-def]
    keys = future.keys
    node = future.events.num_leaves[0] + executor
    keys[node] = key
    while node > 1:
        key = min(key, keys[node ^ 1])
        node >>= 1
        keys[node] = key


@inlined
def pop(future, executor):  # type: ignore[no-untyped-def]
    """The executor's event has fired and no other follows at once."""
    _set_key(future, executor, _IDLE)


@inlined
def push(future, executor, time_ms):  # type: ignore[no-untyped-def]
    """The executor's next event fires at `time_ms`. Returns False where it lies more than 24 days after another."""
    events = future.events
    slot_bits = events.slot_bits[0]
    relative = time_ms - events.base_ms[0]
    if relative >= _LARGEST_TIME or events.next_push[0] >= 1 << (_KEY_BITS - TIME_BITS - slot_bits):
        future.keys[events.num_leaves[0] + executor] = _IDLE
        _rebase(future, time_ms)
        relative = time_ms - events.base_ms[0]
        if relative >= _LARGEST_TIME:
            return False
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
    """Heapsort: kernels allocate nothing."""
    for root in range(len(values) // 2 - 1, -1, -1):
        _sift_down(values, root, len(values))
    for end in range(len(values) - 1, 0, -1):
        values[0], values[end] = values[end], values[0]
        _sift_down(values, 0, end)


@kernel
def _rebase(future, time_ms):  # type: ignore[no-untyped-def]
    """Count time from the earliest pending event, and pushes from 0 in their old order."""
    events = future.events
    leaves = future.events.num_leaves[0]
    slot_bits = events.slot_bits[0]
    time_shift = _KEY_BITS - TIME_BITS
    old_base = events.base_ms[0]
    pending = future.keys[:leaves]  # the inner nodes serve as scratch: they are rebuilt below
    for leaf in range(leaves):
        pending[leaf] = future.keys[leaves + leaf]
        future.keys[leaves + leaf] = _IDLE
    sort_in_place(pending)
    base = time_ms if pending[0] == _IDLE else min(time_ms, old_base + (pending[0] >> time_shift))
    count = 0
    while count < leaves and pending[count] != _IDLE:
        executor = pending[count] & (leaves - 1)
        relative = old_base + (pending[count] >> time_shift) - base
        future.keys[leaves + executor] = (relative << time_shift) | (count << slot_bits) | executor
        count += 1
    events.base_ms[0] = base
    events.next_push[0] = count
    for node in range(leaves - 1, 0, -1):
        future.keys[node] = min(future.keys[2 * node], future.keys[2 * node + 1])
