"""The two worlds on the command line: which one a command chooses, policies, and job sets."""

from __future__ import annotations

import html
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from parcae.base.errors import ConfigError, FormatError, InputError, WorkloadError
from parcae.cli.main import app
from parcae.cli.options import SimulatedClusterOptions, SizeOptions, world_of
from parcae.cli.simulate import run_json
from parcae.cluster.state import World
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.rule.kernels import NUM_ORDER_PARAMETERS
from parcae.simulation.config import WorldName
from parcae.workloads.archive import write_workload
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.cli.running import run
from tests.conftest import job
from tests.metrics.hand_made import sequence, trace

#: Two jobs on two cores: a short job that arrives at 10, and a long job of two stages.
_SET: dict[str, Any] = {
    "name": "two",
    "cores": 2,
    "pools": {"a": {"weight": 1, "min_share": 0}, "b": {"weight": 3, "min_share": 1}},
    "jobs": [
        {"arrival_ms": 10, "edges": [], "task_ms": [[5]], "pool": "b", "tier": 0, "limits": [1]},
        {
            "arrival_ms": 0,
            "edges": [[0, 1]],
            "task_ms": [[20, 20, 20], [30]],
            "pool": "a",
            "tier": 1,
            "limits": [1, 1],
        },
    ],
}


