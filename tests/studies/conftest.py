"""What makes the studies small enough for the tests."""

from __future__ import annotations

import pytest

from parcae.evaluation import policies as tuning


@pytest.fixture(autouse=True)
def _few_tuning_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heuristics are tuned on 4 seeds; the tests of tuning itself use all of them."""
    monkeypatch.setattr(tuning, "NUM_TUNING_SEEDS", 4)
