"""Warnings where conclusions from runs of rigid jobs would be wrong."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.evaluation.doubts import FULL
from parcae.rigid.jobs import RigidJobs, log_name


def packing_warnings(sequences: Sequence[RigidJobs], load: float) -> list[str]:
    """What makes conclusions from runs of rigid jobs wrong, in sentences."""
    found = (_packing_overload(load), _repeated_sequences(sequences), _shared_jobs(sequences))
    return [text for text in found if text]


def learned_warnings(
    sources: Mapping[str, Mapping[str, Any]], sequences: Sequence[RigidJobs]
) -> list[str]:
    """Which policies learned from a log's jobs on which they are compared, in sentences."""
    found = []
    for name, source in sources.items():
        known = [_learned_jobs(source, jobs) for jobs in sequences]
        share = float(np.concatenate(known).mean())
        if share > 0:
            found.append(
                f"{name} learned from {share:.0%} of the jobs on which it is compared, so its "
                "results say little about other jobs; compare it on a part of the log from which "
                "it did not learn (--part second)"
            )
    return found


def _learned_jobs(source: Mapping[str, Any], jobs: RigidJobs) -> npt.NDArray[np.bool_]:
    """Which jobs a source draws from, bool[num_jobs]: of the same log, and in its range of rows.

    Of this range, jobs that were left out when the log was read for the source count, too.
    """
    is_known = np.zeros(len(jobs), np.bool_)
    for part in source.get("mixed", [source]):
        if "log" not in part or log_name(part["log"]) != log_name(jobs.name):
            continue
        if "first_row" in part:
            is_known |= (part["first_row"] <= jobs.rows) & (jobs.rows <= part["last_row"])
        elif _are_numbered_in_order(jobs):
            # Cards of older versions have no rows.
            is_known |= (part["first_id"] <= jobs.ids) & (jobs.ids <= part["last_id"])
    return is_known


def _are_numbered_in_order(jobs: RigidJobs) -> bool:
    """Whether ids may ascend through the whole log, so that they are identities.

    Then the id of a row is at least the row. Where numbers begin again, it is smaller.
    """
    return bool((np.diff(jobs.ids) > 0).all() and (jobs.ids >= jobs.rows).all())


def _packing_overload(load: float) -> str:
    # A batch has no rate.
    if load <= FULL or math.isinf(load):
        return ""
    return (
        f"arrivals bring {load:.2f} times the work that the cluster can do: the queue grows as "
        "long as jobs arrive, so means depend on how long that is"
    )


def _repeated_sequences(sequences: Sequence[RigidJobs]) -> str:
    first = sequences[0]
    if len(sequences) < 2 or not all(_are_same_jobs(first, jobs) for jobs in sequences[1:]):
        return ""
    return (
        f"all {len(sequences)} runs have the same jobs, so the intervals say nothing about other "
        "days; compare different seeds, or a log in pieces"
    )


def _are_same_jobs(one: RigidJobs, other: RigidJobs) -> bool:
    columns = ("arrival", "duration", "demand", "estimate")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


def _shared_jobs(sequences: Sequence[RigidJobs]) -> str:
    """Whether pieces of a log overlap; drawn jobs are of no log."""
    if len(sequences) < 2 or sequences[0].step != "s":
        return ""
    rows_of: defaultdict[str, list[npt.NDArray[np.int64]]] = defaultdict(list)
    for jobs in sequences:
        rows_of[log_name(jobs.name)].append(jobs.rows)
    counts = [np.unique(np.concatenate(rows), return_counts=True)[1] for rows in rows_of.values()]
    share = float((np.concatenate(counts) > 1).mean())
    if share == 0 or _repeated_sequences(sequences):
        return ""
    return (
        f"{share:.0%} of the jobs are in more than one of the {len(sequences)} pieces of the log: "
        "the pieces are not independent, so the intervals are too narrow; take fewer pieces"
    )
