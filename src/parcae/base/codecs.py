"""Decompresses files as streams: plain, zstd, Spark's lz4 blocks, gzip.

The first bytes of a stream decide which format it has.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Protocol

import lz4.block
import zstandard

from parcae.base.errors import FormatError
from parcae.base.texts import BYTES_PER_MIB

CHUNK_BYTES = 2 * BYTES_PER_MIB
#: LZ4BlockOutputStream writes blocks of at most 32 MiB.
MAX_LZ4_BLOCK_BYTES = 32 * BYTES_PER_MIB
#: Limit of the memory for zstd's window (Spark writes at most 8 MiB; level 22 with --long writes
#: 128 MiB).
MAX_ZSTD_WINDOW_BYTES = 128 * BYTES_PER_MIB

#: Compressed zstd data that is decompressed at once: 4 bytes may become 128 KiB.
_ZSTD_PIECE_BYTES = 1024
#: The buffer that zstd writes a piece to, before all of the piece is joined.
_ZSTD_WRITE_BYTES = 8192

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
LZ4_BLOCK_MAGIC = b"LZ4Block"
GZIP_MAGIC = b"\x1f\x8b"
#: Formats that are recognised and refused: first bytes, name.
REFUSED_MAGIC = {
    b"\x82SNAPPY\x00": "snappy",
    b"ZV": "lzf",
    b"\x04\x22\x4d\x18": "lz4 frame",
    b"PAR1": "parquet",
}

# Magic, token, compressed length, original length, checksum (little endian).
_LZ4_HEADER = struct.Struct("<8sBiiI")
_LZ4_RAW = 0x10
_LZ4_COMPRESSED = 0x20


class ByteStream(Protocol):
    """Anything with a `read` method for bytes, such as a file or a member of an archive."""

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes, or all if negative."""


def decompressed_chunks(
    stream: ByteStream, label: str, *, may_be_cut: bool = True
) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in pieces of a few MiB."""
    head = stream.read(16)
    for magic, name in REFUSED_MAGIC.items():
        if head.startswith(magic):
            raise FormatError(
                f"{label}: {name} data cannot be read; "
                "expected a plain, zstd, lz4 or gzip Spark event log. "
                "Decompress it first, or write logs with "
                "spark.eventLog.compression.codec=zstd"
            )
    if head.startswith(ZSTD_MAGIC):
        yield from _zstd_chunks(stream, head, label, may_be_cut)
    elif head.startswith(LZ4_BLOCK_MAGIC):
        yield from _lz4_chunks(stream, head, label, may_be_cut)
    elif head.startswith(GZIP_MAGIC):
        yield from _gzip_chunks(stream, head, label, may_be_cut)
    else:
        yield from _raw_chunks(stream, head)


def _raw_chunks(stream: ByteStream, head: bytes) -> Iterator[bytes]:
    chunk = head
    while chunk:
        yield chunk
        chunk = stream.read(CHUNK_BYTES)


def _zstd_chunks(stream: ByteStream, head: bytes, label: str, may_be_cut: bool) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    frame = None
    chunk = bytearray()
    try:
        for compressed in _pieces(_raw_chunks(stream, head), _ZSTD_PIECE_BYTES):
            data = compressed
            # A file may consist of several frames.
            while data:
                frame = frame or decompressor.decompressobj(write_size=_ZSTD_WRITE_BYTES)
                chunk += frame.decompress(data)
                data = frame.unused_data
                if frame.eof:
                    frame = None
            if len(chunk) >= CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
    except zstandard.ZstdError as error:
        raise FormatError(
            f"{label}: damaged zstd data ({error}); download the file again"
        ) from error
    if chunk:
        yield bytes(chunk)
    if not (frame is None or may_be_cut):
        raise _truncated(label, "zstd")


def _pieces(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def _truncated(label: str, name: str) -> FormatError:
    return FormatError(f"{label}: truncated {name} data; download the file again")


def _gzip_chunks(stream: ByteStream, head: bytes, label: str, may_be_cut: bool) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(wbits=31)
    is_between_members = False
    try:
        for compressed in _raw_chunks(stream, head):
            data = compressed
            while data:
                is_between_members = False
                if chunk := decompressor.decompress(data, CHUNK_BYTES):
                    yield chunk
                data = decompressor.unconsumed_tail
                # A gzip file may consist of several members; zeros may follow the last one.
                if decompressor.eof:
                    data = decompressor.unused_data.lstrip(b"\x00")
                    decompressor = zlib.decompressobj(wbits=31)
                    is_between_members = True
    except zlib.error as error:
        raise FormatError(
            f"{label}: damaged gzip data ({error}); download the file again"
        ) from error
    if not (is_between_members or may_be_cut):
        raise FormatError(f"{label}: truncated or not gzip data; download the file again")


def _lz4_chunks(stream: ByteStream, head: bytes, label: str, may_be_cut: bool) -> Iterator[bytes]:
    """Decompress the blocks of net.jpountz.lz4.LZ4BlockOutputStream, which Spark uses for lz4."""
    source = _Rejoined(head, stream)
    has_ended = False
    while header := source.read(_LZ4_HEADER.size):
        has_ended = False
        if len(header) < _LZ4_HEADER.size:
            break
        magic, token, num_compressed, num_original, _checksum = _LZ4_HEADER.unpack(header)
        sane = (
            0 <= num_compressed <= 2 * MAX_LZ4_BLOCK_BYTES
            and 0 <= num_original <= MAX_LZ4_BLOCK_BYTES
        )
        if magic != LZ4_BLOCK_MAGIC or not sane:
            raise FormatError(
                f"{label}: damaged lz4 data (no block header where one was expected); "
                "download the file again"
            )
        block = source.read(num_compressed)
        if len(block) < num_compressed:
            break
        # A block without content marks the end of a stream; another stream may follow.
        has_ended = num_original == 0
        if not has_ended:
            yield _lz4_block(block, token & 0xF0, num_original, label)
    if not (has_ended or may_be_cut):
        raise _truncated(label, "lz4")


def _lz4_block(block: bytes, method: int, num_original: int, label: str) -> bytes:
    if method == _LZ4_RAW and len(block) == num_original:
        return block
    try:
        if method == _LZ4_COMPRESSED:
            return bytes(lz4.block.decompress(block, uncompressed_size=num_original))
    except lz4.block.LZ4BlockError as error:
        raise FormatError(
            f"{label}: damaged lz4 data ({error}); download the file again"
        ) from error
    raise FormatError(
        f"{label}: damaged lz4 data (unknown block method {method:#x}); download the file again"
    )


class _Rejoined:
    """A stream with its first bytes, which were read to recognise the format, put back in front."""

    def __init__(self, head: bytes, stream: ByteStream) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes, or all if negative; fewer only at the end of the stream."""
        if not self._head:
            return self._stream.read(size)
        if 0 <= size <= len(self._head):
            taken = self._head[:size]
            self._head = self._head[size:]
            return taken
        taken = self._head
        self._head = b""
        return taken + self._stream.read(size - len(taken) if size >= 0 else -1)
