"""The wire protocol, version 2: messages, framing and proofs, as pure functions on bytes.

A frame is a 4-byte big-endian length and as many bytes of UTF-8 JSON. Every message is one JSON
object whose `type` names it; unknown keys are refused and sizes are bounded. Clients tell events and
get standing orders. `protocol/README.md` tells it to whoever writes a client.
"""

from __future__ import annotations

import hmac
import json
import secrets
import struct
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from parcae.errors import ProtocolError

PROTOCOL_VERSION = 2
SPOKEN_VERSIONS = (2,)
#: Largest frame that is read unless the server is told otherwise.
MAX_FRAME_BYTES = 8 << 20
_HEADER = struct.Struct(">I")
_LARGEST = 1 << 53  # what a double in JSON holds exactly
_MOST_TASKS = 10_000_000
_MOST_STAGES = 10_000

Seq = Annotated[int, Field(ge=0, lt=_LARGEST)]
Time = Annotated[int, Field(ge=0, lt=_LARGEST)]
Tasks = Annotated[int, Field(ge=0, le=_MOST_TASKS)]
StageId = Annotated[int, Field(ge=0, lt=_LARGEST)]
Text = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
JobName = Annotated[str, Field(max_length=256)]
Nonce = Annotated[str, Field(min_length=16, max_length=128, pattern=r"^[!-~]+$")]
Mac = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Code(StrEnum):
    """What an `error` message may say."""

    BAD_MESSAGE = "bad_message"  # not JSON, no such message, an unknown key, a value out of range
    BAD_PROTOCOL = "bad_protocol"  # a version that is not spoken
    TOO_LARGE = "too_large"  # a frame above the limit
    DENIED = "denied"  # a wrong proof, or none
    UNEXPECTED = "unexpected"  # a message that has no place here, e.g. a second hello
    SEQUENCE = "sequence"  # a request number that does not rise
    CLOCK = "clock"  # a clock that runs backwards
    NO_STATE = "no_state"  # the service knows nothing of this application: send `state`
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_STAGE = "unknown_stage"
    DUPLICATE_JOB = "duplicate_job"
    DUPLICATE_STAGE = "duplicate_stage"
    BAD_JOB = "bad_job"  # a cycle, an unknown parent, more tasks begun or ended than there are
    REPLACED = "replaced"  # a newer connection speaks for this application
    BUSY = "busy"  # too many connections
    TIMEOUT = "timeout"  # silent for too long, or does not read
    CLOSING = "closing"  # the service shuts down
    INTERNAL = "internal"  # a bug of the service; its log tells more


