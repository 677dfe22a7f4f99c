"""Which samples are kept for the test or for validation: a pure function of the samples and the share.

The seed does not move a sample, nor the test set one of validation; a larger share keeps what a smaller one keeps.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from cifar_ray.config.errors import ConfigError
from cifar_ray.data.datasets import Split


def rows(
    keys: Sequence[Any], contents: Sequence[Any], classes: np.ndarray, names: Sequence[str], share: float, option: str
) -> np.ndarray:
    """Whether each sample is kept, bool (N,): of each of ``classes`` the share with the lowest ranks, at least one.

    A rank is the SHA-256 of a key of bytes, or a number as it is. Samples of equal ``contents`` are on one side, that
    of the first of them, whatever their classes. A ConfigError about ``option`` names a class with nothing on one side.
    """
    equal: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row, content in enumerate(contents):
        equal[content].append(row)
    ranks = [key if isinstance(key, int) else hashlib.sha256(key).digest() for key in keys]
    left = np.maximum(np.round(share * np.bincount(classes, minlength=len(names))), 1)
    kept = np.zeros(len(keys), dtype=bool)
    for group in sorted(equal.values(), key=lambda group: ranks[group[0]]):  # type: ignore[arg-type, return-value]
        label = classes[group[0]]
        if left[label] > 0:
            kept[group] = True
            left[label] -= np.count_nonzero(classes[group] == label)
    for label, name in enumerate(names):
        chosen = kept[classes == label]
        if chosen.all() or not chosen.any():
            what = f"class {name!r}" if name else "the data"
            raise ConfigError(option, f"must leave a sample of {what} on both sides, got {share:g} of {len(chosen):,}")
    return kept


def copies(parts: Mapping[str, Split]) -> tuple[int, int]:
    """Test samples whose inputs training or validation samples have, too, and validation samples so of training."""
    inputs = {name: [hash(row.tobytes()) for row in part.inputs] for name, part in parts.items()}
    learned, val = set(inputs["train"]), inputs.get("val", [])
    known = learned.union(val)
    return sum(row in known for row in inputs["test"]), sum(row in learned for row in val)
