"""Runs TPC-H queries on a real Spark: in one JVM, with one Spark context after the other."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.spark.replaying import LOCAL_CONF, SparkFailedError, event_log_conf
from benchmarks.spark.tables import TABLES

from parcae.base.errors import ConfigError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.spark.home import SparkHome

PLUGIN = "parcae.spark.ParcaePlugin"
#: Scans read pieces of this size. So even small tables are read by more tasks than there are
#: cores, as large tables are.
SCAN_BYTES = "8m"
#: The local property that names the TPC-H query in the event log, such as "q5".
QUERY_PROPERTY = "parcae.query"
#: A short query before every run. It loads code and starts what Spark starts at the first query.
WARM_UP = "SELECT count(*) FROM orders JOIN customer ON o_custkey = c_custkey WHERE c_acctbal > 0"
#: The same for queries that run alone: it has tasks for every core.
_ON_ALL_CORES = "SELECT sum(id) FROM range(0, 1000000, 1, 1000)"
#: The plugin's pool, and the start of the log line with which the plugin turns itself off.
_POOL = "parcae"
_OFF = "parcae: off"
#: The start of the plugin's log line that says that its service was away for too long.
SILENCE = "parcae: no orders"
#: A run that takes longer counts as hanging.
_LIMIT_S = 3600.0
#: Characters of Spark's messages that an error quotes.
_SAID = 500
#: Log settings of the JVM; its log goes to one file.
LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
logger.parcae.name = parcae
logger.parcae.level = info
"""


@dataclass(frozen=True)
class Arrival:
    """The arrival of a query."""

    query: int
    at_s: float


@dataclass(frozen=True)
class Ending:
    """How a query ended."""

    query: int
    arrival_s: float
    late_s: float
    seconds: float
    rows: int
    digest: int

    @property
    def result(self) -> tuple[int, int]:
        """What is equal whenever the query gave the same rows."""
        return self.rows, self.digest


@dataclass(frozen=True)
class Application:
    """The settings of one Spark context; queries are named "q5" and the suffix in its event log."""

    mode: str
    event_log: Path | None
    plugin: Mapping[str, str] | None = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


