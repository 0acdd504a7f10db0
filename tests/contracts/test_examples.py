"""Every example prints its expected output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

_EXPECTED = sorted((REPOSITORY / "examples").glob("*.expected.txt"))


@pytest.mark.parametrize("expected", _EXPECTED, ids=[path.name for path in _EXPECTED])
def test_an_example_prints_its_expected_output(tmp_path: Path, expected: Path) -> None:
    script = expected.with_name(expected.name.replace(".expected.txt", ".py"))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == expected.read_text(), done.stderr
