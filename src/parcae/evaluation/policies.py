"""Resolve policy names to the policies that a comparison on a cluster of executors or cores runs.

A name with `:tuned` is swept on seeds that no comparison uses; a name with `:oracle` gets the best
parameters for each sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError, PolicyError
from parcae.base.texts import MS_PER_S, seconds_text
from parcae.cluster.orders import Planner
from parcae.evaluation.comparison import tuned_last
from parcae.policies.additions import (
    Accounted,
    TenantPolicy,
    Tenants,
    read_tenants,
    user_weights,
)
from parcae.policies.names import PolicyName, parse_name
from parcae.policies.orders.policy import read_pools
from parcae.policies.own import AnyPolicy
from parcae.policies.parameter_search import Knobs, Sweep, Values, edge_warning, swept
from parcae.policies.registry import (
    TUNED_WORDS,
    PolicySetting,
    check_additions,
    find,
    in_words,
    make,
)
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import arrived, jct_ms
from parcae.simulation.simulator import SimulatorBatch
from parcae.workloads.workload import TUNING_SEED_START, ArrivalProcess, JobSequence, Workload

NUM_TUNING_SEEDS = 20


def check_seeds(seed_start: int, num_seeds: int) -> None:
    """Check that seeds are not negative and not reserved for tuning."""
    if seed_start < 0 or seed_start + num_seeds > TUNING_SEED_START:
        raise ConfigError(
            f"seeds {seed_start} to {seed_start + num_seeds - 1} are not all in "
            f"0..{TUNING_SEED_START - 1}. Seeds from {TUNING_SEED_START} on are kept for tuning: "
            "choose a smaller first seed"
        )


def knobs_of(word: str, world: str) -> Knobs | None:
    """The parameters of a policy that are found on runs; None if there are none."""
    entry = find(PolicyName(word), world)
    return None if entry is None else entry.sweep


def with_values(word: str, values: Values, config: SimulationConfig, name: str) -> Any:
    """A policy that can be tuned, with these parameters, under another name."""
    text = ":".join([word, *(f"{value:g}" for value in values)])
    # Its parameters are all that such a policy depends on, not the jobs.
    setting = PolicySetting(None, config)  # type: ignore[arg-type]
    return replace(make(PolicyName(text), setting), name=name)


def describe(sweep: Sweep) -> str:
    """The result of `tune` in words."""
    tried = list(sweep.costs)
    what = (
        f"values from {tried[0][0]:g} to {tried[-1][0]:g}"
        if len(sweep.names) == 1
        else "combinations"
    )
    others = f" ({sweep.num_given_up} more on a quarter of them)" if sweep.num_given_up else ""
    return (
        f"{sweep.best_words} (average JCT {seconds_text(sweep.costs[sweep.best] / MS_PER_S)} s) "
        f"of {len(tried)} {what}, on {NUM_TUNING_SEEDS} tuning seeds{others}"
    )


def average_jct_ms(
    policy: Any,
    sequences: Sequence[JobSequence],
    config: SimulationConfig,
    seeds: Sequence[int],
) -> float:
    """Mean over job sequences of the average JCT under a policy, in ms."""
    batch = SimulatorBatch(sequences, config, seeds)
    batch.run(policy.play_many)
    traces = [batch.trace(row, policy.name) for row in range(len(batch))]
    return float(np.mean([jct_ms(trace)[arrived(trace)].mean() for trace in traces]))


def sweep_values(
    word: str,
    sequences: Sequence[JobSequence],
    config: SimulationConfig,
    seeds: Sequence[int],
) -> Sweep:
    """Try all values of a policy's parameters on the same job sequences and task durations. Returns
    the mean over the sequences of the average JCT by the values, in ms.
    """

    def cost_ms(values: Values, share: float) -> float:
        count = max(1, int(share * len(sequences)))
        policy = with_values(word, values, config, "tuning")
        return average_jct_ms(policy, sequences[:count], config, seeds[:count])

    knobs = knobs_of(word, config.world)
    assert knobs is not None
    return swept(knobs, config.total_executors, cost_ms)


def tune(
    workload: Workload, word: str, config: SimulationConfig, arrivals: str, num_jobs: int
) -> Sweep:
    """Sweep a policy's parameters on the tuning seeds (Decima, section 7.1, baseline 5).

    Recorded arrivals give only one sequence. The sweep then draws jobs that arrive at the recorded
    mean rate, or in as many sessions.
    """
    process = arrivals
    if arrivals == "sessions" and workload.num_sessions:
        process = f"sessions:{workload.num_sessions}"
    elif ArrivalProcess.parse(arrivals).replays(workload):
        # Poisson arrivals with the recorded mean gap replace the recorded times.
        times = [job.arrival_ms or 0 for job in workload.jobs]
        gap_ms = (max(times) - min(times)) / max(1, len(times) - 1)
        process = f"poisson:{max(1, round(gap_ms))}ms"
    seeds = [TUNING_SEED_START + row for row in range(NUM_TUNING_SEEDS)]
    sequences = [workload.draw(num_jobs, process, config, seed=seed) for seed in seeds]
    return sweep_values(word, sequences, config, seeds)


def best_in_hindsight(sequence: JobSequence, config: SimulationConfig, seed: int, name: str) -> Any:
    """The policy with the best parameters for this sequence and seed.

    The paper calls this the optimum per batch.
    """
    word = PolicyName(name).word
    best = sweep_values(word, [sequence], config, [seed]).best
    return with_values(word, best, config, name)


@dataclass(frozen=True)
class Resolved:
    """What one name, or a policy object, was resolved to.

    Args:
        policy: the policy; None: its parameters are the best in hindsight for each sequence.
        variant: in words: a shipped variant, parameter values or one of Spark's orders.
        tuned: the result of tuning in words, for the report.
        edge: a warning if a tuned value is at the edge of its grid.
        text: the parsed name; None for an object.
        tenants: the pools and priorities that are kept, if the name adds them.
        weights: of the users, if the name adds accounts.
    """

    policy: AnyPolicy | None
    variant: str
    tuned: str = ""
    edge: str = ""
    text: PolicyName | None = None
    tenants: Tenants | None = None
    weights: tuple[float, ...] | None = None

    def with_additions(self, name: str, policy: AnyPolicy) -> AnyPolicy:
        """The policy with the pools, the priorities and the accounts that the name adds."""
        made: AnyPolicy = policy
        if self.tenants is not None:
            made = TenantPolicy(name, made, self.tenants)
        return made if self.weights is None else Accounted(name, made, self.weights)


@dataclass(frozen=True)
class ResolvedPolicies:
    """Policies by name, after tuning.

    Args:
        rows: by name, in the caller's order, without repetitions.
        config: the cluster.
        tenant_pools: the pool of every recurring job of the workload, by the first policy that has
            pools; empty if none has.
        also: names of further results, that are no policies'.
    """

    rows: Mapping[str, Resolved]
    config: SimulationConfig
    tenant_pools: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the caller's order, and those of further results."""
        return (*self.rows, *self.also)

    @property
    def policies(self) -> dict[str, AnyPolicy]:
        """By name, every policy that is the same for all sequences."""
        return {name: row.policy for name, row in self.rows.items() if row.policy is not None}

    @property
    def variants(self) -> dict[str, str]:
        """By name, what it was resolved to."""
        return {name: row.variant for name, row in self.rows.items()}

    @property
    def oracles(self) -> set[str]:
        """Names whose parameters are the best in hindsight for each sequence."""
        return {name for name, row in self.rows.items() if row.policy is None}

    def for_sequence(self, sequence: JobSequence, seed: int) -> dict[str, AnyPolicy]:
        """The policies for one sequence, in the caller's order."""
        made = dict[str, AnyPolicy]()
        for name, row in self.rows.items():
            if row.policy is not None:
                made[name] = row.policy
            elif row.text is not None:
                best = best_in_hindsight(sequence, self.config, seed, row.text.name)
                made[name] = row.with_additions(name, best)
        return made

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

    Policy objects stand for themselves, under their own names. Names are those of the world's
    catalogue (some accept `:tuned` and `:oracle`) or paths of checkpoints, in the cores world with
    additions (`NAME+account`; see `parcae.policies.names`).
    """
    setting = PolicySetting(workload, config, arrivals)
    given = [(one if isinstance(one, str) else one.name, one) for one in policies]
    objects: dict[str, AnyPolicy] = {}
    for name, one in given:
        if not isinstance(one, str):
            if name in objects or (name, name) in given:
                raise ConfigError(f"two policies are called {name!r}: give one another name")
            objects[name] = one
    texts = {name: parse_name(name) for name, _ in given if name not in objects}
    for text in texts.values():
        check_additions(text, setting.world)
    rows = {name: Resolved(one, name) for name, one in objects.items()}
    tenants = {
        name: read_tenants(workload, text.pools, text.priorities)
        for name, text in texts.items()
        if text.has_tenants
    }
    ordered = tuned_last(
        (text.name for text in texts.values()),
        lambda name: PolicyName(name).argument in TUNED_WORDS,
    )
    made = {name: _resolve(PolicyName(name), setting, num_jobs) for name in ordered}
    for name, text in texts.items():
        bare = made[text.name]
        row = replace(
            bare,
            variant=bare.variant + text.describe(),
            text=text,
            tenants=tenants.get(name),
            weights=None if text.account is None else user_weights(workload, text.account),
        )
        if row.policy is not None:
            row = replace(row, policy=row.with_additions(name, row.policy))
        rows[name] = row
    pooled = next((text for text in texts.values() if text.pools or text.own_pools), None)
    return ResolvedPolicies(
        {name: rows[name] for name, _ in given},
        config,
        () if pooled is None else read_pools(pooled.pools_file, workload)[1],
    )


def _resolve(name: PolicyName, setting: PolicySetting, num_jobs: int) -> Resolved:
    """Resolve a name without additions."""
    config = setting.config
    knobs = knobs_of(name.word, setting.world) if name.argument in TUNED_WORDS else None
    if knobs is None:
        policy: AnyPolicy = make(name, setting)
        row = Resolved(policy, in_words(name, setting))
    elif name.argument == "oracle":
        found = f"{', '.join(knobs.names)} best in hindsight"
        tuned = f"{found} for each sequence: an oracle, which cannot be deployed"
        return Resolved(None, f"{name.word}, {found}", tuned)
    else:
        sweep = tune(setting.workload, name.word, config, setting.arrivals, num_jobs)
        row = Resolved(
            with_values(name.word, sweep.best, config, name.name),
            ":".join([name.word, *(f"{value:g}" for value in sweep.best)]),
            describe(sweep),
            edge_warning(knobs, config.total_executors, sweep),
        )
    # In the cores world an adapter turns decisions into a plan: it asks the policy for decisions
    # until all cores are given away.
    if config.world is WorldName.CORES and not isinstance(row.policy, Planner | TenantPolicy):
        row = replace(row, variant=f"{row.variant}, planning through the adapter")
    return row


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
            "space or reads as another policy (plan:..., ...+pools:p.xml): choose another folder "
            "or file name"
        )
