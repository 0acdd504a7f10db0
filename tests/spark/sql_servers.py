"""Spark's SQL servers in a process of their own, and clients: each a session of one person."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parcae.spark.home import SparkHome
from parcae.spark.launch import environment
from tests.spark.proofs import Process, free_port, process, submit_command

CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
THRIFT = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
_CLIENT = Path(__file__).parent / "connect_client.py"
_READY = {CONNECT: "Spark Connect server started at", THRIFT: "ThriftBinaryCLIService on port"}
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class SqlServer:
    """A server that runs, and where; `kind` is its class."""

    kind: str
    process: Process
    port: int
    spark: SparkHome

    def ask(self, user: str, *queries: str) -> str:
        """What a client prints that runs queries of a person one after the other."""
        if self.kind == CONNECT:
            url = f"sc://127.0.0.1:{self.port}/;user_id={user}"
            command = [sys.executable, str(_CLIENT), url, *queries]
        else:
            options = f"-u jdbc:hive2://127.0.0.1:{self.port} --silent=true --outputformat=csv2"
            command = [str(self.spark.command("beeline")), *options.split(), "-n", user]
            command += [word for query in queries for word in ("-e", query)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=environment(self.spark.path),
            cwd=self.process.log.parent,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def end(self) -> None:
        """Let it write its log to the end."""
        self.process.popen.terminate()
        self.process.wait()


@contextmanager
def sql_server(
    kind: str, spark: SparkHome, folder: Path, master: str, settings: Mapping[str, object]
) -> Iterator[SqlServer]:
    """A server with these settings; its event log is in `folder / "logs"`."""
    (folder / "logs").mkdir(parents=True)
    port = free_port()
    own = {
        "spark.hadoop.hive.server2.thrift.port": port,
        "spark.hadoop.hive.server2.thrift.bind.host": "127.0.0.1",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
    }
    if kind == CONNECT:
        own = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
        }
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder / "logs",
        "spark.sql.warehouse.dir": folder / "warehouse",
        **own,
        **settings,
    }
    command = submit_command(spark, master, conf, f"--class={kind}", "spark-internal")
    with process(command, folder / "server.log", spark) as started:
        started.await_line(_READY[kind])
        yield SqlServer(kind, started, port, spark)
