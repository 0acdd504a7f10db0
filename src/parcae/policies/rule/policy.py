"""`OrderRulePolicy`: the rule of the world of cores as a policy object."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.base.errors import PolicyError
from parcae.cluster.state import allocate_virtual
from parcae.policies.compiled import CompiledPlanner
from parcae.policies.rule.kernels import NUM_ORDER_PARAMETERS, OrderParameter, OrderRule


def checked_parameters(values: npt.ArrayLike) -> tuple[float, ...]:
    """Return the rule's parameters as a tuple, after checking their number."""
    theta = np.asarray(values, np.float64)
    if theta.shape != (NUM_ORDER_PARAMETERS,):
        raise PolicyError(
            f"the rule of the world of cores has {NUM_ORDER_PARAMETERS} parameters, "
            f"not {theta.size}"
        )
    return tuple(float(value) for value in theta)


def plain_parameters() -> tuple[float, ...]:
    """Return the parameters of the plain order by least remaining work, without probing."""
    theta = np.zeros(NUM_ORDER_PARAMETERS)
    # The number of probed tasks is floor(2 ^ (PROBE - 1)) = 0.
    theta[OrderParameter.PROBE] = -10.0
    return tuple(float(value) for value in theta)


def ordering_by_path() -> npt.NDArray[np.float64]:
    """Return the parameters with which the order of a job's stages is by critical path alone."""
    theta = np.zeros(NUM_ORDER_PARAMETERS)
    theta[OrderParameter.STAGE_PATH] = 1.0
    return theta


def search_start() -> tuple[float, ...]:
    """Return the parameters from which tuning starts if no tuned rule is given.

    They are the plain order, with probing where estimates err.
    """
    theta = np.array(plain_parameters())
    theta[OrderParameter.PROBE] = -0.5
    theta[OrderParameter.PROBE_ERRING] = 3.5
    return tuple(float(value) for value in theta)


def order_rule(
    theta: npt.ArrayLike, mean_work_ms: float, num_jobs: int, num_stages: int
) -> OrderRule:
    """Return the rule's tables, with an empty virtual run."""
    scale_ms = np.array([max(1.0, mean_work_ms)])
    return OrderRule(
        np.array(checked_parameters(theta)), scale_ms, allocate_virtual(num_jobs, num_stages)
    )


@dataclass
class OrderRulePolicy(CompiledPlanner):
    """The rule with its parameters, for one workload.

    Args:
        name: name in tables and reports.
        parameters: one number for each `OrderParameter`.
        mean_work_ms: mean work of the workload's jobs, in ms of one core.
    """

    name: str
    parameters: tuple[float, ...]
    mean_work_ms: float

    @property
    def tier_unit_ms(self) -> float:
        """The unit of work of which its tiers are logarithms."""
        return max(1.0, self.mean_work_ms)

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> OrderRule:
        """The rule's tables, with an empty virtual run."""
        return order_rule(self.parameters, self.mean_work_ms, num_jobs, num_stages)
