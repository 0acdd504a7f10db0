"""The page that says where the plugin runs: its proofs exist, and the plugin reads its settings."""

from __future__ import annotations

import re

from parcae.spark.jar import sources_folder
from tests.conftest import REPOSITORY
from tests.spark.java import java_sources

_DOCS = REPOSITORY / "docs"
_PAGE = _DOCS / "spark-where.md"


def test_the_proofs_that_the_page_names_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", _PAGE.read_text())
    assert len(named) >= 15
    for file, test in named:
        text = (REPOSITORY / "tests" / "spark" / file).read_text()
        assert f"def {test}" in text, f"{file} has no {test}"


def test_the_plugin_reads_the_settings_that_the_pages_name() -> None:
    pages = _PAGE.read_text() + (_DOCS / "spark-servers.md").read_text()
    named = set(re.findall(r"spark\.parcae\.\w+", pages))
    sources = "\n".join(
        path.read_text() for path in java_sources(sources_folder() / "src" / "main")
    )
    assert len(named) >= 3
    assert [name for name in sorted(named) if f'"{name}"' not in sources] == []
