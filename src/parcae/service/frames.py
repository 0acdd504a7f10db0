"""Frames of the wire protocol: a 4-byte big-endian length, followed by that many bytes of JSON."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from parcae.errors import ProtocolError
from parcae.service.protocol import Code

#: Default limit on the size of a frame.
MAX_FRAME_BYTES = 4 << 20
_HEADER = struct.Struct(">I")


def frame(payload: bytes, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The frame of a payload: its length, then the payload.

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
    """Splits a stream of bytes into the payloads of its frames.

    Example: `FrameReader().feed(b"\\x00\\x00\\x00\\x02{}")` is `[b"{}"]`.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def num_waiting(self) -> int:
        """Number of bytes of the incomplete last frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes and yield the payloads that are complete now.

        `max_bytes` may change between two payloads.

        Raises:
            ProtocolError: too_large, as soon as the length of the frame is known.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER.size:
                (length,) = _HEADER.unpack_from(self._buffer, start)
                if length > self.max_bytes:
                    raise ProtocolError(
                        Code.TOO_LARGE, f"a frame of {length} bytes; the limit is {self.max_bytes}"
                    )
                end = start + _HEADER.size + length
                if len(self._buffer) < end:
                    return
                payload = bytes(self._buffer[start + _HEADER.size : end])
                start = end
                yield payload
        finally:
            del self._buffer[:start]
