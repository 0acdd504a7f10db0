"""Nothing dead is kept: functions, modules and fixtures that nothing uses."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import parcae
from tests.conftest import REPOSITORY

_SOURCE = REPOSITORY / "src"
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
#: A function with one of these is called by whoever reads the decorator.
_REGISTERING = re.compile(
    r"command|callback|overload|register|field_validator|model_validator|CFUNCTYPE|setter|\.of\("
)
#: What users' own programs call.
_CALLED_FROM_OUTSIDE = {
    "register_objective",
    "register_reader",
    # The rules of Duan and Wu for known jobs.
    "idle_pays",
    "sequential_slots",
    "one_stage",  # a DAG as one stage of all its work (Duan and Wu)
    "Images",  # the images of DeepRM's cluster
    "encode_images",
    "StableBaselinesEnv",
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


def _without_docstrings(tree: ast.AST) -> str:
    """The code, in which a name in a docstring or a comment does not count as a use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.unparse(tree)


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


def test_every_function_and_class_of_the_package_is_used() -> None:
    trees = {path: ast.parse(path.read_text()) for path in _SOURCE.rglob("*.py")}
    definitions = [(path, node) for path, tree in trees.items() for node in _definitions(tree)]
    overrides = set().union(*map(_overrides, trees.values()))
    declared = Counter(node.name for _, node in definitions)
    used = Counter(_WORD.findall((REPOSITORY / "pyproject.toml").read_text()))
    for tree in trees.values():
        used.update(_WORD.findall(_without_docstrings(tree)))
    dead = [
        f"{path.relative_to(_SOURCE)}: {node.name}"
        for path, node in definitions
        if used[node.name] <= declared[node.name]
        and not node.name.startswith("__")
        and node.name not in overrides | _CALLED_FROM_OUTSIDE | set(parcae.__all__)
        and not _is_registered(node)
    ]
    assert not dead


def test_every_module_of_the_package_is_imported() -> None:
    texts = {path: path.read_text() for path in _SOURCE.rglob("*.py")}
    everything = "\n".join([*texts.values(), (REPOSITORY / "pyproject.toml").read_text()])
    dead = []
    for path in texts:
        *package, name = path.relative_to(_SOURCE).with_suffix("").parts
        dotted = ".".join([*package, name])
        imported = rf"from {re.escape('.'.join(package))} import [^\n]*\b{name}\b"
        several = rf"from {re.escape('.'.join(package))} import \([^)]*\b{name}\b"
        uses = [rf"\b{re.escape(dotted)}\b", imported, several]
        if name != "__init__" and not any(re.search(use, everything) for use in uses):
            dead.append(dotted)
    assert set(dead) <= _IMPORTED_FROM_OUTSIDE


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
