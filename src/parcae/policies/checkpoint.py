"""Learned policies as files: weights only, in safetensors, with a model card.

The card says what the weights are for (kind of policy, feature version, settings, seeds, the workload's fingerprint, what was
measured); a file that does not fit is refused with a message that says why. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from parcae import __version__
from parcae.errors import FormatError
from parcae.files import write_bytes

FORMAT = "parcae-policy"
VERSION = 1
Weights = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """A learned policy at rest.

    Args:
        kind: which policy the weights are for ("rule", "parcae", "decima").
        feature_version: version of the features (or parameters) that the weights were learned with.
        weights: name to array.
        settings: shape of the network and choice of features.
        card: how it came about: scenario, seeds, fingerprint, metrics, command.
    """

    kind: str
    feature_version: int
    weights: Weights
    settings: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def require(self, kind: str, feature_version: int, path: str) -> None:
        """Refuse weights of another kind or of other features.

        Raises:
            FormatError: they do not fit.
        """
        if self.kind != kind:
            raise FormatError(f"{path}: a checkpoint of a {self.kind!r} policy, not of {kind!r}")
        if self.feature_version != feature_version:
            raise FormatError(
                f"{path}: learned with feature version {self.feature_version} of {kind!r}; this Parcae computes version "
                f"{feature_version}: train it again, or use the Parcae that wrote it ({self.card.get('parcae', 'unknown')})"
            )


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write the checkpoint, wholly or not at all.

    Raises:
        OSError: the folder does not exist, or the disk is full; an older file at `path` is left as it was.
    """
    head = {
        "format": FORMAT,
        "version": VERSION,
        "kind": checkpoint.kind,
        "feature_version": checkpoint.feature_version,
        "settings": dict(checkpoint.settings),
        "card": {"parcae": __version__, **checkpoint.card},
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in checkpoint.weights.items()}
    write_bytes(path, save(arrays, {"parcae": json.dumps(head)}))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FormatError: torn, foreign, of another version, or with weights that are not finite.
        FileNotFoundError: no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(2, "no such checkpoint", str(path))
    try:
        with safe_open(path, "numpy") as file:
            head = json.loads((file.metadata() or {}).get("parcae", "null"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, ValueError, TypeError) as error:
        raise FormatError(
            f"{path}: not a checkpoint, or a torn one ({type(error).__name__}); train the policy again"
        ) from None
    return _checked(path, head, weights)


def _checked(path: Path, head: Any, weights: Weights) -> Checkpoint:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise FormatError(f"{path}: a safetensors file, but not a Parcae checkpoint")
    if head.get("version") != VERSION:
        raise FormatError(
            f"{path}: checkpoint version {head.get('version')}; this Parcae reads version {VERSION}: update Parcae"
        )
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise FormatError(
                f"{path}: weights {name!r} are not finite; the training that wrote it had diverged"
            )
    try:
        return Checkpoint(
            str(head["kind"]),
            int(head["feature_version"]),
            weights,
            dict(head["settings"]),
            dict(head["card"]),
        )
    except (KeyError, TypeError, ValueError):
        raise FormatError(
            f"{path}: a checkpoint whose model card lacks a part; train the policy again"
        ) from None
