"""Compiling the kernels before a training begins changes nothing about the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from parcae.decima.learning.gradients import GradientLearner
from parcae.learning import loop
from parcae.learning.config import Algorithm
from parcae.learning.loop import IterationSeeds, Learner
from parcae.rigid.a2c.learner import A2cLearner
from parcae.rigid.config import PackingConfig
from parcae.rigid.deeprm.learner import DeepRMLearner
from parcae.rigid.jobset.learner import SetLearner
from parcae.rigid.layout import Cost
from parcae.rigid.sources import DrawnSource
from tests.learning.test_order_evolution import _RULE, _SCENARIO, _TINY, EvolutionLearner
from tests.learning.test_train import _REQUEST, _SMALL

_TOY = DrawnSource((0.7,), window=15, settings=PackingConfig(num_slots=3, backlog_size=20))


def _by_gradients(network: str, **settings: object) -> Learner:
    scenario = replace(_REQUEST.scenarios[0], arrivals="load:0.8")
    config = _SMALL.model_copy(update={"window_s": 20.0, "num_selection": 2, **settings})
    request = replace(_REQUEST, network=network, scenarios=[scenario], config=config)
    return GradientLearner(request)


_LEARNERS: dict[str, Callable[[], Learner]] = {
    "corrector": lambda: _by_gradients("corrector"),
    "decima": lambda: _by_gradients("decima", imitation=0.5),
    "reinforce": lambda: _by_gradients(
        "decima", algorithm=Algorithm.REINFORCE, window_s=None, episode_s=40.0
    ),
    "evolution": lambda: EvolutionLearner(_SCENARIO, _RULE, _TINY, seed=0),
    "set": lambda: SetLearner(
        _TOY, Cost.SLOWDOWN, None, ["num_groups=2", "group_size=2", "minibatch=64"]
    ),
    "deeprm": lambda: DeepRMLearner(_TOY, settings=("num_sequences=3", "num_runs=2")),
    "a2c": lambda: A2cLearner(_TOY, Cost.SLOWDOWN, "fast", ["num_sequences=2", "repeats=2"]),
}


def _arrays(learner: Learner) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    state = {f"state.{name}": value for name, value in learner.state().items()}
    of_state = {name: array for name, array in state.items() if isinstance(array, np.ndarray)}
    return {**learner.weights(), **of_state}


def _numbers(learner: Learner) -> dict[str, object]:
    """What the state has besides arrays."""
    return {k: v for k, v in learner.state().items() if not isinstance(v, np.ndarray)}


@pytest.mark.parametrize("name", _LEARNERS)
def test_what_is_learned_does_not_depend_on_who_compiled(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> tuple[Learner, int]:
        learner = _LEARNERS[name]()
        iterations: list[float] = []
        iterate = learner.iterate

        def counted(seeds: IterationSeeds, done: float) -> object:
            iterations.append(done)
            return iterate(seeds, done)

        monkeypatch.setattr(learner, "iterate", counted)
        learner.begin()
        for number in range(2):
            learner.iterate(IterationSeeds(learner.seed, number), number / 2)
        return learner, len(iterations)

    monkeypatch.setattr(loop, "_COMPILED", set())
    first, of_first = trained()
    second, of_second = trained()
    assert (of_first, of_second) == (4 if name == "decima" else 3, 2)
    assert first.counts() == second.counts()
    assert _numbers(first) == _numbers(second)
    expected = _arrays(second)
    found = _arrays(first)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert np.array_equal(found[key], array), key
