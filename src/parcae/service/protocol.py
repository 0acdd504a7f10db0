"""The wire protocol, version 2: messages and proofs, as pure functions on bytes.

Every message is one JSON object in UTF-8 whose `type` names the kind of message; `frames` divides a
stream of bytes into messages. Unknown keys are refused and sizes are limited. Clients send events
and receive standing orders. `protocol/README.md` describes the protocol for authors of clients.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import re
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from parcae.base.errors import ProtocolError
from parcae.service.turns import make_way, paced

_DECODE_AT = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")
#: Largest value that is decoded in one call, in characters: 10,000 parents of a stage fit.
_LARGEST_PIECE = 200_000


@dataclass(frozen=True)
class Shape:
    """An object that is read key by key."""

    adapter: TypeAdapter[Any]
    inner: Mapping[str, Shape] = field(default_factory=dict)
    lists: Mapping[str, int] = field(default_factory=dict)
    stand_in: Mapping[str, Any] = field(default_factory=dict)

    def read(self, text: str) -> Any:
        """Read the text of an object."""
        value, at = self._read_at(text, _skip(text, 0))
        if text[at:].strip():
            raise ValueError("text behind the object")
        return value

    def _read_at(self, text: str, at: int) -> tuple[Any, int]:
        """Read the object at a position. Returns it and the position behind it."""
        make_way()
        if not self.inner:
            end = _end_of(text, at)
            return self.adapter.validate_json(text[at:end]), end
        fields: dict[str, Any] = {}
        read: dict[str, Any] = {}
        at = _skip(text, at, "{")
        while text[at] != "}":
            key, at = _DECODE_AT(text, at)
            at = _skip(text, at, ":")
            shape = self.inner.get(key)
            if shape is None:
                end = _end_of(text, at)
                fields[key] = json.loads(text[at:end])
                at = end
            elif key in self.lists:
                read[key], at = _list_at(text, at, shape, self.lists[key])
                # Some lists must not be empty; the stand-in's elements are replaced.
                fields[key] = [shape.stand_in] if read[key] else []
            else:
                read[key], at = shape._read_at(text, at)
                fields[key] = shape.stand_in
            at = _next(text, at, "}")
        message: BaseModel = self.adapter.validate_json(json.dumps(fields))
        return message.model_copy(update=read), at + 1


def _list_at(text: str, at: int, shape: Shape, most: int) -> tuple[tuple[Any, ...], int]:
    """Read the list of objects at a position. Returns them and the position behind the list."""
    elements = []
    at = _skip(text, at, "[")
    while text[at] != "]":
        element, at = shape._read_at(text, at)
        elements.append(element)
        at = _next(text, at, "]")
    if len(elements) > most:
        raise ValueError(f"{len(elements)} elements")
    return tuple(elements), at + 1


def _end_of(text: str, at: int) -> int:
    """The position behind the value at a position, which must be small."""
    closing = {"{": "}", "[": "]"}.get(text[at])
    if closing is None:
        return _DECODE_AT(text, at)[1]
    last = at + _LARGEST_PIECE
    end = text.find(closing, at, last)
    if end < 0:
        raise ValueError("a value that is too large")
    with contextlib.suppress(json.JSONDecodeError):
        return at + _DECODE_AT(text[at : end + 1], 0)[1]
    # That was the end of something inside it.
    return at + _DECODE_AT(text[at:last], 0)[1]


def _next(text: str, at: int, end: str) -> int:
    """The position of the next element, or of the `end` if there is no comma before it."""
    at = _skip(text, at)
    if text[at] == end:
        return at
    at = _skip(text, at, ",")
    if text[at] == end:
        raise ValueError("a comma without an element")
    return at


def _skip(text: str, at: int, expected: str = "") -> int:
    """The position of the next character that is no white space, behind an expected one."""
    if expected:
        if text[at] != expected:
            raise ValueError(f"{expected!r} is missing")
        at += 1
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


PROTOCOL_VERSION = 2
SUPPORTED_VERSIONS = (2,)
_LARGEST = 1 << 53  # integers up to this are exact in a double, the number type of JSON
_MOST_TASKS = 10_000_000
MOST_STAGES = 10_000  # of one job
LONGEST_NAME = 256  # characters
_MOST_CORES = 1 << 17
_MOST_ELEMENTS = 100_000  # jobs of a state, events of a message

Seq = Annotated[int, Field(ge=0, lt=_LARGEST)]
Time = Annotated[int, Field(ge=0, lt=_LARGEST)]
Tasks = Annotated[int, Field(ge=0, le=_MOST_TASKS)]
StageId = Annotated[int, Field(ge=0, lt=_LARGEST)]
Text = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
JobName = Annotated[str, Field(max_length=LONGEST_NAME)]
Nonce = Annotated[str, Field(min_length=16, max_length=128, pattern=r"^[!-~]+$")]
Mac = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Code(StrEnum):
    """The codes of `error` messages."""

    BAD_MESSAGE = "bad_message"  # not JSON, an unknown type or key, or a value out of range
    BAD_PROTOCOL = "bad_protocol"  # an unsupported protocol version
    TOO_LARGE = "too_large"  # a frame, or an application, above the size limit
    DENIED = "denied"  # a wrong or missing proof
    UNEXPECTED = "unexpected"  # a message that is not allowed now, e.g. a second hello
    SEQUENCE = "sequence"  # a request number that is not larger than the last
    CLOCK = "clock"  # a clock that went backwards
    NO_STATE = "no_state"  # the service has no state of this application: send `state`
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_STAGE = "unknown_stage"
    DUPLICATE_JOB = "duplicate_job"
    DUPLICATE_STAGE = "duplicate_stage"
    BAD_JOB = "bad_job"  # a cycle, an unknown parent, or more tasks started or ended than exist
    REPLACED = "replaced"  # a newer connection of this application replaced this one
    BUSY = "busy"  # too many connections
    TIMEOUT = "timeout"  # the client was silent for too long, or did not read its replies
    CLOSING = "closing"  # the service shuts down
    INTERNAL = "internal"  # an internal error of the service; see its log


#: After these errors the client sends `state` and continues; after others the connection closes.
RECOVERED_BY_STATE = frozenset(
    {
        Code.SEQUENCE,
        Code.CLOCK,
        Code.NO_STATE,
        Code.UNKNOWN_JOB,
        Code.UNKNOWN_STAGE,
        Code.DUPLICATE_JOB,
        Code.DUPLICATE_STAGE,
        Code.BAD_JOB,
        Code.INTERNAL,
    }
)


class Then(StrEnum):
    """What happens after an `error`."""

    CLOSE = "close"  # the service closes the connection
    STATE = "state"  # the service dropped this application's jobs: send `state`


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StageMessage(_Message):
    """A stage: `tasks` similar tasks that can run when the stages `parents` have ended."""

    stage_id: StageId
    tasks: Annotated[int, Field(ge=1, le=_MOST_TASKS)]
    parents: Annotated[tuple[StageId, ...], Field(max_length=MOST_STAGES)] = ()
    input_bytes: Annotated[int, Field(ge=0, lt=_LARGEST)] | None = None
    started: Tasks = 0
    finished: Tasks = 0
    executed_ms: Time = 0
    is_ended: bool = False


class JobMessage(_Message):
    """A job: the work whose end a user waits for."""

    job_id: Text
    names: Annotated[tuple[JobName, ...], Field(max_length=16)]
    arrival_ms: Time
    is_open: bool = True
    stages: Annotated[tuple[StageMessage, ...], Field(max_length=MOST_STAGES)]


class JobArrived(_Message):
    """A job was submitted, with the part of its DAG that is known."""

    type: Literal["job_arrived"] = "job_arrived"
    job: JobMessage


class StagesAdded(_Message):
    """A job has more stages; their parents may be old or new stages."""

    type: Literal["stages_added"] = "stages_added"
    job_id: Text
    stages: Annotated[tuple[StageMessage, ...], Field(min_length=1, max_length=MOST_STAGES)]


class StageChanged(_Message):
    """The number of tasks of a stage changed."""

    type: Literal["stage_changed"] = "stage_changed"
    job_id: Text
    stage_id: StageId
    tasks: Annotated[int, Field(ge=1, le=_MOST_TASKS)]


class TasksReported(_Message):
    """Numbers of tasks of a stage that started, finished or failed since its last report.

    Failed tasks are those that will be retried. `executed_ms` is the sum of the durations of the
    finished tasks.
    """

    type: Literal["tasks"] = "tasks"
    job_id: Text
    stage_id: StageId
    started: Tasks = 0
    finished: Tasks = 0
    failed: Tasks = 0
    executed_ms: Time = 0


class StageEnded(_Message):
    """No more tasks of the stage will run: it is complete, skipped or cancelled."""

    type: Literal["stage_ended"] = "stage_ended"
    job_id: Text
    stage_id: StageId


class StageBegunAgain(_Message):
    """`tasks` finished tasks of the stage must run again."""

    type: Literal["stage_begun_again"] = "stage_begun_again"
    job_id: Text
    stage_id: StageId
    tasks: Annotated[int, Field(ge=1, le=_MOST_TASKS)]


class JobEnded(_Message):
    """A job ended, successfully or not."""

    type: Literal["job_ended"] = "job_ended"
    job_id: Text
    is_failed: bool = False


Event = Annotated[
    JobArrived
    | StagesAdded
    | StageChanged
    | TasksReported
    | StageEnded
    | StageBegunAgain
    | JobEnded,
    Field(discriminator="type"),
]


class Hello(_Message):
    """The client introduces its application; a service with a secret requires the nonce."""

    type: Literal["hello"] = "hello"
    protocol: int
    application_id: Text
    application_name: Annotated[str, Field(max_length=256)] | None = None
    nonce: Nonce | None = None


class Proof(_Message):
    """The client's answer to a challenge."""

    type: Literal["proof"] = "proof"
    mac: Mac


