"""Learns who has executors in the world of applications, and compares it on held-back seeds.

    python -m benchmarks.applications_learning --learned apps-learned --minutes 20 --seeds 8 \\
        --seed-start 201 --times 1,3,10

A quarter of the minutes searches the numbers of the lending rule by CMA-ES; in the rest an
evolution strategy trains Decima's network (`benchmarks.lending_network`) from that rule on. Each
run draws how long executors take to start, its median and its spread; for jobs of ten times the
length a start is a tenth as long. What was learned is in the folder, and a stopped training goes on
from there. Then all systems play the same seeds, which learning does not use.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from benchmarks import applications
from benchmarks.applications import System, simulated
from benchmarks.lending_network import SETTINGS, ServedByNetwork, first_weights
from benchmarks.spark.applications import mean_s
from benchmarks.spark.work import number, run_script, tell

from parcae.base.texts import MS_PER_S
from parcae.learning.config import STATE_FILE
from parcae.learning.evolution import Evolution, EvolutionSettings
from parcae.learning.loop import Iteration, IterationSeeds, TrainingPlan, train
from parcae.learning.scenario import search_seeds
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.parameter_search import SearchLimits, SearchState, search_parameters
from parcae.simulation.allocations import Lending, Served
from parcae.workloads.workload import SELECTION_SEED_START

#: The numbers of the lending rule that are searched.
NUMBERS = ("patience", "worth", "pause", "last")
USUAL = np.array([getattr(Lending(1), name) for name in NUMBERS])
_RULE = "lending-rule"
_VERSION = 1
#: Executors start in a median between these, on a logarithmic scale.
_START_S = (0.3, 6.0)
#: Learning looks at executors less often than comparisons do, which takes a quarter of the time.
_TICK_S = 0.5
_SETTINGS = EvolutionSettings(
    num_pairs=8,
    spread=0.15,
    learning_rate=0.02,
    weight_decay=0.0,
    averaging=0.2,
    runs_per_scenario=1,
    num_selection=12,
    select_every=4,
)
_GENERATION_RUNS = 4
_SECONDS_PER_MINUTE = 60.0
Floats = npt.NDArray[np.float64]


class Drawn:
    """A run with the time that executors take to start drawn: its median and its spread."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng([0x6C656E64, seed])
        self.seed = seed
        start_s, sigma = np.exp(draw.uniform(*np.log(_START_S))), draw.uniform(0.0, 1.0)
        self._args = Namespace(start=float(start_s), sigma=float(sigma), tick=_TICK_S)

    def mean_s(self, rule: Floats, weights: Floats | None = None) -> float:
        """Mean time under the rule with these numbers, or of a network that corrects it."""
        one = learned_system(rule, weights, self._args.start)
        return mean_s(simulated(one, self.seed, 1.0, self._args))


def learned_system(rule: Floats, weights: Floats | None, start_s: float) -> System:
    """The rule with these numbers, or a network that corrects it, as a system."""
    numbers = dict(zip(NUMBERS, rule.tolist(), strict=True))
    start_ms = start_s * MS_PER_S
    if weights is None:
        return System(Served(start_ms, numbers), "srpt")
    return System(ServedByNetwork(start_ms, numbers, weights), "srpt")


class RuleProblem:
    """The mean ratio to the rule as it is, of its numbers; their logarithms are searched."""

    def __init__(self, num_runs: int = _GENERATION_RUNS) -> None:
        self._num_runs = num_runs
        first = SELECTION_SEED_START
        self._selection = self._with_usual(range(first, first + 4 * num_runs))
        self._fresh = self._selection

    def _with_usual(self, seeds: Sequence[int]) -> list[tuple[Drawn, float]]:
        return [(one, one.mean_s(USUAL)) for one in map(Drawn, seeds)]

    def draw(self, generation: int) -> None:
        """New runs."""
        self._fresh = self._with_usual(search_seeds(0, generation, self._num_runs))

    def cost(self, parameters: Floats) -> float:
        """On the runs of the last `draw`."""
        return _ratio(self._fresh, np.exp(parameters))

    def selection(self, parameters: Floats) -> float:
        """On the selection runs."""
        return _ratio(self._selection, np.exp(parameters))


def _ratio(runs: Sequence[tuple[Drawn, float]], rule: Floats, *weights: Floats) -> float:
    return float(np.mean([one.mean_s(rule, *weights) / usual_s for one, usual_s in runs]))


