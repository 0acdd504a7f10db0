"""What the kernels of training read and write: decisions, the network, the loss, buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

# Entries of `Passes.size`.
ROWS = 0
JOBS = 1
HEIGHTS = 2
EDGES = 3
DECISIONS = 4
TURN = 5


class Decisions(NamedTuple):
    """Recorded decisions, flat: each has job rows and options, each job row lists rows of stages.

    See `recording.Record` for the columns; here, N decisions of several runs are joined.
    """

    first_job: Any  # int64[N]
    num_jobs: Any  # int64[N]
    first_option: Any  # int64[N]
    num_options: Any  # int64[N]
    choice: Any  # int64[N]
    level: Any  # int64[N]
    held: Any  # int64[N]
    last_level: Any  # int64[N]
    limit_x: Any  # float32[N, num_levels, num_limit_features]
    structure: Any  # int64[number of job rows]
    state: Any  # int64[number of job rows]; equal numbers have equal stages
    first_listed: Any  # int64[number of job rows]
    num_listed: Any  # int64[number of job rows]
    listed: Any  # int64[number of listed stages], their rows
    x: Any  # float32[number of stage rows, num_features]; equal rows have equal embeddings
    stage_index: Any  # int64[number of stage rows]
    option_job: Any  # int64[number of options]
    option_stage: Any  # int64[number of options]
    option_x: Any  # float32[number of options, num_direct]
    class_choice: Any  # int64[N]
    can_class: Any  # bool[N, number of classes]
    class_x: Any  # float32[N, number of classes, number of ClassFeature]
    idle_choice: Any  # int64[N]
    can_idle: Any  # bool[N, G + 1]


class Edges(NamedTuple):
    """The DAGs of a workload: job j has the edges first[j] .. first[j + 1] - 1.

    The edges of a job are in the order of their parents' heights.
    """

    first: Any  # int64[num_jobs + 1]
    parent: Any  # int64[num_edges], index of the stage within the job
    child: Any  # int64[num_edges]


class Layers(NamedTuple):
    """The three layers of a transform (with a leading 1: of one of `Parts`), or their gradient."""

    w1: Any  # float32[inputs, HIDDEN_1]
    b1: Any  # float32[HIDDEN_1]
    w2: Any  # float32[HIDDEN_1, HIDDEN_2]
    b2: Any  # float32[HIDDEN_2]
    w3: Any  # float32[HIDDEN_2, outputs]
    b3: Any  # float32[outputs]
    # Transposed matrices for the pass back; of the first only the rows of embeddings.
    t1: Any  # float32[HIDDEN_1, embedded inputs]
    t2: Any  # float32[HIDDEN_2, HIDDEN_1]
    t3: Any  # float32[outputs, HIDDEN_2]


class Parts(NamedTuple):
    """The transforms of the network, or their gradient; absent transforms have no inputs."""

    prep_weight: Any  # float32[num_features, EMBEDDING]
    prep_bias: Any  # float32[EMBEDDING]
    f_stage: Any  # Layers
    g_stage: Any
    f_job: Any
    g_job: Any
    f_global: Any
    g_global: Any
    q: Any
    w: Any
    executor_class: Any
    idle: Any
    no_slot: Any  # float32[1]
    levels: Any  # int64[num_levels]
    has_graph: Any  # bool
    has_two_transforms: Any  # bool
    limits: Any  # int64, as in `tables.Network`


class Loss(NamedTuple):
    """The loss of B decisions as a function of their log probabilities and entropies.

    See `networks.ragged.Surrogate`.
    """

    weight: Any  # float32[B]
    old_log_prob: Any  # float32[B]
    clip: Any  # float32
    least: Any  # float32
    entropy: Any  # float32
    has_ratio: Any  # bool
    is_given: Any  # bool, whether the slopes are given


class Results(NamedTuple):
    """What the network returned for B decisions, and the slopes of the loss."""

    log_prob: Any  # float32[B], log probability of the recorded choice
    entropy: Any  # float32[B], entropy of the distributions it was drawn from, in nats
    z: Any  # float32[B, EMBEDDING], summary of the cluster
    d_log_prob: Any  # float32[B], gradient of the loss
    d_entropy: Any  # float32[B]


class Activations(NamedTuple):
    """What the layers of a transform returned for many rows, and the gradients of these numbers."""

    h1: Any  # float32[rows, HIDDEN_1]
    h2: Any  # float32[rows, HIDDEN_2]
    out: Any  # float32[rows, outputs]
    d1: Any
    d2: Any
    d_out: Any


class Head(NamedTuple):
    """The options of one choice of each decision; those of a decision lie together."""

    inputs: Any  # float32[options, inputs]
    d_inputs: Any  # float32[options, embedded inputs]
    layers: Any  # Activations
    logs: Any  # float64[options], logits and then log probabilities
    shares: Any  # float64[options], probabilities
    option: Any  # int64[options], which option a row is
    first: Any  # int64[decisions + 1], first row of each decision
    chosen: Any  # int64[decisions], row of the chosen option


class Passes(NamedTuple):
    """Buffers for a group of decisions. Stages are ordered by height above the leaves.

    "Jobs" are distinct states of jobs, rows are distinct stages; a member is a job of a decision.
    """

    inputs: Any  # float32[rows, num_features + EMBEDDING]; the two next are views of its columns
    x: Any  # float32[rows, num_features]
    e: Any  # float32[rows, EMBEDDING]
    d_e: Any  # float32[rows, EMBEDDING]
    total: Any  # float32[rows, EMBEDDING], sums over children
    d_total: Any
    y: Any  # float32[jobs, EMBEDDING]
    d_y: Any
    job_total: Any  # float32[jobs, EMBEDDING], sums over stages
    d_job_total: Any
    z: Any  # float32[decisions, EMBEDDING]
    d_z: Any
    global_total: Any  # float32[decisions, EMBEDDING], sums over jobs
    d_global_total: Any
    f_stage: Any  # Activations
    g_stage: Any
    f_job: Any
    g_job: Any
    f_global: Any
    g_global: Any
    q: Any  # Head
    w: Any
    executor_class: Any
    idle: Any
    shared: Any  # float32[decisions, 3 * EMBEDDING], inputs that all options have in common
    d_shared: Any
    zeros: Any  # float32[largest width]
    listed: Any  # int64[listed stages], row of each stage of each job
    first_of: Any  # int64[jobs + 1], first listed stage of each job
    member_job: Any  # int64[members]
    member_decision: Any  # int64[members]
    first_member: Any  # int64[decisions + 1], first member of each decision
    # int64[states, 2]: the last turn in which the state was found, and its job in the group
    found: Any
    found_row: Any  # int64[recorded stages, 2], the same for stages, and its found row
    stage: Any  # int64[decisions], row of the chosen stage
    stage_job: Any  # int64[decisions], its job
    option_job: Any  # int64[options], job of each stage that may be chosen
    # The stages of a group are found one after another, and then ordered.
    recorded: Any  # int64[rows], where a found row is recorded
    place: Any  # int64[rows], where a found row is
    key: Any  # int64[rows], twice the height of a found row, plus 1 if it waits for no stage
    row_of: Any  # int64[most stages of a job], found row of each stage, or -1
    bound: Any  # int64[2 * most stages + 3], first row of each key
    parent: Any  # int64[edges], found rows
    child: Any  # int64[edges]
    first_edge: Any  # int64[rows], first edge of a row, or -1
    next_edge: Any  # int64[edges], next edge of the same parent, or -1
    size: Any  # int64[6]; see the constants above
