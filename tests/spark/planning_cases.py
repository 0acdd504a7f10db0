"""Events of queries in an application, and the orders that Parcae's Python planners make of them.

`NUMBA_DISABLE_JIT=1 python -m tests.spark.planning_cases` writes the fixture to which the tests
compare the plugin's planner. The orders are those of the kernels of `parcae.policies` and
`parcae.cluster.kernels`, which run uncompiled here. Only the planner's knowledge of a query
(`Picture`) is written a second time, for the tests.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numba
import numpy as np

from parcae.base.compiled.tables import allocate_tables
from parcae.base.files import write_text
from parcae.cluster.kernels import virtual as virtual_kernels
from parcae.cluster.kernels.accounts import charge_orders, enter_account, move_clock
from parcae.cluster.kernels.policies import plan
from parcae.cluster.kernels.tables import LEAST_SHARE
from parcae.cluster.observation import Observation
from parcae.cluster.orders import blank_orders, orders_of
from parcae.cluster.state import (
    NOT_YET,
    UNLIMITED,
    ClusterState,
    ExecutorClass,
    VirtualRun,
    World,
    allocate,
    select,
)
from parcae.policies.formula.language import parse_formula
from parcae.policies.formula.policy import FormulaPolicy
from parcae.policies.network.kernels import OrderNetwork, OrderWorkspace
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.policies.policy_file import PolicyFile, content_of, export_policy
from parcae.policies.rule.policy import order_rule
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.conftest import REPOSITORY

FIXTURE = REPOSITORY / "spark-plugin" / "src" / "test" / "resources" / "planning.json"
#: Rows that every query has in the tables.
_ROOM = 12
_EXPECTED = -1
_MAX_QUERIES = 40
#: Where accounts are kept: the users of queries, and those whose weight is not 1.
_USERS = ("ann", "bob", "cy", "dee")
_WEIGHTS = {"bob": 2.0, "dee": 0.5}

Json = dict[str, Any]
Event = list[Any]


@dataclass(eq=False)
class Row:
    """A stage of a query: expected, listed, running or done."""

    stage: int
    tasks: int
    task_ms: float
    parents: list[Row] = field(default_factory=list)
    is_submitted: bool = False
    is_open: bool = False
    attempt: int = 0
    started: int = 0
    finished: int = 0
    executed_ms: int = 0
    #: Its rows in the virtual runs, in the order of `Tables.virtual_runs`.
    memory: list[Any] = field(default_factory=list)


class Picture:
    """A query as the planner knows it; it is `parcae.spark.guest.Query` in Python."""

    def __init__(
        self,
        number: int,
        profile: list[Json] | None,
        guess_ms: float,
        arrival_ms: int,
        user: str = "",
    ) -> None:
        self.number = number
        self.user = user
        self.arrival_ms = arrival_ms
        self.end_ms = NOT_YET
        self.is_reshaped = True
        self.listed = dict[int, list[int]]()
        self._has_profile = profile is not None
        profile_stages = profile or []
        self.rows = [Row(_EXPECTED, stage["tasks"], stage["task_ms"]) for stage in profile_stages]
        for row, stage in zip(self.rows, profile_stages, strict=True):
            row.parents = [self.rows[parent] for parent in stage["parents"]]
        work_ms = sum(stage["tasks"] * stage["task_ms"] for stage in profile_stages)
        self._other_ms = (
            work_ms / sum(stage["tasks"] for stage in profile_stages)
            if profile_stages
            else guess_ms
        )

    def row(self, stage: int) -> Row | None:
        """The row of a stage that Spark has listed or submitted."""
        return next((row for row in self.rows if row.stage == stage), None)

    def list_stages(self, stages: Iterable[tuple[int, int, list[int]]]) -> None:
        """A Spark job of the query starts."""
        for stage, tasks, parents in stages:
            self.listed[stage] = parents
            if not self._has_profile:
                self._add(stage, tasks)

    def _add(self, stage: int, tasks: int) -> Row:
        known = (self.row(parent) for parent in self.listed[stage])
        row = Row(stage, tasks, self._other_ms, [parent for parent in known if parent])
        self.rows.append(row)
        self.is_reshaped = True
        return row

    def _remove(self, row: Row) -> None:
        self.rows.remove(row)
        for other in self.rows:
            other.parents = [parent for parent in other.parents if parent is not row]
        self.is_reshaped = True

    def submit(self, stage: int, attempt: int, tasks: int) -> None:
        """A stage is submitted for the first time or again."""
        row = self.row(stage) or self._match_row(stage, tasks)
        if row.is_submitted:
            row.tasks = row.finished + tasks
            row.started = row.finished
        else:
            row.tasks = tasks
            self._skip_above(stage)
        row.is_submitted = row.is_open = True
        row.attempt = attempt
        self.is_reshaped = True

    def _match_row(self, stage: int, tasks: int) -> Row:
        free = [row for row in self.rows if row.stage == _EXPECTED]
        ready = [row for row in free if all(parent.stage != _EXPECTED for parent in row.parents)]
        best = min(ready or free, key=lambda row: abs(math.log(row.tasks / tasks)), default=None)
        if best is None:
            return self._add(stage, tasks)
        best.stage = stage
        return best

    def _skip_above(self, stage: int) -> None:
        for parent in self.listed[stage]:
            row = self.row(parent)
            if row and not row.is_submitted:
                self._remove(row)
                self._skip_above(parent)

    def close(self, stage: int) -> None:
        """A stage is complete or no longer needed."""
        row = self.row(stage)
        if row is None:
            return
        if row.finished == 0:
            self._remove(row)
            return
        self.is_reshaped |= row.tasks != row.finished
        row.tasks = row.started = row.finished
        row.is_open = False

    def end(self, time_ms: int) -> None:
        """The query has ended: remove the stages that have not run."""
        for row in list(self.rows):
            if row.finished == 0:
                self._remove(row)
            else:
                self.close(row.stage)
        self.end_ms = time_ms

    def downstream_ms(self, row: Row) -> float:
        """Downstream work: that of the heaviest path from the row to a leaf."""
        children = [other for other in self.rows if row in other.parents]
        return row.tasks * row.task_ms + max(map(self.downstream_ms, children), default=0.0)


class Tables:
    """The cluster's tables, filled from pictures, and the planners that read them."""

    def __init__(self, policy: PolicyFile) -> None:
        self._policy = policy
        num_stages = _ROOM * _MAX_QUERIES
        classes = (ExecutorClass(1),)
        self.state = select(
            allocate(1, classes, _MAX_QUERIES, num_stages, num_stages * _ROOM, World.CORES), 0
        )
        now = self.state.now
        now.is_corrected[0] = 1
        now.least_share[0] = LEAST_SHARE
        now.guess_ms[0] = policy.guess_ms
        if policy.account is not None:
            now.keeps_accounts[0] = 1
            now.account_factor[0] = policy.account.factor
            now.account_floor[0] = policy.account.floor
            is_work = policy.kind in ("srpt", "formula")
            now.tier_unit_ms[0] = 0.0 if is_work else policy.mean_work_ms
        theta = tuple(policy.parameters.values()) or (0.0,) * 21
        rule = order_rule(theta, policy.mean_work_ms, _MAX_QUERIES, num_stages)
        network = OrderNetwork(
            np.array(policy.weights), rule, allocate_tables(OrderWorkspace, jobs=_MAX_QUERIES)
        )
        self._planners: dict[str, Any] = {
            "srpt": OrderPolicy("srpt", OrderKind.SRPT, plan_tables()).tables_for(1, 1),
            "order-rule": rule,
            "order-network": network,
        }
        self.virtual_runs = (rule.virtual,)
        if policy.kind == "formula":
            formula = FormulaPolicy(policy.policy, parse_formula(policy.policy.partition(":")[2]))
            self._planners["formula"] = formula.tables_for(_MAX_QUERIES, num_stages)
            self.virtual_runs = (self._planners["formula"].virtual,)

    def enter(self, number: int, user: str) -> None:
        """Give a new query the account of its user."""
        enter_account(self.state, number, _USERS.index(user), _WEIGHTS.get(user, 1.0))

    def move(self, queries: list[Picture], cores: int, time_ms: int) -> None:
        """Let time pass since the last event."""
        self._fill(queries, cores, int(self.state.now.clock_ms[0]))
        move_clock(self.state, time_ms)

    def accounts(self) -> dict[str, list[float]]:
        """What every user has received and would have received, of the open accounts."""
        table = self.state.accounts[: int(self.state.now.num_accounts[0])]
        return {
            _USERS[one.user]: [_short(one.received_ms), _short(one.split_ms)]
            for one in table
            if one.is_open
        }

    def plan(self, queries: list[Picture], cores: int, time_ms: int) -> Json:
        """The order of the policy for the present state."""
        state = self.state
        self._fill(queries, cores, time_ms)
        for index, run in enumerate(self.virtual_runs):
            self._recall(index, run, queries)
        blank = blank_orders(_MAX_QUERIES, _ROOM * _MAX_QUERIES)
        state.job_orders[:] = blank.jobs
        state.stage_orders[:] = blank.stages
        view = Observation(*(getattr(state, name) for name in Observation._fields))
        plan(view, orders_of(state), self._planners[self._policy.kind])
        if self._policy.account:
            charge_orders(state)
        self._remember(queries)
        return self._to_json(queries)

    def _fill(self, queries: list[Picture], cores: int, time_ms: int) -> None:
        state = self.state
        now = self.state.now
        open_ones = [row for row, query in enumerate(queries) if query.end_ms == NOT_YET]
        now.clock_ms[0] = time_ms
        now.num_executors[0] = cores
        now.num_jobs[0] = len(queries)
        now.num_active[0] = len(open_ones)
        state.active[: len(open_ones)] = open_ones
        edge = 0
        for job, query in enumerate(queries):
            assert len(query.rows) <= _ROOM
            first = job * _ROOM
            jobs = state.jobs
            jobs.stage_start[job] = first
            jobs.num_stages[job] = len(query.rows)
            jobs.arrival_ms[job] = query.arrival_ms
            jobs.completion_ms[job] = query.end_ms
            jobs.num_attached[job] = sum(row.started - row.finished for row in query.rows)
            jobs.num_schedulable[job] = sum(
                row.is_open and row.started < row.tasks for row in query.rows
            )
            for place, row in enumerate(query.rows):
                is_pending = row.is_open and row.started < row.tasks
                children = [
                    first + index for index, other in enumerate(query.rows) if row in other.parents
                ]
                record = state.stages[first + place]
                record.job = job
                record.num_tasks = row.tasks
                record.num_started = row.started
                record.num_finished = row.finished
                record.num_bound = row.started - row.finished
                record.executed_ms = row.executed_ms
                record.task_ms = row.task_ms
                record.downstream_ms = query.downstream_ms(row)
                record.frontier_rank = 0 if is_pending else -1
                record.child_start = edge
                record.num_children = len(children)
                state.children[edge : edge + len(children)] = children
                edge += len(children)

    def _recall(self, index: int, run: VirtualRun, queries: list[Picture]) -> None:
        """Copy the remembered rows of a virtual run to the present places; new rows are zero."""
        for job, query in enumerate(queries[: int(run.now.num_jobs[0])]):
            first = job * _ROOM
            for place, row in enumerate(query.rows):
                run.stages[first + place] = (
                    row.memory[index] if row.memory else np.zeros(1, run.stages.dtype)[0]
                )
            if query.is_reshaped:
                self._reshape(run, job, query)

    def _reshape(self, run: VirtualRun, job: int, query: Picture) -> None:
        stages = run.stages[job * _ROOM :]
        run.jobs.num_left[job] = sum(not stages.is_ended[place] for place in range(len(query.rows)))
        for place, row in enumerate(query.rows):
            parents = [query.rows.index(parent) for parent in row.parents]
            stages.num_waiting[place] = sum(not stages.is_ended[parent] for parent in parents)
        virtual_kernels.find_critical_paths(self.state, run, job)

    def _remember(self, queries: list[Picture]) -> None:
        for job, query in enumerate(queries):
            query.is_reshaped = False
            for place, row in enumerate(query.rows):
                row.memory = [run.stages[job * _ROOM + place].copy() for run in self.virtual_runs]

    def _to_json(self, queries: list[Picture]) -> Json:
        state: ClusterState = self.state
        jobs = dict[str, list[float | None]]()
        stages = dict[str, float]()
        for job, query in enumerate(queries):
            if query.end_ms != NOT_YET:
                continue
            limit = int(state.job_orders.limit[job])
            jobs[str(query.number)] = [
                _short(state.job_orders.tier[job]),
                None if limit == UNLIMITED else limit,
            ]
            for place, row in enumerate(query.rows):
                rank = _short(state.stage_orders.rank[job * _ROOM + place])
                if rank:
                    stages[str(row.stage)] = rank
        order = {"jobs": jobs, "stages": stages, "wake_ms": int(state.now.wake_ms[0])}
        return {**order, "accounts": self.accounts()} if self._policy.account else order


