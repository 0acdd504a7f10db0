"""The training loop of packing policies: the only place that loops, measures, logs and saves.

All that a learner draws in an iteration follows from the training's seed and the iteration's number, so that a training which
was interrupted and resumed goes on exactly as it would have.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError, DivergedError
from parcae.learning.stopping import ScalarLog, stopping
from parcae.metrics.packing import typical_cost
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.packing.world import PackingBatch
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.packing.policy import PackingPolicy
from parcae.workloads.random_streams import SELECTION_SEED_START, TRAINING_SEED_START

Weights = dict[str, npt.NDArray[Any]]
#: The file in a training's folder that it resumes from, and the best policy.
STATE_FILE = "training.safetensors"
BEST_FILE = "best.safetensors"


class Learner(Protocol):
    """A policy that learns, one iteration after another."""

    kind: str  # of its checkpoints
    feature_version: int

    def settings(self) -> dict[str, Any]:
        """Shape of the network and settings of the learning, as plain JSON: what must be the same for a training to go on."""

    def iterate(self, seeds: IterationSeeds, left: float) -> Mapping[str, float]:
        """One iteration: roll out and update. `left` is the share of the training that is left.

        Returns numbers for the log, "decisions" and "cost" (a job's mean, on the training's own sequences) among them.
        """

    def weights(self) -> Weights:
        """The policy's present weights (copies)."""

    def policy(self) -> PackingPolicy:
        """The policy with the present weights."""

    def state(self) -> Weights:
        """What else must be kept to go on: moments of the optimizer, a critic, ..."""

    def restore(self, weights: Weights, state: Weights) -> None:
        """Go on from what `weights` and `state` gave."""


@dataclass(frozen=True)
class IterationSeeds:
    """The seeds of one iteration: those of its sequences, and one for all else that is drawn."""

    seed: int
    iteration: int

    def sequences(self, count: int) -> list[int]:
        """Seeds of fresh sequences, never drawn in another iteration."""
        first = TRAINING_SEED_START + ((self.seed & 0xFF) << 32) + self.iteration * count
        return list(range(first, first + count))

    def fixed_sequences(self, count: int) -> list[int]:
        """The same seeds in every iteration (DeepRM's fixed set of job sequences)."""
        return IterationSeeds(self.seed, 0).sequences(count)

    @property
    def rng(self) -> np.random.Generator:
        """For all else."""
        return np.random.default_rng(
            np.random.SeedSequence([0x7061_636B, self.seed, self.iteration])
        )


@dataclass(frozen=True)
class PackingTraining:
    """What to train on, for what, and how long.

    Args:
        cost: what to make small. budget_s: wall-clock seconds. max_iterations: the end, where given.
        select_every: iterations between measurements on the selection's runs; num_selection: how many runs these are.
        command: the command line, for the model card.
        folder: for the state, the best policy and the log; None to keep nothing.
    """

    source: PackingSource
    cost: Cost = Cost.SLOWDOWN
    budget_s: float = 300.0
    max_iterations: int | None = None
    select_every: int = 25
    num_selection: int = 200
    seed: int = 0
    folder: Path | None = None
    is_resumed: bool = False
    command: str = ""


@dataclass(frozen=True)
class PackingIteration:
    """What one iteration came to. `selected` is NaN where the policy was not measured."""

    iteration: int
    seconds: float
    numbers: Mapping[str, float]
    selected: float
    best: float


@dataclass(frozen=True)
class PackingResult:
    """The best policy, how it came about, and how the training ended ("done", "interrupted", or what went astray)."""

    checkpoint: Checkpoint
    iterations: int
    seconds: float
    best: float
    curve: tuple[PackingIteration, ...]
    ending: str


def train_packing(
    learner: Learner,
    training: PackingTraining,
    progress: Callable[[PackingIteration], None] | None = None,
) -> PackingResult:
    """Train until the time or the iterations are used up or Ctrl-C; the result is the best on the selection's runs.

    Raises:
        ConfigError, FormatError, FileNotFoundError: something that cannot be trained or resumed.
    """
    return _Loop(learner, training).run(progress)


