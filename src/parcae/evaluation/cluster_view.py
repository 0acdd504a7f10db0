"""How a comparison on a cluster of executors or cores is shown: table, notes, charts."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from parcae.base.texts import MS_PER_S, num_decimals, seconds_text
from parcae.cluster.state import World
from parcae.cluster.trace import Trace
from parcae.decima.bounds import Bounds, lower_bounds
from parcae.evaluation.gantt import MAX_ROWS, cluster_chart, gantt_figure
from parcae.evaluation.plots import (
    busy_over_time,
    concurrency_over_time,
    interval_bars,
    jct_cdf,
    jct_over_time,
    share_by_work,
)
from parcae.evaluation.recurring_view import recurring_section
from parcae.evaluation.report import cell, figure_html, pair
from parcae.evaluation.statistics import UNKNOWN_TEXT, Estimate, with_interval
from parcae.evaluation.tenants import pools_section
from parcae.evaluation.who_pays import LATER
from parcae.evaluation.world import Column, PairedComparison
from parcae.simulation.config import WorldName
from parcae.simulation.faults import resolve_faults
from parcae.simulation.metrics import arrived, jct_ms, last_completion_ms, makespan_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.import_report import counted

if TYPE_CHECKING:
    from rich.table import Table

    from parcae.evaluation.compare import Comparison, PolicyResult
    from parcae.evaluation.deadlines import DeadlineResult


def comparison_table(comparison: PairedComparison[Any]) -> Table:
    """The comparison as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(comparison.title()))
    table.add_column("policy", no_wrap=True)
    texts = [(column.heading, column.text) for column in comparison.columns()]
    shown = [(heading, text) for heading, text in texts if text is not None]
    for heading, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in comparison.policies:
        table.add_row(escape(result.name), *(escape(text(result)) for _, text in shown))
    table.caption = escape("\n".join(comparison.notes()))
    return table


def title(comparison: Comparison) -> str:
    """Workload, jobs, arrivals, cluster and seeds, in one line."""
    s = comparison.settings
    config = comparison.resolved.config
    return (
        f"{s['workload']}: {counted(s['jobs'], 'job')}, {s['arrivals']}, "
        f"{config.size_text}, "
        f"seeds {s['seeds'][0]}-{s['seeds'][1]}"
    )


def columns(comparison: Comparison) -> list[Column[PolicyResult]]:
    """The columns of the table of policies; times in seconds."""
    shown = [
        Column(
            "average JCT",
            lambda result: with_interval(result.average_jct_s, seconds_text),
            lambda result: cell(result.average_jct_s, seconds_text),
            "s, 95% interval",
        ),
        Column(
            "ratio to first",
            lambda result: with_interval(result.ratio_to_first),
            lambda result: cell(result.ratio_to_first),
            "95% interval",
        ),
        Column(
            "later",
            _later_text,
            lambda result: cell(result.who_pays.later_share, "{:.1%}".format),
            "of jobs, 95% interval",
        ),
        Column("worst", _worst_text, small="times"),
        _seconds("p95 JCT", "p95_jct_s"),
        _seconds("p99 JCT", "p99_jct_s"),
        _seconds("makespan", "makespan_s"),
        _mean("busy", "utilization", ".0%", "share"),
        _on_page("slowdown", "mean_slowdown", ",.1f", "mean"),
        _on_page("work", "work_inflation", ".2f", "inflation"),
    ]
    config = comparison.resolved.config
    if config.world is WorldName.EXECUTORS:
        shown.append(_on_page("executor", "moves", ",.0f", "moves"))
    if comparison.policies[0].deadlines is not None:
        shown[4:4] = _deadline_columns()
    if _has_unused_memory(comparison):
        shown.append(_mean("memory unused", "fragmentation", ".1%", "share"))
    if config.faults is not None:
        shown.append(_on_page("failed", "failed_attempts", ",.1f", "attempts"))
        shown.append(_on_page("copies", "speculative_copies", ",.1f", "of tasks"))
        shown.append(_on_page("wasted", "wasted_share", ".1%", "core time"))
    if config.elastic is not None:
        shown.append(_mean("held", "cores_held", ",.1f", "cores"))
        shown.append(Column("core hours", _core_hours_text, small="a job"))
    return shown


def _has_unused_memory(comparison: Comparison) -> bool:
    """Whether it is known how much memory is unused: the executors' memory may have no bound."""
    return comparison.policies[0].summaries[0].fragmentation is not None