class StateMessage(_Message):
    """The whole state of the application; replaces all that the service has of it."""

    type: Literal["state"] = "state"
    seq: Seq
    clock_ms: Time
    cores: Annotated[int, Field(ge=0, le=_MOST_CORES)]
    jobs: Annotated[tuple[JobMessage, ...], Field(max_length=_MOST_ELEMENTS)]


class Events(_Message):
    """Events in the order in which they happened; an empty list reports that time passed."""

    type: Literal["events"] = "events"
    seq: Seq
    clock_ms: Time
    cores: Annotated[int, Field(ge=0, le=_MOST_CORES)] | None = None
    events: Annotated[tuple[Event, ...], Field(max_length=_MOST_ELEMENTS)] = ()


def arriving(message: StateMessage | Events) -> Iterable[JobMessage]:
    """The jobs that come with a message."""
    if isinstance(message, StateMessage):
        return message.jobs
    return (event.job for event in message.events if isinstance(event, JobArrived))


class Ping(_Message):
    """Asks the service for a `pong`."""

    type: Literal["ping"] = "ping"
    seq: Seq


class Bye(_Message):
    """The application ends."""

    type: Literal["bye"] = "bye"


class Challenge(_Message):
    """The service asks for a proof that the client knows the secret."""

    type: Literal["challenge"] = "challenge"
    nonce: Nonce


