"""The checkpoints of Decima's world: the rule, its corrector, and Decima's network."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import ValidationError

from parcae.base.errors import FormatError, PolicyError
from parcae.decima.corrector import kernels as corrector_layout
from parcae.decima.corrector.policy import CorrectorPolicy
from parcae.decima.graph import layout as decima_layout
from parcae.decima.graph.layout import DecimaSettings, Limits, decima_levels
from parcae.decima.graph.policy import DecimaPolicy, check_world, curves_for, magnitudes_of
from parcae.decima.rule import RulePolicy, padded
from parcae.decima.solo_curves import solo_curves
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.learned import rule_in, shipped_policy, variant_name
from parcae.policies.names import PolicyName
from parcae.policies.registry import CheckpointKind, PolicySetting

#: Version of the rule's parameters; see `parcae.decima.rule.RuleParameter`.
RULE_VERSION = 1
#: The feature set of Decima's variants that a plain name chooses, and that of the paper. Networks
#: that choose executor classes have none but the latter.
_BEST_FEATURES = "jobs"
_PAPER_FEATURES = "paper"
_WORLDS = ("executors", "cores")


def deciding_policy(name: PolicyName, setting: PolicySetting) -> Any:
    """A learned policy of the world of executors: one that makes decisions, not plans."""
    policy = shipped_policy(name, setting)
    if not hasattr(policy, "decide"):
        raise PolicyError(
            f"policy {name.name!r} plans orders for the world of cores and cannot decide about "
            "executors"
        )
    return policy


def rule_parameters(checkpoint: Checkpoint, path: str) -> tuple[float, ...]:
    """Return the parameters of the rule in a checkpoint. `path` is for error messages."""
    return rule_in(checkpoint, path, padded, "`parcae tune` or `parcae train`")


def rule_checkpoint(parameters: Any, card: dict[str, Any]) -> Checkpoint:
    """Return a checkpoint of a tuned rule.

    `parameters` is float64[NUM_PARAMETERS]; `card` describes how they were tuned.
    """
    return Checkpoint("rule", RULE_VERSION, {"rule": np.asarray(parameters, np.float64)}, card=card)


def variant_as_in_paper(name: PolicyName, setting: PolicySetting) -> str:
    """NAME:VARIANT of the nearest shipped checkpoint with the features of its paper."""
    return variant_name(name, setting, lambda one: _has_other(one, setting, _PAPER_FEATURES))


def _has_other(checkpoint: Checkpoint, setting: PolicySetting, features: str) -> bool:
    """Whether one of Decima's networks for a single executor class has other features."""
    has_choice = checkpoint.kind == "decima" and len(setting.config.classes) == 1
    return has_choice and checkpoint.settings.get("features") != features


def _rule(checkpoint: Checkpoint, name: str, setting: PolicySetting) -> RulePolicy:
    curves = solo_curves(setting.workload, setting.config)
    return RulePolicy(name, rule_parameters(checkpoint, name), curves)


def _corrector(checkpoint: Checkpoint, name: str, setting: PolicySetting) -> CorrectorPolicy:
    curves = solo_curves(setting.workload, setting.config)
    return CorrectorPolicy(name, checkpoint.weights, rule_parameters(checkpoint, name), curves)


def decima_settings(checkpoint: Checkpoint, name: str) -> DecimaSettings:
    """Return which parts Decima's network in a checkpoint has. `name` is for the error message."""
    settings = {key: value for key, value in checkpoint.settings.items() if key != "num_levels"}
    try:
        return DecimaSettings.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise FormatError(
            f"{name}: the settings do not fit Decima's network ({what}); train it again"
        ) from None


def _decima(checkpoint: Checkpoint, name: str, setting: PolicySetting) -> DecimaPolicy:
    """The policy of a checkpoint of Decima's network."""
    workload, config = setting.workload, setting.config
    decima = decima_settings(checkpoint, name)
    check_world(decima, config, name)
    # A network with one output per limit works only for the number of limits it was trained with.
    levels = len(decima_levels(config.total_executors, decima))
    if decima.limits is Limits.OUTPUTS and levels != checkpoint.settings.get("num_levels"):
        raise FormatError(
            f"{name}: the network has one output for each of "
            f"{checkpoint.settings.get('num_levels')} limits, but a cluster of "
            f"{config.size_text} has {levels} limits; use a network with limits "
            "as an input, which works for any number"
        )
    magnitudes = magnitudes_of(workload, config)
    curves = curves_for(decima, workload, config)
    executors = config.total_executors
    return DecimaPolicy(name, checkpoint.weights, decima, executors, magnitudes, curves)


KINDS = (
    CheckpointKind("rule", RULE_VERSION, _rule, _WORLDS, rule=rule_parameters),
    CheckpointKind(
        "corrector",
        corrector_layout.FEATURE_VERSION,
        _corrector,
        _WORLDS,
        rule=rule_parameters,
        formerly="parcae",
    ),
    CheckpointKind(
        "decima",
        decima_layout.FEATURE_VERSION,
        _decima,
        _WORLDS,
        rank=lambda checkpoint, setting: _has_other(checkpoint, setting, _BEST_FEATURES),
    ),
    # Its kernels show a network of one's own this world.
    CheckpointKind("module", 1, "parcae.environments.own_network:bind", _WORLDS),
)
