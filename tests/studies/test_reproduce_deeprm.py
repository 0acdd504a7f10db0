"""DeepRM's studies from beginning to end, with few runs and trainings of a moment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from parcae.base.errors import ConfigError, FormatError
from parcae.evaluation.statistics import METHODS, mean_estimate
from parcae.papers.a2c import Measured
from parcae.papers.catalog import find_study, reproduce
from parcae.papers.command import reproduce_study
from parcae.papers.deeprm import DeepRMCurve, slowdowns_by_size, withholding_of
from parcae.papers.packing import (
    Stage,
    heuristics,
    label_of,
    learned_deeprm,
    load_at,
    setting_notes,
    source_at,
)
from parcae.papers.study import PackingRequest, settings_of
from parcae.policies.checkpoint import Checkpoint, write_checkpoint
from parcae.rigid.config import PackingConfig
from parcae.rigid.deeprm.layout import DeepRMSettings, initial_weights
from parcae.rigid.deeprm.policy import DeepRMPolicy
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost
from parcae.rigid.policies.kernels.decisions import PackingKind
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.world import PackingBatch
from parcae.workloads.arrivals import TUNING_SEED_START

_ROWS = {
    "deeprm-fig4": "190%",
    "deeprm-fig5": "deeprm for completion",
    "deeprm-fig6": "deeprm, fresh",
    "deeprm-fig7": "tetris*",
}


def _checkpoint(folder: Path, rate: float, cost: Cost) -> str:
    """As a training would have written it, but of first weights."""
    path = folder / f"deeprm-{rate:g}-{cost.name.lower()}.safetensors"
    settings = DeepRMSettings()
    card = {
        "source": source_at(rate).card(),
        "cost": cost.name.lower(),
        "iterations": 7,
        "seconds": 1.0,
    }
    weights = initial_weights(np.random.default_rng(0), settings)
    write_checkpoint(
        Checkpoint("deeprm", 1, weights, {"network": settings.model_dump(mode="json")}, card), path
    )
    return str(path)


def _a2c_checkpoint(folder: Path) -> str:
    """An agent of A2cScheduler that was trained at a rate of no study."""
    path = folder / "a2c.safetensors"
    card = {"source": source_at(0.2).card()}
    write_checkpoint(Checkpoint("a2c", 1, {"weights": np.zeros(3)}, card=card), path)
    return str(path)


def _request(folder: Path, rates: tuple[float, ...]) -> PackingRequest:
    known = [
        _checkpoint(folder, rate, cost)
        for rate in rates
        for cost in (Cost.SLOWDOWN, Cost.COMPLETION)
    ]
    return PackingRequest(
        folder / "found", budget_s=0.01, num_runs=4, processes=1, policies=tuple(known)
    )


def test_a_policy_gains_nothing_from_losing_jobs() -> None:
    # Sixty jobs, two slots and no backlog: most jobs are lost.
    source = replace(source_at(1.0), settings=PackingConfig(num_slots=2, backlog_size=0))
    losing = Stage(source, 5_000, 4).play(HandMadePolicy("sjf", PackingKind.SJF))
    keeping = Stage(source_at(1.0), 5_000, 4).play(HandMadePolicy("sjf", PackingKind.SJF))
    assert keeping.num_unfinished == 0
    assert losing.num_unfinished > 50
    assert (losing.per_job(Cost.SLOWDOWN) > keeping.per_job(Cost.SLOWDOWN)).all()


def test_waiting_times_are_those_between_arrival_and_start() -> None:
    stage = Stage(source_at(0.7), 5_000, 4)
    policy = HandMadePolicy("sjf", PackingKind.SJF)
    runs = stage.play(policy).batch.outcomes()
    waits = [(run.start - run.jobs.arrival).mean() for run in runs]
    _, _, waiting = Measured.of(stage, {"sjf": policy}).values["sjf"]
    assert waiting == pytest.approx(waits)


@pytest.mark.parametrize("name", _ROWS)
def test_a_study_runs_to_its_table_picture_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("parcae.rigid.evaluation.tuning._NUM_SEQUENCES", 20)
    rates = tuple(round(0.1 * k, 1) for k in range(1, 11)) if name == "deeprm-fig4" else (0.6, 0.7)
    result, files = reproduce(name, _request(tmp_path, rates), "parcae reproduce")
    assert _ROWS[name] in [row[0] for row in result.rows]
    assert all(len(row) == len(result.columns) for row in result.rows)
    found = json.loads(files.numbers.read_text())
    assert found["settings"]["first_evaluation_seed"] == 1_000
    assert files.picture.stat().st_size > 5_000
    is_trained = (tmp_path / "found" / f"{name}-policies").exists()
    assert is_trained == (name == "deeprm-fig6")
    assert ("7 iterations" in files.table.read_text()) != is_trained


def test_a_policy_that_ships_is_trained_if_the_request_wants_a_new_one(tmp_path: Path) -> None:
    request = PackingRequest(tmp_path, budget_s=0.01, num_runs=4, processes=1)
    shipped = learned_deeprm(request, 0.7, Cost.SLOWDOWN, 0.01)
    assert not list(tmp_path.iterdir())
    made = learned_deeprm(replace(request, trains_anew=True), 0.7, Cost.SLOWDOWN, 0.01)
    assert len(list(tmp_path.iterdir())) == 1
    assert made.card["seconds"] < shipped.card["seconds"]


def test_labels_and_loads_are_those_of_the_paper() -> None:
    assert [label_of(rate) for rate in (0.1, 0.4, 0.7, 1.0)] == ["10%", "70%", "130%", "190%"]
    assert load_at(0.4) == pytest.approx(0.738)


def test_evaluation_never_meets_tuning_or_training() -> None:
    request = PackingRequest(Path("x"), seed=255)
    assert 1_000 <= request.first_seed < request.first_seed + 10_000 < TUNING_SEED_START
    assert settings_of(request)["recipe"] == "fresh"


def test_tetris_has_the_knob_that_is_best_on_other_sequences() -> None:
    tetris = heuristics(source_at(0.7), num_threads=1)["tetris*"]
    assert 0.0 < tetris.params[0] <= 0.01


def test_means_are_by_sequence_and_empty_sequences_are_left_out() -> None:
    stage = Stage(source_at(0.05), 1_000, 60, 1)
    assert 40 < len(stage.sequences) < 60
    played = stage.play(HandMadePolicy("sjf", PackingKind.SJF))
    first = played.batch.outcome(0)
    wanted = ((first.finish - first.jobs.arrival) / first.jobs.duration).mean()
    assert played.per_job(Cost.SLOWDOWN)[0] == pytest.approx(wanted)
    assert played.num_unfinished == 0
    note = setting_notes(stage, (0.05,))[0]
    assert "some have no job and are left out" in note
    # The interval is that of the method which the note names.
    assert METHODS["bootstrap-t"] in note
    values = played.per_job(Cost.SLOWDOWN)
    assert played.estimate(Cost.SLOWDOWN) == mean_estimate(values, "bootstrap-t")


class _Fixed(Stage):
    """Two sequences made by hand."""

    def batch(self, wants_profile: bool) -> PackingBatch:
        one = RigidJobs("one", np.array([0]), np.array([3]), np.array([[5, 1]]), np.array([10, 10]))
        two = RigidJobs(
            "two",
            np.array([0, 0]),
            np.array([2, 10]),
            np.array([[10, 1], [10, 1]]),
            np.array([10, 10]),
        )
        return PackingBatch(
            [one, two],
            self.source.config.model_copy(update={"window": 0}),
            wants_profile=wants_profile,
        )


def test_what_is_withheld_is_counted_by_step_and_job() -> None:
    """A greedy policy that would rather wait starts a job only in an empty cluster."""
    weights = initial_weights(np.random.default_rng(0), DeepRMSettings())
    weights["actions.bias"][-1] = 9.0
    weights["actions.bias"][0] = 5.0
    policy = DeepRMPolicy("deeprm", weights, DeepRMSettings(), is_greedy=True)
    found, played = withholding_of(_Fixed(source_at(0.1), 0, 2), policy)
    # One: 3 steps with no job waiting. Two: 2 steps in which the long job waits and cannot start,
    # then its 10 steps.
    assert (found.num_steps, found.num_waiting, found.num_withheld, len(found.durations)) == (
        15,
        2,
        0,
        0,
    )
    weights["actions.bias"][-1] = 50.0
    drawn = DeepRMPolicy("deeprm", weights, DeepRMSettings())
    stage = _Fixed(source_at(0.1), 0, 2)
    held, ended = withholding_of(_Capped(stage), drawn)
    # Never starting anything, each of 6 steps of both runs withholds what waits.
    assert (held.num_steps, held.num_withheld, sorted(set(held.durations.tolist()))) == (
        12,
        12,
        [2, 3, 10],
    )
    small, large = slowdowns_by_size(played.batch.outcomes())
    assert small.tolist() == [1.0, 1.0]
    assert np.isnan(large[0])
    assert large[1] == pytest.approx(1.2)
    assert np.isnan(slowdowns_by_size(ended.batch.outcomes())[0]).all()


class _Capped(_Fixed):
    """The same, ended after 6 decisions."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.source, 0, 2)

    def batch(self, wants_profile: bool) -> PackingBatch:
        whole = super().batch(wants_profile)
        return PackingBatch(
            whole.sequences,
            whole.config.model_copy(update={"max_decisions": 6}),
            wants_profile=wants_profile,
        )


