"""Damages inputs: bytes, lines, values and keys of JSON, members of containers. All by seed."""

from __future__ import annotations

import copy
import gzip
import io
import json
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import lz4.block
import zstandard

from tests.workloads.spark_log_builder import lzf_blocks, snappy_blocks

#: What a value of JSON is replaced by, as text: huge, negative, no number, nested, another type.
VALUES = (
    *("0", "-1", "1", "2.5", "-0.0", "1e308", "1e400", "-1e400", "NaN", "Infinity", "-Infinity"),
    *("100000000000000000000", "-9223372036854775809", "9223372036854775807", "4294967296"),
    *("1000000000", "1e15", "1e-300", "true", "null", '""', '"x"', '"1e9999"', '"\\ud800"', "[]"),
    *("{}", "[[]]", '{"a": 1}', "[" * 60 + "]" * 60, "[" * 5_000 + "]" * 5_000, "9" * 5_000),
)
_WORDS = (*(value.encode() for value in VALUES), b"\x00", b"\xff\xfe", b"\n", b",", b'"', b";")
_NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """Flip bits, or cut, delete, repeat or insert bytes."""
    changed = bytearray(data)
    at = random.randrange(len(data) + 1)
    length = random.choice((1, 2, 8, 64, 512))
    kind = random.randrange(5)
    if kind == 0:
        for _ in range(random.choice((1, 1, 2, 10))):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    elif kind == 1:
        del changed[at:]
    elif kind == 2:
        del changed[at : at + length]
    elif kind == 3:
        changed[at:at] = changed[at : at + length] * random.choice((1, 3))
    else:
        changed[at : at + random.choice((0, 1, length))] = random.choice(_WORDS)
    return bytes(changed)


def damaged_lines(data: bytes, random: Random) -> bytes:
    """Repeat, delete, swap, join or empty lines."""
    lines = data.split(b"\n")
    row = random.randrange(len(lines))
    other = random.randrange(len(lines))
    kind = random.randrange(5)
    if kind == 0:
        lines[row:row] = [lines[row]] * random.choice((1, 2, 50))
    elif kind == 1:
        del lines[row]
    elif kind == 2:
        lines[row], lines[other] = lines[other], lines[row]
    elif kind == 3:
        lines[row] = lines[row] + lines[other]
    else:
        lines[row] = random.choice(_WORDS)
    return b"\n".join(lines)


def damaged_numbers(data: bytes, random: Random) -> bytes:
    """Replace numbers of a text."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return damaged_bytes(data, random)
    for match in sorted(random.sample(found, 1), key=lambda one: -one.start()):
        data = data[: match.start()] + random.choice(_WORDS) + data[match.end() :]
    return data


def _places(data: Any, found: list[tuple[Any, Any]]) -> None:
    """All (container, key or index) of parsed JSON."""
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        found.append((data, key))
        _places(data[key], found)


def damaged_json(data: bytes, random: Random) -> bytes:
    """Swap values of JSON for others, and rename, remove or repeat keys and entries."""
    parsed = copy.deepcopy(json.loads(data))
    replaced: dict[str, str] = {}
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []
        _places(parsed, places)
        if not places:
            break
        container, key = random.choice(places)
        kind = random.randrange(8)
        if kind == 0:
            container.pop(key)
        elif kind == 1 and isinstance(container, dict):
            container[random.choice((f"{key}x", "", "ä" * 200))] = container.pop(key)
        elif kind == 2 and isinstance(container, list):
            container.extend([container[key]] * random.choice((1, 30)))
        elif kind == 3:
            other, there = random.choice(places)
            container[key] = copy.deepcopy(other[there]) if there in _keys(other) else None
        else:
            mark = f"@{len(replaced)}@{random.randrange(1 << 30)}@"
            replaced[mark] = random.choice(VALUES)
            container[key] = mark
    text = json.dumps(parsed)
    for mark, value in replaced.items():
        text = text.replace(json.dumps(mark), value)
    return text.encode("utf-8", "replace")


def _keys(container: Any) -> Any:
    return container if isinstance(container, dict) else range(len(container))


def damaged_json_line(data: bytes, random: Random) -> bytes:
    """Damage one line of JSON lines as JSON."""
    lines = data.split(b"\n")
    row = random.choice([row for row, line in enumerate(lines) if line])
    lines[row] = damaged_json(lines[row], random)
    return b"\n".join(lines)


Damage = Callable[[bytes, Random], bytes]
BYTES: tuple[Damage, ...] = (damaged_bytes,)
TEXT: tuple[Damage, ...] = (damaged_bytes, damaged_lines, damaged_numbers, damaged_numbers)
JSON: tuple[Damage, ...] = (damaged_bytes, damaged_json, damaged_json, damaged_json)
JSON_LINES: tuple[Damage, ...] = (
    *(damaged_bytes, damaged_lines, damaged_numbers),
    *(damaged_json_line, damaged_json_line, damaged_json_line),
)


def _zipped(name: str) -> Damage:
    def pack(data: bytes, random: Random) -> bytes:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", random.choice((0, 8))) as archive:
            archive.writestr(name, data)
        return packed.getvalue()

    return pack


def _lz4(data: bytes, random: Random) -> bytes:
    block = lz4.block.compress(data, store_size=False)
    head = struct.pack("<8sBiiI", b"LZ4Block", 0x26, len(block), len(data), 0)
    return head + block


def plain(data: bytes, random: Random) -> bytes:
    """No container."""
    return data


def gz(data: bytes, random: Random) -> bytes:
    """In gzip."""
    return gzip.compress(data, 1, mtime=0)


def zst(data: bytes, random: Random) -> bytes:
    """In zstd."""
    return zstandard.ZstdCompressor(level=1).compress(data)


def _mostly_damaged(packed: bytes, head: int, random: Random) -> bytes:
    """Damaged behind the head four times of five. `Random(0)`, with which undamaged inputs are
    packed, begins with a number above that.
    """
    if random.random() > 0.8:
        return packed
    return packed[:head] + damaged_bytes(packed[head:], random)


def snappy(data: bytes, random: Random) -> bytes:
    """In Spark's snappy, with damage behind the head of the stream."""
    packed = snappy_blocks(data)
    return _mostly_damaged(packed, 16, random)


