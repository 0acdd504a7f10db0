"""The wire protocol, version 1: messages, framing and proofs, as pure functions on bytes.

A frame is a 4-byte big-endian length and as many bytes of UTF-8 JSON. Every message is one JSON object whose `type` names it;
unknown keys are refused and sizes are bounded. `protocol/README.md` tells it to whoever writes a client.
"""

from __future__ import annotations

import hmac
import json
import secrets
import struct
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from parcae.errors import ProtocolError

PROTOCOL_VERSION = 1
SPOKEN_VERSIONS = (1,)
#: Largest frame that is read unless the server is told otherwise.
MAX_FRAME_BYTES = 8 << 20
_HEADER = struct.Struct(">I")
_LARGEST_TIME_MS = 1 << 53  # what a double in JSON holds exactly

Id = Annotated[int, Field(ge=0, lt=1 << 53)]
Time = Annotated[int, Field(ge=0, lt=_LARGEST_TIME_MS)]
Text = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
Nonce = Annotated[str, Field(min_length=16, max_length=128, pattern=r"^[!-~]+$")]
Mac = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Code(StrEnum):
    """What an `error` message may say."""

    BAD_MESSAGE = "bad_message"  # not JSON, not one of the messages, an unknown key, a value out of range
    BAD_PROTOCOL = "bad_protocol"  # a version that is not spoken
    TOO_LARGE = "too_large"  # a frame above the limit
    DENIED = "denied"  # a wrong proof, or none
    UNEXPECTED = "unexpected"  # a message that has no place here, e.g. a second hello
    SEQUENCE = "sequence"  # a request number that does not rise
    CLOCK = "clock"  # a clock that runs backwards
    RESYNC = "resync"  # the service has no picture of this cluster, or a wrong one: send `sync`
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_STAGE = "unknown_stage"
    UNKNOWN_SLOT = "unknown_slot"
    WRONG_SLOT = "wrong_slot"  # the slot does not do what the event says
    DUPLICATE_JOB = "duplicate_job"
    DUPLICATE_STAGE = "duplicate_stage"
    DUPLICATE_SLOT = "duplicate_slot"
    BAD_JOB = "bad_job"  # a cycle, a parent that does not exist, more tasks finished than there are, a stage that fits no slot
    BAD_SLOT = "bad_slot"  # sizes of slots that contradict each other, or too many different ones
    REPLACED = "replaced"  # a newer connection speaks for this application
    BUSY = "busy"  # too many connections
    TIMEOUT = "timeout"  # silent for too long, or does not read
    CLOSING = "closing"  # the service shuts down
    INTERNAL = "internal"  # our bug; the log tells more


class Then(StrEnum):
    """What follows an `error`."""

    CLOSE = "close"  # the connection is closed
    SYNC = "sync"  # the service forgot this application's state: send `sync`


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StageMessage(_Message):
    """A stage of a job: `tasks` alike tasks that may run once all tasks of its `parents` are done."""

    stage_id: Id
    tasks: Annotated[int, Field(ge=1, le=10_000_000)]
    parents: Annotated[tuple[Id, ...], Field(max_length=10_000)] = ()
    cpu: Annotated[float, Field(ge=0)] = 0.0  # cores that a task needs; 0 fits everywhere
    memory: Annotated[float, Field(ge=0)] = 0.0  # memory that it needs, in the unit of the slots'
    task_ms: Annotated[float, Field(ge=0, le=_LARGEST_TIME_MS)] | None = None  # mean duration, where the client knows it
    finished: Annotated[int, Field(ge=0)] = 0  # tasks that are done; only in `sync`


class JobMessage(_Message):
    """A job; `name` is that of the recurring job, by which durations are looked up and learned."""

    job_id: Id
    name: Annotated[str, Field(max_length=256)] = ""
    arrival_ms: Time
    is_open: bool = False  # more stages may be added at any time: it ends by `job_ended` only
    stages: Annotated[tuple[StageMessage, ...], Field(min_length=1, max_length=10_000)]


