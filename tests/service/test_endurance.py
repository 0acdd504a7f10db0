"""What must hold for days: memory does not grow with the jobs, and slow clients are dropped."""

from __future__ import annotations

import gc
import time
import tracemalloc
from pathlib import Path

import pytest

from parcae.service.admin import Board
from parcae.service.client import Client
from parcae.service.jobs import DurationModel
from parcae.service.learned import LearnedDurations
from parcae.service.protocol import Error, JobArrived, JobEnded, encode, frame
from parcae.service.record import Recorder
from tests.service.running import hello, serving
from tests.service.speaking import Speaker, began, ended, job_of, service_of


def _run_jobs(speaker: Speaker, first: int, last: int) -> None:
    """Let jobs arrive, run and end one after another; ten names recur."""
    for number in range(first, last):
        job_id = f"job-{number}"
        job = job_of(job_id, (3, ()), (2, (0,)), name=f"nightly-{number % 10}")
        reply = speaker.events(number * 10, JobArrived(job=job), began(job_id, 0, 3))
        assert not isinstance(reply, Error), reply
        reply = speaker.events(
            number * 10 + 5,
            ended(job_id, 0, 3, 30),
            began(job_id, 1, 2),
            ended(job_id, 1, 2, 20),
            JobEnded(job_id=job_id),
        )
        assert not isinstance(reply, Error), reply


def _bytes_after(speaker: Speaker, first: int, last: int) -> int:
    _run_jobs(speaker, first, last)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
def test_memory_does_not_grow_with_twenty_thousand_jobs(tmp_path: Path) -> None:
    # Beside the recorder, the live page and what learns durations.
    service = service_of(duration_model=DurationModel(None, learned=LearnedDurations()))
    service.watchers += [Board(service), Recorder(tmp_path / "recording", 1 << 20)]
    speaker = Speaker(service)
    speaker.state(8)
    tracemalloc.start()
    try:
        # By then the list of the last ended jobs is full, and the tables have their size. Both
        # counts are multiples of 300, after which the live page forgets what it does not draw.
        before = _bytes_after(speaker, 0, 6_000)
        after = _bytes_after(speaker, 6_000, 20_100)
    finally:
        tracemalloc.stop()
    assert len(service.watchers) == 2, "a watcher has failed"
    # Tables that are repacked now and then differ by half a megabyte; one object that is left of
    # each job would be more.
    assert after - before < 48 * 14_000, (before, after)


def _drip(client: Client, data: bytes) -> None:
    """Send ten bytes a second."""
    for byte in data:
        client.socket.sendall(bytes([byte]))
        time.sleep(0.1)


def test_a_client_that_sends_a_byte_at_a_time_is_dropped_in_time() -> None:
    with serving(hello_timeout_s=0.5) as server, Client("127.0.0.1", server.port) as client:
        with pytest.raises(ConnectionError):
            _drip(client, frame(encode(hello("drip"))))
        assert "drip" not in server.service.sessions
