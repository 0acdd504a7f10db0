"""The plugin on a real Kubernetes, started by `parcae spark submit`, with the roles of deploy/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml
from benchmarks.spark.replaying import running_service
from typer.testing import CliRunner

from parcae.cli.main import app
from parcae.policies.policy_file import export_policy, write_policy
from parcae.workloads.recorded_run import JobOutcome
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from tests.clusters.kubernetes import Kubernetes, Namespace, PodRun, helm
from tests.clusters.node import ADDRESS, Api, Object, write_config
from tests.clusters.run import APP, COME_AND_GO, NAMES, ON, hold, is_short_first, settings
from tests.conftest import REPOSITORY, wait_until
from tests.test_deploy import allowed

pytestmark = pytest.mark.clusters
_DEPLOY = REPOSITORY / "deploy"


def _apply_secret(namespace: Namespace, *words: str) -> None:
    """`parcae spark kubernetes ... | kubectl apply --server-side -f -`, by a person."""
    command = ["spark", "kubernetes", "--namespace", namespace.name, *words]
    printed = CliRunner().invoke(app, command)
    assert printed.exit_code == 0, printed.output
    namespace.apply(printed.stdout, namespace.cluster.person)


def test_cluster_mode_with_the_secret(namespace: Namespace, tmp_path: Path) -> None:
    _apply_secret(namespace)
    with namespace.submit(tmp_path / "first", cluster=True) as run:
        run.finish()
    assert ON in run.drivers()[0]
    run.check("ann")
    assert is_short_first(run.logged("ann", ""))
    # Executors know nothing of the plugin's jar.
    logs = [log.read_text() for log in namespace.folder.glob("*-exec-*/log")]
    assert len(logs) == 2
    assert not [log for log in logs if "parcae" in log]
    workload, _ = read_spark_event_logs([run.events])
    policy = tmp_path / "policy.json"
    write_policy(export_policy("srpt", workload), policy)
    _apply_secret(namespace, "--policy", str(policy))
    with namespace.submit(tmp_path / "second", cluster=True, policy=policy) as run:
        run.finish()
    place = "/opt/parcae/parcae-policy.json"
    assert f"parcae: on, srpt by {place}, which knows {len(NAMES)} jobs" in run.drivers()[0]
    run.check("ann")
    assert is_short_first(run.logged("ann", ""))


@pytest.mark.skipif(helm() is None, reason="Helm is not built")
def test_the_api_server_takes_the_chart_in_a_dry_run(namespace: Namespace) -> None:
    words = ["--namespace", namespace.name, "--dry-run=server", "--kubeconfig"]
    config = write_config(namespace.cluster.home, "admin")
    values = ["service.secret=0123456789abcdef", "control.mode=observe"]
    sets = [word for value in values for word in ("--set", value)]
    chart = str(_DEPLOY / "chart")
    done = subprocess.run(
        [str(helm()), "install", "live", chart, *words, str(config), *sets],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "STATUS: pending-install" in done.stdout
    for kind in ("Deployment", "Service", "Secret", "ConfigMap", "NetworkPolicy"):
        assert f"kind: {kind}\n" in done.stdout
    assert not namespace.cluster.admin.call("GET", namespace.path("services"))["items"]


@dataclass(frozen=True)
class Operator:
    """One of the two operators for SparkApplications, from a checkout in which it is built."""

    #: The environment variable that names the checkout.
    variable: str
    version: str
    definitions: str

    @property
    def checkout(self) -> Path:
        return Path(os.environ[self.variable])

    def command(self, namespace: str) -> list[str]:
        """How it starts, as a process that watches a namespace."""
        if self is KUBEFLOW:
            words = [f"--namespaces={namespace}", "--leader-election=false"]
            words += ["--enable-metrics=false", "--enable-ui-service=false"]
            words += ["--kube-api-qps=50", "--kube-api-burst=50"]
            return [str(self.checkout / "bin/spark-operator"), "controller", "start", *words]
        (jar,) = (self.checkout / "spark-operator/build/libs").glob("*-all.jar")
        settings = {"watchedNamespaces": namespace, "dynamicConfig.enabled": "false"}
        words = [f"-Dspark.kubernetes.operator.{name}={one}" for name, one in settings.items()]
        return ["java", *words, "-cp", str(jar), "org.apache.spark.k8s.operator.SparkOperator"]

    def application(self, folder: Path, namespace: Namespace) -> Object:
        """The SparkApplication with what `parcae spark kubernetes` prints for it."""
        words = ["spark", "kubernetes", "--as", self.version.partition("/")[2]]
        printed = CliRunner().invoke(app, words)
        spec: Object = yaml.safe_load(printed.stdout)["spec"]
        conf = {name: str(value) for name, value in settings(folder).items()}
        spec["sparkConf"] |= conf | {"spark.pyspark.python": sys.executable}
        version = namespace.cluster.spark.version
        arguments = [str(folder / "result")]
        if self is KUBEFLOW:
            spec["driver"] |= {"serviceAccount": "spark-driver", "cores": 1, "memory": "512m"}
            spec |= {
                "type": "Python",
                "mode": "cluster",
                "image": "any",
                "mainApplicationFile": f"local://{APP}",
                "arguments": arguments,
                "sparkVersion": version,
                "executor": {"instances": 2, "cores": 2, "memory": "512m"},
                "restartPolicy": {
                    "type": "OnFailure",
                    "onFailureRetries": 1,
                    "onFailureRetryInterval": 1,
                },
            }
        else:
            spec["sparkConf"] |= {
                "spark.kubernetes.container.image": "any",
                "spark.kubernetes.authenticate.driver.serviceAccountName": "spark-driver",
            }
            spec |= {
                "pyFiles": f"local://{APP}",
                "driverArgs": arguments,
                "runtimeVersions": {"sparkVersion": version},
                "applicationTolerations": {
                    "restartConfig": {
                        "restartPolicy": "OnFailure",
                        "maxRestartAttempts": 1,
                        "restartBackoffMillis": 1000,
                    },
                    "resourceRetainPolicy": "Always",
                },
            }
        return {
            "apiVersion": self.version,
            "kind": "SparkApplication",
            "metadata": {"name": folder.name, "namespace": namespace.name},
            "spec": spec,
        }

    @contextmanager
    def running(self, namespace: Namespace, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Its definitions, and its process."""
        admin = namespace.cluster.admin
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        files = sorted((self.checkout / self.definitions).glob("*.yaml"))
        made = [admin.call("POST", definitions, yaml.safe_load(f.read_text())) for f in files]
        names = [one["metadata"]["name"] for one in made]

        def are_established() -> bool:
            found = (admin.call("GET", f"{definitions}/{name}")["status"] for name in names)
            return all(
                any(
                    (condition["type"], condition["status"]) == ("Established", "True")
                    for condition in status.get("conditions") or ()
                )
                for status in found
            )

        wait_until(are_established)
        variables = {
            "KUBECONFIG": str(write_config(namespace.cluster.home, "admin")),
            "KUBERNETES_SERVICE_HOST": ADDRESS,
            "KUBERNETES_SERVICE_PORT": "443",
            "SPARK_HOME": str(namespace.cluster.spark.path),
            "SPARK_LOCAL_IP": ADDRESS,
            "SPARK_USER": "ann",
        }
        with log.open("wb") as said:
            process = subprocess.Popen(
                self.command(namespace.name),
                env={**os.environ, **variables},
                stdout=said,
                stderr=said,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


KUBEFLOW = Operator("SPARK_OPERATOR", "sparkoperator.k8s.io/v1beta2", "config/crd/bases")
APACHE = Operator(
    "APACHE_SPARK_OPERATOR",
    "spark.apache.org/v1",
    "build-tools/helm/spark-kubernetes-operator/crds",
)


@pytest.mark.parametrize("operator", [KUBEFLOW, APACHE], ids=["v1beta2", "v1"])
def test_an_operator_runs_an_application_and_restarts_its_driver(
    operator: Operator, namespace: Namespace, tmp_path: Path
) -> None:
    if operator.variable not in os.environ:
        pytest.skip(f"needs {operator.variable}, a checkout in which the operator is built")
    _apply_secret(namespace)
    folder = tmp_path / "nightly"
    goes_on = hold(folder)
    (folder / "events").mkdir()
    manifest = operator.application(folder, namespace)
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    log = tmp_path / "operator.log"
    with operator.running(namespace, log) as process:
        namespace.apply(json.dumps(manifest), namespace.cluster.admin)
        run = PodRun(folder, process, True, namespace)
        where = namespace.path("sparkapplications", folder.name, operator.version)

        def status() -> str:
            return json.dumps(namespace.cluster.admin.call("GET", where).get("status", {}))

        try:
            run.wait(lambda: run.drivers() and ON in run.drivers()[0], ON)
            run.wait_for_start()
            namespace.delete_pod(namespace.pods("driver")[0]["metadata"]["name"])
            run.wait(lambda: ON in "".join(run.drivers()[1:]), f"{ON} after a restart")
            goes_on.unlink()
            ends = ('"COMPLETED"', '"Succeeded"')
            run.wait(lambda: any(end in status() for end in ends), "the operator to see its end")
        except AssertionError as error:
            raise AssertionError(f"{status()}\n{log.read_text()[-4000:]}") from error
    run.check("ann")
    assert is_short_first(run.logged("ann", ""))


_VERBS = ("get", "list", "watch", "create", "patch", "update", "delete", "deletecollection")
_RESOURCES = {
    *(("", name) for name in ("pods", "pods/exec", "secrets", "configmaps", "services")),
    *(("", name) for name in ("persistentvolumeclaims", "serviceaccounts", "nodes")),
    ("networking.k8s.io", "networkpolicies"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("apps", "deployments"),
}


def _rights(api: Api, namespace: str, name: str = "") -> set[tuple[str, str, str]]:
    """What the server says one may do, as `kubectl auth can-i` asks it."""
    found = set()
    for (group, resource), verb in product(sorted(_RESOURCES), _VERBS):
        whole, _, part = resource.partition("/")
        attributes = {"namespace": namespace, "group": group, "verb": verb, "name": name}
        review: Object = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "resource": whole, "subresource": part}},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        if api.call("POST", path, review)["status"]["allowed"]:
            found.add((group, resource, verb))
    return found


