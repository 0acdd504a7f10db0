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


#: The length of a block, and what decompresses it.
_Block = tuple[int, Callable[[bytes], bytes]]


def _block_chunks(
    name: str,
    headers: Callable[[_Rejoined], Iterator[_Block]],
    stream: ByteStream,
    head: bytes,
    label: str,
    may_be_cut: bool,
) -> Iterator[bytes]:
    """Decompress the blocks of a format of Spark's; `headers` reads what is before each."""
    source = _Rejoined(head, stream)
    try:
        for size, decode in headers(source):
            yield decode(source.exactly(size))
    except (DamagedBlock, lz4.block.LZ4BlockError) as error:
        raise _damaged(label, name, error) from error
    except EOFError:
        if not may_be_cut:
            raise _truncated(label, name) from None


def _lz4_headers(source: _Rejoined) -> Iterator[_Block]:
    """Of net.jpountz.lz4.LZ4BlockOutputStream, which Spark uses for lz4."""
    has_ended = False
    while not source.is_over():
        header = source.exactly(_LZ4_HEADER.size)
        magic, token, num_compressed, num_original, _checksum = _LZ4_HEADER.unpack(header)
        sane = 0 <= num_compressed <= 2 * MAX_BLOCK_BYTES and 0 <= num_original <= MAX_BLOCK_BYTES
        if magic != LZ4_BLOCK_MAGIC or not sane:
            raise DamagedBlock("no block header where one was expected")
        # A block without content marks the end of a stream; another stream may follow.
        has_ended = num_original == 0
        yield num_compressed, partial(_lz4_block, token & 0xF0, num_original)
    if not has_ended:
        raise EOFError


def _lz4_block(method: int, num_original: int, block: bytes) -> bytes:
    if num_original == 0 or (method == _LZ4_RAW and len(block) == num_original):
        return block[:num_original]
    if method == _LZ4_COMPRESSED:
        return bytes(lz4.block.decompress(block, uncompressed_size=num_original))
    raise DamagedBlock(f"unknown block method {method:#x}")


#: A stream of snappy begins with its magic and two versions; before a block is its length.
_SNAPPY_HEAD_BYTES = 16
_SNAPPY_LENGTH_BYTES = 4
# Magic, whether the block is compressed, and its length; if it is, its original length follows.
_LZF_HEADER = struct.Struct(">2s?H")
_LZF_LENGTH_BYTES = 2


def _snappy_headers(source: _Rejoined) -> Iterator[_Block]:
    """Of org.xerial.snappy.SnappyOutputStream."""
    while not source.is_over():
        header = source.exactly(_SNAPPY_LENGTH_BYTES)
        # Another stream may follow.
        if header == SNAPPY_MAGIC[:_SNAPPY_LENGTH_BYTES]:
            source.exactly(_SNAPPY_HEAD_BYTES - len(header))
            continue
        num_compressed = int.from_bytes(header, "big")
        if num_compressed > 2 * MAX_BLOCK_BYTES:
            raise DamagedBlock(f"a block of {num_compressed:,} bytes")
        yield num_compressed, partial(snappy_block, most_bytes=MAX_BLOCK_BYTES)


def _lzf_headers(source: _Rejoined) -> Iterator[_Block]:
    """Of com.ning.compress.lzf.LZFOutputStream."""
    while not source.is_over():
        magic, is_compressed, num_bytes = _LZF_HEADER.unpack(source.exactly(_LZF_HEADER.size))
        if magic != LZF_MAGIC:
            raise DamagedBlock("no block where one was expected")
        if is_compressed:
            num_original = int.from_bytes(source.exactly(_LZF_LENGTH_BYTES), "big")
            yield num_bytes, partial(lzf_block, size=num_original)
        else:
            yield num_bytes, bytes


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
    (LZ4_BLOCK_MAGIC, partial(_block_chunks, "lz4", _lz4_headers)),
    (b"\x04\x22\x4d\x18", partial(_library_chunks, "lz4", lz4.frame.LZ4FrameDecompressor)),
    (GZIP_MAGIC, _gzip_chunks),
    (SNAPPY_MAGIC, partial(_block_chunks, "snappy", _snappy_headers)),
    (LZF_MAGIC, partial(_block_chunks, "lzf", _lzf_headers)),
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

    def is_over(self) -> bool:
        """Whether nothing is left."""
        self._head = self._head or self._stream.read(1)
        return not self._head

    def exactly(self, size: int) -> bytes:
        """Read `size` bytes; an EOFError where there are fewer."""
        taken, self._head = self._head[:size], self._head[size:]
        if len(taken) < size:
            taken += self._stream.read(size - len(taken))
        if len(taken) < size:
            raise EOFError
        return taken
