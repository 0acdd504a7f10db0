"""Runs TPC-H queries on a real Spark: one JVM in which contexts are started one after the other."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcae.errors import ConfigError
from parcae.files import write_text
from parcae.spark.applications import SparkFailedError
from parcae.spark.home import SparkHome
from parcae.spark.tpch_plan import SCAN_BYTES, Arrival
from parcae.units import MS_PER_S
from parcae.workloads.tpch_application import TABLES

PLUGIN = "parcae.spark.ParcaePlugin"
#: The local property that says in the event log which TPC-H query it was, such as "q5".
QUERY_PROPERTY = "parcae.query"
#: A short query before every run: it loads code, and starts whatever starts with the first query.
WARM_UP = "SELECT count(*) FROM orders JOIN customer ON o_custkey = c_custkey WHERE c_acctbal > 0"
#: The plugin's pool, and the beginning of the log line by which it says that Spark is as stock.
_POOL = "parcae"
_OFF = "parcae: off"
#: The beginning of the plugin's log line by which it says that its service was away for too long.
SILENCE = "parcae: no orders"
#: A run that takes longer hangs.
_LIMIT_S = 3600.0
_LOGGING = """
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
class Ending:
    """How a query ended.

    Args:
        query: its TPC-H number.
        arrival_s: when it arrived, in s after the first one; `late_s` after that its thread began.
        seconds: from its arrival to its collected result.
        rows: of the result.
        digest: of the result's rows in any order.
    """

    query: int
    arrival_s: float
    late_s: float
    seconds: float
    rows: int
    digest: int


@dataclass(frozen=True)
class Finished:
    """What the driver knows of a run that is over.

    Args:
        endings: of every query, in order of arrival.
        first_ms: when the first query arrived, in ms of the wall clock.
        setup_s: what it took to start Spark, open the tables and warm up, in s.
        jvm_cpu_s: processor time of the JVM, tasks and all, from the first arrival to the last
            result.
        python_cpu_s: the same of this process.
        other_cores: cores that all other processes of the machine kept busy meanwhile, on average.
        load: the machine's load averages over a minute, before and after.
        plugin_lines: what the plugin said in the log.
    """

    endings: tuple[Ending, ...]
    first_ms: float
    setup_s: float
    jvm_cpu_s: float
    python_cpu_s: float
    other_cores: float
    load: tuple[float, float]
    plugin_lines: tuple[str, ...]


@dataclass(frozen=True)
class Application:
    """One Spark context.

    Args:
        mode: FIFO or FAIR, Spark's own order.
        event_log: folder that gets its event log, and is emptied before; None for none.
        plugin: the plugin's settings; None for stock Spark without the plugin.
    """

    mode: str
    event_log: Path | None
    plugin: Mapping[str, str] | None = None


