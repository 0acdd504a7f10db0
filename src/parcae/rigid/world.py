"""Batches of packing clusters; compiled calls run each cluster, spread over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import BoolArray, Float64Array, Int64Array
from parcae.base.compiled.tables import allocate_tables
from parcae.base.errors import ConfigError, WorkloadError
from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.kernels.stepping import begin_many, show_many, step_many
from parcae.rigid.layout import (
    Clusters,
    Cost,
    Packing,
    SequenceTables,
    View,
    allocate_view,
    select,
)
from parcae.simulation.simulator import spread

#: play_many(clusters, views, first, last) runs clusters first..last-1 from start to end.
PlayMany = Callable[[Clusters, View, int, int], None]


@dataclass(frozen=True)
class RigidOutcome:
    """The result of one run of a job sequence.

    Args:
        jobs: the sequence.
        start: int64[num_jobs], -1 where a job never started.
        finish: int64[num_jobs], -1 where a job never started.
        is_dropped: bool[num_jobs], whether the job was dropped because slots and backlog were full.
        costs: float64[len(Cost)], accrued until the end.
        num_decisions: number of decisions, including those that let time pass.
        end: time of the end.
    """

    jobs: RigidJobs
    start: Int64Array
    finish: Int64Array
    is_dropped: BoolArray
    costs: Float64Array
    num_decisions: int
    end: int


def recorded_outcome(jobs: RigidJobs) -> RigidOutcome:
    """Return the run that a log recorded; nothing of it is simulated."""
    start = jobs.arrival + jobs.waits
    finish = start + jobs.duration
    none = np.zeros(len(Cost)), 0
    return RigidOutcome(
        jobs, start, finish, np.zeros(len(jobs), np.bool_), *none, int(finish.max())
    )


def make_sequence_tables(
    sequences: Sequence[RigidJobs], config: PackingConfig, num_jobs: int = 1
) -> SequenceTables:
    """Return job sequences as tables with a leading axis, with room for this many jobs or more."""
    if not sequences or any((s.capacity.shape != sequences[0].capacity.shape) for s in sequences):
        raise WorkloadError(
            "a batch needs at least one job sequence, and all must have the same number of "
            "resources"
        )
    num_jobs = max(num_jobs, max(len(s) for s in sequences))
    num_resources = len(sequences[0].capacity)
    tables = allocate_tables(SequenceTables, len(sequences), jobs=num_jobs, resources=num_resources)
    specs, demand, counts, rules = tables
    for row, jobs in enumerate(sequences):
        _check_fits(jobs, config)
        n = len(jobs)
        specs["arrival"][row, :n] = jobs.arrival
        specs["estimate"][row, :n] = jobs.estimate
        specs["duration"][row, :n] = jobs.duration
        specs["log_estimate"][row, :n] = np.log(jobs.estimate)
        demand[row, :n] = jobs.demand
        counts[row] = n
    for key in ("window", "ends_early", "as_coded", "bound"):
        rules[key] = getattr(config, key)
    rules["max_decisions"][:, 0] = [config.most_decisions(jobs) for jobs in sequences]
    rules["makespan_weight"][:, 0] = [len(jobs) / shortest_makespan(jobs) for jobs in sequences]
    rules["is_exact"] = config.mode is TimeMode.EXACT
    return tables


def shortest_makespan(jobs: RigidJobs) -> float:
    """Return a makespan that no schedule can be below: by arrivals and by work; at least 1."""
    if len(jobs) == 0:
        return 1.0
    ends = jobs.arrival - jobs.arrival[0] + jobs.duration
    work = work_of(jobs.demand, jobs.duration) / jobs.capacity
    return max(1.0, float(ends.max()), float(work.max()))


def work_of(demand: Int64Array, duration: Int64Array) -> Float64Array:
    """Return the work of jobs together: float64[num_resources], units x time.

    In KB of memory x seconds it may exceed the largest int64.
    """
    return np.asarray((demand * duration[:, None].astype(np.float64)).sum(axis=0))


def _check_fits(jobs: RigidJobs, config: PackingConfig) -> None:
    """Check that a sequence fits the config; time steps limit the durations."""
    if config.mode is TimeMode.EXACT:
        return
    longest = config.horizon - config.as_coded
    if len(jobs) and int(jobs.duration.max()) > longest:
        row = int(jobs.duration.argmax())
        raise WorkloadError(
            f"{jobs.name}: job {jobs.ids[row]} lasts {jobs.duration[row]} steps, longer than the "
            f"horizon allows ({longest}); give a longer horizon, or run it with exact times"
        )
    if (jobs.estimate != jobs.duration).any():
        raise WorkloadError(
            f"{jobs.name}: the estimated durations differ from the real ones, which works only "
            "with exact times (mode 'exact')"
        )


class PackingBatch:
    """Clusters that run job sequences side by side: cluster e runs sequence sequence_rows[e].

    Args:
        sequences: sequences of rigid jobs with the same resources; capacities may differ.
        config: the settings of all clusters.
        repeats: clusters per sequence, next to each other.
        wants_profile: whether views show when resources become free.
        seed: seed of the random numbers of policies that draw; each cluster gets its own stream.
        num_jobs: the most jobs of a sequence that is put in the place of another.
    """

    def __init__(
        self,
        sequences: Sequence[RigidJobs],
        config: PackingConfig,
        *,
        repeats: int = 1,
        wants_profile: bool = False,
        seed: int = 0,
        num_jobs: int = 1,
    ) -> None:
        self.sequences = list(sequences)
        self.config = config
        self.sequence_tables = make_sequence_tables(sequences, config, num_jobs)
        self.sequence_rows = np.repeat(np.arange(len(sequences), dtype=np.int64), repeats)
        num_jobs = self.sequence_tables.specs.shape[1]
        num_resources = self.sequence_tables.demand.shape[2]
        is_exact = config.mode is TimeMode.EXACT
        slots, backlog, horizon = config.num_slots, config.backlog_size, config.horizon
        if is_exact:
            slots, backlog, horizon = num_jobs, 0, 1
        points = (num_jobs if is_exact else horizon) + 1 if wants_profile else 1
        count = len(self.sequence_rows)
        seen = {"slots": slots, "resources": num_resources}
        self.states = allocate_tables(
            Packing, count, jobs=num_jobs, backlog=backlog, horizon=horizon, **seen
        )
        self.views = allocate_view(count, wants_profile, points=points, **seen)
        self.states.seed[:, 0] = np.random.SeedSequence([0x7061_636B, seed]).generate_state(
            count, np.uint64
        )
        self.states.capacity[:] = np.stack([s.capacity for s in sequences])[self.sequence_rows]

    def __len__(self) -> int:
        return len(self.sequence_rows)

    @property
    def clusters(self) -> Clusters:
        """The clusters and their sequences, as kernels take them."""
        return Clusters(self.states, self.sequence_tables, self.sequence_rows)

    def run(self, play_many: PlayMany, num_threads: int | None = None) -> None:
        """Run every cluster from start to end, spread over threads.

        Compiled policies release the interpreter's lock, so the threads run in parallel.
        """
        clusters = self.clusters
        spread(lambda a, b: play_many(clusters, self.views, a, b), len(self), num_threads)

    def begin(self) -> None:
        """Reset every cluster to empty, at the start of its sequence."""
        begin_many(self.clusters, 0, len(self))

    def put(self, row: int, jobs: RigidJobs) -> None:
        """Let a cluster that has a sequence of its own begin another one."""
        at = self.sequence_rows[row]
        new = make_sequence_tables([jobs], self.config)
        for table, rows in zip(self.sequence_tables, new, strict=True):
            # This sequence may be shorter than the longest.
            table[at, : rows.shape[1]] = rows[0]
        self.sequences[at] = jobs
        begin_many(self.clusters, row, row + 1)

    def show(self) -> View:
        """Return what a policy sees of every cluster now; the next call overwrites it."""
        show_many(self.clusters, self.views, 0, len(self))
        return self.views

    def step(self, slots: Int64Array) -> Int64Array:
        """Take one decision in every cluster that is not over. Returns int64[num_clusters], 1 where
        a job was placed.
        """
        is_placed = np.zeros(len(self), np.int64)
        step_many(self.clusters, slots, is_placed, 0, len(self))
        return is_placed

    @property
    def is_over(self) -> BoolArray:
        """bool[num_clusters], whether each run is over."""
        over: BoolArray = self.states.clock["is_over"][:, 0] == 1
        return over

    def state(self, row: int) -> Packing:
        """Return one cluster's state (views)."""
        state: Packing = select(self.states, row)
        return state

    def costs(self, cost: Cost = Cost.SLOWDOWN) -> Float64Array:
        """Return the cost accrued so far, float64[num_clusters]."""
        return np.array(self.states.costs[:, cost])

    def outcome(self, row: int) -> RigidOutcome:
        """Return the result of one cluster's run."""
        jobs = self.sequences[self.sequence_rows[row]]
        state = self.state(row)
        n = len(jobs)
        table = state.jobs[:n]
        return RigidOutcome(
            jobs,
            np.array(table["start"]),
            np.array(table["finish"]),
            np.array(table["is_dropped"] == 1),
            np.array(state.costs),
            int(state.clock["num_decisions"][0]),
            int(state.clock["now"][0]),
        )

    def outcomes(self) -> list[RigidOutcome]:
        """Return the results of all clusters' runs."""
        return [self.outcome(row) for row in range(len(self))]


def image_shape(config: PackingConfig, capacity: npt.ArrayLike) -> tuple[int, int]:
    """Return the rows and columns of the image of a cluster.

    Example: DeepRM's 10 slots, 2 resources of 10 units and backlog of 60 in 20 steps: (20, 223).
    """
    if config.mode is TimeMode.EXACT:
        raise ConfigError(
            "images need time in steps, not the exact times of logs: use a policy that needs "
            "no image (set)"
        )
    columns = image_columns(capacity, config.horizon, config.num_slots, config.backlog_size)
    return config.horizon, columns


def image_columns(capacity: npt.ArrayLike, horizon: int, slots: int, backlog: int) -> int:
    """Return the columns of such an image: those of the cluster, of every slot, of the backlog."""
    return int(np.sum(capacity)) * (1 + slots) - (-backlog // horizon)
