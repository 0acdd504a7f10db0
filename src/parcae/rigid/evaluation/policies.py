"""Resolve the names of packing policies to policies, and tune those whose names lack parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parcae.evaluation.comparison import tuned_last
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.names import parse_name
from parcae.rigid.evaluation.tuning import Tuned, tune_knob, tune_withholding
from parcae.rigid.layout import Cost
from parcae.rigid.metrics import require_ranking
from parcae.rigid.policies.catalog import (
    UNGUARDED,
    PackingSetting,
    earned,
    make_packing_policy,
    packing_checkpoint,
)
from parcae.rigid.policies.policy import PackingPolicy
from parcae.rigid.sources import PackingSource

#: Policies that are tuned for the setting of the comparison, before it runs.
TUNED = ("tetris", "withhold")


@dataclass(frozen=True)
class RigidTuning:
    """How policies are tuned.

    Args:
        source: the source of the tuning sequences.
        cost: the cost to minimise.
        budget_s: largest duration of a search, in seconds.
        where: description of the sequences, for the settings.

    Raises:
        ConfigError: the cost does not tell policies apart.
    """

    source: PackingSource
    cost: Cost
    budget_s: float = 120.0
    where: str = ""

    def __post_init__(self) -> None:
        require_ranking(self.cost)


@dataclass(frozen=True)
class ResolvedPacking:
    """Policies by name, after tuning."""

    policies: Mapping[str, PackingPolicy]
    tuned: Mapping[str, str]
    curves: Mapping[str, list[list[float]]]
    edges: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the caller's order."""
        return tuple(self.policies)


def resolve_packing(
    names: Sequence[str],
    tuning: RigidTuning | None,
    progress: Callable[[str], None] | None = None,
    setting: PackingSetting | None = None,
) -> ResolvedPacking:
    """Make the policies with the given names; `tetris` and `withhold` are tuned here."""
    made: dict[str, PackingPolicy] = {}
    tuned: dict[str, str] = {}
    edges: dict[str, str] = {}
    sources: dict[str, Mapping[str, Any]] = {}
    for name in tuned_last(names, lambda name: tuning is not None and bool(tuned_policy(name))):
        base = tuned_policy(name)
        if tuning is None or base is None:
            made[name] = make_packing_policy(name, setting)
            continue
        if progress is not None:
            progress(f"tuning {name}")
        result = tune(base, tuning)
        is_guarded = name == base
        policy: PackingPolicy = result.policy
        made[name] = earned(policy, setting or PackingSetting()) if is_guarded else policy
        tuned[name] = result.text + (f", {tuning.where}" if tuning.where else "")
        sources[name] = tuning.source.card()
        if result.edge:
            edges[name] = result.edge
    cards = {name: _card(name, setting) for name in made}
    return ResolvedPacking(
        {name: made[name] for name in dict.fromkeys(names)},
        tuned,
        {name: list(card["curve"]) for name, card in cards.items() if card.get("curve")},
        edges,
        sources | {name: card["source"] for name, card in cards.items() if "source" in card},
    )


def tuned_policy(name: str) -> str | None:
    """The policy of TUNED that a name means; None if no policy is tuned for it.

    Only `withhold` takes the suffix of a policy that may withhold jobs whatever the harm: `tetris`
    withholds none.
    """
    plain = "withhold" if name == f"withhold{UNGUARDED}" else name
    return plain if plain in TUNED else None


def _card(name: str, setting: PackingSetting | None) -> Mapping[str, Any]:
    """A learned policy's model card; empty for other policies."""
    path = packing_checkpoint(parse_name(name), setting)
    return {} if path is None else read_checkpoint(path).card


def tune(name: str, tuning: RigidTuning, **search: Any) -> Tuned:
    """Tune a policy of TUNED."""
    if name == "tetris":
        return tune_knob(tuning.source, tuning.cost)
    return tune_withholding(tuning.source, tuning.cost, tuning.budget_s, **search)
