"""The sections of the report on a cluster of executors or cores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from parcae.base.texts import MS_PER_S, s_from_ms, seconds_text
from parcae.cluster.state import World
from parcae.cluster.trace import Trace
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.gantt import MAX_ROWS, cluster_chart, gantt_picture
from parcae.evaluation.page import Cell, Charts, Folded, Section, Table, Text, estimate_cell
from parcae.evaluation.plots import (
    PALETTE,
    busy_over_time,
    concurrency_over_time,
    curve_chart,
    interval_dots,
    jct_cdf,
    jct_over_time,
    ratio_dots,
    share_by_work,
)
from parcae.evaluation.statistics import NO_MATTER, UNKNOWN_TEXT
from parcae.evaluation.who_pays import (
    LATER,
    MISSED,
    MUCH_LATER,
    TENANTS,
    Group,
    by_name,
    over_user_fair,
    user_fair_rows,
)
from parcae.policies.additions import Accounted
from parcae.policies.compiled import CompiledPlanner
from parcae.simulation.bounds import Bounds, lower_bounds
from parcae.simulation.config import SimulationConfig, WorldName, offered_load
from parcae.simulation.faults import resolve_faults
from parcae.simulation.future import Status
from parcae.simulation.metrics import arrived, jct_ms, last_completion_ms, makespan_ms
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.describe import (
    ARRIVALS_IN_LOGS,
    LOST_ENDS,
    MEASURED_ALONE,
    TASK_TIME,
    TASK_TIME_LEFT_OUT,
)
from parcae.workloads.workload import ArrivalProcess, JobSequence, Workload

#: Keys of a workload's provenance that only measurements of one job at a time have: those of
#: benchmarks/spark/measure.py, and event logs in which hardly two jobs overlap.
_MEASURED_ALONE = {"measured", MEASURED_ALONE}
#: A load is an expectation: only one clearly above 1 means that queues grow without end.
FULL = 1.001
#: Below this load, few jobs meet.
_IDLE = 0.1
#: One recurring job decides a mean if it has this share of the completion time, and at most half of
#: that share of the jobs.
_DECIDES = 0.5
#: Share of jobs that failing tasks may end before a warning.
_MANY_ENDED = 0.01


def setting_warnings(workload: Workload, config: SimulationConfig, arrivals: str) -> list[str]:
    """What makes conclusions about this setting wrong, in sentences."""
    found = (
        delay_warning(workload, config),
        _load_warning(workload, config, arrivals),
        lost_work_warning(workload, arrivals in _counting_arrivals(workload)),
        measured_alone_warning(workload),
        _driver_warning(workload, config),
        _ended_by_failures(workload, config),
    )
    return [text for text in found if text]


def run_warnings(jobs: pl.DataFrame) -> list[str]:
    """What makes intervals over these runs wrong, in sentences; the jobs are those of all seeds."""
    return [*_same_runs(jobs), *_one_job(jobs)]


def _one_job(jobs: pl.DataFrame) -> list[str]:
    """A sentence if one recurring job decides the means under the first policy."""
    first = jobs.filter(pl.col("column") == 0)
    by_job = first.group_by("job").agg(pl.col("jct_ms").sum(), pl.len()).sort("jct_ms", "job")
    name, jct_ms, count = by_job.row(-1)
    share = jct_ms / max(1, first["jct_ms"].sum())
    share_of_jobs = count / len(first)
    if share < _DECIDES or share_of_jobs > share / 2:
        return []
    return [
        f"one recurring job decides the mean: {name} is {share_of_jobs:.0%} of the jobs and "
        f"{share:.0%} of their completion time; look at the recurring jobs one by one"
    ]


def _same_runs(jobs: pl.DataFrame) -> list[str]:
    """A sentence if all seeds gave the same run."""
    # Names need no look: equal jobs have equal arrivals and completions.
    seeds = jobs.select("seed", "arrival_ms", "completion_ms").partition_by(
        "seed", include_key=False
    )
    if len(seeds) < 2 or not all(seeds[0].equals(other) for other in seeds[1:]):
        return []
    return [
        f"all {len(seeds)} seeds gave the same run: arrivals and durations have no randomness, so "
        "the intervals say nothing about other days; draw arrivals (--arrivals load:0.85) or "
        "compare recorded days one by one"
    ]


def delay_warning(workload: Workload, config: SimulationConfig) -> str:
    """A sentence if executors take longer to move than tasks take; else no text."""
    task_ms = mean_task_ms(workload)
    if config.world is WorldName.CORES or config.moving_delay_ms <= task_ms:
        return ""
    delay_s = s_from_ms(config.moving_delay_ms)
    # The world of cores has no executor classes.
    other = "" if config.executor_classes else ", or --world cores"
    return (
        f"an executor takes {delay_s:,.3g} s to move between jobs, a task only "
        f"{s_from_ms(task_ms):,.3g} s on average: results show the delay more than the order of "
        f"jobs; choose --moving-delay-ms for your cluster{other}"
    )


def _load_warning(workload: Workload, config: SimulationConfig, arrivals: str) -> str:
    """A sentence if arrivals overload the cluster, or leave it almost idle; else no text."""
    process = ArrivalProcess.parse(arrivals)
    if process.is_closed:
        return _session_warning(process, workload, config)
    load = offered_load(workload, config, arrivals)
    if load < _IDLE:
        return (
            f"arrivals bring {load:.2g} times the work that {config.size_text} can do: few jobs "
            "run at the same time, so the order of jobs hardly matters; give --arrivals load:0.8"
        )
    # A batch has no rate.
    if load <= FULL or math.isinf(load):
        return ""
    return (
        f"arrivals bring {load:.2f} times the work that {config.size_text} can do: "
        "the queue grows as long as jobs arrive, so averages depend on the number of jobs; take "
        "fewer arrivals or a larger cluster"
    )


def _session_warning(process: ArrivalProcess, workload: Workload, config: SimulationConfig) -> str:
    """A sentence if there is one session, in which no two jobs ever meet; else no text."""
    if process.replays(workload):
        count = workload.num_sessions
    else:
        slots = config.for_tasks_of(workload).total_executors
        count = process.num_sessions(config.jobs_of(workload), slots, config.runs_vary)
    if count != 1:
        return ""
    return (
        "there is one session, whose jobs run one after another: no order of jobs can change "
        "anything; give the number of sessions to expect, as in --arrivals sessions:4"
    )


def _counting_arrivals(workload: Workload) -> tuple[str, ...]:
    """The arrivals that bring all the work of the logs, where jobs had to be left out."""
    if workload.work_factor == 1:
        return ()
    sessions = [f"sessions:{workload.usual_sessions}"] if workload.num_sessions > 1 else []
    return (workload.provenance.get(ARRIVALS_IN_LOGS, ""), *sessions)


def lost_work_warning(workload: Workload, is_counted: bool) -> str:
    """A sentence if the logs had more work than the workload; else no text.

    Where it `is_counted`, jobs arrive more often for it.
    """
    of = workload.provenance
    missing = []
    if TASK_TIME_LEFT_OUT in of:
        kept = of.get(TASK_TIME, "a part")
        missing.append(f"has {kept} of the task time in its logs, not {of[TASK_TIME_LEFT_OUT]}")
    if LOST_ENDS in of:
        missing.append(f"comes from logs in which {of[LOST_ENDS]}")
    if not missing:
        return ""
    so = "so loads and times are too low"
    if is_counted:
        so = f"so these arrive {workload.work_factor:.3g} times as often as in the logs"
    return (
        f"{workload.name} {' and '.join(missing)}: the cluster had more work than the jobs here, "
        f"{so}"
    )


def measured_alone_warning(workload: Workload) -> str:
    """A sentence if the durations were measured with one job at a time; else no text."""
    if not _MEASURED_ALONE & workload.provenance.keys():
        return ""
    return (
        f"the durations of {workload.name} were measured with one job at a time: they do not show "
        "how tasks slow down when jobs share a cluster (on a real Spark, TPC-H's tasks took 7% "
        "longer one query at a time, and an order foretold .69 of FAIR's mean time took .76)"
    )


def _driver_warning(workload: Workload, config: SimulationConfig) -> str:
    """A sentence if the driver's time is known and this world does not play it; else no text."""
    if config.world is WorldName.CORES or not workload.has_driver_time:
        return ""
    return (
        f"the driver's time of {workload.name} (planning, launching, collecting results) is played "
        "in the world of cores only: jobs are faster here than in the log"
    )


