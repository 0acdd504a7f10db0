"""Weights by name and shape, and their places in one flat array; shared by all networks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from parcae.errors import FormatError

Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, npt.NDArray[np.float32]]


def offsets_of(shapes: Shapes) -> dict[str, int]:
    """Return where each weight starts in the flat array.

    Example: `offsets_of({"a": (2, 3), "b": (3,)})` is `{"a": 0, "b": 6}`.
    """
    offsets = dict[str, int]()
    at = 0
    for name, shape in shapes.items():
        offsets[name] = at
        at += int(np.prod(shape))
    return offsets


def glorot(rng: np.random.Generator, shapes: Shapes, zeros: Collection[str] = ()) -> Weights:
    """Draw Glorot-uniform matrices; vectors and the weights named in `zeros` are zero.

    Args:
        rng: source of the random numbers.
        shapes: shapes by name.
        zeros: names of matrices that start at zero.
    """
    weights: Weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1 or name in zeros:
            weights[name] = np.zeros(shape, np.float32)
        else:
            bound = float(np.sqrt(6.0 / sum(shape)))
            weights[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return weights


def require_shapes(weights: Weights, shapes: Shapes, path: str) -> None:
    """Check that the weights have the given shapes.

    Args:
        weights: arrays by name; names that are not in `shapes` are ignored.
        shapes: the expected shapes by name.
        path: where the weights come from, for the error message.

    Raises:
        FormatError: a weight is missing or has another shape.
    """
    for name, shape in shapes.items():
        if name not in weights or weights[name].shape != shape:
            actual = weights[name].shape if name in weights else "none"
            raise FormatError(
                f"{path}: weights {name!r} should have shape {shape}, found {actual}; "
                "the file belongs to another network or is damaged"
            )


def flat(weights: Weights, shapes: Shapes, path: str) -> npt.NDArray[np.float32]:
    """Return the weights as one float32 array, in the order of `shapes`.

    Args:
        weights: arrays by name.
        shapes: the expected shapes by name.
        path: where the weights come from, for the error message.

    Raises:
        FormatError: a weight is missing or has another shape.
    """
    require_shapes(weights, shapes, path)
    return np.concatenate([np.asarray(weights[name], np.float32).ravel() for name in shapes])
