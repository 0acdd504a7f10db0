"""A2cScheduler's studies from beginning to end, with few runs and trainings of a moment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.papers.a2c import (
    A2cCurve,
    Measured,
    PieceStage,
    convergence,
    is_for,
    learned_a2c,
    orderings,
    table4,
)
from parcae.papers.catalog import reproduce
from parcae.papers.study import PackingRequest
from parcae.policies.checkpoint import Checkpoint, write_checkpoint
from parcae.rigid.a2c.layout import KIND, A2cSettings, Architecture
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.policies.catalog import make_packing_policy
from parcae.rigid.sources import DrawnSource, RigidLogSource

_LOG = Path(__file__).parents[2] / "../shared/data/swf/DOST-ASTI_COARE-Saliksik-2020-cln.swf"


def _request(folder: Path) -> PackingRequest:
    return PackingRequest(folder, budget_s=0.02, recipe="fast", num_runs=4, processes=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a2c-table1", "a2c-table2", "a2c-table3", "a2c-table4"])
def test_a_study_runs_to_its_table_picture_and_numbers(tmp_path: Path, name: str) -> None:
    request = _request(tmp_path)
    if name == "a2c-table4":
        if not _LOG.exists():
            pytest.skip("needs the logs in ../shared/data/swf")
        request = replace(request, log=_LOG)
    result, files = reproduce(name, request, "parcae reproduce")
    assert all(len(row) == len(result.columns) for row in result.rows)
    assert json.loads(files.numbers.read_text())["settings"]["first_evaluation_seed"] == 1_000
    assert files.picture.stat().st_size > 5_000
    assert result.findings
    if name != "a2c-table3":
        assert {"a2c", "a2c, greedy", "sjf", "random"} <= {row[1] for row in result.rows}


def test_table4_says_that_it_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--workload LOG\.swf"):
        reproduce("a2c-table4", _request(tmp_path))


def _log(num_jobs: int) -> RigidJobs:
    return RigidJobs(
        "log", np.arange(num_jobs), np.full(num_jobs, 2), np.ones((num_jobs, 1)), [4], step="step"
    )


@pytest.mark.parametrize(("num_jobs", "pieces"), [(500, 4), (250, 2), (199, 1)])
def test_pieces_of_a_log_have_no_job_in_common(num_jobs: int, pieces: int) -> None:
    source = RigidLogSource(_log(num_jobs), 100, PackingConfig())
    ids = [piece.ids for piece in PieceStage(source, 1_000, 4).sequences]
    assert [len(piece) for piece in ids] == [100] * pieces
    joined = np.concatenate(ids)
    assert np.array_equal(joined, np.arange(joined[0], joined[0] + 100 * pieces))
    assert joined[0] != PieceStage(source, 1_002, 4).sequences[0].ids[0]


def test_runs_of_a_log_that_takes_many_steps_are_not_cut() -> None:
    # A job of a step every hundred steps: 25,000 steps in which nothing can be started.
    rare = RigidJobs("rare", np.arange(250) * 100, np.ones(250), np.ones((250, 1)), [4])
    stage = PieceStage(RigidLogSource(rare, None, PackingConfig()), 1_000, 1)
    assert stage.play(make_packing_policy("sjf")).num_unfinished == 0


def test_a_checkpoint_is_for_the_log_that_it_learned_from() -> None:
    source = RigidLogSource(_log(200), 100, PackingConfig())
    card = source.card()
    # Cards of older versions have neither rows nor a digest.
    older = {key: card[key] for key in card if key not in ("first_row", "last_row", "digest")}
    other = RigidLogSource(
        replace(_log(200), duration=np.full(200, 3)), 100, PackingConfig()
    ).card()
    drawn = DrawnSource().card()
    found = [
        is_for(source, Checkpoint(KIND, 1, {}, {}, {"source": one} if one else {}))
        for one in (card, older, other, drawn, None)
    ]
    assert found == [True, True, False, False, False]


def test_the_note_on_a_policy_says_its_architecture_hidden_layer_and_mask(tmp_path: Path) -> None:
    network = A2cSettings(
        architecture=Architecture.CONV_16_POOL, horizon=20, width=223, num_slots=10, hidden=32,
        is_masked=True,
    )  # fmt: skip
    card = {"source": DrawnSource().card(), "iterations": 7, "seconds": 9.0}
    path = tmp_path / "pooled.safetensors"
    settings = {"network": network.model_dump(mode="json")}
    write_checkpoint(Checkpoint(KIND, 1, {"a": np.zeros(1)}, settings, card), path)
    request = replace(_request(tmp_path), policies=(str(path),))
    words = learned_a2c(request, DrawnSource(), "rate 0.7", 1.0).words
    assert words.endswith(
        "; network conv3-16-pool (a training of this study has conv3-16; the paper decides against "
        "pooling, section 4.3), then a layer of 32 units (the paper names none); it chooses a job "
        "that can start or none (the paper: any of the N jobs or none, section 3.1)"
    )


def test_pieces_of_a_short_log_are_named_by_their_size_and_one_gives_no_verdict(
    tmp_path: Path,
) -> None:
    lines = [f"{n} {60 * n} -1 7200 2 -1 -1 2 -1 -1 1 1 1 -1 1 -1 -1 -1" for n in range(160)]
    log = tmp_path / "short.swf"
    log.write_text("; MaxProcs: 8\n" + "\n".join(lines) + "\n")
    result = table4(replace(_request(tmp_path), log=log))
    # Each half has 80 jobs: one piece of 60, and one of all 80.
    assert {row[0] for row in result.rows} == {"60 jobs", "80 jobs (for 2,400 jobs)"}
    assert result.findings == []
    assert sum("no verdict" in note for note in result.notes) == 2
    assert any("trained on pieces of 80 jobs of the first half" in note for note in result.notes)


def test_orderings_hold_only_beyond_the_interval_of_paired_differences() -> None:
    base = np.linspace(2.0, 3.0, 9)
    values = {
        "a": np.tile(base, (3, 1)),
        "b": np.tile(base + 0.5, (3, 1)),
        "c": np.tile(base[::-1], (3, 1)),
    }
    published = {"a": (1.0, 1.0, 1.0), "b": (2.0, 0.5, 1.0), "c": (3.0, 2.0, 1.0)}
    notes = orderings("here", Measured(values, {}, {}), published)
    assert "slowdown: 1 of the paper's 3 orderings hold" in notes[0]
    assert ": a < b; not: a < c, b < c" in notes[0]
    assert "completion time: 0 of the paper's 3 orderings hold" in notes[1]
    assert "waiting time: " in notes[2]
    assert "a = c" in notes[2]


def _curve(*slowdowns: float, first: float = 10.0) -> A2cCurve:
    return A2cCurve(
        list(range(10, 10 * len(slowdowns) + 10, 10)),
        [1.0] * len(slowdowns),
        list(slowdowns),
        first,
    )


def test_a_training_converged_where_its_curve_stays_at_its_end() -> None:
    assert convergence(_curve(9.0, 7.0, 5.1, 5.0, 5.1, 5.0, 5.0, 5.0)) == 2


def test_what_hardly_gained_still_falls_or_was_hardly_measured_has_not_converged() -> None:
    assert convergence(_curve(*[9.5] * 8)) is None
    assert convergence(_curve(9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)) is None
    assert convergence(_curve(5.0, 5.0, 5.0)) is None
