"""The training loop with a learner that only counts: what is kept, and when it stops."""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import ConfigError, DivergedError, FormatError
from parcae.learning.config import STATE_FILE
from parcae.learning.loop import (
    BEST_FILE,
    Iteration,
    IterationSeeds,
    Learner,
    Measured,
    ScalarLog,
    TrainingPlan,
    TrainResult,
    stopping,
    train,
)
from parcae.policies.checkpoint import Weights, read_checkpoint, write_checkpoint


class _Counting(Learner):
    """Its weight is the number of iterations; its cost is the distance from a goal."""

    kind = "counting"
    feature_version = 1
    measured = "cost"
    iterations_name = "iterations"
    select_every = 2
    seed = 0

    def __init__(self, goal: float, diverges_at: int | None = None) -> None:
        self.goal = goal
        self.diverges_at = diverges_at
        self.count = 0
        self.shares: list[float] = []

    def settings(self) -> dict[str, Any]:
        return {}

    def identity(self) -> dict[str, Any]:
        return {"pair": (1, 2)}

    def card(self) -> dict[str, Any]:
        return {}

    def counts(self) -> dict[str, int]:
        return {"steps": self.count}

    def begin(self) -> Sequence[Measured]:
        return []

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        assert seeds.iteration == self.count
        self.shares.append(done)
        self.count += 1
        if self.count == self.diverges_at:
            raise DivergedError("too far")
        return {"steps": 1.0}

    def measure(self) -> Sequence[Measured]:
        return [(abs(self.goal - self.count), self.weights())]

    def weights(self) -> Weights:
        return {"count": np.array([self.count])}

    def state(self) -> dict[str, Any]:
        return {"array": np.array([self.count]), "number": self.count}

    def restore(self, weights: Weights, state: dict[str, Any]) -> None:
        self.count = int(weights["count"][0])
        assert state["number"] == self.count == state["array"][0]


def _best(result: TrainResult) -> int:
    return int(result.checkpoint.weights["count"][0])


def test_the_best_measurement_is_kept_and_the_last_weights_are_measured(tmp_path: Path) -> None:
    learner = _Counting(goal=4)
    result = train(learner, TrainingPlan(60, 5, tmp_path))
    assert (_best(result), result.best, result.ending) == (4, 0.0, "done")
    assert learner.shares == [0.0, 0.2, 0.4, 0.6, 0.8]
    measured = [one.iteration for one in result.curve if not math.isnan(one.selected)]
    assert measured == [2, 4, 5]
    best = read_checkpoint(tmp_path / BEST_FILE)
    assert best.card["cost_on_selection_runs"] == 0.0
    assert (best.card["iterations"], best.card["steps"]) == (5, 5)
    resumed = train(_Counting(goal=4), TrainingPlan(60, 5, tmp_path, is_resumed=True))
    assert (_best(resumed), resumed.iterations, resumed.curve) == (4, 5, ())
    assert train(_Counting(goal=4), TrainingPlan(60, 6, tmp_path, is_resumed=True)).iterations == 6


@pytest.mark.parametrize(
    ("curve", "gain"),
    [
        ([[1, 10.0, 2.0], [2, 20.0, 1.6], [3, 30.0, 1.2]], 0.25),
        ([[1, 10.0, 2.0], [2, 21.0, 1.5]], 0.25),
        # The last measurement is worse than the best before.
        ([[1, 10.0, 1.2], [2, 30.0, 1.4]], 0.0),
        ([[1, 30.0, 1.2]], None),
        ([], None),
    ],
)
def test_a_training_says_how_much_it_gained_late(
    curve: list[list[float]], gain: float | None, tmp_path: Path
) -> None:
    result = train(_Counting(goal=4), TrainingPlan(60, 2, tmp_path))
    checkpoint = replace(result.checkpoint, card={"curve": curve})
    best = min((cost for _, _, cost in curve), default=math.inf)
    late = replace(result, checkpoint=checkpoint, seconds=30.0, best=best)
    assert late.late_gain == (gain if gain is None else pytest.approx(gain))
    of_start = replace(late, best=1.0)
    assert of_start.late_gain == (None if gain is None else 0.0)
    assert late.late_words == (
        "" if gain is None else f"; it fell by {gain:.1%} in the last third of the time"
    )


def test_a_crash_between_the_state_and_the_best_policy_loses_neither(tmp_path: Path) -> None:
    train(_Counting(goal=4), TrainingPlan(60, 5, tmp_path))
    best = read_checkpoint(tmp_path / BEST_FILE)
    (tmp_path / BEST_FILE).unlink()
    train(_Counting(goal=4), TrainingPlan(60, 5, tmp_path, is_resumed=True))
    assert read_checkpoint(tmp_path / BEST_FILE).weights == best.weights
    assert read_checkpoint(tmp_path / BEST_FILE).card == best.card


def test_a_folder_with_a_training_is_not_overwritten(tmp_path: Path) -> None:
    train(_Counting(goal=4), TrainingPlan(60, 2, tmp_path))
    before = (tmp_path / STATE_FILE).read_bytes()
    with pytest.raises(ConfigError, match=r"already contains a training.*resume it with --resume"):
        train(_Counting(goal=4), TrainingPlan(60, 2, tmp_path))
    assert (tmp_path / STATE_FILE).read_bytes() == before


def test_a_training_that_was_not_yet_measured_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no training to resume .*: leave out --resume to begin"):
        train(_Counting(goal=4), TrainingPlan(60, 5, tmp_path, is_resumed=True))


