"""What a learned policy would save: ratios of an objective, and a paragraph of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.evaluation.compare import Comparison
from parcae.evaluation.statistics import Estimate, ratio_estimate
from parcae.metrics.objectives import (
    Objective,
    ObjectiveFunction,
    missed_and_tardy,
    objective_cost,
    objective_name,
)
from parcae.simulation.config import WorldName
from parcae.texts import seconds_text
from parcae.units import MS_PER_S
from parcae.workloads.import_report import counted

#: The policies that learned ones are compared with; ratios are relative to the first.
BASELINES = {
    WorldName.CORES: ("fair", "fifo", "sjf", "srpt", "fsp", "psbs"),
    WorldName.EXECUTORS: ("fifo", "fair", "sjf-cp", "weighted-fair:tuned", "srpt-cap:tuned"),
}
#: The same in the world of cores where jobs have deadlines.
BY_DEADLINE = ("edf", "edf:late-last")
#: Descriptions of the stock orders in each world. Decima's FIFO and fair sharing differ from
#: Spark's.
_STOCK = {
    WorldName.CORES: {"fifo": "Spark's FIFO", "fair": "Spark's FAIR with one pool per job"},
    WorldName.EXECUTORS: {
        "fifo": "first come, first served in Decima's cluster",
        "fair": "fair sharing in Decima's cluster",
    },
}


def objective_by_policy(
    comparison: Comparison, objective: Objective | ObjectiveFunction
) -> dict[str, npt.NDArray[np.float64]]:
    """The objective of every policy on every seed: by name, float64[num_seeds]."""
    values = {}
    for row, result in enumerate(comparison.policies):
        if isinstance(objective, Objective):
            column = objective.entry.column
            cost = np.array([getattr(s, column) for s in result.summaries], np.float64)
        else:
            finished = [run.finished_jobs(row) for run in comparison.runs]
            cost = np.concatenate([objective_cost(objective, jobs) for jobs in finished])
        values[result.name] = cost
    return values


def objective_ratio(
    comparison: Comparison, objective: Objective | ObjectiveFunction, name: str, baseline: str
) -> Estimate:
    """The objective of one policy / that of another, paired by seed, with its 95% interval.

    Args:
        comparison: the comparison.
        objective: the objective.
        name: the policy.
        baseline: the policy to compare with.

    Raises:
        ConfigError: a policy is not in the comparison.
    """
    values = objective_by_policy(comparison, objective)
    for wanted in (name, baseline):
        if wanted not in values:
            raise ConfigError(
                f"policy {wanted!r} was not compared; choose one of {', '.join(values)}"
            )
    above = values[name]
    below = values[baseline]
    # Shares of missed deadlines may be 0, which has no ratio: add a small number to both sides.
    if not (below > 0).all() or not (above > 0).any():
        least = 1e-3 * max(float(below.mean()), 1e-3)
        above = above + least
        below = below + least
    return ratio_estimate(above, below)


def _best_heuristic(comparison: Comparison, objective: Objective | ObjectiveFunction) -> str:
    """The heuristic with the least objective on the compared runs, which favours it."""
    values = objective_by_policy(comparison, objective)
    baselines = (*BASELINES[comparison.resolved.config.world], *BY_DEADLINE)
    heuristics = [p.name for p in comparison.policies if p.name in baselines]
    return min(heuristics, key=lambda heuristic: float(values[heuristic].mean()))


def _mean_in_words(
    comparison: Comparison, objective: Objective | ObjectiveFunction, name: str
) -> str:
    """The mean objective of a policy, with its unit."""
    mean = float(objective_by_policy(comparison, objective)[name].mean())
    is_time = isinstance(objective, Objective) and objective.entry.column.endswith("_ms")
    return f"{seconds_text(mean / MS_PER_S)} s" if is_time else f"{mean:,.3f}"


def savings_paragraph(
    comparison: Comparison, objective: Objective | ObjectiveFunction, name: str
) -> str:
    """A paragraph that says what the learned policy would save.

    It compares the policy with the stock orders and the best heuristic, and states how many jobs
    end later.

    Args:
        comparison: the comparison.
        objective: the objective.
        name: the learned policy.
    """
    s = comparison.settings
    world = comparison.resolved.config.world
    best = _best_heuristic(comparison, objective)
    labels = [*_STOCK[world].items(), (best, f"the best heuristic here, {best}")]
    ratios = [objective_ratio(comparison, objective, name, other) for other, _ in labels]
    parts = [
        f"{change(ratio)} than {label}" for ratio, (_, label) in zip(ratios, labels, strict=True)
    ]
    learned = next(p for p in comparison.policies if p.name == name)
    value = _mean_in_words(comparison, objective, name)
    what = in_words(objective)
    who_pays = learned.who_pays.describe(comparison.policies[0].name)
    unit = "cores" if world is WorldName.CORES else "executors"
    return (
        f"On {counted(s['seeds'][1] - s['seeds'][0] + 1, 'run')} not used for learning "
        f"({counted(s['jobs'], 'job')} of {s['workload']}, arrivals {s['arrivals']}, "
        f"{comparison.resolved.config.total_executors} {unit}), the learned policy's {what} is "
        f"{value}: {parts[0]}, {parts[1]}, and {parts[2]}. Compared with that heuristic, "
        f"{_certainty(ratios, what)}. {who_pays} These are simulated runs of your profile. "
        "A profile that was measured with one job at a time does not show how durations change "
        "when jobs share your cluster."
    )


def _certainty(ratios: Sequence[Estimate], what: str) -> str:
    """Whether the last of the ratios of `what` differs from 1, and what to do if it does not."""
    if ratios[-1].is_unknown:
        return "one run cannot tell whether the difference is chance: run more seeds"
    if not ratios[-1].low <= 1 <= ratios[-1].high:
        return "the difference is significant at the 95% level"
    if ratios[-1].low == ratios[-1].high == 1:
        if any(ratio.low != 1 or ratio.high != 1 for ratio in ratios):
            return f"there is no difference: both have the same {what} in every run"
        # All deadlines may be met, or all missed.
        other = "other deadlines or another load" if "deadlines" in what else "more load"
        same = f"there is no difference: the {what} is the same in every run"
        return f"{same}; learn for {other}"
    return "the difference is not significant at the 95% level: run more seeds, or train longer"


def in_words(objective: Objective | ObjectiveFunction) -> str:
    """The objective as a part of a sentence, such as "average job completion time"."""
    if objective is missed_and_tardy:
        return "share of missed deadlines plus relative tardiness"
    if objective is Objective.MISSED_DEADLINES:
        return "share of missed deadlines"
    return (
        objective_name(objective)
        .replace("-", " ")
        .replace("_", " ")
        .replace("jct", "job completion time")
    )


def change(ratio: Estimate) -> str:
    """A ratio to a policy as a part of a sentence, such as "3.0% less (1.0% to 5.0%)"."""
    less = 1 - ratio.mean
    if ratio.is_unknown:
        return f"{abs(less):.1%} {'less' if less >= 0 else 'more'}"
    # The ends of the interval as absolute changes, the smaller one first.
    low, high = sorted((abs(1 - ratio.low), abs(1 - ratio.high)))
    if ratio.low <= 1 <= ratio.high:
        return f"{abs(less):.1%} {'less' if less >= 0 else 'more'} (not significant)"
    return f"{abs(less):.1%} {'less' if less >= 0 else 'more'} ({low:.1%} to {high:.1%})"
