"""The runner: estimates, findings, files, and repeated trainings."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError, PolicyError
from parcae.decima.catalog import make_policy
from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.evaluation.pictures import new_picture
from parcae.evaluation.statistics import Estimate
from parcae.learning.scenario import Scenario
from parcae.papers import runner
from parcae.papers.contenders import Learned, Part, RecordedTrace, Request, named
from parcae.papers.drawing import bars, draw_curves
from parcae.papers.runner import (
    JCT,
    Claim,
    Finding,
    Measure,
    PartOutcome,
    Study,
    StudyRun,
    Verdict,
    markdown_table,
    over_trainings,
    ratio_of,
    reproduce,
    reproduce_often,
    run_study,
)
from parcae.papers.table import STUDIES
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.simulator import simulate
from parcae.workloads.synthetic import toy_workload
from parcae.workloads.workload import TUNING_SEED_START

_CLUSTER = SimulationConfig(num_executors=2, moving_delay_ms=0, warmup_delay_ms=0)


def _request(folder: Path) -> Request:
    return Request(folder, toy_workload(), _CLUSTER, "load:0.5", processes=1)


def _compared(*names: str, **changes: object) -> Study:
    """A study of these policies on batches of three jobs."""

    def parts(request: Request) -> list[Part]:
        scenario = Scenario(toy_workload(), _CLUSTER, "batch", 3)
        return [Part("", scenario, named(*names))]

    return Study("made-up", "title", "paper", parts, lambda run, path: path.touch(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "most", "paper", "verdict"),
    [
        (0.8, 0.99, 1.0, None, Verdict.SAME),
        (0.8, 1.0, 1.0, None, Verdict.OPEN),
        (1.01, 1.2, 1.0, None, Verdict.OTHER),
        (1.0, 1.0, 1.0, None, Verdict.OTHER),
        (1.01, 1.09, 1.1, None, Verdict.SAME),
        (math.nan, math.nan, 1.0, None, Verdict.OPEN),
        # Less than half of the paper's difference is not what it found.
        (0.91, 1.01, 1.0, 0.81, Verdict.OTHER),
        (0.89, 1.01, 1.0, 0.81, Verdict.OPEN),
        (0.91, 0.99, 1.0, 0.81, Verdict.SAME),
        # A measure that the paper prints is the same within a tenth.
        (0.91, 1.01, None, 1.0, Verdict.SAME),
        (0.89, 1.01, None, 1.0, Verdict.OPEN),
        (0.91, 1.01, None, 2.0, Verdict.OTHER),
        (0.91, 1.01, None, 0.5, Verdict.OTHER),
        (math.nan, math.nan, None, 0.95, Verdict.OPEN),
    ],
)
def test_the_interval_decides(
    low: float, high: float, most: float | None, paper: float | None, verdict: Verdict
) -> None:
    finding = Finding("a below b", Estimate(0.95, low, high), most, paper, "Table 9")
    assert finding.verdict is verdict
    assert Finding.from_json(finding.to_json()).row() == finding.row()
    assert finding.row()[-1].startswith(str(verdict))
    is_slight = "less than half of that difference" in finding.row()[-1]
    assert is_slight == (verdict is Verdict.OTHER and paper is not None and most is not None)


def test_the_papers_value_is_beside_ours() -> None:
    cells = Finding("a below b", Estimate(0.9, 0.8, 1.0), 1.0, 0.8, "Figure 9a").row()
    assert cells[1:5] == ["Figure 9a", "0.8", "0.9 [0.8, 1]", "1.125 [1.000, 1.250]"]
    assert Finding("a below b", Estimate(0.9, 0.8, 0.99)).row()[4] == "–"


def test_the_interval_over_trainings_is_students_t_on_the_logarithm() -> None:
    def over(*ratios: float) -> Finding:
        # The intervals of the single trainings do not matter.
        found = [Finding("a below b", Estimate(ratio, 0.1, 9.0), 1.1) for ratio in ratios]
        return over_trainings(found)

    # exp(ln 0.9 -+ 12.706 x 0.01 / sqrt(2)), for ln 0.9 -+ 0.01 / sqrt(2).
    apart = 0.01 / math.sqrt(2)
    two = over(0.9 * math.exp(apart), 0.9 * math.exp(-apart))
    assert two.here.mean == pytest.approx(0.9)
    assert two.here.low == pytest.approx(0.9 * math.exp(-12.7062 * apart), rel=1e-5)
    assert (two.claim, two.most, two.verdict) == ("a below b", 1.1, Verdict.SAME)
    assert over(1.2, 1.21, 1.22).verdict is Verdict.OTHER
    assert over(*[0.6, 1.5] * 4).verdict is Verdict.OPEN
    assert all(over(*ratios).here.is_unknown for ratios in ((0.8,), (0.8, math.nan), (0.8, 0.0)))
    # On the same jobs, what the single intervals are about does not average out.
    alike = [Finding("a below b", Estimate(ratio, 0.72, 0.95), 1.1) for ratio in (0.79, 0.81)]
    same = over_trainings(alike, are_on_same_jobs=True).here
    apart_ratio = over_trainings(alike).here
    reach = (math.log(0.95 / 0.79) + math.log(0.95 / 0.81)) / 2
    assert math.log(same.high / same.mean) == pytest.approx(
        math.hypot(math.log(apart_ratio.high / apart_ratio.mean), reach)
    )


def test_ratios_are_taken_over_the_runs_that_know_both() -> None:
    ratio = ratio_of(np.array([2.0, np.nan, 4.0]), np.array([4.0, 1.0, 8.0]))
    assert ratio.mean == 0.5
    assert ratio.low == pytest.approx(0.5)
    assert math.isnan(ratio_of(np.array([1.0]), np.array([0.0])).mean)
    assert math.isnan(ratio_of(np.array([np.nan]), np.array([1.0])).mean)
    # Some runs without a missed deadline, say, still have their weight.
    assert ratio_of(np.array([1.0, 1.0]), np.array([0.0, 1.0])).mean == pytest.approx(2.0)


def test_ratios_are_to_the_best_of_several_or_to_a_policy_of_another_part() -> None:
    study = _compared(measures=(Measure("cost", "cost", over=("b", "c")),))
    parts = [Part(name, None, {}) for name in ("one", "two")]
    values = {
        label: {"cost": np.array([x, x])} for label, x in (("a", 3.0), ("b", 2.0), ("c", 1.0))
    }
    outcomes = [PartOutcome(parts[0], values), PartOutcome(parts[1], {"a": values["a"]})]
    run = StudyRun(study, Request(Path()), parts, {}, outcomes)
    measure = run.measures[0]
    assert run.baseline(outcomes[0], measure) == "c"
    assert run.ratio(outcomes[0], "a", measure).mean == 3.0
    assert run.ratio(outcomes[1], "a", measure).mean == 1.5


def test_a_study_pairs_the_runs_and_judges_its_claims(tmp_path: Path) -> None:
    printed = (Claim("fifo", paper=4.0), Claim("fair", paper=2.0), Claim("absent", "fair"))
    claims = (Claim("fair", "fifo"), *printed)
    study = _compared("fifo", "fair", claims=claims, runs=(4, 40))
    result = run_study(study, _request(tmp_path))
    scenario = Scenario(toy_workload(), _CLUSTER, "batch", 3)
    by_hand = [
        float((t.completion_ms - t.arrival_ms).mean()) / 1e3
        for t in (
            simulate(scenario.sequence(seed), make_policy("fair", 2), _CLUSTER, seed)
            for seed in range(4)
        )
    ]
    fair = result.numbers["parts"][""]["fair"]
    assert fair[JCT]["runs"] == by_hand
    assert result.rows[0][2] == "1.000 [1.000, 1.000]"
    # Measures are held against the paper's only on its jobs, and what was not run not at all.
    (finding,) = result.findings
    assert (finding.claim, finding.paper) == ("fair below fifo", 0.5)
    assert finding.here.to_json() == fair["average_jct_s / fifo"]
    jobs = replace(toy_workload(), provenance={"measured": "Spark 2.2, by the Decima authors"})
    own = run_study(study, replace(_request(tmp_path), workload=jobs))
    assert [one.paper for one in own.findings] == [0.5, 4.0, 2.0]
    assert own.findings[2].ratio.mean == pytest.approx(np.mean(by_hand) / 2.0)
    json.dumps(result.numbers, allow_nan=False)


def test_the_amounts_of_a_request_and_its_seeds(tmp_path: Path) -> None:
    request = _request(tmp_path)
    several = (request, replace(request, is_full=True), replace(request, num_runs=7))
    assert [one.runs((5, 50)) for one in several] == [5, 50, 7]
    for one in (replace(request, seed=255), Request(tmp_path, seed=255)):
        assert 0 <= one.first_seed < one.first_seed + 10_000 < TUNING_SEED_START
        assert one.training_seed == 255


def test_a_table_in_markdown_keeps_bars_within_cells() -> None:
    assert markdown_table(["a", "b"], [["1|2", "3"]]) == "| a | b |\n| --- | --- |\n| 1\\|2 | 3 |"


def test_names_are_drawn_as_they_are_and_not_as_mathematics(tmp_path: Path) -> None:
    name = r"a$\frac$"
    study = _compared(measures=(Measure("cost", name),))
    run = StudyRun(
        study,
        Request(Path()),
        [],
        {},
        [PartOutcome(Part(name, None, {}), {name: {"cost": [1.0, 2.0]}})],
    )
    # A formula that cannot be read ends here.
    bars(run, tmp_path / "names.png")
    assert (tmp_path / "names.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ratio", [0.5, 0.9, 2.1])
def test_a_curve_of_a_single_point_is_seen_beside_one_without_any(ratio: float) -> None:
    axis = new_picture(3.0, 2.0).subplots()
    made = {"trained": Learned("a", "", curve=[(2, 0.5, ratio)]), "diverged": Learned("b", "")}
    draw_curves(axis, made)
    low, high = axis.get_ylim()
    assert low < ratio < high
    assert axis.get_lines()[0].get_marker() == "."


def test_what_cannot_be_run_is_refused_before_anything_is_trained_or_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(runner, "learn", never)
    jobs = toy_workload().jobs
    few = tuple(jobs[row % len(jobs)].at(1_000 * row) for row in range(10))
    recorded = RecordedTrace(replace(toy_workload(), name="log", jobs=few), _CLUSTER, "trace:0.8")
    request = replace(_request(tmp_path), recorded=recorded, num_jobs=6)
    with pytest.raises(ConfigError, match="'log' recorded 5 jobs, not 6"):
        reproduce(STUDIES["decima-fig11"], request)
    with pytest.raises(PolicyError, match="'fiar'"):
        reproduce(STUDIES["decima-fig11"], replace(_request(tmp_path), policies=("fiar",)))
    with pytest.raises(ConfigError, match="the exhaustive search takes at most 12 jobs"):
        reproduce(STUDIES["decima-fig22"], replace(_request(tmp_path), num_jobs=13))


@pytest.mark.parametrize("seed", [-1, 256])
@pytest.mark.parametrize("name", ["decima-fig11", "idle-table1", "a2c-table3", "decima-fig10"])
def test_a_study_that_trains_refuses_other_seeds_before_it_runs(
    name: str, seed: int, tmp_path: Path
) -> None:
    study = STUDIES[name]
    request = Request(tmp_path) if study.is_rigid else _request(tmp_path)
    with pytest.raises(ConfigError, match=rf"seed is {seed}: give 0 to 255"):
        reproduce(study, replace(request, seed=seed, trains_anew=study.ships))


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of the runs of studies, whose second finding depends on the seed."""
    run: list[int] = []

    def made_up(study: Study, request: Request) -> runner.StudyResult:
        run.append(request.seed)
        mean = 0.9 if request.seed < 7 else 1.05
        findings = [
            Finding("a below b", Estimate(0.8, 0.7, 0.9)),
            Finding("a below c", Estimate(mean, mean - 0.01, mean + 0.01)),
            Finding("a below d", Estimate(math.nan, math.nan, math.nan)),
        ]
        return runner.StudyResult(study, ["policy"], [["a"]], {}, [], Path.touch, findings)

    monkeypatch.setattr(runner, "run_study", made_up)
    return run


