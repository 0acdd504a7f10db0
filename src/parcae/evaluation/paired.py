"""Compare policies in any world: play the same runs under each, in parallel where that pays."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import active_children, get_context
from typing import Any

from parcae.base.errors import ConfigError
from parcae.base.files import interruptions_wait
from parcae.evaluation.statistics import Method
from parcae.evaluation.world import ComparisonT, Kept, Progress, ResolvedT, RowT, Say, World

#: Worker processes take seconds to start. Less estimated work than this runs in this process.
_WORTH_WORKERS_S = 10.0


def compare_in(
    world: World[ResolvedT, RowT, ComparisonT],
    policies: Sequence[Any],
    runs: range,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
    intervals: Method = "t",
    kept: Callable[[ResolvedT], Kept[RowT]] | None = None,
) -> ComparisonT:
    """Play the same runs under every policy, and compare the results.

    Args:
        world: the world; it resolves names, plays and computes the results.
        policies: names of the world's catalogue, or policy objects where the world takes them.
            Ratios are relative to the first.
        runs: the numbers of the runs; what a number stands for (a seed, a piece of a log), the
            world says.
        processes: number of worker processes. None uses one per core, or none at all if only a few
            seconds of work are left. Policies that cannot be pickled, or that workers do not find,
            run in this process, as does a world that uses all cores itself.
        progress: called with (runs done, all runs) after every run.
        say: called with a text about the current step.
        intervals: method of the confidence intervals; see `parcae.evaluation.statistics.METHODS`.
        kept: opens the place of the runs that an earlier, stopped comparison played. They are not
            played again, and the new ones are added.

    Raises:
        PolicyError: a policy name is unknown or does not fit the world.
        ConfigError: there is no policy or no run, or a worker process died.
        WorkloadError: the workload cannot give the jobs.
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
    return world.compared(resolved, runs, [rows[number] for number in runs], intervals)


def _play_all(
    world: World[ResolvedT, RowT, ComparisonT],
    resolved: ResolvedT,
    runs: Sequence[int],
    processes: int | None,
    say: Say | None,
) -> Iterator[tuple[int, RowT]]:
    """Play all runs, in the way that suits the world; yields the number of a run and its row."""
    if world.plays_in_threads:
        if say is not None:
            say(f"running {', '.join(resolved.names)}")
        yield from zip(runs, world.play(resolved, runs), strict=True)
    elif _can_be_sent(resolved):
        yield from _play_in_processes(world, resolved, runs, processes)
    else:
        yield from _play_in_processes(world, resolved, runs, 1)


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
    world: World[ResolvedT, RowT, ComparisonT],
    resolved: ResolvedT,
    runs: Sequence[int],
    processes: int | None,
) -> Iterator[tuple[int, RowT]]:
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
    world: World[ResolvedT, RowT, ComparisonT],
    resolved: ResolvedT,
    runs: Sequence[int],
    workers: int,
) -> Iterator[tuple[int, RowT]]:
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
