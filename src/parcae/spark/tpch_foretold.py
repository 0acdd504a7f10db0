"""Predicts the judged runs of `parcae spark tpch` with the simulator's cores world."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S, ms_from_s
from parcae.evaluation.policies import ResolvedPolicies, resolve_policies
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.spark.tpch_calibration import calibration_of
from parcae.spark.tpch_log import QueryProfile, profile_of
from parcae.spark.tpch_plan import TpchConfig, draw_arrivals
from parcae.workloads.arrivals import JobSequence

_FILE = "foretold.json"
#: Simulated runs of every seed, each with other draws of the deviations from the profile.
_RUNS = 10
#: Mean completion time in s, by seed.
BySeed = dict[int, float]


def simulated_name(policy: str, *, is_adaptive: bool) -> str:
    """The name in the simulator's catalogue of a policy of `TpchConfig.policies`.

    Under adaptive execution every stage is a Spark job, and FIFO orders by Spark jobs.

    Example: `simulated_name("fifo", is_adaptive=True)` is "fifo:spark-jobs".
    """
    return "fifo:spark-jobs" if policy == "fifo" and is_adaptive else policy


def foretell_all(config: TpchConfig, work: Path, progress: Callable[[str], None]) -> None:
    """Simulate every judged seed under every policy, and write the means to the work folder.

    Simulated runs deviate from the profile as much as the earlier runs did.
    """
    profile = profile_of(work)
    calibrated = calibration_of(work)
    assert calibrated is not None
    predictions: dict[str, BySeed] = foretold_of(work)
    for policy in config.policies:
        done = predictions.setdefault(policy, {})
        seeds = range(config.seed_start, config.seed_start + config.seeds)
        left = [seed for seed in seeds if seed not in done]
        # The file is written after every policy, so that a stopped command can continue.
        if left:
            progress(f"simulating {policy}")
            done.update(_foretell(config, profile, calibrated.gap_s, policy, left))
            write_text(work / _FILE, json.dumps(predictions, indent=1) + "\n")


def _foretell(
    config: TpchConfig, profile: QueryProfile, gap_s: float, policy: str, seeds: Sequence[int]
) -> BySeed:
    """Mean completion times of some seeds under one policy."""
    world = WorldName.CORES
    simulation = SimulationConfig(world=world, num_executors=config.cores, estimate_error="log")
    name = simulated_name(policy, is_adaptive=config.is_adaptive)
    arrivals = f"poisson:{max(1, ms_from_s(gap_s))}ms"
    resolved = resolve_policies(profile.workload, [name], simulation, arrivals, config.num_queries)
    means = {}
    for seed in seeds:
        means[seed] = _mean_s(_sequence(config, profile, gap_s, seed), name, resolved, seed)
    return means


def foretold_of(work: Path) -> dict[str, BySeed]:
    """The predictions in a work folder so far, by policy and seed."""
    path = work / _FILE
    stored = json.loads(path.read_text()) if path.exists() else {}
    means = {}
    for policy, by_seed in stored.items():
        means[policy] = {int(seed): mean for seed, mean in by_seed.items()}
    return means


def _sequence(config: TpchConfig, profile: QueryProfile, gap_s: float, seed: int) -> JobSequence:
    # The same queries at the same times as on Spark.
    arrivals = draw_arrivals(config, seed, gap_s)
    rows = np.array([profile.job_of_query[arrival.query] for arrival in arrivals], np.int64)
    return JobSequence(
        profile.workload,
        rows,
        np.array([ms_from_s(arrival.at_s) for arrival in arrivals], np.int64),
    )


def _mean_s(sequence: JobSequence, name: str, resolved: ResolvedPolicies, seed: int) -> float:
    # Seeds of simulated runs must differ between the judged seeds, too.
    means = []
    for run in range(_RUNS):
        run_seed = seed * _RUNS + run
        trace = simulate(
            sequence, resolved.for_sequence(sequence, run_seed)[name], resolved.config, run_seed
        )
        means.append(float(jct_ms(trace).mean()) / MS_PER_S)
    return float(np.mean(means))
