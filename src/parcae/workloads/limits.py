"""Largest numbers of a workload.

Larger ones are mistakes, or damage of a file; the kernels' sums of them would overflow.
"""

LARGEST_DURATION_MS = 1 << 40  # 35 years
LARGEST_ARRIVAL_MS = 1 << 50
LARGEST_WORK_MS = 1 << 60
LARGEST_LEVEL = 100_000
MOST_TASKS = 10_000_000
#: With more, the numbers of pending events do not fit beside their times in the event queue.
MOST_EXECUTORS = 1 << 16
