"""Many packing clusters side by side, each run whole in compiled calls spread over threads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import WorkloadError
from parcae.packing.config import PackingConfig, TimeMode
from parcae.packing.kernels.stepping import begin_many, mask_many, show_many, step_many
from parcae.packing.layout import (
    RULES,
    SPEC,
    Asked,
    Cost,
    Packing,
    View,
    allocate,
    allocate_view,
    records,
    select,
)
from parcae.workloads.rigid import RigidJobs

#: play_many(states, asked, sequence, views, first, last): runs clusters first..last-1 from start to end.
PlayMany = Callable[[Packing, Asked, npt.NDArray[np.int64], View, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a sequence.

    Args:
        jobs: what was asked.
        start, finish: int64[num_jobs], -1 where a job never started.
        is_dropped: bool[num_jobs], lost because slots and backlog were full.
        costs: float64[len(Cost)], accrued until the end.
        num_decisions: decisions that let time pass included.
        end: time of the end.
    """

    jobs: RigidJobs
    start: npt.NDArray[np.int64]
    finish: npt.NDArray[np.int64]
    is_dropped: npt.NDArray[np.bool_]
    costs: npt.NDArray[np.float64]
    num_decisions: int
    end: int


def asked_of(sequences: Sequence[RigidJobs], config: PackingConfig) -> Asked:
    """The sequences as tables with a leading axis.

    Raises:
        WorkloadError: none at all, different clusters, or a job longer than the horizon.
    """
    if not sequences or any((s.capacity.shape != sequences[0].capacity.shape) for s in sequences):
        raise WorkloadError("give one sequence or more, all with the same resources")
    num_jobs = max(1, max(len(s) for s in sequences))
    specs = records((len(sequences), num_jobs), SPEC)
    demand = np.zeros((len(sequences), num_jobs, len(sequences[0].capacity)), np.int64)
    counts = np.zeros((len(sequences), 1), np.int64)
    rules = records((len(sequences), 1), RULES)
    for row, jobs in enumerate(sequences):
        _check_fits(jobs, config)
        n = len(jobs)
        specs["arrival"][row, :n] = jobs.arrival
        specs["told"][row, :n] = jobs.told
        specs["duration"][row, :n] = jobs.duration
        specs["log_told"][row, :n] = np.log(jobs.told)
        demand[row, :n] = jobs.demand
        counts[row] = n
    for key in ("window", "ends_early", "as_coded", "bound", "max_decisions"):
        rules[key] = getattr(config, key)
    rules["is_exact"] = config.mode is TimeMode.EXACT
    return Asked(specs, demand, counts, rules)


def _check_fits(jobs: RigidJobs, config: PackingConfig) -> None:
    if config.mode is TimeMode.EXACT:
        return
    longest = config.horizon - config.as_coded
    if len(jobs) and int(jobs.duration.max()) > longest:
        row = int(jobs.duration.argmax())
        raise WorkloadError(
            f"{jobs.name}: job {jobs.ids[row]} lasts {jobs.duration[row]} steps, longer than the horizon allows ({longest}); "
            f"give a longer horizon, or run it with exact times"
        )
    if (jobs.told != jobs.duration).any():
        raise WorkloadError(
            f"{jobs.name}: durations that differ from what is told need exact times (mode 'exact')"
        )


