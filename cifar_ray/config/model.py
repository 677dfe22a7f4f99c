"""The options that choose a model, and how convolutions are written."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator

from cifar_ray.config.errors import brief
from cifar_ray.config.option import COCO_PATH, LIBRARIES, MASKS_PATH, OWN, TABLE_PATH, TEXT_PATH, chosen, option, or_own
from cifar_ray.config.schema import Options

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


PARTS = ("forward", "data", "weight")
"""A convolution's parts: its forward pass, the gradient of its input (data) and that of its weight."""

LAYOUTS = ("channels_last", "contiguous")
"""How images and what layers make of them lie in memory."""

USUAL = LAYOUTS[0]
"""What a run computes with where nothing else is chosen, as ``Convolutions`` are written."""


@dataclasses.dataclass(frozen=True)
class ConvolutionShape:
    """All that a convolution's speed depends on but the number of images; pairs are (vertical, horizontal)."""

    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def __str__(self) -> str:
        marks = [f"k{_pair(self.kernel)}"]
        marks += [f"s{_pair(self.stride)}"] * (self.stride != (1, 1)) + [f"p{_pair(self.padding)}"] * any(self.padding)
        return " ".join([f"{self.channels}x{self.height}x{self.width}>{self.filters}", *marks])

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of what it gives."""
        sides = zip((self.height, self.width), self.kernel, self.stride, self.padding)
        tall, wide = ((side + 2 * padding - kernel) // stride + 1 for side, kernel, stride, padding in sides)
        return tall, wide


_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)>(\d+) k(\d+)x?(\d+)?(?: s(\d+)x?(\d+)?)?(?: p(\d+)x?(\d+)?)?: ([a-z ]+)")


@dataclasses.dataclass(frozen=True)
class Convolutions:
    """How convolutions are computed: the layout, and which parts of which are matrix products.

    It is written as ``channels_last; 512x2x2>512 k3 p1: forward weight``: images of 512 channels and 2x2 pixels, 512
    filters, kernel 3, padding 1; ``s2`` is a stride.
    """

    layout: str = USUAL
    products: Mapping[ConvolutionShape, frozenset[str]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        chosen = {shape: " ".join(part for part in PARTS if part in parts) for shape, parts in self.products.items()}
        return "; ".join([self.layout, *(f"{shape}: {parts}" for shape, parts in chosen.items())])

    @property
    def is_channels_last(self) -> bool:
        """Whether images and weights lie in memory with their channels last."""
        return self.layout == LAYOUTS[0]

    @property
    def words(self) -> str:
        """What is not as usual, in short."""
        kinds = f"{len(self.products)} {'kinds' if len(self.products) > 1 else 'kind'} of convolution as products"
        return kinds if self.products else self.layout if self.layout != USUAL else ""

    @classmethod
    def parse(cls, text: str | None) -> Convolutions:
        """What a text says; None is as usual.

        Raises:
            ValueError: when it cannot be read.
        """
        layout, *shapes = (USUAL if text is None else text).split("; ")
        products = {}
        for shape in shapes:
            found = _SHAPE.fullmatch(shape)
            if found is None or not set(found[11].split(" ")) <= set(PARTS):
                raise ValueError(f"must name shapes as in '512x2x2>512 k3 p1: forward weight', got {brief(shape)}")
            *sizes, parts = found.groups()
            channels, height, width, filters = map(int, sizes[:4])
            kernel, stride, padding = (
                (int(one or usual), int(other or one or usual))
                for one, other, usual in zip(sizes[4::2], sizes[5::2], (1, 1, 0))
            )
            key = ConvolutionShape(channels, height, width, filters, kernel, stride, padding)
            products[key] = frozenset(parts.split())
        if layout not in LAYOUTS or (products and layout != USUAL):
            raise ValueError(f"must begin with {USUAL}, or be {LAYOUTS[1]}, got {brief(layout)}")
        return cls(layout, products)


def _pair(values: tuple[int, int]) -> str:
    return str(values[0]) if values[0] == values[1] else f"{values[0]}x{values[1]}"


ConvolutionsText = Annotated[str, AfterValidator(lambda text: str(Convolutions.parse(text)))]


OF_DATA = {MASKS_PATH: "unet", COCO_PATH: "unet", TEXT_PATH: "textcnn", TABLE_PATH: "mlp"}
"""The usual model of data sets that the one of all others does not take."""


def usual(dataset: Any, image_column: Any = None) -> str:
    """The model of a data set for which none is named; a table with an ``image_column`` has images."""
    has_own = isinstance(dataset, str) and image_column is None
    return OF_DATA.get(chosen(dataset) or "", Model.model) if has_own else Model.model


@dataclasses.dataclass(frozen=True)
class Model:
    """Model."""

    model: Annotated[str, or_own(get_args(ModelName), *_OTHERS), ModelName] = option("resnet", weights=True)
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
