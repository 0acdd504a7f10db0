"""Reads from a SQL plan its operators, and the broadcasts and subqueries for which operators wait.

These are dependencies between stages that the stages' parents do not show.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Values of the importer's `--key` that name queries by `plan_name` and by `shape_name`.
PLAN_KEY = "plan"
SHAPE_KEY = "shape"
#: Local property of Spark by which a user can name the jobs of a thread.
NAME_PROPERTY = "spark.parcae.jobKey"

_DIGITS = 16
#: Patterns of text that differs between runs of one query, with their replacements, in this order.
_VARYING = (
    # Without brackets behind a location there are none behind later ones of its line: the rest of
    # the line is kept and read once. So the time is linear, however long the line is.
    (
        re.compile(r"Location: ([A-Za-z]++)(?:[^\[\n]*+\[[^\]\n]*+\]|([^\n]*+))"),
        r"Location: \1\2",
    ),
    (re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:/[^ ,)\]\n]*"), ""),
    (re.compile(r"path=[^ ,)\]\n]*"), "path="),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), ""),
    (re.compile(r"\$\$Lambda[^ ,)\]\n]*"), "Lambda"),
    (re.compile(r"@[0-9a-f]{4,16}"), ""),
    (re.compile(r"RDD\[[0-9]+\]"), "RDD"),
    (re.compile(r"\[(?:plan_)?id=#?[0-9]+\]"), ""),
)
_EXPRESSION_ID = re.compile(r"#[0-9]+L?")
#: A line of Spark's formatted plans without literals: an operator of the tree, or a paragraph's
#: title.
_OPERATOR = re.compile(r"[ :+*-]*[A-Za-z][^:\n]*\([0-9]+\)|\([0-9]+\) [^\n]*")
_FIRST_WORD = re.compile(r"[ :+*()0-9-]*[A-Za-z]*")
#: A word, and what follows a column (its id) or a function (its arguments). The quantifier keeps
#: all it took, so that a word is read once, however long a literal is.
_WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*+)(#[0-9]|\()?")


#: A scan of a table that a catalog knows, and the folder of files that a scan reads.
_TABLE = re.compile(r"Scan (?:[A-Za-z]+ )?((?:[A-Za-z_]\w{0,80}\.){1,4})(\w{1,80})")
_LOCATION = re.compile(r"Location: [A-Za-z]{1,40} ?(?:\([^)\n]{0,40}\))?\[([^\],\n]*)")
#: A part of a path that says what the files are: no date, no number, no partition.
_TELLING = re.compile(r"(?![^/]*[0-9]{4})[A-Za-z_][^/=:]*")
_MOST_TABLES = 3


class PlanNames(NamedTuple):
    """The two names of a plan: with literals and without; and the tables that it reads."""

    plan: str
    shape: str
    tables: tuple[str, ...] = ()


def plan_names(description: str) -> PlanNames:
    """Both names of a query.

    Example: `plan_names(event["physicalPlanDescription"]).plan` is like "plan-0f3a...", with 16
    digits.
    """
    return PlanNames(plan_name(description), shape_name(description), _tables(description))


def _tables(description: str) -> tuple[str, ...]:
    """The first tables or folders that a plan reads, as far as their names tell something."""
    found = [table for _, table in _TABLE.findall(description)]
    for place in _LOCATION.findall(description):
        # Behind the host of an address.
        folders = place.partition("://")[2].split("/")[1:] or place.split("/")
        found += [name for name in reversed(folders) if _TELLING.fullmatch(name)][:1]
    return tuple(dict.fromkeys(found))[:_MOST_TABLES]


def plan_name(description: str) -> str:
    """The query's name by its whole plan, including literals but not ids and paths."""
    return "plan-" + _hash(_EXPRESSION_ID.sub("", _without_varying_parts(description)))


def shape_name(description: str) -> str:
    """The query's name by its operators, columns and functions; literals do not matter."""
    lines = _without_varying_parts(description).split("\n")
    shape_lines = (line if _OPERATOR.fullmatch(line) else _without_literals(line) for line in lines)
    return "shape-" + _hash("\n".join(shape_lines))


def _without_varying_parts(description: str) -> str:
    """The description without the parts that differ between runs of one query."""
    for pattern, replacement in _VARYING:
        description = pattern.sub(replacement, description)
    return description


def _without_literals(line: str) -> str:
    """The first word of a line, and the columns and functions in the line."""
    first = _FIRST_WORD.match(line)
    end = first.end() if first else 0
    references = [word for word, follower in _WORD.findall(line, end) if follower]
    return " ".join([line[:end], *references])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGITS]


