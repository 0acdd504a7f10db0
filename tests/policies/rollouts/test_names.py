"""plan[:BASE[:BUDGET]]."""

from __future__ import annotations

import pytest

from parcae.errors import PolicyError
from parcae.evaluation.policies import resolve_policies
from parcae.policies.rollouts.names import is_rollout, rollout_policy, split_plan
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.catalog import load_workload


@pytest.mark.parametrize(
    ("text", "base", "ms"),
    [
        ("plan", "parcae", None),
        ("plan:20ms", "parcae", 20.0),
        ("plan:tuned", "tuned", None),
        ("plan:tuned:20ms", "tuned", 20.0),
        ("plan:tuned:batch:0.5s", "tuned:batch", 500.0),
        ("plan:weighted-fair:-1", "weighted-fair:-1", None),
        ("plan:x/best.safetensors:1s", "x/best.safetensors", 1000.0),
    ],
)
def test_a_name_has_a_base_and_a_budget(text: str, base: str, ms: float | None) -> None:
    assert is_rollout(text)
    parts = split_plan(text)
    assert (parts.base, parts.budget.ms) == (base, ms)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("plan:tuned:0ms", "no time above 0"),
        ("plan:plan", "cannot be 'plan' itself"),
        ("plan:tuned:..ms", "no time above 0"),
        ("plan:sprt", "its base: unknown policy 'sprt'"),
        ("plan:tuned:nowhere", "nowhere"),
    ],
)
@pytest.mark.parametrize("world", list(WorldName))
def test_a_wrong_name_says_what_is_wrong(text: str, says: str, world: WorldName) -> None:
    config = SimulationConfig(world=world, num_executors=5)
    with pytest.raises(PolicyError, match=says):
        rollout_policy(text, load_workload("toy"), config)


@pytest.mark.parametrize("base", ["random", "sjf-cp"])
def test_in_the_world_of_cores_the_base_plans(base: str) -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=5)
    with pytest.raises(PolicyError, match="its base must plan orders"):
        rollout_policy(f"plan:{base}", load_workload("toy"), config)


def test_a_comparison_says_what_the_base_became() -> None:
    config = SimulationConfig(world=WorldName.EXECUTORS, num_executors=5)
    found = resolve_policies(load_workload("tpch"), ["plan:tuned:20ms"], config, "batch", 5)
    assert found.variants["plan:tuned:20ms"].startswith("rollouts on tuned:")
    assert found.variants["plan:tuned:20ms"].endswith(", 20 ms a decision")
