"""The options that choose a task and a model, and the ways to compute convolutions."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal, get_args

from cifar_ray.config.option import COCO_PATH, LIBRARIES, MASKS_PATH, OWN, TABLE_PATH, TEXT_PATH, chosen, option, or_own
from cifar_ray.config.schema import Options

TaskName = Literal["classification", "segmentation", "regression"]
ModelName = Literal[
    "simple_cnn",
    "resnet",
    "resnet18",
    "resnet50",
    "vgg11",
    "speednet",
    "vit",
    "unet",
    "segnet",
    "textcnn",
    "lstm",
    "text_transformer",
    "mlp",
]
_OTHERS = (*(f"{library}:NAME" for library in LIBRARIES), OWN)


USUAL = "channels_last"
"""How convolutions are computed where nothing else is chosen."""

_Products = Literal["products2", "products4", "products8"]
_WithoutData = Literal["products2_forward_weight", "products4_forward_weight", "products8_forward_weight"]
ConvolutionsName = Literal["channels_last", "contiguous", _Products, _WithoutData]
"""How convolutions are computed: with channels last in memory or contiguous; or with channels last and as matrix
products where no side of the result is longer than so many pixels, but for the gradient of the input with
``_forward_weight``."""

TASKS = {MASKS_PATH: "segmentation", COCO_PATH: "segmentation", TABLE_PATH: "regression"}
_MODELS = {MASKS_PATH: "unet", COCO_PATH: "unet", TEXT_PATH: "textcnn", TABLE_PATH: "mlp"}
"""The usual task and model of data sets for which those of all others are not."""


def usual(dataset: str, image_column: str | None = None) -> str:
    """The model of a data set for which none is named; a table with an ``image_column`` has images."""
    return _MODELS.get(chosen(dataset) or "", "resnet") if image_column is None else "resnet"


@dataclasses.dataclass(frozen=True)
class Task:
    """Task."""

    task: Annotated[str, or_own(get_args(TaskName), "MODULE:CLASS")] | None = option(None, weights=True)
    """What is learned: classification, a class for each image or text; segmentation, a class for each pixel;
    regression, a number for each sample, or several; or MODULE:CLASS, a class of your own with the methods of
    cifar_ray.tasks.protocol.Task. Default: what the data set is for, segmentation with masks:PATH and coco:PATH,
    regression with table:PATH, else classification."""

    task_source: str | None = option(None, weights=True, only={"task": (OWN,)}, recorded=True)
    """SHA-256 of the file that defines your own task."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Model."""

    model: Annotated[str, or_own(get_args(ModelName), *_OTHERS), ModelName] = option("", weights=True)
    """Architecture: one of this package; torchvision:NAME or timm:NAME, a network of these libraries (`cifar-ray
    models` lists them); or MODULE:FUNCTION, a function of your own that is called as build(image_size, channels,
    classes) and returns an nn.Module. Default: resnet; unet with masks:PATH and coco:PATH, textcnn with text:PATH, mlp
    with table:PATH, but for one with --image-column."""

    model_options: Options = option(dict, weights=True)
    """Options of the model, such as --model-options.depth 4: `cifar-ray models NAME` lists them. Of your own function
    and of a library's network, they are keyword arguments."""

    model_source: str | None = option(None, weights=True, only={"model": (OWN,)}, recorded=True)
    """SHA-256 of the file that defines your own function."""

    weights: str | None = option(None, weights=True)
    """Weights to start from, in place of random ones: RUN, a run of yours (its newest checkpoint; RUN:best, the best
    one); FILE, a state dict as safetensors or as torch.save writes it; or, with --model torchvision:NAME or timm:NAME,
    one of the library's own, such as DEFAULT. Layers of another shape are randomly initialised."""
