"""Studies with several trainings: what is run, what is not repeated, and the verdict over all."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.evaluation.statistics import Estimate
from parcae.papers import catalog
from parcae.papers.findings import Finding, Verdict, over_trainings
from parcae.papers.study import PackingRequest, StudyRequest, StudyResult
from parcae.papers.trainings import STUDIES_WITH_FINDINGS, reproduce_often
from parcae.simulation.config import SimulationConfig
from parcae.workloads.synthetic import RandomDags, random_dags

_NAME = "decima-fig23"


def _request(folder: Path) -> StudyRequest:
    workload = random_dags(RandomDags(num_jobs=4), np.random.default_rng(3), "made up")
    return StudyRequest(workload, SimulationConfig(num_executors=4), "load:0.5", folder, seed=5)


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of the runs of a study whose second finding depends on the seed."""
    run: list[int] = []

    def study(request: StudyRequest) -> StudyResult:
        run.append(request.seed)
        mean = 0.9 if request.seed < 7 else 1.05
        findings = [
            Finding("a below b", Estimate(0.8, 0.7, 0.9)),
            Finding("a below c", Estimate(mean, mean - 0.01, mean + 0.01)),
            Finding("a below d", Estimate(math.nan, math.nan, math.nan)),
        ]
        columns = ("policy", "paper")
        return StudyResult("title", "paper", columns, [["a", "b"]], {}, [], Path.touch, findings)

    monkeypatch.setitem(catalog.STUDIES, _NAME, study)
    return run


def test_each_training_has_a_folder_and_the_verdict_is_over_all_of_them(
    tmp_path: Path, seeds: list[int]
) -> None:
    result, files = reproduce_often(_NAME, _request(tmp_path), 3, "parcae reproduce")
    assert seeds == [5, 6, 7]
    assert [row[0] for row in result.rows] == ["a below b", "a below c", "a below d"]
    assert [row[-1] for row in result.rows] == [Verdict.SAME, Verdict.OPEN, Verdict.OPEN]
    assert [row[3] for row in result.rows] == [
        "0.800, 0.800, 0.800",
        "0.900, 0.900, 1.050",
        "–, –, –",
    ]
    assert [row[2] for row in result.rows] == [
        "0.800 [0.800, 0.800]",
        "0.947 [0.760, 1.182]",
        "–",
    ]
    assert (tmp_path / f"{_NAME}-seed-6" / f"{_NAME}.md").exists()
    assert f"{_NAME}-seed-7/{_NAME}.md" in files.table.read_text()
    assert "trained for 1 minutes by recipe fast" in files.table.read_text()
    assert files.picture.stat().st_size > 5_000
    card = json.loads(files.numbers.read_text())
    assert card["settings"]["trainings"] == 3
    assert len(card["numbers"]["seed 7"]) == 3


def test_runs_that_are_there_are_not_repeated(tmp_path: Path, seeds: list[int]) -> None:
    request = _request(tmp_path)
    reproduce_often(_NAME, request, 2)
    result, _ = reproduce_often(_NAME, request, 3)
    assert seeds == [5, 6, 7]
    assert result.rows[0][3] == "0.800, 0.800, 0.800"
    with pytest.raises(ConfigError, match=r"other settings \(training_budget_s\)"):
        reproduce_often(_NAME, replace(request, budget_s=7.0), 3)
    with pytest.raises(ConfigError, match=r"other settings \(is_cluster_given\)"):
        reproduce_often(_NAME, replace(request, is_cluster_given=True), 3)
    torn = tmp_path / f"{_NAME}-seed-6" / f"{_NAME}.json"
    torn.write_text("{")
    with pytest.raises(ConfigError, match="remove it"):
        reproduce_often(_NAME, request, 3)


