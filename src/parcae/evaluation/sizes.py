"""The sizes of clusters that `parcae.evaluation.sizing` tries: fixed ones, and elastic clusters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from parcae.errors import ConfigError
from parcae.simulation.elastic import Elastic
from parcae.workloads.limits import MOST_EXECUTORS

#: Largest number of sizes.
MOST_SIZES = 50


def parse_cores(text: str) -> tuple[int, ...]:
    """The sizes in a list such as "8,16,32".

    Raises:
        ConfigError: an entry is not a whole number, or `check_cores` refuses the sizes.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", word) for word in words):
        raise ConfigError(f"--cores {text}: write whole numbers with commas between, as in 8,16,32")
    cores = tuple(int(word) for word in words)
    check_cores(cores)
    return cores


def check_cores(cores: Sequence[int]) -> None:
    """Check the sizes of clusters.

    Raises:
        ConfigError: none or too many, not ascending, repeated, or out of bounds.
    """
    if not 1 <= len(cores) <= MOST_SIZES:
        raise ConfigError(f"--cores: give 1 to {MOST_SIZES} sizes, not {len(cores)}")
    if any(low >= high for low, high in itertools.pairwise(cores)):
        raise ConfigError("--cores: give every size once, from the smallest to the largest")
    if cores[0] < 1 or cores[-1] > MOST_EXECUTORS:
        raise ConfigError(f"--cores: a size is outside 1..{MOST_EXECUTORS:,}")


@dataclass(frozen=True)
class ElasticSize:
    """An elastic cluster that is tried beside the fixed sizes.

    Args:
        cores: most cores.
        elastic: how it grows and shrinks.
    """

    cores: int
    elastic: Elastic

    def __str__(self) -> str:
        return f"{self.elastic.min_cores}..{self.cores}"
