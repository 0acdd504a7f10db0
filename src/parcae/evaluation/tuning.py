"""Tune heuristics by a parameter sweep on seeds that no comparison uses.

`tune` finds the best parameters on the tuning seeds, `best_in_hindsight` those for one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S, seconds_text
from parcae.policies.names import PolicyName
from parcae.policies.parameter_search import Knobs, Sweep, Values, swept
from parcae.policies.registry import PolicySetting, find, make
from parcae.simulation.config import SimulationConfig
from parcae.simulation.many import SimulatorBatch
from parcae.simulation.metrics import arrived, jct_ms
from parcae.workloads.workload import TUNING_SEED_START, JobSequence, Workload

NUM_TUNING_SEEDS = 20


def check_seeds(seed_start: int, num_seeds: int) -> None:
    """Check that seeds are not negative and not reserved for tuning."""
    if seed_start < 0 or seed_start + num_seeds > TUNING_SEED_START:
        raise ConfigError(
            f"seeds {seed_start} to {seed_start + num_seeds - 1} are not all in "
            f"0..{TUNING_SEED_START - 1}. Seeds from {TUNING_SEED_START} on are kept for tuning: "
            "choose a smaller first seed"
        )


def knobs_of(word: str, world: str) -> Knobs | None:
    """The parameters of a policy that are found on runs; None if there are none."""
    entry = find(PolicyName(word), world)
    return None if entry is None else entry.sweep


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

    def cost_ms(values: Values, share: float) -> float:
        count = max(1, int(share * len(sequences)))
        policy = with_values(word, values, config, "tuning")
        return average_jct_ms(policy, sequences[:count], config, seeds[:count])

    knobs = knobs_of(word, config.world)
    assert knobs is not None
    return swept(knobs, config.total_executors, cost_ms)


def tune(
    workload: Workload, word: str, config: SimulationConfig, arrivals: str, num_jobs: int
) -> Sweep:
    """Sweep a policy's parameters on the tuning seeds (Decima, section 7.1, baseline 5).

    Recorded arrivals give only one sequence. The sweep then draws jobs that arrive at the recorded
    mean rate.
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
