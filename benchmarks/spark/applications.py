"""Four Spark applications that share a real YARN of eight executors, under several systems.

    python -m benchmarks.spark.applications --seeds 3 --systems fair,static,one --work apps-work

Jobs arrive by a schedule that a seed draws; tasks sleep; warm drivers begin together. Systems are

- `fifo`, `fair`, `capacity`: stock dynamic allocation, with one FIFO queue of YARN, or a queue an
  application under the FairScheduler (which preempts at once) or the CapacityScheduler; with
  options such as `fair:min=0:idle=1:ratio=0.5:preempt=0` (minExecutors, executorIdleTimeout in s,
  executorAllocationRatio, whether YARN preempts);
- `static`: two executors each;
- `serve:POLICY`: `parcae serve --scope cluster`;
- `one`, `one-fair`: one application runs all jobs, by the plugin's accounts or by Spark's FAIR with
  a pool a person; a person is the application that the job would have been in.

All have an external shuffle service. Runs in the work folder are not run again; each has its logs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.spark import replaying
from benchmarks.spark.work import Work, file_name, names, number, run_script, tell
from tests.clusters.run import SMALL
from tests.clusters.yarn import Yarn, YarnPlan, YarnRun, free_ports, hadoop_class_path, start_yarn
from tests.spark.java import compile_java

from parcae.base.errors import ParcaeError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.statistics import ratio_estimate, with_interval
from parcae.spark.home import SparkHome, find_java, find_spark
from parcae.spark.jar import find_jar
from parcae.spark.launch import PluginSettings
from parcae.workloads.spark_log.application import Outcome
from parcae.workloads.spark_log.event_log import LogReading

Json = dict[str, Any]
#: The applications: a queue each, and the name of the jobs and of the person.
APPS = {"A": "large", "B": "small-b", "C": "small-c", "D": "medium"}
_ALL = "all"
_COUNTS = {"A": 4, "D": 8, "B": 30, "C": 30}
#: Stages of the large and medium jobs: tasks and ms; a small one has 4 to 10 of 500 ms.
_STAGES = {"A": ((40, 1000), (20, 1000)), "D": ((14, 1000), (6, 1000))}
_SPAN_S = 110.0
EXECUTORS = 8
#: Memory of a container, with Spark's overhead.
_UNIT_MIB = 896
_DYNAMIC = {"min": 0.0, "idle": 3.0, "ratio": 1.0}
_QUEUES = {**_DYNAMIC, "min": 1.0}
#: The systems with their options.
KINDS: Mapping[str, Mapping[str, float]] = {
    "fifo": _DYNAMIC,
    "fair": {**_QUEUES, "preempt": 1.0},
    "capacity": _QUEUES,
    "static": {},
    "one": {},
    "one-fair": {},
    "serve": {},
}
_START_S = 600.0
_OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch")
_POOL = "<pool name='{}'><schedulingMode>FAIR</schedulingMode></pool>"
_FAIR = """<allocations>
<queueMaxAMShareDefault>-1.0</queueMaxAMShareDefault>
<defaultFairSharePreemptionTimeout>1</defaultFairSharePreemptionTimeout>
<defaultFairSharePreemptionThreshold>1.0</defaultFairSharePreemptionThreshold>
{}</allocations>"""


@dataclass(frozen=True)
class System:
    """What shares the cluster."""

    name: str
    kind: str
    policy: str
    options: Mapping[str, float]

    @property
    def apps(self) -> tuple[str, ...]:
        """The applications that run the jobs."""
        return (_ALL,) if self.kind.startswith("one") else tuple(APPS)

    @property
    def queues(self) -> tuple[str, ...]:
        """YARN's queues."""
        return tuple(APPS) if self.kind in ("fair", "capacity") else ("default",)

    def plan(self, shuffle: str, port: int) -> YarnPlan:
        """The YARN that it needs: a container an application, and those of the executors."""
        units = EXECUTORS + len(self.apps)
        service = "yarn.nodemanager.aux-services"
        site: Json = {
            service: "spark_shuffle",
            f"{service}.spark_shuffle.class": "ShuffleAux",
            f"{service}.spark_shuffle.classpath": shuffle,
            "spark.shuffle.service.port": port,
        }
        files = {}
        if self.kind == "fair":
            package = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fair"
            files["fair.xml"] = _FAIR.format("".join(f"<queue name='{app}'/>" for app in APPS))
            site |= {
                "yarn.resourcemanager.scheduler.class": f"{package}.FairScheduler",
                "yarn.scheduler.fair.allocation.file": "fair.xml",
                "yarn.scheduler.fair.preemption": str(self.options["preempt"] > 0).lower(),
                "yarn.scheduler.fair.waitTimeBeforeKill": 500,
                "yarn.resource-types.memory-mb.increment-allocation": 128,
            }
        return YarnPlan(1, units * _UNIT_MIB, units, self.queues, site, files)

    def conf(self, app: str) -> Json:
        """Spark's settings of an application."""
        found: Json = {
            "spark.executor.instances": EXECUTORS // len(self.apps),
            "spark.yarn.queue": app if app in self.queues else "default",
        }
        if "idle" in self.options:
            own = {
                "enabled": "true",
                "minExecutors": int(self.options["min"]),
                "maxExecutors": EXECUTORS,
                "executorIdleTimeout": f"{int(self.options['idle'] * MS_PER_S)}ms",
                "executorAllocationRatio": self.options["ratio"],
            }
            found |= {f"spark.dynamicAllocation.{name}": value for name, value in own.items()}
            found["spark.executor.instances"] = 0
        return found


