"""Algorithms on DAGs: children, topological order, longest paths, signatures.

A DAG is given by the parents of each node: entry i of a sequence holds the indices of the parents
of node i.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

Parents = Sequence[Collection[int]]


def children_of(parents: Parents) -> list[list[int]]:
    """The children of each node, ascending."""
    children: list[list[int]] = [[] for _ in parents]
    for node, node_parents in enumerate(parents):
        for parent in node_parents:
            children[parent].append(node)
    return children


def topological_order(parents: Parents) -> tuple[list[int], list[int]]:
    """The nodes, parents before children (Kahn's algorithm). Returns the order, and the nodes that
    are missing in it: those on a cycle or behind one.
    """
    children = children_of(parents)
    missing = [len(node_parents) for node_parents in parents]
    order = [node for node, count in enumerate(missing) if count == 0]
    # `order` grows while the loop runs over it: it is also the queue of nodes to visit.
    for node in order:
        for child in children[node]:
            missing[child] -= 1
            if missing[child] == 0:
                order.append(child)
    return order, [node for node, count in enumerate(missing) if count > 0]


def spark_roots(parents: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Stages without parents in Spark's submission order: depth first from the final stages.

    Source: Spark, DAGScheduler.submitStage (missing parents by ascending id).
    """
    children = children_of(parents)
    order: list[int] = []
    seen: set[int] = set()
    pending = [stage for stage in reversed(range(len(parents))) if not children[stage]]
    while pending:
        stage = pending.pop()
        if stage in seen:
            continue
        seen.add(stage)
        if not parents[stage]:
            order.append(stage)
        pending.extend(reversed(parents[stage]))
    return tuple(order)


def longest_paths(
    children: Sequence[Sequence[int]], order: Sequence[int], weights: Sequence[float]
) -> list[float]:
    """For every node the largest sum of weights over the paths that start there.

    The weight of the node itself is included.
    """
    longest = [0.0] * len(children)
    for node in reversed(order):
        longest[node] = weights[node] + max((longest[child] for child in children[node]), default=0)
    return longest


def refined_classes(parents: Parents, labels: Sequence[object]) -> list[int]:
    """A number per node, equal for nodes with equal label, ancestors and descendants.

    Classes are refined by those of parents and children until none is split (Weisfeiler-Leman). The
    numbers are ranks within the DAG, so they can be compared between DAGs of the same shape.
    """
    children = children_of(parents)
    numbers = _ranks(labels)
    for _ in parents:
        refined = _ranks(
            [
                (
                    numbers[node],
                    sorted(numbers[parent] for parent in node_parents),
                    sorted(numbers[child] for child in children[node]),
                )
                for node, node_parents in enumerate(parents)
            ]
        )
        # No class was split, so another round would not split any.
        if max(refined) == max(numbers):
            break
        numbers = refined
    return numbers


def _ranks(keys: Sequence[object]) -> list[int]:
    rank = {text: position for position, text in enumerate(sorted({repr(key) for key in keys}))}
    return [rank[repr(key)] for key in keys]


def signatures(parents: Parents, order: Sequence[int], labels: Sequence[str]) -> list[str]:
    """A text per node, equal for nodes with equal label, ancestors and descendants.

    Unlike the numbers of `refined_classes`, the texts can be compared between any DAGs.
    """
    children = children_of(parents)
    # First pass, from the roots: the signature of a node and its ancestors.
    above = [""] * len(parents)
    for node in order:
        above[node] = _digest([labels[node], *sorted(above[parent] for parent in parents[node])])
    # Second pass, from the leaves: the same with the descendants.
    below = [""] * len(parents)
    for node in reversed(order):
        below[node] = _digest([above[node], *sorted(below[child] for child in children[node])])
    return below


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
