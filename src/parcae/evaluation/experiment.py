"""Evaluates a randomised experiment on a real cluster: what the policy's order changes, by the
event logs alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.errors import InputError
from parcae.base.texts import duration_text, plain, s_from_ms
from parcae.evaluation.statistics import CONFIDENCE, RESAMPLE_SEED, UNKNOWN, Estimate
from parcae.workloads.import_report import counted
from parcae.workloads.recorded_run import Arm, JobOutcome, RecordedJob, RecordedRun

FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

#: What is compared, with the share of jobs below it (None: the mean).
MEASURES: dict[str, float | None] = {"mean": None, "median": 0.5, "p95": 0.95}
#: Fewest pairs of blocks for an interval: with five, even the most unlikely draw has odds of 1/32.
MIN_PAIRS = 6
#: A recurring name needs so many jobs to be weighed by itself, a row so many of each order.
_MIN_WEIGHED, _MIN_JOBS = 20, 5
#: The half-width of an interval that is narrow enough to stop.
NARROW = 0.05
#: Jobs count if they arrive so long before the end of their block that this share ends within it,
#: but at least in this share of the block.
_ENDED, _COUNTING = 0.95, 0.5
#: Above this share of jobs that end under the other order, blocks are too short for the jobs.
_MANY_MIXED = 0.03
#: Schedules that chance could have drawn instead, of those of more than _ALL_PAIRS pairs.
_NUM_SCHEDULES, _ALL_PAIRS = 2_000, 10
#: Ends of intervals are found to so many halvings of a factor of e^3 = 20 to both sides.
_SPAN, _HALVINGS = 3.0, 12
STOCK, POLICY = 0, 1


class Samples(NamedTuple):
    """Completed jobs as columns: the time, the arm, the pair of blocks, the recurring name."""

    jct_ms: FloatArray
    arm: Int64Array
    pair: Int64Array
    name: Int64Array


class Effect(NamedTuple):
    """Under Spark's own order and under the policy's: the number of jobs, a measure in seconds, and
    the ratio of both.
    """

    num_jobs: tuple[int, int]
    stock_s: float
    policy_s: float
    ratio: Estimate


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment says.

    Args:
        label: the paths that were read.
        block_ms, washout_ms: the experiment's settings (of its last job).
        lead_ms: how long before the end of its block a job must arrive to count.
        num_pairs: number of pairs of blocks with jobs that count in both.
        effects: by measure.
        names, users: on the mean, by recurring name and by user, the most time first.
        num_jobs: jobs that count, by arm (stock, policy).
        num_mixed: those of them that had not ended when the next block began.
        num_failed: jobs that failed, by arm.
        num_left_out: jobs that arrived too soon or too late in a block.
        more_ms: for how much longer the experiment must go on until the interval of the mean is
            +-5%; None where no interval is known.
        notes: sentences for the user.
    """

    label: str
    block_ms: int
    washout_ms: int
    lead_ms: int
    num_pairs: int
    effects: dict[str, Effect]
    names: dict[str, Effect]
    users: dict[str, Effect]
    num_jobs: tuple[int, int]
    num_mixed: tuple[int, int]
    num_failed: tuple[int, int]
    num_left_out: int
    more_ms: float | None
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        ratio = self.effects["mean"].ratio
        change = f"{abs(1 - ratio.mean):.1%} {'shorter' if ratio.mean < 1 else 'longer'}"
        said = (
            f"Under the policy the mean completion time is {change}."
            if ratio.high < 1 or ratio.low > 1
            else "No difference of the mean completion times is shown: the interval contains 1."
        )
        if self.more_ms is None:
            return said
        if not self.more_ms:
            return f"{said} Its interval is within ±{NARROW:.0%}."
        more = duration_text(s_from_ms(self.more_ms))
        return f"{said} For an interval of ±{NARROW:.0%}, go on for about {more}."

    def to_json(self) -> dict[str, Any]:
        """The result as plain numbers and text."""
        return plain({**vars(self), "verdict": self.verdict})  # type: ignore[no-any-return]


