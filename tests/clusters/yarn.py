"""A real YARN for tests: a ResourceManager and NodeManagers, each a JVM, on loopback.

Maven fetches Hadoop's jars once. Containers are processes of this account; nothing needs root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from parcae.base.errors import ConfigError
from parcae.base.files import user_caches
from parcae.spark.home import SparkHome, find_java
from tests.clusters.run import SMALL, Run, command, running, settings
from tests.spark.java import maven

HADOOP = "3.5.0"
_HERE = "127.0.0.1"
_START_S = 120.0
_SERVER = "org.apache.hadoop.yarn.server"
# Without the time line's service, the NodeManager lacks a class.
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>parcae</groupId><artifactId>yarn</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{}</dependencies></project>"""
_DEPENDENCY = """<dependency><groupId>org.apache.hadoop</groupId>
<artifactId>hadoop-yarn-server-{}</artifactId><version>{}</version></dependency>"""
_LOGGING = """log4j.rootLogger=INFO,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


def hadoop_class_path() -> str:
    """The jars of the daemons, for which Maven looks once.

    Raises:
        ConfigError: they, or a Java, are out of reach.
    """
    find_java()
    folder = user_caches() / "parcae" / f"yarn-{HADOOP}"
    kept = folder / "classpath"
    if not kept.exists() or not all(map(os.path.exists, kept.read_text().split(":"))):
        folder.mkdir(parents=True, exist_ok=True)
        parts = ("resourcemanager", "nodemanager", "timelineservice")
        dependencies = "".join(_DEPENDENCY.format(part, HADOOP) for part in parts)
        (folder / "pom.xml").write_text(_POM.format(dependencies))
        words = ("--quiet", "dependency:build-classpath", f"-Dmdep.outputFile={kept}.part")
        done = maven(*words, project=folder)
        if isinstance(done, str):
            raise ConfigError(done)
        assert done.returncode == 0, done.stdout[-4000:]
        Path(f"{kept}.part").replace(kept)
    return kept.read_text().strip()


def _xml(values: Mapping[str, object]) -> str:
    rows = (f"<property><name>{n}</name><value>{v}</value></property>" for n, v in values.items())
    return "\n".join(["<configuration>", *rows, "</configuration>"])


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((_HERE, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _processes(*texts: str) -> list[int]:
    """The Java processes whose command lines have all these texts."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        line = " ".join(words)
        if words[0].endswith("java") and all(text in line for text in texts):
            found.append(int(entry.parent.name))
    return found


@dataclass(frozen=True)
class YarnPlan:
    """What a YARN has: nodes of a size, queues, and more settings and files of its daemons."""

    num_nodes: int = 2
    memory_mib: int = 5120
    cores: int = 4
    queues: Sequence[str] = ("default", "etl")
    site: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class YarnRun(Run):
    """An application on YARN."""

    yarn: Yarn
    application: str = ""

    def submitted(self) -> str:
        """What the command said so far; this notes the application's number."""
        text = super().submitted()
        if number := re.search(r"application_[0-9]+_[0-9]+", text):
            self.application = number[0]
        return text

    def on_cluster(self) -> list[str]:
        """What the driver of every attempt said so far."""
        self.submitted()
        masters = self.yarn.home.glob(f"nm*/logs/{self.application}/container_*_000001")
        in_order = sorted(masters, key=lambda path: path.name)
        return [
            "".join(p.read_text(errors="replace") for p in one.glob("std*")) for one in in_order
        ]

    def kill(self, what: str) -> None:
        """Kill one Java process of the application."""
        self.submitted()
        pids = _processes(str(self.yarn.home), self.application, what)
        assert pids, f"no {what} of {self.application} runs"
        os.kill(pids[0], signal.SIGKILL)


@dataclass(eq=False)
class Yarn:
    """A running YARN and its settings for clients."""

    home: Path
    spark: SparkHome
    web: str
    daemons: list[subprocess.Popen[bytes]]

    @property
    def conf(self) -> Path:
        """HADOOP_CONF_DIR."""
        return self.home / "conf"

    def settings(self, folder: Path) -> dict[str, object]:
        """Settings of small applications."""
        of_both = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": _HERE}
        names = ("spark.yarn.appMasterEnv", "spark.executorEnv")
        return {
            **settings(folder),
            **{f"{name}.{key}": value for name in names for key, value in of_both.items()},
            "spark.yarn.jars": f"local:{self.spark.jars}/*",
            "spark.yarn.stagingDir": f"file://{self.home}/staging",
            "spark.yarn.am.extraJavaOptions": SMALL,
            "spark.yarn.am.memory": "512m",
        }

    def submit(
        self,
        folder: Path,
        *options: str,
        cluster: bool = False,
        policy: Path | None = None,
        user: str = "etl",
        pause_s: float = 0.0,
        is_stock: bool = False,
        **more: object,
    ) -> AbstractContextManager[YarnRun]:
        """Submit the application by `parcae spark submit`, or by Spark's own command.

        Example: `spark_yarn_queue="etl"` is the setting spark.yarn.queue.
        """
        named = {name.replace("_", "."): value for name, value in more.items()}
        mode = ["--master", "yarn", "--deploy-mode", "cluster" if cluster else "client"]
        conf = {**self.settings(folder), **named}
        words = command(self.spark, folder, [*mode, *options], conf, policy, pause_s, is_stock)
        return self.run(folder, words, user, cluster)

    def run(
        self, folder: Path, words: Sequence[str], user: str, cluster: bool = False
    ) -> AbstractContextManager[YarnRun]:
        """Run a command that submits an application for a person."""
        java = Path(str(shutil.which("java"))).resolve().parents[1]
        variables = {
            "HADOOP_CONF_DIR": str(self.conf),
            "HADOOP_USER_NAME": user,
            "SPARK_HOME": str(self.spark.path),
            "SPARK_LOCAL_IP": _HERE,
            "JAVA_HOME": str(java),
        }
        if not cluster:
            variables["PYSPARK_PYTHON"] = sys.executable
        return running(partial(YarnRun, yarn=self), folder, words, variables, cluster)

    def close(self) -> None:
        """End the daemons, and whatever they left."""
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
        for pid in _processes(str(self.home)):
            os.kill(pid, signal.SIGKILL)


