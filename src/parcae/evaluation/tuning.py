"""Resolve policy names to policies, and tune heuristics by a parameter sweep.

`resolve_policies` makes the policies that a comparison names. A name with `:tuned` is swept on
seeds that no comparison uses; a name with `:oracle` gets the best parameters for each sequence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parcae.cluster.decision import Policy
from parcae.cluster.orders import Planner
from parcae.errors import ConfigError
from parcae.metrics.jobs import arrived, jct_ms
from parcae.policies.catalog import make_policy
from parcae.policies.heuristics.policy import HeuristicPolicy
from parcae.policies.learned import is_learned, learned_policy, variant_name
from parcae.policies.orders.catalog import make_cores_policy, refuse_planners, split_guard, title_of
from parcae.policies.orders.policy import OrderPolicy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.many import SimulatorBatch
from parcae.simulation.run import CompiledPolicy
from parcae.units import MS_PER_S
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import TUNING_SEED_START, RandomStreams

#: Decima, section 7.1: alpha from -2 to 2 in steps of 0.1.
ALPHAS = tuple(round(-2.0 + 0.1 * step, 1) for step in range(41))
NUM_TUNING_SEEDS = 20
#: A sweep over the number of executors tries at most about this many values.
_MAX_COUNTS = 40


def _counts(num_executors: int) -> tuple[float, ...]:
    """Numbers of executors to try: every one in small clusters, logarithmically spaced in large."""
    spaced = np.geomspace(1, num_executors, min(num_executors, _MAX_COUNTS))
    return tuple(
        float(n)
        for n in (
            range(1, num_executors + 1)
            if num_executors <= _MAX_COUNTS
            else np.unique(np.rint(spaced))
        )
    )


#: Policies of SWEEPS whose names need an argument.
_NEEDS_VALUE = ("weighted-fair", "static")
#: A grid with more values than this is first tried on a quarter of the sequences.
_MANY = 50
#: The best values of that first round, this many, are then tried on all sequences.
_FINALISTS = 25
#: A policy that decides, one that plans, or one that can only run whole simulations (guarded).
AnyPolicy = Policy | Planner | CompiledPolicy
#: A policy's parameters, in the order in which its name lists them.
Values = tuple[float, ...]


@dataclass(frozen=True)
class Knobs:
    """The tunable parameters of a policy.

    Args:
        names: names of the parameters.
        grid: function (number of executors) -> the values to try first.
        around: function (best values of the grid) -> the values to try after that.
    """

    names: tuple[str, ...]
    grid: Callable[[int], Iterable[Values]]
    around: Callable[[Values], Iterable[Values]] = lambda best: ()


def _each(values: Iterable[float]) -> tuple[Values, ...]:
    return tuple((value,) for value in values)


#: The sweep of Graphene*: first alpha in steps of 0.5 with every pair of thresholds (LongScore 2:
#: no task is long; FragScore -1: no stage is hard to pack) and with executors that wait for a
#: stage's parents or not; then finer steps of alpha and of the longest wait, in s.
_COARSE_ALPHAS = ALPHAS[::5]
_LONG = (0.2, 0.4, 0.6, 0.8, 2.0)
_FRAG = (-1.0, 0.2, 0.4, 0.6, 0.8)
_COARSE_WAITS_S = (0.0, math.inf)
_WAITS_S = (0.0, 2.0, 5.0, 10.0, 30.0, 100.0, math.inf)
_TETRIS_KNOBS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

#: Policies that can be tuned.
SWEEPS: Mapping[str, Knobs] = {
    "weighted-fair": Knobs(("alpha",), lambda num_executors: _each(ALPHAS)),
    "static": Knobs(("cap",), lambda num_executors: _each(_counts(num_executors))),
    "srpt-cap": Knobs(("cap",), lambda num_executors: _each(_counts(num_executors))),
    "tetris": Knobs(("weight of remaining work",), lambda num_executors: _each(_TETRIS_KNOBS)),
    "graphene": Knobs(
        ("alpha", "LongScore", "FragScore", "longest wait for parents"),
        lambda num_executors: itertools.product(_COARSE_ALPHAS, _LONG, _FRAG, _COARSE_WAITS_S),
        lambda best: (
            (alpha, *best[1:3], wait_s)
            for alpha in ALPHAS
            if abs(alpha - best[0]) < 0.25
            for wait_s in _WAITS_S
        ),
    ),
}


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
        guards: by name, the factor of the guard, if the policy has one.
    """

    policies: Mapping[str, AnyPolicy]
    oracles: frozenset[str]
    names: tuple[str, ...]
    config: SimulationConfig
    tuned: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    guards: Mapping[str, float] = field(default_factory=dict)

    def for_sequence(self, sequence: JobSequence, seed: int) -> dict[str, AnyPolicy]:
        """The policies for one sequence, in the caller's order."""
        return {name: self._for_sequence(name, sequence, seed) for name in self.names}

    def _for_sequence(self, name: str, sequence: JobSequence, seed: int) -> AnyPolicy:
        if name not in self.oracles:
            return self.policies[name]
        best: AnyPolicy = best_in_hindsight(sequence, self.config, seed, split_guard(name)[0])
        return guarded(name, best, self.guards[name]) if name in self.guards else best

    def legend(self) -> str:
        """One line that says what names were resolved to, for those that changed."""
        return "; ".join(
            f"{name}: {became}" for name, became in self.variants.items() if became != name
        )


