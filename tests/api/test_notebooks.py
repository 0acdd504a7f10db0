"""The notebooks of the examples run, and show results of the kinds that they have in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

nbformat = pytest.importorskip("nbformat", reason="the extra dev brings it")
nbclient = pytest.importorskip("nbclient", reason="the extra dev brings it")

_NOTEBOOKS = sorted((REPOSITORY / "examples").glob("*.ipynb"))
_LARGEST = 300_000


def _shown(notebook: Any) -> list[Any]:
    """What every cell shows: the kinds of its results, and whether it printed anything."""
    shown = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        kinds = [sorted(one.data) for one in outputs if "data" in one]
        shown.append((kinds, any(one.get("name") == "stdout" for one in outputs)))
    return shown


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=[path.stem for path in _NOTEBOOKS])
def test_a_notebook_runs_and_shows_what_it_did(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert path.stat().st_size < _LARGEST
    kept = nbformat.read(path, 4)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "100")
    again = nbformat.read(path, 4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(again, timeout=600, startup_timeout=300, resources=where).execute()
    assert _shown(again) == _shown(kept)
