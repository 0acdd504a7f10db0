"""What if the Spark applications of some event logs were one shared application?

Before is what the logs say. After, the queries of all applications arrive as they did, with the
task durations and driver time that they had, on fixed cores that all share.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import level
from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S, duration_unit, num_decimals, plain, s_from_ms, seconds_text
from parcae.cluster.trace import Trace
from parcae.evaluation.forecast import NUM_DRAWS, size_error
from parcae.evaluation.log_check import Replayed, replayed_applications, replayed_workload
from parcae.evaluation.page import Cell, Charts, Section, Table, Text, write_page
from parcae.evaluation.plots import NUM_SPANS, PALETTE, finished, label_of, new_chart
from parcae.evaluation.who_pays import LATER
from parcae.policies.additions import named_policy
from parcae.simulation.metrics import mean_over_spans, steps
from parcae.workloads.import_report import Progress, counted
from parcae.workloads.spark_log.dag import JobRun, StageRun
from parcae.workloads.spark_log.event_log import LoggedRuns, read_runs
from parcae.workloads.spark_log.losses import CheckedLog
from parcae.workloads.spark_log.sessions import number_sessions, sessions_at_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_MS_PER_H = 3_600 * MS_PER_S
_ACCOUNT = "account"
#: The orders of the shared application: policies, and what tables call them.
_ORDERS = {"user-fair": "FAIR", _ACCOUNT: "account"}
_SAME_TIME = "same mean time"
#: The smallest cluster is searched up to so many times the cores that were held at most.
_MOST = 4
#: Applications that the picture shows one by one, and parties that a sentence names.
_SHOWN = 7
_REST = "the rest"
#: Replays further from their logs than this are warned of.
_TRUSTED = 0.1
CAPTION = "seconds: mean (95th percentile); FAIR has a pool for each person"
NEXT = "Next, a Connect server with the plugin, which orders by account (docs/spark-servers.md):"
#: What no log says.
UNSEEN = (
    "memory: executors and the one driver hold the data of all queries that run at once",
    "libraries and versions that differ between the applications",
    "failures that are shared: a driver that dies ends everybody's queries",
    "security: in one Spark, people can reach each other's cached data",
    "what people do when answers come sooner: queries arrive as recorded, also in closed loops",
)


@dataclass(frozen=True, eq=False)
class HeldCores:
    """The cores of one application over time, as its log has them; times in ms on its clock.

    `key` is as in `JobRun.application`; a task takes `task_cores`. `changes` are int64[n, 2], times
    and changes of the cores that tasks could use; `ran_ms` is int64[2, attempts], when attempts of
    tasks began and left their cores; `doubts` are sentences on what was assumed.
    """

    key: str
    app_id: str
    name: str
    task_cores: int
    executor_cores: int
    num_executors: int
    changes: Int64Array
    ran_ms: Int64Array
    doubts: tuple[str, ...]

    @classmethod
    def of(cls, checked: CheckedLog, slots: Sequence[tuple[int, int]]) -> HeldCores:
        """Those of a log whose task slots changed so (`durations.slot_changes`)."""
        log, tasks = checked.log, checked.tasks
        name = log.name or log.app_id or log.label
        task_cores = _most_common(log.cores_per_task(), 1)
        last_ms = max([ms for ms, _ in slots] + [int(tasks.finish_ms.max(initial=0))])
        end_ms = max(log.end_ms, last_ms)
        changes = list(slots)
        left = sum(change for _, change in slots)
        # Slots of replays last; executors that leave after the last task were held until then.
        for executor, removed in log.removed.items():
            gone = log.slots_of(executor) if executor in log.executors else 0
            if last_ms <= removed.time_ms < end_ms and gone <= left:
                changes.append((removed.time_ms, -gone))
                left -= gone
        cores = Counter(added.cores for added in log.executors.values() if added.cores > 0)
        doubts = {
            "misses its beginning: queries from before it are left out, and cores count from the "
            "first task that it has": not log.has_beginning,
            "has no executors with their cores: as many cores as tasks needed at once count as "
            "held, from its first task to its end": not cores,
        }
        return cls(
            f"{log.label} {log.app_id}",
            log.app_id,
            name,
            task_cores,
            _most_common(cores, 0),
            len(log.executors),
            np.array([*changes, (end_ms, -left)], np.int64) * (1, task_cores),
            np.array([tasks.launch_ms, tasks.launch_ms + np.maximum(0, tasks.busy_ms)], np.int64),
            tuple(f"The log of {name} {words}." for words, holds in doubts.items() if holds),
        )

    @property
    def span_ms(self) -> tuple[int, int]:
        """From its first core to its last."""
        return int(self.changes[:, 0].min()), int(self.changes[:, 0].max())

    @property
    def core_ms(self) -> tuple[int, int]:
        """Core time that was held, and that was busy."""
        at_ms, change = self.changes.T
        held_ms = -int(((at_ms - self.span_ms[0]) * change).sum())
        return held_ms, int(np.diff(self.ran_ms, axis=0).sum()) * self.task_cores


def _most_common(counts: Counter[int], default: int) -> int:
    return counts.most_common(1)[0][0] if counts else default


def read_applications(
    paths: Sequence[str | Path],
    apps: str | None = None,
    align: bool = False,
    **options: Any,
) -> tuple[LoggedRuns, list[HeldCores]]:
    """Read event logs: queries, and the cores of every application whose name or id fits `apps`.

    Applications of one name are runs of one, such as nightly ones, unless they ran at once: then
    ids tell them apart. With `align`, the first of each name begin at one time. `options` are those
    of `read_runs`.
    """
    found: list[HeldCores] = []
    logged = read_runs(
        paths, **options, seen=lambda checked, slots: found.append(HeldCores.of(checked, slots))
    )
    fit = apps or "*"
    held = [one for one in found if fnmatchcase(one.name, fit) or fnmatchcase(one.app_id, fit)]
    by_name = defaultdict[str, list[HeldCores]](list)
    for one in held:
        by_name[one.name].append(one)
    held = [
        replace(one, name=f"{one.name} ({one.app_id})") if overlap(by_name[one.name]) else one
        for one in held
    ]
    first_ms = dict[str, int]()
    for one in held:
        first_ms[one.name] = min(first_ms.get(one.name, 1 << 62), one.span_ms[0])
    begins_ms = {one.key: first_ms[one.name] * align for one in held}
    by_key = defaultdict[str, list[JobRun]](list)
    for run in logged.runs:
        if run.end_ms > run.submission_ms:
            by_key[run.application].append(run)
    logged.runs = [run for key in begins_ms for run in _moved(by_key[key], begins_ms[key])]
    if not logged.runs:
        names = ", ".join(sorted({one.name for one in found}))
        raise ConfigError(f"no application that fits {fit} finished a query; there are: {names}")
    moved = []
    for one in held:
        changes = one.changes - (begins_ms[one.key], 0)
        moved.append(replace(one, changes=changes, ran_ms=one.ran_ms - begins_ms[one.key]))
    return logged, moved


def _moved(runs: Sequence[JobRun], by_ms: int) -> list[JobRun]:
    """The runs of an application, so much earlier."""
    slots = [(ms - by_ms, change) for run in runs[:1] for ms, change in run.slots]
    return [
        replace(
            run, submission_ms=run.submission_ms - by_ms, end_ms=run.end_ms - by_ms, slots=slots
        )
        for run in runs
    ]


def overlap(held: Sequence[HeldCores]) -> bool:
    """Whether any two applications had cores at the same time."""
    spans = sorted(one.span_ms for one in held)
    ends_ms = np.maximum.accumulate([end for _, end in spans])
    return any(begin < end for (begin, _), end in zip(spans[1:], ends_ms, strict=False))


#: A flat row of JSON. Of a shared cluster: why it has so many cores, its policy, cores, core-hours
#: to the last application's or query's end, executors, mean and 95th percentile of queries in s.
#: Of an application's or a person's queries: mean and 95th percentile in s in the logs (`before`),
#: under FAIR and under account, which share takes more than `LATER` times as long as in the logs,
#: mean under account / before, and of applications mean replayed / in the log.
Row = dict[str, Any]


class Curves(NamedTuple):
    """Cores as means over spans between times: held before, in use before and after by
    application.
    """

    edges_s: FloatArray
    held: FloatArray
    before: dict[str, FloatArray]
    after: dict[str, FloatArray]


@dataclass(frozen=True, eq=False)
class Consolidation:
    """The answer: `before` has what the applications took in sum; then shared clusters (the first
    two have the asked number of cores), applications and persons, what was assumed, the picture,
    and the cores of an executor.
    """

    before: Row
    clusters: tuple[Row, ...]
    parties: tuple[Row, ...]
    notes: tuple[str, ...]
    curves: Curves
    executor_cores: int

    @property
    def cores(self) -> int:
        """The number of cores that was asked about."""
        return int(self.clusters[0]["cores"])

    @property
    def headline(self) -> str:
        """The answer, and who would be later, in a sentence."""
        ratio = self.clusters[1]["mean_s"] / self.before["mean_s"]
        late = sorted(self.parties, key=lambda one: -one["ratio"])
        words = "{kind} {name} ({ratio:.2f} times as long)"
        who = [words.format(**one) for one in late if one["ratio"] > LATER]
        who[_SHOWN:] = [f"{len(who) - _SHOWN} more"] if len(who) > _SHOWN else []
        return (
            f"One shared Spark with {counted(self.cores, 'core')} has {ratio:.2f} of the mean time "
            f"of today's {counted(self.before['applications'], 'application')} under account. "
            f"Later on average: {', '.join(who) or 'nobody'}."
        )

    @property
    def savings(self) -> str:
        """What the smallest cluster with the same mean time needs."""
        least, before = self.clusters[-1], self.before
        if least["why"] != _SAME_TIME:
            most = _MOST * max(before["most_cores"], self.cores)
            return f"No shared Spark of up to {most} cores has the mean time of today."
        held_h = before["core_hours"]
        return (
            f"The mean time of today needs {counted(least['cores'], 'shared core')}: "
            f"{_hours(least['core_hours'])} core-hours (today {_hours(held_h)}, idle "
            f"{_hours(held_h - before['busy_core_hours'])}) in {least['executors_started']} "
            f"executors that start once (today {before['executors_started']} starts)."
        )

    @property
    def next_command(self) -> str:
        """What starts such a Spark."""
        return (
            '$SPARK_HOME/sbin/start-connect-server.sh --driver-class-path "$(parcae spark jar)" '
            "--conf spark.plugins=parcae.spark.ParcaePlugin "
            "--conf spark.dynamicAllocation.enabled=false "
            f"--conf spark.executor.instances={self.clusters[0]['executors_started']} "
            f"--conf spark.executor.cores={self.executor_cores}"
        )

    def tables(self) -> dict[str, Table]:
        """The tables by their headings: of clusters, of applications, of persons if they differ."""
        headings = ["", "order", "cores", "starts", "core-hours", "idle", "seconds", "/ today"]
        today = {"why": "today", "cores": f"up to {self.before['most_cores']}", **self.before}
        rows = []
        for one in (today, *self.clusters):
            held_h = one["core_hours"]
            idle = max(0.0, 1 - self.before["busy_core_hours"] / held_h) if held_h else 0.0
            order = _ORDERS.get(one.get("policy", ""), "as logged")
            cells = [one["why"], order, str(one["cores"]), str(one["executors_started"])]
            ratio = one["mean_s"] / self.before["mean_s"]
            rows.append([*cells, _hours(held_h), f"{idle:.0%}", _pair(one, ""), f"{ratio:.2f}"])
        tables = {"One Spark or many": _table(headings, rows, CAPTION)}
        for kind in dict.fromkeys(one["kind"] for one in self.parties):
            headings = [kind, "queries", "today", "FAIR", "account", "/ today", "later", "replayed"]
            rows = [
                [
                    one["name"],
                    str(one["queries"]),
                    *(_pair(one, of) for of in ("before_", "fair_", "account_")),
                    f"{one['ratio']:.2f}",
                    f"{one['later_share']:.0%}",
                    f"{one['replayed']:.3f}",
                ]
                for one in self.parties
                if one["kind"] == kind
            ]
            # Of persons nothing is replayed alone.
            last = len(headings) - (kind == "person")
            tables[f"By {kind}"] = _table(headings[:last], [row[:last] for row in rows])
        return tables

    def to_json(self) -> dict[str, Any]:
        """The answer as plain numbers and text."""
        found = {
            "before": self.before,
            "after": self.clusters,
            "parties": self.parties,
            "notes": self.notes,
            "cannot_see": UNSEEN,
            "next_command": self.next_command,
        }
        return plain(found)  # type: ignore[no-any-return]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> Table:
    cells: list[list[Cell | str]] = [[Cell(row[0], is_name=True), *row[1:]] for row in rows]
    return Table([Cell(heading) for heading in headings], cells, notes)


def _hours(hours: float) -> str:
    return f"{hours:,.{num_decimals(hours, 1)}f}"


def _times(times_ms: npt.NDArray[Any], of: str = "") -> dict[str, float]:
    """Mean and 95th percentile in seconds."""
    p95_ms = float(np.percentile(times_ms, 95))
    return {f"{of}mean_s": s_from_ms(float(times_ms.mean())), f"{of}p95_s": s_from_ms(p95_ms)}


def _pair(row: Row, of: str) -> str:
    return f"{seconds_text(row[f'{of}mean_s'])} ({seconds_text(row[f'{of}p95_s'])})"


def consolidate(
    logged: LoggedRuns,
    held: Sequence[HeldCores],
    cores: int | None = None,
    progress: Progress | None = None,
) -> Consolidation:
    """Merge the queries of applications, and play them on shared cores.

    By default these have the core-hours that were held: the mean of the held cores over the time
    from the first to the last, rounded up. `progress` is called with the runs played, and 0.

    Example: `consolidate(*read_applications(["logs"]))`.
    """
    shared = _Shared(logged, held, progress or (lambda done, total: None))
    begin_ms, end_ms = shared.span_ms
    held_ms, busy_ms = (sum(ms) for ms in zip(*(one.core_ms for one in held), strict=True))
    unit = shared.slot_cores
    peak = max(unit, int(shared.held[1].max()))
    if cores is not None and cores < unit:
        raise ConfigError(f"--cores {cores}: a task takes {unit} cores; give at least as many")
    mean = unit * max(1, math.ceil(held_ms / max(1, end_ms - begin_ms) / unit))
    wanted = cores or mean
    sizes = {peak: "peak", wanted: "same core-hours" if cores is None else "as asked"}
    clusters = [
        shared.cluster(why, order, size)
        for size, why in reversed(sizes.items())
        for order in _ORDERS
    ]
    if least := shared.least_cores(wanted, _MOST * max(peak, wanted)):
        clusters.append(shared.cluster(_SAME_TIME, _ACCOUNT, least))
    parties = tuple(shared.parties(wanted))
    before = {
        "applications": len(held),
        "queries": len(shared.before_ms),
        "core_hours": held_ms / _MS_PER_H,
        "busy_core_hours": busy_ms / _MS_PER_H,
        "most_cores": peak,
        "executors_started": sum(one.num_executors for one in held),
        **_times(shared.before_ms),
    }
    notes, curves = tuple(shared.notes(logged, parties)), shared.curves(wanted)
    return Consolidation(before, tuple(clusters), parties, notes, curves, shared.executor_cores)


class _Shared:
    """The merged workload, and what is played with it."""

    def __init__(self, logged: LoggedRuns, held: Sequence[HeldCores], progress: Progress) -> None:
        self.applications = held
        self.progress = progress
        self.num_played = 0
        self.known: dict[tuple[str, int], Int64Array] = {}
        self.replays = list(replayed_applications(logged))
        self.runs = sorted(logged.runs, key=lambda run: run.submission_ms)
        self.before_ms = np.array([run.end_ms - run.submission_ms for run in self.runs], np.int64)
        own = {one.key: one for one in held}
        of_runs = [own[run.application] for run in self.runs]
        self.names = np.array([one.name for one in of_runs], object)
        self.has_persons = len({run.user for run in self.runs} - {""}) > 1
        users = [run.user * self.has_persons for run in self.runs]
        persons = [user or name for user, name in zip(users, self.names, strict=True)]
        self.persons = np.array(persons, object)
        #: A task that takes several times as many cores is played as so many tasks.
        self.slot_cores = math.gcd(*(one.task_cores for one in of_runs))
        shared = [
            _widened(run, one.task_cores // self.slot_cores)
            for run, one in zip(warmed(self.runs), of_runs, strict=True)
        ]
        workload = replayed_workload(shared)
        jobs = [replace(job, user=who) for job, who in zip(workload.jobs, persons, strict=True)]
        workload = replace(workload, jobs=tuple(jobs))
        order = self.replays[0].order
        self.merged = Replayed("shared", self.runs, workload, (), self.before_ms, order)
        self.error = size_error(self.runs)
        self.executor_cores = _most_common(Counter(one.executor_cores for one in held), 0) or 1
        at_ms, change = np.concatenate([one.changes for one in held]).T
        edges_ms = np.unique(at_ms)
        #: The cores that were held, as a step function.
        self.held = edges_ms, level(edges_ms, (at_ms, change))
        spans = [one.span_ms for one in held if one.changes[:, 1].any()]
        spans += [(run.submission_ms, run.end_ms) for run in self.runs]
        #: From the first core, or query, to the last.
        self.span_ms = min(begin for begin, _ in spans), max(end for _, end in spans)

    def times_ms(self, order: str, cores: int) -> Int64Array:
        """Completion times of all queries, a row for each draw of what the order knows."""
        if (order, cores) not in self.known:
            draws = NUM_DRAWS if order == _ACCOUNT and self.error else 1
            traces = [self.trace(order, cores, draw) for draw in range(draws)]
            times = [one.completion_ms - one.arrival_ms for one in traces]
            self.known[order, cores] = np.array(times, np.int64)
        return self.known[order, cores]

    def trace(self, order: str, cores: int, draw: int, record: bool = False) -> Trace:
        """Play all queries."""
        one = self.merged._replace(slots=((0, cores // self.slot_cores),))
        config = one.config(self.error)
        trace = one.trace(named_policy(order, one.workload, config), config, draw, record)
        self.num_played += 1
        self.progress(self.num_played, 0)
        return trace

    def cluster(self, why: str, order: str, cores: int) -> Row:
        """A shared cluster, which is up from the first core that was held."""
        times_ms = self.times_ms(order, cores)
        begin_ms, end_ms = self.span_ms
        ends_ms = times_ms + np.array([run.submission_ms for run in self.runs])
        up_ms = max(end_ms, int(ends_ms.max())) - begin_ms
        return {
            "why": why,
            "policy": order,
            "cores": cores,
            "core_hours": cores * up_ms / _MS_PER_H,
            "executors_started": math.ceil(cores / self.executor_cores),
            **_times(times_ms),
        }

    def least_cores(self, first: int, most: int) -> int:
        """The fewest cores with which account has the mean time of the logs; 0: there are none."""
        unit, wanted_ms = self.slot_cores, self.before_ms.mean()
        low, high = 0, first // unit
        while self.times_ms(_ACCOUNT, high * unit).mean() > wanted_ms:
            if high >= most // unit:
                return 0
            low, high = high, min(2 * high, most // unit)
        while high - low > 1:
            middle = (low + high) // 2
            is_enough = self.times_ms(_ACCOUNT, middle * unit).mean() <= wanted_ms
            low, high = (low, middle) if is_enough else (middle, high)
        return high * unit

    def parties(self, cores: int) -> Iterator[Row]:
        """The queries by application, and by person where the logs name several."""
        fair, account = (self.times_ms(order, cores) for order in _ORDERS)
        is_later = account > LATER * self.before_ms
        name_of = {one.key: one.name for one in self.applications}
        replayed = defaultdict[str, Any](int)
        for one in self.replays:
            pair = np.array([one.replay(one.workload, one.slots), one.logged_ms])
            replayed[name_of[one.name]] += pair.sum(axis=1)
        kinds = {"application": self.names, "person": self.persons}
        for kind, names in list(kinds.items())[: 1 + self.has_persons]:
            for name in dict.fromkeys(names):
                own = names == name
                simulated_ms, logged_ms = replayed[name] if kind == "application" else (math.nan, 1)
                before = _times(self.before_ms[own], "before_")
                after = _times(account[:, own], "account_")
                yield {
                    "kind": kind,
                    "name": name,
                    "queries": int(own.sum()),
                    "later_share": float(is_later[:, own].mean()),
                    "replayed": simulated_ms / logged_ms,
                    **before,
                    **_times(fair[:, own], "fair_"),
                    **after,
                    "ratio": after["account_mean_s"] / before["before_mean_s"],
                }

    def curves(self, cores: int) -> Curves:
        """The cores over time, before and under account."""
        trace = self.trace(_ACCOUNT, cores, 0, record=True)
        tasks = trace.tasks
        assert tasks is not None
        begin_ms, end_ms = self.span_ms
        zero_ms = self.runs[0].submission_ms
        edges_ms = np.linspace(begin_ms, max(end_ms, zero_ms + trace.clock_ms), NUM_SPANS + 1)

        def busy(ran_ms: Int64Array, task_cores: int) -> FloatArray:
            begins_ms, ends_ms = ran_ms
            amount = np.full(len(begins_ms), task_cores)
            return mean_over_spans(*steps(begins_ms, ends_ms, amount), edges_ms)

        before = defaultdict[str, Any](float)
        for one in self.applications:
            before[one.name] += busy(one.ran_ms, one.task_cores)
        ran_ms = np.array([tasks["start_ms"], tasks["finish_ms"]]) + zero_ms
        names = self.names[tasks["job"]]
        after = {name: busy(ran_ms[:, names == name], self.slot_cores) for name in before}
        largest = sorted(before, key=lambda name: -before[name].sum())

        def shown(curves: dict[str, FloatArray]) -> dict[str, FloatArray]:
            found = {name: curves[name] for name in largest[:_SHOWN]}
            rest = [curves[name] for name in largest[_SHOWN:]]
            return {**found, _REST: np.sum(rest, axis=0)} if rest else found

        held = mean_over_spans(*self.held, edges_ms)
        return Curves((edges_ms - begin_ms) / MS_PER_S, held, shown(before), shown(after))

    def notes(self, logged: LoggedRuns, parties: Sequence[Row]) -> Iterator[str]:
        """What was assumed, and what is not in the answer."""
        held, reading = self.applications, logged.reading
        yield from (doubt for one in held for doubt in one.doubts)
        yield from (*reading.logs.notes, *reading.notes_of_jobs(), *reading.notes_of_lines())
        if len(held) == 1:
            yield "There is one application: nothing to share. After is it alone, on fixed cores."
        elif not overlap(held):
            yield (
                "No two applications had cores at the same time: there is nothing to share. The "
                "logs keep their clock; --align begins them all at one time."
            )
        if idle := sorted({one.name for one in held} - set(self.names)):
            yield (
                f"Without a finished query: {', '.join(idle)}; the cores count today, and after "
                "there is nothing of it."
            )
        if len({one.task_cores for one in held}) > 1:
            sizes = ", ".join(dict.fromkeys(f"{one.name} {one.task_cores}" for one in held))
            yield (
                f"Tasks take different numbers of cores (spark.task.cpus: {sizes}). After, a task "
                f"of several is played as so many tasks of {self.slot_cores}."
            )
        if reading.left_out.factor > 1:
            yield (
                f"The queries have {reading.left_out.share} of the logs' task time. What is left "
                "out needed cores today, and needs none after: add some."
            )
        off = [one for one in parties if abs(one["replayed"] - 1) > _TRUSTED]
        if off:
            words = ", ".join("{name} ({replayed:.2f})".format(**one) for one in off)
            yield f"Replayed alone, these are far from their logs, trust them less: {words}."
        number_sessions(self.runs)
        if sessions_at_once(self.runs):
            yield "Queries that waited for each other (closed loops) keep their recorded arrivals."
        if not self.has_persons:
            yield "The logs do not name several persons: each application counts as one."


def warmed(runs: Sequence[JobRun]) -> Iterator[JobRun]:
    """The runs on executors that are there and warm: the first task of an executor takes as long as
    the others of its stage, and no stage waits for an executor to register.
    """
    lags_ms = defaultdict[str, list[int]](list)
    for run in runs:
        lags_ms[run.application] += [one.lag_ms for one in run.stages if not _fresh_ms(one).size]
    for run in runs:
        usual_ms = int(np.median(lags_ms[run.application] or [1 << 40]))
        stages = []
        for stage in run.stages:
            fresh_ms = _fresh_ms(stage)
            lag_ms = min(stage.lag_ms, usual_ms) if fresh_ms.size else stage.lag_ms
            tasks_ms = stage.replayed_ms.copy()
            others_ms = np.concatenate(stage.samples.by_wave[1:])
            for task_ms in fresh_ms if others_ms.size else ():
                place = int(np.argmin(np.abs(tasks_ms - task_ms)))
                tasks_ms[place] = min(tasks_ms[place], np.median(others_ms))
            stages.append(replace(stage, lag_ms=lag_ms, replayed_ms=tasks_ms))
        yield replace(run, stages=stages)


def _fresh_ms(stage: StageRun) -> Int64Array:
    return stage.samples.by_wave[0]


def _widened(run: JobRun, times: int) -> JobRun:
    """A run with so many tasks in place of each."""
    stages = [replace(one, replayed_ms=np.repeat(one.replayed_ms, times)) for one in run.stages]
    return replace(run, stages=stages)


def write_consolidation(found: Consolidation, path: Path, command: str = "") -> None:
    """Write the answer as a page of one file."""
    clusters, *parties = found.tables().items()
    write_page(
        path,
        title=f"{found.before['queries']:,} queries of "
        f"{counted(found.before['applications'], 'application')}",
        question="One Spark or many?",
        headline=found.headline,
        summary=found.savings,
        policies=clusters[1],
        sections=[
            Section("Cores in use over time", [Charts([one]) for one in _figures(found)]),
            *(Section(heading, [table]) for heading, table in parties),
            Section("What was assumed", [Text(note) for note in found.notes]),
            Section("What logs cannot say", [Text(one) for one in UNSEEN]),
            Section("Next", [Text(NEXT), Text(found.next_command)]),
        ],
        command=command,
        settings={"intervals": "Simulated from the logs alone", "tuned": {}},
        settings_text=json.dumps(found.to_json(), indent=2),
    )


def _figures(found: Consolidation) -> Iterator[Figure]:
    """Cores over time by application, before and after."""
    curves = found.curves
    unit, length_s = duration_unit(float(curves.edges_s[-1]))
    x = np.repeat(curves.edges_s / length_s, 2)[1:-1]
    most = 1.05 * max(float(curves.held.max()), found.cores)
    fixed = np.full(NUM_SPANS, float(found.cores))
    for title, held, busy in (
        ("Today: cores in use, and held (line)", curves.held, curves.before),
        (f"One Spark with {counted(found.cores, 'core')} (line): in use", fixed, curves.after),
    ):
        axis = new_chart(10)
        areas = [np.repeat(y, 2) for y in busy.values()]
        axis.stackplot(x, areas, labels=[label_of(name) for name in busy], colors=PALETTE)
        axis.plot(x, np.repeat(held, 2), color="#1d232a", label="held")
        axis.set_ylim(0, most)
        yield finished(axis, title, (f"time ({unit})", "cores"))