class TpchSpark:
    """A JVM in which Spark contexts run TPC-H queries, one context after the other.

    Raises:
        SparkFailedError: the JVM does not start.
    """

    def __init__(
        self,
        spark: SparkHome,
        jar: Path | None,
        work: Path,
        data: Path,
        texts: Mapping[int, str],
        cores: int,
        memory: str,
        conf: Mapping[str, str],
    ) -> None:
        self._work = work.resolve()
        self._data = data.resolve()
        self._texts = texts
        self._cores = cores
        self._log = self._work / "spark.log"
        self._scratch = self._work / "scratch"
        # The user's settings may replace the first one, but not those after them.
        self._conf = {
            "spark.sql.files.maxPartitionBytes": SCAN_BYTES,
            **conf,
            **LOCAL_CONF,
            "spark.local.dir": str(self._scratch),
            "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
        }
        self.queued_s = float("nan")
        self._start_jvm(spark, jar, memory)

    def _start_jvm(self, spark: SparkHome, jar: Path | None, memory: str) -> None:
        _offer_pyspark(spark)
        os.environ["SPARK_HOME"] = str(spark.path)
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        logging = self._work / "log4j2.properties"
        write_text(logging, LOGGING.format(path=self._log))
        self._scratch.mkdir(exist_ok=True)
        conf = SparkConf(loadDefaults=False).set("spark.driver.memory", memory)
        conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.as_uri()}")
        if jar is not None:
            conf.set("spark.driver.extraClassPath", str(jar.resolve()))
        launch: Any = launch_gateway
        output_path = self._work / "jvm.log"
        with output_path.open("wb") as output:
            try:
                gateway = launch(conf, {"stdout": output, "stderr": output})
            except RuntimeError as error:
                said = " ".join(output_path.read_text(errors="replace").split())
                raise SparkFailedError(
                    f"no JVM started with --memory {memory}: {said[:_SAID] or error}"
                ) from error
        # PySpark would start a JVM without these options at the first context. It keeps one JVM
        # for the process, so one that runs already is put aside until this one ends.
        self._context_class: Any = SparkContext
        self._other = (self._context_class._gateway, self._context_class._jvm)
        self._context_class._gateway = None
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
        self._gateway: Any = gateway
        self.version: str = spark.version

    def close(self) -> None:
        """End the JVM."""
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(60)
        self._context_class._gateway, self._context_class._jvm = self._other
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(
        self, application: Application, arrivals: Sequence[Arrival], at_once: int | None = None
    ) -> dict[str, Any]:
        """Start a context, run queries at their arrival times, and stop the context.

        Every query has its own thread and its own pool; if `at_once` is given, so many run, and
        others wait outside Spark. Returns the endings and the driver's measurements.
        """
        begun = time.monotonic()
        log_start = self._log_size()
        with self._context(application) as (context, session):
            if application.plugin is not None:
                self._check_plugin(context, log_start)
            self._open_tables(session)
            session.sql(WARM_UP)._jdf.collectAsList()
            # Garbage of the setup must not be collected during the measurement.
            context._jvm.System.gc()
            read_meters = _meters(self._gateway.proc.pid)
            load = os.getloadavg()[0]
            running = _Running(context, session, self._texts, application.suffix, at_once)
            setup_s = time.monotonic() - begun
            endings = running.play(arrivals)
            meters = read_meters()
            loads = (load, os.getloadavg()[0])
        lines = [line for line in self._new_lines(log_start) if "parcae: " in line]
        if application.plugin is not None and (why := _why_off(lines)):
            raise SparkFailedError(f"the plugin went off during the run: {why}")
        return {
            "endings": [asdict(ending) for ending in endings],
            "first_ms": running.first_ms,
            "setup_s": setup_s,
            **meters,
            "load": loads,
            "plugin_lines": lines,
        }

    def run_alone(self, application: Application, rounds: Sequence[Sequence[int]]) -> list[Ending]:
        """Run queries one after the other, round by round, each alone on the cores.

        On executors of another master nothing runs before.
        """
        (endings,) = self.run_streams(
            application, [[(query,) for queries in rounds for query in queries]]
        )
        return endings

    def run_streams(
        self, application: Application, streams: Sequence[Sequence[tuple[int, ...]]]
    ) -> list[list[Ending]]:
        """Run streams beside each other; a stream starts the queries of a group together.

        Afterwards `queued_s` has for how long tasks waited for a processor of the machine.
        """
        with self._context(application) as (context, session):
            self._open_tables(session)
            if application.master is None:  # the first tasks of a core take longer
                session.sql(_ON_ALL_CORES)._jdf.collectAsList()

            def play(stream: Sequence[tuple[int, ...]]) -> list[Ending]:
                running = _Running(context, session, self._texts, application.suffix)
                groups = ([Arrival(query, 0.0) for query in group] for group in stream)
                return [ending for group in groups for ending in running.play(group)]

            before_s = _queued_s(self._gateway.proc.pid)
            with ThreadPoolExecutor(len(streams)) as threads:
                endings = list(threads.map(play, streams))
            self.queued_s = _queued_s(self._gateway.proc.pid) - before_s
            return endings

    def _open_tables(self, session: Any) -> None:
        for table in TABLES:
            path = str(self._data / f"{table}.parquet")
            session.read.parquet(path).createOrReplaceTempView(table)

    @contextmanager
    def _context(self, application: Application) -> Iterator[tuple[Any, Any]]:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        conf = {**self._conf, **application.conf, "spark.scheduler.mode": application.mode}
        if application.event_log is not None:
            shutil.rmtree(application.event_log, ignore_errors=True)
            application.event_log.mkdir(parents=True)
            conf |= event_log_conf(application.event_log)
        if application.plugin is not None:
            conf |= {"spark.plugins": PLUGIN, **application.plugin}
        made = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        master = application.master or f"local[{self._cores}]"
        with _spark_errors():
            context = self._context_class(master=master, appName="TPC-H", conf=made)
            try:
                yield context, SparkSession(context)
            except BaseException:
                # If the JVM is gone, too, that is not the reason.
                with suppress(Exception):
                    SparkSession(context).stop()
                raise
            SparkSession(context).stop()

    def _check_plugin(self, context: Any, log_start: int) -> None:
        """Check that the plugin's pool is in Spark's scheduler; if not, quote its log line."""
        root = context._jsc.sc().taskScheduler().rootPool()
        if _POOL in [pool.name() for pool in root.schedulableQueue().toArray()]:
            return
        why = _why_off(self._new_lines(log_start)) or f"the log {self._log} does not say why"
        raise SparkFailedError(f"the plugin is not on: {why}")

    def _log_size(self) -> int:
        """The present length of Spark's log in bytes."""
        return self._log.stat().st_size if self._log.exists() else 0

    def _new_lines(self, before: int) -> list[str]:
        with self._log.open("rb") as stream:
            stream.seek(before)
            return stream.read().decode(errors="replace").splitlines()


def _why_off(lines: Iterable[str]) -> str | None:
    """The line of the log in which the plugin says why it is off; None if there is none."""
    return next((line for line in lines if _OFF in line), None)


@contextmanager
def _spark_errors() -> Iterator[None]:
    """Turn errors of PySpark into one line, while the JVM is there: it has their texts."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        said = " ".join(" ".join(_reasons(error)).split())
        raise SparkFailedError(f"Spark failed: {said[:_SAID]}") from error


def _reasons(error: Exception | None) -> Iterator[str]:
    """The texts of an error of PySpark and of its causes, the last of which says most."""
    while error is not None:
        yield str(error)
        error = getattr(error, "_cause", None)


def _offer_pyspark(spark: SparkHome) -> None:
    """Make `import pyspark` load a PySpark of the given Spark's version."""
    if importlib.util.find_spec("pyspark") is None:
        sources = sorted((spark.path / "python" / "lib").glob("py4j-*-src.zip"))
        sys.path[:0] = [str(spark.path / "python"), *map(str, sources)]
    try:
        version = importlib.import_module("pyspark").__version__
    except ImportError as error:
        advice = f"pip install pyspark=={spark.version}"
        raise ConfigError(f"{spark.path} has no PySpark ({error}): {advice}") from error
    if version != spark.version:
        advice = "unset SPARK_HOME, or use a Python without PySpark or with that version"
        found = f"this Python has PySpark {version}, and {spark.path} is Spark {spark.version}"
        raise ConfigError(f"{found}: {advice}")


