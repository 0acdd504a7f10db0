"""Figure 19: whether a graph embedding can express the critical path.

The embedding is trained on random DAGs and tested on others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parcae.decima.graph.layout import EMBEDDING, SLOPE, DecimaSettings, initial_weights
from parcae.papers.pictures import line_panel, save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.workloads.arrivals import RandomStreams
from parcae.workloads.job import JobSpec
from parcae.workloads.synthetic import RandomDags, random_dags

if TYPE_CHECKING:
    import torch

#: The random DAGs: largest number of layers and of stages per layer, log-normal work.
SHAPE = RandomDags(max_depth=8, max_width=5, mean_tasks=10.0, sigma=0.5, edge_share=0.5)
_BATCH = 64
_TEST_GRAPHS = 512
#: Number of different training batches; training repeats them in turn.
_POOL = 160
#: Most training iterations of each embedding, by default and with --full.
_ITERATIONS = 5_000
_FULL_ITERATIONS = 20_000
_LEARNING_RATE = 1e-2
_FINAL_RATE = 1e-4
#: The table shows the mean accuracy of this many last tests.
_LAST = 3
#: Separate random streams for training and test DAGs.
_TRAIN_STREAM = 1
_TEST_STREAM = 2


@dataclass(frozen=True)
class GraphBatch:
    """Several DAGs, concatenated into tensors of S stages."""

    x: torch.Tensor
    edges: list[tuple[torch.Tensor, torch.Tensor]]
    target: torch.Tensor
    owner: npt.NDArray[np.int64]
    is_choice: npt.NDArray[np.bool_]


def graph_batch(jobs: Sequence[JobSpec], num_features: int) -> GraphBatch:
    """Convert DAGs to tensors. The unit of work is the mean work of a stage.

    Source: Decima, Appendix E; the critical path of Decima, section 5.1.
    """
    import torch

    # Normalise the work, so that the targets are near 1.
    unit = float(np.mean([stage.work_ms for job in jobs for stage in job.stages]))
    work = [[stage.work_ms / unit for stage in job.stages] for job in jobs]
    paths = [job.downstream_ms(of_job) for job, of_job in zip(jobs, work, strict=True)]
    target = np.concatenate(paths).astype(np.float32)
    x = np.zeros((len(target), num_features), np.float32)
    x[:, 0] = np.concatenate(work)
    owner = np.repeat(np.arange(len(jobs)), [len(job.stages) for job in jobs])
    # A DAG with several roots has a choice of the longest path.
    roots = np.array([sum(not stage.parents for stage in job.stages) for job in jobs])
    return GraphBatch(
        torch.from_numpy(x), _edges_by_height(jobs), torch.from_numpy(target), owner, roots > 1
    )


def _edges_by_height(jobs: Sequence[JobSpec]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For every height from 1 on, (parents, children); stages are numbered over all DAGs."""
    import torch

    from parcae.decima.graph.family import stage_heights

    by_height: dict[int, list[tuple[int, int]]] = {}
    first = 0
    for job in jobs:
        heights = stage_heights(job)
        for parent, children in enumerate(job.children):
            pairs = [(first + parent, first + child) for child in children]
            by_height.setdefault(heights[parent], []).extend(pairs)
        first += len(job.stages)
    edges = []
    for height, pairs in sorted(by_height.items()):
        if height > 0 and pairs:
            parents, children = torch.tensor(pairs).T.contiguous()
            edges.append((parents, children))
    return edges


def accuracy(prediction: npt.NDArray[np.float32], batch: GraphBatch) -> float:
    """Share of the DAGs in which the stage with the longest path is predicted correctly.

    Only DAGs with several stages without parents count.
    """
    target = batch.target.numpy()
    right = [
        int(np.argmax(prediction[batch.owner == graph]))
        == int(np.argmax(target[batch.owner == graph]))
        for graph in np.flatnonzero(batch.is_choice)
    ]
    return float(np.mean(right)) if right else 1.0


@dataclass(frozen=True)
class SupervisedCurve:
    """Test accuracy and relative error, by iteration."""

    iterations: tuple[int, ...]
    accuracy: tuple[float, ...]
    error: tuple[float, ...]

    @property
    def last(self) -> float:
        """Mean of the last few accuracies."""
        return float(np.mean(self.accuracy[-_LAST:]))


def _draw_batches(
    stream: int, seed: int, count: int, size: int, num_features: int
) -> list[GraphBatch]:
    streams = RandomStreams((stream << 32) + seed)
    shape = RandomDags(
        size,
        SHAPE.max_depth,
        SHAPE.max_width,
        SHAPE.mean_tasks,
        sigma=SHAPE.sigma,
        edge_share=SHAPE.edge_share,
    )
    return [graph_batch(random_dags(shape, streams.jobs).jobs, num_features) for _ in range(count)]


@dataclass(frozen=True)
class Examples:
    """Batches of DAGs for training, and one batch of other DAGs for testing."""

    train: list[GraphBatch]
    test: GraphBatch

    @classmethod
    def draw(cls, seed: int, num_batches: int = _POOL, num_test: int = _TEST_GRAPHS) -> Examples:
        """Draw random DAGs. Training and test DAGs come from separate random streams."""
        num_features = DecimaSettings().num_features
        test = _draw_batches(_TEST_STREAM, seed, 1, num_test, num_features)[0]
        return cls(_draw_batches(_TRAIN_STREAM, seed, num_batches, _BATCH, num_features), test)


