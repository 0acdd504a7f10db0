"""Trains the network of the world of cores by an evolution strategy on simulated runs.

Each generation draws pairs of opposite perturbations of the weights and measures all of them on
the same new runs, relative to the rule that the network corrects. Adam follows the gradient that
the ranks of these costs estimate. Separate selection runs decide which moving average of the
weights is kept. Where none is better than the start, the start is returned.

Why this and not CMA-ES: with several hundred weights and noisy costs a full covariance matrix
cannot be learned, so CMA-ES would have little more than a mean and a step size. The whole state of
this search is a few arrays, and its draws follow from the seed and the generation. An interrupted
search therefore continues to exactly the same weights, while CMA-ES saves its state only by pickle.

Source: Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"
(2017), sections 2 and 2.1: antithetic sampling, ranks, Adam.
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

#: The files in the folder of a search: the state that it resumes from, and the best network so far.
STATE_FILE = "training.safetensors"
BEST_FILE = "best.safetensors"
_STATE_KIND = "order-evolution"
#: Decay rates and epsilon of Adam. The second decay rate is smaller than usual (0.999), because a
#: search has only a few hundred generations.
_MOMENTUM = 0.9
_MEMORY = 0.99
_EPSILON = 1e-8
#: Each candidate is measured on about this many jobs, over all scenarios together.
_JOBS_PER_CANDIDATE = 120


@dataclass(frozen=True)
class EvolutionSettings:
    """The settings of the search.

    Args:
        num_pairs: pairs of opposite candidates in a generation.
        spread: standard deviation of the perturbations.
        learning_rate: learning rate of Adam.
        weight_decay: share of the weights that each step subtracts, times the learning rate.
        averaging: share by which the moving average of the weights moves in each generation.
        runs_per_scenario: runs on which each candidate is measured; None for about 120 jobs over
            all scenarios together.
        num_selection: number of selection runs, over all scenarios together.
        select_every: generations between measurements on the selection runs, after which the state
            of the search is written.
        max_generations: maximum number of generations.
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
    """The result of a search so far.

    Args:
        weights: the best weights so far, float64[NUM_ORDER_WEIGHTS].
        ratio_to_rule: their objective / the rule's on the selection runs; with several scenarios
            the mean of the ratios. Optimistic, since the weights were chosen on these runs.
        generations: number of generations.
        evaluations: number of simulated runs.
        seconds: wall-clock time, including the time before an interruption.
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
    """The state of the search between two generations.

    Args:
        mean: the weights around which candidates are drawn.
        average: moving average of `mean`, which is what may be kept.
        first: first moment of Adam.
        second: second moment of Adam.
        best: the best average so far.
        best_ratio: its ratio to the rule on the selection runs.
        generation: number of generations so far.
        evaluations: number of simulated runs so far.
        seconds: wall-clock time so far.
    """

    mean: Weights
    average: Weights
    first: Weights
    second: Weights
    best: Weights
    best_ratio: float
    generation: int = 0
    evaluations: int = 0
    seconds: float = 0.0


class _Measurement:
    """Measures candidates on runs of one scenario, relative to the rule on the same runs."""

    def __init__(
        self, scenario: Scenario, rule: npt.ArrayLike, num_runs: int, num_selection: int
    ) -> None:
        self.scenario = scenario
        self.rule = rule
        self.num_runs = num_runs
        first = SELECTION_SEED_START
        self._selection = scenario.batch(range(first, first + num_selection))
        # A network whose weights are 0 is the rule itself.
        self._cost_of_rule = self._cost(self._selection, np.zeros(NUM_ORDER_WEIGHTS))

    def _cost(self, runs: Runs, weights: Weights) -> float:
        rows = np.tile(weights, (len(runs.sequences), 1))
        play = play_rows(rows, self.rule, self.scenario.workload.mean_work_ms)
        return max(1e-9, float(runs.cost(play).mean()))

    def selection(self, weights: Weights) -> float:
        """Ratio to the rule on the selection runs, which are used for nothing else."""
        return self._cost(self._selection, weights) / self._cost_of_rule

    def ratios(self, candidates: Weights, seed: int, generation: int) -> npt.NDArray[np.float64]:
        """Ratios to the rule on new runs, the same for all candidates, float64[len(candidates)]."""
        seeds = _seeds(seed, generation, self.num_runs)
        rows = np.vstack([np.zeros(NUM_ORDER_WEIGHTS), candidates])  # zeros: the rule itself
        # All candidates run in one batch: row r of the weights plays its own copy of every run.
        runs = self.scenario.batch(seeds * len(rows))
        repeated = np.repeat(rows, len(seeds), axis=0)
        play = play_rows(repeated, self.rule, self.scenario.workload.mean_work_ms)
        cost = runs.cost(play).reshape(len(rows), len(seeds)).mean(axis=1)
        ratios: npt.NDArray[np.float64] = cost[1:] / max(1e-9, float(cost[0]))
        return ratios


def _seeds(seed: int, generation: int, count: int) -> list[int]:
    # Every seed of the search has 2^30 seeds for runs, so that searches share none.
    first = TUNING_SEED_START + ((seed & 0xFF) << 30) + (generation + 1) * count
    return list(range(first, first + count))


class _Search:
    """The evolution strategy: its settings, and the operations on its state."""

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
        self.measurements = [
            _Measurement(
                scenario,
                rule,
                settings.runs_per_scenario or max(1, share // scenario.num_jobs),
                num_selection,
            )
            for scenario in scenarios
        ]
        self.last_ratio = np.nan

    def begin(self, weights: Weights) -> _State:
        """The state of a search that starts from these weights."""
        zeros = np.zeros(NUM_ORDER_WEIGHTS)
        ratio = self.selection(weights)
        return _State(weights.copy(), weights.copy(), zeros, zeros.copy(), weights.copy(), ratio)

    def selection(self, weights: Weights) -> float:
        """Mean over the scenarios of the ratio to the rule on the selection runs."""
        return float(np.mean([one.selection(weights) for one in self.measurements]))

    def advance(self, state: _State) -> None:
        """Run one generation, which changes the state."""
        settings = self.settings
        # Draws depend only on the seed and the generation, so that a resumed search repeats them.
        rng = np.random.default_rng([self.seed, state.generation])
        noise = rng.standard_normal((settings.num_pairs, NUM_ORDER_WEIGHTS))
        noise = np.vstack([noise, -noise])  # antithetic pairs
        candidates = state.mean + settings.spread * noise
        parts = [one.ratios(candidates, self.seed, state.generation) for one in self.measurements]
        ratios = np.mean(parts, axis=0)
        self.last_ratio = float(ratios.mean())
        state.generation += 1
        state.evaluations += sum(one.num_runs for one in self.measurements) * len(candidates)
        self._step(state, _centred_ranks(ratios) @ noise / len(noise) / settings.spread)
        state.average = state.average + settings.averaging * (state.mean - state.average)

    def _step(self, state: _State, gradient: Weights) -> None:
        """A step of Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""
        settings = self.settings
        count = state.generation  # starts at 1, so that the bias corrections are not 0
        state.first = _MOMENTUM * state.first + (1.0 - _MOMENTUM) * gradient
        state.second = _MEMORY * state.second + (1.0 - _MEMORY) * gradient**2
        first = state.first / (1.0 - _MOMENTUM**count)
        second = state.second / (1.0 - _MEMORY**count)
        # The gradient is that of a cost, so the step goes against it.
        step = first / (np.sqrt(second) + _EPSILON) + settings.weight_decay * state.mean
        state.mean = state.mean - settings.learning_rate * step

    def select(self, state: _State) -> bool:
        """Keep the average of the weights if it is the best so far; returns whether it is."""
        ratio = self.selection(state.average)
        # Averages have less noise than the weights themselves.
        is_better = ratio < state.best_ratio
        if is_better:
            state.best = state.average.copy()
            state.best_ratio = ratio
        return is_better

    def _identity(self) -> dict[str, Any]:
        """The settings that must not change when a search is resumed, as plain JSON."""
        settings = asdict(self.settings)
        del settings["max_generations"]  # a search may be resumed to run longer
        identity = {
            "settings": settings,
            "seed": self.seed,
            "rule": self.rule.tolist(),
            "scenarios": [
                [
                    fingerprint(s.workload), s.arrivals, s.num_jobs, s.objective_name,
                    s.config.model_dump(mode="json"),
                ]
                for s in self.scenarios
            ],
        }  # fmt: skip
        # Through JSON, so that it compares equal to what was read from a file (lists, not tuples).
        as_json: dict[str, Any] = json.loads(json.dumps(identity))
        return as_json

    def save(self, state: _State, folder: Path) -> None:
        """Write the state of the search into `folder`, atomically."""
        values = asdict(state)
        arrays = {k: v for k, v in values.items() if isinstance(v, np.ndarray)}
        numbers = {k: v for k, v in values.items() if k not in arrays}
        settings = {"state": numbers, **self._identity()}
        write_checkpoint(
            Checkpoint(_STATE_KIND, FEATURE_VERSION, arrays, settings), folder / STATE_FILE
        )

    def load(self, folder: Path) -> _State:
        """Read the state in `folder`.

        Raises:
            FormatError: the file is damaged, or of another kind or version.
            ConfigError: the search in the folder has other settings.
            FileNotFoundError: there is no state in the folder.
        """
        path = folder / STATE_FILE
        saved = read_checkpoint(path)
        saved.require(_STATE_KIND, FEATURE_VERSION, str(path))
        for key, value in self._identity().items():
            if saved.settings.get(key) != value:
                raise ConfigError(
                    f"{path}: a training with another {key}; use the same, or another folder"
                )
        values: dict[str, Any] = {**saved.weights, **saved.settings["state"]}
        return _State(**values)


