"""What the compiled passes read and write: the network, and room for its decisions."""

from __future__ import annotations

from typing import Any, NamedTuple

from parcae.kernels import inlined


class Network(NamedTuple):
    """Decima's weights and switches."""

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


class Workspace(NamedTuple):
    """Room for decisions of one simulator (or of many). Rows of stages and jobs are those of the state."""

    x: Any  # float32[num_stages, num_features]
    e: Any  # float32[VERSIONS * num_stages, EMBEDDING]
    f: Any  # float32[VERSIONS * num_stages, EMBEDDING], f(e) of stages that others wait for
    y: Any  # float32[VERSIONS * num_jobs, EMBEDDING]
    f3: Any  # float32[VERSIONS * num_jobs, EMBEDDING], f3(y)
    embedded: Any  # int64[VERSIONS * num_jobs], the stamp of the features that these are of
    version: Any  # int64[VERSIONS, 2], executors asked about, turn of the last use
    now: Any  # int64[3], where the version in use starts among the stages, among the jobs; turn
    stamp: Any  # int64[num_jobs], counts the changes of a job's features
    twin: Any  # int64[num_jobs, 2], by profile: turn, an untouched job that is embedded
    done: Any  # int64[num_stages], whether the embedding was computed
    known: Any  # int64[num_jobs, 4], what tells one job from another: arrival, profile, stages, unfinished stages; -1: nothing
    known_work_ms: Any  # float64[num_jobs]
    z: Any  # float32[EMBEDDING]
    logits: Any  # float32[num_stages], by position among the stages that may be chosen
    stage: Any  # int64[num_stages], their rows
    limit_logits: Any  # float32[num_levels]
    of_cluster: Any  # float32[HIDDEN_1], the cluster's part of a first layer
    of_job: Any  # float32[HIDDEN_1], the same and the job's
    layer_1: Any  # float32[HIDDEN_1]
    layer_2: Any  # float32[HIDDEN_2]
    row: Any  # float32[64], inputs
    out: Any  # float32[EMBEDDING]
    total: Any  # float32[EMBEDDING]
    answer: Any  # int64[5]: chosen position, level, executors that count as held, chosen class, length of the idle slot
    waiting: Any  # float32[num_classes], demand that fits no smaller class, for each executor, logarithmic
    class_x: Any  # float32[num_classes, number of ClassFeature]
    class_logits: Any  # float32[num_classes]
    idle_logits: Any  # float32[G + 1]


@inlined
def select_workspace(many, row):  # type: ignore[no-untyped-def]
    """The workspace of one simulator out of many."""
    return Workspace(
        many.x[row], many.e[row], many.f[row], many.y[row], many.f3[row], many.embedded[row], many.version[row],
        many.now[row], many.stamp[row], many.twin[row], many.done[row], many.known[row], many.known_work_ms[row], many.z[row],
        many.logits[row], many.stage[row], many.limit_logits[row], many.of_cluster[row],
        many.of_job[row], many.layer_1[row], many.layer_2[row], many.row[row],
        many.out[row], many.total[row], many.answer[row], many.waiting[row], many.class_x[row],
        many.class_logits[row], many.idle_logits[row],
    )  # fmt: skip
