"""What the studies of executor classes are put together from."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError, FormatError, PolicyError
from parcae.decima.checkpoints import rule_checkpoint
from parcae.decima.rule.policy import start_parameters
from parcae.papers.multi_resource import asked_for, gather, heuristics, usable_arrivals, worlds
from parcae.papers.multi_resource_sizes import BINS, bin_edges_ms, mean_by_bin, ratio_to
from parcae.papers.multi_resource_time import busy_spans, facts, series_of
from parcae.papers.study import RecordedSetting, StudyRequest, settings_of
from parcae.policies.checkpoint import write_checkpoint
from parcae.policies.learned import setting_card
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload
from tests.metrics.hand_made import sequence, trace


def _job(seconds: int, memory: float, arrival_ms: int | None = None) -> JobSpec:
    return JobSpec(
        f"{seconds} s",
        (StageSpec(1, TaskDurations.constant(1_000 * seconds), memory=memory),),
        arrival_ms,
    )


_PLAIN = Workload("plain", tuple(_job(seconds, 0.0) for seconds in range(1, 11)))
_LOG = Workload("log", tuple(_job(2, 0.9, 1_000 * row) for row in range(10)))
_CLASSES = SimulationConfig(executor_classes=decima_classes(8))


def _request(folder: Path, *policies: str) -> StudyRequest:
    recorded = RecordedSetting(_LOG, SimulationConfig(), "trace:0.8")
    return StudyRequest(
        _PLAIN, SimulationConfig(), "load:0.5", folder, policies=policies, recorded=recorded
    )


def test_a_load_is_a_share_of_what_the_classes_can_serve() -> None:
    assert (
        usable_arrivals("load:0.8", _LOG, _CLASSES) == "load:0.2000"
    )  # only a quarter of the executors fits
    assert usable_arrivals("trace:1", _PLAIN, _CLASSES) == "trace:1.0000"
    assert usable_arrivals("poisson:3s", _LOG, _CLASSES) == "poisson:3s"


def test_the_worlds_are_tpch_with_drawn_memory_and_the_halves_of_the_trace(tmp_path: Path) -> None:
    tpch, log = worlds(_request(tmp_path))
    assert all(0 < stage.memory <= 1 for job in tpch.test.workload.jobs for stage in job.stages)
    assert [c.num_executors for c in tpch.test.config.classes] == [50] * 4
    assert [c.num_executors for c in log.test.config.classes] == [250] * 4
    assert [job.arrival_ms for job in log.train.workload.jobs] == [0, 1_000, 2_000, 3_000, 4_000]
    assert [job.arrival_ms for job in log.test.workload.jobs] == [5_000, 6_000, 7_000, 8_000, 9_000]
    assert (log.test.arrivals, log.test.num_jobs, log.train.num_jobs) == ("trace:0.2000", 200, 60)
    assert settings_of(_request(tmp_path))["recorded"]["workload"] == "log"


def test_a_checkpoint_that_was_made_for_the_other_workload_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ours.safetensors"
    write_checkpoint(
        rule_checkpoint(start_parameters(), setting_card(_LOG, _CLASSES, "load:0.5", 5)), path
    )
    request = _request(tmp_path, "fair", str(path))
    tpch, log = worlds(request)
    assert asked_for(request, tpch, [tpch, log]) == ["fair"]
    assert asked_for(request, log, [tpch, log]) == ["fair", str(path)]


def test_a_trace_with_too_few_jobs_is_refused_before_the_first_world_is_swept(
    tmp_path: Path,
) -> None:
    steps: list[str] = []
    request = replace(_request(tmp_path / "fig-policies"), num_jobs=6, say=steps.append)
    all_worlds = worlds(request)
    with pytest.raises(ConfigError, match="'log' recorded 5 jobs, not 6"):
        gather(request, all_worlds[0], all_worlds)
    assert steps == []


def test_an_unknown_policy_is_refused_before_the_first_world_is_swept(tmp_path: Path) -> None:
    steps: list[str] = []
    request = replace(_request(tmp_path / "fig-policies", "fiar"), say=steps.append)
    all_worlds = worlds(request)
    with pytest.raises(PolicyError, match="'fiar'"):
        gather(request, all_worlds[0], all_worlds)
    assert steps == []


def test_a_half_that_nothing_trains_on_may_have_too_few_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Workload("log", _LOG.jobs[:5])
    recorded = RecordedSetting(few, SimulationConfig(), "trace:0.8")
    request = replace(_request(tmp_path, "fair"), recorded=recorded, num_jobs=3)
    all_worlds = worlds(request)
    log = all_worlds[1]
    assert (len(log.train.workload.jobs), len(log.test.workload.jobs)) == (2, 3)
    monkeypatch.setattr("parcae.papers.multi_resource.heuristics", lambda *_: ([], []))
    assert [one.name for one in gather(request, log, all_worlds).contenders] == ["fair"]


def test_what_a_sweep_found_is_kept_for_the_sister_studies(tmp_path: Path) -> None:
    request = StudyRequest(
        _PLAIN, _CLASSES.resized(4), "load:0.5", tmp_path / "fig-policies", num_jobs=2
    )
    world = worlds(request)[0]
    (fair, capped), notes = heuristics(request, world, ["fair", "srpt-cap:tuned"])
    assert (fair.label, fair.name, capped.label) == ("fair", "fair", "srpt-cap:tuned")
    assert re.fullmatch(r"srpt-cap:[1-4]", capped.name)
    assert "of 4 values from 1 to 4, on 4 tuning seeds of 2 jobs" in notes[0]
    kept = tmp_path / "tuned-heuristics.json"
    kept.write_text(kept.read_text().replace(capped.name, "srpt-cap:9"))
    assert heuristics(request, world, ["srpt-cap:tuned"])[0][0].name == "srpt-cap:9"
    assert heuristics(request, world.sized(1, 1), ["srpt-cap:tuned"])[0][0].name != "srpt-cap:9"
    for other in ("torn", "[]", '["ab"]'):
        kept.write_text(other)
        with pytest.raises(FormatError, match="remove it"):
            heuristics(request, world, ["srpt-cap:tuned"])


def test_jobs_are_binned_in_fifths_by_work() -> None:
    edges = bin_edges_ms(_PLAIN)
    assert edges.tolist() == [2_000, 4_000, 6_000, 8_000]
    bins = np.searchsorted(edges, [1_000, 2_000, 5_000, 9_000])
    assert bins.tolist() == [0, 0, 2, 4]
    means = mean_by_bin([1.0, 3.0, 10.0, 7.0], bins)
    assert means[[0, 2, 4]].tolist() == [2.0, 10.0, 7.0]
    assert np.isnan(means[[1, 3]]).all()
    assert mean_by_bin(np.ones((4, 3)), bins).shape == (len(BINS), 3)
    heavy = Workload("heavy", _PLAIN.jobs[:2], weights=(9.0, 1.0))
    assert bin_edges_ms(heavy).tolist() == [1_000] * 4


def test_ratios_are_taken_over_the_runs_that_know_both() -> None:
    ratio = ratio_to(np.array([2.0, np.nan, 4.0]), np.array([4.0, 1.0, 8.0]))
    assert ratio is not None
    assert (ratio.mean, ratio.low, ratio.high) == (0.5, pytest.approx(0.5), pytest.approx(0.5))
    assert ratio_to(np.array([1.0]), np.array([0.0])) is None


def test_a_run_in_time_and_its_busy_period() -> None:
    series = series_of({"by hand": trace()})["by hand"]
    assert len(series.time_s) == 100
    assert series.jobs[20] == 2.0  # from 1 s to 5 s of 7 s
    assert series.executors[[5, 20]].tolist() == [1.0, 1.0]
    assert series.jct_s.tolist() == [5.0, 6.0]
    assert np.flatnonzero(busy_spans(series)).tolist() == list(range(15, 71))
    found = facts({"by hand": series}, sequence())["by hand"]
    assert found["average_jct_s"] == 5.5
    assert found["busy_jobs"] == 2.0
    assert found["busy_jct_s"] is None  # the second job came just before the first busy span
