"""Resolve policy names to the policies that a comparison on a cluster of executors or cores runs.

A name with `:tuned` is swept on seeds that no comparison uses; a name with `:oracle` gets the best
parameters for each sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.orders import Planner
from parcae.evaluation.comparison import tuned_last
from parcae.evaluation.tuning import (
    best_in_hindsight,
    describe,
    edge_warning,
    how_tuned,
    knobs_of,
    tune,
    with_values,
)
from parcae.policies.additions import Guarded, TenantPolicy, Tenants, read_tenants
from parcae.policies.names import PolicyName, parse_name
from parcae.policies.orders.policy import job_pools
from parcae.policies.own import AnyPolicy
from parcae.policies.registry import PolicySetting, check_additions, find, in_words, make
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.pools import read_allocation
from parcae.workloads.workload import JobSequence, Workload


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
    texts: Mapping[str, PolicyName] = field(default_factory=dict)
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
        policies: policy objects, names of the world's catalogue, or paths of checkpoints. Some
            accept `:tuned` and `:oracle`. In the cores world names accept additions
            (`NAME+guard:1.1`; see `parcae.policies.names`).
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
        _Runs(workload, config, arrivals, num_jobs=num_jobs),
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


def _resolve_names(names: Sequence[str], setting: _Runs) -> ResolvedPolicies:
    """Make the policies of the given names."""
    unique_names = tuple(dict.fromkeys(names))
    texts = {name: parse_name(name) for name in unique_names}
    for text in texts.values():
        check_additions(text, setting.world)
    tenants = {
        name: read_tenants(setting.workload, text.pools, text.priorities)
        for name, text in texts.items()
        if text.has_tenants
    }
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


def _tenant_pools(texts: Mapping[str, PolicyName], workload: Workload) -> tuple[str, ...]:
    """The pool of every recurring job, by the first policy that has pools."""
    for text in texts.values():
        path = text.pools or text.own_pools
        if path:
            return job_pools(read_allocation(path), workload)
    return ()


def _made_in_order(names: Iterable[str], setting: _Runs) -> dict[str, _Resolved]:
    """Resolve names without additions. Tuned ones come last: a misspelt name then fails at once."""
    parsed = [PolicyName(name) for name in names]
    is_tuned = {name.name: how_tuned(name, setting.world) for name in parsed}
    ordered = tuned_last(is_tuned, lambda name: bool(is_tuned[name]))
    return {name: _resolve(PolicyName(name), is_tuned[name], setting) for name in ordered}


@dataclass(frozen=True)
class _Runs(PolicySetting):
    """The setting that policies are resolved for, and the number of jobs in a run."""

    num_jobs: int = 0


@dataclass(frozen=True)
class _Resolved:
    """The result of resolving one name."""

    policy: AnyPolicy | None
    variant: str
    tuning_text: str = ""
    edge: str = ""


def _resolve(name: PolicyName, how: str, setting: _Runs) -> _Resolved:
    """Resolve a name without additions."""
    if how:
        return (_oracle if how == "oracle" else _tuned)(name, setting)
    policy: AnyPolicy = make(name, setting)
    variant = in_words(name, setting)
    return _Resolved(
        policy, variant if isinstance(policy, Planner) else _through_adapter(variant, setting)
    )


def _oracle(name: PolicyName, setting: _Runs) -> _Resolved:
    """The policy whose parameters are the best in hindsight for each sequence."""
    names = ", ".join(knobs_of(name.word, setting.world).names)
    tuning_text = (
        f"{names} best in hindsight for each sequence: an oracle, which cannot be deployed"
    )
    return _Resolved(None, f"{name.word}, {names} best in hindsight", tuning_text)


def _tuned(name: PolicyName, setting: _Runs) -> _Resolved:
    """The policy with the parameters that are the best on the tuning seeds."""
    config = setting.config
    sweep = tune(setting.workload, name.word, config, setting.arrivals, setting.num_jobs)
    variant = ":".join([name.word, *(f"{value:g}" for value in sweep.best)])
    policy = with_values(name.word, sweep.best, config, name.name)
    edge = edge_warning(name.word, sweep, config)
    return _Resolved(policy, _through_adapter(variant, setting), describe(sweep), edge)


def _through_adapter(variant: str, setting: PolicySetting) -> str:
    """The variant's name of a policy that decides.

    In the cores world an adapter turns its decisions into a plan: it asks the policy for decisions
    until all cores are given away.
    """
    is_adapted = setting.config.world is WorldName.CORES
    return f"{variant}, planning through the adapter" if is_adapted else variant


def check_named(checkpoint: Path) -> None:
    """Check that the path of a checkpoint can be used as the name of its policy.

    Example: `plan:a/best.safetensors` is a name of the policy `plan`.
    """
    text = str(checkpoint)
    try:
        parsed = parse_name(text)
        entry = find(parsed, "cores")
        is_path = parsed.name == text.strip() and (entry is None or bool(entry.suffix))
    except PolicyError:
        is_path = False
    if "," in text or not is_path:
        raise ConfigError(
            f"{text!r} could not be named as a policy, because it has a comma, begins with a "
            "space or reads as another policy (plan:..., ...+guard:1.1): choose another folder or "
            "file name"
        )


def with_additions(
    name: str, policy: AnyPolicy, guard: float | None, tenants: Tenants | None
) -> AnyPolicy:
    """Return the policy with a guard, pools and priorities, as far as they are given."""
    made: AnyPolicy = policy
    if tenants is not None:
        made = TenantPolicy(name, made, tenants)
    return made if guard is None else Guarded(name, made, guard)
