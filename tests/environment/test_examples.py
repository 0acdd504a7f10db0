"""The examples and the documentation page about environments work as described."""

from __future__ import annotations

import re
import runpy
import sys

import pytest

from tests.conftest import REPOSITORY

_EXAMPLES = ["train_cluster_env.py", "train_packing_env.py"]


def _figures(name: str, *steps: str) -> tuple[float, float]:
    """What the example prints: before and after."""
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr(sys, "argv", [name, *steps])
        runpy.run_path(
            str(REPOSITORY / "examples" / name), {"print": lines.append}, run_name="__main__"
        )
    before, after = re.fullmatch(
        r"before: \D+ ([\d.]+)(?: s)?\nafter \d+ steps: \D+ ([\d.]+)(?: s)?", "\n".join(lines)
    ).groups()  # type: ignore[union-attr]
    return float(before), float(after)


@pytest.mark.parametrize("name", _EXAMPLES)
def test_an_off_the_shelf_learner_trains(name: str) -> None:
    before, after = _figures(name, "512")
    assert before != after
    assert 1 < min(before, after) < max(before, after) < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", _EXAMPLES)
def test_an_off_the_shelf_learner_becomes_better(name: str) -> None:
    before, after = _figures(name)
    assert after < 0.95 * before


def test_the_code_in_the_page_runs() -> None:
    page = (REPOSITORY / "docs" / "environments.md").read_text()
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE)
    code = "\n".join(re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks)
    assert code.count("gymnasium.make") >= 4
    names: dict[str, object] = {}
    exec(compile(code, "docs/environments.md", "exec"), names)
    assert names["num_unfinished"] == names["num_masked_actions"] == 0