class PackingBatch:
    """Clusters that run sequences: cluster e runs sequence `sequence[e]`.

    Args:
        sequences: of rigid jobs, with the same resources; capacities may differ.
        config: how all of them run.
        repeats: clusters a sequence (neighbours).
        wants_profile: the view shows what becomes free when.
        seed: of the runs' own random numbers, for policies that draw; each cluster gets its own.

    Raises:
        WorkloadError: sequences that do not fit the config.
    """

    def __init__(
        self,
        sequences: Sequence[RigidJobs],
        config: PackingConfig,
        *,
        repeats: int = 1,
        wants_profile: bool = False,
        seed: int = 0,
    ) -> None:
        self.sequences = tuple(sequences)
        self.config = config
        self.asked = asked_of(sequences, config)
        self.sequence = np.repeat(np.arange(len(sequences), dtype=np.int64), repeats)
        num_jobs = self.asked.specs.shape[1]
        num_resources = self.asked.demand.shape[2]
        is_exact = config.mode is TimeMode.EXACT
        slots, horizon = (num_jobs, 1) if is_exact else (config.num_slots, config.horizon)
        points = num_jobs + 1 if is_exact else horizon + 1
        count = len(self.sequence)
        self.states = allocate(
            count, num_jobs, slots, 0 if is_exact else config.backlog_size, horizon, num_resources
        )
        self.views = allocate_view(
            count, slots, points if wants_profile else 1, num_resources, wants_profile
        )
        self.states.luck[:, 0] = np.random.SeedSequence([0x7061_636B, seed]).generate_state(
            count, np.uint64
        )
        self.states.capacity[:] = np.stack([s.capacity for s in sequences])[self.sequence]

    def __len__(self) -> int:
        return len(self.sequence)

    def run(self, play_many: PlayMany, num_threads: int | None = None) -> None:
        """Run every cluster from start to end, spread over threads (kernels release the interpreter's lock)."""
        spread(
            lambda a, b: play_many(self.states, self.asked, self.sequence, self.views, a, b),
            len(self),
            num_threads,
        )

    def begin(self) -> None:
        """Every cluster is empty, at its start."""
        begin_many(self.states, self.asked, self.sequence, 0, len(self))

    def show(self) -> View:
        """What a policy sees of every cluster now; overwritten by the next call."""
        show_many(self.states, self.asked, self.sequence, self.views, 0, len(self))
        return self.views

    def step(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """One decision in every cluster that is not over: a slot, or VOID (as what cannot be placed) to let time pass.

        Returns int64[num_clusters], 1 where a job was placed.
        """
        is_placed = np.zeros(len(self), np.int64)
        step_many(
            self.states,
            self.asked,
            self.sequence,
            np.ascontiguousarray(slots, np.int64),
            is_placed,
            0,
            len(self),
        )
        return is_placed

    def masks(self) -> npt.NDArray[np.int8]:
        """int8[num_clusters, num_slots + 1]: 1 where a decision does something; the last is VOID."""
        masks = np.zeros((len(self), self.states.slots.shape[1] + 1), np.int8)
        mask_many(self.states, self.asked, self.sequence, masks, 0, len(self))
        return masks

    @property
    def is_over(self) -> npt.NDArray[np.bool_]:
        """bool[num_clusters]"""
        over: npt.NDArray[np.bool_] = self.states.clock["is_over"][:, 0] == 1
        return over

    def state(self, row: int) -> Packing:
        """One cluster's tables (views)."""
        state: Packing = select(self.states, row)
        return state

    def costs(self, cost: Cost = Cost.SLOWDOWN) -> npt.NDArray[np.float64]:
        """float64[num_clusters], accrued."""
        return np.array(self.states.costs[:, cost])

    def outcome(self, row: int) -> Outcome:
        """What became of one cluster's sequence."""
        jobs = self.sequences[self.sequence[row]]
        state = self.state(row)
        n = len(jobs)
        table = state.jobs[:n]
        return Outcome(
            jobs,
            np.array(table["start"]),
            np.array(table["finish"]),
            np.array(table["is_dropped"] == 1),
            np.array(state.costs),
            int(state.clock["num_decisions"][0]),
            int(state.clock["now"][0]),
        )

    def outcomes(self) -> list[Outcome]:
        """What became of all."""
        return [self.outcome(row) for row in range(len(self))]


def spread(run: Callable[[int, int], Any], count: int, num_threads: int | None = None) -> None:
    """Call run(first, last) on slices of 0..count-1 in threads; with one thread, in this one."""
    threads = max(1, min(num_threads or os.cpu_count() or 1, count))
    if threads == 1:
        run(0, count)
        return
    bounds = np.linspace(0, count, threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        for job in [pool.submit(run, int(a), int(b)) for a, b in itertools.pairwise(bounds)]:
            job.result()
