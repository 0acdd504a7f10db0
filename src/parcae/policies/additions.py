"""What a name adds to a policy of the world of cores: a guard, pools and priorities.

POLICY+pools:FILE+priorities:FILE+guard:FACTOR; every part may be left out, in any order.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from parcae.errors import PolicyError

#: What begins an addition. In a path, as in runs+guard2/best.safetensors, it is part of a name: the
#: word goes on, or a slash or the suffix of a checkpoint follows before the next colon.
_MARK = re.compile(r"\+(guard|pools|priorities)(?![A-Za-z_./-]|[^:]*(?:/|\.safetensors$))")
_HELP = {
    "guard": "write a factor above 1 after the guard, e.g. srpt+guard:1.1",
    "pools": "write an allocation file after the pools, e.g. srpt+pools:fairscheduler.xml",
    "priorities": "write a CSV file after the priorities, e.g. srpt+priorities:priorities.csv",
}
#: Suffixes of allocation files.
POOL_FILES = (".json", ".xml")


@dataclass(frozen=True)
class PolicyText:
    """A policy's name, and what is added to the policy.

    Args:
        name: the policy.
        guard: factor of the guard; None: no guard.
        pools: path of the allocation file; "": no pools.
        priorities: path of the file of priorities; "": no priorities.
    """

    name: str
    guard: float | None = None
    pools: str = ""
    priorities: str = ""

    @property
    def has_tenants(self) -> bool:
        """Whether pools or priorities are kept."""
        return bool(self.pools or self.priorities)

    def describe(self) -> str:
        """The additions in words, such as ", pools p.xml, guard 1.1"; or no text."""
        words = (
            f", pools {self.pools}" if self.pools else "",
            f", priorities {self.priorities}" if self.priorities else "",
            "" if self.guard is None else f", guard {self.guard:g}",
        )
        return "".join(words)


def split_policy(text: str) -> PolicyText:
    """Split a text into the policy and its additions.

    Raises:
        PolicyError: an addition is not complete, or is there twice; or there is no policy.

    Example: `split_policy("srpt+guard:1.1")` is `PolicyText("srpt", guard=1.1)`.
    """
    name, *parts = _MARK.split(text)
    values: dict[str, str] = {}
    # The parts alternate: a mark, and the text up to the next one.
    for mark, value in zip(parts[::2], parts[1::2], strict=True):
        if mark in values:
            raise PolicyError(f"policy {text!r} has more than one {mark}; write only one")
        if not value.startswith(":") or not value[1:] or not name:
            raise PolicyError(f"policy {text!r}: {_HELP[mark]}")
        values[mark] = value[1:]
    pools = values.get("pools", "")
    if pools and not pools.endswith(POOL_FILES):
        raise PolicyError(
            f"policy {text!r}: the pools' file is an XML or JSON file; {_HELP['pools']}"
        )
    if own_pools(name) and (pools or "priorities" in values):
        raise PolicyError(
            f"policy {text!r} orders by its own pools; write fair+pools:FILE for pools in which "
            "jobs share equally or by priority"
        )
    guard = _factor(text, values["guard"]) if "guard" in values else None
    return PolicyText(name, guard, pools, values.get("priorities", ""))


def own_pools(name: str) -> str:
    """The allocation file of a policy `fair:FILE`; "" for any other policy."""
    is_fair = name.startswith("fair:") and name.endswith(POOL_FILES)
    return name.removeprefix("fair:") if is_fair else ""


def split_guard(text: str) -> tuple[str, float | None]:
    """Split the text of a policy for a live cluster, where Spark keeps pools and priorities.

    Returns:
        The policy, and the factor of its guard (None without a guard).

    Raises:
        PolicyError: the text has pools or priorities, or as in `split_policy`.
    """
    parts = split_policy(text)
    if parts.has_tenants:
        raise PolicyError(
            f"policy {text!r}: in Spark the plugin keeps pools and priorities itself "
            f"(docs/tenants.md); name the policy without them: {parts.name}"
        )
    return parts.name, parts.guard


def _factor(text: str, value: str) -> float:
    """The factor of a guard."""
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor) or factor <= 1.0:
        raise PolicyError(f"policy {text!r}: {_HELP['guard']}")
    return factor
