"""A policy of a kind that the kernels do not know is refused, not taken for another one."""

import pytest

from parcae.base.errors import PolicyError
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.rigid.policies.policy import HandMadePolicy


def test_an_unknown_kind_is_refused_by_every_family_of_policies() -> None:
    with pytest.raises(PolicyError, match="no heuristic of kind 99"):
        HeuristicPolicy("x", 99)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="no order of kind 99"):
        OrderPolicy("x", 99, plan_tables())  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="no packing heuristic of kind 99"):
        HandMadePolicy("x", 99)  # type: ignore[arg-type]
