"""The Python that docs/python.md and docs/extending.md show runs as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_EXAMPLES = ("log_to_report", "own_learner", "own_policy")


@pytest.mark.parametrize("document", ["docs/python.md", "docs/extending.md"])
def test_the_python_of_a_document_runs_as_written(document: str, tmp_path: Path) -> None:
    text = (_ROOT / document).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    script = tmp_path / "script.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", _EXAMPLES)
def test_an_example_prints_what_is_expected(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(_ROOT / "examples" / f"{name}.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (_ROOT / "examples" / f"{name}.expected.txt").read_text()


def test_the_reference_is_built_from_the_docstrings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pdoc", "-d", "google", "-o", str(tmp_path), "parcae"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "parcae.html").read_text()
    for name in ("simulate", "compare", "SchedulerView", "ModelPolicy"):
        assert f'id="{name}"' in page
