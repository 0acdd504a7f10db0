"""What a collection contains does not depend on who plays it."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from parcae.decima.corrector.family import CorrectorFamily
from parcae.decima.graph.family import DecimaFamily
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.learning.recipes import Family
from parcae.decima.learning.simulators import (
    PlayedRollouts,
    RolloutShare,
    RolloutWorker,
    Setup,
    Simulators,
)
from parcae.decima.learning.updates import Rollout
from parcae.decima.queries import Teacher
from parcae.decima.rule import start_parameters
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.policies.networks.layout import trimmed
from parcae.simulation.config import SimulationConfig
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.conftest import made_up

_WORKLOAD = made_up(6, 4.0)
_SCENARIO = Scenario(_WORKLOAD, SimulationConfig(num_executors=4), "load:0.6", 12)
_CONFIG = TrainConfig(num_groups=2, group_size=5, capacity=64, window_s=400.0)


def _network(family: Family) -> Any:
    """A network with random weights, as kernels take it."""
    return family.policy(family.initial_weights(np.random.default_rng(0))).network


def _rollouts(scenario: Scenario, family: Family, **config: Any) -> list[Rollout]:
    """The rollouts of a collection."""
    settings = TrainConfig(num_groups=2, group_size=3, **config)
    groups = RolloutWorker(Setup(scenario, family, settings), seed=3).collect(_network(family))
    return [rollout for group in groups for rollout in group]


class _Elsewhere:
    """Plays every share with simulators of its own, as another process would."""

    def __init__(self, setup: Setup, shares_per_group: int) -> None:
        self.shares_per_group = shares_per_group
        self._setup = setup

    def play(
        self, shares: Sequence[RolloutShare], network: Any, teacher: Teacher | None
    ) -> list[PlayedRollouts]:
        return [self._play(share, network, teacher) for share in reversed(shares)][::-1]

    def _play(self, share: RolloutShare, network: Any, teacher: Teacher | None) -> PlayedRollouts:
        share = pickle.loads(pickle.dumps(share))
        (played,) = Simulators(self._setup, len(share)).play([share], network, teacher)
        return PlayedRollouts(
            [Rollout(trimmed(r.record), r.is_complete) for r in played.rollouts], played.end
        )


def _collections(worker: RolloutWorker, network: Any) -> list[tuple[bool, np.ndarray]]:  # type: ignore[type-arg]
    """Of six collections: whether each rollout was complete, and its log probabilities."""
    return [
        (rollout.is_complete, rollout.record.log_prob[: rollout.count].copy())
        for _ in range(6)
        for group in worker.collect(network, gap=1.5)
        for rollout in group
    ]


@pytest.mark.parametrize("shares_per_group", [1, 3, 9])
def test_rollouts_do_not_depend_on_who_plays_them(shares_per_group: int) -> None:
    family = DecimaFamily(_SCENARIO, DecimaSettings())
    network = _network(family)
    setup = Setup(_SCENARIO, family, _CONFIG)
    here = _collections(RolloutWorker(setup, seed=3), network)
    player = _Elsewhere(setup, shares_per_group)
    there = _collections(RolloutWorker(setup, seed=3, player=player), network)
    assert len(here) == 6 * 2 * 5
    # Some windows cut runs off, in others the runs end.
    assert {is_complete for is_complete, _ in here} == {False, True}
    for (one, of_one), (other, of_other) in zip(here, there, strict=True):
        assert one == other
        assert np.array_equal(of_one, of_other)
    assert max(len(of_one) for _, of_one in here) > 3


def test_a_worker_goes_on_from_its_number_of_collections() -> None:
    family = DecimaFamily(_SCENARIO, DecimaSettings())
    network = _network(family)
    setup = Setup(_SCENARIO, family, _CONFIG)
    worker = RolloutWorker(setup, seed=3)
    worker.collect(network)
    worker.restart()
    other = RolloutWorker(setup, seed=3)
    other.number = worker.number
    for one, same in zip(_collections(worker, network), _collections(other, network), strict=True):
        assert np.array_equal(one[1], same[1])


_BATCH = Scenario(_WORKLOAD, SimulationConfig(num_executors=4), "batch", 12)


@pytest.mark.parametrize(
    "family",
    [
        DecimaFamily(_BATCH, DecimaSettings()),
        CorrectorFamily(_BATCH, start_parameters(), (2, 2, 2)),
    ],
    ids=["decima", "corrector"],
)
def test_a_whole_run_goes_on_to_its_end_when_its_record_is_full(family: Family) -> None:
    records = (_rollouts(_BATCH, family, capacity=capacity) for capacity in (8, 512))
    for cut, whole in zip(*records, strict=True):
        assert cut.is_complete
        assert whole.is_complete
        assert 0 < cut.count <= 8 < whole.count
        assert cut.record.end_ms[0] == whole.record.end_ms[0]
        assert cut.record.end_cost[0] == whole.record.end_cost[0]
        log_probs = [one.record.log_prob[: cut.count] for one in (cut, whole)]
        assert np.array_equal(*log_probs)
        assert len(family.gather([cut]).log_prob) == cut.count


def test_a_window_ends_where_its_record_is_full() -> None:
    family = DecimaFamily(_SCENARIO, DecimaSettings())
    rollouts = _rollouts(_SCENARIO, family, capacity=8, window_s=1e6)
    assert not any(rollout.is_complete for rollout in rollouts)


@pytest.mark.parametrize("window_s", [None, 10.0])
def test_runs_end_where_the_cluster_ends_them(window_s: float | None) -> None:
    """A run that ended is complete: no later cost is expected, and a new sequence begins."""
    end_ms = 25_000
    scenario = Scenario(
        _WORKLOAD, SimulationConfig(num_executors=4, end_ms=end_ms), "load:0.9", 200
    )
    family = DecimaFamily(scenario, DecimaSettings())
    network = _network(family)
    config = TrainConfig(num_groups=2, group_size=3, capacity=512, window_s=window_s)
    worker = RolloutWorker(Setup(scenario, family, config), seed=3)
    ends = [
        (int(rollout.record.end_ms[0]), rollout.is_complete)
        for _ in range(6)
        for group in worker.collect(network)
        for rollout in group
    ]
    assert {is_complete for end, is_complete in ends if end == end_ms} == {True}
    assert {is_complete for end, is_complete in ends if end < end_ms} <= {False}
    assert max(ends) == (end_ms, True)


_BURSTS = Scenario(_WORKLOAD, SimulationConfig(num_executors=4), "bursts:3s", 120)


@pytest.mark.parametrize(
    ("family", "count", "table"),
    [
        (DecimaFamily(_BURSTS, DecimaSettings()), "all_jobs", "state"),
        (CorrectorFamily(_BURSTS, start_parameters(), (2, 2, 2)), "all_rows", "rows"),
    ],
    ids=["decima", "corrector"],
)
def test_a_record_has_room_for_the_jobs_that_arrive_after_its_last_decision(
    family: Family, count: str, table: str
) -> None:
    network = _network(family)
    used = []
    for capacity in (8, 32):
        config = TrainConfig(num_groups=4, group_size=2, capacity=capacity, window_s=1e6)
        worker = RolloutWorker(Setup(_BURSTS, family, config), seed=3)
        for _ in range(4):
            records = [rollout.record for group in worker.collect(network) for rollout in group]
            used += [getattr(one, count)[0] / len(getattr(one, table)) for one in records]
    # Some records end because this table is almost full.
    assert 0.7 < max(used) <= 1.0


def test_records_have_room_for_the_stages_of_jobs_as_often_as_they_are_drawn() -> None:
    jobs = (chain(1, 1, 10), chain(9, 1, 10))

    def num_rows(weights: tuple[float, ...] | None) -> int:
        scenario = Scenario(Workload("two", jobs, weights), SimulationConfig(), "batch", 2)
        _, record = DecimaFamily(scenario, DecimaSettings()).allocate(1, 100)
        return int(record.x.shape[1])

    # Room for 204 jobs, and for 2 x 2 jobs of the most stages.
    assert num_rows(None) == 204 * 5 + 36
    assert num_rows((3.0, 1.0)) == 204 * 3 + 36
    assert num_rows((1.0, 3.0)) == 204 * 7 + 36
