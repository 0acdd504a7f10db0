"""What the simulator foretells of the judged runs of `parcae spark tpch`, in the world of cores."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from parcae.evaluation.tuning import ResolvedPolicies, resolve_policies
from parcae.files import write_text
from parcae.metrics.jobs import jct_ms
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.run import simulate
from parcae.spark.tpch_calibration import calibration_of
from parcae.spark.tpch_log import QueryProfile, profile_of
from parcae.spark.tpch_plan import TpchConfig, draw_arrivals
from parcae.units import MS_PER_S, ms_from_s
from parcae.workloads.arrivals import JobSequence

_FILE = "foretold.json"
#: Simulated runs of every seed, with other draws of how runs differ from their profiles.
_RUNS = 10
#: Mean completion time in s, by seed.
BySeed = dict[int, float]


def simulated_name(policy: str, *, is_adaptive: bool) -> str:
    """What the catalogue calls what Spark does.

    Under adaptive execution FIFO goes by Spark jobs, of which every stage is one.

    Example: `simulated_name("fifo", is_adaptive=True)` is "fifo:spark-jobs".
    """
    return "fifo:spark-jobs" if policy == "fifo" and is_adaptive else policy


def foretell_all(config: TpchConfig, work: Path, progress: Callable[[str], None]) -> None:
    """Simulate every judged seed under every policy; keep the means in the work folder.

    Runs differ from their profiles as they did in the earlier runs.

    Args:
        config: whose seeds and policies.
        work: the work folder, whose earlier runs are over.
        progress: is told what is simulated.

    Raises:
        PolicyError: a policy that the simulator does not know.
    """
    profile = profile_of(work)
    calibrated = calibration_of(work)
    assert calibrated is not None
    known: dict[str, BySeed] = foretold_of(work)
    for policy in config.policies:
        done = known.setdefault(policy, {})
        seeds = range(config.seed_start, config.seed_start + config.seeds)
        left = [seed for seed in seeds if seed not in done]
        if left:
            progress(f"simulating {policy}")
            done.update(_foretell(config, profile, calibrated.gap_s, policy, left))
            write_text(work / _FILE, json.dumps(known, indent=1) + "\n")


def _foretell(
    config: TpchConfig,
    profile: QueryProfile,
    gap_s: float,
    policy: str,
    seeds: Sequence[int],
) -> BySeed:
    world = WorldName.CORES
    simulation = SimulationConfig(world=world, num_executors=config.cores, estimate_error="log")
    name = simulated_name(policy, is_adaptive=config.is_adaptive)
    arrivals = f"poisson:{max(1, ms_from_s(gap_s))}ms"
    resolved = resolve_policies(profile.workload, [name], simulation, arrivals, config.num_queries)
    found = {}
    for seed in seeds:
        found[seed] = _mean_s(_sequence(config, profile, gap_s, seed), name, resolved, seed)
    return found


def foretold_of(work: Path) -> dict[str, BySeed]:
    """What was foretold in a work folder so far."""
    path = work / _FILE
    known = json.loads(path.read_text()) if path.exists() else {}
    found = {}
    for policy, by_seed in known.items():
        found[policy] = {int(seed): mean for seed, mean in by_seed.items()}
    return found


def _sequence(config: TpchConfig, profile: QueryProfile, gap_s: float, seed: int) -> JobSequence:
    arrivals = draw_arrivals(config, seed, gap_s)
    rows = np.array([profile.job_of_query[arrival.query] for arrival in arrivals], np.int64)
    return JobSequence(
        profile.workload,
        rows,
        np.array([ms_from_s(arrival.at_s) for arrival in arrivals], np.int64),
    )


def _mean_s(sequence: JobSequence, name: str, resolved: ResolvedPolicies, seed: int) -> float:
    means = []
    for run in range(_RUNS):
        own = seed * _RUNS + run
        trace = simulate(sequence, resolved.for_sequence(sequence, own)[name], resolved.config, own)
        means.append(float(jct_ms(trace).mean()) / MS_PER_S)
    return float(np.mean(means))
