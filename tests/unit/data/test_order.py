from __future__ import annotations

import pytest
import torch

from cifar_ray.data import order


def test_hash_is_splitmix64() -> None:
    # One word is the first output of SplitMix64 seeded with it; 0 -> 0xE220A8397B1DCDAF is its known answer.
    assert int(order.hash64(torch.tensor(0))) & (2**64 - 1) == 0xE220A8397B1DCDAF


def reference(*words: int) -> int:
    """SplitMix64's finaliser in unbounded integers."""
    mask, state = 2**64 - 1, 0
    for word in words:
        z = ((state ^ word) + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        state = z ^ z >> 31
    return state


def test_hash_equals_an_independent_implementation() -> None:
    samples = torch.tensor([0, 1, 2, 49_999, 2**40])
    hashed = order.hash64(5, 17, samples).tolist()
    assert [value & (2**64 - 1) for value in hashed] == [reference(5, 17, sample) for sample in samples.tolist()]


def test_a_permutation_has_every_sample_once_and_differs_by_seed_and_epoch() -> None:
    orders = [order.permutation(seed, epoch, 1000) for seed in (0, 1) for epoch in (0, 1)]
    for permutation in orders:
        assert sorted(permutation.tolist()) == list(range(1000))
    assert len({tuple(permutation.tolist()) for permutation in orders}) == 4


def test_the_order_is_that_of_the_hashes() -> None:
    """Stored runs depend on it: a change here would make every one of them irreproducible."""

    def signed(value: int) -> int:
        return value - 2**64 if value >= 2**63 else value

    for seed, epoch in ((0, 0), (7, 3)):
        expected = sorted(range(200), key=lambda sample: signed(reference(seed, epoch, sample)))
        assert order.permutation(seed, epoch, 200).tolist() == expected
    assert order.permutation(7, 3, 10).tolist() == [0, 5, 2, 9, 1, 7, 6, 3, 8, 4]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_the_union_over_workers_is_the_same_at_any_world_size(world_size: int) -> None:
    batch = order.global_batch(order.permutation(seed=3, epoch=1, size=500), step=2, batch=48)
    parts = [order.share(batch, rank, world_size) for rank in range(world_size)]
    assert torch.equal(torch.cat(parts), batch)
    assert {len(part) for part in parts} == {48 // world_size}


def test_an_epoch_of_global_batches_repeats_nothing() -> None:
    steps = order.steps_per_epoch(500, 48)
    seen = torch.cat([order.global_batch(order.permutation(0, 0, 500), step, 48) for step in range(steps)])
    assert steps == 10
    assert len(set(seen.tolist())) == 480


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_evaluation_sees_every_sample_exactly_once(world_size: int) -> None:
    seen = [sample for rank in range(world_size) for sample in order.evaluation_range(10_000, rank, world_size)]
    assert seen == list(range(10_000))


def test_step_seeds_differ_by_seed_step_and_rank() -> None:
    seeds = [seed for run in (0, 1) for rank in (0, 1) for seed in order.step_seeds(run, range(100), rank)]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert order.step_seeds(0, range(95, 100), 1) == order.step_seeds(0, range(100), 1)[95:]
