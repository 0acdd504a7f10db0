"""Runs a whole training: makes or resumes a trainer, logs, keeps the best policy, and stops."""

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
    """What to train and for how long.

    Args:
        scenario: what to train for.
        config: the settings of the training.
        network: "parcae" or "decima".
        parameters: the tuned rule that "parcae" corrects, and that "decima" imitates if the config
            says so.
        decima: features and parts of Decima's network.
        weights: a network to start from, or None for random weights.
        budget_s: wall-clock seconds, including those before an interruption.
        max_iterations: end after this many iterations. The learning rate then falls by iterations
            and not by time, so that an interrupted and resumed training ends with exactly the same
            weights.
        seed: seed of the training.
        folder: where the state, the best policy and the logs are written; None to write nothing.
        is_resumed: continue from the state in the folder.
        device: "cpu" or "cuda".
        ray_address: address of a Ray cluster for the rollouts, or None to use this machine.
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
    """The best policy of a training, and how the training ended.

    Args:
        checkpoint: the best policy on the selection runs.
        iterations: number of iterations.
        decisions: number of recorded decisions.
        seconds: wall-clock time.
        ratio_to_fair: the policy's objective / that of fair sharing on the selection runs.
        ending: "done", "interrupted", or the message of the error that ended it.
    """

    checkpoint: Checkpoint
    iterations: int
    decisions: int
    seconds: float
    ratio_to_fair: float
    ending: str


def make_family(request: TrainRequest) -> Family:
    """The family of the requested network.

    Raises:
        ConfigError: the network is unknown, or it is "parcae" and there is no rule.
    """
    if request.network == "decima":
        return DecimaFamily(request.scenario, request.decima)
    if request.network != "parcae":
        raise ConfigError(f"network {request.network!r}: write parcae or decima")
    if request.parameters is None:
        raise ConfigError(
            "the network 'parcae' corrects a tuned rule: give one with --rule (make it with "
            "`parcae tune`)"
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
    """Train a policy, and return the best one on the selection runs, also after an interruption.

    Raises:
        ConfigError, FormatError, FileNotFoundError: the training cannot start or resume.
    """
    require_durations(request.scenario.workload)
    # A second thread makes small minibatches a third faster on an idle machine, and ten times
    # slower on a busy one.
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
            raise ConfigError("to resume a training, give its folder")
        trainer.resume(request.folder)
    elif request.folder is not None and (request.folder / STATE_FILE).exists():
        raise ConfigError(
            f"{request.folder} already contains a training: resume it with --resume, or choose "
            "another folder"
        )
    # A resumed training restores the draws itself.
    if not request.is_resumed:
        trainer.warm_up()
    ending = "done"
    with ScalarLog(request.folder) as log, stopping() as stop:

        def report(iteration: Iteration) -> None:
            log.write(iteration.iteration, _scalars(iteration))
            # `selected` is a number only where the policy was measured, so the best may be new.
            if request.folder is not None and not math.isnan(iteration.selected):
                write_checkpoint(_checkpoint(trainer, request), request.folder / "best.safetensors")
            if progress is not None:
                progress(iteration)

        try:
            trainer.train(
                budget_s=request.budget_s,
                max_iterations=request.max_iterations,
                progress=report,
                is_stopped=lambda: stop.is_requested,
            )
            ending = "interrupted" if stop.is_requested else "done"
        except DivergedError as error:
            # Training can diverge; the best policy so far is still returned.
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
    """The numbers of one iteration by their names in TensorBoard."""
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