_STUDY = _compared("fair", claims=(Claim("a", "b"),))


def test_each_training_has_a_folder_and_the_verdict_is_over_all_of_them(
    tmp_path: Path, seeds: list[int]
) -> None:
    request = replace(_request(tmp_path), seed=5)
    result, files = reproduce_often(_STUDY, request, 3, "parcae reproduce")
    assert seeds == [5, 6, 7]
    assert [row[-1] for row in result.rows] == [Verdict.SAME, Verdict.OPEN, Verdict.OPEN]
    assert [row[4] for row in result.rows] == [
        "0.800, 0.800, 0.800",
        "0.900, 0.900, 1.050",
        "–, –, –",
    ]
    assert [row[3] for row in result.rows] == ["0.8 [0.8, 0.8]", "0.9475 [0.7595, 1.182]", "–"]
    text = files.table.read_text()
    assert "made-up-seed-7/made-up.md" in text
    assert "trained for 1 minutes by recipe fast" in text
    assert files.picture.stat().st_size > 5_000
    card = json.loads(files.numbers.read_text())
    assert card["settings"]["trainings"] == 3
    assert len(card["numbers"]["seed 7"]) == 3
    single = (tmp_path / "made-up-seed-6" / "made-up.md").read_text()
    assert "| a below b |  | – | 0.8 [0.7, 0.9] | – | as in the paper |" in single


