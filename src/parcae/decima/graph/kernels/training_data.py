"""What the kernels of training read and write: decisions, the network, the loss, buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

from parcae.base.compiled.kernels import inlined

# Entries of `Passes.size`.
ROWS = 0
JOBS = 1
HEIGHTS = 2
EDGES = 3
DECISIONS = 4
TURN = 5


class TrainingDecisions(NamedTuple):
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


@inlined
def _find_edges(data, edges, work, job, first_new):  # type: ignore[no-untyped-def]
    """Note the edges that begin at a job's new stages, and the heights of these stages."""
    profile = data.structure[job]
    count = work.size[EDGES]
    for edge in range(edges.first[profile], edges.first[profile + 1]):
        parent = work.row_of[edges.parent[edge]]
        child = work.row_of[edges.child[edge]]
        if parent >= first_new and child >= 0:
            work.parent[count] = parent
            work.child[count] = child
            count += 1
            above = work.key[child] // 2 + 1
            work.key[parent] = max(work.key[parent], 2 * above + 1)
    for edge in range(work.size[EDGES], count):
        work.key[work.child[edge]] = work.key[work.child[edge]] // 2 * 2
    work.size[EDGES] = count


@inlined
def _find_rows(data, edges, work, job, entry):  # type: ignore[no-untyped-def]
    """List a job's stages from `entry` on, and note those that are new. Returns the next entry."""
    first_new = work.size[ROWS]
    row = first_new
    work.row_of[:] = -1
    first = data.first_listed[job]
    for recorded in data.listed[first : first + data.num_listed[job]]:
        found = work.found_row[recorded]
        if found[0] != work.size[TURN]:
            found[0] = work.size[TURN]
            found[1] = row
            work.recorded[row] = recorded
            work.key[row] = 1
            row += 1
        work.row_of[data.stage_index[recorded]] = found[1]
        work.listed[entry] = found[1]
        entry += 1
    work.size[ROWS] = row
    if row > first_new:
        _find_edges(data, edges, work, job, first_new)
    return entry


@inlined
def _has_room(data, work, decision, used):  # type: ignore[no-untyped-def]
    """Return whether a decision fits into the buffers beside what is used.

    `used` is (jobs, listed stages, members, options).
    """
    jobs, entries, members, options = used
    first_job = data.first_job[decision]
    new = 0
    for job in range(first_job, first_job + data.num_jobs[decision]):
        if work.found[data.state[job], 0] != work.size[TURN]:
            jobs += 1
            new += data.num_listed[job]
    return (
        jobs < work.first_of.shape[0]
        and entries + new <= work.listed.shape[0]
        and work.size[ROWS] + new <= work.recorded.shape[0]
        and members + data.num_jobs[decision] <= work.member_job.shape[0]
        and options + data.num_options[decision] <= work.option_job.shape[0]
    )


@inlined
def _find_jobs(data, edges, work, index, begin):  # type: ignore[no-untyped-def]
    """Find the distinct jobs and stages of a group, and the edges between the stages.

    The group begins with decision index[begin], and ends where its buffers are full. Returns where
    it ends.
    """
    entry = 0
    jobs = 0
    members = 0
    options = 0
    work.size[ROWS] = work.size[EDGES] = 0
    work.size[TURN] += 1
    end = min(index.shape[0], begin + work.stage.shape[0])
    for at in range(begin, end):
        decision = index[at]
        if at > begin and not _has_room(data, work, decision, (jobs, entry, members, options)):
            end = at
            break
        first_job = data.first_job[decision]
        work.first_member[at - begin] = members
        for job in range(first_job, first_job + data.num_jobs[decision]):
            found = work.found[data.state[job]]
            if found[0] != work.size[TURN]:
                found[0] = work.size[TURN]
                found[1] = jobs
                work.first_of[jobs] = entry
                jobs += 1
                entry = _find_rows(data, edges, work, job, entry)
            work.member_job[members] = found[1]
            work.member_decision[members] = at - begin
            members += 1
        options += data.num_options[decision]
    work.first_member[end - begin] = members
    work.first_of[jobs] = entry
    work.size[JOBS] = jobs
    work.size[DECISIONS] = end - begin
    return end


@inlined
def _order_rows(work):  # type: ignore[no-untyped-def]
    """Order the rows by their keys."""
    bound = work.bound
    bound[:] = 0
    highest = 0
    for row in range(work.size[ROWS]):
        highest = max(highest, work.key[row])
        bound[work.key[row] + 1] += 1
    work.size[HEIGHTS] = highest // 2 + 1
    for key in range(highest + 2):
        bound[key + 1] += bound[key]
    for row in range(work.size[ROWS]):
        work.place[row] = bound[work.key[row]]
        bound[work.key[row]] += 1
    # Each bound has moved to the next one.
    for key in range(highest + 2, 0, -1):
        bound[key] = bound[key - 1]
    bound[0] = 0


@inlined
def load(data, edges, work, index, begin):  # type: ignore[no-untyped-def]
    """Bring the rows, features and edges of a group of decisions into order.

    The group begins with decision index[begin]. Returns where it ends.
    """
    end = _find_jobs(data, edges, work, index, begin)
    _order_rows(work)
    for row in range(work.size[ROWS]):
        at = work.place[row]
        work.first_edge[at] = -1
        for feature in range(work.x.shape[1]):
            work.x[at, feature] = data.x[work.recorded[row], feature]
    for entry in range(work.first_of[work.size[JOBS]]):
        work.listed[entry] = work.place[work.listed[entry]]
    for edge in range(work.size[EDGES]):
        parent = work.place[work.parent[edge]]
        work.child[edge] = work.place[work.child[edge]]
        work.next_edge[edge] = work.first_edge[parent]
        work.first_edge[parent] = edge
    return end
