"""Reads plain data (dicts, lists, numbers) from a pickle file without executing the pickle.

It is a small interpreter for the pickle opcodes of plain data. All other opcodes and all globals
that are not listed here are refused, so that a malicious file cannot run code.
"""

from __future__ import annotations

import pickletools
import tokenize
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from parcae.base.errors import FormatError


class _Mark:
    """The mark on the stack at which a list or a tuple of unknown length begins."""


class _Global:
    """A reference to a permitted global; it is never imported."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Array:
    """A numpy object array whose content (the argument of BUILD) is not known yet."""

    def __init__(self) -> None:
        self.items: Any = None


_ARRAY_MAKERS = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
_SCALAR_MAKERS = {"numpy.core.multiarray scalar", "numpy._core.multiarray scalar"}
_DTYPE = "numpy dtype"
_ALLOWED = _ARRAY_MAKERS | _SCALAR_MAKERS | {_DTYPE, "numpy ndarray", "_codecs encode"}
#: Opcodes that push their argument.
_PUSHED = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": _Mark,
}
_IGNORED = {"PROTO", "FRAME", "STOP"}


class _Machine:
    """The pickle machine: a stack and a memo of values."""

    def __init__(self, where: str) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.where = where

    def refuse(self, what: str) -> FormatError:
        return FormatError(
            f"{self.where}: refused: the pickle contains {what}; "
            "expected only dicts, lists and numbers"
        )

    def to_mark(self) -> list[Any]:
        """Pop all items above the topmost mark, and the mark."""
        position = max(i for i, item in enumerate(self.stack) if isinstance(item, _Mark))
        items = self.stack[position + 1 :]
        del self.stack[position:]
        return items

    def run(self, name: str, argument: Any) -> None:
        """Execute one opcode."""
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self.push_global(name, argument)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[int(argument)])
        elif name not in _IGNORED:
            self.build(name)

    def push_global(self, name: str, argument: Any) -> None:
        """Push a reference to a global, if it is a permitted one."""
        if name == "STACK_GLOBAL":
            attribute = self.stack.pop()
            module = self.stack.pop()
            argument = f"{module} {attribute}"
        if argument not in _ALLOWED:
            raise self.refuse(f"the global {argument!r}")
        self.stack.append(_Global(argument))

    def build(self, name: str) -> None:
        """Execute one of the opcodes that put values together."""
        stack = self.stack
        if name == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif name == "APPENDS":
            values = self.to_mark()
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            self.set_items(name)
        elif name in ("TUPLE", "LIST"):
            items = self.to_mark()
            stack.append(tuple(items) if name == "TUPLE" else items)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = stack[-count:]
            del stack[-count:]
            stack.append(tuple(items))
        elif name == "REDUCE":
            arguments = stack.pop()
            function = stack.pop()
            stack.append(self.reduce(function, arguments))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], _Array):
                # The last entry of a numpy array's state is the list of its items.
                stack[-1].items = state[-1]
        else:
            raise self.refuse(f"the opcode {name}")

    def set_items(self, name: str) -> None:
        """Execute SETITEM, SETITEMS or DICT."""
        if name == "SETITEM":
            value = self.stack.pop()
            key = self.stack.pop()
            flat = [key, value]
        else:
            flat = self.to_mark()
        if name == "DICT":
            self.stack.append({})
        self.stack[-1].update(zip(flat[::2], flat[1::2], strict=True))

    def reduce(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """The value of a call; only numpy's constructors of arrays, types and scalars are known."""
        name = function.name if isinstance(function, _Global) else ""
        if name in _ARRAY_MAKERS:
            return _Array()
        if name == _DTYPE:
            return str(arguments[0])
        if name == "_codecs encode":
            return str(arguments[0]).encode("latin1")
        if name in _SCALAR_MAKERS and str(arguments[0])[0] in "iuf" and len(arguments[1]) <= 8:
            return np.frombuffer(arguments[1], np.dtype(arguments[0]))[0].item()
        raise self.refuse(f"a call of {name or function!r}")


def read_plain_pickle(data: bytes, where: str) -> Any:
    """Read the dicts, lists and numbers in a pickle. `where` is for error messages. Returns the
    data; a numpy object array becomes the list of its items.
    """
    machine = _Machine(where)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.run(opcode.name, argument)
        result = machine.stack.pop()
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(
            f"{where}: a truncated or invalid pickle ({type(error).__name__}: {error})"
        ) from None
    return result.items if isinstance(result, _Array) else result


def read_object_array(data: bytes, where: str) -> Any:
    """Read a `.npy` file: numbers with numpy, a pickled object with `read_plain_pickle`.

    `where` is for error messages.
    """
    import io

    try:
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        reader = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        _, _, dtype = reader(stream)
    except (ValueError, EOFError, tokenize.TokenError) as error:
        raise FormatError(f"{where}: not a npy file ({error})") from None
    if dtype.hasobject:
        items = read_plain_pickle(data[stream.tell() :], where)
        return items[0] if isinstance(items, list) and len(items) == 1 else items
    try:
        return cast(Any, np.load(io.BytesIO(data), allow_pickle=False))
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        raise FormatError(f"{where}: truncated ({error})") from None
