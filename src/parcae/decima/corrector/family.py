"""The corrector for the trainer: joins recorded decisions into a data set of minibatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.decima.corrector.kernels import FEATURE_VERSION, CorrectorRecord, initial_weights
from parcae.decima.corrector.network import CorrectorDecisions, CorrectorModule
from parcae.decima.corrector.policy import CorrectorPolicy, allocate_record, allocate_workspace
from parcae.decima.learning.family import Rollout, without_unused_rows
from parcae.decima.rule.policy import Parameters
from parcae.decima.solo_curves import solo_curves
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights

#: Job rows that a record has room for, per decision. Where a scenario has fewer jobs, all fit.
_JOBS_PER_DECISION = 24
#: Columns of decisions that are joined, and chosen from, as they are.
_OF_DECISIONS = ("shared", "choice", "level", "limits", "can_limit")


@dataclass(frozen=True)
class JobDecisions:
    """N recorded decisions over M job rows in total; see `CorrectorDecisions` for the columns.

    `log_prob` is the log probability under the policy that drew the decisions.
    """

    rows: npt.NDArray[np.float32]
    can_choose: npt.NDArray[np.bool_]
    first_row: npt.NDArray[np.int64]
    num_jobs: npt.NDArray[np.int64]
    shared: npt.NDArray[np.float32]
    choice: npt.NDArray[np.int64]
    level: npt.NDArray[np.int64]
    limits: npt.NDArray[np.float32]
    can_limit: npt.NDArray[np.bool_]
    log_prob: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.choice)

    def shuffled(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """All indices, in random order."""
        return rng.permutation(len(self))

    def decisions(self, index: npt.NDArray[np.int64], device: torch.device) -> CorrectorDecisions:
        """The decisions with these indices as tensors."""
        # `row` are the indices of the chosen decisions' job rows, one decision after another.
        counts = self.num_jobs[index]
        starts = np.cumsum(counts) - counts
        row = np.repeat(self.first_row[index] - starts, counts) + np.arange(int(counts.sum()))

        def tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        return CorrectorDecisions(
            rows=tensor(self.rows[row]),
            owner=tensor(np.repeat(np.arange(len(index)), counts)),
            can_choose=tensor(self.can_choose[row]),
            first_row=tensor(starts),
            num_jobs=tensor(counts),
            **{name: tensor(getattr(self, name)[index]) for name in _OF_DECISIONS},
        )


def _gather(rollouts: list[Rollout], ends: bool) -> JobDecisions:
    """The rollouts' decisions, concatenated; with `ends` the states in which they ended."""
    # Row `count` of a record is the state in which the rollout ended.
    spans = [(r.count, r.count + 1) if ends else (0, r.count) for r in rollouts]
    records = [r.record for r in rollouts]
    pieces = list(zip(records, spans, strict=True))
    rows = [(int(r.first_row[a]), int(r.first_row[b])) for r, (a, b) in pieces]
    shift = np.cumsum([0, *(stop - start for start, stop in rows)])[:-1]
    first_row = [
        r.first_row[a:b] - start + s
        for (r, (a, b)), (start, _), s in zip(pieces, rows, shift, strict=True)
    ]

    def of_jobs(name: str) -> npt.NDArray[Any]:
        spans_of_rows = zip(records, rows, strict=True)
        return np.concatenate([getattr(r, name)[a:b] for r, (a, b) in spans_of_rows])

    def of_decisions(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(r, name)[a:b] for r, (a, b) in pieces])

    columns = {name: of_decisions(name) for name in _OF_DECISIONS}
    return JobDecisions(
        rows=of_jobs("rows"),
        can_choose=of_jobs("can_choose").astype(np.bool_),
        first_row=np.concatenate(first_row),
        num_jobs=np.concatenate([np.diff(r.first_row[a : b + 1]) for r, (a, b) in pieces]),
        log_prob=of_decisions("log_prob"),
        **{**columns, "can_limit": columns["can_limit"].astype(np.bool_)},
    )


class CorrectorFamily:
    """The `Family` of the corrector for a scenario.

    Args:
        scenario: what to train for.
        parameters: parameters of the rule that the network corrects.
        prior: initial logits of the rule's choices of job, hold and limit.
    """

    name = "corrector"
    feature_version = FEATURE_VERSION
    imitates = False

    def __init__(
        self, scenario: Scenario, parameters: Parameters, prior: tuple[float, float, float]
    ) -> None:
        self.scenario = scenario
        self.parameters = np.asarray(parameters, np.float64)
        self.prior = prior
        # How long each job takes alone at every level of executors; the rule needs them.
        self.curves = solo_curves(scenario.workload, scenario.config)

    @property
    def settings(self) -> dict[str, Any]:
        """None: the network has no settings."""
        return {}

    @property
    def fixed_weights(self) -> Weights:
        """The parameters of the rule."""
        return {"rule": self.parameters}

    def initial_weights(self, rng: np.random.Generator) -> Weights:
        """Initial weights: the network then chooses what the rule chooses, with some randomness."""
        return dict(initial_weights(rng, self.prior))

    def network(self, weights: Weights) -> CorrectorModule:
        """The batched network with these weights."""
        return CorrectorModule(weights)

    def fit(self, network: CorrectorModule) -> None:
        """Nothing: the network does not depend on the scenario."""

    def policy(self, weights: Weights) -> CorrectorPolicy:
        """The policy with these weights."""
        return CorrectorPolicy("corrector", weights, tuple(self.parameters), self.curves)

    def allocate(self, num_simulators: int, capacity: int) -> tuple[Any, Any]:
        """Workspaces and records for this many simulators."""
        num_jobs = self.scenario.num_jobs
        num_levels = len(self.curves.levels)
        # The record also holds the state in which a rollout ends.
        rows = capacity * min(num_jobs, _JOBS_PER_DECISION) + 2 * num_jobs
        works = allocate_workspace(num_simulators, num_jobs, num_levels)
        return works, allocate_record(num_simulators, capacity, rows, num_levels)

    def gather(self, rollouts: list[Rollout], ends: bool = False) -> JobDecisions:
        """The rollouts' decisions, concatenated; with `ends` the states in which they ended."""
        return _gather(rollouts, ends)

    def num_jobs(self, rollout: Rollout) -> int:
        """The number of jobs in the system, summed over the decisions."""
        return int(rollout.record.first_row[rollout.count])

    def trimmed(self, rollout: Rollout) -> CorrectorRecord:
        """A copy of the rollout's record without its unused rows."""
        rows = int(rollout.record.num_rows[0])
        record: CorrectorRecord = without_unused_rows(rollout, {"rows": rows, "can_choose": rows})
        return record
