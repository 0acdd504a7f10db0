"""Groups of recorded decisions: their distinct jobs and stages, in the order of the DAGs."""

from __future__ import annotations

from parcae.kernels import inlined
from parcae.policies.decima.kernels.training.data import DECISIONS, EDGES, HEIGHTS, JOBS, ROWS, TURN


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
