"""Data sets of torchvision that classify images, ``--dataset torchvision:NAME``, and what its classes take for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cifar_ray.config.errors import one_of, suggestion
from cifar_ray.config.option import TORCHVISION
from cifar_ray.data.datasets import unusable


@dataclass(frozen=True)
class PublishedSet:
    """A data set whose training and test images are published apart.

    Attributes:
        parts: ``train``, ``test`` and perhaps ``val``, each with what torchvision's class takes for it.
        options: what the class takes beside it.
        flip: whether a mirrored image still shows its class.
        bordered: whether it is in MNIST's format, whose 28x28 images get a border of 2 zeros to 32x32.
        downloads: whether torchvision downloads it; others are put into the folder by hand.
    """

    parts: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    flip: bool = True
    bordered: bool = False
    downloads: bool = True


def _halves(**facts: Any) -> PublishedSet:
    return PublishedSet({"train": {"train": True}, "test": {"train": False}}, **facts)


def _splits(train: str = "train", test: str = "test", val: str = "", **facts: Any) -> PublishedSet:
    names = {"train": train, "test": test, **({"val": val} if val else {})}
    return PublishedSet({part: {"split": name} for part, name in names.items()}, **facts)


SETS: dict[str, PublishedSet] = {
    "CIFAR10": _halves(),
    "CIFAR100": _halves(),
    "CLEVRClassification": _splits(test="val"),  # its test images have no labels
    "Country211": _splits(val="valid"),
    "DTD": _splits(val="val"),
    **{
        f"EMNIST/{split}": _halves(options={"split": split}, flip=False, bordered=True)
        for split in ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")
    },
    "FER2013": _splits(downloads=False),
    "FGVCAircraft": _splits("trainval"),
    "FashionMNIST": _halves(bordered=True),
    "Flowers102": _splits(val="val"),
    "Food101": _splits(),
    "GTSRB": _splits(flip=False),
    "ImageNet": _splits(test="val", downloads=False),
    "Imagenette": _splits(test="val"),
    "KMNIST": _halves(flip=False, bordered=True),
    "MNIST": _halves(flip=False, bordered=True),
    "OxfordIIITPet": _splits("trainval"),
    "PCAM": _splits(val="val"),
    "Places365": _splits("train-standard", "val", options={"small": True}),
    "QMNIST": _halves(flip=False, bordered=True),
    "RenderedSST2": _splits(val="val", flip=False),
    "STL10": _splits(),
    "SVHN": _splits(flip=False),
    "StanfordCars": _splits(downloads=False),
    "USPS": _halves(flip=False),
}


def known(dataset: str) -> PublishedSet | None:
    """What is known of ``torchvision:NAME``; None for any other data set."""
    return SETS.get(dataset.removeprefix(TORCHVISION)) if dataset.startswith(TORCHVISION) else None


def find(dataset: str) -> PublishedSet:
    """What is known of ``torchvision:NAME``.

    Raises:
        ConfigError: when torchvision does not have it, or not with training and test images.
    """
    if found := known(dataset):
        return found
    name = dataset.removeprefix(TORCHVISION)
    other_case = next((each for each in SETS if each.lower() == name.lower()), name)
    variants = [f"{TORCHVISION}{each}" for each in SETS if each.startswith(f"{name.partition('/')[0]}/")]
    rule = one_of(variants) if variants else "a data set of torchvision that has labels, and test images apart"
    raise unusable(f"must be {rule}, got {dataset[:80]}{suggestion(other_case, SETS)}")
