"""Reads the pools of Spark's fair scheduler from an allocation file (fairscheduler.xml) or JSON.

Where Spark warns about an unreadable value and uses the default, this reader refuses the file:
results with other pools than intended would be misleading.

Source: Spark's FairSchedulableBuilder, Pool and SchedulingMode (core, org.apache.spark.scheduler).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.base.loader import parsed_json, read_file

Mode = Literal["FIFO", "FAIR"]

#: The pool of jobs that name no pool; Spark always has it, whether the file defines it or not.
DEFAULT_POOL = "default"
_MODES = ("FIFO", "FAIR")
_POOL_KEYS = ("weight", "min_share", "mode")
_XML_KEYS = {"weight": "weight", "minShare": "min_share", "schedulingMode": "mode"}
_LAYOUT = (
    '{"pools": {"etl": {"weight": 2, "min_share": 4, "mode": "FAIR"}}, "jobs": {"q1*": "etl"}}'
)
_XML_LAYOUT = (
    '<allocations><pool name="etl"><schedulingMode>FAIR</schedulingMode><weight>2</weight>'
    "<minShare>4</minShare></pool></allocations>"
)
#: Spark stores weights and minimum shares as 32-bit integers.
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class PoolSpec:
    """A pool of Spark's fair scheduler.

    Args:
        name: name of the pool.
        weight: its share relative to other pools, > 0 (a whole number in Spark's XML file).
        min_share: cores that it gets before cores are shared by weight, >= 0; may exceed the
            cluster's cores.
        mode: order of the jobs in the pool: "FIFO" by job and stage, "FAIR" by running tasks of the
            task set.

    Raises:
        ConfigError: a value is invalid; the message names the pool.

    Example: `PoolSpec("etl", weight=2, min_share=4)`.
    """

    name: str
    weight: float = 1
    min_share: int = 0
    mode: Mode = "FIFO"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(
                f"the name of a pool is {_shown(self.name)}; it must be a non-empty text"
            )
        weight = self.weight
        if not _is_number(weight) or not 0 < weight <= _LARGEST:
            raise ConfigError(
                f"pool {self.name!r}: weight is {_shown(weight)}; it must be a number > 0"
            )
        self._check_min_share()
        if self.mode not in _MODES:
            raise ConfigError(
                f"pool {self.name!r}: mode is {_shown(self.mode)}; it must be FIFO or FAIR"
            )
        object.__setattr__(self, "weight", float(weight))
        object.__setattr__(self, "min_share", int(self.min_share))

    def _check_min_share(self) -> None:
        share = self.min_share
        if not _is_number(share) or not 0 <= share <= _LARGEST or share != int(share):
            raise ConfigError(
                f"pool {self.name!r}: min_share is {_shown(share)}; it must be a whole number >= 0"
            )


@dataclass(frozen=True)
class Allocation:
    """The pools of an allocation file, and the assignment of jobs to pools.

    Args:
        pools: the pools that the file defines, in its order.
        job_pools: pairs (name or glob pattern of jobs, pool); the first one that matches applies.
        source: path of the file, for messages.
        is_sparks: whether the pools are those of Spark's own file, which serves other applications,
            too, and so may have pools without a job here.

    Raises:
        ConfigError: two pools of one name, or a pattern that names a pool that is not defined.
    """

    pools: tuple[PoolSpec, ...] = ()
    job_pools: tuple[tuple[str, str], ...] = ()
    source: str = "allocation"
    is_sparks: bool = False

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        twice = [name for row, name in enumerate(names) if name in names[:row]]
        if twice:
            raise ConfigError(f"{self.source}: pool {twice[0]!r} is defined twice; keep one")
        for pattern, pool in self.job_pools:
            if pool not in {DEFAULT_POOL, *names}:
                hint = suggestion(pool, [*names, DEFAULT_POOL])
                where = f"{self.source}: jobs {pattern!r} are assigned to pool {pool!r}"
                raise ConfigError(f"{where}, which is not defined; {hint}")

    @cached_property
    def all_pools(self) -> tuple[PoolSpec, ...]:
        """The defined pools, followed by `default` if the file does not define it.

        The default pool has weight 1, minimum share 0 and mode FIFO.
        """
        if any(pool.name == DEFAULT_POOL for pool in self.pools):
            return self.pools
        return (*self.pools, PoolSpec(DEFAULT_POOL))

    @cached_property
    def _defined(self) -> frozenset[str]:
        return frozenset(pool.name for pool in self.pools)

    def pool_of(self, job_name: str, recorded_pool: str | None = None) -> str:
        """The pool of a job.

        The first of these that applies: the pool of the first pattern that matches; the recorded
        pool, if it is defined here; the pool with the same name as the job; `default`.
        """
        for pattern, pool in self.job_pools:
            if job_name == pattern or fnmatchcase(job_name, pattern):
                return pool
        if recorded_pool is not None and recorded_pool in self._defined:
            return recorded_pool
        return job_name if job_name in self._defined else DEFAULT_POOL

    def pools_of(
        self, job_names: Sequence[str], recorded_pools: Sequence[str | None] | None = None
    ) -> tuple[str, ...]:
        """`pool_of` for every job; `recorded_pools` is as long as `job_names`, or None."""
        recorded = recorded_pools if recorded_pools is not None else [None] * len(job_names)
        return tuple(
            self.pool_of(name, pool) for name, pool in zip(job_names, recorded, strict=True)
        )

    def check_used(
        self, job_names: Sequence[str], recorded_pools: Sequence[str | None] | None = None
    ) -> None:
        """Refuse pools to which none of these jobs is assigned (`default` may stay empty).

        Such a pool is most likely a misspelt name. In Spark's own file, one pool beside
        `default` with a job is enough.
        """
        used = {DEFAULT_POOL, *self.pools_of(job_names, recorded_pools)}
        unused = [pool.name for pool in self.pools if pool.name not in used]
        num_named = sum(pool.name != DEFAULT_POOL for pool in self.pools)
        if not unused or (self.is_sparks and len(unused) < num_named):
            return
        known = sorted({*job_names, *(pool for pool in recorded_pools or () if pool)})
        names = ", ".join(known[:6]) + (", ..." if len(known) > 6 else "")
        raise ConfigError(
            f"{self.source}: no job is assigned to pool {unused[0]!r}; "
            f"jobs and recorded pools are {names}; "
            'assign jobs to it under "jobs" in a JSON file, or remove the pool'
        )


def read_allocation(path: Path | str) -> Allocation:
    """Read Spark's allocation file, or the same pools as JSON.

    The file's extension, .xml or .json, decides the format; without one of these, a file that
    begins with "<" is XML. XML has Spark's layout: `<allocations>` contains `<pool name="etl">`
    elements, each with `<schedulingMode>`, `<weight>` and `<minShare>`; missing elements mean FIFO,
    1 and 0. JSON has the layout `{"pools": {"etl": {"weight": 2, "min_share": 4, "mode": "FAIR"}},
    "jobs": {"q1*": "etl"}}`, where "jobs" assigns the recurring jobs that match a glob pattern to a
    pool. "pools" may be the path of Spark's XML file, relative to the JSON file's folder.
    """
    path = Path(path)
    data = read_file(path)
    is_xml = data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
    if path.suffix.lower() in (".xml", ".json"):
        # The extension decides; without a known one, the first character does.
        is_xml = path.suffix.lower() == ".xml"
    if is_xml:
        return Allocation(_read_xml(str(path), data), source=str(path), is_sparks=True)
    return _read_json(str(path), data)


def sparks_file(path: Path) -> Path | None:
    """Spark's file that a JSON file names for its pools; None if the file names none."""
    if path.suffix.lower() != ".json":
        return None
    try:
        name = parsed_json(str(path), read_file(path), _LAYOUT)["pools"]
    except (FormatError, KeyError, TypeError):
        return None
    return path.parent / name if isinstance(name, str) else None


class _DocumentTypeError(Exception):
    """The XML contains a document type declaration."""


class _PlainTree(ElementTree.TreeBuilder):
    """Builds elements, but refuses a document type: only a document type can define entities."""

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise _DocumentTypeError


def _read_xml(path: str, data: bytes) -> tuple[PoolSpec, ...]:
    try:
        root = ElementTree.fromstring(data, ElementTree.XMLParser(target=_PlainTree()))
    except _DocumentTypeError:
        raise FormatError(f"{path}: has a DOCTYPE, which may define entities; remove it") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise FormatError(f"{path}: not XML ({error}); expected {_XML_LAYOUT}") from None
    # Spark ignores elements that it does not know; here they are errors.
    if root.tag != "allocations":
        raise FormatError(f"{path}: the root is <{root.tag[:60]}>; expected {_XML_LAYOUT}")
    pools: list[PoolSpec] = []
    for row, element in enumerate(root):
        if element.tag != "pool":
            raise FormatError(
                f"{path}: unknown element <{element.tag[:60]}> in <allocations>; "
                f"{suggestion(element.tag, ['pool'])}"
            )
        pools.append(_xml_pool(path, row, element, {pool.name for pool in pools}))
    return tuple(pools)


def _xml_pool(path: str, row: int, element: ElementTree.Element, taken: set[str]) -> PoolSpec:
    for key in element.attrib:
        if key != "name":
            raise FormatError(
                f"{path}: <pool> {row} has an unknown attribute {key[:60]!r}; "
                f"{suggestion(key, ['name'])}"
            )
    name = element.attrib.get("name", "")
    if not name:
        raise FormatError(f'{path}: <pool> {row} has no name; write <pool name="...">')
    where = f"{path}: pool {name!r}"
    if name in taken:
        raise FormatError(f"{where} is defined twice; keep one")
    return _pool(path, name, _xml_values(where, element))


def _xml_values(where: str, element: ElementTree.Element) -> dict[str, Any]:
    """The values of a pool's child elements, by the names of `PoolSpec`."""
    values: dict[str, Any] = {}
    for child in element:
        if child.tag not in _XML_KEYS:
            raise FormatError(
                f"{where}: unknown element <{child.tag[:60]}>; {suggestion(child.tag, _XML_KEYS)}"
            )
        key = _XML_KEYS[child.tag]
        if key in values:
            raise FormatError(f"{where}: <{child.tag}> is given twice; keep one")
        text = (child.text or "").strip()
        values[key] = text.upper() if key == "mode" else _xml_number(where, child.tag, text)
    return values


def _xml_number(where: str, tag: str, text: str) -> int:
    # One sign is allowed, as in Java; more than 10 digits never fit 32 bits.
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 10):
        raise FormatError(
            f"{where}: <{tag}> is {_shown(text)}; "
            "Spark reads only whole numbers here, and would use the default"
        )
    return int(text)


