"""The order between users, in twelve made-up and recorded situations of a shared Spark.

    python -m benchmarks.accounts                       the table of docs/results/accounts.md
    python -m benchmarks.accounts --seeds 1 --sigma 1   one seed, one error of the estimates

Ratios are to `user-fair` (a pool a user, FAIR in and between): of means, medians and 95th
percentiles over queries, and of users' means (geometric mean). *Over 1.1* is the share of users
whose mean is more than 1.1 times, and more than half a second above, that of `user-fair` replayed
with the arrivals of the run, since in closed loops who is answered sooner asks more. *ETL* is the
large query beside loops. Nothing was chosen on these seeds.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.trace import Trace
from parcae.evaluation.policies import resolve_policies
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import NEVER_MS
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload

CORES = 32
POLICIES = ("fair", "srpt", "user-fair+srpt", "account")
_BASE = "user-fair"
_TRACES = Path(__file__).parents[1] / ".." / "shared" / "data" / "uwfq"
#: Seconds in which queries count that arrive; the run goes on for a quarter as long.
_SPAN_S = 600.0
_FIRST_SEED = 4_100
Stages = list[tuple[int, float]]


@dataclass
class Query:
    """A query: who asks, when (None: after the one before it in its loop), and its stages."""

    user: str
    name: str
    stages: Stages
    at_s: float | None = None
    think_s: float = 0.0
    loop: int = -1

    @property
    def work_s(self) -> float:
        return sum(tasks * task_s for tasks, task_s in self.stages)


@dataclass
class Situation:
    """Queries as they are drawn."""

    seed: int
    queries: list[Query] = field(default_factory=list)
    num_loops: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def stages(self, work_s: float, width: int = 0) -> Stages:
        """One to four stages; tasks grow slowly with the work."""
        shares = self.rng.dirichlet(np.ones(int(self.rng.integers(1, 5))) * 2)
        found = []
        for share in shares:
            own_s = max(work_s * share, 0.05)
            task_s = float(np.clip(0.15 * own_s**0.35, 0.05, 2.0))
            tasks = width or max(1, round(own_s / task_s))
            found.append((tasks, own_s / tasks))
        return found

    def sizes(self, median_s: float, sigma: float, count: int, most_s: float = 1e9) -> Any:
        """Works of queries."""
        return np.minimum(median_s * np.exp(sigma * self.rng.normal(size=count)), most_s)

    def loop(self, user: str, begin_s: float, works_s: Any, thinks_s: Any, width: int = 0) -> None:
        """Queries that one after another waits for, with thinking between."""
        for place, (work_s, think_s) in enumerate(zip(works_s, thinks_s, strict=True)):
            at_s = begin_s if place == 0 else None
            stages = self.stages(work_s, width)
            self.queries.append(Query(user, user, stages, at_s, think_s, self.num_loops))
        self.num_loops += 1

    def open(
        self, user: str, mean_gap_s: float, median_s: float, most_s: float, kinds: int
    ) -> None:
        """Queries of a person that come whatever happens."""
        at_s = self.rng.exponential(mean_gap_s)
        while at_s < _SPAN_S:
            work_s = self.sizes(median_s, 1.2, 1, most_s)[0]
            name = f"{user} {self.rng.integers(kinds)}"
            self.queries.append(Query(user, name, self.stages(work_s), at_s))
            at_s += self.rng.exponential(mean_gap_s)


def loops_and_etl(seed: int, loops: int) -> Situation:
    """Users who each loop twice over small wide queries, beside one of large queries."""
    made = Situation(seed)
    for user in range(loops):
        for session in range(2):
            works_s = made.sizes(14, 0.4, 1_000)
            made.loop(f"loop {user}", 5 * user + session, works_s, np.zeros(1_000), 48)
    made.loop("etl", 10, made.sizes(350, 0.4, 60), made.rng.exponential(20, 60), 100)
    return made


def loops_and_users(seed: int) -> Situation:
    """Two loops, four people, two users of large queries."""
    made = Situation(seed)
    made.loop("loop 0", 0, made.sizes(14, 0.5, 1_500), np.zeros(1_500), 48)
    made.loop("loop 1", 0, made.sizes(10, 0.7, 1_500), made.rng.exponential(1, 1_500), 48)
    for user in range(4):
        made.open(f"person {user}", 8, 10, 400, 6)
    for user in range(2):
        works_s = made.sizes(500, 0.5, 50)
        made.loop(f"etl {user}", 20 * (user + 1), works_s, made.rng.exponential(30, 50))
    return made


def one_users_loops(seed: int) -> Situation:
    """A user with two loops and large queries; four people."""
    made = Situation(seed)
    for session in range(2):
        made.loop("both", session, made.sizes(14, 0.4, 1_000), np.zeros(1_000), 48)
    made.loop("both", 10, made.sizes(250, 0.4, 60), made.rng.exponential(20, 60), 100)
    for user in range(4):
        made.open(f"person {user}", 12, 10, 400, 6)
    return made


def office(seed: int, load: float) -> Situation:
    """Ten analysts, two users of large queries, a dashboard that asks twenty queries a minute."""
    made = Situation(seed)
    for user in range(10):
        works_s = made.sizes(25 * load, 1.2, 600, 800)
        begin_s = made.rng.uniform(0, 10)
        made.loop(f"analyst {user}", begin_s, works_s, made.rng.exponential(18, 600))
    for user in range(2):
        at_s = made.rng.uniform(0, 60)
        while at_s < _SPAN_S:
            stages = made.stages(made.sizes(1_375 * load, 0.4, 1)[0])
            made.queries.append(Query(f"etl {user}", f"etl {user}", stages, at_s))
            at_s += 150 + made.rng.exponential(30)
    for minute in range(10):
        for tile in range(20):
            stages = made.stages(made.sizes(6, 0.6, 1)[0])
            at_s = 15 + 60 * minute + made.rng.uniform(0, 0.5)
            made.queries.append(Query("dashboard", f"tile {tile}", stages, at_s))
    return made


def one_user(seed: int) -> Situation:
    """Forty recurring queries of one user at a load of .85."""
    made = Situation(seed)
    times_s = np.cumsum(made.rng.exponential(1, 700))
    times_s = times_s[times_s < _SPAN_S]
    works_s = made.sizes(8, 1.5, len(times_s), 1_500)
    works_s *= 0.85 * CORES * _SPAN_S / works_s.sum()
    for at_s, work_s in zip(times_s, works_s, strict=True):
        name = f"query {made.rng.integers(40)}"
        made.queries.append(Query("one", name, made.stages(work_s), at_s))
    return made


def flood(seed: int) -> Situation:
    """Twice 250 queries at once from one user; eight people."""
    made = Situation(seed)
    for at_s in (60, 360):
        for place, work_s in enumerate(made.sizes(10, 1.0, 250, 600)):
            name = f"flood {place % 20}"
            stages = made.stages(work_s)
            made.queries.append(Query("flood", name, stages, at_s + 0.01 * place))
    for user in range(8):
        made.open(f"person {user}", 15, 12, 500, 6)
    return made


def mixed(seed: int, load: float) -> Situation:
    """Twelve users of unlike sizes, single queries and bursts."""
    made = Situation(seed)
    medians_s = np.exp(made.rng.normal(2.3, 1.0, 12))
    asked = list[tuple[int, float, float]]()
    for user, median_s in enumerate(medians_s):
        comes_in_bursts = made.rng.random() < 0.4
        gap_s = _SPAN_S / max(6, 40 * math.sqrt(medians_s.min() / median_s))
        at_s = 0.0
        while (
            at_s := at_s + made.rng.exponential(gap_s * (5 if comes_in_bursts else 1))
        ) < _SPAN_S:
            for _ in range(1 + (made.rng.poisson(4) if comes_in_bursts else 0)):
                asked.append((user, at_s, median_s * math.exp(1.2 * made.rng.normal())))
    works_s = np.minimum([work_s for _, _, work_s in asked], 2_500)
    works_s *= load * CORES * _SPAN_S / works_s.sum()
    for (user, at_s, _), work_s in zip(asked, works_s, strict=True):
        name = f"user {user}, {made.rng.integers(6)}"
        made.queries.append(Query(f"user {user}", name, made.stages(work_s), at_s))
    return made


def recorded(seed: int, name: str) -> Situation:
    """A published trace of UWFQ's authors."""
    made = Situation(seed)
    by_job = dict[str, list[dict[str, str]]]()
    with (_TRACES / f"{name}.csv").open() as lines:
        for row in csv.DictReader(lines):
            by_job.setdefault(row["job"], []).append(row)
    for rows in by_job.values():
        stages = [(int(row["tasks"]), int(row["duration_mean_ms"]) / 1_000) for row in rows]
        first = rows[0]
        at_s = float(first["arrival_s"])
        made.queries.append(Query(first["pool"], first["name"], stages, at_s))
    return made


