"""Compare policies in any world: play the same runs under each, in parallel where that pays.

A `ComparedWorld` is a kind of cluster with its runs: it resolves policy names, plays, measures, and
says what a reader should be told. The clusters of Spark jobs (`parcae.evaluation.compare`) and
those of rigid jobs (`parcae.rigid.evaluation.compare`) are worlds. The result is a `Comparison`: a
frame with a row a run and policy, a frame with a row a job and policy, and what follows from them.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
from rich.markup import escape
from rich.table import Table

from parcae.base.errors import ConfigError
from parcae.base.files import interruptions_wait, write_text
from parcae.base.texts import plain
from parcae.evaluation.page import Cell, Section, as_html, estimate_cell
from parcae.evaluation.page import Table as PageTable
from parcae.evaluation.plots import interval_dots, policy_color, ratio_dots
from parcae.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Called with (runs done, all runs).
Progress = Callable[[int, int], None]
#: Called with a text about the current step.
Say = Callable[[str], None]
#: The result that is no policy's: what a log says of its own jobs. Nothing is relative to it.
RECORDED = "as recorded"
#: Worker processes take seconds to start. Less estimated work than this runs in this process.
_WORTH_WORKERS_S = 10.0
#: No number in a table is longer, with its interval and unit, in characters.
_LONGEST_NUMBER = 32
#: Longer names of policies, such as paths, are broken into lines on pages.
_LONG_NAME = 24


def tuned_last(names: Iterable[str], is_tuned: Callable[[str], bool]) -> list[str]:
    """The names, each once, in the order in which to make policies of them.

    Tuning takes time, so it comes last: a misspelt name then fails at once.
    """
    return sorted(dict.fromkeys(names), key=is_tuned)


@dataclass(frozen=True)
class Played:
    """One run under every policy. `column` is a policy's place among those compared.

    Args:
        runs: a row a policy, in their order: the metrics of the run.
        jobs: a row a job and policy, sorted by `position` (that of the job), then `column`.
        shown: what charts of this run need; only that of the first run is kept.
    """

    runs: pl.DataFrame
    jobs: pl.DataFrame
    shown: Any = None


@dataclass(frozen=True)
class PolicyResult:
    """The results of one policy over all runs.

    Args:
        name: the policy's name as the caller gave it.
        runs: the metrics of its runs, a row a run.
        estimates: numbers with their intervals, by name.
        numbers: further numbers, by name; lists have an entry a run.
    """

    name: str
    runs: pl.DataFrame
    estimates: Mapping[str, Estimate]
    numbers: Mapping[str, Any]

    @property
    def average_jct_s(self) -> Estimate:
        """Mean over seeds of the average job completion time, in seconds."""
        return self.estimates["average_jct_s"]

    @property
    def ratio_to_first(self) -> Estimate:
        """The mean of the main measure / that of the first policy, paired by run."""
        return self.estimates["ratio_to_first"]

    def to_json(self) -> dict[str, Any]:
        """The numbers and estimates by name, with null where they are unknown.

        What is before a point in a name is the name of a group.
        """
        card: dict[str, Any] = plain(self.numbers)
        for name, one in self.estimates.items():
            group, _, key = name.rpartition(".")
            (card.setdefault(group, {}) if group else card)[key] = one.to_json()
        return card


class Column(NamedTuple):
    """A column of the table of policies.

    Args:
        heading: the heading.
        value: what a cell shows of a policy: the name of an estimate or a number, or a function
            that returns one of these or a text.
        number: writes a number.
        small: a second line of the heading on the page, such as the unit.
        in_terminal: whether the terminal's table has the column, too.
        has_interval: whether the terminal shows an estimate's interval.
    """

    heading: str
    value: str | Callable[[PolicyResult], Estimate | float | str]
    number: Callable[[float], str] = "{:.3f}".format
    small: str = ""
    in_terminal: bool = True
    has_interval: bool = True

    def cell(self, result: PolicyResult, has_interval: bool = True) -> Cell:
        """The cell of a policy."""
        value = (
            {**result.numbers, **result.estimates}[self.value]
            if isinstance(self.value, str)
            else self.value(result)
        )
        if isinstance(value, str):
            return Cell(value)
        if isinstance(value, Estimate) and has_interval:
            return estimate_cell(value, self.number)
        mean = value.mean if isinstance(value, Estimate) else value
        return estimate_cell(Estimate(mean, math.nan, math.nan), self.number)


class ComparedWorld(ABC):
    """A kind of cluster, with the runs on which its policies are compared."""

    #: Whether `play` uses all cores itself, so that worker processes would gain nothing.
    plays_in_threads = False
    #: The estimate by which policies are ranked (the smaller, the better), and it in words.
    main: str
    measure: str
    #: What is scheduled.
    subject: str

    @abstractmethod
    def resolve(self, policies: Sequence[Any], say: Say | None = None) -> Any:
        """The policies with the given names, as an object with `names`; some are tuned here."""

    @abstractmethod
    def play(self, resolved: Any, runs: Sequence[int]) -> list[Played]:
        """Play runs, given by their numbers (seeds), under every policy."""

    @abstractmethod
    def results(
        self, names: Sequence[str], runs: pl.DataFrame, jobs: pl.DataFrame
    ) -> list[PolicyResult]:
        """The results of every policy, from the frames of all runs."""

    @abstractmethod
    def settings_of(
        self, resolved: Any, runs: range, results: Sequence[PolicyResult]
    ) -> dict[str, Any]:
        """Everything that is needed to repeat a comparison."""

    @abstractmethod
    def ranked(self, comparison: Comparison) -> list[PolicyResult]:
        """The policies that may be called the best."""

    @abstractmethod
    def remark(self, comparison: Comparison, best: PolicyResult | None) -> str:
        """Who pays for the best policy (None: no policy is ranked) in sentences, or no text."""

    @abstractmethod
    def title(self, comparison: Comparison) -> str:
        """The setting in one line."""

    @abstractmethod
    def columns(self, comparison: Comparison) -> list[Column]:
        """The columns of the table of policies, after that of their names."""

    @abstractmethod
    def notes(self, comparison: Comparison) -> list[str]:
        """Sentences below the table."""

    @abstractmethod
    def warnings(self, comparison: Comparison) -> list[str]:
        """What makes conclusions from the comparison wrong, in sentences."""

    @property
    def frames(self) -> Mapping[str, Callable[[Comparison], pl.DataFrame]]:
        """Tables for users, by what a row is."""
        return {}

    @abstractmethod
    def sections(self, comparison: Comparison) -> list[Section]:
        """The page's sections after the table."""

    def caveat(self, comparison: Comparison) -> str:
        """What to know before any result: where the simulation misses the log; or no text."""
        return ""

    def winners(self, comparison: Comparison) -> str:
        """A sentence about who gains and who loses, for the page's headline; or no text."""
        return ""

    def tables(self, comparison: Comparison) -> list[Table]:
        """Further tables for the terminal."""
        return []

    def json_of(self, comparison: Comparison) -> dict[str, Any]:
        """The world's own part of the JSON."""
        return {}


