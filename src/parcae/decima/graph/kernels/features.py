"""Compiled features of a stage, as Decima's network reads them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from parcae.base.compiled.kernels import INLINED, inlined, kernel
from parcae.base.compiled.products import (
    FLOAT,
    apply_layer,
    gated,
    load,
    require_room,
    shape_of,
    store,
    word,
)
from parcae.base.compiled.tables import doubles, floats, integers
from parcae.cluster.kernels.tables import demand, is_runnable, relative, stages_of
from parcae.cluster.state import NO_JOB
from parcae.decima.graph.layout import (
    EMBEDDING,
    HIDDEN_1,
    HIDDEN_2,
    LIMIT_NONE,
    LIMIT_STAGE,
    LOCAL,
    MOST_WORK,
    SLOPE,
    ClassFeature,
    Direct,
    LimitFeature,
    Unit,
)
from parcae.decima.queries import is_unfinished, num_left, num_on_stage
from parcae.decima.rule import curve_row
from parcae.policies.networks.kernels import find_ahead


class GraphNetwork(NamedTuple):
    """Decima's weights and settings, read by the kernels."""

    weights: Any  # float32[number of weights], in the order of layout.shapes
    starts: Any  # int64[number of transforms]
    levels: Any  # int64[num_levels], the limits to choose from
    has_code_features: Any  # bool
    knows_gap: Any
    has_graph: Any
    has_two_transforms: Any
    limits: Any  # int64, one of layout.LIMIT_KINDS
    limit_places: Any  # int64[embeddings], see layout.DecimaSettings.limit_places
    has_critical_path: Any  # bool
    has_average_width: Any
    has_classes: Any
    idle_lengths: Any  # int64: G; 0 for no idle slots
    has_relative_features: Any  # bool
    has_job_features: Any  # bool
    num_direct: Any  # int64, inputs of the stage scores beside embeddings
    most_jobs: Any  # int64, see `layout.DecimaSettings`
    # The solo curves of every profile; the last row is for jobs that no profile knows. They have
    # one row and one column of zeros if the network has no features of jobs.
    stretch: Any  # float32[num_profiles + 1, num_levels], see `LimitFeature.STRETCH`
    inflation: Any  # float32[num_profiles + 1, num_levels], see `LimitFeature.INFLATION`
    suited: Any  # float32[num_profiles + 1, 4], see `Direct.LEVEL_CHEAP`
    units: Any  # float64[number of units], see layout.Unit