def test_the_server_gives_the_rights_of_the_roles_and_no_others(
    cluster: Kubernetes, namespace: Namespace
) -> None:
    path = namespace.path("serviceaccounts", "spark-driver") + "/token"
    token = cluster.admin.call("POST", path, {"spec": {}})["status"]["token"]
    driver = Api(cluster.home, token)
    secret = {right for right in allowed("parcae-secret") if right[2] != "create"}
    person = allowed("spark-submitter") | (allowed("parcae-secret") - secret)
    assert {right[:2] for right in allowed("spark-driver") | person} <= _RESOURCES
    assert _rights(driver, namespace.name) == allowed("spark-driver")
    assert _rights(cluster.person, namespace.name) == person
    assert _rights(cluster.person, namespace.name, "parcae") == person | secret
    for api in (driver, cluster.person):
        assert _rights(api, "default") == set()
    with pytest.raises(HTTPError, match="403"):
        driver.call("GET", namespace.path("secrets", "parcae"))


def test_the_control_file_in_a_config_map(namespace: Namespace, tmp_path: Path) -> None:
    _apply_secret(namespace)
    folder = tmp_path / "run"
    goes_on = hold(folder)
    control = "/opt/parcae-control/control.json"
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "parcae-control"}}

    def switch(mode: str) -> None:
        data = {"control.json": json.dumps({"mode": mode})}
        namespace.apply(json.dumps({**config_map, "data": data}), namespace.cluster.admin)

    settings = {
        "spark_kubernetes_driver_podTemplateFile": _DEPLOY / "driver-pod.yaml",
        "spark_parcae_control": control,
    }
    with namespace.submit(folder, cluster=True, **settings) as run:
        run.wait_for(ON)
        run.wait_for_start()
        for mode in ("observe", "on", "off"):
            switch(mode)
            run.wait_for(f"parcae: the mode is {mode} by {control}")
        goes_on.unlink()
        run.finish()
    run.check("ann")


