"""Finds closed loops: callers that submit a query, wait for its end, and go on after a pause."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from parcae.workloads.spark_log.dag import JobRun, are_one_at_a_time
from parcae.workloads.workload import SESSIONS, are_breaks

#: A log is one of sessions if at least this share of its runs belongs to some.
_SHARE = 0.9
#: Queries of one job group are a loop only if arrivals at random would hardly have kept them apart.
_CHANCE = 0.05


def number_sessions(runs: Sequence[JobRun]) -> None:
    """Set the session of every run, and the pause before it.

    A session is the queries of one session of a server (or of one person) that never overlap; of
    the others of an application all, if they never overlap; else those of a job group. A long
    break (`are_breaks`) ends a session. Spark's log does not have the submitting thread.
    """
    number = -1
    for of_application in _groups(runs, lambda run: run.application):
        for loop in _loops(of_application):
            in_order = sorted(loop, key=lambda run: run.submission_ms)
            pairs = itertools.pairwise(in_order)
            pauses_ms = [max(0, run.submission_ms - last.end_ms) for last, run in pairs]
            breaks = [True, *are_breaks(pauses_ms).tolist()]
            for run, pause_ms, is_first in zip(in_order, [0, *pauses_ms], breaks, strict=True):
                number += is_first
                run.session = number
                run.pause_ms = -1 if is_first else pause_ms


def find_sessions(runs: Sequence[JobRun]) -> tuple[dict[str, str], list[str]]:
    """Number the sessions of runs; entries of a workload's provenance, and notes."""
    number_sessions(runs)
    count = sessions_at_once(runs)
    if not count:
        return {}, []
    words = f"Queries wait for each other (sessions at once: {count})"
    return {SESSIONS: str(count)}, [f"{words}; --arrivals sessions keeps that."]


def _loops(runs: list[JobRun]) -> list[list[JobRun]]:
    """The closed loops among the runs of one application."""
    of_server = _groups((run for run in runs if run.waits_with[0]), lambda run: run.waits_with[0])
    rest = [run for run in runs if not run.waits_with[0]]
    if are_one_at_a_time(rest):
        return [*filter(are_one_at_a_time, of_server), rest]
    named = (run for run in rest if run.waits_with[1])
    of_group = filter(_cannot_be_chance, _groups(named, lambda run: run.waits_with[1]))
    return [*filter(are_one_at_a_time, [*of_server, *of_group])]


def _cannot_be_chance(runs: list[JobRun]) -> bool:
    """Whether runs that arrive at random would overlap: they do not with a probability of
    exp(-runs x busy share).
    """
    span_ms = max(run.end_ms for run in runs) - min(run.submission_ms for run in runs)
    busy_ms = sum(run.end_ms - run.submission_ms for run in runs)
    return len(runs) * busy_ms >= -math.log(_CHANCE) * span_ms


def _groups(runs: Iterable[JobRun], key: Callable[[JobRun], Hashable]) -> list[list[JobRun]]:
    found: dict[Hashable, list[JobRun]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return list(found.values())


def sessions_at_once(runs: Sequence[JobRun]) -> int:
    """How many sessions were open at one time; 0 if the runs are not those of sessions."""
    closed = [run for run in runs if run.session >= 0]
    if not any(run.pause_ms >= 0 for run in runs) or len(closed) < _SHARE * len(runs):
        return 0
    sessions = _groups(closed, lambda run: run.session)
    begins = np.sort([min(run.submission_ms for run in one) for one in sessions])
    ends = np.sort([max(run.end_ms for run in one) for one in sessions])
    open_then = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return int(open_then.max())
