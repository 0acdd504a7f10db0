"""Training of the cluster's networks by gradients: rollouts, then PPO, REINFORCE or imitation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.errors import ConfigError, DivergedError
from parcae.learning.adam import adam_state, restore_adam
from parcae.learning.advantages import reinforce_advantages, window_advantages
from parcae.learning.config import Algorithm
from parcae.learning.family import DataSet, Rollout
from parcae.learning.loop import IterationSeeds, Measured
from parcae.learning.ppo import Step, UpdateReport, imitate, update
from parcae.learning.ray_workers import RayWorkers, ray_workers
from parcae.learning.reinforce import Rate, reinforce
from parcae.learning.request import TrainRequest, make_family, teacher_of
from parcae.learning.returns import normalized
from parcae.learning.rollouts import RolloutWorker, require_decisions
from parcae.learning.scenario import Runs, Scenario
from parcae.policies.catalog import make_policy
from parcae.policies.checkpoint import Weights
from parcae.policies.learned import require_durations
from parcae.policies.networks.kernels import Teacher
from parcae.workloads.random_streams import SELECTION_SEED_START

FloatArray = npt.NDArray[np.float64]
Groups = list[list[Rollout]]
#: Maximum number of successive collections without any decision.
_QUIET_WINDOWS = 200


class _Selection:
    """The selection runs, and fair sharing on them.

    All measurements of a training use the same runs, so that they can be compared.
    """

    def __init__(self, scenario: Scenario, count: int) -> None:
        self.runs: Runs = scenario.batch([SELECTION_SEED_START + row for row in range(count)])
        fair = make_policy("fair", scenario.config.total_executors)
        self.fair_cost = float(self.runs.cost(fair.play_many).mean())
        states = self.runs.simulators.states
        # job_ms is the integral of the number of jobs over time.
        self.fair_jobs = float(states.now.job_ms.sum() / max(1, states.now.clock_ms.sum()))
        # Where the tail of completion times begins, for the objective p95-jct.
        jct_ms = states.jobs.completion_ms - states.jobs.arrival_ms
        self.tail_ms = float(np.percentile(jct_ms, 80))

    def ratio(self, policy: Any) -> float:
        """Objective / that of fair sharing, with most probable decisions."""
        return float(self.runs.cost(policy.play_many).mean()) / max(self.fair_cost, 1e-9)


class GradientLearner:
    """Trains a network for a scenario; a learner, see `parcae.learning.loop.Learner`.

    Args:
        request: which network to train, what for, and how.

    Raises:
        ConfigError: the network is unknown, a rule is missing, or the device does not exist.
    """

    measured = "ratio_to_fair"
    iterations_name = "iterations"

    def __init__(self, request: TrainRequest) -> None:
        self.family = family = make_family(request)
        self._teacher = teacher_of(request)
        _check_device(request.device)
        self.scenario = scenario = request.scenario
        self.config = config = request.config
        self.kind = family.name
        self.feature_version = family.feature_version
        self.seed = seed = request.seed
        self.select_every = config.select_every
        self.device = torch.device(request.device)
        self._is_imitating = config.imitation > 0
        self._rng = np.random.default_rng(np.random.SeedSequence([0x7472_6169, seed]))
        torch.manual_seed(seed)
        weights = request.weights
        start = family.initial_weights(self._rng) if weights is None else weights
        network: Any = family.network(start)
        self.network: Any = network.to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        self._rate = Rate()
        self._selection = _Selection(scenario, config.num_selection)
        self.worker = self._workers(request.ray_address)
        self.iteration = 0
        self.decisions = 0
        self._mean_weights: Weights = self.network.export()
        # The critic's scale: mean and standard deviation of costs to go.
        self._value_mean = 0.0
        self._value_spread = 1.0

    def _workers(self, ray_address: str | None) -> RolloutWorker | RayWorkers:
        """What collects the rollouts, on this machine or on a Ray cluster."""
        workers = RolloutWorker if ray_address is None else partial(ray_workers, ray_address)
        return workers(
            self.scenario,
            self.family,
            self.config,
            seed=self.seed,
            tail_ms=self._selection.tail_ms,
        )

    def settings(self) -> dict[str, Any]:
        """The network's shape and choice of features."""
        return self.family.settings

    def identity(self) -> dict[str, Any]:
        """The scenario, the settings of the training, and weights that are not trained."""
        fixed = {name: array.tolist() for name, array in self.family.fixed_weights.items()}
        return {
            "config": self.config.model_dump(mode="json"),
            **self.scenario.identity(),
            **fixed,
        }

    def card(self) -> dict[str, Any]:
        """The scenario and the settings of the training."""
        return {**self.scenario.card(), "training": self.config.model_dump(mode="json")}

    def counts(self) -> dict[str, int]:
        """The recorded decisions."""
        return {"decisions": self.decisions}

    def begin(self) -> Sequence[Measured]:
        """Compile all kernels, and measure the weights at the start."""
        # The rollouts are thrown away and drawn again.
        before = self.worker.rng_state()
        self.collect()
        self.worker.restore_rng(before)
        return self.measure()

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Collect rollouts and update the network with them."""
        self.iteration = seeds.iteration
        # Imitation comes first, and ends when its share of the training is over.
        self._is_imitating = done < self.config.imitation
        before = self.decisions
        report, mean_jobs = self.learn(self.collect(done), max(0.0, 1.0 - done))
        self._average()
        return {
            "loss/policy": report.loss,
            "loss/value": report.value_loss,
            "policy/entropy": report.entropy,
            "policy/kl": report.kl,
            "policy/clipped": report.clipped,
            "run/jobs_in_system": mean_jobs,
            "run/decisions": self.decisions - before,
            "training/learning_rate": self.optimizer.param_groups[0]["lr"],
        }

    def measure(self) -> Sequence[Measured]:
        """Measure the present weights and, if there is one, their running mean."""
        candidates = [self.network.export()]
        if self.config.averaging > 0:
            candidates.append(dict(self._mean_weights))
        fixed = self.family.fixed_weights
        measured = [
            (self._selection.ratio(self.family.policy(weights)), {**weights, **fixed})
            for weights in candidates
        ]
        # Simulators are not saved: the state is exact only where all sequences begin anew.
        self.worker.restart()
        return measured

    def weights(self) -> Weights:
        """Copies of the network's weights, and those that are not trained."""
        return {**self.network.export(), **self.family.fixed_weights}

    def state(self) -> dict[str, Any]:
        """The running mean, Adam's moments, and the state of all draws."""
        moments = adam_state(self.network, self.optimizer)
        return {
            **{f"mean.{name}": array for name, array in self._mean_weights.items()},
            **{f"adam.{name}": array for name, array in moments.items()},
            "decisions": self.decisions,
            "value": [self._value_mean, self._value_spread],
            "rate": self._rate.to_json(),
            "rng": self._rng.bit_generator.state,
            "worker": self.worker.rng_state(),
        }

    def restore(self, weights: Weights, state: dict[str, Any]) -> None:
        """Continue from what `weights` and `state` returned."""
        self.network.load_arrays(weights)
        self._mean_weights = {name: state[f"mean.{name}"] for name in self._mean_weights}
        moments = {
            name.removeprefix("adam."): array
            for name, array in state.items()
            if name.startswith("adam.")
        }
        restore_adam(self.network, self.optimizer, moments)
        self.decisions = int(state["decisions"])
        (self._value_mean, self._value_spread) = state["value"]
        self._rate = Rate.from_json(state["rate"])
        self._rng.bit_generator.state = state["rng"]
        self.worker.restore_rng(state["worker"])

    def _average(self) -> None:
        """Move the running mean towards the present weights; the first ones have equal weights."""
        if self.config.averaging == 0:
            return
        rate = max(1.0 / (self.iteration + 1), 1.0 - self.config.averaging)
        for name, array in self.network.export().items():
            mean = self._mean_weights[name] * (1.0 - rate) + array * rate
            self._mean_weights[name] = mean.astype(array.dtype)

    def collect(self, done: float = 0.0) -> Groups:
        """Collect rollouts under the present weights or, while imitating, the teacher's choices.

        Windows without any decision (such as quiet hours of a trace) are skipped.

        Args:
            done: share of the training that is over.
        """
        for _ in range(_QUIET_WINDOWS):
            groups = self._collect(done)
            if any(rollout.count for group in groups for rollout in group):
                break
        return groups

    def _collect(self, done: float) -> Groups:
        network = self.family.policy(self.network.export()).network
        teacher = None
        if self._is_imitating and self._teacher is not None:
            # The teacher takes all decisions at first, so that the network sees good states, then
            # fewer and fewer, so that it sees its own (DAgger).
            teacher = Teacher(self._teacher, max(0.1, 1.0 - 0.02 * self.iteration))
        gap = 1.0 + (self.config.early_gap - 1.0) * max(0.0, 1.0 - 2.0 * done)
        return self.worker.collect(network, self._episode_s(), teacher, gap)

    def _episode_s(self) -> float | None:
        """Draw the length of this iteration's episodes.

        It is memoryless, and its mean grows with the iterations (Decima, section 5.3).
        """
        config = self.config
        if config.episode_s is None:
            return None
        mean = config.episode_s + config.episode_growth_s * self.iteration
        if config.episode_max_s is not None:
            mean = min(mean, config.episode_max_s)
        return float(self._rng.exponential(mean))

    def learn(self, groups: Groups, left: float) -> tuple[UpdateReport, float]:
        """Update the network with one collection of rollouts.

        Args:
            groups: what `collect` returned.
            left: share of the training that is left.

        Returns:
            The numbers of the update, and the mean number of jobs in the system.

        Raises:
            DivergedError: the training diverged.
        """
        self.decisions += require_decisions(groups)
        mean_jobs = self._check_queues(groups)
        data = self.family.gather([rollout for group in groups for rollout in group])
        self.iteration += 1
        if self._is_imitating:
            report = imitate(
                self.network, self.optimizer, data, self._step(), self._rng, self.device
            )
        elif self.config.algorithm is Algorithm.REINFORCE:
            report = self._reinforce(data, groups)
        else:
            report = self._update(data, groups, left)
        return report, mean_jobs

    def _step(self) -> Step:
        """The settings of an update, without entropy bonus."""
        c = self.config
        return Step(c.epochs, c.minibatch, c.clip, 0.0, c.value_weight, c.max_norm)

    def _update(self, data: DataSet, groups: Groups, left: float) -> UpdateReport:
        """The update of PPO."""
        config = self.config
        advantage, target = self._advantages(groups)
        # Learning rate and entropy bonus fall together.
        fade = config.final_share + (1 - config.final_share) * left
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = config.learning_rate * fade
        step = replace(self._step(), entropy=config.entropy * fade)
        return update(
            self.network, self.optimizer, data, advantage, target, step, self._rng, self.device
        )

    def _reinforce(self, data: DataSet, groups: Groups) -> UpdateReport:
        """Algorithm 1's update: differential costs, input-dependent baseline, entropy bonus."""
        config = self.config
        advantage = reinforce_advantages(groups, config, self._rate)
        entropy = max(config.entropy_least, config.entropy - config.entropy_decay * self.iteration)
        return reinforce(
            self.network, self.optimizer, data, advantage, entropy, config.minibatch, self.device
        )

    def _check_queues(self, groups: Groups) -> float:
        """The mean number of jobs in the system at the decisions.

        Raises:
            DivergedError: there are many times more jobs than under fair sharing, so the queues
                grow without bound. Queues of a batch cannot.
        """
        rollouts = [rollout for group in groups for rollout in group]
        count = sum(rollout.count for rollout in rollouts)
        mean_jobs = sum(map(self.family.num_jobs, rollouts)) / max(1, count)
        fair_jobs = self._selection.fair_jobs
        # At least 2 jobs, so that an almost idle cluster does not trigger the check.
        limit = self.config.max_jobs_factor * max(fair_jobs, 2.0)
        if mean_jobs > limit and self.scenario.arrivals != "batch":
            raise DivergedError(
                f"after {self.iteration} iterations {mean_jobs:.0f} jobs are in the system on "
                f"average, under fair sharing {fair_jobs:.0f}: the queues grow without "
                "bound. The best policy so far is kept. Train with a lower learning rate, shorter "
                "windows or a stronger prior"
            )
        return mean_jobs

    def _advantages(self, groups: Groups) -> tuple[FloatArray, FloatArray | None]:
        """Normalised advantages (positive: less cost) and, with windows, the critic's targets."""
        ends = self._end_values([rollout for group in groups for rollout in group])
        advantage, to_go = window_advantages(groups, ends, self.config.horizon_s)
        if self.config.window_s is None:
            return normalized(advantage), None
        # The critic's scale is set once, from the first collection, and then stays the same.
        if self._value_spread == 1.0:
            self._value_mean = float(to_go.mean())
            self._value_spread = max(1e-6, float(to_go.std()))
        return normalized(advantage), (to_go - self._value_mean) / self._value_spread

    def _end_values(self, rollouts: list[Rollout]) -> FloatArray:
        """The cost to go at each rollout's end.

        It is the critic's value where a window cut the run off, and 0 where the run was complete.
        """
        if self.config.window_s is None:
            return np.zeros(len(rollouts))
        data = self.family.gather(rollouts, ends=True)
        ends = data.decisions(np.arange(len(rollouts)), self.device)
        with torch.no_grad():
            value = self.network.value(ends).cpu().numpy().astype(np.float64)
        is_over = np.array([rollout.is_complete for rollout in rollouts])
        return np.where(is_over, 0.0, value * self._value_spread + self._value_mean)


def _check_device(device: str) -> None:
    """Raise an error if there is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: PyTorch finds no CUDA device on this machine; use --device cpu"
        )


def gradient_learner(request: TrainRequest) -> GradientLearner:
    """The learner that the request asks for.

    Raises:
        ConfigError: the network is unknown, a rule is missing, or the workload has no durations.
    """
    require_durations(request.scenario.workload)
    # A second thread makes small minibatches a third faster on an idle machine, and ten times
    # slower on a busy one.
    torch.set_num_threads(1)
    return GradientLearner(request)
