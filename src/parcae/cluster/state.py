"""What a scheduler may know: the tables of the cluster's present, as arrays of records.

Every table is a structured array whose fields read like columns (`state.stages.num_started[stage]`), so that one stage's
facts lie side by side in memory. `job`, `stage` and `executor` are rows. The future (durations not yet drawn, arrivals to
come) is not here: it belongs to `parcae.simulation`.

Source: Decima, sections 3 and 6.2; the public simulator's semantics where the paper leaves things open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.errors import ConfigError

NO_JOB = -1
NO_STAGE = -1
NO_EXECUTOR = -1
NO_RECORD = -1
NO_PROFILE = -1  # a job that the workload profile does not know
ANY_CLASS = -1
NOT_YET = -1  # a time that has not come
#: A limit that never binds.
UNLIMITED = np.iinfo(np.int64).max
#: Pools that an order may name.
MAX_POOLS = 128


class World(IntEnum):
    """How the cluster gives its executors away."""

    EXECUTORS = 0  # an executor stays with its stage, and moves between jobs (Decima)
    CORES = 1  # every core is free after every task, and goes to any job (one Spark application)


class CommandKind(IntEnum):
    """What the cluster is told to do after a decision."""

    START_TASK = 0
    MOVE_EXECUTOR = 1


JOB = np.dtype(
    [
        ("stage_start", "i8"),  # first row of its stages
        ("num_stages", "i8"),
        (
            "profile",
            "i8",
        ),  # which recurring job of the workload profile it is; NO_PROFILE where that is not known
        ("arrival_ms", "i8"),
        ("completion_ms", "i8"),  # NOT_YET until completed
        ("num_attached", "i8"),  # executors that arrived: running its tasks or idle in its pool
        ("num_supplied", "i8"),  # attached + moving to it + committed to it by sources outside it
        ("num_granted", "i8"),  # ever committed by decisions whose source was not this job
        ("num_unsaturated", "i8"),  # its stages with demand > 0
        ("num_schedulable", "i8"),  # its unsaturated stages whose parents are all saturated
        ("num_unstarted", "i8"),  # its stages that still have tasks to start
        ("num_done", "i8"),  # its stages whose tasks have all finished
        ("num_commitments", "i8"),  # executors that other sources have committed to its stages
        ("num_joined", "i8"),  # stages that ever became runnable
        ("num_moves", "i8"),  # executors that ever arrived from elsewhere
        ("work_ms", "f8"),  # tasks x known mean duration, over its stages
        ("remaining_ms", "f8"),  # the same over the tasks that have not started
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
        (
            "frontier_rank",
            "i8",
        ),  # order in which it became runnable within its job, -1 while it is not
        ("num_parents_unsaturated", "i8"),
        ("num_parents_unfinished", "i8"),
        ("child_start", "i8"),
        ("num_children", "i8"),
        ("selected_round", "i8"),  # the round in which it was last chosen
        ("executed_ms", "i8"),  # executor time of its finished tasks
        ("hold_from_ms", "i8"),  # start of its idle slot; NOT_YET while it never had one
        ("hold_until_ms", "i8"),  # end of it, to come or past
        ("fits", "i8"),  # bit c is set where executor class c is large enough
        ("task_ms", "f8"),  # known mean duration of a task; 0 where unknown
        ("downstream_ms", "f8"),  # work on the heaviest path from here to a leaf, own work included
        ("cpu", "f8"),
        ("memory", "f8"),
    ],
    align=True,
)

EXECUTOR = np.dtype(
    [
        ("job", "i8"),  # the job that it is attached to
        ("stage", "i8"),  # the stage of its current or last task; NO_STAGE while idle or moving
        ("destination", "i8"),  # the stage that it moves to
        ("started_ms", "i8"),  # when its current task started
        ("next_idle", "i8"),  # the executor behind it in its pool
        ("executor_class", "i8"),
    ],
    align=True,
)

# Executors are offered by sources: the pool of idle executors of a job (or of none: the global pool), or the executors
# bound to a stage. Rows: (job + 1) * num_classes + class for pools, then (num_jobs + 1 + stage) * num_classes + class.
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
# `parallelism`: executors attached to the job at the moment of the command.
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
HOLD = np.dtype([("stage", "i8"), ("end_ms", "i8")], align=True)  # the idle slots that run
EXECUTOR_CLASS = np.dtype(
    [
        ("cpu", "f8"),
        ("memory", "f8"),
        ("num_executors", "i8"),
        (
            "num_schedulable",
            "i8",
        ),  # schedulable stages that it is large enough for; kept where there are several classes
    ],
    align=True,
)

NOW = np.dtype(
    [
        ("clock_ms", "i8"),
        ("num_executors", "i8"),
        ("num_jobs", "i8"),  # arrived so far: rows 0..num_jobs-1 are filled
        ("num_stages", "i8"),
        ("num_edges", "i8"),
        ("num_active", "i8"),  # jobs in the system
        ("num_open", "i8"),  # of them, those with an unsaturated stage
        ("num_schedulable", "i8"),
        ("source_job", "i8"),  # the job whose executors are asked about; NO_JOB for the global pool
        ("source", "i8"),  # row of the source (class 0)
        (
            "acting_executor",
            "i8",
        ),  # the one executor free now; NO_EXECUTOR where the source's whole pool is
        ("num_source", "i8"),  # executors that still have to be committed in this round
        ("num_idle", "i8"),  # executors in pools
        (
            "num_idle_to_be",
            "i8",
        ),  # executors that work but are committed to idle: nobody is asked when they finish
        ("round_id", "i8"),
        ("num_decisions", "i8"),
        ("num_commands", "i8"),
        ("free_commitment", "i8"),
        ("num_commitment_rows", "i8"),
        ("num_holds", "i8"),  # idle slots that run
        (
            "next_offer",
            "i8",
        ),  # pools are asked about one after another: position of the next job in `active`; -1: none are
        (
            "has_news",
            "i8",
        ),  # of several classes: idle executors of the global pool may find something that they were not asked about
        (
            "job_ms",
            "i8",
        ),  # integral over time of the number of jobs in the system, up to `accounted_ms`
        ("accounted_ms", "i8"),
        ("world", "i8"),  # World
        # The rest is kept in the world of cores only.
        ("is_plan_due", "i8"),  # the policy is asked for a plan before the next task starts
        ("wake_ms", "i8"),  # when the policy asked to plan again; NOT_YET: it did not
        ("num_revealed", "i8"),  # stages that became runnable so far
        ("num_pools", "i8"),  # pools of the order in force, >= 1
        ("has_limits", "i8"),  # the order in force limits some job or stage
        ("num_planned", "i8"),  # stages that decisions of this planning round have named
        ("is_corrected", "i8"),  # estimates follow what finished tasks took
        ("least_share", "f8"),  # of what a job has done, so much is thought to be left at least
        ("guess_ms", "f8"),  # a typical task's duration: the geometric mean of the workload's jobs
        (
            "guard",
            "f8",
        ),  # nobody is to end later than this many times its end under fair sharing; 0: no guard
    ],
    align=True,
)

#: What an order says of a job. Jobs are served by (tier, running tasks / weight, row), smallest first.
JOB_ORDER = np.dtype(
    [
        ("tier", "f8"),
        ("weight", "f8"),  # jobs of one tier share by running tasks / weight; 0: first come
        ("limit", "i8"),  # running tasks at most
        ("pool", "i8"),  # row of its pool
    ],
    align=True,
)
#: What an order says of a stage. Its tier is added to its job's; within a job and tier, stages go by (rank, row).
STAGE_ORDER = np.dtype([("tier", "f8"), ("rank", "f8"), ("limit", "i8")], align=True)
#: A pool of Spark's fair scheduler; `name_rank` is its place among the pools by name.
POOL = np.dtype(
    [
        ("weight", "f8"),
        ("min_share", "i8"),
        ("is_fair", "i8"),  # its task sets share; else jobs go by tier and row
        ("name_rank", "i8"),
        ("num_running", "i8"),
        ("is_served", "i8"),  # in this offer round
    ],
    align=True,
)
#: What the dispatcher keeps of a job: the stage that it would start next, and the key that it is compared by.
CONTENDER = np.dtype(
    [
        ("front", "i8"),  # NO_STAGE where the job can start nothing
        ("tier", "f8"),
        ("share", "f8"),
        ("next_served", "i8"),  # list of the jobs that this offer round served
    ],
    align=True,
)
# The virtual run of fair sharing beside the real one: what Spark's FAIR, a pool a job, would have done with the estimates.
VIRTUAL_NOW = np.dtype(
    [
        ("clock_ms", "f8"),  # up to when it was carried on
        ("num_members", "i8"),  # jobs that run in it
        ("num_jobs", "i8"),  # jobs that it has seen arrive: rows 0..num_jobs-1
    ],
    align=True,
)
VIRTUAL_JOB = np.dtype(
    [
        ("member", "i8"),  # a list: row i is the i-th job that runs in it
        ("by_left", "i8"),  # a list: the same jobs by work left
        ("num_left", "i8"),  # stages that have not ended in it
        ("is_exact", "i8"),  # the job is complete in reality: its needs are known
        ("total_ms", "f8"),  # core time of all its tasks, as far as is known
        ("left_ms", "f8"),  # core time that it still needs there
        ("path_ms", "f8"),  # its remaining critical path there
        ("wanted", "f8"),  # cores that it could use there
        ("rate", "f8"),  # cores that it has there
        ("has_ended", "i8"),  # there
        # When it ended there; while it runs there, when it would if nobody arrived any more.
        ("end_ms", "f8"),
        # The guard's own.
        ("alone_ms", "f8"),  # how long the job still takes with all cores to itself
        ("deadline_ms", "f8"),  # when it must end
        ("urgency", "i8"),  # 1: to be served before all others, 2: next; 0: not urgent
    ],
    align=True,
)
VIRTUAL_STAGE = np.dtype(
    [
        ("need_ms", "f8"),  # core time of all its tasks, as far as is known
        ("attained_ms", "f8"),  # core time that it was given
        ("path_ms", "f8"),  # foretold: the longest chain of tasks, one a stage, from here to a leaf
        ("rate", "f8"),
        ("num_waiting", "i8"),  # parents that have not ended there
        ("is_ended", "i8"),
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

    now: Any  # NOW[1]
    jobs: Any  # JOB[num_jobs]
    stages: Any  # STAGE[num_stages]
    executors: Any  # EXECUTOR[num_executors]
    sources: Any  # SOURCE[(num_jobs + 1 + num_stages) * num_classes]
    commitments: Any  # COMMITMENT[2 * num_executors + 2]
    commands: Any  # COMMAND[2 * num_executors + 2]
    holds: Any  # HOLD[num_stages]
    classes: Any  # EXECUTOR_CLASS[num_classes]
    source_count: (
        Any  # int64[num_classes], executors of each class still to be committed in this round
    )
    active: Any  # int64[num_jobs], rows of the jobs in the system, in order of arrival
    children: Any  # int64[num_edges], rows of child stages
    # World of cores only (empty tables otherwise): the order in force, and what the dispatcher keeps.
    job_orders: Any  # JOB_ORDER[num_jobs]
    stage_orders: Any  # STAGE_ORDER[num_stages]
    pools: Any  # POOL[MAX_POOLS]
    contenders: Any  # CONTENDER[num_jobs]
    contest: Any  # int64[2 * num_leaves], a winner tree of job rows: contest[1] is served next
    # The guard's virtual run of fair sharing.
    virtual_now: Any  # VIRTUAL_NOW[1]
    virtual_jobs: Any  # VIRTUAL_JOB[num_jobs]
    virtual_stages: Any  # VIRTUAL_STAGE[num_stages]


class VirtualRun(NamedTuple):
    """The tables of a virtual run of fair sharing (`parcae.cluster.kernels.virtual`)."""

    now: Any  # VIRTUAL_NOW[1]
    jobs: Any  # VIRTUAL_JOB[num_jobs]
    stages: Any  # VIRTUAL_STAGE[num_stages]


@dataclass(frozen=True)
class ExecutorClass:
    """`num_executors` alike executors; a task fits where its demands are at most `cpu` and `memory`."""

    num_executors: int
    cpu: float = 1.0
    memory: float = 1.0

    def __post_init__(self) -> None:
        if self.num_executors < 1 or not self.cpu > 0 or not self.memory >= 0:
            raise ConfigError(
                f"an executor class needs at least one executor, cpu > 0 and memory >= 0, not {self}"
            )


def _table(dtype: np.dtype[Any], *shape: int) -> Any:
    return np.zeros(shape, dtype).view(np.recarray)


def allocate(
    num_clusters: int,
    classes: tuple[ExecutorClass, ...],
    num_jobs: int,
    num_stages: int,
    num_edges: int,
    world: World = World.EXECUTORS,
) -> ClusterState:
    """Empty tables for `num_clusters` clusters (the leading axis), each with room for so many jobs, stages and edges.

    Raises:
        ConfigError: no executor class, more than 62, or more than one in the world of cores.
    """
    if not classes or len(classes) > 62:
        raise ConfigError(f"a cluster needs 1 to 62 executor classes, not {len(classes)}")
    if world is World.CORES and len(classes) > 1:
        raise ConfigError(
            "the world of cores has cores of one size; executor classes need --world executors"
        )
    num_classes = len(classes)
    num_executors = sum(c.num_executors for c in classes)
    with_orders = int(world is World.CORES)
    num_leaves = max(2, 1 << (num_jobs - 1).bit_length())
    state = ClusterState(
        now=_table(NOW, num_clusters, 1),
        jobs=_table(JOB, num_clusters, num_jobs),
        stages=_table(STAGE, num_clusters, num_stages),
        executors=_table(EXECUTOR, num_clusters, num_executors),
        sources=_table(SOURCE, num_clusters, (num_jobs + 1 + num_stages) * num_classes),
        commitments=_table(COMMITMENT, num_clusters, 2 * num_executors + 2),
        commands=_table(COMMAND, num_clusters, 2 * num_executors + 2),
        holds=_table(HOLD, num_clusters, num_stages),
        classes=_table(EXECUTOR_CLASS, num_clusters, num_classes),
        source_count=np.zeros((num_clusters, num_classes), np.int64),
        active=np.zeros((num_clusters, num_jobs), np.int64),
        children=np.zeros((num_clusters, num_edges), np.int64),
        job_orders=_table(JOB_ORDER, num_clusters, with_orders * num_jobs),
        stage_orders=_table(STAGE_ORDER, num_clusters, with_orders * num_stages),
        pools=_table(POOL, num_clusters, with_orders * MAX_POOLS),
        contenders=_table(CONTENDER, num_clusters, with_orders * num_jobs),
        contest=np.zeros((num_clusters, with_orders * 2 * num_leaves), np.int64),
        virtual_now=_table(VIRTUAL_NOW, num_clusters, with_orders),
        virtual_jobs=_table(VIRTUAL_JOB, num_clusters, with_orders * num_jobs),
        virtual_stages=_table(VIRTUAL_STAGE, num_clusters, with_orders * num_stages),
    )
    state.now.world[:] = world
    for row, executor_class in enumerate(classes):
        state.classes.cpu[:, row] = executor_class.cpu
        state.classes.memory[:, row] = executor_class.memory
        state.classes.num_executors[:, row] = executor_class.num_executors
    return state


def allocate_virtual(num_jobs: int, num_stages: int) -> VirtualRun:
    """Tables of a virtual run of fair sharing for so many jobs and stages."""
    return VirtualRun(
        _table(VIRTUAL_NOW, 1),
        _table(VIRTUAL_JOB, num_jobs),
        _table(VIRTUAL_STAGE, num_stages),
    )


def select(state: ClusterState, cluster: int) -> ClusterState:
    """The tables of one cluster out of many (views, no copies)."""
    return ClusterState(*(table[cluster] for table in state))
