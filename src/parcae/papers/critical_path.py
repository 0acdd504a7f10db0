"""Decima's Figure 19: whether a graph embedding can express the critical path."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from parcae.base.arrays import BoolArray, Int64Array
from parcae.decima.graph.layout import EMBEDDING, SLOPE, DecimaSettings, initial_weights
from parcae.decima.graph.network import DecimaNetwork
from parcae.papers.contenders import Learned
from parcae.papers.runner import PartOutcome, StudyRun
from parcae.workloads.job import JobSpec
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import RandomStreams

#: The random DAGs: largest number of layers and of stages per layer, log-normal work.
SHAPE = RandomDags(max_depth=8, max_width=5, mean_tasks=10.0, sigma=0.5, edge_share=0.5)
_BATCH = 64
_TEST_GRAPHS = 512
#: Number of different training batches; training repeats them in turn.
_POOL = 160
#: Most training iterations of each embedding, by default and with --full, and between two tests.
_ITERATIONS = (5_000, 20_000)
_TEST_EVERY = 10
_LEARNING_RATE = 1e-2
_FINAL_RATE = 1e-4
#: The table shows the mean accuracy of this many last tests.
_LAST = 3
#: The network's limits to choose from, which nothing uses here.
_NUM_LEVELS = 2
#: Separate random streams for training and test DAGs.
_TRAIN_STREAM = 1
_TEST_STREAM = 2


@dataclass(frozen=True)
class GraphBatch:
    """Several DAGs of S stages in all, which are numbered over all DAGs.

    Args:
        x: the features of every stage.
        children: float32[S, S], sparse: 1 where the second stage waits for the first.
        is_parent: float32[S, 1], 1 for a stage for which another waits.
        target: the critical path of every stage.
        first: the first stage of every DAG but the first.
        is_choice: which DAGs have several stages without parents.
    """

    x: torch.Tensor
    children: torch.Tensor
    is_parent: torch.Tensor
    target: torch.Tensor
    first: Int64Array
    is_choice: BoolArray

    def accuracy(self, prediction: torch.Tensor) -> float:
        """Share of the DAGs in which the stage with the longest path is predicted correctly.

        Only DAGs with several stages without parents count: others have no choice.
        """
        longest = [
            np.array([part.argmax() for part in np.split(values.numpy(), self.first)])
            for values in (prediction, self.target)
        ]
        right = (longest[0] == longest[1])[self.is_choice]
        return float(right.mean()) if len(right) else 1.0


def graph_batch(jobs: Sequence[JobSpec]) -> GraphBatch:
    """Convert DAGs to tensors. The unit of work is the mean work of a stage.

    Source: Decima, Appendix E; the critical path of Decima, section 5.1.
    """
    sizes = [len(job.stages) for job in jobs]
    first = np.cumsum([0, *sizes])
    # Normalise the work, so that the targets are near 1.
    work = np.array([stage.work_ms for job in jobs for stage in job.stages], np.float64)
    work /= work.mean()
    paths = [
        job.downstream_ms(of_job.tolist())
        for job, of_job in zip(jobs, np.split(work, first[1:-1]), strict=True)
    ]
    x = np.zeros((len(work), DecimaSettings().num_features), np.float32)
    x[:, 0] = work
    pairs = np.array(
        [
            (start + parent, start + child)
            for start, job in zip(first, jobs, strict=False)
            for parent, children in enumerate(job.children)
            for child in children
        ]
    ).reshape(-1, 2)
    is_parent = np.isin(np.arange(len(work)), pairs[:, 0]).astype(np.float32)
    ones = torch.ones(len(pairs))
    return GraphBatch(
        torch.from_numpy(x),
        torch.sparse_coo_tensor(torch.from_numpy(pairs.T), ones, (len(work), len(work))),
        torch.from_numpy(is_parent)[:, None],
        torch.from_numpy(np.concatenate(paths).astype(np.float32)),
        first[1:-1],
        np.array([sum(not stage.parents for stage in job.stages) > 1 for job in jobs]),
    )


def draw_batches(stream: int, seed: int, count: int, size: int) -> list[GraphBatch]:
    """Random DAGs of one of the streams."""
    streams = RandomStreams((stream << 32) + seed)
    shape = replace(SHAPE, num_jobs=size)
    return [graph_batch(random_dags(shape, streams.jobs).jobs) for _ in range(count)]


class PathNetwork(torch.nn.Module):
    """Decima's embedding of stages, with a linear readout of every stage's critical path."""

    def __init__(self, has_two_transforms: bool, seed: int) -> None:
        super().__init__()
        settings = DecimaSettings(has_two_transforms=has_two_transforms)
        torch.manual_seed(seed)
        weights = initial_weights(np.random.default_rng(seed), settings, _NUM_LEVELS)
        self.has_two_transforms = has_two_transforms
        self.decima = DecimaNetwork(weights, settings, _NUM_LEVELS)
        self.readout = torch.nn.Linear(EMBEDDING, 1)

    def forward(self, batch: GraphBatch) -> torch.Tensor:
        """Embed the stages from leaves to roots (Decima, Eq. 1), and predict their paths."""
        prepared = self.decima.linear("prep.1", batch.x)
        e = prepared
        # A stage has its embedding as soon as its children had theirs a round before.
        for _ in range(SHAPE.max_depth - 1):
            total = batch.children @ self._transform("f_stage", e)
            if self.has_two_transforms:
                total = self._transform("g_stage", total)
            e = prepared + batch.is_parent * total
        return torch.as_tensor(self.readout(e).squeeze(1))

    def _transform(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Three layers with leaky rectifiers."""
        for layer in (1, 2, 3):
            x = torch.nn.functional.leaky_relu(self.decima.linear(f"{name}.{layer}", x), SLOPE)
        return x