def evaluate_experiment(run: RecordedRun) -> ExperimentResult:
    """Estimate the ratios policy / stock of an experiment, with intervals over pairs of blocks.

    A job belongs to the order under which it arrived. It counts if it arrived after the washout,
    and so long before the end of its block that 95% of the jobs end within it. What decides this is
    the arrival alone: left out by their ends, the jobs of the slower order would be missing. Both
    orders are weighed to the same mix of recurring names.

    An interval has the ratios that chance explains: if the policy multiplies every time by such a
    ratio, the schedule that was drawn is not among the most extreme 2.5% of those that could have
    been drawn, at either end (a randomisation test). So an experiment without an effect shows one
    in 5% of the cases, whatever jobs there are and however they depend on each other.

    Source: Fisher, The Design of Experiments (1935), chapter 3; Ernst, Permutation Methods: A Basis
    for Exact Inference (2004), section 3.

    Raises:
        InputError: there is no experiment in the logs, or it is too short.
    """
    tried = [(job, job.arm) for job in run.jobs if job.arm is not None]
    if not tried:
        raise InputError(
            f"{run.label}: no job ran in an experiment of the plugin; set one in the file of "
            'spark.parcae.control, such as {"mode": "on", "experiment": {"block": "10m"}}, and '
            "give this command the event log of that application"
        )
    lead_ms = _lead_ms(tried)
    in_time = [
        (job, arm)
        for job, arm in tried
        if arm.since_ms >= arm.washout_ms and arm.left_ms >= lead_ms
    ]
    failed = Counter(arm.is_policy for job, arm in in_time if job.outcome is JobOutcome.FAILED)
    done = _paired([one for one in in_time if one[0].outcome is JobOutcome.COMPLETED])
    pairs = _codes([arm.pair for _, arm in done])
    num_pairs = int(pairs.max(initial=-1)) + 1
    last = tried[-1][1]
    if num_pairs < MIN_PAIRS:
        missing = (MIN_PAIRS - num_pairs) * 2 * last.block_ms
        raise InputError(
            f"{run.label}: {counted(num_pairs, 'pair')} of blocks with completed jobs under both "
            f"orders, and an interval needs {MIN_PAIRS}; let the experiment go on for at least "
            f"{duration_text(s_from_ms(missing))}"
        )
    jobs = [job for job, _ in done]
    samples = Samples(
        np.array([max(1, job.jct_ms) for job in jobs], np.float64),
        np.array([arm.is_policy for _, arm in done], np.int64),
        pairs,
        _codes([job.name for job in jobs]),
    )
    effects = {name: effect_on(samples, quantile) for name, quantile in MEASURES.items()}
    mixed = Counter(arm.is_policy for job, arm in done if job.jct_ms > arm.left_ms)
    return ExperimentResult(
        label=run.label,
        block_ms=last.block_ms,
        washout_ms=last.washout_ms,
        lead_ms=lead_ms,
        num_pairs=num_pairs,
        effects=effects,
        names=dict(_groups(samples, [job.name for job in jobs])),
        users=dict(_groups(samples, [job.user for job in jobs])),
        num_jobs=effects["mean"].num_jobs,
        num_mixed=(mixed[False], mixed[True]),
        num_failed=(failed[False], failed[True]),
        num_left_out=len(tried) - len(in_time),
        more_ms=_more_ms(effects["mean"].ratio, num_pairs, last.block_ms),
        notes=(*run.notes, *_doubts(mixed, failed, len(done))),
    )


def _lead_ms(tried: Sequence[tuple[RecordedJob, Arm]]) -> int:
    """How long before the end of its block a job must arrive: the same for both orders."""
    took_ms = [job.jct_ms for job, _ in tried if job.outcome is JobOutcome.COMPLETED]
    most_ms = min(arm.block_ms - max(arm.washout_ms, _COUNTING * arm.block_ms) for _, arm in tried)
    return int(min(most_ms, np.quantile(took_ms, _ENDED))) if took_ms else 0


def _paired(jobs: list[tuple[RecordedJob, Arm]]) -> list[tuple[RecordedJob, Arm]]:
    """The jobs of pairs that have some in both blocks."""
    arms = {(*arm.pair, arm.is_policy) for _, arm in jobs}
    return [(job, arm) for job, arm in jobs if (*arm.pair, not arm.is_policy) in arms]


def _codes(values: Sequence[Any]) -> Int64Array:
    """A number from 0 for each different value, in order of appearance."""
    code = dict[Any, int]()
    return np.array([code.setdefault(value, len(code)) for value in values], np.int64)


def effect_on(samples: Samples, quantile: float | None) -> Effect:
    """The effect on the mean of completion times, or on a quantile."""
    schedules = _Schedules(samples)
    values = [_measure(samples, schedules.weights(), arm, quantile) for arm in (STOCK, POLICY)]
    stock, policy = values
    ratio = policy / stock
    low, high = schedules.interval(quantile, math.log(ratio))
    first, second = np.bincount(samples.arm, minlength=2).tolist()
    estimate = Estimate(ratio, low, high)
    return Effect((first, second), s_from_ms(stock), s_from_ms(policy), estimate)


def _measure(samples: Samples, weight: FloatArray, arm: int, quantile: float | None) -> float:
    own = samples.arm == arm
    times, weight = samples.jct_ms[own], weight[own]
    if quantile is None:
        return float(times @ weight / weight.sum())
    order = np.argsort(times)
    below = np.cumsum(weight[order])
    row = int(np.searchsorted(below, quantile * below[-1]))
    return float(times[order][min(row, len(times) - 1)])


