"""`RulePolicy`: the rule as a policy object, bound to the solo curves of a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parcae.base.errors import PolicyError
from parcae.decima.rule.kernels import (
    EARLIER_COUNTS,
    NUM_PARAMETERS,
    Rule,
    RuleParameter,
)
from parcae.decima.solo_curves import SoloCurves
from parcae.policies.compiled import CompiledDecider

Parameters = npt.NDArray[np.float64]

#: Where tuning starts (other parameters are 0): caps where doubling the executors no longer pays
#: off well, a job's executors prefer to stay with it, leftover executors go to jobs below twice
#: their cap, any executor class that fits, no reserve, and executors before the parents' end.
START: Mapping[RuleParameter, float] = {
    RuleParameter.PRICE: -1.5,
    RuleParameter.PRICE_JOBS: 1.0,
    RuleParameter.SPILL: 0.7,
    RuleParameter.LOCAL_SCORE: 2.0,
    RuleParameter.WORTH: -2.0,
    RuleParameter.STAGE_RUNNABLE: 3.0,
    RuleParameter.BORROW: -1.0,
    RuleParameter.RESERVE: -1.0,
    RuleParameter.AHEAD: -1.0,
}


def start_parameters() -> Parameters:
    """Return the parameters that tuning starts from, float64[NUM_PARAMETERS]."""
    theta = np.zeros(NUM_PARAMETERS)
    for column, value in START.items():
        theta[column] = value
    return theta


def padded(parameters: npt.ArrayLike) -> Parameters:
    """Return the parameters of any version of the rule as float64[NUM_PARAMETERS].

    Parameters that the version does not have become 0, which switches their terms off.

    Example: 21 numbers of a checkpoint from before executor classes become 33.
    """
    theta = np.asarray(parameters, np.float64)
    if theta.shape != (NUM_PARAMETERS,) and theta.shape not in [
        (count,) for count in EARLIER_COUNTS
    ]:
        raise PolicyError(
            f"a rule has {NUM_PARAMETERS} parameters "
            f"(earlier versions: {' or '.join(map(str, EARLIER_COUNTS))}), not {theta.size}"
        )
    return np.concatenate([theta, np.zeros(NUM_PARAMETERS - len(theta))])


@dataclass(frozen=True)
class RulePolicy(CompiledDecider):
    """The rule with its parameters and the solo curves of one workload.

    Args:
        name: name in tables and reports.
        parameters: one number for each `RuleParameter`.
        curves: the workload's solo curves.

    Raises:
        PolicyError: wrong number of parameters, or parameters that are not finite.
    """

    name: str
    parameters: tuple[float, ...]
    curves: SoloCurves
    _rule: Rule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        theta = np.array(self.parameters, np.float64)
        if theta.shape != (NUM_PARAMETERS,) or not np.isfinite(theta).all():
            raise PolicyError(
                f"policy {self.name!r}: a rule needs {NUM_PARAMETERS} finite parameters, "
                f"but got {len(theta)}, or some are not finite"
            )
        object.__setattr__(self, "_rule", Rule(theta, *self.curves))

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Rule:
        """The rule's tables."""
        return self._rule