def test_a_setting_that_is_left_out_now_is_another_setting(
    tmp_path: Path, seeds: list[int]
) -> None:
    request = _request(tmp_path)
    of_jobs = replace(request, decima=DecimaSettings(features=FeatureSet.JOBS))
    reproduce_often(_NAME, of_jobs, 2)
    with pytest.raises(ConfigError, match=r"other settings \(decima\)"):
        reproduce_often(_NAME, request, 2)
    assert seeds == [5, 6]


def test_a_run_without_its_page_is_repeated(
    tmp_path: Path, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("parcae.papers.study.page", full)
        with pytest.raises(OSError, match="no space"):
            reproduce_often(_NAME, _request(tmp_path), 2)
    reproduce_often(_NAME, _request(tmp_path), 2)
    assert seeds == [5, 5, 6]
    assert (tmp_path / f"{_NAME}-seed-5" / f"{_NAME}.md").exists()


@pytest.fixture
def of_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackingRequest:
    """The request of a study of the log some.swf, which trains nothing."""

    def study(request: PackingRequest) -> StudyResult:
        findings = [Finding("a below b", Estimate(0.8, 0.7, 0.9))]
        return StudyResult("title", "paper", ("policy",), [["a"]], {}, [], Path.touch, findings)

    monkeypatch.setitem(catalog.PACKING_STUDIES, "a2c-table4", study)
    log = tmp_path / "some.swf"
    log.write_text("; a log\n")
    return PackingRequest(tmp_path, log=log)


def test_a_study_of_one_log_says_that_its_verdicts_are_about_that_log(
    tmp_path: Path, of_log: PackingRequest
) -> None:
    result, _ = reproduce_often("a2c-table4", of_log, 2)
    assert any("all runs are pieces of some.swf" in note for note in result.notes)
    # Both trainings have the same ratio: what is left is the interval within them.
    assert result.rows[0][2] == "0.800 [0.700, 0.900]"
    drawn, _ = reproduce_often("a2c-table4", replace(of_log, log=None, output=tmp_path / "b"), 2)
    assert any("which each have other evaluation runs" in note for note in drawn.notes)
    assert drawn.rows[0][2] == "0.800 [0.800, 0.800]"


def test_a_run_of_another_log_of_this_name_is_refused(
    tmp_path: Path, of_log: PackingRequest
) -> None:
    reproduce_often("a2c-table4", of_log, 2)
    assert of_log.log is not None
    of_log.log.write_text("; another log\n")
    with pytest.raises(ConfigError, match=r"other settings \(log_sha256\)"):
        reproduce_often("a2c-table4", of_log, 2)
    # Results of earlier versions have no fingerprint, and are used as before.
    for path in tmp_path.glob("a2c-table4-seed-*/a2c-table4.json"):
        card = json.loads(path.read_text())
        del card["settings"]["log_sha256"]
        path.write_text(json.dumps(card))
    reproduce_often("a2c-table4", of_log, 2)


def test_seeds_that_no_training_has_are_refused(tmp_path: Path, seeds: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"seeds 254 to 256, .* are 0 to 255"):
        reproduce_often(_NAME, replace(_request(tmp_path), seed=254), 3)
    with pytest.raises(ConfigError, match=r"seeds -1 to 0, .* are 0 to 255"):
        reproduce_often(_NAME, replace(_request(tmp_path), seed=-1), 2)
    assert seeds == []


def test_runs_that_two_trainings_would_share_are_refused(tmp_path: Path, seeds: list[int]) -> None:
    request = _request(tmp_path)
    with pytest.raises(ConfigError, match="give at most --runs 10000"):
        reproduce_often(_NAME, replace(request, num_runs=10_001), 2)
    assert seeds == []
    reproduce_often(_NAME, replace(request, num_runs=10_000), 2)
    assert seeds == [5, 6]


@pytest.mark.parametrize("seed", [-1, 256])
@pytest.mark.parametrize(
    "name", ["decima-fig11", "decima-fig22", "idle-table1", "objectives", "a2c-table3"]
)
def test_a_study_that_trains_refuses_other_seeds_before_it_runs(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("policies were compared")

    monkeypatch.setattr("parcae.papers.contest.compare", never)
    request = _request(tmp_path) if name in catalog.STUDIES else PackingRequest(tmp_path)
    with pytest.raises(ConfigError, match=rf"seed is {seed}: give 0 to 255"):
        catalog.reproduce(name, replace(request, seed=seed))
    anew = replace(_request(tmp_path), seed=seed, trains_anew=True)
    with pytest.raises(ConfigError, match=rf"seed is {seed}: give 0 to 255"):
        catalog.reproduce("decima-fig10", anew)
    assert PackingRequest(tmp_path, seed=255).training_seed == 255


def test_too_many_jobs_for_a_search_of_all_orders_are_refused_before_the_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a network was trained")

    monkeypatch.setattr("parcae.papers.orders.train_decima", never)
    with pytest.raises(ConfigError, match="the exhaustive search takes at most 12 jobs"):
        catalog.reproduce("decima-fig22", replace(_request(tmp_path), num_jobs=13))


def test_studies_without_findings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="decima-fig14"):
        reproduce_often("decima-fig3", _request(tmp_path), 2)
    # The agent of these tables ships: there would be nothing to repeat.
    with pytest.raises(ConfigError, match="policies that a study trains, and a2c-table1 has none"):
        reproduce_often("a2c-table1", PackingRequest(tmp_path), 2)
    assert set(STUDIES_WITH_FINDINGS) <= catalog.STUDIES.keys() | catalog.PACKING_STUDIES.keys()


def test_policies_that_are_not_trained_are_refused(tmp_path: Path) -> None:
    request = replace(_request(tmp_path), policies=("fair",))
    with pytest.raises(ConfigError, match="leave out one of them"):
        reproduce_often("idle-table1", request, 2)


def test_the_interval_over_trainings_is_students_t_on_the_logarithm() -> None:
    def over(*ratios: float) -> Finding:
        # The intervals of the single trainings do not matter.
        found = [Finding("a below b", Estimate(ratio, 0.1, 9.0), 1.1) for ratio in ratios]
        return over_trainings(found)

    # exp(ln 0.9 -+ 12.706 x 0.01 / sqrt(2)), for ln 0.9 -+ 0.01 / sqrt(2).
    apart = 0.01 / math.sqrt(2)
    two = over(0.9 * math.exp(apart), 0.9 * math.exp(-apart))
    assert two.ratio.mean == pytest.approx(0.9)
    half = 12.7062 * 0.01 / math.sqrt(2)
    assert two.ratio.low == pytest.approx(0.9 * math.exp(-half), rel=1e-5)
    assert two.ratio.high == pytest.approx(0.9 * math.exp(half), rel=1e-5)
    assert (two.claim, two.most, two.verdict) == ("a below b", 1.1, Verdict.SAME)
    assert over(1.2, 1.21, 1.22).verdict is Verdict.OTHER
    assert over(0.8, 1.2).verdict is Verdict.OPEN
    # Differences between trainings that are far larger than the finding: eight of them tell no
    # more than three that differ little.
    assert over(*[0.6, 1.5] * 4).verdict is Verdict.OPEN
    # On the same jobs, what the single intervals are about does not average out.
    alike = [Finding("a below b", Estimate(ratio, 0.72, 0.95), 1.1) for ratio in (0.79, 0.81)]
    same = over_trainings(alike, are_on_same_jobs=True).ratio
    apart = over_trainings(alike).ratio
    assert same.low < apart.low
    assert math.log(same.high / same.mean) == pytest.approx(
        math.hypot(
            math.log(apart.high / apart.mean),
            (math.log(0.95 / 0.79) + math.log(0.95 / 0.81)) / 2,
        )
    )
    assert over(0.8).ratio.is_unknown
    assert over(0.8, math.nan).ratio.is_unknown
    assert over(0.8, 0.0).ratio.is_unknown
    below = Finding("a below b", Estimate(0.8, 0.7, 0.9))
    assert Finding.from_json(below.to_json()) == below
