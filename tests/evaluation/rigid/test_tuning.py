from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.evaluation.compare import compare_log, compare_packing, run_policy
from parcae.rigid.evaluation.tuning import (
    knobs,
    start_parameters,
    tune_knob,
    tune_withholding,
    tuning_pieces,
)
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost
from parcae.rigid.metrics import slowdown
from parcae.rigid.policies.scores import PackingKind, WithholdParameter
from parcae.rigid.sources import DrawnSource
from parcae.workloads.workload import SELECTION_SEED_START, TRAINING_SEED_START, TUNING_SEED_START
from tests.evaluation.rigid.test_compare import SOURCE, log


@pytest.fixture(autouse=True)
def _few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are measured on a fifth of the sequences."""
    monkeypatch.setattr("parcae.rigid.evaluation.tuning._NUM_SEQUENCES", 100)


@dataclass
class Watched:
    """A source that remembers the seeds that it was asked for."""

    source: DrawnSource
    seeds: list[int] = field(default_factory=list)

    @property
    def config(self) -> PackingConfig:
        return self.source.config

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        self.seeds += seeds
        return self.source.draw(seeds)

    def card(self) -> dict[str, object]:
        return self.source.card()


def test_the_knob_found_is_at_least_as_good_as_shortest_first() -> None:
    tuned = tune_knob(SOURCE)
    comparison = compare_packing(SOURCE, ["sjf", "tetris", "tetris-k0.5"], num_seeds=100)
    sjf, tetris, half = (p.estimates["slowdown"].mean for p in comparison.policies)
    assert tuned.policy.kind is PackingKind.TETRIS
    assert 0 < tuned.policy.params[0] < 0.5
    assert tetris < 1.02 * sjf
    assert tetris < half
    assert comparison.settings["tuned"]["tetris"].startswith(
        f"knob {tuned.policy.params[0]:g} (mean slowdown "
    )


def test_what_tuning_states_is_the_mean_that_comparisons_report() -> None:
    source = DrawnSource((0.9,), window=60, settings=PackingConfig(backlog_size=5))
    tuned = tune_knob(source)
    sequences = source.draw(range(TUNING_SEED_START, TUNING_SEED_START + 200))
    runs = run_policy(tuned.policy, sequences, source.config)
    slowdowns = np.concatenate([slowdown(run) for run in runs])
    lost = int(np.isnan(slowdowns).sum())
    assert lost > 0
    assert tuned.cost_words.startswith(
        f"mean slowdown {np.nanmean(slowdowns):.3f} without the {lost:,} jobs that were lost, "
    )


@pytest.mark.parametrize(
    ("steps", "units", "mode", "smallest"),
    [
        (10, [1], TimeMode.EXACT, 5e-5),
        (10_000, [1], TimeMode.EXACT, 5e-8),
        (10, [10, 10], TimeMode.STEPS, 5e-5),
        (10, [100, 100], TimeMode.STEPS, 5e-7),
    ],
)
def test_knobs_are_the_smaller_the_longer_the_jobs_and_the_larger_the_cluster(
    steps: int, units: list[int], mode: TimeMode, smallest: float
) -> None:
    found = knobs([RigidJobs("k", [0], [steps], [[1] * len(units)], units)], mode)
    assert (found[0], found[-1]) == (0.0, 1.0)
    assert found[1] == pytest.approx(smallest)


def test_the_search_betters_its_start_and_never_touches_a_seed_of_comparisons_or_trainings() -> (
    None
):
    source = Watched(SOURCE)
    begun: list[float] = []
    tuned = tune_withholding(
        source, Cost.SLOWDOWN, 60, max_generations=6, progress=lambda t, s, g: begun.append(t.cost)
    )
    sjf = compare_packing(SOURCE, ["sjf"], num_seeds=200).policies[0].estimates["slowdown"].mean
    assert len(begun) == 4
    assert begun[-1] <= begun[0]
    assert tuned.cost < sjf
    assert min(source.seeds) >= TUNING_SEED_START
    assert not any(TRAINING_SEED_START <= seed < SELECTION_SEED_START for seed in source.seeds)


def test_progress_and_result_count_the_generations_of_both_searches() -> None:
    counts: list[tuple[int, int]] = []
    # Each of the two searches ends after its first generation, because its time is over.
    tuned = tune_withholding(
        SOURCE, budget_s=1e-6, progress=lambda t, s, g: counts.append((g, t.card["generations"]))
    )
    assert counts == [(1, 1), (2, 2)]
    assert tuned.card["generations"] == 2
    assert "2 generations of CMA-ES" in tuned.text


def test_the_same_seed_finds_the_same_rule() -> None:
    first, again = (tune_withholding(SOURCE, max_generations=1) for _ in range(2))
    assert first.policy.params.tolist() == again.policy.params.tolist()


def test_the_starts_withhold_jobs_longer_than_most() -> None:
    mild, firm = start_parameters([RigidJobs("s", [0] * 10, [1] * 6 + [100] * 4, [[1]] * 10, [1])])
    assert np.exp(mild[WithholdParameter.LENGTH]) > 1
    assert firm[WithholdParameter.RESERVE] > mild[WithholdParameter.RESERVE] > 0


def test_logs_are_tuned_on_pieces_of_their_first_half() -> None:
    assert tuning_pieces(log(400)).num_jobs == 100
    assert tuning_pieces(log(3)).num_jobs == 1
    for part, where in (("second", "of the log's first half"), ("all", "part of the comparison")):
        comparison = compare_log(log(), ["sjf", "tetris"], part=part)
        assert comparison.settings["tuned"]["tetris"].endswith(where)
