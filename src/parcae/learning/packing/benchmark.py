"""How fast the packing world is: steps, whole runs of a heuristic and of DeepRM, and an iteration of DeepRM's training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parcae.learning.packing.deeprm import deeprm_learner
from parcae.learning.packing.loop import IterationSeeds
from parcae.packing.sources import DrawnSource
from parcae.packing.world import PackingBatch
from parcae.policies.packing.layout import PackingKind
from parcae.policies.packing.policy import HandMadePolicy, PackingPolicy


@dataclass(frozen=True)
class PackingBenchmark:
    """Speed of one core: medians over repetitions, compilation left out.

    Args:
        steps_per_second: decisions taken by `step_many` for whoever decides outside, drawing them left out.
        sjf_decisions_per_second, deeprm_decisions_per_second: whole runs, the policy and what it is shown included.
        deeprm_to_sjf: what DeepRM's network costs: SJF's decisions a second / DeepRM's.
        iteration_seconds: of a full training iteration, 20 runs of each of 100 fresh sequences and the update.
        iteration_decisions: in it. training_share_of_playing: decisions a second of training / of playing DeepRM alone.
    """

    rate: float
    clusters: int
    repetitions: int
    steps_per_second: float
    sjf_decisions_per_second: float
    deeprm_decisions_per_second: float
    deeprm_to_sjf: float
    iteration_seconds: float
    iteration_decisions: float
    training_share_of_playing: float

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


def benchmark_packing(
    rate: float = 0.7, clusters: int = 500, repetitions: int = 7
) -> PackingBenchmark:
    """Time the packing world at a rate of DeepRM's jobs.

    Raises:
        ConfigError: a rate outside 0..1.
    """
    source = DrawnSource(rates=(rate,))
    sequences = source.draw(range(1_000, 1_000 + clusters))
    learner = deeprm_learner(source)
    policy = learner.policy()
    plain, shown = (
        PackingBatch(sequences, source.config, wants_profile=wants) for wants in (False, True)
    )
    steps = _median(lambda: _steps(plain), repetitions)
    sjf = _median(lambda: _decisions(plain, HandMadePolicy("sjf", PackingKind.SJF)), repetitions)
    deeprm = _median(lambda: _decisions(shown, policy), repetitions)
    counts = list[float]()
    seconds = list[float]()
    for iteration in range(-1, repetitions):
        began = time.perf_counter()
        numbers = learner.iterate(IterationSeeds(0, iteration + 1), 1.0)
        if iteration >= 0:  # the first compiles
            seconds.append(time.perf_counter() - began)
            counts.append(numbers["decisions"])
    took = statistics.median(seconds)
    count = statistics.median(counts)
    return PackingBenchmark(
        rate,
        clusters,
        repetitions,
        steps,
        sjf,
        deeprm,
        sjf / deeprm,
        took,
        count,
        count / took / deeprm,
    )


def _median(speed: Callable[[], float], repetitions: int) -> float:
    speed()  # compiles
    return statistics.median(speed() for _ in range(repetitions))


def _decisions(batch: PackingBatch, policy: PackingPolicy) -> float:
    began = time.perf_counter()
    batch.run(policy.play_many, 1)
    return float(batch.states.clock["num_decisions"].sum()) / (time.perf_counter() - began)


def _steps(batch: PackingBatch) -> float:
    """Random decisions of all clusters until all are over."""
    rng = np.random.default_rng(0)
    seconds = 0.0
    batch.begin()
    while not batch.is_over.all():
        slots = rng.integers(-1, batch.states.slots.shape[1], len(batch))
        began = time.perf_counter()
        batch.step(slots)
        seconds += time.perf_counter() - began
    return float(batch.states.clock["num_decisions"].sum()) / seconds
