"""Decima as a policy object; it decides without PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.kernels import row_of
from parcae.base.compiled.tables import allocate_tables
from parcae.base.errors import ConfigError
from parcae.cluster.observation import Decision, Observation
from parcae.cluster.state import ANY_CLASS
from parcae.decima.corrector.kernels import LEVEL_PRICES
from parcae.decima.graph.kernels.features import (
    Decima,
    GraphNetwork,
    GraphWorkspace,
    held_executors,
)
from parcae.decima.graph.kernels.heads import score_limits, score_stages
from parcae.decima.graph.layout import (
    EMBEDDING,
    LIMIT_KINDS,
    VERSIONS,
    DecimaSettings,
    FeatureSet,
    Magnitudes,
    decima_levels,
    shapes,
    starts,
)
from parcae.decima.solo_curves import SoloCurves, solo_curves
from parcae.policies.compiled import CompiledDecider
from parcae.policies.networks.kernels import ranked_choices
from parcae.policies.networks.layout import Weights, flat
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.workload import Workload

#: Stands in where the features are not relative.
_TYPICAL = Magnitudes(tasks=1.0, task_ms=1.0, moving_ms=0.0, executors=1)
#: `most_jobs` of a network without such a bound.
_ANY_NUMBER = np.iinfo(np.int64).max


def check_world(settings: DecimaSettings, config: SimulationConfig, name: str) -> None:
    """Check that a cluster offers all that a network chooses. `name` is for the error message."""
    if settings.idle_lengths > 0 and config.world is WorldName.CORES:
        raise ConfigError(
            f"{name}: a network with idle_lengths={settings.idle_lengths}, but the world of cores "
            "has no idle slots: choose --world executors, or a network without them"
        )


def magnitudes_of(workload: Workload, config: SimulationConfig) -> Magnitudes:
    """Return how large the jobs of a workload and a cluster are."""
    tasks = workload.mean_tasks
    return Magnitudes(
        tasks, workload.mean_work_ms / tasks, config.moving_delay_ms, config.total_executors
    )


def curves_for(
    settings: DecimaSettings, workload: Workload, config: SimulationConfig
) -> SoloCurves | None:
    """Return the solo curves of a workload's jobs, or None if the network does not know them."""
    return solo_curves(workload, config) if settings.has_job_features else None


def _tables_of(curves: SoloCurves | None) -> dict[str, npt.NDArray[np.float32]]:
    """The tables of the network that are made of solo curves."""
    if curves is None:
        return dict.fromkeys(("stretch", "inflation", "suited"), np.zeros((1, 1), np.float32))
    log_stretch = np.log(curves.stretch)
    shares = curves.levels / curves.levels[-1]
    suited = [
        shares[np.argmin(curves.stretch * (1.0 + math.exp(price) * shares), axis=1)]
        for price in LEVEL_PRICES
    ]
    tables = {
        "stretch": log_stretch - log_stretch.min(axis=1, keepdims=True),
        "inflation": log_stretch - log_stretch[:, :1] + np.log(curves.levels),
        "suited": np.stack(suited, axis=1),
    }
    return {name: table.astype(np.float32) for name, table in tables.items()}


def allocate_workspace(
    count: int,
    num_jobs: int,
    num_stages: int,
    num_classes: int,
    num_levels: int,
    settings: DecimaSettings,
) -> GraphWorkspace:
    """Allocate a workspace for each of many simulators (the leading axis)."""
    # Where scores have further inputs, the number of offered executors is no feature of a stage.
    versions = 1 if settings.num_direct > 0 else VERSIONS
    lengths = settings.idle_lengths + 1
    return allocate_tables(
        GraphWorkspace,
        count,
        jobs=num_jobs,
        stages=num_stages,
        classes=num_classes,
        levels=num_levels,
        lengths=lengths,
        versions=versions,
        kept_jobs=versions * num_jobs,
        kept_stages=versions * num_stages,
        features=settings.num_features,
        inputs=settings.num_features + EMBEDDING,
        direct=settings.num_direct,
        limit_features=settings.num_limit_features,
        embedded=max(num_stages, num_jobs),
        scored=max(num_stages, num_levels, num_classes, lengths),
    )


@dataclass
class DecimaPolicy(CompiledDecider):
    """Decima with its weights, for a cluster with a fixed number of executors.

    Args:
        name: name of the policy in reports.
        weights: arrays by name.
        settings: which parts the network has.
        num_executors: number of executors of the cluster.
        magnitudes: how large jobs and cluster are; needed for the feature sets `relative` and
            `jobs` only.
        curves: see `curves_for`.

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    name: str
    weights: Weights
    settings: DecimaSettings
    num_executors: int
    magnitudes: Magnitudes | None = None
    curves: SoloCurves | None = None
    network: GraphNetwork = field(init=False, repr=False)
    has_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settings = self.settings
        levels = decima_levels(self.num_executors, settings)
        self.network = GraphNetwork(
            weights=flat(self.weights, shapes(settings, len(levels)), self.name),
            starts=starts(settings, len(levels)),
            levels=levels,
            has_code_features=settings.features is FeatureSet.CODE,
            knows_gap=settings.knows_gap,
            has_graph=settings.has_graph,
            has_two_transforms=settings.has_two_transforms,
            limits=LIMIT_KINDS[settings.limits],
            limit_places=np.array(settings.limit_places, np.int64),
            has_critical_path=settings.critical_path,
            has_average_width=settings.average_width,
            has_classes=settings.executor_classes,
            idle_lengths=settings.idle_lengths,
            has_relative_features=settings.features is FeatureSet.RELATIVE,
            has_job_features=settings.has_job_features,
            num_direct=settings.num_direct,
            most_jobs=settings.most_jobs or _ANY_NUMBER,
            **_tables_of(self.curves),
            units=(self.magnitudes or _TYPICAL).units(settings.features),
        )

    def probabilities(self, observation: Observation) -> list[tuple[int, float]]:
        """Return (stage row, probability) of the last decision's choices, most probable first.

        The observation must be the one that was decided last.
        """
        count = int(score_stages(observation, self.network, self._kept.work))
        return ranked_choices(
            self._kept.work.stage[:count].tolist(), self._kept.work.logits[:count]
        )

    def proposals(self, observation: Observation, count: int) -> list[Decision]:
        """Return the most probable stages, each with its most probable limit.

        The observation must be the one that was decided last. Executor classes are left open.
        """
        offered = int(observation.now.num_source[0])
        found = list[Decision]()
        for stage, _ in self.probabilities(observation)[:count]:
            score_limits(observation, self.network, self._kept.work, stage)
            column = int(np.argmax(self._kept.work.limit_logits))
            held = int(held_executors(observation, self.network, stage))
            limit = min(int(self.network.levels[column]) - held, offered)
            found.append(Decision(stage, limit, ANY_CLASS, 0))
        return found

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Decima:
        """The network, and a workspace of this run only."""
        many = allocate_workspace(
            1, num_jobs, num_stages, num_classes, len(self.network.levels), self.settings
        )
        return Decima(self.network, row_of(many, 0))
