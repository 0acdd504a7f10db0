"""Compare policies on clusters of executors or cores.

`compare` runs every policy on every seed and computes means, ratios to the first policy and their
confidence intervals, paired by seed. `ClusterWorld` is the world behind it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from rich.table import Table

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S, __version__, num_decimals, seconds_text
from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.evaluation.comparison import (
    RECORDED,
    Column,
    ComparedWorld,
    Comparison,
    Played,
    PolicyResult,
    Progress,
    Say,
    compare_in,
    in_terminal,
)
from parcae.evaluation.kept_runs import KeptRuns, files_in_names
from parcae.evaluation.page import Section
from parcae.evaluation.per_job import comparison_frame, per_job_table, recurring_table
from parcae.evaluation.policies import Resolved, ResolvedPolicies, check_seeds, resolve_policies
from parcae.evaluation.sections import (
    cluster_sections,
    rival,
    run_warnings,
    setting_warnings,
    tenant_sections,
)
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    RESAMPLE_SEED,
    Estimate,
    mean_estimate,
    ratio_estimate,
)
from parcae.evaluation.who_pays import (
    JOBS,
    LATER,
    MISSED,
    MISSED_MINUS_FIRST,
    TARDINESS,
    TENANTS,
    by_group,
    deadline_counts,
    deadline_estimates,
    fewest_missed,
    later_counts,
    later_estimates,
    later_sentence,
    over_user_fair,
    paired_jobs,
)
from parcae.policies.own import AnyPolicy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.faults import resolve_faults
from parcae.simulation.metrics import RunSummary, deadlines_ms, ideal_ms, jct_ms, summarize
from parcae.simulation.objectives import FinishedJobs, finished_jobs
from parcae.simulation.simulator import simulate
from parcae.workloads.describe import fingerprint
from parcae.workloads.import_report import counted
from parcae.workloads.spark_log.logged_order import (
    LOGGED_ORDER,
    LOGGED_POLICY,
    is_logged_policy,
)
from parcae.workloads.tables import seconds_by_name
from parcae.workloads.workload import JobSequence, Workload

_USER_FAIR = "user-fair"
#: From this difference on, the simulated time under the log's own order is said to miss the log's.
_MISSED = 0.1
_WHOLE_MS = "durations are whole milliseconds; import them in the right unit"
#: The columns of a run's metrics: those of `RunSummary`, and when the run ended.
RUNS: dict[str, pl.DataType | type[pl.DataType]] = {
    **{
        field.name: pl.Int64 if str(field.type).startswith("int") else pl.Float64
        for field in fields(RunSummary)
    },
    "clock_ms": pl.Int64,
}


@dataclass(frozen=True)
class ClusterWorld(ComparedWorld):
    """A cluster of executors or cores, and the jobs that are drawn for it.

    Args:
        workload: the jobs to draw from.
        config: the cluster.
        arrivals: when jobs arrive ("batch", "poisson:25s", ...).
        num_jobs: number of jobs in each run.
    """

    workload: Workload
    config: SimulationConfig
    arrivals: str
    num_jobs: int

    main = "average_jct_s"
    measure = "average job completion time"

    @property
    def subject(self) -> str:  # type: ignore[override]
        """The workload."""
        return self.workload.name

    @property
    def has_deadlines(self) -> bool:
        """Whether a job of the workload has a deadline."""
        return self.workload.has_deadlines

    def resolve(
        self, policies: Sequence[str | AnyPolicy], say: Say | None = None
    ) -> ResolvedPolicies:
        """Make the policies with the given names; those with `:tuned` are tuned here."""
        if self.workload.mean_work_ms == 0:
            raise ConfigError(
                f"all task durations of workload {self.workload.name!r} are 0 ms, so there is "
                f"nothing to compare: {_WHOLE_MS}"
            )
        resolved = resolve_policies(
            self.workload, policies, self.config, self.arrivals, self.num_jobs
        )
        return replace(resolved, also=(RECORDED,)) if self.has_recorded else resolved

    @property
    def has_recorded(self) -> bool:
        """Whether the jobs are those of a log that says how long each took."""
        is_plain = self.config.faults is None and self.config.elastic is None
        return (
            is_plain
            and self.arrivals in ("recorded", "sessions")
            and self.workload.knows_completions
        )

    def draw(self, seed: int) -> JobSequence:
        """The jobs of the run of a seed."""
        return self.workload.draw(self.num_jobs, self.arrivals, self.config, seed=seed)

    def run(self, sequence: JobSequence, policy: Any, seed: int, record: bool = False) -> Trace:
        """Simulate one run under one policy."""
        return simulate(sequence, policy, self.config, seed, record=record)

    def play(self, resolved: ResolvedPolicies, runs: Sequence[int]) -> list[Played]:
        """Simulate the runs of the seeds under every policy."""
        return [self._play_seed(resolved, seed) for seed in runs]

    def _play_seed(self, resolved: ResolvedPolicies, seed: int) -> Played:
        sequence = self.draw(seed)
        # The executor of a task matters only if executor classes differ. Recording all tasks takes
        # memory, so record them in that case alone.
        record = bool(self.config.executor_classes)
        rows = []
        traces = []
        for policy in resolved.for_sequence(sequence, seed).values():
            trace = self.run(sequence, policy, seed, record)
            traces.append(replace(trace, tasks=None, decisions=None))
            rows.append(_metrics(trace, sequence))
        for name in resolved.also:
            traces.append(recorded_trace(traces[0], name, sequence))
            rows.append(_metrics(traces[-1], sequence))
        slots = self.config.for_tasks_of(sequence.workload).total_executors
        ideal = ideal_ms(sequence, slots, traces[0].has_driver)
        pools = resolved.tenant_pools
        of_jobs = [pools[job] for job in sequence.job_index] if pools else []
        users, queues = ([getattr(job, of) for job in sequence.jobs] for of in ("user", "queue"))
        fair_ms = user_fair_ms(sequence, traces, self.config, seed)
        jobs = paired_jobs(traces, ideal, deadlines_ms(sequence), of_jobs, users, fair_ms, queues)
        return Played(pl.DataFrame(rows, RUNS), jobs)

    def results(
        self, names: Sequence[str], runs: pl.DataFrame, jobs: pl.DataFrame
    ) -> list[PolicyResult]:
        """Means over seeds, ratios to the first policy, later jobs and missed deadlines."""
        is_first = pl.int_range(pl.len()) % len(names) == 0
        idle = runs.filter(is_first & (pl.col("average_jct_ms") == 0))
        if not idle.is_empty():
            raise ConfigError(
                f"all jobs of seed {idle['seed'][0]} take 0 ms under {names[0]}, so nothing can "
                f"be relative to it: {_WHOLE_MS}, or simulate more jobs in a run"
            )
        counts = jobs.group_by("seed", "column").agg(*later_counts(), *deadline_counts())
        by_column = counts.sort("column", "seed").partition_by("column")
        own = [runs.gather_every(len(names), column) for column in range(len(names))]
        return [
            self._result(name, (own[row], own[0]), (by_column[row], by_column[0]))
            for row, name in enumerate(names)
        ]

    def _result(
        self,
        name: str,
        runs: tuple[pl.DataFrame, pl.DataFrame],
        counts: tuple[pl.DataFrame, pl.DataFrame],
    ) -> PolicyResult:
        """The results of one policy; of both pairs, the second is of the first policy."""
        jct_s, first_s = ((one["average_jct_ms"] / MS_PER_S).to_numpy() for one in runs)
        # A generator of a fixed seed: the same comparison always has the same intervals.
        rng = np.random.default_rng(RESAMPLE_SEED)
        estimates = {
            "average_jct_s": mean_estimate(jct_s, rng=rng).within(0.0),
            "ratio_to_first": ratio_estimate(jct_s, first_s, rng=rng),
            **later_estimates(counts[0], rng),
            **(deadline_estimates(*counts, rng) if self.has_deadlines else {}),
        }
        worst = counts[0]["worst"].max()
        numbers = {
            **_means(runs[0]),
            "worst_ratio_to_first": math.nan if worst is None else worst,
            "average_jct_s_by_seed": jct_s.tolist(),
        }
        return PolicyResult(name, runs[0], estimates, numbers)

    def settings(self, resolved: ResolvedPolicies) -> dict[str, Any]:
        """All that a run depends on but its seed and what is in files; plain JSON."""
        settings = {
            "workload": self.workload.name,
            "fingerprint": fingerprint(self.workload),
            "arrivals": self.arrivals,
            "jobs": self.num_jobs,
            "config": self.config.model_dump(mode="json"),
            "tuned": {name: row.tuned for name, row in resolved.rows.items() if row.tuned},
            "variants": resolved.variants,
            "version": __version__,
        }
        deadlines_s = seconds_by_name(self.workload.jobs)
        if deadlines_s:
            settings["deadlines_s"] = deadlines_s
        if self.config.faults is not None:
            settings["faults"] = str(resolve_faults(self.config.faults, self.workload))
        return settings

    def settings_of(
        self,
        resolved: ResolvedPolicies,
        runs: range,
        results: Sequence[PolicyResult],
    ) -> dict[str, Any]:
        """Everything that is needed to repeat a comparison."""
        seeds = [runs.start, runs.stop - 1]
        return {**self.settings(resolved), "seeds": seeds, "intervals": METHODS[DEFAULT_METHOD]}

    def kept_runs(self, resolved: ResolvedPolicies, path: Path) -> KeptRuns:
        """The file with the runs of a comparison that is to go on; see `KeptRuns`."""
        if unnamed := [name for name, row in resolved.rows.items() if row.text is None]:
            raise ConfigError(
                f"runs of a policy that is an object cannot be kept ({', '.join(sorted(unnamed))}):"
                " give names of policies"
            )
        settings = {
            **self.settings(resolved),
            "policies": resolved.names,
            "files": files_in_names(resolved.names),
        }
        return KeptRuns(path, settings, len(resolved.names), RUNS, JOBS)

    def ranked(self, comparison: Comparison) -> list[PolicyResult]:
        """All policies but oracles, which cannot be deployed; or all, if all are oracles."""
        policies = comparison.simulated
        oracles = comparison.resolved.oracles
        return [p for p in policies if p.name not in oracles] or list(policies)

    def caveat(self, comparison: Comparison) -> str:
        """Where the log's own order, simulated, takes another time than it took in the log."""
        provenance = self.workload.provenance
        recorded = [result for result in comparison.policies if result.name == RECORDED]
        logged = [one for one in comparison.simulated if is_logged_policy(one.name, provenance)]
        if not recorded or not logged:
            return ""
        took, simulated = (one.average_jct_s.mean for one in (recorded[0], logged[0]))
        if abs(simulated / took - 1) < _MISSED:
            return ""
        return (
            f"in the log jobs took {seconds_text(took)} s on average, in the simulation under "
            f"{logged[0].name}, the order that they had there, {seconds_text(simulated)} s; other "
            "cores or drawn durations explain a part (parcae workload check): do not expect these "
            "differences between policies on the real cluster"
        )

    def remark(self, comparison: Comparison, best: PolicyResult | None) -> str:
        """Who ends later under the best policy, if that is not the first; who misses deadlines."""
        first = comparison.policies[0]
        later = "" if best is None or best is first else who_is_later(best, first.name)
        missed = fewest_missed({p.name: p.estimates for p in comparison.ranked()}, first.name)
        return " ".join(text for text in (later, missed) if text)

    def winners(self, comparison: Comparison) -> str:
        """How many recurring jobs gain and lose under the best policy, in a sentence.

        Example: "Of 44 recurring jobs, 30 gain and 2 lose under srpt; for the others the runs
        cannot tell."
        """
        column = rival(comparison)
        if column is None:
            return ""
        jobs = by_group(comparison.jobs, "job", [column])
        counts = Counter(job.verdict for job in jobs if job.column == column)
        unclear = f"{counts['unclear']:,}" if counts["same"] else "the others"
        rest = f"; for {unclear} the runs cannot tell" if counts["unclear"] else ""
        return (
            f"Of {counts.total():,} recurring jobs, {counts['gains']:,} gain and "
            f"{counts['loses']:,} lose under {comparison.policies[column].name}{rest}."
        )

    def title(self, comparison: Comparison) -> str:
        """Workload, jobs, arrivals, cluster and seeds, in one line."""
        s = comparison.settings
        return (
            f"{s['workload']}: {counted(s['jobs'], 'job')}, {s['arrivals']}, "
            f"{self.config.size_text}, seeds {s['seeds'][0]}-{s['seeds'][1]}"
        )

    def columns(self, comparison: Comparison) -> list[Column]:
        """The columns of the table of policies; times in seconds."""
        percent = "{:.1%}".format
        shown = [
            Column("average JCT", self.main, seconds_text, "s, 95% interval"),
            Column("ratio to first", "ratio_to_first", small="95% interval"),
            Column(
                "later",
                "later_than_first_share",
                percent,
                "of jobs, 95% interval",
                has_interval=False,
            ),
            Column("worst", "worst_ratio_to_first", "{:,.2f}".format, "times"),
            Column("p95 JCT", "p95_jct_s", seconds_text, "s"),
            Column("p99 JCT", "p99_jct_s", seconds_text, "s"),
            Column("makespan", "makespan_s", seconds_text, "s"),
            Column("busy", "utilization", "{:.0%}".format, "share"),
            Column("slowdown", "mean_slowdown", "{:,.1f}".format, "mean", False),
            Column("work", "work_inflation", "{:.2f}".format, "inflation", False),
        ]
        if self.config.world is WorldName.EXECUTORS:
            shown.append(Column("executor", "moves", "{:,.0f}".format, "moves", False))
        if self.has_deadlines:
            shown[4:4] = [
                Column("missed", MISSED, percent, "of deadlines"),
                Column("missed - first, pp", _points, "{:+.1f}".format, "percentage points"),
                Column("tardiness", TARDINESS, seconds_text, "s, 95% interval"),
            ]
        if _has_unused_memory(comparison):
            shown.append(Column("memory unused", "fragmentation", percent, "share"))
        if self.config.faults is not None:
            of_tasks = "{:,.1f}".format
            shown += [
                Column("failed", "failed_attempts", of_tasks, "attempts", False),
                Column("copies", "speculative_copies", of_tasks, "of tasks", False),
                Column("wasted", "wasted_share", percent, "core time", False),
            ]
        if self.config.elastic is not None:
            shown.append(Column("held", "cores_held", "{:,.1f}".format, "cores"))
            shown.append(Column("core hours", "core_hours_per_job", _hours_text, "a job"))
        return shown

    def notes(self, comparison: Comparison) -> list[str]:
        """Notes that a reader of the table needs."""
        first = comparison.policies[0].name
        lines = [
            "seconds, with 95% confidence intervals over the seeds; "
            f"later: jobs that end more than {LATER - 1:.0%} later than under {first} on the same "
            f"seed; worst: largest ratio of a job's time to that under {first}"
        ]
        if self.has_deadlines:
            lines.append(
                "missed: jobs that complete after their deadline, of those that have one; missed - "
                f"first: that share less the share under {first}, in percentage points; tardiness: "
                "mean time beyond the deadline, 0 for a job that meets it"
            )
        if _has_unused_memory(comparison):
            lines.append(
                "memory unused: share of the busy executors' memory that their tasks do not need"
            )
        if self.config.faults is not None:
            wasted = (f"{p.name} {p.numbers['wasted_share']:.1%}" for p in comparison.policies)
            lines.append(
                f"with faults: {resolve_faults(self.config.faults, self.workload)}; "
                f"core time without a result: {', '.join(wasted)}"
            )
        if self.config.elastic is not None:
            lines.append(
                "held: cores up or starting, on average; busy: share of the cores held that run "
                "tasks; core hours: held for each job"
            )
        cut = int(comparison.runs["unfinished"].sum())
        if cut:
            lines.append(
                f"{counted(cut, 'job')} cut off at the end of a run: such times are lower bounds"
            )
        if self.has_recorded:
            order = self.workload.provenance.get(LOGGED_ORDER, "not known")
            policy = self.workload.provenance.get(LOGGED_POLICY, "")
            named = f" (policy {policy})" if policy else ""
            lines.append(
                f"{RECORDED}: how long the same jobs took in the log; its order: {order}{named}"
            )
        if comparison.resolved.legend():
            lines.append(f"Policies: {comparison.resolved.legend()}.")
        return lines

    def warnings(self, comparison: Comparison) -> list[str]:
        """What makes conclusions from this comparison wrong, in sentences."""
        rows: Mapping[str, Resolved] = comparison.resolved.rows
        return [
            *setting_warnings(self.workload, self.config, self.arrivals),
            *run_warnings(comparison.jobs),
            *(f"{name}: {row.edge}" for name, row in rows.items() if row.edge),
        ]

    def tables(self, comparison: Comparison) -> list[Table]:
        """The tables of pools, of users and of queues, where jobs have any."""
        return [
            in_terminal(table, section.heading)
            for section in tenant_sections(comparison, is_short=True)
            for table in section.parts
        ]

    def json_of(self, comparison: Comparison) -> dict[str, Any]:
        """What names became, and the results of every pool, user and queue."""
        variants, jobs = comparison.resolved.variants, comparison.jobs
        own: dict[str, dict[str, Any]] = {
            p.name: {"variant": variants.get(p.name, p.name)} for p in comparison.policies
        }
        tenants = ((kind, one) for key, kind in TENANTS.items() for one in by_group(jobs, key))
        for kind, one in tenants:
            found = own[comparison.policies[one.column].name].setdefault(kind, {})
            found[one.name] = {
                "jobs": one.runs,
                "average_jct_s": one.mean_s,
                "p99_jct_s": one.p99_s,
                "ratio_to_first": one.ratio.to_json(),
                "later_than_first_share": one.later_share,
                "ratio_to_user_fair": one.to_user_fair,
            }
        for row, share in over_user_fair(jobs).items():
            own[comparison.policies[row].name]["users_later_than_user_fair_share"] = share
        return {"policies": own}

    @property
    def frames(self) -> Mapping[str, Callable[[Comparison], pl.DataFrame]]:
        """Tables for users, by what a row is."""
        return {
            "policies": comparison_frame,
            "jobs": per_job_table,
            "recurring": recurring_table,
        }

    def sections(self, comparison: Comparison) -> list[Section]:
        """Averages, pools, recurring jobs, and the charts of one run."""
        return cluster_sections(comparison)


