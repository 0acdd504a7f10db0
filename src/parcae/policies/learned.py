"""Learned policies by name or by file, bound to the workload and the cluster that they schedule.

`decima`, `parcae` and `tuned` name checkpoints that ship with the package. Without a variant, the
checkpoint that was made for the nearest setting is chosen; `NAME:VARIANT` chooses that variant. Any
other checkpoint is named by its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import ValidationError

from parcae.base.errors import ConfigError, FormatError, PolicyError
from parcae.decima.corrector import kernels as corrector_layout
from parcae.decima.corrector.policy import ParcaePolicy
from parcae.decima.graph import layout as decima_layout
from parcae.decima.graph.policy import DecimaPolicy, check_world, curves_for, magnitudes_of
from parcae.decima.rule.policy import RulePolicy, padded
from parcae.policies.checkpoint import SUFFIX, Checkpoint, ShippedCheckpoints, read_checkpoint
from parcae.policies.network import kernels as order_layout
from parcae.policies.network.kernels import KIND as NETWORK_KIND
from parcae.policies.network.policy import OrderNetworkPolicy, bind_network
from parcae.policies.rule.policy import OrderRulePolicy, checked_parameters
from parcae.policies.solo_curves import solo_curves
from parcae.simulation.config import SimulationConfig, WorldName, offered_load
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload

SHIPPED = ShippedCheckpoints(Path(__file__).parent / "shipped", "parcae train")
#: Kind of checkpoint by name in the catalogue.
NAMES = {"tuned": "rule", "parcae": "parcae", "decima": "decima"}
#: Version of the rule's parameters; see `parcae.decima.rule.kernels.RuleParameter`.
RULE_VERSION = 1
#: Version of the parameters of the rule of the world of cores; see
#: `parcae.policies.rule.kernels.OrderParameter`.
ORDER_RULE_VERSION = 1
#: Kind of checkpoint of the rule of the world of cores.
ORDER_RULE = "order-rule"
#: Version of the features or the parameters of every kind of checkpoint.
_VERSIONS = MappingProxyType(
    {
        "rule": RULE_VERSION,
        "parcae": corrector_layout.FEATURE_VERSION,
        "decima": decima_layout.FEATURE_VERSION,
        ORDER_RULE: ORDER_RULE_VERSION,
        NETWORK_KIND: order_layout.FEATURE_VERSION,
    }
)
#: Kinds of checkpoints of policies that plan orders. They exist in the world of cores only.
PLANNING_KINDS = (ORDER_RULE, NETWORK_KIND)

#: The feature set of Decima's variants that a plain name chooses, and that of the paper. Networks
#: that choose executor classes have none but the latter.
_BEST_FEATURES = "jobs"
_PAPER_FEATURES = "paper"
#: Moving delays below this share of a job's work count as equal.
_LEAST_DELAY = 1e-4

LearnedPolicy = RulePolicy | ParcaePolicy | DecimaPolicy | OrderRulePolicy | OrderNetworkPolicy


def is_learned(text: str) -> bool:
    """Whether `text` names a learned policy (`parcae`, `tuned:batch`, a checkpoint's path)."""
    return text.partition(":")[0] in NAMES or text.endswith(SUFFIX)


def learned_policy(
    text: str,
    workload: Workload,
    config: SimulationConfig,
    arrivals: str = "batch",
    read: Callable[[Path], Checkpoint] = read_checkpoint,
) -> LearnedPolicy:
    """Return the learned policy that `text` names, bound to a workload and a cluster.

    Args:
        text: NAME, NAME:VARIANT, or the path of a checkpoint.
        workload: the workload that the policy schedules.
        config: the cluster.
        arrivals: the arrival process, e.g. "batch"; used to choose the nearest shipped variant.
        read: reads the checkpoint's file.

    Raises:
        PolicyError: there is no such name or variant.
        ConfigError: the policy chooses idle slots, which the world of cores does not have.
        FormatError: the checkpoint is incomplete or does not fit.
        FileNotFoundError: there is no such file.
    """
    return bind(find_checkpoint(text, workload, config, arrivals, read), text, workload, config)


def deciding_policy(
    text: str, workload: Workload, config: SimulationConfig, arrivals: str = "batch"
) -> RulePolicy | ParcaePolicy | DecimaPolicy:
    """Return a learned policy of the executors world: one that makes decisions, not plans."""
    policy = learned_policy(text, workload, config, arrivals)
    if isinstance(policy, OrderRulePolicy | OrderNetworkPolicy):
        raise PolicyError(
            f"policy {text!r} plans orders for the world of cores and cannot decide about executors"
        )
    return policy


def find_checkpoint(
    text: str,
    workload: Workload,
    config: SimulationConfig,
    arrivals: str,
    read: Callable[[Path], Checkpoint] = read_checkpoint,
) -> Checkpoint:
    """Return the checkpoint that `text` names.

    Args:
        text: the path of a checkpoint, NAME:VARIANT, or NAME for the nearest shipped variant.
        workload: the workload that the policy schedules.
        config: the cluster.
        arrivals: the arrival process; used to choose the nearest shipped variant.
        read: reads the checkpoint's file.

    Raises:
        PolicyError, FormatError, FileNotFoundError: see `learned_policy`.
    """
    if text.endswith(SUFFIX):
        return read(Path(text))
    name, colon, variant = text.partition(":")
    if name not in NAMES:
        raise PolicyError(
            f"{text!r} is not a learned policy; write {', '.join(NAMES)} or the path of a "
            f"checkpoint (*{SUFFIX})"
        )
    if not colon:
        variant = _nearest(name, workload, config, arrivals)
    return read(SHIPPED.path(name, variant))


def require_version(checkpoint: Checkpoint, name: str) -> None:
    """Check that this version of Parcae knows what a checkpoint's weights mean."""
    if checkpoint.kind not in _VERSIONS:
        raise FormatError(
            f"{name}: this is a checkpoint of a {checkpoint.kind!r} policy, not of one of "
            f"{', '.join(_VERSIONS)}"
        )
    checkpoint.require(checkpoint.kind, _VERSIONS[checkpoint.kind], name)


def bind(
    checkpoint: Checkpoint, name: str, workload: Workload, config: SimulationConfig
) -> LearnedPolicy:
    """Return the policy of a checkpoint, for a workload and a cluster."""
    require_version(checkpoint, name)
    if checkpoint.kind in PLANNING_KINDS:
        return _bind_planner(checkpoint, name, workload, config)
    if checkpoint.kind == "rule":
        return RulePolicy(name, rule_parameters(checkpoint, name), solo_curves(workload, config))
    if checkpoint.kind == "parcae":
        rule = rule_parameters(checkpoint, name)
        return ParcaePolicy(name, checkpoint.weights, rule, solo_curves(workload, config))
    return _decima(checkpoint, name, workload, config)


def _bind_planner(
    checkpoint: Checkpoint, name: str, workload: Workload, config: SimulationConfig
) -> LearnedPolicy:
    """The policy of a checkpoint that plans orders, as `bind` makes it."""
    if config.world is not WorldName.CORES:
        raise PolicyError(
            f"policy {name!r} plans orders for the world of cores; choose --world cores"
        )
    if checkpoint.kind == NETWORK_KIND:
        return bind_network(checkpoint, name, workload, config)
    return OrderRulePolicy(name, order_parameters(checkpoint, name), workload.mean_work_ms)


def rule_parameters(checkpoint: Checkpoint, path: str) -> tuple[float, ...]:
    """Return the parameters of the rule in a checkpoint. `path` is for error messages."""
    return _parameters(checkpoint, path, padded, "`parcae tune` or `parcae train`")


def order_parameters(checkpoint: Checkpoint, path: str) -> tuple[float, ...]:
    """Return the parameters of the rule of the world of cores in a checkpoint.

    `path` is for error messages.
    """
    return _parameters(checkpoint, path, checked_parameters, "`parcae tune`")


def _parameters(
    checkpoint: Checkpoint, path: str, check: Callable[[Any], Any], commands: str
) -> tuple[float, ...]:
    """The parameters "rule" of a checkpoint after `check`, which raises a PolicyError."""
    if "rule" not in checkpoint.weights:
        raise FormatError(
            f"{path}: a checkpoint without a rule's parameters; make it again with {commands}"
        )
    try:
        return tuple(float(value) for value in check(checkpoint.weights["rule"]))
    except PolicyError as error:
        raise FormatError(f"{path}: {error}; make it again with {commands}") from None


def order_rule_checkpoint(parameters: Any, card: dict[str, Any]) -> Checkpoint:
    """Return a checkpoint of a tuned rule of the world of cores.

    `parameters` is float64[NUM_ORDER_PARAMETERS]; `card` describes how they were tuned.
    """
    return Checkpoint(
        ORDER_RULE, ORDER_RULE_VERSION, {"rule": np.asarray(parameters, np.float64)}, card=card
    )


def decima_settings(checkpoint: Checkpoint, name: str) -> decima_layout.DecimaSettings:
    """Return which parts Decima's network in a checkpoint has. `name` is for the error message."""
    settings = {key: value for key, value in checkpoint.settings.items() if key != "num_levels"}
    try:
        return decima_layout.DecimaSettings.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise FormatError(
            f"{name}: the settings do not fit Decima's network ({what}); train it again"
        ) from None


def _decima(
    checkpoint: Checkpoint, name: str, workload: Workload, config: SimulationConfig
) -> DecimaPolicy:
    """The policy of a checkpoint of Decima's network."""
    decima = decima_settings(checkpoint, name)
    check_world(decima, config, name)
    # A network with one output per limit works only for the number of limits it was trained with.
    levels = len(decima_layout.decima_levels(config.total_executors, decima))
    if decima.limits is decima_layout.Limits.OUTPUTS and levels != checkpoint.settings.get(
        "num_levels"
    ):
        raise FormatError(
            f"{name}: the network has one output for each of "
            f"{checkpoint.settings.get('num_levels')} limits, but a cluster of "
            f"{config.total_executors} executors has {levels} limits; use a network with limits "
            "as an input, which works for any number"
        )
    magnitudes = magnitudes_of(workload, config)
    curves = curves_for(decima, workload, config)
    executors = config.total_executors
    return DecimaPolicy(name, checkpoint.weights, decima, executors, magnitudes, curves)


def variant_name(text: str, workload: Workload, config: SimulationConfig, arrivals: str) -> str:
    """Return NAME:VARIANT of the shipped checkpoint that is chosen for a plain NAME.

    A path, or a name with a variant, is returned unchanged.
    """
    return text if text not in NAMES else f"{text}:{_nearest(text, workload, config, arrivals)}"


def variant_as_in_paper(
    name: str, workload: Workload, config: SimulationConfig, arrivals: str
) -> str:
    """Return NAME:VARIANT of the nearest shipped checkpoint with the features of its paper."""
    return f"{name}:{_nearest(name, workload, config, arrivals, _PAPER_FEATURES)}"


def _nearest(
    name: str,
    workload: Workload,
    config: SimulationConfig,
    arrivals: str,
    features: str = _BEST_FEATURES,
) -> str:
    """The shipped variant whose setting is nearest (see `_distance`).

    In the world of cores, policies that plan come before those that decide, which plan through an
    adapter. Of Decima's networks for a single executor class, those with these features come first.
    """
    is_planned = config.world is WorldName.CORES
    has_choice = name == "decima" and len(config.classes) == 1

    def distance(one: Checkpoint) -> tuple[bool, bool, float]:
        is_other_kind = (one.kind in PLANNING_KINDS) != is_planned
        has_others = has_choice and one.settings.get("features") != features
        return is_other_kind, has_others, _distance(one.card, workload, config, arrivals)

    return SHIPPED.nearest(name, distance)


def variants(name: str) -> list[str]:
    """Return the shipped variants of a name."""
    return SHIPPED.variants(name)


def _distance(card: Any, workload: Workload, config: SimulationConfig, arrivals: str) -> float:
    """Distance between a checkpoint's setting and a given one; 0 if they are equal.

    The arrival process (batch or stream) has the largest weight. Then follow the workload, single
    or several executor classes, load, moving delay and size of the cluster.
    """
    load = float(card.get("load") or math.inf)
    load_here = offered_load(workload, config, arrivals)
    distance = 100.0 if math.isinf(load) != math.isinf(load_here) else 0.0
    if card.get("fingerprint") != fingerprint(workload):
        # Another model of parallelism changes less than other delays do, another workload most.
        distance += 0.1 if card.get("workload") == workload.name else 10.0
    if (len((card.get("cluster") or {}).get("executor_classes") or ()) > 1) != (
        len(config.classes) > 1
    ):
        distance += 3.0
    # Jobs without any work are no load.
    if not math.isinf(load) and not math.isinf(load_here) and load > 0 and load_here > 0:
        distance += abs(math.log(load / load_here))
    executors = float(card.get("executors") or config.total_executors)
    delays = float(card.get("delay_of_work") or 0.0), delay_of_work(workload, config)
    distance += 0.1 * abs(math.log(executors / config.total_executors))
    return distance + 0.2 * abs(math.log((delays[0] + _LEAST_DELAY) / (delays[1] + _LEAST_DELAY)))


def delay_of_work(workload: Workload, config: SimulationConfig) -> float:
    """Return the time that an executor needs to move / mean work of a job."""
    return config.moving_delay_ms / max(1.0, workload.mean_work_ms)


def setting_card(
    workload: Workload, config: SimulationConfig, arrivals: str, num_jobs: int
) -> dict[str, Any]:
    """Return the part of a model card that describes the setting a policy was made for."""
    load = offered_load(workload, config, arrivals)
    return {
        "workload": workload.name,
        "fingerprint": fingerprint(workload),
        "arrivals": arrivals,
        "jobs": num_jobs,
        "load": None if math.isinf(load) else round(load, 4),
        "executors": config.total_executors,
        "delay_of_work": round(delay_of_work(workload, config), 6),
        "cluster": config.model_dump(mode="json"),
    }


def require_durations(workload: Workload) -> None:
    """Check that the workload has task durations; nothing can be learned without them."""
    if not any(job.work_ms > 0 for job in workload.jobs):
        raise ConfigError(
            f"workload {workload.name!r} has no durations: all tasks take 0 ms, so there is "
            "nothing to learn"
        )


def rule_checkpoint(parameters: Any, card: dict[str, Any]) -> Checkpoint:
    """Return a checkpoint of a tuned rule.

    `parameters` is float64[NUM_PARAMETERS]; `card` describes how they were tuned.
    """
    return Checkpoint("rule", RULE_VERSION, {"rule": np.asarray(parameters, np.float64)}, card=card)