def system(text: str) -> System:
    """The system of a name.

    Example: `system("fair:min=0:ratio=0.5")`, `system("serve:weighted:0.5")`.
    """
    kind, *words = text.split(":")
    if kind not in KINDS:
        raise argparse.ArgumentTypeError(f"{text}: there are {', '.join(KINDS)}")
    options = dict(KINDS[kind])
    while words and words[-1].partition("=")[0] in options:
        option, _, value = words.pop().partition("=")
        options[option] = float(value)
    if bool(words) != (kind == "serve"):  # it has a policy
        known = ", ".join(f"{name}=" for name in options) or "none"
        raise argparse.ArgumentTypeError(f"{text}: the options of {kind}: {known}")
    return System(text, kind, ":".join(words), options)


def schedule(seed: int, times: float) -> list[Json]:
    """The jobs of all applications by arrival; `times` scales all times."""
    draw = random.Random(seed)
    jobs = []
    for app, count in _COUNTS.items():
        if app == "A":  # one in each quarter
            arrivals = [(place + draw.random()) * 0.9 * _SPAN_S / count for place in range(count)]
        else:
            arrivals = sorted(draw.uniform(0, _SPAN_S) for _ in range(count))
        sizes = [4 + place % 7 for place in range(count)]
        if app not in _STAGES:
            draw.shuffle(sizes)
        for size, arrival_s in zip(sizes, arrivals, strict=True):
            stages = [
                {"parents": [place - 1] if place else [], "sleep_ms": [int(ms * times)] * tasks}
                for place, (tasks, ms) in enumerate(_STAGES.get(app, ((size, 500),)))
            ]
            arrival_ms = int(arrival_s * MS_PER_S * times)
            job = {"app": app, "name": APPS[app], "user": APPS[app], "pool": APPS[app]}
            jobs.append({**job, "arrival_ms": arrival_ms, "stages": stages})
    return sorted(jobs, key=lambda job: int(job["arrival_ms"]))


