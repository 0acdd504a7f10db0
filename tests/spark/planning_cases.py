"""Small situations of queries and the remaining work that the project's estimator finds.

`python -m tests.spark.planning_cases` writes them to the fixture that the plugin's planner is held to.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.kernels.estimates import correction, unstarted_ms
from parcae.files import write_text
from parcae.policies.order_rule.layout import OrderParameter
from parcae.policies.policy_file import EXPORTABLE
from tests.conftest import REPOSITORY

FIXTURE = REPOSITORY / "spark-plugin" / "tests" / "fixtures" / "planning.json"
GUESS_MS, MEAN_WORK_MS = 120.0, 5_000.0
#: At least this share of what was done is thought to be left.
_LEAST_SHARE = 0.05

Json = dict[str, Any]


class _Row(NamedTuple):
    """A stage: number of tasks, those started and finished, what these took, what a task is foretold to take (ms)."""

    num_tasks: int
    num_started: int
    num_finished: int
    executed_ms: float
    task_ms: float
    is_seen: bool


def remaining_ms(query: Json, profile: list[Json] | None) -> float:
    """The query's remaining work, in ms of one core: the estimate, kept plausible.

    Args:
        query: its `stages` as in the fixture.
        profile: the stages that were foretold, or None.
    """
    rows = _rows(query, profile)
    columns = dict(zip(_Row._fields, np.array(rows, np.float64).T, strict=True))
    jobs = SimpleNamespace(stage_start=[0], num_stages=[len(rows)])
    seen = SimpleNamespace(now=SimpleNamespace(is_corrected=[True]), jobs=jobs, stages=SimpleNamespace(**columns))
    # Uncompiled: kernels compiled for types of the tests would stay in the cache, where others cannot read them.
    factor, unstarted = correction.py_func(seen, 0), unstarted_ms.py_func(seen, 0)
    known_ms = sum(
        (row.num_tasks - row.num_finished) * (row.executed_ms / row.num_finished if row.num_finished else factor * row.task_ms)
        for row in rows
        if row.is_seen
    )
    return float(max(factor * unstarted, known_ms, _LEAST_SHARE * sum(row.executed_ms for row in rows)))


def _rows(query: Json, profile: list[Json] | None) -> list[_Row]:
    """The stages that were submitted, and those that are to come as far as something tells of them."""
    foretold = profile or []
    work_ms = sum(stage["tasks"] * stage["task_ms"] for stage in foretold)
    other_ms = work_ms / sum(stage["tasks"] for stage in foretold) if foretold else GUESS_MS
    found, matched = list[_Row](), set[int]()
    for stage in query["stages"]:
        tasks, durations = stage["tasks"], stage["durations"]
        if stage["state"] == "listed":
            if profile is None:
                found.append(_Row(tasks, 0, 0, 0.0, GUESS_MS, True))
            continue
        index = _match(foretold, matched, tasks)
        matched.add(index)
        task_ms = other_ms if index < 0 else foretold[index]["task_ms"]
        found.append(_Row(tasks, stage["started"], len(durations), math.fsum(durations), task_ms, True))
    unseen = [stage for index, stage in enumerate(foretold) if index not in matched]
    return found + [_Row(stage["tasks"], 0, 0, 0.0, stage["task_ms"], False) for stage in unseen]


def _match(foretold: list[Json], matched: set[int], tasks: int) -> int:
    """The foretold stage that a submitted one is: of those that could run, the most like it in tasks; -1 for none."""
    free = [index for index in range(len(foretold)) if index not in matched]
    ready = [index for index in free if matched.issuperset(foretold[index]["parents"])]
    return min(ready or free, key=lambda index: abs(math.log(foretold[index]["tasks"] / tasks)), default=-1)


def _stage(tasks: int, durations: list[float], running: int = 0) -> Json:
    state = "complete" if len(durations) == tasks else "submitted"
    return {"state": state, "tasks": tasks, "started": len(durations) + running, "durations": durations}


def _foretold(*stages: tuple[int, float, list[int]]) -> list[Json]:
    return [{"tasks": tasks, "task_ms": task_ms, "parents": parents} for tasks, task_ms, parents in stages]


def _hand_made() -> list[tuple[str, list[Json] | None, list[Json]]]:
    two = _foretold((8, 100.0, []), (4, 50.0, [0]))
    listed = {"state": "listed", "tasks": 10, "started": 0, "durations": []}
    return [
        ("unknown, nothing has run", None, [listed]),
        ("unknown, slower than the guess", None, [_stage(6, [400.0, 500.0], 2), listed]),
        ("foretold, nothing has run", two, []),
        ("foretold, listed only", two, [listed]),
        ("foretold, twice as slow", two, [_stage(8, [200.0] * 5, 3)]),
        ("foretold, half as slow", two, [_stage(8, [50.0] * 8), _stage(4, [], 2)]),
        ("all that was foretold is done", two, [_stage(8, [100.0] * 8), _stage(4, [50.0] * 4)]),
        ("ten times the tasks", two, [_stage(80, [100.0] * 40, 4)]),
        ("a last task that runs and runs", two, [_stage(8, [100.0] * 8), _stage(4, [900.0] * 3, 1)]),
        ("a stage that nobody foretold", two, [_stage(8, [90.0] * 8), _stage(4, [60.0] * 4), _stage(3, [70.0], 1)]),
        ("stages in another order", _foretold((2, 10.0, []), (16, 70.0, []), (3, 20.0, [0, 1])), [_stage(15, [80.0] * 6, 2)]),
    ]


def _drawn(draw: random.Random) -> tuple[list[Json] | None, list[Json]]:
    number = draw.randint(1, 6)
    profile = [
        {
            "tasks": draw.randint(1, 60),
            "task_ms": round(draw.lognormvariate(5.0, 1.2), 3),
            "parents": sorted(draw.sample(range(index), draw.randint(0, min(2, index)))),
        }
        for index in range(number)
    ]
    stages = []
    for index in range(draw.randint(0, number + 1)):
        like = profile[min(index, number - 1)]
        tasks = max(1, round(like["tasks"] * draw.choice([1.0, 1.0, 0.5, 3.0])))
        finished = draw.choice([tasks, draw.randint(0, tasks)])
        slow = draw.lognormvariate(0.0, 0.7)
        durations = [round(like["task_ms"] * slow * draw.uniform(0.5, 1.5), 3) for _ in range(finished)]
        stages.append(_stage(tasks, durations, draw.randint(0, min(4, tasks - finished))))
    return (profile if draw.random() < 0.7 else None), stages


def situations() -> Json:
    """The policy file, and the queries that are open at once with their remaining work and the order of them."""
    draw = random.Random(11)
    cases = _hand_made()
    cases += [(f"drawn {number}", *_drawn(draw)) for number in range(60)]
    jobs, queries = dict[str, Json](), []
    for name, profile, stages in cases:
        if profile is not None:
            work_ms = sum(stage["tasks"] * stage["task_ms"] for stage in profile)
            jobs[name] = {"work_ms": work_ms, "stages": profile}
        query: Json = {"name": name, "stages": stages}
        queries.append({**query, "remaining_ms": remaining_ms(query, profile) if stages or profile else 0.0})
    parameters = dict(zip((parameter.name for parameter in OrderParameter), EXPORTABLE["srpt"], strict=True))
    policy = {
        "format": "parcae-policy",
        "version": 1,
        "policy": "srpt",
        "kind": "order-rule",
        "parameters": parameters,
        "mean_work_ms": MEAN_WORK_MS,
        "guess_ms": GUESS_MS,
        "jobs": jobs,
    }
    order = sorted(range(len(queries)), key=lambda index: queries[index]["remaining_ms"])
    return {"policy": policy, "queries": queries, "order": order}


def write(path: Path = FIXTURE) -> None:
    """Write the fixture."""
    told = situations()
    queries = ",\n".join(json.dumps(query) for query in told.pop("queries"))
    head = json.dumps(told).removesuffix("}")
    write_text(path, f'{head}, "queries": [\n{queries}\n]}}\n')


if __name__ == "__main__":
    write()
