"""Policies, an objective and a reader from outside the package: one module, registered by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

import parcae
from parcae.base.errors import ConfigError, PolicyError
from parcae.base.extensions import Extension
from parcae.cli.main import app
from parcae.decima.learning.simulators import costing_for
from parcae.learning.scenario import Scenario
from parcae.learning.tune import tune_rule
from parcae.policies import registry
from parcae.policies.additions import named_policy
from parcae.policies.registry import PolicyEntry, all_policies, register
from parcae.rigid.config import PackingConfig
from parcae.rigid.evaluation.tuning import resolve_packing
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.policies.catalog import make_packing_policy
from parcae.rigid.world import PackingBatch
from parcae.simulation import objectives
from parcae.simulation.config import SimulationConfig
from parcae.simulation.objectives import FinishedJobs, objective_cost, parse_objective
from parcae.simulation.simulator import simulate
from parcae.workloads import readers
from parcae.workloads.archive import load_workload
from parcae.workloads.archive import read_workload as read_file
from parcae.workloads.readers import read_workload
from tests.conftest import batch, job

_MODULE = '''
"""A user's own module."""

import numpy as np

from parcae.cluster.observation import Decision
from parcae.cluster.orders import first_come
from parcae.simulation.objectives import register_objective
from parcae.rigid.kernels.stepping import begin_many, show_many, step_many
from parcae.rigid.layout import VOID
from parcae.policies.registry import PolicyEntry, refuse_argument
from parcae.policies.registry import register as register_policy
from parcae.rigid.policies.policy import PackingPolicy
from parcae.workloads.import_report import ImportReport
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload
from parcae.workloads.readers import Reader, ReaderOption, register_reader


class Newest:
    """The youngest job first, in both worlds."""

    def __init__(self, name):
        self.name = name

    def plan(self, observation):
        orders = first_come(observation)
        for tier, job in enumerate(reversed(observation.active_jobs)):
            orders.jobs.tier[job] = tier
        return orders


class NewestDecides:
    def __init__(self, name, limit):
        self.name = name
        self.limit = limit

    def decide(self, observation):
        for job in reversed(observation.active_jobs):
            for stage in observation.stages_of(job):
                if observation.is_schedulable(stage):
                    return Decision(stage, self.limit)
        return Decision()


class LastSlot(PackingPolicy):
    """The last waiting job that can start."""

    name = "last-slot"
    wants_profile = False

    def play_many(self, clusters, views, first, last):
        begin_many(clusters, first, last)
        placed = np.zeros(len(clusters.sequence_rows), np.int64)
        slots = np.zeros(len(clusters.sequence_rows), np.int64)
        while (clusters.states.clock["is_over"][first:last] == 0).any():
            show_many(clusters, views, first, last)
            for row in range(first, last):
                jobs = views.jobs[row][: views.head["num_jobs"][row, 0]]
                can = jobs["slot"][jobs["can_start"] == 1]
                slots[row] = can[-1] if len(can) else VOID
            step_many(clusters, slots, placed, first, last)


def plan_newest(name, setting):
    refuse_argument(name)
    return Newest(name.name)


def decide_newest(name, setting):
    return NewestDecides(name.name, int(name.argument or setting.config.total_executors))


def median_jct(finished):
    return np.median(finished.jct_ms, axis=1)


def read_table(path, *, name, progress, unit_ms=1000.0):
    lines = [line.split() for line in path.read_text().splitlines()]
    jobs = [
        JobSpec(job, (StageSpec(int(tasks), TaskDurations.constant(int(unit_ms * float(s))), ()),))
        for job, tasks, s in lines
    ]
    return Workload(name, tuple(jobs)), ImportReport(str(path), 1, len(lines), 0, (), (), len(jobs))


def register():
    register_policy(PolicyEntry("newest", "the youngest job first", "mine", plan_newest))
    register_policy(
        PolicyEntry("newest-job[:N]", "the youngest job, N executors", "mine", decide_newest,
                    ("executors", "cores"))
    )
    register_policy(
        PolicyEntry("last-slot", "the last job that fits", "mine", lambda *_: LastSlot(),
                    ("rigid",))
    )
    register_objective("median-jct", median_jct)
    unit = ReaderOption("unit_ms", float, 1000.0, "Length of the table's unit of time, in ms.")
    register_reader(
        Reader(
            "table", "Import a table.", "A table.", "t.txt -o t.parcae", read_table, "table",
            options=(unit,),
        )
    )
