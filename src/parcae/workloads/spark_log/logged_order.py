"""Which order the scheduler of a logged application had, by its settings, its version and the pools
of its jobs.

Source: Spark's SchedulableBuilder; SPARK-42157 (Spark 3.4) for FAIR without an allocation file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from parcae.workloads.pools import DEFAULT_POOL
from parcae.workloads.tables import listed

#: Entries of a workload's provenance: the policy that is the logged order, where all logs had one,
#: and the orders in words.
LOGGED_POLICY, LOGGED_ORDER = "logged_policy", "logged_order"
_MODE = "spark.scheduler.mode"
_FILE = "spark.scheduler.allocation.file"


class LoggedOrder(NamedTuple):
    """An order as a policy and in words."""

    policy: str
    words: str


def logged_order(
    settings: Mapping[str, str], version: str, pools: Iterable[str | None]
) -> LoggedOrder:
    """The order of an application, in which jobs had these pools."""
    if settings.get(_MODE, "FIFO").strip().upper() != "FAIR":
        return LoggedOrder("fifo", "Spark's FIFO")
    used = {pool or DEFAULT_POOL for pool in pools}
    named = sorted(used - {DEFAULT_POOL})
    if path := settings.get(_FILE, "").strip():
        among = f"; its jobs named {listed(named)}" if named else "; its jobs named no pool"
        return LoggedOrder(f"fair:{path}", f"Spark's FAIR with the pools of {path}{among}")
    pooled = f"Spark's FAIR with a pool for each name that jobs gave ({listed(named)})"
    if DEFAULT_POOL not in used:
        return LoggedOrder("fair:pools", pooled)
    if _is_older(version):
        default = "in order of submission, as before Spark 3.4"
        if not named:
            return LoggedOrder("fifo", f"Spark's FAIR without pools: {default}")
        return LoggedOrder("fair:pools-3.3", f"{pooled}, jobs without a pool {default}")
    default = "task sets share equally, as from Spark 3.4 on"
    words = f"{pooled}, without a pool " if named else "Spark's FAIR without pools: "
    return LoggedOrder("fair:pools", words + default)


def _is_older(version: str) -> bool:
    """Whether a version is older than 3.4; one that is not known is not."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < (3, 4)


def provenance_of(orders: Iterable[LoggedOrder]) -> dict[str, str]:
    """The entries of a workload's provenance."""
    different = list(dict.fromkeys(orders))
    words = {LOGGED_ORDER: "; ".join(dict.fromkeys(order.words for order in different))}
    policies = {order.policy for order in different}
    return words | ({LOGGED_POLICY: policies.pop()} if len(policies) == 1 else {})


def is_logged_policy(name: str, provenance: Mapping[str, str]) -> bool:
    """Whether a policy is the logged order; an allocation file may lie elsewhere here."""
    logged = provenance.get(LOGGED_POLICY, "")
    return bool(logged) and (
        name == logged
        or (name.startswith("fair:") and PurePath(name[5:]).name == PurePath(logged[5:]).name)
    )
