"""Learned policies by name or by file, and how the nearest of several shipped variants is chosen.

Some names are those of checkpoints that ship with the package: the files NAME-VARIANT. Without a
variant, the checkpoint that was made for the nearest setting is chosen; `NAME:VARIANT` chooses that
variant. Any other checkpoint is named by its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError, FormatError, PolicyError
from parcae.policies import registry
from parcae.policies.checkpoint import SUFFIX, Checkpoint, ShippedCheckpoints
from parcae.policies.names import PolicyName
from parcae.policies.registry import PolicySetting
from parcae.policies.rule.policy import checked_parameters
from parcae.simulation.config import SimulationConfig, offered_load
from parcae.workloads.describe import fingerprint
from parcae.workloads.workload import Workload

SHIPPED = ShippedCheckpoints(Path(__file__).parent / "shipped", "parcae train")
#: Version of the parameters of the rule of the world of cores; see
#: `parcae.policies.rule.kernels.OrderParameter`.
ORDER_RULE_VERSION = 1
#: Kind of checkpoint of the rule of the world of cores.
ORDER_RULE = "order-rule"
#: Moving delays below this share of a job's work count as equal.
_LEAST_DELAY = 1e-4


def is_learned(name: PolicyName) -> bool:
    """Whether a name means a learned policy (`parcae`, `tuned:batch`, a checkpoint's path)."""
    return name.is_checkpoint or name.word in SHIPPED.names


def shipped_policy(name: PolicyName, setting: PolicySetting) -> Any:
    """The policy of a checkpoint that a name means, bound to a workload and a cluster.

    Raises:
        PolicyError: there is no such name or variant.
        ConfigError: the policy chooses idle slots, which the world of cores does not have.
        FormatError: the checkpoint is incomplete or does not fit.
        FileNotFoundError: there is no such file.
    """
    return registry.bind(find_checkpoint(name, setting), name.name, setting)


def find_checkpoint(name: PolicyName, setting: PolicySetting) -> Checkpoint:
    """The checkpoint of a path, of NAME:VARIANT, or of NAME for the nearest shipped variant.

    Raises:
        PolicyError, FormatError, FileNotFoundError: see `shipped_policy`.
    """
    if name.is_checkpoint:
        return setting.read(Path(name.name))
    if not is_learned(name):
        raise PolicyError(
            f"{name.name!r} is not a learned policy; write {', '.join(SHIPPED.names)} or the path "
            f"of a checkpoint (*{SUFFIX})"
        )
    word, _, variant = variant_name(name, setting).partition(":")
    return setting.read(SHIPPED.path(word, variant))


def variant_name(
    name: PolicyName, setting: PolicySetting, rank: Callable[[Checkpoint], Any] | None = None
) -> str:
    """NAME:VARIANT of the shipped checkpoint that is chosen for a plain NAME.

    A path, or a name with a variant, stays as it is. The variant's setting is the nearest (see
    `_distance`). Those that were made for the setting's world come first; then those with the least
    `rank`, if it is given, or that of their kind.
    """
    if name.is_checkpoint:
        return name.name
    word = _present_word(name, setting.world)
    if ":" in name.name:
        return f"{word}:{name.argument}"

    def distance(one: Checkpoint) -> tuple[Any, ...]:
        kind = registry.kind_of(one, word)
        is_other_world = kind.worlds[0] != setting.world
        ranked = kind.rank(one, setting) if rank is None else rank(one)
        return is_other_world, ranked, _distance(one.card, setting)

    return f"{word}:{SHIPPED.nearest(word, distance)}"


def _present_word(name: PolicyName, world: str) -> str:
    """The name of a learned policy, without the variant; another one if it was renamed."""
    word, variant = name.word, name.argument
    entry = registry.find(name, world)
    present = word if entry is None else entry.name
    if variant and variant not in SHIPPED.variants(present):
        renamed = [row.name for row in registry.entries() if row.formerly == word]
        present = next((one for one in renamed if variant in SHIPPED.variants(one)), present)
    if present != word:
        registry.note_renamed(word, present)
    return present


def order_parameters(checkpoint: Checkpoint, path: str) -> tuple[float, ...]:
    """Return the parameters of the rule of the world of cores in a checkpoint.

    `path` is for error messages.
    """
    return rule_in(checkpoint, path, checked_parameters, "`parcae tune`")


def rule_in(
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


def _distance(card: Any, setting: PolicySetting) -> float:
    """Distance between a checkpoint's setting and a given one; 0 if they are equal.

    The arrival process (batch or stream) has the largest weight. Then follow the workload, single
    or several executor classes, load, moving delay and size of the cluster.
    """
    workload, config, arrivals = setting.workload, setting.config, setting.arrivals
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
    workload = config.jobs_of(workload)
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
