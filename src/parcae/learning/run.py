"""A training from beginning to end: which network, where to start, what to keep, how to go on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from parcae.errors import ConfigError, DivergedError
from parcae.learning.config import TrainConfig
from parcae.learning.decima_family import DecimaFamily
from parcae.learning.family import Family, Weights
from parcae.learning.parcae_family import ParcaeFamily
from parcae.learning.scenario import Scenario
from parcae.learning.stopping import ScalarLog, stopping
from parcae.learning.train import STATE_FILE, Iteration, Trainer
from parcae.policies.checkpoint import Checkpoint, write_checkpoint
from parcae.policies.decima.layout import DecimaSettings
from parcae.policies.learned import require_durations, setting_card
from parcae.policies.rule.kernels import Rule
from parcae.policies.rule.policy import Parameters
from parcae.policies.solo_curves import solo_curves


@dataclass(frozen=True)
class TrainRequest:
    """What to train and how long.

    Args:
        network: "parcae" or "decima".
        parameters: the tuned rule that "parcae" corrects, and that "decima" imitates where the config says so.
        decima: which features and parts of Decima.
        weights: a network to start from, or None for a fresh one.
        budget_s: wall-clock seconds, those of an interrupted training included.
        max_iterations: end after so many iterations; the learning rate then falls by iterations, so that a training that was
            interrupted and resumed ends with the very same weights.
        folder: where the state, the best policy and the logs go; None to keep nothing but the result.
        is_resumed: go on from the state in the folder.
    """

    scenario: Scenario
    config: TrainConfig
    network: str = "parcae"
    parameters: Parameters | None = None
    decima: DecimaSettings = field(default_factory=DecimaSettings)
    weights: Weights | None = None
    budget_s: float = 300.0
    max_iterations: int | None = None
    seed: int = 0
    folder: Path | None = None
    is_resumed: bool = False
    device: str = "cpu"
    ray_address: str | None = None


@dataclass(frozen=True)
class TrainResult:
    """The best policy that a training found, and how the training ended.

    Args:
        ending: "done", "interrupted", or what went astray.
    """

    checkpoint: Checkpoint
    iterations: int
    decisions: int
    seconds: float
    ratio_to_fair: float
    ending: str


def make_family(request: TrainRequest) -> Family:
    """The kind of network that is asked for.

    Raises:
        ConfigError: an unknown one, or "parcae" without a rule.
    """
    if request.network == "decima":
        return DecimaFamily(request.scenario, request.decima)
    if request.network != "parcae":
        raise ConfigError(f"network {request.network!r}: write parcae or decima")
    if request.parameters is None:
        raise ConfigError(
            "the network 'parcae' corrects a tuned rule: give one with --rule (make it with `parcae tune`)"
        )
    return ParcaeFamily(request.scenario, request.parameters, request.config.prior)


def _teacher(request: TrainRequest) -> Rule | None:
    if request.parameters is None:
        return None
    scenario = request.scenario
    return Rule(
        np.asarray(request.parameters, np.float64), *solo_curves(scenario.workload, scenario.config)
    )


def train_policy(
    request: TrainRequest, progress: Callable[[Iteration], None] | None = None
) -> TrainResult:
    """Train a policy; what is returned is the best that was seen on the selection runs, also after an interruption.

    Raises:
        ConfigError, FormatError, FileNotFoundError: something that cannot be trained or resumed.
    """
    require_durations(request.scenario.workload)
    # One thread: small minibatches gain a third from a second one on an idle machine and lose tenfold on a busy one.
    torch.set_num_threads(1)
    trainer = Trainer(
        request.scenario,
        request.config,
        make_family(request),
        seed=request.seed,
        weights=request.weights,
        folder=request.folder,
        device=request.device,
        ray_address=request.ray_address,
        teacher=_teacher(request),
    )
    if request.is_resumed:
        if request.folder is None:
            raise ConfigError("resuming needs the folder of the training")
        trainer.resume(request.folder)
    elif request.folder is not None and (request.folder / STATE_FILE).exists():
        raise ConfigError(
            f"{request.folder} holds a training already: resume it with --resume, or choose another folder"
        )
    if not request.is_resumed:
        trainer.warm_up()
    ending = "done"
    with ScalarLog(request.folder) as log, stopping() as stop:

        def report(iteration: Iteration) -> None:
            log.write(iteration.iteration, _scalars(iteration))
            if request.folder is not None and not math.isnan(iteration.selected):
                write_checkpoint(_checkpoint(trainer, request), request.folder / "best.safetensors")
            if progress is not None:
                progress(iteration)

        try:
            trainer.train(
                budget_s=request.budget_s,
                max_iterations=request.max_iterations,
                progress=report,
                is_stopped=lambda: stop.is_asked,
            )
            ending = "interrupted" if stop.is_asked else "done"
        except DivergedError as error:
            ending = str(error)
    return TrainResult(
        _checkpoint(trainer, request),
        trainer.iteration,
        trainer.decisions,
        trainer.seconds,
        trainer.best,
        ending,
    )


def _checkpoint(trainer: Trainer, request: TrainRequest) -> Checkpoint:
    scenario = request.scenario
    return trainer.checkpoint(
        setting_card(scenario.workload, scenario.config, scenario.arrivals, scenario.num_jobs)
    )


def _scalars(i: Iteration) -> dict[str, float]:
    """One iteration's numbers, for the log."""
    return {
        "loss/policy": i.report.loss,
        "loss/value": i.report.value_loss,
        "policy/entropy": i.report.entropy,
        "policy/kl": i.report.kl,
        "policy/clipped": i.report.clipped,
        "run/jobs_in_system": i.mean_jobs,
        "run/decisions": i.decisions,
        "run/seconds": i.seconds,
        "training/learning_rate": i.learning_rate,
        "selection/ratio_to_fair": i.selected,
    }
