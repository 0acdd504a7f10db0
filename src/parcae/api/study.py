"""`learn`: tune a rule and train a network for a scenario, compare them on held-out runs, report.

The result is the better of the two policies, a comparison with heuristics, an HTML report and a
paragraph that says what the policy would save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.base.files import locked_folder, remove_unfinished, write_text
from parcae.base.texts import MS_PER_S, seconds_text
from parcae.evaluation.compare import ClusterWorld, compare, finished_jobs_of, who_is_later
from parcae.evaluation.comparison import Comparison, write_comparison
from parcae.evaluation.policies import check_named
from parcae.evaluation.report import write_report
from parcae.evaluation.statistics import (
    NO_MATTER,
    Estimate,
    is_no_matter,
    ratio_estimate,
    with_interval,
)
from parcae.learning.formulas import FoundFormula
from parcae.learning.loop import TrainingPlan, TrainResult, train
from parcae.learning.scenario import Scenario, check_search_seed, start_rule
from parcae.learning.tune import Tuning, tune_rule, tuned_checkpoint
from parcae.learning.worlds import LearningWorld, world_named, world_of
from parcae.policies.checkpoint import Checkpoint, write_checkpoint
from parcae.policies.learned import require_durations
from parcae.policies.policy_file import export_policy, write_policy
from parcae.policies.registry import bind
from parcae.simulation.config import WorldName
from parcae.simulation.objectives import (
    Objective,
    ObjectiveFunction,
    missed_and_tardy,
    objective_cost,
    objective_name,
)
from parcae.workloads.describe import ARRIVALS_IN_LOGS
from parcae.workloads.import_report import counted
from parcae.workloads.workload import Workload, process_like, without_breaks

#: Further baselines in the world of cores where jobs have deadlines.
BY_DEADLINE = ("edf", "edf:late-last")


def objective_by_policy(
    comparison: Comparison, objective: Objective | ObjectiveFunction
) -> dict[str, npt.NDArray[np.float64]]:
    """The objective of every policy on every seed: by name, float64[num_seeds]."""
    values = {}
    for row, result in enumerate(comparison.policies):
        if isinstance(objective, Objective):
            column = objective.entry.column
            cost = result.runs[column].cast(float).to_numpy()
        else:
            finished = finished_jobs_of(comparison, row)
            cost = np.concatenate([objective_cost(objective, jobs) for jobs in finished])
        values[result.name] = cost
    return values


def objective_ratio(
    comparison: Comparison, objective: Objective | ObjectiveFunction, name: str, baseline: str
) -> Estimate:
    """The objective of one policy / that of another, paired by seed, with its 95% interval."""
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


def _world(comparison: Comparison) -> LearningWorld:
    return world_named(comparison.resolved.config.world)


def _means(comparison: Comparison, objective: Objective | ObjectiveFunction) -> dict[str, float]:
    """The mean objective of every policy."""
    values = objective_by_policy(comparison, objective)
    return {name: float(one.mean()) for name, one in values.items()}


def savings_paragraph(
    comparison: Comparison, objective: Objective | ObjectiveFunction, name: str
) -> str:
    """A paragraph that says what the learned policy would save.

    It compares the policy with the stock orders and the best heuristic, and states how many jobs
    end later.
    """
    s = comparison.settings
    means = _means(comparison, objective)
    # The heuristic with the least objective on these runs, which favours it.
    baselines = (*_world(comparison).baselines, *BY_DEADLINE)
    best = min((one for one in means if one in baselines), key=means.__getitem__)
    labels = [*_world(comparison).stock.items(), (best, f"the best heuristic here, {best}")]
    ratios = [objective_ratio(comparison, objective, name, other) for other, _ in labels]
    parts = [
        f"{change(ratio)} than {label}" for ratio, (_, label) in zip(ratios, labels, strict=True)
    ]
    learned = next(p for p in comparison.policies if p.name == name)
    is_time = isinstance(objective, Objective) and objective.entry.column.endswith("_ms")
    mean = means[name]
    value = f"{seconds_text(mean / MS_PER_S)} s" if is_time else f"{mean:,.3f}"
    what = in_words(objective)
    who_pays = who_is_later(learned, comparison.policies[0].name)
    return (
        f"On {counted(s['seeds'][1] - s['seeds'][0] + 1, 'run')} not used for learning "
        f"({counted(s['jobs'], 'job')} of {s['workload']}, arrivals {s['arrivals']}, "
        f"{comparison.resolved.config.size_text}), the learned policy's {what} is "
        f"{value}: {parts[0]}, {parts[1]}, and {parts[2]}. Compared with that heuristic, "
        f"{_certainty(ratios, what)}. {who_pays} These are simulated runs of your profile. "
        "A profile that was measured with one job at a time does not show how durations change "
        "when jobs share your cluster."
    )


def savings_headline(
    comparison: Comparison, objective: Objective | ObjectiveFunction, name: str
) -> str:
    """What a policy would save against each of Spark's orders, for readers who decide.

    Example: "Under the learned order, the average job completion time would be 18% lower (11% to
    24%) than under Spark's FAIR with one pool per job and 35% lower (30% to 39%) than under Spark's
    FIFO; of all jobs, 9% would end more than 5% later than under fair."
    """
    ratios = {
        label: objective_ratio(comparison, objective, name, other)
        for other, label in _world(comparison).stock.items()
    }
    what = in_words(objective)
    if all(is_no_matter(ratio) for ratio in ratios.values()):
        return (
            f"The learned order makes no difference worth having: the {what} is within "
            f"{NO_MATTER:.0%} of that under {' and '.join(ratios)}."
        )
    parts = [
        f"about the same as under {label}"
        if is_no_matter(ratio)
        else f"{change(ratio, 'higher', 'lower', 0)} than under {label}"
        for label, ratio in ratios.items()
    ]
    learned = next(one for one in comparison.policies if one.name == name)
    paid = who_is_later(learned, comparison.policies[0].name)
    return f"Under the learned order, the {what} would be {' and '.join(parts)}. {paid}"


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


def change(ratio: Estimate, more: str = "more", less: str = "less", digits: int = 1) -> str:
    """A ratio to a policy as a part of a sentence, such as "3.0% less (1.0% to 5.0%)"."""
    text = f"{abs(ratio.mean - 1):.{digits}%} {more if ratio.mean > 1 else less}"
    if ratio.is_unknown:
        return text
    if ratio.low <= 1 <= ratio.high:
        return f"{text} (not significant)"
    # The ends of the interval as absolute changes, the smaller one first.
    low, high = sorted((abs(1 - ratio.low), abs(1 - ratio.high)))
    return f"{text} ({low:.{digits}%} to {high:.{digits}%})"


#: Share of the budget for tuning the rule. The rest is for training the network that corrects it.
_TUNING_SHARE = 0.35
#: Number of selection runs.
_NUM_SELECTION = 100
#: The workload, which the command writes beside the files of `learn`.
WORKLOAD = "workload.parcae"
#: What Spark's plugin knows of the logs' queries, which the command writes there, too.
STATE = "state.json"
#: The files that `learn` writes into its folder.
_RULE = "tuned.safetensors"
EXPORTED = "policy.json"
_POLICY = "policy.safetensors"
COMPARISON = "comparison.json"
REPORT = "report.html"
SUMMARY = "summary.txt"
FRONT = "front.json"
FRONT_PICTURE = "front.png"
#: Called with (seconds done, seconds in all, text about the current step).
Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class LearnRequest:
    """The input of `learn`.

    Args:
        scenario: the workload, the cluster and the objective.
        folder: folder for the policies, the comparison and the report.
        budget_s: wall-clock seconds for tuning and training together.
        num_seeds: number of held-out runs of the comparison.
        seed: seed of tuning and training, 0 to 255.
        start: what tuning and training start from: "shipped" for the nearest shipped policies,
            "scratch" for none.
        device: PyTorch's device for training.
        processes: worker processes of the comparison; see `parcae.evaluation.compare.compare`.
    """

    scenario: Scenario
    folder: Path
    budget_s: float = 300.0
    num_seeds: int = 40
    seed: int = 0
    start: str = "shipped"
    device: str = "cpu"
    processes: int | None = None

    def check(self) -> None:
        """Check all that can be checked before earlier results are removed."""
        check_search_seed(self.seed)
        require_durations(self.scenario.workload)
        check_named(self.folder / _POLICY)
        world_of(self.scenario).check(self.scenario.objective, self.device)
        self.scenario.selection(1)


@dataclass(frozen=True)
class LearnResult:
    """The result of `learn`.

    Args:
        comparison: the comparison on held-out runs.
        tuning: the tuned rule.
        paragraph: what the policy would save, in words.
        policy: file of the learned policy, or the formula.
        report: file of the HTML report.
        exported: the policy file for Spark's plugin; None in Decima's world.
        headline: what the policy file would save, in a sentence; empty in Decima's world.
        training: the trained network; None for formulas.
        front: the formulas that were found, the shortest first, each with its objective / the tuned
            rule's on held-out runs.
    """

    comparison: Comparison
    tuning: Tuning
    paragraph: str
    policy: Path | str
    report: Path
    exported: Path | None
    headline: str = ""
    training: TrainResult | None = None
    front: tuple[tuple[FoundFormula, Estimate], ...] = ()


def default_arrivals(workload: Workload) -> str:
    """Arrivals like those of the logs: as many sessions, or Poisson with the same mean rate while
    jobs arrive.

    Nights and other breaks do not count (`without_breaks`). A batch if the jobs have fewer than two
    different arrivals in the logs.
    """
    if workload.num_sessions:
        return f"sessions:{workload.usual_sessions}"
    if ARRIVALS_IN_LOGS in workload.provenance:
        return workload.provenance[ARRIVALS_IN_LOGS]
    arrival_ms = [job.arrival_ms for job in workload.jobs if job.arrival_ms is not None]
    return process_like(without_breaks(arrival_ms))


def _remove_results(folder: Path) -> list[str]:
    """Remove the files that an earlier `learn` wrote into a folder, and return their names.

    They belong to its workload: an interrupted command must not leave them beside another one.
    """
    names = (_RULE, _POLICY, EXPORTED, STATE, COMPARISON, REPORT, SUMMARY, FRONT, FRONT_PICTURE)
    removed = [name for name in names if (folder / name).is_file()]
    for name in removed:
        (folder / name).unlink()
    for name in (*names, WORKLOAD):
        remove_unfinished(folder / name)
    return removed


def learn(
    request: LearnRequest,
    progress: Progress | None = None,
    command: str = "",
    begin: Callable[[list[str]], None] = lambda removed: None,
) -> LearnResult:
    """Tune and train for a scenario, compare on held-out runs, and write all files to the folder.

    The files are tuned.safetensors (the rule), policy.safetensors (the better of rule and
    network), policy.json (the same for Spark's plugin), comparison.json, report.html and
    summary.txt. Earlier ones are removed first.

    `begin` is called with the names of earlier files, once they are removed and no other process
    can learn into the folder.
    """
    with learning_into(request, begin):
        return _learn(request, progress or (lambda done, total, text: None), command)


@contextmanager
def learning_into(request: LearnRequest, begin: Callable[[list[str]], None]) -> Iterator[None]:
    """A folder without earlier results, into which nobody else learns meanwhile; see `learn`."""
    request.check()
    request.folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(request.folder, "learning into"):
        begin(_remove_results(request.folder))
        yield


def tuned(request: LearnRequest, share: float, say: Progress) -> tuple[Tuning, Path]:
    """Tune the rule in a share of the budget. Returns the result, and its file."""
    scenario = request.scenario
    what = f"tuning the rule: {scenario.objective_name}"
    tuning = tune_rule(
        scenario,
        budget_s=request.budget_s * share,
        start=start_rule("tuned", scenario) if request.start == "shipped" else None,
        seed=request.seed,
        progress=lambda now: say(
            now.seconds, request.budget_s, f"{what} {now.ratio_to_fair:.3f} of fair"
        ),
    )
    card = {**scenario.card(), "ratio_to_fair_on_selection_runs": tuning.ratio_to_fair}
    rule = request.folder / _RULE
    write_checkpoint(tuned_checkpoint(tuning.parameters, scenario, card), rule)
    return tuning, rule


def _learn(request: LearnRequest, say: Progress, command: str) -> LearnResult:
    """Tune, train, compare and report, in a folder that no other process uses."""
    scenario = request.scenario
    world = world_of(scenario)
    is_from_shipped = request.start == "shipped"
    tuning, rule = tuned(request, _TUNING_SHARE, say)
    budget_s = request.budget_s * (1 - _TUNING_SHARE)
    learner = world.learner(
        scenario, tuning.parameters, budget_s, request.seed, is_from_shipped, request.device
    )
    training = train(
        learner,
        TrainingPlan(budget_s),
        lambda done: say(
            tuning.seconds + done.seconds,
            request.budget_s,
            f"training the network: {scenario.objective_name} {done.best:.3f} of "
            f"{world.measured_by} at best",
        ),
    )
    say(request.budget_s, request.budget_s, "comparing on held-out runs")
    best = request.folder / _POLICY
    is_in_cores = scenario.config.world is WorldName.CORES
    # Users keep accounts in the world of cores only.
    deployed = f"{best}+account" if is_in_cores else str(best)
    # The selection runs decide which policy is kept, so that the comparison stays unbiased.
    chosen = _better(scenario, tuning, training)
    write_checkpoint(chosen, best)
    comparison = compare(
        ClusterWorld(scenario.workload, scenario.config, scenario.arrivals, scenario.num_jobs),
        [
            *world.baselines,
            *(BY_DEADLINE if is_in_cores and scenario.workload.has_deadlines else ()),
            *(("tuned", world.network) if is_from_shipped else ()),
            str(rule),
            str(best),
            *([deployed] if is_in_cores else []),
        ],
        num_seeds=request.num_seeds,
        processes=request.processes,
    )
    write_comparison(comparison, request.folder / COMPARISON)
    paragraph = savings_paragraph(comparison, scenario.objective, deployed)
    paragraph += _against_shipped(comparison, scenario.objective, str(best))
    exported, headline = None, ""
    if is_in_cores:
        exported = request.folder / EXPORTED
        write_policy(export_policy(deployed, scenario.workload), exported)
        headline = savings_headline(comparison, scenario.objective, deployed)
    write_text(request.folder / SUMMARY, f"{headline}\n\n{paragraph}".lstrip() + "\n")
    report = request.folder / REPORT
    write_report(comparison, report, command=command)
    return LearnResult(comparison, tuning, paragraph, best, report, exported, headline, training)


def _against_shipped(
    comparison: Comparison, objective: Objective | ObjectiveFunction, name: str
) -> str:
    """A sentence that says whether the policy is better than the shipped ones.

    Empty if the comparison has no shipped policy.
    """
    means = _means(comparison, objective)
    shipped = {"tuned", _world(comparison).network} & means.keys()
    if not shipped:
        return ""
    best = min(sorted(shipped, reverse=True), key=means.__getitem__)
    ratio = objective_ratio(comparison, objective, name, best)
    # The whole interval is below 1: the difference is significant.
    if ratio.high < 1:
        return f" It is {change(ratio)} than {best}, the better of the policies that ship."
    interval = f"{with_interval(ratio)} of its {in_words(objective)}"
    return (
        f" It is not significantly better than {best}, the better of the policies that ship: it "
        f"has {interval}."
    )


def _better(scenario: Scenario, tuning: Tuning, training: TrainResult) -> Checkpoint:
    """The network if it is better than the rule on the selection runs, otherwise the rule."""
    rule = tuned_checkpoint(tuning.parameters, scenario, scenario.card())
    runs = scenario.selection(_NUM_SELECTION)
    policies = [bind(c, "learned", scenario.setting) for c in (training.checkpoint, rule)]
    network_cost, rule_cost = (runs.mean(policy.play_many) for policy in policies)
    return training.checkpoint if network_cost < rule_cost else rule