def user_fair_ms(
    sequence: JobSequence, traces: Sequence[Trace], config: SimulationConfig, seed: int
) -> list[npt.NDArray[np.float64]]:
    """The times of every trace's jobs under `user-fair` at the trace's own arrivals, NaN for jobs
    that did not end; empty where fewer than two users are known.
    """
    users = {job.user for job in sequence.jobs if job.user}
    if config.world is not WorldName.CORES or len(users) < 2:
        return []
    policy = resolve_policies(sequence.workload, [_USER_FAIR], config, "batch", 1).policies
    found = list[npt.NDArray[np.float64]]()
    for trace in traces:
        if found and not trace.has_sessions:
            found.append(found[0])
            continue
        came = np.flatnonzero(trace.completion_ms != NOT_COMPLETED)
        came = came[np.argsort(trace.arrival_ms[came], kind="stable")]
        same = JobSequence(sequence.workload, sequence.job_index[came], trace.arrival_ms[came])
        fair = simulate(same, policy[_USER_FAIR], config, seed)
        times_ms = np.full(sequence.num_jobs, np.nan)
        is_whole = fair.completion_ms != NOT_COMPLETED
        times_ms[came[is_whole]] = jct_ms(fair)[is_whole]
        found.append(times_ms)
    return found


def recorded_trace(like: Trace, name: str, sequence: JobSequence) -> Trace:
    """What the log says of a sequence's jobs, as a run beside a simulated one."""
    took_ms = np.array([job.recorded_ms for job in sequence.jobs], np.int64)
    ends_ms = sequence.arrival_ms + took_ms
    return replace(
        like,
        policy=name,
        arrival_ms=sequence.arrival_ms,
        completion_ms=ends_ms,
        clock_ms=int(ends_ms.max()),
    )