class GraphWorkspace(NamedTuple):
    """Buffers and caches for the decisions of one simulator.

    Rows of stages and jobs are those of the state. The workspace keeps several versions of all
    embeddings, one after another; "kept_stages" and "kept_jobs" are the rows of all versions.
    """

    x: Any = floats("stages", "features")
    e: Any = floats("kept_stages", EMBEDDING)
    f: Any = floats("kept_stages", EMBEDDING)  # f(e) of stages that wait for others
    f2: Any = floats("kept_stages", EMBEDDING)  # f2(x, e)
    y: Any = floats("kept_jobs", EMBEDDING)
    f3: Any = floats("kept_jobs", EMBEDDING)  # f3(y)
    embedded: Any = integers("kept_jobs", fill=-1)  # stamp of the features behind the embeddings
    embedded_stage: Any = integers("kept_stages", fill=-1)  # the same for stages
    version: Any = integers("versions", 2, fill=-1)  # offered executors, turn of the last use
    # First stage row and first job row of the version in use; current turn; number of stages that
    # may be chosen.
    now: Any = integers(4)
    stamp: Any = integers("jobs")  # counts the changes of a job's features
    stage_stamp: Any = integers("stages")  # the same of a stage, or of those that wait for it
    num_waiting: Any = integers("stages")  # unfinished stages that wait for the stage
    twin: Any = integers("jobs", 2)  # by profile: turn, a job that is embedded in it
    height: Any = integers("stages")  # of unfinished stages above the leaves
    before: Any = doubles("stages", 3)  # tasks left, executors, task duration behind `x`
    changed: Any = integers("jobs")  # jobs that are embedded together
    copies: Any = integers("jobs", 2)  # jobs whose embeddings are copied: from, to
    stale: Any = integers("stages")  # stages whose embeddings are out of date
    listed: Any = integers("stages")  # the same, by height
    # Which job the row held: unfinished stages (0: none), arrival, profile, first stage row, number
    # of stages and work.
    cached_job: Any = doubles("jobs", 6)
    z: Any = floats(EMBEDDING)
    logits: Any = floats("stages")  # by position among the stages that may be chosen
    stage: Any = integers("stages")  # rows of these stages
    place: Any = integers("stages")  # positions of their jobs among the active ones
    direct: Any = floats("stages", "direct")  # their further inputs
    order: Any = integers("jobs")  # positions of jobs, by remaining work
    remaining_ms: Any = doubles("jobs")  # remaining work by position
    ahead: Any = doubles("jobs", 2)  # see `find_ahead`
    # Where a record lists a job's stages: state, first entry, number of entries, stamp, number of
    # offered executors.
    recorded: Any = integers("jobs", 5)
    recorded_stage: Any = integers("stages", 3)  # a stage's row, stamp, offered executors
    cluster_layer: Any = floats(HIDDEN_1)  # a first layer's sum over the cluster's inputs
    job_layer: Any = floats(HIDDEN_1)  # the same sum with the job's inputs added
    row: Any = floats(64)  # inputs
    # Inputs, layers and outputs of many rows.
    rows: Any = floats("stages", "inputs")
    layers_1: Any = floats("scored", HIDDEN_1)
    layers_2: Any = floats("scored", HIDDEN_2)
    out: Any = floats("embedded", EMBEDDING)
    total: Any = floats("embedded", EMBEDDING)  # sums over children, stages or jobs
    # The last decision: position of the stage, column of the level, class, length of the slot.
    chosen: Any = integers(4)
    limit_x: Any = floats("levels", "limit_features")  # for the chosen stage
    limit_logits: Any = floats("levels")
    waiting: Any = floats("classes")  # log1p of (demand that fits no smaller class / executors)
    class_x: Any = floats("classes", len(ClassFeature))
    class_logits: Any = floats("classes")
    idle_x: Any = floats("lengths", 1)
    idle_logits: Any = floats("lengths")


class Decima(NamedTuple):
    """The network as a policy."""

    net: GraphNetwork
    work: GraphWorkspace


_VECTOR = ir.VectorType(FLOAT, EMBEDDING)
_BYTES = ir.IntType(8).as_pointer()
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    """Where an embedding is; the row must exist."""
    num_rows, num_columns = shape_of(context, builder, kind, array)
    require_room(context, builder, builder.neg(row), word(0))
    require_room(context, builder, builder.add(row, word(1)), num_rows)
    require_room(context, builder, word(EMBEDDING), num_columns)
    parts = context.make_array(kind)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, parts.strides, kind.ndim)[0]
    return builder.gep(builder.bitcast(parts.data, _BYTES), [builder.mul(row, stride)])


def _on_rows(combine: Any) -> Any:
    """Compile a function of (source, row, target, at) as `combine(builder, old, given)`, which
    makes the new row of the target from its old one and from that of the source.
    """

    def code(_, source, row, target, at):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            kinds = signature.args
            origin = _pointer(context, builder, kinds[0], arguments[0], arguments[1])
            goal = _pointer(context, builder, kinds[2], arguments[2], arguments[3])
            old, given = (load(builder, pointer, _VECTOR) for pointer in (goal, origin))
            store(builder, combine(builder, old, given), goal)
            return context.get_dummy_value()

        return types.void(source, types.int64, target, types.int64), generate

    change: Any = intrinsic(code)

    def compiled(source, row, target, at):  # type: ignore[no-untyped-def]
        for array in (source, target):
            if (array.dtype, array.ndim) != (types.float32, 2):
                raise TypeError(f"{array}: a matrix of float32 is meant")
        return lambda source, row, target, at: change(source, row, target, at)

    def decorate(function: Any) -> Any:
        overload(function, jit_options=INLINED)(compiled)
        return function

    return decorate


