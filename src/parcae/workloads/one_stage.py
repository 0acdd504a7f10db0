"""Jobs of one stage: a synthetic data set, its mixtures with other workloads, and reduced DAGs.

Source: Duan & Wu, sections IV-A and V-A.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parcae.errors import ConfigError
from parcae.units import MS_PER_S
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload

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

    Raises:
        ConfigError: an alpha outside 0..1.

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

    Raises:
        ConfigError: ALPHA is not a number, or an error of `load` or `mixed`.

    Example: `load_mixed("0.5:tpch", load_workload)`.
    """
    alpha, _, source = text.partition(":")
    try:
        share = float(alpha)
    except ValueError:
        share = float("nan")
    # NaN is the only number that differs from itself.
    if share != share or not source:
        raise ConfigError(f"mixture {text!r}: write mixed:ALPHA:WORKLOAD, e.g. mixed:0.5:tpch")
    return mixed(load(source), share)
