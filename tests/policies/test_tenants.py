"""Policies inside the pools and priorities of tenants, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.trace import Trace
from parcae.evaluation.policies import resolve_policies
from parcae.policies.additions import TenantPolicy, tenants
from parcae.policies.names import PolicyName, parse_live_name, parse_name
from parcae.policies.policy_file import export_policy
from parcae.service.policies import policies_for
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import job

_CORES = SimulationConfig(world=WorldName.CORES, num_executors=4)
_EXECUTORS = SimulationConfig(num_executors=4)
_XML = """<allocations>
  <pool name="etl"><schedulingMode>FAIR</schedulingMode><weight>3</weight></pool>
  <pool name="web"><weight>1</weight></pool>
</allocations>"""


#: Two tenants: `etl` has a long and a short job, `web` has one job. They arrive while a job of
#: `etl` has all four cores for 10 ms.
_WORKLOAD = Workload(
    "tenants",
    (
        job("first", (4, 10, ()), pool="etl"),
        job("long", (8, 100, ()), pool="etl"),
        job("short", (8, 50, ()), pool="etl"),
        job("page", (8, 60, ()), pool="web"),
    ),
)
_ARRIVAL_MS = np.array([0, 1, 1, 1])
_SEQUENCE = JobSequence(_WORKLOAD, np.arange(4), _ARRIVAL_MS)


def _trace(text: str, config: SimulationConfig = _CORES, record: bool = True) -> Trace:
    policy = resolve_policies(_WORKLOAD, [text], config, "batch", 4).policies[text]
    return simulate(_SEQUENCE, policy, config, 1, record=record)


def _starts(trace: Trace) -> list[int]:
    """The jobs that take the four cores at 10 ms, in the order of their starts."""
    return [int(job) for job in trace.tasks["job"][4:8]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("srpt", PolicyName("srpt")),
        ("srpt+pools:a.xml", PolicyName("srpt", pools="a.xml")),
        ("account", PolicyName("srpt", account="")),
        ("account:w.csv", PolicyName("srpt", account="w.csv")),
        ("tuned+account", PolicyName("tuned", account="")),
        ("tuned+account:w.csv+pools:a.xml", PolicyName("tuned", pools="a.xml", account="w.csv")),
        ("user-fair+srpt:w.csv", PolicyName("user-fair+srpt:w.csv")),
        ("tuned+priorities:p.csv", PolicyName("tuned", priorities="p.csv")),
        (
            "a/b.safetensors+pools:x/y.xml+priorities:p.csv+account",
            PolicyName("a/b.safetensors", "x/y.xml", "p.csv", account=""),
        ),
        (
            "x+accounts/a+pools.safetensors+account",
            PolicyName("x+accounts/a+pools.safetensors", account=""),
        ),
        (
            "x+account2/a+pools 1/b.safetensors+account:w.csv",
            PolicyName("x+account2/a+pools 1/b.safetensors", account="w.csv"),
        ),
        ("a+account+b/c+pools2.safetensors", PolicyName("a+account+b/c+pools2.safetensors")),
    ],
)
def test_additions_stand_behind_the_name_in_any_order(text: str, parts: PolicyName) -> None:
    assert parse_name(text) == parts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("srpt+pools", "allocation file"),
        ("srpt+guard:1.1", r"accounts of users replace the guard; write \+account"),
        ("srpt+guard:1.1+pools:a.xml", "accounts of users replace the guard"),
        ("srpt+pools:", "allocation file"),
        ("srpt+account:", "weights.csv"),
        ("account+account", r"write account or srpt\+account"),
        ("user-fair+srpt+account", "no other order of users"),
        ("user-fair+pools:a.xml", "no other order of users"),
        ("srpt+pools:a.txt", "XML or JSON"),
        ("srpt+pools:a.xml+pools:b.xml", "more than one pools"),
        ("srpt+priorities:", "CSV file"),
        ("+priorities:p.csv", "CSV file"),
        ("fair:a.xml+pools:b.xml", r"fair\+pools:FILE"),
        ("fair:a.xml+priorities:p.csv", r"fair\+pools:FILE"),
    ],
)
def test_additions_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse_name(text)


def test_pools_exist_in_the_world_of_cores_only(tmp_path: Path) -> None:
    path = tmp_path / "pools.xml"
    path.write_text(_XML)
    with pytest.raises(PolicyError, match="--world cores"):
        resolve_policies(_WORKLOAD, [f"fair+pools:{path}"], _EXECUTORS, "batch", 4)


def test_spark_keeps_the_pools_of_a_policy_that_is_exported_or_served() -> None:
    text = "srpt+pools:a.xml"
    with pytest.raises(PolicyError, match="the plugin keeps pools"):
        parse_live_name(text)
    with pytest.raises(PolicyError, match="the plugin keeps pools"):
        export_policy(text, _WORKLOAD)
    with pytest.raises(PolicyError, match="the plugin keeps pools"):
        policies_for(text, _WORKLOAD)


def test_pools_share_by_weight_and_the_policy_orders_inside(tmp_path: Path) -> None:
    path = tmp_path / "pools.xml"
    path.write_text(_XML)
    # The four cores are offered one by one: `web` is behind its share until it has one. Inside
    # `etl`, srpt serves job 2, the shorter one, and FIFO job 1; the pool's mode does not count.
    srpt = _trace(f"srpt+pools:{path}")
    assert _starts(srpt) == [3, 2, 2, 2]
    assert _starts(_trace(f"fifo+pools:{path}")) == [3, 1, 1, 1]
    # Without pools, `page` waits for the shorter job.
    assert _starts(_trace("srpt")) == [2, 2, 2, 2]
    # The shares hold while both pools have tasks.
    assert [_running_at(srpt, ms) for ms in (11, 65, 115, 199)] == [(3, 1)] * 4


def _running_at(trace: Trace, ms: int) -> tuple[int, int]:
    """How many tasks of the pools `etl` and `web` run at a time."""
    tasks = trace.tasks
    assert tasks is not None
    runs = tasks[(tasks["start_ms"] <= ms) & (tasks["finish_ms"] > ms)]
    of_web = int((runs["job"] == 3).sum())
    return len(runs) - of_web, of_web


@pytest.mark.parametrize(
    ("policy", "file"),
    [
        ("fair:pools", ""),
        ("fair:FILE", "<allocations/>"),
        ("fair:FILE", '<allocations><pool name="prod"><weight>2</weight></pool></allocations>'),
        ("fair:FILE", '<allocations><pool name="a"/><pool name="b"/></allocations>'),
        ("fifo+pools:FILE", "<allocations/>"),
    ],
)
def test_pools_that_jobs_name_and_no_file_defines_are_made_as_by_spark(
    tmp_path: Path, policy: str, file: str
) -> None:
    """On a stock Spark 4.3 with sleeping tasks these jobs took 19.5, 30.7 and 21.5 s."""
    path = tmp_path / "pools.xml"
    path.write_text(file)
    jobs = tuple(
        job(name, (20, 1_000, ()), pool=pool)
        for name, pool in (("x1", "a"), ("x2", "a"), ("y", "b"))
    )
    workload = Workload("named", jobs)
    config = SimulationConfig(world=WorldName.CORES, num_executors=2)
    text = policy.replace("FILE", str(path))
    resolved = resolve_policies(workload, [text, "fair"], config, "batch", 3)
    trace = simulate(
        JobSequence(workload, np.arange(3), np.array([0, 1, 2])), resolved.policies[text], config, 1
    )
    assert trace.completion_ms.tolist() == [19_000, 30_000, 21_000]
    assert resolved.rows["fair"].variant.endswith("(with the pools that jobs name: fair:pools)")
    if policy.startswith("fair") and "name" not in file:
        assert resolved.rows[text].variant.endswith("a, b as jobs name them")


def test_without_a_file_task_sets_of_no_pool_share_equally() -> None:
    """SPARK-42157; with a file that does not say so, and before Spark 3.4, they run in order."""
    workload = Workload("bare", tuple(job(name, (20, 1_000, ())) for name in ("x", "y")))
    config = SimulationConfig(world=WorldName.CORES, num_executors=2)
    sequence = JobSequence(workload, np.arange(2), np.zeros(2, np.int64))
    names = ["fair:pools", "fair:pools-3.3"]
    fair, old = resolve_policies(workload, names, config, "batch", 2).policies.values()
    # The first takes both cores when it is revealed.
    assert simulate(sequence, fair, config, 1).completion_ms.tolist() == [19_000, 20_000]
    assert simulate(sequence, old, config, 1).completion_ms.tolist() == [10_000, 20_000]


def test_a_higher_priority_comes_first_whatever_the_policy_says(tmp_path: Path) -> None:
    path = tmp_path / "priorities.csv"
    path.write_text("job,priority\nlong,10\npage,-1\n")
    trace = _trace(f"srpt+priorities:{path}")
    # Two rounds of four tasks a job: `long` first, then `short`, then `page`.
    assert trace.completion_ms.tolist() == [10, 210, 310, 430]


def test_accounts_count_inside_pools(tmp_path: Path) -> None:
    path = tmp_path / "pools.xml"
    path.write_text(_XML)
    text = f"srpt+pools:{path}+account"
    charged = _trace(text)
    assert charged.policy == text
    # The shares of the pools stay.
    assert [_running_at(charged, ms) for ms in (11, 65, 115)] == [(3, 1)] * 3


def test_policies_that_decide_and_the_best_in_hindsight_keep_pools(tmp_path: Path) -> None:
    path = tmp_path / "pools.json"
    path.write_text('{"pools": {"etl": {"weight": 3}, "web": {"min_share": 3}}}')
    assert _starts(_trace(f"sjf-cp+pools:{path}"))[:3] == [3, 3, 3]
    text = f"srpt-cap:oracle+pools:{path}"
    resolved = resolve_policies(_WORKLOAD, [text], _CORES, "batch", 4)
    policy = resolved.for_sequence(_SEQUENCE, 1)[text]
    assert _starts(simulate(_SEQUENCE, policy, _CORES, 1, record=True))[:3] == [3, 3, 3]


def test_variants_name_what_is_added(tmp_path: Path) -> None:
    path = tmp_path / "pools.xml"
    path.write_text(_XML)
    text = f"srpt+pools:{path}+account"
    resolved = resolve_policies(_WORKLOAD, [text, "fair"], _CORES, "batch", 4)
    assert resolved.variants[text] == f"least remaining work first, pools {path}, accounts of users"
    assert resolved.tenant_pools == ("etl", "etl", "etl", "web")


def test_jobs_of_an_unknown_size_are_in_their_pool(tmp_path: Path) -> None:
    path = tmp_path / "pools.json"
    path.write_text('{"pools": {"etl": {}, "web": {"min_share": 3}}}')
    trace = _trace(f"srpt+pools:{path}", _CORES.model_copy(update={"unknown_share": 1.0}))
    assert _starts(trace)[:3] == [3, 3, 3]


def test_pools_of_another_workload_are_refused() -> None:
    other = Workload("one", (job("one", (8, 10, ())),))
    policy = resolve_policies(_WORKLOAD, ["srpt"], _CORES, "batch", 4).policies["srpt"]
    with pytest.raises(PolicyError, match="1 recurring"):
        simulate(_SEQUENCE, TenantPolicy("srpt+", policy, tenants(other)), _CORES, 1)


def test_what_only_decides_in_python_has_no_pools() -> None:
    class Decides:
        name = "plain"

        def decide(self, observation: object) -> None: ...

    with pytest.raises(PolicyError, match="only a compiled policy"):
        TenantPolicy("plain+", Decides(), tenants(_WORKLOAD))


def test_a_pool_without_jobs_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "pools.json"
    path.write_text('{"pools": {"elt": {}}}')
    with pytest.raises(ConfigError, match="no job is assigned to pool 'elt'"):
        resolve_policies(_WORKLOAD, [f"srpt-cap:tuned+pools:{path}"], _CORES, "batch", 4)