def _ended_by_failures(workload: Workload, config: SimulationConfig) -> str:
    faults = resolve_faults(config.faults, workload)
    if faults is None or faults.failure_rate == 0:
        return ""
    # A task that fails `max_failures` times in a row ends its job in Spark, but not here.
    survives = 1.0 - faults.failure_rate**faults.max_failures
    ended = [1.0 - survives**job.num_tasks for job in workload.jobs]
    share = float(np.average(ended, weights=workload.weights))
    if share < _MANY_ENDED:
        return ""
    return (
        f"with failures={faults.failure_rate:g} and {faults.max_failures} failures allowed, Spark "
        f"would end {share:.0%} of the jobs; here the last attempt of a task succeeds, so the "
        "times are those of jobs that Spark would not complete"
    )


def mean_task_ms(workload: Workload) -> float:
    """Expected duration of a task of a drawn job, in ms.

    Example: jobs of 2 tasks of 3 s and of 1 task of 6 s, equally frequent: 12 s / 3 tasks = 4 s.
    """
    return workload.mean_work_ms / workload.mean_tasks


#: The table shows this many recurring jobs that lose most, and this many that gain most.
_MOST = 15
#: The tables break a longer name into lines.
_LONG_NAME = 40


def cluster_sections(comparison: Comparison) -> list[Section]:
    """The page's sections after the table: averages, tenants, recurring jobs, one run's charts."""
    return [
        *averages_and_groups(comparison),
        *_one_run(comparison, *first_runs(comparison)),
        *_overdrafts(comparison),
    ]


