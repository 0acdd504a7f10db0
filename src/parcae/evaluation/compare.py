"""Several policies on the same seeds, paired, in parallel over cores."""

from __future__ import annotations

import json
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from parcae import __version__
from parcae.errors import ConfigError
from parcae.evaluation.statistics import (
    METHODS,
    Estimate,
    Method,
    mean_estimate,
    mean_of_ratios,
    ratio_estimate,
)
from parcae.evaluation.tuning import ResolvedPolicies, check_seeds, resolve_policies
from parcae.evaluation.who_pays import WhoPays, who_pays
from parcae.files import write_text
from parcae.metrics.later import LATER, PairedRuns, paired_runs
from parcae.metrics.summary import RunSummary, summarize
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.units import s_from_ms
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

if TYPE_CHECKING:
    from rich.table import Table

#: Seed of the bootstrap's resamples.
_BOOTSTRAP_SEED = 20_190_819
#: Worker processes take seconds to start: less work than this is done without them.
_WORTH_WORKERS_S = 10.0
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PolicyResult:
    """One policy over all seeds.

    Args:
        name: as it was asked for.
        summaries: one a seed.
        average_jct_s: the average JCT in seconds.
        ratio_to_first: mean of the average JCT / the first policy's, paired by seed.
        mean_of_ratios: the same with every seed weighted alike.
        who_pays: the jobs that end later than under the first policy.
    """

    name: str
    summaries: tuple[RunSummary, ...]
    average_jct_s: Estimate
    ratio_to_first: Estimate
    mean_of_ratios: Estimate
    who_pays: WhoPays

    def means(self) -> dict[str, float]:
        """Mean over seeds of every number of the summaries; times in seconds."""
        means = {
            key: float(np.mean([getattr(s, key) for s in self.summaries]))
            for key in self.summaries[0].to_json()
        }
        return {
            _in_seconds(key): s_from_ms(value) if key.endswith("_ms") else value
            for key, value in means.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Means over seeds, with intervals for the average JCT and its ratio to the first policy, and who pays for it."""
        return {
            **self.means(),
            "average_jct_s": self.average_jct_s.to_json(),
            "ratio_to_first": self.ratio_to_first.to_json(),
            "mean_of_ratios_to_first": self.mean_of_ratios.to_json(),
            **self.who_pays.to_json(),
            "average_jct_s_by_seed": [s_from_ms(s.average_jct_ms) for s in self.summaries],
        }


def _in_seconds(key: str) -> str:
    return key.removesuffix("_ms") + "_s" if key.endswith("_ms") else key


@dataclass(frozen=True)
class Comparison:
    """What came of comparing policies.

    Args:
        policies: in the order asked for.
        settings: all that is needed to run it again.
        resolved: the policies themselves.
        runs: one a seed, every job under every policy.
    """

    policies: tuple[PolicyResult, ...]
    settings: dict[str, Any]
    resolved: ResolvedPolicies
    runs: tuple[PairedRuns, ...]

    def to_json(self) -> dict[str, Any]:
        """{"policies": {name: {...}}, "settings": {...}}"""
        variants = self.resolved.variants
        policies = {
            p.name: {"variant": variants.get(p.name, p.name), **p.to_json()} for p in self.policies
        }
        return {"policies": policies, "settings": self.settings}


@dataclass(frozen=True)
class _Task:
    """What a worker process needs besides the workload."""

    resolved: ResolvedPolicies
    config: SimulationConfig
    arrivals: str
    num_jobs: int


@dataclass(frozen=True)
class _SeedRuns:
    """What is kept of one seed: a summary for every policy, and the jobs' times (arrays: small enough to send)."""

    summaries: tuple[RunSummary, ...]
    jobs: PairedRuns


_workload: Workload | None = None


def _start_worker(path: Path) -> None:
    """Load the workload once a process; Ctrl-C, which reaches the workers too, ends them at once and silently."""
    global _workload
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _workload = read_workload(path)


def _run_seed(task: _Task, seed: int) -> tuple[int, _SeedRuns]:
    assert _workload is not None
    return seed, _seed_runs(_workload, task, seed)


def _seed_runs(workload: Workload, task: _Task, seed: int) -> _SeedRuns:
    streams = RandomStreams(seed)
    sequence = draw_sequence(
        workload, task.arrivals, task.num_jobs, task.config.total_executors, streams
    )
    policies = task.resolved.for_sequence(sequence, seed)
    # Which executor ran a task is only known where tasks are recorded: it takes memory, so only where executors differ.
    record = bool(task.config.executor_classes)
    summaries = []
    traces = []
    for policy in policies.values():
        trace = simulate(sequence, policy, task.config, seed, record=record)
        summaries.append(summarize(trace, sequence))
        traces.append(
            replace(trace, tasks=None, decisions=None)
        )  # one run's tasks at a time are held
    return _SeedRuns(tuple(summaries), paired_runs(traces))


def compare(
    workload: Workload,
    policies: Sequence[str],
    *,
    config: SimulationConfig,
    num_jobs: int,
    arrivals: str,
    num_seeds: int,
    seed_start: int = 0,
    processes: int | None = None,
    progress: Progress | None = None,
    intervals: Method = "t",
) -> Comparison:
    """Run every policy on the seeds seed_start .. seed_start + num_seeds - 1.

    All policies see the same arrivals and the same luck of every task on one seed. Tuned policies are tuned first, on
    seeds of their own. A script that calls this with several processes needs the usual `if __name__ == "__main__":`.

    Args:
        workload: the jobs to draw from.
        policies: names as in `parcae policies`; ratios are to the first.
        config: the cluster.
        num_jobs, arrivals: the jobs of each run, and when they arrive ("batch", "poisson:25s", ...).
        processes: worker processes; unless given, all cores, or none where few seconds of work are left.
        progress: called with (seeds done, seeds) after every seed.
        intervals: how the confidence intervals are made; see `parcae.evaluation.statistics.METHODS`.

    Raises:
        PolicyError, ConfigError, WorkloadError: something that cannot be run, or a worker process that died.

    Example: `compare(workload, ["fair", "fifo"], config=SimulationConfig(), num_jobs=20, arrivals="batch", num_seeds=20)`.
    """
    if not policies or num_seeds < 1:
        raise ConfigError("compare at least one policy on at least one seed")
    check_seeds(seed_start, num_seeds)
    resolved = resolve_policies(workload, policies, config, arrivals, num_jobs)
    task = _Task(resolved, config, arrivals, num_jobs)
    seeds = range(seed_start, seed_start + num_seeds)
    rows: dict[int, _SeedRuns] = {}
    for seed, runs in _run_all(workload, task, seeds, processes):
        rows[seed] = runs
        if progress is not None:
            progress(len(rows), num_seeds)
    results = _results(resolved.names, [rows[seed] for seed in seeds], intervals)
    settings = {
        "workload": workload.name,
        "fingerprint": fingerprint(workload),
        "arrivals": arrivals,
        "jobs": num_jobs,
        "seeds": [seeds.start, seeds.stop - 1],
        "config": config.model_dump(mode="json"),
        "tuned": dict(resolved.tuned),
        "variants": dict(resolved.variants),
        "intervals": METHODS[intervals],
        "version": __version__,
    }
    return Comparison(tuple(results), settings, resolved, tuple(rows[seed].jobs for seed in seeds))


def _run_all(
    workload: Workload, task: _Task, seeds: range, processes: int | None
) -> Iterator[tuple[int, _SeedRuns]]:
    """Seeds one after another here while few seconds are left to run, unless told how many processes; else in workers."""
    workers = min(processes or os.cpu_count() or 1, len(seeds))
    left = seeds
    while left and (workers == 1 or processes is None):
        start = time.perf_counter()
        yield left[0], _seed_runs(workload, task, left[0])
        left = left[1:]
        if workers > 1 and (time.perf_counter() - start) * len(left) > _WORTH_WORKERS_S:
            break
    if left:
        yield from _run_in_workers(workload, task, left, min(workers, len(left)))


def _run_in_workers(
    workload: Workload, task: _Task, seeds: range, workers: int
) -> Iterator[tuple[int, _SeedRuns]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.parcae"
        write_workload(workload, path)
        others = set(active_children())
        pool = ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(path,)
        )
        try:
            for done in as_completed([pool.submit(_run_seed, task, seed) for seed in seeds]):
                yield done.result()
        except BrokenProcessPool:
            raise ConfigError(
                "a worker process died, most likely for want of memory; use fewer processes or a smaller run"
            ) from None
        except BaseException:
            for child in set(active_children()) - others:
                child.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _results(
    names: Sequence[str], rows: Sequence[_SeedRuns], method: Method
) -> Iterator[PolicyResult]:
    first = [s_from_ms(row.summaries[0].average_jct_ms) for row in rows]
    ratios = [row.jobs.ratio_to_first for row in rows]
    for column, name in enumerate(names):
        summaries = tuple(row.summaries[column] for row in rows)
        jct = [s_from_ms(s.average_jct_ms) for s in summaries]
        rng = np.random.default_rng(_BOOTSTRAP_SEED)
        yield PolicyResult(
            name,
            summaries,
            average_jct_s=mean_estimate(jct, method, rng),
            ratio_to_first=ratio_estimate(jct, first, method, rng),
            mean_of_ratios=mean_of_ratios(jct, first, method, rng),
            who_pays=who_pays([ratio[column] for ratio in ratios], method, rng),
        )


class Reportable(Protocol):
    """What can be written as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and text."""


def write_comparison(comparison: Reportable, path: Path) -> None:
    """Write the JSON, wholly or not at all."""
    write_text(path, json.dumps(comparison.to_json(), indent=2) + "\n")


def comparison_table(comparison: Comparison) -> Table:
    """The comparison as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    s = comparison.settings
    config = comparison.resolved.config
    size = f"{config.total_executors} {config.world.value}"
    title = f"{s['workload']}: {s['jobs']} jobs, {s['arrivals']}, {size}, seeds {s['seeds'][0]}-{s['seeds'][1]}"
    table = Table(title=escape(title))
    table.add_column("policy", no_wrap=True)
    has_classes = bool(comparison.resolved.config.executor_classes)
    headings = (
        "average JCT",
        "ratio to first",
        "later",
        "worst",
        "p95 JCT",
        "p99 JCT",
        "makespan",
        "busy",
    )
    for heading in (*headings, "memory unused") if has_classes else headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in comparison.policies:
        row = result.means()
        jct = result.average_jct_s
        ratio = result.ratio_to_first
        table.add_row(
            escape(result.name),
            f"{jct.mean:,.1f}" + ("" if jct.is_unknown else f" ± {jct.high - jct.mean:,.1f}"),
            f"{ratio.mean:.3f}"
            + ("" if ratio.is_unknown else escape(f" [{ratio.low:.3f}, {ratio.high:.3f}]")),
            *later_cells(result.who_pays),
            f"{row['p95_jct_s']:,.0f}",
            f"{row['p99_jct_s']:,.0f}",
            f"{row['makespan_s']:,.0f}",
            f"{row['utilization']:.0%}",
            *([f"{row['fragmentation']:.1%}"] if "fragmentation" in row else []),
        )
    unfinished = sum(s.unfinished for result in comparison.policies for s in result.summaries)
    cut = (
        f"; {unfinished} jobs were cut off by the runs' end: their times are lower bounds"
        if unfinished
        else ""
    )
    unused = "; memory unused: by the tasks that run, of their executors'" if has_classes else ""
    first = escape(comparison.policies[0].name)
    later = f"later: jobs that end more than {LATER - 1:.0%} later than under {first}; worst: a job's time / that under {first}"
    table.caption = (
        f"seconds; ± and [ ] are 95% confidence intervals over the seeds; {later}{unused}{cut}"
    )
    if comparison.resolved.legend():
        table.caption += f"\n{escape(comparison.resolved.legend())}"
    return table


def later_cells(paid: WhoPays) -> tuple[str, str]:
    """The share of later jobs and the worst ratio, as tables show them; a dash where nothing is known."""
    share = paid.later_share.mean
    worst = paid.worst_later
    return ("–", "–") if math.isnan(share) else (f"{share:.1%}", f"{worst:,.2f}")
