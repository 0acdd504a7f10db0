"""How many cores a workload needs: the same runs on clusters of several sizes.

`size_cluster` plays every policy at every size in the world of cores, on the same jobs, arrivals
and seeds, and finds the smallest size that meets a target.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import polars as pl

from parcae.base.errors import ConfigError
from parcae.base.texts import (
    MS_PER_HOUR,
    MS_PER_S,
    __version__,
    ms_from_text,
    s_from_ms,
    seconds_text,
)
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.comparison import Comparison, Progress, compare_in
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    Estimate,
    mean_estimate,
    share_estimate,
)
from parcae.evaluation.tuning import check_seeds
from parcae.evaluation.who_pays import MISSED
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.elastic import Elastic
from parcae.simulation.faults import check_elastic, resolve_faults
from parcae.workloads.arrivals import (
    ArrivalProcess,
    JobSequence,
    check_block,
    check_growth,
    default_block,
    grown,
    process_like,
    recorded_sequence,
    resampled,
)
from parcae.workloads.describe import fingerprint
from parcae.workloads.durations import MOST_EXECUTORS
from parcae.workloads.job import Workload
from parcae.workloads.tables import seconds_by_name

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


_HELP = (
    "write average, p95 or p99, then < and a time above 0 in ms, s, min or h, as in "
    '"p95 < 60s"; or deadlines and the share of them to meet, as in "deadlines 99%"'
)
#: A share is 1 minus a share of misses, so that it may be this much less than the number itself.
_ROUNDING = 1e-9


class SizeTarget(Protocol):
    """What a size has to reach over all runs."""

    @property
    def field(self) -> str:
        """The field of `parcae.evaluation.sizing.SizeResult` that the target is about."""

    @property
    def bound(self) -> float:
        """The bound in the field's unit."""

    def is_met(self, value: float) -> bool:
        """Whether a value of the field reaches the target."""

    def text(self, value: float) -> str:
        """A value of the field with its unit."""

    def __str__(self) -> str:
        """The target in words."""


@dataclass(frozen=True)
class Target:
    """A completion time that jobs should stay below."""

    measure: str
    limit_ms: float

    @property
    def field(self) -> str:
        """The completion time in seconds."""
        return f"{self.measure}_s"

    @property
    def bound(self) -> float:
        """The limit in seconds."""
        return s_from_ms(self.limit_ms)

    def is_met(self, value: float) -> bool:
        """Whether the time is below the limit."""
        return value < self.bound

    def text(self, value: float) -> str:
        """A time in seconds."""
        return f"{seconds_text(value)} s"

    def __str__(self) -> str:
        return f"{self.measure} < {self.bound:.15g} s"


@dataclass(frozen=True)
class DeadlineTarget:
    """A share of the deadlines that should be met."""

    share: float
    field = "deadlines_met"

    @property
    def bound(self) -> float:
        """The least share."""
        return self.share

    def is_met(self, value: float) -> bool:
        """Whether at least this share of the deadlines is met."""
        return value >= self.share - _ROUNDING

    def text(self, value: float) -> str:
        """A share in percent."""
        return f"{value:.1%}"

    def __str__(self) -> str:
        return f"deadlines {100 * self.share:g}%"


