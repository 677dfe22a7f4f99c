"""Arrays that a function of the user's own returns, ``--dataset MODULE:FUNCTION``.

The function returns ``(inputs, targets), (inputs, targets)`` and perhaps names: what ``rule`` below says.
"""

from __future__ import annotations

import numpy as np

from cifar_ray import tasks
from cifar_ray.config import imports
from cifar_ray.config.facts import Inputs
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays
from cifar_ray.data.source import Part, Source


class Function(Source):
    """What a function returns for a task that learns of it."""

    def __init__(self, config: TrainConfig) -> None:
        path, task = config.dataset, tasks.of(config)
        rule = (
            f"must return (images, {task.target}) for training and for the test, and perhaps names: uint8 images "
            "(N, side, side, 3) or (N, side, side), finite features or tokens with padding 0 behind (N, length), and "
        )
        with imports.calling(path, "dataset", rule + task.rule):
            returned = imports.load(path, "dataset")()
            train, test, names = returned if len(returned) == 3 else (*returned, None)
            (x, y), (x_test, y_test) = (map(np.asarray, half) for half in (train, test))
            (self.kind, x), (other, x_test) = _inputs(x), _inputs(x_test)
            if self.kind != other or x.shape[1:] != x_test.shape[1:]:
                raise ValueError(f"{self.kind} {x.shape[1:]} for training and {other} {x_test.shape[1:]} for the test")
            given = arrays.narrowed([x, x_test]) if self.kind == "features" else [x, x_test]
            *learned, self.classes = task.targets(y, y_test, names)
            self.column, self.parts = task.target, {}
            for name, inputs, targets in zip(("train", "test"), given, learned):
                self.parts[name] = Part(inputs, np.ascontiguousarray(targets))
                is_number = targets.dtype.kind in "iub" or targets.dtype in (np.float32, np.float64)
                is_alike = targets.shape == inputs.shape[:3] if task.spec.has_masks else len(targets) == len(inputs)
                if not is_number or not is_alike:
                    raise ValueError(f"{task.target} of {targets.dtype} {targets.shape} for {len(inputs)} {self.kind}")


SOURCE = Function


def _inputs(given: np.ndarray) -> tuple[Inputs, np.ndarray]:
    """What a model is given, as a split has it, and its kind; a ValueError where it cannot be that."""
    kind: Inputs
    if given.ndim == 2 and given.dtype.kind == "f":
        kind, made = "features", given.astype(np.float64)
        fits = (np.abs(given) <= np.finfo(np.float32).max).all()
    elif given.ndim == 2 and given.dtype.kind in "iu":
        kind, made = "tokens", given.astype(np.int32)
        is_padded_behind = not ((given[:, :-1] == 0) & (given[:, 1:] != 0)).any()
        fits = is_padded_behind and given.min(initial=0) >= 0 and given.max(initial=0) < np.iinfo(np.int32).max
    else:
        kind, made = "images", np.repeat(given[..., None], 3, axis=3) if given.ndim == 3 else given
        fits = given.dtype == np.uint8 and made.ndim == 4 and made.shape[2:] == (made.shape[1], 3)
    if not fits or not given.size:
        raise ValueError(f"{kind} of {given.dtype} {given.shape}")
    return kind, np.ascontiguousarray(made)
