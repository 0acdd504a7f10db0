"""`CorrectorPolicy`: the policy `parcae` as a policy object. It does not need PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from parcae.base.compiled.kernels import row_of
from parcae.cluster.observation import Observation
from parcae.cluster.state import NO_STAGE
from parcae.decima.corrector.kernels import (
    HIDDEN,
    NUM_JOB_FEATURES,
    NUM_LIMIT_FEATURES,
    NUM_SHARED_FEATURES,
    Corrector,
    CorrectorNetwork,
    CorrectorRecord,
    CorrectorWorkspace,
    flatten,
)
from parcae.decima.rule.kernels import Rule
from parcae.decima.solo_curves import SoloCurves
from parcae.policies.compiled import CompiledDecider
from parcae.policies.networks.kernels import ranked_choices
from parcae.policies.networks.layout import Weights, zeros


def allocate_workspace(count: int, num_jobs: int, num_levels: int) -> CorrectorWorkspace:
    """Return the workspaces of many simulators, which are the leading axis."""

    def floats(shape: tuple[int, ...], *names: str) -> dict[str, Any]:
        return zeros(count, np.float32, shape, *names)

    return CorrectorWorkspace(
        **floats((num_jobs, NUM_JOB_FEATURES), "features"),
        **floats((num_jobs, HIDDEN), "hidden"),
        **floats((num_jobs + 1,), "logits"),
        **floats((NUM_SHARED_FEATURES,), "shared"),
        **floats((HIDDEN,), "context", "base", "layer"),
        **floats((num_levels, NUM_LIMIT_FEATURES), "limits"),
        **floats((num_levels,), "limit_logits"),
        **zeros(count, np.int64, (num_jobs,), "order", "stage", "held", "column"),
        **zeros(count, np.int64, (4,), "choices"),
        **zeros(count, np.float64, (num_jobs,), "remaining_ms"),
        **zeros(count, np.float64, (num_jobs, 2), "ahead"),
    )


def allocate_record(count: int, capacity: int, num_rows: int, num_levels: int) -> CorrectorRecord:
    """Return empty records for the decisions of many simulators, which are the leading axis."""
    room = capacity + 1

    def floats(shape: tuple[int, ...], *names: str) -> dict[str, Any]:
        return zeros(count, np.float32, shape, *names)

    return CorrectorRecord(
        **zeros(count, np.int64, (1,), "count", "num_rows", "end_ms"),
        **zeros(count, np.int64, (room,), "clock_ms", "choice", "level"),
        **zeros(count, np.int64, (room + 1,), "first_row"),
        **zeros(count, np.float64, (1,), "end_cost"),
        **zeros(count, np.float64, (room,), "cost"),
        **floats((room,), "log_prob"),
        **floats((room, NUM_SHARED_FEATURES), "shared"),
        **floats((num_rows, NUM_JOB_FEATURES), "rows"),
        **floats((room, num_levels, NUM_LIMIT_FEATURES), "limits"),
        **zeros(count, np.uint8, (num_rows,), "can_choose"),
        **zeros(count, np.uint8, (room, num_levels), "can_limit"),
    )


@dataclass
class CorrectorPolicy(CompiledDecider):
    """The network with its weights, bound to the solo curves of one workload.

    It makes the most probable decision.

    Args:
        name: name in tables and reports.
        weights: the network's weights, by name.
        parameters: parameters of the rule that the network corrects.
        curves: the workload's solo curves.

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    name: str
    weights: Weights
    parameters: tuple[float, ...]
    curves: SoloCurves
    network: CorrectorNetwork = field(init=False, repr=False)
    has_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rule = Rule(np.array(self.parameters, np.float64), *self.curves)
        self.network = CorrectorNetwork(flatten(self.weights, self.name), rule)

    def probabilities(self, observation: Observation) -> list[tuple[int, float]]:
        """Return (stage row, probability) of the last decision's choices, most probable first.

        NO_STAGE stands for letting all offered executors idle. The observation must be the one that
        `decide` has just been called with.
        """
        num_jobs = int(observation.now.num_active[0])
        stages = [*self._kept.work.stage[:num_jobs].tolist(), NO_STAGE]
        return ranked_choices(stages, self._kept.work.logits[: num_jobs + 1])

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Corrector:
        """The network, and a workspace of this run only, so that threads can run side by side."""
        many = allocate_workspace(1, num_jobs, len(self.curves.levels))
        return Corrector(self.network, row_of(many, 0))
