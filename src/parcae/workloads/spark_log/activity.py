"""How busy the cores of logs were while jobs ran, and how many jobs ran at once.

Both say whether an order of jobs can gain anything: it can only where several jobs share full
cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parcae.base.arrays import Int64Array, level
from parcae.workloads.describe import ARRIVALS_IN_LOGS, CAN_GAIN, CORES_IN_LOGS
from parcae.workloads.import_report import counted
from parcae.workloads.spark_log.dag import JobRun
from parcae.workloads.spark_log.losses import CheckedLog
from parcae.workloads.workload import process_like, without_breaks

#: Cores count as full from this share on: between two tasks of a core there are milliseconds.
_FULL = 0.9
#: Below this share of the time, an order of jobs gains hardly anything.
_LITTLE = 0.05
#: Above this busy share of the executors' cores, a log is wrong.
_IMPOSSIBLE = 1.01


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> Int64Array:
    return np.array(rows, np.int64).reshape(-1, width).T


@dataclass(eq=False)
class LoggedActivity:
    """What the applications of logs did while their jobs ran; times in ms."""

    #: Time with so many jobs at once, and with so many cores up.
    at_once_ms: Counter[int] = field(default_factory=Counter)
    cores_ms: Counter[int] = field(default_factory=Counter)
    busy_ms: int = 0
    core_ms: int = 0
    #: The part of it beyond the cores of the executors in the logs.
    beyond_ms: int = 0
    #: Time in which two or more jobs shared full cores.
    contended_ms: int = 0
    #: Arrivals of the jobs that were kept, and begins of all.
    arrival_ms: list[int] = field(default_factory=list)
    begin_ms: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(
        self, checked: CheckedLog, runs: Sequence[JobRun], slots: Sequence[tuple[int, int]]
    ) -> None:
        """Add an application, the runs of its jobs and how its slots changed."""
        self.arrival_ms += [run.submission_ms for run in runs]
        known = [(run.submission_ms, run.end_ms) for run in runs if run.end_ms > run.submission_ms]
        known += checked.others
        self.begin_ms += [begin_ms for begin_ms, _ in known]
        if not known:
            return
        begins, ends = _columns(known, 2)
        self.spans.append((int(begins.min()), int(ends.max())))
        at_ms, change = _columns(slots, 2)
        tasks = checked.tasks
        done_ms = tasks.launch_ms + np.maximum(0, tasks.busy_ms)
        from_ms, until_ms, lost_ms = _columns(checked.lost_work(), 3)
        edges = np.unique(
            np.concatenate([begins, ends, at_ms, tasks.launch_ms, done_ms, from_ms, until_ms])
        )
        num_jobs = level(edges, (begins, 1), (ends, -1))[:-1]
        num_busy = level(edges, (tasks.launch_ms, 1), (done_ms, -1))[:-1]
        # A task may begin milliseconds before the end of the one on its core is recorded.
        num_slots = level(edges, (at_ms, change))[:-1]
        num_cores = np.maximum(num_slots, num_busy)
        rate = lost_ms / np.maximum(1, until_ms - from_ms)
        num_lost = level(edges, (from_ms, rate), (until_ms, -rate))[:-1]
        num_busy = np.minimum(num_cores, num_busy + num_lost)
        runs_now = num_jobs > 0
        length_ms = np.diff(edges)[runs_now]
        beyond = (num_cores - num_slots)[runs_now]
        num_jobs, num_busy, num_cores = (one[runs_now] for one in (num_jobs, num_busy, num_cores))
        for counts, levels in ((self.at_once_ms, num_jobs), (self.cores_ms, num_cores)):
            for count in np.unique(levels).tolist():
                counts[count] += int(length_ms[levels == count].sum())
        self.busy_ms += int((num_busy * length_ms).sum())
        self.core_ms += int((num_cores * length_ms).sum())
        self.beyond_ms += int((beyond * length_ms).sum())
        is_contended = (num_jobs > 1) & (num_busy >= _FULL * num_cores) & (num_busy > 0)
        self.contended_ms += int(length_ms[is_contended].sum())

    @property
    def cores(self) -> int:
        """The number of cores that were up: the median over the time in which jobs ran."""
        half_ms = self.cores_ms.total() / 2
        passed_ms = 0
        for cores, time_ms in sorted(self.cores_ms.items()):
            passed_ms += time_ms
            if cores and passed_ms >= half_ms:
                return cores
        return 0

    def provenance(self, cores_per_task: int, work_factor: float) -> dict[str, str]:
        """What a workload keeps of it; counts above are of slots, each of which has some cores.

        Arrivals come as much more often as all work is more than that of the jobs that were kept.
        """
        arrival_ms = without_breaks(self.arrival_ms)
        arrivals = process_like([int(ms / work_factor) for ms in arrival_ms])
        if not self.cores:
            return {ARRIVALS_IN_LOGS: arrivals}
        # Jobs that came faster than the cores could serve them were a batch: drawn at their rate
        # for longer, they would queue without end.
        if max(without_breaks(self.begin_ms)) * self.cores < self.busy_ms:
            arrivals = "batch"
        return {
            CAN_GAIN: self.verdict(cores_per_task),
            CORES_IN_LOGS: str(self.cores * cores_per_task),
            ARRIVALS_IN_LOGS: arrivals,
        }

    def verdict(self, cores_per_task: int) -> str:
        """Whether an order can gain at all, in a sentence with the shares that say so."""
        total_ms = self.at_once_ms.total()
        several = sum(ms for count, ms in self.at_once_ms.items() if count > 1) / total_ms
        share = self.contended_ms / total_ms
        mean = sum(count * ms for count, ms in self.at_once_ms.items()) / total_ms
        cores = counted(self.cores * cores_per_task, "core")
        of_known = self.busy_ms / max(1, self.core_ms - self.beyond_ms)
        if of_known > _IMPOSSIBLE:
            cores += f" ({of_known:.0%} of those of its executors: the log lacks some, or is wrong)"
        gain = "hardly, at the logs' own load" if share < _LITTLE else "yes"
        return (
            f"{gain}: while jobs ran, {self.busy_ms / max(1, self.core_ms):.0%} of "
            f"{cores} were busy; two or more jobs ran at once {several:.0%} of the time "
            f"({mean:.1f} on average, {max(self.at_once_ms)} at most), on full cores {share:.0%}"
        )

    def notes(self, cores_per_task: int) -> list[str]:
        """Sentences for the user on an order's chance, and on logs of several applications."""
        found = [f"Can an order gain? {self.verdict(cores_per_task)}."] if self.cores else []
        at_once = 0
        for begin_ms, _ in self.spans:
            at_once = max(at_once, sum(one <= begin_ms < end for one, end in self.spans))
        if at_once > 1:
            found.append(
                f"The logs are of {len(self.spans):,} applications, up to {at_once:,} at the same "
                "time, each on cores of its own: simulated together, their jobs share "
                f"{counted(self.cores * cores_per_task, 'core')}. For an order inside one "
                "application, name its log alone; `parcae serve --scope cluster` is the order "
                "across applications."
            )
        return found