class Measurement:
    """The runs of one command."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work = Work(args.work.resolve())

    def run(self) -> dict[str, list[Json]]:
        """The runs of every system, by seed; each seed draws the order of the systems."""
        found: dict[str, list[Json]] = {one.name: [] for one in self.args.systems}
        for seed in range(self.args.seed_start, self.args.seed_start + self.args.seeds):
            drawn = random.Random(f"order {seed}").sample(self.args.systems, len(found))
            for one in drawn:
                name = f"{file_name(one.name)}-x{self.args.times:g}-{seed}"
                found[one.name].append(self.work.kept(name, partial(self._run, one, seed, name)))
        return found

    def _shuffle(self) -> str:
        """The class path of the shuffle service in YARN, which is compiled."""
        spark = find_spark()
        (folder := self.work.folder / "shuffle").mkdir(exist_ok=True)
        sources = [Path(__file__).with_name("ShuffleAux.java")]
        compile_java(sources, folder, f"{hadoop_class_path()}:{spark.jars}/*")
        return f"{folder}/:{spark.jars}/*"

    def _archive(self) -> Path:
        """The classes that executors load, archived, so that they start as on a larger machine."""
        archive = self.work.folder / "executor.jsa"
        jar_s = find_jar(find_spark()).stat().st_mtime  # Java refuses an archive of other jars
        if not archive.exists() or archive.stat().st_mtime < jar_s:
            tell("archiving the classes of executors")
            write_text(mixes := self.work.folder / "archive.json", '{"mixes": []}')
            conf = {"spark.master": "local[2]", "spark.app.name": "archive", **replaying.LOCAL_CONF}
            words: list[object] = [find_java(), *SMALL.split()]
            words += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
            words += [f"-D{name}={value}" for name, value in conf.items()]
            words += [f"-XX:ArchiveClassesAtExit={archive}", "-cp", _class_path(find_spark())]
            words += [replaying.REPLAY_CLASS, mixes, self.work.folder / "archived.json"]
            with (self.work.folder / "archive.log").open("w") as log:
                subprocess.run(list(map(str, words)), check=True, stdout=log, stderr=log)
        return archive

    def _run(self, one: System, seed: int, name: str) -> Json:
        """Run the jobs on a YARN of their own."""
        conf: Json = {
            "spark.executor.extraJavaOptions": f"{SMALL} -XX:SharedArchiveFile={self._archive()}",
            "spark.shuffle.service.port": free_ports(1)[0],
        }
        tell(f"{one.name}, times {self.args.times:g}, seed {seed}")
        jobs, folder = schedule(seed, self.args.times), self.work.folder / f"{name}-run"
        begun_s = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "events").mkdir(parents=True)
        by_app = {app: [job for job in jobs if app in (_ALL, job["app"])] for app in one.apps}
        with ExitStack() as stack:
            plan = one.plan(self._shuffle(), conf["spark.shuffle.service.port"])
            yarn = start_yarn(folder / "yarn", find_spark(), hadoop_class_path(), plan)
            stack.callback(yarn.close)
            plugin = self._plugin(one, folder, stack)
            runs = {}
            for app in by_app:
                words = _command(yarn, one, app, folder, {**conf, **plugin})
                run = yarn.run(folder / app, words, APPS.get(app, _ALL))
                runs[app] = stack.enter_context(run)
            results = {app: folder / app / "results.json" for app in runs}
            _wait(runs, lambda app: results[app].exists(), _START_S)
            time.sleep(4 + one.options.get("idle", 0.0))  # executors of the warm-up go
            load = os.getloadavg()[0]
            begin_ms = int(time.time() * MS_PER_S) + 1000
            for app, own in by_app.items():
                mix = {"begin_ms": begin_ms, "jobs": own}
                write_text(folder / app / "mixes.json", json.dumps({"mixes": [mix]}))
            limit_s = _START_S + 10 * _SPAN_S * self.args.times
            _wait(runs, lambda app: bool(replaying.read_replayed(results[app])), limit_s)
            end_ms, loads = int(time.time() * MS_PER_S), [load, os.getloadavg()[0]]
            for app in runs:
                (folder / app / "mixes.json").unlink()  # all stay until then
            for ended in runs.values():
                ended.finish()
                if plugin:
                    replaying.check_guided(ended.folder / "submit.log")
        shutil.rmtree(folder / "yarn")
        times = []
        for app, own in by_app.items():
            (replayed,) = replaying.read_replayed(results[app])
            pairs = zip(own, replayed.jct_ms, strict=True)
            times += [{"app": job["app"], "ms": ms} for job, ms in pairs]
        counts = executor_counts(folder / "events", begin_ms, end_ms)
        return {"load": loads, "taken_s": time.monotonic() - begun_s, "jobs": times, **counts}

    def _plugin(self, one: System, folder: Path, stack: ExitStack) -> dict[str, str]:
        """The settings of the plugin, if there is one; the service runs until the stack ends."""
        jar = find_jar(find_spark())
        if one.kind == "one":
            return PluginSettings(jar).conf()
        if one.kind != "serve":
            return {}
        words = f"--scope cluster --cores {EXECUTORS}"
        options: Json = {"extra": words.split(), "log": folder / "service.log"}
        service = stack.enter_context(replaying.running_service(one.policy, "tpch", **options))
        return PluginSettings(jar, service=service.address).conf()


def _command(yarn: Yarn, one: System, app: str, folder: Path, more: Json) -> list[str]:
    """The command that submits an application of the system."""
    jar = find_jar(yarn.spark)
    conf = {
        **yarn.settings(folder / app),
        **replaying.event_log_conf(folder / "events"),
        "spark.app.name": APPS.get(app, _ALL),
        "spark.executor.cores": 1,
        # An archive of classes holds for this beginning of a class path.
        "spark.executor.extraClassPath": _class_path(yarn.spark),
        "spark.driver.host": "127.0.0.1",
        "spark.locality.wait": "0s",
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
        "spark.shuffle.service.enabled": "true",
        "spark.parcae.replay.together": "true",
        "spark.parcae.replay.warmUp": 8,
        **one.conf(app),
        **more,
    }
    if one.kind == "one-fair":
        pools = "".join(map(_POOL.format, APPS.values()))
        write_text(folder / "pools.xml", f"<allocations>{pools}</allocations>")
        conf["spark.scheduler.mode"] = "FAIR"
        conf["spark.scheduler.allocation.file"] = folder / "pools.xml"
    lines = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    files = [str(folder / app / f"{what}.json") for what in ("mixes", "results")]
    submit = [str(yarn.spark.command("spark-submit")), "--master", "yarn"]
    return [*submit, *lines, "--class", replaying.REPLAY_CLASS, str(jar), *files]


def _class_path(spark: SparkHome) -> str:
    return f"{find_jar(spark)}:{spark.jars}/*"


def _wait(runs: Mapping[str, YarnRun], is_done: Callable[[str], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while not all(map(is_done, runs)):
        for app, run in runs.items():
            if run.process.poll() is not None or time.monotonic() > end_s:
                raise ParcaeError(run.explained(f"{app} ended early, or took too long"))
        time.sleep(0.2)


def executor_counts(logs: Path, begin_ms: int, end_ms: int) -> Json:
    """Between two times: executors started and most at once; tasks that ran again, and lost."""
    started = again = lost = 0
    changes = []
    for checked in LogReading([logs]).applications():
        for since_ms, until_ms in checked.log.presence(end_ms).values():
            started += begin_ms <= since_ms < end_ms
            if until_ms > begin_ms and since_ms < end_ms:
                changes += [(max(since_ms, begin_ms), 1), (until_ms, -1)]
        tasks = checked.tasks
        is_own = tasks.launch_ms >= begin_ms
        is_done = is_own & (tasks.outcome == Outcome.SUCCESS)
        done = np.column_stack([tasks.stage_id, tasks.task_index])[is_done]
        again += len(done) - len(np.unique(done, axis=0))
        lost += int(np.sum(is_own & ~is_done))
    most = int(np.cumsum([change for _, change in sorted(changes)]).max(initial=0))
    return {"started": started, "most": most, "again": again, "lost": lost}


def mean_s(run: Json, app: str | None = None) -> float:
    """The mean time of an application's jobs, or of all, in s."""
    took = [job["ms"] for job in run["jobs"] if app in (None, job["app"])]
    return float(np.mean(took)) / MS_PER_S


