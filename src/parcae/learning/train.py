"""The training loop: the only place that loops, logs and saves.

Rollouts of one sequence and luck come in groups, whose mean cost to go, aligned in time, is the baseline (Decima, section 5.3).
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
    """What one iteration came to; for the log.

    Args:
        decisions: recorded in this iteration.
        mean_jobs: in the system at the decisions, on average.
        selected: objective of the most probable decisions / the fair policy's on the selection runs, where measured; else NaN.
        best: the smallest of these so far.
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
        family: the kind of network, bound to the scenario.
        teacher: the rule that is imitated first, where the config says so.
        weights: where to start; None for a fresh network.
        folder: where the state of the training is kept (for resuming); None to keep none.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: no such device.
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
            raise ConfigError("--device cuda: PyTorch sees no such device here; use --device cpu")
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
        start = self.network.export()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        self._rng = rng
        self._rate = Rate()
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
        """Jobs in the system on average over the selection runs that were just played."""
        now = self._selection.simulators.states.now
        return float(now.job_ms.sum() / max(1, now.clock_ms.sum()))

    def _tail_ms(self) -> float:
        """Where the tail begins: the 80th percentile of completion times under the fair policy."""
        jobs = self._selection.simulators.states.jobs
        return float(np.percentile(jobs.completion_ms - jobs.arrival_ms, 80))

    def _measure(self, weights: Weights) -> float:
        """Objective of the most probable decisions / the fair policy's, on the selection runs."""
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
        """Iterate until the time (that of earlier calls included) or the iterations are used up, or `is_stopped`.

        The learning rate falls with the iterations where their number is given, else with the time.

        Raises:
            DivergedError: the training went astray; `best_weights` are what to keep.
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
        """Move the running mean towards the present weights; at first it is their plain mean."""
        if self.config.averaging > 0:
            rate = max(1.0 / (self.iteration + 1), 1.0 - self.config.averaging)
            for name, array in self.network.export().items():
                self._mean_weights[name] = (
                    self._mean_weights[name] * (1.0 - rate) + array * rate
                ).astype(array.dtype)

    def _select(self) -> float:
        """Measure the weights, and their running mean; keep what is best so far. Returns the better of the two."""
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
        """Have everything compiled before the clock starts."""
        before = self.worker.rng_state()
        self.collect()
        self.worker.restore_rng(before)

    def collect(self, done: float = 0.0) -> list[list[Rollout]]:
        """One collection of rollouts under the present weights; while imitating, of what the teacher would choose.

        Windows in which nothing had to be decided (a trace's quiet hours) are passed over.

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
            # The teacher takes all decisions at first, so that good states are seen, and fewer and fewer (DAgger).
            teacher = self._teacher, max(0.1, 1.0 - 0.02 * self.iteration)
        gap = 1.0 + (self.config.early_gap - 1.0) * max(0.0, 1.0 - 2.0 * done)
        return self.worker.collect(network, self._episode_s(), teacher, gap)

    def learn(self, groups: list[list[Rollout]], left: float) -> tuple[UpdateReport, float]:
        """One update; `left` is the share of the budget that is left. Returns it with the mean number of jobs in the system.

        Raises:
            DivergedError: the training went astray.
        """
        config = self.config
        self.decisions += require_decisions(groups)
        mean_jobs = self._guard(groups)
        data = self.family.gather([rollout for group in groups for rollout in group])
        self.iteration += 1
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
        fade = config.final_share + (1 - config.final_share) * left
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = config.learning_rate * fade
        step = replace(step, entropy=config.entropy * fade)
        return update(
            self.network, self.optimizer, data, advantage, target, step, self._rng, self.device
        ), mean_jobs

    def _episode_s(self) -> float | None:
        """Memoryless termination: the end of this iteration's episodes, whose mean grows (Decima, section 5.3)."""
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
        """Algorithm 1's update: differential costs, input-dependent baseline, entropy that fades by iterations."""
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
            plain = [np.full(len(curve), float(np.concatenate(curves).mean())) for curve in curves]
            baselines = aligned_baseline(times, curves) if config.is_aligned else plain
            advantages += [
                (b - own)[:-1] / config.cost_scale for own, b in zip(curves, baselines, strict=True)
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

    def _guard(self, groups: list[list[Rollout]]) -> float:
        """Jobs in the system at the decisions, on average.

        Raises:
            DivergedError: many times more than under the fair policy: the queues grow without bound (those of a batch cannot).
        """
        rollouts = [r for g in groups for r in g]
        mean_jobs = sum(map(self.family.num_jobs, rollouts)) / max(
            1, sum(r.count for r in rollouts)
        )
        limit = self.config.max_jobs_factor * max(self._fair_jobs, 2.0)
        if mean_jobs > limit and self.scenario.arrivals != "batch":
            raise DivergedError(
                f"after {self.iteration} iterations {mean_jobs:.0f} jobs wait on average, where fair sharing keeps "
                f"{self._fair_jobs:.0f}: queues grow without bound; the best policy so far is kept. "
                f"Train with a lower learning rate, shorter windows or a stronger prior"
            )
        return mean_jobs

    def _advantages(self, groups: list[list[Rollout]]) -> tuple[FloatArray, FloatArray | None]:
        """Normalised advantages (less cost is better) and, where windows cut runs short, the critic's targets."""
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
                last = next(ends)
                clock_s = r.clock_ms[:n] / MS_PER_S
                to_go = costs_to_go(
                    clock_s, r.cost[:n] / scale, end_s, float(r.end_cost[0]) / scale, rate
                )
                to_go = to_go + last * np.exp(-rate * (end_s - clock_s))
                times.append(np.append(clock_s, end_s))
                curves.append(np.append(to_go, last))
            for own, baseline in zip(curves, aligned_baseline(times, curves), strict=True):
                advantages.append((baseline - own)[:-1])
                targets.append(own[:-1])
        target = None
        if config.window_s is not None:
            together = np.concatenate(targets)
            if self._value_spread == 1.0:
                self._value_mean = float(together.mean())
                self._value_spread = max(1e-6, float(together.std()))
            target = (together - self._value_mean) / self._value_spread
        return normalized(np.concatenate(advantages)), target

    def _end_values(self, rollouts: list[Rollout]) -> FloatArray:
        """What is left to pay at each rollout's end: the critic's word where a window cut it off, 0 where it was over."""
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
                "objective": str(scenario.objective),
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
        """Write all that resuming needs into `folder`, wholly or not at all."""
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
        """What must be the same for a training to be resumed."""
        scenario = self.scenario
        own = {
            "config": self.config.model_dump(mode="json"),
            "seed": self.seed,
            "fingerprint": fingerprint(scenario.workload),
            "scenario": [scenario.arrivals, scenario.num_jobs, str(scenario.objective)],
            "cluster": scenario.config.model_dump(mode="json"),
            "family": [self.family.name, self.family.settings],
        }
        same: dict[str, Any] = json.loads(json.dumps(own))
        return same

    def _moments(self) -> list[dict[str, Any]]:
        return [self.optimizer.state[p] for p in self.network.parameters()]

    def resume(self, folder: Path) -> None:
        """Go on from the state in `folder`, exactly as if the training had never stopped there.

        Raises:
            FormatError: torn, or of another version.
            ConfigError: a training of other settings.
            FileNotFoundError: there is none.
        """
        path = folder / STATE_FILE
        state = read_checkpoint(path)
        state.require("training", self.family.feature_version, str(path))
        settings = state.settings
        for key, value in self._identity().items():
            if settings.get(key) != value:
                raise ConfigError(
                    f"{path}: a training with another {key}; use the same settings, or another folder"
                )
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


#: So many collections in a row may hold no decision.
_QUIET_WINDOWS = 200
#: The file in a training's folder that it resumes from.
STATE_FILE = "training.safetensors"
#: What Adam keeps of a weight's gradients.
_MOMENTS = ("exp_avg", "exp_avg_sq")
