"""The state of a training as a file: one safetensors file, whatever is trained.

It holds the present weights (`now.*`), the best ones (`best.*`), what else the learner needs
(`state.*`, or plain JSON where it is no array), and the settings that must not change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError, FormatError
from parcae.policies.checkpoint import Checkpoint, Weights, read_checkpoint, write_checkpoint

#: The file in the folder of a training from which it resumes.
STATE_FILE = "training.safetensors"
#: What is written of the progress of every training.
_PROGRESS = frozenset({"iteration", "seconds", "best", "curve"})


@dataclass(frozen=True)
class TrainingState:
    """All that a resumed training needs."""

    weights: Weights
    best_weights: Weights
    learner: dict[str, Any]
    progress: Mapping[str, Any]


def write_state(
    state: TrainingState, identity: Mapping[str, Any], feature_version: int, folder: Path
) -> None:
    """Write the state of a training into `folder`, atomically."""
    arrays = {key: one for key, one in state.learner.items() if isinstance(one, np.ndarray)}
    numbers = {key: one for key, one in state.learner.items() if key not in arrays}
    parts = {"now": state.weights, "best": state.best_weights, "state": arrays}
    weights = {
        f"{part}.{name}": array for part, table in parts.items() for name, array in table.items()
    }
    settings = {**state.progress, "learner": numbers, "identity": dict(identity)}
    checkpoint = Checkpoint("training", feature_version, weights, settings)
    write_checkpoint(checkpoint, folder / STATE_FILE)


def read_state(
    fresh: TrainingState, identity: Mapping[str, Any], feature_version: int, folder: Path
) -> TrainingState:
    """Read the state of the training in `folder`, from which a fresh one of its kind goes on."""
    path = folder / STATE_FILE
    if not path.exists():
        raise ConfigError(
            f"{folder} has no training to resume ({STATE_FILE} is written at each measurement): "
            "leave out --resume to begin one"
        )
    saved = read_checkpoint(path)
    before = saved.settings.get("identity")
    if not isinstance(before, dict) or not saved.settings.keys() >= _PROGRESS:
        raise _foreign(path, f"version {saved.card.get('parcae', 'unknown')} wrote it")
    # Through JSON, so that it compares equal to what was read from a file (lists, not tuples).
    now = json.loads(json.dumps(identity))
    for key in (*now, *before):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{path}: a training with another {key}; use the same settings, or another folder"
            )
    # The kind of the learner is part of the identity.
    saved.require(saved.kind, feature_version, str(path))
    parts: dict[str, Weights] = {"now": {}, "best": {}, "state": {}}
    for key, array in saved.weights.items():
        part, _, name = key.partition(".")
        parts.setdefault(part, {})[name] = array
    learner = {**parts["state"], **saved.settings.get("learner", {})}
    state = TrainingState(parts["now"], parts["best"], learner, saved.settings)
    for part in ("weights", "best_weights", "learner"):
        found = getattr(state, part)
        for name, value in getattr(fresh, part).items():
            is_array = isinstance(value, np.ndarray)
            if name not in found or (is_array and np.shape(found[name]) != value.shape):
                raise _foreign(path, f"it has no {name!r} of this training")
    return state


def _foreign(path: Path, why: str) -> FormatError:
    return FormatError(
        f"{path}: not the state of a training that this version of Parcae can resume ({why}): use "
        "the version that wrote it, or train again"
    )
