"""Rollouts spread over a Ray cluster: an actor a node's core group, each with groups of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from parcae.errors import ConfigError
from parcae.learning.family import Family, Rollout
from parcae.learning.rollouts import RolloutWorker
from parcae.learning.scenario import Scenario
from parcae.policies.rule.kernels import Rule


class RayWorkers:
    """The same interface as RolloutWorker's, for the trainer; see `ray_workers`."""

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors

    def collect(
        self,
        network: Any,
        episode_s: float | None = None,
        teacher: tuple[Rule, float] | None = None,
        gap: float = 1.0,
    ) -> list[list[Rollout]]:
        """One collection: the groups of all actors."""
        import ray

        shared = ray.put(network)
        found = ray.get(
            [actor.collect.remote(shared, episode_s, teacher, gap) for actor in self._actors]
        )
        return [group for groups in found for group in groups]

    def close(self) -> None:
        """Give the cluster's CPUs back."""
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def restart(self) -> None:
        """Begin every group with a new sequence."""
        import ray

        ray.get([actor.restart.remote() for actor in self._actors])

    def rng_state(self) -> dict[str, Any]:
        """What is needed to go on drawing as if nothing had happened."""
        import ray

        return {"actors": ray.get([actor.rng_state.remote() for actor in self._actors])}

    def restore_rng(self, state: dict[str, Any]) -> None:
        """Go on from a state that `rng_state` gave.

        Raises:
            ConfigError: a state of another number of actors.
        """
        import ray

        if len(state.get("actors", [])) != len(self._actors):
            raise ConfigError(
                f"the training ran on {len(state.get('actors', []))} Ray actors, here are {len(self._actors)}: resume it there"
            )
        ray.get(
            [
                actor.restore_rng.remote(own)
                for actor, own in zip(self._actors, state["actors"], strict=True)
            ]
        )


def _writable(tree: Any) -> Any:
    """A copy of nested named tuples of arrays. Ray's arrays cannot be written to: kernels would be compiled anew for them."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, tuple):
        parts = [_writable(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


class _Actor:
    """A RolloutWorker in a process of the cluster; what it returns is cut to what was recorded."""

    def __init__(self, scenario: Scenario, family: Family, settings: dict[str, Any]) -> None:
        self.worker = RolloutWorker(scenario, family, **settings)

    def collect(
        self, network: Any, episode_s: float | None, teacher: tuple[Rule, float] | None, gap: float
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
    address: str, scenario: Scenario, family: Family, *, num_groups: int, seed: int, **settings: Any
) -> RayWorkers:
    """Workers on the Ray cluster at `address` ("auto", "local", "host:port"): an actor for every CPU, up to one a group.

    Raises:
        ConfigError: Ray is not installed, or the cluster does not answer.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError("--ray needs Ray: install it with `pip install 'parcae[ray]'`") from None
    if not ray.is_initialized():
        try:
            ray.init(address=None if address == "local" else address, log_to_driver=False)
        except ConnectionError as error:
            raise ConfigError(f"--ray {address}: no Ray cluster answers there ({error})") from None
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    count = max(1, min(num_groups, int(resources.get("CPU", 1))))
    shares = [len(part) for part in np.array_split(np.arange(num_groups), count)]
    actor = ray.remote(num_cpus=1)(_Actor)
    shared = ray.put(scenario)
    kind = ray.put(family)
    actors = [
        actor.remote(shared, kind, {"num_groups": share, "seed": (seed << 8) + row, "num_threads": 1, **{
            key: value for key, value in settings.items() if key != "num_threads"
        }})
        for row, share in enumerate(shares)
    ]  # fmt: skip
    return RayWorkers(actors)
