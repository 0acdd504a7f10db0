"""Schedules by hand of the policies that know executor classes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from parcae.base.errors import PolicyError
from parcae.cluster.decision import Decision, Policy
from parcae.cluster.state import ANY_CLASS, ExecutorClass
from parcae.decima.catalog import HEURISTICS, make_policy
from parcae.decima.heuristics.kernels.decisions import allocate_memo
from parcae.decima.heuristics.kernels.graphene import find_group, frag_score
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rule.kernels import NUM_PARAMETERS, RuleParameter
from parcae.decima.rule.policy import RulePolicy, start_parameters
from parcae.decima.solo_curves import solo_curves
from parcae.evaluation.tuning import sweep_values
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.many import SimulatorBatch
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import JobSequence, RandomStreams, Workload, draw_sequence
from tests.cluster.invariants import check_invariants
from tests.conftest import batch, job

Sized = tuple[int, int, float, tuple[int, ...]]


_SWEEPS = {entry.name: entry.sweep for entry in HEURISTICS if entry.sweep is not None}


def _job(name: str, *stages: Sized) -> JobSpec:
    """A job from (number of tasks, duration in ms, memory, parents) for each stage."""
    return JobSpec(
        name,
        tuple(
            StageSpec(n, TaskDurations.constant(ms), p, memory=memory)
            for n, ms, memory, p in stages
        ),
    )


def _cluster(*classes: tuple[int, float]) -> SimulationConfig:
    """Classes of (number of executors, memory), whose executors move in no time."""
    sized = tuple(ExecutorClass(count, memory=memory) for count, memory in classes)
    return SimulationConfig(executor_classes=sized, moving_delay_ms=0, warmup_delay_ms=0)


_PAIR = _cluster((1, 0.5), (1, 1.0))
_ALIKE = SimulationConfig(num_executors=2, moving_delay_ms=0, warmup_delay_ms=0)


def _completions(policy: Policy, config: SimulationConfig, *jobs: JobSpec) -> list[int]:
    completions: list[int] = simulate(batch(*jobs), policy, config, 0).completion_ms.tolist()
    return completions


def _decisions(policy: Policy, config: SimulationConfig, *jobs: JobSpec) -> list[Decision]:
    """The decisions at time 0."""
    simulator = Simulator(batch(*jobs), config, 0)
    made = []
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION and simulator.state.now.clock_ms[0] == 0:
        made.append(policy.decide(simulator.observe()))
        simulator.step(made[-1])
    return made


def _rule(config: SimulationConfig, *jobs: JobSpec, **parameters: float) -> RulePolicy:
    theta = np.zeros(NUM_PARAMETERS)
    theta[RuleParameter.PRICE] = -10.0
    for name, value in parameters.items():
        theta[RuleParameter[name]] = value
    return RulePolicy("rule", tuple(theta), solo_curves(Workload("rule's", jobs), config))


def test_the_best_fitting_class_is_exhausted_before_a_larger_one() -> None:
    wide = _job("wide", (5, 1_000, 0.3, ()))
    made = _decisions(
        make_policy("weighted-fair:0", 5), _cluster((2, 1.0), (1, 0.25), (2, 0.5)), wide
    )
    assert made == [Decision(0, 2, 2), Decision(0, 2, 0), Decision(-1, 1)]


def test_on_several_classes_shares_are_of_resources_and_not_of_executors() -> None:
    # Half of 4 x 0.5 + 4 x 0.125 units of memory is 1.25: two and a half large executors, rounded
    # up. Counted in executors, the first job would have had all four.
    config = _cluster((4, 0.125), (4, 0.5))
    first = _job("first", (4, 1_000, 0.4, ()))
    second = _job("second", (1, 1_000, 0.4, ()))
    assert _decisions(make_policy("weighted-fair:0", 8), config, first, second)[0] == Decision(
        0, 3, 1
    )
    assert _completions(make_policy("weighted-fair:0", 8), config, first, second) == [2_000, 1_000]
    assert _completions(make_policy("fair", 8), config, first, second) == [1_000, 2_000]


def test_small_executors_count_by_their_cores_where_these_weigh_more() -> None:
    # Half of the cores is four executors; four small ones have 2/11 of the memory.
    config = _cluster((6, 0.125), (2, 1.0))
    jobs = _job("first", (6, 1_000, 0.1, ())), _job("second", (6, 1_000, 0.1, ()))
    made = _decisions(make_policy("weighted-fair:0", 8), config, *jobs)
    assert made[:3] == [Decision(0, 4, 0), Decision(1, 2, 0), Decision(1, 2, 1)]


def test_tetris_gives_every_class_the_stage_that_fills_it_best() -> None:
    small = _job("small", (1, 1_000, 0.2, ()))
    large = _job("large", (1, 1_000, 0.9, ()))
    half = _job("half", (1, 1_000, 0.5, ()))
    assert _decisions(make_policy("tetris", 2), _PAIR, small, large, half)[:2] == [
        Decision(2, 1, 0),
        Decision(1, 1, 1),
    ]
    assert _completions(make_policy("tetris", 2), _PAIR, small, large, half) == [
        2_000,
        1_000,
        1_000,
    ]


def test_tetris_weighs_the_remaining_work_if_asked_to() -> None:
    short = _job("short", (1, 500, 0.2, ()))
    large = _job("large", (1, 1_000, 0.9, ()))
    half = _job("half", (1, 1_000, 0.5, ()))
    assert _completions(make_policy("tetris:10", 2), _PAIR, short, large, half) == [
        500,
        1_000,
        1_500,
    ]
    assert _completions(make_policy("tetris:0", 2), _PAIR, short, large, half) == [
        1_500,
        1_000,
        1_000,
    ]


def test_tetris_lets_executors_idle_that_are_too_small() -> None:
    assert _completions(make_policy("tetris", 2), _PAIR, _job("large", (2, 1_000, 0.9, ()))) == [
        2_000
    ]


def test_a_stage_that_needs_a_large_class_is_hard_to_pack() -> None:
    # 100 executors of 75 units of memory. What fits everywhere fills the cores; 0.9 fits 50
    # executors, which is half of the cores and 45 of the 75 units.
    state = _started(
        _cluster((50, 0.5), (50, 1.0)), _job("a", (1, 1, 0.1, ()), (1, 1, 0.5, ()), (1, 1, 0.9, ()))
    ).state
    assert [frag_score(state, stage) for stage in range(3)] == pytest.approx([1.0, 1.0, 0.6])
    assert frag_score(_started(_ALIKE, _job("a", (1, 1, 0.1, ()))).state, 0) == 1.0


_DAG = _job(
    "dag",
    (1, 1_000, 0.2, ()),
    (1, 4_000, 0.2, (0,)),
    (1, 500, 0.2, (1,)),
    (1, 3_500, 0.2, (2,)),
    (1, 400, 0.9, (0,)),
)


def _started(config: SimulationConfig, *jobs: JobSpec) -> Simulator:
    simulator = Simulator(batch(*jobs), config, 0)
    simulator.start()
    return simulator


@pytest.mark.parametrize(
    ("long", "frag", "group"),
    [
        (0.8, -1.0, [0, 1, 1, 1, 0]),  # 4,000 and 3,500 of 4,000 ms, and what lies between
        (0.9, -1.0, [0, 1, 0, 0, 0]),
        (2.0, 0.7, [0, 0, 0, 0, 1]),  # needs the large class
        (0.9, 0.7, [0, 1, 0, 0, 1]),
        (2.0, -1.0, [0, 0, 0, 0, 0]),
        (0.25, -1.0, [1, 1, 1, 1, 0]),
    ],
)
def test_the_troublesome_group_is_long_or_fragmenting_and_closed_over_paths(
    long: float, frag: float, group: list[int]
) -> None:
    state = _started(_cluster((50, 0.5), (50, 1.0)), _DAG).state
    memo = allocate_memo(1, 5)
    find_group(state, np.array([0.0, long, frag]), memo, 0)
    assert memo.stages.is_troublesome.tolist() == group
    assert memo.jobs.num_troublesome[0] == sum(group)


def test_a_group_is_found_anew_for_another_job_in_the_same_row() -> None:
    params = np.array([0.0, 0.8, -1.0])
    memo = allocate_memo(1, 5)
    find_group(_started(_ALIKE, _DAG).state, params, memo, 0)
    find_group(
        _started(_ALIKE, _job("other", (1, 10, 0.0, ()), (1, 1_000, 0.0, ()))).state,
        params,
        memo,
        0,
    )
    assert memo.stages.is_troublesome.tolist()[:2] == [0, 1]


def test_a_run_is_the_same_alone_and_after_another_with_the_same_policy() -> None:
    # In the runs before, the same jobs stand in the same rows, but their stages in others.
    shape = RandomDags(num_jobs=8, max_depth=5, max_width=3, mean_tasks=3.0)
    workload = random_dags(shape, np.random.default_rng(5))
    policy = make_policy("graphene:-1:0.4:-1", 4)
    assert isinstance(policy, HeuristicPolicy)
    config = SimulationConfig(num_executors=4)

    def average_jct_ms(*first_jobs: int) -> float:
        runs = [
            JobSequence(workload, np.array([first, 1, 2, 3]), np.zeros(4, np.int64))
            for first in first_jobs
        ]
        simulators = SimulatorBatch(runs, config, [0] * len(runs))
        simulators.run(policy.play_many, num_threads=1)
        return float(jct_ms(simulators.trace(len(runs) - 1, "graphene")).mean())

    assert len({len(job.stages) for job in workload.jobs}) > 2
    alone = [average_jct_ms(last) for last in range(8)]
    after = [[average_jct_ms(first, last) for last in range(8)] for first in range(8)]
    assert after == [alone] * 8


_HELD = _job(
    "held", (1, 1_000, 0.0, ()), (1, 4_000, 0.0, (0,)), (1, 4_000, 0.0, ()), (2, 500, 0.0, ())
)


def test_graphene_holds_troublesome_stages_until_all_are_available_and_then_takes_them_first() -> (
    None
):
    # Stages 1 and 2 are long; 1 waits for 0. Graphene: 0 and 3 until 1,000, then 1 and 2 side by
    # side until 5,000. In order: 0 and 2 at once, then 3 until 2,000, then 1 until 6,000.
    assert _completions(make_policy("graphene:0:0.8:-1", 2), _ALIKE, _HELD) == [5_000]
    assert _completions(make_policy("weighted-fair:0", 2), _ALIKE, _HELD) == [6_000]


def test_graphene_takes_suppressed_stages_where_there_is_nothing_else_to_run() -> None:
    chain = _job("chain", (1, 1_000, 0.0, ()), (1, 4_000, 0.0, (0,)), (1, 4_000, 0.0, ()))
    other = _job("other", (1, 200, 0.0, ()))
    assert _completions(make_policy("graphene:0:0.8:-1", 2), _ALIKE, chain) == [5_000]
    # With another job, its stage comes before the suppressed one, which starts at 200.
    assert _completions(make_policy("graphene:0:0.8:-1", 2), _ALIKE, chain, other) == [5_000, 200]


def test_without_troublesome_stages_graphene_is_weighted_fair() -> None:
    sequence = _sequence(3, 6)
    for config in (
        SimulationConfig(num_executors=8),
        _cluster((2, 0.25), (2, 0.5), (2, 0.75), (2, 1.0)),
    ):
        graphene, fair = (
            simulate(sequence, make_policy(p, 8), config, 3)
            for p in ("graphene:-1:2:-1", "weighted-fair:-1")
        )
        assert graphene.completion_ms.tolist() == fair.completion_ms.tolist()


def test_arguments_of_the_multi_resource_policies_are_checked() -> None:
    for text in (
        "tetris:-1",
        "tetris:x",
        "tetris:tuned",
        "graphene:1",
        "graphene:1:2:3:4:5",
        "graphene:1:2:3:-4",
        "graphene:nan:1:1",
    ):
        with pytest.raises(PolicyError):
            make_policy(text, 8)
    with pytest.raises(PolicyError):
        make_policy("graphene:tuned", 8)
    assert make_policy("graphene", 8).params == (-1.0, 0.5, 0.25, math.inf)
    assert make_policy("graphene:-1:0.5:0.25:inf", 8).params == (-1.0, 0.5, 0.25, math.inf)
    assert make_policy("graphene:0:0.5:0.25:30", 8).params == (0.0, 0.5, 0.25, 30.0)


def test_graphene_can_keep_executors_from_stages_whose_parents_run_for_long() -> None:
    chain = _job("chain", (1, 10_000, 0.0, ()), (4, 1_000, 0.0, (0,)))
    other = _job("other", (4, 6_000, 0.0, ()))
    done = [
        _completions(make_policy(f"graphene:-9:2:-1:{wait}", 2), _ALIKE, chain, other)
        for wait in ("inf", "10", "9")
    ]
    assert done == [[12_000, 24_000], [12_000, 24_000], [14_000, 20_000]]


def test_graphene_is_tuned_over_alpha_with_every_pair_of_thresholds_and_then_finer() -> None:
    grid = list(_SWEEPS["graphene"].grid(8))
    assert len(grid) == len(set(grid)) == 9 * 5 * 5 * 2
    finer = list(_SWEEPS["graphene"].around((0.5, 0.4, 0.2, 0.0)))
    assert sorted({alpha for alpha, *_ in finer}) == [0.3, 0.4, 0.5, 0.6, 0.7]
    assert [wait for alpha, _, _, wait in finer if alpha == 0.4] == [
        0.0,
        2.0,
        5.0,
        10.0,
        30.0,
        100.0,
        math.inf,
    ]
    sequences = [_sequence(seed, 3) for seed in range(1)]
    sweep = sweep_values("graphene", sequences, _cluster((4, 0.5), (4, 1.0)), [0])
    assert sweep.num_given_up == 425
    assert 25 <= len(sweep.costs) <= 25 + 35
    assert sweep.costs[sweep.best] == min(sweep.costs.values())


def test_a_new_job_is_offered_executors_that_idle_in_the_pool_of_another() -> None:
    first = _job("first", (1, 10_000, 0.9, ()), (2, 1_000, 0.4, (0,)))
    second = _job("second", (1, 1_000, 0.4, ()))
    sequence = JobSequence(Workload("w", (first, second)), np.array([0, 1]), np.array([0, 1_000]))
    trace = simulate(sequence, _rule(_PAIR, first, second, AHEAD=1.0), _PAIR, 0)
    # The small executor idled in the first job, for its second stage.
    assert trace.completion_ms.tolist() == [11_000, 2_000]


def test_a_rule_without_terms_for_classes_takes_any_that_fits() -> None:
    jobs = (_job("wide", (2, 1_000, 0.3, ())),)
    assert _decisions(_rule(_PAIR, *jobs), _PAIR, *jobs) == [Decision(0, 2, ANY_CLASS)]
    assert _completions(_rule(_PAIR, *jobs), _PAIR, *jobs) == [1_000]


def test_a_rule_that_never_borrows_waits_for_the_right_size() -> None:
    jobs = (_job("wide", (2, 1_000, 0.3, ())),)
    assert _decisions(_rule(_PAIR, *jobs, BORROW=1.0), _PAIR, *jobs) == [
        Decision(0, 1, 0),
        Decision(-1, 1),
    ]
    assert _completions(_rule(_PAIR, *jobs, BORROW=1.0), _PAIR, *jobs) == [2_000]


def test_a_rule_may_lend_large_executors_to_short_jobs_only() -> None:
    short = _job("short", (2, 1_000, 0.3, ()))
    long = _job("long", (2, 9_000, 0.3, ()))
    rule = _rule(_PAIR, short, long, BORROW_REMAINING=1.0)
    assert _completions(rule, _PAIR, short, long) == [1_000, 19_000]  # mean work: 10,000 ms
    assert _completions(_rule(_PAIR, short, long), _PAIR, short, long) == [1_000, 10_000]


def test_a_rule_may_keep_large_executors_for_those_that_wait_for_them() -> None:
    short = _job("short", (2, 1_000, 0.3, ()))
    large = _job("large", (1, 3_000, 0.9, ()))
    # log(2 / 2) - 0.5 < 0: one waits, one is offered.
    keeps = _rule(_PAIR, short, large, BORROW_WAITING=1.0, BORROW=-0.5)
    assert _completions(keeps, _PAIR, short, large) == [1_000, 4_000]
    keeps = _rule(_PAIR, short, large, BORROW_WAITING=1.0, BORROW=0.1)
    assert _completions(keeps, _PAIR, short, large) == [2_000, 3_000]
    # No stage waits for a large one.
    assert _completions(keeps, _PAIR, short, _job("fits", (1, 3_000, 0.3, ()))) == [1_000, 4_000]


def test_a_rule_may_prefer_jobs_that_fill_the_executor() -> None:
    small = _job("small", (1, 1_000, 0.3, ()))
    large = _job("large", (1, 1_500, 0.9, ()))
    config = _cluster((1, 1.0), (1, 0.5))
    busy = _job("busy", (1, 900, 0.5, ()))
    assert _completions(_rule(config, small, large, busy), config, small, large, busy) == [
        1_000,
        2_500,
        900,
    ]
    prefers = _rule(config, small, large, busy, SCORE_OVERSIZE=5.0)
    assert _completions(prefers, config, small, large, busy) == [1_900, 1_500, 900]


def _sequence(seed: int, num_jobs: int) -> JobSequence:
    """Random DAGs whose stages need up to the whole memory of the largest class."""
    rng = np.random.default_rng(seed)
    made = random_dags(RandomDags(num_jobs=8, mean_tasks=6.0), rng)
    jobs = [
        replace(j, stages=tuple(replace(s, memory=1.0 - float(rng.random())) for s in j.stages))
        for j in made.jobs
    ]
    return draw_sequence(
        Workload("sized", tuple(jobs)), "load:0.8", num_jobs, 8, RandomStreams(seed)
    )


def _wild(sequence: JobSequence, config: SimulationConfig, seed: int) -> RulePolicy:
    theta = np.random.default_rng(seed).normal(0, 2.0, NUM_PARAMETERS)
    return RulePolicy("wild", tuple(theta), solo_curves(sequence.workload, config))


@pytest.mark.parametrize(
    "name",
    ["weighted-fair:-1", "tetris", "tetris:1", "graphene", "graphene:1:0.2:0.8", "rule", "wild"],
)
def test_on_four_classes_every_job_ends_and_the_tables_are_consistent(name: str) -> None:
    config = _cluster((2, 0.25), (2, 0.5), (2, 0.75), (2, 1.0)).model_copy(
        update={"moving_delay_ms": 500}
    )
    sequence = _sequence(0, 5)
    rule = RulePolicy("rule", tuple(start_parameters()), solo_curves(sequence.workload, config))
    policy = {"rule": rule, "wild": _wild(sequence, config, 1)}.get(name) or make_policy(name, 8)
    simulator = Simulator(sequence, config, 0)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        check_invariants(simulator.state)
        simulator.step(policy.decide(simulator.observe()))
    stepped = simulator.trace(name)
    assert (stepped.completion_ms > 0).all()
    assert (
        stepped.completion_ms.tolist()
        == simulate(sequence, policy, config, 0).completion_ms.tolist()
    )


def test_a_fair_share_is_rounded_up() -> None:
    jobs = batch(job("a", (9, 10, ())), job("b", (9, 10, ())))
    simulator = Simulator(jobs, SimulationConfig(num_executors=3), 0)
    simulator.start()
    assert make_policy("fair", 3).decide(simulator.observe()).limit == 2


def test_the_stage_with_the_longest_path_behind_it_goes_first() -> None:
    jobs = batch(job("a", (1, 10, ()), (1, 10, ()), (1, 500, (1,))))
    simulator = Simulator(jobs, SimulationConfig(num_executors=1), 0)
    simulator.start()
    assert make_policy("sjf-cp", 1).decide(simulator.observe()).stage == 1
