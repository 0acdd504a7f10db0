"""The state as an image, for networks that look at one.

Left to right: for each resource, what is booked (rows are steps from now on, columns units) and each job slot's demand (rows
are its duration, columns units); then a count of the backlog; on request, the time since the last arrival.

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
    """How the image is drawn.

    Args:
        is_colored: each booked job in a colour of its own, as the papers draw it; else cells are 0 or 1.
        has_pause: a last column with the time since the last arrival, which the released code has and the paper has not.
    """

    is_colored: bool = False
    has_pause: bool = False

    def shape(self, config: PackingConfig, capacity: npt.ArrayLike) -> tuple[int, int]:
        """Rows and columns.

        Raises:
            ConfigError: exact times have no image.

        Example: DeepRM's 10 slots, 2 resources of 10 units and backlog of 60 in 20 steps: (20, 223).
        """
        if config.mode is TimeMode.EXACT:
            raise ConfigError(
                "images need time in steps: run with mode 'steps', or use a policy that sees jobs (set)"
            )
        backlog = -(-config.backlog_size // config.horizon)
        width = int(np.sum(capacity)) * (1 + config.num_slots) + backlog + self.has_pause
        return config.horizon, width


class Images:
    """Images of the clusters of a batch.

    Args:
        batch: the clusters. settings: how they are drawn.

    Raises:
        ConfigError: clusters without steps, or of different capacities.
    """

    def __init__(self, batch: PackingBatch, settings: ImageSettings | None = None) -> None:
        self.batch = batch
        self.settings = settings or ImageSettings()
        capacity = batch.states.capacity
        if (capacity != capacity[0]).any():
            raise ConfigError("images need clusters of one capacity")
        self.array = np.zeros(
            (len(batch), *self.settings.shape(batch.config, capacity[0])), np.float32
        )

    def draw(self, num_threads: int | None = 1) -> npt.NDArray[np.float32]:
        """float32[num_clusters, horizon, width] of what is now; overwritten by the next call."""
        b = self.batch
        s = self.settings
        spread(
            lambda first, last: draw_images(
                b.states, b.asked, b.sequence, self.array, s.is_colored, s.has_pause, first, last
            ),
            len(b),
            num_threads,
        )
        return self.array
