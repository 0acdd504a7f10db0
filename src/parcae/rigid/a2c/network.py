"""A2cScheduler's networks in PyTorch, for training."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from parcae.policies.networks.layout import Weights
from parcae.policies.networks.training import TableNetwork
from parcae.rigid.a2c.kernels import PATTERNS
from parcae.rigid.a2c.layout import A2cSettings, Architecture, EncodedImages, IntArray


class Windows(NamedTuple):
    """The windows of encoded images, by the distinct pairs of place and pattern."""

    pairs: Tensor  # int64[num_windows], the pair of each window
    starts: Tensor  # int64[num_images], where each image's windows begin
    place: Tensor  # int64[num_pairs]
    pattern: Tensor  # int64[num_pairs], row of `patterns`
    patterns: IntArray  # int64[num_patterns]

    @classmethod
    def of(cls, encoded: EncodedImages) -> Windows:
        """Find the distinct pairs of images."""
        keys, pairs = encoded.distinct()
        patterns, pattern = np.unique(keys % PATTERNS, return_inverse=True)
        return cls(
            torch.from_numpy(pairs),
            torch.from_numpy(encoded.starts[:-1]),
            torch.from_numpy(keys // PATTERNS),
            torch.from_numpy(pattern),
            patterns,
        )


class A2cNetwork(TableNetwork):
    """An actor (outputs: a logit for each action) or a critic (one output: the state's value).

    The parameters share memory with the result of `arrays`. `dense.weight` is [places, filters,
    outputs].

    Raises:
        FormatError: a weight is missing or has another shape.

    Source: A2cScheduler, section 4.3 and Table 3: 3x3 filters, rectified, 2x2 max-pooling or none,
    flattened, dense.
    """

    def __init__(self, weights: Weights, settings: A2cSettings, num_outputs: int) -> None:
        super().__init__(weights, settings.shapes(num_outputs))
        self.settings = settings

    def arrays(self) -> Weights:
        """Return the weights by name; they share the parameters' memory."""
        return {name: array.detach().numpy() for name, array in self.by_name().items()}

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs [B, num_outputs] of images float32[B, horizon, width]."""
        table = self.table
        if self.settings.architecture is Architecture.FC:
            x = images.flatten(1)
        else:
            x = self._convolved(images).flatten(2).transpose(1, 2).flatten(1)
        return self._last(x @ table["dense_weight"].flatten(0, 1) + table["dense_bias"])

    def looked_up(self, windows: Windows) -> Tensor:
        """Return the same outputs for encoded images.

        As in `LookupNetwork`, what a window adds to the dense layer's sums is computed once for
        each pair of place and pattern that occurs.
        """
        dense = self.table["dense_weight"]
        features = self._features(windows.patterns).index_select(0, windows.pattern)
        added = torch.bmm(features.unsqueeze(1), dense.index_select(0, windows.place)).squeeze(1)
        sums = nn.functional.embedding_bag(windows.pairs, added, windows.starts, mode="sum")
        return self._last(sums + self._blank() @ dense.sum(0) + self.table["dense_bias"])

    def _features(self, patterns: IntArray) -> Tensor:
        """Return what patterns of a window give beyond a window of zeros, [P, filters]."""
        size = self.settings.architecture.window
        if size == 1:
            return torch.ones(len(patterns), 1)
        # Bit row + size x column of a pattern is a cell of its window.
        bits = (patterns[:, None] >> np.arange(size**2)) & 1
        cells = torch.from_numpy(bits.astype(np.float32)).reshape(-1, size, size).transpose(1, 2)
        return self._convolved(cells).flatten(1) - self._blank()

    def _blank(self) -> Tensor:
        """Return what a window of zeros gives, [filters]."""
        if self.settings.architecture is Architecture.FC:
            return torch.zeros(1)
        blank: Tensor = self.table["conv_bias"].relu()
        return blank

    def _convolved(self, images: Tensor) -> Tensor:
        """Return the rectified and pooled convolution, [B, filters, rows, columns]."""
        table = self.table
        x = nn.functional.conv2d(
            images.unsqueeze(1), table["conv_weight"].unsqueeze(1), table["conv_bias"]
        ).relu()
        return nn.functional.max_pool2d(x, 2) if self.settings.architecture.has_pool else x

    def _last(self, x: Tensor) -> Tensor:
        return self.linear("out", x.relu()) if self.settings.hidden else x
