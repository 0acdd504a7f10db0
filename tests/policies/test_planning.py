"""Policies that plan and the virtual run of fair sharing, on clusters small enough to solve by
hand.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from parcae.base.errors import PolicyError
from parcae.cluster.kernels.policies import plan
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, gittins_index, gittins_tables, plan_tables
from parcae.policies.rule.kernels import NUM_ORDER_PARAMETERS, OrderParameter
from parcae.policies.rule.policy import OrderRulePolicy, checked_parameters, plain_parameters
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import arriving, batch, job


def _config(num_cores: int) -> SimulationConfig:
    return SimulationConfig(world=WorldName.CORES, num_executors=num_cores)


def _planner(kind: OrderKind) -> OrderPolicy:
    return OrderPolicy(kind.name.lower(), kind, plan_tables())


#: A long job, and a shorter one that comes while the first tasks of the long one run.
_TWO = arriving((job("long", (6, 1_000, ())), 0), (job("short", (2, 1_500, ())), 1_000))


_OLD_AND_NEW = arriving((job("old", (4, 1_000, ())), 0), (job("new", (1, 1_000, ())), 1_500))


@pytest.mark.parametrize(
    ("kind", "sequence", "num_cores", "ends_ms"),
    [
        # Under equal shares the short job would end first. Its stage is revealed after the cores
        # were given away at 1,000 ms.
        (OrderKind.FSP, _TWO, 2, [4_500, 3_500]),
        # No job outlives its estimate.
        (OrderKind.PSBS, _TWO, 2, [4_500, 3_500]),
        # Who was served least is served first.
        (OrderKind.LAS, _OLD_AND_NEW, 1, [5_000, 3_000]),
    ],
)
def test_who_is_served_first(
    kind: OrderKind, sequence: JobSequence, num_cores: int, ends_ms: list[int]
) -> None:
    trace = simulate(sequence, _planner(kind), _config(num_cores), 1)
    assert trace.completion_ms.tolist() == ends_ms


def test_late_jobs_come_before_all_others_and_share_under_psbs() -> None:
    one = job("one", (2, 1_000, ()))
    simulator = Simulator(batch(one, one, one, job("long", (9, 1_000, ()))), _config(2), 1)
    simulator.start()
    for kind in (OrderKind.FSP, OrderKind.PSBS):
        policy = _planner(kind)
        formula = policy.tables_for(4, 4)
        virtual = formula.virtual
        orders = policy.empty_orders(4, 4)
        plan(simulator.state, orders, formula)
        # The second and the third are late: they have ended in the virtual run.
        virtual.stages.is_ended[1:3] = 1
        virtual.jobs.num_left[1:3] = 0
        plan(simulator.state, orders, formula)
        assert virtual.jobs.has_ended.tolist() == [0, 1, 1, 0]
        virtual.jobs.end_ms[1:3] = [0.3, 0.2]
        plan(simulator.state, orders, formula)
        tier = orders.jobs.tier.tolist()
        served = [2, 1, 0, 3] if kind is OrderKind.FSP else [1, 2, 0, 3]
        assert sorted(range(4), key=lambda row: (tier[row], row)) == served
        assert (tier[1] == tier[2]) == (kind is OrderKind.PSBS)
        weights = [0, 1, 1, 0] if kind is OrderKind.PSBS else [0] * 4
        assert orders.jobs.weight.tolist() == weights


def test_gittins_index_falls_with_age_where_sizes_spread_far() -> None:
    index = gittins_index()
    # Of a known size it is the inverse of what is left.
    assert index[0, 10] == pytest.approx(1.0 / (1.0 - 0.525), rel=0.05)
    assert index[40, 20] > index[40, 100] > index[40, 199]
    # Of a job far beyond its estimate it is the hazard rate. Spread 0.1, age 2.975: 1 of 10^28
    # sizes is as large.
    z = math.log(2.975) / 0.1
    hazard_rate = norm.pdf(z) / norm.sf(z) / (0.1 * 2.975)
    assert index[2, 59] == pytest.approx(hazard_rate, rel=0.01)


def test_gittins_takes_the_spread_from_the_workload_or_from_the_error() -> None:
    workload = batch(job("a", (1, 1_000, ())), job("b", (1, 2_000, ()))).workload
    for error, spread in ((0.5, [0.5, 0.5]), ("log", [0.0, 0.0])):
        tables = gittins_tables(workload, SimulationConfig(estimate_error=error))  # type: ignore[arg-type]
        assert tables["sigma"][:2].tolist() == spread
    # Simulated runs are recorded ones, whatever sigma the file has (here 0).
    runs: dict[str, Any] = {"num_runs": 10, "run_factors": [[0.5]] * 5 + [[2.0]] * 5}
    recorded = Workload("w", (replace(workload.jobs[0], **runs),))
    tables = gittins_tables(recorded, SimulationConfig(estimate_error="log"))
    assert tables["sigma"][0] == pytest.approx(math.log(2))


def _rule(**parameters: float) -> OrderRulePolicy:
    theta = np.array(plain_parameters())
    for name, value in parameters.items():
        theta[OrderParameter[name]] = value
    return OrderRulePolicy("rule", checked_parameters(theta), 5_000.0)


def test_the_plain_rule_serves_the_job_with_least_left() -> None:
    # The short job is revealed when the one core was given away.
    sequence = batch(job("long", (4, 1_000, ())), job("short", (2, 1_000, ())))
    assert simulate(sequence, _rule(), _config(1), 1).completion_ms.tolist() == [6_000, 3_000]


def test_the_rule_tries_a_job_before_it_knows_its_size() -> None:
    # Each job starts a task first: 2 ** (2 - 1) = 2 tasks, but at most e ** -1.2 = 30% of the four.
    sequence = batch(job("long", (4, 1_000, ())), job("longer", (4, 2_000, ())))
    trace = simulate(sequence, _rule(PROBE=2.0, PROBE_SHARE=1.8), _config(1), 1, record=True)
    assert trace.tasks is not None
    assert trace.tasks["job"][:2].tolist() == [0, 1]
    plain = simulate(sequence, _rule(), _config(1), 1, record=True)
    assert plain.tasks is not None
    assert plain.tasks["job"][:2].tolist() == [0, 0]


def test_another_number_of_parameters_is_refused() -> None:
    with pytest.raises(PolicyError, match=f"{NUM_ORDER_PARAMETERS} parameters, not 3"):
        checked_parameters([1.0, 2.0, 3.0])


@pytest.mark.parametrize("kind", [OrderKind.FSP, OrderKind.PSBS, OrderKind.LAS, OrderKind.SRPT])
def test_planning_step_by_step_is_planning_in_one_call(kind: OrderKind) -> None:
    # Without `play`, every plan crosses into Python.
    stepwise: Any = SimpleNamespace(name="stepwise", plan=_planner(kind).plan)
    long_one = (job("long", (160, 1_000, ())), 0)
    sequence = arriving(
        long_one, *((job("short", (16, 1_000, ())), 500 + 1_100 * row) for row in range(60))
    )
    whole = simulate(sequence, _planner(kind), _config(2), 1)
    stepped = simulate(sequence, stepwise, _config(2), 1)
    assert stepped.completion_ms.tolist() == whole.completion_ms.tolist()
