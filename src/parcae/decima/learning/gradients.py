"""Training of the cluster's networks by gradients: rollouts, then PPO, REINFORCE or imitation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.base.errors import ConfigError, DivergedError, PolicyError
from parcae.base.texts import MS_PER_S
from parcae.decima.learning.ray_workers import RayCluster
from parcae.decima.learning.recipes import TrainRequest, make_family, teacher_of
from parcae.decima.learning.simulators import RolloutWorker, Setup
from parcae.decima.learning.updates import (
    CriticScale,
    Rate,
    Rollout,
    Trainee,
    UpdateReport,
    imitate,
    normalized,
    reinforce,
    reinforce_advantages,
    update,
    window_advantages,
)
from parcae.decima.queries import Teacher
from parcae.learning.config import Algorithm, TrainConfig
from parcae.learning.loop import IterationSeeds, Measured, compile_kernels
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.learned import require_durations
from parcae.policies.networks.training import optimizer_state, restore_optimizer, set_rate

FloatArray = npt.NDArray[np.float64]
Groups = list[list[Rollout]]
#: Maximum number of successive collections without any decision.
_QUIET_WINDOWS = 200
#: Seeds of trainings are below 2^this, so that a setting's number fits above.
_SETTING_BITS = 8
#: Selection runs of a setting, at least.
_FEWEST_RUNS = 8


class _Setting:
    """A scenario of a training: its selection runs, its rollouts, the scales of its costs.

    All measurements of a training use the same selection runs, so that they can be compared: with
    each other, and with fair sharing.
    """

    def __init__(
        self, request: TrainRequest, scenario: Scenario, number: int, usual_jct_s: float | None
    ) -> None:
        self.family = make_family(request, scenario)
        self.teacher = teacher_of(request, scenario)
        self.scenario = scenario
        config = request.config
        # The settings share the selection runs.
        num_runs = max(_FEWEST_RUNS, config.num_selection // len(request.scenarios))
        num_runs = min(config.num_selection, num_runs)
        runs = scenario.selection(num_runs)
        self.measured = runs.against_fair()
        now = runs.simulators.states.now
        # job_ms is the integral of the number of jobs over time.
        self.fair_jobs = float(now.job_ms.sum() / max(1, now.clock_ms.sum()))
        jct_ms = np.concatenate([runs.finished_jobs(row).jct_ms[0] for row in range(num_runs)])
        self.fair_jct_s = float(jct_ms.mean()) / MS_PER_S
        # Where the tail of completion times begins, for the objective p95-jct.
        self.tail_ms = float(np.percentile(jct_ms, 80))
        self.config = _scaled(config, 1.0 if usual_jct_s is None else self.fair_jct_s / usual_jct_s)
        setup = Setup(scenario, self.family, self.config, self.tail_ms)
        address = request.ray_address
        self.worker = RolloutWorker(
            setup,
            # The first 16 settings draw different sequences; the 17th draws those of the first.
            seed=request.seed + (number << _SETTING_BITS),
            player=None if address is None else RayCluster(address, setup),
        )
        # The mean cost per second, for REINFORCE.
        self.rate = Rate()
        self.critic_scale = CriticScale()

    def state(self) -> dict[str, Any]:
        """What a resumed training needs, as plain JSON."""
        return {
            "value": [self.critic_scale.mean, self.critic_scale.spread],
            "rate": list(self.rate.pieces),
            "collections": self.worker.number,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.critic_scale = CriticScale(*state["value"])
        self.rate = Rate(list(state["rate"]))
        self.worker.number = state["collections"]
        self.worker.restart()

    def check_queues(self, mean_jobs: float, most: float, iteration: int) -> None:
        """Check the mean number of jobs in the system at the decisions."""
        # At least 2 jobs, so that an almost idle cluster does not trigger the check.
        if mean_jobs > most * max(self.fair_jobs, 2.0) and self.scenario.arrivals != "batch":
            raise DivergedError(
                f"after {iteration} iterations {mean_jobs:.0f} jobs are in the system on "
                f"average, under fair sharing {self.fair_jobs:.0f}: the queues grow without "
                "bound. The best policy so far is kept. Train with a lower learning rate, shorter "
                "windows or a stronger prior"
            )


def _scaled(config: TrainConfig, scale: float) -> TrainConfig:
    """The settings with all times multiplied, for jobs that take `scale` times as long."""
    times = ("window_s", "horizon_s", "episode_s", "episode_growth_s", "episode_max_s")
    values = {name: getattr(config, name) for name in times}
    return config.model_copy(
        update={name: one * scale for name, one in values.items() if one is not None}
    )


class GradientLearner:
    """Trains a network for some scenarios; a learner, see `parcae.learning.loop.Learner`.

    Iterations take turns among the scenarios. What is measured is the mean of the ratios to fair
    sharing.

    Args:
        request: which network to train, what for, and how.

    Raises:
        ConfigError: the network is unknown, a rule is missing, the device does not exist, or the
            settings or a workload do not go with the training.
    """

    measured = "ratio_to_fair"
    iterations_name = "iterations"

    def __init__(self, request: TrainRequest) -> None:
        self.config = config = request.config
        check_device(request.device)
        if config.early_gap > 1 and all(one.arrivals == "batch" for one in request.scenarios):
            raise ConfigError(
                f"early_gap={config.early_gap:g} stretches the gaps between arrivals, and here all "
                "jobs arrive at once: leave it out, or choose other --arrivals"
            )
        for scenario in request.scenarios:
            require_durations(scenario.workload)
        # A second thread makes small minibatches a third faster on an idle machine, and ten times
        # slower on a busy one.
        torch.set_num_threads(1)
        first, *others = request.scenarios
        self._setting = _Setting(request, first, 0, None)
        usual_jct_s = self._setting.fair_jct_s
        self._settings = [
            self._setting,
            *(_Setting(request, one, row, usual_jct_s) for row, one in enumerate(others, 1)),
        ]
        self.family = family = self._setting.family
        self.kind = family.name
        self.feature_version = family.feature_version
        self.seed = seed = request.seed
        self.select_every = config.select_every
        self.device = torch.device(request.device)
        self._is_imitating = config.imitation > 0
        self._rng = np.random.default_rng(np.random.SeedSequence([0x7472_6169, seed]))
        torch.manual_seed(seed)
        network: Any = family.network(request.weights or family.initial_weights(self._rng))
        self.network: Any = network.to(self.device)
        # The networks have many small arrays: one call for all is three times as fast.
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=config.learning_rate, foreach=True
        )
        self.iteration = 0
        self.decisions = 0
        self._mean_weights: Weights = self.network.export()

    def settings(self) -> dict[str, Any]:
        """The network's shape and choice of features."""
        return self.family.settings

    def identity(self) -> dict[str, Any]:
        """The scenario, the settings of the training, and rules and weights that stay."""
        fixed = {name: array.tolist() for name, array in self.family.fixed_weights.items()}
        teacher = self._settings[0].teacher
        if teacher is not None:
            fixed["imitated rule"] = teacher.theta.tolist()
        return {
            "config": self.config.model_dump(mode="json"),
            **self._setting_of_all(Scenario.identity),
            **fixed,
        }

    def card(self) -> dict[str, Any]:
        """The scenario and the settings of the training."""
        training = self.config.model_dump(mode="json")
        return {**self._setting_of_all(Scenario.card), "training": training}

    def _setting_of_all(self, describe: Callable[[Scenario], dict[str, Any]]) -> dict[str, Any]:
        """The first scenario, described, and a list of the others if there are any."""
        first, *others = (describe(setting.scenario) for setting in self._settings)
        return {**first, "also": others} if others else first

    def counts(self) -> dict[str, int]:
        """The recorded decisions."""
        return {"decisions": self.decisions}

    def begin(self) -> Sequence[Measured]:
        """Compile all kernels, and measure the weights at the start."""
        # After the imitation, other kernels learn.
        compile_kernels(self, (0.0, 1.0) if self.config.imitation > 0 else (0.0,))
        return self.measure()

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Collect rollouts and update the network with them."""
        self.iteration = seeds.iteration
        self._setting = self._settings[seeds.iteration % len(self._settings)]
        # Imitation comes first, and ends when its share of the training is over.
        self._is_imitating = done < self.config.imitation
        before = self.decisions
        report, mean_jobs = self.learn(self.collect(done), max(0.0, 1.0 - done))
        self._average()
        return {
            **report.scalars,
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
        with _diverging():
            measured = [(self._ratio(weights), {**weights, **fixed}) for weights in candidates]
        # Simulators are not saved: the state is exact only where all sequences begin anew.
        for setting in self._settings:
            setting.worker.restart()
        return measured

    def _ratio(self, weights: Weights) -> float:
        """Mean over the settings of the ratio to fair sharing."""
        ratios = [
            one.measured.ratio(one.family.policy(weights).play_many) for one in self._settings
        ]
        return float(np.mean(ratios))

    def weights(self) -> Weights:
        """Copies of the network's weights, and those that are not trained."""
        return {**self.network.export(), **self.family.fixed_weights}

    def state(self) -> dict[str, Any]:
        """The running mean, Adam's moments, and the state of all draws."""
        moments = optimizer_state(self.network.named_parameters(), self.optimizer)
        return {
            **{f"mean.{name}": array for name, array in self._mean_weights.items()},
            **{f"adam.{name}": array for name, array in moments.items()},
            "decisions": self.decisions,
            "rng": self._rng.bit_generator.state,
            "settings": [setting.state() for setting in self._settings],
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
        restore_optimizer(self.network.named_parameters(), self.optimizer, moments)
        self.decisions = int(state["decisions"])
        self._rng.bit_generator.state = state["rng"]
        for setting, of_setting in zip(self._settings, state["settings"], strict=True):
            setting.restore(of_setting)

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
        """
        setting = self._setting
        network = setting.family.policy(self.network.export()).network
        teacher = None
        if self._is_imitating and setting.teacher is not None:
            # The teacher takes all decisions at first, so that the network sees good states, then
            # fewer and fewer, so that it sees its own (DAgger).
            teacher = Teacher(setting.teacher, max(0.1, 1.0 - 0.02 * self.iteration))
        gap = 1.0 + (self.config.early_gap - 1.0) * max(0.0, 1.0 - 2.0 * done)
        for _ in range(_QUIET_WINDOWS):
            with _diverging():
                groups = setting.worker.collect(network, self._episode_s(), teacher, gap)
            if any(rollout.count for rollout in chain.from_iterable(groups)):
                break
        return groups

    def _episode_s(self) -> float | None:
        """Draw the length of this iteration's episodes.

        It is memoryless, and its mean grows with the iterations (Decima, section 5.3).
        """
        config = self._setting.config
        if config.episode_s is None:
            return None
        mean = config.episode_s + config.episode_growth_s * self.iteration
        return float(self._rng.exponential(min(mean, config.episode_max_s or math.inf)))

    def learn(self, groups: Groups, left: float) -> tuple[UpdateReport, float]:
        """Update the network with one collection of rollouts. Returns the numbers of the update,
        and the mean number of jobs in the system.
        """
        config, setting = self.config, self._setting
        rollouts = list(chain.from_iterable(groups))
        count = sum(rollout.count for rollout in rollouts)
        if count == 0:
            raise PolicyError(
                "the runs contain no decision to learn from: use more executors, or arrivals at "
                "which jobs compete"
            )
        self.decisions += count
        jobs = sum(int(one.record.num_jobs[: one.count].sum()) for one in rollouts)
        mean_jobs = jobs / count
        setting.check_queues(mean_jobs, config.max_jobs_factor, self.iteration)
        data = setting.family.gather(rollouts)
        self.iteration += 1
        # With PPO, learning rate and entropy bonus fall together.
        is_ppo = not self._is_imitating and config.algorithm is Algorithm.PPO
        share = config.final_share if is_ppo else 1.0
        fade = set_rate(self.optimizer, config.learning_rate, share, left)
        trainee = Trainee(self.network, self.optimizer, self._rng, self.device)
        if self._is_imitating:
            report = imitate(trainee, data, config)
        elif is_ppo:
            advantage, target = self._advantages(groups, rollouts)
            report = update(trainee, data, advantage, target, config, config.entropy * fade)
        else:
            # Algorithm 1: differential costs, input-dependent baseline, entropy bonus.
            advantage = reinforce_advantages(groups, config, setting.rate)
            fallen = config.entropy - config.entropy_decay * self.iteration
            entropy = max(config.entropy_least, fallen)
            report = reinforce(trainee, data, advantage, entropy, config.minibatch)
        return report, mean_jobs

    def _advantages(
        self, groups: Groups, rollouts: list[Rollout]
    ) -> tuple[FloatArray, FloatArray | None]:
        """Normalised advantages (positive: less cost) and, with windows, the critic's targets."""
        setting = self._setting
        scale = setting.critic_scale
        # The cost to go at each rollout's end is the critic's value where a window cut the run off,
        # and 0 where the run was complete. Before the critic has its scale, and so has learned
        # anything, it is 0.
        ends = np.zeros(len(rollouts))
        if self.config.window_s is not None and scale.is_known:
            states = setting.family.gather(rollouts, ends=True)
            with torch.no_grad():
                value = self.network.value(states.decisions(np.arange(len(ends)), self.device))
            ends = value.cpu().numpy().astype(np.float64) * scale.spread + scale.mean
            ends[[rollout.is_complete for rollout in rollouts]] = 0.0
        advantage, to_go = window_advantages(groups, ends, setting.config.horizon_s)
        target = None if self.config.window_s is None else scale.targets(to_go)
        return normalized(advantage), target


@contextmanager
def _diverging() -> Iterator[None]:
    """Within this context, a decision that cannot be carried out means that training diverged.

    Networks choose among what is possible, unless their scores are no longer numbers.
    """
    try:
        yield
    except PolicyError as error:
        raise DivergedError(
            f"the network's scores are no longer numbers ({error}); the best policy so far is "
            "kept. Train with a lower learning rate"
        ) from error


def check_device(device: str) -> None:
    """Check that networks can be trained on a device of this machine."""
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if match is None:
        raise ConfigError(f"--device {device}: write cpu or cuda")
    if device != "cpu" and int(match[1] or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {device}: PyTorch finds no such CUDA device on this machine; use --device "
            "cpu"
        )
