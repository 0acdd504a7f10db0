"""Stalled runs: idle executors are offered again, and a policy that still idles is an error."""

import pytest

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Decision, Observation
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.workload import RandomStreams, draw_sequence
from tests.conftest import arriving, batch, job, made_up
from tests.oracle.decima_world import Oracle

_FREE = SimulationConfig(num_executors=2, moving_delay_ms=0, warmup_delay_ms=0)


class _Every:
    """Idles at all but every n-th question."""

    name = "every"

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0

    def decide(self, observation: Observation) -> Decision:
        self.asked += 1
        stages = observation.schedulable_stages()
        return Decision(stages[0], 1) if stages and self.asked % self.n == 0 else Decision()


def test_a_policy_that_idles_is_asked_again_before_the_next_arrival_but_not_forever() -> None:
    sequence = arriving((job("a", (1, 1_000, ())), 0), (job("b", (1, 1_000, ())), 50_000))
    trace = simulate(sequence, _Every(2), _FREE, 0)
    assert trace.completion_ms.tolist() == [1_000, 51_000]  # decides twice at 0 and twice at 50 s
    with pytest.raises(PolicyError, match="idle forever"):
        simulate(batch(job("a", (1, 1_000, ()))), _Every(10**9), _FREE, 0)


@pytest.mark.parametrize("n", [2, 3])
def test_stalls_are_those_of_the_oracle(n: int) -> None:
    workload = made_up(8, 3.0)
    compared = 0
    for seed in range(10):
        sequence = draw_sequence(workload, "load:0.4", 6, 3, RandomStreams(seed))
        policy = _Every(n)
        asked = [0]

        def decide(oracle: Oracle, asked: list[int] = asked) -> tuple[object, int]:
            asked[0] += 1
            stages = oracle.schedulable()
            return (stages[0], 1) if stages and asked[0] % n == 0 else (None, 0)

        config = SimulationConfig(num_executors=3)
        oracle = Oracle(sequence, 3, seed=seed)
        try:
            trace = simulate(sequence, policy, config, seed)
        except PolicyError:
            continue
        oracle.run(decide)  # type: ignore[arg-type]
        assert trace.completion_ms.tolist() == [j.completion_ms for j in oracle.jobs]
        compared += 1
    assert compared > 3
