"""The names of policies: NAME[:ARGUMENT][+ADDITION[:VALUE]]..., parsed once.

NAME is a row of the registry (`parcae.policies.registry`), the path of a checkpoint, or
`module:attribute` of a policy of one's own. Additions may come in any order:

    srpt+account    fair+pools:fairscheduler.xml+priorities:priorities.csv    set+unguarded
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from parcae.base.errors import PolicyError
from parcae.policies.checkpoint import SUFFIX
from parcae.workloads.pools import sparks_file

#: What begins an addition. In a path, as in runs+guard2/best.safetensors, it is part of a name: the
#: word goes on, or a slash or the suffix of a checkpoint follows before the next colon.
_MARK = re.compile(
    r"\+(account|pools|priorities|unguarded)(?![A-Za-z_./-]|[^:]*(?:/|\.safetensors$))"
)
_HELP = {
    "account": "write nothing or a CSV file of weights after the account, e.g. "
    "srpt+account:weights.csv",
    "pools": "write an allocation file after the pools, e.g. srpt+pools:fairscheduler.xml",
    "priorities": "write a CSV file after the priorities, e.g. srpt+priorities:priorities.csv",
    "unguarded": "write nothing after +unguarded, e.g. set+unguarded",
}
_NEEDS_VALUE = {"pools", "priorities"}
#: `account` is `srpt+account`.
_ACCOUNT = "account"
_ORDERS_ACCOUNT = "srpt"
#: What follows is an expression (`parcae.policies.formula.language`).
FORMULA = "formula"
#: Suffixes of allocation files.
POOL_FILES = (".json", ".xml")
#: In `fair:pools`: the pools that jobs name, without a file.
JOBS_POOLS = "pools"
#: The same before Spark 3.4, where jobs without a pool run in order of submission.
OLD_JOBS_POOLS = "pools-3.3"
#: What a policy's name may be followed by: (usage, summary, world).
ADDITIONS = (
    (
        "POLICY+account[:WEIGHTS.csv]",
        "the policy, but what the job's user has received of the cores beyond an equal (or "
        "weighted) split counts as work left; `account` is srpt+account",
        "cores",
    ),
    (
        "POLICY+pools:FILE.xml|json",
        "the policy inside the pools of an allocation file; between pools Spark's FAIR decides by "
        "their weights and minimum shares",
        "cores",
    ),
    (
        "POLICY+priorities:FILE.csv",
        "the policy among jobs of one priority; jobs of a higher priority come first",
        "cores",
    ),
    (
        "withhold|set|FILE+unguarded",
        "on a log, the policy decides also where `xfactor` or `sjf-backfill` proved better",
        "rigid",
    ),
)


@dataclass(frozen=True)
class PolicyName:
    """A parsed name.

    Args:
        name: the policy without additions, such as "weighted-fair:-1".
        pools: path of the allocation file; "": no pools.
        priorities: path of the file of priorities; "": no priorities.
        is_unguarded: whether a policy of rigid jobs may withhold jobs whatever the harm.
        account: file of the users' weights, "" for equal ones; None: no accounts.
    """

    name: str
    pools: str = ""
    priorities: str = ""
    is_unguarded: bool = False
    account: str | None = None

    @property
    def word(self) -> str:
        """The name before its argument, such as "weighted-fair"."""
        return self.name.partition(":")[0]

    @property
    def argument(self) -> str:
        """What follows the first colon, such as "-1"."""
        return self.name.partition(":")[2]

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is the path of a checkpoint."""
        return self.name.endswith(SUFFIX)

    @property
    def has_tenants(self) -> bool:
        """Whether pools or priorities are kept."""
        return bool(self.pools or self.priorities)

    @property
    def own_pools(self) -> str:
        """The pools of `fair:FILE` and `fair:pools`: what follows the colon; "" for other names."""
        is_named = self.argument in (JOBS_POOLS, OLD_JOBS_POOLS)
        is_pools = is_named or self.argument.endswith(POOL_FILES)
        return self.argument if self.word == "fair" and is_pools else ""

    @property
    def pools_file(self) -> str:
        """The allocation file of a policy; "" or `OLD_JOBS_POOLS`: it has none, as Spark may."""
        return self.pools or ("" if self.own_pools == JOBS_POOLS else self.own_pools)

    @property
    def files(self) -> tuple[str, ...]:
        """What may be files in the name: `plan:a.safetensors:20ms` has "a.safetensors"."""
        if self.word == FORMULA:
            return self.pools_file, self.priorities, self.account or ""
        head, suffix, _ = self.name.rpartition(SUFFIX)
        path = head + suffix
        module = self.word.replace(".", "/") + ".py"
        parts = self.pools_file, self.priorities, self.account or "", self.name, path, module
        return (*parts, path.partition(":")[2], self.argument)

    def describe(self) -> str:
        """The additions in words, such as ", pools p.xml, accounts of users"; or no text."""
        words = (
            f", pools {self.pools}" if self.pools else "",
            f", priorities {self.priorities}" if self.priorities else "",
            "" if self.account is None else ", accounts of users",
            f" weighted by {self.account}" if self.account else "",
        )
        return "".join(words)


