from __future__ import annotations

import pytest
import torch

from cifar_ray.data import order


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
    # One word is the first output of SplitMix64 seeded with it; 0 -> 0xE220A8397B1DCDAF is its known answer.
    assert int(order.hash64(torch.tensor(0))) & (2**64 - 1) == 0xE220A8397B1DCDAF
    samples = torch.tensor([0, 1, 2, 49_999, 2**40])
    hashed = order.hash64(5, 17, samples).tolist()
    assert [value & (2**64 - 1) for value in hashed] == [reference(5, 17, sample) for sample in samples.tolist()]


def test_the_order_is_that_of_the_hashes() -> None:
    """Stored runs depend on it: a change here would make every one of them irreproducible."""

    def signed(value: int) -> int:
        return value - 2**64 if value >= 2**63 else value

    for seed, epoch in ((0, 0), (7, 3)):
        expected = sorted(range(200), key=lambda sample: signed(reference(seed, epoch, sample)))
        assert order.permutation(seed, epoch, 200).tolist() == expected
    assert order.permutation(7, 3, 10).tolist() == [0, 5, 2, 9, 1, 7, 6, 3, 8, 4]


def test_workers_share_a_global_batch_and_an_epoch_of_them_repeats_nothing() -> None:
    samples = order.permutation(seed=3, epoch=1, size=500)
    assert order.steps_per_epoch(500, 48) == 10
    batches = [order.global_batch(samples, step, 48) for step in range(10)]
    assert torch.equal(torch.cat(batches), samples[:480])
    for world_size in (1, 2, 3, 4, 6):
        parts = [order.share(batches[2], rank, world_size) for rank in range(world_size)]
        assert torch.equal(torch.cat(parts), batches[2])
        assert {len(part) for part in parts} == {48 // world_size}


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_evaluation_sees_every_sample_exactly_once(world_size: int) -> None:
    seen = [sample for rank in range(world_size) for sample in order.evaluation_range(10_000, rank, world_size)]
    assert seen == list(range(10_000))


def test_step_seeds_differ_by_seed_step_and_rank() -> None:
    seeds = [seed for run in (0, 1) for rank in (0, 1) for seed in order.step_seeds(run, range(100), rank)]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert order.step_seeds(0, range(95, 100), 1) == order.step_seeds(0, range(100), 1)[95:]


@pytest.fixture(scope="module")
def lengths() -> torch.Tensor:
    """What 1,000 texts are padded to: few are long."""
    drawn = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    return torch.tensor([16, 32, 64, 128])[(4 * drawn**3).long()]


@pytest.mark.parametrize("batch", [48, 100, 999])
def test_an_epoch_by_length_has_as_many_steps_as_without_and_repeats_nothing(lengths: torch.Tensor, batch: int) -> None:
    steps = order.steps_per_epoch(1000, batch)
    epochs = [order.bucketed(3, epoch, lengths, batch).tolist() for epoch in range(2)]
    for samples in epochs:
        assert len(samples) == len(set(samples)) == steps * batch
    assert epochs[0] != epochs[1]
    left_out = [set(range(1000)).difference(samples) for samples in epochs]
    assert left_out[0] != left_out[1] or not left_out[0]


def test_a_global_batch_by_length_has_one_length_but_for_one_batch_between_two(lengths: torch.Tensor) -> None:
    batches = order.bucketed(0, 0, lengths, 50).view(-1, 50)
    kinds = [lengths[batch].unique().tolist() for batch in batches]
    mixed = [kind for kind in kinds if len(kind) > 1]
    assert len(mixed) <= 3
    assert {kind[0] for kind in kinds if len(kind) == 1} == {16, 32, 64, 128}
    assert kinds != sorted(kinds)  # short and long ones alternate
    padded = sum(50 * int(lengths[batch].max()) for batch in batches)
    shuffled = order.permutation(0, 0, 1000).view(-1, 50)
    assert padded < 0.5 * sum(50 * int(lengths[batch].max()) for batch in shuffled)


def test_the_order_by_length_is_that_of_the_hashes(lengths: torch.Tensor) -> None:
    """Stored runs depend on it, as on the one without lengths."""
    few = torch.tensor([16, 32, 16, 32, 16, 64, 16, 32, 64, 16])
    # All but 4, the last one by hash, sorted by length, in threes: 0 2 9, 6 1 7, 3 5 8; these in the order of their hashes.
    assert order.permutation(7, 3, 3).tolist() == [0, 2, 1]
    assert order.bucketed(7, 3, few, 3).tolist() == [0, 2, 9, 3, 5, 8, 6, 1, 7]
