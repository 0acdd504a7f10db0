"""The result of `benchmarks.spark.tpch`: ratios paired by seed, with confidence intervals."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from benchmarks.spark.demo import interval
from benchmarks.spark.work import check_same

from parcae.base.errors import ConfigError
from parcae.cli.tables import print_rows
from parcae.evaluation.pictures import as_label, in_legend, new_picture, tidy, write_picture
from parcae.evaluation.statistics import DEFAULT_METHOD, METHODS, mean_estimate, ratio_estimate
from parcae.evaluation.who_pays import later_counts, later_estimates, later_sentence

BASELINE = "fair"
#: The name of a repeat of FAIR in tables.
AGAIN = f"{BASELINE} again"
_SHARES = (
    "busy_share",
    "makespan_busy_share",
    "idle_while_waiting_share",
    "unused_while_waiting_share",
)
_MEANS = ("driver_cpu_s", "service_cpu_s", "other_cores", "known_share")

Record = Mapping[str, Any]
#: By policy and number of the repeat, then by seed.
Records = Mapping[tuple[str, int], Mapping[int, Record]]


def read_result(works: Sequence[Path]) -> dict[str, Any]:
    """The result of the judged runs of one or several work folders.

    The folders must have the same settings and no runs in common.
    """
    records: defaultdict[tuple[str, int], dict[int, Record]] = defaultdict(dict)
    foretold: defaultdict[str, dict[int, float]] = defaultdict(dict)
    settings = _settings(works[0])
    gaps_s = []
    for work in works:
        check_same(settings, _settings(work), f"{works[0]} and {work}")
        for path in sorted((work / "runs").glob("*.json")):
            record = json.loads(path.read_text())
            runs = records[record["policy"], record["repeat"]]
            if record["seed"] in runs:
                raise ConfigError(f"{path.name} was run in another folder, too; leave one out")
            runs[record["seed"]] = record
        for path in (work / "foretold").glob("*.json"):
            said = json.loads(path.read_text())
            foretold[said["policy"]][said["seed"]] = said["mean_s"]
        if (calibration := work / "calibration.json").exists():
            gaps_s.append(json.loads(calibration.read_text())["gap_s"])
    if not records[BASELINE, 0]:
        raise ConfigError(f"{', '.join(map(str, works))}: no run under {BASELINE} is finished yet")
    policies = {}
    for policy, repeat in sorted(records, key=lambda key: (key[0] != BASELINE, key[1], key[0])):
        name = policy if not repeat else AGAIN + (f" {repeat}" if repeat > 1 else "")
        if found := _policy((policy, repeat), records, {} if repeat else foretold):
            policies[name] = found
    versions = {record["spark"] for runs in records.values() for record in runs.values()}
    return {
        "settings": settings,
        "gaps_s": gaps_s,
        "spark": sorted(versions),
        "policies": policies,
        "method": METHODS[DEFAULT_METHOD],
    }


def _settings(work: Path) -> Record:
    path = work / "settings.json"
    if not path.exists():
        raise ConfigError(f"{work} is no work folder of this script: it has no {path.name}")
    settings: Record = json.loads(path.read_text())
    return settings


def _policy(
    key: tuple[str, int], records: Records, foretold: Mapping[str, Mapping[int, float]]
) -> dict[str, Any]:
    """The result of one policy on the seeds that FAIR has completed too; nothing without any."""
    fair = records[BASELINE, 0]
    seeds = sorted({*records[key]} & {*fair})
    if not seeds:
        return {}
    runs = [records[key][seed] for seed in seeds]
    fair_runs = [fair[seed] for seed in seeds]
    for one, other in zip(runs, fair_runs, strict=True):
        if _arrivals(one) != _arrivals(other):
            raise ConfigError(
                f"seed {one['seed']}: {key[0]} and {BASELINE} were not given the same queries at "
                "the same times; remove the older run"
            )
    # Query by query: both runs have the same queries in the same order.
    ratios = [_seconds(a) / _seconds(b) for a, b in zip(runs, fair_runs, strict=True)]
    frames = (pl.DataFrame({"ratio_to_first": ratio}) for ratio in ratios)
    pays = later_estimates(pl.concat(frame.select(later_counts()) for frame in frames))
    worst = float(max(map(max, ratios)))
    later = pays["later_than_first_share"].mean
    seconds = np.concatenate([_seconds(run) for run in runs])
    result: dict[str, Any] = {
        "seeds": seeds,
        "mean_s": _means(runs),
        "average_s": mean_estimate(_means(runs)).within(0.0).to_json(),
        "ratio_to_fair": ratio_estimate(_means(runs), _means(fair_runs)).to_json(),
        "ratio_to_fifo": _ratio_to_fifo(records[key], records.get(("fifo", 0), {})),
        "foretold_ratio": None,
        "pays": {
            **{name: share.to_json() for name, share in pays.items()},
            "worst_ratio_to_first": worst,
        },
        "pays_text": later_sentence(later, worst, BASELINE),
        "p95_s": float(np.percentile(seconds, 95)),
        "makespan_ratio": ratio_estimate(
            [run["makespan_s"] for run in runs], [run["makespan_s"] for run in fair_runs]
        ).to_json(),
        "task_ratio": ratio_estimate(
            [run["use"]["task_s"] for run in runs], [run["use"]["task_s"] for run in fair_runs]
        ).to_json(),
        **{name: mean_estimate([run["use"][name] for run in runs]).to_json() for name in _SHARES},
        **{name: mean_estimate([run[name] for run in runs]).to_json() for name in _MEANS},
        "load": max(max(run["load"]) for run in runs),
        "num_silences": sum(run["num_silences"] for run in runs),
        "num_wrong": sum(run["num_wrong"] for run in runs),
        "seconds": seconds.tolist(),
    }
    said, base = foretold.get(key[0], {}), foretold.get(BASELINE, {})
    if {*seeds} <= {*said} & {*base}:
        ratio = ratio_estimate([said[seed] for seed in seeds], [base[seed] for seed in seeds])
        result["foretold_ratio"] = ratio.to_json()
    return result


def _seconds(record: Record) -> Any:
    """Completion times in s, in order of arrival."""
    return np.array([ending["seconds"] for ending in record["endings"]])


def _means(records: Sequence[Record]) -> list[float]:
    return [float(_seconds(record).mean()) for record in records]


def _arrivals(record: Record) -> list[tuple[int, float]]:
    return [(ending["query"], ending["arrival_s"]) for ending in record["endings"]]


def _ratio_to_fifo(runs: Mapping[int, Record], fifo: Mapping[int, Record]) -> Any:
    seeds = sorted({*runs} & {*fifo})
    if not seeds:
        return None
    base = _means([fifo[seed] for seed in seeds])
    return ratio_estimate(_means([runs[seed] for seed in seeds]), base).to_json()


def print_result(result: Mapping[str, Any]) -> None:
    """Print the tables, the arrival rate, and which queries end later than under FAIR."""
    settings = result["settings"]
    title = f"Spark {', '.join(result['spark'])}: {_title(settings)}"
    policies = result["policies"]
    times = ("average_s", "ratio_to_fair", "ratio_to_fifo", "foretold_ratio", "makespan_ratio")
    rows = [
        (
            name,
            str(len(one["seeds"])),
            *(interval(one[column]) for column in times),
            f"{one['p95_s']:.1f}",
        )
        for name, one in policies.items()
    ]
    print_rows(title, ("policy", "seeds", *times, "p95_s"), rows)
    estimates = (*_SHARES, "task_ratio", *_MEANS)
    counts = ("load", "num_silences", "num_wrong")
    rows = [
        (
            name,
            *(f"{one[column]['mean']:.3f}" for column in estimates),
            *(f"{one[column]:g}" for column in counts),
        )
        for name, one in policies.items()
    ]
    print_rows("Cores and processor time", ("policy", *estimates, *counts), rows)
    gaps = ", ".join(f"{gap:.2f}" for gap in result["gaps_s"])
    print(f"A query every {gaps} s on average; ratios are paired by seed.")
    for name, one in policies.items():
        if name != BASELINE:
            print(f"{name}: {one['pays_text']}")


def _title(settings: Record) -> str:
    queries = f"{settings['queries']} TPC-H queries of scale factor {settings['scale_factor']:g}"
    return f"{queries}, {settings['cores']} cores"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw a picture (PNG): ratios to FAIR by seed, and the distribution of completion times."""
    figure = new_picture(10, 3.8)
    left, right = figure.subplots(1, 2)
    policies = result["policies"]
    fair_s = dict(zip(policies[BASELINE]["seeds"], policies[BASELINE]["mean_s"], strict=True))
    others = [name for name in policies if name != BASELINE]
    for row, name in enumerate(others):
        one = policies[name]
        ratios = np.array(one["mean_s"]) / [fair_s[seed] for seed in one["seeds"]]
        # Spread the seeds' dots vertically, so that they do not cover each other.
        left.scatter(ratios, row + np.linspace(-0.2, 0.2, len(ratios)), s=14, alpha=0.5)
        left.plot(one["ratio_to_fair"]["mean"], row, "D", color="black")
    left.axvline(1.0, color="#999999", linewidth=1, zorder=0)
    left.set_yticks(range(len(others)), [as_label(name) for name in others])
    left.invert_yaxis()
    for name, one in policies.items():
        times = np.sort(one["seconds"])
        right.step(
            times, np.arange(1, len(times) + 1) / len(times), where="post", label=in_legend(name)
        )
    tidy(left, (f"average completion time / {BASELINE}'s, by seed, and its mean", ""))
    tidy(right, ("completion time (s)", "share of queries"))
    write_picture(figure, path, _title(result["settings"]))