def test_runs_that_are_there_are_not_repeated_unless_their_settings_are_others(
    tmp_path: Path, seeds: list[int]
) -> None:
    request = replace(_request(tmp_path), seed=5)
    reproduce_often(_STUDY, request, 2)
    reproduce_often(_STUDY, request, 3)
    assert seeds == [5, 6, 7]
    decima = DecimaSettings(features=FeatureSet.JOBS)
    for changes, named_in_error in (
        ({"budget_s": 7.0}, "training_budget_s"),
        ({"is_cluster_given": True}, "is_cluster_given"),
        ({"decima": decima}, "decima"),
        ({"config": SimulationConfig(executor_classes=decima_classes(4))}, "config"),
    ):
        other = replace(request, **changes)
        with pytest.raises(ConfigError, match=rf"other settings \({named_in_error}\)"):
            reproduce_often(_STUDY, other, 3)
    (tmp_path / "made-up-seed-6" / "made-up.json").write_text("{")
    with pytest.raises(ConfigError, match="remove it"):
        reproduce_often(_STUDY, request, 3)


def test_a_run_without_its_page_is_repeated(
    tmp_path: Path, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "page", full)
        with pytest.raises(OSError, match="no space"):
            reproduce_often(_STUDY, _request(tmp_path), 2)
    reproduce_often(_STUDY, _request(tmp_path), 2)
    assert seeds == [0, 0, 1]


