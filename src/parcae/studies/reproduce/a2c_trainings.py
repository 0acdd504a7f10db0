"""The policies of the A2cScheduler studies: read from checkpoints or trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from parcae.learning.loop import Plan, TrainResult, train
from parcae.learning.packing.a2c import A2cLearner
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.policies.a2c.layout import KIND, A2cSettings, Architecture
from parcae.policies.a2c.policy import A2cPolicy
from parcae.policies.checkpoint import Checkpoint
from parcae.studies.reproduce.packing import given_or_shipped, keep_trained, require_fitting
from parcae.studies.reproduce.study import PackingRequest


@dataclass(frozen=True)
class LearnedA2c:
    """A policy that was read or trained.

    Args:
        checkpoint: its checkpoint.
        words: a note on its origin.
    """

    checkpoint: Checkpoint
    words: str

    @property
    def card(self) -> Mapping[str, Any]:
        """The checkpoint's model card."""
        return self.checkpoint.card

    @property
    def policies(self) -> dict[str, A2cPolicy]:
        """The policy that draws its actions at random, and the greedy one."""
        return {
            "a2c": A2cPolicy.from_checkpoint(self.checkpoint, "a2c"),
            "a2c, greedy": A2cPolicy.from_checkpoint(
                self.checkpoint, "a2c, greedy", is_greedy=True
            ),
        }


def require_fitting_a2c(request: PackingRequest, sources: Sequence[PackingSource]) -> None:
    """Check that a study of these sources uses one of the request's checkpoints."""
    require_fitting(request, KIND, "A2cScheduler", [partial(is_for, one) for one in sources])


def learned_a2c(
    request: PackingRequest,
    source: PackingSource,
    where: str,
    share_s: float,
    architecture: Architecture = Architecture.CONV_16,
    num_selection: int = 200,
    settings: Sequence[str] = (),
) -> LearnedA2c:
    """A2cScheduler for a source: one of the given or shipped checkpoints, or newly trained.

    Args:
        request: the study's request; its policies come first.
        source: the source of job sequences.
        where: name of the setting, for notes and file names.
        share_s: seconds of training.
        architecture: the network's architecture, if it is trained.
        num_selection: number of selection runs, if it is trained.
        settings: changes of the recipe's settings, each "key=value", if it is trained.

    Raises:
        FormatError: a given checkpoint is damaged or of another kind.
        FileNotFoundError: a given checkpoint does not exist.
        KeyboardInterrupt: the user stopped the training, which stops the study.
    """
    # Deviation: A2cScheduler 4.3 decides against pooling. The shipped policy of tables 1 and 2 has
    # it, because with it a training plays twice as many decisions in the same time.
    found = given_or_shipped(request, KIND, "A2cScheduler", partial(is_for, source))
    if found is not None:
        path, checkpoint = found
        words = (
            f"{path.name}, {checkpoint.card['iterations']} iterations "
            f"in {checkpoint.card['seconds']:,.0f} s; {_network_words(checkpoint, architecture)}"
        )
        return LearnedA2c(checkpoint, f"a2c at {where}: {words}")
    result = train_a2c(
        request,
        source,
        where,
        share_s,
        architecture,
        num_selection=num_selection,
        settings=settings,
    )
    ended = "" if result.ending == "done" else f"; it ended early: {result.ending}"
    changed = "".join(f", {setting}" for setting in settings)
    words = (
        f"trained here, {result.iterations} iterations in {result.seconds:,.0f} s{changed}; cost "
        f"{result.best:.3f} on the selection runs{result.late_words}{ended}; "
        f"{_network_words(result.checkpoint, architecture)}"
    )
    return LearnedA2c(result.checkpoint, f"a2c at {where}: {words}")


def _network_words(checkpoint: Checkpoint, expected: Architecture) -> str:
    """The policy's architecture, hidden layer and mask, and where they are not the paper's.

    `expected` is the architecture that the study would train.
    """
    settings = checkpoint.network_settings(A2cSettings, KIND)
    notes = []
    if settings.architecture is not expected:
        notes.append(f"a training of this study has {expected.value}")
    if settings.architecture.has_pool:
        notes.append("the paper decides against pooling, section 4.3")
    in_brackets = f" ({'; '.join(notes)})" if notes else ""
    layer = f"a layer of {settings.hidden} units (the paper names none)"
    choice = "a job that can start or none (the paper: any of the N jobs or none, section 3.1)"
    return (
        f"network {settings.architecture.value}{in_brackets}, then "
        f"{layer if settings.hidden else 'no further layer'}; it chooses "
        f"{choice if settings.is_masked else 'any of the N jobs or none'}"
    )


def is_for(source: PackingSource, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint was trained on the source, possibly with further rates.

    Its network may be another one than the study trains; the note on the policy says so.
    """
    learned = checkpoint.card.get("source", {})
    wanted = source.card()
    # All settings must be equal, except that the training may have had more rates. The cards of
    # older versions lack rows and digests of logs.
    is_among = set(wanted.get("rates", ())) <= set(learned.get("rates", ()))
    known = {key: value for key, value in learned.items() if key != "rates"}
    return is_among and "config" in known and known == {key: wanted.get(key) for key in known}


def train_a2c(
    request: PackingRequest,
    source: PackingSource,
    where: str,
    share_s: float,
    architecture: Architecture,
    select_every: int = 20,
    num_selection: int = 200,
    settings: Sequence[str] = (),
) -> TrainResult:
    """Train A2cScheduler and write the checkpoint to the study's folder.

    Args:
        request: the study's request.
        source: the source of job sequences.
        where: name of the setting, for notes and file names.
        share_s: seconds of training.
        architecture: the network's architecture.
        select_every: number of iterations between two selections.
        num_selection: number of selection runs.
        settings: changes of the recipe's settings, each "key=value".

    Raises:
        KeyboardInterrupt: the user stopped the training, which stops the study.
    """
    request.say(f"training A2cScheduler ({architecture.value}) at {where}, {share_s:.0f} s")
    settings = [f"architecture={architecture.value}", *settings]
    learner = A2cLearner(
        source, Cost.SLOWDOWN, request.recipe, settings, seed=request.training_seed
    )
    learner.select_every = select_every
    learner.num_selection = num_selection
    result = train(learner, Plan(share_s))
    keep_trained(request, result, f"a2c-{where.replace(' ', '-')}-{architecture.value}")
    return result
