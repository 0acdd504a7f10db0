"""The search of parameters on a problem whose best parameters are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from parcae.policies.parameter_search import SearchLimits, SearchState, search_parameters

FloatArray = npt.NDArray[np.float64]
_BEST = np.array([1.0, -2.0])


class _Bowl:
    """The squared distance from the best parameters; notes what was asked of it."""

    def __init__(self) -> None:
        self.drawn: list[int] = []

    def draw(self, generation: int) -> None:
        self.drawn.append(generation)

    def cost(self, parameters: FloatArray) -> float:
        return float(((parameters - _BEST) ** 2).sum())

    selection = cost


def test_the_search_finds_the_best_parameters_on_new_runs_in_every_generation() -> None:
    problem = _Bowl()
    reports: list[SearchState] = []
    found = search_parameters(
        problem, np.zeros(2), SearchLimits(60.0, 45, 10), seed=1, progress=reports.append
    )
    assert found.parameters == pytest.approx(_BEST, abs=0.01)
    assert found.cost == pytest.approx(problem.cost(found.parameters))
    assert problem.drawn == list(range(45))
    assert [report.generations for report in reports] == [10, 20, 30, 40, 45]
    assert found.best_generation in (10, 20, 30, 40, 45)


def test_the_same_seed_gives_the_same_parameters() -> None:
    first, second = (
        search_parameters(_Bowl(), np.zeros(2), SearchLimits(60.0, 5, 5), seed=3) for _ in range(2)
    )
    assert first.parameters.tolist() == second.parameters.tolist()


def test_generations_without_a_difference_do_not_end_the_search() -> None:
    class Plain(_Bowl):
        def cost(self, parameters: FloatArray) -> float:
            return 1.0

    problem = Plain()
    search_parameters(problem, np.zeros(2), SearchLimits(60.0, 30, 10))
    assert problem.drawn == list(range(30))


def test_what_no_generation_improves_is_kept() -> None:
    kept = search_parameters(_Bowl(), _BEST, SearchLimits(60.0, 3, 1))
    assert kept.parameters.tolist() == _BEST.tolist()
    assert kept.best_generation == 0
    earlier = SearchState(np.array([9.0, 9.0]), -1.0, 7, 40, 240, 2.0)
    again = search_parameters(_Bowl(), np.zeros(2), SearchLimits(60.0, 3, 1), best=earlier)
    assert again.parameters.tolist() == [9.0, 9.0]
    assert (again.best_generation, again.generations) == (7, 3)
