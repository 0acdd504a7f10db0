import numpy as np
import pytest
from scipy import stats

from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.observation import Decision
from parcae.decima.catalog import make_policy
from parcae.decima.idle import arrival_rate, next_free_ms, slot_alone_ms, slot_among_ms
from parcae.decima.idle_theory import (
    DiscreteDistribution,
    average_jct,
    best_slot,
    best_slot_exponential,
    expected_average_jct,
    idle_pays,
    sequential_slots,
    waiting_gain,
)
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator, simulate
from tests.conftest import arriving, job

_ALONE = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
_PAIR = SimulationConfig(num_executors=2, moving_delay_ms=0, warmup_delay_ms=0)
_SHORT = job("short", (1, 10_000, ()))
_LONG = job("long", (1, 50_000, ()))
_LENGTHS = [
    DiscreteDistribution((10.0,), (1.0,)),
    DiscreteDistribution((10.0, 50.0), (0.5, 0.5)),
    DiscreteDistribution((5.0, 12.0, 50.0), (0.6, 0.3, 0.1)),
]


def test_an_idle_slot_pays_below_half_the_difference_of_lengths_and_not_at_it() -> None:
    assert idle_pays(50.0, 10.0, 19.9)
    # Theorem 1 as it is stated would say yes; the best slot gains nothing.
    assert not idle_pays(50.0, 10.0, 20.0)
    assert average_jct(50.0, 10.0, 20.0, slot=20.0) == average_jct(50.0, 10.0, 20.0) == 45.0
    assert not idle_pays(10.0, 50.0, 1.0)


@pytest.mark.parametrize(
    ("gap", "slot", "jct"),
    [
        (5.0, 0.0, (50 + 55) / 2),
        (5.0, 5.0, (65 + 10) / 2),
        (5.0, 15.0, (65 + 10) / 2),  # job 1 would wait for job 2 anyway
        (5.0, 25.0, (75 + 10) / 2),
        (5.0, 3.0, (53 + 58) / 2),  # the slot ends before job 2 comes
        (90.0, 3.0, (53 + 10) / 2),
    ],
)
def test_the_average_jct_of_two_jobs_is_that_of_the_schedule_by_hand(
    gap: float, slot: float, jct: float
) -> None:
    assert average_jct(50.0, 10.0, gap, slot=slot) == jct


@pytest.mark.parametrize("distribution", _LENGTHS)
def test_the_expectation_is_the_mean_over_drawn_gaps_and_lengths(
    distribution: DiscreteDistribution,
) -> None:
    rng = np.random.default_rng(0)
    gaps = rng.exponential(10.0, 20_000)
    lengths = rng.choice(distribution.values, 20_000, p=distribution.probabilities)
    for slot in (0.0, 7.0, 30.0):
        drawn = [
            average_jct(50.0, length, gap, slot) for gap, length in zip(gaps, lengths, strict=True)
        ]
        expected = expected_average_jct(50.0, slot, stats.expon(scale=10.0), distribution)
        assert expected == pytest.approx(
            np.mean(drawn), abs=4 * np.std(drawn) / np.sqrt(len(drawn))
        )


@pytest.mark.parametrize("distribution", _LENGTHS)
@pytest.mark.parametrize("mean_gap", [5.0, 10.0, 40.0])
def test_the_closed_form_for_exponential_gaps_is_what_a_search_finds(
    distribution: DiscreteDistribution, mean_gap: float
) -> None:
    closed = best_slot_exponential(50.0, mean_gap, distribution)
    gaps = stats.expon(scale=mean_gap)
    assert best_slot(50.0, gaps, distribution) == pytest.approx(closed, abs=1e-3)
    assert (
        (closed > 0) == (waiting_gain(50.0, mean_gap, distribution.expect()) > 0) == (mean_gap < 40)
    )


