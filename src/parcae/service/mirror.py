"""The live cluster's state: messages fire the simulator's own transitions, and the policy is asked where executors wait.

A slot of a client is an executor row, its job a job row; the rows are this module's business alone. Everything that a client
can get wrong is checked before anything changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from parcae.cluster.kernels.decisions import apply_decision, hold_ended
from parcae.cluster.kernels.serving import job_ended
from parcae.cluster.kernels.transitions import (
    continue_stage,
    executor_arrived,
    job_arrived,
    offer_pool,
    offer_to_newcomers,
    stage_exhausted,
)
from parcae.cluster.state import NO_JOB, NO_STAGE, NOT_YET, ClusterState
from parcae.errors import ProtocolError
from parcae.service.deciding import Counts, Decider, DecisionRecord, in_words
from parcae.service.jobs import DurationBook, children_of, parents_by_index, topological_order
from parcae.service.keeping import carry_over, waits_on
from parcae.service.open_jobs import hide, refresh_durations
from parcae.service.policies import OwnPolicies, PolicyFor
from parcae.service.protocol import (
    Code,
    Commands,
    Event,
    Events,
    JobArrived,
    JobEnded,
    JobMessage,
    SlotArrived,
    StagesAdded,
    Sync,
    TaskFinished,
)
from parcae.service.restoring import LiveJob, Picture, PlacedSlot, merged, picture_of, restore
from parcae.service.roster import Roster, StageKey, no_cluster
from parcae.service.rows import Room, fill_added_stages
from parcae.service.sizes import SlotSizes
from parcae.service.telling import Telling


class Mirror:
    """One cluster, mirrored from the messages of one application or of several.

    Args:
        policy_for: the policy for a cluster of so many slots; it may be None for a while, in which fair decides.
        book: what is known of durations.
        room: of the tables at first.
        is_shared: several applications share the cluster (and its clock).
        asks_again: where nothing runs although work could and the policy lets all idle, let `fair` decide: a live cluster may
            otherwise stand still for ever. The simulator waits for the next arrival instead.
        gives_up: replace a policy that fails by `fair`; not where a recording decides.
        counts: where to count.
        on_decision: told of every decision, with the policy's probabilities where it has them.
    """

    def __init__(
        self,
        policy_for: PolicyFor,
        book: DurationBook,
        *,
        room: Room | None = None,
        is_shared: bool = False,
        asks_again: bool = True,
        gives_up: bool = True,
        counts: Counts | None = None,
        on_decision: Callable[[DecisionRecord], None] | None = None,
    ) -> None:
        self._policies, self._book, self._room = OwnPolicies(policy_for), book, room or Room()
        self.is_shared, self._asks_again, self._is_exact_room = is_shared, asks_again, room is not None
        self.counts = counts or Counts()
        self._on_decision, self._gives_up = on_decision, gives_up
        self._members: dict[str, set[int]] = {}
        self._holders: dict[int, str] = {}
        self._instant: set[str] = set()
        self._sizes = SlotSizes()
        self._take_over(Roster(no_cluster(), [], []), {})

    # -- what the mirror is made from --------------------------------------------------------------------------------------

    def _take_over(self, roster: Roster, told: dict[StageKey, int]) -> None:
        self.roster = roster
        self._telling = Telling(roster, self._members, self._instant, told, self._holders)
        self._decider = self._new_decider(len(roster.slots)) if roster.slots else None
        self._stalled_at, self._stall_position = -1, 0

    def _new_decider(self, num_slots: int) -> Decider:
        return Decider(self._policies, num_slots, self._on_decision is not None, self._gives_up, self.counts)

    def sync(self, application: str, message: Sync) -> None:
        """Forget what was known of the application and take what it says; what no picture shows is kept of jobs that stay.

        Raises:
            ProtocolError: the message contradicts itself. Nothing is changed.
        """
        told, sizes = picture_of(application, message, self._book), self._sizes.told(application, message)
        for job in message.jobs:
            sizes.require_fit(application, job)
        others = self._others(application)
        picture, lost = merged(told, others) if others else (told, [])
        clock_ms = max(message.clock_ms, self.roster.clock_ms) if self.is_shared else message.clock_ms
        state, jobs = restore(picture, sizes, clock_ms, self._book, self._room, is_exact=self._is_exact_room)
        self._sizes = sizes
        self._members[application] = {slot.slot for slot in message.slots}
        (self._instant.add if message.has_instant_moves else self._instant.discard)(application)
        self.counts.syncs += 1
        self._begin(state, jobs, picture, application, lost)

    def _begin(
        self, state: ClusterState, jobs: list[LiveJob], picture: Picture, application: str, lost: Sequence[PlacedSlot] = ()
    ) -> None:
        told = {key: count for key, count in self._telling.told.items() if key[0] != application}
        roster = Roster(state, jobs, [placed.slot for placed in picture.slots])
        carry_over(self.roster, roster, self._book)
        is_waiting = waits_on(self.roster, roster)
        self._take_over(roster, told)
        self._telling.begin(picture, lost)
        if is_waiting:
            return
        for job in jobs:
            first = len(state.classes) * (job.row + 1)
            if state.sources.num_idle[first : first + len(state.classes)].any():
                self._offer(job.row)
        self._offer(NO_JOB)

    def _others(self, application: str) -> Picture | None:
        """What is known of everyone else, if there is anyone."""
        if not self.is_shared or not self.slots:
            return None
        picture = self.picture()
        slots = set().union(*(own for name, own in self._members.items() if name != application), set())
        kept = tuple(
            placed if placed.application != application else type(placed)(placed.slot, "idle")
            for placed in picture.slots
            if placed.slot in slots
        )
        return Picture(kept, tuple(pair for pair in picture.jobs if pair[0] != application))

    def leave(self, application: str) -> None:
        """The application ended, or its connection did: its jobs are gone, and the slots that only it had."""
        others = self._others(application)
        self._members.pop(application, None)
        self._instant.discard(application)
        self._sizes = self._sizes.without(application)
        if others and others.slots:
            state, jobs = restore(others, self._sizes, self.roster.clock_ms, self._book, self._room)
            self._begin(state, jobs, others, application)
        else:
            self._take_over(Roster(no_cluster(), [], []), {})

    def picture(self) -> Picture:
        """What is known now, as the clients would say it."""
        return self.roster.picture()

    # -- what happens ------------------------------------------------------------------------------------------------------

    def events(self, application: str, message: Events) -> None:
        """Fire a message's events in order.

        Raises:
            ProtocolError: an event that cannot be, with its position; those before it have been fired.
        """
        self._advance(message.clock_ms)
        for position, event in enumerate(message.events):
            if not isinstance(event, JobArrived):  # at one time, arrivals come before the ends of idle slots
                self._end_holds()
            try:
                self.fire(application, event)
            except ProtocolError as error:
                raise ProtocolError(error.code, f"event {position}: {error}") from None
        self._end_holds()

    def _advance(self, clock_ms: int) -> None:
        if not self.slots:
            raise ProtocolError(Code.RESYNC, "nothing is known of this cluster; send sync")
        if self.is_shared:
            clock_ms = max(clock_ms, self.roster.clock_ms)
        if clock_ms < self.roster.now["clock_ms"]:
            raise ProtocolError(Code.CLOCK, f"the clock runs backwards, from {self.roster.now['clock_ms']} to {clock_ms} ms")
        self.roster.now["clock_ms"] = clock_ms

    def fire(self, application: str, event: Event) -> None:
        """Fire one event now, and decide until nothing waits.

        Raises:
            ProtocolError: the event cannot be. Nothing is changed.
        """
        if isinstance(event, TaskFinished):
            self._task_finished(application, event)
        elif isinstance(event, JobArrived):
            self._job_arrived(application, event.job)
        elif isinstance(event, SlotArrived):
            self._slot_arrived(application, event.slot)
        elif isinstance(event, StagesAdded):
            self._stages_added(application, event)
        elif isinstance(event, JobEnded):
            self._job_ended(application, event)
        else:
            self.roster.executor_on(application, event)
            self.counts.failed_tasks += 1
        self.counts.events += 1

    def _task_finished(self, application: str, event: TaskFinished) -> None:
        job, position, stage, executor = self.roster.executor_on(application, event)
        if job.is_learned[position]:
            self.state.stages.task_ms[stage] = self._book.learned.add_task(job.name, position, event.duration_ms)
            refresh_durations(self.state, job.row, job.name, self._book, is_open=job.is_open)
        job.worked_ms += event.duration_ms
        self.counts.finished_tasks += 1
        if continue_stage(self.state, executor, stage):
            self._telling.activity += 1
            return
        self._telling.touch(executor)
        stage_exhausted(self.state, executor)
        self._settle()
        if self.state.jobs.completion_ms[job.row] != NOT_YET:
            self.roster.remove(job)
            self.counts.finished_jobs += 1

    def _slot_arrived(self, application: str, slot: int) -> None:
        executor = self.roster.executor(slot)
        stage = int(self.state.executors.destination[executor])
        if stage == NO_STAGE or self.roster.owner(stage).application != application:
            raise ProtocolError(Code.WRONG_SLOT, f"slot {slot} is not on its way to a job of this application")
        self._arrive(executor)
        self._settle()

    def _arrive(self, executor: int) -> None:
        self._telling.touch(executor)
        executor_arrived(self.state, executor)

    def _job_arrived(self, application: str, message: JobMessage) -> None:
        if self.roster.has_job(application, message.job_id):
            raise ProtocolError(Code.DUPLICATE_JOB, f"job {message.job_id} is in the system already")
        if any(stage.finished for stage in message.stages):
            raise ProtocolError(Code.BAD_JOB, f"job {message.job_id}: only sync tells of finished tasks")
        self._sizes.require_fit(application, message)
        message = self._book.as_profiled(message)
        stages = list(message.stages)
        rows = self._book.rows(message.model_copy(update={"stages": self._sizes.demanded(application, stages)}))
        self.roster.make_room(Room(1, len(rows.specs), len(rows.children)))
        arrival_ms, num_stages = min(message.arrival_ms, self.roster.clock_ms), len(rows.specs)
        row = int(job_arrived(self.state, rows.specs, rows.children, 0, num_stages, rows.profile, arrival_ms, 1.0))
        is_learned = list(rows.is_learned)
        job = LiveJob(application, message.job_id, message.name, arrival_ms, row, stages, is_learned, is_open=message.is_open)
        if job.is_open:
            hide(self.state, row)
        self.roster.add(job)
        offer_to_newcomers(self.state)
        self._settle()

    def _stages_added(self, application: str, event: StagesAdded) -> None:
        job = self.roster.job(application, event.job_id)
        stages = [*job.stages, *event.stages]
        parents = parents_by_index(job.job_id, stages)
        children = children_of(parents)
        topological_order(job.job_id, parents, children)
        if any(stage.finished for stage in event.stages):
            raise ProtocolError(Code.BAD_JOB, f"job {job.job_id}: only sync tells of finished tasks")
        self._sizes.require_fit(application, event)
        self.roster.widen(job, len(event.stages), sum(map(len, children)) - self.roster.num_edges(job))
        task_ms, is_learned = self._book.durations(job.name, event.stages, len(job.stages), is_open=job.is_open)
        demanded = self._sizes.demanded(application, stages)
        fill_added_stages(self.state, job.row, demanded, parents, children, task_ms, job.num_hidden)
        job.stages = stages
        job.is_learned += is_learned
        job.index()
        if job.is_open:
            refresh_durations(self.state, job.row, job.name, self._book, is_open=True)
        self._offer(job.row)
        self._offer(NO_JOB)

    def _job_ended(self, application: str, event: JobEnded) -> None:
        job = self.roster.job(application, event.job_id)
        for executor in np.flatnonzero(self.state.executors.job == job.row):
            self._telling.touch(int(executor))
        job_ended(self.state, job.row)
        self.roster.remove(job)
        self.counts.failed_jobs += event.is_failed
        if job.is_open and not event.is_failed:
            self.counts.finished_jobs += 1
            self._book.job_finished(job.name, job.worked_ms if job.is_seen_whole else None)
        self._offer(NO_JOB)

    def _end_holds(self) -> None:
        """End the idle slots whose time has come, the earliest first."""
        while (count := int(self.roster.now["num_holds"])) > 0:
            row = int(np.argmin(self.state.holds.end_ms[:count]))
            if self.state.holds.end_ms[row] > self.roster.now["clock_ms"]:
                return
            hold_ended(self.state, row)
            self._settle()

    # -- what is decided ---------------------------------------------------------------------------------------------------

    def _offer(self, job: int) -> None:
        offer_pool(self.state, job)
        self._settle()

    def _settle(self) -> None:
        """Decide, and let those who move at no cost arrive, until nothing waits."""
        now = self.roster.now
        while True:
            self._telling.collect()
            if now["num_source"] > 0:
                self._decide()
            elif self._telling.arrivals:
                self._arrive(self._telling.arrivals.popleft())
            elif not self._offer_stalled():
                return

    def _offer_stalled(self) -> bool:
        """Nothing runs or moves although work could: offer every pool once (as the simulator does), then let fair decide."""
        now = self.roster.now
        if now["num_idle"] < len(self.slots) or now["num_schedulable"] == 0 or now["num_holds"] > 0:
            return False
        if self._stalled_at != self._telling.activity:
            self._stalled_at, self._stall_position = self._telling.activity, 0
        num_active, num_rounds = int(now["num_active"]), 2 if self._asks_again else 1
        while self._stall_position < num_rounds * (num_active + 1):
            again, position = divmod(self._stall_position, num_active + 1)
            self._stall_position += 1
            offer_pool(self.state, int(self.state.active[position]) if position < num_active else NO_JOB)
            if now["num_source"] > 0:
                if again and self._decider is not None:
                    self._decider.give_up_round(self.state)
                return True
        return False

    def _decide(self) -> None:
        assert self._decider is not None
        now = self.roster.now
        source_job, num_source = int(now["source_job"]), int(now["num_source"])
        decided = self._decider.decide(self.state)
        if self._on_decision is not None:
            self._on_decision(in_words(decided, self.roster, source_job, num_source))
        stage, limit, executor_class, hold_ms = decided.decision
        if apply_decision(self.state, stage, limit, executor_class, hold_ms) < 0:
            self._decider.give_up_round(self.state)  # cannot be after check_decision; the fallback goes on

    # -- what is told ------------------------------------------------------------------------------------------------------

    def take_commands(self) -> dict[str, Commands]:
        """What every application is to be told since the last call; `seq` is null."""
        return self._telling.take()

    @property
    def state(self) -> ClusterState:
        """The tables."""
        return self.roster.state

    @property
    def slots(self) -> list[int]:
        """The number of every executor row's slot; none before the first sync."""
        return self.roster.slots

    @property
    def jobs(self) -> list[LiveJob]:
        """Jobs in the system, in order of arrival."""
        return self.roster.jobs