#: Operators whose input is computed by another stage and passed on by a shuffle (visible in Parent
#: IDs).
_SHUFFLES = ("Exchange", "ShuffleExchange", "ReusedExchange")
#: Operators whose input is computed by another stage and passed on by the driver.
_LINKS = ("BroadcastExchange", "Subquery", "SubqueryBroadcast", "SubqueryAdaptiveBroadcast")
_PLAN_ID = re.compile(r"\[(?:plan_)?id=#?(\d+)\]")
#: The metric in which the driver counts the bytes of the files that a scan reads.
_BYTES_OF_FILES = "size of files read"
#: The names of operators that write rows.
_WRITE = re.compile(
    r"^(?:Execute )?(?:Insert|Save|Append|Overwrite|Replace|Write|\w{0,40}AsSelect)"
)
#: A type in a schema that has no types inside, and the end of one of more columns than are written.
_TYPE = re.compile(r"[:<,]([a-z_]+)(?:\([0-9, ]*\))?(?=[,>]|$)")
_MORE_FIELDS = re.compile(r"\.\.\. (\d{1,6}) more fields>$")
#: What Spark's optimiser assumes for a value of a type, and for one of any other.
_BYTES = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "date": 4, "float": 4}
_BYTES |= dict.fromkeys(("bigint", "double", "decimal", "timestamp", "timestamp_ntz"), 8)
_OTHER_BYTES = 20
#: Deeper levels of a plan are ignored, because of Python's recursion limit.
_MAX_DEPTH = 400


class PlanLink(NamedTuple):
    """A broadcast or a subquery.

    `producer` are the accumulators (metrics) of its operators, `consumers` those of the operators
    above it, nearest first.
    """

    producer: frozenset[int]
    consumers: tuple[frozenset[int], ...]


class Scan(NamedTuple):
    """A scan of files: the table's folders, the bytes of a row by the types of the columns that it
    reads, and the accumulator in which the driver counts the bytes of its files.
    """

    table: str
    row_bytes: int
    accumulator: int


class SqlPlan(NamedTuple):
    """The relevant content of a SQL plan.

    `links` are its broadcasts and subqueries; `operators` are pairs (accumulator, operator), inputs
    first; `is_write` says whether it writes rows to a table or to files.
    """

    links: tuple[PlanLink, ...] = ()
    operators: tuple[tuple[int, str], ...] = ()
    scans: tuple[Scan, ...] = ()
    is_write: bool = False


@dataclass(eq=False)
class _Segment:
    """Operators that run in one stage: the part of the plan between exchanges."""

    above: _Segment | None
    accumulators: set[int] = field(default_factory=set)

    def consumers(self) -> tuple[frozenset[int], ...]:
        """The accumulators of the segments above, nearest first; empty segments are left out."""
        found = []
        segment = self.above
        while segment is not None:
            found.append(frozenset(segment.accumulators))
            segment = segment.above
        return tuple(filter(None, found))


def read_plan(plan: Any) -> SqlPlan:
    """Read the operators, broadcasts and subqueries of a `sparkPlanInfo`.

    Example: a join with a broadcast side gives one link, from the metrics below the
    BroadcastExchange to the join's metrics.
    """
    links: list[_Segment] = []
    by_plan_id: dict[str, _Segment] = {}
    reused: list[tuple[str, _Segment]] = []
    operators: list[tuple[int, str]] = []
    scans: list[Scan] = []
    writes: list[str] = []

    def walk(node: Any, segment: _Segment, depth: int) -> None:
        name = str(node.get("nodeName", ""))
        writes.extend(_WRITE.findall(name))
        below = segment
        if name in _LINKS or name in _SHUFFLES:
            # An exchange ends the segment above it.
            below = _Segment(segment)
            if name in _LINKS:
                links.append(below)
            if plan_ids := _PLAN_ID.findall(str(node.get("simpleString", ""))):
                if name == "ReusedExchange":
                    reused.append((plan_ids[-1], segment))
                else:
                    by_plan_id[plan_ids[-1]] = below
        else:
            ids = [int(metric["accumulatorId"]) for metric in node.get("metrics") or ()]
            segment.accumulators.update(ids)
            operators.extend((accumulator, name.strip()) for accumulator in ids)
            scans.extend(_scans(node))
        if depth < _MAX_DEPTH:
            for child in node.get("children") or ():
                walk(child, below, depth + 1)

    if plan:
        walk(plan, _Segment(None), 0)
    pairs = [(link, link.consumers()) for link in links]
    # The tree contains the plan of a reused exchange only once; the other places refer to its id.
    for plan_id, consumer in reused:
        producer = by_plan_id.get(plan_id)
        if producer is not None and producer in links:
            pairs.append((producer, _Segment(consumer).consumers()))
    complete = tuple(
        PlanLink(frozenset(link.accumulators), consumers)
        for link, consumers in pairs
        if link.accumulators and consumers
    )
    return SqlPlan(complete, tuple(reversed(operators)), tuple(scans), bool(writes))


def _scans(node: Any) -> Iterator[Scan]:
    """The scan of files that an operator is, if it is one."""
    metadata = node.get("metadata") or {}
    for metric in node.get("metrics") or ():
        if metric.get("name") == _BYTES_OF_FILES:
            row_bytes = bytes_of_row(str(metadata.get("ReadSchema", "")))
            yield Scan(str(metadata.get("Location", "")), row_bytes, int(metric["accumulatorId"]))


def bytes_of_row(schema: str) -> int:
    """The bytes of a row of a schema as Spark writes it, at least 1.

    Example: `bytes_of_row("struct<a:int,b:struct<c:date,d:string>,... 3 more fields>")` is 88.
    """
    more = _MORE_FIELDS.search(schema)
    fields = [_BYTES.get(kind, _OTHER_BYTES) for kind in _TYPE.findall(schema)]
    return max(1, sum(fields) + (int(more[1]) * _OTHER_BYTES if more else 0))
