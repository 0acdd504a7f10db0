"""Tests of the TPC-H study's own Spark: settings, and what goes wrong."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from benchmarks.spark import queries, tpch
from benchmarks.spark.queries import Application, TpchSpark
from benchmarks.spark.replaying import SparkFailedError

from parcae.spark.home import find_spark
from tests.spark.needs import needs_spark


@needs_spark
def test_settings_that_would_have_no_effect_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TpchSpark, "_start_jvm", lambda *_: None)
    contexts: list[Any] = []

    def context(**settings: Any) -> None:
        contexts.append(dict(settings["conf"].getAll()))
        raise KeyboardInterrupt

    free = {"spark.sql.files.maxPartitionBytes": "1m", "spark.driver.maxResultSize": "2g"}
    conf = dict(tpch.setting(f"{name}={value}") for name, value in free.items())
    spark = TpchSpark(find_spark(), None, tmp_path, tmp_path, {}, 1, "1g", conf)
    spark._context_class = context
    with (
        pytest.raises(KeyboardInterrupt),
        spark._context(Application("FAIR", tmp_path / "log")),
    ):
        pass
    assert contexts[0].items() >= free.items()
    for name in (*(contexts[0].keys() - free.keys()), "spark.driver.memory"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"{name} has no effect"):
            tpch.setting(f"{name}=1")


@needs_spark
def test_a_jvm_that_does_not_start_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(find_spark().path))  # which is changed and put back
    with pytest.raises(SparkFailedError, match=r"no JVM started with --memory 1m: .*maximum heap"):
        TpchSpark(find_spark(), None, tmp_path, tmp_path, {}, 1, "1m", {})


@needs_spark
def test_the_line_that_says_why_the_plugin_went_off_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TpchSpark, "_start_jvm", lambda *_: None)
    monkeypatch.setattr(TpchSpark, "_check_plugin", lambda *_: None)
    monkeypatch.setattr(queries, "_meters", lambda _: dict)
    monkeypatch.setattr(queries, "_Running", MagicMock())
    spark = TpchSpark(find_spark(), None, tmp_path, tmp_path, {}, 1, "1g", {})
    spark._gateway = MagicMock()

    @contextmanager
    def context(_: Application) -> Iterator[tuple[Any, Any]]:
        lines = ("parcae: off, Spark schedules by itself: planning failed", "parcae: a later line")
        (tmp_path / "spark.log").write_text("\n".join(lines))
        yield MagicMock(), MagicMock()

    monkeypatch.setattr(spark, "_context", context)
    with pytest.raises(SparkFailedError, match=r"during the run: .*planning failed$"):
        spark.run(Application("FIFO", None, {}), [])


@needs_spark
@pytest.mark.parametrize("is_gone", [False, True])
def test_what_spark_refuses_is_said_and_what_ends_the_command_ends_it(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    """Where the JVM is gone, stopping the session fails, too."""
    import pyspark.sql
    from py4j.protocol import Py4JError

    class Session:
        def __init__(self, _: Any) -> None:
            pass

        def stop(self) -> None:
            if is_gone:
                raise Py4JError("the JVM is gone")

    monkeypatch.setattr(pyspark.sql, "SparkSession", Session)
    spark = TpchSpark.__new__(TpchSpark)
    spark._conf, spark._cores = {}, 1
    spark._context_class = lambda **_: None
    refused = Py4JError("no session:")
    refused._cause = Py4JError("shuffle.partitions should be int,\nbut was abc")
    reasons: list[tuple[BaseException, type[BaseException]]] = [
        (refused, SparkFailedError),
        (SystemExit(143), SystemExit),
        (KeyError("a bug"), KeyError),
    ]
    for reason, kind in reasons:
        with pytest.raises(kind) as raised, spark._context(Application("FAIR", None)):
            raise reason
        if kind is SparkFailedError:
            said = "Spark failed: no session: shuffle.partitions should be int, but was abc"
            assert str(raised.value) == said