@_on_rows(lambda builder, old, given: given)
def copy_row(source: Any, row: int, target: Any, at: int) -> None:
    """Copy an embedding."""
    target[at, :EMBEDDING] = source[row, :EMBEDDING]


@_on_rows(lambda builder, old, given: builder.fadd(old, given))
def add_row(source: Any, row: int, target: Any, at: int) -> None:
    """Add an embedding to another."""
    target[at, :EMBEDDING] += source[row, :EMBEDDING]


@_on_rows(lambda builder, old, given: gated(builder, old, given, ir.Constant(FLOAT, SLOPE)))
def gate_row(source: Any, row: int, target: Any, at: int) -> None:
    """Multiply a row by the derivative of the leaky rectifier that another is the output of."""
    target[at, :EMBEDDING] *= (source[row, :EMBEDDING] > 0) * (1 - _SLOPE) + _SLOPE


@inlined
def transform(net, work, which, x, y):  # type: ignore[no-untyped-def]
    """Write transform(x), EMBEDDING numbers a row, to y; the last layer is rectified too."""
    _run_layers(net.weights, net.starts[which], work.layers_1, work.layers_2, x, y)


@kernel
def _run_layers(weights, at, layers_1, layers_2, x, y):  # type: ignore[no-untyped-def]
    """See `transform`. The arguments are few, because a call copies every array's description."""
    rows, num_in = x.shape
    layer_1 = layers_1[:rows]
    layer_2 = layers_2[:rows]
    apply_layer(x, weights, at, layer_1, _SLOPE)
    at += (num_in + 1) * _H1
    apply_layer(layer_1, weights, at, layer_2, _SLOPE)
    apply_layer(layer_2, weights, at + (_H1 + 1) * _H2, y, _SLOPE)


@inlined
def apply_outer_transform(net, work, which, y):  # type: ignore[no-untyped-def]
    """y = g(total), or total if the network has only one transform per level.

    `y` has as many rows as are taken of `work.total`.
    """
    rows = y.shape[0]
    if net.has_two_transforms:
        transform(net, work, which, work.total[:rows], y)
        return
    for row in range(rows):
        copy_row(work.total, row, y, row)


#: Column of the number of offered executors in each feature set; see `layout.FeatureSet`.
_OFFERED_IN_PAPER = 3
_OFFERED_IN_CODE = 2


@inlined
def offered_column(net):  # type: ignore[no-untyped-def]
    """Return the column of the number of offered executors.

    A network that chooses executor classes has the stage's memory in this column.
    """
    return _OFFERED_IN_CODE if net.has_code_features else _OFFERED_IN_PAPER


@inlined
def largest_memory(view):  # type: ignore[no-untyped-def]
    """Memory of the largest class."""
    top = 0.0
    for executor_class in range(view.classes.shape[0]):
        top = max(top, view.classes.memory[executor_class])
    return top


@inlined
def below_ms(view, stage):  # type: ignore[no-untyped-def]
    """Return the work on the heaviest path from a stage on, without its tasks that have started."""
    stages = view.stages
    return stages.downstream_ms[stage] - stages.num_started[stage] * stages.task_ms[stage]


@inlined
def critical_ms(view, job):  # type: ignore[no-untyped-def]
    """Return the work on the heaviest path through the unstarted part of a job, on one executor.

    No descendant of an unfinished stage has started, so only the stage's own share of its path has
    become smaller since the job arrived.
    """
    longest = 0.0
    for stage in stages_of(view, job):
        if is_unfinished(view, stage):
            longest = max(longest, below_ms(view, stage))
    return longest


@inlined
def path_and_width(view, net, job):  # type: ignore[no-untyped-def]
    """Return the critical path and the average width of the job's unfinished part, as logarithms.

    Source: Duan & Wu, section IV-B: width is work / critical path, both on one executor.
    """
    if not (net.has_critical_path or net.has_average_width):
        return 0.0, 0.0
    path_ms = critical_ms(view, job)
    return math.log1p(path_ms / net.units[Unit.TASK_MS]), math.log(
        max(1.0, view.jobs.remaining_ms[job] / max(1.0, path_ms))
    )


