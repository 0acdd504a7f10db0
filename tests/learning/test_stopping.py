import os
import resource
import signal
from pathlib import Path

import pytest

from parcae.learning.loop import ScalarLog, stopping


def test_the_first_interrupt_asks_and_the_handler_is_given_back():
    before = signal.getsignal(signal.SIGINT)
    with stopping() as stop:
        assert not stop.is_requested
        signal.raise_signal(signal.SIGINT)
        assert stop.is_requested
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.filterwarnings("error")  # a thread that failed would be a warning
def test_a_log_that_does_not_fit_is_reported_with_the_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="an extra")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write_much() -> None:
        with ScalarLog(tmp_path, 1) as log:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
            for iteration in range(1, 100):
                log.write(iteration, {"run/seconds": 1.0})

    try:
        with pytest.raises(OSError, match="too large") as error:
            write_much()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (written,) = (tmp_path / "tensorboard").iterdir()
    assert error.value.filename == str(written)


def test_a_folder_with_a_name_in_another_encoding_has_a_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="an extra")
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with ScalarLog(folder, 1) as log:
        log.write(1, {"run/seconds": 1.0})
    assert (folder / "tensorboard").is_dir()
