"""The page and the example about environments do what they say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


def _trained(name: str, *steps: str) -> tuple[float, float]:
    """Average JCT before and after, as the example prints them."""
    script = str(REPOSITORY / "examples" / name)
    done = subprocess.run([sys.executable, script, *steps], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = re.fullmatch(r"before: .* (\d+\.\d+) s\nafter \d+ steps: .* (\d+\.\d+) s\n", done.stdout).groups()  # type: ignore[union-attr]
    return float(before), float(after)


def test_an_off_the_shelf_learner_trains_on_the_cluster() -> None:
    before, after = _trained("train_cluster_env.py", "512")
    assert before != after
    assert 10 < min(before, after) < max(before, after) < 60


@pytest.mark.slow
def test_an_off_the_shelf_learner_becomes_better_on_the_cluster() -> None:
    before, after = _trained("train_cluster_env.py")
    assert after < before


def test_the_code_in_the_page_runs() -> None:
    page = (REPOSITORY / "docs" / "environments.md").read_text()
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE)
    code = "\n".join(re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks)
    assert code.count("gymnasium.make") >= 2
    names: dict[str, object] = {}
    exec(compile(code, "docs/environments.md", "exec"), names)
    assert names["num_unfinished"] == 0
