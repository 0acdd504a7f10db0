"""What learning knows of a world: its rule, its networks, and what they are compared with.

The world of cores is a row here; other packages add rows (`parcae.base.extensions`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, suggestion
from parcae.base.extensions import import_function, is_reference, load, rows
from parcae.learning.evolution import EvolutionLearner
from parcae.learning.loop import Learner
from parcae.learning.scenario import Parameters, Scenario, start_order_network, start_rule
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.learned import order_rule_checkpoint
from parcae.policies.rule.policy import OrderRulePolicy, checked_parameters, search_start


@dataclass(frozen=True)
class LearnerRequest:
    """What a network is trained for, and from what.

    Args:
        scenarios: what to train for.
        rule: the tuned rule to correct or to imitate: a checkpoint or a name.
        start: a trained network to start from, in the same way; None: none.
        seed: seed of the training.
        options: options of the kind of learner, by name; those that were not given are left out.
        network: a network of one's own: a `torch.nn.Module` or `module:attribute` of one.
    """

    scenarios: Sequence[Scenario]
    rule: str = "tuned"
    start: str | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    network: Any = None

    def refuse_options(self, network: str) -> None:
        """Refuse options, for a learner that has none."""
        if self.options:
            names = ", ".join(f"--{name}" for name in self.options)
            raise ConfigError(f"{names} has no effect with --network {network}: leave it out")


@dataclass(frozen=True)
class LearnerEntry:
    """A kind of network that `parcae train` trains.

    Args:
        name: name of the network.
        make: returns the learner for a `LearnerRequest`, or "module:function" of this.
        worlds: the worlds in which it is trained.
    """

    name: str
    make: Callable[[LearnerRequest], Learner] | str
    worlds: tuple[str, ...] = ("cores",)


@dataclass(frozen=True)
class LearningWorld:
    """A row of the table of worlds.

    Args:
        name: the world.
        network: the network that `parcae learn` trains.
        baselines: the policies that learned ones are compared with; ratios are to the first.
        stock: descriptions of stock orders, by name.
        policy_of_rule: makes the policy of a rule from (name, parameters, scenario).
        checkpoint_of_rule: makes the checkpoint of a rule from (parameters, card).
        search: returns all parameters to start from, and the indices of those that are searched,
            from (start or None, scenarios).
        learner: makes the learner of `network` after its rule has been tuned, from the scenario,
            the rule's parameters, the seconds of the training, its seed, whether it starts from the
            shipped network, and PyTorch's device.
        measured_by: what the learner's ratios refer to.
        check: checks an objective and a device before long work.
    """

    name: str
    network: str
    baselines: tuple[str, ...]
    stock: Mapping[str, str]
    policy_of_rule: Callable[[str, tuple[float, ...], Scenario], Any]
    checkpoint_of_rule: Callable[[Any, dict[str, Any]], Checkpoint]
    search: Callable[
        [Parameters | None, Sequence[Scenario]], tuple[Parameters, npt.NDArray[np.int64]]
    ]
    learner: Callable[[Scenario, Parameters, float, int, bool, str], Learner]
    measured_by: str = "fair"
    check: Callable[[Any, str], None] = lambda objective, device: None


def _search(
    start: Parameters | None, scenarios: Sequence[Scenario]
) -> tuple[Parameters, npt.NDArray[np.int64]]:
    first = np.array(search_start() if start is None else checked_parameters(start))
    return first, np.arange(len(first))


def _policy_of_rule(name: str, theta: tuple[float, ...], scenario: Scenario) -> OrderRulePolicy:
    return OrderRulePolicy(name, theta, scenario.workload.mean_work_ms)


def _evolution(request: LearnerRequest) -> EvolutionLearner:
    """The learner of the network that corrects the tuned rule in the world of cores."""
    request.refuse_options("parcae")
    scenario = request.scenarios[0]
    start = None if request.start is None else start_order_network(request.start, scenario)
    rule = start_rule(request.rule, scenario, "--rule ")
    return EvolutionLearner(request.scenarios, rule, start=start, seed=request.seed)


def _after_tuning(
    scenario: Scenario, rule: Parameters, budget_s: float, seed: int, is_shipped: bool, device: str
) -> EvolutionLearner:
    start = start_order_network("parcae", scenario) if is_shipped else None
    return EvolutionLearner(scenario, rule, start=start, seed=seed)


_CORES = LearningWorld(
    "cores",
    "parcae",
    ("fair", "fifo", "sjf", "srpt", "fsp", "psbs"),
    {"fifo": "Spark's FIFO", "fair": "Spark's FAIR with one pool per job"},
    _policy_of_rule,
    order_rule_checkpoint,
    _search,
    _after_tuning,
    "the rule",
)
#: The row of networks of one's own, which no name means.
OWN_NETWORK = "MODULE:NET"
_LEARNERS = (LearnerEntry("parcae", _evolution),)


def world_of(scenario: Scenario) -> LearningWorld:
    """What learning knows of a scenario's world."""
    return world_named(scenario.config.world)


def world_named(name: str) -> LearningWorld:
    """What learning knows of a world."""
    found: LearningWorld = next(row for row in (_CORES, *rows("worlds")) if row.name == name)
    return found


def learners() -> Iterator[LearnerEntry]:
    """All kinds of networks that can be trained."""
    yield from _LEARNERS
    yield from rows("learners")


def _is_torch_module(value: Any) -> bool:
    """Whether a value is a PyTorch module or a class of them; PyTorch is not imported for that."""
    torch = sys.modules.get("torch")
    kind = value if isinstance(value, type) else type(value)
    return torch is not None and issubclass(kind, torch.nn.Module)


def make_learner(network: Any, request: LearnerRequest) -> Learner:
    """The learner of a network for a request.

    Args:
        network: its name; a `torch.nn.Module`; or `module:attribute` of one, or of a function that
            returns a learner for the request.
        request: what to train for.

    Raises:
        ConfigError: there is no such network in the scenarios' world.
    """
    world = request.scenarios[0].config.world.value
    here = [entry for entry in learners() if world in entry.worlds]
    for entry in here:
        if entry.name == network:
            learner: Learner = import_function(entry.make)(request)
            return learner
    is_named = isinstance(network, str) and is_reference(network)
    value = load(network, "network") if is_named else network
    if _is_torch_module(value):
        own = next(entry for entry in here if entry.name == OWN_NETWORK)
        return make_learner(own.name, replace(request, network=network))
    if is_named and callable(value):
        made: Learner = value(request)
        return made
    if not isinstance(value, str):
        raise ConfigError(
            f"network {network} is {value!r}: give a torch.nn.Module, a class of one that is made "
            "without arguments, or a function of a LearnerRequest that returns a learner"
        )
    hint = suggestion(network, [entry.name for entry in here])
    raise ConfigError(f"there is no network {network!r} to train in the world of {world}; {hint}")
