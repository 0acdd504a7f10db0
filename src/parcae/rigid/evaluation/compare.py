"""Compare packing policies on the same job sequences or on the same log.

`compare_packing` draws sequences by seed, `compare_log` runs a log. Both return a `Comparison` with
confidence intervals, paired by sequence or by block of jobs. `PackingWorld` is the world behind
both: its runs, its results and what a reader is told of them. A run is a sequence of jobs: one that
was drawn, a piece of a log, or a whole log.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from parcae.base.arrays import BoolArray, Int64Array
from parcae.base.errors import ConfigError
from parcae.base.texts import __version__, plain
from parcae.evaluation.comparison import (
    RECORDED,
    Column,
    ComparedWorld,
    Comparison,
    Played,
    PolicyResult,
    Say,
    compare_in,
)
from parcae.evaluation.gantt import gantt_picture
from parcae.evaluation.page import Cell, Charts, Section, Table, Text, estimate_cell
from parcae.evaluation.policies import check_seeds
from parcae.evaluation.sections import FULL
from parcae.evaluation.statistics import UNKNOWN, UNKNOWN_TEXT, Estimate, ratio_estimate
from parcae.evaluation.who_pays import ratio_of, sample_sums
from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.evaluation import plots
from parcae.rigid.evaluation.tuning import (
    ResolvedPacking,
    RigidTuning,
    resolve_packing,
    tuning_pieces,
)
from parcae.rigid.jobs import RigidJobs, log_name, most_in_use
from parcae.rigid.layout import Cost
from parcae.rigid.metrics import LEAST, MEASURES, SizeGroups, run_metrics, size_groups
from parcae.rigid.policies.catalog import PackingSetting
from parcae.rigid.policies.policy import PackingPolicy
from parcae.rigid.sources import PackingSource
from parcae.rigid.world import PackingBatch, RigidOutcome, recorded_outcome
from parcae.workloads.import_report import counted

#: Parts of a log that can be compared, by name, in words.
PARTS = {"second": "second half", "first": "first half", "all": "whole"}
#: For its intervals, a single run is divided into this many consecutive blocks of jobs.
NUM_BLOCKS = 20
#: Neighbouring blocks are called correlated above this many standard deviations of no correlation.
_NUM_DEVIATIONS = 2
#: The recorded mean wait and that of the first policy are this many times apart before it is said,
#: and by at least this share of the recorded mean completion time.
_MISSED, _LEAST_MISSED = 1.5, 0.1
#: Results name this many users, those with the most jobs.
_MOST_USERS = 20
#: Stands for an unknown user, as in the Standard Workload Format.
_NO_USER = -1
_BY_RUN = (
    "95% confidence intervals: a mean over all jobs is the ratio of the {0}' sums to their numbers "
    "of jobs; ratios to the first policy are paired by {1}; delta method on the logarithm, "
    "Student's t over {2} {0}"
)
_BY_BLOCK = (
    "95% confidence intervals by batch means: one run; its jobs, in order of arrival, form {0} "
    "consecutive blocks, which are treated as independent and paired; delta method on the "
    "logarithm, Student's t. Neighbouring blocks share queues: if their means are correlated "
    "(lag 1 of {1:+.2f} to {2:+.2f} here; without correlation it stays within {3:.2f}), the "
    "intervals are too narrow"
)


class User(NamedTuple):
    """The jobs of one user of a log under every policy."""

    user: int | str
    jobs: int
    means: dict[str, Estimate]
    ratios_to_first: dict[str, Estimate]


@dataclass(frozen=True)
class PackingWorld(ComparedWorld):
    """A cluster that packs rigid jobs, and the job sequences on which policies are compared.

    Args:
        sequences: the runs.
        config: the cluster.
        setting: what policies are made for.
        tuning: how policies are tuned.
        card: what is needed to draw or read the sequences again.
        load: the work that arrives / the work that the cluster can do.
        has_recorded: whether what the log says of its jobs is a result, too.
    """

    sequences: Sequence[RigidJobs]
    config: PackingConfig
    setting: PackingSetting
    tuning: RigidTuning
    card: Mapping[str, Any]
    load: float = 0.0
    has_recorded: bool = False

    plays_in_threads = True
    subject = "rigid jobs"

    @property
    def is_log(self) -> bool:
        """Whether the jobs come from a log."""
        return self.config.mode is TimeMode.EXACT

    @property
    def main(self) -> str:  # type: ignore[override]
        """The estimate by which policies are ranked."""
        return "bounded_slowdown" if self.is_log else "slowdown"

    @property
    def measure_words(self) -> str:
        """The main measure of one job in words."""
        return self.main.replace("_", " ")

    @property
    def measure(self) -> str:  # type: ignore[override]
        """The main measure in words."""
        return f"mean {self.measure_words}"

    @property
    def sizes(self) -> SizeGroups:
        """The groups of jobs by size, the same for all policies."""
        return size_groups(self.sequences)

    def resolve(self, policies: Sequence[str], say: Say | None = None) -> ResolvedPacking:
        """Make the policies with the given names; `tetris` and `withhold` are tuned here."""
        resolved = resolve_packing(policies, self.tuning, say, self.setting)
        return replace(resolved, also=(RECORDED,)) if self.has_recorded else resolved

    def play(self, resolved: ResolvedPacking, runs: Sequence[int]) -> list[Played]:
        """Simulate the runs under every policy."""
        sequences = [self.sequences[number] for number in runs]
        by_policy = [
            run_policy(policy, sequences, self.config) for policy in resolved.policies.values()
        ] + [list(map(recorded_outcome, sequences)) for _ in resolved.also]
        sizes = self.sizes
        has_users = all(len(jobs.users) == len(jobs) for jobs in self.sequences)
        return [
            self._played(number, outcomes, sizes, has_users)
            for number, outcomes in zip(runs, zip(*by_policy, strict=True), strict=True)
        ]

    def _played(
        self, number: int, outcomes: Sequence[RigidOutcome], sizes: SizeGroups, has_users: bool
    ) -> Played:
        """One run as rows; the first run keeps its outcomes for the charts."""
        jobs = outcomes[0].jobs
        count = len(jobs)
        of_job = {
            "position": np.arange(count),
            "sample": np.full(count, number) if len(self.sequences) > 1 else _blocks(count),
            "group": sizes.of(jobs),
            "user": jobs.users if has_users else np.full(count, _NO_USER),
        }
        frames = [
            pl.DataFrame(
                {
                    **of_job,
                    "column": np.full(count, column),
                    **{name: measure(outcome) for name, measure in MEASURES.items()},
                }
            )
            for column, outcome in enumerate(outcomes)
        ]
        num_visible = None if self.is_log else self.config.num_slots
        rows = [run_metrics(one, num_visible) for one in outcomes]
        shown = tuple(outcomes) if number == 0 else None
        every = pl.concat(frames).sort("position", "column").fill_nan(None)
        return Played(pl.DataFrame(rows), every, shown)

    def results(
        self, names: Sequence[str], runs: pl.DataFrame, jobs: pl.DataFrame
    ) -> list[PolicyResult]:
        """Means over jobs, ratios to the first policy, and means over runs."""
        found = {measure: _means_and_ratios(jobs, measure, len(names)) for measure in MEASURES}
        first = runs.gather_every(len(names))
        results = []
        for column, name in enumerate(names):
            estimates = {measure: every[column][0] for measure, every in found.items()}
            for measure, every in found.items():
                if measure != "waiting":
                    estimates[f"{measure}_ratio_to_first"] = every[column][1]
            estimates["ratio_to_first"] = found[self.main][column][1]
            own = runs.gather_every(len(names), column)
            mine = jobs.filter(pl.col("column") == column)
            numbers = self._numbers(own, first["makespan"], mine)
            results.append(PolicyResult(name, own, estimates, numbers))
        return results

    def _numbers(
        self, runs: pl.DataFrame, first_makespan: pl.Series, jobs: pl.DataFrame
    ) -> dict[str, Any]:
        """The numbers of one policy that are no estimates."""
        is_busy = runs["jobs"] > 0
        busy = runs.filter(is_busy)
        known = jobs[self.main].drop_nulls()
        by_size = dict(jobs.group_by("group").agg(pl.col(self.main).mean()).iter_rows())
        return {
            **{key: int(runs[key].sum()) for key in ("jobs", "unallocated", "dropped")},
            "quantiles": {
                f"p{share}": float(np.percentile(known, share)) if len(known) else math.nan
                for share in (50, 95, 99)
            },
            f"{self.main}_by_size": {
                size: by_size.get(row) for row, size in enumerate(self.sizes.names)
            },
            **{key: _mean(busy[key]) for key in ("makespan", "withheld_share", "decisions")},
            "makespan_ratio_to_first": _mean(
                busy["makespan"] / first_makespan.filter(is_busy).clip(1)
            ),
            "utilization": {
                resource: _mean(busy["utilization"].list.get(row))
                for row, resource in enumerate(self.sequences[0].resources)
            },
            "block_correlation": _correlation(jobs, self.main) if len(runs) == 1 else math.nan,
            f"{self.main}_by_run": runs[f"mean_{self.main}"].to_list(),
        }

    def settings_of(
        self,
        resolved: ResolvedPacking,
        runs: range,
        results: Sequence[PolicyResult],
    ) -> dict[str, Any]:
        """Everything that is needed to repeat a comparison."""
        return {
            **self.card,
            "objective": self.tuning.cost.objective,
            "tune_budget_s": self.tuning.budget_s,
            "tuned": dict(resolved.tuned),
            "intervals": self._method_text(results),
            "version": __version__,
        }

    def _method_text(self, results: Sequence[PolicyResult]) -> str:
        if len(self.sequences) > 1:
            kind = "pieces" if self.sequences[0].step == "s" else "seeds"
            return _BY_RUN.format(kind, kind[:-1], len(self.sequences))
        count = _num_blocks(len(self.sequences[0]))
        known = _known_correlations(results)
        if count < 2 or not known:
            return "one run of too few jobs for confidence intervals"
        return _BY_BLOCK.format(count, min(known), max(known), 2 / math.sqrt(count))

    def sampled(self, comparison: Comparison) -> str:
        """What intervals sample: "seeds", "pieces" of a log, or "jobs" of one run, in blocks."""
        if len(self.sequences) == 1:
            return "jobs"
        return "pieces" if self.is_log else "seeds"

    def ranked(self, comparison: Comparison) -> list[PolicyResult]:
        """The policies under which every job started."""
        return [p for p in comparison.simulated if not num_lost(p)]

    def caveat(self, comparison: Comparison) -> str:
        """Where the jobs waited much longer in the log than in the simulation, or much shorter."""
        first, last = comparison.policies[0], comparison.policies[-1]
        waits = [result.estimates["waiting"].mean for result in (last, first)]
        least = _LEAST_MISSED * last.estimates["completion"].mean
        apart = max(waits) - min(waits)
        if not self.has_recorded or apart < least or max(waits) < _MISSED * min(waits):
            return ""
        before = ", the jobs before each piece" if len(self.sequences) > 1 else ""
        lacks = (
            "what the simulation does not have decides most of it (partitions, limits and shares "
            f"of users, reservations, nodes that were down, held jobs{before})"
            if waits[0] > waits[1]
            else "the real cluster was larger than the simulated one, or its order better"
        )
        return (
            f"in the log jobs waited {number(waits[0])} s on average, in the simulation under "
            f"{first.name} {number(waits[1])} s: {lacks}; do not expect these differences between "
            "policies on the real cluster"
        )

    def remark(self, comparison: Comparison, best: PolicyResult | None) -> str:
        """Which policies are not ranked, and why."""
        if best is None:
            return (
                "Under every policy some jobs never started, so no policy is called the best: "
                "the means cover only the jobs that started."
            )
        names = ", ".join(p.name for p in comparison.policies if num_lost(p))
        return f"Not ranked, because some of their jobs never started: {names}." if names else ""

    def title(self, comparison: Comparison) -> str:
        """The setting of the comparison in one line."""
        s = comparison.settings
        jobs = counted(comparison.policies[0].numbers["jobs"], "job")
        if "pieces" not in s:
            label = f"{s['label']}, " if s["label"] else ""
            first, last = s["seeds"]
            return f"{label}{jobs} on {counted(last - first + 1, 'seed')} ({first}-{last})"
        pieces = f" in {s['pieces']} pieces of {s['piece_jobs']:,}" if s["piece_jobs"] else ""
        start = f"{s['label']}: {jobs}{pieces}"
        if None in s["load"].values():
            return f"{start}; all arrive at once"
        load = ", ".join(f"{name} {load:.0%}" for name, load in s["load"].items())
        return f"{start}, load of {load}"

    def columns(self, comparison: Comparison) -> list[Column]:
        """The columns of the table of policies."""
        other = "slowdown" if self.is_log else "completion"
        return [
            Column(self.measure_words, self.main, number),
            Column("ratio to first", "ratio_to_first", number),
            Column("p95", lambda p: number(p.numbers["quantiles"]["p95"])),
            Column(other, lambda p: number(p.estimates[other].mean)),
            Column("waiting", lambda p: number(p.estimates["waiting"].mean)),
            Column("makespan (ratio)", _makespan_text),
            Column("busy", _busy_text),
            Column("withheld", "withheld_share", "{:.0%}".format),
            Column("never started", lambda p: f"{num_lost(p):,}" if num_lost(p) else UNKNOWN_TEXT),
        ]

    def notes(self, comparison: Comparison) -> list[str]:
        """Notes that a reader of the table needs."""
        unit = "s" if self.is_log else "steps"
        lines = [
            f"times in {unit}; means over the jobs that started, with 95% confidence intervals"
        ]
        num_empty = sum(len(jobs) == 0 for jobs in self.sequences)
        if num_empty:
            lines.append(
                f"no job arrives on {num_empty:,} of {len(self.sequences):,} seeds: makespan, busy "
                "and withheld are means over the others"
            )
        for result in comparison.policies:
            if num_lost(result):
                numbers = result.numbers
                lost = (
                    f"{counted(numbers['unallocated'], 'job')} never started and "
                    f"{counted(numbers['dropped'], 'job')} lost to a full backlog"
                )
                lines.append(
                    f"{result.name}: {lost}, of {numbers['jobs']:,}; its means cover only the "
                    "others"
                )
        known = _known_correlations(comparison.policies)
        num_jobs = len(self.sequences[0])
        if known and max(known) > _NUM_DEVIATIONS / math.sqrt(_num_blocks(num_jobs)):
            lines.append(
                f"neighbouring blocks are correlated (up to {max(known):.2f}): "
                "the intervals are too narrow"
            )
        return lines

    def warnings(self, comparison: Comparison) -> list[str]:
        """What makes conclusions from this comparison wrong, in sentences."""
        resolved = comparison.resolved
        return [
            *packing_warnings(self.sequences, self.load),
            *learned_warnings(resolved.learned("source"), self.sequences),
            *(f"{name}: {text}" for name, text in resolved.edges.items()),
        ]

    def json_of(self, comparison: Comparison) -> dict[str, Any]:
        """The main measure and, where the log names them, the users."""
        users = plain(by_user(comparison))
        return {"measure": self.main, **({"users": users} if users else {})}

    def sections(self, comparison: Comparison) -> list[Section]:
        """Charts over all runs, users, and charts of the first run."""
        what = "Over all runs" if len(self.sequences) > 1 else "Over the run"
        charts = [
            Charts([plots.slowdown_bars(comparison)]),
            Charts([plots.slowdown_cdf(comparison), plots.slowdown_by_size(comparison)]),
        ]
        if comparison.resolved.learned("curve"):
            charts.append(Charts([plots.learning_curves(comparison)]))
        users = by_user(comparison)
        return [
            Section(what, charts),
            *([self._users(comparison, users)] if users else []),
            self._one_run(comparison),
        ]

    def _users(self, comparison: Comparison, users: Sequence[User]) -> Section:
        """The table of users."""
        first, *others = (policy.name for policy in comparison.policies)
        head = [
            Cell("user"),
            Cell("jobs"),
            *(Cell(name, self.measure) for name in (first, *others)),
            *(Cell(name, f"/ {first}") for name in others),
        ]
        paired_by = "piece of the log" if self.sampled(comparison) == "pieces" else "block of jobs"
        num_users = comparison.jobs.filter(pl.col("user") != _NO_USER)["user"].n_unique()
        note = (
            f"The {len(users)} users with the most jobs, of {num_users:,}. A user gains or loses "
            f"if the 95% interval of the ratio, paired by {paired_by}, does not contain 1; of "
            "twenty users without any difference, one on average seems to have one."
        )
        rows: list[list[Cell | str]] = [
            [
                str(one.user),
                f"{one.jobs:,}",
                *(estimate_cell(mean, "{:,.2f}".format) for mean in one.means.values()),
                *(estimate_cell(one.ratios_to_first[name]) for name in others),
            ]
            for one in users
        ]
        return Section("Users: gains and losses", [Table(head, rows, [note])])

    def _one_run(self, comparison: Comparison) -> Section:
        """The charts of the first run: boxes, or shares over time where boxes are too many."""
        s = comparison.settings
        which = f"One run (seed {s['seeds'][0]})" if "pieces" not in s else "The run"
        which = "The first piece" if s.get("piece_jobs") else which
        outcomes = first_outcomes(comparison)
        jobs = self.sequences[0]
        waiting, busy = plots.over_time(outcomes)
        if not plots.can_be_drawn(jobs):
            return Section(f"{which} over time", [Charts([one]) for one in (*busy, waiting)])
        note = (
            "Each box is a job and the units that it holds. A job has the same colour in every "
            "chart. White is free."
        )
        end = plots.last_finish(outcomes)
        boxes = [
            Charts([gantt_picture([plots.packing_chart(name, outcome)], end=end)])
            for name, outcome in outcomes.items()
        ]
        return Section(
            f"{which}: which job ran when", [Text(note, True), *boxes, Charts([waiting])]
        )


def run_policy(
    policy: PackingPolicy,
    sequences: Sequence[RigidJobs],
    config: PackingConfig,
    num_threads: int | None = None,
) -> list[RigidOutcome]:
    """Run every sequence under a policy."""
    batch = PackingBatch(sequences, config, wants_profile=policy.wants_profile)
    batch.run(policy.play_many, num_threads)
    return batch.outcomes()


def first_outcomes(comparison: Comparison) -> dict[str, RigidOutcome]:
    """The first run under every policy."""
    names = (policy.name for policy in comparison.policies)
    return dict(zip(names, comparison.shown, strict=True))


def _num_blocks(num_jobs: int) -> int:
    """Number of blocks into which a single run of so many jobs is divided."""
    return max(1, min(NUM_BLOCKS, num_jobs))


def _blocks(num_jobs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The block of every job of a single run."""
    parts = np.array_split(np.arange(num_jobs), _num_blocks(num_jobs))
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _means_and_ratios(
    jobs: pl.DataFrame, measure: str, num_policies: int
) -> list[tuple[Estimate, Estimate]]:
    """Of every policy: the mean over the jobs that started, and its ratio to the first policy's.

    The samples are runs, or blocks of one run; those of a ratio have jobs under both policies.
    """
    sums = sample_sums(jobs, measure, sample="sample")
    by_policy = [sums.filter(pl.col("column") == column) for column in range(num_policies)]
    found = []
    for own in by_policy:
        pairs = own.join(by_policy[0], on="sample", suffix="_first").sort("sample")
        mean = ratio = UNKNOWN
        if not own.is_empty():
            least = LEAST.get(measure, 0.0)
            mean = ratio_estimate(own["total"], own["count"], "t").within(least)
        # Waiting can be 0 under the first policy.
        if not pairs.is_empty() and measure != "waiting":
            ratio = ratio_of(pairs, "t")
        found.append((mean, ratio))
    return found


