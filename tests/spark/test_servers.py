"""The script that measures two people on a SQL server, with made-up times in Spark's place."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.spark import servers

from parcae.base.errors import ParcaeError
from parcae.workloads.recorded_run import JobOutcome, RecordedJob


def _job(user: str, begun: int, took: int) -> RecordedJob:
    return RecordedJob("q", 1, begun, begun + took, JobOutcome.COMPLETED, user, None, "")


_BEFORE = [_job("alone", 0, 900), _job("alone", 1_000, 6_000), _job("alone", 8_000, 5_000)]


def test_the_loop_counts_while_the_big_query_runs() -> None:
    loop = [_job("ann", 14_000, 300), _job("ann", 14_900, 500), _job("ann", 24_000, 700)]
    late = _job("ann", 25_000, 300)
    times = servers.times_of([*_BEFORE, _job("etl", 15_000, 10_000), *loop, late])
    assert times == {"alone_ms": 5_000, "big_ms": 10_000, "loop_ms": [500, 700]}
    with pytest.raises(ParcaeError, match="give it more --tasks"):
        servers.times_of([*_BEFORE, _job("etl", 15_000, 10_000), loop[0], late])


def test_every_order_is_drawn_in_every_round_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    asked = list[tuple[str, int]]()

    def measured(_: object, order: str, turn: int) -> dict[str, Any]:
        asked.append((order, turn))
        loop_ms = [4_000 + turn] if order == "fifo" else [1_000, 1_000 + turn / 2]
        return {
            "alone_ms": 5_000,
            "big_ms": 5_000 if order == "fifo" else 9_000,
            "loop_ms": loop_ms,
        }

    monkeypatch.setattr(servers.Measurement, "_measure", measured)
    words = ["--server", "thrift", "--rounds", "3", "--work", str(tmp_path / "work")]
    runs = servers.Measurement(servers.parser().parse_args(words)).run()
    assert sorted(asked) == [
        (one, turn) for one in ("account", "fifo", "pools") for turn in range(3)
    ]
    assert servers.Measurement(servers.parser().parse_args(words)).run() == runs
    assert len(asked) == 9
    rows = {row[0]: row for row in servers.rows_of(runs)}
    assert rows["fifo"][1:4] == ["1.0", "4.00", ""]
    assert rows["account"][1:3] == ["2.0", "1.00"]
    assert rows["account"][3].startswith("0.25")
    assert rows["account"][5].startswith("1.800")
