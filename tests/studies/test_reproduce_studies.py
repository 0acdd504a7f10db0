"""Every study from beginning to end, on small random DAGs with budgets of seconds."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.papers.catalog import (
    CLASS_STUDIES,
    DECIMA_SETTINGS_STUDIES,
    REPLACED_BY_POLICIES,
    STUDIES,
    UNUSED,
    reproduce,
)
from parcae.papers.command import reproduce_study
from parcae.papers.study import StudyRequest, StudyResult
from parcae.papers.trainings import STUDIES_WITH_FINDINGS
from parcae.policies.checkpoint import read_checkpoint
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.workloads.archive import write_workload
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import RandomDags, random_dags

_SMALL = RandomDags(num_jobs=8, max_depth=3, max_width=2, mean_tasks=4.0, median_task_ms=500.0)
#: A row that the study's table must have.
_ROWS = {
    "decima-fig3": "fifo",
    "decima-fig9a": "weighted-fair:oracle",
    "decima-fig9b": "weighted-fair:tuned",
    "decima-fig10": "decima",
    "decima-fig11": "decima (TPC-H)",
    "decima-fig12": "fair:active",
    "decima-fig13": "decima for (c)",
    "decima-fig14": "Algorithm 1 without aligned baseline",
    "decima-fig15a": "limits of stages",
    "decima-fig15b": "decima",
    "decima-fig16": "best schedule",
    "decima-fig19": "one transform",
    "decima-fig20": "fair:active",
    "decima-fig21": "fair:active",
    "decima-fig22": "exhaustive search",
    "decima-fig23": "decima without durations",
    "decima-table2": "decima, trained on a mix, knows the gap",
    "idle-table1": "(1,1)",
    "idle-fig3": "real-world",
    "idle-fig4": "mixed",
    "idle-fig5": "learned (1,1)",
    "decima-table3": "decima, trained with a tenth of the executors",
    "objectives": "missed-deadlines",
    "shifts": "random DAGs, batch",
    "learning-curves": "decima, decima-2019",
}


def _request(folder: Path, name: str) -> StudyRequest:
    classes = decima_classes(4) if name in CLASS_STUDIES else ()
    return StudyRequest(
        random_dags(_SMALL, np.random.default_rng(3)),
        SimulationConfig(
            num_executors=4, executor_classes=classes, moving_delay_ms=100, warmup_delay_ms=50
        ),
        "load:0.5",
        folder,
        budget_s=0.2,
        num_runs=2,
        num_jobs=4,
        processes=1,
        policies=("fair:active",) if _ROWS[name] == "fair:active" else (),
    )


class _Watched(StudyRequest):
    """A request that notes which of its fields the study reads."""

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "__dict__").setdefault("read", set()).add(name)
        return super().__getattribute__(name)

    @classmethod
    def of(cls, request: StudyRequest) -> _Watched:
        watched = cls(**{one.name: getattr(request, one.name) for one in fields(request)})
        watched.__dict__["read"] = set()
        return watched


#: Studies whose sisters cover all of their parts in less time.
_LONG = ("decima-table3", "idle-fig4")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in _LONG else name for name in STUDIES],
)
def test_a_study_runs_to_its_table_picture_and_numbers(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = STUDIES[name]
    watched = list[_Watched]()

    def watch(request: StudyRequest) -> StudyResult:
        watched.append(_Watched.of(request))
        return run(watched[0])

    monkeypatch.setitem(STUDIES, name, watch)
    result, files = reproduce(name, _request(tmp_path, name), "parcae reproduce")
    assert any(_ROWS[name] in cell for row in result.rows for cell in row[:2])
    assert bool(result.findings) == (name in STUDIES_WITH_FINDINGS)
    assert all(len(row) == len(result.columns) for row in result.rows)
    found = json.loads(files.numbers.read_text())
    assert found["study"] == name
    assert found["settings"]["training_budget_s"] == 0.2
    assert files.picture.stat().st_size > 5_000
    assert result.paper in files.table.read_text()
    # Recipe and budget have no effect where a study has its policies already, and --full none where
    # the numbers are given, so this proves one direction.
    read = watched[0].__dict__["read"]
    assert {field for field, studies in UNUSED.items() if name in studies}.isdisjoint(read)
    used = {field for field, studies in UNUSED.items() if name not in studies}
    assert used - {"recipe", "budget_s", "is_full"} <= read
    if watched[0].policies:
        assert name in REPLACED_BY_POLICIES
        assert {"recipe", "budget_s", "decima"}.isdisjoint(read)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in _LONG else name
        for name in DECIMA_SETTINGS_STUDIES
    ],
)
def test_a_study_of_one_decima_runs_with_the_features_of_jobs(tmp_path: Path, name: str) -> None:
    request = replace(_request(tmp_path, name), decima=DecimaSettings(features=FeatureSet.JOBS))
    reproduce(name, request)
    paths = list((tmp_path / f"{name}-policies").glob("*.safetensors"))
    trained = [one for one in map(read_checkpoint, paths) if one.kind == "decima"]
    assert trained
    assert {one.settings["features"] for one in trained} == {"jobs"}


def test_the_error_for_other_studies_names_those_that_take_settings_of_decima() -> None:
    done = CliRunner().invoke(_app(), ["decima-fig14", "--decima", "features=jobs"])
    names = [name.removeprefix("decima-") for name in DECIMA_SETTINGS_STUDIES]
    assert f"({', '.join(names)})" in str(done.exception)


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--workload toy", "workload"),
        ("--executors 5", "config"),
        ("--jobs 2", "num_jobs"),
        ("--policy fair", "policies"),
        ("--runs 3", "num_runs"),
        ("--recipe imitation", "recipe"),
        ("--arrivals batch", "stream"),
        ("--budget 2", "budget_s"),
        ("--seed 3", "seed"),
        ("--full", "is_full"),
    ],
)
def test_options_that_a_study_does_not_use_are_refused_and_the_error_names_the_studies(
    option: str, field: str
) -> None:
    for study in UNUSED[field]:
        done = CliRunner().invoke(_app(), [study, *option.split()])
        text = str(done.exception)
        assert f"{option.split()[0]} has no effect here" in text
        if field == "stream":
            short = {one.removeprefix("decima-") for one in STUDIES if one not in UNUSED[field]}
        else:
            short = {one.removeprefix("decima-") for one in UNUSED[field]}
        assert {one for one in short if f" {one}" not in text} == set()


def _app() -> typer.Typer:
    app = typer.Typer()
    app.command()(reproduce_study)
    return app


def test_the_command_prints_the_table_and_the_paths(tmp_path: Path) -> None:
    done = CliRunner().invoke(_app(), ["decima-fig16", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "28.3" in done.output
    assert "20.3" in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"decima-fig16.{kind}" for kind in ("json", "md", "png")
    ]


def test_the_command_takes_the_cluster_and_the_size_of_the_runs(tmp_path: Path) -> None:
    words = (
        "decima-fig3 --workload toy --executors 3 --moving-delay-ms 7 --runs 2 --jobs 3 "
        "--policy fair:active --processes 1"
    )
    done = CliRunner().invoke(_app(), [*words.split(), "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "decima-fig3.json").read_text())
    assert found["settings"]["config"]["num_executors"] == 3
    assert found["settings"]["config"]["moving_delay_ms"] == 7
    assert [row[0] for row in found["table"]["rows"]] == ["fifo", "sjf-cp", "fair", "fair:active"]


def test_the_command_takes_no_parallelism_model_if_the_user_says_so(tmp_path: Path) -> None:
    fingerprints = {}
    for model in ("", "none", "decima-cluster"):
        words = ["decima-fig3", "--policy", "tuned", "--runs", "2", "--jobs", "2"]
        words += ["--parallelism-model", model] if model else []
        done = CliRunner().invoke(_app(), [*words, "-o", str(tmp_path)])
        assert done.exit_code == 0, done.output
        card = json.loads((tmp_path / "decima-fig3.json").read_text())
        fingerprints[model] = card["settings"]["fingerprint"]
    # By itself, a study gives the small jobs of tpch the model of the paper's cluster.
    assert fingerprints[""] == fingerprints["decima-cluster"]
    assert fingerprints["none"] != fingerprints[""]


def test_policies_without_a_name_are_refused(tmp_path: Path) -> None:
    words = ["decima-fig3", "--workload", "toy", "--policy", "", "-o", str(tmp_path)]
    assert "leaves a name empty" in str(CliRunner().invoke(_app(), words).exception)


def test_the_command_trains_with_other_settings_of_decimas_network(tmp_path: Path) -> None:
    words = (
        "decima-fig23 --workload toy --executors 3 --runs 2 --jobs 3 --processes 1 --budget 0.01 "
        "--decima features=jobs"
    )
    done = CliRunner().invoke(_app(), [*words.split(), "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "decima-fig23.json").read_text())
    assert found["settings"]["decima"] == {"features": "jobs"}
    trained = sorted((tmp_path / "decima-fig23-policies").iterdir())
    assert [read_checkpoint(path).settings["features"] for path in trained] == ["jobs"] * 2
    assert any("with the feature set jobs, recipe fast" in note for note in found["notes"])


def test_the_command_replays_a_trace_on_executor_classes(tmp_path: Path) -> None:
    jobs = random_dags(_SMALL, np.random.default_rng(3)).jobs
    write_workload(
        Workload("log", tuple(job.at(1_000 * row) for row, job in enumerate(jobs))),
        tmp_path / "log.parcae",
    )
    words = (
        "decima-fig20 --workload toy --executors 8 --jobs 3 --policy fair:active --processes 1 "
        "--trace"
    )
    done = CliRunner().invoke(
        _app(), [*words.split(), str(tmp_path / "log.parcae"), "-o", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "decima-fig20.json").read_text())
    assert {row[0] for row in found["table"]["rows"]} == {"TPC-H", "log"}
    assert found["settings"]["recorded"]["arrivals"] == "trace:0.8"
    assert [
        c["num_executors"] for c in found["settings"]["recorded"]["config"]["executor_classes"]
    ] == [2, 2, 2, 2]
    refused = CliRunner().invoke(
        _app(), ["decima-fig3", "--trace", str(tmp_path / "log.parcae"), "-o", str(tmp_path)]
    )
    assert "decima-fig3 does not use a --trace" in str(refused.exception)


def test_the_command_refuses_an_unknown_study(tmp_path: Path) -> None:
    done = CliRunner().invoke(_app(), ["decima-fig99", "-o", str(tmp_path)])
    assert done.exit_code != 0
    assert "unknown study" in str(done.exception)
    assert not list(tmp_path.iterdir())