def _short(value: Any) -> float:
    return float(f"{value:.12g}")


class Application:
    """Draws the events of an application, including the times at which an order is made."""

    def __init__(self, draw: random.Random, policy: PolicyFile) -> None:
        self._draw = draw
        self._policy = policy
        self._tables = Tables(policy)
        self._queries = list[Picture]()
        self._time_ms = 1_000
        self._cores = draw.choice([2, 4, 16, 100])
        self._num_stages = self._num_jobs = 0
        self._jobs_of = dict[int, list[int]]()
        self._stages_of = dict[int, list[int]]()
        self.events: list[Event] = [["time", self._time_ms], ["cores", self._cores]]

    def _add_event(self, *event: Any) -> None:
        self.events.append(list(event))

    def run(self, num_steps: int) -> None:
        """Draw so many steps."""
        for _ in range(num_steps):
            self._step()
            if self._draw.random() < 0.35:
                order = self._tables.plan(self._queries, self._cores, self._time_ms)
                self._add_event("plan", order)

    def _step(self) -> None:
        draw = self._draw
        if draw.random() < 0.7:
            self._time_ms += round(draw.expovariate(1 / 400)) + 1
            if self._policy.account:
                self._tables.move(self._queries, self._cores, self._time_ms)
            self._add_event("time", self._time_ms)
        open_ones = [query for query in self._queries if query.end_ms == NOT_YET]
        if len(self._queries) < _MAX_QUERIES and (not open_ones or draw.random() < 0.12):
            self._arrive()
            return
        query = draw.choice(open_ones[:3])  # mostly old queries, so that some end
        rare = [self._late, self._again, self._end_job, self._end]
        actions = [self._submit] * 4 + [self._work] * 10 + [self._complete] * 3 + rare
        draw.choice(actions)(query)
        if draw.random() < 0.02:
            self._cores = draw.choice([1, 4, 16, 100])
            self._add_event("cores", self._cores)

    def _arrive(self) -> None:
        number = len(self._queries)
        names = list(self._policy.jobs)
        name = self._draw.choice(names) if self._draw.random() < 0.6 else f"unknown {number}"
        known = self._policy.jobs.get(name)
        profile = [stage.model_dump() for stage in known.stages] if known else None
        user = self._draw.choice(_USERS) if self._policy.account else ""
        self._queries.append(Picture(number, profile, self._policy.guess_ms, self._time_ms, user))
        if user:
            self._tables.enter(number, user)
        self._jobs_of[number] = []
        self._add_event("execution", number)
        self._start_job(self._queries[-1], name)

    def _start_job(self, query: Picture, name: str) -> None:
        """Start a Spark job of one to four stages; each may wait for those before it."""
        draw = self._draw
        room = _ROOM - max(len(query.rows), len(query.listed))
        stages = list[tuple[int, int, list[int]]]()
        for _ in range(min(draw.randint(1, 4), room)):
            parents = draw.sample(
                [stage for stage, _, _ in stages], draw.randint(0, min(2, len(stages)))
            )
            stages.append((self._num_stages, draw.choice([1, 2, 8, draw.randint(1, 60)]), parents))
            self._num_stages += 1
        of_user = [query.user] if query.user else []
        self._add_event("job", self._num_jobs, query.number, name, stages, *of_user)
        self._jobs_of[query.number].append(self._num_jobs)
        self._stages_of[self._num_jobs] = [stage for stage, _, _ in stages]
        self._num_jobs += 1
        query.list_stages(stages)

    def _late(self, query: Picture) -> None:
        """Adaptive execution goes on with another Spark job."""
        if max(len(query.rows), len(query.listed)) < _ROOM - 4:
            self._start_job(query, "")

    def _submit(self, query: Picture) -> None:
        submitted = {row.stage for row in query.rows if row.is_submitted}
        free = [stage for stage in query.listed if stage not in submitted]
        if free:
            stage = self._draw.choice(free)
            tasks = self._draw.choice([1, 2, 8, self._draw.randint(1, 60)])
            self._add_event("submit", stage, 0, tasks)
            query.submit(stage, 0, tasks)

    def _running(self, query: Picture) -> Row | None:
        rows = [row for row in query.rows if row.is_open]
        return self._draw.choice(rows) if rows else None

    def _work(self, query: Picture) -> None:
        """Tasks of a stage start, and some of those that run end or fail."""
        row = self._running(query)
        if row is None:
            return
        draw = self._draw
        number = min(draw.randint(0, 6), row.tasks - row.started)
        row.started += number
        self._add_event("start", row.stage, row.attempt, number)
        if row.started > row.finished and draw.random() < 0.15:
            row.started -= 1
            self._add_event("fail", row.stage, row.attempt)
        number = draw.randint(0, row.started - row.finished)
        slow = draw.lognormvariate(0.0, 1.0)
        took = [max(1, round(row.task_ms * slow * draw.uniform(0.5, 1.5))) for _ in range(number)]
        row.finished += number
        row.executed_ms += sum(took)
        self._add_event("end", row.stage, row.attempt, took)

    def _complete(self, query: Picture) -> None:
        row = self._running(query)
        if row and (
            row.finished == row.tasks or (self._draw.random() < 0.1 and len(query.rows) > 1)
        ):
            self._stop(row)
            self._add_event("complete", row.stage)
            query.close(row.stage)

    def _stop(self, row: Row) -> None:
        """The running tasks of a stage that is over fail where accounts are kept.

        Otherwise their ends would be missing, and the core time with them.
        """
        while self._policy.account and row.started > row.finished:
            row.started -= 1
            self._add_event("fail", row.stage, row.attempt)

    def _end_job(self, query: Picture) -> None:
        """A Spark job ends, and its query goes on."""
        jobs = self._jobs_of[query.number]
        stages = self._stages_of[jobs[0]] if jobs else []
        if jobs and any(row.finished or row.stage not in stages for row in query.rows):
            for row in query.rows:
                if row.stage in stages:
                    self._stop(row)
            self._add_event("job end", jobs.pop(0), True)
            for stage in stages:
                query.close(stage)

    def _again(self, query: Picture) -> None:
        """Output of a stage was lost."""
        done = [row for row in query.rows if row.is_submitted and row.finished]
        if done:
            row = self._draw.choice(done)
            tasks = self._draw.randint(1, 4)
            self._stop(row)
            self._add_event("submit", row.stage, row.attempt + 1, tasks)
            query.submit(row.stage, row.attempt + 1, tasks)

    def _end(self, query: Picture) -> None:
        if query.number < len(self._queries) - 1:
            is_success = self._draw.random() < 0.8
            for row in query.rows:
                self._stop(row)
            for job in self._jobs_of[query.number]:
                self._add_event("job end", job, is_success)
            self._add_event("execution end", query.number)
            query.end(self._time_ms)


