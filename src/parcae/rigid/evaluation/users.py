"""The users of a log: how long the jobs of each take under every policy, and who gains."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parcae.evaluation.report import cell, html_table
from parcae.evaluation.statistics import Estimate
from parcae.rigid.evaluation.samples import samples_of
from parcae.rigid.metrics import LEAST

if TYPE_CHECKING:
    from parcae.rigid.evaluation.world import PackingComparison

#: Results name this many users, those with the most jobs.
_MOST = 20
#: Stands for an unknown user, as in the Standard Workload Format.
_UNKNOWN = -1


@dataclass(frozen=True)
class UserResult:
    """The jobs of one user under every policy."""

    user: int
    jobs: int
    means: dict[str, Estimate]
    ratios: dict[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        """{"user":, "jobs":, "means": {policy: ...}, "ratios_to_first": {policy: ...}}"""
        return {
            "user": self.user,
            "jobs": self.jobs,
            "means": {name: mean.to_json() for name, mean in self.means.items()},
            "ratios_to_first": {name: ratio.to_json() for name, ratio in self.ratios.items()},
        }


def by_user(comparison: PackingComparison) -> list[UserResult]:
    """The results of the users with the most jobs; none if the log does not name users."""
    users, counts = np.unique(comparison.users, return_counts=True)
    busiest = np.argsort(-counts, kind="stable")
    named = [row for row in busiest if users[row] != _UNKNOWN][:_MOST]
    return [_result(comparison, int(users[row]), int(counts[row])) for row in named]


def _result(comparison: PackingComparison, user: int, jobs: int) -> UserResult:
    ends = np.cumsum([run.jobs for run in comparison.policies[0].runs])[:-1]
    is_user = comparison.users == user
    # Jobs of others count as jobs that never started: they enter no mean.
    samples = {
        policy.name: samples_of(np.split(np.where(is_user, policy.values, np.nan), ends))
        for policy in comparison.policies
    }
    first = samples[comparison.policies[0].name]
    least = LEAST[comparison.measure_key]
    return UserResult(
        user,
        jobs,
        {name: one.mean().within(least) for name, one in samples.items()},
        {name: one.ratio(first) for name, one in samples.items()},
    )


def users_section(comparison: PackingComparison) -> list[str]:
    """The page's table of users, as HTML; nothing if the log does not name users."""
    found = by_user(comparison)
    if not found:
        return []
    first, *others = (policy.name for policy in comparison.policies)
    head = [
        "user",
        "jobs",
        *(f"{html.escape(name)}<small>{comparison.measure}</small>" for name in (first, *others)),
        *(f"{html.escape(name)}<small>/ {html.escape(first)}</small>" for name in others),
    ]
    num_users = len(np.unique(comparison.users[comparison.users != _UNKNOWN]))
    notes = [
        f"The {len(found)} users with the most jobs, of {num_users:,}. A user gains or loses if "
        f"the 95% interval of the ratio, paired by {_paired_by(comparison)}, does not contain 1; "
        "of twenty users without any difference, one on average seems to have one."
    ]
    rows = [_row(result, others) for result in found]
    return ["<h2>Users: gains and losses</h2>", html_table(head, rows, notes=notes)]


def _paired_by(comparison: PackingComparison) -> str:
    return "piece of the log" if comparison.sampled == "pieces" else "block of jobs"


def _row(result: UserResult, others: Sequence[str]) -> list[str]:
    return [
        str(result.user),
        f"{result.jobs:,}",
        *(cell(mean, "{:,.2f}".format) for mean in result.means.values()),
        *(cell(result.ratios[name]) for name in others),
    ]
