"""Policies for a service: made for the number of slots that a cluster turns out to have.

A policy object belongs to one cluster: networks keep what they worked out for its jobs. What takes long (curves, weights) is
worked out once for a number of slots.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

from parcae.cluster.decision import Policy
from parcae.errors import InputError, PolicyError
from parcae.policies.catalog import make_policy
from parcae.policies.decima.policy import DecimaPolicy
from parcae.policies.learned import deciding_policy, is_learned
from parcae.policies.parcae.policy import ParcaePolicy
from parcae.simulation.config import SimulationConfig
from parcae.workloads.job import Workload

_LOG = logging.getLogger(__name__)
#: Makes a policy for so many slots, for one cluster; None where it is not ready yet.
PolicyFor = Callable[[int], Policy | None]
#: Numbers of slots for which one cluster keeps its policies.
_NUM_KEPT = 8


def policies_by_size(
    text: str, workload: Workload, moving_delay_ms: int, arrivals: str = "poisson:25s"
) -> Callable[[int], Policy]:
    """The policy that `text` names, for a cluster of so many slots; made at once, by whoever asks.

    Args:
        workload: the profile that learned policies are bound to (their solo curves take about a second for TPC-H).
        moving_delay_ms: what a move costs.
        arrivals: how jobs arrive, by which the nearest of the shipped variants is chosen.

    Raises:
        PolicyError, FormatError, FileNotFoundError: when it is called, as `deciding_policy` and `make_policy`.
    """

    @lru_cache(maxsize=64)
    def made(num_slots: int) -> Policy:
        if text.partition(":")[0] == "order":
            raise PolicyError(f"policy {text!r} ranks the jobs of one known sequence; a live cluster has none: choose another")
        if is_learned(text):
            config = SimulationConfig(num_executors=num_slots, moving_delay_ms=moving_delay_ms)
            return deciding_policy(text, workload, config, arrivals)
        return make_policy(text, num_slots)

    return lambda num_slots: _of_its_own(made(num_slots))


def _of_its_own(policy: Policy) -> Policy:
    """The same policy with a workspace of its own; those without a memory are shared."""
    return replace(policy) if isinstance(policy, DecimaPolicy | ParcaePolicy) else policy


class InBackground:
    """Makes policies in a thread, so that the loop that serves the clients goes on.

    Args:
        make: makes a policy at once, and faster when it is asked for as many slots again; see `policies_by_size`.
        ready: numbers of slots for which it was asked already.

    Example: `InBackground(policies_by_size("parcae", workload, 0))(50)` is None at first, and the policy a second later.
    """

    def __init__(self, make: Callable[[int], Policy], ready: Iterable[int] = ()) -> None:
        self._make, self._ready = make, set(ready)
        self._futures: dict[int, Future[Policy]] = {}
        self._thread = ThreadPoolExecutor(1, "policies")

    def __call__(self, num_slots: int) -> Policy | None:
        """A policy, or None while the first for so many slots is being made.

        Raises:
            whatever making it raised.
        """
        if num_slots not in self._ready:
            if num_slots not in self._futures:
                self._futures[num_slots] = self._thread.submit(self._make, num_slots)
            if not self._futures[num_slots].done():
                return None
            self._futures[num_slots].result()
        return self._make(num_slots)


class OwnPolicies:
    """The policies of one cluster, by the number of its slots: that goes up and down, and comes back.

    Args:
        policy_for: asked once for every number of slots, or until it is ready.
    """

    def __init__(self, policy_for: PolicyFor) -> None:
        self._policy_for, self._made = policy_for, dict[int, Policy]()

    def get(self, num_slots: int) -> Policy | None:
        """The policy for so many slots; None where it is not ready yet, fair sharing where there is none."""
        if num_slots in self._made:
            return self._made[num_slots]
        try:
            policy = self._policy_for(num_slots)
        except (InputError, OSError) as error:  # e.g. a network whose limits are those of another size of cluster
            _LOG.error("no policy for %d slots (%s); fair decides", num_slots, error)
            policy = make_policy("fair", num_slots)
        if policy is not None:
            if len(self._made) == _NUM_KEPT:
                del self._made[next(iter(self._made))]
            self._made[num_slots] = policy
        return policy
