"""Event logs of a History Server, which is a stock server of the tests."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.workloads.readers import read_workload
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.history import list_query
from tests.cli.running import run
from tests.workloads.history_server_double import Served, serving
from tests.workloads.spark_log_builder import small_log


def _served(*names: str) -> Served:
    served = Served()
    for index, name in enumerate(names):
        served.add(f"app-{index}", name, small_log())
    return served


def test_logs_are_read_as_if_they_were_files(tmp_path: Path) -> None:
    served = _served("nightly", "hourly")
    served.add("app-2", "hourly", small_log(runs=2), attempt="1")
    for index, runs in enumerate((3, 3, 2)):
        (tmp_path / f"app-{index}").write_bytes(small_log(runs=runs))
    seen: list[tuple[int, int]] = []
    with serving(served) as url:
        workload, report = read_workload(
            "spark-history", [f"{url}/history/"], progress=lambda *done: seen.append(done)
        )
    expected, _ = read_spark_event_logs([tmp_path / f"app-{index}" for index in range(3)])
    assert workload.weights == expected.weights
    assert [job.work_ms for job in workload.jobs] == [job.work_ms for job in expected.jobs]
    assert workload.provenance["history_server"] == url
    assert report.notes[0] == f"Downloaded 3 logs from {url}."
    assert seen[:3] == [(0, 3), (1, 3), (2, 3)]
    assert served.requests[0] == ("/applications", {"status": ["completed"]})
    assert served.requests[-1][0] == "/applications/app-2/1/logs"


def test_applications_are_chosen_by_date_name_and_number() -> None:
    served = _served("nightly-a", "hourly", "nightly-b", "nightly-c")
    options = {
        "min_date": "2026-03-01",
        "max_date": "2026-03-31T20:00+02:00",
        "applications": "nightly-*",
        "limit": 2,
        "recorded": True,
    }
    with serving(served) as url:
        workload, report = read_workload("spark-history", [url], **options)
    asked = {"minDate": ["2026-03-01T00:00:00.000GMT"], "maxDate": ["2026-03-31T18:00:00.000GMT"]}
    assert served.requests[0][1] == {"status": ["completed"], **asked}
    assert [path for path, _ in served.requests[1:]] == [
        "/applications/app-0/logs",
        "/applications/app-2/logs",
    ]
    assert workload.is_recorded
    assert report.num_files == 2


def test_the_last_day_belongs_to_the_dates() -> None:
    query = list_query("2026-03-31T18:00", "2026-03-31")
    assert query["minDate"] == "2026-03-31T18:00:00.000GMT"
    assert query["maxDate"] == "2026-03-31T23:59:59.999GMT"


def test_logs_that_the_server_cannot_give_or_that_are_compacted_are_left_out() -> None:
    served = _served("a", "b", "c")
    del served.answers["/applications/app-0/logs"]
    served.answers["/applications/app-1/logs"] = (500, b"")
    with serving(served) as url:
        _, report = read_workload("spark-history", [url])
        assert "Left out" in report.notes[1]
        assert "HTTP 404" in report.notes[1]
        assert "HTTP 500" in report.notes[2]
        served.answers["/applications/app-2/logs"] = (200, b"PK no archive")
        with pytest.raises(FormatError, match=r"none of the logs can be read.*HTTP 404"):
            read_workload("spark-history", [url])


def test_kept_archives_are_not_downloaded_again(tmp_path: Path) -> None:
    served = _served("a", "b")
    kept = tmp_path / "kept"
    with serving(served) as url:
        first, _ = read_workload("spark-history", [url], folder=str(kept))
        assert sorted(path.name for path in kept.iterdir()) == ["app-0.zip", "app-1.zip"]
        served.requests.clear()
        again, _ = read_workload("spark-history", [url], folder=str(kept))
    assert [path for path, _ in served.requests] == ["/applications"]
    assert first.weights == again.weights


def _answers(path: str, status: int, content: bytes) -> Callable[[Served], None]:
    return lambda served: served.answers.update({path: (status, content)})


def _lists(content: Any) -> Callable[[Served], None]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return _answers("/applications", 200, data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda served: served.answers.clear(), "this is no History Server \\(HTTP 404"),
        (_lists(b"<html>"), "this is no History Server: its list of applications is not"),
        (_lists({"a": 1}), "this is no History Server: its list"),
        (_lists([{"id": 1}]), "this is no History Server: its list"),
        (_lists([]), "no completed application fits"),
        (_answers("/applications", 401, b""), "answers HTTP 401"),
        (_answers("/applications/app-0/logs", 403, b""), "answers HTTP 403"),
        (_answers("/applications/app-0/logs", 200, b"<html>"), "no zip archive of event logs"),
        (lambda served: setattr(served, "missing_bytes", 5), "the connection broke"),
    ],
)
def test_what_a_server_does_wrong_is_said(
    tmp_path: Path, change: Callable[[Served], None], message: str
) -> None:
    served = _served("a")
    change(served)
    with serving(served) as url, pytest.raises(FormatError, match=message):
        read_workload("spark-history", [url], folder=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder_for_the_logs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serving(_served("a")) as url, pytest.raises(NotADirectoryError, match="is not a folder"):
        read_workload("spark-history", [url], folder=str(tmp_path / "file"))


def test_size_and_time_are_bounded(tmp_path: Path) -> None:
    served = Served()
    served.add("app-0", "a", b"{" * (2 * 2**20))
    with serving(served) as url:
        with pytest.raises(ConfigError, match="the logs are larger than 1 MiB; choose fewer"):
            read_workload("spark-history", [url], max_mib=1.0, folder=str(tmp_path))
        with pytest.raises(ConfigError, match="longer than --max-minutes allows"):
            read_workload("spark-history", [url], max_minutes=0.0)
        with pytest.raises(ConfigError, match="--max-mib must be from 1"):
            read_workload("spark-history", [url], max_mib=float("nan"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("history:18080", "history:18080: expected the address of a History Server"),
        ("file:///etc/passwd", "expected the address of a History Server"),
        ("http://user:secret@host", "names and passwords in an address are not supported"),
        ("http://[x", "http://[x: expected the address of a History Server"),
        ("http://x:y", "no valid address"),
        ("http://a..b", "no valid address"),
        ("http://x --min-date yesterday", "--min-date yesterday: expected a date"),
        ("http://x --min-date 2026-02-01 --max-date 2026-01-01", "is after --max-date"),
    ],
)
def test_bad_addresses_and_dates_end_in_one_line(tmp_path: Path, words: str, message: str) -> None:
    done = run(f"parcae workload import spark-history {words} -o x.parcae", tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert message in done.stderr
    assert "secret" not in done.stderr


def test_no_server_and_no_tls_end_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        done = run(f"parcae workload import spark-history {url} -o x.parcae", tmp_path)
        assert done.returncode == 2
        assert "no server answers" in done.stderr
    with serving(_served("a")) as url:
        tls = url.replace("http:", "https:")
        done = run(f"parcae workload import spark-history {tls} -o x.parcae", tmp_path)
        assert done.returncode == 2
        assert "no TLS connection" in done.stderr


def test_the_documented_command_runs(tmp_path: Path) -> None:
    served = _served("nightly-report")
    page = Path(__file__).parents[2] / "docs" / "workloads.md"
    (command,) = [
        line.strip() for line in page.read_text().splitlines() if " import spark-history " in line
    ]
    with serving(served) as url:
        done = run(command.replace("http://history:18080", url), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mine.parcae: 1 job" in done.stdout
