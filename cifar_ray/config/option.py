"""What an option says of itself: whether it decides the weights, and for which choice it is.

The sections of a config declare options with :func:`option`, and every rule about them reads these marks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import AfterValidator

from cifar_ray.config.errors import ConfigError, brief, one_of

TORCHVISION, TEXT = "torchvision:", "text:"
SOURCES: dict[str, Any] = {
    TORCHVISION: "published",
    "folder:": "folders",
    "masks:": "masks",
    "coco:": "coco",
    TEXT: "texts",
    "table:": "tables",
}
"""What ``--dataset`` begins with, and what reads such data: a file of ``data/`` that has a ``SOURCE``, or its class."""

FOLDER_PATH, MASKS_PATH, COCO_PATH, TEXT_PATH, TABLE_PATH = (
    f"{kind}:PATH" for kind in ("folder", "masks", "coco", "text", "table")
)
OWN, OF_TORCHVISION = "MODULE:FUNCTION", f"{TORCHVISION}NAME"
"""Choices that an option may be for, beside the names of this package."""

DATASETS = (OF_TORCHVISION, FOLDER_PATH, MASKS_PATH, COCO_PATH, TEXT_PATH, TABLE_PATH, OWN)
"""What ``--dataset`` may be, beside a name."""

SIZED = (FOLDER_PATH, MASKS_PATH, COCO_PATH, OF_TORCHVISION, TABLE_PATH)
"""Data sets whose images are brought to ``--image-size``."""

LIBRARIES = ("torchvision", "timm")
"""Libraries whose networks ``--model`` names, as in ``torchvision:resnet18``."""

IMPORT_PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
"""``MODULE:FUNCTION``, such as ``mypackage.nets:build``."""


def option(
    default: Any, *, weights: bool, only: Mapping[str, tuple[str, ...]] | None = None, recorded: bool = False
) -> Any:
    """A field of a config, with its default or a class that makes it.

    Args:
        weights: whether it decides the weights, so that a run keeps it to its last step.
        only: the choice that it is for: a field of ``TrainConfig`` and the values it may have.
        recorded: whether the program fills it in, and no person does.
    """
    marks = {"weights": weights, "only": only or {}, "recorded": recorded}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=marks)
    return dataclasses.field(default=default, metadata=marks)


def is_own(name: str | None) -> bool:
    """Whether a field names one of the user's own, and none of this package."""
    return name is not None and ":" in name


def library_of(name: str | None) -> str:
    """The library that has a network; empty for any other model."""
    library, colon, _ = (name or "").partition(":")
    return library if colon and library in LIBRARIES else ""


def is_function(name: str | None) -> bool:
    """Whether a field names a function of the user's own, which is imported."""
    return is_own(name) and not library_of(name)


def prefix_of(dataset: str) -> str:
    """What a data set begins with that is one of :data:`SOURCES`; empty for others."""
    prefix = "".join(dataset.partition(":")[:2])
    return prefix if prefix in SOURCES else ""


def is_folder(dataset: str) -> bool:
    """Whether a data set is files below a path."""
    return prefix_of(dataset) not in ("", TORCHVISION)


def path_of(dataset: str) -> str:
    """The path of a data set that is files below one; of others, their name."""
    return dataset.partition(":")[2] if is_folder(dataset) else dataset


def short(dataset: str) -> str:
    """A data set without the folders that its path goes through: ``folder:flowers``."""
    return f"{prefix_of(dataset)}{path_of(dataset).rpartition('/')[2]}" if is_folder(dataset) else dataset


def or_own(names: tuple[str, ...], *own: str, pattern: str = IMPORT_PATH) -> AfterValidator:
    """One of ``names``, or ``own`` (a function, unless given) of the user's, which has this ``pattern``."""

    def check(text: str) -> str:
        if text not in names and not re.fullmatch(pattern, text, re.ASCII | re.DOTALL):
            raise ValueError(f"must be {one_of([*names, *(own or (OWN,))])}, got {brief(text)}")
        return text

    return AfterValidator(check)


def of_weights(cls: Any, config: Any) -> dict[str, Any]:
    """The options of a ``cls`` that decide the weights, with their values in a config of such a class."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(cls) if field.metadata["weights"]}


def chosen(value: str | None) -> str | None:
    """What an option that is for some choices calls this one: a name of this package or of a library, or one's own."""
    if value is None or not is_own(value):
        return value
    if library := library_of(value):
        return f"{library}:NAME"
    kind = f"{prefix_of(value)}PATH"
    return kind if kind in (*SIZED, TEXT_PATH) else OWN  # a kind that no option is for counts as one's own


def left_out(cls: Any, values: Mapping[str, Any]) -> set[str]:
    """The fields of a config that a sweep leaves out of a run with these values.

    They say how other data are read, or belong to another optimizer. Without an option of a strategy, a run would do
    other work than the rest of a comparison, so that the sweep is refused.
    """
    return {field.name for field in unused(cls, values) if "strategy" not in field.metadata["only"]}


def unused(cls: Any, values: Mapping[str, Any]) -> Iterator[dataclasses.Field[Any]]:
    """The fields of a config that are for other choices than these values, or the defaults where there is none."""
    for field in dataclasses.fields(cls):
        for kind, owners in field.metadata.get("only", {}).items():
            if chosen(values.get(kind, getattr(cls, kind))) not in owners:
                yield field


def check_choices(config: Any) -> None:
    """Refuse options of what was not chosen."""
    for field in unused(type(config), vars(config)):
        made, value = field.default_factory, getattr(config, field.name)
        if value == (field.default if made is dataclasses.MISSING else made()):
            continue
        ((kind, owners),) = field.metadata["only"].items()
        name = f"{field.name}.{next(iter(value))}" if isinstance(value, dict) else field.name
        now = getattr(config, kind) or "the model's own"
        raise ConfigError(name, f"is for --{kind} {one_of(owners)} only, and the {kind} is {now}")
