"""The whole circle: profile, tune, train, evaluate on runs of their own, report, and say what would be saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.evaluation.bounds import lower_bounds
from parcae.evaluation.compare import Comparison, compare, write_comparison
from parcae.evaluation.report import write_report
from parcae.evaluation.statistics import Estimate, ratio_estimate
from parcae.files import write_text
from parcae.learning.family import Weights
from parcae.learning.order_evolution import Evolved, evolve_network, evolved_checkpoint
from parcae.learning.parcae_family import ParcaeFamily
from parcae.learning.recipes import Recipe, recipe_config
from parcae.learning.run import TrainRequest, train_policy
from parcae.learning.scenario import Runs, Scenario
from parcae.learning.start import start_rule, start_weights
from parcae.learning.tune import Tuning, is_planned, tune_rule, tuned_checkpoint
from parcae.metrics.objectives import Objective
from parcae.policies.checkpoint import Checkpoint, write_checkpoint
from parcae.policies.learned import bind, require_durations, setting_card
from parcae.policies.order_network.layout import KIND as ORDER_NETWORK
from parcae.policies.parcae.layout import PRIOR
from parcae.policies.rule.policy import Parameters
from parcae.simulation.config import WorldName
from parcae.simulation.run import simulate
from parcae.units import MS_PER_S
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import SELECTION_SEED_START

#: Part of the budget that goes into tuning the rule; the rest trains the network that corrects it.
_TUNING_SHARE = 0.35
#: Trainings shorter than this start as the rule itself; longer ones explore more at first, and end better.
_SHORT_S = 150.0
_NUM_SELECTION = 100
#: What the learned policies are compared with, the stronger of the stock orders among them; ratios are to the first.
BASELINES = {
    WorldName.CORES: ("fair", "fifo", "sjf", "srpt", "fsp", "psbs"),
    WorldName.EXECUTORS: ("fifo", "fair", "sjf-cp", "weighted-fair:tuned", "srpt-cap:tuned"),
}
#: What ships, by name: in the table wherever learning starts from it.
_SHIPPED = ("tuned", "parcae")
#: What the stock orders are called in each world. Decima's FIFO and fair sharing are not what Spark does.
_STOCK = {
    WorldName.CORES: {"fifo": "Spark's FIFO", "fair": "Spark's FAIR with a pool a job"},
    WorldName.EXECUTORS: {
        "fifo": "first come, first served in Decima's cluster",
        "fair": "fair sharing there",
    },
}
_COLUMN = {
    Objective.AVERAGE_JCT: "average_jct_ms",
    Objective.MAKESPAN: "makespan_ms",
    Objective.P95_JCT: "p95_jct_ms",
    Objective.MEAN_SLOWDOWN: "mean_slowdown",
    Objective.MISSED_DEADLINES: "missed_deadlines",
}
#: (seconds done, seconds in all, what is being done)
Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class LearnRequest:
    """What to learn.

    Args:
        folder: where the policies, the comparison and the report go.
        budget_s: wall-clock seconds for tuning and training together.
        num_seeds: held-out runs of the comparison.
        start: where tuning and training start: "shipped" for the nearest that ship with the package, "scratch" for nothing.
    """

    scenario: Scenario
    folder: Path
    budget_s: float = 300.0
    num_seeds: int = 40
    seed: int = 0
    start: str = "shipped"
    device: str = "cpu"


@dataclass(frozen=True)
class Trained:
    """The network that was trained, and how the training ended: "done", "interrupted", or what went astray."""

    checkpoint: Checkpoint
    ending: str


@dataclass(frozen=True)
class Learned:
    """What came of it: the files, the comparison and the paragraph."""

    comparison: Comparison
    tuning: Tuning
    training: Trained
    paragraph: str
    policy: Path
    report: Path


def default_arrivals(workload: Workload, recorded: Workload | None) -> str:
    """Arrivals like those of the logs: Poisson at their mean rate, or a batch where at most one job was recorded."""
    source = recorded or workload
    times = sorted(job.arrival_ms for job in source.jobs if job.arrival_ms is not None)
    if len(times) < 2 or times[-1] == times[0]:
        return "batch"
    return f"poisson:{max(1, round((times[-1] - times[0]) / (len(times) - 1)))}ms"


def learn(request: LearnRequest, progress: Progress | None = None, command: str = "") -> Learned:
    """Tune and train for a scenario, evaluate on held-out runs, write everything into the folder.

    Files: tuned.safetensors, policy.safetensors (the better of rule and network), comparison.json, report.html, summary.txt.

    Raises:
        ConfigError: a workload without durations.
    """
    scenario = request.scenario
    folder = request.folder
    require_durations(scenario.workload)
    folder.mkdir(parents=True, exist_ok=True)
    say = progress or (lambda done, total, text: None)
    card = setting_card(scenario.workload, scenario.config, scenario.arrivals, scenario.num_jobs)
    tuning = _tune(request, card, _shipped_rule(request), say)
    training = (_evolve if is_planned(scenario) else _train)(request, tuning, say)
    say(request.budget_s, request.budget_s, "comparing on held-out runs")
    best = folder / "policy.safetensors"
    write_checkpoint(_better(request, tuning, training, card), best)
    names = _compared(request, best)
    comparison = compare(
        scenario.workload,
        names,
        config=scenario.config,
        num_jobs=scenario.num_jobs,
        arrivals=scenario.arrivals,
        num_seeds=request.num_seeds,
    )
    write_comparison(comparison, folder / "comparison.json")
    paragraph = savings_paragraph(comparison, scenario.objective, str(best))
    paragraph += _against_shipped(comparison, scenario.objective, str(best))
    write_text(folder / "summary.txt", paragraph + "\n")
    _report(request, comparison, folder / "report.html", command)
    return Learned(comparison, tuning, training, paragraph, best, folder / "report.html")


def _shipped_rule(request: LearnRequest) -> Parameters | None:
    """The rule that ships for the nearest setting, where the search starts from it."""
    scenario = request.scenario
    return start_rule("tuned", scenario, scenario.arrivals) if request.start == "shipped" else None


def _compared(request: LearnRequest, best: Path) -> list[str]:
    """The policies of the table: the baselines, what ships, what was learned."""
    world = request.scenario.config.world
    ships = _SHIPPED if request.start == "shipped" else ()
    learned = [str(request.folder / "tuned.safetensors"), str(best)]
    guarded = [f"{best}+guard:1.1"] if world is WorldName.CORES else []
    return [*BASELINES[world], *ships, *learned, *guarded]


def _against_shipped(comparison: Comparison, objective: Objective, name: str) -> str:
    """A sentence that says whether the policy is better than what ships; "" where that was not compared."""
    compared = {policy.name: policy for policy in comparison.policies}
    shipped = [own for own in _SHIPPED if own in compared]
    if not shipped:
        return ""
    best = min(
        shipped,
        key=lambda own: float(
            np.mean([getattr(r, _COLUMN[objective]) for r in compared[own].summaries])
        ),
    )
    ratio = objective_ratio(comparison, objective, name, best)
    if ratio.high < 1:
        return f" It is {_change(ratio)} than {best}, the better of the policies that ship."
    interval = f"{ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of its {_in_words(objective)}"
    return f" Nothing surely better was found than {best}, which ships: the learned policy has {interval}."


def _tune(
    request: LearnRequest, card: dict[str, Any], start: Parameters | None, say: Progress
) -> Tuning:
    scenario = request.scenario
    budget_s = request.budget_s * _TUNING_SHARE

    def report(tuning: Tuning) -> None:
        say(
            tuning.seconds,
            request.budget_s,
            f"tuning the rule: {scenario.objective} {tuning.ratio_to_fair:.3f} of fair",
        )

    tuning = tune_rule(scenario, budget_s=budget_s, start=start, seed=request.seed, progress=report)
    found = {
        "objective": str(scenario.objective),
        "ratio_to_fair_on_selection_runs": tuning.ratio_to_fair,
    }
    write_checkpoint(
        tuned_checkpoint(tuning.parameters, scenario, {**card, **found}),
        request.folder / "tuned.safetensors",
    )
    return tuning


def _train(request: LearnRequest, tuning: Tuning, say: Progress) -> Trained:
    scenario = request.scenario
    budget_s = request.budget_s * (1 - _TUNING_SHARE)
    config = recipe_config(Recipe.FAST, scenario)
    if budget_s < _SHORT_S:
        config = config.model_copy(update={"prior": PRIOR})
    train = TrainRequest(
        scenario,
        config,
        parameters=tuning.parameters,
        weights=_start(request, tuning) if request.start == "shipped" else None,
        budget_s=budget_s,
        seed=request.seed,
        device=request.device,
    )
    what = f"{scenario.objective} "
    result = train_policy(
        train,
        lambda i: say(
            tuning.seconds + i.seconds,
            request.budget_s,
            f"training the network: {what}{i.best:.3f} of fair at best",
        ),
    )
    return Trained(result.checkpoint, result.ending)


def _evolve(request: LearnRequest, tuning: Tuning, say: Progress) -> Trained:
    """World of cores: the network that corrects the tuned rule's orders."""
    scenario = request.scenario
    seed = request.seed & 0xFF

    def report(found: Evolved) -> None:
        text = f"training the network: {scenario.objective} {found.ratio_to_rule:.3f} of the rule at best"
        say(tuning.seconds + found.seconds, request.budget_s, text)

    found = evolve_network(
        scenario,
        tuning.parameters,
        budget_s=request.budget_s * (1 - _TUNING_SHARE),
        start=_shipped_network(request),
        seed=seed,
        progress=report,
    )
    return Trained(evolved_checkpoint(found, scenario, tuning.parameters, seed), found.ending)