def averages_and_groups(comparison: Comparison) -> list[Section]:
    """What needs no recorded run: averages, tenants, recurring jobs."""
    return [_overall(comparison), *tenant_sections(comparison), *_recurring(comparison)]


def _overall(comparison: Comparison) -> Section:
    """The charts of averages."""
    results = comparison.policies
    names = [result.name for result in results]
    others = results[1:]
    if others:
        # Paired by seed: averages beside each other hide a difference that every seed has.
        title = f"Average time / that under {names[0]}, paired by seed"
        ratios = [result.ratio_to_first for result in others]
        charts = [Charts([ratio_dots(title, names[1:], ratios, PALETTE[1:])])]
    else:
        title = "Average job completion time, with 95% intervals"
        averages = [result.average_jct_s for result in results]
        charts = [Charts([interval_dots(title, "average JCT (s)", names, averages)])]
    shares = [one.estimates[MISSED] for one in results if MISSED in one.estimates]
    # A share is unknown if no job that was drawn has a deadline.
    if shares and not any(math.isnan(share.mean) for share in shares):
        title = "Share of missed deadlines, with 95% intervals"
        charts.append(Charts([interval_dots(title, "missed", names, shares)]))
    return Section("Over all seeds", charts)


def tenant_sections(comparison: Comparison, *, is_short: bool = False) -> list[Section]:
    """Who pays, by pool, user and queue; none where no job has any. The short ones are for the
    terminal.
    """
    shown = 1 if is_short else None
    head = [
        Cell(text, small)
        for policy in comparison.policies
        for text, small in ((policy.name, "ratio, 95% interval"), *_PAID)[:shown]
    ]
    sections = []
    for key in TENANTS:
        rows = [
            [
                _name(own[0]),
                f"{own[0].runs:,}",
                *(cell for one in own for cell in _paid(one)[:shown]),
            ]
            for own in by_name(comparison.jobs, key).values()
        ]
        first = comparison.policies[0].name
        note = (
            f"Ratio: mean completion time of the {key}'s jobs / that under {first}, paired by "
            "seed, with its 95% interval. Jobs are those over all seeds."
        )
        later = f"Later: jobs that end more than {LATER - 1:.0%} later than under {first}."
        table = Table([Cell(key), Cell("jobs"), *head], rows, [note, later][:shown])
        sections += [Section(f"Tenants: who pays, by {key}", [table])] if rows else []
    return [*sections, *_beside_user_fair(comparison)]


