"""Verdicts on policies of anybody's, some of which cheat, hang, break or eat all memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parcae.evaluation.apart import Allowance
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.judge import Judgement, judge
from parcae.evaluation.statistics import Estimate
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.cli.running import ran

_STRANGERS = """
import gc, os, random, time

import numpy

from parcae import first_come
from parcae.simulation.future import Future
from parcae.simulation.simulator import Simulator
from parcae.workloads.workload import JobSequence, Workload


class Patches:
    def plan(self, observation):
        Simulator.follow = Workload.draw = numpy.mean = lambda *args, **given: None
        time.perf_counter = lambda: 0.0
        print("it is I who won")
        return first_come(observation)


class Cheats:
    def plan(self, observation):
        hidden = (Simulator, JobSequence, Workload, Future)
        found = [one for one in gc.get_objects() if isinstance(one, hidden)]
        try:
            observation.stages.task_ms[:] = 0
            found.append("tables that can be written")
        except ValueError:
            pass
        raise LookupError(f"found {found}")


class Dice:
    def plan(self, observation):
        return 1


class Plays:
    def play(self, simulation):
        return simulation.future


def rolls(view):
    return random.sample(view.jobs, len(view.jobs))


def hangs(view):
    while True:
        pass


def eats(view):
    return bytearray(1 << 33)


def dies(view):
    os._exit(3)
"""
_CORES = SimulationConfig(world=WorldName.CORES, num_executors=4, estimate_error="log")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of strangers' policies."""
    (tmp_path / "strangers.py").write_text(_STRANGERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _judged(*policies: str, **allowed: float) -> dict[str, Judgement]:
    allowance = Allowance(**{"seconds": 30.0, "memory_mib": 1_024, **allowed})
    world = ClusterWorld(load_workload("toy"), _CORES, "batch", 8)
    _, found = judge(
        world,
        policies,
        num_seeds=2,
        seed_start=7,
        allowance=allowance,
        progress=lambda done, total: None,
    )
    return {one.policy: one for one in found}


def test_what_a_policy_does_to_its_process_changes_no_verdict(folder: Path) -> None:
    found = _judged("strangers:Patches", "fifo", "strangers:rolls", "fair")
    patched, fifo = found["strangers:Patches"], found["fifo"]
    assert patched.decision_ms is not None
    assert patched.decision_ms["median"] > 0
    assert (patched.ratio, patched.shifts) == (fifo.ratio, fifo.shifts)
    assert patched.is_deterministic
    assert not found["strangers:rolls"].is_deterministic
    assert "another run the second time" in " ".join(found["strangers:rolls"].objections)
    assert found["fair"].ratio == Estimate(1.0, 1.0, 1.0)
    assert set(fifo.shifts) == {"another load", "larger jobs", "wrong estimates", "sessions"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Cheats", "LookupError: found [] (strangers.py:"),
        ("Dice", "plan() returned 1; return Orders"),
        ("Plays", "is neither a function nor an object with plan(observation)"),
        ("hangs", "it took longer than its 0.5 s for all its answers"),
        ("eats", "MemoryError"),
        ("dies", "its process ended (exit code 3)"),
    ],
)
def test_policies_that_do_what_none_may_are_refused(folder: Path, name: str, said: str) -> None:
    (found,) = _judged(f"strangers:{name}", seconds=0.5 if name == "hangs" else 30.0).values()
    assert found.word == "refused"
    assert said in found.refused
    assert found.to_json()["objections"] == [found.refused]


def test_the_command_prints_a_table_or_json_and_repeats_itself(tmp_path: Path) -> None:
    small = replace(chain(1, 2, 100, "small"), user="ann")
    large = replace(chain(2, 8, 1_000, "large"), user="bob")
    write_workload(Workload("w", (small, large)), tmp_path / "w.parcae")
    words = (
        "parcae judge 'formula: rem,srpt,formula: remm,weighted-fair:oracle' w.parcae --cores 4 "
        "--jobs 8 --seeds 2 --seed-start 3"
    )
    first, again = (json.loads(ran(f"{words} --json", tmp_path).stdout) for _ in range(2))
    for one in (*first["verdicts"], *again["verdicts"]):
        one.pop("decision_ms", None)
        one["objections"] = [said for said in one["objections"] if "decision" not in said]
    assert first == again
    assert first["settings"]["seeds"] == [3, 4]
    formula, srpt, wrong, oracle = first["verdicts"]
    assert formula["ratio"] == srpt["ratio"]
    assert formula["worst_user"]["user"] in ("ann", "bob")
    assert wrong["verdict"] == oracle["verdict"] == "refused"
    assert "did you mean 'rem'?" in wrong["objections"][0]
    table = ran(words, tmp_path).stdout
    assert "repeat with --seed-start 3" in table
    assert "formula: remm: formula 'remm', column 1: unknown name" in table
