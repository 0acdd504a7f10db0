"""Invalid orders, orders that stall, and equivalent orders that must give the same run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Decision, Observation
from parcae.cluster.orders import Orders, blank_orders, first_come
from parcae.cluster.state import NOT_YET, POOL, UNLIMITED
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator, simulate
from tests.conftest import arriving, batch, job

_CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=2)
_TWO = batch(job("a", (3, 1_000, ()), (1, 500, (0,))), job("b", (2, 700, ())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jobs.tier": {1: np.nan}}, "job 1 has tier NaN; a tier must be a number"),
        (
            {"stages.tier": {2: np.nan}},
            "stage 0 of job 1 has tier 0.0 + nan and rank 0.0; they must be numbers",
        ),
        (
            {"jobs.tier": {0: np.inf}, "stages.tier": {1: -np.inf}},
            "stage 1 of job 0 has tier inf + -inf and rank 0.0; they must be numbers",
        ),
        ({"stages.rank": {0: np.nan}}, "stage 0 of job 0 has tier 0.0 + 0.0 and rank nan"),
        ({"jobs.weight": {0: -1.0}}, "job 0 has weight -1.0; it must be a number >= 0"),
        ({"jobs.weight": {0: np.inf}}, "job 0 has weight inf"),
        ({"jobs.weight": {0: np.nan}}, "job 0 has weight nan"),
        ({"jobs.limit": {1: -1}}, "job 1 has limit -1; it must be >= 0"),
        ({"stages.limit": {1: -3}}, "stage 1 of job 0 has limit -3"),
        ({"jobs.pool": {1: 1}}, "job 1 is in pool 1; the orders define pools 0..0"),
        ({"jobs.pool": {1: -1}}, "job 1 is in pool -1"),
        ({"pools.weight": [1.0, 0.0]}, "pool 1 has weight 0.0 and minimum share 0"),
        ({"pools.weight": [1.0, np.nan]}, "pool 1 has weight nan"),
        (
            {"pools.weight": [1.0, 1.0], "pools.min_share": {1: -2}},
            "pool 1 has weight 1.0 and minimum share -2",
        ),
        ({"pools.weight": []}, "orders with 0 pools; there may be 1 to 1024"),
        ({"pools.weight": [1.0] * 1025}, "orders with 1025 pools"),
    ],
)
def test_invalid_orders_are_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    orders = first_come(_both_arrived().observe())
    for place, values in change.items():
        table, column = place.split(".")
        if isinstance(values, list):
            pools = np.zeros(len(values), POOL).view(np.recarray)
            pools.weight[:] = values
            orders = orders._replace(pools=pools)
            continue
        for row, value in values.items():
            getattr(orders, table)[column][row] = value
    _refused(orders, message)


def test_orders_for_fewer_jobs_or_stages_are_refused() -> None:
    orders = first_come(_both_arrived().observe())
    message = "orders for 1 jobs and 3 stages, but there are 2 and 3"
    _refused(orders._replace(jobs=orders.jobs[:1]), message)
    _refused(orders._replace(stages=orders.stages[:2]), "orders for 2 jobs and 2 stages")


def _both_arrived() -> Simulator:
    simulator = Simulator(_TWO, _CONFIG, 1)
    simulator.start()
    while simulator.state.now.num_jobs[0] < 2:
        simulator.follow(first_come(simulator.observe()))
    return simulator


def _refused(orders: Orders, message: str) -> None:
    with pytest.raises(PolicyError) as refused:
        _both_arrived().follow(orders)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_orders_that_hold_every_core_back_forever_are_a_stall() -> None:
    simulator = Simulator(_TWO, _CONFIG, 1)
    simulator.start()
    orders = first_come(simulator.observe())
    orders.jobs.limit[:] = 0
    simulator.follow(orders)  # the second job arrives: a plan is due again
    with pytest.raises(PolicyError, match="hold every core back forever while 2 jobs wait"):
        simulator.follow(orders)


def test_an_order_that_holds_back_the_rest_of_a_stage_is_replaced_when_nothing_runs() -> None:
    # At 1,000 ms one task ends, and the rest is held back because another runs. When that one ends
    # as well, the policy plans again, now without limits.
    sequence = arriving((job("a", (3, 1_000, ())), 0), (job("b", (1, 100, ())), 500))

    class Patient:
        name = "patient"

        def plan(self, observation: Observation) -> Orders:
            orders = first_come(observation)
            if observation.executors.stage.max() >= 0:
                orders.jobs.limit[:] = 0
            return orders

    trace = simulate(sequence, Patient(), _CONFIG, 1)
    assert trace.is_complete
    assert trace.completion_ms.tolist() == [2_000, 1_100]


def test_cores_that_are_held_back_are_thought_over_when_the_tasks_that_run_have_ended() -> None:
    class Patient:
        """Holds all but the first stage back while any task runs."""

        name = "patient"

        def plan(self, observation: Observation) -> Orders:
            orders = first_come(observation)
            if observation.executors.stage.max() >= 0:
                orders.jobs.limit[:] = 0
            else:
                orders.stages.limit[1:] = 0 if observation.stages.num_started[0] == 0 else UNLIMITED
            return orders

    # Two parents of one child: the end of the first makes nothing runnable and ends no job.
    sequence = batch(job("a", (1, 1_000, ()), (1, 500, ()), (1, 100, (0, 1))))
    assert simulate(sequence, Patient(), _CONFIG, 1).completion_ms.tolist() == [1_600]


def test_a_wake_up_that_has_passed_comes_a_millisecond_later() -> None:
    simulator = Simulator(batch(job("a", (1, 10, ()))), _CONFIG, 1)
    simulator.start()
    orders = first_come(simulator.observe())
    orders.jobs.limit[0] = 0
    orders.wake_ms[0] = 0
    assert simulator.follow(orders) is Status.NEEDS_DECISION
    assert simulator.observe().now.clock_ms[0] == 1
    assert simulator.observe().now.wake_ms[0] == NOT_YET


def test_orders_for_more_rows_than_there_are_jobs_are_taken() -> None:
    simulator = Simulator(_TWO, _CONFIG, 1)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        simulator.follow(blank_orders(10, 50))
    assert simulator.trace("many").is_complete


class _FirstCome:
    name = "first come"

    def plan(self, observation: Observation) -> Orders:
        return first_come(observation)


def test_a_planner_in_the_world_of_executors_is_refused() -> None:
    config = SimulationConfig(num_executors=2)
    with pytest.raises(
        PolicyError,
        match="first come: the policy plans orders, which only the world of cores supports",
    ):
        simulate(_TWO, _FirstCome(), config, 1)
    simulator = Simulator(_TWO, config, 1)
    simulator.start()
    with pytest.raises(PolicyError, match="only the world of cores"):
        simulator.follow(first_come(simulator.observe()))


def test_there_are_no_idle_slots_in_the_world_of_cores() -> None:
    simulator = Simulator(_TWO, _CONFIG, 1)
    simulator.start()
    with pytest.raises(PolicyError, match="the world of cores has no idle slots"):
        simulator.step(Decision(stage=0, limit=1, hold_ms=100))
