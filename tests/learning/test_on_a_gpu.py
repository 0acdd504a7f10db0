"""Training with the weights on a GPU, where there is one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from parcae.decima.learning.gradients import gradient_learner
from parcae.decima.learning.recipes import TrainRequest
from parcae.decima.rule import start_parameters
from parcae.learning.loop import BEST_FILE, TrainingPlan, train
from parcae.policies.checkpoint import read_checkpoint
from tests.learning.test_train import _SCENARIO, _SMALL

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() == 0, reason="PyTorch finds no CUDA device on this machine"
)

_REQUEST = TrainRequest([_SCENARIO], _SMALL, parameters=start_parameters(), device="cuda")


@pytest.mark.parametrize("network", ["parcae", "decima"])
def test_an_iteration_changes_the_weights_as_on_the_cpu(network: str) -> None:
    moved = {}
    for device in ("cpu", "cuda"):
        learner = gradient_learner(replace(_REQUEST, network=network, device=device))
        before = learner.network.export()
        learner.learn(learner.collect(), 1.0)
        after = learner.network.export()
        moved[device] = np.concatenate([(after[name] - before[name]).ravel() for name in before])
    # Adam moves a weight whose gradient is zero but for rounding as far as any other.
    difference = float(np.linalg.norm(moved["cuda"] - moved["cpu"]))
    assert difference < 0.05 * float(np.linalg.norm(moved["cpu"]))


@pytest.mark.parametrize("network", ["parcae", "decima"])
def test_a_training_goes_on_with_another_device(network: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    request = replace(_REQUEST, network=network)
    first = train(gradient_learner(request), TrainingPlan(1e6, 2, folder=folder))
    assert first.iterations == 2
    plan = TrainingPlan(1e6, 4, folder=folder, is_resumed=True)
    for device, iterations in (("cpu", 3), ("cuda", 4)):
        more = replace(plan, max_iterations=iterations)
        result = train(gradient_learner(replace(request, device=device)), more)
        assert result.iterations == iterations
    assert np.isfinite(result.best)
    for array in read_checkpoint(folder / BEST_FILE).weights.values():
        assert np.isfinite(array).all()