def parse_target(text: str) -> SizeTarget:
    """Parse a target such as "p95 < 60s", "average < 2min", "p99 < 500ms" or "deadlines 99%"."""
    share = re.fullmatch(r"\s*deadlines\s+(\d{1,3}(?:\.\d{1,6})?)\s*%\s*", text)
    if share is not None and 0 < float(share[1]) <= 100:
        return DeadlineTarget(float(share[1]) / 100)
    found = re.fullmatch(r"\s*(average|p95|p99)\s*<(.*)", text)
    limit_ms = ms_from_text(found[2]) if found else None
    if found is None or not limit_ms:
        raise ConfigError(f"target {text!r} is not understood: {_HELP}")
    return Target(found[1], limit_ms)


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
        arrivals: "recorded" (resampled in blocks), "batch", "poisson:25s" or "bursts:25s".
        num_jobs: number of jobs in a run; None: all recorded jobs, or 100 drawn ones.
        block: recorded jobs in a block; None: see `parcae.workloads.arrivals.default_block`.
        growth: how many times as many jobs arrive in the same time.
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
    target: SizeTarget | None = None
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
        if isinstance(self.target, DeadlineTarget) and not self.workload.has_deadlines:
            raise ConfigError(
                f'--target "{self.target}" needs deadlines by job name: give --deadlines FILE'
            )
        faults = resolve_faults(self.config.faults, self.workload)
        if self.elastic:
            check_elastic(faults)
        _check_arrivals(self)
        if isinstance(self.target, DeadlineTarget) and not self._has_due_job():
            raise ConfigError(
                f'--target "{self.target}": no job that was drawn has a deadline: give more '
                "--jobs or --seeds, or deadlines for more jobs"
            )

    def _has_due_job(self) -> bool:
        """Whether a job of any run has a deadline."""
        seeds = range(self.seed_start, self.seed_start + self.num_seeds)
        drawn = itertools.chain.from_iterable(self.draw(seed).jobs for seed in seeds)
        return any(job.deadline_ms is not None for job in drawn)

    @cached_property
    def recorded(self) -> JobSequence:
        """The recorded jobs with their arrivals."""
        return recorded_sequence(self.workload)

    @property
    def jobs_per_run(self) -> int:
        """Number of jobs in a run."""
        if self.num_jobs is not None:
            return self.num_jobs
        return self.recorded.num_jobs if self.arrivals == "recorded" else _DRAWN_JOBS

    @property
    def block_length(self) -> int | None:
        """Number of recorded jobs in a block; None if arrivals are drawn."""
        if self.arrivals != "recorded":
            return None
        return default_block(self.recorded.num_jobs) if self.block is None else self.block

    @property
    def drawn_arrivals(self) -> str:
        """The arrivals with their growth, as a process that can be drawn at any size.

        Variants are chosen and rules are tuned for it.
        """
        if self.arrivals == "recorded":
            return process_like(grown(self.recorded, self.growth).arrival_ms.tolist())
        process = ArrivalProcess.parse(self.arrivals)
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
            drawn = self.workload.draw(self.jobs_per_run, self.arrivals, self.config, seed=seed)
        return grown(drawn, self.growth)

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
            "block": self.block_length,
            "growth": self.growth,
            "jobs": self.jobs_per_run,
            "seeds": [self.seed_start, self.seed_start + self.num_seeds - 1],
            "search": self.search,
            "config": self.config.model_dump(mode="json", exclude={"num_executors"}),
            "intervals": METHODS[DEFAULT_METHOD],
            "version": __version__,
            **({"deadlines_s": deadlines_s} if deadlines_s else {}),
        }


def _check_arrivals(question: Question) -> None:
    process = ArrivalProcess.parse(question.arrivals)
    if process.kind in ("load", "trace"):
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
    """The results of one policy at one size, each with its interval over the runs.

    Args:
        policy: the policy's name.
        variant: what the name became at this size.
        cores: the size; the most cores of an elastic cluster.
        size: the size in words: "64", or "8..64" for an elastic cluster.
        average_s, p95_s, p99_s: completion times in seconds, means over the runs.
        cores_busy: mean number of cores that run tasks, from first arrival to last completion.
        cores_held: elastic clusters: mean number of cores up or starting; None for fixed sizes.
        cost_per_hour: price of the cluster for an hour; of the cores held on average if elastic.
        cost_per_job: price of the cluster from first arrival to last completion, for each job; of
            the core hours held if elastic.
        within_target: share of the jobs that end within the target's time; None without a target.
        deadlines_met: share of the jobs with a deadline that meet it; None without deadlines.
    """

    policy: str
    variant: str
    cores: int
    size: str
    average_s: Estimate
    p95_s: Estimate
    p99_s: Estimate
    cores_busy: Estimate
    cores_held: Estimate | None
    cost_per_hour: float
    cost_per_job: Estimate
    within_target: Estimate | None
    deadlines_met: Estimate | None = None

    def measured(self, target: SizeTarget) -> Estimate:
        """What a target is about, in its unit."""
        estimate: Estimate = getattr(self, target.field)
        return estimate

    def meets(self, target: SizeTarget) -> bool:
        """Whether the mean over the runs reaches the target."""
        return target.is_met(self.measured(target).mean)

    def to_json(self) -> dict[str, Any]:
        """The fields by name; estimates as {"mean":, "ci95": [low, high]}."""
        return {
            name: value.to_json() if isinstance(value, Estimate) else value
            for name, value in vars(self).items()
            if name != "deadlines_met" or value is not None
        }


@dataclass(frozen=True)
class Sizing:
    """The answer of `size_cluster`.

    Args:
        question: what was asked.
        results: one for every size and policy, by size, then in the order of the policies.
        elastic: the same for the elastic clusters.
        load: by size, the arriving work / the capacity of the cores; see `_offered_cores`.
    """

    question: Question
    results: tuple[SizeResult, ...]
    load: dict[int, float]
    elastic: tuple[SizeResult, ...] = ()

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
        found = None
        for result in reversed(self.of(policy)):
            if not result.meets(target):
                break
            found = result.cores
        return found

    def to_json(self) -> dict[str, Any]:
        """{"headline":, "warnings":, "smallest":, "results":, "settings":}"""
        from parcae.evaluation.sizing_text import headline, warnings

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
    results: dict[int, list[SizeResult]] = {}
    elastic: list[SizeResult] = []
    planned = len(question.cores) + len(question.elastic)
    num_played = 0

    def played(cores: int, settings: Elastic | None = None) -> list[SizeResult]:
        nonlocal num_played
        done = num_played * question.num_seeds
        num_played += 1
        total = max(planned, num_played) * question.num_seeds
        report = None if progress is None else _shifted(progress, done, total)
        comparison = play_at(question, cores, settings, report)
        return results_at(question, comparison, cores)

    for cores in question.cores:
        results[cores] = played(cores)
    for size in question.elastic:
        elastic += played(size.cores, size.elastic)
    if question.search:
        # A size that is played for one policy may reopen the question for another one.
        while (between := _next_of_any(question, results)) is not None:
            results[between] = played(between)
    ordered = tuple(itertools.chain.from_iterable(results[cores] for cores in sorted(results)))
    work_rate = _offered_cores(question)
    sizes = sorted({*results, *(size.cores for size in question.elastic)})
    loads = {cores: work_rate / cores for cores in sizes}
    return Sizing(question, ordered, loads, tuple(elastic))


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    """Progress of the runs of one size, as a part of all runs."""
    return lambda of_size, _: progress(done + of_size, total)


