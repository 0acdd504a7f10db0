"""Compare several policies on the same seeds, in parallel worker processes.

`compare` runs every policy on every seed and computes means, ratios to the first policy and their
confidence intervals, paired by seed. `comparison_table` prints the result; `write_comparison`
writes it as JSON.
"""

from __future__ import annotations

import json
import math
import os
import pickle
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

from parcae.errors import ConfigError
from parcae.evaluation.statistics import (
    METHODS,
    Estimate,
    Method,
    mean_estimate,
    mean_of_ratios,
    ratio_estimate,
)
from parcae.evaluation.tuning import (
    AnyPolicy,
    ResolvedPolicies,
    check_seeds,
    resolve_policies,
)
from parcae.evaluation.who_pays import WhoPays, who_pays
from parcae.files import write_text
from parcae.metrics.jobs import ideal_ms
from parcae.metrics.later import LATER, PairedRuns, paired_runs
from parcae.metrics.summary import RunSummary, summarize
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.units import s_from_ms
from parcae.version import __version__
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

#: Seed of the bootstrap's resamples.
_BOOTSTRAP_SEED = 20_190_819
#: Worker processes take seconds to start. Less estimated work than this runs in this process.
_WORTH_WORKERS_S = 10.0
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PolicyResult:
    """The results of one policy over all seeds.

    Args:
        name: the policy's name as the caller gave it.
        summaries: one summary per seed.
        average_jct_s: mean over seeds of the average JCT, in seconds.
        ratio_to_first: mean average JCT / that of the first policy, paired by seed.
        mean_of_ratios: mean over seeds of the ratio, every seed with the same weight.
        who_pays: how many jobs end later than under the first policy, and by how much.
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
        """Means over seeds; confidence intervals for the average JCT, ratios and later jobs."""
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
    """The result of comparing policies.

    Args:
        policies: results per policy, in the order in which the caller named them.
        settings: everything that is needed to repeat the comparison.
        resolved: the policy objects.
        runs: per seed, the times of every job under every policy.
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

    def to_frame(self) -> pl.DataFrame:
        """One row a policy; see `parcae.evaluation.frames.comparison_frame`."""
        from parcae.evaluation.frames import comparison_frame

        return comparison_frame(self)

    def jobs_frame(self) -> pl.DataFrame:
        """One row a seed, job and policy; see `parcae.evaluation.per_job.per_job_table`."""
        from parcae.evaluation.per_job import per_job_table

        return per_job_table(self)


@dataclass(frozen=True)
class _Task:
    """What a worker process needs besides the workload."""

    resolved: ResolvedPolicies
    config: SimulationConfig
    arrivals: str
    num_jobs: int


@dataclass(frozen=True)
class _SeedRuns:
    """The results of one seed that a worker sends back: a summary per policy, and the jobs' times.

    Recorded tasks are dropped, so that the results stay small.
    """

    summaries: tuple[RunSummary, ...]
    jobs: PairedRuns


#: The workload of a worker process, loaded once by `_start_worker`.
_workload: Workload | None = None


def _start_worker(path: Path) -> None:
    """Load the workload, once per worker process."""
    global _workload
    # Ctrl-C reaches the workers too. The default handler ends them at once, without a traceback.
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
    # The executor of a task matters only if executor classes differ. Recording all tasks takes
    # memory, so record them in that case alone.
    record = bool(task.config.executor_classes)
    summaries = []
    traces = []
    for policy in policies.values():
        trace = simulate(sequence, policy, task.config, seed, record=record)
        summaries.append(summarize(trace, sequence))
        # Drop the tasks, so that memory holds those of one run at a time.
        traces.append(replace(trace, tasks=None, decisions=None))
    ideal = ideal_ms(sequence, task.config.total_executors)
    return _SeedRuns(tuple(summaries), paired_runs(traces, ideal))


