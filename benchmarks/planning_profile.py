"""How `plan` fares where all that is known of the jobs comes from other runs of theirs.

    python -m benchmarks.planning_profile tpch-decima.parcae --seeds 30

The recorded durations of every stage are divided at random into two halves. The cluster draws
durations from one half. Estimates, and the profile that rollouts draw from, are of the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parcae.evaluation.compare import ClusterWorld, compare
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import load_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import StageSpec
from parcae.workloads.workload import Workload

_FIRST_SEED = 1_000


def halves(samples: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two random halves of some samples; a single sample is in both."""
    if len(samples) < 2:
        return samples, samples
    shuffled = rng.permutation(samples)
    middle = len(samples) // 2
    return shuffled[:middle], shuffled[middle:]


def divided(stage: StageSpec, rng: np.random.Generator) -> Iterator[StageSpec]:
    """The stage as two sets of runs show it."""
    waves = (stage.durations.fresh, stage.durations.first, stage.durations.rest)
    pairs = [[halves(samples, rng) for samples in wave] for wave in waves]
    for half in range(2):
        durations = TaskDurations(
            stage.durations.levels, *(tuple(pair[half] for pair in wave) for wave in pairs)
        )
        yield replace(stage, durations=durations, mean_task_ms=-1.0)


def two_profiles(workload: Workload, seed: int) -> tuple[Workload, Workload]:
    """The runs that happen, with what is known of them, and the runs that are known."""
    rng = np.random.default_rng(seed)
    happening = []
    known = []
    for job in workload.jobs:
        pairs = [tuple(divided(stage, rng)) for stage in job.stages]
        known.append(replace(job, stages=tuple(stage for _, stage in pairs)))
        stages = (replace(new, mean_task_ms=old.mean_task_ms) for new, old in pairs)
        happening.append(replace(job, stages=tuple(stages)))
    return replace(workload, jobs=tuple(happening)), replace(workload, jobs=tuple(known))


def main() -> None:
    """Compare `plan` with its base, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", help="name or file of a workload with recorded durations")
    parser.add_argument("--base", default="corrector:batch", help="the policy that plan improves")
    parser.add_argument("--arrivals", default="batch", help="how jobs arrive")
    parser.add_argument("--jobs", type=int, default=20, help="number of jobs in a run")
    parser.add_argument("--seeds", type=int, default=30, help="number of runs")
    options = parser.parse_args()
    config = SimulationConfig()
    happening, known = two_profiles(load_workload(options.workload), seed=0)
    plan = named_policy(f"plan:{options.base}", known, config, options.arrivals)
    world = ClusterWorld(happening, config, options.arrivals, options.jobs)
    result = compare(
        world,
        [options.base, plan],
        num_seeds=options.seeds,
        seed_start=_FIRST_SEED,
        processes=1,
        progress=lambda done, count: print(f"{done} of {count} runs", end="\r", flush=True),
    )
    for one in result.policies:
        ratio = one.ratio_to_first
        print(
            f"{one.name}: average JCT {one.average_jct_s.mean:.1f} s, "
            f"{ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {options.base}; "
            f"{one.estimates['later_than_first_share'].mean:.0%} of the jobs more than 5% later"
        )


if __name__ == "__main__":
    main()
