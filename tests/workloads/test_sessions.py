"""Sessions (closed loops): found in logs, kept in files, replayed and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.api.study import default_arrivals
from parcae.base.errors import ConfigError, WorkloadError
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig, WorldName, offered_load
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.describe import fingerprint
from parcae.workloads.durations import TaskDurations
from parcae.workloads.spark_log.dag import JobRun
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.sessions import number_sessions, sessions_at_once
from parcae.workloads.workload import SESSIONS, ArrivalProcess, JobSequence, Workload
from tests.conftest import job
from tests.workloads.spark_log_builder import executor, log_file, stage_info, whole_job

_HOUR_MS = 3_600_000


def _found(*runs: tuple[int, int, str, str]) -> list[tuple[int, int]]:
    """(session, pause) of runs of (submission, end, the server's session, the job group)."""
    made = [
        JobRun("q", begin, [], "a", end_ms=end, waits_with=((server,) if server else (), group))
        for begin, end, server, group in runs
    ]
    number_sessions(made)
    return [(run.session, run.pause_ms) for run in made]


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        # An application whose queries never overlap is one session.
        ([(0, 10, "", ""), (30, 50, "", "g"), (50, 60, "", "h")], [(0, -1), (0, 20), (0, 0)]),
        # Two that overlap are not, and one alone is none.
        ([(0, 10, "", ""), (5, 50, "", "")], [(-1, -1)] * 2),
        ([(0, 10, "", "")], [(-1, -1)]),
        # Each session of a server by itself; what it does not know is no session here.
        (
            [
                (0, 10, "x", ""),
                (5, 20, "y", ""),
                (15, 20, "x", ""),
                (28, 30, "y", ""),
                (1, 9, "", ""),
            ],
            [(0, -1), (1, -1), (0, 5), (1, 8), (-1, -1)],
        ),
        # Job groups that are busy nearly all the time are loops, by chance they would overlap.
        (
            [(t, t + 9, "", g) for t in range(0, 60, 10) for g in "gh"],
            [(s, -1 if t == 0 else 1) for t in range(6) for s in (0, 1)],
        ),
        # Those that run for a hundredth of the time may arrive at any time.
        ([(t, t + 9, "", g) for t in (0, 900) for g in "gh"], [(-1, -1)] * 4),
        # A night ends a session.
        (
            [(t, t + 5, "", "") for t in (0, 15, 30, 9 * _HOUR_MS)],
            [(0, -1), (0, 10), (0, 10), (1, -1)],
        ),
    ],
)
def test_queries_that_never_overlap_are_a_session(
    runs: list[tuple[int, int, str, str]], found: list[tuple[int, int]]
) -> None:
    assert _found(*runs) == found


def test_a_log_is_one_of_sessions_where_nearly_all_runs_are() -> None:
    def at_once(*sessions: Sequence[int], num_open: int = 0) -> int:
        runs = [
            JobRun("q", begin, [], end_ms=begin + 5, session=number, pause_ms=0 if place else -1)
            for number, begins in enumerate(sessions)
            for place, begin in enumerate(begins)
        ]
        return sessions_at_once([*runs, *(JobRun("q", 0, [], end_ms=5) for _ in range(num_open))])

    assert at_once([0, 10, 20]) == 1
    # The second begins when the first has ended, the third before.
    assert at_once([0, 10], [15, 30]) == 1
    assert at_once([0, 10], [15, 30], [14, 20]) == 2
    assert at_once(range(0, 90, 10), num_open=1) == 1
    assert at_once(range(0, 90, 10), num_open=2) == 0


def _log(path: Path, *begins: int) -> Path:
    """Queries of 100 ms on one core."""
    events = [executor(cores=1)]
    for number, begin in enumerate(begins):
        ran = (stage_info(number, 1), begin, begin + 100)
        events += whole_job(number, begin, ran, spark_job_description="q")
    return log_file(path, *events)


