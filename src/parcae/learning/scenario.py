"""What a policy is trained for (a workload, a cluster, arrivals, an objective), and from what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, FormatError
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.learned import find_checkpoint, setting_card
from parcae.policies.names import PolicyName
from parcae.policies.network.policy import network_weights
from parcae.policies.registry import CheckpointKind, PolicySetting, kind_of, make
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import deadlines_ms, ideal_ms
from parcae.simulation.objectives import (
    NEEDS_DEADLINES,
    FinishedJobs,
    Objective,
    ObjectiveFunction,
    finished_jobs,
    missed_and_tardy,
    objective_cost,
    objective_name,
)
from parcae.simulation.simulator import PlayMany, SimulatorBatch
from parcae.workloads.describe import fingerprint
from parcae.workloads.tables import seconds_by_name
from parcae.workloads.workload import (
    SELECTION_SEED_START,
    TUNING_SEED_START,
    ArrivalProcess,
    JobSequence,
    Workload,
)

#: Parameters of a rule.
Parameters = npt.NDArray[np.float64]
#: Costs below these have no useful ratio: shares of missed deadlines, and all other costs.
_LEAST_SHARE = 0.01
_LEAST_COST = 1e-9
#: Seeds of searches and trainings are below this, so that none shares runs with another.
NUM_SEARCH_SEEDS = 256


def check_arrivals(text: str, workload: Workload | None = None) -> None:
    """Check that a policy can be learned for these arrivals (of a workload)."""
    # Every training run needs other arrivals.
    process = ArrivalProcess.parse(text)
    if process.kind == "recorded" or (workload is not None and process.replays(workload)):
        raise ConfigError(
            f"a policy cannot be learned on {text} arrivals, which are a single job sequence: use "
            "random arrivals of a similar rate, e.g. poisson:25s, load:0.85 or sessions:4"
        )


def check_search_seed(seed: object) -> None:
    """Check the seed of a search or a training."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < NUM_SEARCH_SEEDS:
        raise ConfigError(f"seed is {seed!r}: give 0 to {NUM_SEARCH_SEEDS - 1}, as a whole number")


@dataclass(frozen=True)
class Scenario:
    """Runs of jobs of a workload on a cluster, and the objective to minimise.

    Args:
        workload: the jobs to draw from.
        config: the cluster and how it is simulated.
        arrivals: "batch", "poisson:25s", "load:0.85"; see `parcae.workloads.workload`.
        num_jobs: jobs of one run.
        objective: what to minimise: a named objective, or a function of the finished jobs. Training
            by policy gradients needs a named one.

    Raises:
        ConfigError: the arrivals cannot be learned for (`check_arrivals`), or the objective is
            `deadlines`, and the workload has none.
    """

    workload: Workload
    config: SimulationConfig
    arrivals: str
    num_jobs: int
    objective: Objective | ObjectiveFunction = Objective.AVERAGE_JCT

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", self.config.jobs_of(self.workload))
        check_arrivals(self.arrivals, self.workload)
        if self.objective is missed_and_tardy and not self.workload.has_deadlines:
            raise ConfigError(NEEDS_DEADLINES)

    @property
    def objective_name(self) -> str:
        """The objective's name, or the name of the function."""
        return objective_name(self.objective)

    def identity(self) -> dict[str, Any]:
        """What must not change when a training for the scenario is resumed, as plain JSON."""
        return {
            **self._deadlines(),
            "fingerprint": fingerprint(self.workload),
            "scenario": [self.arrivals, self.num_jobs, self.objective_name],
            "cluster": self.config.model_dump(mode="json"),
        }

    def card(self) -> dict[str, Any]:
        """The part of a model card that describes the scenario."""
        setting = setting_card(self.workload, self.config, self.arrivals, self.num_jobs)
        return {**setting, "objective": self.objective_name, **self._deadlines()}

    def _deadlines(self) -> dict[str, Any]:
        """The deadlines in seconds by name of the recurring job; empty without deadlines."""
        found = seconds_by_name(self.workload.jobs)
        return {"deadlines_s": found} if found else {}

    def sequence(self, seed: int) -> JobSequence:
        """Draw the job sequence of the run with this seed."""
        return self.workload.draw(self.num_jobs, self.arrivals, self.config, seed=seed)

    def ratio(self, cost: float, other: float) -> float:
        """The cost of a policy / that of another one.

        Where hardly any deadline is missed, the difference counts, in percent of the jobs: one more
        missed deadline would otherwise be any number of times as many.
        """
        is_share = self.objective in (Objective.MISSED_DEADLINES, missed_and_tardy)
        least = _LEAST_SHARE if is_share else _LEAST_COST
        return cost / other if other >= least else 1.0 + (cost - other) / least

    @property
    def setting(self) -> PolicySetting:
        """What policies are made for."""
        return PolicySetting(self.workload, self.config, self.arrivals)

    def fair_policy(self) -> Any:
        """Fair sharing in the scenario's world; among cores it is FAIR, one pool per job."""
        return make(PolicyName("fair"), self.setting)

    def batch(self, seeds: Sequence[int]) -> Runs:
        """Simulators for the runs with these seeds."""
        return Runs(self, seeds)

    def selection(self, count: int) -> Runs:
        """The selection runs, by which what is learned is chosen, and nothing else is."""
        return self.batch(range(SELECTION_SEED_START, SELECTION_SEED_START + count))


