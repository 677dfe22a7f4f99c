from __future__ import annotations

import typing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchvision.models import ResNet18_Weights

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import AugmentName
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import SPECS, Dataset, augment, modality, order
from cifar_ray.data.datasets import normalised
from cifar_ray.data.loader import DataShard, MicroBatch, TrainLoader
from cifar_ray.training import recipe
from cifar_ray.training.evaluate import evaluation_batches

CPU = torch.device("cpu")


def some_images(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


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


def test_crop_and_flip_equal_a_plain_version() -> None:
    images, samples = some_images(64), torch.arange(100, 164)
    for flip in (True, False):
        batched = augment.crop_and_flip(images, samples, seed=3, epoch=5, flip=flip)
        assert torch.equal(batched, one_by_one(images, samples, 3, 5, flip))


def test_a_sample_is_varied_the_same_in_any_batch_and_otherwise_in_another_epoch() -> None:
    images, samples = some_images(8), torch.arange(8)
    together = augment.crop_and_flip(images, samples, 0, 0, flip=True)
    alone = augment.crop_and_flip(images[5:6], samples[5:6], 0, 0, flip=True)
    assert torch.equal(together[5:6], alone)
    assert not torch.equal(together, augment.crop_and_flip(images, samples, 0, 1, flip=True))
    assert not torch.equal(together, augment.crop_and_flip(images, samples, 1, 0, flip=True))


def test_reflected_borders_mirror_the_image() -> None:
    images, samples = torch.randint(0, 256, (40, 32, 32, 3), dtype=torch.uint8), torch.arange(40)
    variation = augment.Variation(padding=2, reflect=True)
    row, column, _ = augment.draws(samples, 3, 5, variation)
    assert {int(place) for place in row} == set(range(5))
    crops = augment.crop_and_flip(images, samples, 3, 5, flip=False, variation=variation)
    for image, crop, top, left in zip(images.numpy(), crops.numpy(), row, column, strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="reflect")
        assert np.array_equal(crop, padded[top : top + 32, left : left + 32])


def test_alternately_mirrored_images_are_seen_from_both_sides_in_two_epochs() -> None:
    samples, variation = torch.arange(1000), augment.Variation(alternate=True)
    first, second, third = (augment.draws(samples, 1, epoch, variation)[2] for epoch in range(3))
    assert torch.equal(first, ~second)
    assert torch.equal(first, third)
    assert 400 < first.sum() < 600
    assert not torch.equal(first, augment.draws(samples, 2, 0, variation)[2])
    crops = [augment.draws(samples, 1, epoch, variation)[0] for epoch in (0, 2)]
    assert not torch.equal(*crops)


def test_draws_are_uniform_and_independent() -> None:
    top, left, mirror = augment.draws(torch.arange(81_000), seed=1, epoch=2)
    together = torch.bincount(18 * top + 2 * left + mirror, minlength=162)
    assert together.sum() == 81_000
    assert len(together) == 162
    assert (together - 500).abs().max() < 115  # five standard deviations


def test_half_brings_pixels_to_between_minus_one_and_one() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).repeat_interleave(32 * 32 * 3).view(3, 32, 32, 3)
    out = modality.of(normalised(SPECS["cifar10"], "half")).normaliser()(pixels)
    torch.testing.assert_close(out.mean((1, 2, 3)), torch.tensor([-1.0, -0.6, 1.0]))


def test_imagenets_constants_are_torchvisions() -> None:
    """Those of the transforms that torchvision's weights come with."""
    images = some_images(4)
    transform = ResNet18_Weights.IMAGENET1K_V1.transforms(crop_size=32, resize_size=32)
    out = modality.of(normalised(SPECS["cifar10"], "imagenet")).normaliser()(images)
    torch.testing.assert_close(out, transform(images.permute(0, 3, 1, 2)), rtol=1e-5, atol=1e-5)


