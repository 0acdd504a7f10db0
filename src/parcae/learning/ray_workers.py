"""Spreads rollouts over a Ray cluster: one actor for each CPU, each with a share of the groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from parcae.errors import ConfigError
from parcae.learning.config import TrainConfig
from parcae.learning.family import Family, Rollout
from parcae.learning.rollouts import RolloutWorker
from parcae.learning.scenario import Scenario
from parcae.policies.networks.kernels import Teacher


class RayWorkers:
    """Collects rollouts from Ray actors. Has the methods of `RolloutWorker`; see `ray_workers`."""

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors

    def collect(
        self,
        network: Any,
        episode_s: float | None = None,
        teacher: Teacher | None = None,
        gap: float = 1.0,
    ) -> list[list[Rollout]]:
        """One collection: the groups of all actors.

        Args:
            network: the network as the family's kernels take it.
            episode_s: end every run after this many simulated seconds.
            teacher: a rule whose choices are recorded, and its share of the decisions.
            gap: factor by which gaps between arrivals of new sequences are stretched.
        """
        import ray

        shared = ray.put(network)  # one copy in Ray's store for all actors
        collected = ray.get(
            [actor.collect.remote(shared, episode_s, teacher, gap) for actor in self._actors]
        )
        return [group for groups in collected for group in groups]

    def close(self) -> None:
        """End the actors, which frees the cluster's CPUs."""
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def restart(self) -> None:
        """Begin every group with a new sequence."""
        import ray

        ray.get([actor.restart.remote() for actor in self._actors])

    def rng_state(self) -> dict[str, Any]:
        """State of the random number generators of all actors, for `restore_rng`."""
        import ray

        return {"actors": ray.get([actor.rng_state.remote() for actor in self._actors])}

    def restore_rng(self, state: dict[str, Any]) -> None:
        """Continue from a state that `rng_state` returned.

        Raises:
            ConfigError: the state is of another number of actors.
        """
        import ray

        if len(state.get("actors", [])) != len(self._actors):
            raise ConfigError(
                f"the training ran on {len(state.get('actors', []))} Ray actors, but this cluster "
                f"has {len(self._actors)}: resume it on a cluster of the same size"
            )
        ray.get(
            [
                actor.restore_rng.remote(actor_state)
                for actor, actor_state in zip(self._actors, state["actors"], strict=True)
            ]
        )


def _writable(tree: Any) -> Any:
    """A copy of nested named tuples of arrays.

    Arrays from Ray are read-only, and Numba would compile the kernels again for read-only arrays.
    """
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, tuple):
        parts = [_writable(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


class _Actor:
    """A RolloutWorker in a process of the cluster; it returns records without their unused rows."""

    def __init__(
        self, scenario: Scenario, family: Family, config: TrainConfig, seed: int, tail_ms: float
    ) -> None:
        self.worker = RolloutWorker(
            scenario, family, config, seed=seed, tail_ms=tail_ms, num_threads=1
        )

    def collect(
        self, network: Any, episode_s: float | None, teacher: Teacher | None, gap: float
    ) -> list[list[Rollout]]:
        groups = self.worker.collect(_writable(network), episode_s, _writable(teacher), gap)
        return [
            [Rollout(self.worker.family.trimmed(r), r.is_complete) for r in group]
            for group in groups
        ]

    def restart(self) -> None:
        self.worker.restart()

    def rng_state(self) -> dict[str, Any]:
        return self.worker.rng_state()

    def restore_rng(self, state: dict[str, Any]) -> None:
        self.worker.restore_rng(state)


def ray_workers(
    address: str,
    scenario: Scenario,
    family: Family,
    config: TrainConfig,
    *,
    seed: int,
    tail_ms: float = 0.0,
) -> RayWorkers:
    """Start workers on a Ray cluster: one actor for each CPU, at most one for each group.

    Args:
        address: of the cluster: "auto", "local" or "host:port".
        scenario: what to collect rollouts of.
        family: the kind of network.
        config: see `RolloutWorker`; the number of groups is that of all actors together.
        seed: seed of the rollouts.
        tail_ms: see `parcae.learning.rollouts.costing_for`.

    Raises:
        ConfigError: Ray is not installed, or the cluster does not answer.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError("--ray needs Ray: install it with `pip install 'parcae[ray]'`") from None
    # The user's program may have connected to Ray already.
    if not ray.is_initialized():
        try:
            ray.init(address=None if address == "local" else address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"--ray {address}: no Ray cluster answers there ({error})") from None
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    count = max(1, min(config.num_groups, int(resources.get("CPU", 1))))
    shares = [len(part) for part in np.array_split(np.arange(config.num_groups), count)]
    actor = ray.remote(num_cpus=1)(_Actor)
    shared = ray.put(scenario)
    shared_family = ray.put(family)
    # Each actor has a seed derived from the training's seed and its index.
    actors = [
        actor.remote(
            shared,
            shared_family,
            config.model_copy(update={"num_groups": share}),
            (seed << 8) + row,
            tail_ms,
        )
        for row, share in enumerate(shares)
    ]
    return RayWorkers(actors)
