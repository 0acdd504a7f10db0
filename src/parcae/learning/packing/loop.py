"""The training loop of packing policies: iterates, selects, logs, saves and resumes.

All draws of an iteration follow from the training's seed and the iteration's number. A training
that was interrupted and resumed therefore continues exactly as it would have without interruption.
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
#: The files in the folder of a training: the state that it resumes from, and the best policy.
STATE_FILE = "training.safetensors"
BEST_FILE = "best.safetensors"


class Learner(Protocol):
    """A kind of packing policy in training: all that the training loop knows about it."""

    kind: str  # of its checkpoints, see `parcae.policies.checkpoint`
    feature_version: int

    def settings(self) -> dict[str, Any]:
        """The settings of the network and of the training, as plain JSON.

        They must not change when a training is resumed.
        """

    def iterate(self, seeds: IterationSeeds, left: float) -> Mapping[str, float]:
        """Run one iteration: rollouts and updates.

        `left` is the share of the training that is left. Returns numbers for the log, among them
        "decisions" and "cost" (the mean cost per job on this iteration's sequences).
        """

    def weights(self) -> Weights:
        """Copies of the policy's present weights."""

    def policy(self) -> PackingPolicy:
        """The policy with the present weights."""

    def state(self) -> Weights:
        """What else a resumed training needs: moments of the optimizer, a critic, and so on."""

    def restore(self, weights: Weights, state: Weights) -> None:
        """Continue from what `weights` and `state` returned."""


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


@dataclass(frozen=True)
class PackingTraining:
    """What to train on, and for how long.

    Args:
        source: where job sequences are drawn.
        cost: the objective to minimise.
        budget_s: wall-clock seconds.
        max_iterations: maximum number of iterations; None for no maximum.
        select_every: iterations between measurements on the selection runs.
        num_selection: number of selection runs.
        seed: seed of the training.
        folder: where the state, the best policy and the logs are written; None to write nothing.
        is_resumed: continue from the state in the folder.
        command: the command line, for the model card.
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
    """The numbers of one iteration.

    Args:
        iteration: number of the iteration, from 1.
        seconds: wall-clock time of the training so far.
        numbers: what the learner's `iterate` returned.
        selected: cost on the selection runs; NaN if not measured in this iteration.
        best: the smallest `selected` so far.
    """

    iteration: int
    seconds: float
    numbers: Mapping[str, float]
    selected: float
    best: float


@dataclass(frozen=True)
class PackingResult:
    """The best policy of a training, and how the training went.

    Args:
        checkpoint: the best policy on the selection runs.
        iterations: number of iterations.
        seconds: wall-clock time.
        best: cost of the best policy on the selection runs.
        curve: the iterations since the start or the last resume.
        ending: "done", "interrupted", or the message of the error that ended the training.
    """

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
    """Train a packing policy until the time or the iterations are used up, or Ctrl-C.

    Args:
        learner: the kind of policy, which also fixes how it learns.
        training: what to train on and for how long.
        progress: called after every iteration.

    Returns:
        The best policy on the selection runs.

    Raises:
        ConfigError, FormatError, FileNotFoundError: the training cannot start or resume.
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
        self.selected: list[list[float]] = []  # [iteration, seconds, cost on the selection runs]
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
                raise ConfigError("to resume a training, give its folder")
            self._resume(folder / STATE_FILE)
        elif folder is not None and (folder / STATE_FILE).exists():
            raise ConfigError(
                f"{folder} already contains a training: resume it with --resume, or choose another "
                "folder"
            )

    def run(self, progress: Callable[[PackingIteration], None] | None) -> PackingResult:
        ending = "done"
        with ScalarLog(self.training.folder) as log, stopping() as stop:
            try:
                while self._left() > 0 and not stop.is_requested:
                    result = self._iterate(stop.is_requested)
                    self.curve.append(result)
                    log.write(
                        result.iteration,
                        {
                            **result.numbers,
                            "selection/cost": result.selected,
                            "run/seconds": result.seconds,
                        },
                    )
                    if progress is not None:
                        progress(result)
            except DivergedError as error:
                ending = str(error)
            if stop.is_requested:
                ending = "interrupted"
                self._save()
        return PackingResult(
            self.checkpoint(), self.iteration, self.seconds, self.best, tuple(self.curve), ending
        )

    def _left(self) -> float:
        """Share of the training that is left: of the iterations if limited, else of the time."""
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
                f"after {self.iteration} iterations the mean cost is {numbers['cost']}; the best "
                "policy is kept"
            )
        before = self.seconds
        self.seconds = self.seconds + time.perf_counter() - began
        selected = math.nan
        # Measured regularly, and after the last iteration.
        if self.iteration % self.training.select_every == 0 or self._left() <= 0 or is_stopped:
            selected = self._select()
            # The measurement counts as training time, too.
            self.seconds = before + time.perf_counter() - began
            self.selected.append([self.iteration, round(self.seconds, 1), selected])
            self._save()
        return PackingIteration(self.iteration, self.seconds, numbers, selected, self.best)

    def _select(self) -> float:
        """Measure the present policy on the selection runs; keep it if it is the best so far."""
        policy = self.learner.policy()
        # The same seed every time, so that policies that draw are measured on the same draws.
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
        """The settings that must not change when a training is resumed, as plain JSON."""
        identity = {
            "kind": self.learner.kind,
            "settings": self.learner.settings(),
            "source": self.training.source.card(),
            "cost": self.training.cost.name,
            "seed": self.training.seed,
        }
        # Through JSON, so that it compares equal to what was read from a file (lists, not tuples).
        as_json: dict[str, Any] = json.loads(json.dumps(identity))
        return as_json

    def _save(self) -> None:
        folder = self.training.folder
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        # One file with the present weights, the best weights and the learner's state.
        weights = {f"now.{name}": array for name, array in self.learner.weights().items()}
        weights |= {f"best.{name}": array for name, array in self.best_weights.items()}
        weights |= {f"state.{name}": array for name, array in self.learner.state().items()}
        best = self.best if math.isfinite(self.best) else None  # JSON has no infinity
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
                    f"{path}: a training with another {key}; use the same settings, or another "
                    "folder"
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
