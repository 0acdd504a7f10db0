"""The planted faults can be planted: `plant.py` says how, and what finds them."""

from __future__ import annotations

import re
import shlex
from collections import Counter

import pytest

from tests.conftest import REPOSITORY
from tests.faults.plant import places
from tests.faults.table import AREAS, FAULTS, Fault


def test_there_are_sixty_in_all_areas() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 60
    assert set(Counter(fault.area for fault in FAULTS)) == set(AREAS)


def test_every_snippet_occurs_once() -> None:
    assert {name for name, found in places(FAULTS).items() if len(found) != 1} == set()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_something_and_names_tests_that_exist(fault: Fault) -> None:
    assert fault.right != fault.wrong
    words = shlex.split(fault.tests)
    chosen = words[: words.index("-k")] if "-k" in words else words
    assert chosen
    paths = [REPOSITORY / "tests" / word for word in chosen]
    assert all(path.exists() for path in paths)
    if "-k" in words:
        files = [p for path in paths for p in ([path] if path.is_file() else path.rglob("*.py"))]
        texts = "".join(path.read_text(encoding="utf-8") for path in files)
        tests = re.sub(r"\b(not|or|and)\b", "", words[-1]).split()
        assert [test for test in tests if test not in texts] == []