@inlined
def write_stage_features(view, net, stage, job, x, common):  # type: ignore[no-untyped-def]
    """Write the features of a stage to x.

    `common` is (mean gap between arrivals, memory of the largest class, critical path, average
    width).
    """
    units = net.units
    task_ms = view.stages.task_ms[stage]
    left = num_left(view, stage)
    work = left * task_ms / units[Unit.WORK_MS]
    offered = view.now.num_source[0] / units[Unit.EXECUTORS]
    local = LOCAL if job == view.now.source_job[0] else -LOCAL
    column = 5
    if net.has_code_features:
        x[0] = view.jobs.num_supplied[job] / units[Unit.EXECUTORS]
        x[1] = local
        x[2] = offered
        x[3] = work
        x[4] = left / units[Unit.TASKS]
    else:
        x[0] = left / units[Unit.TASKS]
        x[1] = task_ms / units[Unit.TASK_MS]
        x[2] = num_on_stage(view, stage) / units[Unit.EXECUTORS]
        x[3] = offered
        x[4] = local
    if net.has_job_features:
        x[0] = math.log1p(left / units[Unit.TASKS])
        x[1] = math.log1p(task_ms / units[Unit.TASK_MS])
        column = 3
    elif net.has_relative_features:
        # In float32, as trained networks know it.
        x[0] = math.log1p(x[0])
        x[1] = math.log1p(x[1])
    if net.has_job_features or net.has_relative_features:
        x[column] = min(MOST_WORK, work)
        x[column + 1] = units[Unit.DELAY]
        x[column + 2] = units[Unit.WIDTH]
        column += 3
    if net.knows_gap:
        x[column] = common[0]
        column += 1
    if net.has_critical_path:
        x[column] = common[2]
        column += 1
    if net.has_average_width:
        x[column] = common[3]
    if net.has_classes:
        for feature in range(5):
            x[feature] = math.copysign(math.log1p(abs(x[feature])), x[feature])
        x[offered_column(net)] = relative(view.stages.memory[stage], common[1])


@inlined
def mean_gap(view, net):  # type: ignore[no-untyped-def]
    """Return the mean time between the arrivals so far, scaled; 0 with fewer than two jobs."""
    last = view.now.num_jobs[0] - 1
    if last < 1:
        return 0.0
    return (view.jobs.arrival_ms[last] - view.jobs.arrival_ms[0]) / last / net.units[Unit.GAP_MS]


#: Keeps logarithms of shares of the mean work finite.
_LEAST_WORK = 1e-3
_NUM_PRICES = Direct.IS_RUNNABLE - Direct.LEVEL_CHEAP
#: Unit of the logarithm of a limit.
_LOG_LEVELS = 4.0


@kernel
def write_cluster(view, net, work, x):  # type: ignore[no-untyped-def]
    """Write the features that all stages have in common to x, and the jobs' ranks."""
    now = view.now
    find_ahead(view, work)
    total_ms = 0.0
    for position in range(now.num_active[0]):
        total_ms += work.remaining_ms[position]
    x[Direct.OFFERED] = math.log1p(8.0 * now.num_source[0] / now.num_executors[0])
    x[Direct.IS_GLOBAL] = 1.0 if now.source_job[0] == NO_JOB else 0.0
    num_jobs = max(1, now.num_active[0])
    seen = min(num_jobs, net.most_jobs)
    x[Direct.JOBS] = math.log(seen)
    x[Direct.OPEN] = math.log(max(1, min(seen, now.num_open[0])))
    work_ms = total_ms * (seen / num_jobs)
    x[Direct.TOTAL] = math.log(work_ms / net.units[Unit.WORK_MS] + _LEAST_WORK)


