"""The result of `parcae spark tpch`: policies paired by seed, with intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.evaluation.ratio_plots import ratios_and_times
from parcae.evaluation.statistics import METHODS, Estimate, mean_estimate, ratio_estimate
from parcae.evaluation.who_pays import WhoPays, who_pays
from parcae.spark.tpch_calibration import calibration_of
from parcae.spark.tpch_foretold import BySeed, foretold_of
from parcae.spark.tpch_plan import BASELINE
from parcae.spark.tpch_record import RunRecord, check_same, read_records, read_settings

FloatArray = npt.NDArray[np.float64]
#: What a repeat of FAIR is called in tables.
AGAIN = f"{BASELINE} again"
_PERCENTILE = 95


@dataclass(frozen=True)
class PolicyResult:
    """One policy over the seeds that it and FAIR have finished.

    Args:
        name: the policy; `AGAIN` is FAIR once more.
        seeds: as many as the arrays of the following have rows.
        mean_s: mean completion time of every seed, float64[num_seeds].
        average_s: their mean.
        ratio_to_fair, ratio_to_fifo: of mean completion times, paired by seed; None without runs
            under that policy.
        foretold_s: average completion time by the simulator; None where it was not asked.
        foretold_ratio: to FAIR by the simulator.
        pays: which queries end later than under FAIR.
        p95_s: 95th percentile of the completion times of all seeds.
        makespan_ratio: to FAIR.
        busy_share: of the cores while queries arrive.
        makespan_busy_share: of the cores until the last result.
        idle_while_waiting_share, unused_while_waiting_share: see `CoreUse`.
        task_ratio: time that tasks took, in units of that under FAIR.
        driver_cpu_s, service_cpu_s: processor time of a run beside its tasks.
        other_cores: cores that other processes kept busy.
        load: largest load average before or after a run.
        known_share: of the queries whose plan the profile knows.
        num_silences: how often the plugin had no orders for a while.
        num_wrong: results that were not those of the first run.
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
        told: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Estimate | WhoPays):
                told[name] = value.to_json()
            elif isinstance(value, np.ndarray):
                told[name] = value.tolist()
            else:
                told[name] = None if isinstance(value, float) and math.isnan(value) else value
        return told


