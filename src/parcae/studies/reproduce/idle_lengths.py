"""Figure 5 of Duan & Wu: machines by length of the job, and idle slots beside what the theory says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import stats

from parcae.cluster.decision import Policy
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, mean_estimate
from parcae.learning.scenario import Scenario
from parcae.metrics.cluster import executor_share
from parcae.policies.idle.theory import (
    Points,
    best_slot,
    best_slot_exponential,
    expected_average_jct,
)
from parcae.policies.learned import deciding_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.studies.reproduce.contest import Contest, contest, named, with_half_width
from parcae.studies.reproduce.idle import (
    AGENTS,
    BESIDE,
    PLAIN,
    WHOLE,
    describe,
    mixed_arena,
    train_agents,
)
from parcae.studies.reproduce.learners import Learned, budget_notes, train_decima
from parcae.studies.reproduce.pictures import save, tidy
from parcae.studies.reproduce.study import StudyRequest, StudyResult
from parcae.units import MS_PER_S
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload
from parcae.workloads.one_stage import MEAN_GAP_S, SHORT_MS, synthetic_jobs
from parcae.workloads.random_streams import RandomStreams

FloatArray = npt.NDArray[np.float64]
#: Bins of jobs by work, as many jobs in each.
_NUM_BINS = 5
#: Lengths in s of the first of two jobs; the second is short.
_FIRST_S = (15.0, 25.0, 50.0, 70.0)
#: A training on pairs walks through whole runs of two jobs, many at a time, in many small steps.
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
    """An idle slot as it was begun or decided anew.

    Args:
        job: row of the sequence. length_s: of its stage on one executor. slot_s: from now on.
    """

    job: int
    length_s: float
    slot_s: float


def slots_of(
    sequence: JobSequence, policy: Policy, config: SimulationConfig, seed: int
) -> list[Slot]:
    """The idle slots that a policy inserts in one run."""
    simulator = Simulator(sequence, config, seed)
    found = list[Slot]()
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        seen = simulator.observe()
        decision = policy.decide(seen)
        if decision.hold_ms > 0:
            stages = seen.stages
            stage = decision.stage
            length_ms = float(stages.task_ms[stage]) * int(
                stages.num_tasks[stage] - stages.num_started[stage]
            )
            found.append(
                Slot(int(stages.job[stage]), length_ms / MS_PER_S, decision.hold_ms / MS_PER_S)
            )
        simulator.step(decision)
    return found


class Pairs(Scenario):
    """The theorem's own setting: one machine and two jobs, the second a short one, an exponential gap after the first.

    The second can be told from the first by its length. Were it not so, a policy that waits before the first would also wait
    before the second, where nobody comes any more.
    """

    def sequence(self, seed: int) -> JobSequence:
        """The two jobs of one seed."""
        streams = RandomStreams(seed)
        first = int(streams.jobs.integers(1, len(self.workload.jobs)))
        gap_s = streams.arrivals.exponential(MEAN_GAP_S)
        return JobSequence(
            self.workload, np.array([first, 0]), np.array([0, 1 + int(gap_s * MS_PER_S)])
        )


def pairs() -> Pairs:
    """First jobs of several lengths, equally likely."""
    short = synthetic_jobs().jobs[0]
    firsts = [
        JobSpec(f"first-{s:g}s", (StageSpec(1, TaskDurations.constant(round(s * MS_PER_S))),))
        for s in _FIRST_S
    ]
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    return Pairs(Workload("pairs", (short, *firsts)), config, f"poisson:{MEAN_GAP_S:g}s", 2)


def first_slot_s(policy: Policy, scenario: Scenario, job: int) -> float:
    """The idle slot that a policy puts before the first of two jobs, where that is the workload's given one."""
    sequence = JobSequence(
        scenario.workload, np.array([job, 0]), np.array([0, 10 * round(max(_FIRST_S)) * MS_PER_S])
    )
    simulator = Simulator(sequence, scenario.config, 0)
    simulator.start()
    return policy.decide(simulator.observe()).hold_ms / MS_PER_S


def pair_rows(scenario: Scenario, learned: Learned) -> tuple[list[list[str]], dict[str, Any]]:
    """Slots before the first job: Theorem 2's, the best where slots end with the next arrival, and the learned one."""
    policy = deciding_policy(
        str(learned.path), scenario.workload, scenario.config, scenario.arrivals
    )
    lengths = Points((SHORT_MS / MS_PER_S,), (1.0,))
    gaps = stats.expon(scale=MEAN_GAP_S)
    rows = list[list[str]]()
    numbers = dict[str, Any]()
    for row, length_s in enumerate(_FIRST_S, 1):
        slots = {
            "none": 0.0,
            "Theorem 2": best_slot_exponential(length_s, MEAN_GAP_S, lengths),
            "decided anew": best_slot(length_s, gaps, lengths, is_redecided=True),
            f"learned {WHOLE}": first_slot_s(policy, scenario, row),
        }
        costs = {
            name: expected_average_jct(length_s, slot, gaps, lengths, is_redecided=True)
            for name, slot in slots.items()
        }
        numbers[f"{length_s:g} s"] = {"slots_s": slots, "expected_average_jct_s": costs}
        rows += [
            [f"pair, first job {length_s:g} s", name, f"{slot:.1f}", f"{costs[name]:.2f}", ""]
            for name, slot in slots.items()
        ]
    return rows, numbers


def bins_of(workload: Workload, sequence: JobSequence) -> list[npt.NDArray[np.intp]]:
    """Rows of the sequence's jobs by work: about as many in each bin, one-stage jobs of one length together."""
    work = np.array([job.work_ms for job in sequence.jobs])
    edges = np.unique(
        np.quantile([job.work_ms for job in workload.jobs], np.linspace(0, 1, _NUM_BINS + 1)[1:-1])
    )
    return [
        np.flatnonzero(np.digitize(work, edges, right=True) == row) for row in range(len(edges) + 1)
    ]


