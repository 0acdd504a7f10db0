"""Made-up workloads: random DAGs, and toy instances whose best schedule is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parcae.errors import ConfigError
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload

#: Samples per wave of a random stage.
_NUM_SAMPLES = 16
#: A fresh executor's and a first wave's durations over those of later waves.
_FRESH_RATIO = 1.5
_FIRST_RATIO = 1.2


@dataclass(frozen=True)
class RandomDags:
    """How random DAGs are drawn.

    Args:
        num_jobs: jobs to draw.
        max_depth, max_width: layers of a DAG and stages of a layer, each uniform from 1.
        mean_tasks: mean number of tasks of a stage (geometric).
        median_task_ms, sigma: log-normal task durations; `sigma` spreads stages, a fifth of it the tasks of a stage.
        edge_share: odds of an edge between stages of neighbouring layers (every stage has at least one parent above).
    """

    num_jobs: int = 100
    max_depth: int = 6
    max_width: int = 4
    mean_tasks: float = 20.0
    median_task_ms: float = 2_000.0
    sigma: float = 1.0
    edge_share: float = 0.4

    def __post_init__(self) -> None:
        if (
            min(self.num_jobs, self.max_depth, self.max_width) < 1
            or self.mean_tasks < 1
            or self.median_task_ms <= 0
        ):
            raise ConfigError(
                "random DAGs need jobs, depth, width and mean tasks >= 1, and a task duration > 0"
            )
        if self.sigma < 0 or not 0 <= self.edge_share <= 1:
            raise ConfigError("random DAGs need sigma >= 0 and an edge share within 0..1")


def random_dags(shape: RandomDags, rng: np.random.Generator, name: str = "synthetic") -> Workload:
    """Random layered DAGs with log-normal durations."""
    jobs = tuple(JobSpec(f"dag-{row}", _random_stages(shape, rng)) for row in range(shape.num_jobs))
    return Workload(name, jobs, provenance={"source": f"random layered DAGs, {shape}"})


def _random_stages(shape: RandomDags, rng: np.random.Generator) -> tuple[StageSpec, ...]:
    stages: list[StageSpec] = []
    above: list[int] = []
    for _ in range(int(rng.integers(1, shape.max_depth + 1))):
        layer = []
        for _ in range(int(rng.integers(1, shape.max_width + 1))):
            layer.append(len(stages))
            stages.append(_random_stage(shape, above, rng))
        above = layer
    return tuple(stages)


def _random_stage(shape: RandomDags, above: list[int], rng: np.random.Generator) -> StageSpec:
    parents = [p for p in above if rng.random() < shape.edge_share] or (
        [int(rng.choice(above))] if above else []
    )
    center = shape.median_task_ms * float(rng.lognormal(0.0, shape.sigma))
    rest = np.maximum(1, np.rint(center * rng.lognormal(0.0, shape.sigma / 5, _NUM_SAMPLES)))
    durations = TaskDurations(
        (1,),
        *((np.rint(rest * ratio).astype(np.int64),) for ratio in (_FRESH_RATIO, _FIRST_RATIO, 1.0)),
    )
    return StageSpec(int(rng.geometric(1.0 / shape.mean_tasks)), durations, tuple(parents))


def chain(num_stages: int, num_tasks: int, task_ms: int, name: str = "chain") -> JobSpec:
    """Stages one after the other: on n executors and no delays it takes stages x ceil(tasks / n) x duration."""
    durations = TaskDurations.constant(task_ms)
    return JobSpec(
        name,
        tuple(StageSpec(num_tasks, durations, (i - 1,) if i else ()) for i in range(num_stages)),
    )


def fork_join(width: int, task_ms: int, name: str = "fork-join") -> JobSpec:
    """One task, `width` one-task stages, one task: on `width` executors and no delays it takes 3 x the duration."""
    durations = TaskDurations.constant(task_ms)
    middle = tuple(StageSpec(1, durations, (0,)) for _ in range(width))
    return JobSpec(
        name,
        (StageSpec(1, durations), *middle, StageSpec(1, durations, tuple(range(1, width + 1)))),
    )


def toy_workload() -> Workload:
    """Three jobs whose best order is known: on one executor without delays, average JCT is least (5 s) for short, middle, long.

    short 1 s (done at 1 s), middle 3 s (at 4 s), long 6 s (at 10 s): (1 + 4 + 10) / 3 = 5 s.
    """
    jobs = (chain(1, 6, 1_000, "long"), chain(3, 1, 1_000, "middle"), chain(1, 1, 1_000, "short"))
    return Workload("toy", jobs, provenance={"source": "toy instance with a known optimum"})
