"""Networks of one's own: a plain `torch.nn.Module` that scores queries or stages, and its training.

The module is called with a `NetworkInput` and returns scores, float[B, J] (of queries: the chosen
one's first stage that can run gets the cores) or float[B, S] (of stages); a pair adds the scores of
limits, float[B, J or S, L]. Choices are drawn by the softmax of the scores that are not masked; a
policy takes the largest.

Source: PPO (Schulman et al. 2017) without a critic: the baseline is the mean cost to go of rollouts
that share arrivals and durations (Decima, section 5.3).
"""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parcae.base.errors import (
    ConfigError,
    DivergedError,
    FormatError,
    ParcaeError,
    PolicyError,
    suggestion,
)
from parcae.base.extensions import is_reference, load
from parcae.base.texts import MS_PER_S
from parcae.cluster.observation import Decision, Observation
from parcae.decima.learning.updates import (
    Trainee,
    costs_to_go,
    gains,
    normalized,
    reinforce,
    update,
)
from parcae.environments.adapters import Arrays
from parcae.environments.cluster import ClusterEpisodes
from parcae.environments.settings import ACCRUING, ClusterSettings
from parcae.learning.config import Algorithm, TrainConfig, override
from parcae.learning.loop import IterationSeeds, Measured, compile_kernels
from parcae.learning.scenario import Scenario, start_checkpoint
from parcae.learning.worlds import LearnerRequest
from parcae.policies.checkpoint import Checkpoint, Weights
from parcae.policies.learned import require_durations
from parcae.policies.networks.training import (
    Judged,
    Surrogate,
    entropy_terms,
    optimizer_state,
    restore_optimizer,
    set_rate,
)
from parcae.policies.registry import PolicySetting
from parcae.simulation.future import Status
from parcae.workloads.workload import SELECTION_SEED_START

Int64Array = npt.NDArray[np.int64]
#: Kind of checkpoint, and version of what a network sees.
KIND = "module"
VERSION = 1
#: The most rows for queries, and the most limits, that a network sees.
_MOST_JOBS = 50
_MOST_LIMITS = 20
#: What a checkpoint says of what its network sees: rows for queries and stages, limits.
_SIZES = ("max_jobs", "max_stages", "num_limits")
#: The settings of a training, and the names of those that have an effect here.
SETTINGS = TrainConfig(capacity=128, learning_rate=2e-3, epochs=3, minibatch=1024, select_every=5)
_USED = (
    *("algorithm", "num_groups", "group_size", "capacity", "learning_rate", "final_share"),
    *("epochs", "minibatch", "clip", "max_norm", "entropy", "select_every", "num_selection"),
)


class NetworkInput(NamedTuple):
    """What a network sees of B decisions; `parcae.environments.layout` names the columns.

    J, S, E and L are the rows for queries, stages, edges and limits. Limit k of L is
    (k + 1) / L of all cores, rounded up.
    """

    jobs: Tensor  # float32[B, J, ObservedJobFeature], open queries by arrival; unused rows are 0
    cluster: Tensor  # float32[B, ClusterFeature]
    stages: Tensor  # float32[B, S, StageFeature], unfinished stages by query; unused rows are 0
    stage_job: Tensor  # int64[B, S], row of the stage's query; 0 in unused rows
    edges: Tensor  # int64[B, E, 2], rows of a parent and a child stage; -1 in unused rows
    job_mask: Tensor  # bool[B, J], queries that can be chosen
    stage_mask: Tensor  # bool[B, S], stages that can be chosen
    limit_mask: Tensor  # bool[B, L], limits of which each has another effect


def network_input(seen: Arrays, rows: Int64Array) -> NetworkInput:
    """What a network sees of the given rows of observations of `parcae/Cluster-v0`."""
    stage_job = np.maximum(seen["stage_job"][rows], 0).astype(np.int64)
    mask = seen["action_mask"][rows]
    num_stages = stage_job.shape[1]
    stage_mask = mask[:, :num_stages]
    jobs = seen["jobs"][rows]
    job_mask = np.zeros(jobs.shape[:2], np.bool_)
    where = np.nonzero(stage_mask)
    job_mask[where[0], stage_job[where]] = True
    edges = seen["edges"][rows].astype(np.int64)
    # The choice to idle lies between stages and limits; it is never taken.
    limit_mask = mask[:, num_stages + 1 :]
    arrays = (
        *(jobs, seen["cluster"][rows], seen["stages"][rows], stage_job, edges),
        *(job_mask, stage_mask, limit_mask),
    )
    return NetworkInput(*map(torch.from_numpy, arrays))


