"""Files are written completely or not at all, in the right place and with the right permissions."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.base.files import (
    check_folder,
    check_place,
    locked_folder,
    remove_unfinished,
    write_text,
)


def test_the_target_of_a_link_is_replaced_and_not_the_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_device_is_written_to(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write_text(link, "nothing")
    assert link.is_symlink()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a writable /dev/shm")
def test_a_file_in_shared_memory_is_replaced() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "file"
        write_text(path, "old")
        write_text(path, "new")
        assert path.read_text() == "new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    with pytest.raises(OSError, match="no program reads this pipe"):
        write_text(pipe, "text")
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        write_text(pipe, "text")
        read.append(reader.read())
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_new_files_respect_the_umask_and_old_ones_keep_their_permissions(tmp_path: Path) -> None:
    earlier = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "text")
    finally:
        os.umask(earlier)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o600)
    write_text(tmp_path / "new", "other")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_a_place_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="create it first"):
        check_place(tmp_path / "missing" / "file")
    with pytest.raises(IsADirectoryError):
        check_place(tmp_path)


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    write_text(tmp_path / ("n" * longest), "text")
    write_text(tmp_path / ("\u6587" * (longest // 3)), "text")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["text", "text"]


def test_a_link_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match="leads back to itself; remove it") as error:
        check_place(tmp_path / "link")
    assert error.value.filename == str(tmp_path / "link")
    with pytest.raises(OSError, match="leads back to itself"):
        check_folder(tmp_path / "link" / "below")


def test_a_name_in_another_encoding_is_written_with_question_marks(tmp_path: Path) -> None:
    write_text(tmp_path / "page", os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "page").read_text() == "caf?"


def test_a_full_disk_is_reported_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        write_text(tmp_path / "a", "b")
    assert error.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is full")
def test_a_full_device_is_reported_with_its_path() -> None:
    with pytest.raises(OSError, match="No space left") as error:
        write_text(Path("/dev/full"), "b")
    assert error.value.filename == "/dev/full"


def test_an_open_file_is_written_to_between_what_is_printed(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from parcae.base.files import write_text; print('before'); "
        "write_text(Path('/dev/stdout'), 'text\\n'); print('after')"
    )
    with (tmp_path / "out").open("w") as stream:
        subprocess.run([sys.executable, "-c", program], stdout=stream, check=True)
    assert (tmp_path / "out").read_text() == "before\ntext\nafter\n"


def test_a_killed_writer_leaves_a_file_that_is_found(tmp_path: Path) -> None:
    path = tmp_path / ("a[b]" * 20)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom parcae.base.files import replacing\n"
        "with replacing(Path(sys.argv[1])):\n    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    remove_unfinished(path)
    assert not list(tmp_path.iterdir())


def test_a_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    with (
        locked_folder(tmp_path, "training into"),
        pytest.raises(ConfigError, match="another process is training into this folder"),
        locked_folder(tmp_path, "training into"),
    ):
        pass
    with locked_folder(tmp_path, "training into"):
        pass
