"""RandAugment and TrivialAugment, beside torchvision's own."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from cifar_ray.data import order, policies

OWN = {"rand": v2.RandAugment(), "trivial": v2.TrivialAugmentWide()}
HERE = {"rand": policies.rand_augment, "trivial": policies.trivial_augment}


def some_images(count: int, side: int = 32) -> torch.Tensor:
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("side", [32, 48])
@pytest.mark.parametrize("name", ["rand", "trivial"])
def test_operations_and_their_strengths_are_torchvisions(name: str, side: int) -> None:
    images = some_images(4, side).permute(0, 3, 1, 2)
    own = OWN[name]
    for operation, (kind, (magnitudes, signed)) in zip(
        policies._operations(side), own._AUGMENTATION_SPACE.items(), strict=True
    ):
        assert operation.signed is signed, kind
        levels = magnitudes(31, side, side)
        for level in (0, 9, 15, 30):
            magnitude = 0.0 if levels is None else round(float(levels[level]), 4)
            strongest = operation.mild if name == "rand" else operation.wide
            for sign in (1, -1) if signed else (1,):
                expected = own._apply_image_or_video_transform(
                    images, kind, sign * magnitude, interpolation=own.interpolation, fill=own._fill
                )
                found = operation.apply(images, sign * strongest * level / 30)
                # A pixel may come from its neighbour where the same angle is rounded to another float.
                assert (found != expected).float().mean() < 0.01, (kind, level, sign)


@pytest.mark.parametrize("name", ["rand", "trivial"])
def test_a_sample_gets_the_same_in_any_batch_and_something_else_in_another_epoch(name: str) -> None:
    images, samples, vary = some_images(300), torch.arange(300), HERE[name]
    together = vary(images, samples, 3, 5)
    assert together.dtype == torch.uint8
    assert together.shape == images.shape
    alone = torch.cat([vary(images[each : each + 1], samples[each : each + 1], 3, 5) for each in range(60)])
    assert torch.equal(together[:60], alone)
    for other in (vary(images, samples, 3, 6), vary(images, samples, 4, 5), vary(images, samples + 300, 3, 5)):
        changed = (other != together).flatten(1).any(1)
        assert changed.float().mean() > 0.8


@pytest.mark.parametrize(("name", "unchanged"), [("rand", 1 / 14**2), ("trivial", 1 / 14 + 5.6 / 14 / 31)])
def test_images_are_changed_as_often_as_operations_that_do_something_are_drawn(name: str, unchanged: float) -> None:
    """Identity leaves an image as it is, and so do autocontrast of these and most operations at level 0."""
    images, samples = some_images(1).repeat(2_800, 1, 1, 1), torch.arange(2_800)
    kept = (HERE[name](images, samples, 0, 0) == images).flatten(1).all(1).float().mean()
    assert unchanged < kept < unchanged + 2.5 / 14


def test_every_operation_is_drawn_equally_often() -> None:
    hashed = order.hash64(1, 2, torch.arange(140_000), policies._DRAWS)
    counts = torch.bincount((hashed & 0xFFFFF) % 14, minlength=14)
    assert len(counts) == 14
    assert (counts - 10_000).abs().max() < 500  # five standard deviations
