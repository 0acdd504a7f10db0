"""Prepares workloads: other sizes, and what clusters with several executor classes need.

The steps remove outliers, change durations, normalise or draw resource demands, and split a trace
into halves. Every step returns a new workload and a sentence that describes the change; the
workload's provenance records the sentence.

Source: Decima, section 7.3: executor classes have 1 core and up to 1 unit of normalised memory; the
first half of a trace is for training, the second half for testing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from parcae.base.arrays import Int64Array
from parcae.base.errors import ConfigError
from parcae.base.texts import s_from_ms
from parcae.workloads.durations import TaskDurations
from parcae.workloads.spark_log.profile import scaled
from parcae.workloads.stage_table import MAX_DURATION_MS
from parcae.workloads.workload import Workload

PARALLELISM_MODELS = ("none", "decima-cluster")

#: Ratio of the durations at each level to those at 5 executors: median over the stages of the
#: Decima authors' TPC-H profiles.
_LEVELS = (5, 10, 20, 40, 60, 100)
_FIRST_WAVE = (1.0, 1.02, 1.08, 1.33, 1.58, 2.10)
_LATER_WAVES = (1.0, 1.09, 1.31, 1.75, 2.17, 2.96)


def with_parallelism_model(workload: Workload, name: str) -> Workload:
    """Apply a parallelism model to a workload; the model's name is added to the provenance.

    The mean task duration that a scheduler knows stays the measured one.
    """
    if name not in PARALLELISM_MODELS:
        raise ConfigError(
            f"parallelism model {name!r}: write one of {', '.join(PARALLELISM_MODELS)}"
        )
    if name == "none":
        return workload
    # Stages that share a duration table share the scaled table, too.
    inflated = cache(_inflated)
    scaled = workload.with_stages(lambda one: replace(one, durations=inflated(one.durations)))
    provenance = {
        **workload.provenance,
        "parallelism model": "decima-cluster: median ratios of the Decima authors' cluster",
    }
    return replace(scaled, provenance=provenance)


def _inflated(durations: TaskDurations) -> TaskDurations:
    """The samples of the highest measured level, scaled to every higher level of the model.

    What was measured at up to 5 executors counts as measured at 5, the model's lowest level. Of
    higher parallelism, all measured levels stay.
    """
    highest = durations.levels[-1]
    kept = 0 if highest <= _LEVELS[0] else len(durations.levels)
    above = [level for level in _LEVELS if level > highest or kept == 0]
    at = [highest, *above]

    def waves(
        measured: tuple[Int64Array, ...], of_levels: Sequence[float]
    ) -> tuple[Int64Array, ...]:
        at_highest, *ratios = np.interp(at, _LEVELS, of_levels).tolist()
        scaled_up = (np.rint(measured[-1] * (ratio / at_highest)) for ratio in ratios)
        return (*measured[:kept], *(one.astype(np.int64) for one in scaled_up))

    return TaskDurations(
        (*durations.levels[:kept], *above),
        waves(durations.fresh, _FIRST_WAVE),
        waves(durations.first, _FIRST_WAVE),
        waves(durations.rest, _LATER_WAVES),
    )


#: A function that returns a changed workload and a description of the change.
Step = Callable[[Workload], tuple[Workload, str]]


def prepare(workload: Workload, steps: Sequence[Step]) -> tuple[Workload, tuple[str, ...]]:
    """Apply the steps one after another. Returns the workload and a note for each step; the notes
    are also added to the workload's provenance.

    Example: `prepare(trace, [without_largest(0.99), in_memory_units(0.999)])`.
    """
    notes: list[str] = []
    for step in steps:
        workload, note = step(workload)
        notes.append(note)
    if notes:
        words = "; ".join(filter(None, [workload.provenance.get("prepared"), *notes]))
        workload = replace(workload, provenance={**workload.provenance, "prepared": words})
    return workload, tuple(notes)


def _share(value: float, what: str) -> float:
    if not 0 < value <= 1:
        raise ConfigError(f"{what} is {value:g}; write a share above 0 and at most 1, e.g. 0.99")
    return value


def without_largest(quantile: float) -> Step:
    """Leave out the jobs whose work exceeds this quantile of the jobs' work.

    Some records of a trace are implausible (Alibaba's public sample has a job of a thousand years
    of work), and a few very large jobs would dominate every average.

    Example: of jobs of 1, 2, 3 and 100 s, `without_largest(0.9)` leaves out the last.
    """
    _share(quantile, "the quantile of the work")

    def step(workload: Workload) -> tuple[Workload, str]:
        work = np.array([job.work_ms for job in workload.jobs])
        limit = float(np.quantile(work, quantile))
        too_large = work > limit
        note = (
            f"{too_large.sum()} of {len(work)} jobs were left out: "
            f"those with more work than the {quantile:g} quantile, "
            f"{s_from_ms(limit):,.0f} s of one executor; "
            f"they had {work[too_large].sum() / max(1.0, work.sum()):.2%} of all work"
        )
        return _kept(workload, np.flatnonzero(~too_large).tolist()), note

    return step


def _kept(workload: Workload, rows: Sequence[int]) -> Workload:
    weights = None if workload.weights is None else tuple(workload.weights[row] for row in rows)
    return replace(workload, jobs=tuple(workload.jobs[row] for row in rows), weights=weights)


def with_work(factor: float) -> Step:
    """Multiply all task durations, as if the jobs had more or less data to work through.

    The numbers of tasks stay as they are.

    Example: `with_work(10.0)` makes tasks of 2 s take 20 s.
    """
    if not 0 < factor < math.inf:
        raise ConfigError(f"the factor of the work is {factor:g}; write a number above 0, e.g. 10")

    def step(workload: Workload) -> tuple[Workload, str]:
        tables = {stage.durations for job in workload.jobs for stage in job.stages}
        longest_ms = max(int(table.all_samples.max()) for table in tables)
        if longest_ms * factor > MAX_DURATION_MS:
            raise ConfigError(
                f"the factor of the work is {factor:g}, which makes the longest task, of "
                f"{longest_ms:,} ms, longer than {MAX_DURATION_MS:,} ms; choose a smaller one"
            )
        # Stages that share a duration table share the scaled table, too.
        multiplied = cache(lambda table: _multiplied(table, factor))
        larger = workload.with_stages(
            lambda stage: replace(
                stage,
                durations=multiplied(stage.durations),
                mean_task_ms=stage.mean_task_ms * factor,
            )
        )
        return larger, f"all task durations were multiplied by {factor:g}"

    return step


def _multiplied(table: TaskDurations, factor: float) -> TaskDurations:
    waves = (table.fresh, table.first, table.rest)
    return TaskDurations(
        table.levels, *(tuple(scaled(samples, factor) for samples in wave) for wave in waves)
    )


def in_memory_units(quantile: float) -> Step:
    """Express memory in units of this quantile of the stages' demands.

    Larger demands are cut to 1 unit.

    Example: demands of 0.2, 0.4 and 0.5 become 0.4, 0.8 and 1 at the quantile 1.
    """
    _share(quantile, "the quantile of the memory demands")

    def step(workload: Workload) -> tuple[Workload, str]:
        demands = np.array([stage.memory for job in workload.jobs for stage in job.stages])
        unit = float(np.quantile(demands, quantile))
        if unit <= 0:
            raise ConfigError(
                f"workload {workload.name!r}: its stages ask for no memory at the {quantile:g} "
                "quantile, so there is no unit to normalise by; "
                "draw demands with --memory-demands uniform"
            )
        # Deviation: Decima does not say what it normalises by. Demands above the unit would fit no
        # executor; they are cut.
        note = (
            f"memory is in units of {unit:g}, the {quantile:g} quantile of the stages' demands; "
            f"{int((demands > unit).sum())} of {len(demands)} stages asked for more "
            "and were cut to 1"
        )
        return workload.with_stages(
            lambda stage: replace(stage, memory=min(1.0, stage.memory / unit))
        ), note

    return step


def with_cpu_at_most(most: float) -> Step:
    """Cut the stages' CPU demands, so that their tasks fit an executor of `most` cores."""
    if not most > 0:
        raise ConfigError(f"the most cpu is {most:g}; write a number of cores above 0, e.g. 1")

    def step(workload: Workload) -> tuple[Workload, str]:
        demands = [stage.cpu for job in workload.jobs for stage in job.stages]
        num_cut = sum(cpu > most for cpu in demands)
        note = (
            f"{num_cut} of {len(demands)} stages asked for more than {most:g} cores "
            "and were cut to that"
        )
        return workload.with_stages(lambda stage: replace(stage, cpu=min(most, stage.cpu))), note

    return step


