"""The result of a parameter sweep, in any world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: A policy's parameters, in the order in which its name lists them.
Values = tuple[float, ...]


@dataclass(frozen=True)
class Sweep:
    """The result of a parameter sweep.

    Args:
        names: names of the parameters.
        costs: by parameter values, the cost on all tuning sequences.
        num_given_up: number of other values, which were tried on a quarter of the sequences only.
    """

    names: tuple[str, ...]
    costs: Mapping[Values, float]
    num_given_up: int = 0

    @property
    def best(self) -> Values:
        """The values with the least cost; of equal ones, those nearest to 0."""
        return min(self.costs, key=lambda values: (self.costs[values], sum(map(abs, values))))

    @property
    def best_words(self) -> str:
        """The best values with their names, such as "alpha -1"."""
        pairs = zip(self.names, self.best, strict=True)
        return ", ".join(f"{name} {value:g}" for name, value in pairs)
