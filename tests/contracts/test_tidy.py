"""Nothing dead is kept: functions, modules and fixtures that nothing uses."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import parcae
from tests.conftest import REPOSITORY

_SOURCE = REPOSITORY / "src"
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
#: A function with one of these is called by whoever reads the decorator.
_REGISTERING = re.compile(
    r"command|callback|overload|register|lower_|field_validator|model_validator|CFUNCTYPE|setter|\.of\("
)
#: What users' own programs call.
_CALLED_FROM_OUTSIDE = {
    "register_objective",
    "register_reader",
    # The rules of Duan and Wu for known jobs.
    "idle_pays",
    "sequential_slots",
    "one_stage",  # a DAG as one stage of all its work (Duan and Wu)
    "encode_images",
    "StableBaselinesEnv",
    "_repr_html_",  # notebooks
    # Tables of a run or a comparison.
    "to_frame",
    "recurring_frame",
    # What a plain function sees of a job.
    "age_s",
    "total_s",
    "remaining_s",
}
#: Modules that only users' own programs import.
_IMPORTED_FROM_OUTSIDE = {"parcae.environments.stable_baselines"}


def _definitions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node


def _words(tree: ast.AST) -> Iterator[str]:
    """The words of code; a name in a docstring or a comment does not count as a use."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        names = [getattr(node, field, None) for field in ("id", "attr", "name", "asname", "arg")]
        names.append(getattr(node, "module", None))
        if isinstance(node, ast.Constant) and node not in docstrings:
            names.append(node.value)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            names += node.names
        for name in names:
            if isinstance(name, str):
                yield from _WORD.findall(name)


def _is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    return any(_REGISTERING.search(ast.unparse(decorator)) for decorator in node.decorator_list)


def _overrides(tree: ast.AST) -> set[str]:
    """The methods of classes with bases: a base may call them."""
    return {
        method.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.bases
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.AST]:
    """The code of every module of the package."""
    return {path: ast.parse(path.read_text()) for path in _SOURCE.rglob("*.py")}


def test_every_function_and_class_of_the_package_is_used(trees: dict[Path, ast.AST]) -> None:
    definitions = [(path, node) for path, tree in trees.items() for node in _definitions(tree)]
    overrides = set().union(*map(_overrides, trees.values()))
    declared = Counter(node.name for _, node in definitions)
    used = Counter(_WORD.findall((REPOSITORY / "pyproject.toml").read_text()))
    for tree in trees.values():
        used.update(_words(tree))
    dead = [
        f"{path.relative_to(_SOURCE)}: {node.name}"
        for path, node in definitions
        if used[node.name] <= declared[node.name]
        and not node.name.startswith("__")
        and node.name not in overrides | _CALLED_FROM_OUTSIDE | set(parcae.__all__)
        and not _is_registered(node)
    ]
    assert not dead


def test_every_module_of_the_package_is_imported(trees: dict[Path, ast.AST]) -> None:
    imported = set()
    for path in [*trees, REPOSITORY / "pyproject.toml"]:
        for dotted in re.findall(r"parcae(?:\.\w+)+", path.read_text()):
            parts = dotted.split(".")
            imported |= {".".join(parts[:end]) for end in range(2, len(parts) + 1)}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    modules = {".".join(path.relative_to(_SOURCE).with_suffix("").parts) for path in trees}
    dead = {name for name in modules - imported if not name.endswith("__init__")}
    assert dead <= _IMPORTED_FROM_OUTSIDE


def test_every_fixture_is_used() -> None:
    texts = {path: path.read_text() for path in (REPOSITORY / "tests").rglob("*.py")}
    used = Counter(word for text in texts.values() for word in _WORD.findall(text))
    dead = [
        f"{path.relative_to(REPOSITORY)}: {node.name}"
        for path, text in texts.items()
        for node in _definitions(ast.parse(text))
        if any("pytest.fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
        and not any("autouse" in ast.unparse(decorator) for decorator in node.decorator_list)
        and used[node.name] < 2
    ]
    assert not dead
