"""`parcae spark tpch`: runs TPC-H queries on a real Spark, under its own and Parcae's policies.

Every step writes its result to a file of the work folder, so a stopped command can continue.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from parcae.base.errors import ConfigError, PolicyError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.policies.policy_file import export_policy, write_policy
from parcae.spark.applications import RunningService, SparkFailedError, running_service
from parcae.spark.build import build_plugin
from parcae.spark.home import SparkHome
from parcae.spark.tpch_busy import busy_ms, task_times
from parcae.spark.tpch_calibration import (
    NUM_CLOSE,
    Calibrated,
    calibration_of,
    fitted_gap,
    is_found,
    next_gap,
)
from parcae.spark.tpch_log import (
    PROFILE,
    PROFILE_ROWS,
    QueryProfile,
    core_use,
    profile_of,
    query_profile,
    read_log,
)
from parcae.spark.tpch_plan import (
    BASELINE,
    EARLIER_SEED_START,
    STOCK,
    RunKey,
    TpchConfig,
    draw_arrivals,
    judged_runs,
    policy_file_name,
)
from parcae.spark.tpch_record import (
    RunRecord,
    check_policy_files,
    check_settings,
    makespan_s,
    read_record,
    record_path,
)
from parcae.spark.tpch_spark import (
    Application,
    Ending,
    Finished,
    TpchSpark,
    process_cpu_s,
    read_texts,
)
from parcae.workloads.arrivals import RandomStreams
from parcae.workloads.tpch_application import query_texts
from parcae.workloads.tpch_tools import generate_tables, missing_tools

#: Time of a run without its queries, for the estimate of the time left before one was measured.
_SETUP_S = 10.0

#: Called with a line about the present step, and the share of all runs that is complete, 0..1.
Progress = Callable[[str, float], None]


def run_tpch(
    config: TpchConfig, spark: SparkHome, work: Path, progress: Progress, jar: Path | None = None
) -> None:
    """Run what a work folder still lacks: tables, profile, arrival rate, judged runs.

    Args:
        config: the settings.
        spark: which Spark.
        work: the work folder; it is created if it does not exist.
        progress: called at every step.
        jar: the plugin's jar; None to build it if a policy needs it.

    Raises:
        ConfigError: the work folder has other settings, or a tool is missing.
        SparkFailedError: a query failed, or the plugin was off.
        PolicyError: a policy is unknown.
    """
    check_settings(config, work)
    check_policy_files(config, work)
    with _Study(config, spark, work, progress, jar) as study:
        study.prepare()
        study.judge()


class _Study(contextlib.ExitStack):
    """The runs of one command. The JVM starts when the first run needs it."""

    def __init__(
        self, config: TpchConfig, spark: SparkHome, work: Path, progress: Progress, jar: Path | None
    ) -> None:
        super().__init__()
        self._config = config
        self._home = spark
        self._work = work
        self._progress = progress
        self._given_jar = jar
        self._share = 0.0
        self._services = dict[str, RunningService]()

    def _report(self, text: str) -> None:
        self._progress(text, self._share)

    # Preparation.

    @property
    def _data(self) -> Path:
        return self._work / f"data-sf{self._config.scale_factor:g}"

    def _make_tables(self) -> None:
        """Generate the tables and the texts of the queries, if they do not exist yet."""
        texts = self._work / "queries.json"
        makers = {"tpchgen-cli": self._data, "duckdb": texts}
        needed = [name for name, path in makers.items() if not path.exists()]
        if missing := missing_tools(needed):
            raise ConfigError(
                f"{self._work} lacks tables or query texts, and making them needs "
                f"{', '.join(missing)}: pip install 'parcae[measure]'"
            )
        if not self._data.exists():
            self._report(f"generating the tables of scale factor {self._config.scale_factor:g}")
            generate_tables(self._data, self._config.scale_factor)
        if not texts.exists():
            write_text(texts, json.dumps(query_texts(), indent=1))

    @cached_property
    def _jar(self) -> Path | None:
        """The plugin's jar; None if no policy needs it."""
        if {*self._config.policies} <= {*STOCK}:
            return None
        return self._given_jar or build_plugin(self._home)

    @cached_property
    def _spark(self) -> TpchSpark:
        """The JVM, after every query has run in it a few times."""
        config = self._config
        texts = read_texts(self._work / "queries.json")
        jar = self._jar
        spark = TpchSpark(
            self._home, jar, self._work, self._data, texts, config.cores, config.memory, config.conf
        )
        self.callback(spark.close)
        self._report("warming the JVM up")
        queries = tuple(dict.fromkeys(config.query_numbers))
        spark.run_alone(Application("FAIR", None), [queries] * config.warm_rounds)
        return spark

    def prepare(self) -> None:
        """Make tables, run the queries alone, calibrate the arrival rate, make the profile."""
        self._make_tables()
        self._run_alone()
        # The order matters: the calibration needs the queries alone, the profile both.
        calibrated = calibration_of(self._work)
        if calibrated is None:
            calibrated = self._calibrate()
            calibrated.write(self._work)
        if self._config.gap_s not in (None, calibrated.gap_s):
            raise ConfigError(
                f"{self._work} has runs with a query every {calibrated.gap_s:.3f} s, "
                f"not every {self._config.gap_s:.3f} s; use another --work"
            )
        if not (self._work / PROFILE_ROWS).exists():
            self._report("making the profile of the earlier runs")
            earlier = sorted(path.stem for path in (self._work / "earlier").glob("load-*.json"))
            profile = query_profile([self._logs("alone"), *map(self._logs, earlier)])
            profile.write(self._work)

    def _logs(self, name: str) -> Path:
        return self._work / "event-logs" / name

    def _run_alone(self) -> None:
        """Run every query alone, round by round, each round in another random order."""
        endings_file = self._work / "earlier" / "alone.json"
        if endings_file.exists():
            return
        queries = tuple(dict.fromkeys(self._config.query_numbers))
        generator = RandomStreams(EARLIER_SEED_START).jobs
        num_rounds = self._config.profile_rounds
        rounds = [generator.permutation(queries).tolist() for _ in range(num_rounds)]
        spark = self._spark
        self._report(f"every query alone, {len(rounds)} rounds")
        endings = spark.run_alone(Application("FAIR", self._logs("alone")), rounds)
        # In reverse, so that the first result of every query is kept.
        results = {ending.query: [ending.rows, ending.digest] for ending in reversed(endings)}
        write_text(self._work / "results.json", json.dumps(results) + "\n")
        if wrong := self._wrong(endings):
            queries_text = ", ".join(map(str, wrong))
            raise SparkFailedError(
                f"queries {queries_text} gave different results in repeated runs"
            )
        endings_file.parent.mkdir(exist_ok=True)
        write_text(
            endings_file, json.dumps([asdict(ending) for ending in endings], indent=1) + "\n"
        )

    def _wrong(self, endings: Sequence[Ending]) -> tuple[int, ...]:
        """The queries whose result differs from that of their first run."""
        results = json.loads((self._work / "results.json").read_text())
        wrong = {e.query for e in endings if results[str(e.query)] != [e.rows, e.digest]}
        return tuple(sorted(wrong))

    # The arrival rate.

    def _calibrate(self) -> Calibrated:
        """Find the arrival rate by runs under FAIR; with a given rate, only measure the load."""
        config = self._config
        points: list[tuple[float, float]] = []
        for number in range(config.calibration_runs):
            gap_s = config.gap_s or (next_gap(points, config.load) if points else self._first_gap())
            record = self._earlier_run(number, gap_s)
            points.append((record.gap_s, record.use.busy_share))
            busy = f"{record.use.busy_share:.1%}"
            self._report(
                f"under FAIR with a query every {record.gap_s:.2f} s the cores are {busy} busy"
            )
            if len(points) >= NUM_CLOSE and (config.gap_s or is_found(points, config.load)):
                break
        return Calibrated(config.gap_s or fitted_gap(points, config.load), tuple(points))

    def _first_gap(self) -> float:
        """The gap of the first run: from the core time of the queries that ran alone, in s."""
        log = read_log(self._logs("alone"))
        work_s = busy_ms(task_times(log), 0, math.inf) / MS_PER_S
        endings = json.loads((self._work / "earlier" / "alone.json").read_text())
        return work_s / len(endings) / (self._config.cores * self._config.load)

    def _earlier_run(self, number: int, gap_s: float) -> RunRecord:
        """A run of the calibration, from its file if it is complete."""
        path = self._work / "earlier" / f"load-{number:02d}.json"
        if path.exists():
            return read_record(path)
        self._report(f"earlier run {number + 1} under FAIR: a query every {gap_s:.2f} s")
        record = self._measure(RunKey(EARLIER_SEED_START + 1 + number, BASELINE), gap_s, path.stem)
        record.write(path)
        return record

    # The judged runs.

    def judge(self) -> None:
        """Run all judged runs that are not complete yet."""
        runs = judged_runs(self._config)
        left = [key for key in runs if not record_path(self._work, key).exists()]
        calibrated = calibration_of(self._work)
        assert calibrated is not None
        run_s = self._config.num_queries * calibrated.gap_s + _SETUP_S
        # An unknown policy must raise now and not after hours of runs.
        for policy in sorted({key.policy for key in left}):
            self._plan_by(policy)
        if left:
            _ = self._spark  # start the JVM before the first run is announced
        for number, key in enumerate(left):
            self._share = (len(runs) - len(left) + number) / len(runs)
            minutes = (len(left) - number) * run_s / 60
            position = f"run {len(runs) - len(left) + number + 1} of {len(runs)}"
            left_text = f"about {minutes:.0f} min left"
            self._report(f"seed {key.seed}, {key.policy}: {position}, {left_text}")
            record = self._measure(key, calibrated.gap_s, key.file_name)
            record.write(record_path(self._work, key))
            # The mean duration of the runs so far.
            run_s += (record.wall_s - run_s) / (number + 1)
        self._share = 1.0

    def _measure(self, key: RunKey, gap_s: float, name: str) -> RunRecord:
        """Run the queries of a seed under a policy; the event log goes to a folder `name`."""
        start_s = time.monotonic()
        config = self._config
        logs = self._logs(name)
        spark = self._spark
        arrivals = draw_arrivals(config, key.seed, gap_s)
        plugin, service = self._plan_by(key.policy)
        # FAIR decides ties under the plugin, and schedules if the plugin has no order.
        mode = STOCK.get(key.policy, STOCK[BASELINE])
        # A service plans for many runs, so only the difference belongs to this one.
        before_s = process_cpu_s(service) if service else 0.0
        finished = spark.run(Application(mode, logs, plugin), arrivals)
        service_s = process_cpu_s(service) - before_s if service else 0.0
        return self._record(key, gap_s, finished, service_s, logs, start_s)

    def _record(
        self,
        key: RunKey,
        gap_s: float,
        finished: Finished,
        service_s: float,
        logs: Path,
        start_s: float,
    ) -> RunRecord:
        span_s = makespan_s(finished.endings)
        arrivals_s = finished.endings[-1].arrival_s
        use = core_use(logs, self._config.cores, finished.first_ms, arrivals_s, span_s)
        is_planned = key.policy not in STOCK
        return RunRecord(
            key=key,
            gap_s=gap_s,
            endings=finished.endings,
            use=use,
            wrong=self._wrong(finished.endings),
            known_share=self._profile.knows(read_log(logs)) if is_planned else 0.0,
            setup_s=finished.setup_s,
            wall_s=time.monotonic() - start_s,
            driver_cpu_s=finished.jvm_cpu_s - use.task_cpu_s,
            python_cpu_s=finished.python_cpu_s,
            service_cpu_s=service_s,
            other_cores=finished.other_cores,
            load=finished.load,
            plugin_lines=finished.plugin_lines,
            spark=self._home.version,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @cached_property
    def _profile(self) -> QueryProfile:
        return profile_of(self._work)

    def _plan_by(self, policy: str) -> tuple[Mapping[str, str] | None, int]:
        """The plugin's settings for a policy, and the process id of its service.

        The settings are None for stock Spark, and the id is 0 without a service. A policy that can
        be exported plans in the plugin, any other in a service.
        """
        if policy in STOCK:
            return None, 0
        try:
            exported = export_policy(policy, self._profile.workload)
        except PolicyError:
            service = self._service(policy)
            return {"spark.parcae.service": service.address}, service.process.pid
        path = self._work / "policies" / f"{policy_file_name(policy)}.json"
        path.parent.mkdir(exist_ok=True)
        write_policy(exported, path)
        return {"spark.parcae.policy": str(path.resolve())}, 0

    def _service(self, policy: str) -> RunningService:
        """The service of a policy, which knows the profile and serves all runs of the command."""
        if policy not in self._services:
            self._report(f"starting a service for {policy}")
            log = self._work / f"service-{policy_file_name(policy)}.log"
            started = running_service(policy, str(self._work / PROFILE), log=log)
            self._services[policy] = self.enter_context(started)
        return self._services[policy]
