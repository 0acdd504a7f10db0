"""Properties of every table, policy and configuration."""

from __future__ import annotations

import configparser
import re
from typing import Any

import numpy as np
import pytest

from parcae.base import errors
from parcae.base.errors import PolicyError
from parcae.cluster import state
from parcae.decima.catalog import POLICIES, make_policy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.policies.additions import named_policy
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.simulation import future, tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import JobSequence, RandomStreams, Workload, draw_sequence
from tests.conftest import REPOSITORY, batch, job

_TABLES = [
    (module.__name__, name, dtype)
    for module in (state, future, tables)
    for name, dtype in vars(module).items()
    if isinstance(dtype, np.dtype) and dtype.names
]
_ARGUMENT = {"weighted-fair": ":-1", "static": ":5", "order": ":" + "-".join(map(str, range(9)))}
_LISTED = [
    entry.name + _ARGUMENT.get(entry.name, "")
    for entry in POLICIES
    if not entry.usage.endswith(("_N", "_ALPHA"))
]
_NAMES = [
    *_LISTED,
    "tuned",
    "fair:active",
    "spark_static_4",
    "wfair_-0.5",
    "random:7",
    "srpt-cap:3",
]


def _sequence(seed: int, name: str = "") -> JobSequence:
    workload = random_dags(RandomDags(num_jobs=12, mean_tasks=8.0), np.random.default_rng(seed))
    num_jobs = 3 if name == "plan" else 9  # it plays every decision to the end
    return draw_sequence(workload, "poisson:6s", num_jobs, 7, RandomStreams(seed))


def _policy(name: str, sequence: JobSequence, config: SimulationConfig) -> Any:
    return named_policy(name, sequence.workload, config, "poisson:6s")


@pytest.mark.parametrize(
    ("module", "name", "dtype"), _TABLES, ids=[f"{m}.{n}" for m, n, _ in _TABLES]
)
def test_no_table_field_is_named_as_an_array_attribute(
    module: str, name: str, dtype: np.dtype
) -> None:  # type: ignore[type-arg]
    taken = set(dir(np.recarray)) & set(dtype.names or ())
    assert not taken, f"{module}.{name}: {taken} would be the array's own attribute, not the column"


@pytest.mark.parametrize("name", _NAMES)
def test_a_policy_decides_the_same_live_as_in_a_compiled_run(name: str) -> None:
    sequence = _sequence(1, name)
    config = SimulationConfig(num_executors=7)
    policy = _policy(name, sequence, config)
    compiled = simulate(sequence, policy, config, 1, record=True)
    simulator = Simulator(sequence, config, 1, record=True)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        simulator.step(policy.decide(simulator.observe()))
    stepped = simulator.trace(name)
    assert compiled.is_complete
    assert compiled.tasks is not None
    assert stepped.tasks is not None
    assert compiled.tasks.tolist() == stepped.tasks.tolist()
    assert compiled.decision_trace_sha256() == stepped.decision_trace_sha256()


@pytest.mark.parametrize("name", _NAMES)
def test_a_run_depends_on_its_seed_only(name: str) -> None:
    sequence = _sequence(2, name)
    config = SimulationConfig(num_executors=7)
    policy = _policy(name, sequence, config)
    first, second, other = (simulate(sequence, policy, config, seed) for seed in (5, 5, 6))
    assert first.completion_ms.tolist() == second.completion_ms.tolist()
    assert first.completion_ms.tolist() != other.completion_ms.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "fiar",
        "static",
        "static:0",
        "static:x",
        "weighted-fair:",
        "weighted-fair:tuned",
        "weighted-fair:16",
        "weighted-fair:-inf",
        "graphene:1000:0.5:0.25",
        "order:0-0",
        "fifo:3",
        "fair:most",
        "spark_static_N",
        "wfair_ALPHA",
        "",
        "corrector",
        "tuned:stream",
        "some.safetensors",
    ],
)
def test_unknown_policies_are_refused_with_a_message(text: str) -> None:
    with pytest.raises(PolicyError, match="policy"):
        make_policy(text, 50)


