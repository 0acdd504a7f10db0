"""Policies for a service: made for the number of slots that a cluster turns out to have."""

from __future__ import annotations

from functools import lru_cache

from parcae.cluster.decision import Policy
from parcae.policies.catalog import make_policy
from parcae.policies.learned import is_learned, learned_policy
from parcae.service.mirror import PolicyFor
from parcae.simulation.config import SimulationConfig
from parcae.workloads.job import Workload


def policies_by_size(text: str, workload: Workload, moving_delay_ms: int, arrivals: str = "poisson:25s") -> PolicyFor:
    """The policy that `text` names, for a cluster of so many slots; each is made once.

    Args:
        workload: the profile that learned policies are bound to (their solo curves take about a second for TPC-H).
        moving_delay_ms: what a move costs.
        arrivals: how jobs arrive, by which the nearest of the shipped variants is chosen.

    Raises:
        PolicyError, FormatError, FileNotFoundError: when it is called, as `learned_policy` and `make_policy`.
    """

    @lru_cache(maxsize=16)
    def policy_for(num_slots: int) -> Policy:
        if is_learned(text):
            config = SimulationConfig(num_executors=num_slots, moving_delay_ms=moving_delay_ms)
            return learned_policy(text, workload, config, arrivals)
        return make_policy(text, num_slots)

    return policy_for
