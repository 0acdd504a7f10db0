"""Users' accounts and pools by the names of policies."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError, FormatError, PolicyError
from parcae.evaluation.policies import resolve_policies
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import job

_CORES = SimulationConfig(world=WorldName.CORES, num_executors=4)
_BY_SIZE = ("srpt", "sjf", "gittins", "tuned", "parcae")


#: `ann` has many small jobs, `bob` a large one; the others are known by pool and by name.
_WORKLOAD = Workload(
    "users",
    (
        job("small", (8, 10, ()), user="ann"),
        job("large", (16, 100, ()), user="bob"),
        job("night", (8, 10, ()), pool="etl"),
        job("page (2)", (8, 10, ())),
    ),
)


def _means_s(policy: str, weights: Path | None = None) -> list[float]:
    """Mean times of ann's and bob's jobs, which arrive at once."""
    text = policy + (f":{weights}" if weights else "")
    index = np.array([1, *[0] * 60])
    sequence = JobSequence(_WORKLOAD, index, np.zeros(len(index), np.int64))
    made = resolve_policies(_WORKLOAD, [text], _CORES, "batch", len(index)).policies[text]
    took_ms = simulate(sequence, made, _CORES, 1).completion_ms
    return [float(took_ms[1:].mean()), float(took_ms[0])]


def test_a_user_is_known_by_name_by_pool_or_by_the_recurring_name() -> None:
    assert _WORKLOAD.users == ("ann", "bob", "etl", "page")


@pytest.mark.parametrize("policy", _BY_SIZE)
def test_a_large_job_of_another_user_does_not_wait_for_all_small_ones(policy: str) -> None:
    split_ms = 2 * 16 * 100 / 4  # two users share four cores
    _, alone_ms = _means_s(policy)
    _, charged_ms = _means_s(f"{policy}+account")
    assert charged_ms <= 1.2 * split_ms < alone_ms


def test_weights_give_a_user_more(tmp_path: Path) -> None:
    path = tmp_path / "weights.csv"
    path.write_text("user,weight\nbob,3\n*,1\n")
    for policy in ("account", "user-fair", "user-fair+srpt"):
        _, equal_ms = _means_s(policy)
        _, weighted_ms = _means_s(policy, path)
        # Three of four cores instead of two.
        assert weighted_ms < 0.8 * equal_ms


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("user,weight\nbob,0\n", FormatError, "no number from 0.001"),
        ("user,weight\nbob,nan\n", FormatError, "no number from 0.001"),
        ("job,weight\nbob,1\n", FormatError, "the first line is not `user,weight`"),
        ("user,weight\ncarl,1\n", ConfigError, "no user is called 'carl'; users are ann"),
    ],
)
def test_weights_that_cannot_be_are_refused(
    text: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.csv"
    path.write_text(text)
    with pytest.raises(error, match=message):
        _means_s("account", path)


@pytest.mark.parametrize("name", ["fair", "fifo", "las", "fsp", "psbs", "user-fair"])
def test_orders_that_are_not_by_size_keep_no_accounts(name: str) -> None:
    with pytest.raises(PolicyError, match=r"order by size|no other order of users"):
        resolve_policies(_WORKLOAD, [f"{name}+account"], _CORES, "batch", 4)


@pytest.mark.parametrize("name", _BY_SIZE)
def test_tiers_state_work_in_a_known_unit(name: str) -> None:
    """Of a job that nothing has run of, the stated work is about its size."""
    workload = load_workload("tpch")
    config = SimulationConfig(world=WorldName.CORES, num_executors=50)
    policy = named_policy(name, workload, config)
    unit = policy.tier_unit_ms
    if name in ("tuned", "parcae"):
        assert unit == pytest.approx(workload.warm.mean_work_ms)
    else:
        assert unit == (-1.0 if name == "gittins" else 0.0)
    assert math.isfinite(unit)
