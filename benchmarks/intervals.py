"""How often 95% confidence intervals over a few seeds contain the value of a large pool of seeds.

    parcae compare tpch --policies fair,srpt,tuned --cores 50 --jobs 50 --arrivals load:0.85 \
        --seeds 2000 --json pool.json
    python benchmarks/intervals.py pool.json --table tests/evaluation/streams.csv
    python benchmarks/intervals.py tests/evaluation/streams.csv --samples 1000

The pool has the average JCT of every seed under every policy. Samples of some seeds are drawn from
it with replacement, an interval is made of each, and the share of the intervals that contain the
pool's own mean (or ratio of means) is printed: it should be 95%.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parcae.base.files import write_text
from parcae.evaluation.statistics import METHODS, Method, mean_estimate, ratio_estimate

FloatArray = npt.NDArray[np.float64]
#: The average JCT in seconds of every seed, by policy.
Pool = dict[str, FloatArray]
#: Sizes of the samples.
COUNTS = (10, 20, 50, 100)


def read_pool(path: Path) -> Pool:
    """Read a pool from the JSON of `parcae compare`, or from the table that `write_pool` writes."""
    if path.suffix == ".json":
        policies = json.loads(path.read_text())["policies"]
        return {name: np.array(p["average_jct_s_by_seed"]) for name, p in policies.items()}
    with path.open(newline="") as stream:
        names, *rows = csv.reader(stream)
    return dict(zip(names, np.array(rows, np.float64).T, strict=True))


def write_pool(pool: Pool, path: Path) -> None:
    """Write a table with a row for every seed, in seconds."""
    rows = (",".join(f"{value:.3f}" for value in row) for row in zip(*pool.values(), strict=True))
    write_text(path, "\n".join([",".join(pool), *rows]) + "\n")


def coverage(
    above: FloatArray, below: FloatArray | None, count: int, method: Method, samples: int
) -> float:
    """Share of intervals over `count` drawn seeds that contain the value of the whole pool.

    Args:
        above: float64[num_seeds], the pool's values of a policy.
        below: float64[num_seeds], those of another, for the ratio of means; None for the mean.
        count: number of seeds in a sample.
        method: the method of the intervals.
        samples: number of samples.
    """
    # Two generators, so that all methods see the same samples.
    drawing = np.random.default_rng(count)
    resampling = np.random.default_rng(0)
    truth = above.mean() if below is None else above.mean() / below.mean()
    held = 0
    for _ in range(samples):
        seeds = drawing.integers(0, len(above), count)
        if below is None:
            estimate = mean_estimate(above[seeds], method, resampling)
        else:
            estimate = ratio_estimate(above[seeds], below[seeds], method, resampling)
        held += estimate.low <= truth <= estimate.high
    return held / samples


def main() -> None:
    """Write the table of a pool, or print the coverage of every method on it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--table", type=Path, help="write the pool as a table, and nothing else")
    parser.add_argument("--samples", type=int, default=1_000)
    options = parser.parse_args()
    pool = read_pool(options.pool)
    if options.table:
        write_pool(pool, options.table)
        return
    first, *others = pool
    pairs = [(name, None) for name in pool] + [(name, first) for name in others]
    print("| method | of | " + " | ".join(f"{count} seeds" for count in COUNTS) + " |")
    print("| --- | --- |" + " --- |" * len(COUNTS))
    for name, base in pairs:
        for method in METHODS:
            below = None if base is None else pool[base]
            shares = [coverage(pool[name], below, n, method, options.samples) for n in COUNTS]
            of = name if base is None else f"{name} / {base}"
            cells = " | ".join(f"{share:.1%}" for share in shares)
            print(f"| {method} | {of} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
