"""Decodes blocks of Snappy and LZF, two formats of Spark's that no library of ours reads.

Both are a list of bytes to take over and of copies of what was decoded before. A copy is at most 64
(Snappy) or 264 bytes (LZF) long, so that a block cannot become much larger than it says.

Source: google/snappy, format_description.txt; ning/compress, LZF format.
"""

from __future__ import annotations

#: A tag of Snappy below this is the length of its bytes; above, the number of bytes with it.
_LONG = 60
#: A control byte of LZF below this is the length of the bytes behind it.
_COPIES = 32
#: This length of a copy in LZF is continued in the next byte.
_CONTINUED = 7


class DamagedBlock(ValueError):
    """A block that does not hold what it says."""


def snappy_block(block: bytes, most_bytes: int) -> bytes:
    """Decode a block of Snappy, of at most `most_bytes`."""
    try:
        size, at = _varint(block)
        if size > most_bytes:
            raise DamagedBlock(f"a block of {size:,} bytes")
        out = bytearray()
        end = len(block)
        while at < end:
            tag = block[at]
            at += 1
            kind = tag & 3
            if kind == 0:
                length = tag >> 2
                if length >= _LONG:
                    width = length - _LONG + 1
                    length = int.from_bytes(block[at : at + width], "little")
                    at += width
                out += block[at : at + length + 1]
                at += length + 1
            elif kind == 1:
                _copy(out, (tag >> 5 << 8) | block[at], (tag >> 2 & 7) + 4)
                at += 1
            else:
                width = 2 if kind == 2 else 4
                offset = int.from_bytes(block[at : at + width], "little")
                _copy(out, offset, (tag >> 2) + 1)
                at += width
    except IndexError:
        raise DamagedBlock("a block ends too early") from None
    return _whole(out, size)


def lzf_block(block: bytes, size: int) -> bytes:
    """Decode a block of LZF that becomes `size` bytes."""
    out = bytearray()
    at = 0
    end = len(block)
    try:
        while at < end:
            control = block[at]
            at += 1
            if control < _COPIES:
                out += block[at : at + control + 1]
                at += control + 1
                continue
            length = control >> 5
            if length == _CONTINUED:
                length += block[at]
                at += 1
            _copy(out, ((control & 31) << 8) + block[at] + 1, length + 2)
            at += 1
    except IndexError:
        raise DamagedBlock("a block ends too early") from None
    return _whole(out, size)


def _varint(block: bytes) -> tuple[int, int]:
    """The number at the beginning of a block, seven bits a byte, and where it ends."""
    number = 0
    for at in range(5):
        number |= (block[at] & 0x7F) << 7 * at
        if block[at] < 0x80:
            return number, at + 1
    raise DamagedBlock("no length")


def _copy(out: bytearray, offset: int, length: int) -> None:
    """Repeat what was decoded `offset` bytes ago; the copy may overlap its source."""
    start = len(out) - offset
    if start < 0 or offset == 0:
        raise DamagedBlock("a copy from outside of its block")
    if length <= offset:
        out += out[start : start + length]
    else:
        out += (out[start:] * (length // offset + 1))[:length]


def _whole(out: bytearray, size: int) -> bytes:
    if len(out) != size:
        raise DamagedBlock(f"{len(out):,} bytes in place of {size:,}")
    return bytes(out)