class _Learner:
    """Decima's stage embedding and a linear readout that predicts every stage's critical path."""

    def __init__(self, has_two_transforms: bool, seed: int) -> None:
        import torch

        from parcae.decima.graph.network import DecimaNetwork

        self._has_two_transforms = has_two_transforms
        settings = DecimaSettings(has_two_transforms=has_two_transforms)
        levels = np.array([1, 2])
        torch.manual_seed(seed)
        weights = initial_weights(np.random.default_rng(seed), settings, len(levels))
        self._network = DecimaNetwork(weights, settings, levels)
        self._readout = torch.nn.Linear(EMBEDDING, 1)
        self._parts: list[Any] = [*self._network.parameters(), *self._readout.parameters()]
        self._optimizer = torch.optim.Adam(self._parts, lr=_LEARNING_RATE)

    def predict(self, batch: GraphBatch) -> torch.Tensor:
        """The predicted critical path of every stage."""
        import torch

        embedded = self._embed(batch)
        return torch.as_tensor(self._readout(embedded).squeeze(1))

    def _embed(self, batch: GraphBatch) -> torch.Tensor:
        """Decima's embedding of every stage, from leaves to roots (Decima, Eq. 1)."""
        import torch

        prepared = self._network.linear("prep.1", batch.x)
        e = prepared
        for parents, children in batch.edges:
            rows, position = torch.unique(parents, return_inverse=True)
            messages = self._transform("f_stage", e.index_select(0, children))
            total = messages.new_zeros(len(rows), EMBEDDING).index_add(0, position, messages)
            if self._has_two_transforms:
                total = self._transform("g_stage", total)
            e = e.index_copy(0, rows, prepared.index_select(0, rows) + total)
        return e

    def _transform(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Three layers with leaky rectifiers."""
        import torch

        for layer in (1, 2, 3):
            x = torch.nn.functional.leaky_relu(self._network.linear(f"{name}.{layer}", x), SLOPE)
        return x

    def step(self, batch: GraphBatch, done: float) -> None:
        """One step of Adam; the learning rate falls linearly with the progress `done`, 0..1."""
        import torch

        left = max(0.0, 1.0 - done)
        rate = _FINAL_RATE + (_LEARNING_RATE - _FINAL_RATE) * left
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.predict(batch), batch.target)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parts, 1.0)
        self._optimizer.step()

    def test(self, batch: GraphBatch) -> tuple[float, float]:
        """The accuracy and the relative error on DAGs that are not learned from."""
        import torch

        with torch.no_grad():
            prediction = self.predict(batch)
        error = float((prediction - batch.target).abs().mean() / batch.target.mean())
        return accuracy(prediction.numpy(), batch), error


def learn_critical_path(
    has_two_transforms: bool,
    examples: Examples,
    iterations: int,
    budget_s: float,
    seed: int,
    every: int = 10,
) -> SupervisedCurve:
    """Train Decima's stage embedding and a linear readout to predict every stage's critical
    path.
    """
    learner = _Learner(has_two_transforms, seed)
    began = time.perf_counter()
    points = list[tuple[int, float, float]]()
    for iteration in range(1, iterations + 1):
        # The progress from 0 to 1, by iterations or by time, whichever is ahead.
        done = max(iteration / iterations, (time.perf_counter() - began) / budget_s)
        learner.step(examples.train[iteration % len(examples.train)], done)
        if iteration % every == 0 or done >= 1.0:
            points.append((iteration, *learner.test(examples.test)))
        if done >= 1.0:
            break
    return SupervisedCurve(*(tuple(column) for column in zip(*points, strict=True)))


def fig19(request: StudyRequest) -> StudyResult:
    """Accuracy of two transforms and of one in finding the stage with the longest critical path.

    Source: Decima, Figure 19 and Appendix E.
    """
    iterations = _FULL_ITERATIONS if request.is_full else _ITERATIONS
    request.say("drawing DAGs")
    examples = Examples.draw(request.training_seed)
    curves = {}
    for name, has_two in (("two transforms (Decima)", True), ("one transform", False)):
        request.say(f"learning the critical path with {name}")
        curves[name] = learn_critical_path(
            has_two, examples, iterations, request.budget_s / 2, request.training_seed
        )
    return StudyResult(
        "the critical path, learned by embeddings with two transforms and with one",
        "with two transforms the accuracy on unseen DAGs is nearly perfect after about 150 "
        "iterations; with one transform it never becomes high and stable (Figure 19, Appendix E)",
        (
            "embedding",
            "accuracy (last tests)",
            "best accuracy",
            "mean error of the path",
            "iterations",
        ),
        [_row(name, curve) for name, curve in curves.items()],
        {
            name: {"iterations": c.iterations, "accuracy": c.accuracy, "error": c.error}
            for name, c in curves.items()
        },
        (
            f"unseen random DAGs of up to {SHAPE.max_depth} layers of up to {SHAPE.max_width} "
            "stages; only DAGs with several stages without parents count, because with one the "
            "answer is trivial",
            "both embeddings are those of the shipped network with "
            "a linear readout; the paper does not state its DAGs or its loss; ours is the squared "
            "error of every stage's critical path",
        ),
        partial(save, partial(_draw, curves), (6.5, 3.6)),
    )


def _row(name: str, curve: SupervisedCurve) -> list[str]:
    shares = (curve.last, max(curve.accuracy), curve.error[-1])
    return [name, *(f"{share:.1%}" for share in shares), str(curve.iterations[-1])]


def _draw(curves: Mapping[str, SupervisedCurve], figure: Any) -> None:
    lines = {name: (curve.iterations, curve.accuracy) for name, curve in curves.items()}
    line_panel(figure.subplots(), lines, ("iteration", "accuracy on unseen DAGs"))
