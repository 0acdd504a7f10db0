"""Computes the result of `parcae spark tpch`: ratios paired by seed, with confidence intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.evaluation.ratio_plots import ratios_and_times
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    Estimate,
    mean_estimate,
    ratio_estimate,
)
from parcae.evaluation.who_pays import WhoPays, who_pays
from parcae.spark.tpch_calibration import calibration_of
from parcae.spark.tpch_foretold import BySeed, foretold_of
from parcae.spark.tpch_plan import BASELINE
from parcae.spark.tpch_record import RunRecord, check_same, read_records, read_settings

FloatArray = npt.NDArray[np.float64]
#: The name of a repeat of FAIR in tables.
AGAIN = f"{BASELINE} again"
_PERCENTILE = 95


@dataclass(frozen=True)
class PolicyResult:
    """The result of one policy, over the seeds that are complete under it and under FAIR.

    Args:
        name: of the policy; `AGAIN` is a repeat of FAIR.
        seeds: the complete seeds.
        mean_s: mean completion time of every seed, float64[num_seeds].
        average_s: the mean over seeds.
        ratio_to_fair, ratio_to_fifo: ratios of mean completion times, paired by seed; None without
            runs under the other policy.
        foretold_s: average completion time in the simulator; None if it was not simulated.
        foretold_ratio: ratio to FAIR in the simulator.
        pays: which queries end later than under FAIR.
        p95_s: 95th percentile of the completion times of all seeds.
        makespan_ratio: ratio to FAIR.
        busy_share: share of the cores' time that was busy while queries arrived.
        makespan_busy_share: the same until the last result.
        idle_while_waiting_share, unused_while_waiting_share: see `CoreUse`.
        task_ratio: ratio to FAIR of the core time of tasks.
        driver_cpu_s, service_cpu_s: processor time of a run without its tasks.
        other_cores: average number of cores that other processes used.
        load: largest load average before or after a run.
        known_share: share of the queries whose plan is in the profile.
        num_silences: how often the plugin had no order in force for a while.
        num_wrong: number of results that differed from those of the first run.
    """

    name: str
    seeds: tuple[int, ...]
    mean_s: FloatArray
    average_s: Estimate
    ratio_to_fair: Estimate
    ratio_to_fifo: Estimate | None
    foretold_s: Estimate | None
    foretold_ratio: Estimate | None
    pays: WhoPays
    p95_s: float
    makespan_ratio: Estimate
    busy_share: Estimate
    makespan_busy_share: Estimate
    idle_while_waiting_share: Estimate
    unused_while_waiting_share: Estimate
    task_ratio: Estimate
    driver_cpu_s: Estimate
    service_cpu_s: Estimate
    other_cores: Estimate
    load: float
    known_share: float
    num_silences: int
    num_wrong: int

    def to_json(self) -> dict[str, Any]:
        """All numbers by name; estimates as {"mean":, "ci95":}."""
        fields: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Estimate | WhoPays):
                fields[name] = value.to_json()
            elif isinstance(value, np.ndarray):
                fields[name] = value.tolist()
            else:
                # JSON has no NaN.
                fields[name] = None if isinstance(value, float) and math.isnan(value) else value
        return fields


@dataclass(frozen=True)
class TpchResult:
    """The results of all policies.

    Args:
        settings: of the work folders.
        policies: results by name: FAIR, its repeats, then the other policies.
        seconds: completion times of all seeds, by policy.
        gaps_s: mean time between arrivals in every work folder, in s.
        spark: versions of Spark.
    """

    settings: Mapping[str, Any]
    policies: Mapping[str, PolicyResult]
    seconds: Mapping[str, FloatArray]
    gaps_s: tuple[float, ...]
    spark: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """All fields by name, and the `method` of the intervals."""
        return {
            "settings": dict(self.settings),
            "gaps_s": self.gaps_s,
            "spark": self.spark,
            "policies": {name: policy.to_json() for name, policy in self.policies.items()},
            "seconds": {name: seconds.tolist() for name, seconds in self.seconds.items()},
            "method": METHODS[DEFAULT_METHOD],
        }


def read_result(works: Sequence[Path]) -> TpchResult:
    """Read the judged runs of one or several work folders.

    The folders must have the same settings and no runs in common.
    """
    settings = read_settings(works[0])
    records: dict[tuple[str, int], dict[int, RunRecord]] = defaultdict(dict)
    foretold: dict[str, BySeed] = defaultdict(dict)
    for work in works:
        check_same(settings, read_settings(work), f"{works[0]} and {work}")
        for record in read_records(work):
            runs = records[record.key.policy, record.key.repeat]
            if record.key.seed in runs:
                run = f"{work}: seed {record.key.seed} under {record.key.policy}"
                raise ConfigError(f"{run} was run in another folder, too; leave one of them out")
            runs[record.key.seed] = record
        for policy, by_seed in foretold_of(work).items():
            foretold[policy].update(by_seed)
    if not records.get((BASELINE, 0)):
        raise ConfigError(f"{', '.join(map(str, works))}: no run under {BASELINE} is finished yet")
    policies = {}
    seconds = {}
    for policy, repeat in sorted(records, key=lambda key: (key[0] != BASELINE, key[1], key[0])):
        name = policy if not repeat else AGAIN + (f" {repeat}" if repeat > 1 else "")
        policy_result = _policy(name, (policy, repeat), records, foretold)
        if policy_result is not None:
            policies[name] = policy_result
            runs = records[policy, repeat]
            seconds[name] = np.concatenate([runs[seed].seconds for seed in policy_result.seeds])
    gaps = [calibrated.gap_s for calibrated in map(calibration_of, works) if calibrated]
    versions = {record.spark for runs in records.values() for record in runs.values()}
    return TpchResult(settings, policies, seconds, tuple(gaps), tuple(sorted(versions)))


def _policy(
    name: str,
    key: tuple[str, int],
    records: Mapping[tuple[str, int], Mapping[int, RunRecord]],
    foretold: Mapping[str, BySeed],
) -> PolicyResult | None:
    """The result of one policy on the seeds that FAIR has completed too; None without any."""
    fair = records[BASELINE, 0]
    seeds = tuple(sorted({*records[key]} & {*fair}))
    if not seeds:
        return None
    runs = [records[key][seed] for seed in seeds]
    fair_runs = [fair[seed] for seed in seeds]
    ratios = []
    for one, other in zip(runs, fair_runs, strict=True):
        _check_pair(one, other)
        # Query by query: both runs have the same queries in the same order.
        ratios.append(np.array(one.seconds) / np.array(other.seconds))
    mean_s = _means(runs)
    return PolicyResult(
        name=name,
        seeds=seeds,
        mean_s=mean_s,
        average_s=mean_estimate(mean_s).within(0.0),
        ratio_to_fair=ratio_estimate(mean_s, _means(fair_runs)),
        ratio_to_fifo=_ratio_to_fifo(records[key], records.get(("fifo", 0), {})),
        foretold_s=_foretold_s(key, seeds, foretold),
        foretold_ratio=_foretold_ratio(key, seeds, foretold),
        pays=who_pays(ratios),
        p95_s=float(np.percentile(np.concatenate([run.seconds for run in runs]), _PERCENTILE)),
        makespan_ratio=ratio_estimate(
            [run.makespan_s for run in runs], [run.makespan_s for run in fair_runs]
        ),
        busy_share=mean_estimate([run.use.busy_share for run in runs]),
        makespan_busy_share=mean_estimate([run.use.makespan_busy_share for run in runs]),
        idle_while_waiting_share=mean_estimate([run.use.idle_while_waiting_share for run in runs]),
        unused_while_waiting_share=mean_estimate(
            [run.use.unused_while_waiting_share for run in runs]
        ),
        task_ratio=ratio_estimate(
            [run.use.task_s for run in runs], [run.use.task_s for run in fair_runs]
        ),
        driver_cpu_s=mean_estimate([run.driver_cpu_s for run in runs]),
        service_cpu_s=mean_estimate([run.service_cpu_s for run in runs]),
        other_cores=mean_estimate([run.other_cores for run in runs]),
        load=max(max(run.load) for run in runs),
        known_share=float(np.mean([run.known_share for run in runs])),
        num_silences=sum(run.num_silences for run in runs),
        num_wrong=sum(len(run.wrong) for run in runs),
    )


def _means(records: Sequence[RunRecord]) -> FloatArray:
    """Mean completion time of every run, float64[num_runs]."""
    return np.array([np.mean(record.seconds) for record in records], np.float64)


def _check_pair(one: RunRecord, other: RunRecord) -> None:
    """Refuse two runs of one seed whose queries or arrival times differ."""
    if _arrivals(one) != _arrivals(other):
        raise ConfigError(
            f"seed {one.key.seed}: {one.key.policy} and {other.key.policy} were not given the same "
            "queries at the same times; remove the older run"
        )


def _arrivals(record: RunRecord) -> list[tuple[int, float]]:
    return [(ending.query, ending.arrival_s) for ending in record.endings]


def _ratio_to_fifo(
    records: Mapping[int, RunRecord], fifo: Mapping[int, RunRecord]
) -> Estimate | None:
    seeds = sorted({*records} & {*fifo})
    if not seeds:
        return None
    base = _means([fifo[seed] for seed in seeds])
    return ratio_estimate(_means([records[seed] for seed in seeds]), base)


def _foretold_s(
    key: tuple[str, int], seeds: Sequence[int], foretold: Mapping[str, BySeed]
) -> Estimate | None:
    by_seed = foretold.get(key[0], {})
    if key[1] or not {*seeds} <= {*by_seed}:
        return None
    return mean_estimate([by_seed[seed] for seed in seeds])


def _foretold_ratio(
    key: tuple[str, int], seeds: Sequence[int], foretold: Mapping[str, BySeed]
) -> Estimate | None:
    policy, repeat = key
    by_seed = foretold.get(policy, {})
    fair = foretold.get(BASELINE, {})
    if repeat or not {*seeds} <= {*by_seed} & {*fair}:
        return None
    return ratio_estimate([by_seed[seed] for seed in seeds], [fair[seed] for seed in seeds])


def draw(result: TpchResult, path: Path) -> None:
    """Draw a picture (PNG): ratios to FAIR by seed, and the distribution of completion times."""
    base = result.policies[BASELINE]
    mean_s = dict(zip(base.seeds, base.mean_s, strict=True))
    ratios = {}
    for name, policy in result.policies.items():
        if name != BASELINE:
            fair = np.array([mean_s[seed] for seed in policy.seeds])
            ratios[name] = (policy.mean_s / fair, policy.ratio_to_fair)
    settings = result.settings
    queries = f"{settings['num_queries']} TPC-H queries, scale factor {settings['scale_factor']:g}"
    gaps = ", ".join(f"{gap:.2f}" for gap in result.gaps_s)
    title = f"{queries}, {settings['cores']} cores, one every {gaps} s"
    ratios_and_times(ratios, result.seconds, BASELINE, path, title)
