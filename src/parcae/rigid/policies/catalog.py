"""The policies of the world of rigid jobs by name; checkpoints are named by their path."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from parcae.base.errors import FormatError, PolicyError
from parcae.policies import registry
from parcae.policies.checkpoint import SUFFIX, Checkpoint, ShippedCheckpoints, read_checkpoint
from parcae.policies.names import PolicyName, parse_name
from parcae.policies.own import instance
from parcae.policies.registry import PolicyEntry, refuse_argument, refused
from parcae.rigid.a2c.policy import A2cPolicy
from parcae.rigid.deeprm.policy import DeepRMPolicy
from parcae.rigid.jobs import log_name
from parcae.rigid.jobset.policy import JobSetPolicy
from parcae.rigid.policies.backfilling import Order
from parcae.rigid.policies.earned import EarnedPolicy
from parcae.rigid.policies.policy import HandMadePolicy, PackingPolicy
from parcae.rigid.policies.scores import PackingKind, WithholdParameter

SHIPPED = ShippedCheckpoints(Path(__file__).parent.parent / "shipped", "parcae train --world rigid")
#: Kind and version of checkpoints of tuned heuristics.
RULE_KIND = "packing-rule"
RULE_VERSION = 1
#: Ends the name of a policy that may withhold jobs whatever the harm.
UNGUARDED = "+unguarded"
#: Conservative backfilling reserves for so many jobs by default: more than ever wait.
_ALL_JOBS = 999_999_999
_WHOLE_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class PackingSetting:
    """The setting of a run, by which the nearest of several shipped variants is chosen.

    Args:
        rate: arrivals per step, if jobs are drawn at random.
        is_exact: whether the cluster runs with exact times (a log).
        log: name of the log.
    """

    rate: float | None = None
    is_exact: bool = False
    log: str = ""

    @property
    def world(self) -> str:
        """The world of rigid jobs."""
        return "rigid"

    def own_policy(self, value: Any, text: str) -> PackingPolicy:
        """An object, or a class of which an object is made."""
        made = instance(value, text)
        if not isinstance(made, PackingPolicy):
            raise PolicyError(
                f"policy {text!r} is {made!r}: rigid jobs need a "
                "parcae.rigid.policies.policy.PackingPolicy"
            )
        return made


#: Of drawn jobs whose rate is not known.
ANY_SETTING = PackingSetting()
_Make = Callable[[PolicyName, PackingSetting], PackingPolicy]


def _fixed(kind: PackingKind, *params: float) -> _Make:
    """Return a factory for a heuristic without an argument."""

    def make(name: PolicyName, setting: PackingSetting) -> PackingPolicy:
        refuse_argument(name)
        return HandMadePolicy(name.name, kind, params or (0.0,))

    return make


def _conservative(name: PolicyName, setting: PackingSetting) -> PackingPolicy:
    """Create conservative backfilling with an optional depth."""
    if name.argument and not _WHOLE_NUMBER.fullmatch(name.argument):
        raise PolicyError(
            f"policy {name.name!r}: the argument is the number of jobs that get a reservation; it "
            "must be a whole number from 1 to 999999999"
        )
    depth = float(name.argument or _ALL_JOBS)
    return HandMadePolicy(name.name, PackingKind.CONSERVATIVE, (depth,))


def _tetris(name: PolicyName, setting: PackingSetting) -> PackingPolicy:
    try:
        value = float(name.name[len("tetris-k") :])
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise PolicyError(
            f"policy {name.name!r}: the knob must be a number from 0 to 1, e.g. tetris-k0.005"
        )
    return HandMadePolicy(name.name, PackingKind.TETRIS, (value,))


def _learned(name: PolicyName, setting: PackingSetting) -> PackingPolicy:
    path = packing_checkpoint(name, setting)
    assert path is not None
    policy = policy_of_checkpoint(read_checkpoint(path), str(path), name.name)
    if not name.is_unguarded:
        return earned(policy, setting)
    if not _may_withhold(policy):
        raise _withholds_none(name)
    return policy


def _withholds_none(name: PolicyName) -> PolicyError:
    return PolicyError(
        f"policy '{name.name}{UNGUARDED}': {UNGUARDED!r} is for policies that withhold jobs "
        "(withhold, set, and checkpoints of them)"
    )


_tuned = refused(
    "must be tuned for a load or a log first: use it in `parcae compare --world rigid`, "
    "which tunes it"
)

_row = partial(PolicyEntry, worlds=("rigid",), why="packs rigid jobs")
POLICIES = (
    _row("sjf", "shortest job first", "DeepRM, section 4.1", _fixed(PackingKind.SJF)),
    _row("packer", "best alignment of demand and free resources",
         "DeepRM, section 4.1", _fixed(PackingKind.PACKER)),
    _row("tetris", "alignment and duration, weighted by a knob that is swept on "
         "tuning seeds", "DeepRM, section 4.1", _tuned),
    _row("random", "any slot, or let time pass, with equal probability", "control",
         _fixed(PackingKind.RANDOM, 0.0)),
    _row("random-greedy", "any job that can start", "A2cScheduler, section 4.4",
         _fixed(PackingKind.RANDOM, 1.0)),
    _row("fcfs", "first come, first served, without overtaking", "batch clusters",
         _fixed(PackingKind.FCFS)),
    _row("easy", "first come, first served, and jobs that do not delay the first one "
         "(EASY)", "Lifka 1995", _fixed(PackingKind.EASY, Order.ARRIVAL, Order.ARRIVAL)),
    _row("easy-sjf", "EASY that backfills the shortest job first", "Tsafrir 2007",
         _fixed(PackingKind.EASY, Order.ARRIVAL, Order.SHORTEST)),
    _row("sjf-backfill", "EASY in which the shortest job comes first, instead of the "
         "oldest", "Srinivasan et al. 2002",
         _fixed(PackingKind.EASY, Order.SHORTEST, Order.SHORTEST)),
    _row("xfactor", "EASY in which the job with the largest expansion factor, (wait + "
         "estimate) / estimate, comes first", "Srinivasan et al. 2002",
         _fixed(PackingKind.EASY, Order.EXPANSION, Order.EXPANSION)),
    _row("conservative[:DEPTH]",
         "backfilling that delays no older job; later jobs than the DEPTH oldest wait "
         "(default: all can start)",
         "Mu'alem and Feitelson 2001", _conservative),
    _row("area", "least duration x share of the cluster first", "batch clusters",
         _fixed(PackingKind.AREA)),
    _row("withhold", "shortest first; long jobs wait while they would leave too "
         "little free; tuned by CMA-ES", "Parcae", _tuned),
    _row("deeprm[:VARIANT]", "DeepRM's network, the variant trained at the nearest "
         "load", "DeepRM, section 3", _learned),
    _row("a2c[:VARIANT]", "A2cScheduler's actor, the variant trained at the nearest "
         "load", "A2cScheduler, section 3", _learned),
    _row("set[:VARIANT]", "a network over the waiting jobs that corrects the "
         "withholding rule", "Parcae", _learned),
    _row("tetris-kKNOB", "alignment and duration, weighted by this knob", "DeepRM, section 4.1",
         _tetris, prefix=("tetris-k", "tetris_k")),
    _row("FILE.safetensors", "a checkpoint of `parcae train --world rigid` or `tune`", "Parcae",
         _learned, suffix=SUFFIX),
)  # fmt: skip
LEARNED = ("deeprm", "a2c", "set")
#: Those that see images, which exist only with time in steps.
_OF_IMAGES = ("deeprm", "a2c")


def make_packing_policy(text: str, setting: PackingSetting = ANY_SETTING) -> PackingPolicy:
    """Return the policy that `text` names.

    Example: `make_packing_policy("tetris-k0.005")`
    """
    name = parse_name(text)
    policy: PackingPolicy = registry.make(name, setting)
    if name.is_unguarded and isinstance(policy, HandMadePolicy) and not _may_withhold(policy):
        raise _withholds_none(name)
    return policy


def earned(policy: PackingPolicy, setting: PackingSetting) -> PackingPolicy:
    """Return the policy as it is used by its name.

    With exact times, policies that withhold jobs do so only as long as this does no harm.
    """
    return EarnedPolicy(policy) if setting.is_exact and _may_withhold(policy) else policy


def _may_withhold(policy: PackingPolicy) -> TypeGuard[HandMadePolicy | JobSetPolicy]:
    """Whether the policy leaves jobs waiting that would fit."""
    if isinstance(policy, HandMadePolicy):
        return policy.kind is PackingKind.WITHHOLD
    return isinstance(policy, JobSetPolicy)


def packing_checkpoint(name: PolicyName, setting: PackingSetting = ANY_SETTING) -> Path | None:
    """Return the checkpoint that a name means, or None for a heuristic.

    A name without a variant means the shipped variant that is nearest to the setting.
    """
    if name.is_checkpoint:
        return Path(name.name)
    if name.word not in LEARNED:
        return None
    is_plain = ":" not in name.name
    variant = _nearest(name.word, setting) if is_plain else name.argument
    return SHIPPED.path(name.word, variant)


def _nearest(name: str, setting: PackingSetting) -> str:
    """Return the variant whose training is nearest, by mode, objective, log and arrival rate.

    The objective that is looked for is slowdown, with exact times bounded slowdown.
    """

    def distance(one: Checkpoint) -> tuple[bool, bool, bool, float]:
        card = one.card
        source = card.get("source", {})
        rates = source.get("rates") or []
        is_exact = source.get("config", {}).get("mode") == "exact"
        off = (
            0.0 if setting.rate is None or not rates else abs(setting.rate - float(np.mean(rates)))
        )
        wanted = "bounded_slowdown" if is_exact else "slowdown"
        is_other = log_name(str(source.get("log", ""))) != log_name(setting.log)
        return is_exact != setting.is_exact, card.get("cost") != wanted, is_other, off

    best = SHIPPED.nearest(name, distance)
    if distance(read_checkpoint(SHIPPED.path(name, best)))[0]:
        if name in _OF_IMAGES:
            raise PolicyError(
                f"policy {name!r} sees an image of the cluster, which needs time in steps, so it "
                "cannot run logs: use set"
            )
        kind = "logs with exact times" if setting.is_exact else "time in steps"
        raise PolicyError(
            f"policy {name!r}: no shipped variant is for {kind}; train one with "
            f"`parcae train --world rigid {name}`"
        )
    return best


def policy_of_checkpoint(checkpoint: Checkpoint, path: str, name: str) -> PackingPolicy:
    """Return the policy of a checkpoint of any packing kind."""
    makers = {
        RULE_KIND: _tuned_rule,
        "set": JobSetPolicy.from_checkpoint,
        "deeprm": DeepRMPolicy.from_checkpoint,
        "a2c": A2cPolicy.from_checkpoint,
    }
    if checkpoint.kind not in makers:
        raise FormatError(
            f"{path}: a checkpoint of a {checkpoint.kind!r} policy, which does not pack rigid jobs"
        )
    policy: PackingPolicy = makers[checkpoint.kind](checkpoint, path, name)
    policy.card = checkpoint.card
    return policy


def rule_checkpoint(policy: HandMadePolicy, card: dict[str, object]) -> Checkpoint:
    """Return the checkpoint of a tuned heuristic."""
    return Checkpoint(
        RULE_KIND, RULE_VERSION, {"params": policy.params}, {"kind": policy.kind.name.lower()}, card
    )


def _tuned_rule(checkpoint: Checkpoint, path: str, name: str) -> PackingPolicy:
    checkpoint.require(RULE_KIND, RULE_VERSION, path)
    kinds = {
        "tetris": (PackingKind.TETRIS, 1),
        "withhold": (PackingKind.WITHHOLD, len(WithholdParameter)),
    }
    kind = str(checkpoint.settings.get("kind"))
    params = checkpoint.weights.get("params", np.zeros(0))
    if kind not in kinds or params.shape != (kinds[kind][1],):
        raise FormatError(
            f"{path}: a tuned policy {kind!r} with {params.size} parameters is unknown to this "
            "version of Parcae; tune it again"
        )
    return HandMadePolicy(name, kinds[kind][0], params)
