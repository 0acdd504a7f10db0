"""Tests of the Secret for a driver's pod, of the settings beside it, and of deploy mode cluster."""

from __future__ import annotations

import base64
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from parcae.base.errors import ConfigError
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import find_jar
from parcae.spark.kubernetes import MOUNT
from parcae.spark.launch import CLASS_PATH, PLUGINS, PluginSettings, needed_secret, spark_arguments
from tests.cli.running import run
from tests.spark.fake_kubernetes import fake_kubernetes
from tests.spark.needs import needs_spark
from tests.test_deploy import allowed

_DIGEST = "spark.kubernetes.driver.annotation.parcae/digest"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files for the Secret; the jar is one of them."""
    monkeypatch.setattr(
        "parcae.cli.spark.find_spark", lambda home: SparkHome(tmp_path, "4.3.0", "2.13")
    )
    monkeypatch.setattr("parcae.cli.spark.find_jar", lambda spark: tmp_path / "a.jar")
    (tmp_path / "a.jar").write_bytes(bytes(range(256)) * 3)
    (tmp_path / "my policy.json").write_text('{"policy": "srpt"}\n')
    # In base 64 this one looks like a number.
    (tmp_path / "secret").write_bytes(base64.b64decode("1234567890123456"))
    (tmp_path / "ca.pem").write_text("certificates\n")
    return tmp_path


_FILES = "--service h:1 --policy 'my policy.json' --secret-file secret --tls-ca ca.pem"


def _printed(folder: Path, words: str = "") -> str:
    done = run(f"parcae spark kubernetes {words}", folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _secret(folder: Path, words: str = "") -> dict[str, Any]:
    secret: dict[str, Any] = yaml.safe_load(_printed(folder, words))
    return secret


def test_the_secret_holds_the_files_as_they_are(folder: Path) -> None:
    secret = _secret(folder, f"{_FILES} --name nightly --namespace spark")
    data = secret.pop("data")
    assert {name: base64.b64decode(text) for name, text in data.items()} == {
        "parcae-spark.jar": (folder / "a.jar").read_bytes(),
        "parcae-policy.json": (folder / "my policy.json").read_bytes(),
        "parcae-secret": (folder / "secret").read_bytes(),
        "parcae-ca.pem": (folder / "ca.pem").read_bytes(),
    }
    digest = secret["metadata"].pop("annotations")["parcae/digest"]
    assert re.fullmatch("[0-9a-f]{16}", digest)
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "nightly", "namespace": "spark"},
        "type": "Opaque",
    }
    assert list(_secret(folder)["data"]) == ["parcae-spark.jar"]


def test_the_settings_in_every_form(folder: Path) -> None:
    words = f"{_FILES} --name nightly --namespace spark --as"
    expected = {
        "spark.kubernetes.driver.secrets.nightly": "/opt/parcae",
        _DIGEST: _secret(folder, _FILES)["metadata"]["annotations"]["parcae/digest"],
        CLASS_PATH: "/opt/parcae/parcae-spark.jar",
        PLUGINS: "parcae.spark.ParcaePlugin",
        "spark.parcae.policy": "/opt/parcae/parcae-policy.json",
        "spark.parcae.service": "h:1",
        "spark.parcae.secretFile": "/opt/parcae/parcae-secret",
        "spark.parcae.tls.ca": "/opt/parcae/parcae-ca.pem",
    }
    pairs = shlex.split(_printed(folder, f"{words} conf"))
    assert set(pairs[::2]) == {"--conf"}
    assert dict(pair.split("=", 1) for pair in pairs[1::2]) == expected
    lines = _printed(folder, f"{words} properties").splitlines()
    assert dict(line.split(" ", 1) for line in lines) == expected
    assert yaml.safe_load(_printed(folder, f"{words} v1")) == {"spec": {"sparkConf": expected}}
    # Kubeflow's operator makes this setting of its own field.
    expected.pop("spark.kubernetes.driver.secrets.nightly")
    secrets = [{"name": "nightly", "path": "/opt/parcae", "secretType": "Generic"}]
    assert yaml.safe_load(_printed(folder, f"{words} v1beta2")) == {
        "spec": {"sparkConf": expected, "driver": {"secrets": secrets}}
    }
    same = run(f"parcae spark conf --where kubernetes-cluster {_FILES}", folder)
    assert same.stdout == _printed(folder, f"{_FILES} --as conf")


@pytest.mark.parametrize(
    ("changed", "is_new"),
    [("a.jar", True), ("my policy.json", True), ("ca.pem", True), ("secret", False)],
)
def test_pods_are_new_with_other_files(folder: Path, changed: str, is_new: bool) -> None:
    """The service's secret changes no digest: who may see pods could try secrets."""

    def digest() -> str:
        annotation = _secret(folder, _FILES)["metadata"]["annotations"]["parcae/digest"]
        assert f"{_DIGEST}={annotation}\n" in _printed(folder, f"{_FILES} --as conf")
        return str(annotation)

    before = digest()
    (folder / changed).write_bytes(b"other")
    assert (digest() != before) is is_new


