import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from parcae.base.errors import FormatError
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

_CHECKPOINT = Checkpoint("rule", 1, {"rule": np.arange(3.0)}, {"a": 1}, {"arrivals": "batch"})


def test_a_checkpoint_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_checkpoint(_CHECKPOINT, tmp_path / "c.safetensors")
    again = read_checkpoint(tmp_path / "c.safetensors")
    assert (again.kind, again.feature_version, again.settings) == ("rule", 1, {"a": 1})
    assert again.weights["rule"].tolist() == [0.0, 1.0, 2.0]
    assert again.card["arrivals"] == "batch"
    assert again.card["parcae"]


def test_what_is_torn_or_foreign_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    write_checkpoint(_CHECKPOINT, path)
    whole = path.read_bytes()
    for content, message in (
        (whole[:-5], "incomplete"),
        (whole[:40], "incomplete"),
        (b"", "incomplete"),
        (b"garbage" * 50, "incomplete"),
        (save({"w": np.zeros(2)}), "not a Parcae checkpoint"),
        (save({"w": np.zeros(2)}, {"parcae": "{"}), "incomplete"),
        (
            save({"w": np.zeros(2)}, {"parcae": json.dumps({"format": "other", "version": 1})}),
            "not a Parcae checkpoint",
        ),
        (
            save(
                {"w": np.zeros(2)},
                {"parcae": json.dumps({"format": "parcae-policy", "version": 7})},
            ),
            "version 7",
        ),
        (
            save(
                {"w": np.zeros(2)},
                {"parcae": json.dumps({"format": "parcae-policy", "version": 1})},
            ),
            "model card",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            read_checkpoint(path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    write_checkpoint(
        Checkpoint("rule", 1, {"rule": np.array([1.0, np.nan])}), tmp_path / "c.safetensors"
    )
    with pytest.raises(FormatError, match="not finite"):
        read_checkpoint(tmp_path / "c.safetensors")


def test_another_kind_or_feature_version_is_refused_with_the_way_out() -> None:
    with pytest.raises(FormatError, match="a 'rule' policy, not of 'parcae'"):
        _CHECKPOINT.require("parcae", 1, "x")
    for expected in (0, 2):
        with pytest.raises(
            FormatError, match=rf"feature version 1 .* version {expected}: train the policy again"
        ):
            _CHECKPOINT.require("rule", expected, "x")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "none.safetensors")
