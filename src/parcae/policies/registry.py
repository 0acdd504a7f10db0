"""Catalogues: tables of policies by name, with what each does and how it is made.

`parcae.decima.catalog`, `orders.catalog` and `packing.catalog` have a table each. A table is an
explicit list; `Catalogue.register` adds a policy from outside the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from parcae.base.errors import PolicyError, suggestion

Setting = TypeVar("Setting")


@dataclass(frozen=True)
class PolicyEntry(Generic[Setting]):
    """One line of a catalogue.

    Args:
        usage: how to write the policy, e.g. "static:N".
        summary: what the policy does.
        source: where the policy comes from.
        make: makes the policy from (whole text, argument, setting). The catalogue says what its
            setting is.
        title: name of the policy in tables of results; without it the policy's own name.
        prefix: what the policy's name starts with if its argument is a part of the name.
        only_executors: why the policy exists in the world of executors only; "": in both worlds.
    """

    usage: str
    summary: str
    source: str
    make: Callable[[str, str, Setting], Any]
    title: str = ""
    prefix: str = ""
    only_executors: str = ""

    @property
    def name(self) -> str:
        """The name without its argument."""
        return self.usage.partition("[")[0].partition(":")[0]


class Catalogue(Generic[Setting]):
    """Policies by name, in the order in which they are listed.

    Args:
        what: what the entries are, for error messages.
        command: the command that lists them.
        entries: the entries.
    """

    def __init__(self, what: str, command: str, entries: Iterable[PolicyEntry[Setting]]) -> None:
        self._what = what
        self._command = command
        self._entries = list(entries)

    def __iter__(self) -> Iterator[PolicyEntry[Setting]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def names(self) -> list[str]:
        """The names of the policies, each once."""
        return list(dict.fromkeys(entry.name for entry in self._entries))

    def register(self, entry: PolicyEntry[Setting]) -> None:
        """Add a policy from outside the package, for as long as the program runs.

        Raises:
            PolicyError: the catalogue has a policy of this name.
        """
        if self.find(entry.name)[0] is not None:
            raise PolicyError(
                f"there is a {self._what} {entry.name!r} already; choose another name"
            )
        self._entries.append(entry)

    def find(self, text: str) -> tuple[PolicyEntry[Setting] | None, str]:
        """Return the first entry that `text` names, None if there is none, and the argument."""
        name, _, argument = text.partition(":")
        for entry in self._entries:
            if entry.prefix and text.startswith(entry.prefix):
                return entry, text.removeprefix(entry.prefix)
            if not entry.prefix and entry.name == name:
                return entry, argument
        return None, argument

    def make(self, text: str, setting: Setting) -> Any:
        """Return the policy that `text` names: NAME or NAME:ARGUMENT.

        Raises:
            PolicyError: there is no such policy (the message suggests one), or the argument is
                wrong.
        """
        entry, argument = self.find(text)
        if entry is None:
            raise self.unknown(text, self.names)
        return entry.make(text, argument, setting)

    def unknown(self, text: str, names: Iterable[str]) -> PolicyError:
        """The error for a text that is none of the names; it suggests the closest one."""
        hint = suggestion(text.partition(":")[0], names)
        return PolicyError(f"unknown {self._what} {text!r}; {hint} (`{self._command}` lists all)")


def refuse_argument(text: str, argument: str) -> None:
    """Reject an argument of a policy that takes none.

    Raises:
        PolicyError: there is an argument.
    """
    if argument:
        raise PolicyError(f"policy {text!r} takes no argument; write {text.partition(':')[0]!r}")


def refused(reason: str) -> Callable[[str, str, Any], Any]:
    """Return a maker for policies that need more than a name; `reason` follows the name."""

    def make(text: str, argument: str, setting: Any) -> Any:
        raise PolicyError(f"policy {text!r} {reason}")

    return make
