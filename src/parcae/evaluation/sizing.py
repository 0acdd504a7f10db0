"""How many cores a workload needs: the same runs on clusters of several sizes, and what they say.

`size_cluster` plays every policy at every size in the world of cores, on the same jobs, arrivals
and seeds, and finds the smallest size that meets a target.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import polars.selectors as cs

from parcae.base.errors import ConfigError
from parcae.base.texts import (
    MS_PER_HOUR,
    MS_PER_S,
    __version__,
    duration_text,
    duration_unit,
    ms_from_text,
    num_decimals,
    printable,
    s_from_ms,
    time_decimals,
)
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.comparison import Comparison, Progress, compare_in, text_table
from parcae.evaluation.page import Cell, Charts, Section, as_html, write_page
from parcae.evaluation.page import Table as PageTable
from parcae.evaluation.pictures import in_legend, new_picture, tidy, write_picture
from parcae.evaluation.policies import check_seeds
from parcae.evaluation.sections import FULL, lost_work_warning, measured_alone_warning
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    NO_MATTER,
    UNKNOWN,
    UNKNOWN_TEXT,
    Estimate,
    mean_estimate,
    share_estimate,
    with_distances,
    with_half_width,
)
from parcae.evaluation.who_pays import MISSED
from parcae.policies.names import parse_name
from parcae.simulation.config import SimulationConfig, WorldName, offered_load
from parcae.simulation.elastic import Elastic
from parcae.simulation.faults import check_elastic, resolve_faults
from parcae.workloads.describe import fingerprint
from parcae.workloads.durations import MOST_EXECUTORS
from parcae.workloads.import_report import counted
from parcae.workloads.tables import seconds_by_name
from parcae.workloads.workload import (
    MOST_GROWTH,
    ArrivalProcess,
    JobSequence,
    Workload,
    check_block,
    check_growth,
    default_block,
    grown,
    process_like,
    recorded_sequence,
    resampled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

#: Largest number of sizes.
MOST_SIZES = 50


def parse_cores(text: str) -> tuple[int, ...]:
    """The sizes in a list such as "8,16,32"."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", word) for word in words):
        raise ConfigError(f"--cores {text}: write whole numbers with commas between, as in 8,16,32")
    cores = tuple(int(word) for word in words)
    check_cores(cores)
    return cores


def check_cores(cores: Sequence[int]) -> None:
    """Check the sizes of clusters."""
    if not 1 <= len(cores) <= MOST_SIZES:
        raise ConfigError(f"--cores: give 1 to {MOST_SIZES} sizes, not {len(cores)}")
    if any(low >= high for low, high in itertools.pairwise(cores)):
        raise ConfigError("--cores: give every size once, from the smallest to the largest")
    if cores[0] < 1 or cores[-1] > MOST_EXECUTORS:
        raise ConfigError(f"--cores: a size is outside 1..{MOST_EXECUTORS:,}")


@dataclass(frozen=True)
class ElasticSize:
    """An elastic cluster that is tried beside the fixed sizes.

    Args:
        cores: most cores.
        elastic: how it grows and shrinks.
    """

    cores: int
    elastic: Elastic

    def __str__(self) -> str:
        return f"{self.elastic.min_cores}..{self.cores}"


#: The completion times that are reported.
_TIMES = ("average_s", "p95_s", "p99_s")
DEADLINES_MET = "deadlines_met"
_HELP = (
    "write average, p95 or p99, then < and a time above 0 in ms, s, min or h, as in "
    '"p95 < 60s"; or deadlines and the share of them to meet, as in "deadlines 99%"'
)
#: A share is 1 minus a share of misses, so that it may be this much less than the number itself.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Target:
    """What a size has to reach over all runs: a completion time, or a share of the deadlines.

    Args:
        field: the estimate of a `SizeResult` that it is about.
        limit: the time that jobs should stay below, in s; the least share of deadlines to meet.
    """

    field: str
    limit: float

    @property
    def is_time(self) -> bool:
        """Whether it is a completion time."""
        return self.field != DEADLINES_MET

    def is_met(self, value: float) -> bool:
        """Whether a value of the estimate reaches the target."""
        return value < self.limit if self.is_time else value >= self.limit - _ROUNDING

    def text(self, value: float) -> str:
        """A value of the estimate with its unit."""
        return duration_text(value) if self.is_time else f"{value:.1%}"

    def __str__(self) -> str:
        if self.is_time:
            return f"{self.field.removesuffix('_s')} < {self.limit:.15g} s"
        return f"deadlines {100 * self.limit:g}%"


