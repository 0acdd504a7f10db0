"""Weights by name and shape, and their places in one flat array; shared by all networks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from parcae.base.arrays import Float32Array
from parcae.base.compiled.tables import FieldSpec, Tables, specs_of
from parcae.base.errors import FormatError


def _in_use(record: Any, table: FieldSpec, of_decisions: slice) -> slice:
    """Which rows of a record's table are in use; `of_decisions` are those of decisions."""
    rows = table.axes[0]
    if rows == "decisions":
        return of_decisions
    return slice(None) if isinstance(rows, int) else slice(int(getattr(record, f"all_{rows}")[0]))


def trimmed(record: Any) -> Any:
    """Return a copy of a record without its unused rows; the final state has a row, too."""
    decisions = slice(int(record.count[0]) + 1)
    tables = specs_of(type(record)).values()
    return type(record)(
        *(
            np.array(array[_in_use(record, table, decisions)])
            for array, table in zip(record, tables, strict=True)
        )
    )


def joined(records: Sequence[Tables], spans: Sequence[tuple[int, int]]) -> Tables:
    """Return the decisions first .. last - 1 of each record as one record, and all other rows."""
    columns = []
    for at, table in enumerate(specs_of(type(records[0])).values()):
        pieces = [
            record[at][_in_use(record, table, slice(*span))]
            for record, span in zip(records, spans, strict=True)
        ]
        if table.into:
            counts = [int(getattr(record, f"all_{table.into}")[0]) for record in records]
            shifts = accumulate(counts, initial=0)
            pieces = [piece + shift for piece, shift in zip(pieces, shifts, strict=False)]
        columns.append(np.concatenate(pieces))
    return type(records[0])(*columns)


Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, Float32Array]


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


def places(shapes: Shapes) -> dict[str, tuple[slice, tuple[int, ...]]]:
    """Return where each weight lies in the flat array, and its shape.

    Example: `places({"a": (2, 3), "b": (3,)})["b"]` is `(slice(6, 9), (3,))`.
    """
    return {
        name: (slice(at, at + int(np.prod(shapes[name]))), shapes[name])
        for name, at in offsets_of(shapes).items()
    }


def glorot(rng: np.random.Generator, shapes: Shapes, zeros: Collection[str] = ()) -> Weights:
    """Draw Glorot-uniform matrices; vectors and the weights named in `zeros` are zero."""
    weights: Weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1 or name in zeros:
            weights[name] = np.zeros(shape, np.float32)
        else:
            bound = float(np.sqrt(6.0 / sum(shape)))
            weights[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return weights


def require_shapes(weights: Weights, shapes: Shapes, path: str) -> None:
    """Check that the weights have the given shapes."""
    for name, shape in shapes.items():
        if name not in weights or weights[name].shape != shape:
            actual = weights[name].shape if name in weights else "none"
            raise FormatError(
                f"{path}: weights {name!r} should have shape {shape}, found {actual}; "
                "the file belongs to another network or is damaged"
            )


def flat(weights: Weights, shapes: Shapes, path: str) -> Float32Array:
    """Return the weights as one float32 array, in the order of `shapes`."""
    require_shapes(weights, shapes, path)
    return np.concatenate([np.asarray(weights[name], np.float32).ravel() for name in shapes])


#: Slope of a deep set's leaky rectifier below zero.
SLOPE = 0.1


def deep_set_shapes(num_features: int, num_shared: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a deep set over jobs that chooses a job or holds.

    h_j = two layers of the job's features,   g = a layer of [mean_j h_j, shared features]
    logit(job j) = MLP[h_j, g] + prior . (j is the rule's choice)
    logit(hold) = w . g + prior . (the rule holds)

    Matrices are [in, out]. The weight "prior" is not among the shapes: networks may have further
    priors.
    """
    return {
        "job1.weight": (num_features, hidden),
        "job1.bias": (hidden,),
        "job2.weight": (hidden, hidden),
        "job2.bias": (hidden,),
        "context.weight": (hidden + num_shared, hidden),
        "context.bias": (hidden,),
        "choice1.weight": (2 * hidden, hidden),
        "choice1.bias": (hidden,),
        "choice2.weight": (hidden, 1),
        "hold.weight": (hidden, 1),
        "hold.bias": (1,),
    }


def critic_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a deep set's critic, which is used in training only."""
    return {
        "value1.weight": (hidden, hidden),
        "value1.bias": (hidden,),
        "value2.weight": (hidden, 1),
        "value2.bias": (1,),
    }


class DeepSet(NamedTuple):
    """Columns and sizes of a deep set, and where its weights start in the flat array."""

    is_rule: int  # column of a job's features: the rule chooses the job
    rule_holds: int  # columns of the shared features: the rule holds; a decision may hold
    can_hold: int
    num_features: int
    num_shared: int
    hidden: int
    job1: int
    job1_bias: int
    job2: int
    job2_bias: int
    context: int
    context_bias: int
    choice1: int
    choice1_bias: int
    choice2: int
    hold: int
    hold_bias: int
    prior: int


def deep_set(shapes: Shapes, is_rule: int, rule_holds: int, can_hold: int) -> DeepSet:
    """Return the columns, sizes and places of a deep set whose weights have these shapes."""
    num_features, hidden = shapes["job1.weight"]
    num_shared = shapes["context.weight"][0] - hidden
    starts = offsets_of(shapes)
    at = {name.removesuffix(".weight").replace(".", "_"): starts[name] for name in starts}
    return DeepSet(
        # Kernels read numbers, not members of enumerations.
        int(is_rule),
        int(rule_holds),
        int(can_hold),
        num_features,
        num_shared,
        hidden,
        *(at[name] for name in DeepSet._fields[6:]),
    )