def _deadline_columns() -> list[Column[PolicyResult]]:
    """The columns about missed deadlines."""
    return [
        _deadlines("missed", lambda result: result.missed_share, "{:.1%}".format, "of deadlines"),
        _deadlines("missed - first, pp", _points_to_first, "{:+.1f}".format, "percentage points"),
        _deadlines("tardiness", lambda result: result.tardiness_s, seconds_text, "s, 95% interval"),
    ]


def _points_to_first(result: DeadlineResult) -> Estimate:
    """The difference of shares in percentage points."""
    share = result.missed_minus_first
    return Estimate(100 * share.mean, 100 * share.low, 100 * share.high)


def _deadlines(
    heading: str,
    field: Callable[[DeadlineResult], Estimate],
    number: Callable[[float], str],
    small: str,
) -> Column[PolicyResult]:
    """The column of an estimate of `DeadlineResult`; `number` writes a number."""

    def shown(result: PolicyResult) -> str:
        assert result.deadlines is not None
        return with_interval(field(result.deadlines), number)

    return Column(heading, shown, small=small)


def _mean(heading: str, key: str, digits: str, small: str) -> Column[PolicyResult]:
    """The column of a mean of the summaries."""
    return Column(heading, lambda result: format(result.means()[key], digits), small=small)


def _seconds(heading: str, key: str) -> Column[PolicyResult]:
    """The column of a mean of the summaries that is a time in seconds."""
    return Column(heading, lambda result: seconds_text(result.means()[key]), small="s")


def _on_page(heading: str, key: str, digits: str, small: str) -> Column[PolicyResult]:
    """The column of a mean of the summaries, on the page only."""
    return Column(heading, None, lambda result: format(result.means()[key], digits), small)


def _core_hours_text(result: PolicyResult) -> str:
    """Three digits at least: small jobs need thousandths of an hour, large ones thousands."""
    hours = result.means()["core_hours_per_job"]
    return f"{hours:,.{num_decimals(hours)}f}"


def _later_text(result: PolicyResult) -> str:
    share = result.who_pays.later_share.mean
    return UNKNOWN_TEXT if math.isnan(share) else f"{share:.1%}"


def _worst_text(result: PolicyResult) -> str:
    is_unknown = math.isnan(result.who_pays.later_share.mean)
    return UNKNOWN_TEXT if is_unknown else f"{result.who_pays.worst_later:,.2f}"


def notes(comparison: Comparison) -> list[str]:
    """Notes that a reader of the table needs."""
    first = comparison.policies[0].name
    lines = [
        "seconds; [ ] are 95% confidence intervals over the seeds; "
        f"later: jobs that end more than {LATER - 1:.0%} later than under {first} on the same "
        f"seed; worst: largest ratio of a job's time to that under {first}"
    ]
    if comparison.policies[0].deadlines is not None:
        lines.append(
            "missed: jobs that complete after their deadline, of those that have one; missed - "
            f"first: that share less the share under {first}, in percentage points; tardiness: "
            "mean time beyond the deadline, 0 for a job that meets it"
        )
    if _has_unused_memory(comparison):
        lines.append(
            "memory unused: share of the busy executors' memory that their tasks do not need"
        )
    lines.extend(_faults_note(comparison))
    if comparison.resolved.config.elastic is not None:
        lines.append(
            "held: cores up or starting, on average; busy: share of the cores held that run tasks; "
            "core hours: held for each job"
        )
    cut = sum(s.unfinished for result in comparison.policies for s in result.summaries)
    if cut:
        lines.append(
            f"{counted(cut, 'job')} cut off at the end of a run: such times are lower bounds"
        )
    if comparison.resolved.legend():
        lines.append(f"Policies: {comparison.resolved.legend()}.")
    lines.extend(f"Warning: {text}." for text in comparison.warnings())
    return lines


def _faults_note(comparison: Comparison) -> list[str]:
    """What goes wrong in the runs, and the core time that it costs; no note without faults."""
    faults = comparison.resolved.config.faults
    if faults is None:
        return []
    wasted = (f"{p.name} {p.means()['wasted_share']:.1%}" for p in comparison.policies)
    return [
        f"with faults: {resolve_faults(faults, comparison.world.workload)}; "
        f"core time without a result: {', '.join(wasted)}"
    ]


