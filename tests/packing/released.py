"""DeepRM's released environment once more in plain Python, with its quirks: what `parcae packing
simulate` is held to.

One job set in the layout of the conformance file in, its expected results out. All is written from
what the released code does, list operations included; nothing of `parcae` is used.
"""

from __future__ import annotations

from typing import Any


def choose_slot(policy: str, slots: list, free_now: list[int]) -> int | None:
    """The first slot of the largest score among the jobs that can start now."""
    best = None
    chosen = None
    for slot, job in enumerate(slots):
        if job is None or any(f < d for f, d in zip(free_now, job["demand"], strict=True)):
            continue
        dot = sum(f * d for f, d in zip(free_now, job["demand"], strict=True))
        knob = float(policy.partition("-k")[2] or 0)
        score = {"sjf": 1 / job["len"], "packer": dot}.get(
            policy, knob * dot + (1 - knob) / job["len"]
        )
        if best is None or score > best:
            best = score
            chosen = slot
    return chosen


def run_released(one: dict[str, Any], policy: str, *, lingers: bool) -> dict[str, Any]:
    """Start, finish, slowdown, reward and decisions of an episode that ends when all is done.

    Args:
        lingers: finished jobs are removed from the running list while it is walked, so that the one
            behind is skipped.
    """
    params = one["params"]
    window = one["arrival_window"]
    capacity = params["capacity"]
    jobs = [
        {"arrival": a, "len": n, "demand": d, "start": None, "finish": None, "lost": False}
        for a, n, *d in one["jobs"]
    ]
    units = (
        capacity
        if isinstance(capacity, list)
        else [capacity] * (len(jobs[0]["demand"]) if jobs else 2)
    )
    free = [list(units) for _ in range(params["time_horizon"])]
    slots: list = [None] * params["job_slots"]
    backlog: list = []
    running: list = []
    clock = 0
    decisions = 0
    reward = 0.0

    def admit() -> None:
        for job in jobs:
            if job["arrival"] != clock:
                continue
            if None in slots:
                slots[slots.index(None)] = job
            elif len(backlog) < params["backlog_size"]:
                backlog.append(job)
            else:
                job["lost"] = True

    def present() -> list:
        return running + [job for job in slots if job is not None] + backlog

    admit()
    while True:
        decisions += 1
        slot = choose_slot(policy, slots, free[0])
        if slot is not None:
            job = slots[slot]
            for row in range(job["len"]):
                free[row] = [f - d for f, d in zip(free[row], job["demand"], strict=True)]
                assert min(free[row]) >= 0
            job["start"], job["finish"] = clock, clock + job["len"]
            running.append(job)
            slots[slot] = backlog.pop(0) if backlog else None
            continue
        reward -= sum(1 / job["len"] for job in present())
        clock += 1
        free = [*free[1:], list(units)]
        for job in running if lingers else list(running):
            if job["finish"] <= clock:
                running.remove(job)
        if clock >= window and not present():
            break
        admit()
    kept = [job for job in jobs if not job["lost"]]
    slowdowns = [(job["finish"] - job["arrival"]) / job["len"] for job in kept]
    return {
        "start": [job["start"] for job in jobs],
        "finish": [job["finish"] for job in jobs],
        "slowdown": sum(slowdowns) / len(slowdowns) if slowdowns else None,
        "reward": reward,
        "decisions": decisions,
    }
