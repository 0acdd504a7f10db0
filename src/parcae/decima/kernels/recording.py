"""Recorded decisions to learn from: the kernels that a network provides, by its type.

`parcae.decima.learning.exploring` plays the runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parcae.base.compiled.by_type import ByType
from parcae.base.compiled.kernels import inlined, row_of


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
