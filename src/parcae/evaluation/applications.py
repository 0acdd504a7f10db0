"""Several applications on one cluster: compare who has executors, and who orders jobs.

A contender is an allocation and a policy, such as `static/fair`: the allocation says who has how
many executors, and in every application the policy orders its jobs. `shared` is one application.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError
from parcae.cluster.trace import FaultCounts, Trace
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.comparison import Column, Comparison, Say
from parcae.evaluation.page import Section
from parcae.evaluation.policies import ResolvedPolicies
from parcae.evaluation.sections import averages_and_groups
from parcae.policies.own import AnyPolicy
from parcae.simulation.allocations import SHARED, WORDS, allocation_named
from parcae.simulation.applications import ApplicationsCluster, play_applications
from parcae.simulation.config import SimulationConfig
from parcae.simulation.elastic import Elastic
from parcae.simulation.simulator import simulate
from parcae.workloads.import_report import counted
from parcae.workloads.pools import read_allocation
from parcae.workloads.workload import JobSequence, Workload

#: `--applications` with this word: everybody has an application.
AUTO = "auto"


def read_applications(
    text: str, workload: Workload, config: SimulationConfig, elastic: Elastic, start_sigma: float
) -> ApplicationsCluster:
    """The applications of a workload's jobs: one for each user ("auto"), or the pools of a file.

    Raises:
        ConfigError: there is only one application.
    """
    if text == AUTO:
        owners: Sequence[str] = workload.users
        weights = dict.fromkeys(owners, 1.0)
    else:
        allocation = read_allocation(Path(text))
        names = [job.name for job in workload.jobs]
        pools = [job.pool for job in workload.jobs]
        allocation.check_used(names, pools)
        owners = allocation.pools_of(names, pools)
        weights = {pool.name: pool.weight for pool in allocation.all_pools}
    applications = tuple(dict.fromkeys(owners))
    if len(applications) < 2:
        raise ConfigError(
            f"--applications {text}: all jobs are {applications[0]!r}'s, so there is one "
            "application only: name others in a file, or leave the option out"
        )
    rows = {name: row for row, name in enumerate(applications)}
    return ApplicationsCluster(
        config.model_copy(update={"elastic": elastic}),
        tuple(rows[owner] for owner in owners),
        applications,
        tuple(weights[name] for name in applications),
        start_sigma,
    )


@dataclass(frozen=True)
class Allocated:
    """A policy that orders the jobs of applications, under an allocation of executors."""

    name: str
    policy: Any
    allocation: str


@dataclass(frozen=True)
class ApplicationsWorld(ClusterWorld):
    """A cluster for several applications, and the jobs that are drawn for it.

    Args:
        cluster: the applications and how executors come and go; `config` is the cluster as one
            application, without dynamic allocation.
        allocations: the words of `--allocation`.
    """

    cluster: ApplicationsCluster = field(kw_only=True)
    allocations: tuple[str, ...] = field(kw_only=True)

    def resolve(
        self, policies: Sequence[str | AnyPolicy], say: Say | None = None
    ) -> ResolvedPolicies:
        """Every policy under every allocation."""
        resolved = super().resolve(policies, say)
        if resolved.oracles:
            raise ConfigError("the best parameters in hindsight are those of one application")
        names = self.cluster.names
        rows = {}
        for allocation, (name, row) in product(self.allocations, resolved.rows.items()):
            both = f"{allocation}/{name}"
            allocated: Any = Allocated(both, row.policy, allocation)
            variant = f"{row.variant}; {WORDS[allocation]}"
            rows[both] = replace(row, policy=allocated, variant=variant)
        owners = tuple(names[owner] for owner in self.cluster.owner)
        return replace(resolved, rows=rows, tenant_pools=owners, also=())

    @property
    def has_recorded(self) -> bool:
        """A log's applications had other executors."""
        return False

    def run(self, sequence: JobSequence, policy: Any, seed: int, record: bool = False) -> Trace:
        """Simulate one run of a contender."""
        if policy.allocation == SHARED:
            trace = simulate(sequence, policy.policy, self.config, seed)
            held_ms = self.config.num_executors * trace.clock_ms
            none = FaultCounts(0, 0, 0, 0, 0, 0, 0)
            return replace(trace, policy=policy.name, held_ms=held_ms, started=0, faults=none)
        allocation = allocation_named(policy.allocation, self.cluster.elastic)
        trace, _ = play_applications(sequence, policy.policy, self.cluster, allocation, seed)
        return replace(trace, policy=policy.name)

    def settings(self, resolved: ResolvedPolicies) -> dict[str, Any]:
        """As of a cluster, with the applications and how their executors start."""
        return {
            **super().settings(resolved),
            "applications": list(self.cluster.names),
            "allocations": list(self.allocations),
            "elastic": self.cluster.elastic.model_dump(mode="json"),
            "start_sigma": self.cluster.start_sigma,
        }

    def title(self, comparison: Comparison) -> str:
        """Also how many applications there are."""
        return f"{super().title(comparison)}, {counted(len(self.cluster.names), 'application')}"

    def columns(self, comparison: Comparison) -> list[Column]:
        """Also what executors cost."""
        return [
            *super().columns(comparison),
            Column("held", "cores_held", "{:,.1f}".format, "cores"),
            Column("started", "executors_started", "{:,.1f}".format, "executors"),
            Column("killed", "interrupted_attempts", "{:,.1f}".format, "tasks"),
        ]

    def notes(self, comparison: Comparison) -> list[str]:
        """Also what the words mean."""
        meant = "; ".join(f"{word}: {WORDS[word]}" for word in self.allocations)
        return [
            *super().notes(comparison),
            f"{meant}. Pools are applications. Held: cores up or starting, on average; started: "
            "executors; killed: attempts of tasks that ended with their executor. On one seed "
            "allocations share jobs and arrivals, not the draws of durations",
        ]

    def sections(self, comparison: Comparison) -> list[Section]:
        """Averages, applications and recurring jobs."""
        return averages_and_groups(comparison)