'''
_JOBS = batch(*(job(f"j{n}", (4, 1_000 * (n + 1), ())) for n in range(4)))


@pytest.fixture
def mine(own_registrations: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The user's module, registered until the end of the test."""
    (tmp_path / "my_extensions.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(importlib.sys.modules, "my_extensions", raising=False)
    module = importlib.import_module("my_extensions")
    module.register()
    return module


def test_a_registered_policy_plans_in_the_world_of_cores(mine: ModuleType) -> None:
    cluster = parcae.Cluster(cores=2)
    jobs = parcae.workload("toy").draw(6, "load:0.9", cluster, seed=1)
    table = parcae.compare(jobs, ["fair", "newest"], cluster, seeds=2, processes=1).to_frame()
    assert set(table["policy"]) == {"fair", "newest"}
    assert parcae.simulate(jobs, "newest", cluster).trace.policy == "newest"
    assert ("newest", "the youngest job first", "mine", "cores") in set(all_policies())
    with pytest.raises(PolicyError, match="takes no argument"):
        named_policy("newest:3", _JOBS.workload, SimulationConfig(world="cores"))


def test_a_registered_policy_decides_in_both_worlds(mine: ModuleType) -> None:
    executors = SimulationConfig(num_executors=3)
    policy = named_policy("newest-job:2", _JOBS.workload, executors)
    trace = simulate(_JOBS, policy, executors, 1)
    assert trace.is_complete
    jobs = parcae.workload("toy").draw(6, "batch", parcae.Cluster(cores=2), seed=1)
    for cluster in (parcae.Cluster(cores=2), parcae.Cluster(executors=2)):
        run = parcae.simulate(jobs, "newest-job", cluster)
        assert run.trace.is_complete


def test_a_registered_packing_policy_is_compared_by_its_name(mine: ModuleType) -> None:
    resolved = resolve_packing(["sjf", "last-slot"], None)
    jobs = RigidJobs("two", [0, 0], [3, 5], [[6], [6]], [10])
    runs = PackingBatch([jobs], PackingConfig())
    runs.run(resolved.policies["last-slot"].play_many)
    assert runs.outcome(0).start.tolist() == [5, 0]


def test_a_registered_objective_is_tuned_for(mine: ModuleType) -> None:
    finished = FinishedJobs(np.zeros((1, 3)), np.array([[1.0, 5.0, 30.0]]), np.ones((1, 3)))
    assert objective_cost(parse_objective("median-jct"), finished).tolist() == [5.0]
    config = SimulationConfig(world="cores", num_executors=2)
    scenario = Scenario(_JOBS.workload, config, "batch", 4, parse_objective("median-jct"))
    assert scenario.objective_name == "median-jct"
    assert 0 < tune_rule(scenario, budget_s=0.5, seed=1).ratio_to_fair < 2
    with pytest.raises(ConfigError, match="objective median-jct is a function"):
        costing_for(scenario, tail_ms=1.0)


def test_a_registered_reader_imports_in_python_and_on_the_command_line(
    mine: ModuleType, tmp_path: Path
) -> None:
    table = tmp_path / "table.txt"
    table.write_text("report 40 5\ndashboard 8 1\n")
    workload, report = read_workload("table", [table], unit_ms=60_000.0)
    assert (workload.name, report.num_jobs) == ("table", 2)
    assert workload.jobs[1].work_ms == 8 * 60_000
    out = tmp_path / "out.parcae"
    words = ["workload", "import", "table", str(table), "-o", str(out), "--name", "mine"]
    done = CliRunner().invoke(app, [*words, "--unit-ms", "10"])
    assert done.exit_code == 0, done.output
    written = read_file(out)
    assert (written.name, written.jobs[0].work_ms) == ("mine", 40 * 50)


def test_unknown_and_repeated_names_are_refused(mine: ModuleType) -> None:
    with pytest.raises(PolicyError, match="did you mean 'newest'"):
        named_policy("newst", _JOBS.workload, SimulationConfig(world="cores"))
    with pytest.raises(PolicyError, match="did you mean 'last-slot'"):
        make_packing_policy("last-slt")
    with pytest.raises(ConfigError, match="missed-deadlines, deadlines, median-jct"):
        parse_objective("mean-jct")
    with pytest.raises(ConfigError, match="did you mean 'table'"):
        read_workload("tabel", [Path("x")])
    with pytest.raises(ConfigError, match="did you mean 'unit_ms'"):
        read_workload("table", [Path("x")], unit=1.0)
    with pytest.raises(ConfigError, match="read from one path, not from 2"):
        read_workload("table", [Path("x"), Path("y")])
    for name in ("newest-job", "fair"):
        with pytest.raises(PolicyError, match="already"):
            register(PolicyEntry(name, "again", "mine", mine.plan_newest))
    with pytest.raises(ConfigError, match="already"):
        objectives.register_objective("makespan", mine.median_jct)
    with pytest.raises(ConfigError, match="already"):
        readers.register_reader(readers.find_reader("alibaba"))


def test_a_policy_that_two_packages_bring_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def brings(world: str) -> Extension:
        entry = PolicyEntry("mine", "", "", lambda name, setting: None, (world,))
        return Extension(policies=(entry,))

    found = {"one (one:A)": brings("cores"), "two (two:B)": brings("executors")}
    monkeypatch.setattr("parcae.base.extensions.extensions", lambda: found)
    registry._installed.cache_clear()
    assert "mine" in {entry.name for entry in registry.entries()}
    registry._installed.cache_clear()
    found["three (three:C)"] = brings("executors")
    said = (
        r"two packages bring a policy 'mine' for the world of executors: two \(two:B\) and three "
        r"\(three:C\); uninstall one of them"
    )
    with pytest.raises(ConfigError, match=said):
        named_policy("fair", load_workload("toy"), SimulationConfig())
    # The next one to ask finds what is installed.
    monkeypatch.undo()
    assert named_policy("fair", load_workload("toy"), SimulationConfig())
