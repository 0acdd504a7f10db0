"""Jobs of one stage: the synthetic data set of idle slots, its mixture with other workloads, and the abstraction of a DAG.

Source: Duan & Wu, sections IV-A and V-A.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parcae.errors import ConfigError
from parcae.units import MS_PER_S
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload

#: Lengths of the synthetic jobs and the mean gap between them; the paper has both kinds come alike.
SHORT_MS = 10 * MS_PER_S
LONG_MS = 50 * MS_PER_S
MEAN_GAP_S = 10.0


def one_stage(job: JobSpec) -> JobSpec:
    """The job as one task of all its work, rounded to ms: what it is to one executor.

    Source: Duan & Wu, section IV-A, one-stage job abstraction.
    Example: stages of 2 + 5 + 8 + 12 s are one of 27 s, whatever their DAG.
    """
    return replace(job, stages=(StageSpec(1, TaskDurations.constant(round(job.work_ms))),))


def synthetic_jobs() -> Workload:
    """Short jobs of 10 s and long ones of 50 s, half of each, one task a job.

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
    """Jobs drawn from the synthetic data set with probability `alpha`, else from the workload.

    Raises:
        ConfigError: an alpha outside 0..1.

    Source: Duan & Wu, section V-A.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(
            f"a mixture needs an alpha within 0..1 (the share of one-stage jobs), not {alpha:g}"
        )
    synthetic = synthetic_jobs()
    own = _odds(workload)
    weights = [alpha * chance for chance in _odds(synthetic)] + [
        (1 - alpha) * chance for chance in own
    ]
    source = f"one-stage jobs with probability {alpha:g}, else {workload.name}"
    jobs = tuple(job.at(None) for job in (*synthetic.jobs, *workload.jobs))
    return Workload(
        f"{workload.name}-mixed-{alpha:g}",
        jobs,
        tuple(weights),
        {**workload.provenance, "mixture": source},
    )


def _odds(workload: Workload) -> list[float]:
    weights = workload.weights or (1.0,) * len(workload.jobs)
    return [weight / sum(weights) for weight in weights]


def load_mixed(text: str, load: Callable[[str], Workload]) -> Workload:
    """The mixture that `ALPHA:WORKLOAD` names.

    Raises:
        ConfigError: no number, or what `load` and `mixed` raise.

    Example: `load_mixed("0.5:tpch", load_workload)`.
    """
    alpha, _, source = text.partition(":")
    try:
        share = float(alpha)
    except ValueError:
        share = float("nan")
    if share != share or not source:
        raise ConfigError(f"mixture {text!r}: write mixed:ALPHA:WORKLOAD, e.g. mixed:0.5:tpch")
    return mixed(load(source), share)