def parse_name(text: str) -> PolicyName:
    """Parse the name of a policy.

    Example: `parse_name("srpt+pools:p.xml")` is `PolicyName("srpt", pools="p.xml")`.
    """
    if re.search(r"\+guard:[0-9.]+($|\+)", text):
        raise PolicyError(f"policy {text!r}: accounts of users replace the guard; write +account")
    name, *parts = _MARK.split(text)
    values: dict[str, str] = {}
    # The parts alternate: a mark, and the text up to the next one.
    for mark, value in zip(parts[::2], parts[1::2], strict=True):
        if mark in values:
            raise PolicyError(f"policy {text!r} has more than one {mark}; write only one")
        has_value = value.startswith(":") and len(value) > 1
        may_be_bare = mark not in _NEEDS_VALUE and not value
        if not name or not (may_be_bare or (has_value and mark != "unguarded")):
            raise PolicyError(f"policy {text!r}: {_HELP[mark]}")
        values[mark] = value[1:]
    if name.partition(":")[0] == _ACCOUNT:
        if _ACCOUNT in values:
            raise PolicyError(f"policy {text!r}: write account or srpt+account")
        values[_ACCOUNT] = name.partition(":")[2]
        name = _ORDERS_ACCOUNT
    pools = values.get("pools", "")
    if pools and not pools.endswith(POOL_FILES):
        raise PolicyError(
            f"policy {text!r}: the pools' file is an XML or JSON file; {_HELP['pools']}"
        )
    parsed = PolicyName(
        name,
        pools,
        values.get("priorities", ""),
        "unguarded" in values,
        values.get(_ACCOUNT),
    )
    if parsed.word.startswith("user-fair") and (parsed.has_tenants or parsed.account is not None):
        raise PolicyError(f"policy {text!r} has a pool a user: it takes no other order of users")
    if parsed.own_pools and parsed.has_tenants:
        raise PolicyError(
            f"policy {text!r} orders by its own pools; write fair+pools:FILE for pools in which "
            "jobs share equally or by priority"
        )
    return parsed


def parse_live_name(text: str) -> PolicyName:
    """Parse a name for a live cluster, where Spark keeps pools and priorities."""
    parsed = parse_name(text)
    if parsed.has_tenants:
        raise PolicyError(
            f"policy {text!r}: in Spark the plugin keeps pools and priorities itself "
            f"(docs/tenants.md); name the policy without them: {parsed.name}"
        )
    return parsed


def mentioned_files(names: Iterable[str]) -> list[Path]:
    """The files that names of policies mention.

    Example: `plan:net.safetensors:20ms` mentions `net.safetensors`, `fair+pools:p.xml` `p.xml`.
    """
    parts = {part for name in names for part in parse_name(name).files if part}
    paths = {Path(part) for part in parts if Path(part).is_file()}
    # A JSON file of pools may name Spark's file.
    paths |= {other for path in paths if (other := sparks_file(path)) and other.is_file()}
    return sorted(paths)
