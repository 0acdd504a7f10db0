"""Trainings on a Ray cluster of two nodes (on this machine)."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.decima.corrector.family import CorrectorFamily
from parcae.decima.learning.gradients import GradientLearner
from parcae.decima.learning.ray_workers import RayCluster
from parcae.decima.learning.recipes import TrainRequest
from parcae.decima.learning.simulators import Setup
from parcae.decima.rule import start_parameters
from parcae.learning.config import STATE_FILE, TrainConfig
from parcae.learning.loop import Iteration, TrainingPlan, train
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights, read_checkpoint
from parcae.simulation.config import SimulationConfig
from tests.conftest import made_up

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'parcae-scheduler[ray]'")

_WORKLOAD = made_up(6, 4.0)
_STREAM = Scenario(_WORKLOAD, SimulationConfig(num_executors=4), "load:0.6", 12)
_BATCH = Scenario(_WORKLOAD, SimulationConfig(num_executors=4), "batch", 4)
#: Windows, so that groups go on from one collection to the next.
_CONFIG = TrainConfig(
    num_groups=2,
    group_size=3,
    capacity=64,
    num_selection=4,
    select_every=3,
    window_s=20.0,
    horizon_s=20.0,
)
_REQUEST = TrainRequest([_STREAM, _BATCH], _CONFIG, parameters=start_parameters())
_ITERATIONS = 9


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


def _weights(request: TrainRequest, folder: Path, until: int = _ITERATIONS) -> Weights:
    """The weights of a training that is interrupted after some iterations, or goes on so long."""

    def interrupt(done: Iteration) -> None:
        if done.iteration == until < _ITERATIONS:
            os.kill(os.getpid(), signal.SIGINT)

    plan = TrainingPlan(1e6, _ITERATIONS, folder=folder, is_resumed=folder.exists())
    result = train(GradientLearner(request), plan, interrupt)
    assert result.iterations == until
    return read_checkpoint(folder / STATE_FILE).weights


def _equal(one: Weights, other: Weights) -> bool:
    """Whether two trainings ended with the very same weights."""
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def _busy_workers() -> list[int]:
    """Processes of the cluster that play a share just now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # It has ended meanwhile.
            if title.startswith(b"ray::_play"):
                found.append(int(entry.name))
    return found


class _Killer(threading.Thread):
    """Kills workers while they play."""

    def __init__(self, count: int) -> None:
        super().__init__(daemon=True)
        self.killed: list[int] = []
        self._count = count

    def run(self) -> None:
        """Kill so many workers, a second apart."""
        while len(self.killed) < self._count:
            for process in _busy_workers()[:1]:
                os.kill(process, signal.SIGKILL)
                self.killed.append(process)
                time.sleep(1.0)
            time.sleep(0.002)


def test_a_cluster_that_does_not_answer_is_named() -> None:
    family = CorrectorFamily(_BATCH, start_parameters(), (2.0, 2.0, 2.0))
    with pytest.raises(ConfigError, match="no Ray cluster answers"):
        RayCluster("127.0.0.1:1", Setup(_BATCH, family, _CONFIG))


@pytest.mark.slow
def test_a_training_on_a_cluster_is_the_same_as_without_one(address: str, tmp_path: Path) -> None:
    on_cluster = replace(_REQUEST, ray_address=address)
    here = _weights(_REQUEST, tmp_path / "here")
    # Two workers die in the middle of a share, which loses nothing.
    killer = _Killer(2)
    killer.start()
    there = _weights(on_cluster, tmp_path / "there")
    killer.join(timeout=1.0)
    assert len(killer.killed) == 2
    assert _equal(here, there)
    # A training goes on with another number of workers than it began with: with none, and back.
    _weights(on_cluster, tmp_path / "both", until=3)
    _weights(_REQUEST, tmp_path / "both", until=6)
    assert _equal(here, _weights(on_cluster, tmp_path / "both"))


@pytest.mark.slow
def test_both_nodes_play_also_after_a_training_on_another_cluster(address: str) -> None:
    family = CorrectorFamily(_STREAM, start_parameters(), (2.0, 2.0, 2.0))
    ray.shutdown()
    RayCluster("local", Setup(_STREAM, family, _CONFIG))
    assert len(ray.nodes()) == 1
    cluster = RayCluster(address, Setup(_STREAM, family, _CONFIG))
    # Two tasks for each of the two CPUs.
    assert cluster.shares_per_group == 2
    assert sum(node["Alive"] for node in ray.nodes()) == 2