@dataclass(frozen=True)
class Comparison:
    """The result of comparing policies on the same runs.

    Args:
        policies: results per policy, in the order in which the caller named them. The first is the
            baseline of all ratios. The last may be `RECORDED`.
        settings: everything that is needed to repeat the comparison.
        world: the cluster and its runs.
        resolved: the policy objects.
        runs: a row a run and policy, with the run's number as `seed`.
        jobs: a row a job and policy.
        shown: what charts of the first run need, if the world kept it.
    """

    policies: tuple[PolicyResult, ...]
    settings: dict[str, Any]
    world: Any
    resolved: Any
    runs: pl.DataFrame
    jobs: pl.DataFrame
    shown: Any = None

    def __repr__(self) -> str:
        best = self.best()
        names = ", ".join(result.name for result in self.policies)
        return f"<Comparison {names}: {self.title()}; best: {best and best.name}>"

    def _repr_html_(self) -> str:
        """The table of policies and a picture of their ratios, for notebooks."""
        return as_html(comparison_table(self), self._picture)

    def _picture(self) -> Figure:
        """The policies' ratios to the first; of one policy alone, its mean."""
        names = [result.name for result in self.policies]
        if len(names) == 1:
            return interval_dots("", self.world.measure, names, [self.main(self.policies[0])])
        title = f"{self.world.measure} / that under {names[0]}"
        return ratio_dots(title, names, [one.ratio_to_first for one in self.policies])

    def main(self, result: PolicyResult) -> Estimate:
        """A policy's mean of the measure by which policies are ranked."""
        return result.estimates[self.world.main]

    @property
    def simulated(self) -> list[PolicyResult]:
        """The results of policies, without what the log says."""
        return [result for result in self.policies if result.name != RECORDED]

    @property
    def rows(self) -> list[PolicyResult]:
        """The results in the order of tables: what the log says comes first."""
        return sorted(self.policies, key=lambda result: result.name != RECORDED)

    def ranked(self) -> list[PolicyResult]:
        """The policies that may be called the best."""
        ranked: list[PolicyResult] = self.world.ranked(self)
        return ranked

    def best(self) -> PolicyResult | None:
        """The ranked policy with the lowest mean; None if none is ranked."""
        return min(self.ranked(), key=lambda result: self.main(result).mean, default=None)

    def title(self) -> str:
        """The setting in one line."""
        return str(self.world.title(self))

    def warnings(self) -> list[str]:
        """What makes conclusions from this comparison wrong, in sentences."""
        return [*filter(None, [self.world.caveat(self)]), *self.world.warnings(self)]

    def notes(self) -> list[str]:
        """Sentences below the table of policies; the caveat is above it."""
        warnings = (f"Warning: {text}." for text in self.world.warnings(self))
        return [*self.world.notes(self), *warnings]

    def columns(self) -> list[Column]:
        """The columns of the table of policies, after that of their names."""
        return list(self.world.columns(self))

    def tables(self) -> list[Table]:
        """The tables for the terminal: that of policies comes first."""
        return [comparison_table(self), *self.world.tables(self)]

    def to_json(self) -> dict[str, Any]:
        """{"policies": {name: {...}}, "settings": {...}, "warnings": [...]}"""
        own = self.world.json_of(self)
        of_policies = own.pop("policies", {})
        policies = {p.name: {**p.to_json(), **of_policies.get(p.name, {})} for p in self.policies}
        return {
            "policies": policies,
            "settings": self.settings,
            "warnings": self.warnings(),
            **own,
        }

    def to_frame(self) -> pl.DataFrame:
        """One row a policy; see `parcae.evaluation.per_job.comparison_frame`."""
        return self._frame("policies")

    def jobs_frame(self) -> pl.DataFrame:
        """One row a seed, job and policy; see `parcae.evaluation.per_job.per_job_table`."""
        return self._frame("jobs")

    def recurring_frame(self) -> pl.DataFrame:
        """One row a recurring job and policy; see `parcae.evaluation.per_job.recurring_table`."""
        return self._frame("recurring")

    def _frame(self, kind: str) -> pl.DataFrame:
        frames = self.world.frames
        if kind not in frames:
            raise ConfigError(f"a comparison of {self.world.subject} has no table of {kind}")
        frame: pl.DataFrame = frames[kind](self)
        return frame


