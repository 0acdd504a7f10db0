"""The tables that Decima's kernels read and write: the network and the workspace of a decision."""

from __future__ import annotations

from typing import Any, NamedTuple

from parcae.decima.graph.layout import EMBEDDING, HIDDEN_1, HIDDEN_2, ClassFeature
from parcae.policies.networks.records import doubles, floats, integers


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
