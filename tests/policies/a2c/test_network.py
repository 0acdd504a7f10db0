"""The five architectures: their sizes, and that looking windows up is convolving."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from parcae.base.errors import FormatError
from parcae.rigid.a2c.layout import (
    A2cSettings,
    Architecture,
    EncodedImages,
    LookupNetwork,
    blank_images,
    draw_weights,
    encode_images,
)
from parcae.rigid.a2c.learner import A2cNetwork, Windows

ALL = list(Architecture)


def _drawn(settings: A2cSettings, num_outputs: int = 3) -> dict[str, npt.NDArray[Any]]:
    """Weights with biases that are not zero."""
    rng = np.random.default_rng(3)
    weights = draw_weights(settings, num_outputs, rng, last_scale=1.0)
    return {
        name: array + np.float32(0.3) * rng.standard_normal(array.shape).astype(np.float32)
        for name, array in weights.items()
    }


def _images(count: int = 6, horizon: int = 7, width: int = 11) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(1)
    images = (rng.random((count, horizon, width)) < 0.4).astype(np.float32)
    images[-1] = 0.0
    return images


def convolved(network: A2cNetwork, images: torch.Tensor) -> torch.Tensor:
    """The outputs of images float32[B, horizon, width], cell by cell."""
    x = images.flatten(1)
    if network.settings.architecture is not Architecture.FC:
        x = network._convolved(images).flatten(2).transpose(1, 2).flatten(1)
    dense = network.table["dense_weight"].flatten(0, 1)
    return network._last(x @ dense + network.table["dense_bias"])


def _encoded(images: npt.NDArray[np.float32], settings: A2cSettings) -> EncodedImages:
    cells = blank_images(len(images), settings)
    cells[:, :, : settings.width] = images != 0
    return encode_images(cells, np.zeros(len(images), np.bool_), settings)


@pytest.mark.parametrize(
    ("architecture", "actor", "critic"),
    [
        (Architecture.FC, 49_071, 4_461),
        (Architecture.CONV_16, 700_299, 63_809),
        (Architecture.CONV_32, 1_400_587, 127_617),
        (Architecture.CONV_16_POOL, 174_411, 16_001),
        (Architecture.CONV_32_POOL, 348_811, 32_001),
    ],
)
def test_networks_of_20_times_223_cells_have_these_sizes(
    architecture: Architecture, actor: int, critic: int
) -> None:
    settings = A2cSettings(architecture=architecture, horizon=20, width=223, num_slots=10)
    sizes = [
        sum(int(np.prod(shape)) for shape in settings.shapes(count).values()) for count in (11, 1)
    ]
    assert sizes == [actor, critic]


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("architecture", ALL)
def test_looking_up_gives_the_outputs_and_gradients_of_convolving(
    architecture: Architecture, hidden: int
) -> None:
    settings = A2cSettings(
        architecture=architecture, horizon=7, width=11, num_slots=2, hidden=hidden
    )
    network = A2cNetwork(_drawn(settings), settings, 3)
    images = _images()
    encoded = _encoded(images, settings)
    expected = convolved(network, torch.from_numpy(images))
    outputs = network.looked_up(Windows.of(encoded))
    found = LookupNetwork(network.arrays(), settings).outputs(encoded)
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=2e-5)
    assert float((expected[0] - expected[-1]).detach().abs().max()) > 0.1
    weigh = torch.linspace(-1.0, 1.0, 18).reshape(6, 3)
    weights = network.by_name()
    gradients = (
        torch.autograd.grad((one * weigh).sum(), [*weights.values()]) for one in (outputs, expected)
    )
    for name, found_slope, slope in zip(weights, *gradients, strict=True):
        np.testing.assert_allclose(found_slope, slope, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("architecture", ALL)
def test_windows_beside_blank_columns_are_looked_up_too(architecture: Architecture) -> None:
    settings = A2cSettings(architecture=architecture, horizon=7, width=45, num_slots=2)
    # Image k shows one full column, k; the last is blank.
    images = np.zeros((46, 7, 45), np.float32)
    images[np.arange(45), :, np.arange(45)] = 1.0
    network = A2cNetwork(_drawn(settings), settings, 3)
    found = LookupNetwork(network.arrays(), settings).outputs(_encoded(images, settings))
    expected = convolved(network, torch.from_numpy(images)).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_where_a_table_has_too_little_room_for_all_windows_the_sums_stay_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = A2cSettings(horizon=7, width=11, num_slots=2)
    encoded = _encoded(_images(), settings)
    weights = _drawn(settings)
    wide = LookupNetwork(weights, settings).outputs(encoded)
    distinct, which = encoded.distinct()
    monkeypatch.setattr("parcae.rigid.a2c.layout._PLACES", 8)
    np.testing.assert_array_equal(LookupNetwork(weights, settings).outputs(encoded), wide)
    again, also = encoded.distinct()
    assert again.tolist() == distinct.tolist() == sorted(set(encoded.keys.tolist()))
    assert also.tolist() == which.tolist()
    np.testing.assert_array_equal(distinct[which], encoded.keys)


def test_weights_of_another_shape_are_refused_by_name() -> None:
    settings = A2cSettings(horizon=7, width=11, num_slots=2)
    weights = _drawn(settings)
    weights["dense.bias"] = np.zeros(4, np.float32)
    with pytest.raises(FormatError, match=r"weights 'dense\.bias' should have shape"):
        A2cNetwork(weights, settings, 3)
