"""What comparing, tables and reports know of a world: of a kind of cluster and its policies.

A `World` resolves policy names, plays runs under the policies and makes results of them. The
clusters of Spark jobs (`parcae.evaluation.compare`) and those of rigid jobs
(`parcae.rigid.evaluation.world`) are worlds. `PairedComparison` is what every comparison offers,
whatever its world.
"""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from parcae.base.files import write_text
from parcae.evaluation.statistics import Estimate, Method

#: Called with (runs done, all runs).
Progress = Callable[[int, int], None]
#: Called with a text about the current step.
Say = Callable[[str], None]


class Resolved(Protocol):
    """Policies that were made from the names in a comparison."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the caller's order, without repetitions."""


def tuned_last(names: Iterable[str], is_tuned: Callable[[str], bool]) -> list[str]:
    """The names, each once, in the order in which to make policies of them.

    Tuning takes time, so it comes last: a misspelt name then fails at once.
    """
    return sorted(dict.fromkeys(names), key=is_tuned)


class PolicyResultLike(Protocol):
    """The results of one policy over all runs."""

    @property
    def name(self) -> str:
        """The policy's name as the caller gave it."""


ResolvedT = TypeVar("ResolvedT", bound=Resolved)
ResultT = TypeVar("ResultT", bound=PolicyResultLike)
RowT = TypeVar("RowT")
#: The type of a world's comparisons.
ComparisonT = TypeVar("ComparisonT", covariant=True)


class Kept(Protocol[RowT]):
    """A place that keeps finished runs, so that a stopped comparison can go on."""

    @property
    def rows(self) -> Mapping[int, RowT]:
        """The runs that it has, by their numbers."""

    def keep(self, number: int, row: RowT, /) -> None:
        """Add a run."""


class World(Protocol[ResolvedT, RowT, ComparisonT]):
    """A kind of cluster, with the runs on which its policies are compared.

    `RowT` is what is kept of one run under all policies.
    """

    @property
    def plays_in_threads(self) -> bool:
        """Whether `play` uses all cores itself, so that worker processes would gain nothing."""

    def resolve(self, policies: Sequence[Any], say: Say | None) -> ResolvedT:
        """Make the policies with the given names; those that need tuning are tuned here.

        Raises:
            PolicyError: a policy is unknown or does not fit the world.
        """

    def play(self, resolved: ResolvedT, runs: Sequence[int]) -> list[RowT]:
        """Play runs, given by their numbers (seeds), under every policy. One row per run."""

    def compared(
        self, resolved: ResolvedT, runs: range, rows: Sequence[RowT], method: Method
    ) -> ComparisonT:
        """The comparison with estimates, ratios to the first policy and their intervals.

        Args:
            resolved: the policies.
            runs: the numbers of the runs.
            rows: what `play` returned, in the order of `runs`.
            method: how the intervals are computed.
        """


@dataclass(frozen=True)
class Column(Generic[ResultT]):
    """A column of the table of policies.

    Args:
        heading: the heading.
        text: the cell of a policy in the terminal; None: the column is on the page only.
        page: the cell on the page, as HTML; None: the same text.
        small: a second line of the heading on the page, such as the unit.
    """

    heading: str
    text: Callable[[ResultT], str] | None
    page: Callable[[ResultT], str] | None = None
    small: str = ""

    def page_heading(self) -> str:
        """The heading on the page, as HTML."""
        below = f"<small>{html.escape(self.small)}</small>" if self.small else ""
        return html.escape(self.heading) + below

    def page_cell(self, result: ResultT) -> str:
        """The cell of a policy on the page, as HTML."""
        if self.page is not None:
            return self.page(result)
        return html.escape(self.text(result)) if self.text is not None else ""


@dataclass(frozen=True)
class PairedComparison(ABC, Generic[ResultT]):
    """The result of comparing policies on the same runs, in any world.

    Args:
        policies: results per policy, in the order in which the caller named them. The first is the
            baseline of all ratios.
        settings: everything that is needed to repeat the comparison.
    """

    policies: tuple[ResultT, ...]
    settings: dict[str, Any]

    @property
    @abstractmethod
    def measure(self) -> str:
        """The measure by which policies are ranked (the smaller, the better), in words."""

    @property
    @abstractmethod
    def sampled(self) -> str:
        """What the intervals sample, as a plural: "seeds", "pieces" of a log or "jobs"."""

    @abstractmethod
    def main(self, result: ResultT) -> Estimate:
        """A policy's mean of the main measure."""

    @abstractmethod
    def ratio(self, result: ResultT) -> Estimate:
        """A policy's mean of the main measure / that of the first policy, paired."""

    @abstractmethod
    def value_text(self, value: float) -> str:
        """A value of the main measure with its unit, such as "12.3 s"."""

    @abstractmethod
    def ranked(self) -> list[ResultT]:
        """The policies that may be called the best."""

    @abstractmethod
    def remark(self, best: ResultT | None) -> str:
        """A sentence to add about the best policy (None: no policy is ranked), or no text."""

    def winners(self) -> str:
        """A sentence about who gains and who loses, for the page's headline; or no text."""
        return ""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What was scheduled, for the page's heading."""

    @property
    @abstractmethod
    def view(self) -> Any:
        """The module that shows comparisons of this world: the functions behind the next four."""

    def title(self) -> str:
        """The setting in one line."""
        return str(self.view.title(self))

    def tables(self) -> list[Any]:
        """The tables for the terminal (`rich.table.Table`): that of policies comes first."""
        from parcae.evaluation.cluster_view import comparison_table

        return [comparison_table(self)]

    def columns(self) -> list[Column[ResultT]]:
        """The columns of the table of policies, after that of their names."""
        return list(self.view.columns(self))

    def notes(self) -> list[str]:
        """Sentences below the table."""
        return list(self.view.notes(self))

    def sections(self) -> list[str]:
        """The page's sections after the table, as HTML. The first chart brings the library."""
        return list(self.view.sections(self))

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """{"policies": {name: {...}}, "settings": {...}}"""

    def best(self) -> ResultT | None:
        """The ranked policy with the lowest mean; None if none is ranked."""
        return min(self.ranked(), key=lambda result: self.main(result).mean, default=None)


def write_comparison(comparison: PairedComparison[Any], path: Path) -> None:
    """Write the result as JSON. The file appears only when it is complete."""
    write_text(path, json.dumps(comparison.to_json(), indent=2) + "\n")
