"""Tuned heuristics: the parameter is swept on seeds that no comparison ever uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parcae.metrics.jobs import jct_ms
from parcae.policies.catalog import make_policy
from parcae.policies.heuristics.policy import HeuristicPolicy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.many import SimulatorBatch
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

#: Decima, section 7.1: alpha from -2 to 2 in steps of 0.1.
ALPHAS = tuple(round(-2.0 + 0.1 * step, 1) for step in range(41))
#: Tuning seeds start here, far above any seed that comparisons use.
TUNING_SEED_START = 1 << 40
NUM_TUNING_SEEDS = 20


@dataclass(frozen=True)
class ResolvedPolicies:
    """Policies by the name that was asked for, with tuned parameters found.

    Args:
        policies: every policy that is the same for all sequences.
        oracles: names whose parameter is the best in hindsight for each sequence.
        tuned: what tuning found, for the report.
    """

    policies: Mapping[str, HeuristicPolicy]
    oracles: frozenset[str]
    names: tuple[str, ...]
    config: SimulationConfig
    tuned: Mapping[str, str] = field(default_factory=dict)

    def for_sequence(self, sequence: JobSequence, seed: int) -> dict[str, HeuristicPolicy]:
        """The policies, in the order asked for, for one sequence."""
        chosen = {}
        for name in self.names:
            if name in self.oracles:
                chosen[name] = best_alpha_in_hindsight(sequence, self.config, seed, name)
            else:
                chosen[name] = self.policies[name]
        return chosen


def resolve_policies(
    workload: Workload, names: Sequence[str], config: SimulationConfig, arrivals: str, num_jobs: int
) -> ResolvedPolicies:
    """The policies that `names` ask for; `weighted-fair:tuned` is tuned here, once, on the tuning seeds.

    Raises:
        PolicyError: an unknown policy.
    """
    policies, tuned, oracles = {}, {}, set()
    for name in names:
        if name == "weighted-fair:tuned":
            alpha = tune_alpha(workload, config, arrivals, num_jobs)
            policies[name] = _weighted_fair(alpha, config, name)
            tuned[name] = f"alpha {alpha:g}, swept on {NUM_TUNING_SEEDS} tuning seeds"
        elif name == "weighted-fair:oracle":
            oracles.add(name)
            tuned[name] = "alpha that is best in hindsight for each sequence: an oracle, not a policy that can be deployed"
        else:
            policies[name] = make_policy(name, config.total_executors)
    return ResolvedPolicies(policies, frozenset(oracles), tuple(dict.fromkeys(names)), config, tuned)


def _weighted_fair(alpha: float, config: SimulationConfig, name: str) -> HeuristicPolicy:
    policy = make_policy(f"weighted-fair:{alpha:g}", config.total_executors)
    return HeuristicPolicy(name, policy.kind, policy.params)


def average_jct_ms(
    policy: HeuristicPolicy, sequences: Sequence[JobSequence], config: SimulationConfig, seeds: Sequence[int]
) -> float:
    """Mean of the sequences' average JCT under a policy, in ms."""
    batch = SimulatorBatch(sequences, config, seeds)
    batch.run(policy.play_many)
    return float(np.mean([jct_ms(batch.trace(row, policy.name)).mean() for row in range(len(batch))]))


def tune_alpha(workload: Workload, config: SimulationConfig, arrivals: str, num_jobs: int) -> float:
    """The alpha of weighted fair with the least mean JCT on the tuning seeds (Decima, section 7.1, baseline 5).

    Recorded arrivals have one sequence only: there alpha is tuned on jobs drawn at the recorded mean rate.
    """
    process = arrivals
    if arrivals == "recorded":
        times = [job.arrival_ms or 0 for job in workload.jobs]
        gap_ms = (max(times) - min(times)) / max(1, len(times) - 1)
        process = f"poisson:{max(1, round(gap_ms))}ms"
    seeds = [TUNING_SEED_START + row for row in range(NUM_TUNING_SEEDS)]
    sequences = [draw_sequence(workload, process, num_jobs, config.total_executors, RandomStreams(seed)) for seed in seeds]
    cost = {alpha: average_jct_ms(_weighted_fair(alpha, config, "tuning"), sequences, config, seeds) for alpha in ALPHAS}
    return min(ALPHAS, key=lambda alpha: (cost[alpha], abs(alpha)))


def best_alpha_in_hindsight(sequence: JobSequence, config: SimulationConfig, seed: int, name: str) -> HeuristicPolicy:
    """Weighted fair with the alpha that is best for this very sequence (the paper's per-batch optimum)."""
    candidates = [_weighted_fair(alpha, config, name) for alpha in ALPHAS]
    return min(candidates, key=lambda policy: average_jct_ms(policy, [sequence], config, [seed]))