@kernel
def write_job(view, net, work, position, held, x):  # type: ignore[no-untyped-def]
    """Write the features of a job to x."""
    job = view.active[position]
    mean_ms = net.units[Unit.WORK_MS]
    remaining_ms = view.jobs.remaining_ms[job]
    x[Direct.IS_LOCAL] = 1.0 if job == view.now.source_job[0] else 0.0
    x[Direct.REMAINING] = math.log(remaining_ms / mean_ms + _LEAST_WORK)
    x[Direct.RANK] = work.ahead[position, 0] / view.now.num_active[0]
    x[Direct.STARTED] = 1.0 - remaining_ms / max(1.0, view.jobs.work_ms[job])
    x[Direct.HELD] = held / view.now.num_executors[0]
    x[Direct.WORTH] = math.log(remaining_ms / (1 + held) / mean_ms + _LEAST_WORK)
    row = curve_row(net, view, job)
    for price in range(_NUM_PRICES):
        x[Direct.LEVEL_CHEAP + price] = net.suited[row, price]


@inlined
def _waves(view, stage, added):  # type: ignore[no-untyped-def]
    """Return the waves in which a stage's tasks would start on its executors and so many more."""
    return num_left(view, stage) / max(1, num_on_stage(view, stage) + added)


@inlined
def write_stage(view, net, stage, paths, x):  # type: ignore[no-untyped-def]
    """Write the features of a stage to x."""
    task_ms = view.stages.task_ms[stage]
    offered = view.now.num_source[0]
    wanted = demand(view, stage)
    path_ms = below_ms(view, stage)
    waves = _waves(view, stage, min(offered, wanted))
    left_ms = num_left(view, stage) * task_ms
    x[Direct.IS_RUNNABLE] = 1.0 if is_runnable(view, stage) else 0.0
    x[Direct.PATH] = path_ms / max(1.0, paths[0])
    x[Direct.DEMAND] = min(1.0, wanted / offered)
    x[Direct.WAVES] = math.log1p(waves)
    x[Direct.ROUNDING] = math.ceil(waves) - waves
    x[Direct.TASK] = math.log1p(task_ms / net.units[Unit.TASK_MS])
    x[Direct.OF_SIBLINGS] = path_ms / max(1.0, paths[1])
    x[Direct.OF_JOB] = left_ms / max(1.0, view.jobs.remaining_ms[view.stages.job[stage]])


@inlined
def held_executors(view, net, stage):  # type: ignore[no-untyped-def]
    """Return the number of executors that limits are counted from.

    These are the job's executors, or the stage's if limits are per stage. The offered executors do
    not count.
    """
    job = view.stages.job[stage]
    if net.limits == LIMIT_STAGE:
        return num_on_stage(view, stage)
    held = view.jobs.num_supplied[job]
    if job == view.now.source_job[0]:
        held -= view.now.num_source[0]
    return max(0, held)


@inlined
def is_possible(view, net, held, column):  # type: ignore[no-untyped-def]
    """Whether a limit may be chosen: it is above what is held.

    With features of jobs it must also give away other executors than every smaller limit, and a
    network without limits has the largest only.
    """
    levels = net.levels
    if net.limits == LIMIT_NONE:
        return column == levels.shape[0] - 1
    is_other = column == 0 or levels[column - 1] - held < view.now.num_source[0]
    return levels[column] > held and (is_other or not net.has_job_features)


@kernel
def write_limit(view, net, stage, held, column, x):  # type: ignore[no-untyped-def]
    """Write the features of a limit to x."""
    level = net.levels[column]
    top = net.levels[-1]
    x[LimitFeature.LEVEL] = level / top
    if not net.has_job_features:
        return
    offered = view.now.num_source[0]
    added = min(level - held, offered)
    row = curve_row(net, view, view.stages.job[stage])
    x[LimitFeature.LOG_LEVEL] = math.log(level) / _LOG_LEVELS
    x[LimitFeature.ADDED] = added / top
    x[LimitFeature.OF_SOURCE] = added / offered
    x[LimitFeature.STRETCH] = net.stretch[row, column]
    x[LimitFeature.INFLATION] = net.inflation[row, column]
    wanted = demand(view, stage)
    taken = min(added, wanted)
    waves = _waves(view, stage, taken)
    x[LimitFeature.OF_DEMAND] = taken / max(1, wanted)
    x[LimitFeature.WAVES] = math.log1p(waves)
    x[LimitFeature.ROUNDING] = math.ceil(waves) - waves