def check_seeds(seed_start: int, num_seeds: int) -> None:
    """Check that seeds are not negative and not reserved for tuning.

    Raises:
        ConfigError: a seed is out of range.
    """
    if seed_start < 0 or seed_start + num_seeds > TUNING_SEED_START:
        raise ConfigError(
            f"seeds {seed_start} to {seed_start + num_seeds - 1} are not all in "
            f"0..{TUNING_SEED_START - 1}. Seeds from {TUNING_SEED_START} on are kept for tuning: "
            "choose a smaller first seed"
        )


def _family(name: str) -> tuple[str, str]:
    """Split a name into the policy to sweep and "tuned" or "oracle"; two empty texts if neither."""
    family, _, how = name.partition(":")
    return (family, how) if family in SWEEPS and how in ("tuned", "oracle") else ("", "")


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
            of SWEEPS accept `:tuned` and `:oracle`. In the cores world names accept a guard
            (`NAME+guard:1.1`).
        config: the cluster and its world.
        arrivals: when jobs arrive.
        num_jobs: number of jobs in each run.

    Returns:
        The policies, with what their names were resolved to.

    Raises:
        PolicyError: a policy is unknown or belongs to the other world.
        ConfigError: two policy objects, or an object and a name, are called the same.
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
    bare, guards = _without_guards(unique_names, setting.config)
    made = _made_in_order(dict.fromkeys(bare.values()), setting)
    policies = {}
    tuned = {}
    variants = {}
    for name, bare_name in bare.items():
        one = made[bare_name]
        guard = guards.get(name)
        if one.policy is not None:
            policies[name] = one.policy if guard is None else guarded(name, one.policy, guard)
        if one.tuning_text:
            tuned[name] = one.tuning_text
        variants[name] = one.variant + ("" if guard is None else f", guard {guard:g}")
    oracles = frozenset(name for name in unique_names if name not in policies)
    return ResolvedPolicies(
        policies, oracles, unique_names, setting.config, tuned, variants, guards
    )


def _without_guards(
    names: Sequence[str], config: SimulationConfig
) -> tuple[dict[str, str], dict[str, float]]:
    """By name, the name without its guard; and the factor of the guard where there is one.

    Raises:
        PolicyError: a policy plans, and the config's world has decisions.
    """
    bare = {}
    guards = {}
    for name in names:
        if config.world is WorldName.EXECUTORS:
            refuse_planners(name)
        bare[name], factor = split_guard(name)
        if factor is not None:
            guards[name] = factor
    return bare, guards


def _made_in_order(names: Iterable[str], setting: _Setting) -> dict[str, _Resolved]:
    """Resolve names without guards. Tuned policies come last: a misspelt name then fails at once.

    The families of tuned policies are made first, without tuning, which checks their names.
    """
    names = list(names)
    for family in (_family(name)[0] for name in names):
        if family:
            _made_by_name(f"{family}:1" if family in _NEEDS_VALUE else family, setting)
    return {
        name: _resolve(name, setting) for name in sorted(names, key=lambda n: bool(_family(n)[0]))
    }


@dataclass(frozen=True)
class _Setting:
    """The setting that policies are resolved for."""

    workload: Workload
    config: SimulationConfig
    arrivals: str
    num_jobs: int


@dataclass(frozen=True)
class _Resolved:
    """The result of resolving one name.

    Args:
        policy: None for the best in hindsight for each sequence.
        variant: what the name was resolved to, in words.
        tuning_text: the result of tuning, in words.
    """

    policy: AnyPolicy | None
    variant: str
    tuning_text: str = ""


def _resolve(name: str, setting: _Setting) -> _Resolved:
    """Resolve a name without a guard."""
    workload = setting.workload
    config = setting.config
    family, how = _family(name)
    if how == "oracle":
        return _oracle(family)
    if how == "tuned":
        return _tuned(name, family, setting)
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
    policy = _with_values(family, sweep.best, config, name)
    return _Resolved(policy, _through_adapter(variant, config), sweep.describe())


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


def guarded(name: str, policy: AnyPolicy, factor: float) -> AnyPolicy:
    """Add a guard to a policy.

    A job that is about to need more than `factor` times its time under fair sharing goes first.

    Args:
        name: name of the guarded policy.
        policy: the policy to guard.
        factor: the guard's factor.
    """
    from parcae.policies.guard import Guarded

    guard: AnyPolicy = Guarded(name, policy, factor)
    return guard


def _with_values(
    family: str, values: Values, config: SimulationConfig, name: str
) -> HeuristicPolicy:
    policy = make_policy(
        ":".join([family, *(f"{value:g}" for value in values)]), config.total_executors
    )
    return HeuristicPolicy(name, policy.kind, policy.params)


