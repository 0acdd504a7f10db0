"""The front page shows what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.conftest import REPOSITORY

_PAGE = (REPOSITORY / "README.md").read_text()
#: What stands between fences, without the fences' language.
_TABLE, _CODE, _PRINTED = (block.partition("\n")[2] for block in _PAGE.split("```")[1::2])


def test_the_readmes_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    (command,) = re.findall(r"^    (parcae compare .*)$", _PAGE, re.MULTILINE)
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert printed[: len(_TABLE.splitlines())] == _TABLE.splitlines()


def test_the_readmes_python_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    exec(_CODE, {"__name__": "__main__"})
    assert capsys.readouterr().out == _PRINTED


def test_the_readme_fits_on_a_screen() -> None:
    assert len(_PAGE.split()) <= 500