class _LendingRuns:
    """Measures networks beside the rule that they correct."""

    def __init__(self, rule: Floats, num_runs: int, num_selection: int) -> None:
        self.num_runs = num_runs
        self._rule = rule
        self._selection = self._with_rule(
            range(SELECTION_SEED_START, SELECTION_SEED_START + num_selection)
        )

    def _with_rule(self, seeds: Sequence[int]) -> list[tuple[Drawn, float]]:
        return [(one, one.mean_s(self._rule)) for one in map(Drawn, seeds)]

    def ratios(self, candidates: Floats, at: IterationSeeds) -> Floats:
        """Of each candidate, on new runs."""
        runs = self._with_rule(at.sequences(self.num_runs))
        return np.array([_ratio(runs, self._rule, one) for one in candidates])

    def selection(self, weights: Floats) -> float:
        """On the selection runs."""
        return _ratio(self._selection, self._rule, weights)


class LendingLearner(Evolution):
    """Trains Decima's network to correct the lending rule."""

    kind = "decima-lending"
    feature_version = _VERSION

    def __init__(self, rule: Floats, search: EvolutionSettings) -> None:
        measurement = _LendingRuns(rule, search.runs_per_scenario or 1, search.num_selection)
        super().__init__([measurement], rule, first_weights(0), search, seed=0)

    def settings(self) -> dict[str, Any]:
        """The parts of Decima's network."""
        return SETTINGS.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """The settings of the search, and the rule."""
        return {"search": asdict(self.search), "rule": self.rule.tolist()}

    def card(self) -> dict[str, Any]:
        """What the network is for."""
        return {"schedule": "benchmarks.spark.applications", "numbers": list(NUMBERS)}


def _searched_rule(folder: Path, budget_s: float, command: str) -> Floats:
    """The rule in the folder; it is searched if there is none."""
    file = folder / "rule.safetensors"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)

        def show(state: SearchState) -> None:
            tell(f"rule: generation {state.generations}, {state.cost:.4f} of the usual numbers")

        problem = RuleProblem()
        limits = SearchLimits(budget_s, 10_000, select_every=5)
        found = search_parameters(problem, np.log(USUAL), limits, progress=show)
        card = {"numbers": list(NUMBERS), "command": command, "ratio_to_usual": found.cost}
        card |= {"generations": found.generations, "seconds": round(found.seconds, 1)}
        weights = {"rule": np.exp(found.parameters)}
        write_checkpoint(Checkpoint(_RULE, _VERSION, weights, card=card), file)
    checkpoint = read_checkpoint(file)
    checkpoint.require(_RULE, _VERSION, str(file))
    rule: Floats = checkpoint.weights["rule"]
    return rule


def learn(folder: Path, minutes: float, command: str = "") -> tuple[Floats, Floats]:
    """Learn, or go on learning, in a folder. Returns the rule's numbers and the network."""
    budget_s = minutes * _SECONDS_PER_MINUTE
    rule = _searched_rule(folder, budget_s / 4, command)
    plan = TrainingPlan(
        0.75 * budget_s,
        folder=folder / "decima",
        is_resumed=(folder / "decima" / STATE_FILE).exists(),
        command=command,
    )

    def show(at: Iteration) -> None:
        tell(f"network: generation {at.iteration}, {at.seconds:.0f} s, best {at.best:.4f} of rule")

    found = train(LendingLearner(rule, _SETTINGS), plan, show)
    tell(f"network: {found.iterations} generations, {found.best:.4f} of the rule's time")
    return rule, found.checkpoint.weights["network"]


def main(args: argparse.Namespace) -> None:
    """Learn, and compare."""
    words = f"python -m benchmarks.applications_learning --minutes {args.minutes:g}"
    rule, network = learn(args.learned, args.minutes, words)
    tell(", ".join(f"{name} {value:.2f}" for name, value in zip(NUMBERS, rule, strict=True)))
    usual = applications.systems(round(args.start * MS_PER_S))
    chosen = {name: usual[name] for name in ("fair", "static", "serve:srpt", "one")}
    chosen["searched"] = learned_system(rule, None, args.start)
    chosen["decima"] = learned_system(rule, network, args.start)
    applications.show(args, chosen)


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = applications.parser()
    made.description = (__doc__ or "").partition("\n")[0]
    made.add_argument("--learned", type=Path, required=True, help="a folder for what is learned")
    made.add_argument("--minutes", type=number(0.01, 10_000, float), default=20.0)
    return made


if __name__ == "__main__":
    run_script(parser(), main)