class Welcome(_Message):
    """The session is open; the client sends `state` next."""

    type: Literal["welcome"] = "welcome"
    protocol: int
    session: Text
    policy: Text
    mac: Mac | None = None  # after a challenge: proof that the service knows the secret


class JobOrder(_Message):
    """The order of one job."""

    job_id: Text
    tier: float
    weight: float = 0.0
    limit: int | None = None


class StageOrder(_Message):
    """The order of one stage; its tier is added to the tier of its job."""

    job_id: Text
    stage_id: StageId
    tier: float = 0.0
    rank: float = 0.0
    limit: int | None = None


class OrdersMessage(_Message):
    """The complete standing order; it replaces the last one.

    Task sets are sorted by (job tier + stage tier, running tasks of the job / weight, order of the
    job's arrival, rank, stage_id), and the smallest is served first.
    """

    type: Literal["orders"] = "orders"
    seq: Seq | None
    jobs: tuple[JobOrder, ...]
    stages: tuple[StageOrder, ...] = ()
    other_tier: float
    wake_ms: Time | None = None
    executors: int | None = None


class Pong(_Message):
    """The reply to `ping`."""

    type: Literal["pong"] = "pong"
    seq: Seq


class Error(_Message):
    """A message was refused; `then` says what happens next."""

    type: Literal["error"] = "error"
    code: Code
    message: str
    then: Then
    seq: Seq | None = None


ClientMessage = Hello | Proof | StateMessage | Events | Ping | Bye
ServerMessage = Challenge | Welcome | OrdersMessage | Pong | Error

_FROM_CLIENT: TypeAdapter[ClientMessage] = TypeAdapter(
    Annotated[ClientMessage, Field(discriminator="type")]
)
_FROM_SERVER: TypeAdapter[ServerMessage] = TypeAdapter(
    Annotated[ServerMessage, Field(discriminator="type")]
)
#: The lists of messages, and how many parts are encoded at once.
_LISTS = ("events", "jobs", "stages")
_FEW = 100
#: Larger messages are read piece by piece.
_LARGE_BYTES = 64 << 10
_STAGE = Shape(TypeAdapter(StageMessage), stand_in={"stage_id": 0, "tasks": 1})
_JOB = Shape(
    TypeAdapter(JobMessage),
    {"stages": _STAGE},
    {"stages": MOST_STAGES},
    {"job_id": "x", "names": [], "arrival_ms": 0, "stages": []},
)
_EVENT = Shape(
    TypeAdapter(Event),
    {"job": _JOB, "stages": _STAGE},
    {"stages": MOST_STAGES},
    {"type": "job_ended", "job_id": "x"},
)
_MESSAGE = Shape(
    _FROM_CLIENT,
    {"jobs": _JOB, "events": _EVENT},
    {"jobs": _MOST_ELEMENTS, "events": _MOST_ELEMENTS},
)