class _Loop:
    def __init__(self, learner: Learner, training: PackingTraining) -> None:
        self.learner = learner
        self.training = training
        self.iteration = 0
        self.seconds = 0.0
        self.best = math.inf
        self.best_weights = learner.weights()
        self.selected: list[list[float]] = []  # [iteration, seconds, cost on the selection's runs]
        self.curve: list[PackingIteration] = []
        sequences = training.source.draw(
            [SELECTION_SEED_START + row for row in range(training.num_selection)]
        )
        self._selection = (sequences, training.source.config)
        self._begin()

    def _begin(self) -> None:
        folder = self.training.folder
        if self.training.is_resumed:
            if folder is None:
                raise ConfigError("resuming needs the folder of the training")
            self._resume(folder / STATE_FILE)
        elif folder is not None and (folder / STATE_FILE).exists():
            raise ConfigError(
                f"{folder} holds a training already: resume it with --resume, or choose another folder"
            )

    def run(self, progress: Callable[[PackingIteration], None] | None) -> PackingResult:
        ending = "done"
        with ScalarLog(self.training.folder) as log, stopping() as stop:
            try:
                while self._left() > 0 and not stop.is_asked:
                    done = self._iterate(stop.is_asked)
                    self.curve.append(done)
                    log.write(
                        done.iteration,
                        {
                            **done.numbers,
                            "selection/cost": done.selected,
                            "run/seconds": done.seconds,
                        },
                    )
                    if progress is not None:
                        progress(done)
            except DivergedError as error:
                ending = str(error)
            if stop.is_asked:
                ending = "interrupted"
                self._save()
        return PackingResult(
            self.checkpoint(), self.iteration, self.seconds, self.best, tuple(self.curve), ending
        )

    def _left(self) -> float:
        """The share of the training that is left."""
        t = self.training
        by_time = 1.0 - self.seconds / t.budget_s
        if t.max_iterations is None:
            return by_time
        return 1.0 - self.iteration / t.max_iterations if by_time > 0 else 0.0

    def _iterate(self, is_stopped: bool) -> PackingIteration:
        began = time.perf_counter()
        numbers = self.learner.iterate(
            IterationSeeds(self.training.seed, self.iteration), self._left()
        )
        self.iteration += 1
        if not math.isfinite(numbers["cost"]):
            raise DivergedError(
                f"after {self.iteration} iterations the mean cost is {numbers['cost']}; the best policy is kept"
            )
        before = self.seconds
        self.seconds = self.seconds + time.perf_counter() - began
        selected = math.nan
        if self.iteration % self.training.select_every == 0 or self._left() <= 0 or is_stopped:
            selected = self._select()
            self.seconds = before + time.perf_counter() - began
            self.selected.append([self.iteration, round(self.seconds, 1), selected])
            self._save()
        return PackingIteration(self.iteration, self.seconds, numbers, selected, self.best)

    def _select(self) -> float:
        """Measure the present policy; keep it if it is the best so far."""
        policy = self.learner.policy()
        batch = PackingBatch(
            *self._selection, wants_profile=policy.wants_profile, seed=self.training.seed
        )
        batch.run(policy.play_many)
        selected = typical_cost(batch, self.training.cost)
        if selected < self.best:
            self.best, self.best_weights = selected, self.learner.weights()
        return selected

    def checkpoint(self) -> Checkpoint:
        """The best policy so far, with its model card."""
        card = {
            "source": self.training.source.card(),
            "cost": self.training.cost.name.lower(),
            "seed": self.training.seed,
            "iterations": self.iteration,
            "seconds": round(self.seconds, 1),
            "curve": self.selected,
            "command": self.training.command,
            "cost_on_selection_runs": self.best if math.isfinite(self.best) else None,
        }
        return Checkpoint(
            self.learner.kind,
            self.learner.feature_version,
            self.best_weights,
            self.learner.settings(),
            card,
        )

    def _identity(self) -> dict[str, Any]:
        own = {
            "kind": self.learner.kind,
            "settings": self.learner.settings(),
            "source": self.training.source.card(),
            "cost": self.training.cost.name,
            "seed": self.training.seed,
        }
        same: dict[str, Any] = json.loads(json.dumps(own))
        return same

    def _save(self) -> None:
        folder = self.training.folder
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        weights = {f"now.{name}": array for name, array in self.learner.weights().items()}
        weights |= {f"best.{name}": array for name, array in self.best_weights.items()}
        weights |= {f"state.{name}": array for name, array in self.learner.state().items()}
        best = self.best if math.isfinite(self.best) else None
        settings = {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "best": best,
            "curve": self.selected,
            "identity": self._identity(),
        }
        write_checkpoint(
            Checkpoint("packing-training", self.learner.feature_version, weights, settings),
            folder / STATE_FILE,
        )
        write_checkpoint(self.checkpoint(), folder / BEST_FILE)

    def _resume(self, path: Path) -> None:
        state = read_checkpoint(path)
        state.require("packing-training", self.learner.feature_version, str(path))
        for key, value in self._identity().items():
            if state.settings["identity"].get(key) != value:
                raise ConfigError(
                    f"{path}: a training with another {key}; use the same settings, or another folder"
                )

        def part(prefix: str) -> Weights:
            return {
                k.removeprefix(prefix): v for k, v in state.weights.items() if k.startswith(prefix)
            }

        self.learner.restore(part("now."), part("state."))
        self.best_weights = part("best.")
        self.selected = [list(point) for point in state.settings["curve"]]
        self.iteration = int(state.settings["iteration"])
        self.seconds = float(state.settings["seconds"])
        self.best = math.inf if state.settings["best"] is None else float(state.settings["best"])
