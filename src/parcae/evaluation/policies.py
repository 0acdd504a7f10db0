"""Resolve policy names to the policies that a comparison on a cluster of executors or cores runs.

A name with `:tuned` is swept on seeds that no comparison uses; a name with `:oracle` gets the best
parameters for each sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.decision import Policy
from parcae.cluster.orders import Planner
from parcae.decima.catalog import make_policy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rollouts.names import base_in_words, is_rollout, rollout_policy
from parcae.evaluation.tuning import (
    SWEEPS,
    best_in_hindsight,
    describe,
    edge_warning,
    family_of,
    tune,
    with_values,
)
from parcae.evaluation.world import tuned_last
from parcae.policies.additions import (
    PolicyText,
    TenantPolicy,
    Tenants,
    own_pools,
    read_tenants,
    split_policy,
)
from parcae.policies.learned import is_learned, learned_policy, variant_name
from parcae.policies.orders.catalog import (
    ORDER_CATALOG,
    make_cores_policy,
    refuse_planners,
    title_of,
)
from parcae.policies.orders.policy import OrderPolicy, job_pools
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import CompiledPolicy
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import Workload
from parcae.workloads.pools import read_allocation

#: Policies of SWEEPS whose names need an argument.
_NEEDS_VALUE = ("weighted-fair", "static")
#: A policy that decides, one that plans, or one that can only run whole simulations (guarded).
AnyPolicy = Policy | Planner | CompiledPolicy


@dataclass(frozen=True)
class ResolvedPolicies:
    """Policies by name, after tuning.

    Args:
        policies: by name, every policy that is the same for all sequences.
        oracles: names whose parameters are the best in hindsight for each sequence.
        names: all names in the caller's order, without repetitions.
        config: the cluster.
        tuned: by name, the result of tuning in words, for the report.
        variants: by name, what the name was resolved to: a shipped variant, parameter values or one
            of Spark's orders.
        texts: by name, the policy and what the name adds to it.
        tenants: by name, the pools and priorities that are kept, if the name adds them.
        edges: by name, a warning if a tuned value is at the edge of its grid.
        tenant_pools: the pool of every recurring job of the workload, by the first policy that has
            pools; empty if none has.
    """

    policies: Mapping[str, AnyPolicy]
    oracles: frozenset[str]
    names: tuple[str, ...]
    config: SimulationConfig
    tuned: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, PolicyText] = field(default_factory=dict)
    tenants: Mapping[str, Tenants] = field(default_factory=dict)
    edges: Mapping[str, str] = field(default_factory=dict)
    tenant_pools: tuple[str, ...] = ()

    def for_sequence(self, sequence: JobSequence, seed: int) -> dict[str, AnyPolicy]:
        """The policies for one sequence, in the caller's order."""
        return {name: self._for_sequence(name, sequence, seed) for name in self.names}

    def _for_sequence(self, name: str, sequence: JobSequence, seed: int) -> AnyPolicy:
        if name not in self.oracles:
            return self.policies[name]
        text = self.texts[name]
        best: AnyPolicy = best_in_hindsight(sequence, self.config, seed, text.name)
        return with_additions(name, best, text.guard, self.tenants.get(name))

    def legend(self) -> str:
        """One line that says what names were resolved to, for those that changed."""
        return "; ".join(
            f"{name}: {became}" for name, became in self.variants.items() if became != name
        )