SITUATIONS: dict[str, Callable[[int], Situation]] = {
    "a loop beside ETL": lambda seed: loops_and_etl(seed, 1),
    "three loops beside ETL": lambda seed: loops_and_etl(seed, 3),
    "loops, people, ETL": loops_and_users,
    "loops and ETL of one user": one_users_loops,
    "office, load .8": lambda seed: office(seed, 0.8),
    "office, load 1.15": lambda seed: office(seed, 1.15),
    "one user": one_user,
    "flood": flood,
    "mixed, load .7": lambda seed: mixed(seed, 0.7),
    "mixed, load .9": lambda seed: mixed(seed, 0.9),
    "hetero": lambda seed: recorded(seed, "hetero"),
    "homo": lambda seed: recorded(seed, "homo"),
}


@dataclass(frozen=True)
class Knowledge:
    """What a scheduler knows: sizes with a log-normal error, or none; users, or none."""

    name: str
    sigma: float = 0.5
    knows_sizes: bool = True
    knows_users: bool = True
    is_one_user: bool = False


KNOWLEDGE = (
    Knowledge("sigma .5"),
    Knowledge("exact", 0.0),
    Knowledge("sigma 1", 1.0),
    Knowledge("sigma 1.5", 1.5),
    Knowledge("all estimates equal", knows_sizes=False),
    Knowledge("one user", is_one_user=True),
    Knowledge("users unknown", knows_users=False),
)