def workload() -> Workload:
    """The recurring jobs that the policies know."""
    jobs = [chain(1, 4, 100, "small"), chain(2, 8, 150, "middle"), chain(4, 40, 900, "large")]
    return Workload("golden", tuple(jobs))


POLICIES = (
    "srpt",
    "srpt+account",
    "tuned",
    "tuned+account",
    "tries+account",
    "parcae",
    "tries",
    "formula: max(rem + 2 * overdraft, rem / 10) + path * error / width + fair / (1 + stages)"
    " + log(1 + total + service) * age / queries + share * running * cores",
)


def policy_of(name: str) -> PolicyFile:
    """The policy file of a policy; `tries` is `tuned`, but probes every query by a few tasks."""
    exported = export_policy(name.replace("tries", "tuned"), workload())
    if name.startswith("tries"):
        tried = {**exported.parameters, "PROBE": 2.0, "PROBE_ERRING": 1.0, "PROBE_SHARE": 2.5}
        exported = exported.model_copy(update={"policy": name, "parameters": tried})
    return exported


def cases() -> Iterator[Json]:
    """Every policy's file and runs."""
    for place, name in enumerate(POLICIES):
        policy = policy_of(name)
        runs = []
        for number in range(3):
            application = Application(random.Random(1_000 * place + number), policy)
            application.run(140)
            runs.append(application.events)
        weights = {"weights": _WEIGHTS} if policy.account else {}
        yield {"policy": content_of(policy), **weights, "runs": runs}


def text() -> str:
    """The fixture."""
    return "[\n" + ",\n".join(json.dumps(case) for case in cases()) + "\n]\n"


def write(path: Path = FIXTURE) -> None:
    """Write the fixture."""
    write_text(path, text())


if __name__ == "__main__":
    if not numba.config.DISABLE_JIT:
        sys.exit("the kernels would be compiled for the tests' tables: set NUMBA_DISABLE_JIT=1")
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FIXTURE)
