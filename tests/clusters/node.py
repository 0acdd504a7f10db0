"""The four programs of a Kubernetes control plane, and a node that runs pods as processes.

    python -m tests.clusters.node FOLDER CONTROL_PLANE SHARED...

It is the first process of a network with nothing but loopback and of process ids of its own: all
ends with it. The control plane is the real one. The node is no kubelet: every image is this
machine's files with Spark in /opt/spark, of which the folders SHARED alone keep what a pod writes.
It has commands, environment, volumes (emptyDir, ConfigMaps and Secrets that change, tokens), the
names of services, ends within the grace period, exit codes. It has no images, init containers,
restarts, probes, limits of CPU and memory, DNS, NetworkPolicies, `kubectl logs` or `exec`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

Object = dict[str, Any]
#: The machine's address, which is that of the API server too; pods have the following ones.
ADDRESS = "10.244.0.1"
SERVER = f"https://{ADDRESS}"
#: Spark's name for the API server, and its address in pods.
_SERVICE = "10.96.0.1"
#: Tokens of the administrator and of a person, in a network that nothing else can reach.
TOKENS = {"admin": "token-of-admin", "ann": "token-of-ann"}
_NODE = "processes"
_START_S = 180.0
#: How often pods are looked for, and volumes are read again (a kubelet: about a minute).
_POLL_S = 0.2
_SYNC_S = 1.0
# What the entry point of Spark's image does.
_ENTRY = """#!/bin/bash
export SPARK_HOME=/opt/spark
role=$1; shift
case $role in
driver)
  exec /opt/spark/bin/spark-submit --conf spark.driver.bindAddress="$SPARK_DRIVER_BIND_ADDRESS" \
    --conf spark.executorEnv.SPARK_DRIVER_POD_IP="$SPARK_DRIVER_BIND_ADDRESS" \
    --deploy-mode client "$@" ;;
executor)
  readarray -t options < <(env | grep ^SPARK_JAVA_OPT_ | sort -t_ -k4 -n | sed 's/[^=]*=//')
  exec "$JAVA_HOME/bin/java" "${options[@]}" -Xms64m "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "$SPARK_CONF_DIR:/opt/spark/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME" ;;
