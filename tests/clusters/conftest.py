"""A real YARN and a real Kubernetes, each started once for its tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from parcae.base.errors import ConfigError
from parcae.spark.home import find_spark
from tests.clusters.kubernetes import Kubernetes, Namespace, kubernetes
from tests.clusters.yarn import Yarn, hadoop_class_path, start_yarn
from tests.spark.java import build_plugin

#: Set where a cluster that is not there is a fault.
_REQUIRED = "PARCAE_CLUSTERS_REQUIRED"


def _is_missing(error: ConfigError) -> None:
    (pytest.fail if os.environ.get(_REQUIRED) else pytest.skip)(str(error))


@pytest.fixture(scope="session")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A YARN of two nodes with the queues default and etl; skipped where there can be none."""
    try:
        spark = find_spark()
        jars = hadoop_class_path()
    except ConfigError as error:
        _is_missing(error)
    build_plugin(spark)
    started = start_yarn(tmp_path_factory.mktemp("yarn"), spark, jars)
    yield started
    started.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """A Kubernetes, in whose network the module's tests run; skipped where there can be none."""
    try:
        spark = find_spark()
        build_plugin(spark)
        with kubernetes(tmp_path_factory.mktemp("kubernetes"), spark) as started:
            yield started
    except ConfigError as error:
        _is_missing(error)


@pytest.fixture
def namespace(cluster: Kubernetes, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name)[-63:].strip("-")
    with cluster.namespace(name) as made:
        yield made
