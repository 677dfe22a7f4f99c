"""Options of a run that no other room declares: its data set, where it runs, and where it is recorded."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cifar_ray.config import errors
from cifar_ray.config.option import DATASETS, FOLDER_PATH, SIZED, TABLE_PATH, TEXT_PATH, option, or_own
from cifar_ray.config.schema import Columns, Count, Options, Positive, Share, Whole, fits
from cifar_ray.config.topology import parse as parse_topology
from cifar_ray.config.topology import parse_range

DatasetName = Literal["cifar10", "cifar100", "mnist", "digits"]
AugmentName = Literal["none", "crop", "crop_flip", "resized_crop", "randaugment", "trivialaugment", "mixup", "cutmix"]
WhichCheckpoint = Literal["last", "best"]
Measure = Literal["all", "accuracy", "times"]  # what a sweep's runs are made for: all, what they learn, or their times
MIXING = ("mixup", "cutmix")
"""Values of ``augment`` that mix images, and so labels."""

MOVING = ("none", "crop", "crop_flip", "resized_crop")
"""Values of ``augment`` that do to a mask what they do to its image."""


def _name(text: str) -> str:
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,119}", text):
        raise ValueError(f"must be 1 to 120 letters, digits, '.', '_' or '-', got {errors.brief(text)}")
    return text


Name = Annotated[str, AfterValidator(_name)]
# A worker knows no kind that a script has added to SOURCES: which there are is asked where the data are read.
_DATASET = or_own(typing.get_args(DatasetName), *DATASETS, pattern=r"(?!timm:)[A-Za-z_][\w.]*:.*[^:]")
DatasetText = Annotated[str, _DATASET, DatasetName]


@dataclasses.dataclass(frozen=True)
class Data:
    """Data."""

    dataset: DatasetText = option("cifar10", weights=True)
    """Data set: one of this package ('digits' comes with scikit-learn and needs no network); torchvision:NAME, one that
    torchvision reads and downloads; folder:PATH, a folder with one subfolder of images per class; masks:PATH, images
    with masks of their pixels' classes; coco:PATH, images with COCO's annotations of instances, as such masks;
    text:PATH, texts with the names of their classes, as CSV or JSONL; table:PATH, numbers in CSV files; or
    MODULE:FUNCTION, a function of your own that returns arrays."""

    data_dir: str | None = option(None, weights=False)
    """Where data sets are read from, downloaded to, and where decoded images are cached (CIFAR_RAY_DATA_DIR, else
    ~/.cache/cifar_ray)."""

    image_size: Count = option(32, weights=True, only={"dataset": SIZED})
    """Side of the images in pixels: the shorter side is resized to it, and the centre is cropped."""

    target: Columns = option((), weights=True, only={"dataset": (TABLE_PATH,)})
    """Columns that are learned, such as a,b."""

    features: Columns = option((), weights=True, only={"dataset": (TABLE_PATH,)})
    """Columns that they are learned from, such as a,b,c. Default: all others, which must be numbers."""

    image_column: str | None = option(None, weights=True, only={"dataset": (TABLE_PATH,)})
    """Column that has the paths of images, from the table's folder on, in place of all other columns."""

    test_share: Share = option(0.0, weights=True, only={"dataset": (FOLDER_PATH, TEXT_PATH, TABLE_PATH)})
    """Share of each class's images or texts, or of a table's rows, to keep for the test, if there are none for it."""

    val_share: Share | None = option(None, weights=True)
    """Share of each class's training images to keep for validation, the same ones in every run: measured after every
    epoch in place of the test images, they choose what is chosen. Default: none, as where the data set has its own; 0.1
    where something is chosen, by --log-models best or all, by --patience, or by --scheduler."""

    stream: bool = option(False, weights=False, only={"dataset": SIZED})
    """For data larger than memory: read images ahead of the steps, decoded below --data-dir, which all nodes share."""

    text: Options = option(dict, weights=True, only={"dataset": (TEXT_PATH,)})
    """Options of texts: --text.vocabulary (8000), the tokens that there are: 256 bytes, padding, and the most frequent
    pieces of the training texts; --text.max-length (256), the tokens of the longest text, beyond which it is cut."""

    augment: AugmentName | None = option(None, weights=True)
    """Augmentation of training images. 'crop': random crop after padding by 4 pixels. 'crop_flip': also mirrors half of
    them. 'resized_crop': a crop of 8 to 100 % of the image, resized to it, and the mirror; for images above 32 pixels.
    After 'crop_flip', and not for masks, 'randaugment' and 'trivialaugment' change shapes and colours, 'mixup' and
    'cutmix' mix two images. Default: crop_flip; crop for mnist and digits, whose mirror images are wrong."""

    normalise: Literal["dataset", "half", "imagenet"] = option("dataset", weights=True)
    """Normalise pixels by the training images' mean and deviation, by 0.5, or by ImageNet's, as its networks expect."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where it runs."""

    topology: Annotated[str, fits(parse_topology)] = option("1x1", weights=False)
    """NODESxWORKERS: 1x2 is two workers on one node, 2x2 two workers on each of two nodes."""

    elastic: Annotated[str, fits(parse_range)] | None = option(None, weights=False)
    """MIN:MAX in place of --topology, such as 1x1:2x2: use as many workers as there is room for, and grow or shrink
    between two steps when nodes come or go. The global batch stays that of MAX."""

    cpus_per_worker: Count | None = option(None, weights=False)
    """CPUs that each worker reserves, and its threads. Default: an equal share of the node's CPUs, in a sweep of what
    its concurrent runs leave; 1 with --strategy reproducible."""

    device: Literal["auto", "cpu", "cuda"] = option("auto", weights=False)
    """'auto' gives each worker one GPU if the cluster has enough, else CPUs only; with too few GPUs the run says so."""

    address: str | None = option(None, weights=False)
    """Ray cluster to join (RAY_ADDRESS). Default: start Ray on this machine."""

    local_nodes: Count = option(1, weights=False)
    """Ray nodes to simulate on this machine, with more CPUs than it has if workers need them; not for timing."""

    max_failures: Whole = option(3, weights=False)
    """Worker failures to recover from before the run fails."""

    hang_timeout_s: Positive = option(300.0, weights=False)
    """Seconds without an answer from a worker's process after which all workers are restarted, as after any failure.
    Workers wait for each other twice as long."""


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Tracking."""

    checkpoint_every: Whole = option(0, weights=False)
    """Optimizer steps between checkpoints, in addition to one after every epoch (0: only those)."""

    keep_checkpoints: Count = option(2, weights=False)
    """Newest checkpoints to keep, in addition to the best one where there is one."""

    log_models: Literal["final", "best", "all", "none"] = option("final", weights=False)
    """Checkpoints to log to MLflow as models: the final one, the one with the best validation figure, both, or none.
    Every checkpoint is listed in MLflow in any case, with its path, step and SHA-256."""

    test_images: Count | None = option(None, weights=False)
    """Test images per evaluation, spread evenly, for timing runs; validation always uses all. Default: all."""

    per_rank_test: bool = option(False, weights=False)
    """After the last epoch, also test every rank's own replica on the same images."""

    log_every: Count = option(20, weights=False)
    """Optimizer steps between two records of every rank's loss."""

    run_name: Name | None = option(None, weights=False)
    """Name of the run, new in its storage folder. Default: made from the configuration and the time."""

    tracking_uri: str | None = option(None, weights=False)
    """MLflow tracking store: http(s)://... or sqlite:////absolute/path (MLFLOW_TRACKING_URI, else
    ~/.cifar_ray/mlflow.db)."""

    storage: str | None = option(None, weights=False)
    """Folder of runs, which all nodes share, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. Default: ~/.cifar_ray/runs."""

    profile_steps: Annotated[Count, Field(le=100)] | None = option(None, weights=False)
    """Steps to profile on every rank, 100 at most, once the run has warmed up: a trace per rank for ui.perfetto.dev,
    and a table of operators. Figures of times leave these steps out. Default: none."""

    verbose: bool = option(False, weights=False)
    """Also show messages of Ray and MLflow."""
