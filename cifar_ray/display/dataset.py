"""Lines on a data set that has been read."""

from __future__ import annotations

from collections.abc import Iterator

from cifar_ray.config.errors import some
from cifar_ray.config.facts import Facts
from cifar_ray.data import Dataset
from cifar_ray.tasks import TaskSpec

_ABOUT_EQUAL = 1.25
"""How many times as many images as another a class may have to count as equal; in MNIST it is 1.24."""


def lines(dataset: Dataset, task: TaskSpec) -> Iterator[str]:
    """What is in it, ``4 classes, 960 training and 240 test images``, and cautions."""
    facts, ignored = dataset.spec, ""
    if any(facts.ignored):
        sizes = (split["masks"].size for split in (dataset.train, dataset.test))
        train, test = (f"{100 * count / size:.1f} %" for count, size in zip(facts.ignored, sizes))
        ignored = f"{train} of training and {test} of test pixels do not count"
    learned = f"{facts.train_size:,} training" + (f", {facts.val_size:,} validation" if facts.val_size else "")
    number = f"{facts.num_classes:,} {task.names if facts.num_classes > 1 else task.names[:-1]}"
    counts = f"{number}, {learned} and {facts.test_size:,} test {task.unit}"
    yield "; ".join(filter(None, (counts, ignored, dataset.left_out)))
    yield from _copies(facts, task.unit)
    yield from _imbalance(facts, task.confused)


def _copies(facts: Facts, unit: str) -> Iterator[str]:
    """How many test and validation samples are copies, which flatter the figures."""
    copies = []
    if facts.test_copies:
        others = f"training{' or validation' * bool(facts.val_size)} {unit}"
        copies.append(f"{facts.test_copies:,} of {facts.test_size:,} test {unit} are copies of {others}")
    if facts.val_copies:
        copies.append(f"{facts.val_copies:,} of {facts.val_size:,} validation {unit} are copies of training {unit}")
    if copies:
        yield f"caution: as the model gets them, {' and '.join(copies)}"


def _imbalance(facts: Facts, unit: str) -> Iterator[str]:
    """``training images by class: 2.1 % (61, cat) to 41.0 % (1,204, dog)``, unless they are about equal."""
    counts = dict(zip(facts.names, facts.class_counts))
    if not counts or max(counts.values()) <= _ABOUT_EQUAL * min(counts.values()):
        return
    extremes = (
        f"{100 * counts[name] / sum(counts.values()):.1f} % ({counts[name]:,}, {name})"
        for name in (min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__))
    )
    yield f"training {unit} by class: {' to '.join(extremes)}"
    if empty := [name for name, count in counts.items() if not count]:
        yield f"caution: there are no training {unit} of {some(empty)}"
