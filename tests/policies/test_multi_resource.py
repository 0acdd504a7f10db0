"""Schedules by hand of the policies that know executor classes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Decision, Policy
from parcae.cluster.state import ANY_CLASS, ExecutorClass
from parcae.decima.catalog import HEURISTICS, make_policy
from parcae.decima.heuristics.decisions import allocate_memo
from parcae.decima.heuristics.graphene import find_group, frag_score
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rule import NUM_PARAMETERS, RuleParameter, RulePolicy, start_parameters
from parcae.decima.solo_curves import solo_curves
from parcae.evaluation.policies import sweep_values
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import Simulator, SimulatorBatch, simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import JobSequence, RandomStreams, Workload, draw_sequence
from tests.cluster.invariants import check_invariants
from tests.conftest import batch, job

Sized = tuple[int, int, float, tuple[int, ...]]
Jobs = tuple[JobSpec, ...]


_SWEEPS = {entry.name: entry.sweep for entry in HEURISTICS if entry.sweep is not None}


def _job(name: str, *stages: Sized) -> JobSpec:
    """A job from (number of tasks, duration in ms, memory, parents) for each stage."""
    made = (StageSpec(n, TaskDurations.constant(ms), p, memory=m) for n, ms, m, p in stages)
    return JobSpec(name, tuple(made))


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


_WIDE = _job("wide", (2, 1_000, 0.3, ()))
_FIVE = _job("five", (5, 1_000, 0.3, ()))
_SIX = _job("six", (6, 1_000, 0.1, ()))
_SMALL = _job("small", (1, 1_000, 0.2, ()))
_LARGE = _job("large", (1, 1_000, 0.9, ()))
_LARGES = _job("larges", (2, 1_000, 0.9, ()))
_HALF = _job("half", (1, 1_000, 0.5, ()))
_BRIEF = _job("brief", (1, 500, 0.2, ()))
_SHORT = _job("short", (2, 1_000, 0.3, ()))
_LONG = _job("long", (2, 9_000, 0.3, ()))
_WAITS = _job("waits", (1, 3_000, 0.9, ()))
_HELD = _job(
    "held", (1, 1_000, 0.0, ()), (1, 4_000, 0.0, (0,)), (1, 4_000, 0.0, ()), (2, 500, 0.0, ())
)
_CHAIN = _job("chain", (1, 1_000, 0.0, ()), (1, 4_000, 0.0, (0,)), (1, 4_000, 0.0, ()))
_AHEAD = _job("ahead", (1, 10_000, 0.0, ()), (4, 1_000, 0.0, (0,)))
_OTHER = _job("other", (4, 6_000, 0.0, ()))
_EIGHT = _cluster((4, 0.125), (4, 0.5))
_SHARERS = _job("first", (4, 1_000, 0.4, ())), _job("second", (1, 1_000, 0.4, ()))
_FILLERS = (
    _job("small", (1, 1_000, 0.3, ())),
    _job("large", (1, 1_500, 0.9, ())),
    _job("busy", (1, 900, 0.5, ())),
)
_REVERSED = _cluster((1, 1.0), (1, 0.5))
_GROUPED = "graphene:0:0.8:-1"
#: The policy's name or the rule's parameters, cluster, jobs, and when the jobs end.
_ENDS = {
    # Shares are of resources: half of 4 x 0.5 + 4 x 0.125 units of memory is 1.25: two and a half
    # large executors, rounded up. Counted in executors, the first job would have had all four.
    "shares of resources": ("weighted-fair:0", _EIGHT, _SHARERS, [2_000, 1_000]),
    "shares of executors": ("fair", _EIGHT, _SHARERS, [1_000, 2_000]),
    "tetris fills classes": ("tetris", _PAIR, (_SMALL, _LARGE, _HALF), [2_000, 1_000, 1_000]),
    "tetris weighs work": ("tetris:10", _PAIR, (_BRIEF, _LARGE, _HALF), [500, 1_000, 1_500]),
    "tetris weighs none": ("tetris:0", _PAIR, (_BRIEF, _LARGE, _HALF), [1_500, 1_000, 1_000]),
    "tetris lets small executors idle": ("tetris", _PAIR, (_LARGES,), [2_000]),
    # Stages 1 and 2 are long; 1 waits for 0. Graphene: 0 and 3 until 1,000, then 1 and 2 side by
    # side until 5,000. In order: 0 and 2 at once, then 3 until 2,000, then 1 until 6,000.
    "graphene holds a group": (_GROUPED, _ALIKE, (_HELD,), [5_000]),
    "in order": ("weighted-fair:0", _ALIKE, (_HELD,), [6_000]),
    "graphene takes suppressed stages": (_GROUPED, _ALIKE, (_CHAIN,), [5_000]),
    # With another job, its stage comes before the suppressed one, which starts at 200.
    "graphene takes others first": (
        _GROUPED, _ALIKE, (_CHAIN, _job("other", (1, 200, 0.0, ()))), [5_000, 200]
    ),
    "graphene waits": ("graphene:-9:2:-1:inf", _ALIKE, (_AHEAD, _OTHER), [12_000, 24_000]),
    "graphene waits 10 s": ("graphene:-9:2:-1:10", _ALIKE, (_AHEAD, _OTHER), [12_000, 24_000]),
    "graphene waits 9 s": ("graphene:-9:2:-1:9", _ALIKE, (_AHEAD, _OTHER), [14_000, 20_000]),
    "a rule takes any that fits": ({}, _PAIR, (_WIDE,), [1_000]),
    "a rule never borrows": ({"BORROW": 1.0}, _PAIR, (_WIDE,), [2_000]),
    # The mean work is 10,000 ms.
    "a rule lends to short jobs": (
        {"BORROW_REMAINING": 1.0}, _PAIR, (_SHORT, _LONG), [1_000, 19_000]
    ),
    "a rule lends to all": ({}, _PAIR, (_SHORT, _LONG), [1_000, 10_000]),
    # log(2 / 2) - 0.5 < 0: one waits, one is offered.
    "a rule lends although one waits": (
        {"BORROW_WAITING": 1.0, "BORROW": -0.5}, _PAIR, (_SHORT, _WAITS), [1_000, 4_000]
    ),
    "a rule keeps for one that waits": (
        {"BORROW_WAITING": 1.0, "BORROW": 0.1}, _PAIR, (_SHORT, _WAITS), [2_000, 3_000]
    ),
    "a rule serves in order": ({}, _REVERSED, _FILLERS, [1_000, 2_500, 900]),
    "a rule prefers what fills": (
        {"SCORE_OVERSIZE": 5.0}, _REVERSED, _FILLERS, [1_900, 1_500, 900]
    ),
}  # fmt: skip


def _named(policy: str | dict[str, float], config: SimulationConfig, jobs: Jobs) -> Policy:
    """The policy of this name, or the rule with these parameters."""
    if isinstance(policy, str):
        return make_policy(policy, config.total_executors)
    return _rule(config, *jobs, **policy)


@pytest.mark.parametrize(("policy", "config", "jobs", "ends"), _ENDS.values(), ids=_ENDS)
def test_jobs_end_as_by_hand(
    policy: str | dict[str, float], config: SimulationConfig, jobs: Jobs, ends: list[int]
) -> None:
    assert _completions(_named(policy, config, jobs), config, *jobs) == ends


def test_a_rule_does_not_keep_large_executors_where_nothing_waits_for_them() -> None:
    keeps = _rule(_PAIR, _SHORT, _WAITS, BORROW_WAITING=1.0, BORROW=0.1)
    fits = _job("fits", (1, 3_000, 0.3, ()))
    assert _completions(keeps, _PAIR, _SHORT, fits) == [1_000, 4_000]


_FEW_LARGE = _cluster((6, 0.125), (2, 1.0))
_THREE = _cluster((2, 1.0), (1, 0.25), (2, 0.5))
#: (stage, limit, class) of the first decisions.
_FIRST = [
    # The best-fitting class is exhausted before a larger one.
    ("weighted-fair:0", _THREE, (_FIVE,), [(0, 2, 2), (0, 2, 0), (-1, 1)]),
    ("weighted-fair:0", _EIGHT, _SHARERS, [(0, 3, 1)]),
    # Half of the cores is four executors; four small ones have 2/11 of the memory.
    ("weighted-fair:0", _FEW_LARGE, (_SIX, _SIX), [(0, 4, 0), (1, 2, 0), (1, 2, 1)]),
    ("tetris", _PAIR, (_SMALL, _LARGE, _HALF), [(2, 1, 0), (1, 1, 1)]),
    ({}, _PAIR, (_WIDE,), [(0, 2, ANY_CLASS)]),
    ({"BORROW": 1.0}, _PAIR, (_WIDE,), [(0, 1, 0), (-1, 1)]),
]


@pytest.mark.parametrize(("policy", "config", "jobs", "first"), _FIRST)
def test_decisions_about_classes_are_those_by_hand(
    policy: str | dict[str, float],
    config: SimulationConfig,
    jobs: Jobs,
    first: list[tuple[int, ...]],
) -> None:
    made = _decisions(_named(policy, config, jobs), config, *jobs)
    assert made[: len(first)] == [Decision(*decision) for decision in first]


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


_FOUR = _cluster((2, 0.25), (2, 0.5), (2, 0.75), (2, 1.0))


@pytest.mark.parametrize("config", [SimulationConfig(num_executors=8), _FOUR])
def test_without_troublesome_stages_graphene_is_weighted_fair(config: SimulationConfig) -> None:
    names = ("graphene:-1:2:-1", "weighted-fair:-1")
    graphene, fair = (simulate(_sequence(3, 6), make_policy(n, 8), config, 3) for n in names)
    assert graphene.completion_ms.tolist() == fair.completion_ms.tolist()


@pytest.mark.parametrize(
    "text",
    [
        *("tetris:-1", "tetris:x", "tetris:tuned", "graphene:tuned", "graphene:1"),
        *("graphene:1:2:3:4:5", "graphene:1:2:3:-4", "graphene:nan:1:1"),
    ],
)
def test_wrong_arguments_of_the_multi_resource_policies_are_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        make_policy(text, 8)


def test_graphene_without_a_bound_of_the_wait_waits_for_ever() -> None:
    assert make_policy("graphene", 8).params == (-1.0, 0.5, 0.25, math.inf)
    assert make_policy("graphene:-1:0.5:0.25:inf", 8).params == (-1.0, 0.5, 0.25, math.inf)
    assert make_policy("graphene:0:0.5:0.25:30", 8).params == (0.0, 0.5, 0.25, 30.0)


def test_graphene_is_tuned_over_alpha_with_every_pair_of_thresholds_and_then_finer() -> None:
    grid = list(_SWEEPS["graphene"].grid(8))
    assert len(grid) == len(set(grid)) == 9 * 5 * 5 * 2
    finer = list(_SWEEPS["graphene"].around((0.5, 0.4, 0.2, 0.0)))
    assert sorted({alpha for alpha, *_ in finer}) == [0.3, 0.4, 0.5, 0.6, 0.7]
    waits = [wait for alpha, _, _, wait in finer if alpha == 0.4]
    assert waits == [0.0, 2.0, 5.0, 10.0, 30.0, 100.0, math.inf]
    sweep = sweep_values("graphene", [_sequence(0, 3)], _cluster((4, 0.5), (4, 1.0)), [0])
    assert sweep.num_given_up == 425
    assert 25 <= len(sweep.costs) <= 25 + 35
    assert sweep.costs[sweep.best] == min(sweep.costs.values())


def _sequence(seed: int, num_jobs: int) -> JobSequence:
    """Random DAGs whose stages need up to the whole memory of the largest class."""
    rng = np.random.default_rng(seed)
    made = random_dags(RandomDags(num_jobs=8, mean_tasks=6.0), rng)
    jobs = [
        replace(j, stages=tuple(replace(s, memory=1.0 - float(rng.random())) for s in j.stages))
        for j in made.jobs
    ]
    workload = Workload("sized", tuple(jobs))
    return draw_sequence(workload, "load:0.8", num_jobs, 8, RandomStreams(seed))


@pytest.mark.parametrize(
    "name",
    ["weighted-fair:-1", "tetris", "tetris:1", "graphene", "graphene:1:0.2:0.8", "rule", "wild"],
)
def test_on_four_classes_every_job_ends_and_the_tables_are_consistent(name: str) -> None:
    config = _FOUR.model_copy(update={"moving_delay_ms": 500})
    sequence = _sequence(0, 5)
    wild = np.random.default_rng(1).normal(0, 2.0, NUM_PARAMETERS)
    rules = {"rule": start_parameters(), "wild": wild}
    policy: Policy
    if name in rules:
        policy = RulePolicy(name, tuple(rules[name]), solo_curves(sequence.workload, config))
    else:
        policy = make_policy(name, 8)
    simulator = Simulator(sequence, config, 0)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        check_invariants(simulator.state)
        simulator.step(policy.decide(simulator.observe()))
    stepped = simulator.trace(name)
    assert (stepped.completion_ms > 0).all()
    whole = simulate(sequence, policy, config, 0)
    assert stepped.completion_ms.tolist() == whole.completion_ms.tolist()


def test_a_fair_share_is_rounded_up() -> None:
    jobs = job("a", (9, 10, ())), job("b", (9, 10, ()))
    config = SimulationConfig(num_executors=3)
    assert _decisions(make_policy("fair", 3), config, *jobs)[0].limit == 2


def test_the_stage_with_the_longest_path_behind_it_goes_first() -> None:
    one = job("a", (1, 10, ()), (1, 10, ()), (1, 500, (1,)))
    config = SimulationConfig(num_executors=1)
    assert _decisions(make_policy("sjf-cp", 1), config, one)[0].stage == 1
