from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchvision.models import ResNet18_Weights
from torchvision.transforms import v2

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import AugmentName
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import SPECS, Dataset, augment, mixing, modality, order, policies
from cifar_ray.data.datasets import normalised
from cifar_ray.data.loader import DataShard, MicroBatch, TrainLoader
from cifar_ray.training import recipe

CPU = torch.device("cpu")


def some_images(count: int, side: int = 32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=generator)


def one_by_one(images: torch.Tensor, samples: torch.Tensor, seed: int, epoch: int, flip: bool) -> torch.Tensor:
    """The same crop and flip, spelled out for one image at a time."""
    out = []
    for image, sample in zip(images, samples, strict=True):
        padded = F.pad(image.permute(2, 0, 1), (4, 4, 4, 4))
        hashed = int(order.hash64(seed, epoch, sample)) & (2**64 - 1)
        top, left = hashed % 2**20 % 9, hashed // 2**20 % 2**20 % 9
        crop = padded[:, top : top + 32, left : left + 32]
        if flip and hashed // 2**40 % 2:
            crop = crop.flip(2)
        out.append(crop.permute(1, 2, 0))
    return torch.stack(out)


@pytest.mark.parametrize("flip", [True, False])
def test_crop_and_flip_equal_a_plain_version(flip: bool) -> None:
    images, samples = some_images(64), torch.arange(100, 164)
    for seed, epoch in ((3, 5), (3, 6), (4, 5)):
        batched = augment.crop_and_flip(images, samples, seed, epoch, flip=flip)
        assert torch.equal(batched, one_by_one(images, samples, seed, epoch, flip))


def test_reflected_borders_mirror_the_image() -> None:
    images, samples = some_images(40), torch.arange(40)
    variation = augment.Variation(padding=2, reflect=True)
    row, column, _ = augment.draws(samples, 3, 5, variation)
    assert {int(place) for place in row} == set(range(5))
    crops = augment.crop_and_flip(images, samples, 3, 5, flip=False, variation=variation)
    for image, crop, top, left in zip(images.numpy(), crops.numpy(), row, column, strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="reflect")
        assert np.array_equal(crop, padded[top : top + 32, left : left + 32])


def test_alternately_mirrored_images_are_seen_from_both_sides_in_two_epochs() -> None:
    samples, variation = torch.arange(1000), augment.Variation(alternate=True)
    first, second, third = (augment.draws(samples, 1, epoch, variation) for epoch in range(3))
    assert torch.equal(first[2], ~second[2])
    assert torch.equal(first[2], third[2])
    assert 400 < first[2].sum() < 600
    assert not torch.equal(first[2], augment.draws(samples, 2, 0, variation)[2])
    assert not torch.equal(first[0], third[0])


def test_draws_are_uniform_and_independent() -> None:
    top, left, mirror = augment.draws(torch.arange(81_000), seed=1, epoch=2)
    together = torch.bincount(18 * top + 2 * left + mirror, minlength=162)
    assert (together.sum(), len(together)) == (81_000, 162)
    assert (together - 500).abs().max() < 115  # five standard deviations


def test_pixels_are_normalised_by_the_constants_of_the_name() -> None:
    images, spec = some_images(16), SPECS["cifar10"]
    channels_first, mean, std = images.permute(0, 3, 1, 2), *(torch.tensor(of)[:, None, None] for of in (spec.mean, spec.std))  # fmt: skip
    theirs = ResNet18_Weights.IMAGENET1K_V1.transforms(crop_size=32, resize_size=32)
    expected = {
        "dataset": (channels_first / 255 - mean) / std,
        "half": channels_first / 127.5 - 1,
        "imagenet": theirs(channels_first),
    }
    for name, wanted in expected.items():
        found = modality.of(normalised(spec, name)).normaliser()(images)
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def micro_batches(config: ResolvedConfig, dataset: Dataset, step: int) -> list[MicroBatch]:
    shards = [DataShard(rank, config.world_size, config.accumulate) for rank in range(config.world_size)]
    loaders = [TrainLoader(config, Decided.asked(config), dataset, shard, CPU) for shard in shards]
    return [micro_batch for loader in loaders for micro_batch in loader.micro_batches(epoch=1, step=step)]