def resolve_policies(
    workload: Workload,
    policies: Sequence[str | AnyPolicy],
    config: SimulationConfig,
    arrivals: str,
    num_jobs: int,
) -> ResolvedPolicies:
    """Make the policies with the given names. NAME:tuned is tuned here, once, on the tuning seeds.

    Policy objects stand for themselves, under their own names.

    Args:
        workload: the jobs that policies are bound to and tuned on.
        policies: policy objects, names of the world's catalogue, or paths of checkpoints. Policies
            of SWEEPS accept `:tuned` and `:oracle`. In the cores world names accept additions
            (`NAME+guard:1.1`; see `parcae.policies.additions`).
        config: the cluster and its world.
        arrivals: when jobs arrive.
        num_jobs: number of jobs in each run.

    Returns:
        The policies, with what their names were resolved to.

    Raises:
        PolicyError: a policy is unknown or belongs to the other world.
        ConfigError: two policy objects, or an object and a name, are called the same; or a pool
            or a pattern of priorities has no job.
        FormatError, OSError: a file of pools or priorities cannot be read.
    """
    objects = _objects(policies)
    names = [policy if isinstance(policy, str) else policy.name for policy in policies]
    made = _resolve_names(
        [name for name in names if name not in objects],
        _Setting(workload, config, arrivals, num_jobs),
    )
    return replace(
        made,
        policies={**made.policies, **objects},
        names=tuple(dict.fromkeys(names)),
        variants={**made.variants, **{name: name for name in objects}},
    )


def _objects(policies: Sequence[str | AnyPolicy]) -> dict[str, AnyPolicy]:
    """The policy objects among the policies, by name."""
    named = {policy for policy in policies if isinstance(policy, str)}
    objects: dict[str, AnyPolicy] = {}
    for policy in policies:
        if isinstance(policy, str):
            continue
        if policy.name in objects or policy.name in named:
            raise ConfigError(f"two policies are called {policy.name!r}: give one another name")
        objects[policy.name] = policy
    return objects


def _resolve_names(names: Sequence[str], setting: _Setting) -> ResolvedPolicies:
    """Make the policies of the given names."""
    unique_names = tuple(dict.fromkeys(names))
    texts = _split_names(unique_names, setting.config)
    tenants = _tenants(texts, setting.workload)
    made = _made_in_order(dict.fromkeys(text.name for text in texts.values()), setting)
    policies = {}
    tuned = {}
    variants = {}
    for name, text in texts.items():
        one = made[text.name]
        if one.policy is not None:
            policies[name] = with_additions(name, one.policy, text.guard, tenants.get(name))
        if one.tuning_text:
            tuned[name] = one.tuning_text
        variants[name] = one.variant + text.describe()
    return ResolvedPolicies(
        policies,
        oracles=frozenset(name for name in unique_names if name not in policies),
        names=unique_names,
        config=setting.config,
        tuned=tuned,
        variants=variants,
        texts=texts,
        tenants=tenants,
        edges={name: one.edge for name in texts if (one := made[texts[name].name]).edge},
        tenant_pools=_tenant_pools(texts, setting.workload),
    )


def _split_names(names: Sequence[str], config: SimulationConfig) -> dict[str, PolicyText]:
    """By name, the policy and what the name adds to it."""
    if config.world is WorldName.EXECUTORS:
        for name in names:
            refuse_planners(name)
    return {name: split_policy(name) for name in names}


def _tenants(texts: Mapping[str, PolicyText], workload: Workload) -> dict[str, Tenants]:
    """By name, the pools and priorities that are kept; read before anything is tuned."""
    return {
        name: read_tenants(workload, text.pools, text.priorities)
        for name, text in texts.items()
        if text.has_tenants
    }


def _tenant_pools(texts: Mapping[str, PolicyText], workload: Workload) -> tuple[str, ...]:
    """The pool of every recurring job, by the first policy that has pools."""
    for text in texts.values():
        path = text.pools or own_pools(text.name)
        if path:
            return job_pools(read_allocation(path), workload)
    return ()


def _made_in_order(names: Iterable[str], setting: _Setting) -> dict[str, _Resolved]:
    """Resolve names without additions. Tuned ones come last: a misspelt name then fails at once.

    The families of tuned policies are made first, without tuning, which checks their names.
    """
    names = list(names)
    for family in (family_of(name)[0] for name in names):
        if family:
            _made_by_name(f"{family}:1" if family in _NEEDS_VALUE else family, setting)
    ordered = tuned_last(names, lambda name: bool(family_of(name)[0]))
    return {name: _resolve(name, setting) for name in ordered}