class _Running:
    """Runs queries on a context, each in its own thread."""

    def __init__(
        self,
        context: Any,
        session: Any,
        texts: Mapping[int, str],
        suffix: str,
        at_once: int | None = None,
    ) -> None:
        self._turns = threading.Semaphore(at_once) if at_once else nullcontext()
        self._suffix = suffix
        self._context = context
        self._session = session
        self._texts = texts
        self._begun = self.first_ms = 0.0
        self._errors = list[str]()

    def play(self, arrivals: Sequence[Arrival]) -> tuple[Ending, ...]:
        """Start every query at its arrival time and wait for all results."""
        endings: list[Ending | None] = [None] * len(arrivals)
        threads = []
        self.first_ms = time.time() * MS_PER_S
        self._begun = time.monotonic()
        for row, arrival in enumerate(arrivals):
            time.sleep(max(0.0, self._begun + arrival.at_s - time.monotonic()))
            # A daemon, so that a query that hangs does not keep this process alive.
            thread = threading.Thread(
                target=self._run_query, args=(row, arrival, endings), daemon=True
            )
            thread.start()
            threads.append(thread)
        # One deadline for all queries of the run.
        deadline = time.monotonic() + _LIMIT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        finished = tuple(ending for ending in endings if ending is not None)
        if self._errors or len(finished) < len(arrivals):
            why = self._errors[0] if self._errors else f"no result after {_LIMIT_S:.0f} s"
            failed = f"{len(arrivals) - len(finished)} of {len(arrivals)} queries failed"
            raise SparkFailedError(f"{failed}: {why}")
        return finished

    def _run_query(self, row: int, arrival: Arrival, endings: list[Ending | None]) -> None:
        """Run one query in the calling thread and write how it ended into a row of `endings`."""
        name = f"q{arrival.query}"
        late_s = time.monotonic() - self._begun - arrival.at_s
        try:
            self._context.setLocalProperty("spark.scheduler.pool", f"{name}-{row:03d}")
            self._context.setLocalProperty(QUERY_PROPERTY, name + self._suffix)
            self._context.setJobDescription(name)
            with self._turns:
                rows = self._session.sql(self._texts[arrival.query])._jdf.collectAsList()
            seconds = time.monotonic() - self._begun - arrival.at_s
            # The hash code of a Java set is the sum of those of its elements: order is irrelevant.
            digest = self._context._jvm.java.util.HashSet(rows).hashCode()
            endings[row] = Ending(arrival.query, arrival.at_s, late_s, seconds, rows.size(), digest)
        except Exception as error:  # raised by `play`, in the thread that waits for the results
            self._errors.append(f"{name}: {str(error).strip()[:_SAID]}")


def _meters(jvm: int) -> Callable[[], dict[str, float]]:
    """Begins to measure processor time, by Linux's /proc; NaN on other systems."""

    def now() -> tuple[float, float, float, float]:
        return process_cpu_s(jvm), time.process_time(), _machine_cpu_s(), time.monotonic()

    begun = now()

    def read() -> dict[str, float]:
        jvm_s, own_s, machine_s, wall_s = (a - b for a, b in zip(now(), begun, strict=True))
        # NaN stays NaN: it must be the first of the two.
        others = max((machine_s - jvm_s - own_s) / wall_s, 0.0)
        return {"jvm_cpu_s": jvm_s, "python_cpu_s": own_s, "other_cores": others}

    return read


def process_cpu_s(pid: int) -> float:
    """Processor time of a process in s; NaN if /proc does not have it."""
    try:
        # The name in brackets may hold spaces, so fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return float("nan")


def _queued_s(pid: int) -> float:
    """How long the threads of a JVM that run tasks waited for a processor; NaN without /proc."""
    waits_ns = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # the thread has ended
            if (thread / "comm").read_text().startswith("Executor task"):
                waits_ns.append(int((thread / "schedstat").read_text().split()[1]))
    return sum(waits_ns) / 1e9 if waits_ns else float("nan")


def _machine_cpu_s() -> float:
    """Processor time of all processes of the machine in s; NaN if /proc does not have it."""
    try:
        # The fourth and fifth fields are time idle and time waiting for input and output.
        fields = Path("/proc/stat").read_text().split()[1:8]
        user, nice, system, _, _, irq, softirq = map(int, fields)
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return float("nan")
