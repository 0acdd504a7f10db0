"""Small files of rigid jobs: job sets, and a log."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

#: Two jobs that cannot run together; the second is shorter and waits.
PAIR = {
    "name": "pair",
    "arrival_window": 5,
    "params": {"job_slots": 2, "backlog_size": 1, "time_horizon": 10, "capacity": [4, 4]},
    "jobs": [[0, 4, 3, 1], [1, 2, 2, 1]],
}
#: Four jobs arrive at once for one job slot and a backlog of two: the fourth is lost.
CROWD = {
    "name": "crowd",
    "arrival_window": 2,
    "params": {"job_slots": 1, "backlog_size": 2, "time_horizon": 5, "capacity": 1},
    "jobs": [[1, 2, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]],
}


def write_packing_files(folder: Path) -> None:
    """`deeprm.json` with two sequences, `log.swf` with 800 jobs, and `sacct.txt` with 100."""
    (folder / "deeprm.json").write_text(json.dumps({"sequences": [PAIR, CROWD]}))
    (folder / "log.swf").write_text(swf_text(800))
    (folder / "sacct.txt").write_text(sacct_text(100))


def sacct_text(num_jobs: int) -> str:
    """An export of sacct with its times in seconds: two partitions, and waits of 30 s."""
    lines = ["JobID|User|Partition|State|Submit|Start|End|Elapsed|Timelimit|AllocCPUS"]
    for row in range(num_jobs):
        submit = 1_700_000_000 + 20 * row
        times = f"{submit}|{submit + 30}|{submit + 90}|00:01:00|00:05:00"
        lines.append(f"{row}|u{row % 4}|{'long' if row % 2 else 'short'}|COMPLETED|{times}|2")
    return "\n".join(lines) + "\n"


def swf_text(num_jobs: int, num_processors: int = 16) -> str:
    """A busy log of short and of long jobs."""
    rng = np.random.default_rng(5)
    submit = np.cumsum(rng.exponential(120, num_jobs)).astype(int)
    run_time = np.where(
        rng.random(num_jobs) < 0.8,
        rng.integers(5, 60, num_jobs),
        rng.integers(600, 1_200, num_jobs),
    )
    taken = rng.integers(1, num_processors // 2, num_jobs)
    lines = [f"; MaxProcs: {num_processors}", "; UnixStartTime: 0"]
    for row in range(num_jobs):
        run = int(run_time[row])
        requested = 2 * int(run_time[row])
        lines.append(
            f"{row + 1} {submit[row]} -1 {run} {taken[row]} -1 -1 -1 {requested} "
            "-1 1 -1 -1 -1 0 0 -1 -1"
        )
    return "\n".join(lines) + "\n"