def _correlation(jobs: pl.DataFrame, measure: str) -> float:
    """Correlation between neighbouring blocks' means (lag 1); NaN if a block has none."""
    sums = sample_sums(jobs, measure, sample="sample")
    if len(sums) < 3 or len(sums) < jobs["sample"].n_unique():
        return math.nan
    means = (sums["total"] / sums["count"]).to_numpy()
    deviation = means - means.mean()
    products = float((deviation[1:] * deviation[:-1]).sum())
    return products / float((deviation**2).sum()) if deviation.any() else 0.0


def _known_correlations(results: Sequence[PolicyResult]) -> list[float]:
    every: Iterator[float] = (result.numbers["block_correlation"] for result in results)
    return [one for one in every if not math.isnan(one)]


def _mean(values: pl.Series) -> float:
    """The mean of the known values; NaN without any."""
    known: Any = values.drop_nulls()
    return float(known.mean()) if len(known) else math.nan


def num_lost(result: PolicyResult) -> int:
    """Number of jobs that never started; the means cover the others."""
    return int(result.numbers["unallocated"] + result.numbers["dropped"])


def by_user(comparison: Comparison) -> list[User]:
    """The results of the users with the most jobs; none if the log does not name users."""
    jobs = comparison.jobs.filter(pl.col("user") != _NO_USER)
    counts = jobs.filter(pl.col("column") == 0)["user"].value_counts(name="jobs")
    busiest = counts.sort("jobs", "user", descending=[True, False]).head(_MOST_USERS)
    names = [policy.name for policy in comparison.policies]
    known = comparison.world.sequences[0].user_names
    users = []
    for user, count in busiest.iter_rows():
        own = jobs.filter(pl.col("user") == user)
        found = _means_and_ratios(own, comparison.world.main, len(names))
        means, ratios = (dict(zip(names, one, strict=True)) for one in zip(*found, strict=True))
        users.append(User(known[user] if known else user, count, means, ratios))
    return users


