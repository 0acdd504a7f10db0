"""Decompresses files as streams: plain, zstd, lz4, gzip, Spark's snappy and lzf, bzip2, xz.

The first bytes of a stream decide which format it has.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import lz4.block
import lz4.frame
import zstandard

from parcae.base.errors import FormatError
from parcae.base.lz import DamagedBlock, lzf_block, snappy_block
from parcae.base.texts import BYTES_PER_MIB

CHUNK_BYTES = 2 * BYTES_PER_MIB
#: LZ4BlockOutputStream writes blocks of at most 32 MiB, and Spark's other codecs smaller ones.
MAX_BLOCK_BYTES = 32 * BYTES_PER_MIB
#: Limit of the memory for the windows of zstd and xz (Spark writes at most 8 MiB; level 22 of zstd
#: with --long writes 128 MiB).
MAX_WINDOW_BYTES = 128 * BYTES_PER_MIB

#: Compressed zstd data that is decompressed at once: 4 bytes may become 128 KiB.
_ZSTD_PIECE_BYTES = 1024
#: The buffer that zstd writes a piece to, before all of the piece is joined.
_ZSTD_WRITE_BYTES = 8192

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
LZ4_BLOCK_MAGIC = b"LZ4Block"
GZIP_MAGIC = b"\x1f\x8b"
SNAPPY_MAGIC = b"\x82SNAPPY\x00"
LZF_MAGIC = b"ZV"
BZIP2_MAGIC = b"BZh"
_PARQUET_MAGIC = b"PAR1"

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
    if head.startswith(_PARQUET_MAGIC):
        raise FormatError(f"{label}: this is a table (Parquet), no text or event log")
    reader = next((reader for magic, reader in _READERS if head.startswith(magic)), None)
    # Two letters may begin a text as well; what follows them may not.
    is_text = head.startswith(LZF_MAGIC) and head[2:3] not in (b"\x00", b"\x01")
    is_text |= head.startswith(BZIP2_MAGIC) and head[4:6] not in (b"1A", b"\x17\x72")
    if reader is None or is_text:
        yield from _raw_chunks(stream, head)
    else:
        yield from reader(stream, head, label, may_be_cut)


def _raw_chunks(stream: ByteStream, head: bytes) -> Iterator[bytes]:
    chunk = head
    while chunk:
        yield chunk
        chunk = stream.read(CHUNK_BYTES)


def _zstd_chunks(stream: ByteStream, head: bytes, label: str, may_be_cut: bool) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
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
        raise _damaged(label, "zstd", error) from error
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
        raise _damaged(label, "gzip", error) from error
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
        sane = 0 <= num_compressed <= 2 * MAX_BLOCK_BYTES and 0 <= num_original <= MAX_BLOCK_BYTES
        if magic != LZ4_BLOCK_MAGIC or not sane:
            raise _damaged(label, "lz4", "no block header where one was expected")
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
        raise _damaged(label, "lz4", error) from error
    raise _damaged(label, "lz4", f"unknown block method {method:#x}")


#: A stream of snappy begins with its magic and two versions; before a block is its length.
_SNAPPY_HEAD_BYTES = 16
_SNAPPY_LENGTH_BYTES = 4
# Magic, whether the block is compressed, and its length; if it is, its original length follows.
_LZF_HEADER = struct.Struct(">2s?H")
_LZF_LENGTH_BYTES = 2


def _snappy_chunks(
    stream: ByteStream, head: bytes, label: str, may_be_cut: bool
) -> Iterator[bytes]:
    """Decompress the blocks of org.xerial.snappy.SnappyOutputStream."""
    source = _Rejoined(head, stream)
    is_cut = False
    while header := source.read(_SNAPPY_LENGTH_BYTES):
        # Another stream may follow.
        if header == SNAPPY_MAGIC[:_SNAPPY_LENGTH_BYTES]:
            rest = _SNAPPY_HEAD_BYTES - len(header)
            is_cut = len(source.read(rest)) < rest
            continue
        num_compressed = int.from_bytes(header, "big")
        if num_compressed > 2 * MAX_BLOCK_BYTES:
            raise _damaged(label, "snappy", f"a block of {num_compressed:,} bytes")
        block = source.read(num_compressed)
        is_cut = len(header) < _SNAPPY_LENGTH_BYTES or len(block) < num_compressed
        if is_cut:
            break
        try:
            yield snappy_block(block, MAX_BLOCK_BYTES)
        except DamagedBlock as error:
            raise _damaged(label, "snappy", error) from error
    if is_cut and not may_be_cut:
        raise _truncated(label, "snappy")


def _lzf_chunks(stream: ByteStream, head: bytes, label: str, may_be_cut: bool) -> Iterator[bytes]:
    """Decompress the blocks of com.ning.compress.lzf.LZFOutputStream."""
    source = _Rejoined(head, stream)
    while header := source.read(_LZF_HEADER.size):
        block = b""
        num_bytes = num_original = 1
        if len(header) == _LZF_HEADER.size:
            magic, is_compressed, num_bytes = _LZF_HEADER.unpack(header)
            if magic != LZF_MAGIC:
                raise _damaged(label, "lzf", "no block where one was expected")
            num_original = num_bytes
            if is_compressed:
                num_original = int.from_bytes(source.read(_LZF_LENGTH_BYTES), "big")
            block = source.read(num_bytes)
        if len(block) < num_bytes:
            if may_be_cut:
                return
            raise _truncated(label, "lzf")
        try:
            yield lzf_block(block, num_original) if is_compressed else block
        except DamagedBlock as error:
            raise _damaged(label, "lzf", error) from error


def _damaged(label: str, name: str, what: object) -> FormatError:
    return FormatError(f"{label}: damaged {name} data ({what}); download the file again")


def _library_chunks(
    name: str,
    new: Callable[[], Any],
    stream: ByteStream,
    head: bytes,
    label: str,
    may_be_cut: bool,
) -> Iterator[bytes]:
    """Decompress by a library whose decompressors are like those of bz2."""
    decompressor = new()
    for compressed in _raw_chunks(stream, head):
        data = compressed
        while data or not (decompressor.needs_input or decompressor.eof):
            # Another stream may follow, and zeros may fill up the file.
            if decompressor.eof:
                decompressor = new()
            try:
                chunk = decompressor.decompress(data, CHUNK_BYTES)
            except (OSError, EOFError, RuntimeError, ValueError, lzma.LZMAError) as error:
                raise _damaged(label, name, error) from error
            if chunk:
                yield chunk
            data = (decompressor.unused_data or b"").lstrip(b"\x00") if decompressor.eof else b""
    if not (decompressor.eof or may_be_cut):
        raise _truncated(label, name)


_READERS: tuple[tuple[bytes, Callable[[ByteStream, bytes, str, bool], Iterator[bytes]]], ...] = (
    (ZSTD_MAGIC, _zstd_chunks),
    (LZ4_BLOCK_MAGIC, _lz4_chunks),
    (b"\x04\x22\x4d\x18", partial(_library_chunks, "lz4", lz4.frame.LZ4FrameDecompressor)),
    (GZIP_MAGIC, _gzip_chunks),
    (SNAPPY_MAGIC, _snappy_chunks),
    (LZF_MAGIC, _lzf_chunks),
    (BZIP2_MAGIC, partial(_library_chunks, "bzip2", bz2.BZ2Decompressor)),
    (
        b"\xfd7zXZ\x00",
        partial(_library_chunks, "xz", partial(lzma.LZMADecompressor, memlimit=MAX_WINDOW_BYTES)),
    ),
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