def parse_target(text: str) -> Target:
    """Parse a target such as "p95 < 60s", "average < 2min", "p99 < 500ms" or "deadlines 99%"."""
    share = re.fullmatch(r"\s*deadlines\s+(\d{1,3}(?:\.\d{1,6})?)\s*%\s*", text)
    if share is not None and 0 < float(share[1]) <= 100:
        return Target(DEADLINES_MET, float(share[1]) / 100)
    found = re.fullmatch(r"\s*(average|p95|p99)\s*<(.*)", text)
    limit_ms = ms_from_text(found[2]) if found else None
    if found is None or not limit_ms:
        raise ConfigError(f"target {text!r} is not understood: {_HELP}")
    return Target(f"{found[1]}_s", s_from_ms(limit_ms))


#: Number of jobs in a run whose arrivals are drawn.
_DRAWN_JOBS = 100


@dataclass(frozen=True)
class Question:
    """What is asked of `size_cluster`.

    Args:
        workload: the jobs.
        cores: numbers of cores, ascending.
        policies: names as in `parcae policies`, for the world of cores.
        target: the target, or None.
        price: price of a core for an hour, in any currency.
        arrivals: "recorded" (resampled in blocks), "batch", "poisson:25s", "bursts:25s", "sessions"
            or "sessions:4" (drawn from the workload's jobs).
        num_jobs: number of jobs in a run; None: all recorded jobs, or 100 drawn ones.
        block: recorded jobs in a block; None: see `parcae.workloads.workload.default_block`.
        growth: how many times as many jobs arrive in the same time, or sessions there are.
        num_seeds: number of runs at every size.
        seed_start: seed of the first run.
        search: whether to search between the given sizes, by bisection.
        config: what else is set of the cluster; its number of cores is not used.
        processes: worker processes; see `parcae.evaluation.comparison.compare_in`.
        elastic: elastic clusters to try as well.
    """

    workload: Workload
    cores: tuple[int, ...]
    policies: tuple[str, ...] = ("fifo", "fair", "parcae")
    target: Target | None = None
    price: float = 0.0
    arrivals: str = "recorded"
    num_jobs: int | None = None
    block: int | None = None
    growth: float = 1.0
    num_seeds: int = 20
    seed_start: int = 0
    search: bool = False
    config: SimulationConfig = field(
        default_factory=lambda: SimulationConfig(world=WorldName.CORES)
    )
    processes: int | None = None
    elastic: tuple[ElasticSize, ...] = ()

    def check(self) -> None:
        """Check everything that can be checked before a run."""
        check_cores(self.cores)
        check_seeds(self.seed_start, self.num_seeds)
        if self.num_seeds < 2:
            raise ConfigError("an interval needs at least two runs: give --seeds 2 or more")
        if not (math.isfinite(self.price) and self.price >= 0):
            raise ConfigError(f"--price {self.price:g}: write a number from 0 on")
        check_growth(self.growth)
        if self.config.world is not WorldName.CORES:
            raise ConfigError("sizes are compared in the world of cores only")
        if self.search and self.target is None:
            raise ConfigError("--search looks for the size that meets a target: give --target")
        needs_deadlines = self.target is not None and not self.target.is_time
        if needs_deadlines and not self.workload.has_deadlines:
            raise ConfigError(
                f'--target "{self.target}" needs deadlines by job name: give --deadlines FILE'
            )
        faults = resolve_faults(self.config.faults, self.workload)
        if self.elastic:
            check_elastic(faults)
        _check_arrivals(self)
        drawn = itertools.chain.from_iterable(self.draw(seed).jobs for seed in self.seeds)
        if needs_deadlines and not any(job.deadline_ms is not None for job in drawn):
            raise ConfigError(
                f'--target "{self.target}": no job that was drawn has a deadline: give more '
                "--jobs or --seeds, or deadlines for more jobs"
            )

    @property
    def seeds(self) -> range:
        """The seeds of the runs at every size."""
        return range(self.seed_start, self.seed_start + self.num_seeds)

    @cached_property
    def recorded(self) -> JobSequence:
        """The recorded jobs with their arrivals."""
        return recorded_sequence(self.workload.warm)

    @property
    def jobs_per_run(self) -> int:
        """Number of jobs in a run."""
        if self.num_jobs is not None:
            return self.num_jobs
        is_log = ArrivalProcess.parse(self.arrivals).replays(self.workload)
        return self.recorded.num_jobs if is_log else _DRAWN_JOBS

    @property
    def block_length(self) -> int | None:
        """Number of recorded jobs in a block; None if arrivals are drawn."""
        if self.arrivals != "recorded":
            return None
        return default_block(self.recorded.num_jobs) if self.block is None else self.block

    @property
    def is_closed(self) -> bool:
        """Whether jobs arrive in sessions, each after another has ended."""
        return ArrivalProcess.parse(self.arrivals).is_closed

    @property
    def speed(self) -> float:
        """By how much recorded gaps are divided, or sessions multiplied: growth, and what brings
        all work of the logs.
        """
        factors = {"recorded": self.workload.work_factor, "sessions": self.workload.session_factor}
        return min(MOST_GROWTH, self.growth * factors.get(self.arrivals, 1.0))

    @property
    def drawn_arrivals(self) -> str:
        """The arrivals with their growth, as a process that can be drawn at any size.

        Variants are chosen and rules are tuned for it.
        """
        if self.arrivals == "recorded":
            return process_like(grown(self.recorded, self.speed).arrival_ms.tolist())
        process = ArrivalProcess.parse(self.arrivals)
        if self.is_closed:
            slots = self.config.for_tasks_of(self.workload).total_executors
            num_sessions = process.num_sessions(self.workload.warm, slots)
            return f"sessions:{max(1, round(num_sessions * self.speed))}"
        if process.kind == "batch" or self.growth == 1:
            return self.arrivals
        return f"{process.kind}:{max(0.001, process.value / self.growth):.3f}ms"

    def draw(self, seed: int) -> JobSequence:
        """The jobs of the run of a seed, the same for every size."""
        block = self.block_length
        if block is not None:
            drawn = resampled(self.recorded, self.jobs_per_run, block, seed=seed)
        else:
            # No arrival process that is accepted depends on the cluster.
            arrivals = self.drawn_arrivals if self.is_closed else self.arrivals
            drawn = self.workload.draw(self.jobs_per_run, arrivals, self.config, seed=seed)
        return drawn if drawn.has_sessions else grown(drawn, self.speed)

    def to_json(self) -> dict[str, Any]:
        """Everything that is needed to repeat the runs."""
        deadlines_s = seconds_by_name(self.workload.jobs)
        return {
            "workload": self.workload.name,
            "fingerprint": fingerprint(self.workload),
            "cores": list(self.cores),
            "elastic": [
                {"cores": size.cores, **size.elastic.model_dump()} for size in self.elastic
            ],
            "policies": list(self.policies),
            "target": None if self.target is None else str(self.target),
            "price": self.price,
            "arrivals": self.arrivals,
            "drawn_arrivals": self.drawn_arrivals,
            "block": self.block_length,
            "growth": self.growth,
            "work_factor": self.speed / self.growth,
            "jobs": self.jobs_per_run,
            "seeds": [self.seeds[0], self.seeds[-1]],
            "search": self.search,
            "config": self.config.model_dump(mode="json", exclude={"num_executors"}),
            "intervals": METHODS[DEFAULT_METHOD],
            "version": __version__,
            **({"deadlines_s": deadlines_s} if deadlines_s else {}),
        }


