"""A Kubernetes for tests: the real control plane, and a node that runs pods as processes.

`python -m tests.clusters.kubernetes` builds the control plane and Helm from their sources with Go,
once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from parcae.base.errors import ConfigError
from parcae.base.files import user_caches
from parcae.spark.home import SparkHome
from tests.clusters.node import ADDRESS, SERVER, TOKENS, Api, Object, write_config
from tests.clusters.run import APP, Run, command, running, settings
from tests.conftest import REPOSITORY, wait_until

_SOURCES = Path(__file__).with_name("controlplane")
_HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
_START_S = 240.0
_END_S = 120.0
_CLONE_NEWNET = 0x40000000


def _program() -> Path:
    """Where the program of the control plane is, once it is built."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((_SOURCES / name).read_bytes())
    return user_caches() / "parcae" / f"kubernetes-{digest.hexdigest()[:12]}" / "controlplane"


def build() -> None:
    """Build the control plane, unless it is in the user's caches.

    Raises:
        ConfigError: there is no Go, or it cannot fetch or build the sources.
    """
    _build_helm()
    program = _program()
    if program.exists():
        return
    _need_go()
    version = re.search(r"k8s.io/kubernetes (v\S+)", (_SOURCES / "go.mod").read_text())
    assert version
    print(f"builds Kubernetes {version[1]} (some 20 minutes of one core) as {program}", flush=True)
    program.parent.mkdir(parents=True, exist_ok=True)
    part = program.with_suffix(".part")
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={version[1]}"
    options = ["-mod=readonly", "-trimpath", "-ldflags", flags, "-o", str(part)]
    variables = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(["go", "build", *options, "."], cwd=_SOURCES, env=variables, check=False)
    if done.returncode:
        raise ConfigError("Go has not built the control plane: see above")
    part.replace(program)


def _need_go() -> None:
    if shutil.which("go") is None:
        raise ConfigError(
            "the control plane of Kubernetes and Helm need Go (https://go.dev/dl) to be built"
        )


def _own_helm() -> Path:
    return user_caches() / "parcae" / f"helm-{_HELM.partition('@')[2]}" / "helm"


def helm() -> str | None:
    """The program `helm`: that of the PATH, or the one that is built here."""
    own = _own_helm()
    return shutil.which("helm") or (str(own) if own.exists() else None)


def _build_helm() -> None:
    if helm() is not None:
        return
    _need_go()
    print(f"builds {_HELM} (some minutes of one core) as {_own_helm()}", flush=True)
    variables = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(_own_helm().parent)}
    if subprocess.run(["go", "install", _HELM], env=variables, check=False).returncode:
        raise ConfigError("Go has not built Helm: see above")


@dataclass(eq=False)
class PodRun(Run):
    """An application on Kubernetes."""

    namespace: Namespace

    def on_cluster(self) -> list[str]:
        """What every pod of the driver said so far."""
        logs = sorted(self.namespace.folder.glob(f"*-{self.folder.name}-*driver/log"))
        return [log.read_text(errors="replace") for log in logs]


def _driver(folder: Path) -> str:
    """The name of the driver's pod of an application."""
    return f"{folder.name}-driver"


