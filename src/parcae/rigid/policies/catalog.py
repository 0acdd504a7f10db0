"""Every packing policy by name, in an explicit list; checkpoints are named by their path."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from parcae.base.errors import FormatError, PolicyError
from parcae.policies.checkpoint import SUFFIX, Checkpoint, ShippedCheckpoints, read_checkpoint
from parcae.policies.registry import Catalogue, PolicyEntry, refuse_argument, refused
from parcae.rigid.jobs import log_name
from parcae.rigid.policies.kernels.backfilling import Order
from parcae.rigid.policies.kernels.decisions import PackingKind
from parcae.rigid.policies.kernels.scores import WithholdParameter
from parcae.rigid.policies.policy import HandMadePolicy, PackingPolicy

if TYPE_CHECKING:
    from parcae.rigid.jobset.policy import JobSetPolicy

SHIPPED = ShippedCheckpoints(Path(__file__).parent.parent / "shipped", "parcae packing train")
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


def _fixed(
    kind: PackingKind, *params: float
) -> Callable[[str, str, PackingSetting], PackingPolicy]:
    """Return a factory for a heuristic without an argument."""

    def make(text: str, argument: str, setting: PackingSetting) -> PackingPolicy:
        refuse_argument(text, argument)
        return HandMadePolicy(text, kind, params or (0.0,))

    return make


def _conservative(text: str, argument: str, setting: PackingSetting) -> PackingPolicy:
    """Create conservative backfilling with an optional depth."""
    if argument and not _WHOLE_NUMBER.fullmatch(argument):
        raise PolicyError(
            f"policy {text!r}: the argument is the number of jobs that get a reservation; it must "
            "be a whole number from 1 to 999999999"
        )
    return HandMadePolicy(text, PackingKind.CONSERVATIVE, (float(argument or _ALL_JOBS),))


def _tetris(text: str, knob: str, setting: PackingSetting) -> PackingPolicy:
    try:
        value = float(knob)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise PolicyError(
            f"policy {text!r}: the knob must be a number from 0 to 1, e.g. tetris-k0.005"
        )
    return HandMadePolicy(text, PackingKind.TETRIS, (value,))


_tuned = refused(
    "must be tuned for a load or a log first: use it in `parcae packing compare`, which tunes it"
)
_learned = refused(f"is learned: give the path of a checkpoint (*{SUFFIX})")

PACKING_CATALOG: Catalogue[PackingSetting] = Catalogue(
    "packing policy",
    "parcae packing policies",
    (
        PolicyEntry("sjf", "shortest job first", "DeepRM, section 4.1", _fixed(PackingKind.SJF)),
        PolicyEntry("packer", "best alignment of demand and free resources",
                    "DeepRM, section 4.1", _fixed(PackingKind.PACKER)),
        PolicyEntry("tetris", "alignment and duration, weighted by a knob that is swept on "
                    "tuning seeds", "DeepRM, section 4.1", _tuned),
        PolicyEntry("random", "any slot, or let time pass, with equal probability", "control",
                    _fixed(PackingKind.RANDOM, 0.0)),
        PolicyEntry("random-greedy", "any job that can start", "A2cScheduler, section 4.4",
                    _fixed(PackingKind.RANDOM, 1.0)),
        PolicyEntry("fcfs", "first come, first served, without overtaking", "batch clusters",
                    _fixed(PackingKind.FCFS)),
        PolicyEntry("easy", "first come, first served, and jobs that do not delay the first one "
                    "(EASY)", "Lifka 1995", _fixed(PackingKind.EASY, Order.ARRIVAL, Order.ARRIVAL)),
        PolicyEntry("easy-sjf", "EASY that backfills the shortest job first", "Tsafrir 2007",
                    _fixed(PackingKind.EASY, Order.ARRIVAL, Order.SHORTEST)),
        PolicyEntry("sjf-backfill", "EASY in which the shortest job comes first, instead of the "
                    "oldest", "Srinivasan et al. 2002",
                    _fixed(PackingKind.EASY, Order.SHORTEST, Order.SHORTEST)),
        PolicyEntry("xfactor", "EASY in which the job with the largest expansion factor, (wait + "
                    "estimate) / estimate, comes first", "Srinivasan et al. 2002",
                    _fixed(PackingKind.EASY, Order.EXPANSION, Order.EXPANSION)),
        PolicyEntry("conservative[:DEPTH]",
                    "backfilling that delays no older job; later jobs than the DEPTH oldest wait "
                    "(default: all can start)",
                    "Mu'alem and Feitelson 2001", _conservative),
        PolicyEntry("area", "least duration x share of the cluster first", "batch clusters",
                    _fixed(PackingKind.AREA)),
        PolicyEntry("withhold", "shortest first; long jobs wait while they would leave too "
                    "little free; tuned by CMA-ES", "Parcae", _tuned),
        PolicyEntry("deeprm[:VARIANT]", "DeepRM's network, the variant trained at the nearest "
                    "load", "DeepRM, section 3", _learned),
        PolicyEntry("a2c[:VARIANT]", "A2cScheduler's actor, the variant trained at the nearest "
                    "load", "A2cScheduler, section 3", _learned),
        PolicyEntry("set[:VARIANT]", "a network over the waiting jobs that corrects the "
                    "withholding rule", "Parcae", _learned),
        PolicyEntry("FILE.safetensors", "a checkpoint of `parcae packing train` or `tune`",
                    "Parcae", _learned),
        PolicyEntry("withhold|set|FILE+unguarded", "on a log, the policy decides also where "
                    "`xfactor` or `sjf-backfill` proved better", "Parcae", _learned),
    ),
)  # fmt: skip
LEARNED = ("deeprm", "a2c", "set")
#: Those that see images, which exist only with time in steps.
_OF_IMAGES = ("deeprm", "a2c")


def make_packing_policy(text: str, setting: PackingSetting | None = None) -> PackingPolicy:
    """Return the policy that `text` names.

    Example: `make_packing_policy("tetris-k0.005")`
    """
    setting = setting or PackingSetting()
    name = text.removesuffix(UNGUARDED)
    path = packing_checkpoint(name, setting)
    if path is not None:
        learned = policy_of_checkpoint(read_checkpoint(path), str(path), text)
        if name == text:
            return earned(learned, setting)
        if _may_withhold(learned):
            return learned
    if name != text:
        raise PolicyError(
            f"policy {text!r}: {UNGUARDED!r} is for policies that withhold jobs (withhold, set, "
            "and checkpoints of them)"
        )
    if text.startswith(("tetris-k", "tetris_k")):
        return _tetris(text, text[len("tetris-k") :], setting)
    policy: PackingPolicy = PACKING_CATALOG.make(text, setting)
    return policy


def earned(policy: PackingPolicy, setting: PackingSetting) -> PackingPolicy:
    """Return the policy as it is used by its name.

    With exact times, policies that withhold jobs do so only as long as this does no harm.
    """
    from parcae.rigid.policies.earned import EarnedPolicy

    return EarnedPolicy(policy) if setting.is_exact and _may_withhold(policy) else policy


def _may_withhold(policy: PackingPolicy) -> TypeGuard[HandMadePolicy | JobSetPolicy]:
    """Whether the policy leaves jobs waiting that would fit."""
    from parcae.rigid.jobset.policy import JobSetPolicy

    if isinstance(policy, HandMadePolicy):
        return policy.kind is PackingKind.WITHHOLD
    return isinstance(policy, JobSetPolicy)


def variants(name: str) -> list[str]:
    """Return the names of the shipped variants of a learned policy."""
    return SHIPPED.variants(name)


def packing_checkpoint(text: str, setting: PackingSetting | None = None) -> Path | None:
    """Return the checkpoint that a text names, or None for a heuristic.

    A name without a variant means the shipped variant that is nearest to the setting.
    """
    if text.endswith(SUFFIX):
        return Path(text)
    name, colon, variant = text.partition(":")
    if name not in LEARNED:
        return None
    if not colon:
        variant = _nearest(name, setting or PackingSetting())
    return SHIPPED.path(name, variant)


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
            f"`parcae packing train {name}`"
        )
    return best


def policy_of_checkpoint(checkpoint: Checkpoint, path: str, name: str) -> PackingPolicy:
    """Return the policy of a checkpoint of any packing kind."""
    if checkpoint.kind == RULE_KIND:
        return _tuned_rule(checkpoint, path, name)
    if checkpoint.kind == "set":
        from parcae.rigid.jobset.kernels import FEATURE_VERSION
        from parcae.rigid.jobset.policy import JobSetPolicy

        checkpoint.require("set", FEATURE_VERSION, path)
        return JobSetPolicy(name, checkpoint.weights)
    if checkpoint.kind == "deeprm":
        from parcae.rigid.deeprm.policy import deeprm_policy

        return deeprm_policy(checkpoint, path, name)
    if checkpoint.kind == "a2c":
        from parcae.rigid.a2c.policy import A2cPolicy

        return A2cPolicy.from_checkpoint(checkpoint, name)
    raise FormatError(
        f"{path}: a checkpoint of a {checkpoint.kind!r} policy, which does not pack rigid jobs"
    )


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
