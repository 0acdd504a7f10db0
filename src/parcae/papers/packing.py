"""Shared parts of the packing studies: job sequences, policies and trainings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, FormatError
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    Estimate,
    mean_estimate,
    ratio_estimate,
)
from parcae.learning.loop import Iteration, TrainingPlan, TrainResult, train
from parcae.papers.study import PackingRequest
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.rigid.bernoulli import CODE, load_of_rate
from parcae.rigid.deeprm.layout import KIND
from parcae.rigid.deeprm.learner import DeepRMLearner
from parcae.rigid.deeprm.policy import DeepRMPolicy, deeprm_policy
from parcae.rigid.evaluation.tuning import tune_knob
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost
from parcae.rigid.metrics import comparable_costs
from parcae.rigid.policies.catalog import SHIPPED
from parcae.rigid.policies.kernels.decisions import PackingKind
from parcae.rigid.policies.policy import HandMadePolicy, PackingPolicy
from parcae.rigid.sources import DrawnSource, PackingSource
from parcae.rigid.world import PackingBatch

FloatArray = npt.NDArray[np.float64]
#: Number of iterations of a full training (DeepRM, section 4.1).
FULL_ITERATIONS = 1_000


def source_at(rate: float) -> DrawnSource:
    """DeepRM's jobs as its code draws them; `rate` is the arrival probability per step."""
    return DrawnSource(rates=(rate,))


@dataclass(frozen=True, eq=False)
class PlayedSequences:
    """The runs of all job sequences under one policy."""

    batch: PackingBatch

    def per_job(self, cost: Cost) -> FloatArray:
        """Mean cost of a sequence's jobs, lost ones too: float64[num_sequences].

        See `parcae.rigid.metrics.comparable_costs`.
        """
        counts = np.array([len(jobs) for jobs in self.batch.sequences])
        return np.asarray(comparable_costs(self.batch, cost) / counts)

    def estimate(self, cost: Cost) -> Estimate:
        """Mean of `per_job` over the sequences."""
        return mean_estimate(self.per_job(cost))

    def ratio(self, other: PlayedSequences, cost: Cost) -> Estimate:
        """The cost / that of another policy, paired by sequence."""
        return ratio_estimate(self.per_job(cost), other.per_job(cost))

    @property
    def num_unfinished(self) -> int:
        """Number of jobs that never started or were lost."""
        return sum(int((outcome.start < 0).sum()) for outcome in self.batch.outcomes())


def unfinished_note(counts: Mapping[str, int], all_finished: str) -> str:
    """A note on jobs that never started or were lost."""
    lost = ", ".join(f"{label} {count}" for label, count in counts.items() if count)
    if not lost:
        return all_finished
    return f"jobs never started or lost, charged as if they ran after the end: {lost}"


@dataclass(frozen=True)
class Stage:
    """Job sequences for evaluation: no policy was trained on them. Empty ones are left out."""

    source: PackingSource
    first_seed: int
    num_runs: int
    num_threads: int | None = None

    @cached_property
    def sequences(self) -> list[RigidJobs]:
        """The job sequences, in order of their seeds."""
        return [
            jobs
            for jobs in self.source.draw(range(self.first_seed, self.first_seed + self.num_runs))
            if len(jobs)
        ]

    def batch(self, wants_profile: bool) -> PackingBatch:
        """One cluster per sequence, before its run begins."""
        return PackingBatch(
            self.sequences, self.source.config, wants_profile=wants_profile, seed=self.first_seed
        )

    def play(self, policy: PackingPolicy) -> PlayedSequences:
        """Run every sequence once."""
        batch = self.batch(policy.wants_profile)
        batch.run(policy.play_many, self.num_threads)
        return PlayedSequences(batch)


def stage_of(request: PackingRequest, rate: float) -> Stage:
    """The evaluation sequences at a rate: 100, as in the paper, unless the request changes it."""
    return Stage(source_at(rate), request.first_seed, request.runs(100, 100), request.processes)


