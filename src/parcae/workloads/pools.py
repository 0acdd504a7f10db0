"""Reads the pools of Spark's fair scheduler from an allocation file (fairscheduler.xml) or JSON.

Where Spark warns about an unreadable value and uses the default, this reader refuses the file:
results with other pools than intended would be misleading.

Source: Spark's FairSchedulableBuilder, Pool and SchedulingMode (core, org.apache.spark.scheduler).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.base.loader import parsed_json, read_file
from parcae.workloads.tables import listed

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
        share = self.min_share
        checks = (
            ("name", bool(self.name) and isinstance(self.name, str), "a non-empty text"),
            ("weight", _is_number(self.weight) and 0 < self.weight <= _LARGEST, "a number > 0"),
            (
                "min_share",
                _is_number(share) and 0 <= share <= _LARGEST and share == int(share),
                "a whole number >= 0",
            ),
            ("mode", self.mode in _MODES, "FIFO or FAIR"),
        )
        for name, is_valid, expected in checks:
            if not is_valid:
                raise ConfigError(
                    f"pool {self.name!r}: {name} is {_shown(getattr(self, name))}; "
                    f"it must be {expected}"
                )
        object.__setattr__(self, "weight", float(self.weight))
        object.__setattr__(self, "min_share", int(share))


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
        for row, name in enumerate(names):
            if name in names[:row]:
                raise ConfigError(f"{self.source}: pool {name!r} is defined twice; keep one")
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
        is_defined = DEFAULT_POOL in self._defined
        return self.pools if is_defined else (*self.pools, PoolSpec(DEFAULT_POOL))

    @cached_property
    def _defined(self) -> frozenset[str]:
        return frozenset(pool.name for pool in self.pools)

    def with_pools(self, names: Iterable[str]) -> Allocation:
        """The allocation with the pools that jobs name: Spark makes those that its file lacks, of
        mode FIFO, weight 1 and minimum share 0.
        """
        known = {pool.name for pool in self.all_pools}
        made = (PoolSpec(name) for name in dict.fromkeys(names) if name not in known)
        return replace(self, pools=(*self.pools, *made))

    def pool_of(self, job_name: str, recorded_pool: str | None = None) -> str:
        """The pool of a job.

        The first of these that applies: the pool of the first pattern that matches; the recorded
        pool, if it is defined here; the pool with the same name as the job; `default`.
        """
        for pattern, pool in self.job_pools:
            if job_name == pattern or fnmatchcase(job_name, pattern):
                return pool
        named = (pool for pool in (recorded_pool, job_name) if pool in self._defined)
        return next(named, None) or DEFAULT_POOL

    def pools_of(
        self, job_names: Sequence[str], recorded_pools: Sequence[str | None] | None = None
    ) -> tuple[str, ...]:
        """`pool_of` for every job; `recorded_pools` is as long as `job_names`, or None."""
        recorded = recorded_pools if recorded_pools is not None else [None] * len(job_names)
        return tuple(map(self.pool_of, job_names, recorded))

    def check_used(
        self, job_names: Sequence[str], recorded_pools: Sequence[str | None] | None = None
    ) -> None:
        """Refuse pools to which none of these jobs is assigned (`default` may stay empty).

        Such a pool is most likely a misspelt name. In Spark's own file, which serves other
        applications, too, it is none if a job is in another pool beside `default`.
        """
        used = {DEFAULT_POOL, *self.pools_of(job_names, recorded_pools)}
        unused = [pool.name for pool in self.pools if pool.name not in used]
        if not unused or (self.is_sparks and used != {DEFAULT_POOL}):
            return
        known = sorted({*job_names, *filter(None, recorded_pools or ())})
        raise ConfigError(
            f"{self.source}: no job is assigned to pool {unused[0]!r}; "
            f"jobs and recorded pools are {listed(known)}; "
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
        return Allocation(_of_xml(path, data), source=str(path), is_sparks=True)
    content = parsed_json(path, data, _LAYOUT, partial(_without_repeats, path))
    try:
        pools, job_pools = _of_json(path, content)
    except ConfigError as error:
        raise FormatError(f"{path}: {error}") from None
    return Allocation(pools, tuple(job_pools.items()), str(path), isinstance(content["pools"], str))


def sparks_file(path: Path) -> Path | None:
    """Spark's file that a JSON file names for its pools; None if the file names none."""
    if path.suffix.lower() != ".json":
        return None
    try:
        name = parsed_json(str(path), read_file(path), _LAYOUT)["pools"]
    except (FormatError, KeyError, TypeError):
        return None
    return path.parent / name if isinstance(name, str) else None


