"""Measure how well the live page estimates what FAIR would have taken.

    python -m benchmarks.fair_estimate

Simulated applications run under FAIR itself, so that the estimate should equal what is measured.
Prints the estimated mean completion time over the measured one, with a 95% confidence interval over
applications, by load, for jobs whose stages are all known and for those whose stages appear one
after another, as those of Spark's SQL queries do.
"""

from __future__ import annotations

import argparse

from parcae.evaluation.statistics import ratio_estimate, with_interval
from parcae.service.live_tables import EndedJob
from parcae.service.protocol import ClientMessage, OrdersMessage, encode
from parcae.service.serve import ServeSettings, make_service, simulated_client
from parcae.service.session import Watcher
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import Workload

LOADS = ("load:0.6", "load:0.9")


class _Ends(Watcher):
    """The jobs that have ended."""

    def __init__(self) -> None:
        self.jobs: list[EndedJob] = []

    def ended(self, job: EndedJob) -> None:
        """Keep the job."""
        self.jobs.append(job)


def mean_times(
    workload: Workload, num_jobs: int, num_cores: int, arrivals: str, seed: int, is_open: bool
) -> tuple[float, float]:
    """Run one application under FAIR.

    Args:
        workload: its jobs, which the service has a profile of.
        num_jobs, num_cores, arrivals, seed: as in `simulated_client`.
        is_open: report a stage only when it becomes runnable.

    Returns:
        (estimated, measured) mean completion time in ms.
    """
    service = make_service(
        ServeSettings(policy="fair", num_cores=num_cores, admin_port=0), workload
    )
    ends = _Ends()
    service.watchers.append(ends)
    client = simulated_client(workload, num_jobs, num_cores, arrivals=arrivals, seed=seed)
    client.is_open = is_open
    session = service.open()
    session.receive(encode(client.hello()))

    def orders(message: ClientMessage) -> OrdersMessage:
        (reply,) = session.receive(encode(message))
        assert isinstance(reply, OrdersMessage), reply
        return reply

    client.run(orders)
    times = [(job.fair_ms or 0.0, float(job.took_ms)) for job in ends.jobs]
    return sum(fair for fair, _ in times) / len(times), sum(took for _, took in times) / len(times)


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
    for arrivals in LOADS:
        for is_open in (False, True):
            pairs = [
                mean_times(workload, given.jobs, given.cores, arrivals, seed, is_open)
                for seed in range(given.seed_start, given.seed_start + given.seeds)
            ]
            ratio = ratio_estimate(*zip(*pairs, strict=True))
            stages = "stages appear one by one" if is_open else "all stages are known"
            print(f"{arrivals}, {stages}: {with_interval(ratio, '{:.2f}'.format)}", flush=True)


if __name__ == "__main__":
    main()
