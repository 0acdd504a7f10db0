"""Event logs at addresses: a store in memory and a web server, as fsspec reads them."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import gettempdir

import pytest

from parcae.base import urls
from parcae.base.errors import ConfigError, FormatError, MissingExtraError
from parcae.base.files import replacing
from parcae.base.urls import address_of
from parcae.workloads.archive import write_workload
from parcae.workloads.readers import read_workload
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.run import read_spark_run
from tests.workloads.spark_log_builder import application_start, small_log

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store() -> Iterator[str]:
    """A folder of a store: a rolling log in two parts, and a file that is no log."""
    system = fsspec.filesystem("memory")
    lines = small_log(runs=4, start=application_start("app-1")).splitlines(keepends=True)
    log = "/logs/eventlog_v2_app-1"
    system.pipe(f"{log}/events_1_app-1", b"".join(lines[:20]))
    system.pipe(f"{log}/events_2_app-1", b"".join(lines[20:]))
    system.pipe("/logs/README", b"no log")
    yield "memory://logs"
    system.rm("/logs", recursive=True)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a web server with a log."""
    (tmp_path / "app-2").write_bytes(small_log(runs=3))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _copies() -> list[Path]:
    return list(Path(gettempdir()).glob(f"{urls._COPIES}*"))


def test_logs_of_a_store_are_read_and_their_copies_removed(store: str) -> None:
    before = _copies()
    # A path keeps one of two slashes.
    for address in (store, Path(store), f"{store}/eventlog_v2_app-1"):
        workload, report = read_spark_event_logs([address])
        assert (workload.weights, report.num_files) == ((4.0,), 2)
    workload, report = read_workload("spark-events", [store, f"{store}/eventlog_v2_app-1"])
    assert workload.weights == (4.0,)
    notes = " ".join(report.notes)
    assert "memory://logs/README does not begin like a Spark event log" in notes
    assert urls._COPIES not in notes
    assert read_spark_run([store]).label == store
    # The report keeps what was read, for a replay.
    del report
    gc.collect()
    assert _copies() == before


def test_logs_of_a_web_server_are_read(web: str) -> None:
    for address in (f"{web}/app-2", f"{web}/"):
        assert read_spark_event_logs([address])[0].weights == (3.0,)
    with pytest.raises(FormatError, match=rf"{web}/app-3: no such file or folder"):
        read_spark_event_logs([f"{web}/app-3"])


def test_what_cannot_be_read_is_named_by_its_address(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FormatError, match="memory://absent: no such file or folder"):
        read_spark_event_logs(["memory://absent"])
    with pytest.raises(FormatError, match=r"^memory://logs/README does not begin like"):
        read_spark_event_logs([f"{store}/README"])
    with pytest.raises(ConfigError, match=r"what://logs: what:// is not known"):
        read_spark_event_logs(["what://logs"])
    monkeypatch.setattr(urls, "MAX_COPIED_BYTES", 100)
    with pytest.raises(FormatError, match="memory://logs: more than"):
        read_spark_event_logs([store])
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=r"s3a:// needs one more library: pip install s3fs"):
        read_spark_event_logs(["s3a://bucket/logs"])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"parcae-scheduler\[urls\]"):
        read_spark_event_logs([store])


def test_a_file_is_put_at_an_address_whole_or_not_at_all(store: str) -> None:
    with suppress(ZeroDivisionError), replacing(Path(f"{store}/out")) as stream:
        stream.write(b"%d" % (1 // 0))
    system = fsspec.filesystem("memory")
    assert not system.exists("/logs/out")
    workload, _ = read_spark_event_logs([store])
    write_workload(workload, Path(f"{store}/out"))
    assert system.cat("/logs/out").startswith(b"PK")
    assert system.ls("/logs", detail=False) != []


def test_an_address_is_no_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_of("hdfs:///logs") == "hdfs:///logs"
    assert address_of(Path("s3://bucket/a b")) == "s3://bucket/a b"
    monkeypatch.chdir(tmp_path)
    Path("x:").mkdir()
    Path("x:/y").touch()
    for local in ("/var/log", "logs", "C:\\logs", "a:b", "file:///var/log", Path("x:/y")):
        assert address_of(local) is None