def test_client_mode(namespace: Namespace, tmp_path: Path) -> None:
    namespace.bind("spark-driver")
    with namespace.submit(tmp_path / "run") as run:
        run.finish()
    assert ON in run.drivers()[0]
    run.check("ann")
    assert is_short_first(run.logged("ann", ""))


def test_an_executors_pod_that_is_deleted(namespace: Namespace, tmp_path: Path) -> None:
    _apply_secret(namespace)
    folder = tmp_path / "run"
    goes_on = hold(folder)
    with namespace.submit(folder, cluster=True) as run:
        run.wait_for_start()
        namespace.delete_pod(namespace.pods("executor")[0]["metadata"]["name"])
        run.wait_for(" with ID 3,")  # the one that takes its place
        goes_on.unlink()
        run.finish()
    run.check("ann")
    logged = run.logged("ann", "")
    assert (logged.num_cores, logged.cores_at_once) == (6, 4)


def test_a_driver_that_is_deleted_and_submitted_again(namespace: Namespace, tmp_path: Path) -> None:
    _apply_secret(namespace)
    folder = tmp_path / "run"
    with namespace.submit(folder, cluster=True) as run:
        run.wait_for_start()
        assert len(namespace.pods("executor")) == 2
        namespace.delete_pod(namespace.pods("driver")[0]["metadata"]["name"])
        # The garbage collector takes what belonged to it.
        for kind in ("pods", "services"):
            namespace.wait_until_gone(kind)
    with namespace.submit(folder, cluster=True) as run:
        run.finish()
    first, second = run.drivers()
    assert ON in first
    assert ON in second
    run.check("ann")
    # Spark ends the jobs of a driver that has time to end.
    assert any(job.outcome is JobOutcome.FAILED for job in run.logged("ann", "").jobs)


