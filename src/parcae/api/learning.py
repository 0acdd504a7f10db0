"""Learning a policy in one call."""

from __future__ import annotations

import math
from pathlib import Path

from parcae.api.checks import check_cluster, check_jobs, check_seeds
from parcae.api.study import LearnRequest, LearnResult, Progress
from parcae.api.study import learn as learn_scenario
from parcae.base.errors import ConfigError
from parcae.base.extensions import naming_extras
from parcae.learning.scenario import Scenario, check_search_seed
from parcae.simulation.config import SimulationConfig
from parcae.simulation.objectives import ObjectiveFunction, parse_objective
from parcae.workloads.workload import JobSequence

#: As on the command line.
_LEAST_MINUTES = 0.01


def learn(
    jobs: JobSequence,
    cluster: SimulationConfig,
    folder: str | Path,
    *,
    objective: str | ObjectiveFunction = "average-jct",
    minutes: float = 5.0,
    seeds: int = 40,
    seed: int = 0,
    progress: Progress | None = None,
) -> LearnResult:
    """Tune the rule, train the network that corrects it, compare both with the baselines, report.

    Args:
        jobs: jobs that `Workload.draw` drew; runs to learn on are drawn in the same way.
        cluster: the cluster to learn for.
        folder: where the policies, the comparison and the report are written; those of an earlier
            learning are removed first.
        objective: what to minimise: a name of `parcae.simulation.objectives.Objective`, or (cores
            world) a function of the finished jobs, a number from 0 on, smaller for a better run.
        minutes: time for tuning and training together.
        seeds: held-out runs of the comparison.
        seed: of tuning and training, 0 to 255.
        progress: called with (seconds done, seconds in all, what is being done).

    Raises:
        ConfigError: no such objective, jobs that were not drawn or whose arrivals are recorded,
            something else than jobs or a cluster, no time, no number of seeds, a seed that is out
            of range, or a workload without durations.
        MissingExtraError: PyTorch or CMA-ES is not installed.
    """
    check_jobs(jobs)
    check_cluster(cluster)
    if not jobs.arrivals:
        raise ConfigError("these jobs were not drawn: learn for jobs from `Workload.draw`")
    if not _LEAST_MINUTES <= minutes < math.inf:
        raise ConfigError(f"minutes is {minutes}: give {_LEAST_MINUTES} or more")
    check_seeds(seeds)
    check_search_seed(seed)
    with naming_extras():
        minimised = parse_objective(objective) if isinstance(objective, str) else objective
        scenario = Scenario(jobs.workload, cluster, jobs.arrivals, jobs.num_jobs, minimised)
        # Plain numbers: integers of NumPy overflow, and are no JSON. Worker processes would run a
        # script without a main guard once more.
        request = LearnRequest(
            scenario, Path(folder), float(minutes) * 60.0, int(seeds), int(seed), processes=1
        )
        return learn_scenario(request, progress)
