"""The data sets as published, whole."""

from __future__ import annotations

import numpy as np
import pytest

from cifar_ray import data
from cifar_ray.data import SPECS


@pytest.mark.data
@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_real_data_is_what_its_spec_says(name: str) -> None:
    dataset, spec = data.load(name), SPECS[name]
    assert dataset.train.inputs.shape == (spec.train_size, 32, 32, 3)
    assert dataset.test.inputs.shape == (10_000, 32, 32, 3)
    assert set(dataset.train["labels"].tolist()) == set(range(spec.num_classes))
    assert len(dataset.spec.names) == spec.num_classes
    values = np.arange(256) / 255
    for channel in range(3):
        pixels = dataset.train.inputs[..., channel].ravel()
        share = np.bincount(pixels, minlength=256) / pixels.size
        mean = share @ values
        assert mean == pytest.approx(spec.mean[channel], abs=5e-4)
        assert (share @ (values - mean) ** 2) ** 0.5 == pytest.approx(spec.std[channel], abs=5e-4)