def policies_table(comparison: Comparison, *, is_short: bool = False) -> PageTable:
    """The table of policies, with the best one highlighted; the short one is for the terminal."""
    columns = [one for one in comparison.columns() if one.in_terminal or not is_short]
    rows = []
    for result in comparison.rows:
        color = policy_color(comparison.policies.index(result))
        name = Cell(result.name, color=color, is_name=len(result.name) > _LONG_NAME)
        cells = (one.cell(result, one.has_interval or not is_short) for one in columns)
        rows.append([name, *cells])
    best = comparison.best()
    position = None if best is None else comparison.rows.index(best)
    head = [Cell("policy"), *(Cell(column.heading, column.small) for column in columns)]
    return PageTable(head, rows, comparison.notes(), position)


def comparison_table(comparison: Comparison) -> Table:
    """The comparison as a table for the terminal."""
    caveat = comparison.world.caveat(comparison)
    title = f"Warning: {caveat}.\n{comparison.title()}" if caveat else comparison.title()
    return in_terminal(policies_table(comparison, is_short=True), title)


def in_terminal(table: PageTable, title: str) -> Table:
    """A page's table for the terminal."""
    rows = [[str(cell) for cell in row] for row in table.rows]
    return text_table(title, [one.text for one in table.head], rows, "\n".join(table.notes))


