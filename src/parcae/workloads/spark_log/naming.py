"""Names recurring jobs and their stages: readable names that are the same in every run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from parcae.workloads.spark_log.application import (
    ApplicationLog,
    JobStart,
    SqlRecord,
    StageInfo,
    StageRecord,
)
from parcae.workloads.spark_log.plan import NAME_PROPERTY, PLAN_KEY, SHAPE_KEY


@dataclass(eq=False)
class JobGroup:
    """The Spark jobs of one job, and its SQL executions."""

    jobs: list[JobStart]
    executions: list[SqlRecord] = field(default_factory=list)

    def is_ended(self, log: ApplicationLog) -> bool:
        """Whether the log contains the ends of all its Spark jobs and SQL executions."""
        return all(job.job_id in log.job_results for job in self.jobs) and all(
            e.is_ended for e in self.executions
        )

    def is_successful(self, log: ApplicationLog) -> bool:
        """Whether the job succeeded; only for a group that has ended.

        The SQL executions decide if they have a result: an execution may cancel Spark jobs and
        succeed. Otherwise the Spark jobs decide.
        """
        results = [execution.is_success for execution in self.executions]
        if results and all(is_success is not None for is_success in results):
            return all(results)
        return all(log.job_results[job.job_id] for job in self.jobs)


def first_listing_job(log: ApplicationLog) -> dict[int, int]:
    """For every stage the first Spark job that lists it.

    Later jobs that share the stage skip it.
    """
    # The entry of the first job is written last.
    return {
        info.stage_id: job_id
        for job_id in sorted(log.jobs, reverse=True)
        for info in log.jobs[job_id].stages
    }


def own_stages(group: JobGroup, owner: dict[int, int]) -> list[int]:
    """The stages of a group, each with the Spark job that lists it first."""
    return [
        info.stage_id
        for job in group.jobs
        for info in job.stages
        if owner[info.stage_id] == job.job_id
    ]


@dataclass(frozen=True, eq=False)
class LostStarts:
    """What belongs to Spark jobs whose start is missing in a log (Spark drops events under
    load).
    """

    num_jobs: int
    num_tasks: int
    accumulators: frozenset[int]

    def touch(self, group: JobGroup) -> bool:
        """Whether such stages ran operators of the group's queries.

        Operators and stages are connected by the SQL metrics that tasks updated.
        """
        plans = (execution.plan.operators for execution in group.executions)
        return any(metric in self.accumulators for plan in plans for metric, _ in plan)


def lost_starts(log: ApplicationLog) -> LostStarts:
    """Find the Spark jobs of a log whose start is missing, and what is left of them."""
    listed = {info.stage_id for job in log.jobs.values() for info in job.stages}
    num_tasks = log.count_tasks()
    records = (record for stage_id, record in log.stages.items() if stage_id not in listed)
    return LostStarts(
        len(log.job_results.keys() - log.jobs.keys()),
        sum(num_tasks[stage_id] for stage_id in num_tasks.keys() - listed),
        frozenset().union(*(record.accumulators for record in records)),
    )


def job_groups(log: ApplicationLog) -> Iterator[JobGroup]:
    """The Spark jobs grouped by root SQL execution.

    A Spark job without a SQL execution is a group by itself.
    """
    by_root: dict[int, JobGroup] = {}
    for job_id in sorted(log.jobs):
        job = log.jobs[job_id]
        root = _root_execution(job, log)
        if root is None:
            yield JobGroup([job])
        else:
            by_root.setdefault(root, JobGroup([])).jobs.append(job)
    # Subqueries are separate executions; they belong to the group of their root.
    for execution in log.sql.values():
        root = execution.root_id if execution.root_id in log.sql else execution.execution_id
        if root in by_root:
            by_root[root].executions.append(execution)
    yield from by_root.values()


def execution_ids(job: JobStart) -> Iterator[int]:
    """The root SQL execution that a Spark job belongs to, and its own; none outside SQL."""
    for name in ("spark.sql.execution.root.id", "spark.sql.execution.id"):
        value = job.properties.get(name, "")
        # At most 18 digits: the id fits an int64.
        if value.isdecimal() and len(value) < 19:
            yield int(value)


def _root_execution(job: JobStart, log: ApplicationLog) -> int | None:
    number = next(execution_ids(job), None)
    execution = None if number is None else log.sql.get(number)
    return execution.root_id if execution and execution.root_id in log.sql else number


def began_before_log(group: JobGroup, log: ApplicationLog) -> bool:
    """Whether a group's SQL execution began before the log, or its start was dropped.

    Some programs remove all events of SQL from a log: its queries are whole.
    """
    ids = [number for job in group.jobs for number in execution_ids(job)]
    has_sql = bool(log.sql) or log.has_unknown_sql or not log.has_beginning
    return bool(ids) and has_sql and not any(number in log.sql for number in ids)


def queries_without_plan(log: ApplicationLog, key: str | None) -> int:
    """The number of SQL queries that a key names by their plans, but whose plans are not logged."""
    if key not in (PLAN_KEY, SHAPE_KEY):
        return 0
    return sum(
        bool(group.executions)
        and not any(execution.plan_names for execution in group.executions)
        and not _given_name(group)
        for group in job_groups(log)
    )


def submission_ms(group: JobGroup, stages: Iterable[StageRecord]) -> int | None:
    """When a group was submitted, in wall-clock ms; None if the log does not contain it.

    The stages of the group that ran are used if the jobs have no submission times (Spark 1.x).
    """
    times = [job.submission_ms for job in group.jobs] + [
        execution.time_ms for execution in group.executions
    ]
    # -1 stands for a time that the log does not contain.
    known = [ms for ms in times if ms >= 0] or [
        stage.submission_ms for stage in stages if stage.submission_ms >= 0
    ]
    return min(known, default=None)


def completion_ms(
    group: JobGroup, log: ApplicationLog, stages: Iterable[StageRecord]
) -> int | None:
    """When the last of a group's Spark jobs and SQL executions ended, in wall-clock ms. Returns the
    time, or None if it is not known.
    """
    times = [log.job_end_ms.get(job.job_id, -1) for job in group.jobs] + [
        execution.end_ms for execution in group.executions
    ]
    # A job that has not ended has no end time (-1).
    known = [ms for ms in times if ms > 0] or [
        stage.completion_ms for stage in stages if stage.completion_ms > 0
    ]
    return max(known, default=None)


#: Spark Connect's own tag of a query. A user's name may have `_Session_` in it, and a client's tags
#: may look like this one behind Connect's prefix.
_CONNECT_TAG = re.compile(
    r"(?:^|,)SparkConnect_OperationTag_User_(?P<user>[^,]+)"
    r"_Session_(?P<session>[0-9a-f-]{36})_Operation_"
)
#: Kyuubi's name of the person. `spark.kyuubi.session.real.user` keeps the first one for everybody.
_KYUUBI_USER = "kyuubi.session.user"
#: Local property, or setting, by which an application without a server names the person.
USER_PROPERTY = "spark.parcae.user"


def session_of(group: JobGroup, log: ApplicationLog) -> tuple[str, str]:
    """The person who ran a group, and the server's session; "" for what the log does not say.

    The plugin's `Persons` says the same; both are tested with the events in `servers.json`.
    """
    for job in group.jobs:
        properties = job.properties
        tag = _CONNECT_TAG.search(properties.get("spark.job.tags", ""))
        statement = log.statements.get(properties.get(_GROUP, ""))
        named = (
            (tag["user"] if tag else "", tag["session"] if tag else ""),
            (properties.get(_KYUUBI_USER, ""), ""),
            (statement.user if statement else "", statement.session if statement else ""),
            (properties.get(USER_PROPERTY, ""), ""),
            (log.settings.get(USER_PROPERTY, ""), ""),
        )
        for user, session in named:
            if user.strip():
                return user.strip(), session
    return "", ""


def user_of(group: JobGroup, log: ApplicationLog, name: str) -> str:
    """The person who ran a group called `name`; else its job group without digits, unless that is
    the name, too, or a server generated it.
    """
    user, _ = session_of(group, log)
    own = _first(_given(job, _GROUP) for job in group.jobs)
    return user or ("" if own == name else _recurring(own))


def _recurring(group: str) -> str:
    """A job group without digits, which often count; "" if a server generated it."""
    return "" if _GENERATED.search(group) else re.sub("[0-9]+", "", group).strip()


@dataclass(frozen=True)
class Choice:
    """Which jobs of logs are wanted: patterns of people and of YARN's queues; None: all."""

    user: str | None = None
    queue: str | None = None

    def has(self, group: JobGroup, log: ApplicationLog) -> bool:
        """Whether a group is wanted.

        Where no server names the person, it is wanted by its job group and by whoever submitted the
        application.
        """
        user, _ = session_of(group, log)
        groups = [job.properties.get(_GROUP, "") for job in group.jobs]
        people = [user] if user else [log.owner, *groups, *map(_recurring, groups)]
        return self._fits(self.user, people) and self._fits(self.queue, [log.queue])

    @staticmethod
    def _fits(pattern: str | None, names: Iterable[str]) -> bool:
        return pattern is None or any(fnmatchcase(name, pattern) for name in names if name)


