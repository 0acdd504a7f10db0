"""A randomised experiment, evaluated from event logs alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import InputError
from parcae.evaluation.experiment import MEASURES, Samples, effect_on, evaluate_experiment
from parcae.workloads.recorded_run import CORE_TASK, Arm, JobOutcome, RecordedJob, RecordedRun
from parcae.workloads.spark_log.run import read_spark_run
from tests.cli.running import ran, refused
from tests.workloads import spark_log_builder as built
from tests.workloads.spark_log_builder import application_start, executor, to_bytes

_BLOCK_MS = 10_000


def _begin(block: int, arm: str, after_ms: int = 3, **changes: Any) -> dict[str, Any]:
    """What the plugin writes when a block begins."""
    return {
        "Event": "parcae.spark.ExperimentEvent",
        "time": block * _BLOCK_MS + after_ms,
        "block": block,
        "arm": arm,
        "blockMs": _BLOCK_MS,
        "washoutMs": 1_000,
        "seed": 7,
        **changes,
    }


def _query(number: int, start: int, took: int) -> list[dict[str, Any]]:
    info = built.stage_info(number, 1)
    end = {**built.job_end(number), "Completion Time": start + took}
    return [built.job_start(number, start, [info]), *built.ran(info, start, start + took), end]


def _arms(folder: Path, *events: dict[str, Any]) -> list[Arm | None]:
    """The arms of the jobs of a log."""
    (folder / "log").write_bytes(to_bytes([application_start("app"), executor(), *events]))
    return [job.arm for job in read_spark_run([folder / "log"]).jobs]


def test_a_job_has_the_arm_in_force_when_it_arrives(tmp_path: Path) -> None:
    queries = [
        _query(0, 2, 10),  # before the experiment
        _query(1, 5_003, 10),
        _query(2, 12_000, 10),
        _query(3, 20_001, 10),  # the driver switches 3 ms late
        _query(4, 31_000, 10),
        _query(5, 45_000, 10),  # the event of this block was dropped
        _query(6, 55_000, 10),  # the experiment was ended
    ]
    arms = _arms(
        tmp_path,
        _begin(0, "policy"),
        *queries[0],
        *queries[1],
        _begin(1, "policy"),
        *queries[2],
        *queries[3],
        _begin(2, "stock"),
        _begin(3, "policy"),
        *queries[4],
        *queries[5],
        _begin(5, "stock"),
        _begin(5, "none", 4_000),
        *queries[6],
    )
    assert arms == [
        None,
        Arm(0, True, 5_000, 4_997, _BLOCK_MS, 1_000, 7),
        Arm(1, True, 1_997, 8_000, _BLOCK_MS, 1_000, 7),
        None,
        Arm(3, True, 997, 9_000, _BLOCK_MS, 1_000, 7),
        None,
        None,
    ]


def test_an_event_of_an_impossible_block_is_a_bad_line(tmp_path: Path) -> None:
    wrong = _begin(0, "policy", blockMs=0)
    events = [application_start("app"), executor(), wrong, *_query(0, 5, 9)]
    (tmp_path / "log").write_bytes(to_bytes(events))
    with pytest.raises(InputError, match="a block of 0 ms"):
        read_spark_run([tmp_path / "log"])


def _run(jobs: list[RecordedJob]) -> RecordedRun:
    return RecordedRun("log", ("app",), tuple(jobs), np.zeros(0, CORE_TASK), 2, 10_000)


def _job(
    took_ms: int, arm: Arm, name: str = "q", outcome: JobOutcome = JobOutcome.COMPLETED
) -> RecordedJob:
    return RecordedJob(name, 1, 0, took_ms, outcome, "ann", arm)


def _arm(block: int, is_policy: bool, since_ms: int = 5_000, left_ms: int = 5_000) -> Arm:
    return Arm(block, is_policy, since_ms, left_ms, _BLOCK_MS, 1_000)


def test_the_ratio_is_that_of_the_orders_whatever_each_had_to_do() -> None:
    """The policy takes 0.8 of the time, and by chance had more of the long query."""
    rng = np.random.default_rng(3)
    jobs = []
    for pair in range(40):
        for is_policy in (False, True):
            for long in (False, True):
                for _ in range(1 + 3 * (long == is_policy)):
                    took = (4_000 if long else 200) * rng.uniform(0.9, 1.1) * (1 - 0.2 * is_policy)
                    name = "long" if long else "short"
                    jobs.append(_job(round(took), _arm(2 * pair + is_policy, is_policy), name))
    result = evaluate_experiment(_run(jobs))
    ratio = result.effects["mean"].ratio
    assert ratio.low < 0.8 < ratio.high
    assert ratio.high - ratio.low < 0.04
    assert result.num_pairs == 40
    assert result.more_ms == 0
    assert list(result.names) == ["long", "short"]
    assert next(iter(result.users.values())).ratio.mean == pytest.approx(ratio.mean)
    assert result.verdict.startswith("Under the policy the mean completion time is 2")


def test_an_experiment_without_an_effect_is_silent_in_19_of_20() -> None:
    """Although times are skewed, and those of a block alike."""
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(200):
        busy = np.exp(rng.normal(0, 1, 16))
        samples = Samples(
            np.exp(rng.normal(0, 1.5, 64)) * np.repeat(busy, 4),
            np.repeat(np.arange(16) % 2, 4),
            np.repeat(np.arange(8), 8),
            rng.integers(0, 2, 64),
        )
        for quantile in MEASURES.values():
            ratio = effect_on(samples, quantile).ratio
            alarms += ratio.low > 1 or ratio.high < 1
    assert 0.02 < alarms / 600 < 0.07


def test_an_interval_ends_where_another_draw_of_arms_would_be_as_extreme() -> None:
    """Six pairs, which all say 0.5: none of the 63 other draws does."""
    took = np.array([2.0, 1.0, 4.0, 2.0, 6.0, 3.0, 8.0, 4.0, 10.0, 5.0, 12.0, 6.0])
    samples = Samples(took, np.arange(12) % 2, np.arange(12) // 2, np.zeros(12, np.int64))
    effect = effect_on(samples, None)
    assert effect.stock_s == pytest.approx(0.007)
    assert effect.ratio.mean == 0.5
    assert effect.ratio.low == pytest.approx(0.5, rel=2e-3)
    assert effect.ratio.high == pytest.approx(0.5, rel=2e-3)
    five = Samples(*(column[:10] for column in samples))
    assert effect_on(five, None).ratio.high == np.inf  # 1 of 32 is more than 2.5%


def test_what_does_not_count_is_counted() -> None:
    pairs = [_job(1_000, _arm(block, block % 2 == 1)) for block in 2 * [*range(12)]]
    more = [
        _job(1_000, _arm(0, False, since_ms=999)),
        _job(1_000, _arm(0, False, left_ms=999)),
        _job(1_000, _arm(0, False), outcome=JobOutcome.FAILED),
        _job(-1, _arm(1, True), outcome=JobOutcome.UNFINISHED),
        _job(5_001, _arm(1, True)),
        _job(1_000, _arm(20, False)),  # no job of block 21
        _job(1_000, replace(_arm(21, True), seed=1)),  # of another draw
    ]
    result = evaluate_experiment(_run([*pairs, *more]))
    assert (result.num_jobs, result.num_mixed, result.num_failed) == ((12, 13), (0, 1), (1, 0))
    assert (result.num_pairs, result.num_left_out, result.lead_ms) == (6, 2, 1_000)
    assert "4% of the jobs had not ended when the next block began" in result.notes[0]
    assert "Failed jobs: 1 under Spark's order, 0 under the policy's." in result.notes
    assert "No difference" in result.verdict


def test_too_little_is_an_error_that_says_how_long_to_go_on() -> None:
    few = [_job(9, _arm(block, block % 2 == 0)) for block in range(4)]
    with pytest.raises(InputError, match=r"2 pairs of blocks .* needs 6; .* at least 80"):
        evaluate_experiment(_run(few))
    with pytest.raises(InputError, match="no job ran in an experiment"):
        evaluate_experiment(_run([RecordedJob("q", 1, 0, 9, JobOutcome.COMPLETED)]))


def test_the_command_shows_an_experiment_of_two_logs(tmp_path: Path) -> None:
    for part in range(2):
        events = [application_start(f"app{part}"), executor()]
        for block in range(6 * part, 6 * part + 6):
            is_policy = block % 2
            events.append(_begin(block, "policy" if is_policy else "stock", 0))
            for number in range(3):
                at = block * _BLOCK_MS + 2_000 + 2_000 * number
                events += _query(10 * block + number, at, 1_000 - 500 * is_policy)
        end = {"Event": "SparkListenerApplicationEnd", "Timestamp": (6 * part + 6) * _BLOCK_MS}
        (tmp_path / f"log{part}").write_bytes(to_bytes([*events, end]))
    done = ran("parcae compare-logs --experiment log0 log1 --json", tmp_path)
    shown = json.loads(done.stdout)
    assert shown["num_pairs"] == 6
    assert shown["effects"]["mean"]["ratio"]["mean"] == pytest.approx(0.5)
    assert shown["num_jobs"] == [18, 18]
    table = ran("parcae compare-logs --experiment log0 log1", tmp_path).stdout
    assert "Under the policy the mean completion time is 50.0% shorter." in " ".join(table.split())
    refused("parcae compare-logs log0", tmp_path, "--experiment")