#: A measurement of a training: iteration, accuracy and relative error on the test's DAGs.
Point = tuple[int, float, float]


def learn_critical_path(
    has_two_transforms: bool,
    train: Sequence[GraphBatch],
    test: GraphBatch,
    iterations: int,
    budget_s: float,
    seed: int,
) -> list[Point]:
    """Train an embedding to predict every stage's critical path, and test it on unseen DAGs."""
    network = PathNetwork(has_two_transforms, seed)
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(parameters, lr=_LEARNING_RATE)
    began = time.perf_counter()
    points = list[Point]()
    for iteration in range(1, iterations + 1):
        # The progress from 0 to 1, by iterations or by time, whichever is ahead.
        done = min(1.0, max(iteration / iterations, (time.perf_counter() - began) / budget_s))
        # The learning rate falls linearly with it.
        rate = _FINAL_RATE + (_LEARNING_RATE - _FINAL_RATE) * (1.0 - done)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        batch = train[iteration % len(train)]
        torch.nn.functional.mse_loss(network(batch), batch.target).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if iteration % _TEST_EVERY == 0 or done == 1.0:
            with torch.no_grad():
                prediction = network(test)
            error = float((prediction - test.target).abs().mean() / test.target.mean())
            points.append((iteration, test.accuracy(prediction), error))
        if done == 1.0:
            break
    return points


def critical_paths(run: StudyRun) -> list[PartOutcome]:
    """The accuracy of embeddings with two transforms and with one on unseen DAGs."""
    request = run.request
    seed = request.training_seed
    request.say("drawing DAGs")
    train = draw_batches(_TRAIN_STREAM, seed, _POOL, _BATCH)
    (test,) = draw_batches(_TEST_STREAM, seed, 1, _TEST_GRAPHS)
    values = {}
    for name, has_two in (("two transforms (Decima)", True), ("one transform", False)):
        request.say(f"learning the critical path with {name}")
        iterations = _ITERATIONS[request.is_full]
        points = learn_critical_path(has_two, train, test, iterations, request.budget_s / 2, seed)
        curve = [(iteration, iteration, accuracy) for iteration, accuracy, _ in points]
        numbers = {"iterations": points[-1][0]}
        run.made[name] = Learned(name, f"{name}: learned here", None, numbers, curve)
        accuracies = [accuracy for _, accuracy, _ in points]
        values[name] = {
            "accuracy": np.mean(accuracies[-_LAST:]),
            "best_accuracy": max(accuracies),
            "error": points[-1][2],
            **numbers,
        }
    return [PartOutcome(run.parts[0], values)]