class TpchSpark:
    """A JVM in which Spark contexts run TPC-H queries, one context after the other.

    Args:
        spark: which Spark.
        jar: the plugin's, or None where no policy needs it.
        work: for logs and Spark's scratch files.
        data: the folder of the tables' parquet files.
        texts: the query texts by number.
        cores: of the local master.
        memory: of the JVM.
        conf: more Spark settings.
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
        self._conf = {
            "spark.sql.files.maxPartitionBytes": SCAN_BYTES,
            **conf,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(self._scratch),
            "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
        }
        self._start_jvm(spark, jar, memory)

    def _start_jvm(self, spark: SparkHome, jar: Path | None, memory: str) -> None:
        _offer_pyspark(spark)
        os.environ["SPARK_HOME"] = str(spark.path)
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        logging = self._work / "log4j2.properties"
        write_text(logging, _LOGGING.format(path=self._log))
        self._scratch.mkdir(exist_ok=True)
        conf = SparkConf(loadDefaults=False).set("spark.driver.memory", memory)
        conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging}")
        if jar is not None:
            conf.set("spark.driver.extraClassPath", str(jar.resolve()))
        launch: Any = launch_gateway
        with (self._work / "jvm.log").open("ab") as said:
            gateway = launch(conf, {"stdout": said, "stderr": said})
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
        self._context_class: Any = SparkContext
        self._gateway: Any = gateway
        self.version: str = spark.version

    def close(self) -> None:
        """End the JVM."""
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(60)
        self._context_class._gateway = self._context_class._jvm = None
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self, application: Application, arrivals: Sequence[Arrival]) -> Finished:
        """Start a context, let the queries arrive, each in a thread and a pool of its own; stop it.

        Raises:
            SparkFailedError: a query failed, or the plugin was off.
        """
        begun = time.monotonic()
        said = self._said()
        with self._context(application) as (context, session):
            if application.plugin is not None:
                self._check_plugin(context, said)
            self._open_tables(session)
            session.sql(WARM_UP)._jdf.collectAsList()
            context._jvm.System.gc()
            meters = _Meters(self._gateway.proc.pid)
            load = os.getloadavg()[0]
            running = _Running(context, session, self._texts)
            setup_s = time.monotonic() - begun
            endings = running.play(arrivals)
            jvm_s, python_s, other_cores = meters.read()
            loads = (load, os.getloadavg()[0])
        lines = tuple(line for line in self._new_lines(said) if "parcae: " in line)
        if application.plugin is not None and any(_OFF in line for line in lines):
            raise SparkFailedError(f"the plugin went off during the run: {lines[-1]}")
        return Finished(
            endings=endings,
            first_ms=running.first_ms,
            setup_s=setup_s,
            jvm_cpu_s=jvm_s,
            python_cpu_s=python_s,
            other_cores=other_cores,
            load=loads,
            plugin_lines=lines,
        )

    def run_alone(self, application: Application, rounds: Sequence[Sequence[int]]) -> list[Ending]:
        """Run queries one after the other, round by round."""
        with self._context(application) as (context, session):
            self._open_tables(session)
            running = _Running(context, session, self._texts)
            found: list[Ending] = []
            for queries in rounds:
                for query in queries:
                    found += running.play([Arrival(query, 0.0)])
            return found

    def _open_tables(self, session: Any) -> None:
        for table in TABLES:
            path = str(self._data / f"{table}.parquet")
            session.read.parquet(path).createOrReplaceTempView(table)

    @contextmanager
    def _context(self, application: Application) -> Iterator[tuple[Any, Any]]:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        conf = {**self._conf, "spark.scheduler.mode": application.mode}
        if application.event_log is not None:
            shutil.rmtree(application.event_log, ignore_errors=True)
            application.event_log.mkdir(parents=True)
            conf |= {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": application.event_log.resolve().as_uri(),
                "spark.eventLog.compress": "true",
                "spark.eventLog.compression.codec": "zstd",
                "spark.eventLog.rolling.enabled": "false",
            }
        if application.plugin is not None:
            conf |= {"spark.plugins": PLUGIN, **application.plugin}
        made = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        master = f"local[{self._cores}]"
        context = self._context_class(master=master, appName="parcae spark tpch", conf=made)
        try:
            yield context, SparkSession(context)
        finally:
            SparkSession(context).stop()

    def _check_plugin(self, context: Any, said: int) -> None:
        """The plugin must have its pool in Spark's scheduler, else its log line says why."""
        root = context._jsc.sc().taskScheduler().rootPool()
        if _POOL in [pool.name() for pool in root.schedulableQueue().toArray()]:
            return
        why = next(
            (line for line in self._new_lines(said) if _OFF in line),
            f"its log {self._log} does not say why",
        )
        raise SparkFailedError(f"the plugin is not on: {why}")

    def _said(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _new_lines(self, before: int) -> list[str]:
        with self._log.open("rb") as stream:
            stream.seek(before)
            return stream.read().decode(errors="replace").splitlines()


def _offer_pyspark(spark: SparkHome) -> None:
    """Make `import pyspark` find a PySpark of the Spark's version.

    Raises:
        ConfigError: this Python has another one.
    """
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
        told = f"this Python has PySpark {version}, and {spark.path} is Spark {spark.version}"
        raise ConfigError(f"{told}: {advice}")


class _Running:
    """Queries on a context, each in a thread of its own."""

    def __init__(self, context: Any, session: Any, texts: Mapping[int, str]) -> None:
        self._context = context
        self._session = session
        self._texts = texts
        self._begun = self.first_ms = 0.0
        self._errors = list[str]()

    def play(self, arrivals: Sequence[Arrival]) -> tuple[Ending, ...]:
        """Let queries arrive and wait for all results."""
        endings: list[Ending | None] = [None] * len(arrivals)
        threads = []
        self.first_ms = time.time() * MS_PER_S
        self._begun = time.monotonic()
        for row, arrival in enumerate(arrivals):
            time.sleep(max(0.0, self._begun + arrival.at_s - time.monotonic()))
            thread = threading.Thread(target=self._ask, args=(row, arrival, endings), daemon=True)
            thread.start()
            threads.append(thread)
        deadline = time.monotonic() + _LIMIT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        found = tuple(ending for ending in endings if ending is not None)
        if self._errors or len(found) < len(arrivals):
            why = self._errors[0] if self._errors else f"no result after {_LIMIT_S:.0f} s"
            failed = f"{len(arrivals) - len(found)} of {len(arrivals)} queries failed"
            raise SparkFailedError(f"{failed}: {why}")
        return found

    def _ask(self, row: int, arrival: Arrival, endings: list[Ending | None]) -> None:
        name = f"q{arrival.query}"
        late_s = time.monotonic() - self._begun - arrival.at_s
        try:
            self._context.setLocalProperty("spark.scheduler.pool", f"{name}-{row:03d}")
            self._context.setLocalProperty(QUERY_PROPERTY, name)
            self._context.setJobDescription(name)
            rows = self._session.sql(self._texts[arrival.query])._jdf.collectAsList()
            seconds = time.monotonic() - self._begun - arrival.at_s
            digest = self._context._jvm.java.util.HashSet(rows).hashCode()
            endings[row] = Ending(arrival.query, arrival.at_s, late_s, seconds, rows.size(), digest)
        except Exception as error:  # told by `play`, in the thread that waits
            self._errors.append(f"{name}: {str(error).strip()[:500]}")


class _Meters:
    """Processor time from its making on; the numbers of Linux's /proc, NaN where there is none."""

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._begun = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        own = time.process_time()
        return process_cpu_s(self._jvm), own, _machine_cpu_s(), time.monotonic()

    def read(self) -> tuple[float, float, float]:
        """Of the JVM and of this process in s, and the cores that others kept busy on average."""
        pairs = zip(self._now(), self._begun, strict=True)
        jvm_s, own_s, machine_s, wall_s = (now - then for now, then in pairs)
        return jvm_s, own_s, max(0.0, (machine_s - jvm_s - own_s) / wall_s)


def process_cpu_s(pid: int) -> float:
    """Processor time of a process in s, NaN where /proc does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return float("nan")


def _machine_cpu_s() -> float:
    """Processor time of all processes of the machine in s."""
    try:
        fields = Path("/proc/stat").read_text().split()[1:8]
        user, nice, system, _, _, irq, softirq = map(int, fields)
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return float("nan")


def read_texts(path: Path) -> dict[int, str]:
    """The query texts that were kept in a work folder."""
    return {int(number): text for number, text in json.loads(path.read_text()).items()}
