"""The command line: exit codes, what is printed, and a one-line message on bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from parcae.base.files import locked_folder
from parcae.cli.table import COMMANDS
from parcae.evaluation.benchmark import _case
from parcae.policies.compiled import CompiledPlanner
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import BUNDLED, write_workload
from parcae.workloads.synthetic import chain, toy_workload
from parcae.workloads.workload import Workload
from tests.cli.running import ran, refused, run
from tests.conftest import shared_case
from tests.fuzzing.commands import commands
from tests.service.running import stopped_when
from tests.workloads.spark_log_builder import small_log


def test_simulate_prints_the_contracted_json(tmp_path: Path) -> None:
    done = run(
        "parcae simulate toy --policy fifo,sjf-cp --executors 1 --jobs 4 --seed 2 --json", tmp_path
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["policy"] for row in rows] == ["fifo", "sjf-cp"]
    wanted = {
        "average_jct_ms",
        "makespan_ms",
        "last_completion_ms",
        "completion_ms",
        "decisions",
        "tasks",
        "work_ms",
    }
    assert all(wanted <= set(row) for row in rows)
    assert len(rows[0]["completion_ms"]) == 4


def test_simulate_tells_of_executor_classes(tmp_path: Path) -> None:
    words = "--executor-classes 1x1x0.5,2x1x1 --jobs 4 --unknown-share 0.5 --estimate-error 0.2"
    result = json.loads(run(f"parcae simulate toy --policy fair {words} --json", tmp_path).stdout)
    assert result["executors"] == 3
    assert result["fragmentation"] == 1.0  # its tasks need no memory
    assert len(result["class_utilization"]) == 2


def test_a_job_set_file_runs_every_set_under_every_policy(tmp_path: Path) -> None:
    write_workload(
        Workload("w", (chain(2, 3, 1_000, "q1-2g"), chain(1, 4, 2_000, "q2-5g"))),
        tmp_path / "w.parcae",
    )
    sets = {
        "sets": {
            "a": {"exec": 2, "jobs": [[1, "2g", 0], [2, "5g", 0]]},
            "b": {"exec": 3, "jobs": [[2, "5g", 0]]},
        }
    }
    (tmp_path / "sets.json").write_text(json.dumps(sets))
    command = (
        "parcae simulate w.parcae --job-set sets.json --set all --policy all --durations first "
        "--reference-semantics --json"
    )
    rows = [json.loads(line) for line in run(command, tmp_path).stdout.splitlines()]
    assert len(rows) == 2 * 6
    assert {(row["set"], row["durations"]) for row in rows} == {("a", "first"), ("b", "first")}
    only = run(
        command.replace("--set all", "--set b").replace("--policy all", "--policy sjf_cp"), tmp_path
    )
    assert json.loads(only.stdout)["executors"] == 3


def test_decimas_classes_divide_the_executors_of_the_job_set(tmp_path: Path) -> None:
    write_workload(Workload("w", (chain(2, 3, 1_000, "q1-2g"),)), tmp_path / "w.parcae")
    sets = {name: {"exec": count, "jobs": [[1, "2g", 0]]} for name, count in (("a", 5), ("b", 8))}
    (tmp_path / "sets.json").write_text(json.dumps({"sets": sets}))
    command = "parcae simulate w.parcae --job-set sets.json --policy fair --json --executor-classes"

    def executors(words: str) -> list[int]:
        lines = run(f"{command} {words}", tmp_path).stdout.splitlines()
        return [json.loads(line)["executors"] for line in lines]

    assert executors("decima") == [5, 8]
    assert executors("decima --executors 6") == [6, 6]
    assert executors("3x1x0.5,4x1x1") == [7, 7]


def test_the_command_that_tune_names_runs_with_spaces_in_names(tmp_path: Path) -> None:
    write_workload(toy_workload(), tmp_path / "my jobs.parcae")
    (tmp_path / "our goals.csv").write_text("job,deadline\n*,5s\n")
    tuned = ran(
        "parcae tune 'my jobs.parcae' --cores 2 --jobs 2 --budget 0.01 --objective deadlines "
        "--deadlines 'our goals.csv' -o 'the rule.safetensors'",
        tmp_path,
    )
    command = tuned.stdout.partition("other runs: ")[2].strip()
    done = ran(f"{command} --seeds 2 --processes 1", tmp_path)
    assert "the rule.safetensors" in done.stdout


def test_two_event_logs_are_compared_in_tables_as_json_and_in_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # headings fold where there is less room
    log = BUNDLED / "example-event-log.zstd"
    done = ran(f"parcae compare-logs {log} {log} --plot gantt.png", tmp_path)
    for text in (
        "average JCT",
        "most cores at once, busy",
        "mean JCT B / A over 21 matched jobs: 1.000 [1.000, 1.000]",
        "daily-revenue",
    ):
        assert text in done.stdout
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")
    done = run(f"parcae compare-logs {log} {log} --key spark.jobGroup.id --json", tmp_path)
    comparison = json.loads(done.stdout)
    groups = {"names", "users", "queues", "unmatched", "not_compared"}
    assert set(comparison) == {"logs", "ratio", "notes", *groups}
    assert (comparison["ratio"]["mean"], comparison["logs"]["B"]["num_jobs"]) == (1.0, 18)


def test_commands_choose_people_and_queues_of_a_shared_folder(tmp_path: Path) -> None:
    logs = shared_case("13-yarn")
    done = ran(f"parcae workload import spark-events {logs} --queue etl -o w.parcae", tmp_path)
    assert "Left out 5 applications without a job of that user and queue" in done.stderr
    both = f"{logs} {logs}/two-attempts --user e* --queue etl --json"
    comparison = json.loads(ran(f"parcae compare-logs {both}", tmp_path).stdout)
    assert [one["jobs"] for one in comparison["queues"]] == [{"A": 4, "B": 4}]
    checked = json.loads(ran(f"parcae workload check {logs} --queue etl --json", tmp_path).stdout)
    assert [len(one["queries"]) for one in checked] == [3]
    sized = ran(f"parcae size {logs} --queue etl --cores 4 --policies fifo --seeds 2", tmp_path)
    assert "2 runs of 3 jobs" in sized.stdout
    forecast = json.loads(ran(f"parcae forecast {logs} --json", tmp_path).stdout)
    assert [(one["name"], one["jobs"]) for one in forecast["queues"]] == [
        ("etl", 3),
        ("default", 11),
    ]
    for command in (
        f"compare-logs {logs} {logs}",
        f"learn {logs} -o learned",
        f"forecast {logs}",
        f"workload check {logs}",
    ):
        done = run(f"parcae {command} --user ann", tmp_path)
        assert done.returncode == 2
        assert "submitted by: etl; queues: default, etl" in done.stderr
    for command in ("learn w.parcae -o learned", "size tpch --cores 2"):
        done = run(f"parcae {command} --user ann", tmp_path)
        assert "--user has no effect here: it applies only to event logs" in done.stderr


_WRITING = (
    "-m parcae.cli.main compare toy --policies fifo --cores 2 --jobs 2 --seeds 2 --processes 1"
)


@pytest.mark.parametrize("closed", [pytest.param("2>&-", marks=pytest.mark.slow), "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_writes_its_files(tmp_path: Path, closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} {_WRITING} --json out.json {closed}"
    done = subprocess.run(command, cwd=tmp_path, shell=True, check=False)
    assert done.returncode == 0
    assert json.loads((tmp_path / "out.json").read_text())


def test_a_command_whose_output_nobody_reads_writes_its_files(tmp_path: Path) -> None:
    words = [sys.executable, *_WRITING.split(), "--json", "out.json"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(words, cwd=tmp_path, stdout=writing, stderr=writing, check=False)
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert json.loads((tmp_path / "out.json").read_text())


#: Ctrl-C comes while a module is imported, or while the command of `policies` runs.
_INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["parcae", "policies"]
from parcae.cli.start import main
main()
"""


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("typer", ""),
        pytest.param("pydantic", "", marks=pytest.mark.slow),
        ("parcae.decima.catalog", "parcae: interrupted\n"),
    ],
)
def test_ctrl_c_shows_no_traceback_even_during_imports(name: str, error: str) -> None:
    words = [sys.executable, "-c", _INTERRUPTED.format(name=name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", error)


def test_characters_that_the_encoding_of_the_output_lacks_lose_no_result(tmp_path: Path) -> None:
    write_workload(replace(toy_workload(), name="2 € × 3"), tmp_path / "toy.parcae")
    done = subprocess.run(
        [sys.executable, "-m", "parcae.cli.main", "workload", "describe", "toy.parcae"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        encoding="latin-1",
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Workload 2 ? × 3" in done.stdout
    assert "Largest jobs" in done.stdout


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help_and_most_an_example(tmp_path: Path, command: str) -> None:
    done = run(f"parcae {command} --help", tmp_path)
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_every_option_has_a_help_and_no_help_loses_words() -> None:
    # The help is text with markup: a word in brackets, such as [default], would not be shown.
    for command, params in commands().items():
        for param in params:
            text = getattr(param, "help", None) or ""
            shown = Text.from_markup(text).plain
            assert shown == text, command
            assert shown or param.param_type_name == "argument", f"{command} {param.name}"


@pytest.mark.parametrize(
    "command",
    [
        "parcae simulate toy --policy 'fair, fifo' --json",
        "parcae compare toy --policies 'fair, fifo' --seeds 2",
        "parcae size toy --cores 2,3 --arrivals batch --policies 'fair, fifo' --seeds 2",
        "parcae simulate --world rigid --load 1 --policy 'sjf, packer' --json",
        "parcae compare --world rigid --load 1 --policies 'sjf, packer' --seeds 2",
    ],
)
def test_names_may_be_separated_by_spaces_too(tmp_path: Path, command: str) -> None:
    done = ran(command, tmp_path)
    assert ("packer" if "rigid" in command else "fifo") in done.stdout


@pytest.mark.parametrize("world", ["cores", "executors"])
def test_a_policy_that_is_said_to_be_the_same_as_another_gives_the_same_run(
    tmp_path: Path, world: str
) -> None:
    listed = json.loads(run("parcae policies --json", tmp_path).stdout)
    pairs = [
        (entry["usage"], same[1])
        for entry in listed
        if (same := re.fullmatch(r"the same as (\S+)", entry["summary"]))
    ]
    assert pairs
    names = ",".join(name.replace("ALPHA", "-1") for pair in pairs for name in pair)
    done = run(
        f"parcae simulate tpch --world {world} --policy {names} --cores 9 --jobs 9 --json", tmp_path
    )
    runs = [json.loads(line)["completion_ms"] for line in done.stdout.splitlines()]
    assert len(runs) == 2 * len(pairs)
    assert runs[::2] == runs[1::2]


def test_the_benchmark_prints_the_contracted_numbers(tmp_path: Path) -> None:
    command = (
        "parcae bench simulator --world executors --workload synthetic --runs 1 --jobs 10 "
        "--executors 10 --json"
    )
    done = run(command, tmp_path)
    result = json.loads(done.stdout)
    assert {"tasks_per_second", "events_per_second", "decisions_per_second"} <= set(result)


def test_timed_plans_of_successive_runs_are_those_of_fresh_virtual_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(CompiledPlanner, "restart", lambda policy: begun.append(policy.name))
    config = SimulationConfig(world=WorldName.CORES, num_executors=2)
    _case("small", toy_workload(), 1, config, [], 30)
    # A run of one job has a few plans.
    assert len(begun) > 1


def _has_recorded_orders(folder: Path) -> bool:
    """Whether orders were recorded that have a job: the first have none."""
    files = (path for path in folder.glob("**/*") if path.is_file())
    return any(re.search(rb'"orders","seq":\d+,"jobs":\[\{', path.read_bytes()) for path in files)


def test_a_service_of_several_applications_points_to_one_shared_spark(tmp_path: Path) -> None:
    words = "parcae serve --policy fair --workload toy --port 0 --admin-port -1 --for 0.1"
    assert "parcae consolidate" not in ran(words, tmp_path).stdout
    shared = ran(f"{words} --scope cluster --cores 4", tmp_path)
    assert "one shared Spark is faster" in shared.stdout


def test_a_service_records_what_another_policy_then_follows(tmp_path: Path) -> None:
    with stopped_when(lambda: _has_recorded_orders(tmp_path / "r")):
        done = ran(
            "parcae serve --policy fair --workload toy --demo 4 --slots 2 --record r --port 0 "
            "--admin-port -1 --for 60",
            tmp_path,
        )
    assert "fair serves on 127.0.0.1:" in done.stdout
    done = run("parcae replay r --policy fair --workload toy --json", tmp_path)
    result = json.loads(done.stdout)
    assert result["num_orders"] > 0
    assert result["counts"] == {"first": 0, "later": 0, "shares": 0, "stages": 0}
    assert result["num_lost"] == 0


def test_recorded_arrivals_run_every_recorded_job_by_default(tmp_path: Path) -> None:
    jobs = tuple(replace(chain(1, 1, 100), arrival_ms=50 * row) for row in range(25))
    write_workload(Workload("log", jobs), tmp_path / "log.parcae")
    command = "parcae simulate log.parcae --policy fair --cores 2 --arrivals"

    def num_jobs(rest: str) -> int:
        return len(json.loads(run(f"{command} {rest} --json", tmp_path).stdout)["completion_ms"])

    assert num_jobs("recorded") == 25
    assert num_jobs("recorded --jobs 3") == 3
    assert num_jobs("batch") == 20
    compare = "parcae compare log.parcae --policies fair,fifo --cores 2 --seeds 2 --processes 1"
    ran(f"{compare} --arrivals recorded --json c.json", tmp_path)
    assert json.loads((tmp_path / "c.json").read_text())["settings"]["jobs"] == 25


def test_learning_anew_removes_the_results_of_another_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "learned"
    folder.mkdir()
    (folder / "policy.safetensors").write_text("of another workload")
    (folder / "summary.txt").write_text("of another workload")
    (folder / "notes.txt").write_text("of the user")
    (folder / ".workload.parcae.ab12cd34").write_text("of a command that was killed")
    write_workload(Workload("w", (chain(2, 3, 1_000),)), tmp_path / "w.parcae")
    monkeypatch.setattr("parcae.api.study._learn", interrupted)
    done = run("parcae learn w.parcae -o learned --cores 2", tmp_path)
    assert done.returncode == 130
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "workload.parcae"}
    removed = "learned: removed the earlier results (policy.safetensors, summary.txt)\n"
    assert removed in done.stderr
    assert "read is in learned/workload.parcae: name that file in place of the logs" in done.stderr


@pytest.mark.parametrize(
    ("task_ms", "words", "error"),
    [
        (1_000, "--arrivals trace:0.8", "has no recorded arrivals"),
        (0, "", "there is nothing to learn"),
    ],
)
def test_a_learning_that_is_refused_leaves_earlier_results(
    task_ms: int, words: str, error: str, tmp_path: Path
) -> None:
    folder = tmp_path / "learned"
    folder.mkdir()
    for name in ("policy.safetensors", "workload.parcae"):
        (folder / name).write_text("earlier")
    write_workload(Workload("w", (chain(2, 3, task_ms),)), tmp_path / "w.parcae")
    refused(f"parcae learn w.parcae -o learned --cores 2 {words}", tmp_path, error)
    assert {path.read_text() for path in folder.iterdir()} == {"earlier"}


def test_learning_leaves_the_files_of_a_command_that_is_learning_into_the_folder(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "learned"
    folder.mkdir()
    for name in ("policy.safetensors", "workload.parcae"):
        (folder / name).write_text("of the other command")
    write_workload(Workload("w", (chain(2, 3, 1_000),)), tmp_path / "w.parcae")
    with locked_folder(folder, "learning into"):
        refused(
            "parcae learn w.parcae -o learned --cores 2",
            tmp_path,
            "another process is learning into this folder",
        )
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    other = "of the other command"
    assert texts == {"policy.safetensors": other, "workload.parcae": other}


@pytest.mark.parametrize("key", ["", "--key 'my key' "])
def test_learn_names_the_command_that_tolerates_bad_rows(tmp_path: Path, key: str) -> None:
    (tmp_path / "log").write_bytes(small_log() + b'{"Event":"SparkListenerJobStart"}\n' * 3)
    done = run(f"parcae learn log {key}-o learned --cores 2", tmp_path)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(
        "share of bad rows (--max-bad-share) in `parcae workload import spark-events log "
        f"{key}-o mine.parcae --max-bad-share SHARE`, and learn from mine.parcae"
    )


def test_simulate_draws_the_runs_of_every_policy_on_one_page(tmp_path: Path) -> None:
    command = "parcae simulate toy --policy fifo,fair --cores 2 --jobs 3 --gantt g.html --json"
    done = ran(command, tmp_path)
    assert len(done.stdout.splitlines()) == 2
    page = (tmp_path / "g.html").read_text()
    assert page.count("<svg ") == 1
    assert 'src="http' not in page
    assert "fifo: average JCT" in page