def text_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    num_names: int = 1,
) -> Table:
    """A table of texts for the terminal, whose first columns name a row.

    Names and long texts are to the left and may be folded; numbers are to the right.
    """
    table = Table(title=escape(title), caption=escape(caption) or None, show_header=any(headings))
    for number, heading in enumerate(headings):
        longest = max([len(heading), *(len(row[number]) for row in rows)])
        is_text = number == num_names - 1 or longest > _LONGEST_NUMBER
        table.add_column(
            escape(heading),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the result as JSON. The file appears only when it is complete."""
    write_text(path, json.dumps(comparison.to_json(), indent=2) + "\n")


def compare_in(
    world: ComparedWorld,
    policies: Sequence[Any],
    runs: range,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
    kept: Callable[[Any], Any] | None = None,
) -> Comparison:
    """Play the same runs under every policy, and compare the results.

    Ratios are relative to the first policy. What the number of a run stands for (a seed, a piece of
    a log), the world says. `processes` is the number of worker processes: None uses one per core,
    or none at all if only a few seconds of work are left. Policies that cannot be pickled, or that
    workers do not find, run in this process, as does a world that uses all cores itself. `kept`
    opens a place of runs that were played before (`KeptRuns`), to which the new ones are added.
    """
    if not policies or not runs:
        raise ConfigError("compare at least one policy on at least one seed")
    if any(isinstance(policy, str) and not policy for policy in policies):
        raise ConfigError(
            "a policy has no name: give at least one policy, and separate names by single commas"
        )
    resolved = world.resolve(policies, say)
    place = None if kept is None else kept(resolved)
    rows = {} if place is None else {n: row for n, row in place.rows.items() if n in runs}
    if rows and progress is not None:
        progress(len(rows), len(runs))
    missing = [number for number in runs if number not in rows]
    for number, row in _play_all(world, resolved, missing, processes, say):
        rows[number] = row
        if place is not None:
            place.keep(number, row)
        if progress is not None:
            progress(len(rows), len(runs))
    every, jobs = (
        pl.concat(numbered(number, getattr(rows[number], kind)) for number in runs)
        for kind in ("runs", "jobs")
    )
    return compared(world, resolved, runs, every, jobs, rows[runs[0]].shown)


def numbered(number: int, frame: pl.DataFrame) -> pl.DataFrame:
    """A frame of one run with the run's number as its first column, `seed`."""
    return frame.select(pl.lit(number, pl.Int64).alias("seed"), pl.all())


def compared(
    world: ComparedWorld,
    resolved: Any,
    numbers: range,
    runs: pl.DataFrame,
    jobs: pl.DataFrame,
    shown: Any = None,
) -> Comparison:
    """The comparison of runs that were played; the frames are those of all runs."""
    results = tuple(world.results(resolved.names, runs, jobs))
    settings = world.settings_of(resolved, numbers, results)
    return Comparison(results, settings, world, resolved, runs, jobs, shown)


def _play_all(
    world: ComparedWorld, resolved: Any, runs: Sequence[int], processes: int | None, say: Say | None
) -> Iterator[tuple[int, Played]]:
    """Play all runs, in the way that suits the world; yields the number of a run and its row."""
    if world.plays_in_threads:
        if say is not None:
            say(f"running {', '.join(resolved.names)}")
        yield from zip(runs, world.play(resolved, runs), strict=True)
    else:
        yield from _play_in_processes(
            world, resolved, runs, processes if _can_be_sent(resolved) else 1
        )


def _can_be_sent(resolved: Any) -> bool:
    """Whether worker processes can be given the policies: a function of a notebook cannot."""
    try:
        sent = pickle.dumps(resolved)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError):
        return False
    # Functions and classes are sent by name. Workers have no module of a notebook or a prompt.
    main = sys.modules["__main__"]
    is_importable = hasattr(main, "__file__") or getattr(main, "__spec__", None) is not None
    return is_importable or b"__main__" not in sent


