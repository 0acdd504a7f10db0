"""Options that would have no effect are refused, and places of files are checked first."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parcae.policies.learned import SHIPPED
from parcae.workloads.archive import write_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.synthetic import toy_workload
from tests.cli.running import refused, run
from tests.fuzzing.commands import commands


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("simulate toy --set a", "--set has no effect here: it applies only with --job-set"),
        ("simulate --job-set x.json --jobs 3", "--jobs has no effect"),
        ("simulate --job-set x.json --arrivals batch", "--arrivals has no effect"),
        ("size toy --cores 2,4 --search", "only with --target"),
        ("size toy --cores 2,4 --arrivals batch --block 3", "only to recorded arrivals"),
        ("size toy --cores 2,4 --arrivals batch --growth 2", "--growth has no effect"),
        ("learn x.parcae -o out --key a", "--key has no effect"),
        ("learn log -o out --device cpu", "--device has no effect"),
        ("train toy -o out --device cpu", "--device has no effect"),
        ("train toy -o out --ray a:1", "--ray has no effect"),
        ("train toy -o out --set a=1", "--set has no effect"),
        ("train toy -o out --decima a=1", "--decima has no effect"),
        ("simulate --job-set x.json --deadlines x.csv", "--deadlines has no effect"),
        ("train toy -o out --world executors --decima features=code", "with --network decima"),
        ("train toy -o out --network decima --rule tuned", "networks that correct a rule"),
        ("bench training --networks corrector --decima features=code", "to the network decima"),
        ("reproduce deeprm-fig4 --executors 3", "--executors has no effect"),
        ("reproduce deeprm-fig4 --workload toy", "--workload has no effect"),
        ("reproduce a2c-table1 --workload a.swf", "(a2c-table4: a log, *.swf)"),
        ("reproduce decima-fig14 --decima features=jobs", "--decima has no effect"),
        ("reproduce decima-fig9a --policy fair --budget 5", "this study trains, not with --policy"),
        ("simulate --world rigid --load 1 --processors 3", "only to logs"),
        ("simulate --world rigid --swf a.swf --window 3", "only to jobs that are drawn"),
        ("simulate --world rigid --swf a.swf --seed 3", "only to jobs that are drawn"),
        ("compare --world rigid --swf a.swf --seeds 3", "--seeds has no effect"),
        ("compare --world rigid --load 1 --part all", "--part has no effect"),
        (
            "compare --world rigid --load 1 --policies sjf --objective makespan",
            "where a policy is tuned",
        ),
        ("compare --world rigid --swf a.swf --policies easy --objective completion", "is tuned"),
        ("compare --world rigid --load 1 --tune-budget 1", "only to the policy withhold"),
        (
            "tune --world rigid tetris --load 1 -o t.safetensors --speeds 1",
            "--speeds has no effect",
        ),
        ("train --world rigid set --load 1 -o out --estimates actual", "--estimates has no effect"),
        ("serve --executor-cores 2", "--executor-cores has no effect"),
        ("workload import spark-events log -o w.parcae --recorded --keep-first-runs", "without"),
        ("compare toy --world cores --moving-delay-ms 5", "in the world of executors only"),
    ],
)
def test_an_option_without_an_effect_is_refused(command: str, words: str, tmp_path: Path) -> None:
    done = refused(f"parcae {command}", tmp_path, words)
    assert done.stderr.count("\n") == 1


def test_an_option_of_several_worlds_without_its_value_is_refused_by_that(tmp_path: Path) -> None:
    refused("parcae compare toy --json", tmp_path, "'--json' requires an argument")


@pytest.mark.parametrize("study", ["deeprm-fig4", "a2c-table1"])
def test_a_recipe_that_a_study_does_not_know_is_refused_first(study: str, tmp_path: Path) -> None:
    done = run(f"parcae reproduce {study} --recipe steps", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("parcae: no recipe 'steps' of ")
    assert list(tmp_path.iterdir()) == []


#: Commands that write, each up to the option.
_WRITING = (
    "size toy --cores 2,4 --json",
    "size toy --cores 2,4 --csv",
    "size toy --cores 2,4 --plot",
    "compare toy --json",
    "compare toy --report",
    "compare toy --per-job",
    "compare toy --recurring",
    "compare-logs a b --plot",
    "simulate toy --gantt",
    "tune toy -o",
    "export tuned toy -o",
    "workload sample toy -o",
    "workload import csv s.csv -o",
    "tune --world rigid tetris --load 1 -o",
    "compare --world rigid --load 1 --json",
    "simulate --world rigid --load 1 --gantt",
)
_INTO_FOLDERS = (
    "learn log -o",
    "train toy -o",
    "train --world rigid set --load 1 -o",
    "reproduce decima-fig16 -o",
)


@pytest.mark.parametrize("command", _WRITING)
def test_a_file_that_cannot_be_written_is_reported_first(command: str, tmp_path: Path) -> None:
    refused(
        f"parcae {command} nowhere/a.png",
        tmp_path,
        "nowhere/a.png: the folder of this file does not exist",
    )


@pytest.mark.parametrize("command", _INTO_FOLDERS)
def test_a_folder_that_cannot_be_made_is_reported_first(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(f"parcae {command} file/below", tmp_path, "file is not a folder")


@pytest.mark.parametrize(
    "command", ["train toy --world executors -o", "train --world rigid set --load 1 -o"]
)
def test_a_library_that_a_training_lacks_is_reported_first(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    refused(f"parcae {command} out", tmp_path, "needs torch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("compare toy --keep same --json ./same", "--keep and --json"),
        ("compare toy --recurring same.csv --per-job same.csv", "--recurring and --per-job"),
        ("size toy --cores 2,4 --json same --csv same", "--json and --csv"),
    ],
)
def test_two_outputs_to_one_file_are_refused(command: str, flags: str, tmp_path: Path) -> None:
    refused(f"parcae {command}", tmp_path, f"{flags} both write")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "workload sample own -o own",
        "workload prepare -o ./own own --half first",
        "workload import alibaba batch_task.csv --instances own -o own",
        "workload import spark-events own -o ./own",
        "export tuned own -o own",
        "export own toy -o own",
        "compare own --json own",
        "compare --per-job own.csv toy --deadlines own.csv",
        "size toy own --cores 2,4 --csv own",
        "tune toy --deadlines own.csv -o own.csv",
        "tune toy --also workload=own -o own",
        "serve --workload own --learned own",
        "serve --secret-file own --learned own",
        "compare --world rigid --swf own --json own",
        "tune --world rigid tetris --swf log.swf --also-swf own -o own",
        "workload sample mixed:0.5:own -o own",
        "tune toy --also workload=mixed:0.5:mixed:0.2:own -o own",
        "simulate own.png --gantt own.png",
        "simulate --job-set own.png --gantt own.png",
        "simulate --world rigid --job-set own.png --gantt own.png",
        "compare-logs own.csv own.png --plot own.png",
        # Files of policies.
        "compare toy --policies fair,srpt+pools:own.json+account --json own.json",
        "compare toy --policies fair:own.json --keep own.xml",
        "compare toy --per-job own.csv --policies srpt+priorities:own.csv",
        "size toy --cores 2,4 --policies fair,plan:own.safetensors:20ms --csv own.safetensors",
        "simulate toy --policy fair+priorities:own.png --gantt own.png",
        "export own.safetensors+account toy -o own.safetensors",
        "train toy -o dir --start dir/best.safetensors",
        "train toy -o dir --rule dir/best.safetensors",
        "train --world rigid set --load 1 -o dir --start dir/best.safetensors",
        "compare --world rigid --load 1 --policies own.safetensors+unguarded --json "
        "own.safetensors",
        "simulate --world rigid --load 1 --policy sjf+priorities:own.png --gantt own.png",
        "serve --policy own.safetensors --learned own.safetensors",
    ],
)
def test_an_output_that_would_replace_an_input_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    endings = ("", ".csv", ".png", ".xml", ".safetensors")
    for name in (*(f"own{ending}" for ending in endings), "dir/best.safetensors"):
        (tmp_path / name).write_text("what took hours")
    (tmp_path / "own.json").write_text('{"pools": "own.xml"}')
    before = {path: path.read_text() for path in tmp_path.rglob("*.*")}
    replaced = "would replace what the command reads: give another file"
    done = refused(f"parcae {command}", tmp_path, replaced)
    assert done.stderr.count("\n") == 1
    assert {path: path.read_text() for path in tmp_path.rglob("*.*")} == before
    assert (tmp_path / "own").read_text() == "what took hours"


def test_a_network_is_not_replaced_by_the_rule_that_is_tuned_from_it(tmp_path: Path) -> None:
    own = tmp_path / "own.safetensors"
    shutil.copy(SHIPPED.folder / "corrector-batch.safetensors", own)
    before = own.read_bytes()
    refused(
        "parcae tune toy --start own.safetensors -o own.safetensors",
        tmp_path,
        "--output own.safetensors would replace what the command reads",
    )
    assert own.read_bytes() == before


@pytest.mark.parametrize("folder", ["a,b", "out+pools:1", "plan:out", "srpt:a"])
@pytest.mark.parametrize(
    "command",
    [
        "learn no-such-log -o FOLDER",
        "train toy -o FOLDER",
        "tune toy -o FOLDER/t.safetensors",
        "train --world rigid set --load 1 -o FOLDER",
        "tune --world rigid tetris --load 1 -o FOLDER/t.safetensors",
    ],
)
def test_an_output_that_could_not_be_named_as_a_policy_is_refused(
    command: str, folder: str, tmp_path: Path
) -> None:
    (tmp_path / folder).mkdir()
    done = refused(
        f"parcae {command.replace('FOLDER', folder)}",
        tmp_path,
        "could not be named as a policy",
        "choose another folder or file name",
    )
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / folder).iterdir()) == []


def test_an_output_is_refused_by_the_name_that_it_got(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("what took hours")
    (tmp_path / "link.csv").symlink_to("own.csv")
    done = run("parcae compare toy --per-job link.csv --deadlines own.csv", tmp_path)
    assert "parcae: --per-job link.csv would replace" in done.stderr


def test_a_tuning_may_go_on_in_its_file(tmp_path: Path) -> None:
    command = (
        "parcae tune --world rigid withhold --load 1 --window 10 --generations 1 -o own.safetensors"
    )
    assert run(command, tmp_path).returncode == 0
    assert run(f"{command} --start own.safetensors", tmp_path).returncode == 0


def test_two_outputs_may_go_to_one_device(tmp_path: Path) -> None:
    files = "--json /dev/null --keep /dev/null"
    done = run(f"parcae compare toy --seeds 2 --jobs 2 --cores 2 --policies fair {files}", tmp_path)
    assert "both write" not in done.stderr


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("compare toy --report r.html --per-job x.csv", "matplotlib"),
        ("compare --world rigid --load 1 --report r.html", "matplotlib"),
        ("simulate toy --gantt g.html", "matplotlib"),
        ("simulate toy --gantt g.png", "matplotlib"),
        ("simulate --world rigid --load 1 --policy withhold --gantt g.png", "matplotlib"),
        ("compare-logs a b --plot g.html", "matplotlib"),
        ("size toy --cores 2,4 --plot p.html", "matplotlib"),
        ("learn log -o out", "matplotlib"),
        ("learn log -o out", "cma"),
        ("reproduce decima-fig16", "matplotlib"),
    ],
)
def test_a_missing_library_is_reported_before_the_work(
    command: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("parcae.simulation.simulator.simulate", _never)
    monkeypatch.setattr("parcae.evaluation.comparison.compare_in", _never)
    done = refused(f"parcae {command}", tmp_path, f"this needs {module}, which is not installed")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def _never(*args: object, **kwargs: object) -> None:
    raise AssertionError("something ran")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--arrivals poison:3s", "arrivals 'poison:3s' are not understood"),
        ("--arrivals recorded", "cannot be learned on recorded arrivals"),
        ("--objective fast", "objective 'fast' does not exist"),
        ("--objective deadlines", "needs deadlines by job name: give --deadlines FILE"),
    ],
)
def test_learn_refuses_what_it_cannot_learn_before_it_reads(
    options: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "workload.parcae").write_text("of the finished command")
    refused(f"parcae learn no-such-log -o out {options}", tmp_path, words)
    assert (tmp_path / "out" / "workload.parcae").read_text() == "of the finished command"


def test_learn_keeps_the_workload_of_a_folder_if_no_deadline_matches(tmp_path: Path) -> None:
    write_workload(toy_workload(), tmp_path / "toy.parcae")
    (tmp_path / "due.csv").write_text("job,deadline\nnobody,5s\n")
    done = run("parcae learn toy.parcae -o out --deadlines due.csv", tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()


#: Commands with a policy that write no file of an option's name; learn starts from no file.
_WITHOUT_OUTPUTS = ("bench", "serve", "replay", "spark conf", "spark submit")
_WITHOUT_OUTPUTS += ("spark doctor", "spark kubernetes", "learn")


@pytest.mark.parametrize(
    ("flags", "excepted"),
    [
        ("-o --csv --plot --report --gantt --picture --per-job --recurring --keep", ()),
        ("--policies --policy --rule --start", _WITHOUT_OUTPUTS),
    ],
    ids=["outputs", "policies"],
)
def test_every_option_that_names_a_file_or_policies_is_checked(
    flags: str, excepted: tuple[str, ...]
) -> None:
    unchecked = [
        f"{name} {param.opts[0]}"
        for name, params in commands().items()
        for param in params
        if set(param.opts) & set(flags.split()) and param.callback is None
    ]
    assert [text for text in unchecked if not text.startswith(excepted)] == []


@pytest.mark.parametrize("command", ["tune toy -o t.safetensors --budget inf", "serve --for inf"])
def test_an_infinite_number_is_refused(command: str, tmp_path: Path) -> None:
    refused(f"parcae {command}", tmp_path, "is no finite number: give a number, such as 1.5")


def test_the_folder_of_recordings_is_checked_before_the_service_compiles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("parcae serve --workload missing --record file", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("parcae: file: ")
    assert "file is not a folder" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "compare empty.parcae --policies fair,fifo --seeds 2 --jobs 2 --cores 2",
        "size empty.parcae --cores 2,4 --seeds 2 --arrivals poisson:1s",
    ],
)
@pytest.mark.parametrize(
    ("mean_ms", "words"),
    [(0.0, "all task durations of workload 'toy' are 0 ms"), (5.0, "jobs of seed 0 take 0 ms")],
)
def test_runs_that_take_no_time_are_refused(
    command: str, mean_ms: float, words: str, tmp_path: Path
) -> None:
    none = TaskDurations.constant(0)
    workload = toy_workload().with_stages(
        lambda stage: replace(stage, durations=none, mean_task_ms=mean_ms)
    )
    write_workload(workload, tmp_path / "empty.parcae")
    refused(f"parcae {command}", tmp_path, words)
