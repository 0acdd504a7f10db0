"""Recordings: what is written, what a crash leaves, and what another policy would have done."""

from __future__ import annotations

import calendar
import io
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import FormatError
from parcae.service.jobs import DurationModel
from parcae.service.learned import LearnedDurations
from parcae.service.policies import policies_for
from parcae.service.protocol import (
    Bye,
    Hello,
    JobArrived,
    JobEnded,
    Proof,
    StageChanged,
    StageEnded,
    StagesAdded,
)
from parcae.service.record import PART, Recorder, find_recordings, read_recording
from parcae.service.replay import Kind, ReplayedEstimate, replay_recording
from parcae.service.session import Service
from parcae.service.sharing import Sharing
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.workload import RandomStreams, Workload, draw_sequence
from tests.conftest import made_up
from tests.service.speaking import NONCE, Speaker, Wire, began, ended, job_of, service_of, stages_of

_WORKLOAD = made_up(8, 5.0)


def _recorded(folder: Path, policy: str, max_file_bytes: int = 1 << 20) -> SimulatedClient:
    """Record a run of eight jobs on four cores."""
    config = SimulationConfig(world=WorldName.CORES, num_executors=4)
    sequence = draw_sequence(_WORKLOAD, "poisson:2s", 8, 4, RandomStreams(1))
    policy_for = policies_for(policy, _WORKLOAD)
    trace = simulate(sequence, policy_for(4).policy, config, 1, record=True)
    recorder = Recorder(folder, max_file_bytes)
    service = Service(policy_for, policy, DurationModel(_WORKLOAD), watchers=[recorder])
    client = SimulatedClient(sequence, task_times(trace), 4, "../app one")
    wire = Wire(service)
    wire.ask(client.hello())
    client.run(wire.orders)
    if max_file_bytes == 1 << 20:
        wire.ask(Bye())
    return client


def test_a_demonstration_cuts_names_that_the_protocol_refuses() -> None:
    """Rows of a table of stages may have names of any length."""
    workload = Workload("long", (replace(_WORKLOAD.jobs[0], name="x" * 300),))
    config = SimulationConfig(world=WorldName.CORES, num_executors=4)
    sequence = draw_sequence(workload, "batch", 1, 4, RandomStreams(1))
    trace = simulate(sequence, policies_for("fair", workload)(4).policy, config, 1, record=True)
    client = SimulatedClient(sequence, task_times(trace), 4, "app")
    wire = Wire(Service(policies_for("fair", workload), "fair", DurationModel(workload)))
    wire.ask(client.hello())
    client.run(wire.orders)
    assert {task[0] for task in client.tasks} == {0}


def test_a_session_becomes_a_file_that_is_complete_when_it_ends(tmp_path: Path) -> None:
    client = _recorded(tmp_path, "fair")
    (path,) = tmp_path.iterdir()
    assert path.suffix == ".jsonl"
    assert "app-one" in path.name
    recording = read_recording(path)
    assert (recording.head.policy, recording.head.application) == ("fair", "../app one")
    said = [line.message["type"] for line in recording.lines if line.sender == "client"]
    assert said[0] == "state"
    assert said[-1] == "bye"
    assert said.count("events") >= len(client.tasks)
    assert recording.lines[-1].left


def test_the_policy_that_was_recorded_never_differs_from_itself(tmp_path: Path) -> None:
    _recorded(tmp_path, "srpt")
    result = replay_recording([tmp_path], "srpt", _WORKLOAD)
    assert result.num_orders > 20
    assert not any(result.counts.values())
    assert result.num_lost == 0
    assert result.estimate is not None
    assert result.estimate.num_jobs == 8
    assert result.estimate.recorded_average_jct_ms == result.estimate.other_average_jct_ms


@pytest.mark.parametrize("is_old", [False, True])
def test_an_application_that_was_wrong_leaves_nothing_in_a_shared_cluster(
    tmp_path: Path, is_old: bool
) -> None:
    """As in the service: the limits of the others are those of a cluster without its jobs."""
    policy_for = policies_for("sjf-cp", _WORKLOAD)
    model = DurationModel(_WORKLOAD)
    service = service_of(policy_for, duration_model=model, sharing=Sharing(4))
    service.policy_name = "sjf-cp"
    service.watchers.append(Recorder(tmp_path))
    right, wrong = Speaker(service, "right"), Speaker(service, "wrong")
    right.state(4, job_of("a", (50, ())))
    if is_old:
        wrong.state(4, job_of("c", (3, ())))
        wrong.seq -= 1
        wrong.events(1)  # with the number of the state
    else:
        wrong.state(4)
        wrong.events(1, JobArrived(job=job_of("c", (3, ()))), began("unknown", 0))
    for clock_ms, job_id in enumerate("bde", 2):
        right.events(clock_ms, JobArrived(job=job_of(job_id, (20, ()))))
    result = replay_recording(list(tmp_path.iterdir()), "sjf-cp", _WORKLOAD)
    num_orders = 5 if is_old else 4  # the orders after the empty state order nothing
    assert (result.num_orders, sum(result.counts.values()), result.num_lost) == (num_orders, 0, 1)