def _metrics(trace: Trace, sequence: JobSequence) -> dict[str, Any]:
    return {**asdict(summarize(trace, sequence)), "clock_ms": trace.clock_ms}


def _means(runs: pl.DataFrame) -> dict[str, float]:
    """Mean over runs of every metric that is known; times in seconds."""
    means = {}
    for name in RUNS.keys() - {"clock_ms"}:
        if runs[name].null_count() == 0:
            mean = float(runs[name].to_numpy().mean())
            is_time = name.endswith("_ms")
            means[name.removesuffix("_ms") + "_s" * is_time] = mean / MS_PER_S if is_time else mean
    return means


def _points(result: PolicyResult) -> Estimate:
    """The difference of the shares of missed deadlines in percentage points."""
    share = result.estimates[MISSED_MINUS_FIRST]
    return Estimate(100 * share.mean, 100 * share.low, 100 * share.high)


def _hours_text(hours: float) -> str:
    """Three digits at least: small jobs need thousandths of an hour, large ones thousands."""
    return f"{hours:,.{num_decimals(hours)}f}"


def _has_unused_memory(comparison: Comparison) -> bool:
    """Whether it is known how much memory is unused: the executors' memory may have no bound."""
    return "fragmentation" in comparison.policies[0].numbers


def who_is_later(result: PolicyResult, first: str) -> str:
    """How many jobs end later under a policy than under the first, in one sentence."""
    share = result.estimates["later_than_first_share"].mean
    return later_sentence(share, result.numbers["worst_ratio_to_first"], first)


