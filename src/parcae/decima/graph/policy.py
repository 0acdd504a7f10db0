"""Decima as a policy object; it decides without PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.kernels import row_of
from parcae.base.errors import ConfigError
from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS
from parcae.decima.corrector.kernels import LEVEL_PRICES
from parcae.decima.graph.kernels.decisions import (
    held_executors,
    score_limits,
    score_stages,
)
from parcae.decima.graph.kernels.recording import GraphRecord
from parcae.decima.graph.kernels.tables import Decima, GraphNetwork, GraphWorkspace
from parcae.decima.graph.layout import (
    EMBEDDING,
    HIDDEN_1,
    HIDDEN_2,
    LIMIT_KINDS,
    VERSIONS,
    ClassFeature,
    DecimaSettings,
    FeatureSet,
    Magnitudes,
    decima_levels,
    flatten,
    starts,
)
from parcae.decima.solo_curves import SoloCurves, solo_curves
from parcae.policies.compiled import CompiledDecider
from parcae.policies.networks.kernels import ranked_choices
from parcae.policies.networks.layout import Weights, zeros
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


def _suited(curves: SoloCurves) -> npt.NDArray[np.float32]:
    """The numbers of executors that suit every job at fixed prices / all executors.

    The result is float32[num_profiles + 1, 4]; see `Direct.LEVEL_CHEAP`.
    """
    shares = curves.levels / curves.levels[-1]
    columns = [
        np.argmin(curves.stretch * (1.0 + math.exp(price) * shares), axis=1)
        for price in LEVEL_PRICES
    ]
    suited: npt.NDArray[np.float32] = shares[np.stack(columns, axis=1)].astype(np.float32)
    return suited


def _tables_of(curves: SoloCurves | None) -> dict[str, npt.NDArray[np.float32]]:
    """The tables of the Network that are made of solo curves."""
    if curves is None:
        nothing = np.zeros((1, 1), np.float32)
        return {"stretch": nothing, "inflation": nothing, "suited": nothing}
    log_stretch = np.log(curves.stretch)
    inflation = log_stretch - log_stretch[:, :1] + np.log(curves.levels)
    return {
        "stretch": (log_stretch - log_stretch.min(axis=1, keepdims=True)).astype(np.float32),
        "inflation": inflation.astype(np.float32),
        "suited": _suited(curves),
    }


def make_network(
    weights: Weights,
    settings: DecimaSettings,
    num_executors: int,
    path: str = "weights",
    magnitudes: Magnitudes | None = None,
    curves: SoloCurves | None = None,
) -> GraphNetwork:
    """Return the network in the form that the kernels take."""
    levels = decima_levels(num_executors, settings)
    return GraphNetwork(
        weights=flatten(weights, settings, len(levels), path),
        starts=starts(settings, len(levels)),
        levels=levels,
        has_code_features=settings.features is FeatureSet.CODE,
        knows_gap=settings.knows_gap,
        has_graph=settings.has_graph,
        has_two_transforms=settings.has_two_transforms,
        limits=LIMIT_KINDS[settings.limits],
        has_critical_path=settings.critical_path,
        has_average_width=settings.average_width,
        has_classes=settings.executor_classes,
        idle_lengths=settings.idle_lengths,
        has_relative_features=settings.features is FeatureSet.RELATIVE,
        has_job_features=settings.has_job_features,
        num_direct=settings.num_direct,
        most_jobs=settings.most_jobs or _ANY_NUMBER,
        **_tables_of(curves),
        units=(magnitudes or _TYPICAL).units(settings.features),
    )


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
    largest = max(num_stages, num_jobs)
    scored = max(num_stages, num_levels)

    def floats(shape: tuple[int, ...], *names: str) -> dict[str, Any]:
        return zeros(count, np.float32, shape, *names)

    def integers(shape: tuple[int, ...], *names: str) -> dict[str, Any]:
        return zeros(count, np.int64, shape, *names)

    return GraphWorkspace(
        embedded=np.full((count, versions * num_jobs), -1),
        embedded_stage=np.full((count, versions * num_stages), -1),
        version=np.full((count, versions, 2), -1),
        cached_job=np.full((count, num_jobs, 5), -1),
        **integers((4,), "now"),
        **integers((5,), "chosen"),
        **integers((num_jobs,), "stamp", "changed", "order"),
        **integers((num_jobs, 2), "twin", "copies"),
        **integers((num_jobs, 5), "recorded"),
        **integers((num_stages,), "stage_stamp", "num_waiting", "height", "stale", "listed"),
        **integers((num_stages,), "stage", "place"),
        **integers((num_stages, 3), "recorded_stage"),
        **zeros(count, np.float64, (num_stages, 3), "before"),
        **zeros(count, np.float64, (num_jobs,), "cached_work_ms", "remaining_ms"),
        **zeros(count, np.float64, (num_jobs, 2), "ahead"),
        **floats((num_stages, settings.num_features), "x"),
        **floats((versions * num_stages, EMBEDDING), "e", "f", "f2"),
        **floats((versions * num_jobs, EMBEDDING), "y", "f3"),
        **floats((EMBEDDING,), "z"),
        **floats((num_stages,), "logits"),
        **floats((num_stages, settings.num_direct), "direct"),
        **floats((num_levels, settings.num_limit_features), "limit_x"),
        **floats((num_levels,), "limit_logits"),
        **floats((HIDDEN_1,), "cluster_layer", "job_layer", "layer_1"),
        **floats((HIDDEN_2,), "layer_2"),
        **floats((64,), "row"),
        **floats((num_stages, settings.num_features + EMBEDDING), "rows"),
        **floats((scored, HIDDEN_1), "layers_1"),
        **floats((scored, HIDDEN_2), "layers_2"),
        **floats((largest, EMBEDDING), "out", "total"),
        **floats((num_classes,), "waiting", "class_logits"),
        **floats((num_classes, len(ClassFeature)), "class_x"),
        **floats((settings.idle_lengths + 1,), "idle_logits"),
    )


def allocate_record(
    count: int,
    capacity: int,
    num_jobs: int,
    num_rows: int,
    num_classes: int,
    num_levels: int,
    settings: DecimaSettings,
) -> GraphRecord:
    """Allocate a record of decisions, with so many rows of jobs and of stages, for each of many
    simulators (the leading axis).
    """
    room = capacity + 1
    classes = num_classes * settings.executor_classes
    lengths = (settings.idle_lengths + 1) * (settings.idle_lengths > 0)

    def integers(size: int, *names: str) -> dict[str, Any]:
        return zeros(count, np.int64, (size,), *names)

    def floats(shape: tuple[int, ...], *names: str) -> dict[str, Any]:
        return zeros(count, np.float32, shape, *names)

    return GraphRecord(
        **integers(1, "count", "num_jobs", "num_listed", "num_rows", "num_states", "all_options"),
        **integers(1, "end_ms"),
        **integers(room, "clock_ms", "first_option", "num_options", "choice", "level", "held"),
        **integers(room, "last_level", "class_choice", "idle_choice"),
        **integers(room + 1, "first_job"),
        **integers(num_jobs, "structure", "state", "first_listed", "num_listed_of"),
        **integers(num_rows, "listed", "index", "option_job", "option_stage"),
        **zeros(count, np.float64, (1,), "end_cost"),
        **zeros(count, np.float64, (room,), "cost"),
        **floats((room,), "log_prob"),
        **floats((room, num_levels, settings.num_limit_features), "limit_x"),
        **floats((num_rows, settings.num_features), "x"),
        **floats((num_rows, settings.num_direct), "option_x"),
        **floats((room, classes, len(ClassFeature)), "class_x"),
        **zeros(count, np.uint8, (room, classes), "can_class"),
        **zeros(count, np.uint8, (room, lengths), "can_idle"),
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
        self.network = make_network(
            self.weights,
            self.settings,
            self.num_executors,
            self.name,
            self.magnitudes,
            self.curves,
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
