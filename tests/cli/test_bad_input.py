"""Bad input on the command line: one clear message, the exit code 2, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import refused


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("parcae simulate nothing", "no workload 'nothing'"),
        ("parcae simulate toy --policy fiar", "did you mean 'fair'"),
        ("parcae simulate toy --gantt g.gif", "g.gif: charts are written as .html, .png"),
        ("parcae tune toy -o nowhere/x.safetensors", "the folder of this file does not exist"),
        ("parcae simulate toy --arrivals sometimes", "poisson:25s"),
        ("parcae simulate toy --durations often", "sampled, first, mean"),
        ("parcae simulate toy --arrivals recorded", "no recorded arrivals"),
        ("parcae simulate toy --job-set nowhere.json", "nowhere.json: No such file"),
        ("parcae simulate toy --executor-classes big", "write decima, or EXECUTORSxCPUxMEMORY"),
        ("parcae simulate toy --executor-classes 1x1x1 --executors 2", "leave out --executors"),
        ("parcae simulate toy --executor-classes 70000x1x1", "config: the executor classes have"),
        ("parcae simulate toy --world moon", "write cores or executors"),
        (
            "parcae simulate toy --world cores --moving-delay-ms 500",
            "--moving-delay-ms exists in the world of executors only",
        ),
        ("parcae simulate toy --cores 2 --executors 3", "the same number"),
        ("parcae simulate toy --policy sprt", "did you mean 'srpt'"),
        ("parcae simulate toy --policy srpt --world executors", "--world cores"),
        ("parcae simulate toy --policy srpt+guard:1", "write a factor above 1"),
        ("parcae simulate toy --policy fair:nowhere.xml", "nowhere.xml: No such file"),
        ("parcae simulate toy --estimate-error often", "write log"),
        ("parcae simulate toy --faults often", "'often' cannot be read; write none, log"),
        ("parcae simulate toy --faults log", "import its Spark event logs again"),
        (
            "parcae compare toy --world executors --faults failures=0.1",
            "exists in the world of cores only",
        ),
        ("parcae size toy --cores 4,2 --arrivals batch", "--cores: give every size once"),
        ("parcae size toy --cores 2,4 --plot s.bmp", "s.bmp: give the picture one of the endings"),
        ("parcae size toy --cores 2 --arrivals batch --faults lost=-1", "greater than or equal"),
        ("parcae simulate toy --cores 0..10", "10 cores are not whole executors of 4 cores"),
        ("parcae simulate toy --cores 8..4", "write a number from 1 to 65,536, or to simulate"),
        ("parcae simulate toy --cores 0", "write a number from 1 to 65,536, or to simulate"),
        ("parcae simulate toy --cores 8 --idle-timeout 3s", "--idle-timeout has no effect here"),
        (
            "parcae compare toy --cores 8 --cores-per-executor 2",
            "--cores-per-executor has no effect",
        ),
        ("parcae simulate toy --cores 0..8 --executor-start 3", "write a time in ms, s, m or h"),
        ("parcae simulate toy --cores 0..8 --world executors", "world of cores only"),
        ("parcae simulate toy --cores 0..8 --moving-delay-ms 1", "world of cores only"),
        ("parcae size toy --cores 0..8 --arrivals batch", "give a fixed size to compare with"),
        (
            "parcae size toy --cores 8 --backlog-timeout 1s --arrivals batch",
            "it applies only to elastic clusters",
        ),
        ("parcae size toy --cores 8,8..4 --arrivals batch", "write whole numbers"),
        ("parcae compare toy --policies fair,graphene:tuned", "--world executors"),
        ("parcae compare toy --per-job j.json", "j.json: jobs are written as .csv or .parquet"),
        ("parcae compare toy --recurring j.txt", "written as .csv or .json or .parquet"),
        ("parcae compare toy --policies fair,", "'fair,' leaves a name empty"),
        (
            "parcae bench decision --workload toy --policies static:oracle",
            "policy 'static:oracle' is another one for each sequence of jobs",
        ),
        ("parcae simulate", "give a workload"),
        ("parcae simulate --job-set broken.parcae", "broken.parcae:1: not JSON"),
        ("parcae simulate toy --job-set cyclic.json", "contains its own jobs: leave out toy"),
        ("parcae simulate --job-set cyclic.json", "job 0: "),
        (
            "parcae export fair toy -o x.json",
            "policy 'fair' cannot be exported: choose srpt, tuned, tuned:VARIANT",
        ),
        ("parcae export srpt toy -o x.json --world executors", "write --world cores"),
        ("parcae export srpt toy -o missing/x.json", "the folder of this file does not exist"),
        ("parcae export srpt nothing -o x.json", "no workload 'nothing'"),
        ("parcae workload prepare toy -o x.parcae", "nothing to prepare"),
        ("parcae compare toy --parallelism-model magic", "decima-cluster"),
        ("parcae compare toy --policies fair --seeds 2 --report missing/r.html", "missing"),
        ("parcae simulate toy --policy parcae:big", "no such variant; shipped are"),
        (
            "parcae simulate toy --policy nothing.safetensors",
            "nothing.safetensors: no such checkpoint",
        ),
        (
            "parcae compare toy --policies fair,broken.safetensors",
            "broken.safetensors: not a checkpoint, or an incomplete one",
        ),
        ("parcae tune toy --objective speed -o x.parcae", "average-jct, makespan"),
        ("parcae tune toy --arrivals recorded -o x.parcae", "load:0.85"),
        (
            "parcae tune toy --also arrivals=recorded -o x.safetensors",
            "cannot be learned on recorded arrivals",
        ),
        ("parcae tune toy --also 'jobs=3 jobs=4' -o x.safetensors", "jobs is given twice"),
        ("parcae tune toy --also 'cores=3 executors=4' -o x.safetensors", "is given twice"),
        *(
            (
                f"parcae tune toy --world executors --also {name}={number} -o x.safetensors",
                f"--also {name}: {message}",
            )
            for name, number, message in (
                ("jobs", "9" * 5_000, "Unable to parse input string as an integer"),
                ("jobs", 1_000_001, "Input should be less than or equal to 1000000"),
                ("executors", 65_537, "Input should be less than or equal to 65536"),
                ("moving_delay_ms", 10**13, "Input should be less than or equal to 1000000000000"),
            )
        ),
        (
            "parcae tune toy --also speed=3 -o x.parcae",
            "arrivals=..., jobs=N, cores=N (or executors=N)",
        ),
        ("parcae tune nothing -o x.parcae", "no workload 'nothing'"),
        ("parcae train toy --network gcn -o x.parcae", "known are parcae, corrector, decima"),
        (
            "parcae train toy --world executors --recipe slow -o x.parcae",
            "fast, imitation, decima-2019",
        ),
        (
            "parcae train toy --world executors --set learning_rat=1 -o x.parcae",
            "did you mean 'learning_rate'",
        ),
        (
            "parcae train toy --decima limit=input --network decima -o x.parcae",
            "did you mean 'limits'",
        ),
        (
            "parcae train toy --rule broken.safetensors -o x.parcae",
            "broken.safetensors: not a checkpoint",
        ),
        ("parcae train toy --world executors --device cuda:99 -o x.parcae", "finds no such CUDA"),
        ("parcae train toy --world executors --device gpu -o x.parcae", "write cpu or cuda"),
        ("parcae learn nothing --world executors --device gpu -o x", "write cpu or cuda"),
        (
            "parcae train toy --world cores --recipe fast -o x.parcae",
            "--recipe has no effect with --network parcae",
        ),
        (
            "parcae train toy --world cores --rule tuned:classes -o x.parcae",
            "which has no rule for --world cores",
        ),
        ("parcae reproduce decima-fig33", "did you mean 'decima-fig3'"),
        ("parcae serve --policy fiar --for 1", "did you mean 'fair'"),
        ("parcae serve --host 0.0.0.0 --for 1", "give --secret-file"),
        ("parcae serve --scope rack --for 1", "'application' or 'cluster'"),
        ("parcae serve --arrivals often --for 1", "arrivals 'often' are not understood"),
        ("parcae serve --secret-file nowhere --for 1", "nowhere: No such file"),
        ("parcae serve --tls-cert broken.parcae --for 1", "belong together"),
        ("parcae replay nowhere.jsonl", "nowhere.jsonl: No such file"),
        (
            "parcae replay broken.parcae",
            "broken.parcae: not a recording of `parcae serve --record`",
        ),
        ("parcae learn nowhere -o x.parcae", "nowhere"),
        ("parcae compare-logs nowhere nowhere", "nowhere: no such file or directory"),
        (
            "parcae compare-logs broken.parcae broken.parcae",
            "broken.parcae does not begin like a Spark event log",
        ),
        (
            "parcae compare-logs broken.parcae broken.parcae --plot x.jpeg",
            "x.jpeg: charts are written as .html, .png, .svg, .pdf",
        ),
        ("parcae spark build --spark-home .", "is no Spark"),
        ("parcae workload import spark-events nowhere -o x.parcae", "nowhere"),
        ("parcae workload import tpch-profiles nowhere.json -o x.parcae", "nowhere.json"),
        ("parcae workload import alibaba nowhere.csv -o x.parcae", "nowhere.csv"),
        ("parcae workload import csv nowhere.csv -o x.parcae", "nowhere.csv"),
        ("parcae workload import parquet nowhere.parquet -o x.parcae", "nowhere.parquet"),
        ("parcae workload import json nowhere.json -o x.parcae", "nowhere.json"),
        ("parcae workload describe broken.parcae", "broken.parcae: not a Parcae workload file"),
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
    done = refused(command, tmp_path, message)
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
