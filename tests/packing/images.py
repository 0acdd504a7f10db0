"""Images of clusters, as policies would see them that look at every cell."""

from __future__ import annotations

import numpy as np

from parcae.rigid.kernels.stepping import mask_many
from parcae.rigid.kernels.views import draw_images
from parcae.rigid.world import PackingBatch, image_shape


def images_of(batch: PackingBatch, *, has_pause: bool = False) -> np.ndarray:
    """The image of every cluster of the batch now."""
    images = np.zeros(
        (len(batch), *image_shape(batch.config, batch.states.capacity[0])), np.float32
    )
    draw_images(batch.clusters, images, 0, len(batch))
    if not has_pause:
        return images
    clock = batch.states.clock
    steps = clock["now"] - np.maximum(0, clock["last_arrival"])  # [clusters, 1]
    column = np.broadcast_to((np.minimum(steps, 10) / 10)[:, :, None], (*images.shape[:2], 1))
    return np.concatenate([images, column.astype(np.float32)], axis=2)


def masks_of(batch: PackingBatch) -> np.ndarray:
    """Which decisions do something in each cluster; the last one lets time pass."""
    masks = np.zeros((len(batch), batch.states.slots.shape[1] + 1), np.int8)
    mask_many(batch.clusters, masks, 0, len(batch))
    return masks