def lzf(data: bytes, random: Random) -> bytes:
    """In Spark's lzf, damaged behind the first three bytes."""
    packed = lzf_blocks(data)
    return _mostly_damaged(packed, 3, random)


def tar(data: bytes, random: Random) -> bytes:
    """As a file of a tar archive, which is damaged behind its first header."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("events_1_app", "log"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    packed = content.getvalue()
    return _mostly_damaged(packed, 512, random)


lz4_blocks = _lz4
zipped = _zipped


def members_damaged(*damages: Damage) -> Damage:
    """Damage one member of a zip archive, which is rebuilt with valid checksums."""

    def damaged(data: bytes, random: Random) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = random.choice(sorted(members))
        content = random.choice(damages)(members[name], random)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for member, whole in members.items():
                if member != name or random.random() < 0.98:
                    archive.writestr(member, content if member == name else whole)
        return packed.getvalue()

    return damaged


def damaged_array(data: bytes, random: Random) -> bytes:
    """Change numbers of an npy file, its shape, or its bytes."""
    end = 10 + struct.unpack("<H", data[8:10])[0]
    header = data[:end]
    body = bytearray(data[end:])
    kind = random.randrange(4)
    if kind == 0:
        return damaged_bytes(data, random)
    if kind == 1:
        changed = damaged_numbers(header[10:].rstrip(), random)
        return header[:8] + struct.pack("<H", len(changed) + 1) + changed + b"\n" + bytes(body)
    if header.find(b"|u1") > 0:
        return header[:10] + header[10:] + damaged_json(bytes(body), random)
    if len(body) >= 8:
        at = 8 * random.randrange(len(body) // 8)
        value = random.choice((-1, 0, 1, 2, 10**9, 10**12, 1 << 53, (1 << 63) - 1, -(1 << 63)))
        is_float = b"f8" in header
        number = float(random.choice((value, "nan", "inf", 1e300))) if is_float else value
        body[at : at + 8] = struct.pack("<d" if is_float else "<q", number)
    return header + bytes(body)


def damaged_tensors(data: bytes, random: Random) -> bytes:
    """Change the header of a safetensors file (also the JSON in it), or its bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length]
    kind = random.randrange(4)
    if kind == 0:
        return damaged_bytes(data, random)
    if kind == 1:
        changed = damaged_json(header, random)
    else:
        parsed = json.loads(header)
        card = damaged_json(parsed["__metadata__"]["parcae"].encode(), random)
        parsed["__metadata__"]["parcae"] = card.decode("utf-8", "replace")
        changed = json.dumps(parsed).encode("utf-8", "replace")
    return struct.pack("<Q", len(changed)) + changed + data[8 + length :]
