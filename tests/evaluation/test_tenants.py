"""Results by pool: in the table, in JSON and on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.report import write_report
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload


def _job(name: str, pool: str, task_ms: int, num_tasks: int) -> JobSpec:
    durations = TaskDurations.constant(task_ms)
    stages = (StageSpec(num_tasks, durations),)
    return JobSpec(name, stages, pool=pool, user=f"of {pool}", queue=f"root.{pool}")


_WORKLOAD = Workload(
    "tenants",
    (_job("small", "web", 1_000, 4), _job("large", "etl", 3_000, 24), _job("mid", "etl", 1_000, 9)),
)
_WORLD = ClusterWorld(
    _WORKLOAD, SimulationConfig(world=WorldName.CORES, num_executors=4), "poisson:8s", 12
)
_POOLS = '{"pools": {"web": {"weight": 3}, "etl": {}}}'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tenants")
    path = folder / "pools.json"
    path.write_text(_POOLS)
    names = [f"fair:{path}", f"srpt+pools:{path}", "srpt", f"srpt+pools:{path}+account"]
    return dict(zip(("fair", "srpt", "free", "charged"), names, strict=True))


@pytest.fixture(scope="module")
def comparison(files: dict[str, str]) -> Comparison:
    return compare(_WORLD, list(files.values()), num_seeds=6, processes=1)


def test_json_has_the_results_of_every_pool(comparison: Comparison, files: dict[str, str]) -> None:
    found = json.loads(json.dumps(comparison.to_json()))["policies"]
    assert set(found[files["fair"]]["pools"]) == {"etl", "web"}
    for pool in found[files["fair"]]["pools"].values():
        assert pool["ratio_to_first"]["mean"] == 1.0
    jobs = [pool["jobs"] for pool in found[files["srpt"]]["pools"].values()]
    assert sum(jobs) == 12 * 6
    # The mean over pools, weighed by jobs, is that over all jobs.
    for result in found.values():
        sums = [pool["jobs"] * pool["average_jct_s"] for pool in result["pools"].values()]
        assert sum(sums) / 72 == pytest.approx(result["average_jct_s"]["mean"])
        # Here every pool has one user of its own.
        users = {f"of {name}": pool for name, pool in result["pools"].items()}
        assert result["users"] == users
        assert result["queues"] == {f"root.{pool}": of for pool, of in result["pools"].items()}


def test_the_terminal_and_the_page_show_pools(
    comparison: Comparison, files: dict[str, str], tmp_path: Path
) -> None:
    console = Console(width=500)
    with console.capture() as capture:
        for table in comparison.tables():
            console.print(table)
    text = capture.get()
    assert "who pays, by pool" in text
    assert "web" in text.split("who pays, by pool")[1]
    assert "of web" in text.split("who pays, by user")[1]
    assert "root.web" in text.split("who pays, by queue")[1]
    write_report(comparison, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Tenants: who pays, by pool" in page
    assert "Tenants: who pays, by user" in page
    assert "Tenants: who pays, by queue" in page
    assert "<td>of web</td>" in page


def test_without_pools_nothing_is_shown() -> None:
    # The queue of all jobs tells none apart.
    jobs = tuple(replace(job, user="", queue="default") for job in _WORKLOAD.jobs)
    world = replace(_WORLD, workload=replace(_WORKLOAD, jobs=jobs))
    plain = compare(world, ["fair", "srpt"], num_seeds=2, processes=1)
    assert len(plain.tables()) == 1
    assert "pools" not in plain.to_json()["policies"]["fair"]


def test_users_are_held_against_a_pool_each(tmp_path: Path) -> None:
    compared = compare(_WORLD, ["user-fair", "srpt", "account"], num_seeds=4, processes=1)
    found = json.loads(json.dumps(compared.to_json()))["policies"]
    for name, result in found.items():
        ratios = [user["ratio_to_user_fair"] for user in result["users"].values()]
        share = result["users_later_than_user_fair_share"]
        assert share == sum(ratio > 1.1 for ratio in ratios) / 2
        assert (ratios == [1.0, 1.0]) == (name == "user-fair")
        assert 1 <= result["open_most"] <= 12
        assert 0 < result["open_mean"] <= result["open_most"]
    console = Console(width=200)
    with console.capture() as capture:
        for table in compared.tables():
            console.print(table)
    assert "over 1.1" in capture.get().split("Users beside a pool each")[1]
    write_report(compared, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Users beside a pool each" in page
    assert "Received beyond an equal split, by user: user-fair" not in page  # it has no plans
    assert "Received beyond an equal split, by user: " in page


def test_without_users_nobody_is_held_against_a_pool_each() -> None:
    jobs = tuple(replace(job, user="") for job in _WORKLOAD.jobs)
    world = replace(_WORLD, workload=replace(_WORKLOAD, jobs=jobs))
    result = compare(world, ["fair", "account"], num_seeds=2, processes=1).to_json()["policies"]
    assert "users_later_than_user_fair_share" not in result["account"]


def test_in_sessions_a_pool_each_is_played_at_the_arrivals_of_the_run() -> None:
    closed = replace(_WORLD, arrivals="sessions:3")
    found = compare(closed, ["user-fair", "srpt"], num_seeds=2, processes=1).to_json()["policies"]
    # The same jobs at the same times, but for the random bits of those that changed places.
    for user in found["user-fair"]["users"].values():
        assert user["ratio_to_user_fair"] == pytest.approx(1.0, abs=0.1)