@pytest.mark.parametrize("name", typing.get_args(AugmentName))
def test_what_a_step_sees_is_the_same_at_any_world_size(digits: Dataset, name: AugmentName) -> None:
    mirrored = replace(digits, spec=replace(digits.spec, flip=True))
    usual = {"dataset": "digits", "global_batch_size": 64, "steps_per_epoch": 3}
    reference = None
    for topology, accumulate in (("1x1", 1), ("1x2", 1), ("2x2", 1), ("1x1", 4), ("1x2", 2)):
        config = recipe.resolve(TrainConfig(**usual, topology=topology, accumulate=accumulate))  # type: ignore[arg-type]
        parts = micro_batches(replace(config, augment=name), mirrored, step=2)
        assert {len(part.inputs) for part in parts} == {64 // config.world_size // accumulate}
        whole = [torch.cat(each) for each in list(zip(*parts, strict=True))[:2]]
        reference = whole if reference is None else reference
        assert all(torch.equal(mine, other) for mine, other in zip(whole, reference, strict=True))


def test_without_augmentation_images_are_the_data_sets(digits: Dataset) -> None:
    config = recipe.resolve(TrainConfig(dataset="digits", batch_size=32, augment="none"))
    ((images, labels, *_),) = micro_batches(config, digits, step=2)
    samples = order.global_batch(order.permutation(0, 1, 1437), 2, 32).numpy()
    assert torch.equal(images, modality.of(digits.spec).normaliser()(torch.from_numpy(digits.train.inputs[samples])))
    assert labels.tolist() == digits.train["labels"][samples].tolist()


def test_augmentation_by_name(digits: Dataset) -> None:
    """crop and crop_flip differ by nothing but the mirror images, and digits are not mirrored."""
    assert recipe.resolve(TrainConfig(dataset="digits")).augment == "crop"
    with pytest.raises(ConfigError, match=r"^augment must be none, crop, resized_crop, .*, got crop_flip"):
        recipe.resolve(TrainConfig(dataset="digits", augment="crop_flip"))
    config = recipe.resolve(TrainConfig(dataset="cifar10", batch_size=64))
    assert config.augment == "crop_flip"
    mirrored = replace(digits, spec=replace(digits.spec, flip=True))
    crop, flipped = (micro_batches(replace(config, augment=name), mirrored, 0)[0][0] for name in ("crop", "crop_flip"))
    pairs = list(zip(crop, flipped, strict=True))
    assert all(torch.equal(one, other) or torch.equal(one.flip(2), other) for one, other in pairs)
    assert 16 < sum(torch.equal(one.flip(2), other) for one, other in pairs) < 48


OWN = {"rand": v2.RandAugment(), "trivial": v2.TrivialAugmentWide()}
HERE: dict[str, Callable[..., torch.Tensor]] = {
    "rand": policies.rand_augment,
    "trivial": policies.trivial_augment,
    "crop": partial(policies.resized_crop, flip=True),
}


@pytest.mark.parametrize(("name", "side"), [("rand", 32), ("trivial", 48)])
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


@pytest.mark.parametrize("name", HERE)
def test_a_sample_gets_the_same_in_any_batch_and_something_else_in_another_epoch(name: str) -> None:
    images, samples, vary = some_images(100, 48), torch.arange(100), HERE[name]
    together = vary(images, samples, 3, 5)
    assert (together.dtype, together.shape) == (torch.uint8, images.shape)
    alone = torch.cat([vary(images[each : each + 1], samples[each : each + 1], 3, 5) for each in range(30)])
    assert torch.equal(together[:30], alone)
    for other in (vary(images, samples, 3, 6), vary(images, samples, 4, 5), vary(images, samples + 100, 3, 5)):
        changed = (other != together).flatten(1).any(1)
        assert changed.float().mean() > 0.8


@pytest.mark.parametrize(("name", "side"), [("rand", 28), ("trivial", 32), ("rand", 48)])
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


def test_an_operation_its_level_and_its_way_have_bits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[int, list[int]] = {}

    def note(number: int, images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        drawn[number] = draws.tolist()
        return images

    monkeypatch.setattr(policies, "_together", lambda *_: [partial(note, number) for number in range(14)])
    hashed = torch.tensor([3 + (7 << 20) + (1 << 40), 17 + (30 << 20), 5 + (31 << 20) + (2 << 40)])
    images = torch.arange(3 * 4).view(3, 2, 2, 1)
    for wide, found in ((True, {3: [15, 60], 5: [0]}), (False, {3: [1, 0], 5: [0]})):
        assert policies._apply(images, hashed, wide).equal(images)
        assert drawn == found


@pytest.mark.parametrize(("name", "unchanged"), [("rand", 1 / 14**2), ("trivial", 1 / 14 + 5.6 / 14 / 31)])
def test_images_are_changed_as_often_as_operations_that_do_something_are_drawn(name: str, unchanged: float) -> None:
    """Identity leaves an image as it is, and so do autocontrast of these and most operations at level 0."""
    images, samples = some_images(1).repeat(2_800, 1, 1, 1), torch.arange(2_800)
    kept = (HERE[name](images, samples, 0, 0) == images).flatten(1).all(1).float().mean()
    assert unchanged < kept < unchanged + 2.5 / 14


@pytest.mark.parametrize("side", [32, 96])
def test_a_resized_crop_is_torchvisions_of_the_same_box(side: int) -> None:
    images, samples, own = some_images(60, side), torch.arange(100, 160), v2.RandomResizedCrop(side)
    boxes, mirror = policies.boxes(samples, 3, 5, side), augment.draws(samples, 3, 5)[2]
    others = zip(boxes, policies.boxes(samples, 3, 6, side), strict=True)
    assert sum(one[2:] == another[2:] for one, another in others) < 6
    for flip in (True, False):
        crops = policies.resized_crop(images, samples, 3, 5, flip)
        for image, crop, box, mirrored in zip(images, crops, boxes, mirror, strict=True):
            expected = own.transform(image.permute(2, 0, 1), dict(zip(("top", "left", "height", "width"), box)))
            assert torch.equal(crop.permute(2, 0, 1), expected.flip(2) if flip and mirrored else expected)
    assert 15 < mirror.sum() < 45


def test_boxes_are_spread_as_torchvisions() -> None:
    """Area, aspect ratio and place: the deciles of 5,000 of each."""
    own, image = v2.RandomResizedCrop(224), torch.empty(3, 224, 224)
    torch.manual_seed(0)
    drawn = [[*own.make_params([image]).values()] for _ in range(5_000)]
    tenths = torch.linspace(0.1, 0.9, 9)
    spread = []
    for boxes in (drawn, policies.boxes(torch.arange(5_000), 1, 2, 224)):
        top, left, height, width = torch.tensor(boxes, dtype=torch.float32).T
        assert bool((top >= 0).all() and (top + height <= 224).all() and (left + width <= 224).all())
        figures = (height * width / 224**2, (width / height).log(), top / 224, left / 224)
        spread.append(torch.stack([figure.quantile(tenths) for figure in figures]))
    torch.testing.assert_close(*spread, rtol=0, atol=0.03)


def test_a_box_that_never_fits_is_the_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_TRIES", 0)
    assert policies.boxes(torch.arange(3), 0, 0, 32) == [(0, 0, 32, 32)] * 3


SAMPLES = torch.arange(2000)
DRAWN = mixing.partners(SAMPLES, seed=3, epoch=5, size=50_000)


FIRST, OTHERS = (some_images(2000, 8, seed) for seed in (0, 1))


def test_partners_and_shares_are_drawn_from_seed_epoch_and_sample() -> None:
    assert int(DRAWN.samples.min()) >= 0
    assert 49_000 < int(DRAWN.samples.max()) < 50_000
    assert DRAWN.samples.unique().numel() > 1900
    for shares in DRAWN.draws:
        counts = torch.bincount(shares // 128, minlength=8)
        assert len(counts) == 8
        assert (counts - 250).abs().max() < 75  # five standard deviations
    some = mixing.partners(SAMPLES[100:110], 3, 5, 50_000)
    assert torch.equal(some.samples, DRAWN.samples[100:110])
    assert torch.equal(some.draws, DRAWN.draws[:, 100:110])
    for seed, epoch in ((4, 5), (3, 6)):
        other = mixing.partners(SAMPLES, seed, epoch, 50_000)
        assert (other.samples == DRAWN.samples).float().mean() < 0.01


def test_an_image_mixed_with_one_of_its_class_keeps_its_label() -> None:
    same = torch.full((2000,), 3)
    for name in ("mixup", "cutmix"):
        torch.testing.assert_close(mixing.labels(same, same, DRAWN, name, 8, 5), torch.eye(5)[same])


def test_mixup_blends_images_and_labels_alike() -> None:
    mixed = mixing.mixup(FIRST, OTHERS, DRAWN).numpy()
    shares = DRAWN.draws[0].numpy() / 1024
    blended = FIRST.numpy() * (1 - shares)[:, None, None, None] + OTHERS.numpy() * shares[:, None, None, None]
    assert mixed.dtype == np.uint8
    assert np.abs(mixed - blended).max() <= 0.5
    first, second = torch.zeros(2000, dtype=torch.int64), torch.full((2000,), 2)
    labels = mixing.labels(first, second, DRAWN, "mixup", 8, 4)
    assert labels.dtype == torch.float32
    np.testing.assert_allclose(labels.numpy(), np.stack([1 - shares, 0 * shares, shares, 0 * shares], 1), atol=1e-6)


def test_cutmix_pastes_a_box_and_labels_tell_its_size() -> None:
    mixed = mixing.cutmix(torch.zeros_like(FIRST), torch.full_like(FIRST, 255), DRAWN)
    labels = mixing.labels(torch.zeros(2000).long(), torch.ones(2000).long(), DRAWN, "cutmix", 8, 2)
    pasted = (mixed[..., 0] == 255).float()
    torch.testing.assert_close(labels[:, 1], pasted.mean((1, 2)))
    for found, (share, row, column) in zip(pasted, DRAWN.draws[:, :200].T.tolist()):
        half, top, left = int(8 * (share / 1024) ** 0.5) // 2, 8 * row // 1024, 8 * column // 1024
        box = torch.zeros(8, 8)
        box[max(top - half, 0) : top + half, max(left - half, 0) : left + half] = 1
        assert torch.equal(found, box)
    assert 0.1 < float(labels[:, 1].mean()) < 0.5
    assert torch.equal(mixing.cutmix(FIRST, OTHERS, DRAWN)[pasted.bool()], OTHERS[pasted.bool()])
