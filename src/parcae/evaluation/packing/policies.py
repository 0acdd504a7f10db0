"""The packing policies that a comparison is asked for, tuned where their name leaves parameters open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parcae.evaluation.packing.tuning import Tuned, tune_knob, tune_withholding
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.packing.catalog import PackingSetting, make_packing_policy, packing_checkpoint
from parcae.policies.packing.policy import PackingPolicy

#: Policies that are tuned for the setting that they are compared in, before they are.
TUNED = ("tetris", "withhold")


@dataclass(frozen=True)
class Tuning:
    """How policies are tuned.

    Args:
        source: of the tuning's sequences. cost: what is made small. budget_s: seconds that a search may take at most.
        where: what the sequences are, in words, for the settings.
    """

    source: PackingSource
    cost: Cost
    budget_s: float = 120.0
    where: str = ""


@dataclass(frozen=True)
class ResolvedPacking:
    """Policies by the name that was asked for, in that order; what tuning found, in words; how learned ones learned.

    A curve is [iteration, seconds, cost on the selection's runs] for each measurement of the training.
    """

    policies: Mapping[str, PackingPolicy]
    tuned: Mapping[str, str]
    curves: Mapping[str, list[list[float]]]


def resolve_packing(
    names: Sequence[str],
    tuning: Tuning | None,
    progress: Callable[[str], None] | None = None,
    setting: PackingSetting | None = None,
) -> ResolvedPacking:
    """The policies that `names` ask for, each once: names of the catalogue, checkpoints, and `tetris` and `withhold`, tuned here.

    Args:
        tuning: how; None where there is nothing to tune them on.
        progress: called with what is being done.
        setting: by which the nearest variant of a learned policy is chosen.

    Raises:
        PolicyError: an unknown policy, or one to be tuned where there is nothing to tune it on.
        FormatError, FileNotFoundError: a checkpoint that is torn, of another kind, or not there.
    """
    names = tuple(dict.fromkeys(names))
    is_tuned = {name: tuning is not None and name in TUNED for name in names}
    policies = {name: make_packing_policy(name, setting) for name in names if not is_tuned[name]}
    tuned: dict[str, str] = {}
    for name in names:
        if tuning is not None and is_tuned[name]:
            if progress is not None:
                progress(f"tuning {name}")
            found = _tune(name, tuning)
            policies[name] = found.policy
            tuned[name] = found.text + (f", {tuning.where}" if tuning.where else "")
    curves = {name: _curve(name, setting) for name in names if not is_tuned[name]}
    return ResolvedPacking(
        {name: policies[name] for name in names}, tuned, {k: v for k, v in curves.items() if v}
    )


def _curve(name: str, setting: PackingSetting | None) -> list[list[float]]:
    """The learning curve in a learned policy's model card; nothing for others."""
    path = packing_checkpoint(name, setting)
    return [] if path is None else list(read_checkpoint(path).card.get("curve", []))


def _tune(name: str, tuning: Tuning) -> Tuned:
    if name == "tetris":
        return tune_knob(tuning.source, tuning.cost)
    return tune_withholding(tuning.source, tuning.cost, tuning.budget_s)
