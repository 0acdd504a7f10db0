"""The documents: the Python that they show and the examples run, and their links lead somewhere."""

from __future__ import annotations

import re
import runpy
import shutil
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


def test_the_site_has_every_page_and_the_reference_from_the_docstrings() -> None:
    site = _ROOT / "build" / "site"
    shutil.rmtree(site, ignore_errors=True)
    tool = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [tool, "build", "--strict", "--clean"], cwd=_ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for source in (_ROOT / "docs").rglob("*.md"):
        name = source.relative_to(_ROOT / "docs").with_suffix("")
        folder = site / (name.parent if name.name == "README" else name)
        assert "<h1" in (folder / "index.html").read_text(), source
    reference = (site / "api" / "index.html").read_text()
    for public in ("simulate", "compare", "SchedulerView", "ModelPolicy"):
        assert f'id="parcae.{public}"' in reference
    assert "one-spark-or-many" in (site / "search.json").read_text()


_PAGES = [*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")]
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as a Markdown renderer makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(_ROOT)) for page in _PAGES])
def test_every_link_of_a_document_leads_somewhere(page: Path) -> None:
    for path, anchor in _LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in _anchors(target.read_text()), f"{path}#{anchor}"