def _invoke(*words: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, words[0] if len(words) == 1 else words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def _refused(*words: str) -> str:
    done = CliRunner().invoke(app, words[0] if len(words) == 1 else words)
    assert isinstance(done.exception, InputError), done.output
    return str(done.exception)


def _sets(folder: Path, *sets: dict[str, Any]) -> str:
    path = folder / "sets.json"
    path.write_text(json.dumps({"format": "parcae spark world conformance 1", "sets": sets}))
    return str(path)


@pytest.mark.parametrize(
    "option",
    [
        {"reference_semantics": True},
        {"moving_delay_ms": 0},
        {"warmup_delay_ms": 0},
        {"executor_classes": "2x1x1"},
        {"parallelism_model": "decima-cluster"},
    ],
)
def test_options_of_decimas_cluster_imply_its_world(option: dict[str, Any]) -> None:
    assert SimulatedClusterOptions().config().world is WorldName.CORES
    assert SimulatedClusterOptions(**option).config().world is WorldName.EXECUTORS
    assert (
        SimulatedClusterOptions(world="executors", **option).config().world is WorldName.EXECUTORS
    )
    flag = f"--{next(iter(option)).replace('_', '-')}"
    with pytest.raises(
        ConfigError,
        match=f"^{flag} exists in the world of executors only: leave it out, or choose --world",
    ):
        SimulatedClusterOptions(world="cores", **option).config()


def test_other_options_are_of_both_worlds() -> None:
    config = SimulatedClusterOptions(
        durations="first", unknown_share=0.5, estimate_error="0.25", cores="7"
    ).config()
    assert (config.world, config.num_executors, config.estimate_error, config.unknown_share) == (
        "cores",
        7,
        0.25,
        0.5,
    )
    assert SimulatedClusterOptions().config().estimate_error == "log"
    with pytest.raises(ConfigError, match="--world rack: write cores or executors"):
        world_of("rack", {})


def test_cores_and_executors_are_one_number() -> None:
    assert SizeOptions().size is None
    assert SizeOptions(executors=3).size == SizeOptions(cores="3").size == 3
    assert SizeOptions(executors=3, cores="3").size == 3
    with pytest.raises(
        ConfigError, match="--executors 3 and --cores 4 are the same number: give one of them"
    ):
        _ = SizeOptions(executors=3, cores="4").size
    with pytest.raises(ConfigError, match="to simulate and compare on an elastic cluster"):
        _ = SizeOptions(cores="2..4").size


def test_simulate_says_the_world_and_what_a_name_became() -> None:
    words = ("simulate", "toy", "--cores", "2", "--jobs", "3", "--json", "--policy")
    rows = _invoke(*words, "fifo,fair,weighted-fair:-1")
    assert [row["variant"] for row in rows] == [
        "Spark's FIFO: job id, stage id",
        "Spark's FAIR, a pool a job",
        "weighted-fair:-1, planning through the adapter",
    ]
    assert {row["world"] for row in rows} == {"cores"}
    (row,) = _invoke(*words, "fifo", "--world", "executors")
    assert (row["world"], row["variant"]) == ("executors", "fifo")


@pytest.mark.parametrize(("world", "makespan_ms"), [(World.CORES, 7_000), (World.EXECUTORS, 8_000)])
def test_a_wake_up_after_the_last_completion_is_not_in_the_makespan_of_cores(
    world: World, makespan_ms: int
) -> None:
    run_of_7_s = replace(trace(clock_ms=8_000), world=world)
    assert run_json(run_of_7_s, sequence())["makespan_ms"] == makespan_ms


def test_a_comparison_says_what_names_became(tmp_path: Path) -> None:
    words = "compare toy --policies fair,fifo,sjf-cp --cores 2 --jobs 3 --seeds 2"
    done = CliRunner().invoke(app, f"{words} --json {tmp_path}/c.json --report {tmp_path}/r.html")
    assert done.exit_code == 0, done.output
    assert "toy: 3 jobs, batch, 2 cores, seeds 0-1" in done.output
    result = json.loads((tmp_path / "c.json").read_text())
    assert result["settings"]["config"]["world"] == "cores"
    assert (
        result["settings"]["variants"]["fifo"]
        == result["policies"]["fifo"]["variant"]
        == "Spark's FIFO: job id, stage id"
    )
    page = html.unescape((tmp_path / "r.html").read_text())
    assert (
        "Policies: fair: Spark's FAIR, a pool a job; fifo: Spark's FIFO: job id, stage id; "
        "sjf-cp: sjf-cp, planning" in page
    )
    assert "2 cores" in page


def test_the_network_of_the_world_of_cores_is_trained_and_resumed(tmp_path: Path) -> None:
    rule = Checkpoint("order-rule", 1, {"rule": np.zeros(NUM_ORDER_PARAMETERS)})
    write_checkpoint(rule, tmp_path / "rule.safetensors")
    out = tmp_path / "training"
    words = ["train", "toy", "--cores", "2", "--jobs", "3", "--json", "-o", str(out)]
    trained = [*words, "--rule", str(tmp_path / "rule.safetensors")]
    (result,) = _invoke(*trained, "--iterations", "1")
    assert (result["generations"], result["ending"]) == (1, "done")
    assert result["ratio_to_rule_on_selection_runs"] <= 1.0
    assert {path.name for path in out.iterdir()} == {
        "best.safetensors",
        "training.safetensors",
        "tensorboard",
    }
    assert "already contains a training" in _refused(*trained, "--iterations", "2")
    (result,) = _invoke(*trained, "--iterations", "2", "--resume")
    assert result["generations"] == 2
    best = read_checkpoint(out / "best.safetensors")
    assert (best.kind, best.card["workload"]) == ("order-network", "toy")
    again = [*words[:-1], str(tmp_path / "again"), "--iterations", "1"]
    served = ("--also", "arrivals=load:0.7 jobs=2 estimate_error=0.5")
    (result,) = _invoke(*again, *served, "--start", result["output"])
    assert result["generations"] == 1
    continued = read_checkpoint(Path(result["output"]))
    ((arrivals, jobs),) = [(one["arrivals"], one["jobs"]) for one in continued.card["also"]]
    assert (arrivals, jobs) == ("load:0.7", 2)
    assert continued.card["also"][0]["cluster"]["estimate_error"] == 0.5
    # The network goes on correcting the rule that it has learned to correct.
    assert not continued.weights["rule"].any()
    assert "not of 'order-network'" in _refused(
        *trained, "--start", str(tmp_path / "rule.safetensors")
    )


def test_training_by_gradients_serves_several_settings(tmp_path: Path) -> None:
    words = shlex.split("train toy --world executors --network decima --jobs 3")
    also = ["--also", "jobs=2 executors=4 moving_delay_ms=0 warmup_delay_ms=7"]
    also += ["--also", "workload=synthetic jobs=2"]
    small = ["--set", "num_groups=1", "--set", "group_size=2", "--set", "num_selection=8"]
    done = CliRunner().invoke(
        app, [*words, *also, *small, "--iterations", "3", "-o", str(tmp_path / "x"), "--json"]
    )
    assert done.exit_code == 0, done.stderr
    card = read_checkpoint(tmp_path / "x" / "best.safetensors").card
    assert [one["workload"] for one in card["also"]] == ["toy", "synthetic"]
    for wrong in ("size=3", "jobs=x", "warmup_delay_ms=x"):
        assert "workload=FILE" in _refused(*words, "--also", wrong, "-o", str(tmp_path / "y"))
    none = _refused(*words, "--also", "jobs=0", "-o", str(tmp_path / "y"))
    assert "jobs: Input should be greater than or equal to 1" in none
    cores = ["train", "toy", "--jobs", "3", "--also", "moving_delay_ms=1"]
    assert "no effect in the world of cores" in _refused(*cores, "-o", str(tmp_path / "y"))


def test_another_workload_of_a_training_has_the_models_and_deadlines_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadlines.csv").write_text("job,deadline\n*,5min\n")
    settings = list[Scenario]()

    def noted(scenarios: list[Scenario], **_: object) -> None:
        settings.extend(scenarios)
        raise ConfigError("the settings are known")

    monkeypatch.setattr("parcae.cli.train.tune_rule", noted)
    words = shlex.split("tune toy --parallelism-model decima-cluster --world executors")
    words += ["--deadlines", str(tmp_path / "deadlines.csv"), "--also", "workload=synthetic"]
    assert "the settings are known" in _refused(*words, "-o", str(tmp_path / "x.safetensors"))
    assert [one.workload.name for one in settings] == ["toy", "synthetic"]
    for one in settings:
        assert "parallelism model" in one.workload.provenance
        assert {job.deadline_ms for job in one.workload.jobs} == {5 * 60 * 1_000}


def test_orders_are_searched_in_decimas_world_and_bounds_hold_in_both() -> None:
    words = ("bounds", "toy", "--jobs", "3", "--executors", "2", "--json")
    results = [
        json.loads(CliRunner().invoke(app, [*words, *more]).stdout)
        for more in ((), ("--world", "executors"), ("--orders",))
    ]
    assert results[0] == results[1]
    assert sorted(results[2]["best_order"]) == [0, 1, 2]
    assert "--orders exists in the world of executors only" in _refused(
        *words, "--orders", "--world", "cores"
    )


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_bounds_say_that_they_hold_for_exact_durations(tmp_path: Path, sigma: float) -> None:
    path = tmp_path / "log.parcae"
    write_workload(Workload("log", (replace(job("a", (2, 1_000, ())), work_sigma=sigma),)), path)
    words = ("bounds", str(path), "--jobs", "2", "--cores", "2")
    text = CliRunner().invoke(app, words).stdout
    explanation = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["explanation"]
    for said in (text, explanation):
        assert ("hold for runs with --estimate-error 0" in said) == (sigma > 0)


def test_a_set_of_sparks_world_by_hand(tmp_path: Path) -> None:
    """Under FIFO the short job waits for a core until 20.

    With limits, the other job has only one core, so that the short one need not wait.
    """
    path = _sets(tmp_path, _SET)
    names = "fifo,fair,fair-pools,sjf,srpt,orders,psbs"
    rows = {
        row["policy"]: row for row in _invoke(f"simulate --job-set {path} --policy {names} --json")
    }
    assert list(rows) == names.split(",")
    assert {row["set"] for row in rows.values()} == {"two"}
    assert rows["fifo"]["completion_ms"] == [25, 70]
    assert rows["orders"]["completion_ms"] == [15, 90]
    assert rows["srpt"]["completion_ms"] == [25, 70]
    assert rows["orders"]["average_jct_ms"] == (5 + 90) / 2
    assert rows["orders"]["makespan_ms"] == 90
    assert {row["tasks"] for row in rows.values()} == {5}
    assert rows["fair-pools"]["variant"] == "Spark's FAIR, the pools of the set"
    assert rows["orders"]["variant"] == "standing orders: the tiers and limits of the set"
    (wider,) = _invoke(f"simulate --job-set {path} --policy fifo --cores 5 --json")
    assert wider["completion_ms"] == [15, 50]


def test_all_policies_and_one_set_of_a_file(tmp_path: Path) -> None:
    path = _sets(tmp_path, _SET, {**_SET, "name": "again"})
    rows = _invoke(f"simulate --job-set {path} --policy all --set again --json")
    assert [(row["set"], row["policy"]) for row in rows] == [
        ("again", name) for name in ("fifo", "fair", "fair-pools", "sjf", "srpt", "orders")
    ]
    assert "no job set 'third'; it has two, again" in _refused(
        f"simulate --job-set {path} --set third"
    )


def test_job_sets_that_cannot_be_run_are_refused(tmp_path: Path) -> None:
    path = _sets(tmp_path, _SET)
    assert "world of cores" in _refused(f"simulate --job-set {path} --world executors")
    assert "unknown policy 'order-s'" in _refused(f"simulate --job-set {path} --policy order-s")
    for mode in ("mean", "first", "sampled"):
        assert _refused(f"simulate --job-set {path} --durations {mode}") == (
            "--durations has no effect here: it applies only to durations of a workload (this "
            "--job-set file lists that of every task); leave it out"
        )
    for given, error, words in (
        ({"task_ms": [[None]]}, FormatError, "jobs.0.task_ms.0.0 is null"),
        ({"task_ms": [[1]], "pool": "c"}, FormatError, 'pool "c" is not defined'),
        ({"task_ms": [[1]], "limits": [1, 1]}, WorkloadError, "expected one for each of 1 stages"),
    ):
        entry = {**_SET, "jobs": [{"arrival_ms": 0, **given}]}
        done = CliRunner().invoke(app, ["simulate", "--job-set", _sets(tmp_path, entry)])
        assert isinstance(done.exception, error)
        assert words in str(done.exception)
        assert done.stdout == ""


def test_sets_of_named_jobs_need_their_workload_and_are_of_decimas_world(tmp_path: Path) -> None:
    write_workload(Workload("w", (chain(2, 3, 1_000, "q1-2g"),)), tmp_path / "w.parcae")
    sets = tmp_path / "sets.json"
    sets.write_text(json.dumps({"sets": {"a": {"exec": 2, "jobs": [[1, "2g", 0]]}}}))
    assert "only names the jobs of a workload: give the workload, too" in _refused(
        f"simulate --job-set {sets}"
    )
    words = f"simulate {tmp_path}/w.parcae --job-set {sets} --policy fifo --json".split()
    assert _invoke(*words) == _invoke(*words, "--world", "executors")
    assert "exists in the world of executors only" in _refused(*words, "--world", "cores")


def test_job_sets_get_the_variants_for_their_arrivals(tmp_path: Path) -> None:
    jobs = tuple(chain(2, 10, 10_000, f"q{query}-2g") for query in range(1, 7))
    write_workload(Workload("w", jobs), tmp_path / "w.parcae")
    sets = {
        name: {"exec": 50, "jobs": [[query, "2g", gap_ms * query] for query in range(1, 7)]}
        for name, gap_ms in (("stream", 45_000), ("batch", 0))
    }
    (tmp_path / "sets.json").write_text(json.dumps({"sets": sets}))
    found = _invoke(
        *("simulate", str(tmp_path / "w.parcae"), "--job-set", str(tmp_path / "sets.json")),
        *("--set", "all", "--policy", "tuned", "--json"),
    )
    variants = {one["set"]: one["variant"] for one in found}
    assert "stream" in variants["stream"]
    assert "batch" in variants["batch"]


def test_the_list_of_policies_names_their_worlds() -> None:
    listed = json.loads(CliRunner().invoke(app, ["policies", "--json"]).stdout)
    worlds = {(entry["usage"], entry["world"]) for entry in listed}
    assert {
        ("fifo", "cores"),
        ("fifo", "executors"),
        ("srpt", "cores"),
        ("fair:POOLS.xml|json", "cores"),
    } <= worlds
    assert {
        ("POLICY+account[:WEIGHTS.csv]", "cores"),
        ("sjf-cp", "both"),
        ("tuned[:VARIANT]", "both"),
    } <= worlds
    assert {("idle-theory[:alone]", "executors"), ("order:I-J-...", "executors")} <= worlds
    assert "world" in CliRunner().invoke(app, ["policies"]).stdout


def test_the_speed_of_the_world_of_cores() -> None:
    words = "bench simulator --workload toy --policy fair,srpt --jobs 5 --runs 1"
    result = json.loads(CliRunner().invoke(app, f"{words} --json").stdout)
    assert result["world"] == "cores"
    assert set(result["policies"]) == {"fair", "srpt"}
    assert result["tasks_per_second"] == min(
        speed["tasks_per_second"] for speed in result["policies"].values()
    )
    for speed in result["policies"].values():
        assert speed["linearity"] == pytest.approx(
            speed["long_tasks_per_second"] / speed["tasks_per_second"]
        )
        assert speed["long_tasks"] > speed["tasks"]
    text = CliRunner().invoke(app, words).stdout
    assert "million tasks/s (median of 1" in text


def test_simulate_warns_of_delays_that_outweigh_the_tasks(tmp_path: Path) -> None:
    done = run("parcae simulate tpch --world executors --jobs 2", tmp_path)
    assert done.returncode == 0
    assert (
        "warning: an executor takes 2 s to move between jobs, a task only 0.0437 s" in done.stderr
    )
    small = run("parcae simulate tpch --moving-delay-ms 20 --jobs 2", tmp_path)
    assert small.returncode == 0
    assert "warning" not in small.stderr


def test_a_run_counts_failed_attempts_apart_from_those_of_lost_executors() -> None:
    command = (
        "simulate toy --cores 8 --policy fair --jobs 40 --faults "
        "failures=0.02,lost=400,executor-cores=4"
    )
    found = json.loads(CliRunner().invoke(app, [*command.split(), "--json"]).stdout)
    assert found["failed_attempts"] > 0 < found["interrupted_attempts"]
    assert (
        f"{found['failed_attempts']} attempts failed, {found['lost_executors']} executors lost "
        f"with {found['interrupted_attempts']} attempts, 0 copies"
    ) in CliRunner().invoke(app, command.split()).stdout