def test_a_resource_quota_that_is_too_small(namespace: Namespace, tmp_path: Path) -> None:
    """Spark counts a refused pod as an executor that failed; a setting lets it go on."""
    _apply_secret(namespace)
    quota = {"kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": 2}}}
    namespace.apply(json.dumps({"apiVersion": "v1", **quota}), namespace.cluster.admin)
    quotas = namespace.path("resourcequotas", "small")
    wait_until(lambda: namespace.cluster.admin.call("GET", quotas)["status"].get("used"))
    with namespace.submit(tmp_path / "stops", cluster=True) as run:
        run.process.wait(300)
    assert "Max number of executor failures" in run.drivers()[0], run.explained("goes on")
    namespace.delete_pod(namespace.pods("driver")[0]["metadata"]["name"])
    with namespace.submit(
        tmp_path / "goes-on", cluster=True, spark_executor_maxNumFailures=10_000
    ) as run:
        run.finish()
    assert "exceeded quota" in run.drivers()[0]
    run.check("ann")
    logged = run.logged("ann", "")
    assert is_short_first(logged)
    assert logged.cores_at_once == 2


def test_executors_that_come_and_go(namespace: Namespace, tmp_path: Path) -> None:
    _apply_secret(namespace)
    with namespace.submit(tmp_path / "run", cluster=True, pause_s=5.0, **COME_AND_GO) as run:
        run.finish()
    run.check("ann")
    logged = run.logged("ann", "")
    assert logged.num_cores > logged.cores_at_once == 4


def test_two_applications_pass_executors_to_each_other(
    namespace: Namespace, tmp_path: Path
) -> None:
    """Never more pods than the cluster is declared to have, and few that come and go."""
    namespace.bind("spark-driver")
    folders = [tmp_path / "one", tmp_path / "two"]
    held = [hold(folder) for folder in folders]
    scope = ("--scope", "cluster", "--cores", "6", "--executor-cores", "2")
    pods: list[set[str]] = []

    def look() -> None:
        pods.append({pod["metadata"]["name"] for pod in namespace.pods("executor")})

    with running_service("fair", "tpch", extra=scope, log=tmp_path / "serve.log") as service:
        settings = {"spark_parcae_service": service.address, "spark_executor_instances": 1}
        with (
            namespace.submit(folders[0], **settings) as one,
            namespace.submit(folders[1], **settings) as two,
        ):
            runs = (one, two)
            for run in runs:
                run.wait_for_start()
            # Each has long jobs and short pauses, in which the other one could use what it has.
            end_s = time.monotonic() + 60
            while time.monotonic() < end_s:
                look()
            for goes_on in held:
                goes_on.unlink()
            while any(run.process.poll() is None for run in runs):
                look()
            for run in runs:
                run.finish()
    for run in runs:
        run.check("ann")
        assert "executors wanted" in run.submitted()
    assert max(map(len, pods)) <= 3
    assert len(set().union(*pods)) <= 8