def test_verdicts_about_one_log_are_widened_and_another_log_is_refused(
    tmp_path: Path, seeds: list[int]
) -> None:
    log = tmp_path / "some.swf"
    log.write_text("; a log\n")
    request = Request(tmp_path, log=log)
    result, _ = reproduce_often(_STUDY, request, 2)
    assert any("all runs are pieces of some.swf" in note for note in result.notes)
    # Both trainings have the same ratio: what is left is the interval within them.
    assert result.rows[0][3] == "0.8 [0.7, 0.9]"
    log.write_text("; another log\n")
    with pytest.raises(ConfigError, match=r"other settings \(log_sha256\)"):
        reproduce_often(_STUDY, request, 2)


def test_repeated_trainings_that_make_no_sense_are_refused(
    tmp_path: Path, seeds: list[int]
) -> None:
    request = _request(tmp_path)
    with pytest.raises(ConfigError, match=r"seeds 254 to 256, .* are 0 to 255"):
        reproduce_often(_STUDY, replace(request, seed=254), 3)
    with pytest.raises(ConfigError, match="give at most --runs 10000"):
        reproduce_often(_STUDY, replace(request, num_runs=10_001), 2)
    with pytest.raises(ConfigError, match="leave out one of them"):
        reproduce_often(_STUDY, replace(request, policies=("fair",)), 2)
    # The agent of a2c-table1 ships: there would be nothing to repeat.
    for name in ("decima-fig3", "a2c-table1"):
        with pytest.raises(ConfigError, match=f"and {name} has none"):
            reproduce_often(STUDIES[name], request, 2)
    assert seeds == []
