"""The registry: one table of policies by name, and one of kinds of checkpoints.

The rows of the world of cores come first, then those of other packages (`parcae.base.extensions`),
then those that the program registers. A name is parsed by `parcae.policies.names`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from parcae.base.errors import ConfigError, FormatError, PolicyError, suggestion
from parcae.base.extensions import (
    import_function,
    is_importable,
    is_reference,
    load,
    owned_rows,
    rows,
)
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
from parcae.policies.names import ADDITIONS, PolicyName
from parcae.policies.own import instance, policy_object
from parcae.policies.parameter_search import Knobs
from parcae.simulation.config import SimulationConfig
from parcae.workloads.workload import Workload


class Setting(Protocol):
    """What a policy is made for, as far as the registry knows it."""

    @property
    def world(self) -> str:
        """The world: "cores", "executors" or that of a package."""

    def own_policy(self, value: Any, text: str) -> Any:
        """A policy of one's own, which `text` names as `module:attribute`, as a policy here."""


@dataclass(frozen=True)
class PolicySetting:
    """What a policy for Spark jobs is made for.

    Args:
        workload: the workload that the policy schedules.
        config: the cluster and its world.
        arrivals: the arrival process; chooses the nearest shipped variant of a learned policy.
        read: reads the file of a checkpoint.
    """

    workload: Workload
    config: SimulationConfig
    arrivals: str = "batch"
    read: Callable[[Path], Checkpoint] = read_checkpoint

    def __post_init__(self) -> None:
        # A name can be looked up without a workload.
        if self.workload is not None:
            object.__setattr__(self, "workload", self.config.jobs_of(self.workload))

    @property
    def world(self) -> str:
        """The world of the cluster."""
        return self.config.world.value

    def own_policy(self, value: Any, text: str) -> Any:
        """A function, an object, or a class, of which an object is made."""
        return policy_object(instance(value, text), self.workload, self.config, text)


@dataclass(frozen=True)
class PolicyEntry:
    """A row of the table of policies.

    Args:
        usage: how to write the policy, e.g. "static:N".
        summary: what the policy does.
        source: where the policy comes from.
        make: makes the policy from its parsed name and the setting, or "module:function" of this.
        worlds: where the policy exists.
        in_words: what tables of results call the policy: a text, or a function of the parsed name
            and the setting, also as "module:function"; None: its name.
        prefix: what the policy's name starts with if its argument is a part of the name.
        suffix: the same at the end of the name.
        why: why the policy exists in no other world.
        sweep: the parameters that `:tuned` and `:oracle` find; None: it has none.
        formerly: the name that the policy had in earlier versions.
    """

    usage: str
    summary: str
    source: str
    make: Callable[[PolicyName, Any], Any] | str
    worlds: tuple[str, ...] = ("cores",)
    in_words: Callable[[PolicyName, Any], str] | str | None = None
    prefix: str | tuple[str, ...] = ""
    suffix: str = ""
    why: str = ""
    sweep: Knobs | None = None
    formerly: str = ""

    @property
    def name(self) -> str:
        """The name without its argument."""
        return self.usage.partition("[")[0].partition(":")[0]

    def matches(self, name: PolicyName) -> bool:
        """Whether a parsed name means this row."""
        if self.prefix or self.suffix:
            return name.name.startswith(self.prefix) and name.name.endswith(self.suffix)
        return bool(name.word) and name.word in (self.name, self.formerly)

    @property
    def reason(self) -> str:
        """Why the policy exists in no other world, and what to do."""
        why = self.why or f"exists in the world of {self.worlds[0]} only"
        return f"{why}: choose --world {self.worlds[0]}"


