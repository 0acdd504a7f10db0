"""Several policies on the same seeds, paired, in parallel over cores."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parcae import __version__
from parcae.errors import ConfigError
from parcae.evaluation.statistics import METHOD, Estimate, mean_estimate, ratio_estimate
from parcae.evaluation.tuning import ResolvedPolicies, resolve_policies
from parcae.metrics.summary import RunSummary, summarize
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

if TYPE_CHECKING:
    from rich.table import Table

#: Seeds of the bootstrap's resamples.
_BOOTSTRAP_SEED = 20_190_819
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PolicyResult:
    """One policy over all seeds."""

    name: str
    summaries: tuple[RunSummary, ...]
    average_jct_s: Estimate
    ratio_to_first: Estimate

    def to_json(self) -> dict[str, Any]:
        """The issue's layout: means over seeds, with intervals for the average JCT and its ratio to the first policy."""
        means = {key: float(np.mean([s.to_json()[key] for s in self.summaries])) for key in self.summaries[0].to_json()}
        return {
            **means,
            "average_jct_s": self.average_jct_s.to_json(),
            "ratio_to_first": self.ratio_to_first.to_json(),
            "average_jct_s_by_seed": [s.average_jct_s for s in self.summaries],
        }


@dataclass(frozen=True)
class Comparison:
    """What came of comparing policies; `settings` says all that is needed to run it again."""

    policies: tuple[PolicyResult, ...]
    settings: dict[str, Any]
    resolved: ResolvedPolicies

    def to_json(self) -> dict[str, Any]:
        """{"policies": {name: {...}}, "settings": {...}}"""
        return {"policies": {p.name: p.to_json() for p in self.policies}, "settings": self.settings}


@dataclass(frozen=True)
class _Task:
    """What a worker process needs besides the workload."""

    resolved: ResolvedPolicies
    config: SimulationConfig
    arrivals: str
    num_jobs: int


_workload: Workload | None = None


def _load(path: Path) -> None:
    global _workload
    _workload = read_workload(path)


def _run_seed(task: _Task, seed: int) -> tuple[int, list[RunSummary]]:
    assert _workload is not None
    return seed, _summaries(_workload, task, seed)


def _summaries(workload: Workload, task: _Task, seed: int) -> list[RunSummary]:
    streams = RandomStreams(seed)
    sequence = draw_sequence(workload, task.arrivals, task.num_jobs, task.config.total_executors, streams)
    policies = task.resolved.for_sequence(sequence, seed)
    return [summarize(simulate(sequence, policy, task.config, seed), sequence) for policy in policies.values()]


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
) -> Comparison:
    """Run every policy on the seeds seed_start .. seed_start + num_seeds - 1.

    All policies see the same arrivals and the same luck of every task on one seed. Tuned policies are tuned first, on
    seeds of their own.

    Raises:
        PolicyError, ConfigError, WorkloadError: something that cannot be run; nothing is written.
    """
    if not policies or num_seeds < 1:
        raise ConfigError("compare at least one policy on at least one seed")
    resolved = resolve_policies(workload, policies, config, arrivals, num_jobs)
    task = _Task(resolved, config, arrivals, num_jobs)
    seeds = range(seed_start, seed_start + num_seeds)
    rows: dict[int, list[RunSummary]] = {}
    for seed, summaries in _run_all(workload, task, seeds, processes):
        rows[seed] = summaries
        if progress is not None:
            progress(len(rows), num_seeds)
    settings = {
        "workload": workload.name,
        "fingerprint": fingerprint(workload),
        "arrivals": arrivals,
        "jobs": num_jobs,
        "seeds": [seeds.start, seeds.stop - 1],
        "config": config.model_dump(mode="json"),
        "tuned": dict(resolved.tuned),
        "intervals": METHOD,
        "version": __version__,
    }
    return Comparison(tuple(_results(resolved.names, [rows[seed] for seed in seeds])), settings, resolved)


def _run_all(workload: Workload, task: _Task, seeds: range, processes: int | None) -> Iterator[tuple[int, list[RunSummary]]]:
    workers = min(processes or os.cpu_count() or 1, len(seeds))
    if workers == 1:
        for seed in seeds:
            yield seed, _summaries(workload, task, seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.parcae"
        write_workload(workload, path)
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_load, initargs=(path,))
        try:
            for done in as_completed([pool.submit(_run_seed, task, seed) for seed in seeds]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _results(names: Sequence[str], rows: Sequence[Sequence[RunSummary]]) -> Iterator[PolicyResult]:
    first = [row[0].average_jct_s for row in rows]
    for column, name in enumerate(names):
        summaries = tuple(row[column] for row in rows)
        jct = [s.average_jct_s for s in summaries]
        ratio = ratio_estimate(jct, first, np.random.default_rng(_BOOTSTRAP_SEED))
        yield PolicyResult(name, summaries, mean_estimate(jct), ratio)


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the JSON, wholly or not at all."""
    write_text(path, json.dumps(comparison.to_json(), indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file to a temporary file beside it, then rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def comparison_table(comparison: Comparison) -> Table:
    """The comparison as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    s = comparison.settings
    executors, seeds = comparison.resolved.config.total_executors, f"seeds {s['seeds'][0]}-{s['seeds'][1]}"
    title = f"{s['workload']}: {s['jobs']} jobs, {s['arrivals']}, {executors} executors, {seeds}"
    table = Table(title=escape(title))
    table.add_column("policy", no_wrap=True)
    for heading in ("average JCT", "ratio to first", "p95 JCT", "makespan", "busy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in comparison.policies:
        row, jct, ratio = result.to_json(), result.average_jct_s, result.ratio_to_first
        table.add_row(
            escape(result.name),
            f"{jct.mean:,.1f} ± {jct.high - jct.mean:,.1f}",
            escape(f"{ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"),
            f"{row['p95_jct_s']:,.0f}",
            f"{row['makespan_s']:,.0f}",
            f"{row['utilization']:.0%}",
        )
    table.caption = "seconds; ± and [ ] are 95% confidence intervals over the seeds"
    return table
