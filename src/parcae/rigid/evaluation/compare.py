"""Compare several packing policies on the same job sequences or on the same log.

`compare_packing` draws sequences by seed, `compare_log` runs a log. Both return a
`Comparison` with confidence intervals, paired by sequence or by block of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.evaluation.comparison import Comparison, Say, compare_in
from parcae.evaluation.tuning import check_seeds
from parcae.rigid.bernoulli import MIXES, load_of_rate
from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.evaluation.policies import RigidTuning
from parcae.rigid.evaluation.tuning import tuning_pieces
from parcae.rigid.evaluation.world import PackingWorld
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost
from parcae.rigid.policies.catalog import PackingSetting
from parcae.rigid.sources import DrawnSource, PackingSource, RigidLogSource

#: Parts of a log that can be compared.
PARTS = ("second", "first", "all")


def compare_packing(
    source: PackingSource,
    policies: Sequence[str],
    *,
    num_seeds: int = 100,
    seed_start: int = 1_000,
    tune_budget_s: float = 120.0,
    cost: Cost = Cost.SLOWDOWN,
    label: str = "",
    say: Say | None = None,
) -> Comparison:
    """Run every policy on the sequences of the seeds seed_start .. seed_start + num_seeds - 1.

    Args:
        source: the source of the job sequences.
        policies: names as in `parcae policies --world rigid`, or paths of checkpoints. Ratios are
            relative to the first. `tetris` and `withhold` are tuned first, on sequences of the same
            source with the tuning seeds.
        num_seeds: number of seeds.
        seed_start: the first seed.
        tune_budget_s: largest duration of the search for `withhold`, in seconds.
        cost: the cost that tuning minimises.
        label: name of the setting, for titles.
        say: called with a text about the current step.

    Returns:
        The results per policy.

    Raises:
        PolicyError: a policy is unknown.
        ConfigError: the settings are invalid, or no job arrives.
        WorkloadError: a job cannot run on the cluster.

    Example: `compare_packing(DrawnSource(rates=(0.7,)), ["sjf", "tetris"], num_seeds=20)`.
    """
    if num_seeds < 1:
        raise ConfigError("compare on at least one seed")
    check_seeds(seed_start, num_seeds)
    sequences = source.draw(range(seed_start, seed_start + num_seeds))
    if not any(len(jobs) for jobs in sequences):
        raise ConfigError(
            "no job arrives on any of these seeds: "
            "give more seeds, a higher load or a longer window"
        )
    card = {
        "source": source.card(),
        "seeds": [seed_start, seed_start + num_seeds - 1],
        "label": label,
    }
    world = PackingWorld(
        sequences,
        source.config,
        _setting_of(source, sequences),
        RigidTuning(source, cost, tune_budget_s),
        card,
        offered_load(source),
    )
    return compare_in(world, policies, range(len(sequences)), say=say)


def _setting_of(source: PackingSource, sequences: Sequence[RigidJobs]) -> PackingSetting:
    """The setting of a source, by its sequences; several logs have the name of the first."""
    if source.config.mode is TimeMode.EXACT:
        return PackingSetting(is_exact=True, log=sequences[0].name)
    rates = getattr(source, "rates", ())
    return PackingSetting(rate=float(np.mean(rates)) if rates else None)


def offered_load(source: PackingSource) -> float:
    """Work that a source's jobs bring / work that the cluster can do, of its busiest resource.

    The largest of several; infinite for a log whose jobs arrive at once, 0 for a source of another
    kind.
    """
    if isinstance(source, DrawnSource):
        capacity = [source.num_units] * source.num_resources
        return load_of_rate(MIXES[source.mix], max(source.rates), capacity)
    if isinstance(source, RigidLogSource):
        return float(source.jobs.load.max()) * max(source.speeds)
    return 0.0


def compare_log(
    log: RigidJobs,
    policies: Sequence[str],
    *,
    part: str = "second",
    piece_jobs: int | None = None,
    tune_budget_s: float = 120.0,
    cost: Cost = Cost.BOUNDED_SLOWDOWN,
    say: Say | None = None,
) -> Comparison:
    """Run every policy on a part of a log, with exact times.

    `tetris` and `withhold` are tuned on pieces of the log's first half.

    Args:
        log: the log's jobs.
        policies: names as in `parcae policies --world rigid`, or paths of checkpoints. Ratios are
            relative to the first.
        part: the "second" half of the log (by number of jobs), the "first" half, or "all".
        piece_jobs: run consecutive pieces with this number of jobs, each from an empty cluster.
            Remaining jobs are left out; the settings state their number. None runs the part as one.
        tune_budget_s: largest duration of the search for `withhold`, in seconds.
        cost: the cost that tuning minimises.
        say: called with a text about the current step.

    Returns:
        The results per policy.

    Raises:
        PolicyError: a policy is unknown.
        ConfigError: the part does not exist, or a piece has too many jobs.
        WorkloadError: a job cannot run on the cluster.
    """
    half = len(log) // 2
    jobs = part_of(log, part)
    if half < 1:
        raise ConfigError(
            f"{log.name}: the log has {len(log)} jobs; a comparison needs at least 2, "
            "because it divides the log into halves"
        )
    where = "pieces of the log's first half" + (
        "" if part == "second" else ", which is part of the comparison"
    )
    sequences = _pieces(jobs, piece_jobs)
    world = PackingWorld(
        sequences,
        PackingConfig.for_log(jobs),
        PackingSetting(is_exact=True, log=log.name),
        RigidTuning(tuning_pieces(log.piece(0, half)), cost, tune_budget_s, where),
        _log_card(log, part, jobs, sequences, piece_jobs),
        float(jobs.load.max()),
    )
    return compare_in(world, policies, range(len(sequences)), say=say)


def _log_card(
    log: RigidJobs,
    part: str,
    jobs: RigidJobs,
    sequences: Sequence[RigidJobs],
    piece_jobs: int | None,
) -> dict[str, Any]:
    """What is needed to repeat a comparison on a log."""
    used = sum(map(len, sequences))
    return {
        "log": log.name,
        "part": part,
        "jobs": used,
        "left_out": len(jobs) - used,
        "piece_jobs": piece_jobs,
        "pieces": len(sequences),
        "ids": [int(jobs.ids[0]), int(jobs.ids[-1])],
        "rows": [int(jobs.rows[0]), int(jobs.rows[-1])],
        "capacity": dict(zip(jobs.resources, jobs.capacity.tolist(), strict=True)),
        "load": {
            name: None if load is None else round(load, 4)
            for name, load in jobs.load_by_resource.items()
        },
        "config": PackingConfig.for_log(jobs).model_dump(mode="json"),
        "label": f"{log.name}, {_PART_WORDS[part]}",
    }


_PART_WORDS = {"second": "second half", "first": "first half", "all": "whole"}


def part_of(log: RigidJobs, part: str) -> RigidJobs:
    """The second or the first half of a log (by number of jobs), or all of it.

    Time begins with the part's first job.
    """
    half = len(log) // 2
    bounds = {"second": (half, len(log)), "first": (0, half), "all": (0, len(log))}
    if part not in bounds:
        raise ConfigError(f"unknown part {part!r} of a log: choose one of {', '.join(PARTS)}")
    return log.piece(*bounds[part])


def _pieces(jobs: RigidJobs, piece_jobs: int | None) -> list[RigidJobs]:
    if piece_jobs is None:
        return [jobs]
    if not 1 <= piece_jobs <= len(jobs):
        raise ConfigError(
            f"a part of {len(jobs)} jobs cannot be divided into pieces of {piece_jobs}: "
            f"give a number of jobs from 1 to {len(jobs)}"
        )
    return [
        jobs.piece(first, first + piece_jobs)
        for first in range(0, len(jobs) - piece_jobs + 1, piece_jobs)
    ]