def tuned_tetris(
    source: PackingSource, cost: Cost, num_threads: int | None = None
) -> HandMadePolicy:
    """Tetris* with the knob that is best on tuning sequences."""
    tuned = tune_knob(source, cost, num_threads=num_threads).policy
    return HandMadePolicy(f"tetris* ({tuned.params[0]:g})", PackingKind.TETRIS, tuned.params)


def heuristics(
    source: PackingSource, cost: Cost = Cost.SLOWDOWN, num_threads: int | None = None
) -> dict[str, HandMadePolicy]:
    """The paper's heuristics, and uniformly random actions, by name."""
    return {
        "tetris*": tuned_tetris(source, cost, num_threads),
        "sjf": HandMadePolicy("sjf", PackingKind.SJF),
        "packer": HandMadePolicy("packer", PackingKind.PACKER),
        "random": HandMadePolicy("random", PackingKind.RANDOM),
    }


def given_or_shipped(
    request: PackingRequest, kind: str, paper: str, is_for: Callable[[Checkpoint], bool]
) -> tuple[Path, Checkpoint] | None:
    """The fitting checkpoint of the request, or else of the package; None if none fits.

    Those of the package are left out if the request wants new ones.
    """
    given = _fitting(map(Path, request.policies), kind, paper, is_for)
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(str(path) for path, _ in given)} were trained in the same setting of "
            "this study, which compares one policy in each: give one of them"
        )
    shipped = [] if request.trains_anew else sorted(SHIPPED.folder.glob(f"{kind}-*.safetensors"))
    found = given or _fitting(shipped, kind, paper, is_for)
    return found[0] if found else None


def _fitting(
    paths: Iterable[Path], kind: str, paper: str, is_for: Callable[[Checkpoint], bool]
) -> list[tuple[Path, Checkpoint]]:
    """The checkpoints that were trained for a setting; see `given_or_shipped`."""
    read = [(path, _read_of_kind(path, kind, paper)) for path in paths]
    return [(path, checkpoint) for path, checkpoint in read if is_for(checkpoint)]


def _read_of_kind(path: Path, kind: str, paper: str) -> Checkpoint:
    """Read a checkpoint of the paper's policy; see `given_or_shipped`."""
    checkpoint = read_checkpoint(path)
    if checkpoint.kind != kind:
        raise FormatError(
            f"{path}: this is a checkpoint of a {checkpoint.kind!r} policy, "
            f"but this study accepts only those of {paper}"
        )
    return checkpoint


def require_fitting(
    request: PackingRequest,
    kind: str,
    paper: str,
    are_for: Sequence[Callable[[Checkpoint], bool]],
) -> None:
    """Check that a study uses one of the request's checkpoints, if there are any."""
    given = [_read_of_kind(path, kind, paper) for path in map(Path, request.policies)]
    if given and not any(is_for(checkpoint) for checkpoint in given for is_for in are_for):
        raise ConfigError(
            f"none of {', '.join(request.policies)} was trained in a setting of this study, so it "
            "would use other policies: leave out --policy, or give a checkpoint that was"
        )


def keep_trained(request: PackingRequest, result: TrainResult, name: str) -> None:
    """Write the checkpoint of a training to the study's folder."""
    # An interrupted training would make the whole study worthless.
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    request.output.mkdir(parents=True, exist_ok=True)
    write_checkpoint(result.checkpoint, request.output / f"{name}.safetensors")


@dataclass(frozen=True)
class LearnedPacking:
    """A policy that was read or trained."""

    policy: DeepRMPolicy
    words: str
    card: Mapping[str, Any]

    @property
    def greedy(self) -> DeepRMPolicy:
        """The same policy, but with the most probable action each time."""
        return DeepRMPolicy(
            "deeprm, greedy", self.policy.weights, self.policy.settings, is_greedy=True
        )


def label_of(rate: float) -> str:
    """The paper's label of a load.

    The paper's labels 10%, 30%, ..., 190% correspond to the rates 0.1, 0.2, ..., 1.0 of its code.
    """
    return f"{round(200 * rate - 10)}%"


def load_at(rate: float) -> float:
    """Average demand that arrives per step, as a share of each resource's capacity."""
    return load_of_rate(CODE, rate)