class _Schedules:
    """The schedules that could have been drawn: the first is the one that was, the others exchange
    the arms of some pairs.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        names = np.bincount(samples.name)
        is_weighed = names >= _MIN_WEIGHED
        #: Names with few jobs are weighed together.
        self._stratum = np.where(is_weighed, np.cumsum(is_weighed), 0)[samples.name]
        pairs = _codes(samples.pair.tolist())
        num_pairs = int(pairs.max()) + 1
        self._shape = (num_pairs, int(is_weighed.sum()) + 1, 2)
        self._cell = (pairs * self._shape[1] + self._stratum) * 2 + samples.arm
        if num_pairs <= _ALL_PAIRS:
            drawn = np.arange(2**num_pairs)[:, None] >> np.arange(num_pairs) & 1
        else:
            rng = np.random.default_rng(RESAMPLE_SEED)
            drawn = rng.integers(0, 2, (_NUM_SCHEDULES, num_pairs))
            drawn[0] = 0
        self._exchanged = drawn.astype(np.float64)
        self._counts = self._sums(np.ones(len(samples.arm)))
        #: What share of the jobs a stratum is; one that an arm lacks cannot be weighed.
        both = self._counts.min(axis=0) > 0
        share = np.where(both, self._counts.sum(axis=0), 0.0)
        self._share = share / np.maximum(share.sum(axis=1, keepdims=True), 1)

    def _sums(self, values: FloatArray) -> FloatArray:
        """Sums over jobs by arm, schedule and stratum."""
        sums = np.bincount(self._cell, values, math.prod(self._shape)).reshape(self._shape)
        stock, policy = sums[..., STOCK], sums[..., POLICY]
        moved = self._exchanged @ (stock - policy)
        return np.stack([stock.sum(axis=0) - moved, policy.sum(axis=0) + moved])

    def weights(self) -> FloatArray:
        """The weight of every job under the schedule that was drawn."""
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.where(self._share[0] > 0, self._share[0] / self._counts[:, 0], 0.0)
        return np.asarray(weights[self._samples.arm, self._stratum], np.float64)

    def _differences(self, values: FloatArray) -> FloatArray:
        """Mean under the policy - mean under the stock order, for every schedule."""
        means = self._sums(values) / np.maximum(self._counts, 1)
        return np.asarray(((means[POLICY] - means[STOCK]) * self._share).sum(axis=1), np.float64)

    def _tails(self, quantile: float | None, log_ratio: float) -> tuple[float, float]:
        """The shares of schedules with at most, and at least, the difference of that which was
        drawn, if the policy multiplies all times by the ratio.
        """
        jct_ms, arm = self._samples.jct_ms, self._samples.arm
        undone = np.where(arm == POLICY, jct_ms * math.exp(-log_ratio), jct_ms)
        if quantile is not None:
            undone = (undone > np.quantile(undone, quantile)).astype(np.float64)
        differences = self._differences(undone)
        slack = 1e-9 * np.abs(differences).max()  # sums in another order differ in the last digits
        low = np.mean(differences <= differences[0] + slack)
        return float(low), float(np.mean(differences >= differences[0] - slack))

    def interval(self, quantile: float | None, log_ratio: float) -> tuple[float, float]:
        """The ends of the interval around an estimate; 0 and infinity where there are none."""
        tail = (1 - CONFIDENCE) / 2

        def end(side: int, direction: int) -> float:
            inside, outside = 0.0, _SPAN
            if self._tails(quantile, log_ratio + direction * outside)[side] > tail:
                return direction * math.inf
            for _ in range(_HALVINGS):
                middle = (inside + outside) / 2
                is_inside = self._tails(quantile, log_ratio + direction * middle)[side] > tail
                inside, outside = (middle, outside) if is_inside else (inside, middle)
            return log_ratio + direction * outside

        return math.exp(end(1, -1)), math.exp(end(0, 1))


def _groups(samples: Samples, values: Sequence[str]) -> Iterator[tuple[str, Effect]]:
    """The effect for every name or user, the most time first."""
    codes = _codes(values)
    total = np.bincount(codes, samples.jct_ms)
    for code in np.argsort(-total, kind="stable").tolist():
        own = codes == code
        value = values[int(np.argmax(own))]
        part = Samples(*(column[own] for column in samples))
        if value and len(set(part.arm.tolist())) == 2:
            effect = effect_on(part, None)
            is_known = min(effect.num_jobs) >= _MIN_JOBS
            yield value, effect if is_known else effect._replace(ratio=UNKNOWN)


def _more_ms(ratio: Estimate, num_pairs: int, block_ms: int) -> float | None:
    """For how much longer the experiment must go on: an interval narrows as 1 / sqrt(pairs)."""
    if not (ratio.low > 0 and math.isfinite(ratio.high)):
        return None
    half = math.log(ratio.high / ratio.low) / 2
    needed = num_pairs * (half / math.log(1 + NARROW)) ** 2
    return max(0.0, needed - num_pairs) * 2 * block_ms


def _doubts(mixed: Counter[bool], failed: Counter[bool], num_jobs: int) -> Iterator[str]:
    share = mixed.total() / num_jobs
    if share > _MANY_MIXED:
        yield (
            f"{share:.0%} of the jobs had not ended when the next block began: their times are of "
            "both orders, and the effect is larger than it seems. Use longer blocks."
        )
    if failed[False] != failed[True]:
        yield (
            f"Failed jobs: {failed[False]} under Spark's order, {failed[True]} under the policy's."
        )