def _play_in_processes(
    world: ComparedWorld, resolved: Any, runs: Sequence[int], processes: int | None
) -> Iterator[tuple[int, Played]]:
    """Play the runs in this process while little work is left, otherwise in worker processes.

    If the caller gave a number of processes above 1, all runs are played in workers. Runs under a
    policy that workers do not find are played here.
    """
    # More workers than runs would be idle.
    workers = min(processes or os.cpu_count() or 1, len(runs))
    left = runs
    while left and (workers == 1 or processes is None):
        start = time.perf_counter()
        yield left[0], world.play(resolved, left[:1])[0]
        left = left[1:]
        # The time of the run just played estimates the time of each run that is left.
        if workers > 1 and (time.perf_counter() - start) * len(left) > _WORTH_WORKERS_S:
            break
    if left:
        try:
            yield from _play_in_workers(world, resolved, left, min(workers, len(left)))
        except _NotFoundError:
            # No worker found them, so that none has played a run.
            yield from ((number, world.play(resolved, [number])[0]) for number in left)


class _NotFoundError(Exception):
    """A worker process does not find a policy, such as one defined under the main guard."""


#: The world and the policies of a worker process, set once by `_start_worker`.
_shared: tuple[Any, Any] | None = None


def _start_worker(sent: bytes) -> None:
    """Keep the pickled world and policies, once per worker process."""
    global _shared
    # Ctrl-C reaches the workers too. The default handler ends them at once, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Functions and classes are sent by name, and what fails here would end the worker.
    with suppress(AttributeError, ImportError):
        _shared = pickle.loads(sent)


def _play_one(number: int) -> tuple[int, Any]:
    if _shared is None:
        raise _NotFoundError
    world, resolved = _shared
    try:
        return number, world.play(resolved, [number])[0]
    except Exception as error:
        if _is_pickled_whole(error):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _is_pickled_whole(error: Exception) -> bool:
    """Whether the caller gets an error; one that cannot be made from its `args` breaks the pool."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def _submit(pool: ProcessPoolExecutor, number: int) -> Future[tuple[int, Any]]:
    # A worker that this starts inherits that Ctrl-C waits, until `_start_worker` lets it end it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Another thread may still take the signal: a worker whose start it broke off would live on.
        with interruptions_wait():
            return pool.submit(_play_one, number)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _play_in_workers(
    world: ComparedWorld, resolved: Any, runs: Sequence[int], workers: int
) -> Iterator[tuple[int, Played]]:
    other_children = set(active_children())
    pool = ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        initializer=_start_worker,
        initargs=(pickle.dumps((world, resolved)),),
    )
    try:
        for done in as_completed([_submit(pool, number) for number in runs]):
            yield done.result()
    except BrokenProcessPool:
        raise ConfigError(
            "a worker process died, most likely because memory ran out; "
            "use fewer processes or a smaller run"
        ) from None
    except BaseException:
        # The pool would wait for the running seeds to end. Stop its workers instead.
        for child in set(active_children()) - other_children:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
