"""plan[:BASE][:BUDGET][:THREADS]."""

from __future__ import annotations

import pytest

from parcae.base.errors import PolicyError
from parcae.decima.rollouts.policy import split_plan
from parcae.evaluation.policies import resolve_policies
from parcae.policies.additions import named_policy
from parcae.policies.names import PolicyName
from parcae.service.policies import policies_for
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import load_workload


@pytest.mark.parametrize(
    ("text", "base", "ms", "num_threads"),
    [
        ("plan", "corrector", None, 1),
        ("plan:20ms", "corrector", 20.0, 1),
        ("plan:2threads", "corrector", None, 2),
        ("plan:tuned", "tuned", None, 1),
        ("plan:tuned:20ms", "tuned", 20.0, 1),
        ("plan:tuned:1thread", "tuned", None, 1),
        ("plan:tuned:batch:0.5s:4threads", "tuned:batch", 500.0, 4),
        ("plan:weighted-fair:-1", "weighted-fair:-1", None, 1),
        ("plan:x/best.safetensors:1s", "x/best.safetensors", 1000.0, 1),
    ],
)
def test_a_name_has_a_base_a_budget_and_threads(
    text: str, base: str, ms: float | None, num_threads: int
) -> None:
    assert split_plan(PolicyName(text)) == (PolicyName(base), ms, num_threads)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("plan:tuned:0ms", "no time above 0"),
        ("plan:plan", "cannot be 'plan' itself"),
        ("plan:tuned:..ms", "no time above 0"),
        ("plan:tuned:2threads:20ms", "one budget, and after it one number of threads"),
        ("plan:tuned:20ms:30ms", "one budget, and after it one number of threads"),
        ("plan:tuned:0threads", "'0threads' is not between 1 and 64 threads"),
        ("plan:tuned:1000threads", "is not between 1 and 64 threads"),
        ("plan:sprt", "its base: unknown policy 'sprt'"),
        ("plan:tuned:nowhere", "nowhere"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(text: str, says: str) -> None:
    config = SimulationConfig(num_executors=5)
    with pytest.raises(PolicyError, match=says):
        named_policy(text, load_workload("toy"), config)


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("weighted-fair:tuned", "needs its parameters as numbers"),
        ("static:oracle", "needs its parameters as numbers"),
        ("order:0-1", "rollouts have other jobs"),
    ],
)
def test_a_base_that_depends_on_whole_runs_is_refused(base: str, says: str) -> None:
    with pytest.raises(PolicyError, match=f"policy 'plan:{base}': its base .*{says}"):
        named_policy(f"plan:{base}", load_workload("toy"), SimulationConfig(num_executors=5))


def test_in_the_world_of_cores_it_does_not_exist() -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=5)
    workload = load_workload("toy")
    says = "policy 'plan:srpt' tries single decisions in rollouts: choose --world executors"
    with pytest.raises(PolicyError, match=says):
        resolve_policies(workload, ["plan:srpt"], config, "batch", 5)
    with pytest.raises(PolicyError, match=says):
        policies_for("plan:srpt", workload)(4)


def test_a_comparison_says_what_the_base_became() -> None:
    config = SimulationConfig(world=WorldName.EXECUTORS, num_executors=5)
    name = "plan:tuned:20ms:2threads"
    found = resolve_policies(load_workload("tpch"), [name], config, "batch", 5)
    assert found.variants[name].startswith("rollouts on tuned:")
    assert found.variants[name].endswith(", 20 ms a decision, 2 threads")
