"""Reads from a SQL plan its operators, and which of them wait for a broadcast or a subquery: edges that stages' parents
do not show.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Operators below which another stage runs whose result reaches the operators above through a shuffle (Parent IDs).
_SHUFFLES = ("Exchange", "ShuffleExchange", "ReusedExchange")
#: Operators below which another stage runs whose result reaches the operators above through the driver.
_LINKS = ("BroadcastExchange", "Subquery", "SubqueryBroadcast", "SubqueryAdaptiveBroadcast")
_PLAN_ID = re.compile(r"\[(?:plan_)?id=#?(\d+)\]")
#: Plans nested deeper are cut off there (Python's recursion).
_MAX_DEPTH = 400


class PlanLink(NamedTuple):
    """A broadcast or a subquery: accumulators of its operators, and of the operators above it, nearest first."""

    producer: frozenset[int]
    consumers: tuple[frozenset[int], ...]


class Plan(NamedTuple):
    """What is kept of a SQL plan: its links, and the operator of each accumulator, inputs first."""

    links: tuple[PlanLink, ...] = ()
    operators: tuple[tuple[int, str], ...] = ()


@dataclass(eq=False)
class _Segment:
    """Operators that run in one stage: a piece of the plan between exchanges."""

    above: _Segment | None
    is_link: bool = False
    accumulators: set[int] = field(default_factory=set)

    def consumers(self) -> tuple[frozenset[int], ...]:
        found = []
        segment = self.above
        while segment is not None:
            if segment.accumulators:
                found.append(frozenset(segment.accumulators))
            segment = segment.above
        return tuple(found)


@dataclass(eq=False)
class _Cut:
    """The segments of a plan, those of exchanges by plan id, and where an exchange is reused."""

    segments: list[_Segment] = field(default_factory=list)
    by_plan_id: dict[str, _Segment] = field(default_factory=dict)
    reused: list[tuple[str, _Segment]] = field(default_factory=list)
    operators: list[tuple[int, str]] = field(default_factory=list)


def read_plan(plan: Any) -> Plan:
    """The operators, broadcasts and subqueries of a `sparkPlanInfo`.

    Example: a join with a broadcast side gives one link: the metrics below the BroadcastExchange, the join's metrics.
    """
    if not plan:
        return Plan()
    cut = _Cut()
    root = _Segment(None)
    cut.segments.append(root)
    _walk(plan, root, cut, 0)
    links = [PlanLink(frozenset(s.accumulators), s.consumers()) for s in cut.segments if s.is_link]
    for plan_id, consumer in cut.reused:
        producer = cut.by_plan_id.get(plan_id)
        if producer is not None and producer.is_link:
            above = _Segment(consumer).consumers()
            links.append(PlanLink(frozenset(producer.accumulators), above))
    telling = tuple(link for link in links if link.producer and link.consumers)
    return Plan(telling, tuple(reversed(cut.operators)))


def _walk(node: Any, segment: _Segment, cut: _Cut, depth: int) -> None:
    name = str(node.get("nodeName", ""))
    below = segment
    if name in _LINKS or name in _SHUFFLES:
        plan_ids = _PLAN_ID.findall(str(node.get("simpleString", "")))
        if name == "ReusedExchange" and plan_ids:
            cut.reused.append((plan_ids[-1], segment))
        below = _Segment(segment, is_link=name in _LINKS)
        cut.segments.append(below)
        if plan_ids and name != "ReusedExchange":
            cut.by_plan_id[plan_ids[-1]] = below
    else:
        ids = [int(metric["accumulatorId"]) for metric in node.get("metrics") or ()]
        segment.accumulators.update(ids)
        cut.operators += [(accumulator, name.strip()) for accumulator in ids]
    if depth < _MAX_DEPTH:
        for child in node.get("children") or ():
            _walk(child, below, cut, depth + 1)
