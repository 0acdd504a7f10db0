"""Packing policies that withhold jobs only as long as this does no harm."""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import row_of
from parcae.base.errors import ConfigError
from parcae.rigid.layout import SPEC, Clusters, Packing, View, allocate, allocate_view, records
from parcae.rigid.policies.kernels.earned import play_earned
from parcae.rigid.policies.kernels.virtual_runs import NUM_VIRTUAL, Virtual
from parcae.rigid.policies.policy import CompiledPackingPolicy, PackingPolicy


class EarnedPolicy(PackingPolicy):
    """A policy for logs that decides only where it has proved better than backfilling lately.

    Virtual runs under EASY, EASY in order of expansion factors, EASY with the shortest job first
    and the policy go along. Expansion factors decide, unless one of the last two had smaller
    bounded slowdowns and the cluster does nearly as much work as under EASY. Only for clusters with
    exact times.

    Example: `EarnedPolicy(JobSetPolicy("set", weights))`
    """

    wants_profile = True

    def __init__(self, inner: CompiledPackingPolicy) -> None:
        self.inner = inner
        self.name = inner.name

    def play_many(self, clusters: Clusters, views: View, first: int, last: int) -> None:
        """Run clusters from start to end; see `PackingPolicy.play_many`."""
        # The virtual runs have no room for what steps need.
        if not clusters.sequences.rules["is_exact"].all():
            raise ConfigError(
                f"policy {self.name!r}: only with exact times can a policy earn its decisions; in "
                "steps, use the policy itself"
            )
        self.check_view(views)
        tables = self.inner.tables(views)
        virtual = allocate_virtual(clusters.states, views)
        play_earned(clusters, views, tables, virtual, first, last)


def allocate_virtual(states: Packing, views: View) -> Virtual:
    """Allocate virtual runs for clusters that are played one after another."""
    num_jobs = states.jobs.shape[1]
    num_slots = states.slots.shape[1]
    num_resources = states.capacity.shape[1]
    num_points = views.points.shape[1]
    view = allocate_view(1, num_slots, num_points, num_resources, wants_profile=True)
    return Virtual(
        states=allocate(NUM_VIRTUAL, num_jobs, num_slots, 0, 1, num_resources),
        specs=records((num_jobs,), SPEC),
        seen=row_of(view, 0),
        weight=np.zeros(num_jobs),
        has_ended=np.zeros(num_jobs, np.int64),
        waits=np.zeros((NUM_VIRTUAL, 3)),
        error=np.zeros(num_jobs),
        num_ended=np.zeros(1, np.int64),
        error_sum=np.zeros(1),
        sums=np.zeros((2, 2)),
        work=np.zeros((2, NUM_VIRTUAL)),
        is_settled=np.zeros(NUM_VIRTUAL, np.int64),
    )