def _makespan_text(result: PolicyResult) -> str:
    numbers = result.numbers
    return f"{number(numbers['makespan'])} ({numbers['makespan_ratio_to_first']:.2f})"


def _busy_text(result: PolicyResult) -> str:
    return " ".join(f"{share:.0%}" for share in result.numbers["utilization"].values())


def number(value: float) -> str:
    """A number as text, with fewer decimals the larger it is; a dash if unknown.

    Example: 3.1416 is "3.142", 1234.5 is "1,234".
    """
    if math.isnan(value):
        return UNKNOWN_TEXT
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{3 if abs(value) < 10 else 1 if abs(value) < 1_000 else 0}f}"


def packing_warnings(sequences: Sequence[RigidJobs], load: float) -> list[str]:
    """What makes conclusions from runs of rigid jobs wrong, in sentences."""
    found = []
    count = max(len(np.unique(jobs.partitions)) for jobs in sequences)
    if count > 1:
        found.append(
            f"the jobs ran on {count} partitions, which are taken as one machine: compare those "
            "that have nodes of their own one by one (--partitions NAME, with its --processors)"
        )
    used = [
        most_in_use(jobs.arrival + jobs.waits, jobs.duration, jobs.demand) / jobs.capacity
        for jobs in sequences
        if len(jobs.waits)
    ]
    if used and np.max(used) > 1:
        found.append(
            f"in the log jobs held up to {np.max(used):.2f} times what the cluster has: "
            "give its true size (--processors, --memory)"
        )
    # A batch has no rate.
    if FULL < load < math.inf:
        found.append(
            f"arrivals bring {load:.2f} times the work that the cluster can do: the queue grows as "
            "long as jobs arrive, so means depend on how long that is"
        )
    first, *others = sequences
    if others and all(
        np.array_equal(getattr(first, key), getattr(jobs, key))
        for jobs in others
        for key in ("arrival", "duration", "demand", "estimate")
    ):
        found.append(
            f"all {len(sequences)} runs have the same jobs, so the intervals say nothing about "
            "other days; compare different seeds, or a log in pieces"
        )
    # Drawn jobs are of no log.
    elif others and first.step == "s":
        rows_of: defaultdict[str, list[Int64Array]] = defaultdict(list)
        for jobs in sequences:
            rows_of[log_name(jobs.name)].append(jobs.rows)
        counts = [np.unique(np.concatenate(r), return_counts=True)[1] for r in rows_of.values()]
        share = float((np.concatenate(counts) > 1).mean())
        if share > 0:
            found.append(
                f"{share:.0%} of the jobs are in more than one of the {len(sequences)} pieces of "
                "the log: the pieces are not independent, so the intervals are too narrow; take "
                "fewer pieces"
            )
    return found


