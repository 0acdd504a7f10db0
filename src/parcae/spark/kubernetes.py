"""The Secret from which a driver's pod gets the plugin's jar and the files of its settings."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from parcae.base.errors import ConfigError
from parcae.base.loader import open_file
from parcae.base.texts import BYTES_PER_MIB

#: The folder of the Secret's files in the driver's pod, and the jar's name there.
MOUNT = "/opt/parcae"
JAR = "parcae-spark.jar"
#: The file with the secret of the service.
SERVICE_SECRET = "parcae-secret"
#: The setting that mounts a Secret in the driver's pod, but for the Secret's name.
DRIVER_SECRETS = "spark.kubernetes.driver.secrets."
#: With other files the pod has another annotation: who compares pods by their settings, as an
#: operator does, starts a new one.
_DIGEST = "parcae/digest"
DIGEST_SETTING = f"spark.kubernetes.driver.annotation.{_DIGEST}"
_LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")
#: Kubernetes allows 63 characters; Spark names the Secret's volume NAME-volume.
MOST_IN_NAME = 63 - len("-volume")
MOST_IN_NAMESPACE = 63
#: What Kubernetes allows for all files of a Secret.
MOST_BYTES = BYTES_PER_MIB


def check_name(flag: str, name: str, most: int) -> None:
    """Refuse a name that Kubernetes would refuse."""
    if not _LABEL.fullmatch(name) or len(name) > most:
        raise ConfigError(
            f"{flag} is {name!r}: Kubernetes takes 1 to {most} lower-case letters, digits and "
            "hyphens here, no hyphen first or last"
        )


def read_contents(files: Mapping[str, Path]) -> dict[str, bytes]:
    """The content of a Secret's files, by name; refused if Kubernetes would refuse so much."""
    contents = {}
    for name, path in files.items():
        with open_file(path) as stream:
            contents[name] = stream.read(MOST_BYTES + 1)
    if sum(map(len, contents.values())) > MOST_BYTES:
        sizes = {name: path.stat().st_size for name, path in files.items()}
        parts = ", ".join(f"{name} {_kib(size)}" for name, size in sizes.items())
        raise ConfigError(
            f"the Secret would have {_kib(sum(sizes.values()))} ({parts}), and Kubernetes takes "
            f"at most {_kib(MOST_BYTES)}: give a policy of fewer jobs, or none, or put the files "
            "into the driver's image (docs/spark-where.md)"
        )
    return contents


def _kib(num_bytes: int) -> str:
    return f"{-(-num_bytes // 1024):,} KiB"


def digest(contents: Mapping[str, bytes]) -> str:
    """16 digits that change with the files, but for the service's secret.

    Who may see pods could otherwise try secrets until one has these digits.
    """
    hashed = hashlib.sha256()
    for name, content in contents.items():
        if name != SERVICE_SECRET:
            hashed.update(f"{name} {len(content)}\n".encode())
            hashed.update(content)
    return hashed.hexdigest()[:16]


def secret_manifest(contents: Mapping[str, bytes], name: str, namespace: str) -> str:
    """The Secret in JSON, which `kubectl` takes as it does YAML."""
    annotations = {_DIGEST: digest(contents)}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "type": "Opaque",
        "data": {file: base64.b64encode(content).decode() for file, content in contents.items()},
    }
    return json.dumps(secret, indent=2)


def application_block(conf: Mapping[str, str], name: str, *, is_kubeflow: bool) -> str:
    """Settings as part of a SparkApplication: of Kubeflow's operator (v1beta2), or Spark's (v1).

    Kubeflow's has a field of its own for Secrets.
    """
    lines = [
        f"    {key}: {json.dumps(value)}"
        for key, value in conf.items()
        if not is_kubeflow or not key.startswith(DRIVER_SECRETS)
    ]
    if is_kubeflow:
        secret = f"{{name: {json.dumps(name)}, path: {MOUNT}, secretType: Generic}}"
        lines += ["  driver:", f"    secrets: [{secret}]"]
    return "\n".join(["spec:", "  sparkConf:", *lines])