def _beside_user_fair(comparison: Comparison) -> list[Section]:
    """What users would have had with a pool each; no section where none are known."""
    found, shares = user_fair_rows(comparison.jobs)
    if not found:
        return []
    rows: list[list[Cell | str]] = [
        [Cell(name, is_name=len(name) > _LONG_NAME), *ratios] for name, *ratios in found
    ]
    rows.append([f"users over {MUCH_LATER:g}", *shares])
    note = (
        "Mean completion time of the user's jobs / that under user-fair, Spark's FAIR with a pool "
        "a user, at the arrivals of the same run."
    )
    head = [Cell("user"), *(Cell(policy.name) for policy in comparison.policies)]
    return [Section("Users beside a pool each", [Table(head, rows, [note])])]


#: The headings beside a policy's name, of the cells of `_paid`.
_PAID = (("mean JCT", "s"), ("later", "of its jobs"))


def _paid(one: Group) -> list[Cell | str]:
    """The cells of a tenant under a policy."""
    return [estimate_cell(one.ratio), seconds_text(one.mean_s), f"{one.later_share:.1%}"]


def rival(comparison: Comparison) -> int | None:
    """The place of the policy that recurring jobs are judged under: the best, or the next best.

    None if there is no policy beside the first.
    """
    first, *others = comparison.simulated
    ranked = [result for result in comparison.ranked() if result is not first] or others
    best = min(ranked, key=lambda result: comparison.main(result).mean, default=None)
    return None if best is None else comparison.policies.index(best)


def _recurring(comparison: Comparison) -> list[Section]:
    """The table and the chart of recurring jobs under the best policy, or the next best."""
    column = rival(comparison)
    if column is None:
        return []
    groups = by_name(comparison.jobs, "job", [column])
    if not groups:
        return []
    jobs = sorted(groups.values(), key=lambda job: (-job[column].ratio.mean, job[0].name))
    best = comparison.policies[column].name
    left_out = [job[column].ratio.mean for job in jobs[_MOST:-_MOST]]
    shown = [*jobs[:_MOST], *jobs[-_MOST:]] if left_out else jobs
    notes = [
        f"Sorted by the ratio: the jobs that lose most under {best} come first, "
        "those that gain most come last. A job gains or loses if its ratio is at least "
        f"{NO_MATTER:.0%} from 1 and its 95% interval, paired by seed, does not contain 1; of "
        "twenty jobs without any difference, at most one on average seems to have one. Spread, "
        f"p99 and worst are those under {best}."
    ]
    if left_out:
        notes.append(
            f"The table shows the {_MOST} jobs that lose most (or gain least) and the {_MOST} that "
            f"gain most. The other {len(left_out):,}, with ratios from {min(left_out):.3f} to "
            f"{max(left_out):.3f}, are left out."
        )
    chart = ratio_dots(
        f"Completion time under {best} / under {comparison.policies[0].name}",
        [job[0].name for job in shown],
        [job[column].ratio for job in shown],
        PALETTE[:1],
    )
    has_deadlines = comparison.world.has_deadlines
    table = Table(
        _recurring_head(comparison, best, has_deadlines),
        [_recurring_row(job, column, has_deadlines) for job in shown],
        notes,
    )
    said = Text(comparison.world.winners(comparison))
    return [Section("Recurring jobs: gains and losses", [said, table, Charts([chart])])]


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
        # Those of all policies would be wider than a screen; `--recurring` writes them.
        *(Cell(name, "mean JCT, s") for name in (names[0], best)),
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
        *(seconds_text(one.mean_s) for one in (job[0], own)),
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