def _read_json(path: str, data: bytes) -> Allocation:
    top = _object(f"{path}", parsed_json(path, data, _LAYOUT, _Pairs), ("pools", "jobs"))
    if "pools" not in top:
        raise FormatError(f'{path}: no "pools"; expected {_LAYOUT}')
    is_sparks = isinstance(top["pools"], str)
    if is_sparks:
        pools = _pools_of_other(path, top["pools"])
    else:
        pools = tuple(
            _pool(path, name, dict(_object(f"{path}: pool {name!r}", entry, _POOL_KEYS)))
            for name, entry in _object(f'{path}: "pools"', top["pools"], None).items()
        )
    job_pools = _object(f'{path}: "jobs"', top.get("jobs", _Pairs([])), None)
    for pattern, pool in job_pools.items():
        if not isinstance(pool, str) or not pattern:
            raise FormatError(
                f"{path}: jobs {pattern!r} are assigned to {_shown(pool)}; "
                "expected a pattern and the name of a pool"
            )
    return Allocation(pools, tuple(job_pools.items()), path, is_sparks)


def _pools_of_other(path: str, name: str) -> tuple[PoolSpec, ...]:
    """The pools of Spark's file that a JSON file at `path` names."""
    other = Path(path).parent / name
    if other.suffix.lower() != ".xml" or "\0" in name:
        raise FormatError(
            f'{path}: "pools" names {name[:60]!r}; it is the path of Spark\'s file, an XML file'
        )
    return _read_xml(str(other), read_file(other))


class _Pairs(list[tuple[str, Any]]):
    """An object of a JSON file as a list of pairs, so that duplicate keys can be detected."""


def _object(where: str, data: Any, known: Sequence[str] | None) -> dict[str, Any]:
    """The JSON object as a dict.

    Refuses duplicate keys, and keys that are not `known` (None: any key).
    """
    if not isinstance(data, _Pairs):
        raise FormatError(f"{where}: not an object; expected {_LAYOUT}")
    values: dict[str, Any] = {}
    for key, value in data:
        if key in values:
            raise FormatError(f"{where}: {key[:60]!r} is defined twice; keep one")
        # Spark's XML names ("minShare") are suggested by their JSON equivalents.
        if known is not None and key not in known:
            raise FormatError(
                f"{where}: unknown key {key[:60]!r}; {suggestion(_XML_KEYS.get(key, key), known)}"
            )
        values[key] = value
    return values


def _pool(path: str, name: str, values: dict[str, Any]) -> PoolSpec:
    if isinstance(values.get("mode"), str):
        values["mode"] = values["mode"].upper()
    try:
        return PoolSpec(name, **values)
    except ConfigError as error:
        raise FormatError(f"{path}: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return repr(value)[:60]