def start_yarn(home: Path, spark: SparkHome, jars: str, plan: YarnPlan | None = None) -> Yarn:
    """Start a YARN in a folder; by default one of two nodes, with the queues default and etl."""
    plan = plan or YarnPlan()
    parts = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    ports = dict(zip((*parts, "webapp.address"), free_ports(5), strict=True))
    addresses = {f"yarn.resourcemanager.{part}": f"{_HERE}:{ports[part]}" for part in ports}
    node = {
        f"yarn.nodemanager.{part}": f"{_HERE}:0"
        for part in ("address", "localizer.address", "webapp.address")
    }
    site = {
        **addresses,
        **node,
        "yarn.resourcemanager.hostname": _HERE,
        "yarn.resourcemanager.bind-host": _HERE,
        "yarn.nodemanager.bind-host": _HERE,
        "yarn.nodemanager.hostname": _HERE,
        # ${node} is a system property of each NodeManager.
        "yarn.nodemanager.local-dirs": f"{home}/${{node}}/local",
        "yarn.nodemanager.log-dirs": f"{home}/${{node}}/logs",
        "yarn.nodemanager.resource.memory-mb": plan.memory_mib,
        "yarn.nodemanager.resource.cpu-vcores": plan.cores,
        "yarn.scheduler.minimum-allocation-mb": 128,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.delete.debug-delay-sec": 600,
        "yarn.nodemanager.env-whitelist": "JAVA_HOME,PATH,LANG",
        "yarn.resourcemanager.am.max-attempts": 2,
        # Faster than the defaults.
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 100,
        **plan.site,
    }
    queues = {"queues": ",".join(plan.queues)}
    for queue in plan.queues:
        queues[f"{queue}.capacity"] = str(100 / len(plan.queues))
        queues[f"{queue}.maximum-capacity"] = "100"
        queues[f"{queue}.user-limit-factor"] = "10"
    capacity: dict[str, object] = {
        f"yarn.scheduler.capacity.root.{name}": value for name, value in queues.items()
    }
    calculator = "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
    capacity["yarn.scheduler.capacity.resource-calculator"] = calculator
    capacity["yarn.scheduler.capacity.maximum-am-resource-percent"] = 1.0
    conf = home / "conf"
    conf.mkdir(parents=True)
    core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{home}/tmp"}
    (conf / "core-site.xml").write_text(_xml(core))
    (conf / "yarn-site.xml").write_text(_xml(site))
    (conf / "capacity-scheduler.xml").write_text(_xml(capacity))
    for name, text in {"log4j.properties": _LOGGING, **plan.files}.items():
        (conf / name).write_text(text)
    daemons = {"rm": f"{_SERVER}.resourcemanager.ResourceManager"}
    for number in range(plan.num_nodes):
        daemons[f"nm{number + 1}"] = f"{_SERVER}.nodemanager.NodeManager"
    web = addresses["yarn.resourcemanager.webapp.address"]
    yarn = Yarn(home, spark, web, [_daemon(home, *one, jars) for one in daemons.items()])
    try:
        _wait_for_nodes(yarn, plan.num_nodes)
    except BaseException:
        yarn.close()
        raise
    return yarn


def _daemon(home: Path, name: str, main: str, jars: str) -> subprocess.Popen[bytes]:
    (home / name).mkdir()
    java = str(shutil.which("java"))
    options = ["-Xmx256m", *SMALL.split(), "-Djava.net.preferIPv4Stack=true", f"-Dnode={name}"]
    packages = ("java.lang", "java.util", "java.net", "java.io")
    options += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]
    variables = {**os.environ, "HADOOP_CONF_DIR": str(home / "conf")}
    variables["JAVA_HOME"] = str(Path(java).resolve().parents[1])
    with (home / name / "log").open("w") as log:
        return subprocess.Popen(
            [java, *options, "-cp", f"{home / 'conf'}:{jars}", main],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=home / name,
            env=variables,
            start_new_session=True,
        )


def _wait_for_nodes(yarn: Yarn, count: int) -> None:
    end = time.monotonic() + _START_S
    while _active_nodes(yarn.web) < count:
        dead = any(daemon.poll() is not None for daemon in yarn.daemons)
        if dead or time.monotonic() > end:
            logs = {path.parent.name: path.read_text()[-1500:] for path in yarn.home.glob("*/log")}
            raise RuntimeError(f"YARN did not start: {logs}")
        time.sleep(0.2)


def _active_nodes(web: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{web}/ws/v1/cluster/metrics", timeout=5) as answer:
            return int(json.load(answer)["clusterMetrics"]["activeNodes"])
    except OSError:
        return 0
