"""The training loop: collects rollouts, updates the network, selects, saves and resumes.

Rollouts come in groups that share a job sequence and random bits. A group's mean cost to go at the
same time is the baseline (Decima, section 5.3).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.errors import ConfigError, DivergedError
from parcae.learning.config import Algorithm, TrainConfig
from parcae.learning.family import DataSet, Family, Rollout, Weights
from parcae.learning.ppo import Step, UpdateReport, imitate, update
from parcae.learning.ray_workers import ray_workers
from parcae.learning.reinforce import Rate, reinforce
from parcae.learning.returns import aligned_baseline, costs_to_go, differential_costs, normalized
from parcae.learning.rollouts import RolloutWorker, require_decisions
from parcae.learning.scenario import Scenario
from parcae.policies.catalog import make_policy
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.rule.kernels import Rule
from parcae.units import MS_PER_S
from parcae.workloads.describe import fingerprint
from parcae.workloads.random_streams import SELECTION_SEED_START

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Iteration:
    """The numbers of one iteration, for the log.

    Args:
        iteration: number of the iteration, from 1.
        seconds: wall-clock time of the training so far.
        decisions: decisions recorded in this iteration.
        report: the numbers of the update.
        learning_rate: learning rate of the update.
        mean_jobs: mean number of jobs in the system at the decisions.
        selected: objective on the selection runs / that of fair sharing, when the most probable
            decisions are taken; NaN if not measured in this iteration.
        best: the smallest `selected` so far.
    """

    iteration: int
    seconds: float
    decisions: int
    report: UpdateReport
    learning_rate: float
    mean_jobs: float
    selected: float
    best: float


Progress = Callable[[Iteration], None]


class Trainer:
    """Trains a network for a scenario.

    Args:
        scenario: what to train for.
        config: the settings of the training.
        family: the kind of network, for this scenario.
        seed: seed of the training.
        weights: weights to start from; None for random weights.
        folder: where the state of the training is saved (for resuming); None to save nothing.
        device: "cpu" or "cuda".
        num_threads: threads that simulate; None for one for each CPU.
        ray_address: address of a Ray cluster for the rollouts, or None to use this machine.
        teacher: the rule that the network imitates first, if the config says so.

    Raises:
        ConfigError: the device does not exist, or there is no rule to imitate.
    """

    def __init__(
        self,
        scenario: Scenario,
        config: TrainConfig,
        family: Family,
        *,
        seed: int = 0,
        weights: Weights | None = None,
        folder: Path | None = None,
        device: str = "cpu",
        num_threads: int | None = None,
        ray_address: str | None = None,
        teacher: Rule | None = None,
    ) -> None:
        if config.imitation > 0 and teacher is None:
            raise ConfigError(
                "imitation needs a tuned rule: give one with --rule, or set imitation=0"
            )
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                "--device cuda: PyTorch finds no CUDA device on this machine; use --device cpu"
            )
        self.scenario = scenario
        self.config = config
        self.family = family
        self.folder = folder
        self._teacher = teacher
        self._is_imitating = config.imitation > 0
        self.seed = seed
        self.device = torch.device(device)
        rng = np.random.default_rng(np.random.SeedSequence([0x7472_6169, seed]))
        torch.manual_seed(seed)
        start = family.initial_weights(rng) if weights is None else weights
        network: Any = family.network(start)
        self.network: Any = network.to(self.device)
        # As the network holds them, in its precision.
        start = self.network.export()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        self._rng = rng
        self._rate = Rate()
        # All measurements of the training use the same runs, so that they can be compared.
        self._selection = scenario.batch(
            [SELECTION_SEED_START + row for row in range(config.num_selection)]
        )
        fair = make_policy("fair", scenario.config.total_executors)
        self.fair_cost, self._fair_jobs = (
            float(self._selection.cost(fair.play_many).mean()),
            self._mean_jobs(),
        )
        workers = RolloutWorker if ray_address is None else partial(ray_workers, ray_address)
        self.worker = workers(
            scenario,
            family,
            num_groups=config.num_groups,
            group_size=config.group_size,
            seed=seed,
            window_s=config.window_s,
            capacity=config.capacity,
            tail_ms=self._tail_ms(),
            num_threads=num_threads,
        )
        self.iteration = 0
        self.seconds = 0.0
        self.decisions = 0
        self.best_weights, self.best = start, self._measure(start)
        self._mean_weights = dict(start)
        self._value_mean = 0.0
        self._value_spread = 1.0

    def _mean_jobs(self) -> float:
        """Mean number of jobs in the system over the last run of the selection runs."""
        # job_ms is the integral of the number of jobs over time.
        now = self._selection.simulators.states.now
        return float(now.job_ms.sum() / max(1, now.clock_ms.sum()))

    def _tail_ms(self) -> float:
        """Where the tail begins: the 80th percentile of completion times in the last run.

        Called right after the selection runs ran under fair sharing.
        """
        jobs = self._selection.simulators.states.jobs
        return float(np.percentile(jobs.completion_ms - jobs.arrival_ms, 80))

    def _measure(self, weights: Weights) -> float:
        """Objective on the selection runs / that of fair sharing, with most probable decisions."""
        return float(self._selection.cost(self.family.policy(weights).play_many).mean()) / max(
            self.fair_cost, 1e-9
        )

    def train(
        self,
        *,
        budget_s: float,
        max_iterations: int | None = None,
        progress: Progress | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Iterate until the time or the iterations are used up, or `is_stopped` returns True.

        Args:
            budget_s: wall-clock seconds, including those of earlier calls.
            max_iterations: maximum number of iterations, including those of earlier calls. If
                given, the learning rate falls by iterations, otherwise by time.
            progress: called after every iteration.
            is_stopped: asked after every iteration.

        Raises:
            DivergedError: the training diverged; `best_weights` are still valid.
        """
        while self.seconds < budget_s and (
            max_iterations is None or self.iteration < max_iterations
        ):
            began = time.perf_counter()
            done = (
                self.seconds / budget_s
                if max_iterations is None
                else self.iteration / max_iterations
            )
            # Imitation comes first, and ends when its share of the training is over.
            self._is_imitating = done < self.config.imitation
            before = self.decisions
            report, mean_jobs = self.learn(self.collect(done), max(0.0, 1.0 - done))
            self._average()
            is_last = (
                self.seconds + time.perf_counter() - began >= budget_s
                or self.iteration == max_iterations
                or is_stopped()
            )
            selected = math.nan
            if self.iteration % self.config.select_every == 0 or is_last:
                selected = self._select()
                # Simulators are not saved: the state is exact only where all sequences begin anew.
                self.worker.restart()
            self.seconds += time.perf_counter() - began
            if not math.isnan(selected) and self.folder is not None:
                self.save_state(self.folder)
            if progress is not None:
                rate = self.optimizer.param_groups[0]["lr"]
                count = self.decisions - before
                progress(
                    Iteration(
                        self.iteration,
                        self.seconds,
                        count,
                        report,
                        rate,
                        mean_jobs,
                        selected,
                        self.best,
                    )
                )
            if is_stopped():
                return

    def _average(self) -> None:
        """Move the running mean towards the present weights; the first ones have equal weights."""
        if self.config.averaging > 0:
            rate = max(1.0 / (self.iteration + 1), 1.0 - self.config.averaging)
            for name, array in self.network.export().items():
                self._mean_weights[name] = (
                    self._mean_weights[name] * (1.0 - rate) + array * rate
                ).astype(array.dtype)

    def _select(self) -> float:
        """Measure the weights and their running mean, and keep the best so far.

        Returns the smaller of the two ratios to fair sharing.
        """
        ratios = []
        for weights in [self.network.export()] + [dict(self._mean_weights)] * (
            self.config.averaging > 0
        ):
            ratios.append(self._measure(weights))
            if ratios[-1] < self.best:
                self.best = ratios[-1]
                self.best_weights = weights
        return min(ratios)

    def warm_up(self) -> None:
        """Compile all kernels before the training's time starts, without changing the draws."""
        # The rollouts of the warm-up are thrown away and drawn again.
        before = self.worker.rng_state()
        self.collect()
        self.worker.restore_rng(before)

    def collect(self, done: float = 0.0) -> list[list[Rollout]]:
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

    def _collect(self, done: float) -> list[list[Rollout]]:
        network = self.family.policy(self.network.export()).network
        teacher = None
        if self._is_imitating and self._teacher is not None:
            # The teacher takes all decisions at first, so that the network sees good states, then
            # fewer and fewer, so that it sees its own (DAgger).
            teacher = self._teacher, max(0.1, 1.0 - 0.02 * self.iteration)
        gap = 1.0 + (self.config.early_gap - 1.0) * max(0.0, 1.0 - 2.0 * done)
        return self.worker.collect(network, self._episode_s(), teacher, gap)

    def learn(self, groups: list[list[Rollout]], left: float) -> tuple[UpdateReport, float]:
        """Update the network with one collection of rollouts.

        Args:
            groups: what `collect` returned.
            left: share of the training that is left.

        Returns:
            The numbers of the update, and the mean number of jobs in the system.

        Raises:
            DivergedError: the training diverged.
        """
        config = self.config
        self.decisions += require_decisions(groups)
        mean_jobs = self._check_queues(groups)
        data = self.family.gather([rollout for group in groups for rollout in group])
        self.iteration += 1
        # Imitation needs no entropy bonus; PPO's is set below.
        step = Step(
            config.epochs, config.minibatch, config.clip, 0.0, config.value_weight, config.max_norm
        )
        if self._is_imitating:
            return imitate(
                self.network, self.optimizer, data, step, self._rng, self.device
            ), mean_jobs
        if config.algorithm is Algorithm.REINFORCE:
            return self._reinforce(data, groups), mean_jobs
        advantage, target = self._advantages(groups)
        # Learning rate and entropy bonus fall together.
        fade = config.final_share + (1 - config.final_share) * left
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = config.learning_rate * fade
        step = replace(step, entropy=config.entropy * fade)
        return update(
            self.network, self.optimizer, data, advantage, target, step, self._rng, self.device
        ), mean_jobs

    def _episode_s(self) -> float | None:
        """Draw the length of this iteration's episodes.

        It is memoryless, and its mean grows with the iterations (Decima, section 5.3).
        """
        config = self.config
        if config.episode_s is None:
            return None
        mean = config.episode_s + config.episode_growth_s * self.iteration
        return float(
            self._rng.exponential(
                mean if config.episode_max_s is None else min(mean, config.episode_max_s)
            )
        )

    def _reinforce(self, data: DataSet, groups: list[list[Rollout]]) -> UpdateReport:
        """Algorithm 1's update: differential costs, input-dependent baseline, entropy bonus."""
        config = self.config
        advantages = []
        for rollouts in groups:
            for rollout in rollouts:
                r = rollout.record
                n = rollout.count
                self._rate.add(
                    r.clock_ms[:n] / MS_PER_S,
                    r.cost[:n],
                    float(r.end_ms[0]) / MS_PER_S,
                    float(r.end_cost[0]),
                )
            # The running mean includes this group's rollouts.
            rate = self._rate.mean if config.is_differential else 0.0
            times = []
            curves = []
            for rollout in rollouts:
                r = rollout.record
                n = rollout.count
                end_s = float(r.end_ms[0]) / MS_PER_S
                clock_s = r.clock_ms[:n] / MS_PER_S
                cost = differential_costs(
                    np.append(clock_s, end_s), np.append(r.cost[:n], r.end_cost[0]), rate
                )
                times.append(np.append(clock_s, end_s))
                curves.append(np.append(costs_to_go(clock_s, cost[:-1], end_s, cost[-1]), 0.0))
            # Without alignment the baseline is one number for all decisions of the group.
            plain = [np.full(len(curve), float(np.concatenate(curves).mean())) for curve in curves]
            baselines = aligned_baseline(times, curves) if config.is_aligned else plain
            advantages += [
                (baseline - curve)[:-1] / config.cost_scale
                for curve, baseline in zip(curves, baselines, strict=True)
            ]
        entropy = max(config.entropy_least, config.entropy - config.entropy_decay * self.iteration)
        return reinforce(
            self.network,
            self.optimizer,
            data,
            np.concatenate(advantages),
            entropy,
            config.minibatch,
            self.device,
        )

    def _check_queues(self, groups: list[list[Rollout]]) -> float:
        """The mean number of jobs in the system at the decisions.

        Raises:
            DivergedError: there are many times more jobs than under fair sharing, so the queues
                grow without bound. Queues of a batch cannot.
        """
        rollouts = [r for g in groups for r in g]
        mean_jobs = sum(map(self.family.num_jobs, rollouts)) / max(
            1, sum(r.count for r in rollouts)
        )
        # At least 2 jobs, so that an almost idle cluster does not trigger the check.
        limit = self.config.max_jobs_factor * max(self._fair_jobs, 2.0)
        if mean_jobs > limit and self.scenario.arrivals != "batch":
            raise DivergedError(
                f"after {self.iteration} iterations {mean_jobs:.0f} jobs are in the system on "
                f"average, under fair sharing {self._fair_jobs:.0f}: the queues grow without "
                "bound. The best policy so far is kept. Train with a lower learning rate, shorter "
                "windows or a stronger prior"
            )
        return mean_jobs

    def _advantages(self, groups: list[list[Rollout]]) -> tuple[FloatArray, FloatArray | None]:
        """Normalised advantages (positive: less cost) and, with windows, the critic's targets."""
        config = self.config
        scale = MS_PER_S
        rate = 0.0 if config.horizon_s is None else 1.0 / config.horizon_s
        ends = iter(self._end_values([r for group in groups for r in group]))
        advantages = []
        targets = []
        for group in groups:
            times = []
            curves = []
            for rollout in group:
                r = rollout.record
                n = rollout.count
                end_s = float(r.end_ms[0]) / MS_PER_S
                # Cost after the end of a window, as the critic estimates it; discounted, too.
                last = next(ends)
                clock_s = r.clock_ms[:n] / MS_PER_S
                to_go = costs_to_go(
                    clock_s, r.cost[:n] / scale, end_s, float(r.end_cost[0]) / scale, rate
                )
                to_go = to_go + last * np.exp(-rate * (end_s - clock_s))
                times.append(np.append(clock_s, end_s))
                curves.append(np.append(to_go, last))
            for curve, baseline in zip(curves, aligned_baseline(times, curves), strict=True):
                advantages.append((baseline - curve)[:-1])
                targets.append(curve[:-1])
        target = None
        if config.window_s is not None:
            joined = np.concatenate(targets)
            # The critic's scale is set once, from the first collection, and then stays the same.
            if self._value_spread == 1.0:
                self._value_mean = float(joined.mean())
                self._value_spread = max(1e-6, float(joined.std()))
            target = (joined - self._value_mean) / self._value_spread
        return normalized(np.concatenate(advantages)), target

    def _end_values(self, rollouts: list[Rollout]) -> FloatArray:
        """The cost to go at each rollout's end.

        It is the critic's value where a window cut the run off, and 0 where the run was complete.
        """
        if self.config.window_s is None:
            return np.zeros(len(rollouts))
        ends = self.family.gather(rollouts, ends=True).decisions(
            np.arange(len(rollouts)), self.device
        )
        with torch.no_grad():
            value = self.network.value(ends).cpu().numpy().astype(np.float64)
        is_over = np.array([rollout.is_complete for rollout in rollouts])
        return np.where(is_over, 0.0, value * self._value_spread + self._value_mean)

    def checkpoint(self, card: Mapping[str, Any] | None = None) -> Checkpoint:
        """The best policy so far, with its model card."""
        scenario = self.scenario
        return Checkpoint(
            self.family.name,
            self.family.feature_version,
            {**self.best_weights, **self.family.fixed_weights},
            self.family.settings,
            card={
                "workload": scenario.workload.name,
                "fingerprint": fingerprint(scenario.workload),
                "arrivals": scenario.arrivals,
                "jobs": scenario.num_jobs,
                "objective": scenario.objective_name,
                "cluster": scenario.config.model_dump(mode="json"),
                "training": self.config.model_dump(mode="json"),
                "seed": self.seed,
                "iterations": self.iteration,
                "decisions": self.decisions,
                "seconds": round(self.seconds, 1),
                "ratio_to_fair_on_selection_runs": self.best,
                **(card or {}),
            },
        )

    def save_state(self, folder: Path) -> None:
        """Write the state of the training into `folder`, atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {f"now.{name}": array for name, array in self.network.export().items()}
        weights |= {f"best.{name}": array for name, array in self.best_weights.items()}
        weights |= {f"mean.{name}": array for name, array in self._mean_weights.items()}
        weights |= self.family.fixed_weights
        for (name, _), state in zip(self.network.named_parameters(), self._moments(), strict=True):
            weights |= {
                f"adam.{key}.{name}": state[key].detach().cpu().numpy()
                for key in _MOMENTS
                if key in state
            }
        # Adam counts its steps for every weight; they are all the same.
        steps = max((int(state["step"]) for state in self._moments() if state), default=0)
        settings = {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "decisions": self.decisions,
            "best": self.best,
            "adam_steps": steps,
            "value": [self._value_mean, self._value_spread],
            "rate": self._rate.to_json(),
            "rng": self._rng.bit_generator.state,
            "worker": self.worker.rng_state(),
            **self._identity(),
        }
        write_checkpoint(
            Checkpoint("training", self.family.feature_version, weights, settings),
            folder / STATE_FILE,
        )

    def _identity(self) -> dict[str, Any]:
        """The settings that must not change when a training is resumed, as plain JSON."""
        scenario = self.scenario
        identity = {
            "config": self.config.model_dump(mode="json"),
            "seed": self.seed,
            "fingerprint": fingerprint(scenario.workload),
            "scenario": [scenario.arrivals, scenario.num_jobs, scenario.objective_name],
            "cluster": scenario.config.model_dump(mode="json"),
            "family": [self.family.name, self.family.settings],
        }
        # Through JSON, so that it compares equal to what was read from a file (lists, not tuples).
        as_json: dict[str, Any] = json.loads(json.dumps(identity))
        return as_json

    def _moments(self) -> list[dict[str, Any]]:
        return [self.optimizer.state[p] for p in self.network.parameters()]

    def resume(self, folder: Path) -> None:
        """Continue from the state in `folder`, exactly as if the training had never stopped.

        Raises:
            FormatError: the file is damaged, or of another version.
            ConfigError: the training in the folder has other settings.
            FileNotFoundError: there is no state in the folder.
        """
        path = folder / STATE_FILE
        state = read_checkpoint(path)
        state.require("training", self.family.feature_version, str(path))
        settings = state.settings
        for key, value in self._identity().items():
            if settings.get(key) != value:
                raise ConfigError(
                    f"{path}: a training with another {key}; use the same settings, or another "
                    "folder"
                )
        # Weights that are not trained, such as the rule's, must be the same.
        for name, array in self.family.fixed_weights.items():
            if not np.array_equal(array, state.weights[name]):
                raise ConfigError(
                    f"{path}: a training with another {name}; use the same, or another folder"
                )
        self.network.load_arrays(
            {k.removeprefix("now."): v for k, v in state.weights.items() if k.startswith("now.")}
        )
        self.best_weights = {
            k.removeprefix("best."): v for k, v in state.weights.items() if k.startswith("best.")
        }
        self._mean_weights = {
            k.removeprefix("mean."): v for k, v in state.weights.items() if k.startswith("mean.")
        }
        for name, parameter in self.network.named_parameters():
            if f"adam.exp_avg.{name}" in state.weights:
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(settings["adam_steps"])),
                    **{
                        key: torch.from_numpy(state.weights[f"adam.{key}.{name}"].copy()).to(
                            self.device
                        )
                        for key in _MOMENTS
                    },
                }
        self.iteration = settings["iteration"]
        self.seconds = settings["seconds"]
        self.decisions = settings["decisions"]
        self.best = settings["best"]
        (self._value_mean, self._value_spread) = settings["value"]
        self._rate = Rate.from_json(settings["rate"])
        self._rng.bit_generator.state = settings["rng"]
        self.worker.restore_rng(settings["worker"])


#: Maximum number of successive collections without any decision.
_QUIET_WINDOWS = 200
#: The file in the folder of a training from which it resumes.
STATE_FILE = "training.safetensors"
#: Names of Adam's moments in the optimizer's state.
_MOMENTS = ("exp_avg", "exp_avg_sq")