@dataclass(eq=False)
class Namespace:
    """A namespace with the roles of `deploy/`, in which the person ann may submit."""

    cluster: Kubernetes
    name: str

    @property
    def folder(self) -> Path:
        """The folders of its pods, in the order in which they came."""
        return self.cluster.home / "pods" / self.name

    def path(self, kind: str, name: str = "", version: str = "v1") -> str:
        """The path of an object, or of all of its kind (such as `pods`)."""
        root = "apis" if "/" in version else "api"
        return f"/{root}/{version}/namespaces/{self.name}/{kind}" + (f"/{name}" if name else "")

    def apply(self, text: str, api: Api) -> None:
        """What `kubectl apply --server-side -f -` does."""
        for one in yaml.safe_load_all(text):
            kind = f"{one['kind'].lower()}s"
            path = self.path(kind, one["metadata"]["name"], one["apiVersion"])
            api.call(
                "PATCH", f"{path}?fieldManager=kubectl", yaml.safe_dump(one), "apply-patch+yaml"
            )

    def bind(self, role: str) -> None:
        """Bind a role to people, as `kubectl create rolebinding --group people` does."""
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"people-{role}"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": role},
            "subjects": [{"apiGroup": group, "kind": "Group", "name": "people"}],
        }
        self.apply(yaml.safe_dump(binding), self.cluster.admin)

    def pods(self, role: str) -> list[Object]:
        """The pods of drivers or of executors."""
        path = f"{self.path('pods')}?labelSelector=spark-role%3D{role}"
        found: list[Object] = self.cluster.admin.call("GET", path)["items"]
        return found

    def wait_until_gone(self, kind: str) -> None:
        """Wait until there are no objects of a kind (such as `services`)."""
        wait_until(lambda: not self.cluster.admin.call("GET", self.path(kind))["items"], _END_S)

    def delete_pod(self, name: str) -> None:
        """Delete a pod."""
        self.cluster.admin.call("DELETE", self.path("pods", name))

    def submit(
        self,
        folder: Path,
        *options: str,
        cluster: bool = False,
        policy: Path | None = None,
        pause_s: float = 0.0,
        **more: object,
    ) -> AbstractContextManager[PodRun]:
        """Submit the application by `parcae spark submit`, as ann.

        Example: `spark_executor_instances=1` is the setting spark.executor.instances.
        """
        mode = ["--master", f"k8s://{SERVER}", "--deploy-mode", "cluster" if cluster else "client"]
        conf = {
            **settings(folder),
            "spark.kubernetes.namespace": self.name,
            "spark.kubernetes.container.image": "any",
            "spark.kubernetes.driver.pod.name": _driver(folder),
            "spark.kubernetes.authenticate.driver.serviceAccountName": "spark-driver",
            "spark.pyspark.python": sys.executable,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        if not cluster:
            del conf["spark.kubernetes.driver.pod.name"]
            conf["spark.driver.host"] = ADDRESS
        spark = self.cluster.spark
        app = f"local://{APP}"
        words = command(spark, folder, [*mode, *options], conf, policy, pause_s, app=app)
        variables = {
            "KUBECONFIG": str(write_config(self.cluster.home, "ann")),
            "SPARK_HOME": str(spark.path),
            "SPARK_LOCAL_IP": ADDRESS,
            "SPARK_USER": "ann",
        }
        return running(partial(PodRun, namespace=self), folder, words, variables, cluster)


@dataclass(eq=False)
class Kubernetes:
    """A running Kubernetes."""

    home: Path
    spark: SparkHome
    process: subprocess.Popen[bytes]

    @property
    def admin(self) -> Api:
        """The API server, asked by the administrator."""
        return Api(self.home, TOKENS["admin"])

    @property
    def person(self) -> Api:
        """The same, asked by ann."""
        return Api(self.home, TOKENS["ann"])

    @contextmanager
    def namespace(self, name: str) -> Iterator[Namespace]:
        """Make a namespace, which ends with the `with` block and whatever is in it."""
        self.admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        made = Namespace(self, name)
        try:
            made.apply((REPOSITORY / "deploy" / "roles.yaml").read_text(), self.admin)
            made.bind("spark-submitter")
            made.bind("parcae-secret")
            yield made
        finally:
            self.admin.call("DELETE", f"/api/v1/namespaces/{name}")
            made.wait_until_gone("pods")

    def close(self) -> None:
        """End all processes."""
        self.process.kill()  # and with it what runs in its process ids
        self.process.wait()


@contextmanager
def _inside(network: Path) -> Iterator[None]:
    """Move this thread, and the processes that it starts, to another network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as own, network.open() as other:
        if libc.setns(other.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {network}")
        try:
            yield
        finally:
            libc.setns(own.fileno(), _CLONE_NEWNET)


@contextmanager
def kubernetes(home: Path, spark: SparkHome) -> Iterator[Kubernetes]:
    """A Kubernetes in a network of its own, in which the `with` block runs.

    Raises:
        ConfigError: there can be none.
    """
    program = _program()
    missing = [name for name in ("unshare", "ip", "openssl") if shutil.which(name) is None]
    if os.geteuid() or missing:
        raise ConfigError(f"Kubernetes for tests needs root, unshare, ip and openssl: no {missing}")
    if not program.exists():
        raise ConfigError(
            "the control plane of Kubernetes is not built: python -m tests.clusters.kubernetes "
            "builds it with Go"
        )
    java = str(Path(str(shutil.which("java"))).resolve().parents[1])
    shared = {str(REPOSITORY), sys.prefix, sys.base_prefix, java, str(home.parent)}
    space = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
    words = [sys.executable, "-m", "tests.clusters.node", str(home), str(program), *sorted(shared)]
    variables = {**os.environ, "SPARK_HOME": str(spark.path), "JAVA_HOME": java}
    with (home / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [*space, *words], cwd=REPOSITORY, env=variables, stdout=log, stderr=log
        )
    started = Kubernetes(home, spark, process)
    try:
        end = time.monotonic() + _START_S
        while not (home / "ready").exists():
            if process.poll() is not None or time.monotonic() > end:
                logs = {one.name: one.read_text()[-2000:] for one in home.glob("*.log")}
                raise RuntimeError(f"Kubernetes did not start: {logs}")
            time.sleep(0.1)
        with _inside(Path(f"/proc/{process.pid}/ns/net")):
            yield started
    finally:
        started.close()


if __name__ == "__main__":
    try:
        build()
    except ConfigError as error:
        sys.exit(str(error))