def test_a_replay_knows_how_long_a_shared_cluster_was_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(sharing=Sharing(4), watchers=[Recorder(tmp_path)])
    Speaker(service, "silent").state(4)
    now_s = time.time() + 600.0
    monkeypatch.setattr("parcae.service.record.time.time", lambda: now_s)
    jobs = job_of("large", (9, ())), job_of("small", (3, ()))
    Speaker(service, "other").state(0, *jobs, clock_ms=600_000)
    (difference,) = replay_recording([tmp_path], "sjf", _WORKLOAD).differences
    assert difference.clock_ms == 600_000


def test_a_request_that_was_refused_for_its_number_is_lost(tmp_path: Path) -> None:
    service = service_of(watchers=[Recorder(tmp_path)])
    client = Speaker(service)
    client.state(4, job_of("a", (3, ())))
    client.seq -= 1
    client.events(1, began("a", 0, 2))  # with the number of the state
    client.state(4, job_of("a", (3, ())), clock_ms=2)
    client.events(3, began("a", 0, 3))
    result = replay_recording(list(tmp_path.iterdir()), "fair", _WORKLOAD)
    assert (result.num_orders, result.num_lost) == (3, 1)


@pytest.mark.parametrize("sharing", [None, Sharing(4)])
def test_a_stranger_writes_nothing_into_the_recording_of_an_application(
    tmp_path: Path, sharing: Sharing | None
) -> None:
    service = service_of(sharing=sharing, watchers=[Recorder(tmp_path)])
    Speaker(service).state(4)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    service.secret = b"a secret of more than 16 bytes"
    stranger = Wire(service)
    (challenge,) = stranger.ask(Hello(protocol=2, application_id="app", nonce=NONCE))
    (denied,) = stranger.ask(Proof(mac="0" * 64))
    assert (challenge.type, denied.type) == ("challenge", "error")
    assert path.read_bytes() == before


def test_another_policy_differs_where_it_orders_jobs_otherwise(tmp_path: Path) -> None:
    _recorded(tmp_path, "srpt")
    result = replay_recording(list(tmp_path.iterdir()), "fifo", _WORKLOAD)
    assert sum(result.counts.values()) > 0
    assert len(result.differences) == min(20, sum(result.counts.values()))
    first = next(one for one in result.differences if one.kind is Kind.FIRST)
    assert first.recorded[0] != first.other[0]
    served = [int(share.job_id) for group in first.other for share in group]
    assert served == sorted(served)  # in order of arrival
    assert result.num_lost == 0
    assert result.to_json()["other_policy"] == "fifo"


def _recording(folder: Path, cores: int) -> Speaker:
    """A client of so many cores, whose session is recorded."""
    client = Speaker(service_of(watchers=[Recorder(folder)]))
    client.state(cores)
    return client


def _average_ms(folder: Path) -> float:
    """What the jobs of a recording take in the simulator under FIFO."""
    found = replay_recording([folder], "fifo", _WORKLOAD).estimate
    assert found is not None
    return found.other_average_jct_ms


def _estimate(folder: Path, cores: int, *later: int) -> ReplayedEstimate | None:
    """The estimate for three jobs that ran on `cores` cores; then there are `later` ones."""
    client = _recording(folder, cores)
    for number in range(3):
        job = job_of(f"j{number}", (40, ()), arrival_ms=number)
        client.events(number, JobArrived(job=job), began(job.job_id, 0, 40))
    client.events(900, *(ended(f"j{number}", 0, 40, 4_000) for number in range(3)))
    for clock_ms, fewer in enumerate(later, 60_000):
        client.events(clock_ms, cores=fewer)
    return replay_recording([folder], "srpt", _WORKLOAD).estimate


def test_an_estimate_has_the_cores_that_the_application_had_for_its_jobs(tmp_path: Path) -> None:
    stayed = _estimate(tmp_path / "stayed", 40)
    assert stayed is not None
    assert _estimate(tmp_path / "gave up", 40, 3, 1) == stayed