def finished_jobs_of(comparison: Comparison, column: int) -> Iterator[FinishedJobs]:
    """The jobs of every run under the policy at this place, as an objective sees them."""
    clocks = comparison.policies[column].runs["clock_ms"]
    runs = comparison.jobs.filter(pl.col("column") == column).partition_by("seed")
    for clock_ms, run in zip(clocks, runs, strict=True):
        # In a session, a job may arrive before one that precedes it in the sequence.
        jobs = run.sort("arrival_ms", maintain_order=True)
        deadlines = jobs["deadline_ms"].fill_null(math.inf).to_numpy()
        yield finished_jobs(
            jobs["arrival_ms"].to_numpy(),
            jobs["completion_ms"].fill_null(-1).to_numpy(),
            num_arrived=int(jobs["has_arrived"].sum()),
            clock_ms=clock_ms,
            ideal_ms=jobs["ideal_ms"].to_numpy(),
            deadline_ms=deadlines if comparison.world.has_deadlines else None,
        )


def compare(
    world: ClusterWorld,
    policies: Sequence[str | AnyPolicy],
    *,
    num_seeds: int,
    seed_start: int = 0,
    processes: int | None = None,
    progress: Progress | None = None,
    keep: Path | None = None,
) -> Comparison:
    """Run every policy on the seeds seed_start .. seed_start + num_seeds - 1.

    On one seed all policies see the same arrivals and the same task durations. Tuned policies are
    tuned first, on seeds that no comparison uses. Ratios are relative to the first policy. `keep`
    is a file from which a comparison goes on that was stopped, or is to have more seeds.

    Example: `compare(ClusterWorld(workload, SimulationConfig(), "batch", 20), ["fair", "fifo"],
    num_seeds=20)`.
    """
    if num_seeds < 1:
        raise ConfigError("compare at least one policy on at least one seed")
    check_seeds(seed_start, num_seeds)
    return compare_in(
        world,
        policies,
        range(seed_start, seed_start + num_seeds),
        processes=processes,
        progress=progress,
        kept=None if keep is None else partial(world.kept_runs, path=keep),
    )
