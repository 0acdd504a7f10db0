"""The actor decides, drawn or greedy, and never holds for ever."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.policies.checkpoint import Checkpoint
from parcae.rigid.a2c.layout import Architecture, draw_weights
from parcae.rigid.a2c.policy import A2cPolicy, draw_actions, prefixed, settings_for
from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import PackingBatch

_WORLD = PackingConfig(num_slots=3, backlog_size=8, horizon=8)
_CAPACITY = [4, 4]


def _jobs() -> RigidJobs:
    return RigidJobs(
        "few",
        [0, 0, 1, 2, 2, 5],
        [2, 3, 1, 4, 1, 2],
        [[2, 1], [4, 1], [1, 4], [3, 3], [1, 1], [2, 2]],
        _CAPACITY,
    )


def _policy(is_greedy: bool = False, is_masked: bool = False, void: float = 0.0) -> A2cPolicy:
    """First weights of all the same size, and a logit for letting time pass."""
    settings = settings_for(_WORLD, _CAPACITY, Architecture.CONV_16, is_masked=is_masked)
    weights = draw_weights(settings, 4, np.random.default_rng(2), last_scale=1.0)
    weights["dense.bias"][3] = void
    return A2cPolicy("a2c", prefixed(weights, "actor"), settings, is_greedy)


def _played(policy: A2cPolicy, count: int = 8, num_threads: int = 1) -> PackingBatch:
    batch = PackingBatch(
        [_jobs()] * count, _WORLD.model_copy(update={"max_decisions": 5000}), seed=4
    )
    batch.run(policy.play_many, num_threads)
    return batch


@pytest.mark.parametrize("is_greedy", [False, True])
def test_a_policy_that_would_rather_let_time_pass_for_ever_starts_every_job(
    is_greedy: bool,
) -> None:
    batch = _played(_policy(is_greedy, void=1000.0))
    assert all((outcome.start >= 0).all() for outcome in batch.outcomes())
    assert max(outcome.num_decisions for outcome in batch.outcomes()) < 200


def test_runs_are_the_same_whatever_the_number_of_threads() -> None:
    one, two = (_played(_policy(), num_threads=n) for n in (1, 2))
    assert [o.start.tolist() for o in one.outcomes()] == [o.start.tolist() for o in two.outcomes()]
    assert len({tuple(o.start.tolist()) for o in one.outcomes()}) > 1


def test_a_masked_policy_decides_only_what_does_something() -> None:
    free, masked = (
        _played(_policy(is_masked=is_masked, void=-1000.0), count=1).outcome(0)
        for is_masked in (False, True)
    )
    assert masked.num_decisions == 6 + masked.end
    assert free.num_decisions == 6 + free.end
    assert masked.costs.sum() != free.costs.sum()


def test_actions_are_drawn_by_softmax_and_never_what_is_impossible() -> None:
    logits = np.log(np.array([[0.2, 0.5, 0.3], [1.0, 1e-30, 1e-30]], np.float32))
    for draws, actions in (([0.19, 0.0], [0, 0]), ([0.21, 0.999], [1, 0]), ([0.71, 0.5], [2, 0])):
        assert draw_actions(logits, np.array(draws)).tolist() == actions
    logits = np.array([[-np.inf, 0.0, -np.inf]] * 2, np.float32)
    assert draw_actions(logits, np.array([0.0, 1.0 - 2.0**-53])).tolist() == [1, 1]


def test_a_checkpoint_gives_the_policy_again_and_another_kind_is_refused() -> None:
    policy = _policy()
    weights = prefixed(policy.weights, "actor")
    card = Checkpoint("a2c", 1, weights, {"network": policy.settings.model_dump(mode="json")})
    again, first = (
        [outcome.start.tolist() for outcome in _played(one).outcomes()]
        for one in (A2cPolicy.from_checkpoint(card, "a"), policy)
    )
    assert again == first
    with pytest.raises(FormatError, match="of a 'deeprm' policy, not of 'a2c'"):
        A2cPolicy.from_checkpoint(Checkpoint("deeprm", 1, {}, {}), "a")


def test_a_cluster_with_another_image_or_other_resources_is_refused() -> None:
    settings = settings_for(PackingConfig(), [10, 10], Architecture.FC)
    assert settings.num_actions == 11
    weights = draw_weights(settings, settings.num_actions, np.random.default_rng(0))
    other = A2cPolicy("a2c", prefixed(weights, "actor"), settings)
    for policy, source, message in (
        (_policy(), DrawnSource(), "slots 3, not 10"),
        # An image of the same size.
        (
            other,
            DrawnSource(num_units=20, num_resources=1),
            r"units \(10, 10\), not \(20,\)",
        ),
    ):
        batch = PackingBatch(source.draw([1000]), source.config)
        with pytest.raises(ConfigError, match=f"trained for clusters with {message}"):
            batch.run(policy.play_many, 1)


def test_exact_times_have_no_image() -> None:
    with pytest.raises(ConfigError, match="images need time in steps"):
        settings_for(PackingConfig(mode=TimeMode.EXACT), _CAPACITY, Architecture.FC)
    with pytest.raises(ConfigError, match="at least 4 rows"):
        settings_for(PackingConfig(horizon=3), _CAPACITY, Architecture.CONV_16_POOL)