def rows_of(runs: Mapping[str, Sequence[Json]]) -> list[list[str]]:
    """A row for every system: mean times, counts per run, and ratios paired by seed."""
    means = {name: [mean_s(run) for run in of_name] for name, of_name in runs.items()}
    rows = []
    for name, of_name in runs.items():
        row = [name]
        row += [f"{np.mean([mean_s(run, app) for run in of_name]):.2f}" for app in (None, *APPS)]
        counts = ("started", "again", "lost")
        row += [f"{np.mean([run[what] for run in of_name]):.1f}" for what in counts]
        row.append(str(max(run["most"] for run in of_name)))
        for other in ("fair", "static", "serve:srpt"):
            ratio = other in runs and with_interval(ratio_estimate(means[name], means[other]))
            row.append(ratio if ratio and other != name else "")
        loads = [load for run in of_name for load in run["load"]]
        rows.append([*row, f"{min(loads):.1f} to {max(loads):.1f}"])
    return rows


def main(args: argparse.Namespace) -> None:
    """Measure, and print a row for every system."""
    runs = Measurement(args).run()
    headings = ["system", "mean s", *APPS.values(), "executors started", "tasks run again"]
    headings += ["tasks lost", "most executors", "to fair", "to static"]
    headings += ["to serve:srpt", "load average"]
    taken = [run["taken_s"] for of_name in runs.values() for run in of_name]
    title = f"Four applications on YARN: {args.seeds} seeds, times {args.times:g}"
    print_rows(title, headings, rows_of(runs), f"a run took {np.mean(taken):.0f} s")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add("--systems", type=lambda text: list(map(system, names(text))), default="fair,static,one")
    add("--times", type=number(0.05, 100, float), default=1.0, help="of all times")
    add("--seeds", type=number(1), default=3)
    add("--seed-start", type=number(0), default=1)
    add("--work", type=Path, default=Path("applications-work"), help="a stopped run goes on")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
