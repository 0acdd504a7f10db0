"""The training loop: iterates, measures, keeps the best, logs, saves and resumes.

It trains every `Learner`: gradients in the cluster (`parcae.decima.learning`), the evolution
strategy of the world of cores (`parcae.learning.evolution`), and those of rigid jobs
(`parcae.rigid.learner`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from parcae.base.errors import ConfigError, DivergedError
from parcae.base.files import check_place, locked_folder, named_in_errors, remove_unfinished
from parcae.base.texts import plain
from parcae.learning.config import STATE_FILE, TrainingState, read_state, write_state
from parcae.policies.checkpoint import BEST_FILE, Checkpoint, Weights, write_checkpoint
from parcae.workloads.workload import TRAINING_SEED_START


class Stop:
    """Signal handler that remembers that the user asked to stop; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.is_requested = False

    def __call__(self, *_: Any) -> None:
        # The second Ctrl-C: do not wait for the end of the iteration.
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True


@contextmanager
def stopping() -> Iterator[Stop]:
    """Within this context, the first Ctrl-C requests a stop after the current iteration."""
    stop = Stop()
    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:  # only the main thread may set signal handlers
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class ScalarLog:
    """TensorBoard log in the folder of a training, where there are a folder and TensorBoard.

    TensorBoard's own writer has a thread, which shows a traceback where the disk is full.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """

    def __init__(self, folder: Path | None, first: int) -> None:
        self._folder = folder
        self._first = first
        self._path = Path()
        self._stream: BinaryIO | None = None
        # Of TensorBoard: the class of events, and what writes them.
        self._event: Any = None
        self._writer: Any = None

    def __enter__(self) -> ScalarLog:
        if self._folder is not None and find_spec("tensorboard") is not None:
            # Imported here: TensorBoard belongs to the extra "train".
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter

            self._event = Event
            place = self._folder / "tensorboard"
            place.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files of a folder in the order of their names.
            began = "{:010d}.{:09d}".format(*divmod(time.time_ns(), 10**9))
            self._path = place / f"events.out.tfevents.{began}.{platform.node()}.{os.getpid()}"
            self._stream = self._path.open("xb")
            self._writer = RecordWriter(self._stream)
            # The first event of a file has its version. The second hides what came after a crash.
            self._add(file_version="brain.Event:2")
            self._add(step=self._first, session_log={"status": "START"})
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            with named_in_errors(self._path):
                self._stream.close()

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Write the numbers of one iteration; those that were not measured (NaN) are left out."""
        if self._stream is None:
            return
        measured = [
            {"tag": name, "simple_value": value}
            for name, value in values.items()
            if np.isfinite(value)
        ]
        self._add(step=iteration, summary={"value": measured})

    def _add(self, **event: Any) -> None:
        """Add an event to the file."""
        with named_in_errors(self._path):
            self._writer.write(self._event(wall_time=time.time(), **event).SerializeToString())
            self._writer.flush()


#: Kinds of trainings whose kernels this process has compiled.
_COMPILED = set[str]()
#: The last part of a training, see `TrainResult.late_gain`.
_LATE = 1 / 3
#: Weights with what they cost on the selection runs.
Measured = tuple[float, Weights]


@dataclass(frozen=True)
class IterationSeeds:
    """The seeds of one iteration: those of its job sequences, and one for all other draws.

    Args:
        seed: seed of the training.
        iteration: number of the iteration, from 0.
    """

    seed: int
    iteration: int

    def sequences(self, count: int) -> list[int]:
        """Seeds of fresh sequences, which no other iteration uses."""
        first = TRAINING_SEED_START + ((self.seed & 0xFF) << 32) + self.iteration * count
        return list(range(first, first + count))

    def fixed_sequences(self, count: int) -> list[int]:
        """The same seeds in every iteration (DeepRM's fixed set of job sequences)."""
        return IterationSeeds(self.seed, 0).sequences(count)

    @property
    def rng(self) -> np.random.Generator:
        """A new random number generator for all other draws; always in the same state."""
        return np.random.default_rng(
            np.random.SeedSequence([0x7061_636B, self.seed, self.iteration])
        )


class Learner(Protocol):
    """A kind of policy in training: all that the training loop knows about it."""

    kind: str  # of its checkpoints, see `parcae.policies.checkpoint`
    feature_version: int
    seed: int
    measured: str  # what `measure` returns: "cost", "ratio_to_fair" or "ratio_to_rule"
    iterations_name: str  # "iterations" or "generations", in results
    select_every: int  # iterations between measurements, after which the state is saved

    def settings(self) -> dict[str, Any]:
        """The settings that a checkpoint needs, as plain JSON."""

    def identity(self) -> dict[str, Any]:
        """What else must not change when a training is resumed, as plain JSON."""

    def card(self) -> dict[str, Any]:
        """What the policy is trained for, for the model card."""

    def counts(self) -> dict[str, int]:
        """What the training has worked through so far, such as decisions, by name."""

    def begin(self) -> Sequence[Measured]:
        """Prepare a new training and compile its kernels. This time does not count.

        Returns what `measure` would, where the weights at the start may be kept.
        """

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Run one iteration: runs and updates.

        `done` is the share of the training that is over. Returns numbers for the log.

        Raises:
            DivergedError: the training diverged.
        """

    def measure(self) -> Sequence[Measured]:
        """Measure the weights that may be kept on the selection runs."""

    def weights(self) -> Weights:
        """Copies of the present weights."""

    def state(self) -> dict[str, Any]:
        """What else a resumed training needs: arrays, and plain JSON, by name."""

    def restore(self, weights: Weights, state: dict[str, Any]) -> None:
        """Continue from what `weights` and `state` returned."""


@dataclass(frozen=True)
class TrainingPlan:
    """How long a training runs, and where.

    Args:
        budget_s: wall-clock seconds, including those before an interruption.
        max_iterations: maximum number of iterations; the budget may end the training earlier. If
            given, the learning rate falls by iterations and not by time, so that a resumed training
            ends with exactly the same weights. The exception is a training that Ctrl-C or the
            budget stopped between two measurements: it was measured there, so that other weights
            may be the best, and on streams its windows begin anew, which they would not have done.
        folder: where the state, the best policy and the logs are written; None to write nothing.
        is_resumed: continue from the state in the folder.
        command: the command line, for the model card.
    """

    budget_s: float = 300.0
    max_iterations: int | None = None
    folder: Path | None = None
    is_resumed: bool = False
    command: str = ""


@dataclass(frozen=True)
class Iteration:
    """The numbers of one iteration.

    Args:
        iteration: number of the iteration, from 1.
        seconds: wall-clock time of the training so far.
        numbers: what the learner's `iterate` returned.
        selected: the smallest of what the learner's `measure` returned; NaN if nothing was measured
            in this iteration.
        best: the smallest measurement so far; infinite before the first.
    """

    iteration: int
    seconds: float
    numbers: Mapping[str, float]
    selected: float
    best: float


Progress = Callable[[Iteration], None]


@dataclass(frozen=True)
class TrainResult:
    """The best policy of a training, and how the training went.

    Args:
        checkpoint: the best policy on the selection runs.
        iterations: number of iterations.
        seconds: wall-clock time.
        best: measurement of the best policy. Optimistic, since it was chosen on these runs.
        counts: what the training worked through, such as decisions, by name.
        curve: the iterations since the start or the last resume.
        ending: "done", "interrupted", or the message of the error that ended the training.
    """

    checkpoint: Checkpoint
    iterations: int
    seconds: float
    best: float
    counts: Mapping[str, int]
    curve: tuple[Iteration, ...]
    ending: str

    @property
    def late_gain(self) -> float | None:
        """By what share the best measurement fell in the last third of the time.

        It tells whether a longer training may be worth while. None if nothing was measured before;
        0 if nothing was better than the start, whose measurement is not in the curve.
        """
        points = self.checkpoint.card["curve"]
        early = [cost for _, seconds, cost in points if seconds <= (1 - _LATE) * self.seconds]
        before = min(early, default=math.nan)
        if not before > 0:
            return None
        best = min(cost for _, _, cost in points)
        return 0.0 if self.best < best else 1.0 - best / before

    @property
    def late_words(self) -> str:
        """The same in words that follow the measurement; no text if nothing was measured before."""
        gain = self.late_gain
        return "" if gain is None else f"; it fell by {gain:.1%} in the last third of the time"


def compile_kernels(learner: Learner, moments: Sequence[float] = (0.0,)) -> None:
    """Run iterations whose results are thrown away, so that compiling costs no training time.

    Only the first training of its kind in a process does so.
    """
    config = learner.identity().get("config")
    key = json.dumps([learner.kind, learner.settings(), config], sort_keys=True, default=str)
    if key in _COMPILED:
        return
    _COMPILED.add(key)
    weights, state = learner.weights(), learner.state()
    # The training itself says so if it diverges.
    with suppress(DivergedError):
        for done in moments:
            learner.iterate(IterationSeeds(learner.seed, 0), done)
        learner.measure()
    learner.restore(weights, state)


def train(learner: Learner, plan: TrainingPlan, progress: Progress | None = None) -> TrainResult:
    """Train until the time or the iterations are used up, or Ctrl-C. Returns the best policy on the
    selection runs, also after an interruption.
    """
    if plan.folder is None or (plan.is_resumed and not plan.folder.is_dir()):
        return _Loop(learner, plan).run(progress)  # says that there is nothing to resume
    plan.folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(plan.folder, "training into"):
        for name in (STATE_FILE, BEST_FILE):
            remove_unfinished(plan.folder / name)
        return _Loop(learner, plan).run(progress)


class _Loop:
    def __init__(self, learner: Learner, plan: TrainingPlan) -> None:
        self.learner = learner
        self.plan = plan
        weights = learner.weights()
        joined = b"".join(weights[name].tobytes() for name in sorted(weights))
        # Differs between trainings that start from different weights.
        self.start = hashlib.sha256(joined).hexdigest()
        self.iteration = 0
        self.seconds = 0.0
        self.best = math.inf
        self.best_weights = weights
        self.selected: list[list[float]] = []  # [iteration, seconds, measurement]
        self.curve: list[Iteration] = []
        self.is_measured = True  # whether the present weights were measured
        if plan.is_resumed:
            self._resume()
        else:
            if (folder := plan.folder) is not None:
                if (folder / STATE_FILE).exists():
                    raise ConfigError(
                        f"{folder} already contains a training: resume it with --resume, or choose "
                        "another folder"
                    )
                check_place(folder / BEST_FILE)
            self._keep_best(learner.begin())

    def run(self, progress: Progress | None) -> TrainResult:
        ending = "done"
        with ScalarLog(self.plan.folder, self.iteration + 1) as log, stopping() as stop:
            try:
                while not self._is_over(stop):
                    result = self._iterate(stop)
                    self.curve.append(result)
                    scalars = {
                        **result.numbers,
                        f"selection/{self.learner.measured}": result.selected,
                        "run/seconds": result.seconds,
                    }
                    log.write(result.iteration, scalars)
                    if progress is not None:
                        progress(result)
                # Ctrl-C may have come after the last iteration had ended.
                if not self.is_measured:
                    self._select()
                if stop.is_requested:
                    ending = "interrupted"
            except DivergedError as error:
                ending = str(error)
                self._save_best()
        return TrainResult(
            self._checkpoint(),
            self.iteration,
            self.seconds,
            self.best,
            self.learner.counts(),
            tuple(self.curve),
            ending,
        )

    def _is_over(self, stop: Stop) -> bool:
        """Whether the time or the iterations are used up, or the user asked to stop."""
        return stop.is_requested or self.seconds >= self.plan.budget_s or self._done() >= 1.0

    def _done(self) -> float:
        """Share of the training that is over: of the iterations if limited, else of the time."""
        if self.plan.max_iterations is None:
            return self.seconds / self.plan.budget_s
        return self.iteration / self.plan.max_iterations

    def _iterate(self, stop: Stop) -> Iteration:
        began = time.perf_counter()
        seeds = IterationSeeds(self.learner.seed, self.iteration)
        numbers = self.learner.iterate(seeds, self._done())
        cost = numbers.get("cost", 0.0)
        if not math.isfinite(cost):
            raise DivergedError(
                f"after {self.iteration + 1} iterations the mean cost is {cost}; the best policy "
                "is kept"
            )
        self.iteration += 1
        self.seconds += time.perf_counter() - began
        self.is_measured = False
        is_due = self.iteration % self.learner.select_every == 0
        selected = self._select() if is_due or self._is_over(stop) else math.nan
        return Iteration(self.iteration, self.seconds, numbers, selected, self.best)

    def _select(self) -> float:
        """Measure on the selection runs, keep the best, and save; returns the measurement."""
        began = time.perf_counter()
        selected = self._keep_best(self.learner.measure())
        # The measurement counts as training time, too.
        self.seconds += time.perf_counter() - began
        self.selected.append([self.iteration, round(self.seconds, 1), selected])
        self.is_measured = True
        self._save()
        return selected

    def _keep_best(self, measured: Sequence[Measured]) -> float:
        """Keep the first of the best weights so far; returns the smallest measurement."""
        for cost, weights in measured:
            if cost < self.best:
                self.best = cost
                self.best_weights = weights
        return min((cost for cost, _ in measured), default=math.nan)

    def _checkpoint(self) -> Checkpoint:
        """The best policy so far, with its model card."""
        learner = self.learner
        card = {
            **learner.card(),
            "seed": learner.seed,
            learner.iterations_name: self.iteration,
            **learner.counts(),
            "seconds": round(self.seconds, 1),
            "curve": self.selected,
            "command": self.plan.command,
            f"{learner.measured}_on_selection_runs": plain(self.best),
        }
        return Checkpoint(
            learner.kind, learner.feature_version, self.best_weights, learner.settings(), card
        )

    def _identity(self) -> dict[str, Any]:
        """The settings that must not change when a training is resumed, as plain JSON."""
        learner = self.learner
        return {
            "kind": learner.kind,
            "settings": learner.settings(),
            "seed": learner.seed,
            **learner.identity(),
            "network to start from (--start)": self.start,
        }

    def _save_best(self) -> None:
        """Write the best policy so far; that of a training that diverged early is its start."""
        if self.plan.folder is not None:
            write_checkpoint(self._checkpoint(), self.plan.folder / BEST_FILE)

    def _save(self) -> None:
        if self.plan.folder is None:
            return
        learner = self.learner
        progress = {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "best": plain(self.best),
            "curve": self.selected,
        }
        state = TrainingState(learner.weights(), self.best_weights, learner.state(), progress)
        write_state(state, self._identity(), learner.feature_version, self.plan.folder)
        self._save_best()

    def _resume(self) -> None:
        if self.plan.folder is None:
            raise ConfigError("to resume a training, give its folder")
        learner = self.learner
        fresh = TrainingState(learner.weights(), learner.weights(), learner.state(), {})
        state = read_state(fresh, self._identity(), learner.feature_version, self.plan.folder)
        learner.restore(state.weights, state.learner)
        self.best_weights = state.best_weights
        self.selected = [list(point) for point in state.progress["curve"]]
        self.iteration = int(state.progress["iteration"])
        self.seconds = float(state.progress["seconds"])
        best = state.progress["best"]
        self.best = math.inf if best is None else float(best)
        # The state is written before the best policy: a crash between the two leaves an older one.
        self._save_best()
