"""Measures the speed of the packing world.

Timed are single steps, whole runs of a heuristic and of DeepRM, and an iteration of DeepRM's
training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parcae.learning.loop import IterationSeeds
from parcae.rigid.deeprm.learner import DeepRMLearner
from parcae.rigid.policies.policy import HandMadePolicy, PackingPolicy
from parcae.rigid.policies.scores import PackingKind
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import PackingBatch


@dataclass(frozen=True)
class PackingBenchmark:
    """Speed on one core: medians over repetitions, without compilation."""

    steps_per_second: float
    sjf_decisions_per_second: float
    deeprm_decisions_per_second: float
    iteration_seconds: float
    iteration_decisions: float


def benchmark_packing(
    rate: float = 0.7, clusters: int = 500, repetitions: int = 7
) -> PackingBenchmark:
    """Time the packing world with DeepRM's jobs."""
    source = DrawnSource(rates=(rate,))
    sequences = source.draw(range(1_000, 1_000 + clusters))
    learner = DeepRMLearner(source)
    learner.num_threads = 1
    policy = learner.policy()
    # Only DeepRM observes which resources become free when (the profile); it costs time.
    plain, with_profile = (
        PackingBatch(sequences, source.config, wants_profile=wants) for wants in (False, True)
    )
    steps = _median(lambda: _steps(plain), repetitions)
    sjf = _median(lambda: _decisions(plain, HandMadePolicy("sjf", PackingKind.SJF)), repetitions)
    deeprm = _median(lambda: _decisions(with_profile, policy), repetitions)
    timed = []
    for iteration in range(repetitions + 1):
        began = time.perf_counter()
        numbers = learner.iterate(IterationSeeds(0, iteration), 0.0)
        timed.append((time.perf_counter() - began, numbers["decisions"]))
    # The first iteration includes compilation.
    seconds, counts = zip(*timed[1:], strict=True)
    return PackingBenchmark(
        steps, sjf, deeprm, statistics.median(seconds), statistics.median(counts)
    )


def _median(speed: Callable[[], float], repetitions: int) -> float:
    speed()  # the first call includes compilation
    return statistics.median(speed() for _ in range(repetitions))


def _decisions(batch: PackingBatch, policy: PackingPolicy) -> float:
    began = time.perf_counter()
    batch.run(policy.play_many, 1)
    return float(batch.states.clock["num_decisions"].sum()) / (time.perf_counter() - began)


def _steps(batch: PackingBatch) -> float:
    """Decisions per second of `PackingBatch.step` with random decisions until all runs are over."""
    rng = np.random.default_rng(0)
    seconds = 0.0
    batch.begin()
    while not batch.is_over.all():
        slots = rng.integers(-1, batch.states.slots.shape[1], len(batch))
        began = time.perf_counter()
        batch.step(slots)
        seconds += time.perf_counter() - began
    return float(batch.states.clock["num_decisions"].sum()) / seconds
