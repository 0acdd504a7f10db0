"""What `parcae replay` prints."""

from __future__ import annotations

import pytest

from parcae.cli.serve import replay_tables
from parcae.cli.tables import print_fitted
from parcae.service.replay import Difference, Kind, Replay, ReplayedEstimate, ReplayedShare


def test_the_counts_the_differences_and_the_estimate_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    a, b = ReplayedShare("a", 1.0, None), ReplayedShare("b", 0.5, 4)
    replay = Replay(
        "fair",
        "srpt",
        12,
        {Kind.FIRST: 3, Kind.LATER: 0, Kind.SHARES: 1, Kind.STAGES: 0},
        2,
        (
            Difference(10_000, 1_500, Kind.FIRST, ((a, b),), ((b,), (a,))),
            Difference(90_000, 81_500, Kind.SHARES, ((a, b),), ((a, ReplayedShare("b", 1.0, 4)),)),
        ),
        ReplayedEstimate(7, 1, 4_000.0, 3_000.0),
    )
    for table in replay_tables(replay):
        print_fitted(table)
    printed = " ".join(capsys.readouterr().out.split())
    assert "12 orders of fair" in printed
    assert "the same order │ 8" in printed
    assert "other jobs first │ 3" in printed
    assert "2 recorded requests could not be followed" in printed
    assert "7 jobs: 4.00 s under fair, 3.00 s under srpt" in printed
    assert "1.5 │ other jobs first │ {a, b} │ b > a" in printed
    assert "{a, b (weight 0.5, limit 4)} │ {a, b (limit 4)}" in printed
