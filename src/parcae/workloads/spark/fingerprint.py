"""Names of recurring SQL queries by their physical plan: the same in every session and run.

The Java class `parcae.spark.guest.Fingerprint` has the same two functions; a fixture holds both to
the same names.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

#: `--key` of the importer that names queries by `plan_name`, and by `shape_name`.
PLAN_KEY = "plan"
SHAPE_KEY = "shape"
#: Local property of Spark with which a user names the jobs of a thread.
NAME_PROPERTY = "spark.parcae.jobKey"

_DIGITS = 16
#: What differs between runs of one query, and what stands for it, in the order of replacement.
_VARYING = (
    (re.compile(r"Location: ([A-Za-z]+)[^\[\n]*\[[^\]\n]*\]"), r"Location: \1"),
    (re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:/[^ ,)\]\n]*"), ""),
    (re.compile(r"path=[^ ,)\]\n]*"), "path="),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), ""),
    (re.compile(r"\$\$Lambda[^ ,)\]\n]*"), "Lambda"),
    (re.compile(r"@[0-9a-f]{4,16}"), ""),
    (re.compile(r"RDD\[[0-9]+\]"), "RDD"),
    (re.compile(r"\[(?:plan_)?id=#?[0-9]+\]"), ""),
)
_EXPRESSION_ID = re.compile(r"#[0-9]+L?")
#: An operator of the tree, or the title of its paragraph, in Spark's formatted plans: no literals.
_OPERATOR = re.compile(r"[ :+*-]*[A-Za-z][^:\n]*\([0-9]+\)|\([0-9]+\) [^\n]*")
_FIRST_WORD = re.compile(r"[ :+*()0-9-]*[A-Za-z]*")
#: A column (its id follows) or a function (its arguments follow).
_REFERENCE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?=#[0-9]|\()")


class PlanNames(NamedTuple):
    """The two names of a plan: with its literals, and without."""

    plan: str
    shape: str


def plan_names(description: str) -> PlanNames:
    """Both names of a query.

    Args:
        description: `physicalPlanDescription` of the event `SparkListenerSQLExecutionStart`.

    Example: `plan_names(event["physicalPlanDescription"]).plan` is like "plan-0f3a...", 16 digits.
    """
    return PlanNames(plan_name(description), shape_name(description))


def plan_name(description: str) -> str:
    """The query's name by its whole plan, literals included: without ids and paths."""
    return "plan-" + _hash(_EXPRESSION_ID.sub("", _lasting(description)))


def shape_name(description: str) -> str:
    """The query's name by its operators, columns and functions, whatever its literals are."""
    lines = _lasting(description).split("\n")
    bare = (line if _OPERATOR.fullmatch(line) else _bare(line) for line in lines)
    return "shape-" + _hash("\n".join(bare))


def _lasting(description: str) -> str:
    for pattern, replacement in _VARYING:
        description = pattern.sub(replacement, description)
    return description


def _bare(line: str) -> str:
    """The first word of a line, and the columns and functions in it."""
    first = _FIRST_WORD.match(line)
    end = first.end() if first else 0
    return " ".join([line[:end], *_REFERENCE.findall(line, end)])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGITS]