def first_runs(comparison: Comparison) -> tuple[dict[str, Trace], Bounds | None]:
    """The recorded run of the first seed under every policy, and the lower bounds of its jobs.

    There are none if runs deviate from their profiles: they may be shorter than anything measured.
    Nor are there any if an end cut off a run, since the bounds are those of all its jobs, or with
    sessions, where arrivals depend on the policy.
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
    is_longer = world.config.runs_vary and world.workload.has_spread
    if is_cut_off or is_longer or sequence.has_sessions:
        return traces, None
    slots = world.config.for_tasks_of(sequence.workload).total_executors
    return traces, lower_bounds(sequence, slots)


def _one_run(
    comparison: Comparison, traces: Mapping[str, Trace], bounds: Bounds | None
) -> list[Section]:
    seed = comparison.settings["seeds"][0]
    end_s = max(1, *(last_completion_ms(trace) for trace in traces.values())) / MS_PER_S
    over_time = [concurrency_over_time(traces), jct_over_time(traces), busy_over_time(traces)]
    for figure in over_time:
        figure.axes[0].set_xlim(0, end_s)
    # Today's order and the best, or the next best, beside each other; the others on demand.
    pair = {0, rival(comparison)}
    gantt: list[Charts] = []
    others: list[Charts] = []
    for row, trace in enumerate(traces.values()):
        chart = Charts([gantt_picture([cluster_chart(trace)], end=end_s)])
        (gantt if row in pair else others).append(chart)
    folded = (
        [Folded(f"The same run under the other orders ({len(others)})", others)] if others else []
    )
    note = Text(_gantt_note(traces), is_quiet=True)
    curves = Charts([jct_cdf(traces), *over_time, share_by_work(traces)])
    return [
        Section(f"One run (seed {seed}): which job ran where", [note, *gantt, *folded]),
        Section("The same run in curves", [*_bounds_texts(traces, bounds), curves]),
    ]


def _overdrafts(comparison: Comparison) -> list[Section]:
    """What users took beyond a split of the cores, over one run under the first and the best
    policy; no section where fewer than two users are known.
    """
    world = comparison.world
    if not over_user_fair(comparison.jobs):
        return []
    seed = comparison.settings["seeds"][0]
    sequence = world.draw(seed)
    charts = []
    for row, (name, policy) in enumerate(comparison.resolved.for_sequence(sequence, seed).items()):
        if row in {0, rival(comparison)} and (curves := _curves(sequence, policy, world, seed)):
            axes = ("time (s)", "core-seconds")
            title = f"Received beyond an equal split, by user: {name}"
            charts.append(curve_chart(title, axes, curves, "steps"))
    note = Text(f"One run (seed {seed}). Below 0: what a user is owed.", is_quiet=True)
    return [Section("Users over one run", [note, Charts(charts)])] if charts else []


Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
#: A picture shows so many users, those furthest from their split.
_MOST_USERS = 8


def _curves(sequence: JobSequence, policy: Any, world: Any, seed: int) -> dict[str, Curve]:
    """By user, the times of plans and what the user had received beyond the split until then."""
    charged = policy if isinstance(policy, Accounted) else None
    planner = charged.policy if charged else policy
    if not isinstance(planner, CompiledPlanner):
        return {}
    simulator = Simulator(sequence, world.config, seed)
    now, accounts = simulator.state.now, simulator.state.accounts
    now.keeps_accounts[0] = 1
    if charged:
        charged.keep(now)
        simulator.tables = charged.extended(simulator.tables)
    planner.restart()
    users = list(dict.fromkeys(sequence.workload.users))
    times_s, rows = list[float](), list[npt.NDArray[np.float64]]()
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        table = accounts[: int(now.num_accounts[0])]
        table = table[table["is_open"] == 1]
        row = np.zeros(len(users))
        row[table["user"]] = (table["received_ms"] - table["split_ms"]) / MS_PER_S
        rows.append(row)
        times_s.append(s_from_ms(int(now.clock_ms[0])))
        simulator.follow(planner.plan(simulator.observe()))
    planner.restart()
    beyond = np.array(rows).T
    shown = np.argsort(-np.abs(beyond).max(axis=1), kind="stable")[:_MOST_USERS]
    return {users[user]: (np.array(times_s), beyond[user]) for user in sorted(shown.tolist())}


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
