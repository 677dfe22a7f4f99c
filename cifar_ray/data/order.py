"""Who sees which sample, when: pure functions of (seed, epoch, step, sample).

Nothing here depends on the number of workers except the slice that each rank takes of a
global batch, so the union of what the workers see in a step is the same at any world size.

Every random choice is a hash of the numbers that it depends on. A hash needs no state to save or restore,
and it gives the same numbers on a CPU and on a GPU, in any version of any library. A sample's position in its
epoch and its augmentation come from one hash: the position from its highest bits, the augmentation from others.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def hash64(*words: int | Tensor) -> Tensor:
    """Hash integers to uniformly distributed int64, element by element.

    The finaliser of SplitMix64 (Steele, Lea and Flood, 2014) folded over the words: integers, or int64 tensors of one
    shape, which at least one has and the result, too.
    """
    device = next((word.device for word in words if isinstance(word, Tensor)), None)
    state = torch.zeros((), dtype=torch.int64, device=device)
    for word in words:
        state = _finalise((state ^ word) + _GAMMA)
    return state


def _finalise(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic on signed numbers."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def permutation(seed: int, epoch: int, size: int) -> Tensor:
    """The order of samples 0 to ``size - 1`` in an epoch, sorted by their hash; int64, shape (size,)."""
    return torch.argsort(hash64(seed, epoch, torch.arange(size)), stable=True)


def bucketed(seed: int, epoch: int, lengths: Tensor, batch: int) -> Tensor:
    """The order of an epoch whose global batches have samples of about equal lengths; int64, (steps x ``batch``,).

    As many samples as fill whole global batches of ``batch`` are drawn by their hash, sorted by ``lengths`` (int64,
    (N,)) and cut into global batches, which come in hashed order: no more are left out than without lengths.
    """
    steps = steps_per_epoch(len(lengths), batch)
    drawn = permutation(seed, epoch, len(lengths))[: steps * batch]
    batches = drawn[torch.argsort(lengths[drawn], stable=True)].view(steps, batch)
    return batches[permutation(seed, epoch, steps)].flatten()


def steps_per_epoch(size: int, global_batch: int) -> int:
    """Whole global batches in an epoch. The remaining samples, others in each epoch, are left out."""
    return size // global_batch


def global_batch(epoch_order: Tensor, step: int, batch: int) -> Tensor:
    """The samples of global batch ``step`` of the epoch with that order; int64, shape (batch,)."""
    return epoch_order[step * batch : (step + 1) * batch]


def share(samples: Tensor, index: int, shares: int) -> Tensor:
    """Part ``index`` of a global batch cut into ``shares``: contiguous, equal in size to the others."""
    size = len(samples) // shares
    return samples[index * size : (index + 1) * size]


def evaluation_range(size: int, rank: int, world_size: int) -> range:
    """The test samples of ``rank``: contiguous, every sample on exactly one rank, sizes at most one apart."""
    return range(size * rank // world_size, size * (rank + 1) // world_size)


def step_seeds(seed: int, steps: range, micro_batch: int) -> list[int]:
    """Seeds of torch's generators (dropout), 0 to 2**63 - 1, for one micro-batch of every global batch of ``steps``.

    Steps count over the whole run, and ``micro_batch`` over all ranks, from 0 in each global batch.
    """
    return _shift(hash64(seed, torch.arange(steps.start, steps.stop), micro_batch), 1).tolist()
