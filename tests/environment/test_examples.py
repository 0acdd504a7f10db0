"""The examples and the documentation page about environments work as described."""

from __future__ import annotations

import re
import runpy
import sys

import pytest

from tests.conftest import REPOSITORY

_RATIO = r"average JCT ([\d.]+) s, ratio to fair ([\d.]+) \[([\d.]+), ([\d.]+)\]"


def _printed(name: str, *arguments: str) -> str:
    """What the example prints with these arguments."""
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(
            str(REPOSITORY / "examples" / name), {"print": lines.append}, run_name="__main__"
        )
    return "\n".join(lines)


def _slowdowns(*steps: str) -> tuple[float, float]:
    """What the example of packing prints: before and after."""
    before, after = re.fullmatch(
        r"before: mean slowdown ([\d.]+)\nafter \d+ steps: mean slowdown ([\d.]+)",
        _printed("train_packing_env.py", *steps),
    ).groups()  # type: ignore[union-attr]
    return float(before), float(after)


def _compared(*arguments: str) -> dict[str, list[float]]:
    """What the cluster's example prints of each policy: average JCT, ratio and its interval."""
    first, *lines = _printed("train_cluster_env.py", *arguments).splitlines()
    assert re.fullmatch(r"[\d,]+ steps in \d+ s", first)
    found = {}
    for line in lines:
        policy, figures = line.split(": ")
        found[policy] = [float(text) for text in re.fullmatch(_RATIO, figures).groups()]  # type: ignore[union-attr]
    return found


def test_a_learner_trains_on_packing() -> None:
    before, after = _slowdowns("512")
    assert before != after
    assert 1 < min(before, after) < max(before, after) < 60


def test_a_learner_trains_on_the_cluster() -> None:
    compared = _compared("8192", "8")
    assert list(compared) == ["fair", "random", "learned"]
    assert compared["fair"][1:] == [1, 1, 1]
    assert 1.2 < compared["random"][1] < 2.5
    for average_s, ratio, low, high in compared.values():
        assert average_s == pytest.approx(ratio * compared["fair"][0], abs=0.05)
        assert low <= ratio <= high


@pytest.mark.slow
def test_a_learner_becomes_better_on_packing() -> None:
    before, after = _slowdowns()
    assert after < 0.95 * before


@pytest.mark.slow
def test_a_learner_beats_fair_on_the_cluster() -> None:
    compared = _compared()
    _, ratio, _, high = compared["learned"]
    assert ratio < high < 1 < compared["random"][2]


def test_the_code_in_the_page_runs() -> None:
    page = (REPOSITORY / "docs" / "environments.md").read_text()
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE)
    code = "\n".join(re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks)
    assert code.count("gymnasium.make") >= 4
    names: dict[str, object] = {}
    exec(compile(code, "docs/environments.md", "exec"), names)
    assert names["num_unfinished"] == names["num_masked_actions"] == 0