def _next_of_any(question: Question, results: dict[int, list[SizeResult]]) -> int | None:
    """The next size to play for the first policy whose answer is not exact yet."""
    sizes = (_next_size(question, results, policy) for policy in question.policies)
    return next((size for size in sizes if size is not None), None)


def _next_size(question: Question, results: dict[int, list[SizeResult]], policy: str) -> int | None:
    """The size in the middle between the smallest that meets the target and the next below."""
    played = tuple(itertools.chain.from_iterable(results[cores] for cores in sorted(results)))
    smallest = Sizing(question, played, {}).smallest(policy)
    if smallest is None:
        return None
    below = max((cores for cores in results if cores < smallest), default=None)
    if below is None or smallest - below < 2:
        return None
    return (below + smallest) // 2


def _offered_cores(question: Question) -> float:
    """Work that arrives per unit of time, in cores, as a mean over the runs.

    The arrivals of n jobs span n - 1 gaps, and so the work of n - 1 of them. It is infinite for a
    batch, and NaN for runs of one job, which have no gap.
    """
    runs = range(question.seed_start, question.seed_start + question.num_seeds)
    sequences = [question.draw(seed) for seed in runs]
    jobs = itertools.chain.from_iterable(sequence.jobs for sequence in sequences)
    work_ms = sum(job.expected_work_ms(question.config.runs_vary) for job in jobs)
    num_jobs = sum(len(sequence.arrival_ms) for sequence in sequences)
    share = (num_jobs - len(sequences)) / num_jobs
    span_ms = sum(int(sequence.arrival_ms[-1]) for sequence in sequences)
    is_batch = ArrivalProcess.parse(question.drawn_arrivals).kind == "batch"
    return share * work_ms / span_ms if span_ms > 0 else math.inf if is_batch else math.nan


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
        range(question.seed_start, question.seed_start + question.num_seeds),
        processes=question.processes,
        progress=progress,
        intervals=DEFAULT_METHOD,
    )


def results_at(question: Question, comparison: Comparison, cores: int) -> list[SizeResult]:
    """The results of all policies at one size."""
    columns = range(len(comparison.policies))
    return [_result(question, comparison, column, cores) for column in columns]


def _result(question: Question, comparison: Comparison, column: int, cores: int) -> SizeResult:
    policy = comparison.policies[column]
    runs = policy.runs
    # Only an elastic cluster states the cores that it held, and the core hours.
    held = runs["cores_held"].fill_null(cores)
    fixed_hours = cores * runs["makespan_ms"] / MS_PER_HOUR / question.jobs_per_run
    core_hours = runs["core_hours_per_job"].fill_null(fixed_hours)
    config: SimulationConfig = comparison.world.config

    def mean(values: pl.Series) -> Estimate:
        return mean_estimate(values).within(0.0)

    missed = policy.estimates.get(MISSED)
    return SizeResult(
        policy=policy.name,
        variant=comparison.resolved.variants.get(policy.name, policy.name),
        cores=cores,
        size=config.size_text.removesuffix(f" {WorldName.CORES}"),
        average_s=mean(runs["average_jct_ms"] / MS_PER_S),
        p95_s=mean(runs["p95_jct_ms"] / MS_PER_S),
        p99_s=mean(runs["p99_jct_ms"] / MS_PER_S),
        cores_busy=mean(runs["utilization"] * held),
        cores_held=None if config.elastic is None else mean(held),
        cost_per_hour=question.price * mean(held).mean,
        cost_per_job=mean(question.price * core_hours),
        within_target=_within(question.target, comparison, column),
        deadlines_met=None
        if missed is None
        else Estimate(1 - missed.mean, 1 - missed.high, 1 - missed.low),
    )


def _within(target: SizeTarget | None, comparison: Comparison, column: int) -> Estimate | None:
    """The share of the jobs that end within the target's time; None if it limits no time."""
    if not isinstance(target, Target):
        return None
    is_within = (pl.col("jct_ms") < target.limit_ms).sum().alias("within")
    own = comparison.jobs.filter(pl.col("column") == column)
    runs = own.group_by("seed").agg(is_within, pl.len().alias("jobs")).sort("seed")
    return share_estimate(runs["within"], runs["jobs"])
