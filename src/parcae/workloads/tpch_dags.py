"""The DAGs of the TPC-H queries as the ERDOS simulator keeps them: in a file of their own."""

from __future__ import annotations

import re
from pathlib import Path

from parcae.errors import FormatError
from parcae.loader import parsed_json, read_file

#: The files, and where they are, seen from the folder of the profiles.
FILES = ("queries.yaml", "query_dag.json")
_FOLDERS = (".", "..", "../decima", "decima")
_PAIR = re.compile(r"\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_LAYOUT = '{"query_number": {"1": "[(0, 1), (1, 2)]", ...}}'
# The lines of queries.yaml: a query, one of its stages, the stages that follow this one.
_QUERY_LINE = re.compile(r"\s*- name: Q(\d{1,9})\s*$")
_STAGE_LINE = re.compile(r"\s*- name: (\d{1,9})\s*$")
_CHILDREN_LINE = re.compile(r"\s*children: \[(\s*(?:\d{1,9}\s*(?:,\s*|(?=\])))*)\]\s*$")
_OTHER_LINE = re.compile(r"\s*(#.*|graphs?:\s*)?$")

#: No query has nearly as many stages.
MAX_STAGES = 10_000

Edges = list[tuple[int, int]]


def dags_beside(folder: Path) -> dict[int, Edges] | None:
    """The edges (parent, child) of every query, from a file in or beside a folder of profiles.

    Returns:
        The edges by the number of the query; None if there is no such file.

    Raises:
        FormatError: a file of another layout.
        OSError: the file cannot be read.
    """
    places = [folder / place / name for place in _FOLDERS for name in FILES]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return None
    return _of_yaml(path) if path.suffix == ".yaml" else _of_json(path)


def parents_by_stage(where: str, edges: Edges) -> list[tuple[int, ...]]:
    """The parents of every stage; the stages are those that the edges name.

    Raises:
        FormatError: more stages than any query has. `where` is for its message.
    """
    num_stages = 1 + max((max(edge) for edge in edges), default=0)
    if num_stages > MAX_STAGES:
        raise FormatError(
            f"{where}: a DAG of {num_stages:,} stages; at most {MAX_STAGES:,} are read"
        )
    parents: list[list[int]] = [[] for _ in range(num_stages)]
    for parent, child in edges:
        parents[child].append(parent)
    return [tuple(of_stage) for of_stage in parents]


def _of_json(path: Path) -> dict[int, Edges]:
    data = parsed_json(path, read_file(path), _LAYOUT)
    try:
        return {
            int(query): [(int(a), int(b)) for a, b in _PAIR.findall(str(edges))]
            for query, edges in data["query_number"].items()
        }
    except (LookupError, TypeError, AttributeError, ValueError):
        raise FormatError(f"{path}: expected {_LAYOUT}") from None


def _of_yaml(path: Path) -> dict[int, Edges]:
    """Read the few forms of lines that the file has; no library of YAML is needed for them."""
    dags: dict[int, Edges] = {}
    query = stage = -1
    for number, line in enumerate(read_file(path).decode(errors="replace").splitlines(), 1):
        if found := _QUERY_LINE.match(line):
            query = int(found[1])
            dags[query] = []
        elif query >= 0 and (found := _STAGE_LINE.match(line)):
            stage = int(found[1])
        elif query >= 0 and (found := _CHILDREN_LINE.match(line)):
            dags[query] += [(stage, int(child)) for child in found[1].split(",") if child.strip()]
        elif not _OTHER_LINE.match(line):
            raise FormatError(
                f"{path}:{number}: {line.strip()[:40]!r}; expected '- name: Q1', '- name: 0' or "
                "'children: [1, 2]'"
            )
    return dags
