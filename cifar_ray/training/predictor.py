"""A trained model as others use it: a data set's inputs in, the task's answers out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from cifar_ray import models, tasks
from cifar_ray.config.errors import first_line
from cifar_ray.data import Facts, datasets, modality
from cifar_ray.tasks.protocol import Task
from cifar_ray.training import checkpoint
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError


class Predictor(nn.Module):
    """A model together with its input's normalisation.

    Maps inputs as a data set has them (see :data:`~cifar_ray.data.datasets.INPUTS`), such as uint8 images (B, side,
    side, 3), channels last as files hold them, to the task's answers: of image classification, probabilities, float32
    (B, num_classes).
    """

    def __init__(self, model: nn.Module, spec: Facts, task: Task) -> None:
        super().__init__()
        self.normalise = modality.of(spec).normaliser()
        self.model = model
        self._predictions = task.predictions

    def forward(self, inputs: Tensor) -> Tensor:
        return self._predictions(self.model(self.normalise(inputs)))


def of(path: Path | str, snapshot: Snapshot | None = None) -> Predictor:
    """The predictor of the checkpoint at ``path``, on the CPU and in evaluation mode; ``snapshot`` if it was read.

    Raises:
        CheckpointError: when it cannot be read, or its weights are not those of its config.
    """
    snapshot = snapshot or checkpoint.load(Path(path))
    config, spec = snapshot.config, snapshot.spec
    model = models.build(config, spec)
    try:
        model.load_state_dict(snapshot.weights)
    except RuntimeError as error:
        raise CheckpointError(f"checkpoint {path} does not fit its own config: {first_line(error)}") from None
    model = model.to(memory_format=torch.channels_last)
    return Predictor(model, datasets.normalised(spec, config.normalise), tasks.build(config, spec)).eval()
