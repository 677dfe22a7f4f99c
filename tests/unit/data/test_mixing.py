from __future__ import annotations

import numpy as np
import pytest
import torch

from cifar_ray.data import mixing

SAMPLES = torch.arange(2000)
DRAWN = mixing.partners(SAMPLES, seed=3, epoch=5, size=50_000)


def some_images(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (2000, 8, 8, 3), dtype=torch.uint8, generator=generator)


OWN, OTHERS = some_images(0), some_images(1)


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


def test_mixup_blends_images_and_labels_alike() -> None:
    mixed = mixing.mixup(OWN, OTHERS, DRAWN).numpy()
    shares = DRAWN.draws[0].numpy() / 1024
    blended = OWN.numpy() * (1 - shares)[:, None, None, None] + OTHERS.numpy() * shares[:, None, None, None]
    assert mixed.dtype == np.uint8
    assert np.abs(mixed - blended).max() <= 0.5
    first, second = torch.zeros(2000, dtype=torch.int64), torch.full((2000,), 2)
    labels = mixing.labels(first, second, DRAWN, "mixup", 8, 4)
    assert labels.dtype == torch.float32
    np.testing.assert_allclose(labels.numpy(), np.stack([1 - shares, 0 * shares, shares, 0 * shares], 1), atol=1e-6)


def test_cutmix_pastes_a_box_and_labels_tell_its_size() -> None:
    mixed = mixing.cutmix(torch.zeros_like(OWN), torch.full_like(OWN, 255), DRAWN)
    labels = mixing.labels(torch.zeros(2000).long(), torch.ones(2000).long(), DRAWN, "cutmix", 8, 2)
    pasted = (mixed[..., 0] == 255).float()
    torch.testing.assert_close(labels[:, 1], pasted.mean((1, 2)))
    for inside in pasted[:200].bool():
        rows, columns = inside.any(1), inside.any(0)
        assert torch.equal(inside, rows[:, None] & columns[None, :])
        for line in (rows, columns):
            assert (line.int().diff() == 1).sum() <= 1  # one box, and no hole
    assert 0.1 < float(labels[:, 1].mean()) < 0.5
    assert torch.equal(mixing.cutmix(OWN, OTHERS, DRAWN)[pasted.bool()], OTHERS[pasted.bool()])


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_an_image_mixed_with_one_of_its_class_keeps_its_label(name: str) -> None:
    same = torch.full((2000,), 3)
    labels = mixing.labels(same, same, DRAWN, name, 8, 5)
    torch.testing.assert_close(labels, torch.eye(5)[same])
