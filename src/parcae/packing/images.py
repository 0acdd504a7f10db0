"""The cluster's state as an image, for networks that take images.

From left to right, the image has for each resource the booked units (rows are steps from now on,
columns are units) and each slot's job (rows are its duration, columns are units). Then comes the
length of the backlog and, optionally, the time since the last arrival.

Source: DeepRM, section 3.2 and Figure 2; A2cScheduler, Figure 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.packing.config import PackingConfig, TimeMode
from parcae.packing.kernels.images import draw_images
from parcae.packing.world import PackingBatch, spread


@dataclass(frozen=True)
class ImageSettings:
    """How images are drawn.

    Args:
        is_colored: each booked job has its own colour, as the papers draw it; else cells are 0 or
            1.
        has_pause: adds a last column with the time since the last arrival, which the released code
            has and the paper has not.
    """

    is_colored: bool = False
    has_pause: bool = False

    def shape(self, config: PackingConfig, capacity: npt.ArrayLike) -> tuple[int, int]:
        """Return the image's rows and columns.

        Raises:
            ConfigError: the cluster runs with exact times, for which there are no images.

        Example: DeepRM's 10 slots, 2 resources of 10 units and backlog of 60 in 20 steps: (20,
        223).
        """
        if config.mode is TimeMode.EXACT:
            raise ConfigError(
                "images need time in steps, not the exact times of logs: use a policy that needs "
                "no image (set)"
            )
        backlog = -(-config.backlog_size // config.horizon)
        width = int(np.sum(capacity)) * (1 + config.num_slots) + backlog + self.has_pause
        return config.horizon, width


class Images:
    """Draws images of the clusters of a batch.

    Args:
        batch: the clusters.
        settings: how images are drawn.

    Raises:
        ConfigError: the clusters run with exact times, or have different capacities.
    """

    def __init__(self, batch: PackingBatch, settings: ImageSettings | None = None) -> None:
        self.batch = batch
        self.settings = settings or ImageSettings()
        capacity = batch.states.capacity
        if (capacity != capacity[0]).any():
            raise ConfigError("images need clusters of the same capacity")
        self.array = np.zeros(
            (len(batch), *self.settings.shape(batch.config, capacity[0])), np.float32
        )

    def draw(self, num_threads: int | None = 1) -> npt.NDArray[np.float32]:
        """Return images of the present states, float32[num_clusters, horizon, width].

        The next call overwrites them.
        """
        clusters = self.batch.clusters
        s = self.settings
        spread(
            lambda first, last: draw_images(
                clusters, self.array, s.is_colored, s.has_pause, first, last
            ),
            len(self.batch),
            num_threads,
        )
        return self.array
