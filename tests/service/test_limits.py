"""The script that measures what the service bears, beside a listener in the service's place."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import service_limits


class _Closing:
    """A listener that ends every connection at once."""

    def __init__(self) -> None:
        self.num_ended = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._listener.accept()[0].close()
                self.num_ended += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which ends a waiting accept
        self._listener.close()


def test_a_storm_counts_the_clients_that_were_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = _Closing()

    @contextlib.contextmanager
    def serving(*_: object) -> Iterator[_Closing]:
        yield service

    monkeypatch.setattr(service_limits, "served", serving)
    monkeypatch.setattr(service_limits, "_beside", serving)
    monkeypatch.setattr(service_limits, "_STORM_S", 0.2)
    (_, p99_ms, _), (_, num_dropped, _) = service_limits.storm(tmp_path)
    assert num_dropped == service.num_ended > 0
    assert math.isinf(p99_ms)
    service.close()