def learned_warnings(
    sources: Mapping[str, Mapping[str, Any]], sequences: Sequence[RigidJobs]
) -> list[str]:
    """Which policies learned from a log's jobs on which they are compared, in sentences."""
    found = []
    for name, source in sources.items():
        known = [_learned_jobs(source, jobs) for jobs in sequences]
        share = float(np.concatenate(known).mean())
        if share > 0:
            found.append(
                f"{name} learned from {share:.0%} of the jobs on which it is compared, so its "
                "results say little about other jobs; compare it on a part of the log from which "
                "it did not learn (--part second)"
            )
    return found


def _learned_jobs(source: Mapping[str, Any], jobs: RigidJobs) -> BoolArray:
    """Which jobs a source draws from, bool[num_jobs]: of the same log, and in its range of rows.

    Of this range, jobs that were left out when the log was read for the source count, too.
    """
    is_known = np.zeros(len(jobs), np.bool_)
    for part in source.get("mixed", [source]):
        if "log" not in part or log_name(part["log"]) != log_name(jobs.name):
            continue
        if "first_row" in part:
            is_known |= (part["first_row"] <= jobs.rows) & (jobs.rows <= part["last_row"])
        # Cards of older versions have no rows. Ids may be identities only where they ascend through
        # the whole log: then the id of a row is at least the row, but where numbers begin again, it
        # is smaller.
        elif (np.diff(jobs.ids) > 0).all() and (jobs.ids >= jobs.rows).all():
            is_known |= (part["first_id"] <= jobs.ids) & (jobs.ids <= part["last_id"])
    return is_known