def test_a_resumed_training_removes_what_a_kill_left_half_written(tmp_path: Path) -> None:
    train(_Counting(goal=4), TrainingPlan(60, 5, tmp_path))
    folder = tmp_path.resolve()
    kept = [folder / ".best.safetensors.copy", folder / ".other.abcd1234"]
    left = [folder / f".{name}.abcd1234" for name in (BEST_FILE, STATE_FILE)]
    for path in (*kept, *left):
        path.write_bytes(b"half")
    train(_Counting(goal=4), TrainingPlan(60, 5, tmp_path, is_resumed=True))
    assert [path.exists() for path in (*kept, *left)] == [True, True, False, False]


def test_iterations_that_a_crash_lost_are_logged_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="an extra"
    )

    def kill(done: Iteration) -> None:
        if done.iteration == 5:  # one iteration after the state was last written
            raise MemoryError

    with pytest.raises(MemoryError):
        train(_Counting(goal=4), TrainingPlan(60, 8, tmp_path), kill)
    train(_Counting(goal=4), TrainingPlan(60, 8, tmp_path, is_resumed=True))
    log = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [point.step for point in log.Scalars("run/seconds")] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "name",
    ["now.count", "best.count", "state.array", "learner", "iteration", "seconds", "best", "curve"],
)
def test_a_state_in_which_something_is_missing_is_refused(name: str, tmp_path: Path) -> None:
    train(_Counting(goal=4), TrainingPlan(60, 2, tmp_path))
    path = tmp_path / STATE_FILE
    saved = read_checkpoint(path)
    weights = {key: array for key, array in saved.weights.items() if key != name}
    settings = {key: value for key, value in saved.settings.items() if key != name}
    write_checkpoint(replace(saved, weights=weights, settings=settings), path)
    before = (tmp_path / BEST_FILE).read_bytes()
    with pytest.raises(FormatError, match=r"training\.safetensors: not the state of a training"):
        train(_Counting(goal=4), TrainingPlan(60, 4, tmp_path, is_resumed=True))
    assert (tmp_path / BEST_FILE).read_bytes() == before


def test_a_state_with_an_array_of_another_shape_or_without_an_identity_is_refused(
    tmp_path: Path,
) -> None:
    train(_Counting(goal=4), TrainingPlan(60, 2, tmp_path))
    saved = read_checkpoint(tmp_path / STATE_FILE)
    two = {**saved.weights, "now.count": np.array([1, 2])}
    for wrong in (
        replace(saved, weights=two),
        replace(saved, settings={**saved.settings, "identity": []}),
    ):
        write_checkpoint(wrong, tmp_path / STATE_FILE)
        with pytest.raises(FormatError, match="not the state of a training"):
            train(_Counting(goal=4), TrainingPlan(60, 4, tmp_path, is_resumed=True))


def test_a_training_that_started_from_other_weights_is_not_resumed(tmp_path: Path) -> None:
    train(_Counting(goal=4), TrainingPlan(60, 2, tmp_path))
    before = (tmp_path / STATE_FILE).read_bytes()
    other = _Counting(goal=4)
    other.count = 1
    with pytest.raises(ConfigError, match="another network to start from"):
        train(other, TrainingPlan(60, 4, tmp_path, is_resumed=True))
    assert (tmp_path / STATE_FILE).read_bytes() == before


def test_ctrl_c_between_two_iterations_measures_and_saves(tmp_path: Path) -> None:
    def interrupt(done: Iteration) -> None:
        if done.iteration == 3:
            os.kill(os.getpid(), signal.SIGINT)

    result = train(_Counting(goal=3), TrainingPlan(60, 9, tmp_path), interrupt)
    assert (result.ending, result.iterations, _best(result)) == ("interrupted", 3, 3)
    assert read_checkpoint(tmp_path / STATE_FILE).settings["iteration"] == 3


def test_a_training_that_diverges_at_once_leaves_the_checkpoint_that_it_names(
    tmp_path: Path,
) -> None:
    result = train(_Counting(goal=9, diverges_at=1), TrainingPlan(60, 9, tmp_path))
    assert result.ending != "done"
    assert read_checkpoint(tmp_path / BEST_FILE).kind == result.checkpoint.kind


def test_a_training_that_diverges_keeps_the_best_so_far(tmp_path: Path) -> None:
    result = train(_Counting(goal=9, diverges_at=4), TrainingPlan(60, 9, tmp_path))
    assert (result.ending, result.iterations, _best(result)) == ("too far", 3, 2)
    result = train(_Counting(goal=9, diverges_at=1), TrainingPlan(60, 9))
    assert result.best == math.inf
    assert result.checkpoint.card["cost_on_selection_runs"] is None


def test_the_first_interrupt_asks_and_the_handler_is_given_back():
    before = signal.getsignal(signal.SIGINT)
    with stopping() as stop:
        assert not stop.is_requested
        signal.raise_signal(signal.SIGINT)
        assert stop.is_requested
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.filterwarnings("error")  # a thread that failed would be a warning
def test_a_log_that_does_not_fit_is_reported_with_the_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="an extra")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write_much() -> None:
        with ScalarLog(tmp_path, 1) as log:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
            for iteration in range(1, 100):
                log.write(iteration, {"run/seconds": 1.0})

    try:
        with pytest.raises(OSError, match="too large") as error:
            write_much()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (written,) = (tmp_path / "tensorboard").iterdir()
    assert error.value.filename == str(written)


def test_a_folder_with_a_name_in_another_encoding_has_a_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="an extra")
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with ScalarLog(folder, 1) as log:
        log.write(1, {"run/seconds": 1.0})
    assert (folder / "tensorboard").is_dir()