def sequence_of(made: Situation, known: Knowledge) -> JobSequence:
    """The queries as jobs; those of a loop follow each other."""
    rng = np.random.default_rng(made.seed + 1)
    of_name = dict[str, float]()
    specs = []
    for query in made.queries:
        # Half of the variance is that of the recurring query, half that of the run.
        common = of_name.setdefault(query.name, rng.normal())
        error = math.exp(known.sigma * math.sqrt(0.5) * (common + rng.normal()))
        stages = []
        for place, (tasks, task_s) in enumerate(query.stages):
            noise = np.exp(rng.normal(0.0, 0.3, tasks) - 0.045)
            samples = np.maximum(1, np.rint(1_000 * task_s * noise)).astype(np.int64)
            durations = TaskDurations((1,), (samples,), (samples,), (samples,))
            guess_ms = 10_000 / sum(count for count, _ in query.stages)
            expected_ms = 1_000 * task_s * error if known.knows_sizes else guess_ms
            parents = (place - 1,) if place else ()
            stages.append(StageSpec(tasks, durations, parents, mean_task_ms=expected_ms))
        user = "one" if known.is_one_user else query.user
        specs.append(JobSpec(query.name, tuple(stages), user=user if known.knows_users else ""))
    follows = [place - 1 if query.at_s is None else -1 for place, query in enumerate(made.queries)]
    ready_s = list[float]()
    for place, query in enumerate(made.queries):
        before = made.queries[place - 1]
        path_s = sum(task_s for _, task_s in before.stages)
        after_s = ready_s[-1] + path_s + before.think_s if query.at_s is None else query.at_s
        ready_s.append(after_s)
    order = np.argsort(ready_s, kind="stable")
    place_of = np.argsort(order)
    return JobSequence(
        Workload("users", tuple(specs)),
        order,
        np.rint(1_000 * np.array(ready_s)[order]).astype(np.int64),
        follows=np.array([-1 if follows[row] < 0 else place_of[follows[row]] for row in order]),
        pause_ms=np.array(
            [
                0 if follows[row] < 0 else round(1_000 * made.queries[follows[row]].think_s)
                for row in order
            ]
        ),
    )


_CONFIG = SimulationConfig(
    world=WorldName.CORES,
    num_executors=CORES,
    durations=DurationMode.LISTED,
    end_ms=int(1_250 * _SPAN_S),
)


def run(sequence: JobSequence, name: str) -> Trace:
    """The sequence under a policy."""
    made = resolve_policies(sequence.workload, [name], _CONFIG, "batch", sequence.num_jobs)
    return simulate(sequence, made.policies[name], _CONFIG, 1)


