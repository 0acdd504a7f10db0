"""Names of classes are unique, and the core names no package that registers with it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

_SOURCE = REPOSITORY / "src" / "parcae"
_CORE = (
    *("base", "workloads", "cluster", "simulation", "policies", "learning", "evaluation"),
    *("service", "spark", "api", "cli"),
)
_OTHERS = re.compile(r"parcae\.(decima|rigid|environments|papers)\b")


def _classes() -> dict[str, list[str]]:
    """The modules of every public class, by its name."""
    found = defaultdict(list)
    for path in sorted(_SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(_SOURCE)))
    return found


def test_no_two_classes_have_one_name() -> None:
    assert {name: where for name, where in _classes().items() if len(where) > 1} == {}


def _named(path: Path) -> Iterator[str]:
    """The packages outside the core that a module imports, or names as "module:attribute"."""
    for node in ast.walk(ast.parse(path.read_text())):
        texts = []
        if isinstance(node, ast.ImportFrom):
            texts = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            texts = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
            texts = [node.value] if " " not in node.value else []
        yield from (text for text in texts if _OTHERS.match(text))


@pytest.mark.parametrize("package", _CORE)
def test_the_core_names_no_package_that_registers_with_it(package: str) -> None:
    modules = sorted((_SOURCE / package).rglob("*.py"))
    assert modules
    assert {str(path): list(_named(path)) for path in modules if list(_named(path))} == {}
