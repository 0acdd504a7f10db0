"""A real YARN, started once for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from parcae.base.errors import ConfigError
from parcae.spark.home import find_spark
from tests.clusters.yarn import Yarn, hadoop_class_path, start_yarn
from tests.spark.java import build_plugin

#: Set where a cluster that is not there is a fault.
_REQUIRED = "PARCAE_CLUSTERS_REQUIRED"


@pytest.fixture(scope="session")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A YARN of two nodes with the queues default and etl; skipped where there can be none."""
    try:
        spark = find_spark()
        jars = hadoop_class_path()
    except ConfigError as error:
        (pytest.fail if os.environ.get(_REQUIRED) else pytest.skip)(str(error))
    build_plugin(spark)
    started = start_yarn(tmp_path_factory.mktemp("yarn"), spark, jars)
    yield started
    started.close()
