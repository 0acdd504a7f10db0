"""Measure how well the live page estimates what FAIR would have taken.

    python -m benchmarks.fair_estimate

Simulated applications run under a policy, and the same jobs with the same task durations once more
under FAIR. Prints the page's estimate of the mean completion time / that under FAIR, and the ratio
that was measured, over all applications, by policy and load, for jobs whose stages are all known
and for those whose stages appear one after another, as those of Spark's SQL queries do.
"""

from __future__ import annotations

import argparse
from typing import Any

from parcae.service.admin import Board
from parcae.service.protocol import ClientMessage, OrdersMessage, encode
from parcae.service.serve import ServeSettings, make_service, simulated_client
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import Workload

LOADS = ("load:0.6", "load:0.9")
POLICIES = ("fair", "srpt", "parcae")


def played(
    policy: str,
    workload: Workload,
    num_jobs: int,
    num_cores: int,
    arrivals: str,
    seed: int,
    is_open: bool,
) -> dict[str, Any]:
    """Run one application under a policy, and return what the live page then shows.

    Args:
        policy: the policy in force.
        workload: its jobs, which the service has a profile of.
        num_jobs, num_cores, arrivals, seed: as in `simulated_client`.
        is_open: report a stage only when it becomes runnable.
    """
    service = make_service(
        ServeSettings(policy=policy, num_cores=num_cores, admin_port=0), workload
    )
    board = Board(service)
    service.watchers.append(board)
    client = simulated_client(workload, num_jobs, num_cores, arrivals=arrivals, seed=seed)
    client.is_open = is_open
    session = service.open()
    session.receive(encode(client.hello()))

    def orders(message: ClientMessage) -> OrdersMessage:
        (reply,) = session.receive(encode(message))
        assert isinstance(reply, OrdersMessage), reply
        return reply

    client.run(orders)
    board.estimate(board.jobs_to_play())
    return board.snapshot()


def ratios(policy: str, workload: Workload, seeds: range, **setting: Any) -> tuple[float, float]:
    """The mean completion time under a policy / under FAIR over seeds: estimated and measured."""
    took_s = estimated_s = fair_s = 0.0
    for seed in seeds:
        page = played(policy, workload, seed=seed, **setting)
        took_s += page["took_s"]
        estimated_s += page["took_s"] / page["against_fair"]["mean"]
        fair_s += played("fair", workload, seed=seed, **setting)["took_s"]
    return took_s / estimated_s, took_s / fair_s


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workload", default="tpch", help="a built-in workload or a workload file")
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--cores", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=20, help="applications")
    parser.add_argument("--seed-start", type=int, default=1000)
    given = parser.parse_args()
    workload = load_workload(given.workload)
    seeds = range(given.seed_start, given.seed_start + given.seeds)
    for policy in POLICIES:
        for arrivals in LOADS:
            for is_open in (False, True):
                setting = {"num_jobs": given.jobs, "num_cores": given.cores, "arrivals": arrivals}
                estimated, measured = ratios(policy, workload, seeds, is_open=is_open, **setting)
                stages = "stages appear one by one" if is_open else "all stages are known"
                text = f"{policy}, {arrivals}, {stages}: estimated {estimated:.3f}"
                print(f"{text}, measured {measured:.3f}", flush=True)


if __name__ == "__main__":
    main()
