"""The HTML report of a comparison of policies: one self-contained file that works offline.

`write_report` writes the page. `summary_sentence` states its result in plain words.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parcae.cluster.trace import Trace
from parcae.errors import ConfigError
from parcae.evaluation.bounds import Bounds, lower_bounds
from parcae.evaluation.compare import Comparison, PolicyResult, later_cells
from parcae.evaluation.gantt import MAX_EXECUTORS, gantt_figure
from parcae.evaluation.page import (
    cell,
    figure_html,
    how_made,
    how_sure,
    html_table,
    named,
    pair,
    write_page,
)
from parcae.evaluation.plots import (
    busy_over_time,
    concurrency_over_time,
    jct_bars,
    jct_cdf,
    jct_over_time,
    share_by_work,
)
from parcae.evaluation.statistics import Estimate
from parcae.evaluation.who_pays import RecurringJob, recurring_jobs
from parcae.metrics.cluster import last_completion_ms, makespan_ms
from parcae.metrics.jobs import arrived, jct_ms
from parcae.metrics.later import LATER
from parcae.simulation.run import simulate
from parcae.units import MS_PER_S
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

#: The charts' shared time axis ends at this multiple of the shortest run, so that one slow policy
#: does not compress the charts of the others.
_LONGEST_AXIS = 3.0
#: Ratios closer to 1 than this are reported as "the same".
_SAME = 1e-9
#: The table shows this many recurring jobs that lose most, and this many that gain most.
_MOST = 15


def best_policy(comparison: Comparison) -> PolicyResult:
    """The policy with the lowest average JCT.

    Oracles cannot be deployed. They are considered only if all policies are oracles.
    """
    deployable = [p for p in comparison.policies if p.name not in comparison.resolved.oracles]
    return min(deployable or comparison.policies, key=lambda p: p.average_jct_s.mean)


def summary_sentence(comparison: Comparison) -> str:
    """State the best policy, its gain, whether that is significant, and which jobs end later."""
    first = comparison.policies[0]
    best = best_policy(comparison)
    won = (
        f"{best.name} has the lowest average job completion time: {best.average_jct_s.mean:,.1f} s"
    )
    if len(comparison.policies) == 1:
        return (
            f"With {first.name} a job completes in {best.average_jct_s.mean:,.1f} s on average"
            f"{_interval(first.average_jct_s)}."
        )
    if best is not first:
        ratio = best.ratio_to_first
        # The saving is 1 - ratio, so the ends of the interval change places.
        saved = Estimate(1 - ratio.mean, 1 - ratio.high, 1 - ratio.low)
        if saved.mean < _SAME:
            return f"{won}, the same as {first.name}."
        less = f"{saved.mean:.1%} less than {first.name}{_interval(saved, percent=True)}"
        return f"{won}, {less}. {how_sure(ratio)} {best.who_pays.describe(first.name)}"
    deployable = [p for p in comparison.policies[1:] if p.name not in comparison.resolved.oracles]
    if not deployable:
        return f"{won}{_interval(first.average_jct_s)}."
    return f"{won}. {_next_best(min(deployable, key=lambda p: p.average_jct_s.mean))}"


def _next_best(second: PolicyResult) -> str:
    ratio = second.ratio_to_first
    if abs(ratio.mean - 1) < _SAME:
        return f"{second.name} has the same average."
    if ratio.mean >= 2:
        ends = (
            ""
            if ratio.is_unknown
            else f" (95% interval {ratio.low:,.2f} to {ratio.high:,.2f} times)"
        )
        return (
            f"The next best, {second.name}, takes {ratio.mean:,.2f} times as long{ends}. "
            f"{how_sure(ratio)}"
        )
    more = Estimate(ratio.mean - 1, ratio.low - 1, ratio.high - 1)
    return (
        f"The next best, {second.name}, takes {more.mean:.1%} longer"
        f"{_interval(more, percent=True)}. {how_sure(ratio)}"
    )


def _interval(estimate: Estimate, percent: bool = False) -> str:
    if estimate.is_unknown:
        return " (one seed: no interval)"
    low, high = (
        f"{end:.1%}" if percent else f"{end:,.1f} s" for end in (estimate.low, estimate.high)
    )
    return f" (95% interval {low} to {high})"


def report_of(comparison: Comparison, workload: Workload, path: Path, *, command: str = "") -> None:
    """Write the HTML report of a comparison, with the runs of its first seed in detail.

    Args:
        comparison: the statistics over all seeds.
        workload: the workload that was compared on.
        path: the HTML file to write.
        command: the command line that repeats the comparison.

    Raises:
        ConfigError: another workload than the comparison's.
        OSError: the folder does not exist or cannot be written.
    """
    settings = comparison.settings
    if fingerprint(workload) != settings["fingerprint"]:
        raise ConfigError(
            f"the comparison ran on workload {settings['workload']!r}, and {workload.name!r} has "
            "other jobs; give the workload that was compared on"
        )
    config = comparison.resolved.config
    seed = settings["seeds"][0]
    sequence = draw_sequence(
        workload,
        settings["arrivals"],
        settings["jobs"],
        config.total_executors,
        RandomStreams(seed),
    )
    policies = comparison.resolved.for_sequence(sequence, seed)
    traces = {
        name: simulate(sequence, policy, config, seed, record=True)
        for name, policy in policies.items()
    }
    bounds = lower_bounds(sequence, config.total_executors)
    write_report(comparison, traces, path, command=command, bounds=bounds)


def write_report(
    comparison: Comparison,
    traces: Mapping[str, Trace],
    path: Path,
    *,
    command: str = "",
    bounds: Bounds | None = None,
) -> None:
    """Write the HTML report.

    Args:
        comparison: the statistics over all seeds.
        traces: by policy name, the recorded run of the first seed; the charts show these runs.
        path: the HTML file to write.
        command: the command line that repeats the comparison.
        bounds: lower bounds for the first seed's job sequence.

    Raises:
        ConfigError: a trace has no recorded tasks.
        OSError: the folder does not exist or cannot be written.
    """
    name = comparison.settings["workload"]
    parts = [
        _table(comparison),
        _recurring(comparison),
        *_figures(comparison, traces, bounds),
        how_made(comparison.settings, command),
    ]
    write_page(
        path,
        name,
        f"Scheduling {name}",
        _setting(comparison.settings),
        summary_sentence(comparison),
        parts,
    )


def _setting(s: dict[str, Any]) -> str:
    classes = s["config"]["executor_classes"]
    executors = (
        sum(c["num_executors"] for c in classes) if classes else s["config"]["num_executors"]
    )
    count = s["seeds"][1] - s["seeds"][0] + 1
    seeds = f"{count} seeds, the same for every policy" if count > 1 else "1 seed"
    return (
        f"{s['jobs']} jobs per run, arrivals {s['arrivals']}, "
        f"{executors} {s['config']['world']}, {seeds}"
    )


def _table(comparison: Comparison) -> str:
    best = best_policy(comparison)
    first = html.escape(comparison.policies[0].name)
    head = (
        "policy", "average JCT<small>s, 95% interval</small>",
        f"ratio to {first}<small>95% interval</small>",
        "later<small>of jobs, 95% interval</small>", "worst<small>times</small>",
        "p95 JCT<small>s</small>", "p99 JCT<small>s</small>", "makespan<small>s</small>",
        "slowdown<small>mean</small>", "busy<small>share</small>",
        "work<small>inflation</small>", "executor<small>moves</small>",
    )  # fmt: skip
    rows = [_row(row, result) for row, result in enumerate(comparison.policies)]
    cut = sum(s.unfinished for result in comparison.policies for s in result.summaries)
    notes = [
        f"Later: share of jobs that end more than {LATER - 1:.0%} later than under "
        f"{comparison.policies[0].name} on the same seed. Worst: the largest ratio of a job's "
        f"completion time to that under {comparison.policies[0].name}."
    ]
    if comparison.resolved.legend():
        notes.append(f"Policies: {comparison.resolved.legend()}.")
    if cut:
        notes.append(
            f"{cut} jobs were cut off at the end of their run: their times are lower bounds."
        )
    return html_table(head, rows, comparison.policies.index(best), notes)


def _row(row: int, result: PolicyResult) -> tuple[str, ...]:
    means = result.means()
    share, worst = later_cells(result.who_pays)
    later = result.who_pays.later_share
    return (
        named(row, result.name), cell(result.average_jct_s, ",.1f"),
        cell(result.ratio_to_first, ".3f"), share if later.is_unknown else cell(later, ".1%"),
        worst, f"{means['p95_jct_s']:,.1f}", f"{means['p99_jct_s']:,.1f}",
        f"{means['makespan_s']:,.1f}", f"{means['mean_slowdown']:,.1f}",
        f"{means['utilization']:.0%}", f"{means['work_inflation']:.2f}", f"{means['moves']:,.0f}",
    )  # fmt: skip


def _recurring(comparison: Comparison) -> str:
    """The table of recurring jobs that gain and lose under the best policy.

    If the first policy is the best, the table is about the next best one.
    """
    policies = comparison.policies
    best = best_policy(comparison)
    if len(policies) == 1:
        return ""
    if best is policies[0]:
        others = [p for p in policies[1:] if p.name not in comparison.resolved.oracles] or policies[
            1:
        ]
        best = min(others, key=lambda p: p.average_jct_s.mean)
    column = policies.index(best)
    jobs = recurring_jobs(comparison.runs, column)
    if not jobs:
        return ""
    head = (
        "recurring job", "runs",
        *(f"{html.escape(policy.name)}<small>mean JCT, s</small>" for policy in policies),
        f"{html.escape(best.name)} / {html.escape(policies[0].name)}<small>ratio of means</small>",
    )  # fmt: skip
    left_out = jobs[_MOST:-_MOST]
    shown = [*jobs[:_MOST], *jobs[-_MOST:]] if left_out else jobs
    rows = [_recurring_row(job, column) for job in shown]
    notes = [
        f"Sorted by the ratio: the jobs that lose most under {best.name} come first, "
        "those that gain most come last."
    ]
    if left_out:
        ratios = [job.ratio_to_first(column) for job in left_out]
        notes.append(
            f"The table shows the {_MOST} jobs that lose most (or gain least) and the {_MOST} that "
            f"gain most. The other {len(left_out):,}, with ratios from {min(ratios):.3f} to "
            f"{max(ratios):.3f}, are left out."
        )
    return f"<h2>Recurring jobs: gains and losses</h2>{html_table(head, rows, notes=notes)}"


def _recurring_row(job: RecurringJob, column: int) -> tuple[str, ...]:
    times = (f"{seconds:,.1f}" for seconds in job.mean_jct_s)
    return (html.escape(job.name), f"{job.num_runs:,}", *times, f"{job.ratio_to_first(column):.3f}")


def _figures(
    comparison: Comparison, traces: Mapping[str, Trace], bounds: Bounds | None
) -> list[str]:
    results = comparison.policies
    seed = comparison.settings["seeds"][0]
    estimates = [p.average_jct_s for p in results]
    bars = jct_bars(
        [p.name for p in results],
        *([getattr(e, k) for e in estimates] for k in ("mean", "low", "high")),
    )
    end_s = _axis_end_ms(traces) / MS_PER_S
    return [
        "<h2>Over all seeds</h2>",
        figure_html(bars, with_library=True),
        f"<h2>One run (seed {seed}): which job ran where</h2>"
        f"<p class=quiet>{_gantt_note(traces)}</p>",
        *(figure_html(gantt_figure(trace, end_s)) for trace in traces.values()),
        f"<h2>The same run in curves</h2>{_bounds_note(traces, bounds)}",
        *pair(jct_cdf(traces), concurrency_over_time(traces)),
        *pair(jct_over_time(traces), busy_over_time(traces)),
        figure_html(share_by_work(traces)),
    ]


def _axis_end_ms(traces: Mapping[str, Trace]) -> float:
    ends = [max(1, last_completion_ms(trace)) for trace in traces.values()]
    return min(float(max(ends)), _LONGEST_AXIS * min(ends))


def _gantt_note(traces: Mapping[str, Trace]) -> str:
    largest = max(trace.num_executors for trace in traces.values())
    late = any(last_completion_ms(trace) > _axis_end_ms(traces) for trace in traces.values())
    beyond = (
        " Longer runs continue beyond its end: drag along the axis to see them." if late else ""
    )
    cut = (
        f" The charts show {MAX_EXECUTORS} of {largest:,} executors, evenly spaced."
        if largest > MAX_EXECUTORS
        else ""
    )
    return (
        "Each colour is a job, the same in every chart. White means idle or moving. Red lines are "
        f"job completions. All charts share one time axis.{beyond}{cut}"
    )


def _bounds_note(traces: Mapping[str, Trace], bounds: Bounds | None) -> str:
    if bounds is None:
        return ""
    jct_s = min(float(jct_ms(t)[arrived(t)].mean()) for t in traces.values()) / MS_PER_S
    span_s = min(makespan_ms(t) for t in traces.values()) / MS_PER_S
    return (
        "<p>No schedule of this run can have an average JCT below "
        f"<b>{bounds.average_jct_ms / MS_PER_S:,.1f} s</b> or a makespan below "
        f"<b>{bounds.makespan_ms / MS_PER_S:,.1f} s</b>; the best here are {jct_s:,.1f} s and "
        f"{span_s:,.1f} s. <span class=quiet>The bounds: {html.escape(bounds.explanation)}. "
        "They are loose if task durations vary a lot.</span></p>"
    )
