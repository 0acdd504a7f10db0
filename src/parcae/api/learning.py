"""Learning a policy in one call, and training a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parcae.api.checks import check_cluster, check_jobs, check_seeds
from parcae.api.study import LearnRequest, LearnResult, Progress
from parcae.api.study import learn as learn_scenario
from parcae.base.errors import ConfigError
from parcae.base.extensions import naming_extras
from parcae.learning.loop import Iteration, TrainingPlan, TrainResult
from parcae.learning.loop import train as run_loop
from parcae.learning.scenario import Scenario, check_search_seed
from parcae.learning.worlds import LearnerRequest, make_learner
from parcae.simulation.config import SimulationConfig
from parcae.simulation.objectives import ObjectiveFunction, parse_objective
from parcae.workloads.workload import JobSequence

#: As on the command line.
_LEAST_MINUTES = 0.01


def _scenario(
    jobs: JobSequence,
    cluster: SimulationConfig,
    objective: str | ObjectiveFunction,
    minutes: float,
    seed: int,
) -> Scenario:
    """What to learn for, after checking what was given."""
    check_jobs(jobs)
    check_cluster(cluster)
    if not jobs.arrivals:
        raise ConfigError("these jobs were not drawn: learn for jobs from `Workload.draw`")
    if not _LEAST_MINUTES <= minutes < math.inf:
        raise ConfigError(f"minutes is {minutes}: give {_LEAST_MINUTES} or more")
    check_search_seed(seed)
    minimised = parse_objective(objective) if isinstance(objective, str) else objective
    return Scenario(jobs.workload, cluster, jobs.arrivals, jobs.num_jobs, minimised)


def train(
    network: Any,
    jobs: JobSequence,
    cluster: SimulationConfig,
    folder: str | Path,
    *,
    objective: str = "average-jct",
    minutes: float = 5.0,
    iterations: int | None = None,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
    resume: bool = False,
    progress: Callable[[Iteration], None] | None = None,
) -> TrainResult:
    """Train a network, one's own or one of Parcae's, as `parcae train` does.

    The best policy is `folder / "best.safetensors"`, which `compare`, `simulate` and `serve` take.

    Args:
        network: a `torch.nn.Module` that scores queries or stages (an object, which is trained in
            place; its class; or `module:attribute`), or the name of one of Parcae's. It is called
            with a `parcae.environments.own_network.NetworkInput`.
        jobs: jobs that `Workload.draw` drew; runs to learn on are drawn in the same way.
        cluster: the cluster to learn for.
        folder: where the state, the best policy and TensorBoard's log are written.
        objective: "average-jct" or "makespan"; Parcae's networks know more.
        minutes: wall-clock time.
        iterations: the most iterations; the time may end the training earlier.
        seed: of the training, 0 to 255.
        settings: of the training, such as `{"learning_rate": 1e-3}`.
        resume: continue the training in the folder.
        progress: called after every iteration.

    Raises:
        ConfigError: no network, or one whose scores have a wrong shape or are not finite; a setting
            that does not exist; otherwise as for `learn`.
        MissingExtraError: PyTorch or Gymnasium is not installed.
    """
    changes = [f"{key}={value}" for key, value in (settings or {}).items()]
    with naming_extras():
        scenario = _scenario(jobs, cluster, objective, minutes, seed)
        options = {"set": changes} if changes else {}
        request = LearnerRequest([scenario], seed=int(seed), options=options)
        plan = TrainingPlan(60.0 * minutes, iterations, Path(folder), resume)
        return run_loop(make_learner(network, request), plan, progress)


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
    check_seeds(seeds)
    with naming_extras():
        scenario = _scenario(jobs, cluster, objective, minutes, seed)
        # Plain numbers: integers of NumPy overflow, and are no JSON. Worker processes would run a
        # script without a main guard once more.
        request = LearnRequest(
            scenario, Path(folder), float(minutes) * 60.0, int(seeds), int(seed), processes=1
        )
        return learn_scenario(request, progress)