@dataclass(frozen=True)
class CheckpointKind:
    """A row of the table of kinds of checkpoints.

    Args:
        kind: what checkpoints of this kind say.
        version: of the features or parameters.
        bind: makes the policy from (checkpoint, name, setting), or "module:function" of this.
        worlds: where the policy exists; the first is where it was learned.
        rule: returns the parameters of the rule within a checkpoint, from (checkpoint, name).
        rank: of two checkpoints that were learned for equally near settings, the one with the
            smaller value is taken; called as `rank(checkpoint, setting)`.
        formerly: what checkpoints of earlier versions say.
    """

    kind: str
    version: int
    bind: Callable[[Checkpoint, str, Any], Any] | str
    worlds: tuple[str, ...] = ("cores",)
    rule: Callable[[Checkpoint, str], Any] | None = None
    rank: Callable[[Checkpoint, Any], Any] = lambda checkpoint, setting: 0
    formerly: str = ""


_LOG = logging.getLogger(__name__)
#: Arguments that stand for parameters that are found on runs.
TUNED_WORDS = ("tuned", "oracle")
#: The rows of the world of cores.
_CORES = "parcae.policies.catalog"
_REGISTERED: list[PolicyEntry] = []


def entries() -> Iterator[PolicyEntry]:
    """All rows of the table of policies."""
    yield from _installed()
    yield from _REGISTERED


@cache
def _installed() -> tuple[PolicyEntry, ...]:
    """The rows of the world of cores and of installed packages.

    Raises:
        ConfigError: two packages bring a policy of one name in one world.
    """
    own = [("parcae", entry) for entry in load(f"{_CORES}:POLICIES", "policies")]
    found = own + list(owned_rows("policies"))
    owners: dict[tuple[str, str], str] = {}
    for owner, entry in found:
        for world in entry.worlds:
            other = owners.setdefault((entry.name, world), owner)
            if other != owner:
                raise ConfigError(
                    f"two packages bring a policy {entry.name!r} for the world of {world}: {other} "
                    f"and {owner}; uninstall one of them, or give its policy another name"
                )
    return tuple(entry for _, entry in found)


def kinds() -> Iterator[CheckpointKind]:
    """All rows of the table of kinds of checkpoints."""
    yield from load(f"{_CORES}:KINDS", "checkpoints")
    yield from rows("checkpoints")


def register(entry: PolicyEntry) -> None:
    """Add a policy for as long as the program runs."""
    same = (other for other in entries() if other.name == entry.name)
    if any(set(other.worlds) & set(entry.worlds) for other in same):
        raise PolicyError(f"there is a policy {entry.name!r} already; choose another name")
    _REGISTERED.append(entry)


def find(name: PolicyName, world: str) -> PolicyEntry | None:
    """The row that a name means in a world; None if there is none.

    Raises:
        PolicyError: the name means a policy of another world.
    """
    elsewhere = late = None
    for entry in entries():
        if not entry.matches(name):
            continue
        if entry.suffix and name.argument:
            # plan:best.safetensors is a name of the policy `plan`.
            late = entry
        elif world in entry.worlds:
            return entry
        else:
            elsewhere = elsewhere or entry
            if entry.usage == name.name and name.argument:
                break
    if elsewhere is not None:
        raise PolicyError(f"policy {name.name!r} {elsewhere.reason}")
    return late


def make(name: PolicyName, setting: Setting) -> Any:
    """The policy that a parsed name means, without what the name adds to it.

    Raises:
        PolicyError: there is no such policy in the setting's world, or its argument is wrong.
        ConfigError, FormatError, OSError: the policy does not fit the setting, or its checkpoint or
            module cannot be read.
    """
    check_additions(name, setting.world)
    entry = find(name, setting.world)
    if entry is not None:
        check_tuned(name, entry)
        return import_function(entry.make)(name, setting)
    if is_reference(name.name) and is_importable(name.word):
        return setting.own_policy(load(name.name, "policy"), name.name)
    raise unknown(name, setting.world)


def in_words(name: PolicyName, setting: Setting) -> str:
    """What tables of results call a policy: a shipped variant, or one of Spark's orders."""
    entry = find(name, setting.world)
    if entry is None or entry.in_words is None:
        return name.name
    words = entry.in_words
    words = import_function(words) if is_reference(str(words)) else words
    return words if isinstance(words, str) else words(name, setting)