def compare_packing(
    source: PackingSource,
    policies: Sequence[str],
    *,
    num_seeds: int = 100,
    seed_start: int = 1_000,
    tune_budget_s: float = 120.0,
    cost: Cost = Cost.SLOWDOWN,
    label: str = "",
    say: Say | None = None,
) -> Comparison:
    """Run every policy on the sequences of the seeds seed_start .. seed_start + num_seeds - 1.

    `tetris` and `withhold` are tuned first, on sequences of the same source with the tuning seeds.

    Example: `compare_packing(DrawnSource(rates=(0.7,)), ["sjf", "tetris"], num_seeds=20)`.
    """
    if num_seeds < 1:
        raise ConfigError("compare on at least one seed")
    check_seeds(seed_start, num_seeds)
    sequences = source.draw(range(seed_start, seed_start + num_seeds))
    if not any(len(jobs) for jobs in sequences):
        raise ConfigError(
            "no job arrives on any of these seeds: "
            "give more seeds, a higher load or a longer window"
        )
    card = {
        "source": source.card(),
        "seeds": [seed_start, seed_start + num_seeds - 1],
        "label": label,
    }
    rates = getattr(source, "rates", ())
    setting = PackingSetting(rate=float(np.mean(rates)) if rates else None)
    if source.config.mode is TimeMode.EXACT:
        # Several logs have the name of the first.
        setting = PackingSetting(is_exact=True, log=sequences[0].name)
    world = PackingWorld(
        sequences,
        source.config,
        setting,
        RigidTuning(source, cost, tune_budget_s),
        card,
        source.load,
    )
    return compare_in(world, policies, range(len(sequences)), say=say)


