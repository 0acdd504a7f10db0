"""Trains a network of one's own, compares it with Parcae's policies, and draws both.

Usage: learn_from_scratch.py [MINUTES] [SEEDS]. Needs
`pip install 'parcae-scheduler[train,rl,report]'`. Writes `from-scratch/` (the training, whose
`best.safetensors` every command takes as a policy), `comparison.html` and `from_scratch.png`.
"""

from __future__ import annotations

import sys

import matplotlib
import torch
from torch import nn

import parcae
from parcae.environments.layout import ClusterFeature, ObservedJobFeature
from parcae.environments.own_network import NetworkInput
from parcae.learning.loop import TrainResult

matplotlib.use("agg")


class DeepSet(nn.Module):
    """A score for each query, from what is known of it, of all queries and of the cluster.

    The chosen query's first stage that can run gets the cores that are free.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.query = nn.Sequential(
            nn.Linear(len(ObservedJobFeature), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.score = nn.Sequential(
            nn.Linear(2 * width + len(ClusterFeature), width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, seen: NetworkInput) -> torch.Tensor:
        """Scores, float[B, J], of J queries in each of B moments; the mask is applied outside."""
        is_shown = seen.jobs[:, :, [ObservedJobFeature.IS_SHOWN]]
        query = self.query(seen.jobs)
        mean = (query * is_shown).sum(1) / is_shown.sum(1).clamp(min=1)
        shared = torch.cat([mean, seen.cluster], 1)[:, None].expand(-1, query.shape[1], -1)
        return self.score(torch.cat([query, shared], 2)).squeeze(2)


def draw(result: TrainResult, comparison: parcae.Comparison, path: str) -> None:
    """The training's curve beside the mean times of the policies."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
    points = [(one.seconds, one.selected) for one in result.curve if one.selected > 0]
    left.plot(*zip(*points, strict=True), marker="o")
    left.axhline(1.0, color="grey", linestyle=":")
    left.set(xlabel="seconds of training", ylabel="mean time / that of fair sharing")
    frame = comparison.to_frame()
    right.barh(frame["policy"].to_list(), frame["average_jct_s"].to_list())
    right.invert_yaxis()
    right.set(xlabel="mean time of a query [s]")
    figure.savefig(path, dpi=120)


def main(minutes: float, seeds: int) -> None:
    """Train, compare, draw."""
    torch.set_num_threads(1)  # the network is small: threads would wait for each other
    cluster = parcae.Cluster(cores=10)
    jobs = parcae.workload("tpch").draw(10, "batch", cluster, seed=1)
    folder = "from-scratch"
    result = parcae.train(
        DeepSet(), jobs, cluster, folder, minutes=minutes, settings={"learning_rate": 3e-3}
    )
    print(f"{result.iterations} iterations: {result.best:.3f} of fair on the selection runs")
    # On seeds that the training has not seen.
    policies = ["fair", "fifo", "srpt", f"{folder}/best.safetensors"]
    comparison = parcae.compare(jobs, policies, cluster, seeds=seeds)
    for row in comparison.to_frame().iter_rows(named=True):
        ratio = "{ratio_to_first:.3f} [{ratio_low:.3f}, {ratio_high:.3f}]".format(**row)
        print(f"{row['policy']}: {row['average_jct_s']:.2f} s, {ratio} of fair")
    parcae.report(comparison, "comparison.html")
    draw(result, comparison, "from_scratch.png")


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 2.0,
        int(sys.argv[2]) if len(sys.argv) > 2 else 20,
    )