esac
"""


class Api:
    """The API server, asked with a token."""

    def __init__(self, home: Path, token: str) -> None:
        # The server has made its certificate, with that of its signer behind it.
        context = ssl.create_default_context(cafile=home / "tls" / "apiserver.crt")
        https = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        self._token = token

    def call(
        self, method: str, path: str, body: Object | str | None = None, kind: str = "json"
    ) -> Object:
        """The answer to a request; the body's kind is application/`kind`.

        Raises:
            HTTPError: the server refused it.
        """
        text = body if isinstance(body, str) else json.dumps(body) if body else ""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": f"application/{kind}"}
        request = urllib.request.Request(
            f"{SERVER}{path}", text.encode() or None, headers, method=method
        )
        with self._opener.open(request, timeout=30) as answer:
            found: Object = json.load(answer)
        return found


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Write a volume's files, which change all at once by a link, as a kubelet's do."""
    data = folder / "..data"
    if data.exists() and {one.name: one.read_bytes() for one in data.iterdir()} == files:
        return
    before = data.resolve()
    version = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    version.chmod(0o755)
    for name, content in files.items():
        (version / name).write_bytes(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    new = folder / "..new"
    new.symlink_to(version.name)
    new.replace(data)
    if before != data:
        shutil.rmtree(before)


class Pod(threading.Thread):
    """A pod and the thread that runs its container."""

    def __init__(self, node: Node, pod: Object) -> None:
        super().__init__(daemon=True)
        self.node = node
        self.spec: Object = pod["spec"]
        self.labels: dict[str, str] = pod["metadata"].get("labels", {})
        self.namespace, self.pod_name, self.uid = (
            str(pod["metadata"][part]) for part in ("namespace", "name", "uid")
        )
        self.core = f"/api/v1/namespaces/{self.namespace}"
        self.path = f"{self.core}/pods/{self.pod_name}"
        self.folder = node.home / "pods" / self.namespace / f"{len(node.pods):03}-{self.pod_name}"
        self.folder.mkdir(parents=True)
        self.address = f"10.244.{1 + len(node.pods) // 250}.{1 + len(node.pods) % 250}"
        self.phase = "Pending"
        self.process: subprocess.Popen[bytes] | None = None
        self.is_ending = False

    def run(self) -> None:
        (container,) = self.spec["containers"]
        try:
            assert not self.spec.get("initContainers")
            self._report({"waiting": {"reason": "ContainerCreating"}})
            while not self.sync() and not self.is_ending:
                time.sleep(_POLL_S)
            if self.is_ending:
                return
            self.process = self._launch(container)
            self.phase = "Running"
            self._report({"running": {}})
            code = self.process.wait()
            self.phase = "Failed" if code else "Succeeded"
            self._report({"terminated": {"exitCode": code if code >= 0 else 128 - code}})
        except Exception:
            traceback.print_exc()
            self.phase = "Failed"
            self._report({"terminated": {"exitCode": 255, "message": traceback.format_exc()}})

    def _report(self, state: Object) -> None:
        (container,) = self.spec["containers"]
        is_ready = "running" in state
        status = {
            "phase": self.phase,
            "hostIP": ADDRESS,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [
                {"type": kind, "status": str(is_ready)} for kind in ("Ready", "ContainersReady")
            ],
            "containerStatuses": [
                {
                    **{key: container[key] for key in ("name", "image")},
                    **{"imageID": "", "ready": is_ready, "restartCount": 0, "state": state},
                }
            ],
        }
        try:
            body = {"metadata": {"uid": self.uid}, "status": status}
            kind = "strategic-merge-patch+json"
            self.node.api.call("PATCH", f"{self.path}/status", body, kind)
        except HTTPError as error:
            if error.code not in (404, 409):  # the pod is gone
                raise

    def sync(self) -> bool:
        """Bring the volumes up to date; whether everything is there that must be."""
        try:
            for volume in self.spec.get("volumes", []):
                folder = self._volume(volume["name"])
                folder.mkdir(parents=True, exist_ok=True)
                if "emptyDir" not in volume:
                    _write(folder, self._files(volume, folder))
        except HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True

    def _volume(self, name: str) -> Path:
        return self.folder / "volumes" / name

    def _files(self, volume: Object, folder: Path) -> dict[str, bytes]:
        """The files of a volume, or of a part of one."""
        found: dict[str, bytes] = {}
        kinds = [kind for kind in volume if kind != "name"]
        (kind,) = kinds
        source = volume[kind]
        if kind == "projected":
            for part in source["sources"]:
                found |= self._files(part, folder)
        elif kind in ("configMap", "secret"):
            name = source.get("secretName") or source["name"]
            try:
                given = self.node.api.call("GET", f"{self.core}/{kind.lower()}s/{name}")
            except HTTPError as error:
                if error.code != 404 or not source.get("optional"):
                    raise
                given = {}
            texts, data = given.get("data") or {}, given.get("binaryData") or {}
            texts, data = ({}, texts) if kind == "secret" else (texts, data)
            data = {key: base64.b64decode(value) for key, value in data.items()}
            data |= {key: text.encode() for key, text in texts.items()}
            items = source.get("items") or [{"key": key, "path": key} for key in data]
            found = {item["path"]: data[item["key"]] for item in items}
        elif kind == "serviceAccountToken":
            kept = folder / source["path"]  # it holds for an hour, and a test for minutes
            found[source["path"]] = kept.read_bytes() if kept.exists() else self._token()
        elif kind == "downwardAPI":
            for item in source["items"]:
                found[item["path"]] = self._field(item["fieldRef"]).encode()
        else:
            raise ValueError(f"this node has no volumes {kind}")
        return found

    def _token(self) -> bytes:
        pod = {"kind": "Pod", "apiVersion": "v1", "name": self.pod_name, "uid": self.uid}
        path = f"{self.core}/serviceaccounts/{self.spec['serviceAccountName']}/token"
        made = self.node.api.call("POST", path, {"spec": {"boundObjectRef": pod}})
        return str(made["status"]["token"]).encode()

    def _field(self, source: Object) -> str:
        fields = {
            "status.podIP": self.address,
            "metadata.name": self.pod_name,
            "metadata.namespace": self.namespace,
        }
        return fields[source["fieldPath"]]

    def _launch(self, container: Object) -> subprocess.Popen[bytes]:
        env = {name: os.environ[name] for name in ("PATH", "JAVA_HOME")}
        env |= {"HOME": "/tmp", "LANG": "C.UTF-8"}
        env |= {"KUBERNETES_SERVICE_HOST": _SERVICE, "KUBERNETES_SERVICE_PORT": "443"}
        for one in container.get("env", []):
            source = one.get("valueFrom")
            env[one["name"]] = self._field(source["fieldRef"]) if source else one.get("value", "")
        words = [*container.get("command", ["/opt/entry.sh"]), *container.get("args", [])]
        words = [re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), word) for word in words]
        q = shlex.quote
        root = self.folder / "root"
        root.mkdir()
        # Mounts end with the process, which has a view of its own.
        outside = [
            f"mount -t tmpfs tmpfs {q(str(root))}; cd {q(str(root))}; mkdir up work root",
            "mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root; cd root",
            "mount --rbind /dev dev; mount -t proc proc proc; mkdir -p opt/spark opt/work",
            "mkdir ../spark ../spark-work; mount -t overlay overlay -o "
            f"lowerdir={q(str(self.node.spark))},upperdir=../spark,workdir=../spark-work opt/spark",
            *(f"mkdir -p .{q(one)}; mount --bind {q(one)} .{q(one)}" for one in self.node.shared),
            f"cp {q(str(self.node.home / 'entry.sh'))} opt/entry.sh",
            f"hostname {q(self.pod_name[:63])}",
        ]
        inside = [f"mount --bind {q(str(self.node.hosts))} /etc/hosts"]
        for mount in container.get("volumeMounts", []):
            source, place = self._volume(mount["name"]), mount["mountPath"]
            if part := mount.get("subPath"):
                source /= part
            make = "touch" if source.is_file() else "mkdir -p"
            inside += [f"mkdir -p {q(str(Path(place).parent))}; {make} {q(place)}"]
            inside += [f"mount --bind {q(str(source))} {q(place)}"]
        inside += ["cd /opt/work", f"exec {shlex.join(words)}"]
        outside += [f"exec chroot . /bin/sh -ec {q('; '.join(inside))}"]
        space = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child=SIGKILL"]
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(
                [*space, "/bin/sh", "-ec", "; ".join(outside)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=env,
            )

    def end(self, grace_s: float) -> None:
        """End the pod within the grace period."""
        if not self.is_ending:
            self.is_ending = True
            threading.Thread(target=self._end, args=(grace_s,), daemon=True).start()

    def _end(self, grace_s: float) -> None:
        if (process := self.process) and process.poll() is None:
            # `unshare` itself is deaf to SIGTERM.
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            for child in children.split():
                os.kill(int(child), signal.SIGTERM)
            self.join(grace_s)
            process.kill()  # and with it the container
        self.join()
        self.node.forget(self.path, self.uid)


class Node:
    """The node and its pods."""

    def __init__(self, home: Path, shared: list[str]) -> None:
        self.home, self.shared = home, [*shared, str(home)]
        self.spark = Path(os.environ["SPARK_HOME"])
        self.api = Api(home, TOKENS["admin"])
        self.pods: dict[str, Pod] = {}
        #: /etc/hosts of all pods. Lines are only added.
        self.hosts = home / "hosts"
        self._named: set[str] = set()
        self._name("127.0.0.1", "localhost")
        self._name(_SERVICE, "kubernetes.default.svc")
        (home / "entry.sh").write_text(_ENTRY)
        (home / "entry.sh").chmod(0o755)

    def _name(self, address: str, name: str) -> None:
        if name not in self._named:
            self._named.add(name)
            with self.hosts.open("a") as file:
                file.write(f"{address} {name}\n")

    def register(self) -> None:
        """Make the node, which is then ready."""
        nodes = "/api/v1/nodes"
        self.api.call("POST", nodes, {"metadata": {"name": _NODE}})
        size = {"cpu": "16", "memory": "16Gi", "pods": "110"}
        status = {
            "capacity": size,
            "allocatable": size,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Processes"}],
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
        }
        kind = "strategic-merge-patch+json"
        self.api.call("PATCH", f"{nodes}/{_NODE}/status", {"status": status}, kind)
        while self.api.call("GET", f"{nodes}/{_NODE}")["spec"].get("taints"):
            time.sleep(_POLL_S)

    def forget(self, path: str, uid: str) -> None:
        """Say that a pod has ended that was to be deleted."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        try:
            self.api.call("DELETE", path, body)
        except HTTPError as error:
            if error.code not in (404, 409):
                raise

    def look(self) -> None:
        """Start and end pods as the API server has them."""
        listed = self.api.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={_NODE}")["items"]
        for one in listed:
            meta = one["metadata"]
            pod = self.pods.get(meta["uid"])
            if pod is None:
                pod = self.pods[meta["uid"]] = Pod(self, one)
                self._name(pod.address, pod.pod_name)
                pod.start()
            if "deletionTimestamp" in meta:
                pod.end(meta.get("deletionGracePeriodSeconds") or 0)
        here = {one["metadata"]["uid"] for one in listed}
        for uid, pod in self.pods.items():
            if uid not in here:
                pod.end(0)
        for service in self.api.call("GET", "/api/v1/services")["items"]:
            self._find(service)

    def _find(self, service: Object) -> None:
        """Give a service's name to the pod that it selects."""
        name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
        selector = service["spec"].get("selector") or {}
        for pod in self.pods.values():
            if selector and pod.is_alive() and selector.items() <= pod.labels.items():
                self._name(pod.address, name)

    def sync(self) -> None:
        """Bring the volumes of pods that run up to date."""
        for pod in self.pods.values():
            if pod.phase == "Running":
                pod.sync()


def _start(home: Path, program: str, name: str, *options: str) -> subprocess.Popen[bytes]:
    with (home / f"{name}.log").open("wb") as log:
        return subprocess.Popen([program, name, *options], stdout=log, stderr=log, cwd=home)


def _control_plane(home: Path, program: str) -> list[subprocess.Popen[bytes]]:
    """Start the control plane."""
    key = ["openssl", "genrsa", "-out", str(home / "accounts.key"), "2048"]
    subprocess.run(key, check=True, capture_output=True)
    groups = {"admin": "system:masters", "ann": "people"}
    lines = [f'{TOKENS[user]},{user},{user},"{groups[user]}"\n' for user in TOKENS]
    (home / "tokens").write_text("".join(lines))
    etcd = _start(home, program, "etcd", "--data-dir=etcd", "--unsafe-no-fsync", "--log-level=warn")
    server = _start(
        home,
        program,
        "kube-apiserver",
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=443",
        f"--advertise-address={ADDRESS}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--cert-dir=tls",
        "--token-auth-file=tokens",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-signing-key-file=accounts.key",
        "--service-account-key-file=accounts.key",
    )
    started = [etcd, server]
    end = time.monotonic() + _START_S
    while True:
        try:
            Api(home, TOKENS["admin"]).call("GET", "/api/v1/namespaces/kube-system")
            break
        except OSError:  # of which HTTPError is one
            if time.monotonic() > end or any(one.poll() is not None for one in started):
                sys.exit("the API server did not start")
            time.sleep(_POLL_S)
    config = f"--kubeconfig={write_config(home, 'admin')}"
    common = (config, "--leader-elect=false", "--secure-port=0")
    return [
        *started,
        _start(home, program, "kube-scheduler", *common),
        _start(
            home,
            program,
            "kube-controller-manager",
            *common,
            "--service-account-private-key-file=accounts.key",
            "--root-ca-file=tls/apiserver.crt",
            "--node-monitor-grace-period=24h",  # the node sends no signs of life
        ),
    ]


def write_config(home: Path, user: str) -> Path:
    """Write the kubeconfig of a user (JSON is YAML)."""
    cluster = {"server": SERVER, "certificate-authority": str(home / "tls" / "apiserver.crt")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": TOKENS[user]}}],
    }
    path = home / f"{user}.config"
    path.write_text(json.dumps(config))
    return path


def main(home: Path, program: str, shared: list[str]) -> None:
    """Start all, and write the file `ready` once the node is ready."""
    for words in (
        "link set lo up",
        f"addr add {ADDRESS}/16 dev lo",
        f"addr add {_SERVICE}/32 dev lo",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    programs = _control_plane(home, program)
    node = Node(home, shared)
    node.register()
    (home / "ready").touch()
    last = 0.0
    while all(one.poll() is None for one in programs):
        try:
            node.look()
            if time.monotonic() > last + _SYNC_S:
                node.sync()
                last = time.monotonic()
        except OSError:  # of which HTTPError is one; what is missing comes with the next look
            traceback.print_exc()
        time.sleep(_POLL_S)
    sys.exit("a program of the control plane has ended")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
