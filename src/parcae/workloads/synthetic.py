"""Synthetic workloads: random DAGs, and small instances whose best schedule is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload

#: Durations of the two kinds of synthetic jobs, and the mean gap between jobs of either kind.
SHORT_MS = 10 * MS_PER_S
LONG_MS = 50 * MS_PER_S
MEAN_GAP_S = 10.0


def one_stage(job: JobSpec) -> JobSpec:
    """The job reduced to one task with all its work, rounded to ms: the view of a single executor.

    Source: Duan & Wu, section IV-A, one-stage job abstraction.
    Example: stages of 2 + 5 + 8 + 12 s become one stage of 27 s, whatever their DAG.
    """
    return replace(job, stages=(StageSpec(1, TaskDurations.constant(round(job.work_ms))),))


def synthetic_jobs() -> Workload:
    """Short jobs of 10 s and long jobs of 50 s, half of each, with one task per job.

    # Deviation: the paper gives neither the share of the short jobs nor their number of tasks.
    """
    short, long = (StageSpec(1, TaskDurations.constant(ms)) for ms in (SHORT_MS, LONG_MS))
    jobs = (JobSpec("short", (short,)), JobSpec("long", (long,)))
    return Workload(
        "one-stage",
        jobs,
        provenance={"source": "one-stage jobs of 10 s and 50 s (Duan & Wu, section V-A)"},
    )


def mixed(workload: Workload, alpha: float) -> Workload:
    """Draw jobs from the synthetic data set with probability `alpha` (0..1), else from `workload`.

    Source: Duan & Wu, section V-A.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(
            f"the alpha of a mixture is {alpha:g}; it must be between 0 and 1 "
            "(the share of one-stage jobs)"
        )
    synthetic = synthetic_jobs()
    workload_probabilities = _probabilities(workload)
    weights = [alpha * probability for probability in _probabilities(synthetic)] + [
        (1 - alpha) * probability for probability in workload_probabilities
    ]
    source = f"one-stage jobs with probability {alpha:g}, else {workload.name}"
    jobs = tuple(job.at(None) for job in (*synthetic.jobs, *workload.jobs))
    return Workload(
        f"{workload.name}-mixed-{alpha:g}",
        jobs,
        tuple(weights),
        {**workload.provenance, "mixture": source},
        faults=workload.faults,
    )


def _probabilities(workload: Workload) -> list[float]:
    weights = workload.weights or (1.0,) * len(workload.jobs)
    return [weight / sum(weights) for weight in weights]


def load_mixed(text: str, load: Callable[[str], Workload]) -> Workload:
    """Load the mixture that the text `ALPHA:WORKLOAD` names; `load` loads a workload by name.

    Example: `load_mixed("0.5:tpch", load_workload)`.
    """
    alpha, _, source = text.partition(":")
    try:
        share = float(alpha)
    except ValueError:
        source = ""
    if not source:
        raise ConfigError(f"mixture {text!r}: write mixed:ALPHA:WORKLOAD, e.g. mixed:0.5:tpch")
    return mixed(load(source), share)


#: Samples per wave of a random stage.
_NUM_SAMPLES = 16
#: Ratio of the durations of fresh executors, and of first waves, to those of later waves.
_FRESH_RATIO = 1.5
_FIRST_RATIO = 1.2


@dataclass(frozen=True)
class RandomDags:
    """Parameters of random DAGs.

    Args:
        num_jobs: number of jobs to draw.
        max_depth, max_width: largest number of layers of a DAG and of stages of a layer; both are
            drawn uniformly from 1.
        mean_tasks: mean number of tasks of a stage (geometric distribution).
        median_task_ms: median of the log-normal task durations in ms.
        sigma: sigma of the log-normal distribution over stages; tasks of one stage vary with a
            fifth of it.
        edge_share: probability of an edge between stages of neighbouring layers. Every stage below
            the first layer gets at least one parent.

    Raises:
        ConfigError: a value is out of range.
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
    """Draw random layered DAGs with log-normal durations."""
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
    # A stage without a drawn parent gets a random one, unless it is in the first layer.
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
    """A job whose stages run one after the other.

    On n executors without delays it takes num_stages x ceil(num_tasks / n) x task_ms.
    """
    durations = TaskDurations.constant(task_ms)
    return JobSpec(
        name,
        tuple(StageSpec(num_tasks, durations, (i - 1,) if i else ()) for i in range(num_stages)),
    )


def toy_workload() -> Workload:
    """Three jobs whose best order is known: short, middle, long.

    On one executor without delays they end at 1 s (short, 1 s of work), 4 s (middle, 3 s) and 10 s
    (long, 6 s). The average JCT of (1 + 4 + 10) / 3 = 5 s is the smallest possible.
    """
    jobs = (chain(1, 6, 1_000, "long"), chain(3, 1, 1_000, "middle"), chain(1, 1, 1_000, "short"))
    return Workload("toy", jobs, provenance={"source": "toy instance with a known optimum"})
