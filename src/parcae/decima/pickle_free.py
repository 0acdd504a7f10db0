"""Reads plain data (dicts, lists, numbers) from a pickle file; nothing of it is executed.

The globals that a pickle names stand for functions of this module, which make plain data of what
numpy writes. Every other global is refused, so that a malicious file cannot run code.
"""

from __future__ import annotations

import io
import pickle
import tokenize
from typing import Any, cast

import numpy as np

from parcae.base.errors import FormatError


class _Array:
    """A numpy object array; the last entry of its state is the list of its items."""

    items: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.items = state[-1]


class _DType:
    """A type of numbers, such as "i8"."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = str(name)

    def __setstate__(self, state: object) -> None:
        """The byte order, which is that of all machines that wrote such files."""


def _scalar(dtype: _DType, content: bytes) -> Any:
    """A number of numpy."""
    if dtype.name[:1] not in "iuf" or len(content) > 8:
        raise pickle.UnpicklingError(f"refused: a number of type {dtype.name!r}")
    return np.frombuffer(content, np.dtype(dtype.name))[0].item()


def _encoded(text: str, _: str = "latin1") -> bytes:
    return text.encode("latin1")


#: What stands for a global; none of them is imported. The second kind of names is that of numpy 2.
_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encoded,
}


# The reader in Python has a dict for what is to be referred to again; that in C allocates as many
# places as a file says.
class _PlainUnpickler(pickle._Unpickler):
    """Reads plain data, and refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a global."""
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(
                f"refused: the pickle contains the global '{module} {name}'; expected only dicts, "
                "lists and numbers"
            )
        stand_in = _STAND_INS[module, name]
        # A new function, which the file may change as it likes.
        return lambda *arguments: stand_in(*arguments)


def read_plain_pickle(data: bytes, where: str) -> Any:
    """Read the dicts, lists and numbers in a pickle. `where` is for error messages. Returns the
    data; a numpy object array becomes the list of its items.
    """
    try:
        result = _PlainUnpickler(io.BytesIO(data), fix_imports=False, encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise FormatError(f"{where}: {error}") from None
    except Exception as error:  # a damaged file can do anything
        raise FormatError(
            f"{where}: a truncated or invalid pickle ({type(error).__name__}: {error})"
        ) from None
    return result.items if isinstance(result, _Array) else result


def read_object_array(data: bytes, where: str) -> Any:
    """Read a `.npy` file: numbers with numpy, a pickled object with `read_plain_pickle`.

    `where` is for error messages.
    """
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
