"""The network of the world of cores found by an evolution strategy on simulated runs of the user's own workload.

A generation perturbs the weights by pairs of opposite draws, measures all of them on the same fresh runs relative to the rule
that the network corrects, and lets Adam follow the gradient that their ranks estimate. Which average of the weights was best is
decided on runs of its own; where none beats the start, the start is returned.

Why this and not CMA-ES: with several hundred weights and noisy costs a full covariance cannot be learned, so that little is
left but a mean and a step; and this search's whole state is a few arrays, from which an interrupted search goes on to the very
same weights (the draws follow from the seed and the generation), while CMA-ES keeps its own only by pickle.

Source: Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (2017), sections 2 and 2.1:
antithetic sampling, ranks, Adam.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError, PolicyError
from parcae.files import check_place
from parcae.learning.scenario import Runs, Scenario
from parcae.learning.stopping import ScalarLog, stopping
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.learned import require_durations, setting_card
from parcae.policies.order_network.layout import (
    FEATURE_VERSION,
    NUM_ORDER_WEIGHTS,
    initial_weights,
)
from parcae.policies.order_network.policy import network_checkpoint, play_rows
from parcae.policies.order_rule.layout import NUM_ORDER_PARAMETERS
from parcae.simulation.config import WorldName
from parcae.workloads.describe import fingerprint
from parcae.workloads.random_streams import SELECTION_SEED_START, TUNING_SEED_START

Weights = npt.NDArray[np.float64]

#: The files in a search's folder: what it resumes from, and the best network so far.
STATE_FILE = "training.safetensors"
BEST_FILE = "best.safetensors"
_STATE_KIND = "order-evolution"
#: Adam's constants; the second is shorter than usual, for searches of a few hundred generations.
_MOMENTUM = 0.9
_MEMORY = 0.99
_EPSILON = 1e-8
#: A candidate of a generation is measured on about so many jobs, of all scenarios together.
_JOBS_PER_CANDIDATE = 120


@dataclass(frozen=True)
class EvolutionSettings:
    """How the search goes.

    Args:
        num_pairs: pairs of opposite candidates of a generation.
        spread: standard deviation of what is added to every weight.
        learning_rate: Adam's.
        weight_decay: share of the weights that is taken away with every step, times the learning rate.
        averaging: the average of the weights that may be kept moves by this share every generation.
        runs_per_scenario: runs on which each candidate is measured; None: about 120 jobs of all scenarios together.
        num_selection: runs that decide what is kept, of all scenarios together.
        select_every: every so many generations they are asked, and the state of the search is written.
        max_generations: end after so many.
    """

    num_pairs: int = 16
    spread: float = 0.25
    learning_rate: float = 0.06
    weight_decay: float = 0.02
    averaging: float = 0.1
    runs_per_scenario: int | None = None
    num_selection: int = 100
    select_every: int = 10
    max_generations: int = 1_000_000


@dataclass(frozen=True)
class Evolved:
    """What a search came to so far.

    Args:
        weights: the best so far, float64[NUM_ORDER_WEIGHTS].
        ratio_to_rule: their objective / the rule's on the runs that decide (of several scenarios, the mean ratio); optimistic,
            since they were chosen on them.
        generations, evaluations: how much was tried (`evaluations` counts runs).
        seconds: how long it took, parts before an interruption included.
        ending: "running", "done" or "interrupted".
    """

    weights: Weights
    ratio_to_rule: float
    generations: int
    evaluations: int
    seconds: float
    ending: str


Progress = Callable[[Evolved], None]


@dataclass
class _State:
    """All that the search knows between two generations."""

    mean: Weights
    average: Weights
    first: Weights
    second: Weights
    best: Weights
    best_ratio: float
    generation: int = 0
    evaluations: int = 0
    seconds: float = 0.0


class _Arena:
    """One scenario's part in the search."""

    def __init__(
        self, scenario: Scenario, rule: npt.ArrayLike, num_runs: int, num_selection: int
    ) -> None:
        self.scenario = scenario
        self.rule = rule
        self.num_runs = num_runs
        first = SELECTION_SEED_START
        self._selection = scenario.batch(range(first, first + num_selection))
        self._rules_cost = self._cost(self._selection, np.zeros(NUM_ORDER_WEIGHTS))

    def _cost(self, runs: Runs, weights: Weights) -> float:
        rows = np.tile(weights, (len(runs.sequences), 1))
        play = play_rows(rows, self.rule, self.scenario.workload.mean_work_ms)
        return max(1e-9, float(runs.cost(play).mean()))

    def selection(self, weights: Weights) -> float:
        """Ratio to the rule on the runs that decide, which are used for nothing else."""
        return self._cost(self._selection, weights) / self._rules_cost

    def ratios(self, candidates: Weights, seed: int, generation: int) -> npt.NDArray[np.float64]:
        """Ratios to the rule on fresh runs, the same for all candidates, float64[len(candidates)]."""
        seeds = _seeds(seed, generation, self.num_runs)
        rows = np.vstack([np.zeros(NUM_ORDER_WEIGHTS), candidates])  # zeros: the rule itself
        runs = self.scenario.batch(seeds * len(rows))
        repeated = np.repeat(rows, len(seeds), axis=0)
        play = play_rows(repeated, self.rule, self.scenario.workload.mean_work_ms)
        cost = runs.cost(play).reshape(len(rows), len(seeds)).mean(axis=1)
        found: npt.NDArray[np.float64] = cost[1:] / max(1e-9, float(cost[0]))
        return found


