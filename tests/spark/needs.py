"""What the tests with a real Spark need."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

needs_spark = pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None or shutil.which("javac") is None,
    reason="needs PySpark and a JDK (make test installs both)",
)
