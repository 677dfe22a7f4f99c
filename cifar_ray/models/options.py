"""The models by name, and their options. Nothing here imports torch, so that ``--help`` is quick."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.option import COCO_PATH, LIBRARIES, MASKS_PATH, OWN, TABLE_PATH, TEXT_PATH, chosen, option, or_own
from cifar_ray.config.schema import STRICT, Count, Counts, Scalar, Share, Whole, plainly

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


def _options(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if not name.isidentifier():
            raise ValueError(f"must have names as Python's arguments have them, got {brief(name)}")
    return values


Options = Annotated[dict[str, Scalar], AfterValidator(_options)]
"""Keyword arguments of a function of the user's own."""


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


@plainly
@dataclass(frozen=True, config=STRICT)
class ResNetOptions:
    """Only with ``--model resnet``."""

    blocks: Counts = option((1, 1, 1, 1), weights=True)
    """BasicBlocks in each stage. Every stage after the first halves the image and doubles the filters."""

    width: Count = option(16, weights=True)
    """Filters of the stem and of the first stage."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ResNet50Options:
    """Only with ``--model resnet50``."""

    stem: Literal["imagenet", "cifar"] = option("imagenet", weights=True)
    """'imagenet' is torchvision's own 7x7 stride-2 convolution and max-pool: a 32x32 image is 8x8 before the first
    block. 'cifar' is a 3x3 stride-1 convolution without a pool: it keeps 32x32, at about 16 times the arithmetic."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ViTOptions:
    """Only with ``--model vit``."""

    patch_size: Count = option(4, weights=True)
    """Side of a square patch in pixels; it must divide the image's side."""

    dim: Count = option(192, weights=True)
    """Embedding size; a multiple of the number of heads."""

    depth: Count = option(6, weights=True)
    """Transformer blocks."""

    heads: Count = option(3, weights=True)
    """Attention heads."""

    mlp_ratio: Count = option(2, weights=True)
    """Width of a block's hidden layer as a multiple of dim."""

    dropout: Share = option(0.0, weights=True)
    """Dropout rate after the embedding, in attention and in the MLP."""

    stochastic_depth: Share = option(0.1, weights=True)
    """Probability of skipping the last block for a sample; it rises linearly from 0 at the first block."""

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ConfigError("dim", f"must be a multiple of vit.heads ({self.heads}), got {self.dim}")


@plainly
@dataclass(frozen=True, config=STRICT)
class UNetOptions:
    """Only with ``--model unet``."""

    width: Count = option(16, weights=True)
    """Filters of the first level; each of four deeper ones has twice as many. The paper has 64."""

    norm: Literal["batch", "none"] = option("batch", weights=True)
    """Batch norm after each 3x3 convolution, or biases alone, as in the paper."""


@plainly
@dataclass(frozen=True, config=STRICT)
class SegNetOptions:
    """Only with ``--model segnet``."""

    blocks: Counts = option((2, 2, 3, 3, 3), weights=True)
    """Convolutions in each stage of the encoder, each of which halves the image, and of the decoder."""

    width: Count = option(16, weights=True)
    """Filters of the first stage; each later one has twice as many, at most eight times. The paper has 64."""


@plainly
@dataclass(frozen=True, config=STRICT)
class TextCNNOptions:
    """Only with ``--model textcnn``."""

    dim: Count = option(128, weights=True)
    """Embedding size."""

    filters: Count = option(100, weights=True)
    """Filters of each width."""

    widths: Counts = option((3, 4, 5), weights=True)
    """Widths of the filters, in tokens."""

    dropout: Share = option(0.5, weights=True)
    """Dropout rate before the last layer."""


@plainly
@dataclass(frozen=True, config=STRICT)
class LSTMOptions:
    """Only with ``--model lstm``."""

    dim: Count = option(128, weights=True)
    """Embedding size."""

    hidden: Count = option(128, weights=True)
    """Hidden units per direction."""

    layers: Count = option(1, weights=True)
    """Bidirectional layers."""

    dropout: Share = option(0.3, weights=True)
    """Dropout rate before every layer."""


@plainly
@dataclass(frozen=True, config=STRICT)
class TextTransformerOptions:
    """Only with ``--model text_transformer``."""

    dim: Count = option(64, weights=True)
    """Embedding size; a multiple of the number of heads."""

    depth: Count = option(2, weights=True)
    """Transformer blocks."""

    heads: Count = option(4, weights=True)
    """Attention heads."""

    mlp_ratio: Count = option(2, weights=True)
    """Width of a block's hidden layer as a multiple of dim."""

    dropout: Share = option(0.0, weights=True)
    """Dropout rate after the embedding, in attention and in the MLP."""

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ConfigError("dim", f"must be a multiple of text_transformer.heads ({self.heads}), got {self.dim}")


@plainly
@dataclass(frozen=True, config=STRICT)
class MLPOptions:
    """Only with ``--model mlp``."""

    width: Count = option(128, weights=True)
    """Units per hidden layer."""

    depth: Whole = option(2, weights=True)
    """Hidden layers; 0 is a linear model."""

    dropout: Share = option(0.0, weights=True)
    """Dropout rate of the hidden layers."""

    norm: Literal["none", "batch", "layer"] = option("none", weights=True)
    """Norm before each ReLU."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Model."""

    model: Annotated[str, or_own(get_args(ModelName), *_OTHERS), ModelName] = option("resnet", weights=True)
    """Architecture: one of this package; torchvision:NAME or timm:NAME, a network of these libraries (`cifar-ray
    models` lists them); or MODULE:FUNCTION, a function of your own that is called as build(image_size, channels,
    classes) and returns an nn.Module. Default: resnet; unet with masks:PATH and coco:PATH, textcnn with text:PATH, mlp
    with table:PATH, but for one with --image-column."""

    model_options: Options = option(dict, weights=True, only={"model": _OTHERS})
    """Keyword arguments of a library's network or of your own function, such as --model-options.depth 4."""

    model_source: str | None = option(None, weights=True, only={"model": (OWN,)}, recorded=True)
    """SHA-256 of the file that defines your own function."""

    weights: str | None = option(None, weights=True, if_set=True)
    """Weights to start from, in place of random ones: RUN, a run of yours (its newest checkpoint; RUN:best, the best
    one); FILE, a state dict as safetensors or as torch.save writes it; or, with --model torchvision:NAME or timm:NAME,
    one of the library's own, such as DEFAULT. Layers of another shape are randomly initialised."""

    weights_digest: str | None = option(None, weights=True, recorded=True, if_set=True)
    """SHA-256 of these weights as a safetensors file: of a run's, that of its checkpoint."""

    resnet: ResNetOptions = option(ResNetOptions, weights=None, only={"model": ("resnet",)})
    resnet50: ResNet50Options = option(ResNet50Options, weights=None, only={"model": ("resnet50",)})
    vit: ViTOptions = option(ViTOptions, weights=None, only={"model": ("vit",)})
    unet: UNetOptions = option(UNetOptions, weights=None, only={"model": ("unet",)})
    segnet: SegNetOptions = option(SegNetOptions, weights=None, only={"model": ("segnet",)})
    textcnn: TextCNNOptions = option(TextCNNOptions, weights=None, only={"model": ("textcnn",)})
    lstm: LSTMOptions = option(LSTMOptions, weights=None, only={"model": ("lstm",)})
    text_transformer: TextTransformerOptions = option(
        TextTransformerOptions, weights=None, only={"model": ("text_transformer",)}
    )
    mlp: MLPOptions = option(MLPOptions, weights=None, only={"model": ("mlp",)})