def callers_of(group: JobGroup, log: ApplicationLog) -> tuple[tuple[str, ...], str]:
    """What the groups of one caller have in common: the server's session, and the job group."""
    own = next(filter(None, (job.properties.get(_GROUP) for job in group.jobs)), "")
    return tuple(filter(None, session_of(group, log))), own


_GROUP = "spark.jobGroup.id"
MAX_NAME = 80
#: Job groups that a thrift server or a notebook generates for every statement: hexadecimal, 16
#: digits or more; Livy's are the statement's number.
_GENERATED = re.compile(
    r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}|[0-9a-fA-F]{16,}|\A[ ]*[0-9]+[ ]*\Z"
)
#: dbt's comment at the head of a statement, whose node is the same in every run.
_DBT_NODE = re.compile(r'[ \t\r\n]*/\*[ \t\r\n]*\{[^*]*?"node_id"[ ]*:[ ]*"([^"*\\]+)"')
#: What Spark adds to the name of a streaming query for every micro-batch. Each part alone may be in
#: a name that a user chose.
_BATCH = re.compile(
    r"\bid = [0-9a-fA-F-]+(?:[ \r\n]|<br/>)+runId = [0-9a-fA-F-]+(?:[ \r\n]|<br/>)+"
    r"batch = (?:[0-9]+|init)"
)
#: How Spark describes the jobs of a batch of a DStream.
_DSTREAM_BATCH = re.compile(
    r'<a href="/streaming/batch/\?id=[0-9]+">(\[output operation [0-9]+), batch time [0-9:.]+\]</a>'
)
#: What differs between runs in further descriptions of Spark's and Delta's: the number of paths and
#: the first of them, the version of a table.
_COUNTED = re.compile(
    r"^(Listing leaf files and directories)(?: for)? [0-9]+ paths?\b.*"
    r"|(snapshot for version:) [0-9]+"
)
#: A call site, whose folder is another one on every node and in every run where YARN copies files.
_CALL_SITE = re.compile(r"^([^ ]+ at )(?:[A-Za-z]+:)?[/\\].*[/\\]([^/\\]+:[0-9]+)$")
_SITE = re.compile(r"([^ ]+) at .*:[0-9]+")
#: Call sites that many queries share: those of the bridge to Python and of threads.
_SHARED_SITE = re.compile(
    r"copy_local_properties at .*|[^ ]+ at (?:NativeMethodAccessorImpl|DirectMethodHandleAccessor|"
    r"GeneratedMethodAccessor[0-9]+|AccessController|Method|FutureTask|CompletableFuture|"
    r"ThreadPoolExecutor|Thread)\.java:[0-9]+"
)
#: The beginning of a statement of SQL, which a server or a shell makes the description.
_STATEMENT = re.compile(
    r"(?:\(|/\*.*?\*/|\s)*(?:select\s.*\sfrom|with\s.*\sas|insert\s+(?:into|overwrite)|merge\s+into|"
    r"create\s+(?:or\s+replace\s+)?(?:\w+\s+)?(?:table|view)|update\s.*\sset|delete\s+from)\b",
    re.IGNORECASE | re.DOTALL,
)
_LITERAL = re.compile(r"'[^']*'?|\"[^\"]*\"?|(?<![\w.])[0-9][\w.]*")
#: A label is so long that the name of a shape fits behind it.
_MAX_LABEL = 50
#: Descriptions that Spark generates for a part of a query.
_INNER = re.compile(r"broadcast exchange \(runId", re.IGNORECASE)
#: Properties that Spark 3.3 and 3.4 replace, with that description, for a part of a query.
_REPLACED = frozenset({_GROUP, "spark.job.description"})
_SPACES = re.compile(r"\s+")
#: Ids that Spark adds to the names of columns, tables and expressions: "price#12", "sum(x)#7L". A
#: number after a space, as in "tenant #1", is the user's.
_EXPRESSION_ID = re.compile(r"(?<=[A-Za-z0-9_)\x80-\U0010ffff])#[0-9]+L?")
#: Nodes of a plan that do not describe an operation.
_WRAPPERS = ("WholeStageCodegen", "AQEShuffleRead", "ColumnarToRow", "InputAdapter")
#: Operators that only pass on data; the name of a stage omits them if it has other operators.
_PLUMBING = frozenset(
    {"Exchange", "AQEShuffleRead", "mapPartitionsInternal", "collect", "DeserializeToObject"}
)