@dataclass(frozen=True)
class DrawnChoices:
    """Choices for B decisions, and what they were drawn from; a `DataSet` of PPO."""

    given: NetworkInput
    choice: Tensor  # int64[B], row of a query or a stage
    level: Tensor  # int64[B], limit
    log_probs: Tensor  # float32[B]

    @property
    def log_prob(self) -> npt.NDArray[np.float32]:
        """Log probability of each choice."""
        found: npt.NDArray[np.float32] = self.log_probs.numpy()
        return found

    def __len__(self) -> int:
        return len(self.choice)

    def shuffled(self, rng: np.random.Generator) -> Int64Array:
        """All indices, in random order."""
        return rng.permutation(len(self))

    def decisions(self, index: Int64Array, device: torch.device) -> DrawnChoices:
        """The choices with these indices."""
        del device  # always the processor
        these = torch.from_numpy(index)
        given = NetworkInput(*(one[these] for one in self.given))
        return DrawnChoices(given, self.choice[these], self.level[these], self.log_probs[these])


def _joined(parts: Sequence[DrawnChoices]) -> DrawnChoices:
    """Choices one after another."""
    given = NetworkInput(*map(torch.cat, zip(*(one.given for one in parts), strict=True)))
    drawn = zip(*((one.choice, one.level, one.log_probs) for one in parts), strict=True)
    return DrawnChoices(given, *map(torch.cat, drawn))


class Chooser(nn.Module):
    """A network with the checks of its scores, and the choices that they mean.

    Args:
        network: the module.
        name: how errors call it.
        error: the class of errors.
    """

    def __init__(self, network: nn.Module, name: str, error: type[ParcaeError]) -> None:
        super().__init__()
        self.network = network
        self.error = error
        self._name = name

    def _scores(self, given: NetworkInput) -> tuple[Tensor, Tensor | None]:
        """Log probabilities of queries or stages, and scores of limits."""
        try:
            answer = self.network(given)
        except Exception as error:  # the module may raise anything
            raise self.error(
                f"network {self._name}: its forward fails with {type(error).__name__}: {error}"
            ) from error
        scores, limits = answer if isinstance(answer, tuple) else (answer, None)
        shape = tuple(getattr(scores, "shape", ()))
        of_jobs, of_stages = given.job_mask, given.stage_mask
        # Where every query has one stage, its row is the query's.
        mask = {tuple(of_stages.shape): of_stages, tuple(of_jobs.shape): of_jobs}.get(shape)
        if mask is None:
            raise self.error(
                f"network {self._name}: its scores are {_words(scores)}; return one for each "
                f"query, {list(of_jobs.shape)}, or for each stage, {list(of_stages.shape)}"
            )
        wanted = [*shape, given.limit_mask.shape[1]]
        if limits is not None and list(getattr(limits, "shape", ())) != wanted:
            raise self.error(
                f"network {self._name}: its scores of limits are {_words(limits)}; return {wanted}"
            )
        is_finite = bool((torch.isfinite(scores) | ~mask).all())
        if not is_finite or (limits is not None and not bool(torch.isfinite(limits).all())):
            raise self.error(
                f"network {self._name}: a score is NaN or infinite; features are from 0 to 10, so "
                "look for a division by 0 or for a learning rate that is too high"
            )
        return scores.masked_fill(~mask, -torch.inf).log_softmax(1), limits

    @staticmethod
    def _of_limits(limits: Tensor, given: NetworkInput, choice: Tensor) -> Tensor:
        """Log probabilities of the limits of the chosen rows, float32[B, L]."""
        chosen = limits[torch.arange(len(choice)), choice]
        return chosen.masked_fill(~given.limit_mask, -torch.inf).log_softmax(1)

    @torch.no_grad()
    def choose(
        self, given: NetworkInput, generator: torch.Generator | None
    ) -> tuple[DrawnChoices, Int64Array]:
        """Draw a choice for each decision; without a generator the most probable ones.

        Returns the choices, and the actions of `parcae/Cluster-v0` that they mean, int64[B, 2].
        """
        log_probs, limits = self._scores(given)
        choice = stage = _drawn(log_probs, generator)
        log_prob = _taken(log_probs, choice)
        level = given.limit_mask.sum(1) - 1  # all cores that are left
        if limits is not None:
            of_limits = self._of_limits(limits, given, choice)
            level = _drawn(of_limits, generator)
            log_prob = log_prob + _taken(of_limits, level)
        if log_probs.shape == given.job_mask.shape:
            is_of_job = (given.stage_job == choice[:, None]) & given.stage_mask
            stage = is_of_job.int().argmax(1)
        actions = torch.stack([stage, level], 1).numpy()
        return DrawnChoices(given, choice, level, log_prob), actions

    def judge(self, drawn: DrawnChoices, surrogate: Surrogate) -> tuple[Tensor, Judged]:
        """The loss of recorded choices, and their log probabilities under the present weights."""
        log_probs, limits = self._scores(drawn.given)
        log_prob = _taken(log_probs, drawn.choice)
        entropy = entropy_terms(log_probs).sum(1)
        if limits is not None:
            of_limits = self._of_limits(limits, drawn.given, drawn.choice)
            log_prob = log_prob + _taken(of_limits, drawn.level)
            entropy = entropy + entropy_terms(of_limits).sum(1)
        judged = Judged(log_prob, entropy, torch.zeros_like(log_prob))
        return surrogate.loss(judged), judged


