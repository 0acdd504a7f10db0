"""`CorrectorPolicy`: the policy `parcae` as a policy object. It does not need PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from parcae.base.compiled.kernels import row_of
from parcae.base.compiled.tables import allocate_tables
from parcae.cluster.observation import Observation
from parcae.cluster.state import NO_STAGE
from parcae.decima.corrector.kernels import SHAPES, Corrector, CorrectorNetwork, CorrectorWorkspace
from parcae.decima.rule import Rule
from parcae.decima.solo_curves import SoloCurves
from parcae.policies.compiled import CompiledDecider
from parcae.policies.networks.kernels import ranked_choices
from parcae.policies.networks.layout import Weights, flat


def allocate_workspace(count: int, num_jobs: int, num_levels: int) -> CorrectorWorkspace:
    """Return the workspaces of many simulators, which are the leading axis."""
    return allocate_tables(
        CorrectorWorkspace, count, jobs=num_jobs, choices=num_jobs + 1, levels=num_levels
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
        self.network = CorrectorNetwork(flat(self.weights, SHAPES, self.name), rule)

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
        return Corrector(
            self.network, row_of(allocate_workspace(1, num_jobs, len(self.curves.levels)), 0)
        )
