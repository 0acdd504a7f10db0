"""What the networks' layouts have in common: weights by name and shape, and where they lie in one flat array."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from parcae.errors import FormatError

Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, npt.NDArray[np.float32]]


def offsets_of(shapes: Shapes) -> dict[str, int]:
    """Where each weight starts in the flat array.

    Example: `offsets_of({"a": (2, 3), "b": (3,)})` is `{"a": 0, "b": 6}`.
    """
    found = dict[str, int]()
    at = 0
    for name, shape in shapes.items():
        found[name] = at
        at += int(np.prod(shape))
    return found


def glorot(rng: np.random.Generator, shapes: Shapes, zeros: Collection[str] = ()) -> Weights:
    """Glorot-uniform matrices; vectors, and those named in `zeros`, are zero."""
    weights: Weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1 or name in zeros:
            weights[name] = np.zeros(shape, np.float32)
        else:
            bound = float(np.sqrt(6.0 / sum(shape)))
            weights[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return weights


def require_shapes(weights: Weights, shapes: Shapes, path: str) -> None:
    """Refuse weights that do not have these shapes.

    Raises:
        FormatError: one is missing or has another shape.
    """
    for name, shape in shapes.items():
        if name not in weights or weights[name].shape != shape:
            found = weights[name].shape if name in weights else "nothing"
            raise FormatError(
                f"{path}: weights {name!r} should have shape {shape}, but there is {found}"
            )


def flat(weights: Weights, shapes: Shapes, path: str) -> npt.NDArray[np.float32]:
    """The weights as one float32 array, in the order of `shapes`.

    Raises:
        FormatError: one is missing or has another shape.
    """
    require_shapes(weights, shapes, path)
    return np.concatenate([np.asarray(weights[name], np.float32).ravel() for name in shapes])
