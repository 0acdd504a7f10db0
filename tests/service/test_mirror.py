"""The mirror: effects of events, jobs whose stages come late, and tables that stay small."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from parcae.cluster.kernels.cores import ask_for_plan
from parcae.cluster.kernels.serving import durations_changed
from parcae.cluster.observation import observe
from parcae.cluster.state import NO_PROFILE, UNLIMITED, ClusterState
from parcae.decima.graph.layout import DecimaSettings, decima_levels, initial_weights
from parcae.decima.graph.policy import DecimaPolicy
from parcae.policies.orders.kernels import OrderKind
from parcae.service import mirror as mirror_module
from parcae.service.jobs import ASSUMED_TASK_MS, LEFT_SHARE, DurationModel
from parcae.service.live_tables import ALONE, EndedJob, LiveSettings
from parcae.service.mirror import Mirror
from parcae.service.policies import LivePolicy, PolicyFor, policies_for, with_new_memory
from parcae.service.protocol import (
    Event,
    Events,
    JobArrived,
    JobEnded,
    JobMessage,
    StageBegunAgain,
    StageChanged,
    StageEnded,
    StageMessage,
    StagesAdded,
    StateMessage,
    TasksReported,
)
from parcae.service.tables import Room
from parcae.workloads.durations import TaskDurations
from parcae.workloads.guess import guess_task_ms
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload
from tests.cluster.invariants import check_invariants
from tests.conftest import job
from tests.service.speaking import began, ended, job_of, planner, stages_of

_DAY_MS = 86_400_000


class CheckedMirror:
    """A mirror whose invariants are checked after every message."""

    def __init__(
        self,
        policy_for: PolicyFor | None = None,
        cores: int = 4,
        duration_model: DurationModel | None = None,
        settings: LiveSettings = ALONE,
    ):
        self.ended: list[EndedJob] = []
        self.mirror = Mirror(
            policy_for or planner(),
            duration_model or DurationModel(None),
            settings,
            on_end=self.ended.append,
        )
        self.mirror.take_state("app", StateMessage(seq=0, clock_ms=0, cores=cores, jobs=()))
        self.clock_ms = 0

    def send(self, *events: Event, after_ms: int = 10, cores: int | None = None) -> None:
        self.clock_ms += after_ms
        self.mirror.take_events(
            "app", Events(seq=0, clock_ms=self.clock_ms, cores=cores, events=events)
        )
        check_invariants(self.mirror.state)

    def counts(self, job_id: str, stage_id: int) -> tuple[int, int, int]:
        """(tasks, started, finished) of a stage."""
        stage = self._stage(job_id, stage_id)
        return int(stage.num_tasks), int(stage.num_started), int(stage.num_finished)

    def is_runnable(self, job_id: str, stage_id: int) -> bool:
        return bool(self._stage(job_id, stage_id).frontier_rank >= 0)

    def task_ms(self, job_id: str, stage_id: int) -> float:
        return float(self._stage(job_id, stage_id).task_ms)

    def remaining_ms(self, job_id: str) -> float:
        row = self.mirror.jobs["app", job_id].row
        return float(self.mirror.state.jobs.remaining_ms[row])

    def _stage(self, job_id: str, stage_id: int) -> Any:
        live_job = self.mirror.jobs["app", job_id]
        row = self.mirror.stage_row(live_job, live_job.positions[stage_id])
        return self.mirror.state.stages[row]


def test_a_job_of_two_stages_runs_to_its_end() -> None:
    checked = CheckedMirror()
    checked.send(JobArrived(job=job_of("a", (3, ()), (1, (0,)))))
    assert (checked.is_runnable("a", 0), checked.is_runnable("a", 1)) == (True, False)
    checked.send(began("a", 0, 3))
    assert checked.mirror.num_running == 3
    checked.send(TasksReported(job_id="a", stage_id=0, finished=1, failed=1, executed_ms=10))
    assert checked.counts("a", 0) == (3, 2, 1)
    assert checked.is_runnable("a", 0)
    checked.send(TasksReported(job_id="a", stage_id=0, started=1, finished=2, executed_ms=20))
    assert checked.is_runnable("a", 1)
    checked.send(began("a", 1), ended("a", 1, 1, 7))
    assert checked.mirror.jobs == {}
    assert [(one.job_id, one.took_ms) for one in checked.ended] == [("a", 50)]
    checked.send(JobEnded(job_id="a"))  # a late event
    assert checked.mirror.counts.finished_jobs == 1
    assert checked.mirror.counts.finished_tasks == 4


def test_a_plan_is_made_when_the_wake_up_time_comes_and_not_before() -> None:
    checked = CheckedMirror()
    checked.send(JobArrived(job=job_of("a", (3, ()))))
    checked.mirror.state.now["wake_ms"][0] = checked.clock_ms + 30
    plans = checked.mirror.counts.plans
    checked.send(after_ms=29)
    assert checked.mirror.counts.plans == plans
    checked.send(after_ms=1)
    assert checked.mirror.counts.plans == plans + 1


def test_an_open_job_ends_by_its_event_and_its_later_stages_are_revealed() -> None:
    checked = CheckedMirror()
    checked.send(
        JobArrived(job=job_of("a", (1, ()), is_open=True)), began("a", 0), ended("a", 0, 1, 5)
    )
    assert ("app", "a") in checked.mirror.jobs
    checked.send(StagesAdded(job_id="a", stages=stages_of((2, (0,)), (1, (1,)), first=1)))
    assert (checked.is_runnable("a", 1), checked.is_runnable("a", 2)) == (True, False)
    for number in range(3, 40):  # more than there was room for
        checked.send(StagesAdded(job_id="a", stages=stages_of((2, (number - 1,)), first=number)))
    checked.send(began("a", 1, 2), ended("a", 1, 2, 9))
    assert (checked.is_runnable("a", 2), checked.is_runnable("a", 3)) == (True, False)
    checked.send(JobEnded(job_id="a"))
    assert checked.mirror.jobs == {}


def test_more_cores_fewer_cores_and_tasks_beyond_them() -> None:
    checked = CheckedMirror(cores=2)
    checked.send(JobArrived(job=job_of("a", (9, ()))))
    checked.send(began("a", 0, 5))  # e.g. on an executor that was not reported yet
    assert (checked.mirror.num_running, checked.mirror.num_cores) == (5, 2)
    checked.send(cores=7)
    assert int(checked.mirror.state.now.num_idle[0]) == 2
    checked.send(cores=3)
    assert int(checked.mirror.state.now.num_idle[0]) == 0
    checked.send(ended("a", 0, 4, 40))
    assert int(checked.mirror.state.now.num_idle[0]) == 2
    checked.send(cores=0)
    assert checked.mirror.num_cores == 1  # at least one, as a divisor


def test_a_stage_may_change_end_early_and_run_again() -> None:
    checked = CheckedMirror()
    checked.send(JobArrived(job=job_of("a", (4, ()), (2, (0,)), (1, (1,)), is_open=True)))
    checked.send(
        StageChanged(job_id="a", stage_id=0, tasks=2), began("a", 0, 2), ended("a", 0, 2, 20)
    )
    assert checked.is_runnable("a", 1)
    checked.send(StageBegunAgain(job_id="a", stage_id=0, tasks=1))
    assert (checked.counts("a", 0), checked.is_runnable("a", 0), checked.is_runnable("a", 1)) == (
        (2, 1, 1),
        True,
        False,
    )
    checked.send(began("a", 0), ended("a", 0, 1, 10))
    assert checked.is_runnable("a", 1)
    checked.send(began("a", 1), StageEnded(job_id="a", stage_id=1))  # cancelled while a task ran
    assert checked.mirror.num_running == 0
    assert checked.is_runnable("a", 2)
    checked.send(ended("a", 1, 1, 10))  # the cancelled task's end, a late event
    checked.send(JobEnded(job_id="a", is_failed=True))
    assert checked.mirror.counts.failed_jobs == 1
    assert checked.ended == []


def test_a_skipped_stage_lets_its_children_run_and_is_never_revealed() -> None:
    checked = CheckedMirror()
    checked.send(JobArrived(job=job_of("a", (2, ()), (3, (0,)), (1, (1,)), is_open=True)))
    checked.send(StageEnded(job_id="a", stage_id=1))
    assert checked.is_runnable("a", 2)
    checked.send(began("a", 0, 2), ended("a", 0, 2, 20))
    assert not checked.is_runnable("a", 1)


def test_stages_that_are_skipped_together_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []

    def counted(state: ClusterState, row: int) -> None:
        looks.append(row)
        durations_changed(state, row)

    monkeypatch.setattr(mirror_module, "durations_changed", counted)
    num_stages = 50
    chain = stages_of((2, ()), *((2, (i,)) for i in range(num_stages - 1)))
    arrived = JobArrived(job=JobMessage(job_id="a", names=("a",), arrival_ms=0, stages=chain))
    skipped = [StageEnded(job_id="a", stage_id=i) for i in range(num_stages - 1)]
    together = CheckedMirror()
    together.send(arrived)
    together.send(*skipped)
    assert len(looks) == 1
    known = CheckedMirror()
    gone = [stage.model_copy(update={"is_ended": True}) for stage in chain[:-1]]
    late = arrived.job.model_copy(update={"stages": (*gone, chain[-1])})
    known.send(JobArrived(job=late))
    assert len(looks) == 2
    alone = CheckedMirror()
    alone.send(arrived)
    for event in skipped:
        alone.send(event)
    assert len(looks) == num_stages + 1
    for other in (together, known):
        assert other.mirror.state.jobs[0].work_ms == alone.mirror.state.jobs[0].work_ms
        assert other.mirror.state.jobs[0].remaining_ms == alone.mirror.state.jobs[0].remaining_ms
        for column in ("num_tasks", "task_ms", "downstream_ms"):
            assert (other.mirror.state.stages[column] == alone.mirror.state.stages[column]).all()


def test_a_stage_that_runs_before_its_parents_ended_is_believed() -> None:
    checked = CheckedMirror()
    checked.send(JobArrived(job=job_of("a", (2, ()), (3, (0,)), is_open=True)))
    checked.send(began("a", 1, 1))
    assert checked.is_runnable("a", 1)
    checked.send(began("a", 0, 2), ended("a", 0, 2, 20))
    assert checked.counts("a", 1) == (3, 1, 0)


def _some_events(draw: random.Random, checked: CheckedMirror, known: dict[str, int]) -> list[Event]:
    """Something that may happen now."""
    jobs = list(checked.mirror.jobs.values())
    if not jobs or draw.random() < 0.15:
        name = f"j{len(known)}"
        parents = [
            tuple(draw.sample(range(i), min(i, draw.randrange(3))))
            for i in range(draw.randrange(1, 5))
        ]
        stages = [(draw.randrange(1, 5), stage_parents) for stage_parents in parents]
        known[name] = len(stages)
        return [JobArrived(job=job_of(name, *stages, is_open=draw.random() < 0.7))]
    live_job = draw.choice(jobs)
    position = draw.randrange(len(live_job.stage_ids))
    stage_id = live_job.stage_ids[position]
    num_tasks, started, finished = checked.counts(live_job.job_id, stage_id)
    one = {"job_id": live_job.job_id, "stage_id": stage_id}
    kind = draw.random()
    if position in live_job.ended:
        return (
            [StageBegunAgain(**one, tasks=draw.randrange(1, 3))]
            if kind < 0.1 and live_job.is_open
            else []
        )
    if kind < 0.4:
        is_ready = checked.is_runnable(live_job.job_id, stage_id) or draw.random() < 0.05
        return (
            [TasksReported(**one, started=draw.randrange(num_tasks - started + 1))]
            if is_ready
            else []
        )
    if kind < 0.8:
        running = started - finished
        done = draw.randrange(running + 1)
        failed = draw.randrange(running - done + 1) if draw.random() < 0.2 else 0
        return [
            TasksReported(
                **one, finished=done, failed=failed, executed_ms=draw.randrange(1, 100) * done
            )
        ]
    if kind < 0.85:
        return [StageEnded(**one)]
    if kind < 0.9:
        return [StageChanged(**one, tasks=max(1, started, draw.randrange(1, 6)))]
    if kind < 0.96 and live_job.is_open:
        first = known[live_job.job_id]
        parents = tuple(draw.sample(live_job.stage_ids, min(2, len(live_job.stage_ids))))
        known[live_job.job_id] += 2
        return [
            StagesAdded(
                job_id=live_job.job_id, stages=stages_of((2, parents), (3, (first,)), first=first)
            )
        ]
    return (
        [JobEnded(job_id=live_job.job_id, is_failed=draw.random() < 0.3)]
        if draw.random() < 0.3
        else []
    )


@pytest.mark.parametrize("name", ["fair", "srpt", "fsp", "tuned+account", "parcae"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_tables_are_consistent_after_random_events(name: str, seed: int, toy: Workload) -> None:
    draw = random.Random(seed)
    checked = CheckedMirror(policies_for(name, toy), settings=LiveSettings(room=Room(8, 32, 16)))
    known: dict[str, int] = {}
    for _ in range(300):
        events = _some_events(draw, checked, known)
        checked.send(
            *events, after_ms=draw.randrange(30), cores=draw.choice([None] * 9 + [1, 3, 8])
        )
    assert checked.mirror.counts.fallbacks == 0
    assert checked.mirror.counts.finished_jobs > 3
    assert len(checked.mirror.orders("app").jobs) == len(checked.mirror.jobs)


@pytest.fixture(scope="module")
def toy() -> Workload:
    """Three recurring jobs."""
    return Workload(
        "three",
        (
            job("short", (4, 100, ()), (1, 50, (0,))),
            job("long", (40, 1_000, ()), (8, 500, (0,))),
            job("wide", (64, 200, ())),
        ),
    )


def test_the_first_name_that_the_profile_knows_counts(toy: Workload) -> None:
    duration_model = DurationModel(toy)
    message = job_of("a", (4, ()), (1, (0,)))
    known = duration_model.look_up("app", ("unknown", "short", "long"), message.stages)
    rows = duration_model.rows(message, known)
    assert rows.profile == 0
    assert rows.specs.task_ms.tolist() == [100.0, 50.0]


def test_an_open_job_of_the_profile_has_left_what_the_profile_says(toy: Workload) -> None:
    checked = CheckedMirror(planner(OrderKind.SRPT), duration_model=DurationModel(toy))
    checked.send(JobArrived(job=job_of("a", (4, ()), name="short", is_open=True)))
    checked.send(JobArrived(job=job_of("b", (4, ()), name="long", is_open=True)))
    assert checked.remaining_ms("a") == pytest.approx(450.0)
    assert checked.remaining_ms("b") == pytest.approx(44_000.0)
    tiers = {one.job_id: one.tier for one in checked.mirror.orders("app").jobs}
    assert tiers["a"] < tiers["b"]


def test_a_job_that_outlives_its_estimate_has_something_left(toy: Workload) -> None:
    checked = CheckedMirror(planner(OrderKind.SRPT), duration_model=DurationModel(toy))
    checked.send(JobArrived(job=job_of("a", (64, ()), name="short", is_open=True)))
    checked.send(began("a", 0, 64), ended("a", 0, 64, 6_400))
    known_ms = 64 * checked.task_ms("a", 0)
    assert checked.remaining_ms("a") == pytest.approx(LEFT_SHARE * known_ms)
    checked.send(JobArrived(job=job_of("b", (1, ()), is_open=True)))
    assert checked.remaining_ms("b") > float(toy.jobs[0].work_ms) / 5


def test_durations_of_unknown_jobs_are_learned_for_the_next_time() -> None:
    checked = CheckedMirror()
    checked.send(JobArrived(job=job_of("a", (2, ()), (1, (0,)), name="nightly", is_open=True)))
    assert checked.task_ms("a", 0) == ASSUMED_TASK_MS
    checked.send(
        began("a", 0, 2),
        ended("a", 0, 2, 300),
        began("a", 1),
        ended("a", 1, 1, 40),
        JobEnded(job_id="a"),
    )
    checked.send(JobArrived(job=job_of("b", (2, ()), name="nightly", is_open=True)))
    assert checked.task_ms("b", 0) == 150.0
    again = checked.mirror.jobs["app", "b"]
    # As the last run took.
    assert float(checked.mirror.state.jobs["work_ms"][again.row]) == pytest.approx(340.0)


def test_unknown_jobs_are_guessed_by_their_bytes_as_in_the_simulator() -> None:
    draw = np.random.default_rng(0)
    sizes = draw.lognormal(16, 1, 12)
    jobs = [
        JobSpec(
            f"j{i}",
            (StageSpec(5, TaskDurations.constant(int(size / 1e5) + 10), input_bytes=5 * size),),
        )
        for i, size in enumerate(sizes)
    ]
    guesses = guess_task_ms(Workload("all", tuple(jobs)))
    duration_model = DurationModel(Workload("others", tuple(jobs[1:])))
    stage = StageMessage(stage_id=0, tasks=5, input_bytes=round(5 * float(sizes[0])))
    assert duration_model.look_up("app", ("unknown",), (stage,)).guess_ms == pytest.approx(
        guesses[0], rel=1e-6
    )
    nothing = StageMessage(stage_id=0, tasks=5)
    assert duration_model.look_up("app", (), (nothing,)).guess_ms == pytest.approx(
        duration_model.typical_task_ms
    )


def _run_short_jobs(checked: CheckedMirror, first: int, count: int) -> None:
    mirror = checked.mirror
    for number in range(first, first + count):
        name = f"j{number}"
        checked.clock_ms += 20
        events: list[Event] = [
            JobArrived(job=job_of(name, (2, ()), name="short", is_open=number % 2 == 0)),
            began(name, 0, 2),
        ]
        if number > first:
            old = f"j{number - 1}"
            events += [
                ended(old, 0, 2, 20),
                StageEnded(job_id=old, stage_id=0),
                JobEnded(job_id=old),
            ]
        mirror.take_events("app", Events(seq=0, clock_ms=checked.clock_ms, events=tuple(events)))
    last = f"j{first + count - 1}"
    checked.send(ended(last, 0, 2, 20), JobEnded(job_id=last))


@pytest.mark.parametrize("num_jobs", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_thousands_of_jobs_leave_no_rows_behind(num_jobs: int, toy: Workload) -> None:
    checked = CheckedMirror(
        policies_for("tuned+account", toy),
        cores=4,
        duration_model=DurationModel(toy),
    )
    _run_short_jobs(checked, 0, 1_000)

    def room_of_tables() -> list[int]:
        state = checked.mirror.state
        return [len(table) for table in (state.jobs, state.stages, state.children)]

    room = room_of_tables()
    _run_short_jobs(checked, 1_000, num_jobs - 1_000)
    assert room_of_tables() == room
    assert room[0] <= 1_024
    assert checked.mirror.counts.finished_jobs == num_jobs
    assert checked.mirror.counts.fallbacks == 0
    assert (checked.mirror.state.job_orders["limit"][: room[0]] <= UNLIMITED).all()


def test_an_application_that_comes_after_a_silence_brings_the_time_along() -> None:
    now_s = 7.0
    settings = LiveSettings(num_cores=4)
    mirror = Mirror(planner(), DurationModel(None), settings, now_s=lambda: now_s)
    mirror.take_state("silent", StateMessage(seq=0, clock_ms=_DAY_MS, cores=4, jobs=()))
    now_s += 600.0
    later_ms = _DAY_MS + 600_000
    arrived = job_of("a", (3, ()), arrival_ms=later_ms)
    mirror.take_state("other", StateMessage(seq=0, clock_ms=later_ms, cores=0, jobs=(arrived,)))
    assert mirror.clock_ms == later_ms
    mirror.take_events("silent", Events(seq=1, clock_ms=later_ms + 50))
    assert mirror.clock_ms - mirror.jobs["other", "a"].arrival_ms == 50


def test_of_very_many_finished_tasks_only_those_that_run_take_up_cores() -> None:
    checked = CheckedMirror()
    run = StageMessage(
        stage_id=0, tasks=1_000_000, started=600_004, finished=600_000, executed_ms=600_000
    )
    message = JobMessage(job_id="a", names=(), arrival_ms=0, stages=(run,))
    checked.mirror.take_state("app", StateMessage(seq=1, clock_ms=0, cores=4, jobs=(message,)))
    check_invariants(checked.mirror.state)
    assert checked.counts("a", 0) == (1_000_000, 600_004, 600_000)
    assert checked.mirror.num_running == 4
    assert len(checked.mirror.state.executors) < 100
    row = checked.mirror.jobs["app", "a"].row
    left_ms = checked.remaining_ms("a")
    durations_changed(checked.mirror.state, row)
    assert left_ms == pytest.approx(checked.remaining_ms("a"))
    checked.send(TasksReported(job_id="a", stage_id=0, started=300_000, finished=300_002, failed=2))
    assert checked.counts("a", 0) == (1_000_000, 900_002, 900_002)


def test_what_decima_s_network_remembers_of_open_jobs_are_their_own_stages() -> None:
    """Jobs of one name have the same expected work, whatever the stages that are known so far."""
    settings = DecimaSettings()
    weights = initial_weights(np.random.default_rng(0), settings, len(decima_levels(4, settings)))
    policy = DecimaPolicy("decima", weights, settings, 4)
    spec = JobSpec("q", (StageSpec(100, TaskDurations.constant(1_000)),))
    checked = CheckedMirror(
        lambda _: LivePolicy(policy), duration_model=DurationModel(Workload("one", (spec,)))
    )

    def assert_as_without_memory() -> None:
        state = checked.mirror.state
        work_ms = state.jobs["work_ms"][state.active[: checked.mirror.num_jobs]]
        assert work_ms.tolist() == [100_000.0] * checked.mirror.num_jobs
        ask_for_plan(state)
        decision = policy.decide(observe(state))
        probabilities = policy.probabilities(observe(state))
        # Nothing is kept, nor copied from job to job, of jobs without a profile.
        profiles = state.jobs["profile"].copy()
        state.jobs["profile"] = NO_PROFILE
        fresh = with_new_memory(policy)
        assert fresh.decide(observe(state)) == decision
        assert fresh.probabilities(observe(state)) == probabilities
        state.jobs["profile"] = profiles

    def arrived(job_id: str, *stages: tuple[int, tuple[int, ...]]) -> JobArrived:
        return JobArrived(job=job_of(job_id, *stages, name="q", is_open=True))

    checked.send(
        arrived("a", (4, ()), (2, ())), arrived("b", (9, ()), (3, ())), arrived("c", (4, ()))
    )
    assert_as_without_memory()
    # Two stages end and two others appear: the job has as many unfinished stages as before.
    more = (StageMessage(stage_id=2, tasks=5), StageMessage(stage_id=3, tasks=7, parents=(2,)))
    done = [
        TasksReported(job_id="a", stage_id=n, started=k, finished=k, executed_ms=1_000 * k)
        for n, k in ((0, 4), (1, 2))
    ]
    checked.send(*done, StagesAdded(job_id="a", stages=more))
    assert_as_without_memory()
