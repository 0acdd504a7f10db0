"""Messages, frames and proofs; the fixtures are those that a client's tests read, too."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parcae.base.errors import ProtocolError
from parcae.service.protocol import (
    Events,
    FrameReader,
    JobArrived,
    JobEnded,
    JobOrder,
    OrdersMessage,
    Ping,
    StageOrder,
    StateMessage,
    decode_client_message,
    decode_server_message,
    encode,
    frame,
    is_proof,
    proof_mac,
)
from tests.conftest import REPOSITORY
from tests.service.speaking import job_of

_FIXTURES = REPOSITORY / "protocol" / "fixtures"


def _fixtures(folder: str) -> list[Path]:
    return sorted((_FIXTURES / folder).glob("*.json"))


@pytest.mark.parametrize(
    ("side", "decode", "kinds"),
    [
        ("client", decode_client_message, "bye events hello ping proof state"),
        ("service", decode_server_message, "challenge error orders pong welcome"),
    ],
)
def test_every_message_survives_the_way_there_and_back(
    side: str, decode: Callable[[bytes], Any], kinds: str
) -> None:
    paths = _fixtures(side)
    assert sorted({path.stem.partition("-")[0] for path in paths}) == kinds.split()
    for path in paths:
        message = decode(path.read_bytes())
        assert message.type == path.stem.partition("-")[0]
        assert json.loads(encode(message)) == json.loads(path.read_bytes())


@pytest.mark.parametrize("path", _fixtures("invalid"), ids=lambda path: path.stem)
def test_an_invalid_message_is_refused_with_its_code(path: Path) -> None:
    fixture = json.loads(path.read_bytes())
    with pytest.raises(ProtocolError) as refused:
        decode_client_message(fixture["payload"].encode())
    assert refused.value.code == fixture["code"], fixture["why"]


def test_a_refusal_names_the_field() -> None:
    fixture = json.loads((_FIXTURES / "invalid" / "negative-count.json").read_text())
    with pytest.raises(ProtocolError, match=r"events\.events\.0\.tasks\.started"):
        decode_client_message(fixture["payload"].encode())


def test_a_frame_is_a_big_endian_length_and_the_payload() -> None:
    assert frame(b"{}") == b"\x00\x00\x00\x02{}"
    with pytest.raises(ProtocolError, match="the limit is 3"):
        frame(b"four", max_bytes=3)


def test_an_oversized_frame_is_refused_before_it_is_read() -> None:
    reader = FrameReader(max_bytes=10)
    with pytest.raises(ProtocolError, match="11 bytes; the limit is 10"):
        list(reader.feed(b"\x00\x00\x00\x0b"))


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 7))
def test_frames_are_the_same_however_the_stream_is_cut(payloads: list[bytes], size: int) -> None:
    stream = b"".join(map(frame, payloads))
    reader = FrameReader()
    read = [
        payload
        for start in range(0, len(stream), size)
        for payload in reader.feed(stream[start : start + size])
    ]
    assert read == payloads
    assert reader.num_waiting == 0


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_never_crashes(payload: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        message = decode_client_message(payload)
        assert decode_client_message(encode(message)) == message


def test_deep_nesting_and_lone_surrogates_are_refused() -> None:
    for payload in (
        b"[" * 100_000,
        b'{"type":"ping","seq":1,"x":"\\ud800"}',
        b'{"type":"ping","seq":1e400}',
        b"\xff\xfe",
    ):
        with pytest.raises(ProtocolError):
            decode_client_message(payload)


def test_the_two_proofs_differ_and_depend_on_all_that_they_cover() -> None:
    first = proof_mac(b"secret", "client", "nonce-of-client-1", "nonce-of-service", "app")
    assert first == "6f22178354a7833f4945a34b00a3c013f11b2e00e6c4ee878df0f30edc9caeba"
    same = ("secret", "client", "nonce-of-client-1", "nonce-of-service", "app")
    changed = ("secreT", "service", "nonce-of-client-2", "nonce-of-servicf", "apq")
    others = []
    for place, value in enumerate(changed):
        secret, *names = (*same[:place], value, *same[place + 1 :])
        others.append(proof_mac(secret.encode(), *names))  # type: ignore[arg-type]
    assert len({first, *others}) == 6
    assert is_proof(first, first)
    assert not any(is_proof(other, first) for other in others)


def test_events_without_events_tell_that_time_passed() -> None:
    message = decode_client_message(b'{"type":"events","seq":1,"clock_ms":5}')
    assert message == Events(seq=1, clock_ms=5)
    assert decode_client_message(encode(Ping(seq=7))) == Ping(seq=7)


def test_what_is_encoded_in_parts_is_the_message() -> None:
    jobs = tuple(job_of(f"j{n}", (3, ()), (1, (0,)), name='"jobs":[]') for n in range(150))
    long = job_of("long", *[(1, ())] * 150, name='"stages":[]')
    orders = OrdersMessage(
        seq=None,
        jobs=tuple(JobOrder(job_id=job.job_id, tier=1.5, weight=0.0, limit=None) for job in jobs),
        stages=tuple(
            StageOrder(job_id="j1", stage_id=n, tier=0.0, rank=n, limit=None) for n in range(150)
        ),
        other_tier=2.0,
        executors=3,
    )
    events = (*(JobArrived(job=job) for job in (*jobs, long)), JobEnded(job_id="j1"))
    for message in (
        StateMessage(seq=1, clock_ms=0, cores=4, jobs=(*jobs, long)),
        Events(seq=1, clock_ms=0, cores=4, events=events),
        Events(seq=1, clock_ms=0, events=()),
        orders,
    ):
        assert encode(message) == message.model_dump_json().encode()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("[[], [1], []]", "Extra inputs"),
        ('{"a": "}", "b": ["]", {}]}', "Extra inputs"),
        (f"[[], {[1] * 100_000}]", "Expecting"),
        (f'{{"a": "}}", "b": {[1] * 100_000}}}', "Expecting"),
        (str([1] * 100_000), "a value that is too large"),
    ],
    ids=["lists", "closing texts", "a long list inside", "a long list behind", "a long list"],
)
def test_no_large_value_is_read_at_once(value: str, why: str) -> None:
    head = f'{{"type": "state", "seq": 1, "clock_ms": 0, "cores": 4, "unknown": {value}, '
    payload = head + '"jobs": []' + " " * 100_000 + "}"
    with pytest.raises(ProtocolError, match=why):
        decode_client_message(payload.encode())
