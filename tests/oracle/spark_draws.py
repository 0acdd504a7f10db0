"""What a task of the world of cores takes, in plain Python; uses nothing of `parcae`.

1. A stage with as many samples as tasks deals out a recorded run. With t tasks of which t has b
   bits, groups of 2^(b - 2) tasks (at least one) in turn get the samples of the same places, in a
   random order that is the group's own.
2. Any other stage with more than one sample sorts them and is one group: in the random order, the
   task at place p of t takes sample floor((p n + u) / t) of n, where u is a random whole number
   below n; if n is a multiple of t, p n / t + u with u below n / t.
3. The random order of a group of n follows from 64 bits: two rounds of multiplications and shifts
   on numbers below the next power of two, again while the result is n or more, and a turn by at
   most n - 1 places.
4. A stage with more tasks than its profile deals again, with other bits.
"""

from __future__ import annotations

from tests.oracle.spark_faults import attempt_bits, mix

_MASK = (1 << 64) - 1
_DEAL = 0xA0761D6478BD642F


def permuted(place: int, size: int, key: int) -> int:
    """Where a place goes in the random order of 0..size - 1 of these 64 bits."""
    below = (1 << (size - 1).bit_length()) - 1
    x = place
    while True:
        x = (x + key) * (key >> 15 | 1) & below
        x ^= x >> 1 ^ x >> 3 ^ x >> 7
        x = (x + (key >> 45)) * (key >> 30 | 1) & below
        x ^= x >> 1 ^ x >> 2 ^ x >> 5 ^ x >> 11
        if x < size:
            return (x + ((key >> 32) * size >> 32)) % size


def dealt(samples: list[int], num_tasks: int, task: int, stage_bits: int, task_bits: int) -> int:
    """The duration of a task; `stage_bits` and `task_bits` are 64 random bits of each."""
    is_run = len(samples) == num_tasks
    if not is_run:
        samples = sorted(samples)
    bits = stage_bits ^ _DEAL
    deal, task = divmod(task, num_tasks)
    if deal:
        bits = mix(bits + deal)
    length = max(1, 1 << num_tasks.bit_length() >> 2) if is_run else num_tasks
    group, place = divmod(task, length)
    size = min(length, num_tasks - group * length)
    place = group * length + permuted(place, size, mix(bits + group))
    share = task_bits & 0xFFFFFFFF
    whole, rest = divmod(len(samples), num_tasks)
    if rest == 0:
        return samples[place * whole + (share * whole >> 32)]
    return samples[(place * len(samples) + (share * len(samples) >> 32)) // num_tasks]


def task_ms(seed: int, job: int, stage: int, samples: list[int], num_tasks: int) -> list[int]:
    """What the first attempts of the tasks of a stage take."""
    stage_bits = mix(mix(seed ^ 0x9E3779B97F4A7C15) + job * 0xD1342543DE82EF95 + 1) + (stage << 32)
    return [
        dealt(samples, num_tasks, task, stage_bits & _MASK, attempt_bits(seed, job, stage, task, 0))
        for task in range(num_tasks)
    ]