def test_an_estimate_has_the_jobs_that_ended_with_the_tasks_that_they_had(tmp_path: Path) -> None:
    client = _recording(tmp_path, 40)
    jobs = [
        job_of("whole", (40, ())),
        job_of("changed", (40, ()), is_open=True),
        job_of("cut off", (40, ())),
        job_of("still open", (1, ()), is_open=True),
    ]
    for number, job in enumerate(jobs):
        job_id = job.job_id
        client.events(number, JobArrived(job=job), began(job_id, 0, 1), ended(job_id, 0, 1, 100))
    client.events(9, began("whole", 0, 39), ended("whole", 0, 39, 3_900))
    changed = StageChanged(job_id="changed", stage_id=0, tasks=2)
    client.events(9, changed, began("changed", 0), ended("changed", 0, 1, 100))
    client.events(10, JobEnded(job_id="changed"))
    found = replay_recording([tmp_path], "fifo", _WORKLOAD).estimate
    assert found is not None
    assert (found.num_jobs, found.num_left_out) == (2, 2)
    # Both jobs run at once: 40 tasks and 2 tasks of 100 ms on 40 cores; one ended a ms later.
    assert found.other_average_jct_ms <= 150.5


def test_an_estimate_has_the_tasks_of_a_later_state(tmp_path: Path) -> None:
    """So the plugin reports a skipped stage of which Spark runs the tasks with lost output."""
    client = _recording(tmp_path, 1)
    query = job_of("query", (40, ()), (1, (0,)), is_open=True)
    client.events(0, JobArrived(job=query), StageEnded(job_id="query", stage_id=0))
    client.state(1, job_of("query", (2, ()), (1, (0,)), is_open=True), clock_ms=1)
    client.events(2, began("query", 0, 2), ended("query", 0, 2, 200))
    client.events(3, began("query", 1), ended("query", 1, 1, 100), JobEnded(job_id="query"))
    # Three tasks of 100 ms on one core, begun after 2 and 1 ms.
    assert _average_ms(tmp_path) == 303


def _with_a_skipped_stage(folder: Path, *, is_whole: bool) -> ReplayedEstimate | None:
    """The estimate for an adaptive query: its second part lists the first stage under a new id.

    `is_whole`: the recording has the first stage; else it begins when that stage has ended.
    """
    first, skipped, last = stages_of((4, ()), (4, ()), (2, (1,)))
    query = job_of("query", (4, ()), is_open=True)
    client = Speaker(service_of(watchers=[Recorder(folder)]))
    if is_whole:
        client.state(40)
        client.events(0, JobArrived(job=query), began("query", 0, 4))
        client.events(100, ended("query", 0, 4, 400), StageEnded(job_id="query", stage_id=0))
    else:
        done = {"started": 4, "finished": 4, "executed_ms": 400, "is_ended": True}
        client.state(40, query.model_copy(update={"stages": (first.model_copy(update=done),)}))
    client.events(101, StagesAdded(job_id="query", stages=(skipped, last)))
    client.events(101, StageEnded(job_id="query", stage_id=1), began("query", 2, 2))
    client.events(201, ended("query", 2, 2, 200), JobEnded(job_id="query"))
    return replay_recording([folder], "fifo", _WORKLOAD).estimate


def test_an_estimate_leaves_out_stages_that_spark_skipped(tmp_path: Path) -> None:
    found = _with_a_skipped_stage(tmp_path / "whole", is_whole=True)
    assert found is not None
    assert (found.num_jobs, found.num_left_out) == (1, 0)
    # The last stage waits for the first one, whose output it reads: 100 ms each, and 1 ms between.
    assert found.other_average_jct_ms == 201
    assert _with_a_skipped_stage(tmp_path / "later", is_whole=False) is None


def test_an_estimate_has_the_time_in_which_the_driver_was_busy(tmp_path: Path) -> None:
    """A core was free, and no task was there for it; what waited for a core has no such time."""
    client = _recording(tmp_path, 2)
    client.events(0, JobArrived(job=job_of("query", (2, ()), is_open=True)))
    client.events(1_000, began("query", 0, 2))
    behind = job_of("behind", (2, ()), arrival_ms=1_500)
    client.events(1_500, JobArrived(job=behind))
    client.events(3_000, ended("query", 0, 2, 4_000), began("behind", 0, 2))
    client.events(3_500, StagesAdded(job_id="query", stages=stages_of((1, (0,)), first=1)))
    client.events(4_000, ended("behind", 0, 2, 2_000))
    client.events(4_700, began("query", 1))
    client.events(5_700, ended("query", 1, 1, 1_000))
    client.events(6_000, JobEnded(job_id="query"))
    # The driver took 1 s, .7 s beside a free core and .3 s at the end; behind the .7 s the cores
    # were busy for as long again as the other job's tasks had to go, .3 s.
    query_ms, behind_ms = 1_000 + 2_000 + 700 + 300 + 1_000 + 300, 2_500
    assert _average_ms(tmp_path) == (query_ms + behind_ms) / 2