def test_a_curve_passes_a_line_where_it_stays_below() -> None:
    curve = DeepRMCurve(
        Stage(source_at(0.4), 0, 1), [1, 10, 20, 30, 40, 50], [9.0, 4.0, 6.0, 4.0, 3.0, 3.0]
    )
    assert (curve.crossing(5.0), curve.crossing(2.0)) == (30, None)


def test_checkpoints_of_other_policies_and_requests_of_another_world_are_refused(
    tmp_path: Path,
) -> None:
    write_checkpoint(Checkpoint("rule", 1, {"rule": np.zeros(3)}), tmp_path / "rule.safetensors")
    request = replace(_request(tmp_path, ()), policies=(str(tmp_path / "rule.safetensors"),))
    with pytest.raises(FormatError, match="only those of DeepRM"):
        reproduce("deeprm-fig7", request)
    with pytest.raises(ConfigError, match="takes a StudyRequest"):
        reproduce("decima-fig3", request)
    with pytest.raises(ConfigError, match="did you mean 'deeprm-fig4'"):
        find_study("deeprm-fig44")


def test_a_study_refuses_policies_that_it_would_not_use(tmp_path: Path) -> None:
    request = _request(tmp_path, (0.9,))
    for name in ("deeprm-fig5", "deeprm-fig7"):
        with pytest.raises(ConfigError, match="leave out --policy"):
            reproduce(name, request)
    of_other = replace(request, policies=(_a2c_checkpoint(tmp_path),))
    for name in ("a2c-table1", "a2c-table2"):
        with pytest.raises(ConfigError, match="leave out --policy"):
            reproduce(name, of_other)


def test_a_study_refuses_two_policies_for_one_setting(tmp_path: Path) -> None:
    """It would use the first and not say so."""
    request = _request(tmp_path, (0.6,))
    again = tmp_path / "again.safetensors"
    again.write_bytes(Path(request.policies[0]).read_bytes())
    twice = replace(request, policies=(*request.policies, str(again)))
    with pytest.raises(ConfigError, match=r"and .*again.safetensors were trained in the same"):
        reproduce("deeprm-fig7", twice)


def test_the_command_refuses_the_options_of_another_world(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(reproduce_study)
    done = CliRunner().invoke(app, ["deeprm-fig7", "--executors", "3", "-o", str(tmp_path)])
    assert "it applies only to studies of Decima's cluster" in str(done.exception)