def job_name(
    group: JobGroup,
    settings: Mapping[str, str],
    key: str | None,
    shared: Container[str] = frozenset(),
) -> str | None:
    """The name of a recurring job, the same in every run; None if it lacks the property `key`.

    Without a key the name is the first of these: the job group (unless a server generated it),
    dbt's node, the SQL execution's description (the user's, if given), the Spark job's description,
    the call site.
    A SQL execution that is described by a statement, or by a call site of many queries (such as
    those in `shared`), has its plan's shape behind a label: the same query, whatever its literals.

    Example: a job run after `sc.setJobGroup("nightly", "...")` is called "nightly".
    """
    if key in (PLAN_KEY, SHAPE_KEY):
        named = _given_name(group) or _name_of_plan(group, key)
        return named or _default_name(group, shared)
    if key is not None:
        # The setting of this name says which property names jobs; it names none itself.
        setting = "" if key == NAME_PROPERTY else settings.get(key, "")
        return _first(_given(job, key) or setting for job in group.jobs) or None
    return _default_name(group, shared)


def shared_descriptions(log: ApplicationLog) -> frozenset[str]:
    """The descriptions of SQL executions whose plans have several shapes."""
    shapes = defaultdict[str, set[str]](set)
    for execution in log.sql.values():
        if execution.plan_names is not None and execution.root_id == execution.execution_id:
            shapes[execution.description].add(execution.plan_names.shape)
    return frozenset(text for text, of_text in shapes.items() if len(of_text) > 1)


