"""`parcae packing` in this process: exit codes, JSON, and a one-line message on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.names import parse_name
from parcae.rigid.policies.catalog import PackingSetting, make_packing_policy, packing_checkpoint
from parcae.rigid.policies.policy import PackingPolicy
from tests.cli.packing_files import swf_text, write_packing_files
from tests.cli.running import ran, refused
from tests.conftest import shared_data


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    write_packing_files(tmp_path)


def _in_rigid(command: str) -> str:
    verb, _, rest = command.partition(" ")
    return f"parcae {verb} --world rigid {rest}"


def test_every_sequence_of_a_job_set_has_the_variant_of_its_own_arrivals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(text: str, setting: PackingSetting | None) -> PackingPolicy:
        made.append(packing_checkpoint(parse_name(text), setting))
        return make_packing_policy("sjf")

    monkeypatch.setattr("parcae.rigid.evaluation.tuning.make_packing_policy", make)
    params = {"job_slots": 10, "backlog_size": 60, "time_horizon": 20, "capacity": 10}
    sequences = [
        {
            "name": str(gap),
            "arrival_window": 40,
            "params": params,
            "jobs": [[at, 1, 1, 1] for at in range(0, 40, gap)],
        }
        for gap in (1, 2, 10)
    ]
    (tmp_path / "own.json").write_text(json.dumps({"sequences": sequences}))
    ran(
        "parcae simulate --world rigid --job-set own.json --set all --policy deeprm --json",
        tmp_path,
    )
    assert [path.stem for path in made if path] == ["deeprm-1.0", "deeprm-0.5", "deeprm-0.1"]


def test_every_shared_sequence_runs_exactly_as_with_the_authors_code(tmp_path: Path) -> None:
    path = shared_data("conformance/deeprm.json")
    done = ran(
        f"parcae simulate --world rigid --job-set {path} --set all --policy all --json", tmp_path
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    sequences = json.loads(path.read_text())["sequences"]
    expected = {
        (s["name"], policy): result for s in sequences for policy, result in s["expected"].items()
    }
    assert len(rows) == len(expected) == 28
    for row in rows:
        wanted = expected[row["sequence"], row["policy"]]
        for key in ("start", "finish", "decisions"):
            assert row[key] == wanted[key], (row, key)
        for key in ("slowdown", "reward", "reward_as_coded"):
            assert row[key] == pytest.approx(wanted[key], abs=1e-6), (row, key)


def test_simulate_draws_a_sequence_or_runs_a_log_and_prints_a_table(tmp_path: Path) -> None:
    done = ran(
        "parcae simulate --world rigid --load 70% --policy sjf,easy --seed 1003 --gantt g.png",
        tmp_path,
    )
    assert "slowdown" in done.stdout
    assert (tmp_path / "g.png").exists()
    done = ran("parcae simulate --world rigid --swf log.swf --policy fcfs --json", tmp_path)
    row = json.loads(done.stdout)
    assert len(row["start"]) == 800
    assert row["reward_as_coded"] is None


def test_compare_writes_json_and_a_report(tmp_path: Path) -> None:
    done = ran(
        "parcae compare --world rigid --load 1.3 --policies sjf,packer,tetris --seeds 4 "
        "--json c.json "
        "--report r.html",
        tmp_path,
    )
    assert "tetris: knob " in done.stdout
    data = json.loads((tmp_path / "c.json").read_text())
    assert list(data["policies"]) == ["sjf", "packer", "tetris"]
    assert data["settings"]["source"]["rates"] == [pytest.approx(0.704607, abs=1e-6)]
    assert data["settings"]["objective"] == "slowdown"
    assert data["settings"]["tune_budget_s"] == 120.0
    assert "load 1.3, mix code" in (tmp_path / "r.html").read_text()


def test_compare_runs_a_log_and_says_what_reading_it_met(tmp_path: Path) -> None:
    (tmp_path / "torn.swf").write_text(swf_text(100) + "101 9000 -1 5")
    done = ran(
        "parcae compare --world rigid --swf torn.swf --policies easy,sjf --part all --json c.json",
        tmp_path,
    )
    data = json.loads((tmp_path / "c.json").read_text())
    assert data["measure"] == "bounded_slowdown"
    assert data["settings"]["jobs"] == 100
    assert data["settings"]["read"]["bad"] == 1
    assert data["settings"]["estimates"] == "requested"
    assert data["settings"]["partitions"] is None
    assert "torn.swf:103: truncated" in data["settings"]["read"]["bad_samples"][0]
    assert "bad row: torn.swf:103: truncated" in done.stderr


@pytest.mark.parametrize(
    "command",
    ["compare --policies easy,sjf", "simulate --policy easy", "tune tetris -o t.safetensors"],
)
def test_lines_of_a_log_are_not_dropped_without_a_word(tmp_path: Path, command: str) -> None:
    lost = "101 99999 -1 -1 2 -1 -1 -1 50 -1 0 -1 -1 -1 0 0 -1 -1\n"
    (tmp_path / "some.swf").write_text(swf_text(100) + lost)
    done = ran(f"{_in_rigid(command)} --swf some.swf", tmp_path)
    assert "note: 1 dropped: no run time (first: some.swf:103)" in done.stderr


def test_accounting_is_described_and_compared_by_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    described = json.loads(
        ran("parcae workload describe --world rigid sacct.txt --json", tmp_path).stdout
    )
    assert described["partitions"] == {"short": 50, "long": 50}
    assert described["waited_s"]["mean"] == 30
    done = ran(
        "parcae compare --world rigid --log sacct.txt --partitions long --policies easy --part all "
        "--json c.json",
        tmp_path,
    )
    data = json.loads((tmp_path / "c.json").read_text())
    assert data["policies"]["as recorded"]["waiting"]["mean"] == 30
    assert [user["user"] for user in data["users"]] == ["u1", "u3"]
    before, after = (done.stdout.index(f"│ {name} ") for name in ("as recorded", "easy"))
    assert done.stdout.index("Warning: in the log jobs waited 30.0 s") < before < after


def test_a_log_is_simulated_under_easy_unless_another_policy_is_named(tmp_path: Path) -> None:
    done = ran("parcae simulate --world rigid --swf log.swf --json", tmp_path)
    assert json.loads(done.stdout)["policy"] == "easy"
    done = ran("parcae simulate --world rigid --load 1 --json", tmp_path)
    assert json.loads(done.stdout)["policy"] == "sjf"


def test_a_tuned_rule_is_a_policy_and_is_gone_on_from(tmp_path: Path) -> None:
    done = ran(
        "parcae tune --world rigid withhold --load 1.3 --generations 1 --budget 1 -o "
        "w.safetensors --json",
        tmp_path,
    )
    result = json.loads(done.stdout)
    # Two searches of one generation each.
    assert result["generations"] == 2
    assert read_checkpoint(tmp_path / "w.safetensors").card["objective"] == "slowdown"
    done = ran(
        "parcae tune --world rigid withhold --load 1.3 --generations 1 --start w.safetensors "
        "-o w2.safetensors --json",
        tmp_path,
    )
    assert json.loads(done.stdout)["cost"] <= result["cost"]
    tetris = "parcae tune --world rigid tetris --swf log.swf --objective slowdown+makespan"
    ran(f"{tetris} -o t.safetensors", tmp_path)
    card = read_checkpoint(tmp_path / "t.safetensors").card
    assert card["objective"] == "slowdown+makespan"
    done = ran(
        "parcae compare --world rigid --load 1.3 --policies "
        "sjf,w2.safetensors,t.safetensors --seeds 3 "
        "--json c.json",
        tmp_path,
    )
    compared = json.loads((tmp_path / "c.json").read_text())["policies"]
    assert list(compared) == ["sjf", "w2.safetensors", "t.safetensors"]


def test_a_network_is_trained_resumed_and_compared(tmp_path: Path) -> None:
    train = (
        "parcae train --world rigid set --load 0.1:1.84 -o trained --set num_groups=2 "
        "--set group_size=2 "
        "--select-every 1 --json"
    )
    result = json.loads(ran(f"{train} --iterations 1", tmp_path).stdout)
    assert result["iterations"] == 1
    card = read_checkpoint(tmp_path / "trained" / "best.safetensors").card
    assert len(card["source"]["rates"]) == 10
    refused(f"{train} --iterations 2", tmp_path, "already contains a training")
    assert json.loads(ran(f"{train} --iterations 2 --resume", tmp_path).stdout)["iterations"] == 2
    assert any((tmp_path / "trained" / "tensorboard").iterdir())
    ran(
        "parcae compare --world rigid --load 1.3 --policies sjf,trained/best.safetensors --seeds 3",
        tmp_path,
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("simulate", "one of --load 1.3, --rate 0.7 and --swf FILE"),
        ("simulate --job-set deeprm.json --load 1", "--load has no effect here"),
        ("train set --swf log.swf --processors 10000 -o t", "so there is nothing to learn"),
        ("simulate --swf log.swf --gantt g.png", "leave it out, or draw a smaller run"),
        ("compare --load 1 --swf log.swf", "only to jobs that are drawn"),
        ("compare --load 1 --rate 0.5", "one of --load 1.3, --rate 0.7"),
        ("compare --load 10%:184", "'10%:184' is not a range: write 0.1:1.84 or 10:184%"),
        *(
            (f"{command} --objective utilization", "for every policy that starts them all: use")
            for command in (
                "compare --load 1 --policies tetris",
                "train set --load 1 -o x",
            )
        ),
        ("train a2c --swf log.swf -o x", "use a policy that needs no image (set)"),
        ("tune sjf --load 1 -o x.safetensors", "'sjf' cannot be tuned"),
        *(
            (
                f"tune tetris --load 1 -o x.safetensors {option}",
                f"{option.split()[0]} has no effect here: it applies only to withhold",
            )
            for option in ("--budget 1", "--generations 1", "--start w.safetensors", "--seed 1")
        ),
        ("tune tetris --load 1 -o x.txt", "with a name that ends in .safetensors"),
        ("train foo --load 1 -o x", "no learner 'foo'"),
        (
            "tune tetris --swf memory.swf --also-swf log.swf --memory 9 -o x.safetensors",
            "but log.swf contains no job's memory: leave out --memory, or this log",
        ),
    ],
)
def test_bad_input_ends_with_one_clear_line(tmp_path: Path, command: str, message: str) -> None:
    head = "; MaxProcs: 2\n"
    job = "1 0 -1 5 1 -1 -1 -1 -1 9 1 -1 -1 -1 0 -1 -1 -1\n"
    (tmp_path / "memory.swf").write_text(head + 2 * job)
    done = refused(_in_rigid(command), tmp_path, message)
    lines = done.stderr.strip().splitlines()
    assert len([line for line in lines if not line.startswith("note: ")]) == 1
