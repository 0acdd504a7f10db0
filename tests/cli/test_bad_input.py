"""Bad input on the command line: one clear message, the exit code 2, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import refused


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("simulate nothing", "no workload 'nothing'"),
        ("simulate toy --policy fiar", "did you mean 'fair'"),
        ("simulate toy --gantt g.gif", "g.gif: charts are written as .html, .png"),
        ("tune toy -o nowhere/x.safetensors", "the folder of this file does not exist"),
        ("simulate toy --arrivals sometimes", "poisson:25s"),
        ("simulate toy --durations often", "sampled, first, mean"),
        ("simulate toy --arrivals recorded", "no recorded arrivals"),
        ("simulate toy --job-set nowhere.json", "nowhere.json: No such file"),
        ("simulate toy --executor-classes big", "write decima, or EXECUTORSxCPUxMEMORY"),
        ("simulate toy --executor-classes 1x1x1 --executors 2", "leave out --executors"),
        ("simulate toy --executor-classes 70000x1x1", "parcae: the executor classes have"),
        ("simulate toy --policy srpt+guard:1", "accounts of users replace the guard"),
        ("simulate toy --policy fair:nowhere.xml", "nowhere.xml: No such file"),
        (
            "compare toy --world executors --faults failures=0.1",
            "exists in the world of cores only",
        ),
        ("size toy --cores 2,4 --plot s.bmp", "s.bmp: give the picture one of the endings"),
        ("size toy --cores 2 --arrivals batch --faults lost=-1", "greater than or equal"),
        ("simulate toy --cores 0..10", "10 cores cannot be whole executors of 4 cores"),
        ("simulate toy --cores 8..4", "write a number from 1 to 65,536, or to simulate"),
        ("simulate toy --cores 8 --idle-timeout 3s", "--idle-timeout has no effect here"),
        ("compare toy --cores 8 --cores-per-executor 2", "--cores-per-executor has no effect"),
        ("simulate toy --cores 0..8 --executor-start 3", "write a time in ms, s, m or h"),
        ("simulate toy --cores 0..8 --world executors", "world of cores only"),
        ("size toy --cores 0..8 --arrivals batch", "give a fixed size to compare with"),
        (
            "size toy --cores 8 --backlog-timeout 1s --arrivals batch",
            "it applies only to elastic clusters",
        ),
        ("size toy --cores 8,8..4 --arrivals batch", "write whole numbers"),
        ("compare toy --per-job j.json", "j.json: jobs are written as .csv or .parquet"),
        ("compare toy --recurring j.txt", "written as .csv or .json or .parquet"),
        (
            "bench decision --workload toy --policies static:oracle",
            "policy 'static:oracle' is another one for each sequence of jobs",
        ),
        ("simulate", "give a workload"),
        ("simulate --job-set broken.parcae", "broken.parcae:1: not JSON"),
        ("simulate toy --job-set cyclic.json", "contains its own jobs: leave out toy"),
        ("simulate --job-set cyclic.json", "job 0: "),
        (
            "export fair toy -o x.json",
            "policy 'fair' cannot be exported: choose srpt, tuned, parcae, one of their variants",
        ),
        ("export srpt toy -o x.json --world executors", "write --world cores"),
        ("export srpt toy -o missing/x.json", "the folder of this file does not exist"),
        ("workload prepare toy -o x.parcae", "nothing to prepare"),
        ("compare toy --parallelism-model magic", "decima-cluster"),
        ("compare toy --policies fair --seeds 2 --report missing/r.html", "missing"),
        ("tune toy --arrivals recorded -o x.parcae", "load:0.85"),
        (
            "tune toy --also arrivals=recorded -o x.safetensors",
            "cannot be learned on recorded arrivals",
        ),
        ("tune toy --also 'jobs=3 jobs=4' -o x.safetensors", "jobs is given twice"),
        ("tune toy --also 'cores=3 executors=4' -o x.safetensors", "is given twice"),
        *(
            (
                f"tune toy --world executors --also {name}={number} -o x.safetensors",
                f"--also {name}: {message}",
            )
            for name, number, message in (
                ("jobs", "9" * 5_000, "Unable to parse input string as an integer"),
                ("jobs", 1_000_001, "Input should be less than or equal to 1000000"),
                ("executors", 65_537, "Input should be less than or equal to 65536"),
                ("moving_delay_ms", 10**13, "Input should be less than or equal to 1000000000000"),
            )
        ),
        ("tune toy --also speed=3 -o x.parcae", "arrivals=..., jobs=N, cores=N (or executors=N)"),
        ("train toy --network gcn -o x.parcae", "known are parcae, corrector, decima"),
        ("train toy --decima limit=input --network decima -o x.parcae", "did you mean 'limits'"),
        ("train toy --rule broken.safetensors -o x.parcae", "broken.safetensors: not a checkpoint"),
        ("learn nothing --world executors --device gpu -o x", "write cpu or cuda"),
        (
            "train toy --world cores --recipe fast -o x.parcae",
            "--recipe has no effect with --network parcae",
        ),
        (
            "train toy --world cores --rule tuned:classes -o x.parcae",
            "which has no rule for --world cores",
        ),
        ("serve --host 0.0.0.0 --for 1", "give --secret-file"),
        ("serve --tls-cert broken.parcae --for 1", "belong together"),
        ("serve --scope rack --for 1", "'application' or 'cluster'"),
        ("serve --arrivals often --for 1", "arrivals 'often' are not understood"),
        ("serve --secret-file nowhere --for 1", "nowhere: No such file"),
        ("replay nowhere.jsonl", "nowhere.jsonl: No such file"),
        ("learn nowhere -o x.parcae", "nowhere"),
        ("compare-logs nowhere nowhere", "nowhere: no such file or directory"),
        (
            "compare-logs broken.parcae broken.parcae",
            "broken.parcae does not begin like a Spark event log",
        ),
        (
            "compare-logs broken.parcae broken.parcae --plot x.jpeg",
            "x.jpeg: charts are written as .html, .png, .svg, .pdf",
        ),
        ("spark jar --spark-home .", "is no Spark"),
        ("workload import spark-events nowhere -o x.parcae", "nowhere"),
        ("workload import tpch-profiles nowhere.json -o x.parcae", "nowhere.json"),
        ("workload import alibaba nowhere.csv -o x.parcae", "nowhere.csv"),
        ("workload import csv nowhere.csv -o x.parcae", "nowhere.csv"),
        ("workload import parquet nowhere.parquet -o x.parcae", "nowhere.parquet"),
        ("workload import json nowhere.json -o x.parcae", "nowhere.json"),
        ("workload describe broken.parcae", "broken.parcae: not a Parcae workload file"),
    ],
)
def test_bad_input_ends_with_exit_code_2_and_one_clear_line(
    tmp_path: Path, command: str, message: str
) -> None:
    (tmp_path / "broken.parcae").write_text("not a zip")
    (tmp_path / "broken.safetensors").write_text("not a checkpoint")
    cyclic = {"arrival_ms": 0, "edges": [[0, 1], [1, 0]], "task_ms": [[5], [7]]}
    sets = {
        "format": "parcae spark world conformance 1",
        "sets": [{"name": "a", "cores": 1, "jobs": [cyclic]}],
    }
    (tmp_path / "cyclic.json").write_text(json.dumps(sets))
    done = refused(f"parcae {command}", tmp_path, message)
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x.parcae").exists()


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("simulate --world rigid --load 1", "--units"),
        ("simulate --world rigid --load 1", "--resources"),
        ("bench rigid", "--clusters"),
        ("bench rigid", "--repetitions"),
        ("serve --for 0 --port 0", "--demo"),
    ],
)
def test_huge_numbers_are_refused_before_the_command_begins(
    tmp_path: Path, command: str, option: str
) -> None:
    refused(f"parcae {command} {option} 100000000000", tmp_path, f"Invalid value for '{option}'")