def _shipped_network(request: LearnRequest) -> npt.NDArray[np.float64] | None:
    """The weights of the network that ships for the world of cores, where training starts from what ships."""
    if request.start != "shipped":
        return None
    return start_weights("parcae", ORDER_NETWORK, request.scenario, request.scenario.arrivals)[
        "network"
    ]


def _start(request: LearnRequest, tuning: Tuning) -> Weights | None:
    """The shipped network's weights where they do better than the rule alone, on the selection runs; else a fresh start."""
    scenario = request.scenario
    weights = start_weights("parcae", "parcae", scenario, scenario.arrivals)
    family = ParcaeFamily(scenario, tuning.parameters, PRIOR)
    runs = _selection_runs(scenario)
    fresh = family.initial_weights(np.random.default_rng(request.seed))
    costs = [float(runs.cost(family.policy(w).play_many).mean()) for w in (weights, fresh)]
    return weights if costs[0] <= costs[1] else None


def _better(
    request: LearnRequest, tuning: Tuning, training: Trained, card: dict[str, Any]
) -> Checkpoint:
    """The network, or the rule where the network does not do better on the selection runs."""
    scenario = request.scenario
    rule = tuned_checkpoint(
        tuning.parameters, scenario, {**card, "objective": str(scenario.objective)}
    )
    runs = _selection_runs(scenario)
    policies = [
        bind(c, "learned", scenario.workload, scenario.config) for c in (training.checkpoint, rule)
    ]
    network_cost, rule_cost = (float(runs.cost(policy.play_many).mean()) for policy in policies)
    return training.checkpoint if network_cost < rule_cost else rule


