"""Generated calls of the command line end with 0, 1 or 2 and one error line, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzzing.commands import MOST_SECONDS

_ROOT = Path(__file__).parents[2]


def _results(first: int, count: int, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.fuzzing.commands", str(first), str(count), str(folder)]
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def wrong_with(result: dict[str, Any]) -> str:
    """What is wrong with how a call ended; "" if nothing."""
    said = result["stderr"]
    errors = [line for line in said.splitlines() if line.startswith("parcae: ")]
    if result["status"] not in (0, 1, 2):
        return f"exit status {result['status']}"
    if "Traceback" in said or "this is a bug of Parcae" in said:
        return "a traceback or the last resort"
    if result["seconds"] > MOST_SECONDS:
        return "too slow"
    # Typer frames its own errors about options in a box.
    is_said = len(errors) == 1 or "Error" in said or "Usage" in said
    # The doctor prints what it found, and 1 says that something is wrong.
    is_said = is_said or " ".join(result["words"]).startswith("spark doctor")
    if result["status"] != 0 and not is_said:
        return "no error line"
    return ""


def _failures(results: list[dict[str, Any]]) -> str:
    """The calls that did not end as they should, a paragraph each."""
    return "\n".join(
        f"{one['number']} {' '.join(one['words'])[:300]}\n  {what}: {one['stderr'][-300:]}"
        for one in results
        if (what := wrong_with(one))
    )


def test_a_sample_of_generated_calls_ends_as_calls_should(tmp_path: Path) -> None:
    results = _results(0, 4, tmp_path)
    assert len(results) == 4
    assert _failures(results) == ""


@pytest.mark.slow
def test_generated_calls_end_as_calls_should(tmp_path: Path) -> None:
    results = _results(0, 300, tmp_path)
    assert len(results) == 300
    assert _failures(results) == ""
