"""The tables that Decima's kernels read and write: the network and the workspace of a decision."""

from __future__ import annotations

from typing import Any, NamedTuple


class GraphNetwork(NamedTuple):
    """Decima's weights and settings, read by the kernels."""

    weights: Any  # float32[number of weights], in the order of layout.shapes
    starts: Any  # int64[number of transforms]
    levels: Any  # int64[num_levels], the limits to choose from
    has_code_features: Any  # bool
    knows_gap: Any
    has_graph: Any
    has_two_transforms: Any
    limits: Any  # int64: 0 input, 1 outputs, 2 stage, 3 none
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
    """Buffers and caches for the decisions of one simulator (with a leading axis: of many).

    Rows of stages and jobs are those of the state.
    """

    x: Any  # float32[num_stages, num_features]
    e: Any  # float32[VERSIONS * num_stages, EMBEDDING]
    f: Any  # float32[VERSIONS * num_stages, EMBEDDING], f(e) of stages that wait for others
    f2: Any  # float32[VERSIONS * num_stages, EMBEDDING], f2(x, e)
    y: Any  # float32[VERSIONS * num_jobs, EMBEDDING]
    f3: Any  # float32[VERSIONS * num_jobs, EMBEDDING], f3(y)
    embedded: Any  # int64[VERSIONS * num_jobs], stamp of the features behind the embeddings
    embedded_stage: Any  # int64[VERSIONS * num_stages], the same for stages
    version: Any  # int64[VERSIONS, 2], number of offered executors, turn of the last use
    # int64[4]: first stage row and first job row of the version in use; current turn; number of
    # stages that may be chosen
    now: Any
    stamp: Any  # int64[num_jobs], counts the changes of a job's features
    # int64[num_stages], counts the changes of the features of a stage, or of those that wait for it
    stage_stamp: Any
    num_waiting: Any  # int64[num_stages], unfinished stages that wait for the stage
    twin: Any  # int64[num_jobs, 2], by profile: turn, an untouched job that is embedded
    height: Any  # int64[num_stages], height of unfinished stages above the leaves
    # float64[num_stages, 3]: tasks left, executors on the stage, task duration behind `x`
    before: Any
    changed: Any  # int64[num_jobs], jobs that are embedded together
    copies: Any  # int64[num_jobs, 2], jobs whose embeddings are copied: from, to
    stale: Any  # int64[num_stages], stages whose embeddings are out of date
    listed: Any  # int64[num_stages], the same, by height
    # int64[num_jobs, 5], which job the row held: arrival, profile, first stage row, number of
    # unfinished stages, number of stages; an arrival of -1 means that the row is empty
    cached_job: Any
    cached_work_ms: Any  # float64[num_jobs], the job's work, part of the same key
    z: Any  # float32[EMBEDDING]
    logits: Any  # float32[num_stages], by position among the stages that may be chosen
    stage: Any  # int64[num_stages], rows of these stages
    place: Any  # int64[num_stages], positions of their jobs among the active ones
    direct: Any  # float32[num_stages, num_direct], their further inputs
    order: Any  # int64[num_jobs], positions of jobs, by remaining work
    remaining_ms: Any  # float64[num_jobs], remaining work by position
    ahead: Any  # float64[num_jobs, 2], see `find_ahead`
    limit_x: Any  # float32[num_levels, num_limit_features], for the chosen stage
    # int64[num_jobs, 5], where a record lists a job's stages: first entry, number of entries,
    # state, stamp, number of offered executors
    recorded: Any
    # int64[num_stages, 3], where a record has a stage: row, stamp, number of offered executors
    recorded_stage: Any
    limit_logits: Any  # float32[num_levels]
    cluster_layer: Any  # float32[HIDDEN_1], a first layer's sum over the cluster's inputs
    job_layer: Any  # float32[HIDDEN_1], the same sum with the job's inputs added
    layer_1: Any  # float32[HIDDEN_1]
    layer_2: Any  # float32[HIDDEN_2]
    row: Any  # float32[64], inputs
    # Inputs, layers and outputs of many rows; there are as many as stages, or as limits.
    rows: Any  # float32[rows, num_features + EMBEDDING]
    layers_1: Any  # float32[rows, HIDDEN_1]
    layers_2: Any  # float32[rows, HIDDEN_2]
    out: Any  # float32[rows, EMBEDDING]
    total: Any  # float32[rows, EMBEDDING], sums over children, stages or jobs
    # int64[5], the last drawn decision: position of the stage, column of the level, executors that
    # the limit is counted from, class, length of the idle slot
    chosen: Any
    # float32[num_classes], log1p of (demand that fits no smaller class / executors of the class)
    waiting: Any
    class_x: Any  # float32[num_classes, number of ClassFeature]
    class_logits: Any  # float32[num_classes]
    idle_logits: Any  # float32[G + 1]


class Decima(NamedTuple):
    """The network as a policy."""

    net: GraphNetwork
    work: GraphWorkspace
