"""The page that leads from an idea to a live Spark shows what its commands print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.spark.needs import needs_spark


@pytest.mark.slow
@needs_spark
def test_the_page_leads_from_a_formula_to_a_live_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / "docs" / "idea.md").read_text()
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    commands = re.findall(r"^    parcae (.*)$", page, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["compare", "judge", "export", "spark"]
    printed = ""
    for command in commands:
        done = subprocess.run(
            f"{sys.executable} -m parcae.cli.main {command}",
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed += done.stdout + done.stderr
    shown = [line for block in page.split("```")[1::2] for line in block.strip().splitlines()]
    assert len(shown) == 5
    for line in shown:
        assert line.replace("/path/to", str(tmp_path)) in printed
