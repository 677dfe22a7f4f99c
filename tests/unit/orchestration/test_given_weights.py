"""What is said of the run whose weights another starts from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.run import given_weights
from cifar_ray.training import recipe


@pytest.mark.parametrize(
    ("theirs", "ours", "overlap"),
    [
        ({}, {"val_share": 0.1}, True),
        ({"val_share": 0.1}, {"val_share": 0.2}, True),
        ({"val_share": 0.1}, {"val_share": 0.1}, False),
        ({"val_share": 0.1}, {}, False),
        ({"dataset": "mnist"}, {"val_share": 0.1}, False),
    ],
)
def test_validation_images_that_the_weights_have_seen_are_named(
    theirs: dict[str, object], ours: dict[str, object], overlap: bool
) -> None:
    source, config = (
        recipe.resolve(TrainConfig(**{"dataset": "digits", "normalise": "half", **values}))  # type: ignore[arg-type]
        for values in (theirs, ours)
    )
    snapshot: Any = SimpleNamespace(config=source, class_names=())
    notes = list(given_weights._other_data(config, snapshot))
    assert ["may have been trained on images that this run keeps for validation" in note for note in notes] == [
        True
    ] * overlap