def _centred_ranks(ratios: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks from -0.5 (the smallest) to 0.5; equal ratios share the mean of their ranks."""
    below = (ratios[:, None] > ratios).sum(axis=1)
    equal = (ratios[:, None] == ratios).sum(axis=1)
    ranks: npt.NDArray[np.float64] = (below + (equal - 1) / 2) / max(1, len(ratios) - 1) - 0.5
    return ranks


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
    """Train the network that corrects `rule` until the time is up, or Ctrl-C ends the search.

    A resumed search ends with exactly the same weights as an uninterrupted one, if both run the
    same number of generations.

    Args:
        scenario: what to train for. With several scenarios the mean of their ratios to the rule is
            minimised, so that one network serves all of them.
        rule: parameters of the rule, float64[NUM_ORDER_PARAMETERS].
        budget_s: wall-clock seconds, including those before an interruption.
        start: weights to start from, float64[NUM_ORDER_WEIGHTS]; None to start from the rule.
        seed: seed of the search, 0 to 255.
        folder: where the state of the search and the best network (`BEST_FILE`) are written; None
            to write nothing.
        is_resumed: continue from the state in the folder.
        settings: the settings of the search; None for the defaults.
        progress: called at the start and every few generations with the result so far, which is
            always usable.

    Raises:
        ConfigError: a scenario is of the world of executors or has no durations; or the folder
            contains another search, or none to resume.
        PolicyError: the number of parameters or weights is wrong.
        FormatError, FileNotFoundError: the saved state is damaged or missing.
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
    """The loop. `began` is the start time minus the seconds that a resumed search already used."""

    def report(ending: str, is_better: bool) -> Evolved:
        evolved = Evolved(
            state.best, state.best_ratio, state.generation, state.evaluations, state.seconds, ending
        )
        ratios = {"run/ratio_to_rule": search.last_ratio, "selection/best_ratio": state.best_ratio}
        log.write(state.generation, ratios)
        if folder is not None and (is_better or not (folder / BEST_FILE).exists()):
            best = evolved_checkpoint(evolved, search.scenarios, search.rule, search.seed)
            write_checkpoint(best, folder / BEST_FILE)
        if progress is not None:
            progress(evolved)
        return evolved

    settings = search.settings
    report("running", False)
    with stopping() as stop:
        while not stop.is_requested:
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
        # This measurement is out of turn, so the state was saved before it: a resumed search must
        # measure exactly when an uninterrupted search would.
        is_better = state.generation % settings.select_every > 0 and search.select(state)
        return report("interrupted" if stop.is_requested else "done", is_better)


def evolved_checkpoint(
    evolved: Evolved,
    scenario: Scenario | Sequence[Scenario],
    rule: npt.ArrayLike,
    seed: int,
) -> Checkpoint:
    """The best network of a search as a checkpoint.

    Args:
        evolved: what `evolve_network` returned for these scenarios, this rule and this seed.
        scenario: the scenarios of the search. The model card describes the first and lists the
            others.
        rule: parameters of the rule, float64[NUM_ORDER_PARAMETERS].
        seed: seed of the search.
    """
    first, *others = [scenario] if isinstance(scenario, Scenario) else scenario
    card = {
        **setting_card(first.workload, first.config, first.arrivals, first.num_jobs),
        "objective": first.objective_name,
        "also": [
            f"arrivals={s.arrivals} jobs={s.num_jobs} error={s.config.estimate_error}"
            for s in others
        ],
        "seed": seed,
        "generations": evolved.generations,
        "simulated_runs": evolved.evaluations,
        "seconds": round(evolved.seconds, 1),
        "ratio_to_rule_on_selection_runs": evolved.ratio_to_rule,
    }
    return network_checkpoint(np.array(rule, np.float64), evolved.weights, card)


def _check(scenarios: Sequence[Scenario], theta: Weights, start: Weights) -> None:
    """Raise an error if the search cannot work with these scenarios, parameters or weights."""
    for scenario in scenarios:
        if scenario.config.world is not WorldName.CORES:
            raise ConfigError(
                "this network corrects orders of the world of cores: use --world cores"
            )
        require_durations(scenario.workload)
    sizes = (
        ("parameters of the rule", theta, NUM_ORDER_PARAMETERS),
        ("weights", start, NUM_ORDER_WEIGHTS),
    )
    for what, values, size in sizes:
        if values.shape != (size,):
            raise PolicyError(f"the world of cores has {size} {what}, not {values.size}")


def _check_folder(folder: Path | None, is_resumed: bool) -> None:
    """Raise an error if the folder contains a search already, or if there is none to resume."""
    if folder is None:
        if is_resumed:
            raise ConfigError("to resume a training, give its folder")
        return
    if is_resumed:
        return
    if (folder / STATE_FILE).exists():
        raise ConfigError(
            f"{folder} already contains a training: resume it with --resume, or choose another "
            "folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    check_place(folder / BEST_FILE)