def test_a_clock_that_jumps_is_no_time_of_the_driver(tmp_path: Path) -> None:
    client = _recording(tmp_path, 2)
    client.events(0, JobArrived(job=job_of("query", (2, ()), is_open=True)))
    long_ms = 10**9
    client.events(3 * long_ms, began("query", 0, 2), ended("query", 0, 2, 200))
    client.events(9 * long_ms, JobEnded(job_id="query"))
    assert _average_ms(tmp_path) == 2 * 86_400_000 + 100


def test_a_recording_without_a_job_is_not_the_newest(tmp_path: Path) -> None:
    service = service_of(watchers=[Recorder(tmp_path)])
    client = Speaker(service, "app")
    client.state(4)
    doctor = Speaker(service, "doctor")
    doctor.wire.ask(Bye())
    (found,) = find_recordings([tmp_path])
    assert "-app-" in found.name


def test_more_cores_than_can_be_simulated_have_no_estimate(tmp_path: Path) -> None:
    assert _estimate(tmp_path, 70_000) is None


def test_a_folder_has_all_parts_of_its_newest_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("time.strftime", lambda *_: f"20260101T{next(seconds):06d}Z")
    _recorded(tmp_path, "fair", max_file_bytes=20_000)
    first = find_recordings([tmp_path])
    assert len(first) == len(list(tmp_path.iterdir())) > 2
    assert [read_recording(path).head.part for path in first] == [*range(1, len(first) + 1)]
    result = replay_recording(first, "fair", _WORKLOAD)
    assert (sum(result.counts.values()), result.num_lost) == (0, 0)
    _recorded(tmp_path, "fair", max_file_bytes=20_000)
    second = find_recordings([tmp_path])
    assert len(second) == len(first)
    assert not {*first} & {*second}


def test_services_that_start_within_a_second_have_recordings_of_their_own(tmp_path: Path) -> None:
    for _ in range(3):
        _recorded(tmp_path, "fifo")
    assert len(list(tmp_path.iterdir())) == 3


def test_of_recordings_of_one_second_the_one_of_the_last_session_is_the_newest(
    tmp_path: Path,
) -> None:
    for name in ("00Z-b-s9-001", "00Z-a-s10-001", "00Z-a-s10-002", "00Z-z-s2-001"):
        (tmp_path / f"20260101T0000{name}.jsonl").touch()
    names = [path.name for path in find_recordings([tmp_path])]
    assert names == ["20260101T000000Z-a-s10-001.jsonl", "20260101T000000Z-a-s10-002.jsonl"]


def test_the_time_in_a_recordings_name_is_not_set_back_with_the_local_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XYZ-14")  # 14 hours before UTC
    time.tzset()
    try:
        _recorded(tmp_path, "fair")
    finally:
        monkeypatch.undo()
        time.tzset()
    (path,) = tmp_path.iterdir()
    named_s = calendar.timegm(time.strptime(path.name.partition(".")[0], "%Y%m%dT%H%M%S"))
    assert abs(named_s - read_recording(path).head.wall_ms / 1e3) < 60


def test_parts_of_a_full_file_follow_each_other_and_a_torn_end_is_left_out(tmp_path: Path) -> None:
    _recorded(tmp_path, "fair", max_file_bytes=20_000)
    done = sorted(tmp_path.glob("*.jsonl"))
    parts = list(tmp_path.glob(f"*{PART}"))
    assert len(done) >= 2
    assert len(parts) == 1  # the session still goes on
    whole = read_recording(*done, parts[0])
    # Since it was found.
    finished = parts[0].rename(parts[0].with_name(parts[0].name.removesuffix(PART)))
    assert read_recording(*done, parts[0]) == whole
    finished.rename(parts[0])
    data = parts[0].read_bytes()
    parts[0].write_bytes(data[:-10])
    torn = read_recording(*done, parts[0])
    assert len(torn.lines) == len(whole.lines) - 1
    result = replay_recording([*done, parts[0]], "fair", _WORKLOAD)
    assert (sum(result.counts.values()), result.num_lost) == (0, 0)


