"""What the tests with a real Spark need."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

HAS_SPARK = importlib.util.find_spec("pyspark") is not None and shutil.which("javac") is not None
needs_spark = pytest.mark.skipif(
    not HAS_SPARK,
    reason="needs PySpark and a JDK (make test installs both)",
)
