"""What a policy would have saved in the window of a log."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from parcae.evaluation.forecast import size_error
from parcae.workloads.spark_log.event_log import read_runs
from tests.cli.running import ran, refused
from tests.evaluation.made import write_waiting_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_waiting_log(tmp_path / "log")


def test_a_forecast_says_what_is_saved_and_who_pays(log: Path) -> None:
    found = json.loads(ran("parcae forecast log --policy srpt --json", log.parent).stdout)
    assert found["today"] == "Spark's FIFO"
    assert found["num_jobs"] == 60
    assert found["replayed"] == pytest.approx(1, abs=1e-3)
    # The short query goes first when the first task of ten has ended.
    ratio = (10_100 + 1_050) / (10_000 + 10_050)
    assert found["all"]["ratio"]["mean"] == pytest.approx(ratio, abs=1e-3)
    low, high = found["all"]["ratio"]["ci95"]
    assert ratio - 0.1 < low < ratio < high < ratio + 0.1
    assert [(row["name"], row["verdict"]) for row in found["names"]] == [
        ("long", "same"),
        ("short", "gains"),
    ]
    assert [(row["name"], row["jobs"]) for row in found["users"]] == [("l", 30), ("s", 30)]
    assert found["names"][0]["policy_s"] == pytest.approx(10.1, abs=0.01)


def test_a_forecast_is_shown_as_tables(log: Path) -> None:
    shown = " ".join(ran("parcae forecast log", log.parent).stdout.split())
    assert "60 jobs under srpt" in shown
    assert "the log's mean comes out at 1.000 of what it was" in shown
    assert "By user" in shown
    refused("parcae forecast log --policy sprt", log.parent, "sprt", "srpt")


def test_the_policy_knows_sizes_as_badly_as_earlier_runs_tell_them(log: Path) -> None:
    runs = read_runs([log]).runs
    # Only the first short query is a surprise: 100 ms where 10 s were usual.
    assert size_error(runs) == pytest.approx(math.log(100) / math.sqrt(59))
    assert size_error(runs[:1]) == 0
