"""Tuned heuristics: parameters are swept on seeds that no comparison ever uses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
#: A sweep over numbers of executors tries at most about this many.
_MAX_COUNTS = 40


def _counts(num_executors: int) -> tuple[float, ...]:
    """Numbers of executors from 1 to all: each one in small clusters, evenly spaced on a logarithmic scale in large ones."""
    spaced = np.geomspace(1, num_executors, min(num_executors, _MAX_COUNTS))
    return tuple(
        float(n)
        for n in (
            range(1, num_executors + 1)
            if num_executors <= _MAX_COUNTS
            else np.unique(np.rint(spaced))
        )
    )


#: Those of SWEEPS whose names need an argument.
_NEEDS_VALUE = ("weighted-fair", "static")
#: Of a grid of more than so many values, all are tried on a quarter of the sequences, and as many as this on all of them.
_MANY = 50
_FINALISTS = 25
#: Policies that decide, that plan, and that play whole runs only (those with a guard).
AnyPolicy = Policy | Planner | CompiledPolicy
#: A policy's parameters, in the order in which its name carries them.
Values = tuple[float, ...]


@dataclass(frozen=True)
class Knobs:
    """What can be tuned of a policy.

    Args:
        names: what its parameters are called.
        grid: the values that are tried on a cluster of so many executors.
        around: the values that are tried after that, given the best of the grid.
    """

    names: tuple[str, ...]
    grid: Callable[[int], Iterable[Values]]
    around: Callable[[Values], Iterable[Values]] = lambda best: ()


def _each(values: Iterable[float]) -> tuple[Values, ...]:
    return tuple((value,) for value in values)


#: Graphene*: alpha in steps of 0.5 with every pair of thresholds (2: no task is long, -1: no stage is hard to pack), and whether
#: executors wait for a stage's parents; then finer steps of alpha and of how long they wait, in s.
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
    """Policies by the name that was asked for, with tuned parameters found.

    Args:
        policies: every policy that is the same for all sequences.
        oracles: names whose parameter is the best in hindsight for each sequence.
        names: all names, in the order asked for, each once.
        config: the cluster.
        tuned: what tuning found, in words, for the report.
        variants: for every name, what it became: which shipped variant, which values, which of Spark's orders.
        guards: the factor of the guard of every name that has one.
    """

    policies: Mapping[str, AnyPolicy]
    oracles: frozenset[str]
    names: tuple[str, ...]
    config: SimulationConfig
    tuned: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    guards: Mapping[str, float] = field(default_factory=dict)

    def for_sequence(self, sequence: JobSequence, seed: int) -> dict[str, AnyPolicy]:
        """The policies, in the order asked for, for one sequence."""
        return {name: self._for_sequence(name, sequence, seed) for name in self.names}

    def _for_sequence(self, name: str, sequence: JobSequence, seed: int) -> AnyPolicy:
        if name not in self.oracles:
            return self.policies[name]
        best: AnyPolicy = best_in_hindsight(sequence, self.config, seed, split_guard(name)[0])
        return guarded(name, best, self.guards[name]) if name in self.guards else best

    def legend(self) -> str:
        """What the names became, where that is something else, in one line."""
        return "; ".join(
            f"{name}: {became}" for name, became in self.variants.items() if became != name
        )


def check_seeds(seed_start: int, num_seeds: int) -> None:
    """Refuse seeds that are negative or kept for tuning.

    Raises:
        ConfigError: such seeds.
    """
    if seed_start < 0 or seed_start + num_seeds > TUNING_SEED_START:
        raise ConfigError(
            f"seeds {seed_start} to {seed_start + num_seeds - 1} are not all in 0..{TUNING_SEED_START - 1}; seeds from "
            f"{TUNING_SEED_START} on are kept for tuning: choose a smaller first seed"
        )


def _family(name: str) -> tuple[str, str]:
    """The policy to sweep and how ("tuned" or "oracle"), or twice nothing."""
    family, _, how = name.partition(":")
    return (family, how) if family in SWEEPS and how in ("tuned", "oracle") else ("", "")


def resolve_policies(
    workload: Workload, names: Sequence[str], config: SimulationConfig, arrivals: str, num_jobs: int
) -> ResolvedPolicies:
    """The policies that `names` ask for, in the config's world; NAME:tuned is tuned here, once, on the tuning seeds.

    Args:
        names: as in the catalogue of the world, or the path of a checkpoint; those of SWEEPS with `:tuned` or `:oracle`; in the
            world of cores with a guard (`NAME+guard:1.1`).

    Raises:
        PolicyError: an unknown policy, or one of the other world.
    """
    setting = _Setting(workload, config, arrivals, num_jobs)
    asked = tuple(dict.fromkeys(names))
    guards = {}
    bare = {}
    for name in asked:
        if config.world is WorldName.EXECUTORS:
            refuse_planners(name)
        bare[name], factor = split_guard(name)
        if factor is not None:
            guards[name] = factor
    # What is tuned comes last, so that a name that was misspelt or is of the other world is refused at once.
    for family in (_family(own)[0] for own in bare.values() if _family(own)[0]):
        _made_by_name(f"{family}:1" if family in _NEEDS_VALUE else family, setting)
    made = {
        own: _resolve(own, setting)
        for own in dict.fromkeys(sorted(bare.values(), key=lambda own: bool(_family(own)[0])))
    }
    policies = {}
    for name, own in bare.items():
        policy = made[own].policy
        if policy is not None:
            policies[name] = guarded(name, policy, guards[name]) if name in guards else policy
    return ResolvedPolicies(
        policies,
        frozenset(name for name in asked if made[bare[name]].policy is None),
        asked,
        config,
        {name: made[own].found for name, own in bare.items() if made[own].found},
        {
            name: made[own].variant + (f", guard {guards[name]:g}" if name in guards else "")
            for name, own in bare.items()
        },
        guards,
    )


@dataclass(frozen=True)
class _Setting:
    """What policies are resolved for."""

    workload: Workload
    config: SimulationConfig
    arrivals: str
    num_jobs: int


@dataclass(frozen=True)
class _Resolved:
    """What one name became: a policy (None: the best in hindsight for each sequence), and in words."""

    policy: AnyPolicy | None
    variant: str
    found: str = ""


def _resolve(name: str, setting: _Setting) -> _Resolved:
    """What a name without a guard became."""
    workload = setting.workload
    config = setting.config
    family, how = _family(name)
    if is_learned(name):
        policy: AnyPolicy = learned_policy(name, workload, config, setting.arrivals)
        variant = variant_name(name, workload, config, setting.arrivals)
    elif how == "oracle":
        names = ", ".join(SWEEPS[family].names)
        found = f"{names} best in hindsight for each sequence: an oracle, not a policy to deploy"
        return _Resolved(None, f"{family}, {names} best in hindsight", found)
    elif how == "tuned":
        sweep = tune(workload, family, config, setting.arrivals, setting.num_jobs)
        variant = ":".join([family, *(f"{value:g}" for value in sweep.best)])
        return _Resolved(
            _with_values(family, sweep.best, config, name),
            _through_adapter(variant, config),
            sweep.describe(),
        )
    else:
        policy = _made_by_name(name, setting)
        variant = title_of(name) if isinstance(policy, OrderPolicy) else name
    return _Resolved(
        policy, variant if isinstance(policy, Planner) else _through_adapter(variant, config)
    )


def _made_by_name(name: str, setting: _Setting) -> OrderPolicy | HeuristicPolicy:
    """The policy of the catalogue of the world."""
    if setting.config.world is WorldName.CORES:
        return make_cores_policy(name, setting.workload, setting.config)
    return make_policy(name, setting.config.total_executors)


def _through_adapter(variant: str, config: SimulationConfig) -> str:
    """What a policy that decides is called: in the world of cores it plans by being asked until all cores are given away."""
    return (
        f"{variant}, planning through the adapter" if config.world is WorldName.CORES else variant
    )


def guarded(name: str, policy: AnyPolicy, factor: float) -> AnyPolicy:
    """The policy with a guard: a job that is about to end later than so many times its end under fair sharing goes first."""
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
    """Mean of the average JCT, in ms, over the tuning sequences for all values that were tried on all of them.

    `num_given_up` others were tried on a quarter of the sequences.
    """

    family: str
    cost_ms: Mapping[Values, float]
    num_given_up: int = 0

    @property
    def best(self) -> Values:
        """The values of least cost; of equals, those nearest to 0."""
        return min(self.cost_ms, key=lambda values: (self.cost_ms[values], sum(map(abs, values))))

    def describe(self) -> str:
        """What was found, in words."""
        names = SWEEPS[self.family].names
        tried = list(self.cost_ms)
        found = ", ".join(f"{name} {value:g}" for name, value in zip(names, self.best, strict=True))
        what = (
            f"values from {tried[0][0]:g} to {tried[-1][0]:g}"
            if len(names) == 1
            else "combinations"
        )
        others = f" ({self.num_given_up} more on a quarter of them)" if self.num_given_up else ""
        return (
            f"{found} (average JCT {self.cost_ms[self.best] / MS_PER_S:,.1f} s) of {len(tried)} {what}, "
            f"on {NUM_TUNING_SEEDS} tuning seeds{others}"
        )


def average_jct_ms(
    policy: HeuristicPolicy,
    sequences: Sequence[JobSequence],
    config: SimulationConfig,
    seeds: Sequence[int],
) -> float:
    """Mean of the sequences' average JCT under a policy, in ms."""
    batch = SimulatorBatch(sequences, config, seeds)
    batch.run(policy.play_many)
    traces = [batch.trace(row, policy.name) for row in range(len(batch))]
    return float(np.mean([jct_ms(trace)[arrived(trace)].mean() for trace in traces]))


