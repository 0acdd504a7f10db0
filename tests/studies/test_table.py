"""Every row of the table of studies, and four studies from beginning to end."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from parcae.base.errors import ConfigError
from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.evaluation.policies import resolve_policies
from parcae.learning.scenario import Scenario
from parcae.papers.command import reproduce_study
from parcae.papers.contenders import (
    GREEDY,
    RecordedTrace,
    Request,
    RigidTraining,
    Stage,
    rigid_policies,
)
from parcae.papers.figures import SEARCH
from parcae.papers.runner import Study, reproduce
from parcae.papers.table import STUDIES, find_study, paper_setting
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.rigid.deeprm.kernels import DeepRMSettings, initial_weights
from parcae.rigid.layout import Cost
from parcae.rigid.sources import DrawnSource
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.synthetic import RandomDags, chain, random_dags
from parcae.workloads.workload import Workload

_SMALL = RandomDags(num_jobs=8, max_depth=3, max_width=2, mean_tasks=4.0, median_task_ms=500.0)
_JOBS = random_dags(_SMALL, np.random.default_rng(3))
_OPTIONS = {"workload", "arrivals", "runs", "recipe", "budget", "seed"}


def _request(folder: Path, study: Study, *policies: str) -> Request:
    if study.is_rigid:
        return Request(folder, budget_s=0.02, num_runs=4, processes=1, policies=policies)
    config = SimulationConfig(
        num_executors=4,
        executor_classes=decima_classes(4) if study.has_classes else (),
        moving_delay_ms=100,
        warmup_delay_ms=50,
    )
    return Request(
        folder,
        _JOBS,
        config,
        "load:0.5",
        budget_s=0.2,
        num_runs=2,
        num_jobs=4,
        processes=1,
        policies=policies,
    )


def _log(folder: Path) -> Path:
    """A log of 160 jobs of two processors, of which each half has one piece of 60."""
    lines = [f"{n} {60 * n} -1 7200 2 -1 -1 2 -1 -1 1 1 1 -1 1 -1 -1 -1" for n in range(160)]
    log = folder / "short.swf"
    log.write_text("; MaxProcs: 8\n" + "\n".join(lines) + "\n")
    return log


def test_every_figure_and_table_of_the_papers_is_a_row() -> None:
    decima = ("3", "9a", "9b", *range(10, 15), "15a", "15b", 16, *range(19, 24))
    names = [
        *(f"decima-fig{number}" for number in decima),
        *("decima-table2", "decima-table3"),
        *("objectives", "shifts", "learning-curves", "applications"),
        *("idle-table1", "idle-fig3", "idle-fig4", "idle-fig5"),
        *("deeprm-fig4", "deeprm-fig5", "deeprm-fig6", "deeprm-fig7"),
        *("a2c-table1", "a2c-table2", "a2c-table3", "a2c-table4"),
    ]
    assert list(STUDIES) == names
    with pytest.raises(ConfigError, match="did you mean 'deeprm-fig4'"):
        find_study("deeprm-fig44")


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_a_row_is_well_formed_and_its_policies_are_known(tmp_path: Path, study: Study) -> None:
    assert study.ignores <= _OPTIONS
    assert study.given in ("", "replaces", "agents")
    assert study.runs[0] <= study.runs[1]
    request = replace(_request(tmp_path, study), log=_log(tmp_path) if study.needs_log else None)
    if study.has_classes:
        jobs = tuple(job.at(1_000 * row) for row, job in enumerate(_JOBS.jobs))
        trace = RecordedTrace(Workload("alibaba", jobs), request.config, "trace:0.8")
        request = replace(request, recorded=trace)
    parts = study.parts(request)
    keys = {key for part in parts for key in part.trainings}
    labels = {label for part in parts for label in part.policies}
    for part in parts:
        others = {
            label: name
            for label, name in part.policies.items()
            if name.removesuffix(GREEDY) not in keys
        }
        if isinstance(part.setting, Stage):
            known = replace(part, policies={k: v for k, v in others.items() if "tetris" not in v})
            assert rigid_policies(known, {}, 1).keys() == known.policies.keys()
        elif isinstance(part.setting, Scenario):
            one = part.setting
            names = [name for name in others.values() if ":tuned" not in name]
            resolve_policies(one.workload, names, one.config, one.arrivals, one.num_jobs)
        for training in part.trainings.values():
            assert isinstance(training, RigidTraining) == study.is_rigid
            assert set(getattr(training, "over", ())) <= keys
    # Claims are about policies, parts and measures of the study, and say where the paper has them.
    for claim in study.claims:
        assert {claim.first, claim.second} <= labels | {"", SEARCH}
        assert claim.where in {"", "each", "last", *(part.name for part in parts)}
        assert any(fnmatch(claim.key, one.key) for one in study.measures)
        assert re.match("(Figure|Table) [0-9I]+", claim.source or study.source)
        assert claim.second or claim.paper


#: Studies that are run here, with what must be in the first cells of a row. The others are run with
#: `-m slow`.
_RUN = {
    "decima-fig11": "decima (TPC-H)",
    "decima-fig16": "lower bound",
    "decima-fig23": "decima without durations",
    "deeprm-fig6": "deeprm, fresh",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in _RUN else pytest.mark.slow) for name in STUDIES],
)
def test_a_study_runs_to_its_table_picture_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("parcae.rigid.evaluation.tuning._NUM_SEQUENCES", 20)
    study = STUDIES[name]
    request = replace(_request(tmp_path, study), log=_log(tmp_path) if study.needs_log else None)
    result, files = reproduce(study, request, "parcae reproduce")
    assert any(_RUN.get(name, "") in cell for row in result.rows for cell in row[:2])
    assert all(len(row) == len(result.columns) for row in result.rows)
    assert bool(result.findings) == bool(study.claims)
    found = json.loads(files.numbers.read_text())
    assert found["study"] == name
    assert found["settings"]["first_evaluation_seed"] == (1_000 if study.is_rigid else 0)
    assert files.picture.stat().st_size > 5_000
    assert study.paper in files.table.read_text()


def test_policies_of_the_request_replace_all_trainings(tmp_path: Path) -> None:
    study = STUDIES["decima-fig20"]
    jobs = tuple(job.at(1_000 * row) for row, job in enumerate(_JOBS.jobs))
    request = _request(tmp_path, study, "fair:active")
    trace = RecordedTrace(Workload("log", jobs), request.config, "trace:0.8")
    result, files = reproduce(study, replace(request, recorded=trace))
    assert {row[0] for row in result.rows} == {"TPC-H", "log"}
    assert result.rows[4][1] == "fair:active"
    assert not (tmp_path / "decima-fig20-policies").exists()
    card = json.loads(files.numbers.read_text())
    assert card["settings"]["recorded"]["arrivals"] == "trace:0.8"


def test_a_study_of_one_decima_takes_other_settings_of_its_network(tmp_path: Path) -> None:
    study = STUDIES["idle-fig3"]
    request = replace(_request(tmp_path, study), decima=DecimaSettings(features=FeatureSet.JOBS))
    reproduce(study, request)
    paths = sorted((tmp_path / "idle-fig3-policies").glob("*.safetensors"))
    assert {read_checkpoint(one).settings["features"] for one in paths} == {"jobs"}
    # Its own agents are taken again.
    again = replace(request, policies=tuple(map(str, paths)), output=tmp_path / "again")
    result, _ = reproduce(study, again)
    assert sum("trained earlier" in note for note in result.notes) == 2
    with pytest.raises(ConfigError, match=r"give checkpoints that it wrote.*1-1-.*\.safetensors"):
        reproduce(study, replace(request, policies=("best.safetensors",)))
    with pytest.raises(ConfigError, match="are the same agent of this study"):
        reproduce(study, replace(again, policies=(str(paths[0]), f"elsewhere/{paths[0].name}")))
    absent = str(tmp_path / paths[0].name)
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        reproduce(study, replace(request, policies=(absent,)))


def _checkpoint(path: Path, kind: str, rate: float, cost: Cost = Cost.SLOWDOWN) -> str:
    """As a training would have written it, but of first weights."""
    settings = DeepRMSettings()
    card = {"source": DrawnSource(rates=(rate,)).card(), "cost": cost.name.lower()}
    card |= {"iterations": 7, "seconds": 1.0}
    weights = initial_weights(np.random.default_rng(0), settings)
    network = {"network": settings.model_dump(mode="json")}
    write_checkpoint(Checkpoint(kind, 1, weights, network, card), path)
    return str(path)


def test_a_study_of_rigid_jobs_takes_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parcae.rigid.evaluation.tuning._NUM_SEQUENCES", 20)
    study = STUDIES["deeprm-fig7"]
    name = "deeprm-at-load-110.safetensors"
    fitting = _checkpoint(tmp_path / name, "deeprm", 0.6)
    result, _ = reproduce(study, _request(tmp_path / "found", study, fitting))
    assert [row[1] for row in result.rows] == ["deeprm", "deeprm, greedy", "tetris*"]
    assert any("trained earlier" in note for note in result.notes)
    for kind, rate in (("deeprm", 0.9), ("a2c", 0.6)):
        _checkpoint(tmp_path / name, kind, rate)
        with pytest.raises(ConfigError, match="in another setting than deeprm at load 110%"):
            reproduce(study, _request(tmp_path, study, fitting))


def test_table4_needs_a_log_and_names_pieces_of_a_short_one_by_their_size(tmp_path: Path) -> None:
    study = STUDIES["a2c-table4"]
    request = _request(tmp_path, study)
    with pytest.raises(ConfigError, match=r"--workload LOG\.swf"):
        study.parts(request)
    names = [part.name for part in study.parts(replace(request, log=_log(tmp_path)))]
    assert names == ["60 jobs", "80 jobs (for 2,400 jobs)"]


def test_small_jobs_get_a_small_cluster_and_large_jobs_the_papers() -> None:
    assert paper_setting(load_workload("tpch"))[1].num_executors == 20
    large = Workload("large", (chain(10, 100, 1_000),))
    assert paper_setting(large) == (large, SimulationConfig())


def _app() -> typer.Typer:
    app = typer.Typer()
    app.command()(reproduce_study)
    return app


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--workload toy", "workload"),
        ("--executors 5", "workload"),
        ("--jobs 2", "workload"),
        ("--runs 3", "runs"),
        ("--recipe imitation", "recipe"),
        ("--arrivals batch", "arrivals"),
        ("--budget 2", "budget"),
        ("--seed 3", "seed"),
        ("--full", "seed"),
        ("--policy fair", ""),
        ("--decima features=jobs", ""),
        ("--trace log.parcae", ""),
    ],
)
def test_an_option_that_a_study_does_not_use_is_refused_and_the_error_names_the_studies(
    option: str, name: str
) -> None:
    columns = {"--policy": "given", "--decima": "takes_decima", "--trace": "has_classes"}
    column = columns.get(option.split()[0], "")
    for study in STUDIES.values():
        ignores = name in study.ignores or (column and not getattr(study, column))
        if not ignores or (study.is_rigid and column != "given"):
            continue
        done = CliRunner().invoke(_app(), [study.name, *option.split()])
        text = str(done.exception)
        assert f"{option.split()[0]} has no effect here: it applies only to " in text
        assert f" {study.name}," not in text


def test_the_command_prints_the_table_and_the_paths(tmp_path: Path) -> None:
    done = CliRunner().invoke(_app(), ["decima-fig16", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "decima-fig16.json").read_text())["findings"]
    assert [one["paper"] for one in found] == pytest.approx([28.3, 20.3])
    assert {one["verdict"] for one in found} == {"as in the paper"}
    assert "Figure 16, Appendix A" in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"decima-fig16.{kind}" for kind in ("json", "md", "png")
    ]


def test_the_command_takes_the_cluster_and_the_size_of_the_runs(tmp_path: Path) -> None:
    write_workload(_JOBS, tmp_path / "jobs.parcae")
    words = (
        f"decima-fig3 --workload {tmp_path / 'jobs.parcae'} --executors 3 --moving-delay-ms 7 "
        "--runs 2 --jobs 3 --policy fair:active --processes 1"
    )
    fingerprints = set()
    for model in ("none", "decima-cluster"):
        options = ["--parallelism-model", model, "-o", str(tmp_path)]
        done = CliRunner().invoke(_app(), [*words.split(), *options])
        assert done.exit_code == 0, done.output
        found = json.loads((tmp_path / "decima-fig3.json").read_text())
        fingerprints.add(found["settings"]["fingerprint"])
    assert len(fingerprints) == 2
    assert found["settings"]["config"]["num_executors"] == 3
    assert found["settings"]["config"]["moving_delay_ms"] == 7
    assert [row[0] for row in found["table"]["rows"]] == ["fifo", "sjf-cp", "fair", "fair:active"]
    assert done.stdout.startswith("Not on the paper's jobs but on 'synthetic': the authors' TPC-H")
    assert "hongzimao/decima-sim" in (tmp_path / "decima-fig3.md").read_text().splitlines()[2]


def test_the_command_refuses_what_it_cannot_run(tmp_path: Path) -> None:
    def error(words: str) -> str:
        return str(CliRunner().invoke(_app(), [*words.split(), "-o", str(tmp_path)]).exception)

    assert "unknown study" in error("decima-fig99")
    assert "where this study trains" in error("decima-fig9a --policy fair --budget 1")
    assert "recipe 'steps'" in error("deeprm-fig4 --recipe steps")
    assert "leaves a name empty" in error("decima-fig3 --policy ,")
    assert not list(tmp_path.iterdir())