def shares_by_length(found: Contest, seeds: range) -> tuple[list[float], dict[str, list[Estimate]]]:
    """Mean work of each bin in s, and by policy the machines per job, with intervals over the runs that have such jobs."""
    runs = [(found.arena.sequence(seed), found.traces(seed, record=False)) for seed in seeds]
    bins = [bins_of(found.arena.workload, sequence) for sequence, _ in runs]
    kept = [[run for run in range(len(runs)) if len(bins[run][row])] for row in range(len(bins[0]))]
    shown = [row for row, own in enumerate(kept) if own]
    work = [
        [runs[run][0].jobs[job].work_ms for run in kept[row] for job in bins[run][row]]
        for row in shown
    ]

    def shares(label: str, row: int) -> Estimate:
        return mean_estimate(
            [executor_share(runs[run][1][label])[bins[run][row]].mean() for run in kept[row]]
        )

    machines = {label: [shares(label, row) for row in shown] for label in runs[0][1]}
    return [float(np.mean(own)) / MS_PER_S for own in work], machines


def _slot_words(found: Contest, seed: int) -> str:
    sequence = found.arena.sequence(seed)
    policies = found.comparison.resolved.for_sequence(sequence, seed)
    words = []
    for name, policy in policies.items():
        slots = (
            slots_of(sequence, cast(Policy, policy), found.arena.config, seed)
            if found.labels[name] in (WHOLE, "idle-theory")
            else []
        )
        if slots:
            part = np.mean([slot.slot_s / max(1e-3, slot.length_s) for slot in slots])
            jobs = len({slot.job for slot in slots})
            words.append(
                f"{found.labels[name]} {len(slots)} slots before stages of {jobs} jobs, {part:.0%} of the stage on average"
            )
    return f"idle slots in the run of seed {seed}: {'; '.join(words) or 'none'}"


def _draw(
    work_s: list[float],
    shares: Mapping[str, list[Estimate]],
    numbers: Mapping[str, Any],
    figure: Any,
) -> None:
    left, right = figure.subplots(1, 2)
    for row, (label, estimates) in enumerate(shares.items()):
        errors = [[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]]
        y = [e.mean for e in estimates]
        left.errorbar(
            work_s,
            y,
            np.nan_to_num(errors),
            color=policy_color(row),
            marker="o",
            markersize=4,
            label=label,
            capsize=2,
        )
    left.set_xscale("log")
    tidy(
        left,
        ("work of the job (s)", "machines while it was there"),
        "machines by length of the job",
    )
    places = np.arange(len(numbers))
    names = list(next(iter(numbers.values()))["slots_s"])[1:]
    for row, name in enumerate(names):
        heights = [found["slots_s"][name] for found in numbers.values()]
        right.bar(places + 0.25 * (row - 1), heights, 0.22, color=policy_color(row), label=name)
    right.set_xticks(places, list(numbers))
    tidy(
        right,
        ("length of the first job", "idle slot before it (s)"),
        "two one-stage jobs on one machine",
    )


def fig5(request: StudyRequest) -> StudyResult:
    """Machines per job by its length, agents against tuned weighted fair; learned idle slots against the theory's.

    Source: Duan & Wu, Figure 5 and section VI.
    """
    share_s = request.budget_s / 3
    arena = mixed_arena(request)
    scenario = pairs()
    agents, notes = train_agents(request, arena, "mixed", (PLAIN, WHOLE), share_s)
    alone = train_decima(
        request, scenario, f"{WHOLE} pairs", share_s, decima=AGENTS[WHOLE], changes=_PAIRS
    )
    found = contest(request, arena, [*agents, *named(*BESIDE)], request.runs(4, 10))
    work_s, shares = shares_by_length(
        found, range(request.first_seed, request.first_seed + request.runs(4, 10))
    )
    slots, numbers = pair_rows(scenario, alone)
    rows = [
        [f"jobs of {length:,.0f} s", label, "", "", with_half_width(estimates[row], 2)]
        for row, length in enumerate(work_s)
        for label, estimates in shares.items()
    ]
    return StudyResult(
        "machines by length of the job, and idle slots beside the theory's",
        "agents give smaller jobs more machines than tuned weighted fair (Figure 5); on one-stage jobs the learned idle slots "
        "are close to the theory's (section VI)",
        (
            "jobs",
            "policy or slot",
            "slot (s)",
            "expected average JCT of the pair (s)",
            "machines per job",
        ),
        [*slots, *rows],
        {
            "pairs": numbers,
            "work_s": work_s,
            "machines": {
                label: [e.to_json() for e in estimates] for label, estimates in shares.items()
            },
            "contest": found.to_json(),
        },
        [
            describe("mixed", arena),
            f"pairs: one machine, a one-stage job of {' or '.join(f'{s:g}' for s in _FIRST_S)} s and, an exponential gap (mean "
            f"{MEAN_GAP_S:g} s) later, one of 10 s; Theorem 2's slot is the best if sat out to its end, 'decided anew' the best "
            "where the next arrival ends it, as in this cluster and in the paper's section IV-B; expectations are of the latter",
            "machines per job: executor time of its tasks / time in the system, bins of about as many kinds of jobs each",
            _slot_words(found, request.first_seed),
            *found.notes(),
            *notes,
            alone.words,
            *budget_notes(request),
        ],
        partial(save, partial(_draw, work_s, shares, numbers), (11.0, 4.4)),
    )
