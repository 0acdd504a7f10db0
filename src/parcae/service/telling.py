"""What clients are told: commands for their slots, and the tokens of their stages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from parcae.cluster.state import NO_STAGE, CommandKind
from parcae.service.protocol import Command, Commands, StageSlots
from parcae.service.restoring import Picture, PlacedSlot
from parcae.service.roster import Roster, StageKey


class Telling:
    """Gathers commands until they are taken.

    Args:
        roster: the cluster.
        members: the slots that each application knows of.
        instant: applications whose slots move at no cost.
        told: slots of every stage, as they were last told.
        holders: the application that each slot is with, also while it idles at no job; kept when the picture is made anew.
    """

    def __init__(
        self,
        roster: Roster,
        members: dict[str, set[int]],
        instant: set[str],
        told: dict[StageKey, int],
        holders: dict[int, str] | None = None,
    ) -> None:
        self._roster, self._members, self._instant, self._told = roster, members, instant, told
        self._holders = {} if holders is None else holders
        self._commands: list[tuple[str, Command]] = []
        self._touched: dict[int, None] = {}  # executors whose task or move ended: told to idle unless they got a command
        self._chosen: dict[StageKey, None] = {}  # stages that slots were told to start, in order
        self.arrivals: deque[int] = deque()  # executors that moved at no cost
        self.activity = 0  # commands so far
        self._is_same = False  # every slot works for the stage that it worked for when `take` was called last

    @property
    def told(self) -> dict[StageKey, int]:
        """Slots of every stage, as they were last told."""
        return self._told

    def begin(self, picture: Picture, lost: Sequence[PlacedSlot] = ()) -> None:
        """Note with whom every slot is, that the idle ones wait for a word, and that claims which are lost must be released."""
        self._is_same = False
        before = dict(self._holders)
        self._holders.clear()
        for executor, placed in enumerate(picture.slots):
            known = [name for name, own in self._members.items() if placed.slot in own]
            kept = before.get(placed.slot)
            holder = placed.application or (kept if kept in known else next(iter(known), None))
            if holder is not None:
                self._holders[placed.slot] = holder
            if placed.state == "idle":
                self.touch(executor)
        for claim in lost:
            if claim.application is not None:
                self._commands.append((claim.application, Command(kind="release", slot=claim.slot)))

    def touch(self, executor: int) -> None:
        """The executor's task or move ended."""
        self._touched[executor], self._is_same = None, False

    def collect(self) -> None:
        """Take what the last transition commands."""
        state, count = self._roster.state, int(self._roster.now["num_commands"])
        for row in range(count):
            kind, executor, stage = (int(value) for value in state.commands[row].item()[:3])
            self._command(kind == CommandKind.START_TASK, executor, stage)
        self._roster.now["num_commands"] = 0
        self.activity, self._is_same = self.activity + count, self._is_same and count == 0

    def _command(self, is_start: bool, executor: int, stage: int) -> None:
        job, stage_id = self._roster.owner(stage), self._roster.stage_id(stage)
        slot = self._roster.slots[executor]
        holder = self._holders.get(slot)
        if holder is not None and holder != job.application:
            self._commands.append((holder, Command(kind="release", slot=slot)))
        command = Command(kind="start" if is_start else "move", slot=slot, job_id=job.job_id, stage_id=stage_id)
        self._commands.append((job.application, command))
        self._holders[slot] = job.application
        if is_start:
            key = (job.application, job.job_id, stage_id)
            self._chosen.pop(key, None)
            self._chosen[key] = None
        elif holder == job.application and holder in self._instant:
            self.arrivals.append(executor)

    def take(self) -> dict[str, Commands]:
        """What every application is to be told since the last call; `seq` is null."""
        commands: dict[str, list[Command]] = {name: [] for name in self._members}
        for name, command in [*self._commands, *self._idle()]:
            commands.setdefault(name, []).append(command)
        stages, wake_ms = self._changed_stages(), self._wake_ms()
        self._commands, self._touched, self._chosen = [], {}, {}
        return {
            name: Commands(seq=None, commands=tuple(own), stages=tuple(stages.get(name, ())), wake_ms=wake_ms)
            for name, own in commands.items()
        }

    def _idle(self) -> list[tuple[str, Command]]:
        executors, idle = self._roster.state.executors, []
        for executor in self._touched:
            holder = self._holders.get(self._roster.slots[executor])
            if holder is None or executors.stage[executor] != NO_STAGE or executors.destination[executor] != NO_STAGE:
                continue
            at = self._roster.by_row.get(int(executors.job[executor]))
            job_id = at.job_id if at is not None and at.application == holder else None
            idle.append((holder, Command(kind="idle", slot=self._roster.slots[executor], job_id=job_id)))
        return idle

    def _changed_stages(self) -> dict[str, list[StageSlots]]:
        if self._is_same:
            return {}
        self._is_same = True
        rows = self._roster.state.executors.stage
        stages, numbers = np.unique(rows[rows != NO_STAGE], return_counts=True)
        counts = {self._roster.stage_key(s): n for s, n in zip(stages.tolist(), numbers.tolist(), strict=True)}
        now = {key: count for key, count in counts.items() if key is not None}
        changed = {key: count for key, count in now.items() if self._told.get(key, 0) != count}
        changed.update({key: 0 for key, count in self._told.items() if key not in now and count})
        self._told = now
        first = [key for key in reversed(self._chosen) if key in changed]
        told: dict[str, list[StageSlots]] = {}
        for key in [*first, *(key for key in changed if key not in self._chosen)]:
            told.setdefault(key[0], []).append(StageSlots(job_id=key[1], stage_id=key[2], slots=changed[key]))
        return told

    def _wake_ms(self) -> int | None:
        count = int(self._roster.now["num_holds"])
        return int(self._roster.state.holds.end_ms[:count].min()) if count else None
