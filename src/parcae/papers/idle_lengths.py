"""Figure 5 of Duan & Wu: machines per job by its length, and learned against theoretical slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import stats

from parcae.base.texts import MS_PER_S
from parcae.cluster.decision import Policy
from parcae.decima.checkpoints import deciding_policy
from parcae.decima.idle.theory import (
    DiscreteDistribution,
    best_slot,
    best_slot_exponential,
    expected_average_jct,
)
from parcae.evaluation.pictures import tidy
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, mean_estimate, with_half_width
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contest, contest, named
from parcae.papers.idle import (
    AGENTS,
    BESIDE,
    PLAIN,
    WHOLE,
    describe,
    mixed_scenario,
    require_agents,
    train_agents,
)
from parcae.papers.learners import DecimaVariant, StudiedPolicy, budget_notes, train_decima
from parcae.papers.pictures import interval_lines, save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.policies.names import PolicyName
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.metrics import executor_share
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import JobSequence, RandomStreams
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload
from parcae.workloads.synthetic import MEAN_GAP_S, SHORT_MS, synthetic_jobs

FloatArray = npt.NDArray[np.float64]
#: Number of bins of jobs by work, with about the same number of jobs in each.
_NUM_BINS = 5
#: Lengths in s of the first of two jobs; the second job is short.
_FIRST_S = (15.0, 25.0, 50.0, 70.0)
#: Training settings for pairs of jobs: whole runs of two jobs, many at a time, in many small steps.
_PAIRS: Mapping[str, Any] = {
    **{
        "window_s": None,
        "horizon_s": None,
        "imitation": 0.0,
        "num_groups": 32,
        "num_selection": 400,
    },
    **{"epochs": 4, "minibatch": 128, "learning_rate": 3e-3},
}


@dataclass(frozen=True)
class Slot:
    """An idle slot when it began or when its length was decided again."""

    job: int
    length_s: float
    slot_s: float


def slots_of(
    sequence: JobSequence, policy: Policy, config: SimulationConfig, seed: int
) -> list[Slot]:
    """Simulate one run and list the idle slots that a policy inserts."""
    simulator = Simulator(sequence, config, seed)
    slots = list[Slot]()
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        observation = simulator.observe()
        decision = policy.decide(observation)
        # A decision with a hold time starts an idle slot or changes its length.
        if decision.hold_ms > 0:
            stages = observation.stages
            stage = decision.stage
            length_ms = float(stages.task_ms[stage]) * int(
                stages.num_tasks[stage] - stages.num_started[stage]
            )
            slots.append(
                Slot(int(stages.job[stage]), length_ms / MS_PER_S, decision.hold_ms / MS_PER_S)
            )
        simulator.step(decision)
    return slots


class Pairs(Scenario):
    """The setting of the theorem: one machine and two jobs with an exponential gap between them.

    The second job is short, so that a policy can distinguish it from the first by its length.
    Otherwise a policy that waits before the first job would also wait before the second, although
    no further job arrives.
    """

    def sequence(self, seed: int) -> JobSequence:
        """The two jobs of one seed."""
        streams = RandomStreams(seed)
        # Job 0 of the workload is the short one; the first job is one of the others.
        first = int(streams.jobs.integers(1, len(self.workload.jobs)))
        gap_s = streams.arrivals.exponential(MEAN_GAP_S)
        return JobSequence(
            self.workload, np.array([first, 0]), np.array([0, 1 + int(gap_s * MS_PER_S)])
        )


def pairs() -> Pairs:
    """The scenario of two jobs; the first has one of several lengths, equally likely."""
    short = synthetic_jobs().jobs[0]
    firsts = [
        JobSpec(f"first-{s:g}s", (StageSpec(1, TaskDurations.constant(round(s * MS_PER_S))),))
        for s in _FIRST_S
    ]
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    return Pairs(Workload("pairs", (short, *firsts)), config, f"poisson:{MEAN_GAP_S:g}s", 2)


def first_slot_s(policy: Policy, scenario: Scenario, job: int) -> float:
    """The idle slot in seconds that a policy inserts before the first of two jobs."""
    # The second job arrives late enough not to matter.
    sequence = JobSequence(
        scenario.workload, np.array([job, 0]), np.array([0, 10 * round(max(_FIRST_S)) * MS_PER_S])
    )
    simulator = Simulator(sequence, scenario.config, 0)
    simulator.start()
    return policy.decide(simulator.observe()).hold_ms / MS_PER_S


def pair_rows(scenario: Scenario, learned: StudiedPolicy) -> tuple[list[list[str]], dict[str, Any]]:
    """Table rows and numbers of the idle slots before the first of two jobs.

    There are four slots: none, that of Theorem 2, the best slot if the next arrival ends it, and
    the learned one.
    """
    policy = deciding_policy(PolicyName(str(learned.path)), scenario.setting)
    rows = list[list[str]]()
    numbers = dict[str, Any]()
    for row, length_s in enumerate(_FIRST_S, 1):
        slots, costs = _pair_slots(length_s, first_slot_s(policy, scenario, row))
        numbers[f"{length_s:g} s"] = {"slots_s": slots, "expected_average_jct_s": costs}
        rows += [
            [f"pair, first job {length_s:g} s", name, f"{slot:.1f}", f"{costs[name]:.2f}", ""]
            for name, slot in slots.items()
        ]
    return rows, numbers


def _pair_slots(length_s: float, learned_s: float) -> tuple[dict[str, float], dict[str, float]]:
    """The four slots before a first job of a length, and the expected average JCT of each, in s."""
    # The second job always has the short length; the gap before it is exponential.
    lengths = DiscreteDistribution((SHORT_MS / MS_PER_S,), (1.0,))
    gaps = stats.expon(scale=MEAN_GAP_S)
    slots = {
        "none": 0.0,
        "Theorem 2": best_slot_exponential(length_s, MEAN_GAP_S, lengths),
        "decided anew": best_slot(length_s, gaps, lengths, is_redecided=True),
        f"learned {WHOLE}": learned_s,
    }
    costs = {
        name: expected_average_jct(length_s, slot, gaps, lengths, is_redecided=True)
        for name, slot in slots.items()
    }
    return slots, costs


def bins_of(workload: Workload, sequence: JobSequence) -> list[npt.NDArray[np.intp]]:
    """Positions of the sequence's jobs in each bin by work.

    Bins have about the same number of jobs; jobs with equal work share a bin.
    """
    work = np.array([job.work_ms for job in sequence.jobs])
    # Edges come from the workload, so that all runs have the same bins.
    edges = np.unique(
        np.quantile([job.work_ms for job in workload.jobs], np.linspace(0, 1, _NUM_BINS + 1)[1:-1])
    )
    return [
        np.flatnonzero(np.digitize(work, edges, right=True) == row) for row in range(len(edges) + 1)
    ]


def shares_by_length(
    outcome: Contest, seeds: range
) -> tuple[list[float], dict[str, list[Estimate]]]:
    """Machines per job by bin. Returns the mean work of each bin in seconds; and by policy the
    machines per job in each bin, with intervals over the runs that have such jobs.
    """
    runs = [(outcome.scenario.sequence(seed), outcome.traces(seed, record=False)) for seed in seeds]
    bins = [bins_of(outcome.scenario.workload, sequence) for sequence, _ in runs]
    # A run without jobs in a bin says nothing about that bin.
    kept = [[run for run in range(len(runs)) if len(bins[run][row])] for row in range(len(bins[0]))]
    shown = [row for row, members in enumerate(kept) if members]
    work = [
        [runs[run][0].jobs[job].work_ms for run in kept[row] for job in bins[run][row]]
        for row in shown
    ]

    def shares(label: str, row: int) -> Estimate:
        return mean_estimate(
            [executor_share(runs[run][1][label])[bins[run][row]].mean() for run in kept[row]]
        )

    machines = {label: [shares(label, row) for row in shown] for label in runs[0][1]}
    return [float(np.mean(members)) / MS_PER_S for members in work], machines


def _slot_words(outcome: Contest, seed: int) -> str:
    sequence = outcome.scenario.sequence(seed)
    policies = outcome.comparison.resolved.for_sequence(sequence, seed)
    words = []
    for name, policy in policies.items():
        slots = (
            slots_of(sequence, cast(Policy, policy), outcome.scenario.config, seed)
            if outcome.labels[name] in (WHOLE, "idle-theory")
            else []
        )
        if slots:
            # The mean length of the slots, as a share of their stage's length.
            part = np.mean([slot.slot_s / max(1e-3, slot.length_s) for slot in slots])
            jobs = len({slot.job for slot in slots})
            words.append(
                f"{outcome.labels[name]} {len(slots)} slots before stages of {jobs} jobs, "
                f"{part:.0%} of the stage on average"
            )
    return f"idle slots in the run of seed {seed}: {'; '.join(words) or 'none'}"


def _draw(
    work_s: list[float],
    shares: Mapping[str, list[Estimate]],
    numbers: Mapping[str, Any],
    figure: Any,
) -> None:
    left, right = figure.subplots(1, 2)
    _draw_shares(left, work_s, shares)
    _draw_slots(right, numbers)


def _draw_shares(axis: Any, work_s: list[float], shares: Mapping[str, list[Estimate]]) -> None:
    """Draw the machines per job over the work of the job, one line per policy."""
    interval_lines(axis, work_s, shares)
    axis.set_xscale("log")
    tidy(
        axis,
        ("work of the job (s)", "machines while it was there"),
        "machines by length of the job",
    )


def _draw_slots(axis: Any, numbers: Mapping[str, Any]) -> None:
    """Draw the idle slots before the first of two jobs, as groups of bars."""
    places = np.arange(len(numbers))
    # Skip "none", which has no bar.
    names = list(next(iter(numbers.values()))["slots_s"])[1:]
    for row, name in enumerate(names):
        heights = [outcome["slots_s"][name] for outcome in numbers.values()]
        axis.bar(places + 0.25 * (row - 1), heights, 0.22, color=policy_color(row), label=name)
    axis.set_xticks(places, list(numbers))
    tidy(
        axis,
        ("length of the first job", "idle slot before it (s)"),
        "two one-stage jobs on one machine",
    )


def fig5(request: StudyRequest) -> StudyResult:
    """Machines per job by its length, and learned idle slots compared with the theory.

    Source: Duan & Wu, Figure 5 and section VI.
    """
    require_agents(request, ("mixed",), (PLAIN, WHOLE))
    share_s = request.budget_s / 3
    scenario = mixed_scenario(request)
    pair = pairs()
    agents, notes = train_agents(request, scenario, "mixed", (PLAIN, WHOLE), share_s)
    # A further agent learns the pairs of the theory.
    alone = train_decima(
        request, pair, f"{WHOLE} pairs", share_s, DecimaVariant(AGENTS[WHOLE], changes=_PAIRS)
    )
    num_runs = request.runs(4, 10)
    outcome = contest(request, scenario, [*agents, *named(*BESIDE)], num_runs)
    seeds = range(request.first_seed, request.first_seed + num_runs)
    work_s, shares = shares_by_length(outcome, seeds)
    slots, numbers = pair_rows(pair, alone)
    return StudyResult(
        "machines by length of the job, and learned idle slots compared with the theory",
        "agents give smaller jobs more machines than tuned weighted fair (Figure 5); on one-stage "
        "jobs the learned idle slots are close to those of the theory (section VI)",
        (
            "jobs",
            "policy or slot",
            "slot (s)",
            "expected average JCT of the pair (s)",
            "machines per job",
        ),
        [*slots, *_share_rows(work_s, shares)],
        {
            "pairs": numbers,
            "work_s": work_s,
            "machines": {
                label: [e.to_json() for e in estimates] for label, estimates in shares.items()
            },
            "contest": outcome.to_json(),
        },
        [
            describe("mixed", scenario),
            _PAIR_NOTE,
            "machines per job: executor time of its tasks / time in the system; bins have about "
            "the same number of job kinds each",
            _slot_words(outcome, request.first_seed),
            *outcome.notes(),
            *notes,
            alone.words,
            *budget_notes(request),
        ],
        partial(save, partial(_draw, work_s, shares, numbers), (11.0, 4.4)),
    )


_PAIR_NOTE = (
    "pairs: one machine, a one-stage job of "
    f"{' or '.join(f'{s:g}' for s in _FIRST_S)} s and, after an exponential gap (mean "
    f"{MEAN_GAP_S:g} s), a job of 10 s; the slot of Theorem 2 is the best if it always "
    "lasts to its end; 'decided anew' is the best if the next arrival ends it, as in this "
    "cluster and in the paper's section IV-B; the expected times are for the latter case"
)


def _share_rows(work_s: list[float], shares: Mapping[str, list[Estimate]]) -> list[list[str]]:
    return [
        [f"jobs of {length:,.0f} s", label, "", "", with_half_width(estimates[row], 2)]
        for row, length in enumerate(work_s)
        for label, estimates in shares.items()
    ]
