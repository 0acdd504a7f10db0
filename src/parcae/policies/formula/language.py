"""The language of formulas: what they may contain, and how a text becomes a program.

Python's own parser reads the text; a closed list of its nodes is taken, nothing is executed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from parcae.base.errors import PolicyError, suggestion
from parcae.policies.formula.kernels import LARGEST, NO_DEADLINE_MS, Feature, Operation

#: Of every feature: its unit, and what it is.
FEATURES: dict[Feature, tuple[str, str]] = {
    Feature.REM: ("ms", "expected work not started"),
    Feature.TOTAL: ("ms", "expected work"),
    Feature.SERVICE: ("ms", "core time received"),
    Feature.PATH: ("ms", "expected critical path left"),
    Feature.WIDTH: ("tasks", "running or ready"),
    Feature.STAGES: ("stages", "incomplete"),
    Feature.ERROR: ("ratio", "actual / expected task time"),
    Feature.AGE: ("ms", "since arrival"),
    Feature.RUNNING: ("tasks", "running"),
    Feature.FAIR: ("ms", "until fair sharing's end"),
    Feature.SLACK: ("ms", f"to its deadline; none: {NO_DEADLINE_MS:.0e}"),
    Feature.OVERDRAFT: ("ms", "S - A"),
    Feature.SHARE: ("ratio", "its user's, of the cores"),
    Feature.QUERIES: ("queries", "open"),
    Feature.CORES: ("cores", "up"),
}
#: The longest formula, in characters, and the most values that it may hold at once.
MOST_CHARACTERS = 1_000
MOST_VALUES = 32
#: Messages show so many characters.
_SHOWN = 80

_HOW = "if that is meant, scale one by a number, as in 1000 * width"

_FEATURES = {feature.name.lower(): feature for feature in Feature}
_FUNCTIONS = {name: Operation[name.upper()] for name in ("min", "max", "sqrt", "log", "exp", "abs")}
_OF_TWO: dict[type[ast.AST], Operation] = {
    ast.Add: Operation.ADD,
    ast.Sub: Operation.SUBTRACT,
    ast.Mult: Operation.MULTIPLY,
    ast.Div: Operation.DIVIDE,
}
_FOREIGN = re.compile(r"[^A-Za-z0-9_ .,()+\-*/<>=]")
_ELEMENTS = (
    "a formula has numbers, names, + - * /, < <= > >= of two values, "
    f"{' '.join(_FUNCTIONS)}, and `a if b < c else d`"
)


@dataclass(frozen=True)
class Expression:
    """A formula. Two are equal if their programs are.

    Args:
        text: as it was written.
        steps: Operation or -1 - Feature.
        numbers: of the steps that put a number on the stack; 0 of the others.
    """

    text: str = field(compare=False)
    steps: tuple[int, ...]
    numbers: tuple[float, ...]

    @property
    def program(self) -> tuple[str | float, ...]:
        """The program for the plugin: features, numbers and steps in postfix order."""
        words = [
            Operation(step).name if step >= 0 else Feature(-1 - step).name for step in self.steps
        ]
        return tuple(
            number if word == Operation.NUMBER.name else word.lower()
            for word, number in zip(words, self.numbers, strict=True)
        )

    @property
    def parts(self) -> tuple[Expression, ...]:
        """What the formula puts together last, such as the arguments of its max; but for numbers
        and names.
        """
        node = ast.parse(self.text, mode="eval").body
        parts = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        return tuple(
            parse_formula(ast.unparse(part))
            for part in parts
            if isinstance(part, ast.expr) and not isinstance(part, ast.Constant | ast.Name)
        )

    @property
    def terms(self) -> int:
        """How many names and numbers it has."""
        return sum(step <= Operation.NUMBER for step in self.steps)

    @property
    def doubts(self) -> list[str]:
        """Where it mixes ms with counts or ratios, in words; a number may have any unit."""
        said = list[str]()
        held = list[Any]()  # the exponents of ms of the values on the stack
        for step in self.steps:
            if step <= Operation.NUMBER:
                is_ms = step < 0 and FEATURES[Feature(-1 - step)][0] == "ms"
                held.append(None if step == Operation.NUMBER else float(is_ms))
                continue
            two: Any = held.pop() if step >= Operation.ADD else None
            if step == Operation.CHOOSE:
                held.pop()  # the condition
            one = held.pop()
            is_known = one is not None and two is not None
            match Operation(step):
                case Operation.ABS:
                    held.append(one)
                case Operation.SQRT:
                    held.append(None if one is None else one / 2)
                case Operation.LOG | Operation.EXP:
                    held.append(0.0)
                case Operation.MULTIPLY:
                    held.append(one + two if is_known else None)
                case Operation.DIVIDE:
                    held.append(one - two if is_known else None)
                case of:
                    if is_known and one != two:
                        said.append(f"{of.name.lower()}: {_unit(one)} beside {_unit(two)}; {_HOW}")
                    held.append(0.0 if of == Operation.LESS else two if one is None else one)
        return list(dict.fromkeys(said))

    def uses(self, *features: Feature) -> bool:
        """Whether one of the features occurs."""
        return any(-1 - feature in self.steps for feature in features)


def _unit(exponent: float) -> str:
    """The unit of ms to this power."""
    return {0.0: "a count or ratio", 1.0: "ms"}.get(exponent, f"ms^{exponent:g}")


def parse_formula(text: str) -> Expression:
    """Read a formula, such as "max(rem + 2 * overdraft, rem / 10)".

    Raises:
        PolicyError: it is none; the message says where and what to write instead.
    """
    text = " ".join(text.split())
    compiler = _Compiler(text)
    if len(text) > MOST_CHARACTERS:
        compiler.refuse(MOST_CHARACTERS, f"write at most {MOST_CHARACTERS:,} characters")
    if foreign := _FOREIGN.search(text):
        compiler.refuse(foreign.start(), f"unexpected {foreign.group()!r}; {_ELEMENTS}")
    try:
        compiler.write(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        compiler.refuse((error.offset or 1) - 1, f"{error.msg}; {_ELEMENTS}")
    except (RecursionError, MemoryError):
        compiler.refuse(0, "it is nested too deeply; write a shorter formula")
    return Expression(text, tuple(compiler.steps), tuple(compiler.numbers))


class _Compiler:
    """Writes the program of a formula."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._held = 0  # values on the stack
        self.steps: list[int] = []
        self.numbers: list[float] = []

    def refuse(self, offset: int, why: str) -> NoReturn:
        """Refuse the formula because of what is at an offset of its text."""
        shown = self._text if len(self._text) <= _SHOWN else f"{self._text[:_SHOWN]}..."
        raise PolicyError(f"formula {shown!r}, column {offset + 1}: {why}")

    def _combine(self, node: ast.AST, step: int, *parts: ast.expr, number: float = 0.0) -> None:
        """Write the parts of a node, then the step that makes one value of theirs."""
        for part in parts:
            self.write(part)
        self._held += 1 - len(parts)
        if self._held > MOST_VALUES:
            why = f"more than {MOST_VALUES} values are kept here; nest less"
            self.refuse(getattr(node, "col_offset", 0), why)
        self.steps.append(step)
        self.numbers.append(number)

    def write(self, node: ast.expr) -> None:
        """Write the steps of an expression."""
        zero, one = (ast.Constant(value, col_offset=node.col_offset) for value in (0, 1))
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                if number > LARGEST:
                    self.refuse(node.col_offset, f"write a number of at most {LARGEST:.0e}")
                self._combine(node, Operation.NUMBER, number=float(number))
            case ast.Name(id=name):
                if name not in _FEATURES:
                    hint = suggestion(name, _FEATURES)
                    self.refuse(node.col_offset, f"unknown name {name!r}; {hint}")
                self._combine(node, -1 - _FEATURES[name])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._combine(node, Operation.SUBTRACT, zero, operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OF_TWO:
                self._combine(node, _OF_TWO[type(op)], left, right)
            case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
                self._combine(node, Operation.LESS, left, right)
            case ast.Compare(left=left, ops=[ast.Gt()], comparators=[right]):
                self._combine(node, Operation.LESS, right, left)
            case ast.Compare(left=left, ops=[ast.LtE() | ast.GtE() as op], comparators=[right]):
                denied = ast.Gt() if isinstance(op, ast.LtE) else ast.Lt()
                test = ast.Compare(left, [denied], [right], col_offset=node.col_offset)
                self._combine(node, Operation.CHOOSE, zero, test, one)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._combine(node, Operation.CHOOSE, body, test, orelse)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                self._call(node, name, args)
            case _:
                self.refuse(node.col_offset, _ELEMENTS)

    def _call(self, node: ast.Call, name: str, args: list[ast.expr]) -> None:
        if name not in _FUNCTIONS:
            hint = suggestion(name, _FUNCTIONS)
            self.refuse(node.col_offset, f"unknown function {name!r}; {hint}")
        has_two = name in ("min", "max")
        if len(args) < 2 if has_two else len(args) != 1:
            wanted = "two arguments or more" if has_two else "one argument"
            self.refuse(node.col_offset, f"give {name} {wanted}, not {len(args)}")
        while len(args) > 2:
            args = [ast.Call(node.func, args[:2], [], col_offset=node.col_offset), *args[2:]]
        self._combine(node, _FUNCTIONS[name], *args)
