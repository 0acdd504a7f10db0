"""Makes learners of packing policies by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parcae.errors import ConfigError, FormatError
from parcae.metrics.packing import require_ranking
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.policies.checkpoint import Checkpoint, Weights
from parcae.policies.packing.catalog import RULE_KIND

if TYPE_CHECKING:
    from parcae.learning.packing.learner import PackingLearner

#: Module and class of each learner. Modules are imported only on use: some need PyTorch.
LEARNERS = {
    "deeprm": ("parcae.learning.packing.deeprm", "DeepRMLearner"),
    "a2c": ("parcae.learning.packing.a2c", "A2cLearner"),
    "set": ("parcae.learning.packing.jobset", "SetLearner"),
}


def make_learner(
    kind: str,
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    weights: Weights | None = None,
    seed: int = 0,
) -> PackingLearner:
    """Make the learner with this name.

    Args:
        kind: "deeprm", "a2c" or "set".
        source: where job sequences are drawn.
        cost: the objective to minimise.
        recipe: recipe of the learner; None for its default.
        settings: changes of the recipe's settings, each "key=value".
        weights: weights to start from, see `start_weights`; None for random weights.
        seed: seed of the random weights.

    Raises:
        ConfigError: there is no such learner, recipe or setting, it cannot learn on the source, or
            the cost does not tell policies apart.

    Example: `make_learner("set", DrawnSource())`
    """
    if kind not in LEARNERS:
        raise ConfigError(f"no learner {kind!r}: write one of {', '.join(LEARNERS)}")
    require_ranking(cost)
    module, name = LEARNERS[kind]
    make: Any = getattr(importlib.import_module(module), name)
    arguments: dict[str, Any] = {"settings": settings, "weights": weights, "seed": seed}
    # Every learner has its own default recipe.
    if recipe is not None:
        arguments["recipe"] = recipe
    learner: PackingLearner = make(source, cost, **arguments)
    return learner


def start_weights(kind: str, checkpoint: Checkpoint, path: str) -> Weights:
    """The weights from which a learner starts.

    The set network can also start from a tuned withholding rule, which it then corrects.

    Args:
        kind: name of the learner.
        checkpoint: where the weights are taken from.
        path: path of the checkpoint, for the error message.

    Raises:
        FormatError: the checkpoint is of another kind.
    """
    if checkpoint.kind == kind:
        return checkpoint.weights
    if (
        kind == "set"
        and checkpoint.kind == RULE_KIND
        and checkpoint.settings.get("kind") == "withhold"
    ):
        return {"rule": checkpoint.weights["params"]}
    also = " (or a tuned withholding rule)" if kind == "set" else ""
    raise FormatError(
        f"{path} is a checkpoint of a {checkpoint.kind!r} policy: give a checkpoint of {kind!r}"
        f"{also} to start from"
    )