def test_a_session_of_a_log_is_replayed_with_its_pauses(tmp_path: Path) -> None:
    path = _log(tmp_path / "app.log", 1_000, 1_150, 1_300)
    recorded, report = read_spark_event_logs([path], recorded=True)
    assert any("--arrivals sessions" in note for note in report.notes)
    assert recorded.num_sessions == 1
    write_workload(recorded, tmp_path / "w.parcae")
    kept = read_workload(tmp_path / "w.parcae")
    assert [(one.session, one.pauses_ms) for one in kept.jobs] == [(0, ()), (0, (50,)), (0, (50,))]
    assert fingerprint(kept) == fingerprint(recorded)
    config = SimulationConfig(world=WorldName.CORES, num_executors=1)
    # As in the log, also where each query takes twice as long: then it comes later.
    twice = TaskDurations.constant(200)
    slow = kept.with_stages(lambda stage: replace(stage, durations=twice, mean_task_ms=200))
    for workload, cycle_ms in ((kept, 150), (slow, 250)):
        sequence = workload.draw(3, "sessions", config, seed=0)
        trace = simulate(sequence, named_policy("fair", workload, config), config, 0)
        assert trace.arrival_ms.tolist() == [0, cycle_ms, 2 * cycle_ms]
    # Of the recurring job, sessions are drawn with the recorded pauses.
    recurring, _ = read_spark_event_logs([path])
    assert (recurring.jobs[0].session, recurring.jobs[0].pauses_ms) == (-1, (50, 50))
    assert default_arrivals(recurring) == "sessions:1"
    drawn = recurring.draw(4, "sessions", config, seed=0)
    assert drawn.follows.tolist() == [-1, 0, 1, 2]
    assert drawn.pause_ms.tolist() == [0, 50, 50, 50]


def _thinking(*pauses_ms: int) -> Workload:
    """Jobs of 100 and 300 ms, each with these recorded pauses."""
    jobs = tuple(replace(job(f"j{ms}", (1, ms, ())), pauses_ms=pauses_ms) for ms in (100, 300))
    return Workload("thinking", jobs, provenance={SESSIONS: "3"})


_ONE_CORE = SimulationConfig(world=WorldName.CORES, num_executors=1)


def test_jobs_are_dealt_to_sessions_in_turn() -> None:
    drawn = _thinking(40, 80).draw(300, "sessions", _ONE_CORE, seed=1)
    assert (drawn.follows < 0).sum() == 3
    # Every session has 100 jobs: no job is followed twice, and chains end at the first jobs.
    lengths = np.zeros(300, int)
    for place, before in enumerate(drawn.follows.tolist()):
        lengths[place] = 1 if before < 0 else lengths[before] + 1
    assert sorted(lengths)[-3:] == [100, 100, 100]
    assert set(drawn.pause_ms[drawn.follows >= 0].tolist()) == {40, 80}
    # The arrivals are those of jobs that never wait.
    for place, before in enumerate(drawn.follows.tolist()):
        if before >= 0:
            ready = drawn.arrival_ms[before] + drawn.jobs[before].work_ms
            assert drawn.arrival_ms[place] == ready + drawn.pause_ms[place]
    assert drawn.arrivals == "sessions"


def test_a_load_is_a_number_of_sessions() -> None:
    thinking = _thinking(200)
    # A session has 200 ms of work on average in every 400 ms: half a core.
    config = _ONE_CORE.model_copy(update={"num_executors": 4})
    sessions = ArrivalProcess.parse("sessions:load:0.5")
    assert sessions.num_sessions(thinking, 4) == 4
    assert offered_load(thinking, config, "sessions:4") == 0.5
    drawn = thinking.draw(40, "sessions:load:0.5", config, seed=1)
    assert (drawn.follows < 0).sum() == 4


@pytest.mark.parametrize(
    ("arrivals", "what"),
    [
        ("sessions:0", "are not understood"),
        ("sessions:load:0", "are not understood"),
        ("sessions", "knows of no sessions"),
    ],
)
def test_unknown_sessions_are_refused(arrivals: str, what: str) -> None:
    plain = Workload("plain", (job("a", (1, 100, ())),))
    with pytest.raises(ConfigError, match=what):
        plain.draw(5, arrivals, _ONE_CORE, seed=0)
    # Without recorded pauses there are none.
    assert not plain.draw(5, "sessions:2", _ONE_CORE, seed=0).pause_ms.any()


@pytest.mark.parametrize(
    ("follows", "pause_ms"),
    [([-1, 1], [0, 0]), ([-1, -2], [0, 0]), ([-1, 0], [0, -1]), ([-1], [0]), ([-1, 0], [])],
)
def test_sessions_that_cannot_be_are_refused(follows: list[int], pause_ms: list[int]) -> None:
    pair = Workload("pair", (job("a", (1, 100, ())), job("b", (1, 100, ()))))
    arrays = {"follows": np.array(follows), "pause_ms": np.array(pause_ms)}
    with pytest.raises(WorkloadError):
        JobSequence(pair, np.arange(2), np.zeros(2, np.int64), **arrays)


def test_fingerprints_have_sessions_only_where_there_are_some() -> None:
    assert fingerprint(_thinking()) != fingerprint(_thinking(5))