def _given(job: JobStart, key: str) -> str:
    """A property of a Spark job; "" if it is not the user's but Spark's."""
    is_inner = _INNER.match(job.properties.get("spark.job.description", ""))
    return "" if is_inner and key in _REPLACED else job.properties.get(key, "")


def dbt_node(group: JobGroup) -> str:
    """The node of dbt whose statement this is; "" if it is none of dbt's."""
    texts = [one.description for one in _in_order(group.executions)]
    texts += [_given(job, "spark.job.description") for job in group.jobs]
    return _first(found[1] for found in map(_DBT_NODE.match, texts) if found)


def _in_order(executions: Iterable[SqlRecord]) -> list[SqlRecord]:
    return sorted(executions, key=lambda execution: execution.execution_id)


def _given_name(group: JobGroup) -> str:
    """The name that a user or dbt gave a query; "" if there is none."""
    named = _first(job.properties.get(NAME_PROPERTY, "") for job in group.jobs)
    return named or dbt_node(group)


def _shape_with_label(group: JobGroup, shared: Container[str]) -> str:
    """The shape of a query's plan behind a label, if its description names no single query."""
    root = next((one for one in group.executions if one.execution_id == one.root_id), None)
    text = "" if root is None else _first([root.description])
    if root is None or root.plan_names is None or not text:
        return ""
    if site := _SITE.fullmatch(text):
        is_shared_by_many = _SHARED_SITE.fullmatch(text) is not None
        if not is_shared_by_many and root.description not in shared:
            return ""
        tables = ", ".join(root.plan_names.tables)
        label = f"{site[1]} of {tables}" if is_shared_by_many and tables else text
    elif _STATEMENT.match(root.description):
        label = _LITERAL.sub("?", _SPACES.sub(" ", root.description).strip())
    else:
        return ""
    return f"{_cut(label, _MAX_LABEL)} [{root.plan_names.shape}]"


