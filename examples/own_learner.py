"""A learner of your own: random search for the weights of a policy, judged on other seeds."""

from __future__ import annotations

import random

import parcae


def weighted(weights: tuple[float, float]):
    """A policy with two weights: remaining work against age."""

    def policy(view: parcae.SchedulerView) -> list[parcae.JobView]:
        work, age = weights
        return sorted(view.jobs, key=lambda job: work * job.remaining_s - age * job.age_s)

    policy.__name__ = f"weighted({weights[0]:.2f},{weights[1]:.2f})"
    return policy


def cost_s(weights: tuple[float, float], seeds: range) -> float:
    """The average JCT over some seeds, in seconds."""
    runs = [
        parcae.simulate(
            workload.draw(20, "load:0.9", cluster, seed=seed), weighted(weights), cluster
        )
        for seed in seeds
    ]
    return sum(run.average_jct_s for run in runs) / len(runs)


cluster = parcae.Cluster(cores=10)
workload = parcae.workload("toy")
random.seed(1)
candidates = [(random.random(), random.random()) for _ in range(20)]
best = min(candidates, key=lambda weights: cost_s(weights, range(5)))

jobs = workload.draw(20, "load:0.9", cluster, seed=100)
comparison = parcae.compare(
    jobs, ["fair", "srpt", weighted(best)], cluster, seeds=10, seed_start=100
)
for row in comparison.to_frame().iter_rows(named=True):
    print(f"{row['policy']:20} {row['average_jct_s']:6.2f} s  {row['ratio_to_first']:.3f} of fair")
