"""A trained model as others use it: images in, probabilities out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from cifar_ray import data, models
from cifar_ray.data import DatasetSpec, augment
from cifar_ray.training import checkpoint
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError


class Classifier(nn.Module):
    """A model together with its input's normalisation.

    Maps uint8 images (B, side, side, 3), channels last as files hold them, to float32 probabilities
    (B, num_classes).
    """

    def __init__(self, model: nn.Module, spec: DatasetSpec) -> None:
        super().__init__()
        self.normalise = augment.Normalise(spec)
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(self.normalise(images)).float().softmax(1)


def restore(path: str | Path, snapshot: Snapshot) -> nn.Module:
    """The bare model of the checkpoint at ``path``, which has been read, on the CPU and in evaluation mode.

    Raises:
        CheckpointError: when the weights are not those of the config.
    """
    spec = data.spec(snapshot.config)
    model = models.build(snapshot.config, spec)
    if len(snapshot.class_names) != spec.num_classes:
        raise CheckpointError(f"checkpoint {path} does not fit its own config: {spec.name} has other classes")
    try:
        model.load_state_dict(snapshot.weights)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise CheckpointError(f"checkpoint {path} does not fit its own config: {first}") from None
    return model.to(memory_format=torch.channels_last).eval()


def of(path: str | Path, snapshot: Snapshot) -> Classifier:
    """The classifier of the checkpoint at ``path``, which has been read, on the CPU and in evaluation mode.

    Raises:
        CheckpointError: when the weights are not those of the config.
    """
    config = snapshot.config
    return Classifier(restore(path, snapshot), data.spec(config).normalised(config.normalise)).eval()


def load(path: Path) -> Classifier:
    """The classifier of a checkpoint, as :func:`of` makes it.

    Raises:
        CheckpointError: when the checkpoint cannot be used.
    """
    return of(path, checkpoint.load(path))
