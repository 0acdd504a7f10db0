"""What the kernels of training read and write: decisions, the network, the loss, buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

from parcae.base.compiled.kernels import inlined
from parcae.base.compiled.products import copy_numbers
from parcae.base.compiled.tables import doubles, floats, integers
from parcae.decima.graph.layout import EMBEDDING, HIDDEN_1, HIDDEN_2

# Entries of `Passes.size`.
ROWS = 0
JOBS = 1
HEIGHTS = 2
EDGES = 3
DECISIONS = 4
TURN = 5


class Edges(NamedTuple):
    """The DAGs of a workload: job j has the edges first[j] .. first[j + 1] - 1.

    The edges of a job are in the order of their parents' heights.
    """

    first: Any  # int64[num_jobs + 1]
    parent: Any  # int64[num_edges], index of the stage within the job
    child: Any  # int64[num_edges]


class TransformPass(NamedTuple):
    """A transform: its three layers, their gradient, and what they return for many rows."""

    w1: Any  # float32[inputs, HIDDEN_1]
    b1: Any  # float32[HIDDEN_1]
    w2: Any  # float32[HIDDEN_1, HIDDEN_2]
    b2: Any  # float32[HIDDEN_2]
    w3: Any  # float32[HIDDEN_2, outputs]
    b3: Any  # float32[outputs]
    # Gradients of the same.
    d_w1: Any
    d_b1: Any
    d_w2: Any
    d_b2: Any
    d_w3: Any
    d_b3: Any
    # Transposed matrices for the pass back; of the first only the rows of embeddings.
    t1: Any  # float32[HIDDEN_1, embedded inputs]
    t2: Any  # float32[HIDDEN_2, HIDDEN_1]
    t3: Any  # float32[outputs, HIDDEN_2]
    # What the layers return, and the gradients of these numbers.
    h1: Any = floats("rows", HIDDEN_1)
    h2: Any = floats("rows", HIDDEN_2)
    out: Any = floats("rows", "outputs")
    d1: Any = floats("rows", HIDDEN_1)
    d2: Any = floats("rows", HIDDEN_2)
    d_out: Any = floats("rows", "outputs")


class Loss(NamedTuple):
    """The loss of B decisions as a function of their log probabilities and entropies.

    See `networks.training.Surrogate`.
    """

    weight: Any  # float32[B]
    old_log_prob: Any  # float32[B]
    clip: Any  # float32
    least: Any  # float32
    entropy: Any  # float32
    has_ratio: Any  # bool
    is_wanted: Any  # bool; if not, decisions are only embedded


class Results(NamedTuple):
    """What the network returned for B decisions."""

    log_prob: Any = floats("decisions")  # of the recorded choice
    entropy: Any = floats("decisions")  # of the distributions it was drawn from, in nats
    z: Any = floats("decisions", EMBEDDING)  # summary of the cluster


class Head(NamedTuple):
    """The options of one choice of each decision; those of a decision lie together.

    Inputs are embeddings of the option's stage, features of the stage, and the option's own. Where
    every option has an output, a decision has one row of them.
    """

    part: TransformPass
    places: Any  # int64[embeddings], where the inputs' embeddings begin among e, y and z
    none: Any  # float32[1], added to the logit of option 0
    d_none: Any
    inputs: Any = floats("options", "inputs")
    d_inputs: Any = floats("options", "embedded")
    logs: Any = doubles("options")  # logits and then log probabilities
    shares: Any = doubles("options")  # probabilities
    option: Any = integers("options")  # which option a row is
    owner: Any = integers("options")  # its decision
    stage: Any = integers("options")  # the row of its stage
    job: Any = integers("options")  # the stage's job
    direct: Any = integers("options")  # where the stage's features are recorded
    first: Any = integers("bounds")  # first row of each decision
    chosen: Any = integers("decisions")  # row of the chosen option


class Passes(NamedTuple):
    """The network, its gradient, and buffers for a group of decisions.

    Stages are ordered by height above the leaves. "Jobs" are distinct states of jobs, "rows" are
    distinct stages; a member is a job of a decision. Transforms that the network lacks have no
    inputs.
    """

    f_stage: TransformPass
    g_stage: TransformPass
    f_job: TransformPass
    g_job: TransformPass
    f_global: TransformPass
    g_global: TransformPass
    q: Head
    w: Head
    classes: Head
    idle: Head
    prep_weight: Any  # float32[num_features, EMBEDDING]
    prep_bias: Any  # float32[EMBEDDING]
    d_prep_weight: Any
    d_prep_bias: Any
    has_graph: Any  # bool
    has_two_transforms: Any  # bool
    inputs: Any  # float32[rows, num_features + EMBEDDING]; the two next are views of its columns
    x: Any  # float32[rows, num_features]
    e: Any  # float32[rows, EMBEDDING]
    d_e: Any = floats("rows", EMBEDDING)
    total: Any = floats("rows", EMBEDDING)  # sums over children
    d_total: Any = floats("rows", EMBEDDING)
    y: Any = floats("jobs", EMBEDDING)
    d_y: Any = floats("jobs", EMBEDDING)
    job_total: Any = floats("jobs", EMBEDDING)  # sums over stages
    d_job_total: Any = floats("jobs", EMBEDDING)
    z: Any = floats("decisions", EMBEDDING)
    d_z: Any = floats("decisions", EMBEDDING)
    global_total: Any = floats("decisions", EMBEDDING)  # sums over jobs
    d_global_total: Any = floats("decisions", EMBEDDING)
    d_log_prob: Any = floats("decisions")  # gradient of the loss
    zeros: Any = floats(HIDDEN_1)
    listed: Any = integers("listed")  # row of each stage of each job
    first_of: Any = integers("firsts")  # first listed stage of each job
    member_job: Any = integers("jobs")
    member_decision: Any = integers("jobs")
    first_member: Any = integers("bounds")  # first member of each decision
    found: Any = integers("states", 2)  # the last turn in which a state was found, and its job
    found_row: Any = integers("recorded", 2)  # the same for recorded stages, and their found row
    # The stages of a group are found one after another, and then ordered.
    recorded: Any = integers("rows")  # where a found row is recorded
    place: Any = integers("rows")  # where a found row is
    key: Any = integers("rows")  # twice a found row's height, plus 1 if it waits for no stage
    row_of: Any = integers("stages")  # found row of each stage of a job, or -1
    bound: Any = integers("keys")  # first row of each key
    parent: Any = integers("edges")  # found rows
    child: Any = integers("edges")
    first_edge: Any = integers("rows")  # first edge of a row, or -1
    next_edge: Any = integers("edges")  # next edge of the same parent, or -1
    size: Any = integers(6)  # see the constants above


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
        and options + data.num_options[decision] <= work.q.option.shape[0]
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
    end = min(index.shape[0], begin + work.d_log_prob.shape[0])
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
        copy_numbers(data.x[work.recorded[row]], 0, work.x.shape[1], work.inputs[at])
    for entry in range(work.first_of[work.size[JOBS]]):
        work.listed[entry] = work.place[work.listed[entry]]
    for edge in range(work.size[EDGES]):
        parent = work.place[work.parent[edge]]
        work.child[edge] = work.place[work.child[edge]]
        work.next_edge[edge] = work.first_edge[parent]
        work.first_edge[parent] = edge
    return end
