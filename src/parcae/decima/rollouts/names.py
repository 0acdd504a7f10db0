"""`plan` by name: plan[:BASE][:BUDGET][:THREADS]."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcae.base.errors import PolicyError
from parcae.base.texts import ms_from_text
from parcae.decima.catalog import TUNED_WORDS, make_policy
from parcae.decima.corrector.policy import ParcaePolicy
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rollouts.policy import RolloutPlanner, RolloutPolicy
from parcae.decima.rollouts.race import Budget
from parcae.decima.rollouts.runs import RolloutModel
from parcae.decima.rule.policy import RulePolicy
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
from parcae.policies.learned import deciding_policy, is_learned, learned_policy, variant_name
from parcae.policies.network.policy import OrderNetworkPolicy
from parcae.policies.orders.catalog import make_cores_policy
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy
from parcae.policies.rule.policy import OrderRulePolicy
from parcae.simulation.config import SimulationConfig, WorldName, mean_gap_ms
from parcae.workloads.job import Workload

NAME = "plan"
#: The base of `plan` without one.
_BASE = "parcae"
_USAGE = "write plan[:BASE][:BUDGET][:THREADS], e.g. plan:tuned:20ms or plan:tuned:20ms:2threads"
_MS = re.compile(r"[0-9.]+(ms|s)")
_THREADS = re.compile(r"([0-9]{1,9})threads?")
_MOST_THREADS = 64
#: Bases whose parameters are found for the runs of a comparison.
_UNTUNED = tuple(f":{word}" for word in TUNED_WORDS)
#: Formulas that depend on more than a job's own state when rollouts go on with them.
_NO_PLAYERS = (OrderKind.POOLS, OrderKind.GIVEN)


@dataclass(frozen=True)
class PlanText:
    """The parts of a name plan[:BASE][:BUDGET][:THREADS]."""

    base: str
    budget: Budget


def is_rollout(text: str) -> bool:
    """Whether `text` names the policy `plan`."""
    return text.partition(":")[0] == NAME


def split_plan(text: str) -> PlanText:
    """Split a name into its base and its budget.

    Example: `split_plan("plan:tuned:batch:20ms")` has the base "tuned:batch".
    """
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
    base = ":".join(words) or _BASE
    if is_rollout(base):
        raise PolicyError(f"policy {text!r}: the base cannot be {NAME!r} itself; {_USAGE}")
    return PlanText(base, Budget(ms, num_threads))


def rollout_policy(
    text: str,
    workload: Workload,
    config: SimulationConfig,
    arrivals: str = "batch",
    read: Callable[[Path], Checkpoint] = read_checkpoint,
) -> RolloutPolicy | RolloutPlanner:
    """Return the policy `plan` of a name, for a workload and a cluster.

    Args:
        text: the name.
        workload: the workload that it schedules; rollouts draw durations and jobs from it.
        config: the cluster.
        arrivals: the arrival process.
        read: reads the checkpoint of a base in the world of cores.

    Raises:
        PolicyError: the name is wrong, or the base cannot be tried in rollouts.
        FormatError, FileNotFoundError: see `learned_policy`.
    """
    parts = split_plan(text)
    gap_ms = mean_gap_ms(workload, config, arrivals)
    model = RolloutModel(workload, config, gap_ms)
    if config.world is WorldName.CORES:
        orders = _base_of_cores(text, parts.base, workload, config, arrivals, read)
        return RolloutPlanner(text, orders, _order_player(orders), model, parts.budget)
    base = _base(text, parts.base, workload, config, arrivals)
    player = _player(base, workload, config, arrivals)
    return RolloutPolicy(text, base, player, model, parts.budget)


def base_in_words(text: str, workload: Workload, config: SimulationConfig, arrivals: str) -> str:
    """What the base of a name was resolved to, its budget and the threads."""
    parts = split_plan(text)
    base = variant_name(parts.base, workload, config, arrivals)
    budget = "" if parts.budget.ms is None else f", {parts.budget.ms:g} ms a decision"
    threads = "" if parts.budget.num_threads == 1 else f", {parts.budget.num_threads} threads"
    return f"rollouts on {base}{budget}{threads}"


def _base(
    text: str, base: str, workload: Workload, config: SimulationConfig, arrivals: str
) -> RulePolicy | ParcaePolicy | DecimaPolicy | HeuristicPolicy:
    """The base in Decima's world."""
    if is_learned(base):
        return deciding_policy(base, workload, config, arrivals)
    if base.endswith(_UNTUNED):
        raise PolicyError(
            f"policy {text!r}: its base needs its parameters as numbers, as in "
            "plan:weighted-fair:-1; `parcae compare` shows those that it finds for the base itself"
        )
    if base.startswith("order:"):
        raise PolicyError(
            f"policy {text!r}: its base orders the jobs of one run, but rollouts have other jobs; "
            "give another base"
        )
    try:
        return make_policy(base, config.total_executors)
    except PolicyError as error:
        raise PolicyError(f"policy {text!r}: its base: {error}") from None


def _player(
    base: Any, workload: Workload, config: SimulationConfig, arrivals: str
) -> RulePolicy | HeuristicPolicy | DecimaPolicy:
    """The policy that rollouts in Decima's world go on with: the base, if it is fast."""
    if isinstance(base, RulePolicy | HeuristicPolicy):
        return base
    if isinstance(base, DecimaPolicy) and base.settings.has_job_features:
        return base
    if isinstance(base, ParcaePolicy):
        return RulePolicy(base.name, base.parameters, base.curves)
    rule = learned_policy("tuned", workload, config, arrivals)
    assert isinstance(rule, RulePolicy)
    return rule


def _base_of_cores(
    text: str,
    base: str,
    workload: Workload,
    config: SimulationConfig,
    arrivals: str,
    read: Callable[[Path], Checkpoint],
) -> OrderRulePolicy | OrderNetworkPolicy | OrderPolicy:
    if is_learned(base):
        made: Any = learned_policy(base, workload, config, arrivals, read)
    else:
        try:
            made = make_cores_policy(base, workload, config)
        except PolicyError as error:
            raise PolicyError(f"policy {text!r}: its base: {error}") from None
    has_orders = isinstance(made, OrderRulePolicy | OrderNetworkPolicy | OrderPolicy)
    if not has_orders or (isinstance(made, OrderPolicy) and made.kind in _NO_PLAYERS):
        raise PolicyError(
            f"policy {text!r}: in the world of cores its base must plan orders without pools, such "
            "as parcae, tuned, srpt or fair"
        )
    planner: OrderRulePolicy | OrderNetworkPolicy | OrderPolicy = made
    return planner


def _order_player(
    base: OrderRulePolicy | OrderNetworkPolicy | OrderPolicy,
) -> OrderRulePolicy | OrderPolicy:
    """The policy that rollouts in the world of cores go on with."""
    if isinstance(base, OrderNetworkPolicy):
        return OrderRulePolicy(base.name, base.parameters, base.mean_work_ms)
    return base