def _words(value: Any) -> str:
    """What a network returned, for error messages."""
    return f"of shape {list(value.shape)}" if isinstance(value, Tensor) else f"{type(value)}"


def _drawn(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return log_probs.argmax(1)
    return torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(1)


def _taken(log_probs: Tensor, choice: Tensor) -> Tensor:
    return log_probs.gather(1, choice[:, None]).squeeze(1)


def _named_network(given: Any) -> tuple[nn.Module, str]:
    """A network of a class or an object, which may be named, and how its checkpoint names it."""
    name = given if isinstance(given, str) else _name_of(given)
    value = _object_of(name) if isinstance(given, str) else given
    kind = value if isinstance(value, type) else type(value)
    if not issubclass(kind, nn.Module):
        raise ConfigError(f"network {name} is {value!r}: name a torch.nn.Module")
    if not isinstance(value, type):
        # Every policy of an object that is named has weights of its own.
        return copy.deepcopy(value) if isinstance(given, str) else value, name
    try:
        return value(), name
    except Exception as error:  # the class may raise anything
        raise ConfigError(
            f"network {name}: an object of the class is made without arguments "
            f"({type(error).__name__}: {error}); give its arguments defaults"
        ) from error


def _object_of(name: str) -> Any:
    """What `module:attribute` names; a script's own classes are not imported a second time."""
    if not is_reference(name):
        raise ConfigError(f"network {name!r}: write module:Class")
    module, _, path = name.partition(":")
    main = sys.modules["__main__"]
    is_main = module in ("__main__", Path(getattr(main, "__file__", None) or "").stem)
    if is_main and hasattr(main, path.partition(".")[0]):
        return operator.attrgetter(path)(main)
    return load(name, "network")


def _name_of(value: Any) -> str:
    """`module:Class` of a network, which its checkpoints name."""
    kind = value if isinstance(value, type) else type(value)
    module = kind.__module__
    if "<locals>" in kind.__qualname__:
        raise ConfigError(
            f"network {kind.__qualname__}: its class is made in a function, where no checkpoint "
            "can name it; define it at the top of a module"
        )
    file = getattr(sys.modules["__main__"], "__file__", None)
    module = Path(file).stem if module == "__main__" and file else module
    return f"{module}:{kind.__qualname__}"


def _load_weights(network: nn.Module, weights: Mapping[str, Any], where: str) -> None:
    """Set all weights of a network."""
    own = network.state_dict()
    for name in (*own, *weights):
        if name not in own or name not in weights or weights[name].size != own[name].numel():
            raise FormatError(
                f"{where}: weights {name!r} are not those of the network; use the module that was "
                "trained (its arguments' defaults included)"
            )
    network.load_state_dict(
        {name: torch.from_numpy(np.array(weights[name])).reshape(own[name].shape) for name in own}
    )


class NetworkPolicy:
    """A network of one's own as a policy of Decima's world, or by its decisions of that of cores.

    Args:
        name: how tables call it.
        chooser: the network.
        settings: those of the environment that shows it the cluster.
    """

    def __init__(self, name: str, chooser: Chooser, settings: ClusterSettings) -> None:
        self.name = name
        self._chooser = chooser.eval()
        self._episodes = ClusterEpisodes(1, settings, copies=False)

    def decide(self, observation: Observation) -> Decision:
        """The most probable choice."""
        if not self._episodes.follow(0, observation):
            return Decision()
        given = network_input(self._episodes.observations(), np.zeros(1, np.int64))
        _, actions = self._chooser.choose(given, None)
        return self._episodes.decision(0, actions[0])


def bind(checkpoint: Checkpoint, name: str, setting: PolicySetting) -> NetworkPolicy:
    """The policy of a checkpoint; the module that it names is imported.

    Raises:
        ConfigError: there is no such module, or no such class in it.
        FormatError: the weights are those of another network.
    """
    network, module = _named_network(str(checkpoint.settings.get("module")))
    _load_weights(network, checkpoint.weights, name)
    try:
        sizes: dict[str, Any] = {key: int(checkpoint.settings[key]) for key in _SIZES}
        config = ClusterSettings(
            workload=setting.workload, num_jobs=sizes["max_jobs"], cluster=setting.config, **sizes
        )
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{name}: the sizes of its network are missing; train it again") from None
    return NetworkPolicy(name, Chooser(network, f"{name} ({module})", PolicyError), config)


class _Rollouts:
    """Decisions of rollouts that are played side by side, some of which are kept to learn from."""

    def __init__(self, count: int, most: int) -> None:
        self._most = most
        self._stride = 1
        self._num_steps = 0
        #: Kept decisions, each with its rollout and its number in this.
        self._kept: list[tuple[list[tuple[int, int]], DrawnChoices]] = []
        self._times_s = [list[float]() for _ in range(count)]
        self._costs = [list[float]() for _ in range(count)]

    def __len__(self) -> int:
        """The number of decisions."""
        return sum(map(len, self._costs))

    def add(
        self,
        rows: Int64Array,
        clock_ms: Int64Array,
        costs: npt.NDArray[np.float64],
        drawn: DrawnChoices,
    ) -> None:
        """Add one decision of each of the given rollouts."""
        if self._num_steps % self._stride == 0:
            self._kept.append(([(row, len(self._costs[row])) for row in rows.tolist()], drawn))
        self._num_steps += 1
        if sum(len(places) for places, _ in self._kept) > self._most:
            # Every second one is enough from now on; a run's length is not known before.
            self._stride *= 2
            self._kept = self._kept[::2]
        decisions = zip(rows, clock_ms / MS_PER_S, costs, strict=True)
        for row, time_s, cost in decisions:
            self._times_s[row].append(time_s)
            self._costs[row].append(cost)

    def learned_from(
        self, ends_s: npt.NDArray[np.float64], costs: npt.NDArray[np.float64], group_size: int
    ) -> tuple[DrawnChoices, npt.NDArray[np.float64]]:
        """The kept decisions and their advantages, from each rollout's end and its cost."""
        times = [np.append(*run) for run in zip(self._times_s, ends_s, strict=True)]
        accrued = [np.append(*run) for run in zip(self._costs, costs, strict=True)]
        to_go = [costs_to_go(*run) for run in zip(times, accrued, strict=True)]
        groups = [slice(at, at + group_size) for at in range(0, len(times), group_size)]
        gained = [one for group in groups for one in gains(times[group], to_go[group])]
        first = np.cumsum([0, *map(len, gained)])
        kept = [first[row] + at for places, _ in self._kept for row, at in places]
        return _joined([one for _, one in self._kept]), normalized(np.concatenate(gained))[kept]


class NetworkLearner:
    """Trains a network of one's own by PPO; a learner, see `parcae.learning.loop.Learner`.

    Args:
        network: a `torch.nn.Module` (an object, its class, or `module:attribute` of one).
        scenario: what to train for.
        config: the settings; of a rollout, about `capacity` decisions are learned from.
        seed: seed of the training.

    Raises:
        ConfigError: the network cannot be made, or returns no scores for the scenario; the
            objective does not accrue over time, or the cluster has executor classes.
    """

    kind = KIND
    feature_version = VERSION
    measured = "ratio_to_fair"
    iterations_name = "iterations"

    def __init__(self, network: Any, scenario: Scenario, config: TrainConfig, seed: int) -> None:
        require_durations(scenario.workload)
        if scenario.objective not in ACCRUING:
            raise ConfigError(
                f"objective {scenario.objective_name}: a network of one's own learns from a cost "
                f"that accrues; choose one of {', '.join(ACCRUING)}"
            )
        if len(scenario.config.classes) > 1:
            raise ConfigError(
                "executor classes: a network of one's own chooses none; use --network decima, or "
                "executors of one size"
            )
        torch.manual_seed(seed)
        self.network, self._name = _named_network(network)
        if not any(one.requires_grad for one in self.network.parameters()):
            raise ConfigError(f"network {self._name}: it has no weights to train")
        self.scenario, self.config, self.seed = scenario, config, seed
        self.select_every = config.select_every
        self.decisions = 0
        settings = ClusterSettings(
            workload=scenario.workload,
            num_jobs=scenario.num_jobs,
            arrivals=scenario.arrivals,
            objective=scenario.objective,
            reward_scale=1.0,
            max_jobs=min(_MOST_JOBS, scenario.num_jobs),
            num_limits=min(_MOST_LIMITS, scenario.config.total_executors),
            cluster=scenario.config,
        )
        count = config.num_groups * config.group_size
        self._episodes = ClusterEpisodes(count, settings, copies=False)
        self._chooser = Chooser(self.network, self._name, ConfigError)
        self._try()
        self._chooser.error = DivergedError
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        first = SELECTION_SEED_START
        self._selection = range(first, first + config.num_selection)
        self._cost_of_fair = scenario.selection(config.num_selection).against_fair().cost

    def _try(self) -> None:
        """Make the network again, as policies do, and ask it about a decision, before long work."""
        _load_weights(_named_network(self._name)[0], self.weights(), f"network {self._name}")
        row = np.zeros(1, np.int64)
        self._episodes.start(row, [SELECTION_SEED_START])
        if len(self._undecided(row)):
            self._chooser.choose(network_input(self._episodes.observations(), row), None)

    def _undecided(self, rows: Int64Array) -> Int64Array:
        """Those of the rows whose episodes need a decision."""
        found: Int64Array = rows[self._episodes.simulators.status[rows] == Status.NEEDS_DECISION]
        return found

    def settings(self) -> dict[str, Any]:
        """The module, and the sizes of what it sees."""
        sizes = self._episodes.max_jobs, self._episodes.max_stages, len(self._episodes.levels)
        return {"module": self._name, **dict(zip(_SIZES, sizes, strict=True))}

    def identity(self) -> dict[str, Any]:
        """The settings of the training, and the scenario."""
        return {"config": self.config.model_dump(mode="json"), **self.scenario.identity()}

    def card(self) -> dict[str, Any]:
        """The scenario and the settings of the training."""
        return {**self.scenario.card(), "training": self.config.model_dump(mode="json")}

    def counts(self) -> dict[str, int]:
        """The decisions that were played."""
        return {"decisions": self.decisions}

    def begin(self) -> Sequence[Measured]:
        """Compile all kernels, and measure the weights at the start."""
        compile_kernels(self)
        return self.measure()

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Play groups of rollouts, and update the network with their decisions."""
        config = self.config
        rng = seeds.rng
        starts = np.repeat(seeds.sequences(config.num_groups), config.group_size)
        rollouts = _Rollouts(len(starts), config.capacity * len(starts))
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
        costs = self._play(starts.tolist(), rollouts, generator)
        before = self.decisions
        self.decisions += len(rollouts)
        if not len(rollouts):
            raise ConfigError("no decision has a choice here: train with more jobs")
        clock_ms = self._episodes.simulators.states.now.clock_ms[:, 0]
        data, advantages = rollouts.learned_from(clock_ms / MS_PER_S, costs, config.group_size)
        rate = config.learning_rate
        fade = set_rate(self._optimizer, rate, config.final_share, max(0.0, 1.0 - done))
        entropy = config.entropy * fade
        trainee = Trainee(self._chooser.train(), self._optimizer, rng, torch.device("cpu"))
        if config.algorithm is Algorithm.REINFORCE:
            report = reinforce(trainee, data, advantages, entropy, config.minibatch)
        else:
            report = update(trainee, data, advantages, None, config, entropy)
        return {
            **report.scalars,
            "run/cost_s": float(costs.mean()),
            "run/decisions": self.decisions - before,
        }

    def _play(
        self, seeds: Sequence[int], rollouts: _Rollouts | None, generator: torch.Generator | None
    ) -> npt.NDArray[np.float64]:
        """Play the runs of seeds side by side to their end. Returns each one's cost in s."""
        episodes, chooser = self._episodes, self._chooser.eval()
        rows = np.arange(len(seeds))
        episodes.start(rows, seeds)
        actions = np.zeros((episodes.count, 2), np.int64)
        costs = np.zeros(len(seeds))
        while len(rows := self._undecided(rows)):
            given = network_input(episodes.observations(), rows)
            drawn, actions[rows] = chooser.choose(given, generator)
            if rollouts is not None:
                clock_ms = episodes.simulators.states.now.clock_ms[rows, 0]
                rollouts.add(rows, clock_ms, costs[rows], drawn)
            rewards, _, _ = episodes.step(actions, rows)
            costs[rows] -= rewards[rows]
        return costs

    def measure(self) -> Sequence[Measured]:
        """Measure the present weights on the selection runs."""
        column = f"{self.scenario.objective_name.replace('-', '_')}_s"
        found_s: list[float] = []
        for first in range(0, len(self._selection), self._episodes.count):
            seeds = self._selection[first : first + self._episodes.count]
            self._play(seeds, None, None)
            found_s += [self._episodes.outcome(row)[column] for row in range(len(seeds))]
        cost = MS_PER_S * float(np.mean(found_s))
        return [(self.scenario.ratio(cost, self._cost_of_fair), self.weights())]

    def weights(self) -> Weights:
        """Copies of the network's weights."""
        state = self.network.state_dict()
        return {name: np.atleast_1d(one.detach().numpy()).copy() for name, one in state.items()}

    def state(self) -> dict[str, Any]:
        """Adam's moments and the number of decisions; all draws follow from the seed."""
        moments = optimizer_state(self.network.named_parameters(), self._optimizer)
        return {**moments, "decisions": self.decisions}

    def restore(self, weights: Weights, state: dict[str, Any]) -> None:
        """Continue from what `weights` and `state` returned."""
        _load_weights(self.network, weights, "the training")
        moments = {name: one for name, one in state.items() if name != "decisions"}
        restore_optimizer(self.network.named_parameters(), self._optimizer, moments)
        self.decisions = int(state["decisions"])


def learner_of(request: LearnerRequest) -> NetworkLearner:
    """The learner of a network of one's own for a request, whose only option is `set`."""
    name = request.network if isinstance(request.network, str) else "of your own"
    others = {key: value for key, value in request.options.items() if key != "set"}
    LearnerRequest(request.scenarios, options=others).refuse_options(name)
    if len(request.scenarios) > 1:
        raise ConfigError("--also: a network of one's own is trained for one setting; leave it out")
    changes = request.options.get("set", [])
    for key in (change.partition("=")[0] for change in changes):
        if key not in _USED:
            hint = suggestion(key, _USED)
            raise ConfigError(f"setting {key!r} is none of a network of one's own; {hint}")
    config = override(SETTINGS, changes)
    scenario = request.scenarios[0]
    learner = NetworkLearner(request.network, scenario, config, request.seed)
    if request.start is not None:
        checkpoint, kind = start_checkpoint(request.start, scenario)
        if kind.kind != KIND:
            raise FormatError(f"--start {request.start}: it is of another kind, {kind.kind!r}")
        _load_weights(learner.network, checkpoint.weights, f"--start {request.start}")
    return learner
