"""The rule as a policy object: bound to the solo curves of the workload that it schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState
from parcae.errors import PolicyError
from parcae.policies.rule.kernels import Rule, decide, play, play_many
from parcae.policies.rule.layout import EARLIER_COUNTS, NUM_PARAMETERS, RuleParameter
from parcae.policies.solo_curves import SoloCurves
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables

Parameters = npt.NDArray[np.float64]

#: Where tuning starts: cap where doubling the executors no longer pays well, local executors first, spill to twice the cap, any
#: executor that fits, no reserve, and executors ahead of the parents' end.
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
    """The parameters that tuning starts from, float64[NUM_PARAMETERS]."""
    theta = np.zeros(NUM_PARAMETERS)
    for column, value in START.items():
        theta[column] = value
    return theta


def padded(parameters: npt.ArrayLike) -> Parameters:
    """The parameters with zeros, which change nothing, for those that earlier rules do not have.

    Raises:
        PolicyError: of another number.

    Example: 21 numbers of a checkpoint from before executor classes become 33.
    """
    theta = np.asarray(parameters, np.float64)
    if theta.shape != (NUM_PARAMETERS,) and theta.shape not in [
        (count,) for count in EARLIER_COUNTS
    ]:
        raise PolicyError(
            f"a rule has {NUM_PARAMETERS} parameters, or {' or '.join(map(str, EARLIER_COUNTS))}, not {theta.size}"
        )
    return np.concatenate([theta, np.zeros(NUM_PARAMETERS - len(theta))])


@dataclass(frozen=True)
class RulePolicy:
    """The rule with its parameters and the curves of one workload; see RuleParameter for their meaning.

    Raises:
        PolicyError: parameters of another number, or that are not finite.
    """

    name: str
    parameters: tuple[float, ...]
    curves: SoloCurves
    _rule: Rule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        theta = np.array(self.parameters, np.float64)
        if theta.shape != (NUM_PARAMETERS,) or not np.isfinite(theta).all():
            raise PolicyError(
                f"policy {self.name!r}: a rule has {NUM_PARAMETERS} finite parameters, not {len(theta)}"
            )
        object.__setattr__(self, "_rule", Rule(theta, *self.curves))

    def decide(self, observation: Observation) -> Decision:
        """Answer one scheduling event."""
        return Decision(*map(int, decide(observation, self._rule)))

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
        return int(play(state, future, tables, self._rule))

    def play_many(
        self,
        states: ClusterState,
        futures: Future,
        tables: WorkloadTables,
        first: int,
        last: int,
        status: npt.NDArray[np.int64],
    ) -> None:
        """Run simulators first..last-1 of many to their end; fills `status`."""
        thetas = np.tile(self._rule.theta, (len(status), 1))
        play_many(states, futures, tables, thetas, self._rule, first, last, status)
