"""The types of arrays, by the type of their numbers; and what rises and falls over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
RecordArray = npt.NDArray[np.void]
AnyArray = npt.NDArray[Any]


def level(edges: Int64Array, *changes: tuple[Int64Array, Any]) -> AnyArray:
    """The sum of all changes up to each of some times, which are all times of changes in order.

    A change has times and the steps that are made then.
    """
    sums = np.zeros(len(edges), np.result_type(np.int64, *(step for _, step in changes)))
    for time_ms, step in changes:
        np.add.at(sums, np.searchsorted(edges, time_ms), step)
    return np.cumsum(sums)
