"""The weight of the house: `make weight` prints it, `make check` holds it against the budget.

    python benchmarks/weight.py                  the weight of every package, beside its budget
    python benchmarks/weight.py --against REV    the weight of the whole tree, before and after

A commit that needs more than `budget.toml` allows changes the table and says why.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

REPOSITORY = Path(__file__).parent.parent
BUDGET = REPOSITORY / "benchmarks" / "budget.toml"
Texts = dict[PurePosixPath, str]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, *_FUNCTIONS)
_IMPORTS = (ast.Import, ast.ImportFrom)


def working_tree() -> Texts:
    """The Python and Markdown files that git knows, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.md"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    found = [PurePosixPath(name) for name in listed]
    return {
        path: (REPOSITORY / path).read_text() for path in found if (REPOSITORY / path).is_file()
    }


def revision(name: str) -> Texts:
    """The Python and Markdown files of a commit."""
    packed = subprocess.run(
        ["git", "archive", name], cwd=REPOSITORY, capture_output=True, check=True
    ).stdout
    texts: Texts = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.name.endswith((".py", ".md")) else None
            if content is not None:
                texts[PurePosixPath(member.name)] = content.read().decode()
    return texts


def package_of(path: PurePosixPath) -> str:
    """The package below `parcae` that a module belongs to."""
    return path.parts[2] if len(path.parts) > 3 else "parcae"


def weights(texts: Texts) -> dict[str, Counter[str]]:
    """What every package weighs."""
    packages: dict[str, Counter[str]] = {}
    for path, text in texts.items():
        if path.parts[0] == "src" and path.suffix == ".py":
            packages.setdefault(package_of(path), Counter()).update(module_weight(text))
    return packages


def module_weight(text: str) -> Counter[str]:
    """What one module weighs."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    inner = [n for node in nodes if isinstance(node, _FUNCTIONS) for n in own_imports(node)]
    return Counter(
        {
            "files": 1,
            "lines": text.count("\n"),
            "AST nodes": len(nodes),
            "docstring lines": sum(map(docstring_lines, nodes)),
            "imports inside functions": len(inner),
        }
    )


def own_imports(function: ast.AST) -> Iterator[ast.AST]:
    """The imports in a function's body, without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, _IMPORTS):
            yield child
        elif not isinstance(child, _FUNCTIONS):
            yield from own_imports(child)


def docstring_lines(node: ast.AST) -> int:
    """The number of lines of a node's docstring, 0 if it has none."""
    if not isinstance(node, _WITH_DOCSTRINGS) or ast.get_docstring(node) is None:
        return 0
    docstring = node.body[0]
    return (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1


def tree_weight(texts: Texts) -> Counter[str]:
    """The weight of a whole tree: the package, its tests and its documents."""
    total: Counter[str] = Counter()
    for counted in weights(texts).values():
        total.update(counted)
    for path, text in texts.items():
        if path.suffix == ".md":
            total["words of Markdown"] += len(text.split())
        elif path.parts[0] == "tests":
            total["lines of tests"] += text.count("\n")
    for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md"):
        total[f"words of {name}"] = len(texts.get(PurePosixPath(name), "").split())
    return total


def print_comparison(before: Counter[str], after: Counter[str], name: str) -> None:
    """Print two weights side by side."""
    print(f"| | {name} | now | ratio |\n|---|---|---|---|")
    for what in after:
        ratio = f"{after[what] / before[what]:.2f}" if before[what] else ""
        print(f"| {what} | {before[what]:,} | {after[what]:,} | {ratio} |")


def excess(packages: dict[str, Counter[str]], budget: dict[str, dict[str, int]]) -> list[str]:
    """What is heavier than its budget, in words."""
    found = [f"{name}: no budget" for name in packages if name not in budget]
    for name, allowed in budget.items():
        for what, key in (("lines", "lines"), ("AST nodes", "nodes")):
            weight = packages.get(name, Counter())[what]
            if weight > allowed[key]:
                found.append(f"{name}: {weight:,} {what}, {allowed[key]:,} in the budget")
    return found


def print_packages(packages: dict[str, Counter[str]], budget: dict[str, dict[str, int]]) -> None:
    """Print the weight of every package beside its budget."""
    print(f"{'package':14}{'files':>6}{'lines':>8}{'of':>8}{'AST nodes':>11}{'of':>9}")
    none = {"lines": 0, "nodes": 0}
    for name in sorted(packages, key=lambda name: -packages[name]["AST nodes"]):
        weight = packages[name]
        allowed = budget.get(name, none)
        print(
            f"{name:14}{weight['files']:6}{weight['lines']:8,}{allowed['lines']:8,}"
            f"{weight['AST nodes']:11,}{allowed['nodes']:9,}"
        )
    total = sum(packages.values(), Counter())
    lines = sum(allowed["lines"] for allowed in budget.values())
    nodes = sum(allowed["nodes"] for allowed in budget.values())
    print(
        f"{'in all':14}{total['files']:6}{total['lines']:8,}{lines:8,}"
        f"{total['AST nodes']:11,}{nodes:9,}"
    )


def main() -> None:
    """Print the weight; exit with 1 if a package exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="REV", help="compare with this commit")
    given = parser.parse_args()
    texts = working_tree()
    if given.against:
        print_comparison(tree_weight(revision(given.against)), tree_weight(texts), given.against)
        return
    packages = weights(texts)
    budget = tomllib.loads(BUDGET.read_text())
    print_packages(packages, budget)
    too_much = excess(packages, budget)
    for line in too_much:
        print(f"over the budget: {line}; change {BUDGET.name} and say why", file=sys.stderr)
    sys.exit(bool(too_much))


if __name__ == "__main__":
    main()
