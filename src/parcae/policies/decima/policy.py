"""Decima as a policy object: needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState, select
from parcae.policies.decima.kernels.decisions import decide, play, play_drawn, score_stages
from parcae.policies.decima.kernels.recording import Record
from parcae.policies.decima.kernels.tables import Network, Workspace
from parcae.policies.decima.layout import (
    EMBEDDING,
    HIDDEN_1,
    HIDDEN_2,
    VERSIONS,
    ClassFeature,
    DecimaSettings,
    FeatureSet,
    Limits,
    decima_levels,
    flatten,
    starts,
)
from parcae.policies.networks.choices import ranked_choices
from parcae.policies.networks.layout import Weights
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables

_LIMITS = {Limits.INPUT: 0, Limits.OUTPUTS: 1, Limits.STAGE: 2, Limits.NONE: 3}


def make_network(
    weights: Weights, settings: DecimaSettings, num_executors: int, path: str = "weights"
) -> Network:
    """What the kernels take.

    Raises:
        FormatError: weights of another shape.
    """
    levels = decima_levels(num_executors)
    return Network(
        weights=flatten(weights, settings, len(levels), path),
        starts=starts(settings, len(levels)),
        levels=levels,
        has_code_features=settings.features is FeatureSet.CODE,
        knows_gap=settings.knows_gap,
        has_graph=settings.has_graph,
        has_two_transforms=settings.has_two_transforms,
        limits=_LIMITS[settings.limits],
        has_critical_path=settings.critical_path,
        has_average_width=settings.average_width,
        has_classes=settings.executor_classes,
        idle_lengths=settings.idle_lengths,
    )


def allocate_workspace(
    num_simulators: int,
    num_jobs: int,
    num_stages: int,
    num_classes: int,
    num_levels: int,
    settings: DecimaSettings,
) -> Workspace:
    """Room for a decision of each of many simulators (the leading axis)."""
    versions = 1 if settings.executor_classes else VERSIONS

    def floats(*shape: int) -> npt.NDArray[np.float32]:
        return np.zeros((num_simulators, *shape), np.float32)

    def integers(*shape: int) -> npt.NDArray[np.int64]:
        return np.zeros((num_simulators, *shape), np.int64)

    return Workspace(
        x=floats(num_stages, settings.num_features),
        e=floats(versions * num_stages, EMBEDDING),
        f=floats(versions * num_stages, EMBEDDING),
        y=floats(versions * num_jobs, EMBEDDING),
        f3=floats(versions * num_jobs, EMBEDDING),
        embedded=np.full((num_simulators, versions * num_jobs), -1, np.int64),
        version=np.full((num_simulators, versions, 2), -1, np.int64),
        now=integers(3),
        stamp=integers(num_jobs),
        twin=integers(num_jobs, 2),
        done=integers(num_stages),
        known=np.full((num_simulators, num_jobs, 4), -1, np.int64),
        known_work_ms=np.zeros((num_simulators, num_jobs)),
        z=floats(EMBEDDING),
        logits=floats(num_stages),
        stage=integers(num_stages),
        limit_logits=floats(num_levels),
        of_cluster=floats(HIDDEN_1),
        of_job=floats(HIDDEN_1),
        layer_1=floats(HIDDEN_1),
        layer_2=floats(HIDDEN_2),
        row=floats(64),
        out=floats(EMBEDDING),
        total=floats(EMBEDDING),
        answer=integers(5),
        waiting=floats(num_classes),
        class_x=floats(num_classes, len(ClassFeature)),
        class_logits=floats(num_classes),
        idle_logits=floats(settings.idle_lengths + 1),
    )


def allocate_record(
    num_simulators: int,
    capacity: int,
    job_capacity: int,
    row_capacity: int,
    num_classes: int,
    settings: DecimaSettings,
) -> Record:
    """Room for `capacity` decisions with so many jobs and unfinished stages in them together, of each of many simulators."""
    classes = num_classes * settings.executor_classes
    lengths = (settings.idle_lengths + 1) * (settings.idle_lengths > 0)

    def zeros(dtype: Any, *shape: int) -> npt.NDArray[Any]:
        return np.zeros((num_simulators, *shape), dtype)

    return Record(
        count=zeros(np.int64, 1),
        num_jobs=zeros(np.int64, 1),
        num_rows=zeros(np.int64, 1),
        end_ms=zeros(np.int64, 1),
        end_cost=zeros(np.float64, 1),
        clock_ms=zeros(np.int64, capacity + 1),
        cost=zeros(np.float64, capacity + 1),
        first_job=zeros(np.int64, capacity + 2),
        choice=zeros(np.int64, capacity + 1),
        level=zeros(np.int64, capacity + 1),
        held=zeros(np.int64, capacity + 1),
        log_prob=zeros(np.float32, capacity + 1),
        structure=zeros(np.int64, job_capacity),
        first_row=zeros(np.int64, job_capacity + 1),
        x=zeros(np.float32, row_capacity, settings.num_features + settings.num_fits),
        index=zeros(np.int64, row_capacity),
        can_choose=zeros(np.uint8, row_capacity),
        class_choice=zeros(np.int64, capacity + 1),
        can_class=zeros(np.uint8, capacity + 1, classes),
        class_x=zeros(np.float32, capacity + 1, classes, len(ClassFeature)),
        idle_choice=zeros(np.int64, capacity + 1),
        can_idle=zeros(np.uint8, capacity + 1, lengths),
    )


@dataclass
class DecimaPolicy:
    """Decima with its weights, for a cluster of a size.

    Args:
        is_drawn: draw decisions from the policy's distribution, as the released code does in tests, instead of taking the
            most probable ones; whole runs only.
        seed: of the drawing.

    Raises:
        FormatError: weights of another shape.
    """

    name: str
    weights: Weights
    settings: DecimaSettings
    num_executors: int
    is_drawn: bool = False
    seed: int = 0
    _network: Network = field(init=False, repr=False)
    _workspace: Workspace = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._network = make_network(self.weights, self.settings, self.num_executors, self.name)
        self._make_room(64, 1024, 1)

    @property
    def network(self) -> Network:
        """What the kernels take."""
        return self._network

    def _make_room(self, num_jobs: int, num_stages: int, num_classes: int) -> None:
        many = allocate_workspace(
            1, num_jobs, num_stages, num_classes, len(self._network.levels), self.settings
        )
        self._workspace = Workspace(*(table[0] for table in many))

    def _fit(self, seen: Observation | ClusterState) -> Workspace:
        sizes = len(seen.jobs), len(seen.stages), len(seen.classes)
        room = len(self._workspace.known), len(self._workspace.done), len(self._workspace.waiting)
        if any(wanted > found for wanted, found in zip(sizes, room, strict=True)):
            self._make_room(*sizes)
        return self._workspace

    def decide(self, observation: Observation) -> Decision:
        """Answer one scheduling event."""
        return Decision(*map(int, decide(observation, self._network, self._fit(observation))))

    def probabilities(self, observation: Observation) -> list[tuple[int, float]]:
        """(stage row, probability) of the last decision's choices, the most probable first.

        The observation must be the one that was just decided.
        """
        count = int(score_stages(observation, self._network, self._workspace))
        return ranked_choices(
            self._workspace.stage[:count].tolist(), self._workspace.logits[:count]
        )

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
        workspace = self._fit(state)
        if self.is_drawn:
            return int(
                play_drawn(state, future, tables, self._network, workspace, np.uint64(self.seed))
            )
        return int(play(state, future, tables, self._network, workspace))

    def play_many(
        self,
        states: ClusterState,
        futures: Future,
        tables: WorkloadTables,
        first: int,
        last: int,
        status: npt.NDArray[np.int64],
    ) -> None:
        """Run simulators first..last-1 of many to their end; fills `status`."""
        own = DecimaPolicy(
            self.name, self.weights, self.settings, self.num_executors, self.is_drawn, self.seed
        )
        for row in range(first, last):
            own.seed = self.seed + row
            status[row] = own.play(
                select(states, row), Future(*(table[row] for table in futures)), tables
            )
