"""`plan` by name: plan[:BASE][:BUDGET][:THREADS]."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from parcae.base.errors import PolicyError
from parcae.base.texts import ms_from_text
from parcae.decima.checkpoints import deciding_policy
from parcae.decima.corrector.policy import CorrectorPolicy
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rollouts.policy import RolloutPolicy
from parcae.decima.rollouts.race import Budget
from parcae.decima.rollouts.runs import RolloutModel
from parcae.decima.rule.policy import RulePolicy
from parcae.policies.learned import is_learned, shipped_policy
from parcae.policies.names import PolicyName
from parcae.policies.registry import TUNED_WORDS, PolicySetting, in_words, make
from parcae.simulation.config import mean_gap_ms

NAME = "plan"
#: The base of `plan` without one.
_BASE = "corrector"
_USAGE = "write plan[:BASE][:BUDGET][:THREADS], e.g. plan:tuned:20ms or plan:tuned:20ms:2threads"
_MS = re.compile(r"[0-9.]+(ms|s)")
_THREADS = re.compile(r"([0-9]{1,9})threads?")
_MOST_THREADS = 64


@dataclass(frozen=True)
class PlanText:
    """The parts of a name plan[:BASE][:BUDGET][:THREADS]."""

    base: PolicyName
    budget: Budget


def split_plan(name: PolicyName) -> PlanText:
    """Split a name into its base and its budget.

    Example: `plan:tuned:batch:20ms` has the base "tuned:batch".
    """
    text = name.name
    words = text.split(":")[1:]
    num_threads = 1
    if words and (found := _THREADS.fullmatch(words[-1])):
        num_threads = int(found[1])
        if not 1 <= num_threads <= _MOST_THREADS:
            raise PolicyError(
                f"policy {text!r}: {words[-1]!r} is not between 1 and {_MOST_THREADS} threads; "
                f"{_USAGE}"
            )
        words.pop()
    ms = None
    if words and _MS.fullmatch(words[-1]):
        ms = ms_from_text(words[-1])
        if ms is None or not 0 < ms < math.inf:
            raise PolicyError(f"policy {text!r}: {words[-1]!r} is no time above 0; {_USAGE}")
        words.pop()
    if words and (_MS.fullmatch(words[-1]) or _THREADS.fullmatch(words[-1])):
        raise PolicyError(
            f"policy {text!r}: write one budget, and after it one number of threads; {_USAGE}"
        )
    base = PolicyName(":".join(words) or _BASE)
    if base.word == NAME:
        raise PolicyError(f"policy {text!r}: the base cannot be {NAME!r} itself; {_USAGE}")
    return PlanText(base, Budget(ms, num_threads))


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
    return RolloutPolicy(name.name, base, _player(base, setting), model, parts.budget)


def base_in_words(name: PolicyName, setting: PolicySetting) -> str:
    """What the base of a name was resolved to, its budget and the threads."""
    parts = split_plan(name)
    base = in_words(parts.base, setting) if is_learned(parts.base) else parts.base.name
    budget = "" if parts.budget.ms is None else f", {parts.budget.ms:g} ms a decision"
    threads = "" if parts.budget.num_threads == 1 else f", {parts.budget.num_threads} threads"
    return f"rollouts on {base}{budget}{threads}"


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
    return _made(text, base, setting)


def _made(text: str, base: PolicyName, setting: PolicySetting) -> Any:
    try:
        return make(base, setting)
    except PolicyError as error:
        raise PolicyError(f"policy {text!r}: its base: {error}") from None


def _player(base: Any, setting: PolicySetting) -> RulePolicy | HeuristicPolicy | DecimaPolicy:
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
