"""`plan` by name: plan[:BASE][:BUDGET][:THREADS]."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from parcae.base.errors import PolicyError
from parcae.base.texts import ms_from_text
from parcae.decima.checkpoints import deciding_policy
from parcae.decima.corrector.policy import CorrectorPolicy
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rollouts.policy import Player, RolloutModel, RolloutPolicy
from parcae.decima.rule.policy import RulePolicy
from parcae.policies.learned import is_learned, shipped_policy
from parcae.policies.names import PolicyName
from parcae.policies.registry import TUNED_WORDS, PolicySetting, in_words, make
from parcae.simulation.config import mean_gap_ms

#: The base of `plan` without one.
_BASE = "corrector"
_USAGE = "write plan[:BASE][:BUDGET][:THREADS], e.g. plan:tuned:20ms or plan:tuned:20ms:2threads"
_TIME = r"[0-9.]+m?s"
_THREADS = r"[0-9]{1,9}threads?"
_PARTS = re.compile(
    rf"plan(?::(?P<base>.*?))??(?::(?P<time>{_TIME}))?(?::(?P<threads>{_THREADS}))?", re.DOTALL
)
_MOST_THREADS = 64


class PlanText(NamedTuple):
    """The parts of a name plan[:BASE][:BUDGET][:THREADS]."""

    base: PolicyName
    budget_ms: float | None
    num_threads: int


def split_plan(name: PolicyName) -> PlanText:
    """Split a name into its base, the time of a decision and the number of threads.

    Example: `plan:tuned:batch:20ms` has the base "tuned:batch".
    """
    text = name.name
    parts = _PARTS.fullmatch(text)
    assert parts is not None, "a name that is `plan` has such parts"
    base = PolicyName(parts["base"] or _BASE)
    num_threads = 1 if parts["threads"] is None else int(parts["threads"].partition("t")[0])
    budget_ms = None if parts["time"] is None else ms_from_text(parts["time"])
    wrong = ""
    if not 1 <= num_threads <= _MOST_THREADS:
        wrong = f"{parts['threads']!r} is not between 1 and {_MOST_THREADS} threads"
    elif parts["time"] is not None and not 0 < (budget_ms or 0) < math.inf:
        wrong = f"{parts['time']!r} is no time above 0"
    elif re.fullmatch(f"{_TIME}|{_THREADS}", base.name.rpartition(":")[2]):
        wrong = "write one budget, and after it one number of threads"
    elif base.word == "plan":
        wrong = "the base cannot be 'plan' itself"
    if wrong:
        raise PolicyError(f"policy {text!r}: {wrong}; {_USAGE}")
    return PlanText(base, budget_ms, num_threads)


def rollout_policy(name: PolicyName, setting: PolicySetting) -> RolloutPolicy:
    """Return the policy `plan` of a name; rollouts draw durations and jobs from the workload.

    Raises:
        PolicyError: the name is wrong, or the base cannot be tried in rollouts.
        FormatError, FileNotFoundError: see `shipped_policy`.
    """
    parts = split_plan(name)
    workload, config = setting.workload, setting.config
    model = RolloutModel(workload, config, mean_gap_ms(workload, config, setting.arrivals))
    base = _base(name.name, parts.base, setting)
    player = _player(base, setting)
    return RolloutPolicy(name.name, base, player, model, parts.budget_ms, parts.num_threads)


def base_in_words(name: PolicyName, setting: PolicySetting) -> str:
    """What the base of a name was resolved to, its budget and the threads."""
    base, budget_ms, num_threads = split_plan(name)
    found = in_words(base, setting) if is_learned(base) else base.name
    budget = "" if budget_ms is None else f", {budget_ms:g} ms a decision"
    threads = "" if num_threads == 1 else f", {num_threads} threads"
    return f"rollouts on {found}{budget}{threads}"


def _base(text: str, base: PolicyName, setting: PolicySetting) -> Any:
    """The base in Decima's world."""
    if is_learned(base):
        return deciding_policy(base, setting)
    if base.argument in TUNED_WORDS:
        raise PolicyError(
            f"policy {text!r}: its base needs its parameters as numbers, as in "
            "plan:weighted-fair:-1; `parcae compare` shows those that it finds for the base itself"
        )
    if base.word == "order":
        raise PolicyError(
            f"policy {text!r}: its base orders the jobs of one run, but rollouts have other jobs; "
            "give another base"
        )
    try:
        return make(base, setting)
    except PolicyError as error:
        raise PolicyError(f"policy {text!r}: its base: {error}") from None


def _player(base: Any, setting: PolicySetting) -> Player:
    """The policy that rollouts in Decima's world go on with: the base, if it is fast."""
    if isinstance(base, RulePolicy | HeuristicPolicy):
        return base
    if isinstance(base, DecimaPolicy) and base.settings.has_job_features:
        return base
    if isinstance(base, CorrectorPolicy):
        return RulePolicy(base.name, base.parameters, base.curves)
    rule = shipped_policy(PolicyName("tuned"), setting)
    assert isinstance(rule, RulePolicy)
    return rule
