"""Learners of packing policies by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parcae.errors import ConfigError, FormatError
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.packing.catalog import RULE_KIND

if TYPE_CHECKING:
    from parcae.learning.packing.loop import Learner, Weights

#: Module and function of each.
LEARNERS = {
    "deeprm": ("parcae.learning.packing.deeprm", "deeprm_learner"),
    "a2c": ("parcae.learning.packing.a2c", "a2c_learner"),
    "set": ("parcae.learning.packing.jobset", "set_learner"),
}


def make_learner(
    kind: str,
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    weights: Weights | None = None,
    seed: int = 0,
) -> Learner:
    """The learner of that name: deeprm, a2c or set.

    Args:
        recipe: of the learner; its own first choice unless given.
        settings: other values of the recipe's settings, each "key=value".
        weights: to start from, see `start_weights`.
        seed: of the first weights.

    Raises:
        ConfigError: no such learner, recipe or setting, or a source that it cannot learn on.

    Example: `make_learner("set", DrawnSource())`
    """
    if kind not in LEARNERS:
        raise ConfigError(f"no learner {kind!r}: write one of {', '.join(LEARNERS)}")
    module, function = LEARNERS[kind]
    make: Any = getattr(importlib.import_module(module), function)
    given: dict[str, Any] = {"settings": settings, "weights": weights, "seed": seed}
    if recipe is not None:
        given["recipe"] = recipe
    learner: Learner = make(source, cost, **given)
    return learner


def start_weights(kind: str, checkpoint: Checkpoint, path: str) -> Weights:
    """What a learner starts from: a checkpoint of its own kind, or for the set network a tuned withholding rule.

    Raises:
        FormatError: of another kind.
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
        f"{path}: a checkpoint of a {checkpoint.kind!r} policy; {kind!r} starts from one of its own{also}"
    )
