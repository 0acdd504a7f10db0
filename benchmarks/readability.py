"""Print how readable the code is, in the figures that the project watches: a mirror, not a gate.

    python benchmarks/readability.py [--words] [--long] [--args] [FOLDER ...]

Every figure is counted over the Python files under the folders (default: src), with what it should
be beside it:

- body: the lines of a function without its docstring, signature and decorators;
- nodes: the nodes of a function's syntax tree, without its docstring;
- parallel: the share of assignments that put several values into several names (`a, b = x, y`);
- comments: comment lines for each line of code;
- args: the share of public functions with three or more parameters whose docstring has an `Args:`
  section;
- hard words: words that a reader has to translate (`HARD_WORDS`), in names, prose and Java.

`--words`, `--long` and `--args` print where the hard words, the long lines and the functions
without an `Args:` section are.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HARD_WORDS = (
    "told",
    "asked about",
    "luck",
    "nobody",
    "books",
    "law",
    "laws",
    "of which",
    "decree",
    "what there is",
)
"""What stood in this code for things that the field has its own words for."""

MAX_LINE = 100

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Figures:
    """What is counted over all files."""

    bodies: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    long_lines: list[str] = field(default_factory=list)
    hard_words: list[str] = field(default_factory=list)
    undocumented: list[str] = field(default_factory=list)
    lines: int = 0
    code_lines: int = 0
    comment_lines: int = 0
    assignments: int = 0
    parallel: int = 0
    public: int = 0


def main(arguments: list[str]) -> None:
    """Count over the folders and print the table."""
    options = {argument for argument in arguments if argument.startswith("--")}
    folders = [argument for argument in arguments if not argument.startswith("--")] or ["src"]
    figures = Figures()
    for folder in folders:
        for path in sorted(_files(Path(folder))):
            count_text(path, figures)
            if path.suffix == ".py":
                count_code(path, figures)
    for option, places in (
        ("--words", figures.hard_words),
        ("--long", figures.long_lines),
        ("--args", figures.undocumented),
    ):
        if option in options:
            print("\n".join(places))
    if figures.bodies:
        print(table(figures))
    else:
        print(f"long lines {len(figures.long_lines)}, hard words {len(figures.hard_words)}")


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    for suffix in ("py", "java", "md"):
        yield from folder.rglob(f"*.{suffix}")


def count_text(path: Path, figures: Figures) -> None:
    """Count the long lines and the hard words of one file."""
    pattern = re.compile(r"(?<![a-z])(" + "|".join(HARD_WORDS) + r")(?![a-z])", re.IGNORECASE)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{path}:{number}: {line.strip()}"
        if len(line) > MAX_LINE and path.suffix != ".md":
            figures.long_lines.append(place)
        figures.hard_words.extend([place] * len(pattern.findall(line)))


def count_code(path: Path, figures: Figures) -> None:
    """Count the functions, assignments and comments of one Python file."""
    with path.open("rb") as source:
        rows: set[int] = set()
        skipped = (
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENCODING,
            tokenize.ENDMARKER,
        )
        for token in tokenize.tokenize(source.readline):
            if token.type == tokenize.COMMENT:
                figures.comment_lines += 1
            elif token.type not in skipped:
                rows.update(range(token.start[0], token.end[0] + 1))
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstrings = {row for node in ast.walk(tree) for row in _docstring_rows(node)}
    figures.code_lines += len(rows - docstrings)
    figures.lines += len(text.splitlines())
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            figures.assignments += 1
            figures.parallel += isinstance(node.targets[0], ast.Tuple) and isinstance(
                node.value, ast.Tuple
            )
    for function, is_public in _functions(tree.body, is_public=True):
        count_function(function, is_public, path, figures)


def _docstring_rows(node: ast.AST) -> range:
    if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
        first = node.body[0]
        return range(first.lineno, (first.end_lineno or first.lineno) + 1)
    return range(0)


def _functions(body: list[ast.stmt], *, is_public: bool) -> Iterator[tuple[Function, bool]]:
    """Every function, and whether somebody outside its module may call it."""
    for node in body:
        if isinstance(node, Function):
            yield node, is_public and not node.name.startswith("_")
            yield from _functions(node.body, is_public=False)
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, is_public=is_public and not node.name.startswith("_"))


def count_function(function: Function, is_public: bool, path: Path, figures: Figures) -> None:
    """Count the size, the parameters and the documentation of one function."""
    docstring = ast.get_docstring(function)
    body = function.body[1:] if docstring is not None else function.body
    if body:
        figures.bodies.append((body[-1].end_lineno or 0) - body[0].lineno + 1)
    figures.nodes.append(sum(1 for statement in body for _ in ast.walk(statement)))
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    parameters = [name for name in names if name not in ("self", "cls")]
    figures.parameters.append(len(parameters))
    if is_public and len(parameters) >= 3:
        figures.public += 1
        if docstring is None or "Args:" not in docstring:
            figures.undocumented.append(f"{path}:{function.lineno}: {function.name}")


def table(figures: Figures) -> str:
    """The figures in words, one a line, with what each should be."""
    documented = 1 - len(figures.undocumented) / max(figures.public, 1)
    rows = [
        ("lines", f"{figures.lines:,}", ""),
        ("function body, median / p90 / max", _spread(figures.bodies), "max 60"),
        ("nodes per function, median / p90", _spread(figures.nodes), "p90 190"),
        ("lines over 100 characters", f"{len(figures.long_lines):,}", "0"),
        ("parallel assignments", _share(figures.parallel, figures.assignments), "below 1%"),
        ("comment lines / code lines", _share(figures.comment_lines, figures.code_lines), "4%"),
        ("public functions with Args", f"{documented:.0%} of {figures.public:,}", "60%"),
        ("most parameters", str(max(figures.parameters)), "8"),
        ("functions of more than 8", str(sum(n > 8 for n in figures.parameters)), "0"),
        ("hard words", f"{len(figures.hard_words):,}", "below 20"),
    ]
    return "\n".join(f"{name:36}{value:>16}   {goal}" for name, value, goal in rows)


def _spread(values: list[int]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]}/{ordered[len(ordered) * 9 // 10]}/{ordered[-1]}"


def _share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.1%}"


if __name__ == "__main__":
    main(sys.argv[1:])
