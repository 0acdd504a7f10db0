"""The DeepRM paper's figure 7: the jobs that a policy withholds.

Source: Mao et al., "Resource management with deep reinforcement learning" (HotNets'16),
section 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.evaluation.pictures import tidy
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import (
    mean_estimate,
    ratio_estimate,
    with_half_width,
    with_interval,
)
from parcae.packing.layout import Cost, View, select
from parcae.packing.world import Outcome
from parcae.policies.deeprm.policy import DeepRMPolicy
from parcae.studies.reproduce.packing import (
    Played,
    Stage,
    learned_deeprm,
    require_fitting_deeprm,
    setting_notes,
    stage_of,
    tuned_tetris,
)
from parcae.studies.reproduce.pictures import cdf_panel, save
from parcae.studies.reproduce.study import PackingRequest, StudyResult

FloatArray = npt.NDArray[np.float64]
#: Rate of the paper's load of 110%.
_RATE_110 = 0.6
#: Durations of the small and the large jobs.
_SMALL = 3
_LARGE = 10


@dataclass(frozen=True, eq=False)
class Withholding:
    """How often a policy let time pass although a job in its job slots could have started.

    Args:
        num_steps: number of time steps.
        num_waiting: steps with a job in the job slots when time passed.
        num_withheld: steps with a job that could have started when time passed.
        durations: durations of the jobs that could have started, once for each step.
    """

    num_steps: int
    num_waiting: int
    num_withheld: int
    durations: npt.NDArray[np.int64]


def withholding_of(stage: Stage, policy: DeepRMPolicy) -> tuple[Withholding, Played]:
    """Step every sequence to its end, and record the waiting jobs whenever time passes."""
    batch = stage.batch(policy.wants_profile)
    batch.begin()
    num_waiting = 0
    # The jobs that could have started, for every step of every sequence in which time passed.
    durations: list[npt.NDArray[np.int64]] = []
    while not batch.is_over.all():
        views = batch.show()
        # Decide only for the sequences that have not ended; -1 stands for no decision.
        open_rows = np.flatnonzero(~batch.is_over).tolist()
        slots = np.full(len(batch), -1)
        for row in open_rows:
            slots[row] = policy.decide(select(views, row))
        is_placed = batch.step(slots)
        # A step that placed no job let time pass.
        for row in (row for row in open_rows if not is_placed[row]):
            jobs = _waiting_jobs(views, row)
            num_waiting += len(jobs) > 0
            durations.append(np.array(jobs["estimate"][jobs["can_start"] == 1]))
    num_withheld = sum(len(held) > 0 for held in durations)
    withholding = Withholding(len(durations), num_waiting, num_withheld, np.concatenate(durations))
    return withholding, Played(batch)


def _waiting_jobs(views: View, row: int) -> Any:
    """The jobs in the job slots of a sequence; rows beyond `num_jobs` are unused."""
    return views.jobs[row, : views.head["num_jobs"][row, 0]]


def slowdowns_by_size(outcomes: Sequence[Outcome]) -> tuple[FloatArray, FloatArray]:
    """Mean slowdown of the small and of the large jobs of every sequence.

    Returns:
        Two arrays float64[num_sequences]; NaN if a sequence has no such job.
    """

    def mean(outcome: Outcome, is_chosen: npt.NDArray[np.bool_]) -> float:
        chosen = is_chosen & (outcome.start >= 0)
        # The slowdown of each job; jobs that never started (start -1) do not count.
        taken = (outcome.finish - outcome.jobs.arrival) / outcome.jobs.duration
        return float(taken[chosen].mean()) if chosen.any() else np.nan

    small = [mean(outcome, outcome.jobs.duration <= _SMALL) for outcome in outcomes]
    return np.array(small), np.array(
        [mean(outcome, outcome.jobs.duration >= _LARGE) for outcome in outcomes]
    )


def fig7(request: PackingRequest) -> StudyResult:
    """Which jobs DeepRM withholds at a load of 110%, and the effect on small and large jobs.

    Source: DeepRM, Figure 7 and section 4.3.
    """
    require_fitting_deeprm(request, (_RATE_110,))
    stage = stage_of(request, _RATE_110)
    learned = learned_deeprm(request, _RATE_110, Cost.SLOWDOWN, request.budget_s)
    tetris = tuned_tetris(stage.source, Cost.SLOWDOWN, request.processes)
    sizes = {"tetris*": slowdowns_by_size(stage.play(tetris).batch.outcomes())}
    withheld = dict[str, Withholding]()
    for label, policy in (("deeprm", learned.policy), ("deeprm, greedy", learned.greedy)):
        request.say(f"measuring which jobs {label} withholds")
        withheld[label], played = withholding_of(stage, policy)
        sizes[label] = slowdowns_by_size(played.batch.outcomes())
    rows = []
    numbers = dict[str, Any]()
    for label, entry in sizes.items():
        cells, numbers[label] = _compared_by_size(entry, sizes["tetris*"])
        if label in withheld:
            numbers[label] |= _withheld_json(withheld[label])
        rows.append([label, *_withheld_cells(withheld.get(label)), *cells])
    return StudyResult(
        "which jobs are withheld at a load of 110%, and which jobs gain",
        "DeepRM was not work-conserving in 23.4% of the time steps; it withholds almost only large "
        "jobs; small jobs are slowed down much less than with Tetris*, large ones more "
        "(Figure 7, section 4.3)",
        (
            "policy",
            "steps with a job withheld",
            "of steps with jobs waiting",
            "large among the withheld",
            "slowdown of small jobs",
            "to tetris*",
            "slowdown of large jobs",
            "to tetris*",
        ),
        rows,
        numbers,
        [
            "withheld: time passed although a job in the job slots could have started; a job "
            "counts once for each step in which it is withheld; jobs with a reserved later start "
            "are no longer in the job slots",
            f"small jobs take up to {_SMALL} steps, large ones {_LARGE} or more",
            f"Tetris* is {tetris.name}; it never withholds",
            *setting_notes(stage, (_RATE_110,)),
            learned.words,
        ],
        partial(save, partial(_draw_withheld, withheld["deeprm"], sizes), (11.0, 4.2)),
    )


def _compared_by_size(
    entry: tuple[FloatArray, FloatArray], base: tuple[FloatArray, FloatArray]
) -> tuple[list[str], dict[str, Any]]:
    """Cells and numbers of a policy's slowdowns of small and large jobs, and their ratios."""
    cells = []
    card = dict[str, Any]()
    for size, values, of_base in zip(("small", "large"), entry, base, strict=True):
        # Compare only sequences that have jobs of this size under both policies.
        known = np.isfinite(values) & np.isfinite(of_base)
        estimate = mean_estimate(values[known])
        ratio = ratio_estimate(values[known], of_base[known])
        cells += [with_half_width(estimate, 2), with_interval(ratio)]
        card |= {f"{size}_slowdown": estimate.to_json(), f"{size}_to_tetris": ratio.to_json()}
    return cells, card


