"""Policies of the world of cores by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.observation import observe
from parcae.cluster.state import MAX_POOLS
from parcae.decima.catalog import make_policy
from parcae.evaluation.policies import resolve_policies
from parcae.policies.additions import Accounted, named_policy
from parcae.policies.catalog import POLICIES
from parcae.policies.learned import SHIPPED, variant_name
from parcae.policies.names import PolicyName
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables, pool_tables
from parcae.policies.registry import PolicySetting, in_words
from parcae.service.policies import policies_for
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.pools import PoolSpec
from parcae.workloads.workload import RandomStreams, Workload, draw_sequence
from tests.cluster.cores import Cores
from tests.conftest import arriving, batch, job

_JOBS = (
    job("etl-1", (4, 400, ()), deadline_ms=3_000),
    job("etl-2", (4, 100, ()), deadline_ms=2_000),
    job("adhoc", (4, 300, ()), pool="web"),
    job("other", (4, 200, ())),
)
_WORKLOAD = Workload("four", _JOBS)
_CORES = SimulationConfig(world=WorldName.CORES, num_executors=3)
_EXECUTORS = SimulationConfig(num_executors=3)
_POOLS = """{"pools": {"web": {"weight": 2}, "etl": {"min_share": 2, "mode": "FAIR"}},
 "jobs": {"etl-*": "etl"}}"""


@pytest.mark.parametrize("entry", POLICIES[:15], ids=lambda entry: entry.usage)
def test_every_order_is_made_by_its_name_and_plays(entry: object, tmp_path: Path) -> None:
    path = tmp_path / "pools.json"
    path.write_text(_POOLS)
    text = entry.usage.replace("POOLS.xml|json", str(path)).partition("[")[0]  # type: ignore[attr-defined]
    policy = named_policy(text, _WORKLOAD, _CORES)
    assert policy.name == text
    sequence = draw_sequence(_WORKLOAD, "poisson:1s", 6, 3, RandomStreams(1))
    trace = simulate(sequence, policy, _CORES, 1)
    assert trace.num_tasks == 24
    assert (trace.completion_ms > trace.arrival_ms).all()
    assert _title(text)


def _title(text: str) -> str:
    return in_words(PolicyName(text), PolicySetting(_WORKLOAD, _CORES))


def test_spark_is_named_where_it_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "pools.json"
    path.write_text(_POOLS)
    assert _title("fifo") == "Spark's FIFO: job id, stage id"
    assert (
        _title("fair") == "Spark's FAIR, a pool a job (with the pools that jobs name: fair:pools)"
    )
    assert _title(f"fair:{path}") == f"Spark's FAIR, pools of {path}"
    made = in_words(PolicyName("fair:pools"), PolicySetting(load_workload("toy"), _CORES))
    assert made == "Spark's FAIR, pools of no job"


def test_an_allocation_file_becomes_pools(tmp_path: Path) -> None:
    path = tmp_path / "pools.json"
    path.write_text(_POOLS)
    policy = named_policy(f"fair:{path}", _WORKLOAD, _CORES)
    assert policy.kind is OrderKind.POOLS
    tables = policy.tables
    # The last: jobs that the profile does not know.
    assert tables.pool_of.tolist() == [1, 1, 0, 2, 2]
    assert tables.pools.weight.tolist() == [2.0, 1.0, 1.0]
    assert tables.pools.min_share.tolist() == [0, 2, 0]
    assert tables.pools.is_fair.tolist() == [0, 1, 0]
    assert tables.pools.name_rank.tolist() == [2, 1, 0]  # default, etl, web


def test_too_many_pools_are_refused() -> None:
    pools = tuple(PoolSpec(f"p{row}") for row in range(MAX_POOLS + 1))
    with pytest.raises(ConfigError, match=f"pools.xml: {MAX_POOLS + 1} pools; at most {MAX_POOLS}"):
        pool_tables(pools, ("p0",), "pools.xml")


@pytest.mark.parametrize(("mode", "completion_ms"), [("FIFO", [200, 400]), ("FAIR", [300, 400])])
def test_a_single_pool_is_fair_inside_where_it_says_so(
    tmp_path: Path, mode: str, completion_ms: list[int]
) -> None:
    path = tmp_path / "pools.json"
    path.write_text(f'{{"pools": {{"default": {{"mode": "{mode}"}}}}}}')
    sequence = batch(job("a", (4, 100, ())), job("b", (4, 100, ())))
    config = _CORES.model_copy(update={"num_executors": 2})
    policy = named_policy(f"fair:{path}", sequence.workload, config)
    assert simulate(sequence, policy, config, 1).completion_ms.tolist() == completion_ms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fiof", "unknown policy 'fiof'; did you mean 'fifo'"),
        ("fifo:spark", "the argument is 'spark-jobs' or nothing"),
        ("fair:active", "in the world of cores the argument is an allocation file"),
        ("srpt:2", "policy 'srpt:2' takes no argument; write 'srpt'"),
        ("tetris", "policy 'tetris' decides about executor classes: choose --world executors"),
        (
            "graphene:tuned",
            "policy 'graphene:tuned' decides about executor classes: choose --world executors",
        ),
        ("idle-theory:alone", "decides about idle slots: choose --world executors"),
        ("order:1-0", "choose --world executors"),
        (
            "spark_static_10",
            "counts executors ever granted, but every plan grants all cores again: "
            "choose --world executors",
        ),
        ("srpt-cpa", "did you mean 'srpt-cap'"),
        ("zzz", "known are fifo, fair, user-fair, user-fair+srpt, sjf"),
        ("static:0", "the number of executors must be a whole number >= 1, not '0'"),
    ],
)
def test_other_names_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        named_policy(text, _WORKLOAD, _CORES)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        *("srpt", "sjf", "fsp", "psbs", "las", "gittins", "fifo:spark-jobs", "fair:p.xml"),
        *("srpt+account", "user-fair"),
    ],
)
def test_what_only_plans_is_refused_in_decimas_world(text: str) -> None:
    with pytest.raises(
        PolicyError, match="exists in the world of cores only: choose --world cores"
    ):
        resolve_policies(_WORKLOAD, [text], _EXECUTORS, "batch", 4)


def test_policies_are_resolved_with_their_additions() -> None:
    names = [
        "fair",
        "srpt",
        "srpt+account",
        "srpt-cap:oracle",
        "static:tuned",
    ]
    resolved = resolve_policies(_WORKLOAD, names, _CORES, "batch", 4)
    assert resolved.names == tuple(names)
    assert resolved.oracles == {"srpt-cap:oracle"}
    assert resolved.variants["srpt+account"] == "least remaining work first, accounts of users"
    assert resolved.variants["static:tuned"].startswith("static:")
    assert resolved.variants["static:tuned"].endswith(", planning through the adapter")
    sequence = draw_sequence(_WORKLOAD, "batch", 4, 3, RandomStreams(1))
    policies = resolved.for_sequence(sequence, 1)
    assert list(policies) == names
    traces = {name: simulate(sequence, policy, _CORES, 1) for name, policy in policies.items()}
    assert {name: trace.policy for name, trace in traces.items()} == {name: name for name in names}
    late = traces["srpt+account"].completion_ms / traces["fair"].completion_ms
    assert np.isfinite(late).all()


@pytest.mark.parametrize("name", ["srpt", "sjf", "gittins", "tuned", "parcae"])
def test_a_policy_with_accounts_plays_whole_runs_as_it_plans_step_by_step(name: str) -> None:
    sequence = draw_sequence(_WORKLOAD, "poisson:400ms", 15, 3, RandomStreams(1))
    policy = named_policy(name, _WORKLOAD, _CORES)
    charged = Accounted(f"{name}+account", policy)
    whole = simulate(sequence, charged, _CORES, 1)
    simulator = Simulator(sequence, _CORES, 1)
    charged.keep(simulator.state.now)
    status = simulator.start()
    while status is Status.NEEDS_DECISION:
        status = simulator.follow(policy.plan(simulator.observe()))
    assert whole.completion_ms.tolist() == simulator.trace(name).completion_ms.tolist()


def test_the_variant_of_a_shipped_name_is_found() -> None:
    def chosen(text: str) -> str:
        return variant_name(PolicyName(text), PolicySetting(_WORKLOAD, _EXECUTORS))

    for name in ("tuned", "corrector", "decima"):
        found = chosen(name)
        assert found.partition(":")[0] == name
        assert found.partition(":")[2] in SHIPPED.variants(name)
    assert chosen("tuned:batch") == "tuned:batch"
    assert chosen("x.safetensors") == "x.safetensors"
    resolved = resolve_policies(
        _WORKLOAD, ["tuned", "fair", "weighted-fair:oracle"], _EXECUTORS, "batch", 4
    )
    assert resolved.variants["tuned"] == chosen("tuned")
    assert resolved.variants["fair"] == "fair"
    assert "tuned: tuned:" in resolved.legend()
    assert "fair: fair" not in resolved.legend()


def test_a_job_that_cannot_meet_its_deadline_lets_the_others_go() -> None:
    # One core. "early" needs 8 s until its deadline at 5 s; "late" could meet its own at 6 s.
    # The first job to arrive starts one task.
    early = job("early", (8, 1_000, ()), deadline_ms=5_000)
    jobs = (early, job("late", (8, 500, ()), deadline_ms=6_000))
    workload = Workload("two", jobs)
    config = _CORES.model_copy(update={"num_executors": 1})
    ends = {
        name: simulate(batch(*jobs), named_policy(name, workload, config), config, 1)
        for name in ("edf", "edf:late-last")
    }
    assert ends["edf"].completion_ms.tolist() == [8_000, 12_000]
    assert ends["edf:late-last"].completion_ms.tolist() == [12_000, 5_000]


def test_the_earliest_deadline_first_needs_deadlines() -> None:
    workload = Workload("plain", _JOBS[2:])
    with pytest.raises(PolicyError, match="no job of workload 'plain' has one: give --deadlines"):
        named_policy("edf", workload, _CORES)
    # The command `parcae serve` has no --deadlines: the way is Python's.
    with pytest.raises(PolicyError, match=r"also for `parcae\.serve`, a workload"):
        policies_for("edf", workload)(3)
    live = policies_for("edf", workload.with_deadlines({"*": 8}))(3).policy
    assert live.tables.deadline_ms.tolist() == [8_000.0, 8_000.0, np.inf]
    with pytest.raises(PolicyError, match="the argument is 'late-last' or nothing"):
        named_policy("edf:later", _WORKLOAD, _CORES)
    with pytest.raises(PolicyError, match="exists in the world of cores only"):
        named_policy("edf", _WORKLOAD, _EXECUTORS)


def test_an_order_names_all_jobs_of_the_run() -> None:
    policy = make_policy("order:1-0", 8)
    config = SimulationConfig(num_executors=8)
    workload = load_workload("toy")
    with pytest.raises(PolicyError, match="orders 2 jobs, but the run has 3: name them all"):
        simulate(workload.draw(3, "batch", config, seed=1), policy, config, 1)
    simulate(workload.draw(2, "batch", config, seed=1), policy, config, 1)


@pytest.mark.parametrize("seed", ["inf", "1.5", "1e300", str((1 << 53) + 1)])
def test_a_seed_that_would_count_as_another_one_is_refused(seed: str) -> None:
    with pytest.raises(PolicyError, match="the seed must be a whole number >= -9,007,199"):
        make_policy(f"random:{seed}", 8)
    assert make_policy("random:-2", 8).params == (-2.0,)


@pytest.mark.parametrize("family", ["weighted-fair", "static", "srpt-cap", "tetris", "graphene"])
def test_a_policy_that_is_not_tuned_yet_says_where_it_is(family: str) -> None:
    for word in ("tuned", "oracle"):
        with pytest.raises(PolicyError, match="must be tuned on a workload first"):
            make_policy(f"{family}:{word}", 8)


@pytest.mark.parametrize("name", ["wfair_tuned", "spark_static_oracle"])
def test_names_of_the_released_simulator_take_numbers_only(name: str) -> None:
    with pytest.raises(PolicyError, match=r"must be a (whole )?number"):
        resolve_policies(_WORKLOAD, [name], _EXECUTORS, "batch", 4)


def test_a_job_that_outlives_its_virtual_run_goes_first() -> None:
    cores = Cores(1)
    policy = OrderPolicy("psbs", OrderKind.PSBS, plan_tables())
    cores.reveal(cores.arrive([(2, 100.0, ())]), 0)
    policy.plan(observe(cores.state))
    cores.follow()
    cores.offer()
    cores.state.now.clock_ms[0] = 500
    cores.reveal(cores.arrive([(1, 1.0, ())]), 0)
    orders = policy.plan(observe(cores.state))
    assert orders.jobs.tier[0] < orders.jobs.tier[1]
    assert orders.jobs.weight[:2].tolist() == [1.0, 0.0]


def test_running_tasks_count_half_as_attained_service() -> None:
    cores = Cores(3)
    cores.state.now.guess_ms[0] = 100.0
    cores.reveal(cores.arrive([(4, 100.0, ())]), 0)
    cores.follow()
    assert len(cores.offer()) == 3  # 150 ms of attained service are below twice the guess
    policy = OrderPolicy("las", OrderKind.LAS, plan_tables())
    assert policy.plan(observe(cores.state)).jobs.tier[0] == 0.0


def test_where_sizes_are_known_gittins_serves_the_least_remaining_work_first() -> None:
    ends_ms = [
        simulate(batch(*_JOBS), named_policy(name, _WORKLOAD, _CORES), _CORES, 0).completion_ms
        for name in ("gittins", "srpt", "sjf")
    ]
    assert ends_ms[0].tolist() == ends_ms[1].tolist() != ends_ms[2].tolist()


def test_least_attained_service_does_not_depend_on_the_unit_of_time() -> None:
    """Tasks that take equally long put jobs exactly at the bounds of tiers."""

    def completions(factor: int) -> list[float]:
        spec = [
            job(f"j{n}", (1 + n % 5, 1_000 * factor, ()), (2, 1_000 * factor, (0,)))
            for n in range(9)
        ]
        jobs = arriving(*((one, 700 * n * factor) for n, one in enumerate(spec)))
        config = SimulationConfig(world=WorldName.CORES, num_executors=3)
        trace = simulate(jobs, named_policy("las", jobs.workload, config), config, 0)
        return [ms / factor for ms in trace.completion_ms.tolist()]

    # Rounding of the typical task's duration differs between these.
    assert completions(1) == completions(2) == completions(7) == completions(60)