def _seeds(seed: int, generation: int, count: int) -> list[int]:
    first = TUNING_SEED_START + ((seed & 0xFF) << 30) + (generation + 1) * count
    return list(range(first, first + count))


class _Search:
    """The evolution strategy: a state, and what it is measured on."""

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        rule: npt.NDArray[np.float64],
        settings: EvolutionSettings,
        seed: int,
    ) -> None:
        self.scenarios = scenarios
        self.rule = rule
        self.settings = settings
        self.seed = seed
        share = _JOBS_PER_CANDIDATE // len(scenarios)
        num_selection = max(1, settings.num_selection // len(scenarios))
        self.arenas = [
            _Arena(
                own,
                rule,
                settings.runs_per_scenario or max(1, share // own.num_jobs),
                num_selection,
            )
            for own in scenarios
        ]
        self.last_ratio = np.nan

    def begin(self, weights: Weights) -> _State:
        """The state of a search that starts from these weights."""
        zeros = np.zeros(NUM_ORDER_WEIGHTS)
        ratio = self.selection(weights)
        return _State(weights.copy(), weights.copy(), zeros, zeros.copy(), weights.copy(), ratio)

    def selection(self, weights: Weights) -> float:
        """Mean over the scenarios of the ratio to the rule on the runs that decide."""
        return float(np.mean([arena.selection(weights) for arena in self.arenas]))

    def advance(self, state: _State) -> None:
        """One generation."""
        settings = self.settings
        draws = np.random.default_rng([self.seed, state.generation])
        noise = draws.standard_normal((settings.num_pairs, NUM_ORDER_WEIGHTS))
        noise = np.vstack([noise, -noise])
        candidates = state.mean + settings.spread * noise
        parts = [own.ratios(candidates, self.seed, state.generation) for own in self.arenas]
        ratios = np.mean(parts, axis=0)
        self.last_ratio = float(ratios.mean())
        state.generation += 1
        state.evaluations += sum(arena.num_runs for arena in self.arenas) * len(candidates)
        self._step(state, _centred_ranks(ratios) @ noise / len(noise) / settings.spread)
        state.average = state.average + settings.averaging * (state.mean - state.average)

    def _step(self, state: _State, gradient: Weights) -> None:
        """Adam, with decay apart from the gradient (Loshchilov and Hutter 2019)."""
        settings = self.settings
        count = state.generation
        state.first = _MOMENTUM * state.first + (1.0 - _MOMENTUM) * gradient
        state.second = _MEMORY * state.second + (1.0 - _MEMORY) * gradient**2
        first = state.first / (1.0 - _MOMENTUM**count)
        second = state.second / (1.0 - _MEMORY**count)
        step = first / (np.sqrt(second) + _EPSILON) + settings.weight_decay * state.mean
        state.mean = state.mean - settings.learning_rate * step

    def select(self, state: _State) -> bool:
        """Keep the average of the weights if it beats the best so far; says whether it does."""
        ratio = self.selection(state.average)
        is_better = ratio < state.best_ratio
        if is_better:
            state.best = state.average.copy()
            state.best_ratio = ratio
        return is_better

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a search to be resumed."""
        settings = asdict(self.settings)
        del settings["max_generations"]
        own = {
            "settings": settings,
            "seed": self.seed,
            "rule": self.rule.tolist(),
            "scenarios": [
                [
                    fingerprint(s.workload), s.arrivals, s.num_jobs, str(s.objective),
                    s.config.model_dump(mode="json"),
                ]
                for s in self.scenarios
            ],
        }  # fmt: skip
        same: dict[str, Any] = json.loads(json.dumps(own))
        return same

    def save(self, state: _State, folder: Path) -> None:
        """Write all that resuming needs into `folder`, wholly or not at all."""
        values = asdict(state)
        arrays = {k: v for k, v in values.items() if isinstance(v, np.ndarray)}
        numbers = {k: v for k, v in values.items() if k not in arrays}
        settings = {"state": numbers, **self._identity()}
        write_checkpoint(
            Checkpoint(_STATE_KIND, FEATURE_VERSION, arrays, settings), folder / STATE_FILE
        )

    def load(self, folder: Path) -> _State:
        """The state in `folder`.

        Raises:
            FormatError: torn, or of another kind or version.
            ConfigError: a search of other settings.
            FileNotFoundError: there is none.
        """
        path = folder / STATE_FILE
        found = read_checkpoint(path)
        found.require(_STATE_KIND, FEATURE_VERSION, str(path))
        for key, value in self._identity().items():
            if found.settings.get(key) != value:
                raise ConfigError(
                    f"{path}: a training with another {key}; use the same, or another folder"
                )
        values: dict[str, Any] = {**found.weights, **found.settings["state"]}
        return _State(**values)


def _centred_ranks(ratios: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks from -0.5 (the smallest) to 0.5; equal ratios share the mean of their ranks."""
    below = (ratios[:, None] > ratios).sum(axis=1)
    equal = (ratios[:, None] == ratios).sum(axis=1)
    found: npt.NDArray[np.float64] = (below + (equal - 1) / 2) / max(1, len(ratios) - 1) - 0.5
    return found


def evolve_network(
    scenario: Scenario | Sequence[Scenario],
    rule: npt.ArrayLike,
    *,
    budget_s: float,
    start: Weights | None = None,
    seed: int = 0,
    folder: Path | None = None,
    is_resumed: bool = False,
    settings: EvolutionSettings | None = None,
    progress: Progress | None = None,
) -> Evolved:
    """Train the network that corrects `rule`, until the time is up, or Ctrl-C asks to stop after a generation.

    A search that is resumed ends with the very same weights as one that was never interrupted, where both end after the same
    number of generations.

    Args:
        scenario: of several, the mean of the ratios to the rule counts, so that one network serves them all.
        rule: parameters of the rule, float64[NUM_ORDER_PARAMETERS].
        budget_s: wall-clock seconds, those of an interrupted search included.
        start: weights to go on from, float64[NUM_ORDER_WEIGHTS]; None: the rule itself.
        seed: of the search, 0 to 255.
        folder: where the state of the search and the best network (`BEST_FILE`) are written; None: nowhere.
        is_resumed: go on from the state in the folder.
        progress: called at the start and every few generations with the state so far, which is always usable.

    Raises:
        ConfigError: a scenario of the world of executors or without durations, or a folder that holds no such search to
            resume, or another one.
        PolicyError: another number of parameters or weights.
        FormatError, FileNotFoundError: a state that is torn or not there.
    """
    scenarios = [scenario] if isinstance(scenario, Scenario) else list(scenario)
    first = initial_weights(seed) if start is None else np.array(start, np.float64)
    theta = np.array(rule, np.float64)
    _check(scenarios, theta, first)
    _check_folder(folder, is_resumed)
    search = _Search(scenarios, theta, settings or EvolutionSettings(), seed)
    began = time.perf_counter()
    state = search.load(folder) if folder is not None and is_resumed else search.begin(first)
    with ScalarLog(folder) as log:
        return _run(search, state, budget_s, began - state.seconds, folder, progress, log)


def _run(
    search: _Search,
    state: _State,
    budget_s: float,
    began: float,
    folder: Path | None,
    progress: Progress | None,
    log: ScalarLog,
) -> Evolved:
    """The loop; `began` is earlier by what a resumed search has taken already."""

    def report(ending: str, is_better: bool) -> Evolved:
        found = Evolved(
            state.best, state.best_ratio, state.generation, state.evaluations, state.seconds, ending
        )
        ratios = {"run/ratio_to_rule": search.last_ratio, "selection/best_ratio": state.best_ratio}
        log.write(state.generation, ratios)
        if folder is not None and (is_better or not (folder / BEST_FILE).exists()):
            best = evolved_checkpoint(found, search.scenarios, search.rule, search.seed)
            write_checkpoint(best, folder / BEST_FILE)
        if progress is not None:
            progress(found)
        return found

    settings = search.settings
    report("running", False)
    with stopping() as stop:
        while not stop.is_asked:
            state.seconds = time.perf_counter() - began
            if state.seconds >= budget_s or state.generation >= settings.max_generations:
                break
            search.advance(state)
            state.seconds = time.perf_counter() - began
            if state.generation % settings.select_every == 0:
                is_better = search.select(state)
                if folder is not None:
                    search.save(state, folder)
                report("running", is_better)
        if folder is not None:
            search.save(state, folder)
        # Asked out of turn, so not in the state: a resumed search asks when one without an interruption would.
        is_better = state.generation % settings.select_every > 0 and search.select(state)
        return report("interrupted" if stop.is_asked else "done", is_better)


def evolved_checkpoint(
    found: Evolved,
    scenario: Scenario | Sequence[Scenario],
    rule: npt.ArrayLike,
    seed: int,
) -> Checkpoint:
    """The best network of a search.

    Args:
        found: what `evolve_network` returned for these scenarios, this rule and this seed. The setting of the first scenario
            goes into the model card.
    """
    first, *others = [scenario] if isinstance(scenario, Scenario) else scenario
    card = {
        **setting_card(first.workload, first.config, first.arrivals, first.num_jobs),
        "objective": str(first.objective),
        "also": [
            f"arrivals={s.arrivals} jobs={s.num_jobs} error={s.config.estimate_error}"
            for s in others
        ],
        "seed": seed,
        "generations": found.generations,
        "simulated_runs": found.evaluations,
        "seconds": round(found.seconds, 1),
        "ratio_to_rule_on_selection_runs": found.ratio_to_rule,
    }
    return network_checkpoint(np.array(rule, np.float64), found.weights, card)


def _check(scenarios: Sequence[Scenario], theta: Weights, start: Weights) -> None:
    """Refuse what cannot be searched."""
    for own in scenarios:
        if own.config.world is not WorldName.CORES:
            raise ConfigError(
                "this network corrects orders of the world of cores: use --world cores"
            )
        require_durations(own.workload)
    sizes = (
        ("parameters of the rule", theta, NUM_ORDER_PARAMETERS),
        ("weights", start, NUM_ORDER_WEIGHTS),
    )
    for what, values, size in sizes:
        if values.shape != (size,):
            raise PolicyError(f"the world of cores has {size} {what}, not {values.size}")


def _check_folder(folder: Path | None, is_resumed: bool) -> None:
    """Refuse a folder that holds a search already, or resuming without one."""
    if folder is None:
        if is_resumed:
            raise ConfigError("resuming needs the folder of the training")
        return
    if is_resumed:
        return
    if (folder / STATE_FILE).exists():
        raise ConfigError(
            f"{folder} holds a training already: resume it with --resume, or choose another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    check_place(folder / BEST_FILE)
