"""What is known of a data set: one record, made by what reads it, and kept with the run and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Inputs = Literal["images", "features", "tokens"]
"""What a model is given of a sample; see ``cifar_ray.data.datasets.INPUTS``."""


@dataclass(frozen=True)
class Facts:
    """Facts about a data set; those marked (read) may be empty, or 0, until it has been read.

    Attributes:
        num_classes: numbers that a model gives for a sample: labels run from 0 to ``num_classes - 1``.
        train_size: training samples.
        test_size: test samples.
        val_size: validation samples.
        inputs: what the model is given of a sample.
        shape: of one sample as a model takes it: (channels, side, side), or (length,).
        native_size: side of an image in pixels, as published.
        grey: whether the published images have one channel.
        crop: whether what is cut off of an image that is no square is the margin, and not its shape.
        flip: whether a mirrored image still shows its class.
        mean: mean of the training pixels per channel, on a scale of 0 to 1, or of each feature (read).
        std: standard deviation likewise (read).
        vocabulary: above every token; 0 of others.
        names: one for each number that a model gives (read).
        features: names of the features, in their order.
        target_mean: mean of each target of a regression over the training samples.
        target_std: standard deviation of each target over the training samples.
        class_counts: training samples of each class, or pixels of masks; empty where no classes are learned (read).
        ignored: pixels of the training and of the test masks that do not count; empty without masks (read).
        test_copies: test samples that a model cannot tell from training or validation samples (read).
        val_copies: validation samples that a model cannot tell from training samples (read).
        digest: first 16 hex digits of the SHA-256 over all columns: a run goes on with the same data only (read).
    """

    num_classes: int
    train_size: int
    test_size: int
    val_size: int = 0
    inputs: Inputs = "images"
    shape: tuple[int, ...] = (3, 32, 32)
    native_size: int = 32
    grey: bool = False
    crop: bool = False
    flip: bool = True
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: int = 0
    names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()
    class_counts: tuple[int, ...] = ()
    ignored: tuple[int, ...] = ()
    test_copies: int = 0
    val_copies: int = 0
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