def _withheld_cells(entry: Withholding | None) -> list[str]:
    """The cells on withheld jobs; None for a policy that never withholds."""
    if entry is None:
        return ["0.0%", "0.0%", ""]
    shares = ("withheld_share", "withheld_share_of_waiting", "large_share_of_withheld")
    card = _withheld_json(entry)
    return [f"{card[share]:.1%}" for share in shares]


def _withheld_json(entry: Withholding) -> dict[str, Any]:
    # How often jobs of each duration were withheld.
    lengths, counts = np.unique(entry.durations, return_counts=True)
    return {
        "steps": entry.num_steps,
        "withheld_share": entry.num_withheld / max(1, entry.num_steps),
        "withheld_share_of_waiting": entry.num_withheld / max(1, entry.num_waiting),
        "large_share_of_withheld": float((entry.durations >= _LARGE).mean())
        if len(entry.durations)
        else 0.0,
        "withheld_by_duration": {
            str(length): int(count) for length, count in zip(lengths, counts, strict=True)
        },
    }


def _draw_withheld(
    entry: Withholding, sizes: Mapping[str, tuple[FloatArray, FloatArray]], figure: Any
) -> None:
    left, right = figure.subplots(1, 2)
    left.bar(*np.unique(entry.durations, return_counts=True), color=policy_color(0), width=0.8)
    tidy(left, ("duration (steps)", "times withheld"), has_legend=False)
    samples = dict[str, FloatArray]()
    for label, (small, large) in sizes.items():
        samples |= {
            f"{label}: small": small[np.isfinite(small)],
            f"{label}: large": large[np.isfinite(large)],
        }
    cdf_panel(right, samples, ("mean slowdown of a sequence's jobs", "share of sequences"))
