"""Tune heuristics by a parameter sweep on seeds that no comparison uses.

`tune` finds the best parameters on the tuning seeds, `best_in_hindsight` those for one sequence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S, seconds_text
from parcae.decima.catalog import make_policy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.policies.parameter_search import Sweep, Values
from parcae.simulation.config import SimulationConfig
from parcae.simulation.many import SimulatorBatch
from parcae.simulation.metrics import arrived, jct_ms
from parcae.workloads.arrivals import TUNING_SEED_START, JobSequence
from parcae.workloads.job import Workload

#: Decima, section 7.1: alpha from -2 to 2 in steps of 0.1.
ALPHAS = tuple(round(-2.0 + 0.1 * step, 1) for step in range(41))
#: Exponents beyond those of the paper: on some workloads the best one lies there.
WIDE_ALPHAS = (-10.0, -8.0, -6.0, -5.0, -4.0, -3.0, -2.5, *ALPHAS, 3.0, 5.0)
NUM_TUNING_SEEDS = 20
#: A sweep over the number of executors tries at most about this many values.
_MAX_COUNTS = 40


def _counts(num_executors: int) -> tuple[float, ...]:
    """Numbers of executors to try: every one in small clusters, logarithmically spaced in large."""
    spaced = np.geomspace(1, num_executors, min(num_executors, _MAX_COUNTS))
    return tuple(
        float(n)
        for n in (
            range(1, num_executors + 1)
            if num_executors <= _MAX_COUNTS
            else np.unique(np.rint(spaced))
        )
    )


#: A grid with more values than this is first tried on a quarter of the sequences.
_MANY = 50
#: The best values of that first round, this many, are then tried on all sequences.
_FINALISTS = 25


@dataclass(frozen=True)
class Knobs:
    """The tunable parameters of a policy."""

    names: tuple[str, ...]
    grid: Callable[[int], Iterable[Values]]
    around: Callable[[Values], Iterable[Values]] = lambda best: ()
    open_ended: tuple[str, ...] = ()


def _each(values: Iterable[float]) -> tuple[Values, ...]:
    return tuple((value,) for value in values)


#: The sweep of Graphene*: first alpha in steps of 0.5 with every pair of thresholds (LongScore 2:
#: no task is long; FragScore -1: no stage is hard to pack) and with executors that wait for a
#: stage's parents or not; then finer steps of alpha and of the longest wait, in s.
_COARSE_ALPHAS = ALPHAS[::5]
_LONG = (0.2, 0.4, 0.6, 0.8, 2.0)
_FRAG = (-1.0, 0.2, 0.4, 0.6, 0.8)
_COARSE_WAITS_S = (0.0, math.inf)
_WAITS_S = (0.0, 2.0, 5.0, 10.0, 30.0, 100.0, math.inf)
_TETRIS_KNOBS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

#: Policies that can be tuned.
SWEEPS: Mapping[str, Knobs] = {
    "weighted-fair": Knobs(
        ("alpha",), lambda num_executors: _each(WIDE_ALPHAS), open_ended=("alpha",)
    ),
    "static": Knobs(("cap",), lambda num_executors: _each(_counts(num_executors))),
    "srpt-cap": Knobs(("cap",), lambda num_executors: _each(_counts(num_executors))),
    "tetris": Knobs(
        ("weight of remaining work",),
        lambda num_executors: _each(_TETRIS_KNOBS),
        open_ended=("weight of remaining work",),
    ),
    "graphene": Knobs(
        ("alpha", "LongScore", "FragScore", "longest wait for parents"),
        lambda num_executors: itertools.product(_COARSE_ALPHAS, _LONG, _FRAG, _COARSE_WAITS_S),
        lambda best: (
            (alpha, *best[1:3], wait_s)
            for alpha in ALPHAS
            if abs(alpha - best[0]) < 0.25
            for wait_s in _WAITS_S
        ),
        open_ended=("alpha",),
    ),
}


def check_seeds(seed_start: int, num_seeds: int) -> None:
    """Check that seeds are not negative and not reserved for tuning."""
    if seed_start < 0 or seed_start + num_seeds > TUNING_SEED_START:
        raise ConfigError(
            f"seeds {seed_start} to {seed_start + num_seeds - 1} are not all in "
            f"0..{TUNING_SEED_START - 1}. Seeds from {TUNING_SEED_START} on are kept for tuning: "
            "choose a smaller first seed"
        )


def family_of(name: str) -> tuple[str, str]:
    """Split a name into the policy to sweep and "tuned" or "oracle"; two empty texts if neither."""
    family, _, how = name.partition(":")
    return (family, how) if family in SWEEPS and how in ("tuned", "oracle") else ("", "")


def with_values(
    family: str, values: Values, config: SimulationConfig, name: str
) -> HeuristicPolicy:
    """A policy of SWEEPS with these parameters."""
    policy = make_policy(
        ":".join([family, *(f"{value:g}" for value in values)]), config.total_executors
    )
    return HeuristicPolicy(name, policy.kind, policy.params)


def describe(sweep: Sweep) -> str:
    """The result of `tune` in words."""
    tried = list(sweep.costs)
    what = (
        f"values from {tried[0][0]:g} to {tried[-1][0]:g}"
        if len(sweep.names) == 1
        else "combinations"
    )
    others = f" ({sweep.num_given_up} more on a quarter of them)" if sweep.num_given_up else ""
    return (
        f"{sweep.best_words} (average JCT {seconds_text(sweep.costs[sweep.best] / MS_PER_S)} s) "
        f"of {len(tried)} {what}, on {NUM_TUNING_SEEDS} tuning seeds{others}"
    )


def edge_warning(family: str, sweep: Sweep, config: SimulationConfig) -> str:
    """A sentence that warns of a best value at the edge of its grid; no text where none is."""
    knobs = SWEEPS[family]
    grid = tuple(knobs.grid(config.total_executors))
    for column, (name, best) in enumerate(zip(sweep.names, sweep.best, strict=True)):
        ends = {end({values[column] for values in grid}) for end in (min, max)}
        if name in knobs.open_ended and best in ends - {0.0}:
            return edge_text(name, best, (min(ends), max(ends)))
    return ""


def edge_text(name: str, best: float, ends: tuple[float, float]) -> str:
    """The warning of a best value at the edge of its grid."""
    return (
        f"{name} {best:g} is at the edge of the values that were tried "
        f"({ends[0]:g} to {ends[1]:g}): a better one may lie beyond it"
    )


def average_jct_ms(
    policy: HeuristicPolicy,
    sequences: Sequence[JobSequence],
    config: SimulationConfig,
    seeds: Sequence[int],
) -> float:
    """Mean over job sequences of the average JCT under a policy, in ms."""
    batch = SimulatorBatch(sequences, config, seeds)
    batch.run(policy.play_many)
    traces = [batch.trace(row, policy.name) for row in range(len(batch))]
    return float(np.mean([jct_ms(trace)[arrived(trace)].mean() for trace in traces]))


def sweep_values(
    family: str, sequences: Sequence[JobSequence], config: SimulationConfig, seeds: Sequence[int]
) -> Sweep:
    """Try all values of a policy's parameters on the same job sequences and task durations. Returns
    the mean over the sequences of the average JCT by the values, in ms.
    """

    def measured(tried: Iterable[Values], count: int) -> dict[Values, float]:
        policies = {values: with_values(family, values, config, "tuning") for values in tried}
        return {
            values: average_jct_ms(p, sequences[:count], config, seeds[:count])
            for values, p in policies.items()
        }

    knobs = SWEEPS[family]
    grid = tuple(knobs.grid(config.total_executors))
    count = len(sequences)
    # A large grid is first tried on a quarter of the sequences.
    num_given_up = len(grid) - _FINALISTS if len(grid) > _MANY else 0
    if num_given_up:
        first = measured(grid, max(1, count // 4))
        grid = tuple(sorted(grid, key=first.__getitem__)[:_FINALISTS])
    cost_ms = measured(grid, count)
    # Then try finer steps around the best value.
    around = knobs.around(Sweep(knobs.names, cost_ms).best)
    finer_ms = measured([values for values in around if values not in cost_ms], count)
    return Sweep(knobs.names, cost_ms | finer_ms, num_given_up)


def tune(
    workload: Workload, family: str, config: SimulationConfig, arrivals: str, num_jobs: int
) -> Sweep:
    """Sweep a policy's parameters on the tuning seeds (Decima, section 7.1, baseline 5).

    Recorded arrivals give only one sequence. The sweep then draws jobs that arrive at the recorded
    mean rate.

    Args:
        workload: the jobs to draw from.
        family: the policy; a name of SWEEPS.
        config: the cluster.
        arrivals: when jobs arrive.
        num_jobs: number of jobs in each sequence.
    """
    process = arrivals
    if arrivals == "recorded":
        # Poisson arrivals with the recorded mean gap replace the recorded times.
        times = [job.arrival_ms or 0 for job in workload.jobs]
        gap_ms = (max(times) - min(times)) / max(1, len(times) - 1)
        process = f"poisson:{max(1, round(gap_ms))}ms"
    seeds = [TUNING_SEED_START + row for row in range(NUM_TUNING_SEEDS)]
    sequences = [workload.draw(num_jobs, process, config, seed=seed) for seed in seeds]
    return sweep_values(family, sequences, config, seeds)


def best_in_hindsight(
    sequence: JobSequence, config: SimulationConfig, seed: int, name: str
) -> HeuristicPolicy:
    """The policy with the best parameters for this sequence and seed.

    The paper calls this the optimum per batch.
    """
    family = family_of(name)[0]
    return with_values(family, sweep_values(family, [sequence], config, [seed]).best, config, name)
