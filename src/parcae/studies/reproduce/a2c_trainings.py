"""What the A2cScheduler studies train or read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcae.errors import FormatError
from parcae.learning.packing.a2c import a2c_learner
from parcae.learning.packing.loop import PackingResult, PackingTraining, train_packing
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.policies.a2c.layout import KIND, Architecture
from parcae.policies.a2c.policy import A2cPolicy
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.packing.catalog import SHIPPED
from parcae.studies.reproduce.study import PackingRequest


@dataclass(frozen=True)
class LearnedA2c:
    """A policy that was read or trained.

    Args:
        words: where it comes from, for the notes.
    """

    checkpoint: Checkpoint
    words: str

    @property
    def card(self) -> Mapping[str, Any]:
        """The checkpoint's model card."""
        return self.checkpoint.card

    @property
    def policies(self) -> dict[str, A2cPolicy]:
        """Drawn from, and greedy."""
        return {
            "a2c": A2cPolicy.from_checkpoint(self.checkpoint, "a2c"),
            "a2c, greedy": A2cPolicy.from_checkpoint(
                self.checkpoint, "a2c, greedy", is_greedy=True
            ),
        }


def learned_a2c(
    request: PackingRequest,
    source: PackingSource,
    where: str,
    share_s: float,
    architecture: Architecture = Architecture.CONV_16,
    num_selection: int = 200,
) -> LearnedA2c:
    """A2cScheduler for a source: of the files given, of those that ship, or trained for `share_s` seconds.

    Raises:
        FormatError, FileNotFoundError: a given file that cannot be read.
        KeyboardInterrupt: the user stopped the training, and so the study.
    """
    for path in [*map(Path, request.policies), *sorted(SHIPPED.glob(f"{KIND}-*.safetensors"))]:
        checkpoint = read_checkpoint(path)
        if checkpoint.kind != KIND:
            raise FormatError(
                f"{path}: a checkpoint of a {checkpoint.kind!r} policy; this study shows A2cScheduler's alone"
            )
        if _is_for(checkpoint, source):
            words = f"{path.name}, {checkpoint.card['iterations']} iterations in {checkpoint.card['seconds']:,.0f} s"
            return LearnedA2c(checkpoint, f"a2c at {where}: {words}")
    result = train_a2c(request, source, where, share_s, architecture, num_selection=num_selection)
    ended = "" if result.ending == "done" else f"; it ended early: {result.ending}"
    words = f"trained here, {result.iterations} iterations in {result.seconds:,.0f} s{ended}"
    return LearnedA2c(result.checkpoint, f"a2c at {where}: {words}")


def _is_for(checkpoint: Checkpoint, source: PackingSource) -> bool:
    """Whether it was trained on the source, perhaps on other rates besides."""
    learned = dict(checkpoint.card.get("source", {}))
    own = source.card()
    is_among = set(own.get("rates", ())) <= set(learned.get("rates", ()))
    return is_among and {**learned, "rates": None} == {**own, "rates": None}


def train_a2c(
    request: PackingRequest,
    source: PackingSource,
    where: str,
    share_s: float,
    architecture: Architecture,
    select_every: int = 20,
    num_selection: int = 200,
) -> PackingResult:
    """Train for `share_s` seconds; the checkpoint lies in the study's folder.

    Raises:
        KeyboardInterrupt: the user stopped the training, and so the study.
    """
    request.say(f"training A2cScheduler ({architecture.value}) at {where}, {share_s:.0f} s")
    learner = a2c_learner(
        source, Cost.SLOWDOWN, request.recipe, architecture=architecture, seed=request.training_seed
    )
    training = PackingTraining(
        source,
        Cost.SLOWDOWN,
        share_s,
        select_every=select_every,
        num_selection=num_selection,
        seed=request.training_seed,
    )
    result = train_packing(learner, training)
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    request.output.mkdir(parents=True, exist_ok=True)
    write_checkpoint(
        result.checkpoint,
        request.output / f"a2c-{where.replace(' ', '-')}-{architecture.value}.safetensors",
    )
    return result
