"""The Python that the documents show and the examples run as written."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("own_registrations")

_EXAMPLES = sorted((_ROOT / "examples").glob("*.expected.txt"))


def _run_script(script: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script as `python SCRIPT` would, in this process and in the given folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("document", ["docs/python.md", "docs/extending.md"])
def test_the_python_of_a_document_runs_as_written(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (_ROOT / document).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    script = tmp_path / "script.py"
    script.write_text("\n".join(blocks))
    _run_script(script, tmp_path, monkeypatch)


@pytest.mark.parametrize("expected", _EXAMPLES, ids=[path.name for path in _EXAMPLES])
def test_an_example_prints_what_is_expected(
    expected: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = expected.with_name(expected.name.replace(".expected.txt", ".py"))
    _run_script(script, tmp_path, monkeypatch)
    assert capsys.readouterr().out == expected.read_text()


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
