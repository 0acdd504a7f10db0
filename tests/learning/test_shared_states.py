"""Recorded decisions share the states of jobs that do not change between them."""

import numpy as np
import pytest
import torch

from parcae.decima.graph import passes
from parcae.decima.graph.family import DecimaFamily, GraphDecisions
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.graph.passes import GROUP
from tests.learning.collected import collected
from tests.learning.test_networks import _STREAM


def _recorded(settings: DecimaSettings) -> tuple[DecimaFamily, GraphDecisions]:
    family = DecimaFamily(_STREAM, settings)
    weights = family.initial_weights(np.random.default_rng(0))
    return family, collected(_STREAM, family, weights, group_size=3, capacity=400)


def test_jobs_and_stages_that_do_not_change_are_recorded_once() -> None:
    for features, most, most_rows in (("paper", 0.99, 1.0), ("jobs", 0.7, 0.5)):
        _, data = _recorded(DecimaSettings.model_validate({"features": features}))
        table = data.table
        members = int(table.num_jobs.sum())
        assert len(table.state) == members
        distinct = len(np.unique(table.state))
        assert distinct < most * members
        # A state stands for the same list, and every list belongs to one state.
        _, first = np.unique(table.state, return_index=True)
        assert int(table.num_listed[first].sum()) == len(table.listed)
        assert len(np.unique(table.first_listed[first])) == distinct
        by_state = dict(zip(table.state[first], table.first_listed[first], strict=True))
        assert [by_state[state] for state in table.state] == table.first_listed.tolist()
        # Every row is listed, and most of them more than once.
        assert np.unique(table.listed).tolist() == list(range(len(table.x)))
        assert len(table.x) <= most_rows * len(table.listed)


def test_groups_of_successive_decisions_stay_together_when_decisions_are_shuffled() -> None:
    _, data = _recorded(DecimaSettings())
    order = data.shuffled(np.random.default_rng(1))
    assert sorted(order.tolist()) == list(range(len(data)))
    assert order.tolist() != list(range(len(data)))
    for start in np.flatnonzero(order % GROUP == 0):
        first = int(order[start])
        length = min(GROUP, len(data) - first)
        assert order[start : start + length].tolist() == list(range(first, first + length))


def test_decisions_are_judged_alike_in_groups_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    family, data = _recorded(DecimaSettings.model_validate({"features": "jobs"}))
    weights = family.initial_weights(np.random.default_rng(3))
    batch = data.decisions(np.arange(100), torch.device("cpu"))
    wide = family.network(weights)(batch)
    # There is room for the largest decision only.
    monkeypatch.setattr(passes, "_GROUP_ROWS", 1)
    monkeypatch.setattr(passes, "_GROUP_LISTED", 1)
    narrow = family.network(weights)(batch)
    assert torch.allclose(wide.log_prob, narrow.log_prob, atol=1e-6)
    assert torch.allclose(wide.entropy, narrow.entropy, atol=1e-6)
