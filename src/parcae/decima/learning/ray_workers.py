"""Plays rollouts on a Ray cluster.

Every share of a collection is a task of its own. A task needs nothing that another one left
behind: Ray gives it to any CPU that is free, and again to another one if its worker or its node
dies. A training thus has the same weights on any cluster, and on none.
"""

from __future__ import annotations

import math
import socket
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.decima.learning.simulators import PlayedRollouts, RolloutShare, Setup, Simulators
from parcae.decima.learning.updates import Rollout
from parcae.decima.queries import Teacher
from parcae.policies.networks.layout import trimmed

#: Tasks for each CPU of the cluster, so that no CPU waits long for the last one.
_TASKS_PER_CPU = 2
#: How long to wait for a cluster's answer.
_PATIENCE_S = 10.0
#: Simulators of the trainings that this process has worked for, by key and size of the share. Ray
#: ends the process with the program that trains.
_simulators: dict[tuple[str, int], tuple[Setup, Simulators]] = {}
#: The addresses by which trainings of this process connected to clusters.
_connections: dict[str, str] = {}


class RayCluster:
    """Plays shares on a Ray cluster; see `parcae.decima.learning.simulators.Player`.

    Raises:
        ConfigError: Ray is not installed, or the cluster does not answer.
    """

    def __init__(self, address: str, setup: Setup) -> None:
        ray = _connected(address)
        num_cpus = int(ray.cluster_resources().get("CPU", 1))
        wanted = math.ceil(_TASKS_PER_CPU * max(1, num_cpus) / setup.config.num_groups)
        self.shares_per_group = min(setup.config.group_size, wanted)
        self._setup = ray.put(setup)
        self._key = uuid.uuid4().hex
        # A share is played until a worker lives long enough; errors of its own are raised.
        self._task = ray.remote(num_cpus=1, max_retries=-1)(_play)

    def play(
        self, shares: Sequence[RolloutShare], network: Any, teacher: Teacher | None
    ) -> list[PlayedRollouts]:
        """See `Player.play`."""
        import ray

        inputs = ray.put((network, teacher))  # one copy for all tasks
        # In a list, so that Ray does not read the setup for every task.
        of_training = (self._key, [self._setup])
        tasks = [self._task.remote(of_training, share, inputs) for share in shares]
        try:
            played: list[PlayedRollouts] = ray.get(tasks)
        except BaseException:  # also an interruption: the tasks are given up
            for task in tasks:
                ray.cancel(task)
            raise
        return played


def _connected(address: str) -> Any:
    """The module ray, connected to the cluster."""
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "--ray needs Ray: install it with `pip install 'parcae-scheduler[ray]'`"
        ) from None
    # An earlier training of this process may have connected to another cluster.
    if ray.is_initialized() and _connections.get(_cluster(ray), address) != address:
        ray.shutdown()
    # The user's program may have connected to Ray itself.
    if not ray.is_initialized():
        try:
            # Where nothing listens, Ray itself would try for minutes.
            host, _, port = address.rpartition(":")
            if host and port.isdecimal():
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()
            ray.init(address=address, log_to_driver=False)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--ray {address}: no Ray cluster answers there ({error}); start one with `ray "
                "start --head`, whose output gives the address"
            ) from None
        _connections[_cluster(ray)] = address
    return ray


def _cluster(ray: Any) -> str:
    """What identifies the cluster that this process is connected to."""
    return str(ray.get_runtime_context().gcs_address)


def _play(
    of_training: tuple[str, list[Any]], share: RolloutShare, inputs: tuple[Any, Any]
) -> PlayedRollouts:
    """Play a share in a process of the cluster. Returns what came of it, in records without unused
    rows.
    """
    import ray

    key, (reference,) = of_training
    if (key, len(share)) not in _simulators:
        setup = ray.get(reference)
        _simulators[key, len(share)] = (setup, Simulators(setup, len(share)))
    setup, simulators = _simulators[key, len(share)]
    network, teacher = _writable(inputs)
    (played,) = simulators.play([share], network, teacher)
    rollouts = [Rollout(trimmed(one.record), one.is_complete) for one in played.rollouts]
    return PlayedRollouts(rollouts, played.end)


def _writable(tree: Any) -> Any:
    """A copy of nested named tuples of arrays.

    Arrays from Ray are read-only, and Numba would compile the kernels again for read-only arrays.
    """
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if not isinstance(tree, tuple):
        return tree
    parts = map(_writable, tree)
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
