"""The set network as a policy object: needs no PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import FormatError
from parcae.packing.layout import Asked, Packing, View
from parcae.policies.jobset.kernels import Network, Record, Workspace, decide, play_many
from parcae.policies.jobset.layout import (
    HIDDEN,
    LOOKAHEAD,
    MAX_ROWS,
    NUM_JOB_FEATURES,
    NUM_SHARED_FEATURES,
    flatten,
)
from parcae.policies.networks.layout import Weights
from parcae.policies.packing.layout import WithholdParameter

IntArray = npt.NDArray[np.int64]


def allocate_workspace(count: int) -> Workspace:
    """Room for a decision of each of many clusters (the leading axis)."""

    def floats(*shape: int) -> npt.NDArray[np.float32]:
        return np.zeros((count, *shape), np.float32)

    return Workspace(
        row=np.zeros((count, MAX_ROWS), np.int64),
        score=np.zeros((count, MAX_ROWS), np.float64),
        look=np.zeros((count, len(LOOKAHEAD)), np.int64),
        features=floats(MAX_ROWS, NUM_JOB_FEATURES),
        hidden=floats(MAX_ROWS, HIDDEN),
        shared=floats(NUM_SHARED_FEATURES),
        context=floats(HIDDEN),
        base=floats(HIDDEN),
        layer=floats(HIDDEN),
        logits=floats(MAX_ROWS + 1),
    )


def allocate_record(count: int, capacity: int, row_capacity: int) -> Record:
    """Room for `capacity` decisions, with `row_capacity` jobs in them together, of each of many clusters."""

    def zeros(dtype: Any, *shape: int) -> npt.NDArray[Any]:
        return np.zeros((count, *shape), dtype)

    return Record(
        count=zeros(np.int64, 1),
        num_rows=zeros(np.int64, 1),
        is_cut=zeros(np.int64, 1),
        now=zeros(np.int64, capacity),
        cost=zeros(np.float64, capacity),
        first_row=zeros(np.int64, capacity + 1),
        choice=zeros(np.int64, capacity),
        log_prob=zeros(np.float32, capacity),
        shared=zeros(np.float32, capacity, NUM_SHARED_FEATURES),
        rows=zeros(np.float32, row_capacity, NUM_JOB_FEATURES),
    )


class JobSetPolicy:
    """The set network with its weights; decides by the most probable choice, and never holds for ever.

    Args:
        weights: by the names of the layout, and "rule": the withholding rule's parameters.

    Raises:
        FormatError: weights of another shape.
    """

    wants_profile = True

    def __init__(self, name: str, weights: Weights) -> None:
        self.name = name
        rule = np.array(weights.get("rule", ()), np.float64)
        if rule.shape != (len(WithholdParameter),):
            raise FormatError(
                f"{name}: a withholding rule of {rule.size} parameters, not {len(WithholdParameter)}; train it again"
            )
        self.network = Network(flatten(weights, name), rule)
        self._work = _single(allocate_workspace(1))

    def play_many(
        self, states: Packing, asked: Asked, sequence: IntArray, views: View, first: int, last: int
    ) -> None:
        """Run clusters first..last-1 from start to end."""
        play_many(
            states,
            asked,
            sequence,
            views,
            self.network,
            _single(allocate_workspace(1)),
            first,
            last,
        )

    def decide(self, view: View) -> int:
        """The slot whose job to place now, or VOID; `view` is of one cluster, with its profile."""
        return int(decide(view, self.network, self._work))


def _single(works: Workspace) -> Workspace:
    return Workspace(*(table[0] for table in works))