def sweep_values(
    family: str, sequences: Sequence[JobSequence], config: SimulationConfig, seeds: Sequence[int]
) -> Sweep:
    """Try all values of a policy's parameters on the same sequences and luck."""

    def measured(tried: Iterable[Values], count: int) -> dict[Values, float]:
        policies = {values: _with_values(family, values, config, "tuning") for values in tried}
        return {
            values: average_jct_ms(p, sequences[:count], config, seeds[:count])
            for values, p in policies.items()
        }

    grid = tuple(SWEEPS[family].grid(config.total_executors))
    count = len(sequences)
    num_given_up = len(grid) - _FINALISTS if len(grid) > _MANY else 0
    if num_given_up:
        first = measured(grid, max(1, count // 4))
        grid = tuple(sorted(grid, key=first.__getitem__)[:_FINALISTS])
    cost_ms = measured(grid, count)
    around = SWEEPS[family].around(Sweep(family, cost_ms).best)
    return Sweep(
        family,
        cost_ms | measured((values for values in around if values not in cost_ms), count),
        num_given_up,
    )


def tune(
    workload: Workload, family: str, config: SimulationConfig, arrivals: str, num_jobs: int
) -> Sweep:
    """Sweep a policy's parameters on the tuning seeds (Decima, section 7.1, baseline 5).

    Recorded arrivals have one sequence only: there the parameter is tuned on jobs drawn at the recorded mean rate.
    """
    process = arrivals
    if arrivals == "recorded":
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
    """The policy with the values that are best for this very sequence and luck (the paper's per-batch optimum)."""
    family = _family(name)[0]
    return _with_values(family, sweep_values(family, [sequence], config, [seed]).best, config, name)
