"""Workloads made ready for clusters of several executor classes: outliers, normalised demands, drawn demands, halves.

Every step gives a new workload and a sentence about what it did, which also goes into the workload's provenance.

Source: Decima, section 7.3: classes of 1 core and up to 1 unit of normalised memory; half of a trace trains, half tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from parcae.errors import ConfigError
from parcae.units import s_from_ms
from parcae.workloads.job import StageSpec, Workload

#: A new workload, and what was done, in words.
Step = Callable[[Workload], tuple[Workload, str]]


def prepare(workload: Workload, steps: Sequence[Step]) -> tuple[Workload, tuple[str, ...]]:
    """The steps one after another.

    Returns:
        The workload and a note for each step; a workload that any step changed remembers the notes in its provenance.

    Example: `prepare(trace, [without_largest(0.99), in_memory_units(0.999)])`.
    """
    notes: list[str] = []
    for step in steps:
        workload, note = step(workload)
        notes.append(note)
    before = workload.provenance.get("prepared")
    words = "; ".join([*([before] if before else []), *notes])
    return replace(
        workload, provenance={**workload.provenance, "prepared": words}
    ) if notes else workload, tuple(notes)


def _share(value: float, what: str) -> float:
    if not 0 < value <= 1:
        raise ConfigError(f"{what} is {value:g}; write a share above 0 and at most 1, e.g. 0.99")
    return value


def without_largest(quantile: float) -> Step:
    """Leave out the jobs with more work than this quantile of the jobs' work.

    A few records of a trace are absurd (in Alibaba's public sample one job of a thousand years of work), and a few
    honest giants would decide every average alone.

    Raises:
        ConfigError: no share, e.g. 0 or 1.5.

    Example: of jobs of 1, 2, 3 and 100 s, `without_largest(0.9)` leaves out the last.
    """
    _share(quantile, "the quantile of the work")

    def step(workload: Workload) -> tuple[Workload, str]:
        work = np.array([job.work_ms for job in workload.jobs])
        most = float(np.quantile(work, quantile))
        is_kept = work <= most
        left_out = int((~is_kept).sum())
        total = float(work.sum())
        note = (
            f"{left_out} of {len(work)} jobs were left out: those with more work than the {quantile:g} quantile, "
            f"{s_from_ms(most):,.0f} s of one executor; they had {work[~is_kept].sum() / max(1.0, total):.2%} of all work"
        )
        return _kept(workload, [row for row, kept in enumerate(is_kept.tolist()) if kept]), note

    return step


def _kept(workload: Workload, rows: Sequence[int]) -> Workload:
    weights = None if workload.weights is None else tuple(workload.weights[row] for row in rows)
    return replace(workload, jobs=tuple(workload.jobs[row] for row in rows), weights=weights)


def _with_stages(workload: Workload, change: Callable[[StageSpec], StageSpec]) -> Workload:
    """Every stage changed; jobs keep all else."""
    jobs = tuple(replace(job, stages=tuple(map(change, job.stages))) for job in workload.jobs)
    return replace(workload, jobs=jobs)


def in_memory_units(quantile: float) -> Step:
    """Measure memory in units of this quantile of the stages' demands; larger demands are cut to 1 unit.

    Raises:
        ConfigError: no share, or a workload whose stages ask for no memory.

    Example: demands of 0.2, 0.4 and 0.5 are 0.4, 0.8 and 1 at the quantile 1.
    """
    _share(quantile, "the quantile of the memory demands")

    def step(workload: Workload) -> tuple[Workload, str]:
        demands = np.array([stage.memory for job in workload.jobs for stage in job.stages])
        unit = float(np.quantile(demands, quantile))
        if unit <= 0:
            raise ConfigError(
                f"workload {workload.name!r}: its stages ask for no memory at the {quantile:g} quantile, so there is no unit to "
                f"normalise by; draw demands with --memory-demands uniform"
            )
        # Deviation: Decima does not say what it normalises by. Demands above the unit would fit no executor; they are cut.
        note = (
            f"memory is in units of {unit:g}, the {quantile:g} quantile of the stages' demands; "
            f"{int((demands > unit).sum())} of {len(demands)} stages asked for more and were cut to 1"
        )
        return _with_stages(
            workload, lambda stage: replace(stage, memory=min(1.0, stage.memory / unit))
        ), note

    return step


def with_cpu_at_most(most: float) -> Step:
    """Cut the stages' cpu demands, so that their tasks fit an executor of so many cores.

    Raises:
        ConfigError: not above 0.
    """
    if not most > 0:
        raise ConfigError(f"the most cpu is {most:g}; write a number of cores above 0, e.g. 1")

    def step(workload: Workload) -> tuple[Workload, str]:
        demands = [stage.cpu for job in workload.jobs for stage in job.stages]
        num_cut = sum(cpu > most for cpu in demands)
        note = f"{num_cut} of {len(demands)} stages asked for more than {most:g} cores and were cut to that"
        return _with_stages(workload, lambda stage: replace(stage, cpu=min(most, stage.cpu))), note

    return step


def with_drawn_memory(text: str) -> Step:
    """Draw every stage's memory evenly from (0, 1]; "uniform" or "uniform:SEED".

    Raises:
        ConfigError: anything else.

    Source: Decima, section 7.3 (the TPC-H workload of Figure 11b).
    """
    match = re.fullmatch(r"uniform(?::(\d+))?", text)
    if match is None:
        raise ConfigError(
            f"memory demands {text!r} are not understood: write uniform, or uniform:SEED, e.g. uniform:7"
        )
    seed = int(match[1] or 0)

    def step(workload: Workload) -> tuple[Workload, str]:
        rng = np.random.default_rng(np.random.SeedSequence([0x6D65_6D00, seed]))
        note = f"every stage's memory was drawn evenly from (0, 1], seed {seed}"
        return _with_stages(
            workload, lambda stage: replace(stage, memory=1.0 - float(rng.random()))
        ), note

    return step


def half(which: str) -> Step:
    """The jobs that arrived first, or those that arrived after them: "first" or "second".

    Raises:
        ConfigError: another word, or a workload without recorded arrivals or with fewer than two jobs.

    Source: Decima, section 7.3: the first half of the trace trains, the second tests.
    """
    if which not in ("first", "second"):
        raise ConfigError(f"half {which!r}: write first or second")

    def step(workload: Workload) -> tuple[Workload, str]:
        if not workload.is_recorded or len(workload.jobs) < 2:
            raise ConfigError(
                f"workload {workload.name!r} has no recorded arrivals of at least two jobs, by which it could be split: "
                f"import it with its arrivals"
            )
        order = np.argsort([job.arrival_ms or 0 for job in workload.jobs], kind="stable").tolist()
        middle = len(order) // 2
        rows = order[:middle] if which == "first" else order[middle:]
        return _kept(
            workload, rows
        ), f"the {which} half by arrival: {len(rows)} of {len(order)} jobs"

    return step
