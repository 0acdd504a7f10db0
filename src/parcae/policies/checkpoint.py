"""Checkpoints: files of learned policies, with weights in safetensors format and a model card.

The card describes the weights: kind of policy, feature version, settings, seeds, fingerprint of the
workload, and measured results. A file that does not fit is rejected with a message that says why.
Reading a checkpoint never executes code from the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from parcae.base.arrays import AnyArray
from parcae.base.errors import FormatError, PolicyError, suggestion
from parcae.base.files import write_bytes
from parcae.base.loader import MAX_FILE_BYTES, parsed_json
from parcae.base.texts import __version__

FORMAT = "parcae-policy"
VERSION = 1
SUFFIX = ".safetensors"
#: The best policy so far, in the folder of a training.
BEST_FILE = "best.safetensors"
Weights = dict[str, AnyArray]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint file.

    Args:
        kind: kind of policy that the weights are for ("rule", "parcae", "decima", "order-rule",
            "order-network").
        feature_version: version of the features (or parameters) that the weights were learned with.
        weights: arrays by name.
        settings: shape of the network and choice of features.
        card: how the weights were learned: scenario, seeds, fingerprint, metrics, command.
    """

    kind: str
    feature_version: int
    weights: Weights
    settings: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def require(self, kind: str, feature_version: int, path: str) -> None:
        """Check kind and feature version."""
        if self.kind != kind:
            raise FormatError(
                f"{path}: this is a checkpoint of a {self.kind!r} policy, not of {kind!r}"
            )
        if self.feature_version != feature_version:
            raise FormatError(
                f"{path}: learned with feature version {self.feature_version} of {kind!r}, but "
                f"this version of Parcae computes feature version {feature_version}: train the "
                "policy again, or use the version of Parcae that wrote the file "
                f"({self.card.get('parcae', 'unknown')})"
            )

    def network_settings(self, model: type[Model], path: str) -> Model:
        """Return the checked settings of the checkpoint's network. `path` is for error messages."""
        try:
            return model.model_validate(self.settings["network"])
        except (KeyError, ValidationError):
            raise FormatError(
                f"{path}: the checkpoint has no valid settings of its network; train it again"
            ) from None


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write the checkpoint atomically: if writing fails, an older file at `path` is unchanged."""
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
    """Read a checkpoint."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(2, "no such checkpoint", str(path))
    if path.stat().st_size > MAX_FILE_BYTES:
        raise FormatError(f"{path}: more than 1 GiB; this is no checkpoint of a policy")
    try:
        with safe_open(path, "numpy") as file:
            head = parsed_json(
                path, (file.metadata() or {}).get("parcae", "null").encode(), "a header"
            )
            # `file` is not a dict: it can only be iterated through `keys`.
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, FormatError, ValueError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path}: not a checkpoint, or an incomplete one ({type(error).__name__}); "
            "train the policy again"
        ) from None
    return _checked(path, head, weights)


def _checked(path: Path, head: Any, weights: Weights) -> Checkpoint:
    """The checkpoint with this header and these weights, after checking both."""
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise FormatError(f"{path}: this is a safetensors file, but not a Parcae checkpoint")
    if head.get("version") != VERSION:
        raise FormatError(
            f"{path}: checkpoint version {head.get('version')}, but this version of Parcae reads "
            f"version {VERSION}: update Parcae"
        )
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise FormatError(
                f"{path}: weights {name!r} are not finite, because the training diverged; "
                "train the policy again"
            )
    try:
        return Checkpoint(
            str(head["kind"]),
            int(head["feature_version"]),
            weights,
            dict(head["settings"]),
            dict(head["card"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise FormatError(
            f"{path}: the checkpoint's model card is incomplete; train the policy again"
        ) from None


class ShippedCheckpoints:
    """The checkpoints in a folder of the package, by name and variant: NAME-VARIANT.safetensors.

    Args:
        folder: the folder.
        command: the command that trains such policies, for error messages.
    """

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        self._command = command

    def variants(self, name: str) -> list[str]:
        """Return the variants of a name."""
        stems = (path.stem for path in self.folder.glob(f"{name}-*{SUFFIX}"))
        return sorted(stem.removeprefix(f"{name}-") for stem in stems)

    @property
    def names(self) -> list[str]:
        """The names that have variants."""
        return sorted({path.stem.partition("-")[0] for path in self.folder.glob(f"*{SUFFIX}")})

    def path(self, name: str, variant: str) -> Path:
        """Return the path of a variant."""
        variants = self.variants(name)
        if not variant and variants:
            raise PolicyError(
                f"policy '{name}:' names no variant after the colon; write {name!r} for the "
                f"nearest one, or one of {', '.join(variants)}"
            )
        if variant not in variants:
            hint = suggestion(variant, variants, "shipped are")
            raise PolicyError(f"policy {name}:{variant}: there is no such variant; {hint}")
        return self.folder / f"{name}-{variant}{SUFFIX}"

    def nearest(self, name: str, distance: Callable[[Checkpoint], Any]) -> str:
        """Return the variant whose checkpoint has the smallest distance."""
        variants = self.variants(name)
        if not variants:
            raise PolicyError(
                f"policy {name!r}: this version of Parcae ships no variant of it; train one with "
                f"`{self._command}`"
            )
        return min(variants, key=lambda one: distance(read_checkpoint(self.path(name, one))))