@dataclass(frozen=True)
class Sweep:
    """The result of a parameter sweep.

    Args:
        family: the policy.
        cost_ms: by parameter values, the mean over all tuning sequences of the average JCT, in ms.
        num_given_up: number of other values, which were tried on a quarter of the sequences only.
    """

    family: str
    cost_ms: Mapping[Values, float]
    num_given_up: int = 0

    @property
    def best(self) -> Values:
        """The values with the least cost; of equal ones, those nearest to 0."""
        return min(self.cost_ms, key=lambda values: (self.cost_ms[values], sum(map(abs, values))))

    def describe(self) -> str:
        """The result in words."""
        names = SWEEPS[self.family].names
        tried = list(self.cost_ms)
        best_values = ", ".join(
            f"{name} {value:g}" for name, value in zip(names, self.best, strict=True)
        )
        what = (
            f"values from {tried[0][0]:g} to {tried[-1][0]:g}"
            if len(names) == 1
            else "combinations"
        )
        others = f" ({self.num_given_up} more on a quarter of them)" if self.num_given_up else ""
        return (
            f"{best_values} (average JCT {self.cost_ms[self.best] / MS_PER_S:,.1f} s) "
            f"of {len(tried)} {what}, on {NUM_TUNING_SEEDS} tuning seeds{others}"
        )


def average_jct_ms(
    policy: HeuristicPolicy,
    sequences: Sequence[JobSequence],
    config: SimulationConfig,
    seeds: Sequence[int],
) -> float:
    """Mean over job sequences of the average JCT under a policy, in ms.

    Args:
        policy: the policy.
        sequences: the job sequences.
        config: the cluster.
        seeds: the seed of each sequence's task durations.
    """
    batch = SimulatorBatch(sequences, config, seeds)
    batch.run(policy.play_many)
    traces = [batch.trace(row, policy.name) for row in range(len(batch))]
    return float(np.mean([jct_ms(trace)[arrived(trace)].mean() for trace in traces]))


def sweep_values(
    family: str, sequences: Sequence[JobSequence], config: SimulationConfig, seeds: Sequence[int]
) -> Sweep:
    """Try all values of a policy's parameters on the same job sequences and task durations.

    Args:
        family: the policy; a name of SWEEPS.
        sequences: the job sequences.
        config: the cluster.
        seeds: the seed of each sequence's task durations.
    """

    def measured(tried: Iterable[Values], count: int) -> dict[Values, float]:
        policies = {values: _with_values(family, values, config, "tuning") for values in tried}
        return {
            values: average_jct_ms(p, sequences[:count], config, seeds[:count])
            for values, p in policies.items()
        }

    grid = tuple(SWEEPS[family].grid(config.total_executors))
    count = len(sequences)
    # A large grid is first tried on a quarter of the sequences.
    num_given_up = len(grid) - _FINALISTS if len(grid) > _MANY else 0
    if num_given_up:
        first = measured(grid, max(1, count // 4))
        grid = tuple(sorted(grid, key=first.__getitem__)[:_FINALISTS])
    cost_ms = measured(grid, count)
    # Then try finer steps around the best value.
    around = SWEEPS[family].around(Sweep(family, cost_ms).best)
    finer_ms = measured([values for values in around if values not in cost_ms], count)
    return Sweep(family, cost_ms | finer_ms, num_given_up)


def tune(
    workload: Workload, family: str, config: SimulationConfig, arrivals: str, num_jobs: int
) -> Sweep:
    """Sweep a policy's parameters on the tuning seeds (Decima, section 7.1, baseline 5).

    Recorded arrivals give only one sequence. The sweep then draws jobs that arrive at the recorded
    mean rate.

    Args:
        workload: the jobs to draw from.
        family: the policy; a name of SWEEPS.
        config: the cluster.
        arrivals: when jobs arrive.
        num_jobs: number of jobs in each sequence.
    """
    process = arrivals
    if arrivals == "recorded":
        # Poisson arrivals with the recorded mean gap replace the recorded times.
        times = [job.arrival_ms or 0 for job in workload.jobs]
        gap_ms = (max(times) - min(times)) / max(1, len(times) - 1)
        process = f"poisson:{max(1, round(gap_ms))}ms"
    seeds = [TUNING_SEED_START + row for row in range(NUM_TUNING_SEEDS)]
    sequences = [
        draw_sequence(workload, process, num_jobs, config.total_executors, RandomStreams(seed))
        for seed in seeds
    ]
    return sweep_values(family, sequences, config, seeds)


def best_in_hindsight(
    sequence: JobSequence, config: SimulationConfig, seed: int, name: str
) -> HeuristicPolicy:
    """The policy with the best parameters for this sequence and seed.

    The paper calls this the optimum per batch.

    Args:
        sequence: the jobs.
        config: the cluster.
        seed: the seed of the task durations.
        name: a policy's name with `:oracle`.
    """
    family = _family(name)[0]
    return _with_values(family, sweep_values(family, [sequence], config, [seed]).best, config, name)
