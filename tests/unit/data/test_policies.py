"""RandAugment, TrivialAugment and resized crops, beside torchvision's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import v2

from cifar_ray.data import augment, order, policies

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


@pytest.mark.parametrize("side", [28, 32, 48])
@pytest.mark.parametrize("name", ["rand", "trivial"])
def test_images_that_go_through_an_operation_together_get_what_each_would_get_alone(name: str, side: int) -> None:
    """To the last bit: smooth images have ties that noise has not."""
    wide, operations = name == "trivial", policies._operations(side)
    noise, ramp = some_images(4, side).permute(0, 3, 1, 2), torch.arange(side * side).view(side, side) % 256
    images = torch.stack([*noise, ramp.expand(3, -1, -1).byte(), torch.stack([ramp, ramp.T, ramp * 0 + 7]).byte()])
    together = policies._together(side, wide, torch.device("cpu"))
    for number, (operation, apply) in enumerate(zip(operations, together, strict=True)):
        levels = range(31) if wide else [9]
        drawn = [(level, sign) for level in levels for sign in (0, 1)]
        expected = []
        for level, sign in drawn:
            magnitude = (operation.wide if wide else operation.mild) * level / 30
            expected.append(operation.apply(images, -magnitude if operation.signed and sign else magnitude))
        found = apply(images.repeat(len(drawn), 1, 1, 1), torch.arange(len(drawn)).repeat_interleave(len(images)))
        assert torch.equal(found, torch.cat(expected)), number


class Launches(TorchDispatchMode):
    """Counts what is computed: about as many kernels would be started on a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["rand", "trivial"])
def test_a_block_takes_as_many_kernels_however_many_magnitudes_are_drawn(name: str) -> None:
    images, samples = some_images(1024), torch.arange(1024)
    HERE[name](images, samples, 0, 0)  # its tables are made once
    counts = []
    for size in (256, 1024):
        with Launches() as launched:
            HERE[name](images[:size], samples[:size], 0, 0)
        counts.append(launched.count)
    assert counts[0] == counts[1] < 600


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


@pytest.mark.parametrize("side", [32, 96])
def test_a_resized_crop_is_torchvisions_of_the_same_box(side: int) -> None:
    images, samples, own = some_images(60, side), torch.arange(100, 160), v2.RandomResizedCrop(side)
    boxes, mirror = policies.boxes(samples, 3, 5, side), augment.draws(samples, 3, 5)[2]
    for flip in (True, False):
        crops = policies.resized_crop(images, samples, 3, 5, flip)
        for image, crop, box, mirrored in zip(images, crops, boxes, mirror, strict=True):
            expected = own.transform(image.permute(2, 0, 1), dict(zip(("top", "left", "height", "width"), box)))
            assert torch.equal(crop.permute(2, 0, 1), expected.flip(2) if flip and mirrored else expected)
    assert 15 < mirror.sum() < 45


def test_boxes_are_spread_as_torchvisions() -> None:
    """Area, aspect ratio and place: the deciles of 10,000 of each."""
    own, image = v2.RandomResizedCrop(224), torch.empty(3, 224, 224)
    torch.manual_seed(0)
    drawn = [[*own.make_params([image]).values()] for _ in range(10_000)]
    tenths = torch.linspace(0.1, 0.9, 9)
    spread = []
    for boxes in (drawn, policies.boxes(torch.arange(10_000), 1, 2, 224)):
        top, left, height, width = torch.tensor(boxes, dtype=torch.float32).T
        assert bool((top >= 0).all() and (top + height <= 224).all() and (left + width <= 224).all())
        figures = (height * width / 224**2, (width / height).log(), top / 224, left / 224)
        spread.append(torch.stack([figure.quantile(tenths) for figure in figures]))
    torch.testing.assert_close(*spread, rtol=0, atol=0.02)


def test_a_box_that_never_fits_is_the_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_TRIES", 0)
    assert policies.boxes(torch.arange(3), 0, 0, 32) == [(0, 0, 32, 32)] * 3


def test_a_sample_gets_the_same_crop_in_any_batch_and_another_in_another_epoch() -> None:
    images, samples = some_images(40, 48), torch.arange(40)
    together = policies.resized_crop(images, samples, 3, 5, flip=True)
    alone = torch.cat([policies.resized_crop(images[[at]], samples[[at]], 3, 5, flip=True) for at in range(40)])
    assert torch.equal(together, alone)
    for other in (policies.boxes(samples, 3, 6, 48), policies.boxes(samples, 4, 5, 48)):
        assert sum(one == two for one, two in zip(policies.boxes(samples, 3, 5, 48), other, strict=True)) < 3