def test_what_kubernetes_would_refuse_is_refused(folder: Path) -> None:
    (folder / "a.jar").write_bytes(bytes(200 * 1024))
    policy = folder / "my policy.json"
    policy.write_bytes(bytes(824 * 1024))  # 1 MiB in all
    assert len(_secret(folder, "--policy 'my policy.json'")["data"]) == 2
    policy.write_bytes(bytes(824 * 1024 + 1))
    for words in ("", "--as conf"):
        done = run(f"parcae spark kubernetes --policy 'my policy.json' {words}", folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            "the Secret would have 1,025 KiB (parcae-spark.jar 200 KiB, parcae-policy.json 825 "
            "KiB), and Kubernetes takes at most 1,024 KiB: give a policy of fewer jobs"
        ) in done.stderr
    done = run("parcae spark kubernetes --policy absent", folder)
    assert done.stderr.startswith("parcae: --policy absent: No such file")


@pytest.mark.parametrize("name", ["", "Parcae", "a.b", "a_b", "-a", "a-", "a b", "n" * 57])
def test_names_that_kubernetes_refuses(folder: Path, name: str) -> None:
    for flag, given in (("--name", name), ("--namespace", name + "n" * 7 * (len(name) > 50))):
        done = run(f"parcae spark kubernetes {flag} '{given}'", folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"parcae: {flag} is {given!r}: Kubernetes takes 1 to ")
    # Spark names the pod's volume after the Secret, with seven characters more.
    longest = _secret(folder, f"--name {'n' * 56} --namespace {'n' * 63}")["metadata"]
    assert (len(longest["name"]), len(longest["namespace"])) == (56, 63)


_CLUSTER = ["--master", "k8s://https://h:6443", "--deploy-mode", "cluster"]


def test_a_driver_in_a_pod_reads_the_files_of_a_secret(folder: Path) -> None:
    spark = SparkHome(folder, "4.3.0", "2.13")
    settings = PluginSettings(folder / "a.jar", folder / "my policy.json")

    def conf(*words: str) -> dict[str, str]:
        arguments = spark_arguments(settings, [*_CLUSTER, *words, "a.py"], spark)
        return dict(word.split("=", 1) for word in arguments if "=" in word)

    given = conf("--driver-class-path", "/mine.jar")
    assert given[CLASS_PATH] == "/opt/parcae/parcae-spark.jar:/mine.jar"
    assert given["spark.parcae.policy"] == "/opt/parcae/parcae-policy.json"
    assert given["spark.kubernetes.driver.secrets.parcae"] == MOUNT
    mine = f"spark.kubernetes.driver.secrets.mine={MOUNT}/"
    other = ["--conf", mine, "--conf", "spark.kubernetes.namespace=spark"]
    assert "spark.kubernetes.driver.secrets.parcae" not in conf(*other)
    assert needed_secret([*_CLUSTER, *other, "a.py"], spark) == ("mine", "spark")
    assert needed_secret([*_CLUSTER, "a.py"], spark) == ("parcae", "default")
    # Beside the user, the driver reads the files where they are.
    assert needed_secret([*_CLUSTER[:2], "a.py"], spark) is None
    client = spark_arguments(settings, [*_CLUSTER[:2], "a.py"], spark)
    assert f"spark.parcae.policy={folder}/my policy.json" in client
    (folder / "my policy.json").write_bytes(bytes(1 << 20))
    with pytest.raises(ConfigError, match="the Secret would have 1,025 KiB"):
        conf()


@needs_spark
def test_a_pod_that_spark_makes_has_the_secret_that_submit_asks_for(tmp_path: Path) -> None:
    policy = tmp_path / "my policy.json"
    policy.write_text("{}")
    with fake_kubernetes(find_spark(), tmp_path / "pods") as (master, pods):
        words = ["--master", master, "--deploy-mode", "cluster", "local:///app.py"]
        settings = ("container.image=any", "submission.waitAppCompletion=false")
        confs = [word for each in settings for word in ("--conf", f"spark.kubernetes.{each}")]
        own = ["spark", "submit", "--policy", str(policy), "--"]
        done = subprocess.run(
            [sys.executable, "-m", "parcae.cli.main", *own, *confs, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (pod,) = pods.list()["items"]
        (properties,) = [
            each["data"]["spark.properties"]
            for each in pods.others
            if "spark.properties" in each.get("data", {})
        ]
    assert ("", "pods", "create") in pods.requests
    assert pods.requests <= allowed("spark-submitter")
    (command,) = re.findall(r"parcae spark kubernetes [^|]*", done.stderr)
    secret = _secret(tmp_path, command.removeprefix("parcae spark kubernetes "))
    assert (
        base64.b64decode(secret["data"]["parcae-spark.jar"]) == find_jar(find_spark()).read_bytes()
    )
    (volume,) = [one for one in pod["spec"]["volumes"] if "secret" in one]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    (mount,) = [
        one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == volume["name"]
    ]
    assert mount["mountPath"] == MOUNT
    digest = secret["metadata"]["annotations"]["parcae/digest"]
    assert pod["metadata"]["annotations"]["parcae/digest"] == digest
    lines = dict(re.findall(r"^(spark\S+?)=(.*)$", properties, re.MULTILINE))
    assert lines[PLUGINS] == "parcae.spark.ParcaePlugin"
    for name in (CLASS_PATH, "spark.parcae.policy"):
        path = Path(lines[name])
        assert (str(path.parent), path.name in secret["data"]) == (MOUNT, True)
