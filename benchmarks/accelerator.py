"""Measure what an accelerator gives the training of networks for Decima's world.

    python -m benchmarks.accelerator tpch-decima.parcae --device cuda

Two things are measured, on batches of 20 jobs:

- the gradient of a minibatch by Decima's kernels on one CPU core, and by the same network in plain
  PyTorch, which embeds all stages of all jobs of every decision, on the CPU and on the device. The
  decisions are on the device already. Errors are relative to plain PyTorch in double precision.
- the whole loop, rollouts and updates, with the weights on the CPU and on the device.

Needs `pip install 'parcae-scheduler[train]'` and a checkout: the plain network belongs to the
tests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from tests.learning.plain_decima import PlainDecima, graphs_of

from parcae.decima.graph.family import DecimaFamily
from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.decima.learning.benchmark import benchmark_training
from parcae.decima.learning.gradients import check_device
from parcae.decima.learning.simulators import RolloutWorker, Setup
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.policies.networks.training import Surrogate
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import load_workload

_CLIP = 0.2
_ENTROPY = 0.01


def median_seconds(compute: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """The median time of a computation, after two that warm up."""
    seconds = []
    for _ in range(repeats + 2):
        begin_s = time.perf_counter()
        compute()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin_s)
    return statistics.median(seconds[2:])


def gradients(
    scenario: Scenario, settings: DecimaSettings, size: int, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Time the gradient of one minibatch by the kernels and by plain PyTorch, and compare them."""
    family = DecimaFamily(scenario, settings)
    rng = np.random.default_rng(0)
    weights = {
        name: (array + rng.normal(0.0, 0.1, array.shape)).astype(np.float32)
        for name, array in family.initial_weights(rng).items()
    }
    num_groups = max(2, size // 2000)
    config = TrainConfig(num_groups=num_groups, group_size=8, capacity=1024)
    groups = RolloutWorker(Setup(scenario, family, config), seed=5).collect(
        family.policy(weights).network
    )
    data = family.gather([rollout for group in groups for rollout in group])
    index = data.shuffled(rng)[:size]
    advantage = rng.normal(0.0, 1.0, len(index)).astype(np.float32)
    old = data.log_prob[index].astype(np.float32)
    cpu = torch.device("cpu")

    network = family.network(weights)
    surrogate = Surrogate(
        (advantage / len(index)).astype(np.float32), old, _CLIP, entropy=_ENTROPY / len(index)
    )
    batch = data.decisions(index, cpu)

    def by_kernels() -> np.ndarray:
        network.zero_grad(set_to_none=True)
        network.judge(batch, surrogate)[0].backward()  # type: ignore[no-untyped-call]
        assert network.flat.grad is not None
        return network.flat.grad.numpy()

    graphs = graphs_of(data, index, family.levels, is_all=False)

    def by_pytorch(place: torch.device, dtype: torch.dtype) -> Callable[[], np.ndarray]:
        plain = PlainDecima(weights, family.decima, family.levels).to(place, dtype)
        there = (graphs.double() if dtype is torch.float64 else graphs).to(place)

        def compute() -> np.ndarray:
            plain.zero_grad(set_to_none=True)
            plain.judge(there, surrogate)[0].backward()  # type: ignore[no-untyped-call]
            parts = [plain.array(name).grad for name in plain.names]
            return torch.cat([part.flatten() for part in parts if part is not None]).cpu().numpy()

        return compute

    exact = by_pytorch(cpu, torch.float64)()
    row: dict[str, Any] = {"features": settings.features.value, "decisions": len(index)}
    ways = {
        "kernels, one CPU core": by_kernels,
        "plain PyTorch, one CPU core": by_pytorch(cpu, torch.float32),
        "plain PyTorch, device": by_pytorch(device, torch.float32),
    }
    for name, compute in ways.items():
        row[name] = len(index) / median_seconds(compute, repeats, device)
        error = np.linalg.norm(compute() - exact) / np.linalg.norm(exact)
        row[f"error, {name}"] = float(error)
    return row


def main() -> None:
    """Measure both, and print a line of JSON for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", default="tpch", help="name or file of a workload")
    parser.add_argument("--device", default="cuda", help="PyTorch's device: cuda or cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 8192], help="minibatches")
    parser.add_argument("--repeats", type=int, default=10, help="how often each is timed")
    parser.add_argument("--iterations", type=int, default=8, help="iterations of the whole loop")
    options = parser.parse_args()
    check_device(options.device)
    torch.set_num_threads(1)
    device = torch.device(options.device)
    scenario = Scenario(load_workload(options.workload), SimulationConfig(), "batch", 20)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    machine = {"device": name, "torch": torch.__version__, "cores": os.cpu_count()}
    _print({**machine, "load average": os.getloadavg()[0]})
    for features in (FeatureSet.PAPER, FeatureSet.JOBS):
        settings = DecimaSettings(features=features)
        for size in options.sizes:
            _print(gradients(scenario, settings, size, device, options.repeats))
    for network, features in (
        ("corrector", FeatureSet.PAPER),
        ("decima", FeatureSet.PAPER),
        ("decima", FeatureSet.JOBS),
    ):
        settings = DecimaSettings(features=features)
        for place in ("cpu", options.device):
            row = benchmark_training(scenario, network, "fast", options.iterations, settings, place)
            chosen = {"features": features.value} if network == "decima" else {}
            _print({**chosen, **asdict(row)})


def _print(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