def with_drawn_memory(text: str) -> Step:
    """Draw every stage's memory uniformly from (0, 1]; `text` is "uniform" or "uniform:SEED".

    Source: Decima, section 7.3 (the TPC-H workload of Figure 11b).
    """
    match = re.fullmatch(r"uniform(?::(\d+))?", text)
    if match is None:
        raise ConfigError(
            f"memory demands {text!r} are not understood: "
            "write uniform, or uniform:SEED, e.g. uniform:7"
        )
    seed = int(match[1] or 0)

    def step(workload: Workload) -> tuple[Workload, str]:
        # The constant ("mem" in ASCII) separates these draws from others with the same seed.
        rng = np.random.default_rng(np.random.SeedSequence([0x6D65_6D00, seed]))
        note = f"every stage's memory was drawn uniformly from (0, 1], seed {seed}"
        return workload.with_stages(
            lambda stage: replace(stage, memory=1.0 - float(rng.random()))
        ), note

    return step


def half(which: str) -> Step:
    """The half of the jobs that arrived first ("first"), or the half that arrived later ("second").

    Source: Decima, section 7.3: the first half of the trace trains, the second tests.
    """
    if which not in ("first", "second"):
        raise ConfigError(f"half {which!r}: write first or second")

    def step(workload: Workload) -> tuple[Workload, str]:
        if not workload.is_recorded or len(workload.jobs) < 2:
            raise ConfigError(
                f"workload {workload.name!r} has no recorded arrivals of at least two jobs, "
                "by which it could be split: import it with its arrivals"
            )
        order = np.argsort([job.arrival_ms or 0 for job in workload.jobs], kind="stable").tolist()
        middle = len(order) // 2
        rows = order[:middle] if which == "first" else order[middle:]
        note = f"the {which} half by arrival: {len(rows)} of {len(order)} jobs"
        return _kept(workload, rows), note

    return step