def _check_arrivals(question: Question) -> None:
    process = ArrivalProcess.parse(question.arrivals)
    if process.kind in ("load", "trace", "sessions:load"):
        raise ConfigError(
            f"--arrivals {question.arrivals}: a load refers to one size of the cluster, but the "
            "same jobs must arrive at every size; write the gap between jobs, as in poisson:25s"
        )
    if process.kind == "recorded":
        if not question.workload.is_recorded:
            raise ConfigError(
                f"workload {question.workload.name!r} has no recorded arrivals: give --arrivals, "
                "as in --arrivals poisson:25s, or event logs in place of the workload, or import "
                "them with --recorded"
            )
        block = question.block_length
        assert block is not None
        check_block(block, question.recorded.num_jobs)
    elif question.block is not None:
        raise ConfigError("--block is for recorded arrivals: leave out --block or --arrivals")


@dataclass(frozen=True)
class _SizedWorld(ClusterWorld):
    """A cluster of one size, at which the jobs of a question arrive."""

    question: Question

    def draw(self, seed: int) -> JobSequence:
        """The jobs of the run of a seed."""
        return self.question.draw(seed)


@dataclass(frozen=True)
class SizeResult:
    """The results of one policy at one size.

    Args:
        policy: the policy's name.
        variant: what the name became at this size.
        cores: the size; the most cores of an elastic cluster.
        size: the size in words: "64", or "8..64" for an elastic cluster.
        cost_per_hour: price of the cluster for an hour; of the cores held on average if elastic.
        estimates: means over the runs, by name; None where there is nothing to measure.
            average_s, p95_s, p99_s: completion times in seconds;
            cores_busy: cores that run tasks, from first arrival to last completion;
            cores_held: cores up or starting, of an elastic cluster;
            cost_per_job: price of the cluster from first arrival to last completion, for each job;
            within_target: share of the jobs that end within the target's time;
            deadlines_met: share of the deadlines that are met.
    """

    policy: str
    variant: str
    cores: int
    size: str
    cost_per_hour: float
    estimates: Mapping[str, Estimate | None]

    def of(self, name: str) -> Estimate:
        """An estimate; unknown where there is nothing to measure."""
        return self.estimates[name] or UNKNOWN

    def meets(self, target: Target) -> bool:
        """Whether the mean over the runs reaches the target."""
        return target.is_met(self.of(target.field).mean)

    def to_json(self) -> dict[str, Any]:
        """The fields and estimates by name; estimates as {"mean":, "ci95": [low, high]}."""
        card = {name: value for name, value in vars(self).items() if name != "estimates"}
        measured = {name: one and one.to_json() for name, one in self.estimates.items()}
        if measured[DEADLINES_MET] is None:
            del measured[DEADLINES_MET]
        return card | measured


