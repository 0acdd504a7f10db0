"""`CorrectorPolicy`: the policy `parcae` as a policy object. It does not need PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

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
from parcae.policies.networks.layout import Weights


def allocate_workspace(num_simulators: int, num_jobs: int, num_levels: int) -> CorrectorWorkspace:
    """Return the workspaces of many simulators, which are the leading axis."""

    def floats(*shape: int) -> npt.NDArray[np.float32]:
        return np.zeros((num_simulators, *shape), np.float32)

    def rows() -> npt.NDArray[np.int64]:
        return np.zeros((num_simulators, num_jobs), np.int64)

    return CorrectorWorkspace(
        features=floats(num_jobs, NUM_JOB_FEATURES),
        hidden=floats(num_jobs, HIDDEN),
        logits=floats(num_jobs + 1),
        order=rows(),
        remaining_ms=np.zeros((num_simulators, num_jobs)),
        ahead=np.zeros((num_simulators, num_jobs, 2)),
        stage=rows(),
        held=rows(),
        column=rows(),
        shared=floats(NUM_SHARED_FEATURES),
        context=floats(HIDDEN),
        base=floats(HIDDEN),
        layer=floats(HIDDEN),
        limits=floats(num_levels, NUM_LIMIT_FEATURES),
        limit_logits=floats(num_levels),
        choices=np.zeros((num_simulators, 4), np.int64),
    )


def allocate_record(
    num_simulators: int, capacity: int, row_capacity: int, num_levels: int
) -> CorrectorRecord:
    """Return empty records for the decisions of many simulators, which are the leading axis."""

    def zeros(dtype: Any, *shape: int) -> npt.NDArray[Any]:
        return np.zeros((num_simulators, *shape), dtype)

    return CorrectorRecord(
        count=zeros(np.int64, 1),
        num_rows=zeros(np.int64, 1),
        end_ms=zeros(np.int64, 1),
        end_cost=zeros(np.float64, 1),
        clock_ms=zeros(np.int64, capacity + 1),
        cost=zeros(np.float64, capacity + 1),
        first_row=zeros(np.int64, capacity + 2),
        choice=zeros(np.int64, capacity + 1),
        level=zeros(np.int64, capacity + 1),
        log_prob=zeros(np.float32, capacity + 1),
        shared=zeros(np.float32, capacity + 1, NUM_SHARED_FEATURES),
        rows=zeros(np.float32, row_capacity, NUM_JOB_FEATURES),
        can_choose=zeros(np.uint8, row_capacity),
        limits=zeros(np.float32, capacity + 1, num_levels, NUM_LIMIT_FEATURES),
        can_limit=zeros(np.uint8, capacity + 1, num_levels),
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
