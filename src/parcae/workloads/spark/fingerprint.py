"""Names recurring SQL queries by a hash of their physical plan, which is the same in every session.

The Java class `parcae.spark.guest.Fingerprint` implements the same functions; a test fixture checks
that both give the same names.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

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


class PlanNames(NamedTuple):
    """The two names of a plan: with literals and without."""

    plan: str
    shape: str


def plan_names(description: str) -> PlanNames:
    """Both names of a query.

    Args:
        description: `physicalPlanDescription` of the event `SparkListenerSQLExecutionStart`.

    Example: `plan_names(event["physicalPlanDescription"]).plan` is like "plan-0f3a...", with 16
    digits.
    """
    return PlanNames(plan_name(description), shape_name(description))


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
