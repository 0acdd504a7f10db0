"""Searches formulas: genetic programming over their trees, then CMA-ES over their constants.

Every generation is measured on runs of its own, the same for all of its formulas; the best of every
length are measured on the selection runs, and so is what CMA-ES makes of their constants.

Source: Koza, Genetic Programming (1992). The best of every length survive, so that formulas need
not grow.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parcae.learning.scenario import Parameters, Scenario, Yardstick, search_seeds
from parcae.policies.formula.kernels import Feature
from parcae.policies.formula.language import Expression, parse_formula
from parcae.policies.formula.policy import FormulaPolicy
from parcae.policies.parameter_search import SearchLimits, search_parameters

#: The longest formula that is searched, in terms.
MOST_TERMS = 12
_NUM_SELECTION = 100
_NUM_RUNS = 16
_SURVIVORS = 24
_CHILDREN = 48
_SELECT_EVERY = 5
#: The share of the time in which formulas are bred; the rest is for the constants of the best.
_BREEDING = 0.5
_NUM_POLISHED = 2
#: CMA-ES needs two dimensions.
_LEAST_NUMBERS = 2
#: What the search begins with.
_KNOWN = (
    *("rem", "total", "service", "path", "fair", "rem * error", "rem + path * cores"),
    *("rem * (1 + 0.5 * stages)", "rem + path * width", "log(rem) + 0.3 * log(path * cores)"),
    "log(rem) + 0.3 * log(total) - 0.1 * log(age)",
    "max(rem, path * cores) / (1 + running)",
    "log(rem) + .1 * log(path * cores) + .1 * log(total) - .1 * log(1 + age) + .1 * log(width)",
)
_OF_TWO = {"+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div}
_CALLED = {"min": 2, "max": 2, "sqrt": 1, "log": 1}


@dataclass(frozen=True)
class FoundFormula:
    """A formula of the front: no shorter one has a lower cost.

    Args:
        text: the formula.
        terms: how many names and numbers it has.
        ratio_to_fair: its objective / the fair policy's on the selection runs; optimistic, since it
            was chosen on these runs.
    """

    text: str
    terms: int
    ratio_to_fair: float


def search_formulas(
    scenario: Scenario,
    *,
    budget_s: float,
    seed: int = 0,
    max_generations: int = 100_000,
    progress: Callable[[float, FoundFormula], None] = lambda seconds, best: None,
) -> tuple[FoundFormula, ...]:
    """Search formulas for a scenario of the world of cores until the time is up.

    `progress` is called with the seconds so far and the best formula so far. Returns the best
    formula of every length that no shorter one reaches, the shortest first.
    """
    search = _FormulaSearch(scenario, seed)
    begin_s = time.perf_counter()
    generation = 0
    while generation < max_generations and time.perf_counter() < begin_s + _BREEDING * budget_s:
        search.breed(generation)
        generation += 1
        if generation % _SELECT_EVERY == 0:
            search.select()
            progress(time.perf_counter() - begin_s, search.front()[-1])
    search.select()
    promising = search.promising()
    while promising:
        left_s = max(0.0, begin_s + budget_s - time.perf_counter()) / len(promising)
        search.polish(promising.pop(0), SearchLimits(left_s, max_generations, _SELECT_EVERY))
        progress(time.perf_counter() - begin_s, search.front()[-1])
    return search.front()


class _FormulaSearch:
    """The formulas that are bred, and what the best of every length cost on the selection runs."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        # The plugin knows no deadlines; shares and overdrafts matter where there are users.
        unused = {Feature.SLACK}
        if len({job.user for job in scenario.workload.jobs}) < 2:
            unused |= {Feature.OVERDRAFT, Feature.SHARE}
        self._names = [feature.name.lower() for feature in Feature if feature not in unused]
        self._selection = scenario.selection(_NUM_SELECTION).against_fair()
        self._fresh = self._selection
        self._population = [parse_formula(text) for text in _KNOWN]
        self._polished = ""
        # This also compiles the kernels before the clock starts.
        self._costs = {one: self._ratio(one, self._selection) for one in self._population}

    @staticmethod
    def _ratio(formula: Expression, measured: Yardstick) -> float:
        return measured.ratio(FormulaPolicy(formula.text, formula).play_many)

    def breed(self, generation: int) -> None:
        """Replace the formulas by the best of them and of their children, on new runs."""
        self.draw(generation)
        children = (self._child() for _ in range(_CHILDREN))
        costs = {
            one: self._ratio(one, self._fresh)
            for one in dict.fromkeys([*self._population, *children])
        }
        ranked = sorted(costs, key=costs.__getitem__)
        kept = dict.fromkeys([*self._best_by_length(ranked), *ranked])
        self._population = sorted(list(kept)[:_SURVIVORS], key=costs.__getitem__)

    @staticmethod
    def _best_by_length(ranked: list[Expression]) -> list[Expression]:
        return list({one.terms: one for one in reversed(ranked)}.values())

    def _child(self) -> Expression:
        """A formula that is bred from one or two others, of which better ones are likelier."""
        places = self._rng.integers(0, len(self._population), (2, 2)).min(axis=1)
        parents = [self._population[place].text for place in places]
        while True:
            tree, other = (ast.parse(text, mode="eval").body for text in parents)
            child = parse_formula(ast.unparse(self._varied(tree, other)))
            if child.terms <= MOST_TERMS:
                return child

    def _varied(self, tree: ast.expr, other: ast.expr) -> Any:
        place = self._part(tree)
        match int(self._rng.integers(0, 6)):
            case 0:
                new = self._part(other)
            case 1:
                new = self._drawn(2)
            case 2:
                new = self._drawn(0)
            case 3:
                new = self._joined(place, self._drawn(0))
            case 4:
                new = self._part(place)
            case _:
                return _Numbers(lambda number: number * self._factor(0.5)).visit(tree)
        return new if place is tree else _Replaced(place, new).visit(tree)

    def _part(self, tree: ast.expr) -> ast.expr:
        """A random part that has a value: not the name of a function."""
        nodes = list(ast.walk(tree))
        functions = [node.func for node in nodes if isinstance(node, ast.Call)]
        parts = [n for n in nodes if isinstance(n, ast.expr) and n not in functions]
        return parts[int(self._rng.integers(0, len(parts)))]

    def _factor(self, spread: float) -> float:
        return float(np.exp(spread * self._rng.standard_normal()))

    def _drawn(self, depth: int) -> ast.expr:
        """A random formula of at most this depth."""
        if depth > 0 and self._rng.random() < 0.7:
            return self._joined(self._drawn(depth - 1), self._drawn(depth - 1))
        if self._rng.random() < 0.75:
            return ast.Name(str(self._rng.choice(self._names)))
        unit = self._scenario.workload.mean_work_ms if self._rng.random() < 0.2 else 1.0
        return ast.Constant(_short(unit * self._factor(1.0)))

    def _joined(self, one: ast.expr, other: ast.expr) -> ast.expr:
        word = str(self._rng.choice([*_OF_TWO, "*", "/", *_CALLED]))
        if word in _OF_TWO:
            return ast.BinOp(one, _OF_TWO[word](), other)
        return ast.Call(ast.Name(word), [one, other][: _CALLED[word]], [])

    def select(self) -> None:
        """Measure the best formula of every length on the selection runs."""
        for one in self._best_by_length(self._population):
            if one not in self._costs:
                self._costs[one] = self._ratio(one, self._selection)

    def front(self) -> tuple[FoundFormula, ...]:
        """The best formulas on the selection runs that no shorter one reaches, shortest first."""
        found = list[FoundFormula]()
        for one in sorted(self._costs, key=lambda one: (one.terms, self._costs[one])):
            if not found or self._costs[one] < found[-1].ratio_to_fair:
                found.append(FoundFormula(one.text, one.terms, self._costs[one]))
        return tuple(found)

    def promising(self) -> list[str]:
        """The best formulas on the selection runs, also long ones, with numbers to be polished."""
        ranked = sorted(self._costs, key=self._costs.__getitem__)
        texts = [one.text for one in ranked if len(_numbers(one.text)) >= _LEAST_NUMBERS]
        return texts[:_NUM_POLISHED]

    def polish(self, text: str, limits: SearchLimits) -> None:
        """Search the constants of a formula by CMA-ES, as factors of what they are."""
        self._polished = text
        start = np.zeros(len(_numbers(text)))
        best = search_parameters(self, start, limits, seed=self._seed)
        self._costs[self._with_factors(best.parameters)] = best.cost

    def _with_factors(self, logs: Parameters) -> Expression:
        factors = iter(np.exp(np.clip(logs, -20.0, 20.0)))
        tree = ast.parse(self._polished, mode="eval").body
        changed = _Numbers(lambda number: number * float(next(factors))).visit(tree)
        return parse_formula(ast.unparse(changed))

    def draw(self, generation: int) -> None:
        """New runs."""
        seeds = search_seeds(self._seed, generation, _NUM_RUNS)
        self._fresh = self._scenario.batch(seeds).against_fair()

    def cost(self, parameters: Parameters) -> float:
        """The polished formula's ratio to fair sharing on the runs of the last `draw`."""
        return self._ratio(self._with_factors(parameters), self._fresh)

    def selection(self, parameters: Parameters) -> float:
        """The same on the selection runs."""
        return self._ratio(self._with_factors(parameters), self._selection)


def _numbers(text: str) -> list[Any]:
    nodes = ast.walk(ast.parse(text, mode="eval"))
    return [node.value for node in nodes if isinstance(node, ast.Constant)]


def _short(number: float) -> float:
    """A number in three digits."""
    return float(f"{min(max(number, 1e-30), 1e30):.3g}")


class _Numbers(ast.NodeTransformer):
    """Changes the numbers of a formula."""

    def __init__(self, change: Callable[[Any], float]) -> None:
        self._change = change

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(_short(self._change(node.value)))


class _Replaced(ast.NodeTransformer):
    """Puts another formula in the place of a part of one."""

    def __init__(self, place: ast.expr, new: ast.expr) -> None:
        self._place = place
        self._new = new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._place else self.generic_visit(node)