def first_runs(comparison: Comparison) -> tuple[dict[str, Trace], Bounds | None]:
    """The recorded run of the first seed under every policy, and the lower bounds of its jobs.

    There are none if runs deviate from their profiles: they may be shorter than anything measured.
    Nor are there any if an end cut off a run, since the bounds are those of all its jobs.
    """
    config = comparison.resolved.config
    seed = comparison.settings["seeds"][0]
    sequence = comparison.world.draw(seed)
    policies = comparison.resolved.for_sequence(sequence, seed)
    traces = {
        name: simulate(sequence, policy, config, seed, record=True)
        for name, policy in policies.items()
    }
    is_cut_off = not all(trace.is_complete for trace in traces.values())
    if is_cut_off or (config.runs_vary and comparison.world.workload.has_spread):
        return traces, None
    return traces, lower_bounds(sequence, config.total_executors)


def sections(comparison: Comparison) -> list[str]:
    """The page's sections after the table, as HTML: pools, recurring jobs, one run's charts."""
    return [
        *_overall(comparison),
        *pools_section(comparison),
        *recurring_section(comparison),
        *_figures(comparison, *first_runs(comparison)),
    ]


def _overall(comparison: Comparison) -> list[str]:
    """The charts of averages. The first is the page's first and brings the chart library."""
    results = comparison.policies
    bars = interval_bars(
        "Average job completion time, with 95% intervals",
        "average JCT (s)",
        [p.name for p in results],
        [p.average_jct_s for p in results],
    )
    parts = ["<h2>Over all seeds</h2>", figure_html(bars, with_library=True)]
    shares = [p.deadlines.missed_share for p in results if p.deadlines is not None]
    # A share is unknown if no job that was drawn has a deadline.
    if shares and not any(math.isnan(share.mean) for share in shares):
        title = "Share of missed deadlines, with 95% intervals"
        parts.append(figure_html(interval_bars(title, "missed", [p.name for p in results], shares)))
    return parts


def _figures(
    comparison: Comparison, traces: Mapping[str, Trace], bounds: Bounds | None
) -> list[str]:
    seed = comparison.settings["seeds"][0]
    end_s = _axis_end_s(traces)
    over_time = [concurrency_over_time(traces), jct_over_time(traces), busy_over_time(traces)]
    for figure in over_time:
        figure.update_xaxes(range=[0, end_s])
    return [
        f"<h2>One run (seed {seed}): which job ran where</h2>"
        f"<p class=quiet>{_gantt_note(traces)}</p>",
        *(figure_html(gantt_figure(cluster_chart(trace), end_s)) for trace in traces.values()),
        f"<h2>The same run in curves</h2>{_bounds_note(traces, bounds)}",
        *pair(jct_cdf(traces), over_time[0]),
        *pair(*over_time[1:]),
        figure_html(share_by_work(traces)),
    ]


def _axis_end_s(traces: Mapping[str, Trace]) -> float:
    """The end of the time axis of all charts: that of the longest run."""
    return max(1, *(last_completion_ms(trace) for trace in traces.values())) / MS_PER_S


def _gantt_note(traces: Mapping[str, Trace]) -> str:
    largest = max(trace.num_executors for trace in traces.values())
    first = next(iter(traces.values()))
    white = "idle or moving"
    if first.world is World.CORES:
        white = "idle, or not up" if any(map(_lacks_cores, traces.values())) else "idle"
    cut = (
        f" The charts show {MAX_ROWS} of {largest:,} {first.unit}s, evenly spaced."
        if largest > MAX_ROWS
        else ""
    )
    return (
        f"Each colour is a job, the same in every chart. White means {white}. Red lines are job "
        f"completions. All charts over time share one axis.{cut}"
    )


def _lacks_cores(trace: Trace) -> bool:
    """Whether cores may not have been up all the time."""
    is_elastic = trace.held_ms is not None
    return is_elastic or (trace.faults is not None and trace.faults.lost_executors > 0)


def _bounds_note(traces: Mapping[str, Trace], bounds: Bounds | None) -> str:
    if bounds is None:
        return ""
    jct_s = min(float(jct_ms(t)[arrived(t)].mean()) for t in traces.values()) / MS_PER_S
    span_s = min(makespan_ms(t) for t in traces.values()) / MS_PER_S
    return (
        "<p>No schedule of this run can have an average JCT below "
        f"<b>{seconds_text(bounds.average_jct_ms / MS_PER_S)} s</b> or a makespan below "
        f"<b>{seconds_text(bounds.makespan_ms / MS_PER_S)} s</b>; the best here are "
        f"{seconds_text(jct_s)} s and {seconds_text(span_s)} s. "
        f"<span class=quiet>The bounds: {html.escape(bounds.explanation)}. "
        "They are loose if task durations vary a lot.</span></p>"
    )