@pytest.mark.parametrize("name", ["static", "srpt-cap", "spark_static_"])
def test_a_cap_may_exceed_every_cluster(name: str) -> None:
    sequence = batch(job("a", (3, 1_000, ()), (2, 500, (0,))), job("b", (4, 700, ())))
    config = SimulationConfig(num_executors=2)
    separator = "" if name.endswith("_") else ":"
    runs = [
        simulate(sequence, make_policy(f"{name}{separator}{cap}", 2), config, 1)
        for cap in ("1000", "1e300")
    ]
    assert runs[0].completion_ms.tolist() == runs[1].completion_ms.tolist()


def test_observations_are_read_only() -> None:
    simulator = Simulator(batch(job("a", (2, 1_000, ()))), SimulationConfig(num_executors=2), 1)
    simulator.start()
    with pytest.raises(ValueError, match="read-only"):
        simulator.observe().stages.num_started[0] = 5


def test_an_observation_holds_no_table_of_the_future() -> None:
    simulator = Simulator(batch(job("a", (2, 1_000, ()))), SimulationConfig(num_executors=2), 1)
    simulator.start()
    observation = simulator.observe()
    assert not set(observation._fields) & set(simulator.future._fields)
    for seen in observation:
        assert not any(np.shares_memory(seen, hidden) for hidden in simulator.future)


@pytest.mark.parametrize("world", WorldName)
def test_an_observation_is_the_same_whatever_is_to_come(world: WorldName) -> None:
    # The jobs to come have as many stages, because the tables have a row for each.
    specs = (job("a", (2, 1_000, ()), (1, 500, (0,))), job("b", (3, 800, ())), job("c", (7, 9, ())))
    seen = []
    for second, arrival_ms, seed in ((1, 10_000, 1), (2, 20_000, 2)):
        jobs = JobSequence(Workload("w", specs), np.array([0, second]), np.array([0, arrival_ms]))
        simulator = Simulator(jobs, SimulationConfig(num_executors=2, world=world), seed)
        simulator.start()
        seen.append([table.tolist() for table in simulator.observe()])
    assert seen[0] == seen[1]


def test_every_error_is_a_parcae_error() -> None:
    raised = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert all(issubclass(e, errors.ParcaeError) for e in raised)


#: Modules with kernels that play runs, and so know the future.
_PLAYS = {
    "parcae.decima.learning.exploring",
    "parcae.decima.bounds",
    "parcae.decima.rollouts.playing",
    "parcae.rigid.kernels.stepping",
    "parcae.rigid.kernels.transitions",
    "parcae.rigid.kernels.views",
    "parcae.rigid.policies.earned",
}


def test_the_contract_about_the_future_names_every_kernel_of_a_policy_that_plays_no_run() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(REPOSITORY / ".importlinter")
    named = contracts["importlinter:contract:future"]["source_modules"].split()
    source = REPOSITORY / "src"
    kernels = {
        ".".join(path.relative_to(source).with_suffix("").parts)
        for package in ("policies", "decima", "rigid")
        for path in (source / "parcae" / package).rglob("*.py")
        if re.search(r"^@(kernel|inlined|deferred)\b", path.read_text(), re.MULTILINE)
    }
    pattern = "|".join(named).replace(".", r"\.").replace("*", r"\w+")
    covered = {module for module in kernels if re.match(rf"({pattern})(\.|$)", module)}
    assert len(covered) > 20
    assert kernels - covered == _PLAYS


def test_an_unknown_kind_is_refused_by_every_family_of_policies() -> None:
    with pytest.raises(PolicyError, match="no heuristic of kind 99"):
        HeuristicPolicy("x", 99)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="no order of kind 99"):
        OrderPolicy("x", 99, plan_tables())  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="no packing heuristic of kind 99"):
        HandMadePolicy("x", 99)  # type: ignore[arg-type]
