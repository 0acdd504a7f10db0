"""Workloads made of recorded runs: every run as it was, or the recurring jobs of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parcae.workloads.describe import FIRST_RUNS_LEFT_OUT, spread_of_recurring_jobs
from parcae.workloads.import_report import counted
from parcae.workloads.job import Workload
from parcae.workloads.spark.dag import JobRun
from parcae.workloads.spark.profile import Profile, job_of_run, merge_runs


def workload_of_runs(
    name: str, runs: Sequence[JobRun], provenance: Mapping[str, str]
) -> tuple[Workload, list[str]]:
    """A workload with every run as a separate job in order of arrival, and a note.

    Args:
        name: name of the workload.
        runs: the runs, at least one.
        provenance: where they come from.

    Raises:
        WorkloadError: a run whose stages are no DAG.
    """
    in_order = sorted(runs, key=lambda run: run.submission_ms)
    # Arrivals count from the first submission over all runs.
    start_ms = in_order[0].submission_ms
    jobs = tuple(job_of_run(run, run.submission_ms - start_ms) for run in in_order)
    span_ms = in_order[-1].submission_ms - start_ms
    note = f"Kept {counted(len(runs), 'run')} with their arrivals over {span_ms} ms."
    return Workload(name, jobs, provenance=provenance), [note]


def workload_of_jobs(
    name: str,
    runs: Sequence[JobRun],
    provenance: Mapping[str, str],
    *,
    keep_first_runs: bool = False,
) -> tuple[Workload, list[str]]:
    """A workload of the recurring jobs, weighted by their number of runs, and notes.

    Args:
        name: name of the workload.
        runs: the runs, at least one.
        provenance: where they come from.
        keep_first_runs: use a job's first run in an application like any other.

    Raises:
        WorkloadError: a run whose stages are no DAG.
    """
    profiles = merge_runs(runs, keep_first_runs=keep_first_runs)
    # Left-out first runs count for the weights, but not for the profile.
    num_left_out = str(sum(profile.num_left_out for profile in profiles))
    weights = tuple(float(profile.num_runs) for profile in profiles)
    jobs = tuple(profile.job for profile in profiles)
    workload = Workload(name, jobs, weights, {**provenance, FIRST_RUNS_LEFT_OUT: num_left_out})
    return workload, _profile_notes(profiles, len(runs), workload)


def _profile_notes(profiles: Sequence[Profile], num_runs: int, workload: Workload) -> list[str]:
    """Sentences on how the recurring jobs were made."""
    merged = f"Merged {counted(num_runs, 'run')} into {counted(len(profiles), 'job')}"
    notes = [f"{merged}, matched by name, operators and DAG."]
    if any(profile.variant > 1 for profile in profiles):
        notes.append(
            "A job called 'name (2)' has the same name as another job, "
            "but another DAG or other task counts."
        )
    if num_left_out := sum(profile.num_left_out for profile in profiles):
        notes.append(
            f"Left out {counted(num_left_out, 'first run')} of jobs that ran again in the same "
            "application: code that is not compiled yet and cold caches make them slow; "
            "--keep-first-runs keeps them."
        )
    if spread := spread_of_recurring_jobs(workload.jobs):
        notes.append(f"Profiles are those of median runs; spread kept: {spread}.")
    return notes