class Runs:
    """The same runs for one policy after another.

    Every call of `cost` starts them again, with the same arrivals and random bits.
    """

    def __init__(self, scenario: Scenario, seeds: Sequence[int]) -> None:
        self.scenario = scenario
        self.sequences = [scenario.sequence(seed) for seed in seeds]
        self.simulators = SimulatorBatch(self.sequences, scenario.config, list(seeds))
        executors = scenario.config.for_tasks_of(scenario.workload).total_executors
        objective = scenario.objective
        # A function may use the ideal durations.
        needs_ideal = not isinstance(objective, Objective) or objective.entry.needs_ideal
        has_driver = scenario.config.world is WorldName.CORES
        self._ideal_ms = [
            ideal_ms(s, executors, has_driver) if needs_ideal else np.ones(len(s.arrival_ms))
            for s in self.sequences
        ]
        self._deadline_ms = [deadlines_ms(s) for s in self.sequences]

    def cost(self, play_many: PlayMany) -> npt.NDArray[np.float64]:
        """Run a policy, and return the objective of every run, float64[num_runs]."""
        self.simulators.run(play_many)
        costs = [
            objective_cost(self.scenario.objective, self.finished_jobs(run))
            for run in range(len(self.sequences))
        ]
        return np.concatenate(costs)

    def mean(self, play_many: PlayMany) -> float:
        """Run a policy, and return the mean of its costs."""
        return float(self.cost(play_many).mean())

    def against_fair(self) -> Yardstick:
        """Measure policies on these runs beside fair sharing, which is run first."""
        return Yardstick(self, self.mean(self.scenario.fair_policy().play_many))

    def finished_jobs(self, run: int) -> FinishedJobs:
        """The jobs of a run of the last policy.

        One run has more of them than another if its end cuts it off.
        """
        states = self.simulators.states
        arrival_ms = self.sequences[run].arrival_ms
        ideal_ms, deadline_ms = self._ideal_ms[run], self._deadline_ms[run]
        if self.sequences[run].has_sessions:
            # The state has jobs in the order in which they arrived.
            arrival_ms = states.jobs.arrival_ms[run]
            places = self.simulators.futures.sequence_row[run]
            ideal_ms = ideal_ms[places]
            deadline_ms = None if deadline_ms is None else deadline_ms[places]
        return finished_jobs(
            arrival_ms,
            states.jobs.completion_ms[run],
            num_arrived=int(states.now.num_jobs[run, 0]),
            clock_ms=int(states.now.clock_ms[run, 0]),
            ideal_ms=ideal_ms,
            deadline_ms=deadline_ms,
        )


@dataclass(frozen=True)
class Yardstick:
    """Runs, and the mean cost of one policy on them, to which others are compared."""

    runs: Runs
    cost: float

    def ratio(self, play_many: PlayMany) -> float:
        """Run another policy, and return its mean cost / that of the one."""
        return self.runs.scenario.ratio(self.runs.mean(play_many), self.cost)


def search_seeds(seed: int, generation: int, count: int) -> list[int]:
    """The seeds of the runs of one generation of a search, which no other generation uses."""
    # Every seed of the search has 2^30 seeds for runs, so that searches share none.
    first = TUNING_SEED_START + ((seed & 0xFF) << 30) + (generation + 1) * count
    return list(range(first, first + count))


def start_rule(text: str, scenario: Scenario, option: str = "") -> Parameters:
    """Load the parameters of a rule of the scenario's world, or of the rule within a network.

    `text` is the name of a shipped policy, or the path of a checkpoint; `option` begins it in error
    messages.
    """
    checkpoint, kind = start_checkpoint(text, scenario)
    world = scenario.config.world.value
    # The rules of two worlds may have as many parameters, which mean different things.
    if kind.worlds[0] != world or kind.rule is None:
        raise FormatError(
            f"{option}{text} is a checkpoint of {checkpoint.kind!r}, which has no rule for --world "
            f"{world}: give one that `parcae tune --world {world}` made"
        )
    return np.array(kind.rule(checkpoint, f"{option}{text}"))


def start_order_network(text: str, scenario: Scenario) -> npt.NDArray[np.float64]:
    """Load the weights of a network of the world of cores, float64[NUM_ORDER_WEIGHTS]."""
    return network_weights(start_checkpoint(text, scenario)[0], f"--start {text}")


def start_checkpoint(text: str, scenario: Scenario) -> tuple[Checkpoint, CheckpointKind]:
    """The checkpoint of a name or a path, and its kind."""
    found = find_checkpoint(PolicyName(text), scenario.setting)
    return found, kind_of(found, text)
