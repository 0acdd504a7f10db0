"""A real YARN, started once for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from parcae.base.errors import ConfigError
from parcae.spark.home import find_spark
from tests.clusters.yarn import Yarn, missing_tool, start_yarn
from tests.spark.java import build_plugin

#: Set where a cluster that is not there is a fault.
_REQUIRED = "PARCAE_CLUSTERS_REQUIRED"


@pytest.fixture(scope="session")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A YARN of two nodes with the queues default and etl; skipped where there can be none."""
    why = missing_tool()
    try:
        spark = find_spark()
    except ConfigError as error:
        why = str(error)
    if why:
        (pytest.fail if os.environ.get(_REQUIRED) else pytest.skip)(why)
    build_plugin(spark)
    started = start_yarn(tmp_path_factory.mktemp("yarn"), spark)
    yield started
    started.close()
