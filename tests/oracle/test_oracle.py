"""The plain-Python oracle, with which other tests compare the kernels, against reference runs.

The reference runs come from the released simulator.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from parcae.decima.tpch import read_tpch_profiles
from parcae.simulation.tables import DurationMode, Interpolation
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.job_sets import JobSet, read_job_sets
from parcae.workloads.workload import Workload
from tests.conftest import batch, shared_data
from tests.oracle.decima_world import Oracle, OraclePolicy, RandomBitDraws, TaskKey, task_bits
from tests.oracle.policies import fair, sjf_cp, static, weighted_fair

_SMALL_SETS = ("single_q9_100g", "batch10_1")
_POLICIES: dict[str, Callable[[int], OraclePolicy]] = {
    "spark_fifo": lambda executors: static(executors, by_granted=True),
    "spark_static_10": lambda executors: static(10, by_granted=True),
    "dynamic_partition": lambda executors: fair,
    "wfair_-1": lambda executors: weighted_fair(-1),
    "wfair_1": lambda executors: weighted_fair(1),
    "sjf_cp": lambda executors: sjf_cp,
}


def _legacy(seed: int) -> np.random.RandomState:
    return np.random.RandomState(seed)  # the reference run drew with it


@dataclass
class LegacyDraws:
    """The reference run's two streams of numpy's legacy generator: for levels and for samples."""

    levels: np.random.RandomState = field(default_factory=lambda: _legacy(1000))
    samples: np.random.RandomState = field(default_factory=lambda: _legacy(1000))

    def takes_upper(self, task: TaskKey, n: int, low: int, high: int) -> bool:
        return int(self.levels.randint(1, high - low + 1)) > n - low

    def sample(self, task: TaskKey, samples: list[int]) -> int:
        return samples[int(self.samples.randint(len(samples)))]


@pytest.fixture(scope="module")
def tpch() -> Workload:
    return read_tpch_profiles(shared_data("tpch-decima/tpch_profiles.json.gz"))[0]


@pytest.fixture(scope="module")
def sets() -> dict[str, JobSet]:
    return read_job_sets(shared_data("conformance/decima-sim.json"))


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(shared_data("conformance/decima-sim.json").read_text())[
        "results"
    ]
    return data


def _run(job_set: JobSet, workload: Workload, policy: str, draws: Any) -> dict[str, Any]:
    oracle = Oracle(
        job_set.sequence(workload),
        job_set.num_executors,
        moving_delay_ms=job_set.moving_delay_ms,
        warmup_delay_ms=job_set.warmup_delay_ms,
        draws=draws,
    )
    oracle.run(_POLICIES[policy](job_set.num_executors))
    jcts = [job.completion_ms - job.arrival_ms for job in oracle.jobs]
    return {
        "avg_jct_ms": sum(jcts) / len(jcts),
        "makespan_ms": float(oracle.clock_ms),
        "completion_ms": job_set.by_position(np.array([job.completion_ms for job in oracle.jobs])),
        "decisions": len(oracle.decisions),
        "events": oracle.num_events,
        "tasks": oracle.num_tasks,
        "work_ms": float(oracle.work_ms),
        "first_decisions": oracle.decisions[:8],
        "decision_trace_sha256": hashlib.sha256(
            "".join(map(repr, oracle.decisions)).encode()
        ).hexdigest(),
    }


def _assert_reproduces(
    got: dict[str, Any], expected: dict[str, Any], *, fields: int, what: str
) -> None:
    """Every field that the reference has and the oracle computes; `fields` of them at least."""
    common = got.keys() & expected.keys()
    assert len(common) >= fields, what
    for key in sorted(common):
        assert got[key] == (
            pytest.approx(expected[key], abs=0.01) if key == "avg_jct_ms" else expected[key]
        ), (what, key)


def _assert_deterministic(
    job_set: JobSet, workload: Workload, results: dict[str, Any], policy: str, mode: DurationMode
) -> None:
    draws = RandomBitDraws(lambda job, stage, task: 0, mode, Interpolation.LOWER)
    got = _run(job_set, workload, policy, draws)
    what = f"{job_set.id} {policy} {mode}"
    _assert_reproduces(got, results[job_set.id][policy][f"det_{mode}"], fields=8, what=what)


@pytest.mark.parametrize(
    "set_ids", [_SMALL_SETS, pytest.param((), marks=pytest.mark.slow)], ids=["small", "all"]
)
@pytest.mark.parametrize("policy", _POLICIES)
def test_the_oracle_reproduces_sets_exactly_and_draw_by_draw(
    sets: dict[str, JobSet],
    tpch: Workload,
    results: dict[str, Any],
    policy: str,
    set_ids: tuple[str, ...],
) -> None:
    assert len(sets) == 12
    for set_id in set_ids or sets:
        for mode in (DurationMode.FIRST, DurationMode.MEAN):
            _assert_deterministic(sets[set_id], tpch, results, policy, mode)
        expected = results[set_id][policy]["stochastic_seed1000_exact"]
        got = _run(sets[set_id], tpch, policy, LegacyDraws())
        _assert_reproduces(got, expected, fields=5, what=f"{set_id} {policy} sampled")


def _single_task(levels: tuple[int, ...], *samples: list[int]) -> JobSpec:
    lists = tuple(np.array(s, np.int64) for s in samples)
    empty = tuple(np.array([], np.int64) for _ in samples)
    return JobSpec("one", (StageSpec(3, TaskDurations(levels, lists, lists, empty)),))


@pytest.mark.parametrize(
    ("interpolation", "upper_bits", "expected_ms"),
    [
        (Interpolation.LINEAR, 0, 900),  # 0 * 3 >> 32 = 0 < n - a = 1
        (Interpolation.LINEAR, 1 << 31, 100),  # 1.5 rounded down is 1, not < 1
        (Interpolation.INVERTED, 1 << 31, 900),  # 1 < b - n = 2
        (Interpolation.INVERTED, (1 << 32) - 1, 100),  # 2 is not < 2
        (Interpolation.LOWER, 0, 100),
    ],
)
def test_the_upper_half_of_the_random_bits_chooses_between_two_levels(
    interpolation: Interpolation, upper_bits: int, expected_ms: int
) -> None:
    draws = RandomBitDraws(
        lambda job, stage, task: upper_bits << 32, DurationMode.SAMPLED, interpolation
    )
    assert draws.takes_upper((0, 0, 0), 3, 2, 5) is (expected_ms == 900)
    oracle = Oracle(batch(_single_task((2, 5), [100], [900])), 3, moving_delay_ms=0, draws=draws)
    oracle.run(fair)
    # Executors attach one after another: the third starts with three attached, between 2 and 5.
    assert [finish - start for *_, start, finish in oracle.tasks] == [100, 100, expected_ms]


def test_the_lower_half_of_the_random_bits_chooses_the_sample() -> None:
    draws = RandomBitDraws(lambda job, stage, task: task * (1 << 30))
    assert [draws.sample((0, 0, task), [10, 20, 30, 40]) for task in range(4)] == [10, 20, 30, 40]


def test_random_bits_that_are_passed_in_replace_the_seed() -> None:
    spec = _single_task((1,), [100, 200, 300])
    oracle = Oracle(
        batch(spec), 1, seed=77, draws=RandomBitDraws(lambda job, stage, task: 0xFFFFFFFF)
    )
    oracle.run(fair)
    assert [finish - start for *_, start, finish in oracle.tasks] == [300, 300, 300]


def test_task_bits_are_the_documented_chain_of_finalisers() -> None:
    mask = (1 << 64) - 1

    def mix(z: int) -> int:
        z ^= z >> 30
        z = z * 0xBF58476D1CE4E5B9 % (1 << 64)
        z ^= z >> 27
        z = z * 0x94D049BB133111EB % (1 << 64)
        return z ^ z >> 31

    for seed, job, stage, task in ((0, 0, 0, 0), (1000, 3, 2, 17), (mask, 5_000, 40, 100_000)):
        inner = mix((seed ^ 0x9E3779B97F4A7C15) & mask)
        outer = mix((inner + job * 0xD1342543DE82EF95 + 1) & mask)
        assert task_bits(seed, job, stage, task) == mix((outer + (stage << 32 | task)) & mask)
