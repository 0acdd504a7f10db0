"""The training loop of packing policies, with the set network: it learns, saves and resumes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from parcae.base.errors import ConfigError, FormatError
from parcae.learning.loop import BEST_FILE, TrainingPlan, train
from parcae.policies.checkpoint import read_checkpoint
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.jobset.learner import SetLearner
from parcae.rigid.layout import Cost
from parcae.rigid.learner import make_learner, start_from
from parcae.rigid.metrics import mean_cost
from parcae.rigid.policies.catalog import (
    SHIPPED,
    make_packing_policy,
    policy_of_checkpoint,
    rule_checkpoint,
)
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.policies.scores import PackingKind, WithholdParameter
from parcae.rigid.sources import DrawnSource, RigidLogSource
from parcae.rigid.world import PackingBatch
from parcae.workloads.workload import SELECTION_SEED_START

SOURCE = DrawnSource(rates=(0.8,), window=30)
SMALL = ["num_groups=4", "group_size=4", "minibatch=512"]


_TOY = DrawnSource(
    (0.6,),
    window=15,
    settings=PackingConfig(num_slots=3, backlog_size=15, horizon=16, max_decisions=500),
)
_FEW = ["num_sequences=6", "num_runs=4"]
_POOLED = ["architecture=conv3-16-pool"]


def _train(folder, iterations, is_resumed=False, progress=None, **made):
    usual = {"kind": "set", "source": SOURCE, "settings": SMALL, "seed": 1}
    learner = make_learner(**{**usual, **made})
    learner.select_every = 2
    learner.num_selection = 20 if learner.kind == "set" else 4
    return train(learner, TrainingPlan(300, iterations, folder, is_resumed), progress), learner


@pytest.mark.parametrize(
    "made",
    [
        {"kind": "set", "source": SOURCE, "settings": SMALL},
        {"kind": "deeprm", "source": _TOY, "settings": _FEW},
        {"kind": "deeprm", "source": _TOY, "settings": [*_FEW, "optimizer=adam"]},
        {"kind": "a2c", "source": _TOY, "settings": [*_POOLED, "num_sequences=2", "repeats=2"]},
        {
            "kind": "a2c",
            "source": _TOY,
            "recipe": "paper",
            "settings": [*_POOLED, "max_decisions=12"],
        },
    ],
)
def test_a_training_that_was_resumed_ends_with_the_same_weights(tmp_path, made):
    # The learning rate falls with the iterations of the whole training, so the first half must
    # have the same number of iterations as its goal.
    whole, learner = _train(tmp_path / "whole", 4, **made)

    class Stop(Exception):
        pass

    def stop(iteration):
        if iteration.iteration == 3:
            raise Stop

    with pytest.raises(Stop):
        _train(tmp_path / "half", 4, progress=stop, **made)
    resumed, again = _train(tmp_path / "half", 4, is_resumed=True, **made)
    assert resumed.iterations == whole.iterations == 4
    ended, found = ({**one.weights(), **one.state()} for one in (learner, again))
    assert ended.keys() == found.keys()
    for name, array in ended.items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)


@pytest.mark.parametrize(
    ("kind", "setting", "hint"),
    [
        ("a2c", "discont=0.9", "did you mean 'discount'"),
        ("deeprm", "learning_rte=1", "learning_rte"),
        ("set", "num_group=3", "did you mean 'num_groups'"),
    ],
)
def test_recipes_and_settings_that_do_not_exist_are_refused_with_a_hint(kind, setting, hint):
    with pytest.raises(ConfigError, match=hint):
        make_learner(kind, SOURCE, settings=[setting])
    with pytest.raises(ConfigError, match=f"no recipe 'fats' of {kind}"):
        make_learner(kind, SOURCE, recipe="fats")
    with pytest.raises(ValidationError):
        make_learner("a2c", SOURCE, settings=["discount=1.5"])


def test_the_best_policy_is_a_checkpoint_that_the_catalogue_reads(tmp_path):
    result, _ = _train(tmp_path, 2)
    policy = make_packing_policy(str(tmp_path / BEST_FILE))
    selection = SOURCE.draw([SELECTION_SEED_START + row for row in range(20)])
    batch = PackingBatch(selection, SOURCE.config, wants_profile=True, seed=1)
    batch.run(policy.play_many)
    assert mean_cost(batch, Cost.SLOWDOWN) == pytest.approx(result.best)
    card = read_checkpoint(tmp_path / BEST_FILE).card
    assert card["source"]["rates"] == [0.8]
    assert card["cost"] == "slowdown"


def test_a_training_of_other_settings_is_not_resumed(tmp_path):
    _train(tmp_path, 1)
    with pytest.raises(ConfigError, match="another settings"):
        _train(tmp_path, 2, is_resumed=True, settings=[*SMALL, "entropy=0.5"])
    with pytest.raises(ConfigError, match="another seed"):
        _train(tmp_path, 2, is_resumed=True, seed=2)


def test_a_training_on_a_log_that_is_read_otherwise_is_not_resumed(tmp_path):
    log = RigidJobs("log", np.arange(40) * 5, np.full(40, 20), np.full((40, 1), 3), [8], step="s")
    sources = {
        "as before": RigidLogSource(log, 8),
        "other estimates": RigidLogSource(replace(log, estimate=2 * log.duration), 8),
        "other demands": RigidLogSource(replace(log, demand=log.demand + 1), 8),
    }

    def resumed(source, is_resumed=True):
        learner = SetLearner(source, Cost.BOUNDED_SLOWDOWN, None, SMALL)
        learner.num_selection = 2
        return train(learner, TrainingPlan(300, 2 if is_resumed else 1, tmp_path, is_resumed))

    resumed(sources["as before"], is_resumed=False)
    for name in ("other estimates", "other demands"):
        with pytest.raises(
            ConfigError, match=r"another source of jobs \(the log and how it is read"
        ):
            resumed(sources[name])
    assert resumed(sources["as before"]).iterations == 2


_SHIPPED = {"deeprm": "deeprm-0.7", "a2c": "a2c-rates", "set": "set-steps"}


@pytest.mark.parametrize(
    ("kind", "source", "change", "message"),
    [
        ("deeprm", DrawnSource(), {"feature_version": 0}, "feature version 0 of 'deeprm'"),
        ("set", DrawnSource(), {"feature_version": 0}, "feature version 0 of 'set'"),
        ("set", DrawnSource(), {"missing": "rule"}, "a withholding rule of 0 parameters"),
        ("set", DrawnSource(), {"missing": "hold.weight"}, "weights 'hold.weight'"),
        ("set", DrawnSource(), {"kind": "deeprm"}, "give a checkpoint of 'set'"),
        # Images of one resource of 20 units have the same size as those of two of 10 units.
        (
            "deeprm",
            DrawnSource(num_units=20, num_resources=1),
            {},
            r"capacity \[10, 10\], but this training's has \[20\]",
        ),
        ("a2c", DrawnSource(), {}, "architecture conv3-16-pool, but this training's has conv3-16:"),
    ],
)
def test_a_training_starts_only_from_weights_that_mean_the_same(kind, source, change, message):
    shipped = read_checkpoint(SHIPPED.folder / f"{_SHIPPED[kind]}.safetensors")
    missing = change.pop("missing", None)
    weights = {name: array for name, array in shipped.weights.items() if name != missing}
    changed = replace(shipped, **{"weights": weights, **change})
    with pytest.raises(FormatError, match=rf"from\.safetensors.*{message}"):
        start_from(make_learner(kind, source), changed, "from.safetensors")


def test_a_training_of_the_set_network_starts_from_a_tuned_rule():
    learner = SetLearner(SOURCE)
    first = learner.weights()
    params = np.arange(len(WithholdParameter), dtype=float)
    rule = HandMadePolicy("rule", PackingKind.WITHHOLD, params)
    start_from(learner, rule_checkpoint(rule, {}), "rule.safetensors")
    for name, array in learner.weights().items():
        np.testing.assert_array_equal(array, params if name == "rule" else first[name])
    none = replace(rule_checkpoint(rule, {}), weights={})
    with pytest.raises(FormatError, match=r"rule\.safetensors: a tuned policy 'withhold' with 0"):
        start_from(learner, none, "rule.safetensors")


@pytest.mark.parametrize(
    ("kind", "settings"), [("set", []), ("deeprm", []), ("a2c", [*_POOLED, "hidden=32"])]
)
def test_a_training_starts_from_the_weights_of_a_network(kind, settings):
    shipped = read_checkpoint(SHIPPED.folder / f"{_SHIPPED[kind]}.safetensors")
    learner = make_learner(kind, DrawnSource(), settings=settings)
    start_from(learner, shipped, "from.safetensors")
    for name, array in learner.weights().items():
        np.testing.assert_array_equal(array, shipped.weights[name])


@pytest.mark.slow
def test_the_set_network_improves_on_the_rule_that_it_starts_from():
    source = DrawnSource(rates=(0.7,))
    learner = SetLearner(source, Cost.SLOWDOWN, None, ["num_groups=24"], seed=3)
    held_out = PackingBatch(source.draw(range(1000, 1300)), source.config, wants_profile=True)
    held_out.run(learner.policy().play_many)
    before = mean_cost(held_out, Cost.SLOWDOWN)
    learner.select_every = 10
    learner.num_selection = 100
    result = train(learner, TrainingPlan(300, max_iterations=30))
    held_out.run(policy_of_checkpoint(result.checkpoint, "best", "set").play_many)
    assert mean_cost(held_out, Cost.SLOWDOWN) < 0.97 * before
