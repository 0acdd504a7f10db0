"""A fake Kubernetes API server: executor pods become processes of this machine.

It has the part of the API that Spark's client mode uses: pods are created, listed, watched, patched
and deleted. A driver's pod waits for ever, as one whose Secret is missing. All other requests
succeed without an effect.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import subprocess
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from parcae.spark.home import SparkHome
from parcae.spark.launch import environment
from tests.spark.java import jdk_tool

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_END: dict[str, Any] = {}
#: The path of an object, or of all of a kind.
_OBJECT = re.compile(
    r"/apis?(/(?P<group>[^/]+))?/v1/namespaces/[^/]+/(?P<resource>[^/]+)(/(?P<name>[^/]+))?"
)
#: The verb of a role by the method, and whether the path names an object.
_VERBS = {
    ("GET", True): "get",
    ("GET", False): "list",
    ("POST", False): "create",
    ("PUT", True): "update",
    ("PATCH", True): "patch",
    ("DELETE", True): "delete",
    ("DELETE", False): "deletecollection",
}


class Pods:
    """The pods and the clients that watch them."""

    def __init__(self, spark: SparkHome, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.num_made = 0
        #: The other objects that were made, and all requests, as roles name them.
        self.others: list[dict[str, Any]] = []
        self.requests: set[tuple[str, str, str]] = set()
        self._pods: dict[str, dict[str, Any]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: list[queue.Queue[dict[str, Any]]] = []
        self._lock = threading.RLock()
        self._version = 1

    def list(self) -> dict[str, Any]:
        """All pods, as the API gives them."""
        with self._lock:
            version = {"resourceVersion": str(self._version)}
            return {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": version,
                "items": [*self._pods.values()],
            }

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Make a pod and start its process."""
        with self._lock:
            self.num_made += 1
            name = pod["metadata"]["name"]
            pod["metadata"] |= {
                "uid": str(uuid.uuid4()),
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            is_driver = pod["metadata"]["labels"]["spark-role"] == "driver"
            if not is_driver:
                self._processes[name] = self._start(pod)
            state = {
                "name": "spark-kubernetes-executor",
                "ready": True,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
            phase = "Pending" if is_driver else "Running"
            pod["status"] = {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [state]}
            self._pods[name] = pod
            self._notify("ADDED", pod)
            return pod

    def _start(self, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Start an executor as the entry point of Spark's image does, by the pod's environment."""
        (container,) = pod["spec"]["containers"]
        env = {each["name"]: each.get("value", "") for each in container["env"]}
        options = [value for name, value in env.items() if name.startswith("SPARK_JAVA_OPT_")]
        place = {
            "app-id": env["SPARK_APPLICATION_ID"],
            "hostname": "127.0.0.1",
            "podName": pod["metadata"]["name"],
        }
        arguments = {
            "driver-url": env["SPARK_DRIVER_URL"],
            "executor-id": env["SPARK_EXECUTOR_ID"],
            "cores": env["SPARK_EXECUTOR_CORES"],
            "resourceProfileId": env["SPARK_RESOURCE_PROFILE_ID"],
            **place,
        }
        words = [word for name, value in arguments.items() for word in (f"--{name}", value)]
        java = [str(jdk_tool("java")), *options, "-Xmx512m", "-cp", f"{self.spark.jars}/*"]
        variables = {
            "SPARK_USER": env["SPARK_USER"],
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }
        log = self.folder / f"{pod['metadata']['name']}.log"
        with log.open("wb") as out:
            return subprocess.Popen(
                [*java, _BACKEND, *words],
                stdout=out,
                stderr=out,
                env={**environment(self.spark.path), **variables},
                cwd=self.folder,
            )

    def patch(self, name: str) -> dict[str, Any] | None:
        """The pod; changes of its labels are ignored."""
        with self._lock:
            return self._pods.get(name)

    def delete(self, name: str | None = None) -> None:
        """End a pod and its process; without a name, all."""
        with self._lock:
            for each in [name] if name else list(self._pods):
                pod = self._pods.pop(each, None)
                process = self._processes.pop(each, None)
                if process:
                    process.kill()
                    process.wait()
                if pod:
                    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                    self._notify("DELETED", pod)

    def watch(self) -> queue.Queue[dict[str, Any]]:
        """A queue of all events from now on."""
        with self._lock:
            self._watchers.append(queue.Queue())
            return self._watchers[-1]

    def _notify(self, kind: str, pod: dict[str, Any]) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        event = json.loads(json.dumps({"type": kind, "object": pod}))
        for watcher in self._watchers:
            watcher.put(event)

    def close(self) -> None:
        """End all processes and all watches."""
        self.delete()
        for watcher in self._watchers:
            watcher.put(_END)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pods: Pods

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def parse_request(self) -> bool:
        """Read the head of a request, and keep its group, resource and verb."""
        is_right = super().parse_request()
        url = urlsplit(self.path) if is_right else None
        if url and (match := _OBJECT.fullmatch(url.path)):
            verb = _VERBS[self.command, bool(match["name"])]
            if "watch" in parse_qs(url.query):
                verb = "watch"
            self.pods.requests.add((match["group"] or "", match["resource"], verb))
        return is_right

    def _body(self) -> dict[str, Any]:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body: dict[str, Any] = json.loads(text or "{}")
        return body

    def _reply(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _pod_name(self) -> str | None:
        """The pod of the path; empty for all pods, None for another kind of object."""
        path = urlsplit(self.path).path.removeprefix("/api/v1/namespaces/default/")
        kind, _, name = path.partition("/")
        return name if kind == "pods" else None

    def do_GET(self) -> None:
        if self._pod_name() is None:
            self._reply({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []})
        elif "watch" in parse_qs(urlsplit(self.path).query):
            self._watch()
        else:
            self._reply(self.pods.list())

    def _watch(self) -> None:
        if self.headers.get("Upgrade"):  # no web sockets: the client asks again without
            self._reply({})
            return
        events = self.pods.watch()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            while (event := events.get()) is not _END:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
        self.close_connection = True

    def do_POST(self) -> None:
        body = self._body()
        if self._pod_name() == "":
            self._reply(self.pods.create(body), 201)
        else:
            body.setdefault("metadata", {})["uid"] = str(uuid.uuid4())
            self.pods.others.append(body)
            self._reply(body, 201)

    def do_PATCH(self) -> None:
        body = self._body()
        pod = self.pods.patch(self._pod_name() or "")
        if pod is None:  # Spark 4 makes objects by patching them
            self.pods.others.append(body)
        self._reply(pod or body)

    def do_PUT(self) -> None:
        self._reply(self._body())

    def do_DELETE(self) -> None:
        self._body()
        name = self._pod_name()
        if name is not None:
            self.pods.delete(name or None)
        self._reply({"kind": "Status", "apiVersion": "v1", "status": "Success"})


@contextlib.contextmanager
def fake_kubernetes(spark: SparkHome, folder: Path) -> Iterator[tuple[str, Pods]]:
    """The master URL of a fake cluster, and its pods; all end with the `with` block."""
    folder.mkdir(parents=True, exist_ok=True)
    pods = Pods(spark, folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"pods": pods}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"k8s://http://127.0.0.1:{server.server_address[1]}", pods
    finally:
        pods.close()
        server.shutdown()
        server.server_close()
