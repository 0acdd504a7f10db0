"""Compiled queries of the observation: rows of jobs, stages and children, and executor classes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from parcae.base.compiled.by_type import ByType
from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.cluster.state import ANY_CLASS


class DecisionRecording(NamedTuple):
    """How the decisions of one run are drawn and recorded; `work` and `record` are written."""

    work: Any  # the network's Workspace
    record: Any  # the network's Record
    costing: Any  # Costing, which cost is recorded (`parcae.simulation.kernels.playing`)
    draw_seed: Any  # uint64, seed of the drawn decisions
    # Whether the run goes on unrecorded when the record is full, so that its cost is that of the
    # whole run; if not, it stops there.
    is_whole: Any


class Recordings(NamedTuple):
    """The same for many runs; the leading axis of `works` and `records` is the run."""

    works: Any
    records: Any
    costing: Any  # Costing, shared by all
    draw_seeds: Any  # uint64[num_simulators]
    is_whole: Any  # as of a Recording, shared by all


class Teacher(NamedTuple):
    """A rule whose decisions a network imitates."""

    rule: Any  # Rule
    share: Any  # share of the decisions that the rule makes, 0 to 1


@inlined
def recording_of(recordings, row):  # type: ignore[no-untyped-def]
    """Return the recording of one run of many. Arguments: the Recordings, and the run's row."""
    work = row_of(recordings.works, row)
    record = row_of(recordings.records, row)
    return DecisionRecording(
        work, record, recordings.costing, recordings.draw_seeds[row], recordings.is_whole
    )


#: clear(recording, net): empty the record, and forget what the workspace keeps of another run.
clear = ByType("clear")
#: has_room(view, record, net): whether one more decision and the final state fit into the record.
has_room = ByType("has_room")
#: draw_decision(view, work, draw_seed, net): draw a decision from the network's distribution.
#: Returns (stage, limit, executor class, hold_ms, log probability, whether there was a choice).
draw_decision = ByType("draw_decision")
#: write_decision(view, future, recording, net): record the decision that was drawn last.
write_decision = ByType("write_decision")
#: write_demonstration(view, future, recording, decision, net): record another decision instead.
#: Returns false if the network cannot choose it.
write_demonstration = ByType("write_demonstration")
#: write_state(view, future, recording, net): record the final state.
write_state = ByType("write_state")


#: Bounds of a class's cores and memory, so that unlimited or zero resources give a finite size.
_SMALLEST = 1e-9
_LARGEST = 1e9


@inlined
def fits(view, stage, executor_class):  # type: ignore[no-untyped-def]
    """Whether executors of a class are large enough for a stage."""
    return (view.stages.fits[stage] >> executor_class) & 1 > 0


@inlined
def num_fitting(view, stage, counts):  # type: ignore[no-untyped-def]
    """Return how many of so many executors of each class are large enough for a stage."""
    total = 0
    for executor_class in range(view.classes.shape[0]):
        if fits(view, stage, executor_class):
            total += counts[executor_class]
    return total


@inlined
def is_unfinished(view, stage):  # type: ignore[no-untyped-def]
    """Whether the stage is not complete."""
    return view.stages.num_finished[stage] < view.stages.num_tasks[stage]


@inlined
def is_waiting(view, stage):  # type: ignore[no-untyped-def]
    """Whether the stage takes executors, if any of those offered is large enough."""
    stages = view.stages
    return stages.is_saturated[stage] == 0 and stages.num_parents_unsaturated[stage] == 0


@inlined
def num_left(view, stage):  # type: ignore[no-untyped-def]
    """Return the stage's tasks that have not started."""
    return view.stages.num_tasks[stage] - view.stages.num_started[stage]


@inlined
def num_on_stage(view, stage):  # type: ignore[no-untyped-def]
    """Return the executors on the stage, on their way to it, and committed to it."""
    # Deviation: Decima, section 6.1 (iii) counts the executors that work on the stage. Here those
    # that move or are committed to it count, too (as the released code counts a job's), so that a
    # decision sees those before it in its round.
    stages = view.stages
    return stages.num_bound[stage] + stages.num_moving[stage] + stages.num_committed[stage]


@inlined
def is_smaller(view, executor_class, other):  # type: ignore[no-untyped-def]
    """Return whether a class has less memory than another or, with equal memory, fewer cores."""
    memory = view.classes.memory
    cpu = view.classes.cpu
    if memory[executor_class] != memory[other]:
        return memory[executor_class] < memory[other]
    return cpu[executor_class] < cpu[other]


@kernel
def best_fitting(view, stage):  # type: ignore[no-untyped-def]
    """Return the smallest offered class that is large enough for the stage, or ANY_CLASS."""
    best = ANY_CLASS
    for c in range(view.classes.shape[0]):
        is_candidate = view.source_count[c] > 0 and fits(view, stage, c)
        if is_candidate and (best == ANY_CLASS or is_smaller(view, c, best)):
            best = c
    return best


@inlined
def of_total(view, amount, total):  # type: ignore[no-untyped-def]
    """Return an executor's share of the cluster in one resource.

    If the cluster's total is 0 or unlimited, return the executor's share of the number of
    executors.
    """
    if total > 0.0 and not math.isinf(total):
        return amount / total
    return 1.0 / view.now.num_executors[0]


@kernel
def totals(view):  # type: ignore[no-untyped-def]
    """Return the cluster's cores and memory."""
    cpu = 0.0
    memory = 0.0
    for c in range(view.classes.shape[0]):
        cpu += view.classes.num_executors[c] * view.classes.cpu[c]
        memory += view.classes.num_executors[c] * view.classes.memory[c]
    return cpu, memory


@inlined
def class_size(view, executor_class):  # type: ignore[no-untyped-def]
    """Return cores x memory of an executor of the class."""
    cpu = view.classes.cpu[executor_class]
    memory = view.classes.memory[executor_class]
    return min(_LARGEST, max(_SMALLEST, cpu)) * min(_LARGEST, max(_SMALLEST, memory))


@inlined
def own_class(view, stage):  # type: ignore[no-untyped-def]
    """Return the smallest class that fits the stage, offered or not."""
    best = ANY_CLASS
    best_size = math.inf
    for c in range(view.classes.shape[0]):
        if fits(view, stage, c) and class_size(view, c) < best_size:
            best = c
            best_size = class_size(view, c)
    return best


@inlined
def oversize(view, stage, executor_class):  # type: ignore[no-untyped-def]
    """Return log(size of the class / size of the smallest class that fits the stage).

    For ANY_CLASS the result is 0, as if the class were the smallest that fits.
    """
    if view.classes.shape[0] == 1 or executor_class == ANY_CLASS:
        return 0.0
    return math.log(class_size(view, executor_class) / class_size(view, own_class(view, stage)))


@inlined
def quarter_of(view, executor_class):  # type: ignore[no-untyped-def]
    """Return the quarter of the classes, ordered by size, that the class belongs to, 0 to 3."""
    rank = 0
    size = class_size(view, executor_class)
    for c in range(view.classes.shape[0]):
        rank += class_size(view, c) < size
    return rank * 4 // view.classes.shape[0]