@dataclass(frozen=True)
class TpchResult:
    """All policies, FAIR first, then its repeats.

    Args:
        settings: of the work folders.
        policies: by name; FAIR first.
        seconds: completion times of all seeds, by policy.
        gaps_s: mean time between arrivals in every work folder.
        spark: versions.
    """

    settings: Mapping[str, Any]
    policies: Mapping[str, PolicyResult]
    seconds: Mapping[str, FloatArray]
    gaps_s: tuple[float, ...]
    spark: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it by name; `policies` and `seconds` by policy, `method` of the intervals."""
        return {
            "settings": dict(self.settings),
            "gaps_s": self.gaps_s,
            "spark": self.spark,
            "policies": {name: policy.to_json() for name, policy in self.policies.items()},
            "seconds": {name: seconds.tolist() for name, seconds in self.seconds.items()},
            "method": METHODS["t"],
        }


def read_result(works: Sequence[Path]) -> TpchResult:
    """The judged runs of one work folder, or of several.

    Their settings must be the same, and their seeds must differ.

    Raises:
        ConfigError: no seed is finished under FAIR, settings that differ, or a run that lies in two
            folders.
        FormatError: a damaged record.
    """
    settings = read_settings(works[0])
    records: dict[tuple[str, int], dict[int, RunRecord]] = defaultdict(dict)
    foretold: dict[str, BySeed] = defaultdict(dict)
    for work in works:
        check_same(settings, read_settings(work), f"{works[0]} and {work}")
        for record in read_records(work):
            runs = records[record.key.policy, record.key.repeat]
            if record.key.seed in runs:
                told = f"{work}: seed {record.key.seed} under {record.key.policy}"
                raise ConfigError(f"{told} was run in another folder, too; leave one of them out")
            runs[record.key.seed] = record
        for policy, by_seed in foretold_of(work).items():
            foretold[policy].update(by_seed)
    if not records.get((BASELINE, 0)):
        raise ConfigError(f"{', '.join(map(str, works))}: no run under {BASELINE} is finished yet")
    policies = {}
    seconds = {}
    for policy, repeat in sorted(records, key=lambda key: (key[0] != BASELINE, key[1], key[0])):
        name = policy if not repeat else AGAIN + (f" {repeat}" if repeat > 1 else "")
        found = _policy(name, (policy, repeat), records, foretold)
        if found is not None:
            policies[name] = found
            runs = records[policy, repeat]
            seconds[name] = np.concatenate([runs[seed].seconds for seed in found.seeds])
    gaps = [calibrated.gap_s for calibrated in map(calibration_of, works) if calibrated]
    versions = {record.spark for runs in records.values() for record in runs.values()}
    return TpchResult(settings, policies, seconds, tuple(gaps), tuple(sorted(versions)))


def _policy(
    name: str,
    key: tuple[str, int],
    records: Mapping[tuple[str, int], Mapping[int, RunRecord]],
    foretold: Mapping[str, BySeed],
) -> PolicyResult | None:
    """One policy on the seeds that FAIR has finished, too; None where there are none."""
    fair = records[BASELINE, 0]
    seeds = tuple(sorted({*records[key]} & {*fair}))
    if not seeds:
        return None
    own = [records[key][seed] for seed in seeds]
    base = [fair[seed] for seed in seeds]
    ratios = []
    for one, other in zip(own, base, strict=True):
        _check_pair(one, other)
        ratios.append(np.array(one.seconds) / np.array(other.seconds))
    mean_s = _means(own)
    return PolicyResult(
        name=name,
        seeds=seeds,
        mean_s=mean_s,
        average_s=mean_estimate(mean_s),
        ratio_to_fair=ratio_estimate(mean_s, _means(base)),
        ratio_to_fifo=_ratio_to_fifo(records[key], records.get(("fifo", 0), {})),
        foretold_s=_foretold_s(key, seeds, foretold),
        foretold_ratio=_foretold_ratio(key, seeds, foretold),
        pays=who_pays(ratios),
        p95_s=float(np.percentile(np.concatenate([run.seconds for run in own]), _PERCENTILE)),
        makespan_ratio=ratio_estimate(
            [run.makespan_s for run in own],
            [run.makespan_s for run in base],
        ),
        busy_share=mean_estimate([run.use.busy_share for run in own]),
        makespan_busy_share=mean_estimate([run.use.makespan_busy_share for run in own]),
        idle_while_waiting_share=mean_estimate([run.use.idle_while_waiting_share for run in own]),
        unused_while_waiting_share=mean_estimate(
            [run.use.unused_while_waiting_share for run in own],
        ),
        task_ratio=ratio_estimate(
            [run.use.task_s for run in own],
            [run.use.task_s for run in base],
        ),
        driver_cpu_s=mean_estimate([run.driver_cpu_s for run in own]),
        service_cpu_s=mean_estimate([run.service_cpu_s for run in own]),
        other_cores=mean_estimate([run.other_cores for run in own]),
        load=max(max(run.load) for run in own),
        known_share=float(np.mean([run.known_share for run in own])),
        num_silences=sum(run.num_silences for run in own),
        num_wrong=sum(len(run.wrong) for run in own),
    )


def _means(records: Sequence[RunRecord]) -> FloatArray:
    return np.array([np.mean(record.seconds) for record in records], np.float64)


def _check_pair(one: RunRecord, other: RunRecord) -> None:
    """Refuse runs of one seed that did not get the same queries at the same times.

    Raises:
        ConfigError: they did not.
    """
    if _asked(one) != _asked(other):
        raise ConfigError(
            f"seed {one.key.seed}: {one.key.policy} and {other.key.policy} were not given the same "
            "queries at the same times; remove the older run"
        )


def _asked(record: RunRecord) -> list[tuple[int, float]]:
    return [(ending.query, ending.arrival_s) for ending in record.endings]


def _ratio_to_fifo(own: Mapping[int, RunRecord], fifo: Mapping[int, RunRecord]) -> Estimate | None:
    seeds = sorted({*own} & {*fifo})
    if not seeds:
        return None
    base = _means([fifo[seed] for seed in seeds])
    return ratio_estimate(_means([own[seed] for seed in seeds]), base)


def _foretold_s(
    key: tuple[str, int],
    seeds: Sequence[int],
    foretold: Mapping[str, BySeed],
) -> Estimate | None:
    own = foretold.get(key[0], {})
    if key[1] or not {*seeds} <= {*own}:
        return None
    return mean_estimate([own[seed] for seed in seeds])


def _foretold_ratio(
    key: tuple[str, int],
    seeds: Sequence[int],
    foretold: Mapping[str, BySeed],
) -> Estimate | None:
    policy, repeat = key
    own = foretold.get(policy, {})
    fair = foretold.get(BASELINE, {})
    if repeat or not {*seeds} <= {*own} & {*fair}:
        return None
    return ratio_estimate([own[seed] for seed in seeds], [fair[seed] for seed in seeds])


def draw(result: TpchResult, path: Path) -> None:
    """A picture (PNG): ratios to FAIR seed by seed, and the distribution of completion times."""
    base = result.policies[BASELINE]
    mean_s = dict(zip(base.seeds, base.mean_s, strict=True))
    ratios = {}
    for name, policy in result.policies.items():
        if name != BASELINE:
            fair = np.array([mean_s[seed] for seed in policy.seeds])
            ratios[name] = (policy.mean_s / fair, policy.ratio_to_fair)
    told = result.settings
    queries = f"{told['num_queries']} TPC-H queries, scale factor {told['scale_factor']:g}"
    title = f"{queries}, {told['cores']} cores, load {told['load']:g}"
    ratios_and_times(ratios, result.seconds, BASELINE, path, title)