def test_gaps_may_be_short_beside_the_lengths_of_jobs() -> None:
    # exp(50,000 / 10) exceeds a float64. Job 2 comes almost at once: the slot lasts until the
    # shortest job 2 is done.
    fixed = DiscreteDistribution((50_000.0,), (1.0,))
    both = DiscreteDistribution((10_000.0, 50_000.0), (0.5, 0.5))
    assert best_slot_exponential(200_000.0, 10.0, fixed) == pytest.approx(50_000.0)
    assert best_slot_exponential(200_000.0, 10.0, both) == pytest.approx(10_000.0)


def test_the_slots_of_the_synthetic_data_set() -> None:
    gaps = stats.expon(scale=10.0)
    of_fixed = 10 * np.log(4 - 2 + np.exp(-5) + np.e)
    for lengths, slot, gain in zip(_LENGTHS, (of_fixed, 10.0495), (7.2693, 0.0213), strict=False):
        best = best_slot_exponential(50.0, 10.0, lengths)
        assert best == pytest.approx(slot, abs=1e-4)
        costs = [expected_average_jct(50.0, one, gaps, lengths) for one in (0.0, best)]
        assert costs[0] - costs[1] == pytest.approx(gain, abs=1e-3)
    assert best_slot_exponential(10.0, 10.0, _LENGTHS[1]) == 0.0


def test_where_slots_are_decided_anew_the_best_ends_with_the_next_arrival_or_never_begins() -> None:
    gaps = stats.expon(scale=10.0)
    assert best_slot(50.0, gaps, _LENGTHS[0], is_redecided=True) == 50.0
    assert best_slot(20.0, gaps, _LENGTHS[0], is_redecided=True) == 0.0


def test_any_density_of_gaps_and_any_distribution_of_lengths_has_a_best_slot() -> None:
    gaps = stats.uniform(5.0, 10.0)  # the next job comes 5 to 15 s later
    distribution = DiscreteDistribution((1.0, 3.0, 11.0), (0.3, 0.4, 0.3))
    assert distribution.expect() == pytest.approx(4.8)
    best = best_slot(60.0, gaps, distribution)
    costs = [
        expected_average_jct(60.0, slot, gaps, distribution) for slot in np.arange(0.0, 60.0, 4.0)
    ]
    assert best == pytest.approx(15.0, abs=0.01)
    assert expected_average_jct(60.0, best, gaps, distribution) <= min(costs) + 1e-6


def test_probabilities_that_do_not_sum_to_1_are_refused() -> None:
    with pytest.raises(ConfigError, match="must sum to 1"):
        DiscreteDistribution((1.0, 2.0), (0.5, 0.4))


def test_after_a_slot_the_next_job_gets_none() -> None:
    assert sequential_slots([5.0, 3.0, 2.0, 0.0, 1.0]) == [5.0, 0.0, 2.0, 0.0, 1.0]


def test_a_slot_before_a_stage_gains_what_one_before_the_job_cannot() -> None:
    """Section IV-B: three stages of 10 s, and a job of 10 s that comes just after the first stage
    is done.
    """
    assert not idle_pays(30.0, 10.0, 10.0)
    assert average_jct(30.0, 10.0, 10.0) == 30.0
    chain = job("chain", (1, 10_000, ()), (1, 10_000, (0,)), (1, 10_000, (1,)))
    sequence = arriving((chain, 0), (_SHORT, 10_001))

    def run(*decisions: Decision) -> list[int]:
        simulator = Simulator(sequence, _ALONE, 0)
        simulator.start()
        for decision in decisions:
            simulator.step(decision)
        assert simulator.step(Decision()) is Status.COMPLETE  # all is done; the executor may idle
        return (simulator.trace("by hand").completion_ms - sequence.arrival_ms).tolist()

    first, second, third, other = (Decision(stage, 1) for stage in range(4))
    assert run(first, second, third, other) == [30_000, 29_999]
    # Without the slot, other orders of the stages gain nothing.
    assert run(first, second, other, third) == [40_000, 19_999]
    slot = Decision(1, 1, hold_ms=2)
    assert run(first, slot, other, second, third) == [40_001, 10_000]


