"""The live page's estimate of what FAIR would have taken, against what FAIR takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.fair_estimate import played, ratios

from parcae.service.admin import against_fair
from tests.conftest import made_up

_WORKLOAD = made_up(8, 6.0)
_SEEDS = range(5_000, 5_004)
_SETTING: dict[str, Any] = {"num_jobs": 60, "num_cores": 6, "arrivals": "load:0.8"}


@pytest.mark.parametrize("seed", _SEEDS)
def test_under_fair_itself_nothing_is_saved(seed: int) -> None:
    page = played("fair", _WORKLOAD, seed=seed, is_open=True, **_SETTING)
    ratio = page["against_fair"]
    assert ratio["mean"] == pytest.approx(1.0, abs=0.03)
    assert ratio["low"] <= 1.0 <= ratio["high"]
    fair_s = [job["fair_s"] for job in page["ended"]]
    assert sum(fair_s) == pytest.approx(page["took_s"], rel=0.03)


@pytest.mark.parametrize("is_open", [False, True])
def test_what_another_order_saves_is_what_it_saves_of_the_same_jobs(is_open: bool) -> None:
    estimated, measured = ratios("srpt", _WORKLOAD, _SEEDS, is_open=is_open, **_SETTING)
    assert measured < 0.9
    assert estimated == pytest.approx(measured, abs=0.03)


def test_a_few_jobs_are_no_estimate_and_noise_is_within_the_interval() -> None:
    draw = np.random.default_rng(1)
    fair = draw.exponential(10.0, 200)
    assert against_fair(np.stack([fair, fair], axis=1)[:39]) is None
    noisy = against_fair(np.stack([fair * draw.lognormal(0, 0.2, 200), fair], axis=1))
    assert noisy is not None
    assert noisy.low < 1.0 < noisy.high
    better = against_fair(np.stack([0.8 * fair, fair], axis=1))
    assert better is not None
    assert (better.mean, better.low, better.high, better.num_jobs) == pytest.approx(
        (0.8, 0.8, 0.8, 200)
    )
