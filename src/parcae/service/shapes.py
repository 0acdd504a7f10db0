"""Whether two DAGs are the same but for the order of their stages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

#: Order-free fingerprint of a DAG: the sorted colours of its stages.
Signature = tuple[bytes, ...]


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=8).digest()


def stage_colors(num_tasks: Sequence[int], parents: Sequence[Sequence[int]]) -> list[bytes]:
    """A colour for every stage: its tasks, refined as often as there are stages by its parents' and children's colours.

    Stages that correspond in two DAGs that are the same but for the order have the same colour (Weisfeiler-Lehman).
    """
    children: list[list[int]] = [[] for _ in parents]
    for stage, own in enumerate(parents):
        for parent in own:
            children[parent].append(stage)
    colors = [_digest(str(count).encode()) for count in num_tasks]
    for _ in range(len(colors)):
        colors = [
            _digest(color, b"<", *sorted(colors[p] for p in above), b">", *sorted(colors[c] for c in below))
            for color, above, below in zip(colors, parents, children, strict=True)
        ]
    return colors


def signature(colors: Sequence[bytes]) -> Signature:
    """What is the same for every order of the stages."""
    return tuple(sorted(colors))


def matching_order(
    known_colors: Sequence[bytes],
    known_parents: Sequence[Sequence[int]],
    colors: Sequence[bytes],
    parents: Sequence[Sequence[int]],
    topological_order: Sequence[int],
) -> tuple[int, ...] | None:
    """For every stage of the known DAG the stage of the other that corresponds; None where the DAGs differ.

    Args:
        known_colors, known_parents: of the known DAG.
        colors, parents: of the other.
        topological_order: the known DAG's stages, parents first.

    Example: a chain 5 -> 3 and one that lists its stages as (3 tasks, 5 tasks) match in the order (1, 0).
    """
    if signature(known_colors) != signature(colors):
        return None
    by_kind: dict[tuple[bytes, frozenset[int]], list[int]] = {}
    for stage, (color, above) in enumerate(zip(colors, parents, strict=True)):
        by_kind.setdefault((color, frozenset(above)), []).append(stage)
    order = [-1] * len(known_colors)
    for stage in topological_order:
        alike = by_kind.get((known_colors[stage], frozenset(order[parent] for parent in known_parents[stage])))
        if not alike:
            return None
        order[stage] = alike.pop(0)
    return tuple(order)
