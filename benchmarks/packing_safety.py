"""How much the set network and the withholding rule can harm logs that they were not made for.

    python -m benchmarks.packing_safety            logs of the judging seeds
    python -m benchmarks.packing_safety --develop  logs to develop with
    python -m benchmarks.packing_safety --long     logs of five times as many jobs
    python -m benchmarks.packing_safety FILE.swf ...

Every made-up log is run under EASY and the policies; ratios are to EASY on the same log. The
judging logs have other seeds and other kinds of jobs than those to develop with, and nothing was
chosen on them.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parcae.rigid.config import PackingConfig
from parcae.rigid.evaluation.compare import run_policy
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.logs import read_log
from parcae.rigid.policies.catalog import PackingSetting, make_packing_policy

POLICIES = ("easy", "sjf", "xfactor", "sjf-backfill", "set", "set+unguarded")
_NUM_JOBS = 4_000
_NUM_LONG = 20_000
#: Logs of each kind and load.
_NUM_LOGS = 4
_DEVELOP_SEED = 1
_JUDGE_SEED = 9_401


@dataclass(frozen=True)
class Kind:
    """A kind of made-up log.

    Args:
        name: its name.
        median_s: median duration of a job in seconds.
        sigma: standard deviation of the logarithm of the durations.
        widest: largest share of the cluster that a job needs; widths are powers of two.
        overestimate: estimates are up to this many times the durations.
        num_processors: size of the cluster.
        burst: jobs that arrive together, on average.
    """

    name: str
    median_s: float
    sigma: float
    widest: float
    overestimate: float
    num_processors: int
    burst: float = 1.0


DEVELOP = (
    Kind("short and narrow", 120.0, 1.5, 0.1, 5.0, 256),
    Kind("wide", 1_800.0, 1.2, 1.0, 2.0, 128),
    Kind("long, bad estimates", 7_200.0, 2.0, 0.5, 20.0, 512),
)
JUDGE = (
    Kind("mixed", 600.0, 1.8, 0.5, 4.0, 320),
    Kind("wide, in bursts", 3_000.0, 1.0, 1.0, 3.0, 96, 8.0),
    Kind("many short, few very long", 60.0, 2.5, 0.25, 10.0, 1_024),
    Kind("exact estimates", 900.0, 1.5, 0.5, 1.0, 200),
)
LOADS = (0.2, 0.5, 0.8, 1.0, 1.4)


def made_up(kind: Kind, load: float, seed: int, num_jobs: int = _NUM_JOBS) -> RigidJobs:
    """A log of a kind with this much work, as a share of what the cluster can do."""
    rng = np.random.default_rng([seed, round(load * 100)])
    duration = np.maximum(1, np.rint(rng.lognormal(np.log(kind.median_s), kind.sigma, num_jobs)))
    steps = int(np.log2(kind.widest * kind.num_processors))
    width = np.minimum(kind.num_processors, 2 ** rng.integers(0, steps + 1, num_jobs))
    estimate = np.rint(duration * rng.uniform(1.0, kind.overestimate, num_jobs))
    work = float((duration * width).sum())
    bursts = np.cumsum(rng.random(num_jobs) < 1.0 / kind.burst)
    gaps = rng.exponential(1.0, int(bursts[-1]) + 1)
    times = np.cumsum(gaps)[bursts]
    length = work / (load * kind.num_processors)
    arrival = np.rint(times * length / times[-1])
    return RigidJobs(
        f"{kind.name}, load {load:g}",
        arrival.astype(np.int64),
        duration.astype(np.int64),
        width.astype(np.int64)[:, None],
        np.array([kind.num_processors]),
        estimate=np.maximum(duration, estimate).astype(np.int64),
        step="s",
    )


def _figures(name: str, logs: list[RigidJobs]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Mean bounded slowdown and makespan of each log under a policy, float64[num_logs, 2]."""
    config = PackingConfig.for_log(logs[0])
    policy = make_packing_policy(name, PackingSetting(is_exact=True))
    rows = []
    for outcome in run_policy(policy, logs, config, 1):
        jobs = outcome.jobs
        wait = outcome.start - jobs.arrival
        bounded = (wait + jobs.duration) / np.maximum(config.bound, jobs.duration)
        rows.append((np.maximum(1.0, bounded).mean(), outcome.finish.max() - jobs.arrival[0]))
    return np.array(rows)


def _measure(logs: list[RigidJobs], names: tuple[str, ...]) -> None:
    """Print EASY's slowdown, and each policy's mean and largest ratios to it."""
    usual = _figures(names[0], logs)
    cells = [f"{names[0]} {usual[:, 0].mean():.2f}"]
    for name in names[1:]:
        ratios = _figures(name, logs) / usual
        slowdown, makespan = (f"{r.mean():.3f} ({r.max():.3f})" for r in ratios.T)
        cells.append(f"{name} {slowdown} / {makespan}")
    print(f"{logs[0].name}: {'; '.join(cells)}", flush=True)


def main(arguments: list[str]) -> None:
    """Print, for each log, EASY's mean bounded slowdown and the ratios to it."""
    print(
        "EASY's mean bounded slowdown; then ratios to EASY of slowdown / makespan, mean (largest)"
    )
    files = [Path(one) for one in arguments if not one.startswith("--")]
    for path in files:
        _measure([read_log(path).jobs], POLICIES)
    if files:
        return
    is_developing = "--develop" in arguments
    first = _DEVELOP_SEED if is_developing else _JUDGE_SEED
    num_jobs = _NUM_LONG if "--long" in arguments else _NUM_JOBS
    for kind in DEVELOP if is_developing else JUDGE:
        for load in LOADS:
            logs = [made_up(kind, load, first + row, num_jobs) for row in range(_NUM_LOGS)]
            _measure(logs, POLICIES)


if __name__ == "__main__":
    main(sys.argv[1:])
