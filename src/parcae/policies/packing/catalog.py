"""Every packing policy by name: an explicit list, no registration; and checkpoints by their path."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parcae.errors import FormatError, PolicyError
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
from parcae.policies.packing.layout import PackingKind, WithholdParameter
from parcae.policies.packing.policy import HandMadePolicy, PackingPolicy

SHIPPED = Path(__file__).parent.parent / "shipped" / "packing"
SUFFIX = ".safetensors"
#: Kind and version of tuned hand-made policies' checkpoints.
RULE_KIND = "packing-rule"
RULE_VERSION = 1
#: Jobs that get a reservation from conservative backfilling, unless told.
_DEPTH = 100


@dataclass(frozen=True)
class PackingSetting:
    """What the nearest of several shipped variants is chosen by.

    Args:
        rate: arrivals a step, where jobs are drawn. is_exact: exact times (a log). log: the log's name.
    """

    rate: float | None = None
    is_exact: bool = False
    log: str = ""


@dataclass(frozen=True)
class PackingEntry:
    """One line of the catalogue: how the policy is written, what it does, where it comes from."""

    usage: str
    summary: str
    source: str
    make: Callable[[str, str], PackingPolicy]  # (text, argument)

    @property
    def name(self) -> str:
        """The name without its argument."""
        return self.usage.partition("[")[0].partition(":")[0]


def _fixed(kind: PackingKind, *params: float) -> Callable[[str, str], PackingPolicy]:
    def make(text: str, argument: str) -> PackingPolicy:
        if argument:
            raise PolicyError(
                f"policy {text!r} takes no argument; write {text.partition(':')[0]!r}"
            )
        return HandMadePolicy(text, kind, params or (0.0,))

    return make


def _conservative(text: str, argument: str) -> PackingPolicy:
    if argument and (not argument.isdigit() or int(argument) < 1):
        raise PolicyError(
            f"policy {text!r}: the argument is how many jobs get a reservation, a whole number >= 1"
        )
    return HandMadePolicy(text, PackingKind.CONSERVATIVE, (float(argument or _DEPTH),))


def _tuned(text: str, argument: str) -> PackingPolicy:
    raise PolicyError(
        f"policy {text!r} is tuned for a load or a log first: use it in `parcae packing compare`"
    )


def _learned(text: str, argument: str) -> PackingPolicy:
    raise PolicyError(f"policy {text!r}: give the path of a checkpoint (*{SUFFIX})")


PACKING_CATALOG: tuple[PackingEntry, ...] = (
    PackingEntry("sjf", "shortest job first", "DeepRM, section 4.1", _fixed(PackingKind.SJF)),
    PackingEntry(
        "packer",
        "best alignment of demand and what is free",
        "DeepRM, section 4.1",
        _fixed(PackingKind.PACKER),
    ),
    PackingEntry(
        "tetris",
        "alignment and duration, the knob between them swept on tuning seeds",
        "DeepRM, section 4.1",
        _tuned,
    ),
    PackingEntry(
        "random",
        "any slot, or let time pass, all alike",
        "A2cScheduler, section 4.4",
        _fixed(PackingKind.RANDOM, 0.0),
    ),
    PackingEntry(
        "random-greedy", "any job that can start", "control", _fixed(PackingKind.RANDOM, 1.0)
    ),
    PackingEntry(
        "fcfs",
        "first come first served: nobody overtakes",
        "batch clusters",
        _fixed(PackingKind.FCFS),
    ),
    PackingEntry(
        "easy",
        "first come, and whoever does not delay the first (EASY)",
        "Lifka 1995",
        _fixed(PackingKind.EASY, 0.0),
    ),
    PackingEntry(
        "easy-sjf",
        "EASY that backfills the shortest first",
        "Tsafrir 2007",
        _fixed(PackingKind.EASY, 1.0),
    ),
    PackingEntry(
        "conservative[:DEPTH]",
        f"backfilling that delays none of the DEPTH eldest ({_DEPTH} unless told)",
        "Mu'alem and Feitelson 2001",
        _conservative,
    ),
    PackingEntry(
        "area",
        "least duration x share of the cluster first",
        "batch clusters",
        _fixed(PackingKind.AREA),
    ),
    PackingEntry(
        "withhold",
        "shortest first, long jobs wait while they would leave too little free; tuned by CMA-ES",
        "Parcae",
        _tuned,
    ),
    PackingEntry(
        "deeprm[:VARIANT]",
        "DeepRM's network, the variant of the nearest load",
        "DeepRM, section 3",
        _learned,
    ),
    PackingEntry(
        "a2c[:VARIANT]",
        "A2cScheduler's actor, the variant of the nearest load",
        "A2cScheduler, section 3",
        _learned,
    ),
    PackingEntry(
        "set[:VARIANT]",
        "a network over the waiting jobs that corrects the withholding rule",
        "Parcae",
        _learned,
    ),
    PackingEntry(
        "FILE.safetensors", "a checkpoint of `parcae packing train` or `tune`", "Parcae", _learned
    ),
)
_BY_NAME = {entry.name: entry for entry in PACKING_CATALOG}
LEARNED = ("deeprm", "a2c", "set")


def make_packing_policy(text: str, setting: PackingSetting | None = None) -> PackingPolicy:
    """The policy that `text` names: NAME, NAME:ARGUMENT, tetris-kKNOB (tetris_kKNOB), or a checkpoint's path.

    Args:
        setting: by which the nearest of the shipped variants is chosen.

    Raises:
        PolicyError: no such policy (the message suggests one), a wrong argument, or one that must be tuned first.
        FormatError, FileNotFoundError: a checkpoint that is torn, of another kind, or not there.

    Example: `make_packing_policy("tetris-k0.005")`
    """
    path = packing_checkpoint(text, setting)
    if path is not None:
        return policy_of_checkpoint(read_checkpoint(path), str(path), text)
    plain = text.replace("_", "-")
    if plain.startswith("tetris-k"):
        return _tetris(text, plain.removeprefix("tetris-k"))
    name, _, argument = text.partition(":")
    if name not in _BY_NAME:
        close = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_BY_NAME)}"
        raise PolicyError(
            f"unknown packing policy {text!r}; {hint} (`parcae packing policies` lists all)"
        )
    return _BY_NAME[name].make(text, argument)


def _tetris(text: str, knob: str) -> PackingPolicy:
    try:
        value = float(knob)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise PolicyError(
            f"policy {text!r}: the knob must be a number from 0 to 1, e.g. tetris-k0.005"
        )
    return HandMadePolicy(text, PackingKind.TETRIS, (value,))


def variants(name: str) -> list[str]:
    """The shipped variants of a learned policy."""
    return sorted(path.stem.removeprefix(f"{name}-") for path in SHIPPED.glob(f"{name}-*{SUFFIX}"))


def packing_checkpoint(text: str, setting: PackingSetting | None = None) -> Path | None:
    """The file that a name of a learned policy stands for, or a path itself; None for hand-made policies.

    Raises:
        PolicyError: no such variant, or none for the setting.
    """
    if text.endswith(SUFFIX):
        return Path(text)
    name, _, variant = text.partition(":")
    return _shipped(text, name, variant, setting or PackingSetting()) if name in LEARNED else None


def _shipped(text: str, name: str, variant: str, setting: PackingSetting) -> Path:
    known = variants(name)
    if not known:
        raise PolicyError(
            f"policy {text!r}: no variant of it ships with this Parcae; train one with `parcae packing train`"
        )
    if variant and variant not in known:
        close = difflib.get_close_matches(variant, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        raise PolicyError(f"policy {text!r}: no such variant; {hint}")
    if not variant:
        variant = _nearest(text, name, known, setting)
    return SHIPPED / f"{name}-{variant}{SUFFIX}"


def _nearest(text: str, name: str, known: list[str], setting: PackingSetting) -> str:
    """The variant whose training was most alike: its mode, its objective (slowdown first), its log, its arrival rate."""

    def distance(variant: str) -> tuple[bool, bool, bool, float]:
        card = read_checkpoint(SHIPPED / f"{name}-{variant}{SUFFIX}").card
        source = card.get("source", {})
        rates = source.get("rates") or []
        is_exact = source.get("config", {}).get("mode") == "exact"
        off = (
            0.0 if setting.rate is None or not rates else abs(setting.rate - float(np.mean(rates)))
        )
        wanted = "bounded_slowdown" if is_exact else "slowdown"
        is_other = _log_name(str(source.get("log", ""))) != _log_name(setting.log)
        return is_exact != setting.is_exact, card.get("cost") != wanted, is_other, off

    best = min(known, key=distance)
    if distance(best)[0]:
        kind = "logs with exact times" if setting.is_exact else "time in steps"
        raise PolicyError(
            f"policy {text!r}: no shipped variant is for {kind}; train one with `parcae packing train {name}`"
        )
    return best


def _log_name(name: str) -> str:
    """A log's name without the part that was taken of it."""
    return name.partition("[")[0]


