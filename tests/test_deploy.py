"""The files of `deploy/`: roles with least rights, and a chart that renders what it says."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from parcae.base.texts import __version__
from parcae.service.serve import ServeSettings
from tests.clusters.kubernetes import helm
from tests.conftest import REPOSITORY

_DEPLOY = REPOSITORY / "deploy"
_CHART = _DEPLOY / "chart"
_SECRET = "service.secret=0123456789abcdef"
_HELM = helm()
needs_helm = pytest.mark.skipif(
    _HELM is None, reason="needs helm (python -m tests.clusters.kubernetes builds it)"
)


def _roles() -> dict[str, list[dict[str, list[str]]]]:
    """The rules of every role."""
    objects = yaml.safe_load_all((_DEPLOY / "roles.yaml").read_text())
    return {one["metadata"]["name"]: one["rules"] for one in objects if one["kind"] == "Role"}


def allowed(role: str) -> set[tuple[str, str, str]]:
    """What a role allows: group, resource and verb."""
    return {
        (group, resource, verb)
        for rule in _roles()[role]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_roles_name_every_right_and_only_one_reads_secrets() -> None:
    roles = _roles()
    assert sorted(roles) == ["parcae-secret", "spark-driver", "spark-submitter"]
    rights = {role: allowed(role) for role in roles}
    assert not [right for each in rights.values() for right in each if "*" in right]
    touching = {role for role in roles for _, resource, _ in rights[role] if resource == "secrets"}
    assert touching == {"parcae-secret"}
    unbounded = [rule for rule in roles["parcae-secret"] if "resourceNames" not in rule]
    assert [rule["verbs"] for rule in unbounded] == [["create"]]
    # Spark 4 makes these by server-side apply.
    for group, resource in (
        ("", "services"),
        ("", "configmaps"),
        ("networking.k8s.io", "networkpolicies"),
    ):
        assert {(group, resource, "create"), (group, resource, "patch")} <= rights[
            "spark-submitter"
        ]


def test_a_driver_finds_the_control_file_of_the_chart() -> None:
    text = (_DEPLOY / "driver-pod.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    (volume,) = spec["volumes"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert (mount["name"], volume["configMap"]["name"]) == (volume["name"], "parcae-control")
    assert f"spark.parcae.control={mount['mountPath']}/control.json" in text


def test_prometheus_finds_drivers_where_spark_has_their_metrics() -> None:
    text = (_DEPLOY / "driver-monitor.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    assert spec["selector"] == {"matchLabels": {"spark-role": "driver"}}
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] == "spark-ui"
    assert f"prometheusServlet.path={endpoint['path']}" in text


def test_images_take_what_is_built_here() -> None:
    spark = (_DEPLOY / "spark.Dockerfile").read_text()
    assert "COPY parcae-spark_2.13-*.jar /opt/spark/jars/" in spark.splitlines()
    service = (_DEPLOY / "service.Dockerfile").read_text()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert f"/dist/{project['name'].replace('-', '_')}-*.whl" in service
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", service, re.MULTILINE)


def _values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((_CHART / "values.yaml").read_text())
    return values


def test_the_charts_values_have_a_schema_and_a_use() -> None:
    values = _values()
    schema = json.loads((_CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    for wrong in ({"secret": "short"}, {"cores": 0}, {"scope": "all"}, {"port": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"service": wrong}, schema)
    known = {"control", *(f"service.{name}" for name in values["service"])}
    assert known == {
        "control",
        *(f"service.{name}" for name in schema["properties"]["service"]["properties"]),
    }
    templates = [path.read_text() for path in (_CHART / "templates").glob("*.yaml")]
    used = {name for text in templates for name in re.findall(r"\.Values\.([\w.]+)", text)}
    assert used == known
    for text in templates:
        opened = re.findall(r"\{\{-? *(?:if|with|range)\b", text)
        assert len(opened) == len(re.findall(r"\{\{-? *end\b", text)) > 0


def test_the_chart_has_this_version() -> None:
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert _values()["service"]["image"] == f"parcae:{__version__}"


def test_the_service_gets_options_that_it_has() -> None:
    text = (_CHART / "templates" / "service.yaml").read_text()
    given = set(re.findall(r"- --([a-z-]+)=", text))
    fields = ServeSettings.model_fields
    known = {name.replace("_", "-") for name in fields} | {"cores"}
    assert given <= known
    assert {"host", "secret-file"} <= given


def _rendered(*values: str) -> subprocess.CompletedProcess[str]:
    sets = [word for value in values for word in ("--set", value)]
    return subprocess.run(
        [str(_HELM), "template", "live", str(_CHART), *sets],
        capture_output=True,
        text=True,
        check=False,
    )


def _objects(*values: str) -> dict[str, dict[str, Any]]:
    """The objects that the chart makes, by their kinds."""
    done = _rendered(*values)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    kinds = {one["kind"]: one for one in found}
    assert len(kinds) == len(found)
    return kinds


@needs_helm
def test_the_chart_renders_the_service() -> None:
    objects = _objects(_SECRET, "service.tlsSecret=certificate", "service.extraArgs={--for=9}")
    assert sorted(objects) == [
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Secret",
        "Service",
    ]
    pod = objects["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    (container,) = pod["spec"]["containers"]
    assert container["args"][0] == "serve"
    assert "--tls-cert=/etc/parcae-tls/tls.crt" in container["args"]
    assert container["args"][-1] == "--for=9"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    places = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert sorted(places) == sorted(one["name"] for one in pod["spec"]["volumes"])
    (cache,) = [one["value"] for one in container["env"] if one["name"] == "NUMBA_CACHE_DIR"]
    assert Path(cache).is_relative_to(places["tmp"])
    (secret,) = [one for one in pod["spec"]["volumes"] if one["name"] == "secret"]
    assert secret["secret"]["secretName"] == objects["Secret"]["metadata"]["name"]
    assert f"--secret-file={places['secret']}/secret" in container["args"]
    assert objects["Secret"]["stringData"] == {"secret": "0123456789abcdef"}


@needs_helm
def test_the_chart_renders_only_what_is_wanted() -> None:
    objects = _objects("service.enabled=false", "control.mode=observe", "control.maxOpen=8")
    assert list(objects) == ["ConfigMap"]
    assert objects["ConfigMap"]["metadata"]["name"] == "live-control"
    control = json.loads(objects["ConfigMap"]["data"]["control.json"])
    assert control == {"mode": "observe", "maxOpen": 8}
    given = _objects("service.existingSecret=mine", "service.allowFrom=null")
    assert "Secret" not in given
    (rule,) = given["NetworkPolicy"]["spec"]["ingress"]
    assert "from" not in rule


@needs_helm
def test_prometheus_finds_the_metrics_where_they_are_wanted() -> None:
    objects = _objects(
        _SECRET,
        "service.podMonitor=true",
        "service.podMonitorLabels.release=prom",
        "service.metricsFrom[0].podSelector.matchLabels.app=prometheus",
    )
    monitor = objects["PodMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "prom"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    pod = objects["Deployment"]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert f"--metrics-port={ports[endpoint['port']]}" in container["args"]
    clients, metrics = objects["NetworkPolicy"]["spec"]["ingress"]
    assert clients["ports"] == [{"port": "parcae"}]
    assert metrics["ports"] == [{"port": endpoint["port"]}]
    assert metrics["from"] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]


@needs_helm
def test_the_chart_refuses_what_is_wrong() -> None:
    assert "give service.secret (at least 16 bytes)" in _rendered().stderr
    # How helm names what the schema does not allow depends on its version.
    assert re.search("service.scope", _rendered(_SECRET, "service.scope=all").stderr)
    unknown = _rendered(_SECRET, "service.port=1")
    assert (unknown.returncode, "port" in unknown.stderr) == (1, True)