def compare_log(
    log: RigidJobs,
    policies: Sequence[str],
    *,
    part: str = "second",
    piece_jobs: int | None = None,
    tune_budget_s: float = 120.0,
    cost: Cost = Cost.BOUNDED_SLOWDOWN,
    say: Say | None = None,
) -> Comparison:
    """Run every policy on a part of a log, with exact times; what the log says is a result, too.

    `tetris` and `withhold` are tuned on pieces of the log's first half. With `piece_jobs` the part
    is divided into consecutive pieces, each run from an empty cluster; remaining jobs are left out.
    """
    jobs = part_of(log, part)
    where = "pieces of the log's first half" + (
        "" if part == "second" else ", which is part of the comparison"
    )
    sequences = _pieces(jobs, piece_jobs)
    used = sum(map(len, sequences))
    card = {
        "log": log.name,
        "part": part,
        "jobs": used,
        "left_out": len(jobs) - used,
        "piece_jobs": piece_jobs,
        "pieces": len(sequences),
        "ids": [int(jobs.ids[0]), int(jobs.ids[-1])],
        "rows": [int(jobs.rows[0]), int(jobs.rows[-1])],
        "capacity": dict(zip(jobs.resources, jobs.capacity.tolist(), strict=True)),
        "load": {
            name: None if load is None else round(load, 4)
            for name, load in jobs.load_by_resource.items()
        },
        "config": PackingConfig.for_log(jobs).model_dump(mode="json"),
        "label": f"{log.name}, {PARTS[part]}",
    }
    world = PackingWorld(
        sequences,
        PackingConfig.for_log(jobs),
        PackingSetting(is_exact=True, log=log.name),
        RigidTuning(tuning_pieces(log.halves()[0]), cost, tune_budget_s, where),
        card,
        float(jobs.load.max()),
        has_recorded=len(jobs.waits) > 0,
    )
    return compare_in(world, policies, range(len(sequences)), say=say)


def part_of(log: RigidJobs, part: str) -> RigidJobs:
    """The second or the first half of a log (by number of jobs), or all of it.

    Time begins with the part's first job.
    """
    if part not in PARTS:
        raise ConfigError(f"unknown part {part!r} of a log: choose one of {', '.join(PARTS)}")
    first, second = log.halves()
    return {"first": first, "second": second, "all": log.piece(0, len(log))}[part]


def _pieces(jobs: RigidJobs, piece_jobs: int | None) -> list[RigidJobs]:
    if piece_jobs is None:
        return [jobs]
    if not 1 <= piece_jobs <= len(jobs):
        raise ConfigError(
            f"a part of {len(jobs)} jobs cannot be divided into pieces of {piece_jobs}: "
            f"give a number of jobs from 1 to {len(jobs)}"
        )
    return [
        jobs.piece(first, first + piece_jobs)
        for first in range(0, len(jobs) - piece_jobs + 1, piece_jobs)
    ]
