import math

import pytest

from parcae.base.errors import ConfigError, PolicyError
from parcae.decima.catalog import ALPHAS, HEURISTICS, make_policy
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.policies import check_seeds, describe, resolve_policies, tune
from parcae.policies.parameter_search import Sweep
from parcae.simulation.config import SimulationConfig
from parcae.workloads.workload import TUNING_SEED_START
from tests.conftest import made_up

_WORKLOAD = made_up(12, 5.0)
_CONFIG = SimulationConfig(num_executors=6)


_SWEEPS = {entry.name: entry.sweep for entry in HEURISTICS if entry.sweep is not None}


def test_alpha_is_swept_from_minus_two_to_two_by_tenths_and_beyond() -> None:
    assert len(ALPHAS) == 41
    assert (ALPHAS[0], ALPHAS[10], ALPHAS[20], ALPHAS[-1]) == (-2.0, -1.0, 0.0, 2.0)
    tried = [alpha for (alpha,) in _SWEEPS["weighted-fair"].grid(6)]
    assert (tried[0], tried[-1]) == (-10.0, 5.0)
    assert tried == sorted({*tried, *ALPHAS})


def test_caps_are_swept_over_every_number_of_executors_or_evenly_over_many() -> None:
    assert list(_SWEEPS["static"].grid(4)) == [(1.0,), (2.0,), (3.0,), (4.0,)]
    many = [cap for (cap,) in _SWEEPS["srpt-cap"].grid(30_000)]
    assert (many[0], many[-1]) == (1.0, 30_000.0)
    assert 20 < len(many) <= 40
    assert list(many) == sorted(set(many))


def test_of_equal_values_the_one_nearest_to_zero_is_chosen() -> None:
    assert Sweep(("alpha",), {(-1.0,): 5_000.0, (0.5,): 5_000.0, (2.0,): 6_000.0}).best == (0.5,)


def test_the_result_of_a_sweep_is_described_in_words() -> None:
    text = describe(Sweep(("cap",), {(1.0,): 9_000.0, (2.0,): 4_250.0}))
    assert text == "cap 2 (average JCT 4.2 s) of 2 values from 1 to 2, on 20 tuning seeds"
    costs = {(-1.0, 0.5, 0.2, 0.0): 9_000.0, (-0.5, 0.5, 0.2, math.inf): 4_250.0}
    text = describe(Sweep(_SWEEPS["graphene"].names, costs, 200))
    found = (
        "alpha -0.5, LongScore 0.5, FragScore 0.2, longest wait for parents inf (average JCT 4.2 s)"
    )
    assert text == f"{found} of 2 combinations, on 20 tuning seeds (200 more on a quarter of them)"


def test_a_cap_is_tuned_to_the_best_of_all_caps() -> None:
    sweep = tune(_WORKLOAD, "static", _CONFIG, "batch", 5)
    assert list(sweep.costs) == [(1.0,), (2.0,), (3.0,), (4.0,), (5.0,), (6.0,)]
    assert sweep.costs[sweep.best] == min(sweep.costs.values())
    policy = resolve_policies(_WORKLOAD, ["static:tuned"], _CONFIG, "batch", 5).policies[
        "static:tuned"
    ]
    assert policy.params == make_policy(f"static:{sweep.best[0]:g}", 6).params
    assert policy.name == "static:tuned"


def test_policies_without_a_parameter_to_tune_are_refused() -> None:
    with pytest.raises(PolicyError):
        resolve_policies(_WORKLOAD, ["fair:tuned"], _CONFIG, "batch", 5)


def test_a_mistyped_policy_is_refused_before_anything_is_tuned() -> None:
    with pytest.raises(PolicyError, match="fifo"):
        resolve_policies(_WORKLOAD, ["weighted-fair:tuned", "fifoo"], _CONFIG, "batch", 10**12)


def test_comparisons_never_run_on_tuning_seeds() -> None:
    check_seeds(TUNING_SEED_START - 2, 2)
    for start, count in ((TUNING_SEED_START - 1, 2), (TUNING_SEED_START, 1), (-1, 3)):
        with pytest.raises(ConfigError, match="kept for tuning"):
            compare(
                ClusterWorld(_WORKLOAD, _CONFIG, "batch", 2),
                ["fair"],
                num_seeds=count,
                seed_start=start,
            )
