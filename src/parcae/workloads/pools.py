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
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.base.loader import parsed_json, read_file
from parcae.workloads.tables import NOT_TEXT, checked_model, listed

Mode = Literal["FIFO", "FAIR"]

#: The pool of jobs that name no pool; Spark always has it, whether the file defines it or not.
DEFAULT_POOL = "default"
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

    Example: `PoolSpec("etl", weight=2, min_share=4)`.
    """

    name: str
    weight: float = 1
    min_share: int = 0
    mode: Mode = "FIFO"


class PoolValues(BaseModel):
    """The values of a pool in a file."""

    model_config = ConfigDict(extra="forbid")

    weight: Annotated[float, NOT_TEXT, Field(gt=0, le=_LARGEST)] = 1
    min_share: Annotated[int, NOT_TEXT, Field(ge=0, le=_LARGEST)] = 0
    mode: Annotated[Mode, BeforeValidator(lambda one: str(one).upper())] = "FIFO"

    def named(self, name: str) -> PoolSpec:
        """The pool of this name."""
        return PoolSpec(name, self.weight, self.min_share, self.mode)


_Name = Annotated[str, Field(min_length=1)]


class _PoolFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    pools: dict[_Name, PoolValues]
    jobs: dict[_Name, str] = {}


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
        content: Any = {"pools": _of_xml(path, data)}
    else:
        content = parsed_json(path, data, _LAYOUT, partial(_without_repeats, path))
    is_sparks = is_xml
    if isinstance(content, dict) and isinstance(content.get("pools"), str):
        is_sparks = True
        other = path.parent / content["pools"]
        if other.suffix.lower() != ".xml" or "\0" in content["pools"]:
            raise FormatError(
                f'{path}: "pools" names {content["pools"][:60]!r}; '
                "it is the path of Spark's file, an XML file"
            )
        content["pools"] = _of_xml(other, read_file(other))
    file = checked_model(path, content, _PoolFile, _XML_LAYOUT if is_xml else _LAYOUT)
    pools = tuple(values.named(name) for name, values in file.pools.items())
    return Allocation(pools, tuple(file.jobs.items()), str(path), is_sparks)


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


def _of_xml(path: Path, data: bytes) -> dict[str, dict[str, Any]]:
    """The values of the pools of Spark's own file."""
    try:
        root = ElementTree.fromstring(data, ElementTree.XMLParser(target=_PlainTree()))
        if root.tag != "allocations":
            raise ConfigError(f"the root is <{root.tag[:60]}>; expected {_XML_LAYOUT}")
        pools: dict[str, dict[str, Any]] = {}
        for row, element in enumerate(root):
            name = element.attrib.get("name", "")
            if element.tag != "pool" or not name or len(element.attrib) > 1:
                raise ConfigError(
                    f"element {row} of <allocations> is no pool; write <pool name=...>"
                )
            if name in pools:
                raise ConfigError(f"pool {name!r} is defined twice; keep one")
            pools[name] = _xml_values(name, element)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise FormatError(f"{path}: not XML ({error}); expected {_XML_LAYOUT}") from None
    except ConfigError as error:
        raise FormatError(f"{path}: {error}") from None
    return pools


def _xml_values(name: str, element: ElementTree.Element) -> dict[str, Any]:
    """The values of a pool's child elements, by the names of `PoolValues`."""
    values: dict[str, Any] = {}
    for child in element:
        key = _XML_KEYS.get(child.tag, child.tag)
        if key in values:
            raise ConfigError(f"pool {name!r}: <{child.tag}> is given twice; keep one")
        text = (child.text or "").strip()
        # One sign is allowed, as in Java; more than 10 digits never fit 32 bits.
        if key in ("weight", "min_share") and not re.fullmatch(r"[+-]?[0-9]{1,10}", text):
            raise ConfigError(
                f"pool {name!r}: <{child.tag}> is {text[:60]!r}; "
                "Spark reads only whole numbers here, and would use the default"
            )
        values[key] = int(text) if key in ("weight", "min_share") else text
    return values


def _without_repeats(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON file, in which no key may occur twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise FormatError(f"{path}: {key[:60]!r} is defined twice; keep one")
    return values
