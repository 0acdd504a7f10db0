"""The examples and the documentation page about environments work as described."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import parcae
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
    assert list(compared) == ["fair", "random", "sjf-cp", "learned"]
    assert compared["fair"][1:] == [1, 1, 1]
    assert 1.2 < compared["random"][1] < 2.5
    for average_s, ratio, low, high in compared.values():
        assert average_s == pytest.approx(ratio * compared["fair"][0], abs=0.05)
        assert low <= ratio <= high


_PICTURES = {"comparison.html", "from_scratch.png"}


def _from_scratch(folder: Path, minutes: str, seeds: str) -> dict[str, float]:
    """The ratios to fair that the example of a network of one's own prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        first, *lines = _printed("learn_from_scratch.py", minutes, seeds).splitlines()
    assert re.fullmatch(r"\d+ iterations: [\d.]+ of fair on the selection runs", first)
    assert {path.name for path in folder.iterdir()} == {*_PICTURES, "from-scratch"}
    of_fair = r"(.*): [\d.]+ s, ([\d.]+) \[.*\] of fair"
    found = [re.fullmatch(of_fair, line).groups() for line in lines]  # type: ignore[union-attr]
    return {policy: float(ratio) for policy, ratio in found}


def test_a_network_of_ones_own_is_trained_compared_and_drawn(tmp_path: Path) -> None:
    ratios = _from_scratch(tmp_path, "0.01", "2")
    assert list(ratios) == ["fair", "fifo", "srpt", "from-scratch/best.safetensors"]
    assert ratios["fair"] == 1


def test_decima_in_plain_torch_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    cluster = parcae.Cluster(executors=5, moving_delay_ms=200)
    jobs = parcae.workload("tpch").draw(4, "batch", cluster, seed=1)
    small = {"num_groups": 2, "group_size": 4, "num_selection": 4}
    network = "decima_in_torch:Decima"
    result = parcae.train(network, jobs, cluster, tmp_path, iterations=1, settings=small)
    assert result.ending == "done"
    assert result.counts["decisions"] > 100
    policies = ["fair", tmp_path / "best.safetensors"]
    frame = parcae.compare(jobs, policies, cluster, seeds=1).to_frame()
    assert 0.5 < frame["ratio_to_first"][1] < 3


@pytest.mark.slow
def test_a_network_of_ones_own_beats_fair(tmp_path: Path) -> None:
    ratios = _from_scratch(tmp_path, "1", "10")
    assert ratios["from-scratch/best.safetensors"] < 0.9


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