class SlotMessage(_Message):
    """A slot and what it does: `running` a task of a stage, `moving` to a stage, or `idle` (at a job, or at none).

    Its size is its cores and its memory, 1 being that of the largest slot; without one it holds every demand.
    """

    slot: Id
    state: Literal["idle", "running", "moving"] = "idle"
    job_id: Id | None = None
    stage_id: Id | None = None
    cpu: Annotated[float, Field(gt=0)] | None = None
    memory: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _has_a_whole_size(self) -> SlotMessage:
        if (self.cpu is None) != (self.memory is None):
            raise ValueError("a slot has cpu and memory, or neither")
        return self

    @model_serializer(mode="wrap")
    def _without_a_blank_size(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Services that know no sizes refuse the keys."""
        fields: dict[str, Any] = write(self)
        if self.cpu is None:
            del fields["cpu"], fields["memory"]
        return fields


class JobArrived(_Message):
    """A job was submitted: its whole DAG, or, of an open job, what is known of it."""

    kind: Literal["job_arrived"] = "job_arrived"
    job: JobMessage


class StagesAdded(_Message):
    """Adaptive execution revealed more stages of a job; parents may be old ones or new ones."""

    kind: Literal["stages_added"] = "stages_added"
    job_id: Id
    stages: Annotated[tuple[StageMessage, ...], Field(min_length=1, max_length=10_000)]


class TaskFinished(_Message):
    """A slot finished a task. Where its stage has more to start, the slot has already begun the next."""

    kind: Literal["task_finished"] = "task_finished"
    slot: Id
    job_id: Id
    stage_id: Id
    duration_ms: Time


class TaskFailed(_Message):
    """A task failed and is tried again on the same slot."""

    kind: Literal["task_failed"] = "task_failed"
    slot: Id
    job_id: Id
    stage_id: Id


class SlotArrived(_Message):
    """A slot arrived where it was told to move."""

    kind: Literal["slot_arrived"] = "slot_arrived"
    slot: Id


class JobEnded(_Message):
    """A job was cancelled or failed before all of its tasks were done, or an open job is over."""

    kind: Literal["job_ended"] = "job_ended"
    job_id: Id
    is_failed: bool = False


Event = Annotated[JobArrived | StagesAdded | TaskFinished | TaskFailed | SlotArrived | JobEnded, Field(discriminator="kind")]


class Hello(_Message):
    """The client says who it is."""

    type: Literal["hello"] = "hello"
    protocol: int
    application_id: Text
    application_name: Annotated[str, Field(max_length=256)] = ""
    client: Annotated[str, Field(max_length=256)] = ""
    nonce: Nonce


class Proof(_Message):
    """The client's answer to a challenge."""

    type: Literal["proof"] = "proof"
    mac: Mac


class Sync(_Message):
    """Everything that the client knows: the service forgets what it knew of this application."""

    type: Literal["sync"] = "sync"
    seq: Id
    clock_ms: Time
    slots: Annotated[tuple[SlotMessage, ...], Field(min_length=1, max_length=100_000)]
    jobs: Annotated[tuple[JobMessage, ...], Field(max_length=100_000)] = ()
    has_instant_moves: bool = False  # a slot that is told to move is there at once; no `slot_arrived` is sent


class Events(_Message):
    """What happened, in order; without events, only time passed."""

    type: Literal["events"] = "events"
    seq: Id
    clock_ms: Time
    events: Annotated[tuple[Event, ...], Field(max_length=100_000)] = ()


class Ping(_Message):
    """Is the service there?"""

    type: Literal["ping"] = "ping"
    seq: Id


class Bye(_Message):
    """The application ends."""

    type: Literal["bye"] = "bye"


class Challenge(_Message):
    """The service wants a proof that the client knows the secret."""

    type: Literal["challenge"] = "challenge"
    nonce: Nonce


class Welcome(_Message):
    """The session is open; `sync` comes next."""

    type: Literal["welcome"] = "welcome"
    protocol: int
    session: Text
    policy: Text
    timeout_ms: Time  # a client that waits longer for a reply schedules by itself and asks again later
    mac: Mac | None = None  # the service's own proof, after a challenge


class Command(_Message):
    """What a slot is to do.

    start: work for the stage, task after task. move: go to the stage of another job. idle: wait. release: leave the
    application; another one gets the slot.
    """

    kind: Literal["start", "move", "idle", "release"]
    slot: Id
    job_id: Id | None = None
    stage_id: Id | None = None


class StageSlots(_Message):
    """So many slots work for the stage: as many of its tasks may run at once."""

    job_id: Id
    stage_id: Id
    slots: Id


class Commands(_Message):
    """The reply to `sync` and `events`. `seq` is that of the request; null where the service speaks by itself."""

    type: Literal["commands"] = "commands"
    seq: Id | None
    commands: tuple[Command, ...] = ()
    stages: tuple[StageSlots, ...] = ()  # those whose number of slots changed, the last chosen first; after `sync`, all
    wake_ms: Time | None = None  # send `events` (empty, if nothing happened) when the clock gets there


class Pong(_Message):
    """The reply to `ping`."""

    type: Literal["pong"] = "pong"
    seq: Id


class Error(_Message):
    """A request was refused; `then` says what follows."""

    type: Literal["error"] = "error"
    code: Code
    message: str
    then: Then
    seq: Id | None = None


ClientMessage = Hello | Proof | Sync | Events | Ping | Bye
ServerMessage = Challenge | Welcome | Commands | Pong | Error

_FROM_CLIENT: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[ClientMessage, Field(discriminator="type")])
_FROM_SERVER: TypeAdapter[ServerMessage] = TypeAdapter(Annotated[ServerMessage, Field(discriminator="type")])


