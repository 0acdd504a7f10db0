"""The published pages state what the JSON beside them does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from parcae.studies.reproduce.study import markdown_table
from tests.conftest import REPOSITORY

_RESULTS = REPOSITORY / "docs" / "results"
_NUMBER = re.compile(r"[\d,]*\d(?:\.\d+)?")


def _read(path: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads(path.read_text())
    return card


_STUDIES = [path for path in sorted(_RESULTS.rglob("*.json")) if "study" in _read(path)]


@pytest.mark.parametrize("path", _STUDIES, ids=lambda path: str(path.relative_to(_RESULTS)))
def test_the_page_of_a_study_has_the_table_the_notes_and_the_settings_of_its_json(
    path: Path,
) -> None:
    card = _read(path)
    page = path.with_suffix(".md").read_text()
    assert page.startswith(f"# {card['study']}: {card['title']}\n\nThe paper: {card['paper']}\n")
    assert markdown_table(card["table"]["columns"], card["table"]["rows"]) in page
    notes = [line.removeprefix("- ") for line in page.splitlines() if line.startswith("- ")]
    assert notes == card["notes"]
    assert f"\n    {card['command']}\n" in page
    assert json.dumps(card["settings"], indent=2).replace("\n", "\n    ") in page


def _stated(cell: str, estimate: dict[str, Any]) -> bool:
    """Whether a cell has an estimate's mean (and interval), rounded as in the cell."""
    numbers = _NUMBER.findall(cell)
    values = (estimate["mean"], *estimate["ci95"])
    decimals = [len(number.partition(".")[2]) for number in numbers]
    return numbers == [f"{v:,.{n}f}" for v, n in zip(values, decimals, strict=False)]


@pytest.mark.parametrize(
    ("table", "logs"),
    [
        (1, ("packing-log-dost", "packing-log-lublin")),
        (2, ("packing-log-dost-pieces", "packing-log-lublin-pieces")),
    ],
)
def test_the_tables_of_logs_have_the_numbers_of_their_json(
    table: int, logs: tuple[str, str]
) -> None:
    page = (_RESULTS / "packing.md").read_text()
    rows = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)[table].splitlines()[2:]
    policies = [_read(_RESULTS / f"{log}.json")["policies"] for log in logs]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [name for name, *_ in cells] == list(policies[0]) == list(policies[1])
    keys = ("bounded_slowdown", "ratio_to_first", "waiting")
    wrong = [
        (name, cell)
        for name, *stated, _ in cells
        for place, cell in enumerate(stated)
        if not _stated(cell, policies[place // 3][name][keys[place % 3]])
    ]
    assert wrong == []
    for name, *_, makespans in cells:
        longer = [one[name]["makespan"] / one["easy"]["makespan"] for one in policies]
        assert makespans == ", ".join(f"{ratio:.2f}" for ratio in longer), name