def check_tuned(name: PolicyName, entry: PolicyEntry) -> None:
    """Refuse a policy whose parameters have to be found first."""
    if entry.sweep is not None and name.argument in TUNED_WORDS:
        raise PolicyError(
            f"policy {name.name!r} must be tuned on a workload first: use it in `parcae compare` "
            "or `parcae simulate`"
        )


def check_additions(name: PolicyName, world: str) -> None:
    """Refuse what a name adds to a policy if it does not exist in the world."""
    what = ""
    if world != "cores":
        what = "planning by pools" if name.own_pools else what
        what = "keeping pools or priorities" if name.has_tenants else what
        what = "keeping accounts of users" if name.account is not None else what
    if what:
        raise PolicyError(
            f"policy {name.name + name.describe()!r}: {what} exists in the world of cores only: "
            "choose --world cores"
        )
    if name.is_unguarded and world != "rigid":
        raise PolicyError(
            f"policy {name.name + '+unguarded'!r}: +unguarded exists in the world of rigid jobs "
            f"only; write {name.name!r}"
        )


def unknown(name: PolicyName, world: str) -> PolicyError:
    """The error for a name that means nothing; it suggests the closest one."""
    names = dict.fromkeys(entry.name for entry in entries() if world in entry.worlds)
    hint = suggestion(name.word, names)
    module = f"; there is no module {name.word!r} either" if is_reference(name.name) else ""
    return PolicyError(
        f"unknown policy {name.name!r}; {hint} (`parcae policies` lists all{module})"
    )


def kind_of(checkpoint: Checkpoint, path: str) -> CheckpointKind:
    """The row of a checkpoint's kind, after checking the version of its features."""
    known = []
    for row in kinds():
        if checkpoint.kind in (row.kind, row.formerly):
            if checkpoint.kind != row.kind:
                note_renamed(checkpoint.kind, row.kind)
            checkpoint.require(checkpoint.kind, row.version, path)
            return row
        known.append(row.kind)
    raise FormatError(
        f"{path}: this is a checkpoint of a {checkpoint.kind!r} policy, not of one of "
        f"{', '.join(known)}"
    )


@cache
def note_once(text: str, *names: str) -> None:
    """Warn of something, but of the same only once."""
    _LOG.warning(text, *names)


def note_renamed(word: str, present: str) -> None:
    """Say once that a name or a kind of checkpoint of an earlier version is read."""
    note_once("the policy %r of the world of executors is called %r now", word, present)


def bind(checkpoint: Checkpoint, name: str, setting: Setting) -> Any:
    """The policy of a checkpoint, bound to what it schedules."""
    row = kind_of(checkpoint, name)
    if setting.world not in row.worlds:
        raise PolicyError(
            f"policy {name!r} is of kind {row.kind!r}, for the world of {row.worlds[0]}; "
            f"choose --world {row.worlds[0]}"
        )
    return import_function(row.bind)(checkpoint, name, setting)


def all_policies(
    worlds: Iterable[str] = ("cores", "executors"),
) -> Iterator[tuple[str, str, str, str]]:
    """Yield (usage, summary, source, world) of every policy of these worlds.

    `world` is "both" for a policy of cores and executors.
    """
    wanted = set(worlds)
    for entry in entries():
        found = [world for world in entry.worlds if world in wanted]
        if found:
            world = found[0] if len(found) == 1 else "both"
            yield entry.usage, entry.summary, entry.source, world
    for usage, summary, world in ADDITIONS:
        if world in wanted:
            yield usage, summary, "Parcae", world


def refuse_argument(name: PolicyName) -> None:
    """Reject an argument of a policy that takes none."""
    if name.argument:
        raise PolicyError(f"policy {name.name!r} takes no argument; write {name.word!r}")


def refused(reason: str) -> Callable[[PolicyName, Any], Any]:
    """Return a maker for policies that need more than a name; `reason` follows the name."""

    def make(name: PolicyName, setting: Any) -> Any:
        raise PolicyError(f"policy {name.name!r} {reason}")

    return make