def _selection_runs(scenario: Scenario) -> Runs:
    return scenario.batch([SELECTION_SEED_START + row for row in range(_NUM_SELECTION)])


def _report(request: LearnRequest, comparison: Comparison, path: Path, command: str) -> None:
    scenario = request.scenario
    seed = 0
    sequence = scenario.sequence(seed)
    policies = comparison.resolved.for_sequence(sequence, seed)
    traces = {
        name: simulate(sequence, policy, scenario.config, seed, record=True)
        for name, policy in policies.items()
    }
    bounds = lower_bounds(sequence, scenario.config.total_executors)
    write_report(comparison, traces, path, command=command, bounds=bounds)


def objective_ratio(
    comparison: Comparison, objective: Objective, name: str, baseline: str
) -> Estimate:
    """The objective of one policy / that of another, paired by seed, with its 95% interval.

    Raises:
        ConfigError: a policy that was not compared.
    """
    values = {}
    for result in comparison.policies:
        values[result.name] = np.array(
            [getattr(s, _COLUMN[objective]) for s in result.summaries], np.float64
        )
    for wanted in (name, baseline):
        if wanted not in values:
            raise ConfigError(f"policy {wanted!r} was not compared; there are {', '.join(values)}")
    above = values[name]
    below = values[baseline]
    if (
        not (below > 0).all() or not (above > 0).any()
    ):  # shares of missed deadlines may be 0, which has no ratio
        least = 1e-3 * max(float(below.mean()), 1e-3)
        above = above + least
        below = below + least
    return ratio_estimate(above, below, "t", np.random.default_rng(0))