@dataclass(frozen=True)
class Sizing:
    """The answer of `size_cluster`.

    Args:
        question: what was asked.
        results: one for every size and policy, by size, then in the order of the policies.
        elastic: the same for the elastic clusters.
        load: by size, the arriving work / the capacity of the cores; of sessions, if no job ever
            waited.
    """

    question: Question
    results: tuple[SizeResult, ...]
    load: dict[int, float]
    elastic: tuple[SizeResult, ...] = ()

    def __repr__(self) -> str:
        sizes = ", ".join(dict.fromkeys(result.size for result in self.every))
        policies = ", ".join(self.policies)
        return f"<Sizing {self.question.workload.name}: {policies} at {sizes} cores>"

    def _repr_html_(self) -> str:
        """The table of sizes and a picture of times and costs, for notebooks."""
        return as_html(sizing_table(self), lambda: _picture(self))

    @property
    def policies(self) -> list[str]:
        """The policies' names, in the order asked for."""
        return list(dict.fromkeys(result.policy for result in self.results))

    def of(self, policy: str) -> list[SizeResult]:
        """The results of a policy, from the smallest to the largest size."""
        return [result for result in self.results if result.policy == policy]

    def smallest(self, policy: str) -> int | None:
        """The smallest size that meets the target, as all larger ones do; None if there is none."""
        target = self.question.target
        if target is None:
            return None
        meeting = itertools.takewhile(lambda one: one.meets(target), reversed(self.of(policy)))
        return min((result.cores for result in meeting), default=None)

    @property
    def every(self) -> tuple[SizeResult, ...]:
        """All results, those of the elastic clusters last."""
        return (*self.results, *self.elastic)

    @property
    def has_deadlines(self) -> bool:
        """Whether deadlines are counted."""
        return any(result.estimates[DEADLINES_MET] is not None for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """{"headline":, "warnings":, "smallest":, "results":, "settings":}"""
        loads = {
            str(cores): load if math.isfinite(load) else None
            for cores, load in sorted(self.load.items())
        }
        return {
            "headline": headline(self),
            "warnings": warnings(self),
            "smallest": {policy: self.smallest(policy) for policy in self.policies},
            "load": loads,
            "results": [result.to_json() for result in self.results],
            "elastic": [result.to_json() for result in self.elastic],
            "settings": self.question.to_json(),
        }


def size_cluster(question: Question, progress: Progress | None = None) -> Sizing:
    """Play every policy at every size on the same runs.

    Example: `size_cluster(Question(workload, (8, 16), arrivals="poisson:5s"))`.
    """
    question.check()
    sizing = Sizing(question, (), {})
    planned = len(question.cores) + len(question.elastic)
    fixed = [(cores, None) for cores in question.cores]
    waiting = [*fixed, *((size.cores, size.elastic) for size in question.elastic)]
    for done in itertools.count():
        # A size that is played for one policy may reopen the question for another one.
        if not waiting and (between := _next_size(sizing)) is not None:
            waiting = [(between, None)]
        if not waiting:
            break
        cores, settings = waiting.pop(0)
        total = max(planned, done + 1) * question.num_seeds

        def report(
            of_size: int, _: int, before: int = done * question.num_seeds, total: int = total
        ) -> None:
            if progress is not None:
                progress(before + of_size, total)

        found = results_at(question, play_at(question, cores, settings, report), cores)
        if settings is None:
            every = sorted([*sizing.results, *found], key=lambda result: result.cores)
            sizing = replace(sizing, results=tuple(every))
        else:
            sizing = replace(sizing, elastic=(*sizing.elastic, *found))
    tried = sorted({result.cores for result in sizing.every})
    configs = {
        cores: question.config.model_copy(update={"num_executors": cores}) for cores in tried
    }
    arrivals = question.drawn_arrivals
    loads = {n: offered_load(question.workload, config, arrivals) for n, config in configs.items()}
    return replace(sizing, load=loads)


def _next_size(sizing: Sizing) -> int | None:
    """The size to play for the first policy whose answer is not exact yet; None if there is none.

    It is in the middle between the smallest that meets the target and the next below.
    """
    for policy in sizing.policies if sizing.question.search else ():
        smallest = sizing.smallest(policy)
        if smallest is not None:
            smaller = (one.cores for one in sizing.of(policy) if one.cores < smallest)
            below = max(smaller, default=smallest)
            if smallest - below >= 2:
                return (below + smallest) // 2
    return None


def play_at(
    question: Question,
    cores: int,
    elastic: Elastic | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Play every policy at one size, on the runs that `size_cluster` plays."""
    config = question.config.model_copy(update={"num_executors": cores, "elastic": elastic})
    world = _SizedWorld(
        question.workload, config, question.drawn_arrivals, question.jobs_per_run, question
    )
    return compare_in(
        world,
        question.policies,
        question.seeds,
        processes=question.processes,
        progress=progress,
    )


def results_at(question: Question, comparison: Comparison, cores: int) -> list[SizeResult]:
    """The results of all policies at one size."""
    config: SimulationConfig = comparison.world.config
    target = question.target
    within: dict[int, Estimate] = {}
    if target is not None and target.is_time:
        in_time = (pl.col("jct_ms") / MS_PER_S < target.limit).sum().alias("within")
        counts = comparison.jobs.group_by("column", "seed").agg(in_time, pl.len().alias("jobs"))
        for (column,), own in counts.sort("seed").partition_by("column", as_dict=True).items():
            within[column] = share_estimate(own["within"], own["jobs"])

    def mean(values: pl.Series) -> Estimate:
        return mean_estimate(values).within(0.0)

    # Runs count slots for tasks, each of which may take several cores.
    scale = cores / config.for_tasks_of(question.workload).total_executors
    results = []
    for column, policy in enumerate(comparison.policies):
        runs = policy.runs
        # Only an elastic cluster states the cores that it held, and the core hours.
        held = (runs["cores_held"] * scale).fill_null(cores)
        fixed_hours = cores * runs["makespan_ms"] / MS_PER_HOUR / question.jobs_per_run
        core_hours = (runs["core_hours_per_job"] * scale).fill_null(fixed_hours)
        missed = policy.estimates.get(MISSED)
        estimates = {
            **{name: mean(runs[f"{name.removesuffix('_s')}_jct_ms"] / MS_PER_S) for name in _TIMES},
            "cores_busy": mean(runs["utilization"] * held),
            "cores_held": None if config.elastic is None else mean(held),
            "cost_per_job": mean(question.price * core_hours),
            "within_target": within.get(column),
            DEADLINES_MET: missed and missed.complement(),
        }
        results.append(
            SizeResult(
                policy.name,
                comparison.resolved.variants[policy.name],
                cores,
                str(cores if config.elastic is None else ElasticSize(cores, config.elastic)),
                question.price * mean(held).mean,
                estimates,
            )
        )
    return results


#: Endings of pictures.
PICTURES = ("png", "svg", "html")
#: The policy that others are compared with in the headline, if it was asked for.
_USUAL = "fair"


def headline(sizing: Sizing) -> str:
    """The smallest size that meets the target for each policy, in words."""
    target = sizing.question.target
    if target is None:
        return "No target was given (--target), so no size is recommended."
    found = {policy: sizing.smallest(policy) for policy in sizing.policies}
    parts = [
        f"{policy} " + (f"needs {counted(size, 'core')}" if size else "meets it at no size")
        for policy, size in found.items()
    ]
    runs = f"mean over {sizing.question.num_seeds} runs"
    sentences = [f"Target {target} ({runs}): {', '.join(parts)}."]
    # An oracle cannot be deployed.
    usual = _USUAL if _USUAL in found else sizing.policies[0]
    known = {
        policy: size
        for policy, size in found.items()
        if size is not None and parse_name(policy).argument != "oracle"
    }
    best = min(known, key=known.__getitem__, default=usual)
    needed = found[usual]
    if needed is not None and known.get(best, math.inf) < needed:
        does = f"{counted(known[best], 'core')} {'does' if known[best] == 1 else 'do'}"
        sentences.append(f"With {best} {does} what {usual} needs {needed} for.")
    # Below the smallest given size there is nothing to search between.
    is_between = any(size not in (None, sizing.question.cores[0]) for size in found.values())
    if is_between and not sizing.question.search:
        sentences.append("Only the given sizes were tried; --search tries those between.")
    sentences.extend(
        f"Elastic {result.size} cores: {result.policy} "
        f"{'meets' if result.meets(target) else 'misses'} it and holds "
        f"{result.of('cores_held').mean:,.1f} cores on average."
        for result in sizing.elastic
    )
    return " ".join(sentences)


def warnings(sizing: Sizing) -> list[str]:
    """Where a conclusion would be wrong, one sentence each."""
    workload = sizing.question.workload
    is_counted = sizing.question.speed > sizing.question.growth
    of_logs = (lost_work_warning(workload, is_counted), measured_alone_warning(workload))
    durations = [f"{text[0].upper()}{text[1:]}." for text in of_logs if text]
    over = [f"{n} (load {load:.2f})" for n, load in sizing.load.items() if FULL < load < math.inf]
    # Sessions wait: they never bring more than the cores can do.
    over = [] if sizing.question.is_closed else over
    overloaded = (
        f"Overloaded sizes: {', '.join(over)}. More work arrives than the cores can do, so the "
        "times there depend on the length of the run."
    )
    texts = [*([overloaded] if over else []), *durations]
    target = sizing.question.target
    if target is None:
        return texts
    sizes = sizing.question.cores
    for policy in sizing.policies:
        found = sizing.smallest(policy)
        if found is None:
            more = _no_size_helps(sizing, policy) or "give larger ones."
            texts.append(
                f"{policy}: the largest size ({counted(sizes[-1], 'core')}) does not meet the "
                f"target; {more}"
            )
            continue
        if found == sizes[0]:
            texts.append(
                f"{policy}: the smallest size ({counted(found, 'core')}) already meets the "
                f"target{'; fewer may do' * (found > 1)}."
            )
        result = next(one for one in sizing.of(policy) if one.cores == found)
        if reach := _reach(result.of(target.field), target):
            texts.append(
                f"{policy}: at {counted(found, 'core')} the mean meets the target, but its 95% "
                f"interval {reach}; more runs (--seeds) tell."
            )
    return texts


def _no_size_helps(sizing: Sizing, policy: str) -> str:
    """Why no number of cores would meet a target that the largest size misses; else no text."""
    question, target = sizing.question, sizing.question.target
    assert target is not None
    if not target.is_time:
        return ""
    # A job takes at least its longest chain of tasks and the driver's time, whatever the cores.
    chains = [
        [s_from_ms(job.ideal_ms(math.inf)) for job in question.draw(seed).jobs]
        for seed in question.seeds
    ]
    level = {"p95_s": 95, "p99_s": 99}.get(target.field)
    least_s = np.mean(
        [np.mean(one) if level is None else np.percentile(one, level) for one in chains]
    )
    if not target.is_met(float(least_s)):
        longest = max(question.workload.warm.jobs, key=lambda job: job.ideal_ms(math.inf))
        return (
            "no size can: chains of tasks that wait for each other or for the driver take "
            f"{target.text(float(least_s))} by themselves (the longest is that of {longest.name}); "
            "ask for a longer time, or make those chains shorter."
        )
    times = [result.of(target.field).mean for result in sizing.of(policy)]
    if len(times) > 1 and times[-1] > (1 - NO_MATTER) * times[-2]:
        return (
            f"more cores hardly help: the last step brought less than {NO_MATTER:.0%}, so single "
            "jobs take that long by themselves."
        )
    return ""


def _reach(estimate: Estimate, target: Target) -> str:
    """Where an interval leaves the target; no text if it does not, or is unknown."""
    for end, word in ((estimate.high, "ends"), (estimate.low, "begins")):
        if not estimate.is_unknown and not target.is_met(end):
            return f"{word} at {target.text(end)}"
    return ""


def sizing_table(sizing: Sizing) -> Table:
    """The sizing as a table for the terminal."""
    asked = sizing.question
    arrivals = asked.drawn_arrivals if asked.is_closed else asked.arrivals
    title = (
        f"{asked.workload.name}: {counted(asked.num_seeds, 'run')} of "
        f"{counted(asked.jobs_per_run, 'job')}, arrivals {arrivals}, growth {asked.growth:g}"
    )
    rows = [_cells(sizing, result) for result in sizing.every]
    caption = "means over runs ± the farther end of their 95% interval; busy: cores that run tasks"
    if (faults := asked.config.faults) is not None:
        caption += f"; with faults: {resolve_faults(faults, asked.workload)}"
    return text_table(
        title, list(rows[0]), [list(row.values()) for row in rows], caption, num_names=2
    )


def _cells(sizing: Sizing, result: SizeResult) -> dict[str, str]:
    """A row of the table, by heading."""
    load = sizing.load[result.cores]
    held = result.estimates["cores_held"]
    target = sizing.question.target
    times = ((name, result.of(name)) for name in _TIMES)
    shares = (("met", DEADLINES_MET), ("in time", "within_target"))
    cost = result.of("cost_per_job")
    # As wide as 80 characters: the files have everything.
    cells = {
        "cores": result.size,
        "policy": result.policy,
        **{
            name.removesuffix("_s"): _duration(time_s)
            for name, time_s in times
            if name != "p99_s" or (target is not None and target.field == name)
        },
        "busy": f"{result.of('cores_busy').mean:,.1f}",
        "held": f"{result.cores if held is None else held.mean:,.1f}",
        "load": "batch" if math.isinf(load) else f"{load:.2f}",
        "cost/h": f"{result.cost_per_hour:,.{num_decimals(result.cost_per_hour, 2)}f}",
        "cost/job": f"{cost.mean:,.{num_decimals(cost.mean, 2)}f}",
        **{
            heading: UNKNOWN_TEXT if math.isnan(share.mean) else f"{share.mean:.1%}"
            for heading, name in shares
            if (share := result.estimates[name]) is not None
        },
    }
    if not sizing.elastic:
        del cells["held"]
    if not any(one.cost_per_hour for one in sizing.every):
        del cells["cost/h"], cells["cost/job"]
    if target is not None:
        cells["target"] = "met" if result.meets(target) else "missed"
    return cells


def _duration(time_s: Estimate) -> str:
    """A time with the farther end of its interval, in the unit that its mean is read in."""
    unit, length = duration_unit(time_s.mean)
    shown = replace(
        time_s, mean=time_s.mean / length, low=time_s.low / length, high=time_s.high / length
    )
    return f"{with_half_width(shown, time_decimals(shown.mean))} {unit}"


def sizing_frame(sizing: Sizing) -> pl.DataFrame:
    """One row a size and policy.

    Columns:
        cores: the most, of an elastic cluster; size: as in 8 or 8..64; policy; variant; load: null
        for a batch; cost_per_hour; of every estimate NAME the columns NAME, NAME_low and NAME_high
        (deadlines_met: only with deadlines); meets_target: null without a target. An estimate is
        null where it is unknown.
    """
    target = sizing.question.target
    rows = [
        {
            "cores": result.cores,
            "size": result.size,
            "policy": printable(result.policy),
            "variant": printable(result.variant),
            "load": load if math.isfinite(load := sizing.load[result.cores]) else None,
            "cost_per_hour": result.cost_per_hour,
            **{
                name + suffix: getattr(result.of(name), end)
                for name in result.estimates
                for suffix, end in (("", "mean"), ("_low", "low"), ("_high", "high"))
            },
            "meets_target": None if target is None else result.meets(target),
        }
        for result in sizing.every
    ]
    frame = pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)
    return frame if sizing.has_deadlines else frame.drop(cs.starts_with(DEADLINES_MET))


def picture_format(path: Path) -> str:
    """The format of a picture by the ending of the file's name."""
    ending = path.suffix.lstrip(".").lower()
    if ending not in PICTURES:
        raise ConfigError(f"{path}: give the picture one of the endings .{', .'.join(PICTURES)}")
    return ending


def write_plot(sizing: Sizing, path: Path) -> None:
    """Draw completion times and costs by size, as a picture or a page of one file."""
    file_format = picture_format(path)
    picture = _picture(sizing)
    name = sizing.question.workload.name
    if file_format != "html":
        write_picture(picture, path, name, file_format)
        return
    rows = [list(_cells(sizing, result).items()) for result in sizing.every]
    settings = sizing.question.to_json()
    write_page(
        path,
        title=f"Sizes for {name}",
        question=f"How many cores does {name} need?",
        headline="",
        summary=headline(sizing),
        policies=PageTable(
            [Cell(heading) for heading, _ in rows[0]],
            [[text for _, text in row] for row in rows],
            [f"Warning: {text}" for text in warnings(sizing)],
        ),
        sections=[Section("Times and costs by size", [Charts([picture])])],
        command="",
        settings={**settings, "tuned": {}},
        settings_text=json.dumps(settings, indent=2),
    )


def _picture(sizing: Sizing) -> Figure:
    """Two panels: what the target is about, and the cost of a job, by size."""
    target = sizing.question.target
    field = "average_s" if target is None else target.field
    is_time = field != DEADLINES_MET
    what = f"{field.removesuffix('_s')} completion time in s" if is_time else "deadlines met"
    picture = new_picture(10, 4)
    panels = picture.subplots(1, 2)
    lines = [
        (policy, [float(result.cores) for result in sizing.of(policy)], sizing.of(policy))
        for policy in sizing.policies
    ]
    for result in sizing.elastic:
        label = f"{result.policy}, {result.size} (cores held)"
        lines.append((label, [result.of("cores_held").mean], [result]))
    for axis, name in zip(panels, (field, "cost_per_job"), strict=True):
        for label, sizes, results in lines:
            # Intervals of few runs may reach below 0, which no time or cost does, and rounding can
            # leave the mean of equal shares outside theirs by 1e-16.
            means, below, above = with_distances(
                [result.of(name).within(0.0) for result in results]
            )
            ends = np.maximum(0.0, [below, above])
            axis.errorbar(sizes, means, yerr=ends, marker="o", capsize=3, label=in_legend(label))
    if target is not None:
        label = f"target {target.limit:.15g}" + (" s" if is_time else "")
        panels[0].axhline(target.limit, linestyle="--", color="grey", label=label)
    tidy(panels[0], ("cores", what))
    tidy(panels[1], ("cores", "cost of a job"), has_legend=False)
    for axis in panels:
        axis.set_ylim(bottom=0)
    return picture
