"""The sections of the report on a cluster of executors or cores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parcae.base.texts import MS_PER_S, seconds_text
from parcae.cluster.state import World
from parcae.cluster.trace import Trace
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.gantt import MAX_ROWS, cluster_chart, gantt_figure
from parcae.evaluation.page import Cell, Charts, Section, Table, Text, estimate_cell
from parcae.evaluation.plots import (
    busy_over_time,
    chart_text,
    concurrency_over_time,
    interval_bars,
    jct_cdf,
    jct_over_time,
    ratio_dots,
    share_by_work,
)
from parcae.evaluation.statistics import UNKNOWN_TEXT
from parcae.evaluation.who_pays import LATER, MISSED, Group, by_group
from parcae.simulation.bounds import Bounds, lower_bounds
from parcae.simulation.metrics import arrived, jct_ms, last_completion_ms, makespan_ms
from parcae.simulation.simulator import simulate

#: The table shows this many recurring jobs that lose most, and this many that gain most.
_MOST = 15
#: The tables break a longer name into lines.
_LONG_NAME = 40


def cluster_sections(comparison: Comparison) -> list[Section]:
    """The page's sections after the table: averages, pools, recurring jobs, one run's charts."""
    return [
        _overall(comparison),
        *_pools(comparison),
        *_recurring(comparison),
        *_one_run(comparison, *first_runs(comparison)),
    ]


def _overall(comparison: Comparison) -> Section:
    """The charts of averages."""
    results = comparison.policies
    names = [result.name for result in results]
    averages = [result.average_jct_s for result in results]
    title = "Average job completion time, with 95% intervals"
    charts = [Charts([interval_bars(title, "average JCT (s)", names, averages)])]
    shares = [one.estimates[MISSED] for one in results if MISSED in one.estimates]
    # A share is unknown if no job that was drawn has a deadline.
    if shares and not any(math.isnan(share.mean) for share in shares):
        title = "Share of missed deadlines, with 95% intervals"
        charts.append(Charts([interval_bars(title, "missed", names, shares)]))
    return Section("Over all seeds", charts)


def _pools(comparison: Comparison) -> list[Section]:
    """Who pays, by pool; no section if no policy has pools."""
    found = by_group(comparison.jobs, "pool")
    if not found:
        return []
    of_first = [pool for pool in found if pool.column == 0]
    head = [Cell("policy")]
    for pool in of_first:
        head.append(Cell(pool.name, "ratio, 95% interval"))
        head.append(Cell("mean JCT", "s"))
        head.append(Cell("later", "of its jobs"))
    rows = []
    for column, result in enumerate(comparison.policies):
        cells: list[Cell | str] = [result.name]
        for pool in found:
            if pool.column == column:
                cells.append(estimate_cell(pool.ratio))
                cells.append(seconds_text(pool.mean_s))
                cells.append(f"{pool.later_share:.1%}")
        rows.append(cells)
    sizes = ", ".join(f"{pool.name} {pool.runs:,}" for pool in of_first)
    first = comparison.policies[0].name
    note = (
        f"Ratio: mean completion time of the pool's jobs / that under {first}, paired by seed. "
        f"Later: jobs that end more than {LATER - 1:.0%} later than under {first}. "
        f"Jobs over all seeds: {sizes}."
    )
    return [Section("Tenants: who pays, by pool", [Table(head, rows, [note])])]


def rival(comparison: Comparison) -> int | None:
    """The place of the policy that recurring jobs are judged under: the best, or the next best.

    None if there is no policy beside the first.
    """
    first, *others = comparison.policies
    ranked = [result for result in comparison.ranked() if result is not first] or others
    best = min(ranked, key=lambda result: comparison.main(result).mean, default=None)
    return None if best is None else comparison.policies.index(best)


def _recurring(comparison: Comparison) -> list[Section]:
    """The table and the chart of recurring jobs under the best policy, or the next best."""
    column = rival(comparison)
    if column is None:
        return []
    groups: dict[str, list[Group]] = {}
    for group in by_group(comparison.jobs, "job", [column]):
        groups.setdefault(group.name, []).append(group)
    if not groups:
        return []
    jobs = sorted(groups.values(), key=lambda job: (-job[column].ratio.mean, job[0].name))
    best = comparison.policies[column].name
    left_out = [job[column].ratio.mean for job in jobs[_MOST:-_MOST]]
    shown = [*jobs[:_MOST], *jobs[-_MOST:]] if left_out else jobs
    notes = [
        f"Sorted by the ratio: the jobs that lose most under {best} come first, "
        "those that gain most come last. A job gains or loses if the 95% interval of its ratio, "
        "paired by seed, does not contain 1; of twenty jobs without any difference, one on average "
        f"seems to have one. Spread, p99 and worst are those under {best}."
    ]
    if left_out:
        notes.append(
            f"The table shows the {_MOST} jobs that lose most (or gain least) and the {_MOST} that "
            f"gain most. The other {len(left_out):,}, with ratios from {min(left_out):.3f} to "
            f"{max(left_out):.3f}, are left out."
        )
    chart = ratio_dots(
        chart_text(f"Completion time under {best} / under {comparison.policies[0].name}"),
        [job[0].name for job in shown],
        [job[column].ratio for job in shown],
    )
    has_deadlines = comparison.world.has_deadlines
    table = Table(
        _recurring_head(comparison, best, has_deadlines),
        [_recurring_row(job, column, has_deadlines) for job in shown],
        notes,
    )
    said = Text(comparison.world.winners(comparison))
    return [
        Section("Recurring jobs: gains and losses", [said, table, Charts([chart])]),
        Section("Recurring jobs: the longest waits", [_longest(jobs, column, best)]),
    ]


def _recurring_head(comparison: Comparison, best: str, has_deadlines: bool) -> list[Cell]:
    names = [policy.name for policy in comparison.policies]
    deadlines = [
        Cell("deadline", "s"),
        Cell("missed", "first policy"),
        Cell("missed", best),
    ]
    return [
        Cell("recurring job"),
        Cell("runs"),
        *(Cell(name, "mean JCT, s") for name in names),
        Cell(f"{best} / {names[0]}", "95% interval"),
        Cell("verdict"),
        Cell("spread", "sd over seeds, s"),
        Cell("p99", "JCT, s"),
        Cell("worst", "JCT, s"),
        *(deadlines if has_deadlines else ()),
    ]


def _recurring_row(job: Sequence[Group], column: int, has_deadlines: bool) -> list[Cell | str]:
    own = job[column]
    missed = [UNKNOWN_TEXT] * 3
    if own.deadline_s is not None:
        shares = (f"{one.missed_share:.1%}" for one in (job[0], own))
        # All digits: a number of more than six would be rounded, and written with an exponent.
        missed = [f"{own.deadline_s:,.15g}", *shares]
    return [
        _name(own),
        f"{own.runs:,}",
        *(seconds_text(one.mean_s) for one in job),
        estimate_cell(own.ratio),
        own.verdict,
        UNKNOWN_TEXT if math.isnan(own.spread_s) else seconds_text(own.spread_s),
        seconds_text(own.p99_s),
        seconds_text(own.worst_s),
        *(missed if has_deadlines else ()),
    ]


def _name(job: Group) -> Cell:
    """The table cell of a job: its name, on several lines if it is long."""
    return Cell(job.name, is_name=len(job.name) > _LONG_NAME)


def _longest(jobs: Sequence[Sequence[Group]], column: int, best: str) -> Table:
    """The jobs with the longest completion times under a policy."""
    worst = sorted(jobs, key=lambda job: (-job[column].worst_s, job[0].name))[:_MOST]
    rows: list[list[Cell | str]] = []
    for job in worst:
        own, first = job[column], job[0]
        times = (own.worst_s, first.worst_s, own.p99_s, first.p99_s)
        rows.append([_name(own), *map(seconds_text, times)])
    whose = (best, "first policy")
    kinds = [Cell(what, f"{who}, s") for what in ("worst", "p99") for who in whose]
    note = f"The {len(worst)} recurring jobs with the longest completion times under {best}."
    return Table([Cell("recurring job"), *kinds], rows, [note])


def first_runs(comparison: Comparison) -> tuple[dict[str, Trace], Bounds | None]:
    """The recorded run of the first seed under every policy, and the lower bounds of its jobs.

    There are none if runs deviate from their profiles: they may be shorter than anything measured.
    Nor are there any if an end cut off a run, since the bounds are those of all its jobs.
    """
    world = comparison.world
    seed = comparison.settings["seeds"][0]
    sequence = world.draw(seed)
    policies = comparison.resolved.for_sequence(sequence, seed)
    traces = {
        name: simulate(sequence, policy, world.config, seed, record=True)
        for name, policy in policies.items()
    }
    is_cut_off = not all(trace.is_complete for trace in traces.values())
    if is_cut_off or (world.config.runs_vary and world.workload.has_spread):
        return traces, None
    return traces, lower_bounds(sequence, world.config.total_executors)


def _one_run(
    comparison: Comparison, traces: Mapping[str, Trace], bounds: Bounds | None
) -> list[Section]:
    seed = comparison.settings["seeds"][0]
    end_s = max(1, *(last_completion_ms(trace) for trace in traces.values())) / MS_PER_S
    over_time = [concurrency_over_time(traces), jct_over_time(traces), busy_over_time(traces)]
    for figure in over_time:
        figure.update_xaxes(range=[0, end_s])
    gantt = [Charts([gantt_figure(cluster_chart(trace), end_s)]) for trace in traces.values()]
    note = Text(_gantt_note(traces), is_quiet=True)
    curves = [
        Charts([jct_cdf(traces), over_time[0]]),
        Charts(over_time[1:]),
        Charts([share_by_work(traces)]),
    ]
    return [
        Section(f"One run (seed {seed}): which job ran where", [note, *gantt]),
        Section("The same run in curves", [*_bounds_texts(traces, bounds), *curves]),
    ]


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


def _bounds_texts(traces: Mapping[str, Trace], bounds: Bounds | None) -> list[Text]:
    if bounds is None:
        return []
    jct_s = min(float(jct_ms(t)[arrived(t)].mean()) for t in traces.values()) / MS_PER_S
    span_s = min(makespan_ms(t) for t in traces.values()) / MS_PER_S
    said = (
        "No schedule of this run can have an average JCT below "
        f"{seconds_text(bounds.average_jct_ms / MS_PER_S)} s or a makespan below "
        f"{seconds_text(bounds.makespan_ms / MS_PER_S)} s; the best here are "
        f"{seconds_text(jct_s)} s and {seconds_text(span_s)} s."
    )
    why = f"The bounds: {bounds.explanation}. They are loose if task durations vary a lot."
    return [Text(said), Text(why, is_quiet=True)]