@dataclass(frozen=True)
class _Setting:
    """The setting that policies are resolved for."""

    workload: Workload
    config: SimulationConfig
    arrivals: str
    num_jobs: int


@dataclass(frozen=True)
class _Resolved:
    """The result of resolving one name."""

    policy: AnyPolicy | None
    variant: str
    tuning_text: str = ""
    edge: str = ""


def _resolve(name: str, setting: _Setting) -> _Resolved:
    """Resolve a name without additions."""
    workload = setting.workload
    config = setting.config
    family, how = family_of(name)
    if how == "oracle":
        return _oracle(family)
    if how == "tuned":
        return _tuned(name, family, setting)
    if is_rollout(name):
        plan = rollout_policy(name, workload, config, setting.arrivals)
        return _Resolved(plan, base_in_words(name, workload, config, setting.arrivals))
    if is_learned(name):
        policy: AnyPolicy = learned_policy(name, workload, config, setting.arrivals)
        variant = variant_name(name, workload, config, setting.arrivals)
    else:
        policy = _made_by_name(name, setting)
        variant = title_of(name) if isinstance(policy, OrderPolicy) else name
    return _Resolved(
        policy, variant if isinstance(policy, Planner) else _through_adapter(variant, config)
    )


def _oracle(family: str) -> _Resolved:
    """The policy of a family whose parameters are the best in hindsight for each sequence."""
    names = ", ".join(SWEEPS[family].names)
    tuning_text = (
        f"{names} best in hindsight for each sequence: an oracle, which cannot be deployed"
    )
    return _Resolved(None, f"{family}, {names} best in hindsight", tuning_text)


def _tuned(name: str, family: str, setting: _Setting) -> _Resolved:
    """The policy of a family with the parameters that are the best on the tuning seeds."""
    config = setting.config
    sweep = tune(setting.workload, family, config, setting.arrivals, setting.num_jobs)
    variant = ":".join([family, *(f"{value:g}" for value in sweep.best)])
    policy = with_values(family, sweep.best, config, name)
    edge = edge_warning(family, sweep, config)
    return _Resolved(policy, _through_adapter(variant, config), describe(sweep), edge)


def _made_by_name(name: str, setting: _Setting) -> OrderPolicy | HeuristicPolicy:
    """Make a policy from the catalogue of the setting's world."""
    if setting.config.world is WorldName.CORES:
        return make_cores_policy(name, setting.workload, setting.config)
    return make_policy(name, setting.config.total_executors)


def _through_adapter(variant: str, config: SimulationConfig) -> str:
    """The variant's name of a policy that decides.

    In the cores world an adapter turns its decisions into a plan: it asks the policy for decisions
    until all cores are given away.
    """
    return (
        f"{variant}, planning through the adapter" if config.world is WorldName.CORES else variant
    )


def check_named(checkpoint: Path) -> None:
    """Check that the path of a checkpoint can be used as the name of its policy.

    Example: `plan:a/best.safetensors` is a name of the policy `plan`.
    """
    text = str(checkpoint)
    try:
        is_whole = split_policy(text).name == text.strip()
    except PolicyError:
        is_whole = False
    is_other = is_rollout(text) or ORDER_CATALOG.find(text)[0] is not None
    if "," in text or is_other or not is_whole:
        raise ConfigError(
            f"{text!r} could not be named as a policy, because it has a comma, begins with a "
            "space or reads as another policy (plan:..., ...+guard:1.1): choose another folder or "
            "file name"
        )


def with_additions(
    name: str, policy: AnyPolicy, guard: float | None, tenants: Tenants | None
) -> AnyPolicy:
    """Return the policy with a guard, pools and priorities, as far as they are given."""
    from parcae.policies.additions import Guarded

    made: AnyPolicy = policy
    if tenants is not None:
        made = TenantPolicy(name, made, tenants)
    return made if guard is None else Guarded(name, made, guard)
