"""Which policies meet deadlines: `python -m benchmarks.deadlines` prints the tables of
docs/results/deadlines.md.

The bundled workload `tpch` on 32 cores, with deadlines that are multiples of a job's duration alone
on the cluster. The rule is tuned on tuning seeds, once for every setting; all policies are compared
on evaluation seeds that no tuning uses.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import polars as pl

from parcae.base.texts import MS_PER_S
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.statistics import Estimate, with_interval
from parcae.evaluation.who_pays import (
    MISSED,
    MISSED_MINUS_FIRST,
    TARDINESS,
    deadline_counts,
    deadline_estimates,
)
from parcae.learning.scenario import Scenario, start_rule
from parcae.learning.tune import rule_policy, tune_rule
from parcae.papers.runner import markdown_table
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.objectives import missed_and_tardy
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import TUNING_SEED_START, JobSequence, Workload

_CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=32, estimate_error="log")
_NUM_JOBS = 60
_LOADS = (0.6, 0.8, 0.95)
_POLICIES = ("fair", "fifo", "srpt", "edf", "edf:late-last", "tuned")
_TUNED = "tuned for deadlines"
#: The policy that others are compared with, besides the first.
_RIVAL = "edf:late-last"
_FIRST_SEED = 1_000
#: Simulations of each job alone.
_NUM_DRAWS = 20
#: Deadlines / duration alone, in turn for the workload's jobs.
_KINDS = {
    "2 times the duration alone": (2.0,),
    "4 times the duration alone": (4.0,),
    "2 and 8 times the duration alone, in turn": (2.0, 8.0),
}
_COLUMNS = (
    "load",
    "policy",
    "missed",
    "minus fair, points",
    "minus edf:late-last, points",
    "tardiness (s)",
    "average JCT (s)",
)


def _alone_s(workload: Workload, row: int) -> float:
    """Mean duration of a job alone on the cluster, in seconds."""
    sequence = JobSequence(workload, np.array([row]), np.zeros(1, np.int64))
    fifo = named_policy("fifo", workload, _CONFIG)
    ends_ms = [
        simulate(sequence, fifo, _CONFIG, TUNING_SEED_START + draw).completion_ms[0]
        for draw in range(_NUM_DRAWS)
    ]
    return float(np.mean(ends_ms)) / MS_PER_S


def _compared(workload: Workload, load: float, seeds: int, generations: int) -> Comparison:
    """The policies at one load; the rule is tuned for the objective first, from what ships."""
    scenario = Scenario(workload, _CONFIG, f"load:{load}", _NUM_JOBS, missed_and_tardy)
    tuning = tune_rule(
        scenario,
        budget_s=math.inf,
        start=start_rule("tuned", scenario),
        max_generations=generations,
    )
    tuned = rule_policy(_TUNED, tuning.parameters, scenario)
    world = ClusterWorld(workload, _CONFIG, scenario.arrivals, _NUM_JOBS)
    return compare(world, [*_POLICIES, tuned], num_seeds=seeds, seed_start=_FIRST_SEED, processes=1)


def _against(comparison: Comparison, policy: int, rival: int) -> Estimate:
    """The share of deadlines that a policy misses less that of another, paired by seed."""
    counts = comparison.jobs.group_by("seed", "column").agg(*deadline_counts()).sort("seed")
    own, other = (counts.filter(pl.col("column") == column) for column in (policy, rival))
    return deadline_estimates(own, other)[MISSED_MINUS_FIRST]


def _points(share: Estimate) -> str:
    """A difference of shares in percentage points."""
    return with_interval(
        Estimate(100 * share.mean, 100 * share.low, 100 * share.high), "{:+.1f}".format
    )


def _rows(comparison: Comparison, load: float) -> list[list[str]]:
    names = [result.name for result in comparison.policies]
    rows = []
    for column, result in enumerate(comparison.policies):
        rival = _against(comparison, column, names.index(_RIVAL))
        rows.append(
            [
                f"{load:g}",
                result.name,
                with_interval(result.estimates[MISSED], "{:.1%}".format),
                _points(result.estimates[MISSED_MINUS_FIRST]),
                _points(rival),
                with_interval(result.estimates[TARDINESS], "{:.2f}".format),
                with_interval(result.average_jct_s, "{:.2f}".format),
            ]
        )
    return rows


def main() -> None:
    """Print a table for each kind of deadlines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="evaluation seeds")
    parser.add_argument("--generations", type=int, default=60, help="generations of each tuning")
    options = parser.parse_args()
    workload = load_workload("tpch")
    alone_s = [_alone_s(workload, row) for row in range(len(workload.jobs))]
    for title, factors in _KINDS.items():
        times = {
            job.name: factors[row % len(factors)] * alone_s[row]
            for row, job in enumerate(workload.jobs)
        }
        due = workload.with_deadlines({name: f"{seconds:.3f}" for name, seconds in times.items()})
        rows = []
        for load in _LOADS:
            rows += _rows(_compared(due, load, options.seeds, options.generations), load)
        print(f"## Deadlines of {title}\n\n{markdown_table(_COLUMNS, rows)}\n", flush=True)


if __name__ == "__main__":
    main()
