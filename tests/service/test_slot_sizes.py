"""Slots of several sizes: what a client may say of them, and what the service makes of it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from parcae.cluster.decision import Decision, objection
from parcae.cluster.invariants import check_invariants
from parcae.cluster.kernels.tables import commit
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState, ExecutorClass
from parcae.errors import ConfigError, ProtocolError
from parcae.policies.catalog import make_policy
from parcae.service.protocol import (
    Commands,
    Error,
    JobArrived,
    JobEnded,
    JobMessage,
    SlotMessage,
    StageMessage,
    StagesAdded,
    Sync,
    TaskFinished,
    decode_client_message,
    encode,
)
from parcae.service.record import Recorder, read_recording
from parcae.service.replay import replay_recording
from parcae.service.rows import Room, relaid
from parcae.service.session import Scope
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.run import simulate
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.demands import prepare, with_drawn_memory
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.synthetic import RandomDags, random_dags
from tests.conftest import arriving, job
from tests.service.recording import Wire
from tests.service.speaking import Speaker, code_of, said_by, service_of

SMALL, LARGE = (1.0, 0.25), (1.0, 1.0)
_FOUR = decima_classes(4)
_THREE = (ExecutorClass(1, 1.0, 0.5), ExecutorClass(2))


def _job(job_id: int, *memory: float, tasks: int = 1, is_open: bool = False) -> JobMessage:
    """A job of independent stages that need so much memory."""
    stages = tuple(StageMessage(stage_id=i, tasks=tasks, cpu=1.0, memory=own) for i, own in enumerate(memory))
    return JobMessage(job_id=job_id, arrival_ms=0, is_open=is_open, stages=stages)


def _slots(*sizes: tuple[float, float] | None) -> tuple[SlotMessage, ...]:
    return tuple(
        SlotMessage(slot=number) if size is None else SlotMessage(slot=number, cpu=size[0], memory=size[1])
        for number, size in enumerate(sizes)
    )


def _tell(client: Speaker, slots: tuple[SlotMessage, ...], *jobs: JobMessage, clock_ms: int = 0) -> Commands | Error:
    client.seq += 1
    return client.say(Sync(seq=client.seq, clock_ms=clock_ms, slots=slots, jobs=jobs, has_instant_moves=True))


def _state(client: Speaker) -> ClusterState:
    state = client.wire.session.service.mirror_of(client.application).state
    check_invariants(state)
    return state


def _starts(reply: Commands | Error) -> set[tuple[int, int | None, int | None]]:
    return {(slot, job_id, stage) for kind, slot, job_id, stage in said_by(reply) if kind == "start"}


def _refused(reply: Commands | Error) -> str:
    assert isinstance(reply, Error), reply
    return f"{reply.code.value}: {reply.message}"


def test_slots_become_classes_by_size_the_smallest_memory_first() -> None:
    client = Speaker(service_of())
    _tell(client, _slots(LARGE, SMALL, (2.0, 0.25), LARGE))
    state = _state(client)
    told = [(float(c.cpu), float(c.memory), int(c.num_executors)) for c in state.classes]
    assert told == [(1.0, 0.25, 1), (2.0, 0.25, 1), (1.0, 1.0, 2)]
    assert state.executors.executor_class.tolist() == [2, 0, 1, 2]


def test_a_stage_gets_only_slots_that_hold_its_demand() -> None:
    client = Speaker(service_of())
    _tell(client, _slots(LARGE, SMALL))
    assert _starts(client.events(0, JobArrived(job=_job(1, 0.5, tasks=2)))) == {(0, 1, 0)}
    assert _starts(client.events(0, JobArrived(job=_job(2, 0.25)))) == {(1, 2, 0)}
    assert _state(client).stages.fits[:2].tolist() == [0b10, 0b11]
    assert _starts(client.events(5, TaskFinished(slot=1, job_id=2, stage_id=0, duration_ms=5))) == set()  # too small for job 1


def test_the_class_that_a_policy_names_is_obeyed() -> None:
    class TakesTheLarge:
        name = "takes-the-large"

        def decide(self, observation: Observation) -> Decision:
            stages = observation.schedulable_stages()
            return Decision(stages[0], 1, 1 if observation.source_count[1] else 0) if stages else Decision()

    client = Speaker(service_of(TakesTheLarge()))
    _tell(client, _slots(SMALL, LARGE, LARGE))
    assert _starts(client.events(0, JobArrived(job=_job(1, 0.1)))) == {(1, 1, 0)}
    assert _starts(client.events(0, JobArrived(job=_job(2, 0.1, tasks=2)))) == {(2, 2, 0), (0, 2, 0)}


def test_a_stage_that_no_slot_holds_is_refused_by_name() -> None:
    client = Speaker(service_of())
    _tell(client, _slots(SMALL, (2.0, 0.5)))
    reply = client.events(0, JobArrived(job=_job(7, 0.1, 0.6)))
    assert code_of(reply) == ("bad_job", "sync")
    assert "job 7, stage 1 needs 1 cores and 0.6 memory; no slot is as large" in _refused(reply)
    assert "1 cores and 0.25 memory; 2 cores and 0.5 memory" in _refused(reply)
    assert "job 7, stage 1 needs" in _refused(_tell(client, _slots(SMALL), _job(7, 0.1, 0.6)))
    _tell(client, _slots(SMALL), _job(7, 0.1, tasks=2))
    added = StageMessage(stage_id=3, tasks=1, memory=0.3)
    assert "job 7, stage 3 needs 0 cores and 0.3 memory" in _refused(client.events(0, StagesAdded(job_id=7, stages=(added,))))


def test_a_stage_that_is_done_may_be_larger_than_what_is_left() -> None:
    client = Speaker(service_of())
    message = _job(1, 1.0, 0.25)
    done = message.model_copy(update={"stages": (message.stages[0].model_copy(update={"finished": 1}), message.stages[1])})
    assert _starts(_tell(client, _slots(SMALL), done)) == {(0, 1, 1)}
    _state(client)


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (_slots(SMALL, None), "slot 1 has no size and others have one"),
        (_slots(*((1.0, n / 100) for n in range(63))), "slots of 63 sizes"),
    ],
)
def test_sizes_that_cannot_be_are_refused(slots: tuple[SlotMessage, ...], message: str) -> None:
    client = Speaker(service_of())
    reply = _tell(client, slots)
    assert code_of(reply) == ("bad_slot", "sync")
    assert message in _refused(reply)
    assert isinstance(_tell(client, _slots(SMALL)), Commands)


def test_half_a_size_is_no_message() -> None:
    with pytest.raises(ProtocolError, match="a slot has cpu and memory, or neither"):
        decode_client_message(b'{"type":"sync","seq":1,"clock_ms":0,"slots":[{"slot":0,"cpu":1.0}]}')


def test_an_idle_slot_at_a_job_for_which_it_is_too_small_waits_at_none() -> None:
    client = Speaker(service_of())
    running = SlotMessage(slot=1, state="running", job_id=1, stage_id=0, cpu=1.0, memory=1.0)
    idle = SlotMessage(slot=0, job_id=1, cpu=1.0, memory=0.25)
    reply = _tell(client, (idle, running), _job(1, 0.5, tasks=3))
    assert said_by(reply) == [("idle", 0, None, None)]
    assert _starts(client.events(1, JobArrived(job=_job(2, 0.2)))) == {(0, 2, 0)}
    _state(client)


def test_books_by_class_stay_true_when_stages_are_added_and_jobs_end_early() -> None:
    client = Speaker(service_of())
    _tell(client, _slots(SMALL, LARGE))
    client.events(0, JobArrived(job=_job(1, 0.2, tasks=9, is_open=True)), JobArrived(job=_job(2, 0.2, 0.9, tasks=9)))
    added = (StageMessage(stage_id=5, tasks=4, memory=0.5), StageMessage(stage_id=6, tasks=4, memory=0.1, parents=(5,)))
    client.events(1, StagesAdded(job_id=1, stages=added))
    state = _state(client)
    assert state.stages.fits[state.stages.memory == 0.5].tolist() == [0b10]
    assert state.classes.num_schedulable.tolist() == [2, 4]
    client.events(2, JobEnded(job_id=1, is_failed=True))
    assert _state(client).classes.num_schedulable.tolist() == [1, 2]
    client.events(3, JobEnded(job_id=2, is_failed=True))
    assert _state(client).classes.num_schedulable.tolist() == [0, 0]


def test_commitments_keep_their_class_where_tables_grow() -> None:
    client = Speaker(service_of())
    _tell(client, _slots(SMALL, LARGE))
    client.events(0, JobArrived(job=_job(1, 1.0, 1.0, tasks=9)))
    state = _state(client)
    of_stage_1 = 2 * (1 + len(state.jobs) + 1) + 1
    for source in (2 * 1 + 1, of_stage_1):  # executors of class 1 in job 0's pool, and bound to its second stage
        commit(state, source, 0, 0, 1)
    room = Room.of(state)
    fresh, _ = relaid(state, [0], Room(2 * room.jobs, 2 * room.stages, room.edges))
    assert sorted(fresh.commitments.source[:2].tolist()) == [3, 2 * (1 + 2 * room.jobs + 1) + 1]
    assert fresh.sources.num_committed[fresh.commitments.source[:2]].tolist() == [1, 1]
    check_invariants(fresh)


def test_who_says_no_sizes_on_a_cluster_of_sizes_fits_everywhere() -> None:
    service = service_of(scope=Scope.CLUSTER)
    old, new = Speaker(service, "old"), Speaker(service, "new")
    _tell(old, _slots(None, None), _job(1, 5.0, tasks=9))
    assert _state(old).stages.memory[0] == 5.0  # shown, as long as nobody says sizes
    assert isinstance(_tell(new, _slots(SMALL, LARGE)), Commands)
    state = _state(old)
    assert (state.stages.fits[0], state.stages.memory[0]) == (0b11, 0.0)
    old.events(1, JobArrived(job=_job(2, 7.0)), StagesAdded(job_id=1, stages=(StageMessage(stage_id=8, tasks=1, memory=7.0),)))
    assert _state(old).stages.fits[:3].tolist() == [0b11, 0b11, 0b11]
    assert "job 3, stage 0 needs" in _refused(new.events(2, JobArrived(job=_job(3, 5.0))))
    new.wire.session.close()
    state = _state(old)
    assert (len(state.classes), state.stages.memory[0]) == (1, 5.0)


@pytest.mark.parametrize("every", [1, 3])
def test_resyncing_at_any_time_leaves_a_run_with_sizes_and_idle_slots_that_ends(every: int) -> None:
    class Waits:
        """Waits 400 ms before every stage."""

        name = "waits"

        def decide(self, observation: Observation) -> Decision:
            for stage in observation.schedulable_stages():
                hold = Decision(stage, 1, hold_ms=400)
                return Decision(stage, 2) if objection(observation, hold) else hold
            return Decision()

    workload = prepare(random_dags(RandomDags(num_jobs=6), np.random.default_rng(2), "made up"), [with_drawn_memory("uniform")])[
        0
    ]
    sequence, config = draw_sequence(workload, "poisson:3s", 4, 4, RandomStreams(2)), SimulationConfig(executor_classes=_FOUR)
    trace = simulate(sequence, make_policy("fair", 4), config, 0, record=True)
    service = service_of(Waits())
    client, wire = SimulatedClient(sequence, task_times(trace), 4, 500, executor_classes=_FOUR), Wire(service)
    wire.ask(client.hello())
    client.obey(wire.commands(client.sync()))
    num_held = 0
    for number in itertools.count(1):
        message = client.next_message()
        if message is None:
            break
        client.obey(wire.commands(message))
        state = service.mirror_of("simulated").state
        num_held += int(state.now.num_holds[0])
        check_invariants(state)
        if number % every == 0:
            client.obey(wire.commands(client.sync()))
            check_invariants(service.mirror_of("simulated").state)
    assert len(client.tasks) == sequence.num_tasks
    assert num_held > 10


def test_a_slot_of_which_no_size_is_known_counts_as_the_largest() -> None:
    service = service_of(scope=Scope.CLUSTER)
    old, new = Speaker(service, "old"), Speaker(service, "new")
    _tell(old, _slots(None, None, None))
    _tell(new, _slots((4.0, 0.25), LARGE))
    state = _state(old)
    assert state.executors.executor_class.tolist() == [0, 1, 2]
    assert (state.classes.cpu[2], state.classes.memory[2]) == (4.0, 1.0)


def test_applications_that_disagree_on_a_size_are_told() -> None:
    service = service_of(scope=Scope.CLUSTER)
    one, other = Speaker(service, "one"), Speaker(service, "other")
    _tell(one, _slots(SMALL, LARGE))
    reply = _tell(other, _slots(SMALL, SMALL))
    assert _refused(reply) == "bad_slot: slot 1 is of 1 cores and 0.25 memory; application one says 1 cores and 1 memory"
    assert isinstance(_tell(one, _slots(SMALL, SMALL)), Commands)  # its own may change
    assert isinstance(_tell(other, _slots(SMALL, SMALL)), Commands)


def test_a_clients_message_without_sizes_has_not_the_keys() -> None:
    assert json.loads(encode(Sync(seq=1, clock_ms=0, slots=_slots(None, SMALL))))["slots"] == [
        {"slot": 0, "state": "idle", "job_id": None, "stage_id": None},
        {"slot": 1, "state": "idle", "job_id": None, "stage_id": None, "cpu": 1.0, "memory": 0.25},
    ]
    with pytest.raises(ConfigError, match="executor classes of 3 slots for a client of 2"):
        SimulatedClient(arriving((job("a", (1, 1, ())), 0)), {}, 2, 0, executor_classes=_THREE)


def test_a_client_that_knows_no_sizes_gets_the_very_replies_of_old() -> None:
    """Under Tetris, which looks at demands; the replies are those of the service before it knew sizes."""
    session = service_of(make_policy("tetris", 3)).open()
    session.service.policy_name = "tetris"
    lines = (Path(__file__).parent / "old_client.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        replied = [encode(message).decode() for message in session.receive(line["said"].encode())]
        assert replied == line["replied"], line["said"]
    assert len(lines) == 45


def test_a_replay_follows_the_classes_that_were_chosen(tmp_path: Path) -> None:
    class Alternates:
        name = "alternates"

        def decide(self, observation: Observation) -> Decision:
            stages, offered = observation.schedulable_stages(), np.flatnonzero(observation.source_count)
            return Decision(stages[0], 1, int(offered[-1])) if stages else Decision()

    client = Speaker(service_of(Alternates(), watchers=[Recorder(tmp_path)]))
    _tell(client, _slots(SMALL, LARGE))
    assert _starts(client.events(0, JobArrived(job=_job(1, 0.1)))) == {(1, 1, 0)}
    client.events(9, TaskFinished(slot=1, job_id=1, stage_id=0, duration_ms=9))
    (path,) = tmp_path.iterdir()
    chosen = [line["decision"]["executor_class"] for line in read_recording(path).lines if line["from"] == "policy"]
    assert chosen[1] == 1
    result = replay_recording([tmp_path], "fair", Workload("p", (job("q", (1, 100, ())),)))
    assert (result.num_lost, result.num_stage, result.num_limit) == (0, 0, 1)  # fair takes whatever fits best
    assert result.estimate is not None
    assert result.estimate.num_jobs == 1


def test_the_wire_carries_sizes_and_demands_of_the_simulated_client() -> None:
    sequence = arriving((job("a", (1, 1, ())), 0))
    client, wire = SimulatedClient(sequence, {(0, 0, 0): 10}, 3, 0, executor_classes=_THREE), Wire(service_of())
    wire.ask(client.hello())
    client.obey(wire.commands(client.sync()))
    said = json.loads(wire.log[1])
    assert [(slot["cpu"], slot["memory"]) for slot in said["slots"]] == [(1.0, 0.5), (1.0, 1.0), (1.0, 1.0)]
    assert [stage["cpu"] for stage in said["jobs"][0]["stages"]] == [1.0]
