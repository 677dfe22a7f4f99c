"""What is known of a data set: one record, made by what reads it, and kept with the run and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Inputs = Literal["images", "features", "tokens"]
"""What a model is given of a sample; see ``cifar_ray.data.datasets.INPUTS``."""


@dataclass(frozen=True)
class Facts:
    """Facts about a data set; those marked (read) may be empty, or 0, until it has been read."""

    num_classes: int  # numbers that a model gives for a sample: labels run from 0 to ``num_classes - 1``
    train_size: int  # training samples
    test_size: int  # test samples
    val_size: int = 0  # validation samples
    inputs: Inputs = "images"  # what the model is given of a sample
    shape: tuple[int, ...] = (3, 32, 32)  # of one sample as a model takes it: (channels, side, side), or (length,)
    native_size: int = 32  # side of an image in pixels, as published
    grey: bool = False  # whether the published images have one channel
    crop: bool = False  # whether what is cut off of an image that is no square is the margin, and not its shape
    flip: bool = True  # whether a mirrored image still shows its class
    # mean of the training pixels per channel, on a scale of 0 to 1, or of each feature (read)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()  # standard deviation likewise (read)
    vocabulary: int = 0  # above every token; 0 of others
    names: tuple[str, ...] = ()  # one for each number that a model gives (read)
    features: tuple[str, ...] = ()  # names of the features, in their order
    target_mean: tuple[float, ...] = ()  # mean of each target of a regression over the training samples
    target_std: tuple[float, ...] = ()  # standard deviation of each target over the training samples
    # training samples of each class, or pixels of masks; empty where no classes are learned (read)
    class_counts: tuple[int, ...] = ()
    # pixels of the training and of the test masks that do not count; empty without masks (read)
    ignored: tuple[int, ...] = ()
    test_copies: int = 0  # test samples that a model cannot tell from training or validation samples (read)
    val_copies: int = 0  # validation samples that a model cannot tell from training samples (read)
    # first 16 hex digits of the SHA-256 over all columns: a run goes on with the same data only (read)
    digest: str = ""

    @property
    def image_size(self) -> int:
        """Side of an image in pixels, as a model takes it."""
        return self.shape[-1]

    @property
    def length(self) -> int:
        """Numbers in a row of features, or tokens in a text."""
        return self.shape[0]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features; their numbers where they have none."""
        return self.features or tuple(map(str, range(self.length)))

    @property
    def measured(self) -> Literal["val", "test"]:
        """The samples that a run is measured on after every epoch: the test, where there are no validation samples."""
        return "val" if self.val_size else "test"
