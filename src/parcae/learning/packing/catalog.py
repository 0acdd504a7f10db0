"""Makes learners of packing policies by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parcae.errors import ConfigError, FormatError
from parcae.metrics.packing import require_ranking
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource, require_waiting
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.networks.layout import require_shapes
from parcae.policies.packing.catalog import RULE_KIND, policy_of_checkpoint

if TYPE_CHECKING:
    from parcae.learning.packing.learner import PackingLearner

#: Module and class of each learner. Modules are imported only on use: some need PyTorch.
LEARNERS = {
    "deeprm": ("parcae.learning.packing.deeprm", "DeepRMLearner"),
    "a2c": ("parcae.learning.packing.a2c", "A2cLearner"),
    "set": ("parcae.learning.packing.jobset", "SetLearner"),
}
#: Settings of networks that may differ from those of the network that a training starts from: they
#: change no input.
_FREE = ("actions", "is_masked")


def make_learner(
    kind: str,
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
) -> PackingLearner:
    """Make the learner with this name.

    Args:
        kind: "deeprm", "a2c" or "set".
        source: where job sequences are drawn.
        cost: the objective to minimise.
        recipe: recipe of the learner; None for its default.
        settings: changes of the recipe's settings, each "key=value".
        seed: seed of the random weights.

    Raises:
        ConfigError: there is no such learner, recipe or setting, it cannot learn on the source (as
            where no job waits), or the cost does not tell policies apart.

    Example: `make_learner("set", DrawnSource())`
    """
    if kind not in LEARNERS:
        raise ConfigError(f"no learner {kind!r}: write one of {', '.join(LEARNERS)}")
    require_ranking(cost)
    require_waiting(source)
    module, name = LEARNERS[kind]
    make: Any = getattr(importlib.import_module(module), name)
    arguments: dict[str, Any] = {"settings": settings, "seed": seed}
    # Every learner has its own default recipe.
    if recipe is not None:
        arguments["recipe"] = recipe
    learner: PackingLearner = make(source, cost, **arguments)
    return learner


def start_from(learner: PackingLearner, checkpoint: Checkpoint, path: str) -> None:
    """Let a learner that has not begun start from a checkpoint instead of random weights.

    The set network can also start from a tuned withholding rule, which it then corrects.

    Args:
        learner: the learner; its network's weights are replaced.
        checkpoint: where the weights are taken from.
        path: path of the checkpoint, for the error message.

    Raises:
        FormatError: the checkpoint is of another kind or version, damaged, or of a network with
            other inputs.
    """
    kind = learner.kind
    is_rule = checkpoint.kind == RULE_KIND and checkpoint.settings.get("kind") == "withhold"
    if checkpoint.kind != kind and not (kind == "set" and is_rule):
        also = " (or a tuned withholding rule)" if kind == "set" else ""
        raise FormatError(
            f"{path} is a checkpoint of a {checkpoint.kind!r} policy: give a checkpoint of "
            f"{kind!r}{also} to start from"
        )
    # The same checks as where the policy is used.
    policy_of_checkpoint(checkpoint, path, path)
    if is_rule:
        weights = {"rule": checkpoint.weights["params"]}
    else:
        _check_network(learner, checkpoint, path)
        weights = checkpoint.weights
    fresh = learner.weights()
    started = fresh | {name: weights[name] for name in fresh.keys() & weights.keys()}
    require_shapes(started, {name: array.shape for name, array in fresh.items()}, path)
    learner.restore(started, learner.state())


def _check_network(learner: PackingLearner, checkpoint: Checkpoint, path: str) -> None:
    """Raise an error if a network has other parts than the learner's, or sees another image."""
    saved = checkpoint.settings.get("network", {})
    for key, value in learner.settings().get("network", {}).items():
        # Older checkpoints do not have every setting.
        before = saved.get(key, value)
        if key not in _FREE and before != value:
            raise FormatError(
                f"{path}: a network with {key} {before}, but this training's has {value}: to start "
                "from it, train with the same sizes and settings"
            )
