"""Models of how task durations change at a higher parallelism than was measured.

A profile from a small machine has durations only at the parallelism of that machine. The model
"none" uses them at any parallelism. "decima-cluster" inflates them as on the Decima authors' Spark
cluster (work inflation, Decima, section 2.2). The model is chosen when a workload is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parcae.errors import ConfigError
from parcae.workloads.durations import Samples, TaskDurations
from parcae.workloads.job import StageSpec, Workload

PARALLELISM_MODELS = ("none", "decima-cluster")

#: Ratio of the durations at each level to those at 5 executors: median over the stages of the
#: Decima authors' TPC-H profiles.
_LEVELS = (5, 10, 20, 40, 60, 100)
_FIRST_WAVE = (1.0, 1.02, 1.08, 1.33, 1.58, 2.10)
_LATER_WAVES = (1.0, 1.09, 1.31, 1.75, 2.17, 2.96)


def with_parallelism_model(workload: Workload, name: str) -> Workload:
    """Apply a parallelism model to a workload; the model's name is added to the provenance.

    The mean task duration that a scheduler knows stays the measured one.

    Raises:
        ConfigError: no such model.
    """
    if name not in PARALLELISM_MODELS:
        raise ConfigError(
            f"parallelism model {name!r}: write one of {', '.join(PARALLELISM_MODELS)}"
        )
    if name == "none":
        return workload
    # Stages that share a duration table share the scaled table, too.
    scaled: dict[int, TaskDurations] = {}

    def scaled_stage(stage: StageSpec) -> StageSpec:
        key = id(stage.durations)
        if key not in scaled:
            scaled[key] = _inflated(stage.durations)
        return replace(stage, durations=scaled[key])

    provenance = {
        **workload.provenance,
        "parallelism model": "decima-cluster: median ratios of the Decima authors' cluster",
    }
    return replace(workload.with_stages(scaled_stage), provenance=provenance)


def _inflated(durations: TaskDurations) -> TaskDurations:
    """The samples of the highest measured level, scaled to every higher level of the model.

    What was measured at up to 5 executors counts as measured at 5, the model's lowest level. Of
    higher parallelism, all measured levels stay.
    """
    highest = durations.levels[-1]
    kept = 0 if highest <= _LEVELS[0] else len(durations.levels)
    above = [level for level in _LEVELS if level > highest or kept == 0]
    first_ratios = _ratios_to(highest, above, _FIRST_WAVE)
    later_ratios = _ratios_to(highest, above, _LATER_WAVES)
    fresh, first, rest = durations.fresh[-1], durations.first[-1], durations.rest[-1]
    return TaskDurations(
        (*durations.levels[:kept], *above),
        (*durations.fresh[:kept], *(_scale(fresh, ratio) for ratio in first_ratios)),
        (*durations.first[:kept], *(_scale(first, ratio) for ratio in first_ratios)),
        (*durations.rest[:kept], *(_scale(rest, ratio) for ratio in later_ratios)),
    )


def _ratios_to(measured: int, levels: Sequence[int], ratios: Sequence[float]) -> list[float]:
    """The model's ratios at some levels to that at a measured one."""
    at_measured, *at_levels = np.interp([measured, *levels], _LEVELS, ratios).tolist()
    return [ratio / at_measured for ratio in at_levels]


def _scale(samples: Samples, ratio: float) -> Samples:
    return np.asarray(np.rint(samples * ratio), np.int64)
