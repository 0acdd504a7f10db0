"""Learned policies by name or by file, bound to the workload and the cluster that they schedule.

`decima`, `parcae` and `tuned` name the variants that ship with the package: the one that was made for the nearest setting, or,
with `:VARIANT`, that very one. Any other checkpoint is named by its path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from parcae.errors import ConfigError, FormatError, PolicyError
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
from parcae.policies.decima import layout as decima_layout
from parcae.policies.decima.policy import DecimaPolicy
from parcae.policies.order_network.layout import KIND as NETWORK_KIND
from parcae.policies.order_network.policy import OrderNetworkPolicy, bind_network
from parcae.policies.order_rule.policy import OrderRulePolicy, checked_parameters
from parcae.policies.parcae import layout as parcae_layout
from parcae.policies.parcae.policy import ParcaePolicy
from parcae.policies.rule.policy import RulePolicy, padded
from parcae.policies.solo_curves import solo_curves
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.arrivals import ArrivalProcess
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload

SHIPPED = Path(__file__).parent / "shipped"
#: Name in the catalogue: kind of checkpoint.
NAMES = {"tuned": "rule", "parcae": "parcae", "decima": "decima"}
SUFFIX = ".safetensors"
#: Version of the rule's parameters; see `parcae.policies.rule.layout.RuleParameter`.
RULE_VERSION = 1
#: Version of the parameters of the rule of the world of cores; see `parcae.policies.order_rule.layout.OrderParameter`.
ORDER_RULE_VERSION = 1
ORDER_RULE = "order-rule"
#: Kinds of checkpoints that plan: they live in the world of cores only.
PLANNING_KINDS = (ORDER_RULE, NETWORK_KIND)

#: Delays that take less of a job's work than this are all alike.
_LEAST_DELAY = 1e-4

LearnedPolicy = RulePolicy | ParcaePolicy | DecimaPolicy | OrderRulePolicy | OrderNetworkPolicy


def is_learned(text: str) -> bool:
    """Whether `text` names a learned policy (`parcae`, `tuned:batch`, a checkpoint's path) and not a heuristic."""
    return text.partition(":")[0] in NAMES or text.endswith(SUFFIX)


def learned_policy(
    text: str, workload: Workload, config: SimulationConfig, arrivals: str = "batch"
) -> LearnedPolicy:
    """The learned policy that `text` names, bound to a workload and a cluster.

    Args:
        arrivals: how jobs arrive, by which the nearest of the shipped variants is chosen.

    Raises:
        PolicyError: no such name or variant.
        FormatError: a checkpoint that is torn or does not fit.
        FileNotFoundError: no such file.
    """
    return bind(find_checkpoint(text, workload, config, arrivals), text, workload, config)


def deciding_policy(
    text: str, workload: Workload, config: SimulationConfig, arrivals: str = "batch"
) -> RulePolicy | ParcaePolicy | DecimaPolicy:
    """As `learned_policy`, for whoever needs decisions: a cluster whose executors stay with their stages.

    Raises:
        PolicyError: a policy that plans orders; and as `learned_policy`.
    """
    policy = learned_policy(text, workload, config, arrivals)
    if isinstance(policy, OrderRulePolicy | OrderNetworkPolicy):
        raise PolicyError(
            f"policy {text!r} plans orders for the world of cores and cannot decide about executors"
        )
    return policy


def find_checkpoint(
    text: str, workload: Workload, config: SimulationConfig, arrivals: str
) -> Checkpoint:
    """The checkpoint that `text` names: a path, NAME:VARIANT, or NAME for the nearest variant.

    Raises:
        PolicyError, FormatError, FileNotFoundError: as `learned_policy`.
    """
    if text.endswith(SUFFIX):
        return read_checkpoint(Path(text))
    name, _, variant = text.partition(":")
    if name not in NAMES:
        raise PolicyError(
            f"{text!r} names no learned policy; write {', '.join(NAMES)} or the path of a checkpoint (*{SUFFIX})"
        )
    return _named(name, variant) if variant else _nearest(name, workload, config, arrivals)


def bind(
    checkpoint: Checkpoint, name: str, workload: Workload, config: SimulationConfig
) -> LearnedPolicy:
    """The checkpoint's policy, for a workload and a cluster.

    Raises:
        FormatError: weights of another version or shape.
    """
    if checkpoint.kind in PLANNING_KINDS:
        if config.world is not WorldName.CORES:
            raise PolicyError(
                f"policy {name!r} plans orders for the world of cores; --world cores runs it"
            )
        if checkpoint.kind == NETWORK_KIND:
            return bind_network(checkpoint, name, workload, config)
        checkpoint.require(ORDER_RULE, ORDER_RULE_VERSION, name)
        return OrderRulePolicy(name, order_parameters(checkpoint, name), workload.mean_work_ms)
    if checkpoint.kind == "rule":
        checkpoint.require("rule", RULE_VERSION, name)
        return RulePolicy(name, rule_parameters(checkpoint, name), solo_curves(workload, config))
    if checkpoint.kind == "parcae":
        checkpoint.require("parcae", parcae_layout.FEATURE_VERSION, name)
        rule = rule_parameters(checkpoint, name)
        return ParcaePolicy(name, checkpoint.weights, rule, solo_curves(workload, config))
    checkpoint.require("decima", decima_layout.FEATURE_VERSION, name)
    return _decima(checkpoint, name, config)


def rule_parameters(checkpoint: Checkpoint, path: str) -> tuple[float, ...]:
    """The parameters of the rule in a checkpoint.

    Raises:
        FormatError: there are none, or another number of them.
    """
    if "rule" not in checkpoint.weights:
        raise FormatError(
            f"{path}: a checkpoint without a rule's parameters; make it again with `parcae tune` or `parcae train`"
        )
    try:
        return tuple(float(v) for v in padded(checkpoint.weights["rule"]))
    except PolicyError as error:
        raise FormatError(
            f"{path}: {error}; make it again with `parcae tune` or `parcae train`"
        ) from None


def order_parameters(checkpoint: Checkpoint, path: str) -> tuple[float, ...]:
    """The parameters of the rule of the world of cores in a checkpoint.

    Raises:
        FormatError: there are none, or another number of them.
    """
    if "rule" not in checkpoint.weights:
        raise FormatError(
            f"{path}: a checkpoint without a rule's parameters; make it again with `parcae tune`"
        )
    try:
        return checked_parameters(checkpoint.weights["rule"])
    except PolicyError as error:
        raise FormatError(f"{path}: {error}; make it again with `parcae tune`") from None


def order_rule_checkpoint(parameters: Any, card: dict[str, Any]) -> Checkpoint:
    """A tuned rule of the world of cores as a checkpoint."""
    return Checkpoint(
        ORDER_RULE, ORDER_RULE_VERSION, {"rule": np.asarray(parameters, np.float64)}, card=card
    )


def _decima(checkpoint: Checkpoint, name: str, config: SimulationConfig) -> DecimaPolicy:
    settings = {key: value for key, value in checkpoint.settings.items() if key != "num_levels"}
    try:
        decima = decima_layout.DecimaSettings.model_validate(settings)
    except ValueError as error:
        raise FormatError(f"{name}: settings of another Decima ({error}); train it again") from None
    levels = len(decima_layout.decima_levels(config.total_executors))
    if decima.limits is decima_layout.Limits.OUTPUTS and levels != checkpoint.settings.get(
        "num_levels"
    ):
        raise FormatError(
            f"{name}: one output for each of {checkpoint.settings.get('num_levels')} limits, but a cluster of "
            f"{config.total_executors} executors has {levels}; limits as an input carry over, outputs do not"
        )
    return DecimaPolicy(name, checkpoint.weights, decima, config.total_executors)


def variant_name(text: str, workload: Workload, config: SimulationConfig, arrivals: str) -> str:
    """NAME:VARIANT of the shipped checkpoint that a name becomes; a path, or a name with its variant, stays what it is.

    Raises:
        PolicyError, FormatError, FileNotFoundError: as `learned_policy`.
    """
    if text not in NAMES:
        return text
    card = find_checkpoint(text, workload, config, arrivals).card
    names = dict.fromkeys((text, "tuned"))
    return next(
        f"{name}:{own}"
        for name in names
        for own in variants(name)
        if _named(name, own).card == card
    )


@lru_cache
def shipped() -> dict[tuple[str, str], Path]:
    """The files that ship with the package, by (name, variant); `parcae-stream.safetensors` is ("parcae", "stream")."""
    return {
        (p.stem.partition("-")[0], p.stem.partition("-")[2]): p
        for p in sorted(SHIPPED.glob(f"*{SUFFIX}"))
    }


def variants(name: str) -> list[str]:
    """The shipped variants of a name."""
    return [variant for own, variant in shipped() if own == name]


def _named(name: str, variant: str) -> Checkpoint:
    if (name, variant) not in shipped():
        raise PolicyError(
            f"policy {name}:{variant}: there is no such variant; shipped are {', '.join(variants(name)) or 'none'}"
        )
    return read_checkpoint(shipped()[name, variant])


def _nearest(name: str, workload: Workload, config: SimulationConfig, arrivals: str) -> Checkpoint:
    """The shipped checkpoint whose setting is nearest: its workload, batch or stream, load, size of the cluster."""
    is_planned = config.world is WorldName.CORES
    found = [
        own for own in _shipped_checkpoints(name) if (own.kind in PLANNING_KINDS) == is_planned
    ]
    if not found and is_planned:  # it decides, and plans through the adapter
        found = list(_shipped_checkpoints(name))
    if not found:
        raise PolicyError(
            f"policy {name!r}: none ships with this Parcae; train one with `parcae train`"
        )
    return min(found, key=lambda checkpoint: _distance(checkpoint.card, workload, config, arrivals))


def _shipped_checkpoints(name: str) -> Iterator[Checkpoint]:
    for (own, _), path in shipped().items():
        if own == name:
            yield read_checkpoint(path)


def offered_load(workload: Workload, num_executors: int, arrivals: str) -> float:
    """Work that arrives / what the executors can do, with mean task durations; infinite for a batch."""
    process = ArrivalProcess.parse(arrivals)
    if process.kind == "recorded":
        times = [job.arrival_ms or 0 for job in workload.jobs]
        gap_ms = (max(times) - min(times)) / max(1, len(times) - 1)
    else:
        gap_ms = process.mean_gap_ms(workload, num_executors)
    return workload.mean_work_ms / (gap_ms * num_executors) if gap_ms > 0 else math.inf


def _distance(card: Any, workload: Workload, config: SimulationConfig, arrivals: str) -> float:
    """Smaller is nearer; arrivals weigh most, then the workload, executor classes or none, load, delays and size."""
    load = float(card.get("load") or math.inf)
    own = offered_load(workload, config.total_executors, arrivals)
    distance = 100.0 if math.isinf(load) != math.isinf(own) else 0.0
    if card.get("fingerprint") != fingerprint(workload):
        # The same profile under another model of parallelism is still nearer than another profile.
        distance += 2.0 if card.get("workload") == workload.name else 10.0
    if (len((card.get("cluster") or {}).get("executor_classes") or ()) > 1) != (
        len(config.classes) > 1
    ):
        distance += 3.0
    if not math.isinf(load) and not math.isinf(own):
        distance += abs(math.log(load / own))
    executors = float(card.get("executors") or config.total_executors)
    delays = float(card.get("delay_of_work") or 0.0), delay_of_work(workload, config)
    distance += 0.1 * abs(math.log(executors / config.total_executors))
    return distance + 0.2 * abs(math.log((delays[0] + _LEAST_DELAY) / (delays[1] + _LEAST_DELAY)))


def delay_of_work(workload: Workload, config: SimulationConfig) -> float:
    """How long a move takes, over the work of a mean job."""
    return config.moving_delay_ms / max(1.0, workload.mean_work_ms)


def setting_card(
    workload: Workload, config: SimulationConfig, arrivals: str, num_jobs: int
) -> dict[str, Any]:
    """What a model card says of the setting that a policy was made for.

    Raises:
        ConfigError: a workload whose tasks have no durations: nothing can be learned from it.
    """
    load = offered_load(workload, config.total_executors, arrivals)
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
    """Refuse a workload without durations.

    Raises:
        ConfigError: no task takes any time.
    """
    if not any(job.work_ms > 0 for job in workload.jobs):
        raise ConfigError(
            f"workload {workload.name!r} has no durations: no task takes any time, so there is nothing to learn"
        )


def rule_checkpoint(parameters: Any, card: dict[str, Any]) -> Checkpoint:
    """A tuned rule as a checkpoint."""
    return Checkpoint("rule", RULE_VERSION, {"rule": np.asarray(parameters, np.float64)}, card=card)