def savings_paragraph(comparison: Comparison, objective: Objective, name: str) -> str:
    """What the policy would save against the stock orders and the best heuristic, and who pays, in plain words."""
    s = comparison.settings
    world = comparison.resolved.config.world
    heuristics = [p for p in comparison.policies if p.name in BASELINES[world]]
    best = min(
        heuristics,
        key=lambda p: float(np.mean([getattr(r, _COLUMN[objective]) for r in p.summaries])),
    )
    labels = [*_STOCK[world].items(), (best.name, f"the best heuristic here, {best.name}")]
    parts = [
        f"{_change(objective_ratio(comparison, objective, name, other))} than {label}"
        for other, label in labels
    ]
    learned = next(p for p in comparison.policies if p.name == name)
    mean = float(np.mean([getattr(r, _COLUMN[objective]) for r in learned.summaries]))
    value = f"{mean / MS_PER_S:,.1f} s" if _COLUMN[objective].endswith("_ms") else f"{mean:,.3f}"
    ratio = objective_ratio(comparison, objective, name, best.name)
    sure = (
        "does not rule out chance: run more seeds, or train longer"
        if ratio.low <= 1 <= ratio.high
        else "rules out chance"
    )
    what = _in_words(objective)
    unit = "cores" if world is WorldName.CORES else "executors"
    return (
        f"On {s['seeds'][1] - s['seeds'][0] + 1} runs that nothing was learned from ({s['jobs']} jobs of {s['workload']}, "
        f"arrivals {s['arrivals']}, {comparison.resolved.config.total_executors} {unit}), the learned policy's {what} is "
        f"{value}: {parts[0]}, {parts[1]}, and {parts[2]}. Against that heuristic the 95% interval {sure}. "
        f"{learned.who_pays.describe(comparison.policies[0].name)} These are simulated "
        f"runs of your profile: what durations do while jobs share your cluster is not in a profile that was measured alone."
    )


def _in_words(objective: Objective) -> str:
    return str(objective).replace("-", " ").replace("jct", "job completion time")


def _change(ratio: Estimate) -> str:
    less = 1 - ratio.mean
    low, high = sorted((abs(1 - ratio.low), abs(1 - ratio.high)))
    if ratio.low <= 1 <= ratio.high:
        return f"{abs(less):.1%} {'less' if less >= 0 else 'more'} (no sure difference)"
    return f"{abs(less):.1%} {'less' if less >= 0 else 'more'} ({low:.1%} to {high:.1%})"