#: After these errors the client sends `state` and goes on; after all others the connection closes.
MENDED_BY_STATE = frozenset(
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
    """What follows an `error`."""

    CLOSE = "close"  # the connection is closed
    STATE = "state"  # the service forgot this application's jobs: send `state`


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StageMessage(_Message):
    """A stage: `tasks` alike tasks that may run once the stages `parents` have ended.

    Args:
        input_bytes: bytes that the stage reads, where the client knows them.
        started: tasks that ever began; one that failed and will be tried again is not among them.
        finished: of these, tasks that ended well.
        executed_ms: durations of the finished tasks, together.
        is_ended: no further task of it will run.
    """

    stage_id: StageId
    tasks: Annotated[int, Field(ge=1, le=_MOST_TASKS)]
    parents: Annotated[tuple[StageId, ...], Field(max_length=_MOST_STAGES)] = ()
    input_bytes: Annotated[int, Field(ge=0, lt=_LARGEST)] | None = None
    started: Tasks = 0
    finished: Tasks = 0
    executed_ms: Time = 0
    is_ended: bool = False


class JobMessage(_Message):
    """A job: what the user waits for.

    Args:
        names: of the recurring job, the best first; durations are looked up and learned by them.
        is_open: more stages may come at any time; it ends by `job_ended` alone.
    """

    job_id: Text
    names: Annotated[tuple[JobName, ...], Field(max_length=16)]
    arrival_ms: Time
    is_open: bool = True
    stages: Annotated[tuple[StageMessage, ...], Field(max_length=_MOST_STAGES)]


class JobArrived(_Message):
    """A job was submitted: as much of its DAG as is known."""

    type: Literal["job_arrived"] = "job_arrived"
    job: JobMessage


class StagesAdded(_Message):
    """More stages of a job are known; parents may be old ones or new ones."""

    type: Literal["stages_added"] = "stages_added"
    job_id: Text
    stages: Annotated[tuple[StageMessage, ...], Field(min_length=1, max_length=_MOST_STAGES)]


class StageChanged(_Message):
    """A stage has another number of tasks than was listed."""

    type: Literal["stage_changed"] = "stage_changed"
    job_id: Text
    stage_id: StageId
    tasks: Annotated[int, Field(ge=1, le=_MOST_TASKS)]


class TasksTold(_Message):
    """Tasks of a stage began, ended well, or will be tried again, since the last word about it."""

    type: Literal["tasks"] = "tasks"
    job_id: Text
    stage_id: StageId
    started: Tasks = 0
    finished: Tasks = 0
    failed: Tasks = 0
    executed_ms: Time = 0


class StageEnded(_Message):
    """No further task of the stage will run: it is complete, skipped or cancelled."""

    type: Literal["stage_ended"] = "stage_ended"
    job_id: Text
    stage_id: StageId


class StageBegunAgain(_Message):
    """So many finished tasks of the stage are to run once more."""

    type: Literal["stage_begun_again"] = "stage_begun_again"
    job_id: Text
    stage_id: StageId
    tasks: Annotated[int, Field(ge=1, le=_MOST_TASKS)]


class JobEnded(_Message):
    """A job is over, well or not."""

    type: Literal["job_ended"] = "job_ended"
    job_id: Text
    is_failed: bool = False


Event = Annotated[
    JobArrived | StagesAdded | StageChanged | TasksTold | StageEnded | StageBegunAgain | JobEnded,
    Field(discriminator="type"),
]


class Hello(_Message):
    """The client says who it is; the nonce is needed where a secret is set."""

    type: Literal["hello"] = "hello"
    protocol: int
    application_id: Text
    application_name: Annotated[str, Field(max_length=256)] | None = None
    nonce: Nonce | None = None


class Proof(_Message):
    """The client's answer to a challenge."""

    type: Literal["proof"] = "proof"
    mac: Mac


class State(_Message):
    """Everything that the client knows: replaces what the service knew of this application.

    Args:
        cores: tasks that the application can run at once.
    """

    type: Literal["state"] = "state"
    seq: Seq
    clock_ms: Time
    cores: Annotated[int, Field(ge=0, le=1 << 20)]
    jobs: Annotated[tuple[JobMessage, ...], Field(max_length=100_000)]


class Events(_Message):
    """What happened, in order. Without events, only time passed."""

    type: Literal["events"] = "events"
    seq: Seq
    clock_ms: Time
    cores: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    events: Annotated[tuple[Event, ...], Field(max_length=100_000)] = ()


class Ping(_Message):
    """Is the service there?"""

    type: Literal["ping"] = "ping"
    seq: Seq


class Bye(_Message):
    """The application ends."""

    type: Literal["bye"] = "bye"


class Challenge(_Message):
    """The service wants a proof that the client knows the secret."""

    type: Literal["challenge"] = "challenge"
    nonce: Nonce


class Welcome(_Message):
    """The session is open; `state` comes next."""

    type: Literal["welcome"] = "welcome"
    protocol: int
    session: Text
    policy: Text
    mac: Mac | None = None  # the service's own proof, after a challenge


class JobOrder(_Message):
    """Where a job stands in the order.

    Args:
        tier: smaller is served first.
        weight: jobs of one tier share by running tasks / weight; 0: as if it ran nothing.
        limit: so many tasks of it at once; None: no limit.
    """

    job_id: Text
    tier: float
    weight: float = 0.0
    limit: int | None = None


class StageOrder(_Message):
    """Where a stage stands in the order; its tier is added to its job's."""

    job_id: Text
    stage_id: StageId
    tier: float = 0.0
    rank: float = 0.0
    limit: int | None = None


class Orders(_Message):
    """The standing order, whole: it replaces the one before.

    Task sets are served by (job tier + stage tier, running tasks of the job / weight, order of the
    job's arrival, rank, stage_id), smallest first.

    Args:
        seq: of the request that it answers; None where the service speaks by itself.
        stages: those that are not all at their defaults.
        other_tier: of jobs that the service has not heard of.
        wake_ms: send `events` (empty, if nothing happened) when the clock gets there.
        executors: where applications share a cluster, so many this one should have now.
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
    """A request was refused; `then` says what follows."""

    type: Literal["error"] = "error"
    code: Code
    message: str
    then: Then
    seq: Seq | None = None


ClientMessage = Hello | Proof | State | Events | Ping | Bye
ServerMessage = Challenge | Welcome | Orders | Pong | Error

_FROM_CLIENT: TypeAdapter[ClientMessage] = TypeAdapter(
    Annotated[ClientMessage, Field(discriminator="type")]
)
_FROM_SERVER: TypeAdapter[ServerMessage] = TypeAdapter(
    Annotated[ServerMessage, Field(discriminator="type")]
)


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
    if (
        not isinstance(message, dict)
        or message.get("type") != "hello"
        or message.get("protocol") in SPOKEN_VERSIONS
    ):
        return
    spoken = ", ".join(map(str, SPOKEN_VERSIONS))
    raise ProtocolError(
        Code.BAD_PROTOCOL,
        f"this service speaks protocol {spoken}, not {message.get('protocol')!r}: use the plugin and the service of one Parcae",
    )


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
        raise ProtocolError(
            Code.TOO_LARGE, f"a message of {len(payload)} bytes; the limit is {max_bytes}"
        )
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
        payloads = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, start)
            if length > self.max_bytes:
                raise ProtocolError(
                    Code.TOO_LARGE, f"a frame of {length} bytes; the limit is {self.max_bytes}"
                )
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
    secret: bytes,
    side: Literal["client", "service"],
    client_nonce: str,
    service_nonce: str,
    application_id: str,
) -> str:
    """HMAC-SHA256 of "parcae 2", the side, both nonces and the application id, each ended by a zero byte; hex."""
    parts = ("parcae 2", side, client_nonce, service_nonce, application_id)
    return hmac.new(secret, b"".join(part.encode() + b"\0" for part in parts), "sha256").hexdigest()


def is_proof(mac: str, expected: str) -> bool:
    """Whether two proofs are equal, in constant time."""
    return hmac.compare_digest(mac.encode(), expected.encode())