def _refused(error: ValidationError) -> ProtocolError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the message"
    return ProtocolError(Code.BAD_MESSAGE, f"{where}: {first['msg']} (see protocol/README.md)")


def _check_version(payload: bytes) -> None:
    """A hello of another version is told so, whatever else is in it."""
    try:
        message: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return
    if not isinstance(message, dict) or message.get("type") != "hello" or message.get("protocol") in SPOKEN_VERSIONS:
        return
    spoken = ", ".join(map(str, SPOKEN_VERSIONS))
    raise ProtocolError(Code.BAD_PROTOCOL, f"protocol {message.get('protocol')!r} is not spoken here; spoken are {spoken}")


def decode_client_message(payload: bytes) -> ClientMessage:
    """What a client said.

    Raises:
        ProtocolError: bad_message or bad_protocol; the message names the field.

    Example: `decode_client_message(b'{"type":"ping","seq":7}')` is `Ping(seq=7)`.
    """
    try:
        message = _FROM_CLIENT.validate_json(payload)
    except ValidationError as error:
        _check_version(payload)
        raise _refused(error) from None
    if isinstance(message, Hello) and message.protocol not in SPOKEN_VERSIONS:
        _check_version(payload)
    return message


def decode_server_message(payload: bytes) -> ServerMessage:
    """What the service said.

    Raises:
        ProtocolError: bad_message.
    """
    try:
        return _FROM_SERVER.validate_json(payload)
    except ValidationError as error:
        raise _refused(error) from None


def encode(message: ClientMessage | ServerMessage) -> bytes:
    """The message as UTF-8 JSON."""
    return message.__pydantic_serializer__.to_json(message)


def frame(payload: bytes, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The payload with its length before it.

    Raises:
        ProtocolError: too_large.

    Example: `frame(b"{}")` is `b"\\x00\\x00\\x00\\x02{}"`.
    """
    if len(payload) > max_bytes:
        raise ProtocolError(Code.TOO_LARGE, f"a message of {len(payload)} bytes; the limit is {max_bytes}")
    return _HEADER.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream of bytes into payloads.

    Example: `FrameReader().feed(b"\\x00\\x00\\x00\\x02{}")` is `[b"{}"]`.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def num_waiting(self) -> int:
        """Bytes of a frame that has not ended yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete with these bytes.

        Raises:
            ProtocolError: too_large, as soon as the length is known.
        """
        self._buffer += data
        payloads, start = [], 0
        while len(self._buffer) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, start)
            if length > self.max_bytes:
                raise ProtocolError(Code.TOO_LARGE, f"a frame of {length} bytes; the limit is {self.max_bytes}")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[start + _HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return payloads


def new_nonce() -> str:
    """A fresh random nonce, 32 hex digits."""
    return secrets.token_hex(16)


def proof_mac(
    secret: bytes, side: Literal["client", "service"], client_nonce: str, service_nonce: str, application_id: str
) -> str:
    """HMAC-SHA256 of "parcae 1", the side, both nonces and the application id, each ended by a zero byte; hex."""
    parts = ("parcae 1", side, client_nonce, service_nonce, application_id)
    return hmac.new(secret, b"".join(part.encode() + b"\0" for part in parts), "sha256").hexdigest()


def is_proof(mac: str, expected: str) -> bool:
    """Whether two proofs are equal, in constant time."""
    return hmac.compare_digest(mac.encode(), expected.encode())