def _stream(config: SimulationConfig, last: tuple[int, ...], num_short: int = 12) -> Simulator:
    """Short jobs every 10 s, then long ones at the given times; the simulator stands where the last
    of them has come.
    """
    jobs = [(_SHORT, 10_000 * row) for row in range(num_short)] + [(_LONG, at) for at in last]
    simulator = Simulator(arriving(*jobs), config, 0)
    base = make_policy("fifo", config.total_executors)
    simulator.start()
    while simulator.state.now.num_jobs[0] < len(jobs):
        simulator.step(base.decide(simulator.observe()))
    return simulator


def _hold_ms(simulator: Simulator, name: str = "idle-theory") -> int:
    policy = make_policy(name, len(simulator.state.executors))
    return policy.decide(simulator.observe()).hold_ms


def test_the_policy_waits_before_a_long_job_where_short_ones_come_all_the_time() -> None:
    simulator = _stream(_ALONE, (125_000,))
    decision = make_policy("idle-theory", 1).decide(simulator.observe())
    assert arrival_rate(simulator.state) == pytest.approx(12 / 125_000)
    assert (decision.stage, decision.limit, decision.hold_ms) == (12, 1, 50_000)
    distribution = DiscreteDistribution((10.0, 50.0), (12 / 13, 1 / 13))
    theorem = best_slot_exponential(50.0, 125 / 12, distribution)
    assert _hold_ms(simulator, "idle-theory:alone") / 1e3 == pytest.approx(theorem, abs=2e-3)
    simulator.step(decision)
    assert simulator.state.now.clock_ms[0] == 175_000
    # A stage has one slot.
    assert _hold_ms(simulator) == 0


@pytest.mark.parametrize(
    ("config", "last", "num_short"),
    [
        (_ALONE, (95_000,), 9),  # too few arrivals
        (_PAIR, (125_000,), 12),  # both executors are idle
        (_ALONE, (112_000, 113_000), 12),  # two jobs wait
        (_ALONE, (), 12),  # the job is short
    ],
)
def test_it_does_not_wait_before_a_short_job_for_two_jobs_or_without_knowing_the_arrivals(
    config: SimulationConfig, last: tuple[int, ...], num_short: int
) -> None:
    assert _hold_ms(_stream(config, last, num_short)) == 0


def test_with_another_executor_it_waits_only_until_that_one_is_near() -> None:
    simulator = _stream(_PAIR, (125_000, 126_000))
    state = simulator.state
    rate = arrival_rate(state)
    assert next_free_ms(state) == 49_000
    # Gained a ms: rate x 12/14 of (what is left of the 49 s - 10 s); it costs 1: until 13,125 x
    # 14/12 / ... s are left.
    left = 10_000 + 14 / 12 / rate
    assert slot_among_ms(state, rate, 50_000.0, 49_000.0) == pytest.approx(49_000 - left, abs=1.0)
    assert _hold_ms(simulator) == pytest.approx(49_000 - left, abs=2)
    assert slot_among_ms(state, rate, 50_000.0, left - 1) == 0.0
    assert slot_among_ms(state, rate, 50_000.0, np.inf) == 50_000.0
    assert slot_alone_ms(state, rate, 10_000.0) == 0.0


def test_runs_with_idle_slots_come_to_their_end_and_gain_where_the_theory_says_so() -> None:
    jobs = [(_SHORT, 15_000 * row) for row in range(12)] + [(_LONG, 181_000), (_SHORT, 186_000)]
    sequence = arriving(*jobs)
    plain, idle = (
        simulate(sequence, make_policy(name, 1), _ALONE, 0) for name in ("srpt-cap", "idle-theory")
    )
    assert (plain.completion_ms - plain.arrival_ms)[-2:].tolist() == [50_000, 55_000]
    assert (idle.completion_ms - idle.arrival_ms)[-2:].tolist() == [65_000, 10_000]


def test_a_wrong_argument_is_refused() -> None:
    with pytest.raises(PolicyError, match="'alone' or nothing"):
        make_policy("idle-theory:2", 4)
