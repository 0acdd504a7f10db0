"""What went wrong in one application, counted from its event log."""

from __future__ import annotations

from collections import Counter

from parcae.workloads.faults import LoggedFaults
from parcae.workloads.spark.application import UNKNOWN_SLOTS, ApplicationLog
from parcae.workloads.spark.events import ExecutorRemoved, Outcome

#: Parts of the reasons for which Spark or its user removes an executor on purpose.
_ON_PURPOSE = ("killed by driver", "decommission", "explicit termination request", "idle")
#: Executors that go this long before the end of the application go because of it.
_SHUTDOWN_MS = 2_000


def logged_faults(log: ApplicationLog) -> LoggedFaults:
    """Count failed attempts, speculative copies, lost executors and the time of executors."""
    tasks = log.tasks()
    last_ms = int(tasks.finish_ms.max(initial=0))
    end_ms = log.end_ms if log.end_ms > 0 else last_ms
    outcomes = Counter(tasks.outcome.tolist())
    # Spark also logs the removal of executors that failed while they started, and never were up.
    removed = [one for name, one in log.removed.items() if name in log.executors]
    losses = sorted(one.time_ms for one in removed if _is_loss(one, end_ms))
    restarts = _restarts_ms(losses, log)
    slots = Counter(log.slots_of(name) for name in log.executors)
    del slots[UNKNOWN_SLOTS]
    return LoggedFaults(
        num_attempts=outcomes[Outcome.SUCCESS] + outcomes[Outcome.FAILED],
        num_failed=outcomes[Outcome.FAILED],
        num_speculative=int(tasks.is_speculative.sum()),
        num_lost_executors=len(losses),
        executor_ms=float(sum(_spans_ms(log, end_ms))),
        executor_cores=slots.most_common(1)[0][0] if slots else 0,
        num_restarts=len(restarts),
        restarts_ms=float(sum(restarts)),
    )


def _is_loss(removed: ExecutorRemoved, end_ms: int) -> bool:
    """Whether an executor was lost: nobody asked for its removal, and the application went on."""
    reason = removed.reason.lower()
    is_on_purpose = any(words in reason for words in _ON_PURPOSE)
    return bool(reason) and not is_on_purpose and removed.time_ms < end_ms - _SHUTDOWN_MS


def _spans_ms(log: ApplicationLog, end_ms: int) -> list[int]:
    """How long every executor whose start is known was up."""
    spans = []
    for name, added in log.executors.items():
        removed = log.removed.get(name)
        until_ms = end_ms if removed is None else removed.time_ms
        if added.time_ms >= 0:
            spans.append(max(0, until_ms - added.time_ms))
    return spans


def _restarts_ms(losses_ms: list[int], log: ApplicationLog) -> list[int]:
    """Times from losses to the next new executors; each executor replaces one that was lost."""
    added_ms = sorted(added.time_ms for added in log.executors.values())
    waits = []
    at = 0
    for loss_ms in losses_ms:
        while at < len(added_ms) and added_ms[at] < loss_ms:
            at += 1
        if at == len(added_ms):
            break
        waits.append(added_ms[at] - loss_ms)
        at += 1
    return waits
