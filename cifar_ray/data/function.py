"""Arrays that a function of the user's own returns, ``--dataset MODULE:FUNCTION``.

The function returns ``(images, labels), (images, labels)``, for training and for the test, and may return the names of
the classes after them: uint8 images (N, side, side, 3) or (N, side, side) and whole numbers (N,). For another task it
returns what that learns in place of labels. In place of images it may return rows of finite numbers, floating (N,
length), or texts as whole numbers (N, length) with 0 as padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cifar_ray import tasks
from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.facts import Inputs
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Part, Source
from cifar_ray.tasks.protocol import Task

_RULE = (
    "must return (images, {target}) for training and for the test, and perhaps the {names}' names: uint8 images "
    "(N, side, side, 3) or (N, side, side) of one size, or finite features or tokens (N, length), and {rule}"
)

_FLOATS = (np.float32, np.float64)


class Function(Source):
    """What a function returns for a task that learns of it."""

    def __init__(self, config: TrainConfig) -> None:
        path, task = config.dataset, tasks.of(config)
        with imports.calling(path, "dataset", "must return arrays"):
            returned = imports.load(path, "dataset")()
        try:
            self._check(returned, task)
        except ConfigError:
            raise
        except ValueError as error:
            names = "classes" if task.spec.has_classes else "outputs"
            rule = _RULE.format(target=task.target, names=names, rule=task.rule)
            raise unusable(f"{rule}; {path} returns {error}") from None

    def _check(self, returned: Any, task: type[Task]) -> None:
        """Take what a function has returned; a ValueError says what is wrong with it."""
        if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
            raise ValueError(brief(returned))
        halves = [_half(half, name, task.target) for half, name in zip(returned, ("training", "test"))]
        (self.kind, train, _), (other, test, _) = halves
        if self.kind != other or train.shape[1:] != test.shape[1:]:
            sizes = [f"{name} of {inputs.shape[1:3]}" for name, inputs, _ in halves]
            raise ValueError(f"{sizes[0]} for training and {sizes[1]} for the test")
        given = arrays.narrowed([train, test]) if self.kind == "features" else [train, test]
        names = returned[2:]
        if names and not isinstance(names[0], list | tuple | range):
            raise ValueError(f"{brief(names[0])} as names")
        try:
            checked = task.targets(halves[0][2], halves[1][2], names[0] if names else None)
        except ValueError:
            raise
        except Exception as error:
            raise ConfigError("task", f"must check targets, and {task.__name__} fails: {imports.told(error)}") from None
        learned = [*map(np.ascontiguousarray, (checked.train, checked.test))]
        for targets, inputs in zip(learned, given):
            is_number = targets.dtype.kind in "iub" or targets.dtype in _FLOATS
            fits = targets.shape == inputs.shape[:3] or not task.spec.has_masks
            if len(targets) != len(inputs) or not is_number or not fits:
                raise ValueError(f"{task.target} of {targets.dtype} {targets.shape} for {inputs.shape} {self.kind}")
        if len(set(checked.names)) < len(checked.names) or not all(isinstance(name, str) for name in checked.names):
            raise ValueError(f"{brief(checked.names)} as names")
        self.classes, self.column = checked.names, task.target
        self.parts = dict(zip(("train", "test"), map(Part, given, learned)))


SOURCE = Function


def _half(half: Any, name: str, target: str) -> tuple[Inputs, np.ndarray, np.ndarray]:
    """The kind of what a function has returned for one half, what the model is given, and what it learns."""
    try:
        inputs, targets = map(np.asarray, half)
    except (TypeError, ValueError, RuntimeError):  # torch's tensors that have a gradient raise the last one
        raise ValueError(f"{brief(half)} for {name}") from None
    kind, checked = _of_kind(inputs)
    if checked is None or not inputs.size:
        raise ValueError(f"{name} {kind} of {inputs.dtype} {inputs.shape}")
    if kind == "tokens" and ((checked[:, :-1] == 0) & (checked[:, 1:] != 0)).any():
        raise ValueError(f"{name} tokens with a 0, which is padding, before others")
    if targets.shape[:1] != inputs.shape[:1]:
        raise ValueError(f"{name} {target} of {targets.dtype} {targets.shape} for {len(inputs)} {kind}")
    return kind, np.ascontiguousarray(checked), targets


def _of_kind(inputs: np.ndarray) -> tuple[Inputs, np.ndarray | None]:
    """What a model is given, as a split has it, and its kind; None where it cannot be that."""
    if inputs.ndim == 2 and inputs.dtype.kind == "f":
        fits = (np.abs(inputs) <= np.finfo(np.float32).max).all()
        return "features", inputs.astype(np.float64) if fits else None
    if inputs.ndim == 2 and inputs.dtype.kind in "iu":
        fits = inputs.min(initial=0) >= 0 and inputs.max(initial=0) < np.iinfo(np.int32).max
        return "tokens", inputs.astype(np.int32) if fits else None
    if inputs.ndim == 3:
        inputs = np.repeat(inputs[..., None], 3, axis=3)
    is_square = inputs.ndim == 4 and inputs.shape[1:] == (inputs.shape[1], inputs.shape[1], 3)
    return "images", inputs if inputs.dtype == np.uint8 and is_square else None
