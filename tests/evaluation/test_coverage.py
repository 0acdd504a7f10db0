"""Intervals over few seeds contain the truth about as often as they say.

`streams.csv` has the average JCTs of 2,000 streams; `benchmarks/intervals.py` says how it was made.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from parcae.evaluation import statistics

_ROOT = Path(__file__).parents[2]
_SAMPLES = 1_000


@pytest.fixture(scope="module")
def measuring() -> Any:
    """The module `benchmarks/intervals.py`."""
    script = _ROOT / "benchmarks" / "intervals.py"
    spec = importlib.util.spec_from_file_location("intervals", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the resamples: the coverage is the same, and the test takes seconds."""
    monkeypatch.setattr(statistics, "NUM_RESAMPLES", 1_000)


@pytest.mark.parametrize("count", [20, 50, 100])
@pytest.mark.parametrize(("name", "base"), [("fair", None), ("tuned", "fair")])
def test_intervals_over_streams_hold_the_truth_as_often_as_they_say(
    measuring: Any, name: str, base: str | None, count: int
) -> None:
    pool = measuring.read_pool(_ROOT / "tests" / "evaluation" / "streams.csv")
    below = None if base is None else pool[base]
    held = measuring.coverage(pool[name], below, count, statistics.DEFAULT_METHOD, _SAMPLES)
    assert 0.93 <= held <= 0.97


def test_students_intervals_of_a_ratio_are_too_narrow_over_few_streams(measuring: Any) -> None:
    pool = measuring.read_pool(_ROOT / "tests" / "evaluation" / "streams.csv")
    assert measuring.coverage(pool["srpt"], pool["fair"], 20, "t", _SAMPLES) < 0.93


def test_one_value_far_from_all_others_does_not_make_an_interval_endless() -> None:
    values = [1.0] * 9 + [1.001, 100.0]
    student = statistics.mean_estimate(values, "t")
    estimate = statistics.mean_estimate(values)
    assert estimate.high - estimate.mean == pytest.approx(2 * (student.high - student.mean))
    # The long tail is above: the lower end is nearer than Student's.
    assert estimate.low > student.low


def test_few_seeds_have_students_interval() -> None:
    values = [1.0, 2.0, 4.0, 3.0, 5.0, 9.0, 7.0]
    assert statistics.mean_estimate(values) == statistics.mean_estimate(values, "t")
    longer = [*values, 6.0]
    assert statistics.mean_estimate(longer) != statistics.mean_estimate(longer, "t")
    assert statistics.mean_estimate(longer) == statistics.mean_estimate(longer)