class _PlainTree(ElementTree.TreeBuilder):
    """Builds elements, but refuses a document type: only a document type can define entities."""

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise ConfigError("has a DOCTYPE, which may define entities; remove it")


def _of_xml(path: Path, data: bytes) -> tuple[PoolSpec, ...]:
    """The pools of Spark's own file; elements that Spark would ignore are errors here."""
    try:
        root = ElementTree.fromstring(data, ElementTree.XMLParser(target=_PlainTree()))
        if root.tag != "allocations":
            raise ConfigError(f"the root is <{root.tag[:60]}>; expected {_XML_LAYOUT}")
        pools: dict[str, PoolSpec] = {}
        for row, element in enumerate(root):
            _check_known("element in <allocations>", [element.tag], ["pool"])
            _check_known(f"attribute of <pool> {row}", element.attrib, ["name"])
            name = element.attrib.get("name", "")
            if not name:
                raise ConfigError(f'<pool> {row} has no name; write <pool name="...">')
            if name in pools:
                raise ConfigError(f"pool {name!r} is defined twice; keep one")
            pools[name] = PoolSpec(name, **_xml_values(f"pool {name!r}", element))
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise FormatError(f"{path}: not XML ({error}); expected {_XML_LAYOUT}") from None
    except ConfigError as error:
        raise FormatError(f"{path}: {error}") from None
    return tuple(pools.values())


def _xml_values(where: str, element: ElementTree.Element) -> dict[str, Any]:
    """The values of a pool's child elements, by the names of `PoolSpec`."""
    values: dict[str, Any] = {}
    _check_known(f"element in {where}", [child.tag for child in element], list(_XML_KEYS))
    for child in element:
        key = _XML_KEYS[child.tag]
        if key in values:
            raise ConfigError(f"{where}: <{child.tag}> is given twice; keep one")
        text = (child.text or "").strip()
        # One sign is allowed, as in Java; more than 10 digits never fit 32 bits.
        if key != "mode" and not re.fullmatch(r"[+-]?[0-9]{1,10}", text):
            raise ConfigError(
                f"{where}: <{child.tag}> is {_shown(text)}; "
                "Spark reads only whole numbers here, and would use the default"
            )
        values[key] = text.upper() if key == "mode" else int(text)
    return values


def _of_json(path: Path, content: Any) -> tuple[tuple[PoolSpec, ...], dict[str, str]]:
    """The pools, and the pool of each pattern of jobs."""
    top = _object("the file", content, ("pools", "jobs"))
    if "pools" not in top:
        raise ConfigError(f'no "pools"; expected {_LAYOUT}')
    job_pools = _object('"jobs"', top.get("jobs", {}))
    for pattern, pool in job_pools.items():
        if not isinstance(pool, str) or not pattern:
            raise ConfigError(
                f"jobs {pattern!r} are assigned to {_shown(pool)}; "
                "expected a pattern and the name of a pool"
            )
    if not isinstance(top["pools"], str):
        pools = []
        for name, entry in _object('"pools"', top["pools"]).items():
            values = _object(f"pool {name!r}", entry, _POOL_KEYS)
            if isinstance(values.get("mode"), str):
                values["mode"] = values["mode"].upper()
            pools.append(PoolSpec(name, **values))
        return tuple(pools), job_pools
    other = path.parent / top["pools"]
    if other.suffix.lower() != ".xml" or "\0" in top["pools"]:
        raise ConfigError(
            f'"pools" names {top["pools"][:60]!r}; it is the path of Spark\'s file, an XML file'
        )
    return _of_xml(other, read_file(other)), job_pools


def _without_repeats(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON file, in which no key may occur twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise FormatError(f"{path}: {key[:60]!r} is defined twice; keep one")
    return values


def _object(where: str, data: Any, known: Sequence[str] | None = None) -> dict[str, Any]:
    """An object of the file, without keys that are not `known` (None: any key)."""
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: not an object; expected {_LAYOUT}")
    _check_known(f"key in {where}", data, data.keys() if known is None else known)
    return data


def _check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            # In JSON, the names of Spark's XML ("minShare") have other forms.
            near = _XML_KEYS.get(name, name)
            raise ConfigError(f"unknown {what}: {name[:60]!r}; {suggestion(near, known)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return repr(value)[:60]
