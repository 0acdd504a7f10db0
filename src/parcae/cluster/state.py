"""The tables of a cluster's present state: everything that a scheduler may know.

Every table is a structured array whose fields read like columns
(`state.stages.num_started[stage]`), so that the fields of one row are adjacent in memory. `job`,
`stage` and `executor` are row numbers. The future (durations that are not drawn yet, arrivals to
come) is not part of the state: it belongs to `parcae.simulation`.

Source: Decima, sections 3 and 6.2; the public simulator's semantics where the paper leaves details
open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.tables import allocate_tables, integers, records
from parcae.base.errors import ConfigError

NO_JOB = -1
NO_STAGE = -1
NO_EXECUTOR = -1
NO_RECORD = -1
NO_PROFILE = -1  # a job that is in no workload profile
ANY_CLASS = -1
NOT_YET = -1  # the time of an event that has not happened
COMPLETE_RANK = -2  # the `frontier_rank` of a stage that is complete
#: The limit that stands for "no limit".
UNLIMITED = np.iinfo(np.int64).max
#: Most pools that an order may define.
MAX_POOLS = 1_024


class World(IntEnum):
    """How the cluster assigns executors to jobs."""

    EXECUTORS = 0  # an executor stays with its stage; moving to another job takes time (Decima)
    CORES = 1  # a core is free after every task and can go to any job (one Spark application)


class CommandKind(IntEnum):
    """What the cluster has to do after a transition."""

    START_TASK = 0
    MOVE_EXECUTOR = 1


JOB = np.dtype(
    [
        ("stage_start", "i8"),  # first row of its stages
        ("num_stages", "i8"),
        ("profile", "i8"),  # recurring job in the workload profile; NO_PROFILE if unknown
        ("arrival_ms", "i8"),
        ("completion_ms", "i8"),  # NOT_YET until completed
        ("num_attached", "i8"),  # executors at the job: they run its tasks or idle in its pool
        ("num_supplied", "i8"),  # attached + moving to it + committed to it by sources outside it
        ("num_granted", "i8"),  # executors that decisions ever committed to it from elsewhere
        ("num_unsaturated", "i8"),  # its stages with demand > 0
        ("num_schedulable", "i8"),  # its unsaturated stages whose parents are all saturated
        ("num_unstarted", "i8"),  # its stages that still have tasks to start
        ("num_done", "i8"),  # its stages whose tasks have all finished
        ("num_commitments", "i8"),  # executors that are committed to its stages
        ("num_joined", "i8"),  # stages that became runnable so far
        ("num_moves", "i8"),  # executors that moved here from elsewhere so far
        ("work_ms", "f8"),  # sum over its stages of tasks x estimated mean duration
        ("remaining_ms", "f8"),  # the same for the tasks that have not started
        # World of cores with pools: of two jobs of a pool, that of higher priority is served first.
        ("priority", "i8"),
        ("core_ms", "i8"),  # elastic clusters: the integral over time of the cores at its arrival
        # World of cores: it ends some time after its last stage, when the driver has the result.
        ("has_tail", "i8"),
        ("account", "i8"),  # World of cores, where accounts are kept: the row of its user's account
    ],
    align=True,
)

STAGE = np.dtype(
    [
        ("num_tasks", "i8"),
        ("num_started", "i8"),
        ("num_finished", "i8"),
        ("num_committed", "i8"),
        ("num_moving", "i8"),
        ("job", "i8"),
        ("is_saturated", "i8"),
        ("num_bound", "i8"),  # executors whose current or last task is of this stage
        # Order in which stages became runnable; negative while not runnable. COMPLETE_RANK: the
        # world of cores knows that the stage is complete.
        ("frontier_rank", "i8"),
        # World of cores: its `frontier_rank` whenever it is runnable; -1 before it was runnable. A
        # stage whose tasks run again keeps its place, as a task set of Spark does.
        ("first_rank", "i8"),
        # World of cores: its number among all stages, which is in the name of its task set. Spark
        # numbers stages as their Spark jobs are submitted.
        ("serial", "i8"),
        ("num_parents_unsaturated", "i8"),
        ("num_parents_unfinished", "i8"),
        ("child_start", "i8"),
        ("num_children", "i8"),
        ("selected_round", "i8"),  # the round in which a decision last chose it
        ("executed_ms", "i8"),  # executor time of its finished tasks
        ("hold_from_ms", "i8"),  # start of its idle slot; NOT_YET if it never had one
        ("hold_until_ms", "i8"),  # end of its idle slot, in the past or in the future
        ("fits", "i8"),  # bit c is set if executor class c is large enough for its tasks
        ("task_ms", "f8"),  # estimated mean duration of a task; 0 if unknown
        ("downstream_ms", "f8"),  # work on the heaviest path from this stage (included) to a leaf
        ("cpu", "f8"),
        ("memory", "f8"),
    ],
    align=True,
)

EXECUTOR = np.dtype(
    [
        ("job", "i8"),  # the job that it is attached to; NO_JOB if none
        ("stage", "i8"),  # the stage of its current or last task; NO_STAGE while idle or moving
        ("destination", "i8"),  # the stage that it moves to; NO_STAGE while it does not move
        ("started_ms", "i8"),  # when its current task, or its present move, started
        ("next_idle", "i8"),  # the next executor in its pool, which is a linked list
        ("executor_class", "i8"),
    ],
    align=True,
)

# A source is a set of executors that a round offers to the policy: the pool of a job's idle
# executors, the global pool (executors of no job), or the executors bound to a stage. Rows:
# (job + 1) * num_classes + class for pools, with job = NO_JOB for the global pool; after them
# (num_jobs + 1 + stage) * num_classes + class for stages. Idle executors and commitments of a
# source are linked lists.
SOURCE = np.dtype(
    [
        ("idle_head", "i8"),
        ("idle_tail", "i8"),
        ("num_idle", "i8"),
        ("commitment_head", "i8"),
        ("commitment_tail", "i8"),
        ("num_committed", "i8"),
    ],
    align=True,
)

COMMITMENT = np.dtype(
    [("source", "i8"), ("source_job", "i8"), ("stage", "i8"), ("count", "i8"), ("next", "i8")],
    align=True,
)
# `parallelism`: executors attached to the job when the command was written.
# `wave`: which wave of the stage the executor is in (fresh, first or rest).
COMMAND = np.dtype(
    [
        ("kind", "i8"),
        ("executor", "i8"),
        ("stage", "i8"),
        ("task", "i8"),
        ("wave", "i8"),
        ("parallelism", "i8"),
    ],
    align=True,
)
HOLD = np.dtype([("stage", "i8"), ("end_ms", "i8")], align=True)  # the running idle slots
EXECUTOR_CLASS = np.dtype(
    [
        ("cpu", "f8"),
        ("memory", "f8"),
        ("num_executors", "i8"),
        # Schedulable stages that the class is large enough for; kept only with several classes.
        ("num_schedulable", "i8"),
    ],
    align=True,
)

NOW = np.dtype(
    [
        ("clock_ms", "i8"),
        ("num_executors", "i8"),
        ("num_jobs", "i8"),  # jobs that arrived so far: rows 0..num_jobs-1 are in use
        ("num_stages", "i8"),
        ("num_edges", "i8"),
        ("num_active", "i8"),  # jobs in the system
        ("num_open", "i8"),  # jobs in the system that have an unsaturated stage
        ("num_schedulable", "i8"),
        ("source_job", "i8"),  # the job whose executors are offered; NO_JOB for the global pool
        ("source", "i8"),  # row of the source (class 0)
        # The executor that just finished a task; NO_EXECUTOR if a whole pool is offered.
        ("acting_executor", "i8"),
        ("num_source", "i8"),  # offered executors that this round still has to commit
        ("num_idle", "i8"),  # executors in pools
        # Executors that work but are committed to idle: no round offers them when they finish.
        ("num_idle_to_be", "i8"),
        ("round_id", "i8"),
        ("num_decisions", "i8"),
        ("num_commands", "i8"),
        ("free_commitment", "i8"),
        ("num_commitment_rows", "i8"),
        ("num_holds", "i8"),  # running idle slots
        # While all pools are offered one after another: position in `active` of the job whose pool
        # comes next (num_active: the global pool); -1 if no such sequence is in progress.
        ("next_offer", "i8"),
        # Several classes only: something changed since the global pool was last offered, so its
        # idle executors may get work when they are offered again.
        ("is_reoffer_due", "i8"),
        # Integral over time of the number of jobs in the system, up to `accounted_ms`.
        ("job_ms", "i8"),
        ("accounted_ms", "i8"),
        ("world", "i8"),  # World
        # The following fields are used in the world of cores only.
        ("is_plan_due", "i8"),  # the policy has to plan before the next task starts
        ("wake_ms", "i8"),  # time at which the policy wants to plan again; NOT_YET for none
        ("num_revealed", "i8"),  # stages that became runnable so far
        ("num_pools", "i8"),  # pools of the order in force, >= 1
        ("has_limits", "i8"),  # the order in force limits at least one job or stage
        ("num_planned", "i8"),  # stages that decisions of this planning round have named
        ("is_corrected", "i8"),  # estimates are scaled by the durations of finished tasks
        ("least_share", "f8"),  # lower bound of a job's remaining work, relative to work done
        ("guess_ms", "f8"),  # typical duration of a task: geometric mean over the workload's jobs
        ("keeps_accounts", "i8"),  # accounts follow the clock (`parcae.cluster.kernels.accounts`)
        ("num_accounts", "i8"),  # rows of accounts in use; some of them may be closed
        # What orders count of an overdraft, 0: nothing; and the least share of remaining work.
        ("account_factor", "f8"),
        ("account_floor", "f8"),
        # How the policy's tiers state remaining work: 0 as it is; above 0 as its logarithm, in this
        # unit; below 0 as -1 / work.
        ("tier_unit_ms", "f8"),
        ("is_elastic", "i8"),  # `num_executors` changes during the run
        # Elastic clusters: integral over time of `num_executors`, up to `core_until_ms`.
        ("core_ms", "i8"),
        ("core_until_ms", "i8"),
    ],
    align=True,
)

#: The order of a job. Jobs are served by (tier, running tasks / weight, row), smallest first.
JOB_ORDER = np.dtype(
    [
        ("tier", "f8"),
        ("weight", "f8"),  # jobs of one tier share by running tasks / weight; 0: first come
        ("limit", "i8"),  # most running tasks
        ("pool", "i8"),  # row of its pool
    ],
    align=True,
)
#: The order of a stage. Its tier is added to its job's tier; within a job and tier, stages are
#: served by (rank, row).
STAGE_ORDER = np.dtype([("tier", "f8"), ("rank", "f8"), ("limit", "i8")], align=True)
#: A pool of Spark's fair scheduler; `name_rank` is its position when the pools are sorted by name.
POOL = np.dtype(
    [
        ("weight", "f8"),
        ("min_share", "i8"),
        ("is_fair", "i8"),  # mode FAIR: its task sets share; otherwise jobs go by tier and row
        ("name_rank", "i8"),
        ("num_running", "i8"),
        ("is_served", "i8"),  # whether the current offer round has served it
    ],
    align=True,
)
#: What a user has received of the cores, and what an equal split would have given (S and A).
ACCOUNT = np.dtype(
    [
        ("user", "i8"),  # number of the user
        ("is_open", "i8"),
        ("weight", "f8"),  # shares of the cores that the user is entitled to
        ("received_ms", "f8"),
        ("split_ms", "f8"),
        ("num_jobs", "i8"),
        ("num_running", "i8"),
        ("num_waiting", "i8"),  # tasks that could start, given a core
        ("asked", "f8"),  # cores that the split may give at most
        ("rate", "f8"),  # cores that the split gives
    ],
    align=True,
)
#: The dispatcher's row for a job: the stage that is served next, and the key of the comparison.
CONTENDER = np.dtype(
    [
        ("front", "i8"),  # the stage that is served next; NO_STAGE if no task can start
        ("tier", "f8"),
        ("share", "f8"),
        ("next_served", "i8"),  # linked list of the jobs that the current offer round served
    ],
    align=True,
)
# The virtual run: what Spark's FAIR with one pool per job would have done, given the estimates.
VIRTUAL_NOW = np.dtype(
    [
        ("clock_ms", "f8"),  # time that the virtual run has reached
        ("num_members", "i8"),  # jobs that are in its system
        ("num_jobs", "i8"),  # jobs that arrived in it: rows 0..num_jobs-1
        ("num_cores", "f8"),
        ("core_ms", "i8"),  # elastic clusters: the state's integral at `clock_ms`
    ],
    align=True,
)
VIRTUAL_JOB = np.dtype(
    [
        # `member` and `by_left` are lists that share the table: their index is not a job's row.
        ("member", "i8"),  # row i holds the i-th job in the virtual run's system
        ("by_left", "i8"),  # the same jobs, sorted by remaining work
        ("num_left", "i8"),  # stages that have not ended in the virtual run
        ("is_exact", "i8"),  # the job is complete in the real run, so its work is known exactly
        ("total_ms", "f8"),  # estimated core time of all its tasks
        ("left_ms", "f8"),  # core time that it still needs in the virtual run
        ("path_ms", "f8"),  # its remaining critical path in the virtual run
        ("wanted", "f8"),  # cores that it could use in the virtual run
        ("rate", "f8"),  # cores that it has in the virtual run
        ("has_ended", "i8"),  # in the virtual run
        # When it ended in the virtual run; if it still runs there, the predicted end without
        # further arrivals.
        ("end_ms", "f8"),
    ],
    align=True,
)
VIRTUAL_STAGE = np.dtype(
    [
        ("need_ms", "f8"),  # estimated core time of all its tasks
        ("attained_ms", "f8"),  # core time that it has got in the virtual run
        ("path_ms", "f8"),  # estimated critical path from this stage to a leaf, one task per stage
        ("rate", "f8"),  # cores that it has in the virtual run
        ("num_waiting", "i8"),  # parents that have not ended in the virtual run
        ("is_ended", "i8"),  # in the virtual run
    ],
    align=True,
)

STAGE_SPEC = np.dtype(
    [
        ("num_tasks", "i8"),
        ("num_parents", "i8"),
        ("child_start", "i8"),
        ("num_children", "i8"),
        ("task_ms", "f8"),
        ("downstream_ms", "f8"),
        ("cpu", "f8"),
        ("memory", "f8"),
    ],
    align=True,
)


class ClusterState(NamedTuple):
    """The tables of one cluster (or, with one more leading axis, of many)."""

    now: Any = records(NOW, 1)
    jobs: Any = records(JOB, "jobs")
    stages: Any = records(STAGE, "stages")
    executors: Any = records(EXECUTOR, "executors")
    sources: Any = records(SOURCE, "sources")
    commitments: Any = records(COMMITMENT, "commands")
    commands: Any = records(COMMAND, "commands")
    holds: Any = records(HOLD, "stages")
    classes: Any = records(EXECUTOR_CLASS, "classes")
    source_count: Any = integers("classes")  # offered executors of each class not committed yet
    active: Any = integers("jobs")  # rows of the jobs in the system, in order of arrival
    children: Any = integers("edges")  # rows of child stages
    # World of cores only (empty tables otherwise): the order in force, and the dispatcher's tables.
    job_orders: Any = records(JOB_ORDER, "orders")
    stage_orders: Any = records(STAGE_ORDER, "stage_orders")
    pools: Any = records(POOL, "pools")
    contenders: Any = records(CONTENDER, "orders")
    contest: Any = integers("contest")  # a winner tree of job rows: contest[1] is served next
    accounts: Any = records(ACCOUNT, "orders")


class VirtualRun(NamedTuple):
    """The tables of a virtual run of fair sharing (`parcae.cluster.kernels.virtual`)."""

    now: Any = records(VIRTUAL_NOW, 1)
    jobs: Any = records(VIRTUAL_JOB, "jobs")
    stages: Any = records(VIRTUAL_STAGE, "stages")


@dataclass(frozen=True)
class ExecutorClass:
    """A class of `num_executors` identical executors.

    A task fits if its demands are at most `cpu` and `memory`.
    """

    num_executors: int
    cpu: float = 1.0
    memory: float = 1.0

    def __post_init__(self) -> None:
        if self.num_executors < 1 or not self.cpu > 0 or not self.memory >= 0:
            raise ConfigError(
                f"an executor class needs at least one executor, cpu > 0 and memory >= 0, "
                f"not {self}"
            )


def allocate(
    num_clusters: int,
    classes: tuple[ExecutorClass, ...],
    num_jobs: int,
    num_stages: int,
    num_edges: int,
    world: World = World.EXECUTORS,
) -> ClusterState:
    """Allocate empty tables for `num_clusters` clusters, which are the leading axis of every table.

    Args:
        num_clusters: number of clusters.
        classes: the executor classes, the same for all clusters.
        num_jobs: most jobs that ever arrive in one cluster.
        num_stages: most stages over all jobs of one cluster.
        num_edges: most edges (parent, child) over all jobs of one cluster.
        world: how executors are assigned; fixes which tables have rows.

    Raises:
        ConfigError: no executor class, more than 62, or more than one in the world of cores.
    """
    # `fits` is a bit mask in a signed 64-bit integer.
    if not classes or len(classes) > 62:
        raise ConfigError(f"a cluster needs 1 to 62 executor classes, not {len(classes)}")
    if world is World.CORES and len(classes) > 1:
        raise ConfigError(
            "the world of cores has cores of one size; executor classes need --world executors"
        )
    num_classes = len(classes)
    num_executors = sum(c.num_executors for c in classes)
    with_orders = int(world is World.CORES)
    state = allocate_tables(
        ClusterState,
        num_clusters,
        jobs=num_jobs,
        stages=num_stages,
        edges=num_edges,
        executors=num_executors,
        classes=num_classes,
        sources=(num_jobs + 1 + num_stages) * num_classes,
        commands=2 * num_executors + 2,
        orders=with_orders * num_jobs,
        stage_orders=with_orders * num_stages,
        pools=with_orders * MAX_POOLS,
        # The winner tree needs a power of two as number of leaves.
        contest=with_orders * 2 * max(2, 1 << (num_jobs - 1).bit_length()),
    )
    state.now.world[:] = world
    for row, executor_class in enumerate(classes):
        state.classes.cpu[:, row] = executor_class.cpu
        state.classes.memory[:, row] = executor_class.memory
        state.classes.num_executors[:, row] = executor_class.num_executors
    return state


def allocate_virtual(num_jobs: int, num_stages: int) -> VirtualRun:
    """Allocate the tables of a virtual run with the given numbers of jobs and stages."""
    return allocate_tables(VirtualRun, jobs=num_jobs, stages=num_stages)


def select(state: ClusterState, cluster: int) -> ClusterState:
    """Return the tables of one cluster out of many (views, no copies)."""
    return ClusterState(*(table[cluster] for table in state))