def test_a_recording_goes_on_while_the_service_learns(tmp_path: Path) -> None:
    learned = LearnedDurations()
    for position in range(20_000):
        learned.add_tasks("nightly", position, 1, 10)
    recorder = Recorder(tmp_path, max_file_bytes=1)  # every message begins a new file
    service = service_of(duration_model=DurationModel(None, learned=learned), watchers=[recorder])
    client = Speaker(service)
    is_over = threading.Event()

    def learn() -> None:
        position = 0
        while not is_over.is_set():
            learned.add_tasks("hourly", position % 1_000, 1, 10)
            position += 1

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        client.state(4, job_of("a", (3, ())))
        for clock_ms in range(1, 5):
            client.events(clock_ms)
    finally:
        is_over.set()
        thread.join()
    assert service.watchers == [recorder]


def test_a_file_has_what_was_learned_of_its_own_jobs_alone(tmp_path: Path) -> None:
    learned = LearnedDurations()
    for number in range(10_000):
        learned.add_tasks(f"other {number}", 0, 1, 10)
        learned.add_run(f"other {number}", 10)
    for position in (0, 2):
        learned.add_tasks("nightly", position, 1, 7 + position)
    learned.add_run("nightly", 16)
    model = DurationModel(_WORKLOAD, learned=learned)
    service = service_of(policies_for("srpt", _WORKLOAD), duration_model=model)
    service.policy_name = "srpt"
    service.watchers.append(Recorder(tmp_path))
    client = Speaker(service)
    client.state(4, job_of("a", (3, ()), name="new"))
    client.events(1, JobArrived(job=job_of("b", (3, ()), name="nightly")))
    client.events(2, JobArrived(job=job_of("c", (2, ()), name="nightly")))
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 5_000
    (line,) = (line for line in read_recording(path).lines if line.learned)
    assert line.learned is not None
    assert line.learned.tasks == [("nightly", 0, 1, 7.0), ("nightly", 2, 1, 9.0)]
    assert line.learned.runs == [("nightly", [16])]
    # "nightly" is served first, as its tasks are known to be shorter than others are thought to be.
    result = replay_recording([path], "srpt", _WORKLOAD)
    assert (result.num_orders, sum(result.counts.values()), result.num_lost) == (3, 0, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello\nyou\n", "Invalid JSON"),
        ('{"a": 1}\n', "parcae_recording: Field required"),
        ('{"parcae_recording": 9}\n', "parcae_recording: Input should be 3"),
        ('{"parcae_recording": 3}', "policy: Field required"),
        ('{"parcae_recording": 3, "policy": 3}', "policy: Input should be a valid string"),
        ('{"parcae_recording": 3, "policy": "fair", "cores": 0}', "cores: "),
        ('{"parcae_recording": 3, "policy": "fair", "cores": 65537}', "cores: "),
        ('{"parcae_recording": 3, "policy": "fair", "learned": []}', "learned: "),
        ('{"parcae_recording": 3, "policy": "fair"}\n{"message": []}\n', "message: "),
    ],
)
def test_what_is_no_recording_is_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    line = 2 if "message" in text else 1
    with pytest.raises(FormatError, match=rf"x\.jsonl:{line}: not a line of a recording.*{why}"):
        read_recording(path)


class _NearlyFull(io.FileIO):
    """A file on a disk that has no room for all of the tenth line, and then has room again."""

    num_lines = 0

    def write(self, line: Any) -> int:
        self.num_lines += 1
        return super().write(line[:20] if self.num_lines == 10 else line)


def _write_elsewhere(monkeypatch: pytest.MonkeyPatch, stream: Callable[[Path], Any]) -> None:
    """Let recorders write to the stream that is made for their file."""
    original = Recorder._begin

    def begin(self: Recorder, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        for file in self._files.values():
            file.stream.close()
            file.stream = stream(file.path.with_name(file.path.name + PART))

    monkeypatch.setattr(Recorder, "_begin", begin)


def test_a_line_that_did_not_fit_is_the_last_of_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_elsewhere(monkeypatch, lambda part: _NearlyFull(part, "ab"))
    _recorded(tmp_path, "fair")
    assert len(read_recording(*find_recordings([tmp_path])).lines) == 9


def test_a_disk_that_fails_ends_the_recording_and_not_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_elsewhere(monkeypatch, lambda _: io.FileIO("/dev/full", "wb"))
    client = _recorded(tmp_path, "fair")
    assert len(client.tasks) == client.sequence.num_tasks