def _default_name(group: JobGroup, shared: Container[str]) -> str:
    """The name without a key, see `job_name`."""
    jobs = group.jobs
    groups = (job.properties.get(_GROUP, "") for job in jobs)
    described = (_given(job, "spark.job.description") for job in jobs)
    return (
        _first(one for one in groups if not _GENERATED.search(one))
        or dbt_node(group)
        or _shape_with_label(group, shared)
        or _first(execution.description for execution in _in_order(group.executions))
        or _first(described)
        or _first(job.properties.get("callSite.short", "") for job in jobs)
        or _first(info.name for job in reversed(jobs) for info in job.stages[-1:])
        or "unnamed"
    )


def _name_of_plan(group: JobGroup, key: str) -> str:
    """The name of the root execution's plan; "" if there is none."""
    roots = (one for one in group.executions if one.execution_id == one.root_id)
    names = next((execution.plan_names for execution in roots if execution.plan_names), None)
    if names is None:
        return ""
    return names.plan if key == PLAN_KEY else names.shape


def _first(texts: Iterable[str]) -> str:
    """The first text that is not empty after cleaning, cut to MAX_NAME characters."""
    for text in texts:
        stable = _DSTREAM_BATCH.sub(r"\1]", _BATCH.sub("", _EXPRESSION_ID.sub("", text)))
        tidy = _in_any_run(_SPACES.sub(" ", stable).strip(" ,"))
        if tidy:
            return _cut(tidy)
    return ""


def _in_any_run(text: str) -> str:
    """A text of one line without counters and folders that differ between runs."""
    return _CALL_SITE.sub(r"\1\2", _COUNTED.sub(r"\1\2", text))


def _cut(text: str, most: int = MAX_NAME) -> str:
    """The text, cut to a number of characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def stage_kind(info: StageInfo) -> str:
    """What a stage does, the same in every run.

    It consists of the operators of the stage's RDDs, or is the operation of its call site if there
    are none; the line is that of the program, which may call one operation in several places.
    """
    return _operators(info) or info.name.partition(" at ")[0] or "stage"


def _operators(info: StageInfo) -> str:
    informative = [scope for scope in info.scopes if scope not in _PLUMBING]
    return " > ".join(informative or info.scopes)


def stage_name(record: StageRecord, executions: Sequence[SqlRecord]) -> str:
    """The name of a stage.

    It consists of the operators of the SQL plan from input to output, or of those of its RDDs, or
    is the call site.

    Example: "Scan parquet > Filter > HashAggregate".
    """
    plans = (execution.plan.operators for execution in executions)
    ran = dict.fromkeys(
        name for plan in plans for accumulator, name in plan if accumulator in record.accumulators
    )
    text = " > ".join(name for name in ran if not name.startswith(_WRAPPERS))
    return _cut(text or _operators(record.info) or _in_any_run(record.info.name) or "stage")