def test_normalised_images_are_channels_last_and_standardised() -> None:
    spec = SPECS["cifar10"]
    images = some_images(16)
    out = modality.of(spec).normaliser()(images)
    assert out.shape == (16, 3, 32, 32)
    assert out.is_contiguous(memory_format=torch.channels_last)
    expected = (images.permute(0, 3, 1, 2) / 255 - torch.tensor(spec.mean)[:, None, None]) / torch.tensor(spec.std)[
        :, None, None
    ]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def micro_batches(config: ResolvedConfig, dataset: Dataset, world_size: int, step: int) -> list[MicroBatch]:
    loaders = [
        TrainLoader(config, Decided.asked(config), dataset, DataShard(rank, world_size, config.accumulate), CPU)
        for rank in range(world_size)
    ]
    return [micro_batch for loader in loaders for micro_batch in loader.micro_batches(epoch=1, step=step)]


@pytest.mark.parametrize("name", typing.get_args(AugmentName))
def test_what_a_step_sees_is_the_same_at_any_world_size(digits: Dataset, name: AugmentName) -> None:
    mirrored = replace(digits, spec=replace(digits.spec, flip=True))
    reference = None
    for topology, accumulate in (("1x1", 1), ("1x2", 1), ("2x2", 1), ("1x1", 4), ("1x2", 2)):
        config = recipe.resolve(
            TrainConfig(
                dataset="digits", global_batch_size=64, topology=topology, accumulate=accumulate, steps_per_epoch=3
            )
        )
        parts = micro_batches(replace(config, augment=name), mirrored, config.world_size, step=2)
        assert {len(part.inputs) for part in parts} == {64 // config.world_size // accumulate}
        whole = [torch.cat(each) for each in list(zip(*parts, strict=True))[:2]]
        reference = whole if reference is None else reference
        assert all(torch.equal(mine, other) for mine, other in zip(whole, reference, strict=True))


def test_without_augmentation_images_are_the_data_sets(digits: Dataset) -> None:
    config = recipe.resolve(TrainConfig(dataset="digits", batch_size=32, augment="none"))
    (images, labels, *_), *_ = TrainLoader(config, Decided.asked(config), digits, DataShard(), CPU).micro_batches(0, 0)
    samples = order.global_batch(order.permutation(0, 0, 1437), 0, 32).numpy()
    assert torch.equal(images, modality.of(digits.spec).normaliser()(torch.from_numpy(digits.train.inputs[samples])))
    assert labels.tolist() == digits.train["labels"][samples].tolist()


def test_evaluation_batches_cover_the_test_set(digits: Dataset) -> None:
    labels = [
        label
        for rank in range(3)
        for _, part in evaluation_batches(digits.test, "labels", digits.spec, rank, 3, CPU)
        for label in part.tolist()
    ]
    assert labels == digits.test["labels"].tolist()


def test_augmentation_by_name(digits: Dataset) -> None:
    """crop and crop_flip differ by nothing but the mirror images, and digits are not mirrored."""
    assert recipe.resolve(TrainConfig(dataset="digits")).augment == "crop"
    with pytest.raises(ConfigError) as refused:
        recipe.resolve(TrainConfig(dataset="digits", augment="crop_flip"))
    assert refused.value.as_flag() == (
        "--augment must be none, crop, resized_crop, randaugment, trivialaugment, mixup or cutmix for digits, whose "
        "classes a mirror image does not show, got crop_flip"
    )
    config = recipe.resolve(TrainConfig(dataset="cifar10", batch_size=64))
    assert config.augment == "crop_flip"
    shown = {}
    mirrored = replace(digits, spec=replace(digits.spec, flip=True))
    for name in ("crop", "crop_flip"):
        loader = TrainLoader(
            replace(config, augment=name), Decided.asked(replace(config, augment=name)), mirrored, DataShard(), CPU
        )  # type: ignore[arg-type]
        ((shown[name], *_),) = loader.micro_batches(0, 0)
    flipped = [torch.equal(one.flip(2), other) for one, other in zip(shown["crop"], shown["crop_flip"], strict=True)]
    same = [torch.equal(one, other) for one, other in zip(shown["crop"], shown["crop_flip"], strict=True)]
    assert all(one or other for one, other in zip(flipped, same, strict=True))
    assert 16 < sum(flipped) < 48