def compare(
    workload: Workload,
    policies: Sequence[str | AnyPolicy],
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

    On one seed all policies see the same arrivals and the same task durations. Tuned policies are
    tuned first, on seeds that no comparison uses. A script that calls this with several processes
    needs the usual `if __name__ == "__main__":`.

    Args:
        workload: the jobs to draw from.
        policies: names as in `parcae policies`, or policy objects. Ratios are relative to the
            first.
        config: the cluster.
        num_jobs: number of jobs in each run.
        arrivals: when jobs arrive ("batch", "poisson:25s", ...).
        num_seeds: number of seeds.
        seed_start: the first seed.
        processes: number of worker processes. None uses one per core, or none at all if only a few
            seconds of work are left. Policy objects that cannot be pickled run in this process.
        progress: called with (seeds done, all seeds) after every seed.
        intervals: method of the confidence intervals; see `parcae.evaluation.statistics.METHODS`.

    Returns:
        The results per policy, with the settings and the times of every job.

    Raises:
        PolicyError: a policy name is unknown or does not fit the world.
        ConfigError: the settings are invalid, or a worker process died.
        WorkloadError: the workload cannot give these jobs.

    Example: `compare(workload, ["fair", "fifo"], config=SimulationConfig(), num_jobs=20,
    arrivals="batch", num_seeds=20)`.
    """
    if not policies or num_seeds < 1:
        raise ConfigError("compare at least one policy on at least one seed")
    check_seeds(seed_start, num_seeds)
    resolved = resolve_policies(workload, policies, config, arrivals, num_jobs)
    task = _Task(resolved, config, arrivals, num_jobs)
    seeds = range(seed_start, seed_start + num_seeds)
    rows: dict[int, _SeedRuns] = {}
    for seed, runs in _run_all(workload, task, seeds, processes if _can_be_sent(task) else 1):
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


def _can_be_sent(task: _Task) -> bool:
    """Whether worker processes can be given the policies: a function of a notebook cannot."""
    try:
        pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _run_all(
    workload: Workload, task: _Task, seeds: range, processes: int | None
) -> Iterator[tuple[int, _SeedRuns]]:
    """Run the seeds in this process while little work is left, otherwise in worker processes.

    If the caller gave a number of processes above 1, all seeds run in workers.
    """
    # More workers than seeds would be idle.
    workers = min(processes or os.cpu_count() or 1, len(seeds))
    left = seeds
    while left and (workers == 1 or processes is None):
        start = time.perf_counter()
        yield left[0], _seed_runs(workload, task, left[0])
        left = left[1:]
        # The time of the seed just run estimates the time of each seed that is left.
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
        other_children = set(active_children())
        pool = ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(path,)
        )
        try:
            for done in as_completed([pool.submit(_run_seed, task, seed) for seed in seeds]):
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


def _results(
    names: Sequence[str], rows: Sequence[_SeedRuns], method: Method
) -> Iterator[PolicyResult]:
    first = [s_from_ms(row.summaries[0].average_jct_ms) for row in rows]
    ratios = [row.jobs.ratio_to_first for row in rows]
    for column, name in enumerate(names):
        summaries = tuple(row.summaries[column] for row in rows)
        jct = [s_from_ms(s.average_jct_ms) for s in summaries]
        # Every policy uses the same resamples, so that intervals do not depend on the order.
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
    """A result that can be written as JSON."""

    def to_json(self) -> dict[str, Any]:
        """The result as plain numbers and text."""


def write_comparison(comparison: Reportable, path: Path) -> None:
    """Write the result as JSON. The file appears only when it is complete."""
    write_text(path, json.dumps(comparison.to_json(), indent=2) + "\n")


def comparison_table(comparison: Comparison) -> Table:
    """The comparison as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    s = comparison.settings
    config = comparison.resolved.config
    size = f"{config.total_executors} {config.world.value}"
    title = (
        f"{s['workload']}: {s['jobs']} jobs, {s['arrivals']}, {size}, "
        f"seeds {s['seeds'][0]}-{s['seeds'][1]}"
    )
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
        f"; {unfinished} jobs were cut off at the end of their run: their times are lower bounds"
        if unfinished
        else ""
    )
    unused = (
        "; memory unused: share of the busy executors' memory that their tasks do not need"
        if has_classes
        else ""
    )
    first = escape(comparison.policies[0].name)
    later = (
        f"later: jobs that end more than {LATER - 1:.0%} later than under {first}; "
        f"worst: largest ratio of a job's time to that under {first}"
    )
    table.caption = (
        f"seconds; ± and [ ] are 95% confidence intervals over the seeds; {later}{unused}{cut}"
    )
    if comparison.resolved.legend():
        table.caption += f"\n{escape(comparison.resolved.legend())}"
    return table


def later_cells(paid: WhoPays) -> tuple[str, str]:
    """Table cells for the share of later jobs and the worst ratio; a dash where unknown."""
    share = paid.later_share.mean
    worst = paid.worst_later
    return ("–", "–") if math.isnan(share) else (f"{share:.1%}", f"{worst:,.2f}")
