"""Tune heuristics by a parameter sweep on seeds that no comparison uses.

`tune` finds the best parameters on the tuning seeds, `best_in_hindsight` those for one sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S, seconds_text
from parcae.policies.names import PolicyName
from parcae.policies.parameter_search import Knobs, Sweep, Values
from parcae.policies.registry import TUNED_WORDS, PolicySetting, find, make
from parcae.simulation.config import SimulationConfig
from parcae.simulation.many import SimulatorBatch
from parcae.simulation.metrics import arrived, jct_ms
from parcae.workloads.workload import TUNING_SEED_START, JobSequence, Workload

NUM_TUNING_SEEDS = 20
#: A grid with more values than this is first tried on a quarter of the sequences.
_MANY = 50
#: The best values of that first round, this many, are then tried on all sequences.
_FINALISTS = 25


def check_seeds(seed_start: int, num_seeds: int) -> None:
    """Check that seeds are not negative and not reserved for tuning."""
    if seed_start < 0 or seed_start + num_seeds > TUNING_SEED_START:
        raise ConfigError(
            f"seeds {seed_start} to {seed_start + num_seeds - 1} are not all in "
            f"0..{TUNING_SEED_START - 1}. Seeds from {TUNING_SEED_START} on are kept for tuning: "
            "choose a smaller first seed"
        )


def how_tuned(name: PolicyName, world: str) -> str:
    """ "tuned" or "oracle" for a name whose parameters are found on runs; else no text."""
    is_tuned = name.argument in TUNED_WORDS and knobs_of(name.word, world).names
    return name.argument if is_tuned else ""


def knobs_of(word: str, world: str) -> Knobs:
    """The parameters of a policy that are found on runs; without names if there are none."""
    entry = find(PolicyName(word), world)
    return Knobs((), lambda size: ()) if entry is None or entry.sweep is None else entry.sweep


def with_values(word: str, values: Values, config: SimulationConfig, name: str) -> Any:
    """A policy that can be tuned, with these parameters, under another name."""
    text = ":".join([word, *(f"{value:g}" for value in values)])
    # Its parameters are all that such a policy depends on, not the jobs.
    setting = PolicySetting(None, config)  # type: ignore[arg-type]
    return replace(make(PolicyName(text), setting), name=name)


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


def edge_warning(word: str, sweep: Sweep, config: SimulationConfig) -> str:
    """A sentence that warns of a best value at the edge of its grid; no text where none is."""
    knobs = knobs_of(word, config.world)
    grid = tuple(knobs.grid(config.total_executors))
    for column, (knob, best) in enumerate(zip(sweep.names, sweep.best, strict=True)):
        ends = {end({values[column] for values in grid}) for end in (min, max)}
        if knob in knobs.open_ended and best in ends - {0.0}:
            return edge_text(knob, best, (min(ends), max(ends)))
    return ""


def edge_text(name: str, best: float, ends: tuple[float, float]) -> str:
    """The warning of a best value at the edge of its grid."""
    return (
        f"{name} {best:g} is at the edge of the values that were tried "
        f"({ends[0]:g} to {ends[1]:g}): a better one may lie beyond it"
    )


def average_jct_ms(
    policy: Any,
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
    word: str,
    sequences: Sequence[JobSequence],
    config: SimulationConfig,
    seeds: Sequence[int],
) -> Sweep:
    """Try all values of a policy's parameters on the same job sequences and task durations. Returns
    the mean over the sequences of the average JCT by the values, in ms.
    """

    def measured(tried: Iterable[Values], count: int) -> dict[Values, float]:
        policies = {values: with_values(word, values, config, "tuning") for values in tried}
        return {
            values: average_jct_ms(p, sequences[:count], config, seeds[:count])
            for values, p in policies.items()
        }

    knobs = knobs_of(word, config.world)
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
    workload: Workload, word: str, config: SimulationConfig, arrivals: str, num_jobs: int
) -> Sweep:
    """Sweep a policy's parameters on the tuning seeds (Decima, section 7.1, baseline 5).

    Recorded arrivals give only one sequence. The sweep then draws jobs that arrive at the recorded
    mean rate.

    Args:
        workload: the jobs to draw from.
        word: the policy, without an argument.
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
    return sweep_values(word, sequences, config, seeds)


def best_in_hindsight(sequence: JobSequence, config: SimulationConfig, seed: int, name: str) -> Any:
    """The policy with the best parameters for this sequence and seed.

    The paper calls this the optimum per batch.
    """
    word = PolicyName(name).word
    best = sweep_values(word, [sequence], config, [seed]).best
    return with_values(word, best, config, name)