def require_fitting_deeprm(
    request: PackingRequest, rates: Sequence[float], costs: Sequence[Cost] = (Cost.SLOWDOWN,)
) -> None:
    """Check that a study at these rates and for these objectives uses one of the checkpoints."""
    are_for = [partial(_is_for, rate, cost) for rate in rates for cost in costs]
    require_fitting(request, KIND, "DeepRM", are_for)


def learned_deeprm(
    request: PackingRequest, rate: float, cost: Cost, share_s: float
) -> LearnedPacking:
    """DeepRM for a rate and an objective: a given or shipped checkpoint, or newly trained."""
    found = given_or_shipped(request, KIND, "DeepRM", partial(_is_for, rate, cost))
    if found is not None:
        path, checkpoint = found
        policy = deeprm_policy(checkpoint, str(path))
        words = (
            f"deeprm at {label_of(rate)} for {cost.name.lower()}: {path.name}, "
            f"{checkpoint.card['iterations']} iterations in "
            f"{checkpoint.card['seconds']:.0f} s, "
            f"choosing among actions that are {policy.settings.actions}"
        )
        return LearnedPacking(policy, words, checkpoint.card)
    return train_deeprm(request, rate, cost, share_s)


def _is_for(rate: float, cost: Cost, checkpoint: Checkpoint) -> bool:
    return (
        checkpoint.card.get("source") == source_at(rate).card()
        and checkpoint.card.get("cost") == cost.name.lower()
    )


def train_deeprm(
    request: PackingRequest,
    rate: float,
    cost: Cost,
    share_s: float,
    *,
    recipe: str | None = None,
    progress: Callable[[Iteration, Callable[[], DeepRMPolicy]], None] | None = None,
    select_every: int = 10,
) -> LearnedPacking:
    """Train DeepRM and write the checkpoint to the study's folder."""
    chosen = recipe or request.recipe
    source = source_at(rate)
    request.say(
        f"training DeepRM at a load of {label_of(rate)} for {cost.name.lower()}, "
        f"recipe {chosen}, at most {share_s:.0f} s"
    )
    num_threads = request.processes or os.cpu_count() or 1
    learner = DeepRMLearner(
        source, cost, chosen, seed=request.training_seed, num_threads=num_threads
    )
    learner.select_every = select_every

    def report(done: Iteration) -> None:
        if progress is not None:
            progress(done, learner.policy)

    result = train(learner, TrainingPlan(share_s, FULL_ITERATIONS), report)
    name = f"deeprm-{rate:g}-{cost.name.lower()}-{chosen}"
    keep_trained(request, result, name)
    ended = "" if result.ending == "done" else f"; it ended early: {result.ending}"
    words = (
        f"deeprm at {label_of(rate)} for {cost.name.lower()}: trained here, recipe {chosen}, "
        f"{result.iterations} iterations in {result.seconds:.0f} s (the paper: 1,000){ended}"
    )
    return LearnedPacking(deeprm_policy(result.checkpoint, name), words, result.checkpoint.card)


def setting_notes(stage: Stage, rates: Sequence[float]) -> list[str]:
    """Notes on the setting that are common to all DeepRM studies."""
    labels = ", ".join(
        f"{label_of(rate)} is rate {rate:g} (measured load {load_at(rate):.0%})" for rate in rates
    )
    return [
        f"{stage.num_runs} sequences of {stage.source.config.window} steps that no policy was "
        f"trained on, seeds {stage.first_seed} to {stage.first_seed + stage.num_runs - 1}, the "
        "same for all; at low loads some have no job and are left out; runs end when all jobs are "
        f"done; {METHODS[DEFAULT_METHOD]}",
        f"loads: {labels}. The paper's labels are matched with the rates of the released code. The "
        "demands are those of the code (5 to 10 and 1 to 2 of 10 units), because with those of the "
        "text no load above 92% is possible",
        "the paper does not state the knob of Tetris*: here it is the best of about two dozen from "
        "0 to 1 on other sequences",
        "deeprm draws its actions at random, as in the paper; greedy takes the most probable one",
    ]