def at_the_same_arrivals(sequence: JobSequence, trace: Trace) -> npt.NDArray[np.float64]:
    """Times under `user-fair` of the jobs that arrived, when they did; NaN for the others."""
    came = np.flatnonzero(_times_s(trace) >= 0)
    came = came[np.argsort(trace.arrival_ms[came], kind="stable")]
    replayed = JobSequence(sequence.workload, sequence.job_index[came], trace.arrival_ms[came])
    found = np.full(sequence.num_jobs, np.nan)
    found[came] = _times_s(run(replayed, _BASE))
    return found


def _times_s(trace: Trace) -> npt.NDArray[np.float64]:
    """The times of jobs that came within the span; up to the end of the run for those that go on,
    NaN for the others.
    """
    came = trace.arrival_ms < min(int(NEVER_MS), 1_000 * _SPAN_S)
    return np.where(came, jct_ms(trace) / 1_000, np.nan)


def measured(made: Situation, sequence: JobSequence, names: Sequence[str]) -> Iterable[list[float]]:
    """A row a policy: see the columns of `main`."""
    users = np.array([made.queries[row].user for row in sequence.job_index])
    base_s = _times_s(run(sequence, _BASE))
    for name in names:
        trace = run(sequence, name)
        own_s = _times_s(trace)
        same_s = at_the_same_arrivals(sequence, trace) if sequence.has_sessions else base_s
        ratios = [
            np.nanmean(own_s[users == user]) / np.nanmean(base_s[users == user])
            for user in np.unique(users)
        ]
        harms = []
        for user in np.unique(users):
            mean_s, fair_s = (np.nanmean(times[users == user]) for times in (own_s, same_s))
            harms.append(mean_s / fair_s if mean_s > fair_s + 0.5 else 1.0)
        etl = np.array([user.startswith("etl") for user in users])
        yield [
            float(np.nanmean(own_s) / np.nanmean(base_s)),
            np.nanmedian(own_s) / np.nanmedian(base_s),
            np.nanquantile(own_s, 0.95) / np.nanquantile(base_s, 0.95),
            _mean_ratio(ratios),
            float(np.mean(np.array(harms) > 1.1)),
            max(harms),
            np.nanmean(own_s[etl]) / np.nanmean(base_s[etl]) if etl.any() else math.nan,
        ]


def _mean_ratio(values: Iterable[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.nanmean(np.log(np.array(list(values), np.float64)))))


def table(known: Knowledge, seeds: Sequence[int], names: Sequence[str]) -> list[str]:
    """A row a policy, over all situations and seeds."""
    rows: dict[str, list[list[float]]] = {name: [] for name in names}
    loops: dict[str, list[float]] = {name: [] for name in names}
    for title, make in SITUATIONS.items():
        for seed in seeds:
            made = make(seed)
            sequence = sequence_of(made, known)
            for name, row in zip(names, measured(made, sequence, names), strict=True):
                rows[name].append(row)
                if "loop" in title and "one user" not in title:
                    loops[name].append(row[-1])
    lines = []
    for name, found in rows.items():
        columns = np.array(found).T
        means = " | ".join(f"{_mean_ratio(column):.3f}" for column in columns[:4])
        over = f"{columns[4].mean():.1%} ({columns[5].max():.2f})"
        etl = f"{_mean_ratio(loops[name]):.2f}, {max(loops[name]):.2f}"
        lines.append(f"| {known.name} | `{name}` | {means} | {over} | {etl} |")
    return lines


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=3, help="seeds of every situation")
    options.add_argument("--sigma", type=float, help="only this error of the estimates")
    given = options.parse_args()
    seeds = range(_FIRST_SEED, _FIRST_SEED + given.seeds)
    print("| known | policy | mean | median | p95 | users' mean | over 1.1 (worst) | ETL, worst |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    only = replace(KNOWLEDGE[0], name=f"sigma {given.sigma}", sigma=given.sigma or 0.0)
    for known in (only,) if given.sigma is not None else KNOWLEDGE:
        # Who is unknown and how sizes err matters to the order by size and accounts only.
        names = POLICIES if known is KNOWLEDGE[0] or known is only else ("srpt", "account")
        for line in table(known, seeds, names):
            print(line, flush=True)


if __name__ == "__main__":
    main()
