"""Policies that plan, the virtual run of fair sharing and the guard, on clusters small enough to
solve by hand.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from parcae.base.errors import PolicyError
from parcae.cluster.kernels.policies import plan
from parcae.policies.additions import Guarded
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, gittins_index, gittins_tables, plan_tables
from parcae.policies.rule.kernels import NUM_ORDER_PARAMETERS, OrderParameter
from parcae.policies.rule.policy import OrderRulePolicy, checked_parameters, plain_parameters
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.workload import JobSequence
from tests.conftest import arriving, batch, job


def _config(num_cores: int) -> SimulationConfig:
    return SimulationConfig(world=WorldName.CORES, num_executors=num_cores)


def _planner(kind: OrderKind) -> OrderPolicy:
    return OrderPolicy(kind.name.lower(), kind, plan_tables())


def _completions(kind: OrderKind, sequence: JobSequence, num_cores: int) -> list[int]:
    return simulate(sequence, _planner(kind), _config(num_cores), 1).completion_ms.tolist()


#: A long job, and a shorter one that comes while the first tasks of the long one run.
_TWO = arriving((job("long", (6, 1_000, ())), 0), (job("short", (2, 1_500, ())), 1_000))


def test_fsp_serves_by_the_end_under_equal_shares() -> None:
    # Under equal shares the short job would end first. Its stage is revealed after the cores were
    # given away at 1,000 ms.
    assert _completions(OrderKind.FSP, _TWO, 2) == [4_500, 3_500]


def test_psbs_is_fsp_where_no_job_outlives_its_estimate() -> None:
    assert _completions(OrderKind.PSBS, _TWO, 2) == _completions(OrderKind.FSP, _TWO, 2)


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


def test_las_serves_first_who_was_served_least() -> None:
    sequence = arriving((job("old", (4, 1_000, ())), 0), (job("new", (1, 1_000, ())), 1_500))
    assert _completions(OrderKind.LAS, sequence, 1) == [5_000, 3_000]


def test_fifo_under_adaptive_execution_lets_old_queries_late_stages_wait() -> None:
    # The second stage of the first query is a Spark job of its own, submitted after the second
    # query.
    sequence = arriving(
        (job("first", (1, 1_000, ()), (1, 1_000, (0,))), 0), (job("second", (2, 1_000, ())), 500)
    )
    assert _completions(OrderKind.FIFO, sequence, 1) == [3_000, 4_000]
    assert _completions(OrderKind.FIFO_SPARK_JOBS, sequence, 1) == [4_000, 3_000]


def test_the_virtual_run_shares_cores_equally_as_far_as_jobs_can_use_them() -> None:
    # A core each. The slowest of 2 tasks is taken to outlast the other by a quarter of a task, that
    # of 4 by three eighths: "a" needs 2,250 ms; "b" then has 2,125 ms left, for two cores.
    simulator = Simulator(batch(job("a", (2, 1_000, ())), job("b", (4, 1_000, ()))), _config(2), 1)
    Guarded("srpt", _planner(OrderKind.SRPT), 50.0).play(simulator.simulation)
    assert simulator.state.virtual_jobs.end_ms == pytest.approx([2_250.0, 3_312.5], abs=1.0)


def test_where_jobs_outnumber_cores_the_virtual_run_serves_older_ones_as_spark_does() -> None:
    sequence = batch(*(job("a", (1, 1_000, ())) for _ in range(3)))
    simulator = Simulator(sequence, _config(2), 1)
    Guarded("srpt", _planner(OrderKind.SRPT), 50.0).play(simulator.simulation)
    assert simulator.state.virtual_jobs.end_ms == pytest.approx(
        [1_000.0, 1_000.0, 2_000.0], abs=1.0
    )


def test_a_job_that_ended_in_the_virtual_run_is_judged_by_what_it_really_needed() -> None:
    # By tiers the wide job comes last, has an estimate of half its work, and has ended in the
    # virtual run before that shows: fair sharing would have taken twice as long for it, not until
    # it really ends.
    sequence = batch(job("first", (40, 1_000, ())), job("wide", (4, 1_000, ())))
    tables = plan_tables(tiers=np.array([0.0, 1.0]), limits=np.array([100, 100]))
    simulator = Simulator(sequence, _config(2), 1)
    simulator.future.knowledge[1] = 0.5
    simulator.state.now.is_corrected[0] = 1
    given = OrderPolicy("given", OrderKind.GIVEN, tables)
    Guarded("given", given, 50.0).play(simulator.simulation)
    assert simulator.state.jobs.completion_ms[1] == 22_000
    assert 2_000.0 < simulator.state.virtual_jobs.end_ms[1] < 6_000.0


def _starving() -> JobSequence:
    """A long job, and short ones that keep coming; sixteen cores are to be busy for nine tenths of
    the time.
    """
    long_one = (job("long", (160, 1_000, ())), 0)
    return arriving(
        long_one, *((job("short", (16, 1_000, ())), 500 + 1_100 * row) for row in range(60))
    )


def test_the_guard_serves_a_job_first_that_is_about_to_be_late() -> None:
    # Under fair sharing the short job would have a core at once; by the given tiers it comes last.
    sequence = batch(job("long", (20, 1_000, ())), job("short", (1, 1_000, ())))
    tables = plan_tables(tiers=np.array([0.0, 1.0]), limits=np.array([100, 100]))
    given = OrderPolicy("given", OrderKind.GIVEN, tables)
    plain = simulate(sequence, given, _config(2), 1).completion_ms
    guarded = simulate(sequence, Guarded("given", given, 1.1), _config(2), 1).completion_ms
    assert plain.tolist() == [10_000, 11_000]
    assert guarded.tolist() == [11_000, 2_000]


def test_the_guard_wakes_the_policy_when_a_job_becomes_urgent() -> None:
    # Tasks of 100 ms, and no stage begins or ends between 0 and 100 s but the short job's: without
    # the guard's wake-up no plan would be made in time.
    sequence = batch(job("long", (2_000, 100, ())), job("short", (10, 100, ()), (10, 100, (0,))))
    given = OrderPolicy(
        "given",
        OrderKind.GIVEN,
        plan_tables(tiers=np.array([0.0, 1.0]), limits=np.array([100, 100, 100])),
    )
    fair = simulate(sequence, _planner(OrderKind.FAIR), _config(2), 1).completion_ms
    guarded = simulate(sequence, Guarded("given", given, 1.5), _config(2), 1).completion_ms
    assert fair[1] < guarded[1] <= 1.5 * fair[1]


def test_an_urgent_job_is_served_whatever_limit_its_policy_set() -> None:
    sequence = batch(job("long", (20, 1_000, ())), job("short", (4, 1_000, ())))
    given = OrderPolicy(
        "given", OrderKind.GIVEN, plan_tables(tiers=np.array([0.0, 1.0]), limits=np.array([1, 1]))
    )
    plain = simulate(sequence, given, _config(4), 1).completion_ms
    guarded = simulate(sequence, Guarded("given", given, 1.1), _config(4), 1).completion_ms
    assert plain.tolist() == [20_000, 4_000]
    assert guarded[1] < plain[1]


@pytest.mark.parametrize("factor", [1.0, 0.5, float("inf"), float("nan")])
def test_a_guard_that_promises_nothing_is_refused(factor: float) -> None:
    with pytest.raises(PolicyError, match="above 1"):
        Guarded("srpt", _planner(OrderKind.SRPT), factor)


def test_gittins_index_of_a_known_size_is_the_inverse_of_what_is_left() -> None:
    assert gittins_index()[0, 10] == pytest.approx(1.0 / (1.0 - 0.525), rel=0.05)


def test_gittins_index_falls_with_age_where_sizes_spread_far() -> None:
    spread = gittins_index()[40]
    assert spread[20] > spread[100] > spread[199]


def test_gittins_index_of_a_job_far_beyond_its_estimate_is_its_hazard_rate() -> None:
    # Spread 0.1, age 2.975: 1 of 10^28 sizes is as large.
    z = math.log(2.975) / 0.1
    hazard_rate = norm.pdf(z) / norm.sf(z) / (0.1 * 2.975)
    assert gittins_index()[2, 59] == pytest.approx(hazard_rate, rel=0.01)


def test_gittins_takes_the_spread_from_the_workload_or_from_the_error() -> None:
    workload = batch(job("a", (1, 1_000, ())), job("b", (1, 2_000, ()))).workload
    sigma = gittins_tables(workload, SimulationConfig(estimate_error=0.5))["sigma"]
    assert sigma[:2].tolist() == [0.5, 0.5]
    assert gittins_tables(workload, SimulationConfig(estimate_error="log"))["sigma"][
        :2
    ].tolist() == [0.0, 0.0]


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
    class Stepwise:
        """The same policy without `play`, so that every plan crosses into Python."""

        name = "stepwise"

        def __init__(self) -> None:
            self.policy = _planner(kind)

        def plan(self, observation):  # type: ignore[no-untyped-def]
            return self.policy.plan(observation)

    sequence = _starving()
    whole = simulate(sequence, _planner(kind), _config(2), 1)
    stepped = simulate(sequence, Stepwise(), _config(2), 1)
    assert stepped.completion_ms.tolist() == whole.completion_ms.tolist()