def policy_of_checkpoint(checkpoint: Checkpoint, path: str, name: str) -> PackingPolicy:
    """The policy of a checkpoint of any packing kind.

    Raises:
        FormatError: of another kind or version, or of other shapes.
    """
    if checkpoint.kind == RULE_KIND:
        return _tuned_rule(checkpoint, path, name)
    if checkpoint.kind == "set":
        from parcae.policies.jobset.layout import FEATURE_VERSION
        from parcae.policies.jobset.policy import JobSetPolicy

        checkpoint.require("set", FEATURE_VERSION, path)
        return JobSetPolicy(name, checkpoint.weights)
    if checkpoint.kind == "deeprm":
        from parcae.policies.deeprm.policy import deeprm_policy

        return deeprm_policy(checkpoint, path, name)
    if checkpoint.kind == "a2c":
        from parcae.policies.a2c.policy import A2cPolicy

        return A2cPolicy.from_checkpoint(checkpoint, name)
    raise FormatError(
        f"{path}: a checkpoint of a {checkpoint.kind!r} policy, which does not pack rigid jobs"
    )


def rule_checkpoint(policy: HandMadePolicy, card: dict[str, object]) -> Checkpoint:
    """A tuned hand-made policy at rest."""
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
            f"{path}: a tuned policy {kind!r} with {params.size} parameters, which this Parcae does not know; tune it again"
        )
    return HandMadePolicy(name, kinds[kind][0], params)