def _refused(error: ValidationError) -> ProtocolError:
    """The first validation error as an error of the protocol."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the message"
    return ProtocolError(Code.BAD_MESSAGE, f"{where}: {first['msg']} (see protocol/README.md)")


def _check_version(protocol: object) -> None:
    if protocol not in SUPPORTED_VERSIONS:
        supported = ", ".join(map(str, SUPPORTED_VERSIONS))
        raise ProtocolError(
            Code.BAD_PROTOCOL,
            f"this service supports protocol {supported}, not {protocol!r}: use plugin and service "
            "from the same version of Parcae",
        )


def decode_client_message(payload: bytes) -> ClientMessage:
    """Decode a message of a client.

    Example: `decode_client_message(b'{"type":"ping","seq":7}')` is `Ping(seq=7)`.
    """
    message: ClientMessage
    try:
        if len(payload) > _LARGE_BYTES:
            message = _MESSAGE.read(payload.decode())
        else:
            message = _FROM_CLIENT.validate_json(payload)
    except ValidationError as error:
        # The version comes first: the rest of a hello may not fit this one. No hello is large.
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(payload[:_LARGE_BYTES])
            if isinstance(content, dict) and content.get("type") == "hello":
                _check_version(content.get("protocol"))
        raise _refused(error) from None
    except (ValueError, IndexError, TypeError, RecursionError) as error:
        raise ProtocolError(
            Code.BAD_MESSAGE, f"the message: {error} (see protocol/README.md)"
        ) from None
    if isinstance(message, Hello):
        _check_version(message.protocol)
    return message


def decode_server_message(payload: bytes) -> ServerMessage:
    """Decode a message of the service."""
    try:
        return _FROM_SERVER.validate_json(payload)
    except ValidationError as error:
        raise _refused(error) from None


def encode(message: BaseModel) -> bytes:
    """The message, or a part of it, as UTF-8 JSON; others go on between parts of a large one."""
    lists = {name: getattr(message, name, ()) for name in _LISTS}
    long = {name: parts for name, parts in lists.items() if len(parts) > _FEW}
    rest = message.model_copy(update=dict.fromkeys(long, ())) if long else message
    encoded = message.__pydantic_serializer__.to_json(rest)
    for name, parts in long.items():
        before, empty, after = encoded.partition(b'"%s":[]' % name.encode())
        encoded = b"".join((before, empty[:-1], b",".join(map(encode, paced(parts))), b"]", after))
    return encoded


def new_nonce() -> str:
    """A new random nonce: 32 hex digits."""
    return secrets.token_hex(16)


def proof_mac(
    secret: bytes,
    side: Literal["client", "service"],
    client_nonce: str,
    service_nonce: str,
    application_id: str,
) -> str:
    """The proof that one side knows the secret: HMAC-SHA256, in lower-case hex.

    It is computed over "parcae 2", the side, both nonces and the application id, each followed by a
    zero byte.
    """
    parts = ("parcae 2", side, client_nonce, service_nonce, application_id)
    return hmac.new(secret, b"".join(part.encode() + b"\0" for part in parts), "sha256").hexdigest()


def is_proof(mac: str, expected: str) -> bool:
    """Whether two proofs are equal, compared in constant time."""
    return hmac.compare_digest(mac.encode(), expected.encode())


#: Default limit on the size of a frame.
MAX_FRAME_BYTES = 4 << 20
_HEADER = struct.Struct(">I")


def frame(payload: bytes, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The frame of a payload: its length, then the payload.

    Example: `frame(b"{}")` is `b"\\x00\\x00\\x00\\x02{}"`.
    """
    if len(payload) > max_bytes:
        raise ProtocolError(
            Code.TOO_LARGE, f"a message of {len(payload)} bytes; the limit is {max_bytes}"
        )
    return _HEADER.pack(len(payload)) + payload


class FrameReader:
    """Splits a stream of bytes into the payloads of its frames.

    Example: `FrameReader().feed(b"\\x00\\x00\\x00\\x02{}")` is `[b"{}"]`.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def num_waiting(self) -> int:
        """Number of bytes that were not taken."""
        return len(self._buffer)

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self._buffer += data

    def take(self) -> bytes | None:
        """The next payload, or None if it is not complete yet."""
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        if length > self.max_bytes:
            raise ProtocolError(
                Code.TOO_LARGE, f"a frame of {length} bytes; the limit is {self.max_bytes}"
            )
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return payload

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes and yield the payloads that are complete now.

        `max_bytes` may change between two payloads.
        """
        self.add(data)
        while (payload := self.take()) is not None:
            yield payload
