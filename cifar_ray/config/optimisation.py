"""Options of the optimizer, its schedule and the batch."""

from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator

from cifar_ray.config import strategy
from cifar_ray.config.errors import brief
from cifar_ray.config.model import ConvolutionsName
from cifar_ray.config.option import OWN, option, or_own
from cifar_ray.config.schema import Count, NotNegative, Options, Positive, Share, Texts, Whole, fits, listed

_Optimizer = Literal["sgd", "adamw"]
_Schedule = Literal["cosine", "constant", "triangle"]
OptimizerText = Annotated[str, or_own(get_args(_Optimizer)), _Optimizer]
ScheduleText = Annotated[str, or_own(get_args(_Schedule)), _Schedule]


def parse_scale(text: str) -> tuple[str, float]:
    """Read ``PATTERN=NUMBER``, names of parameters and the multiple of their learning rate."""
    pattern, _, number = text.rpartition("=")
    with suppress(ValueError):
        if pattern and 0 < float(number) < math.inf:
            return pattern, float(number)
    raise ValueError(f"must be PATTERN=NUMBER with a number above 0, such as features=0.1, got {brief(text)}")


Scales = Annotated[tuple[Annotated[str, fits(parse_scale)], ...], BeforeValidator(listed)]


@dataclasses.dataclass(frozen=True)
class Optimisation:
    """Optimisation."""

    # None means: the model's documented default.
    epochs: Count = option(10, weights=True)
    """Passes over the training images."""

    steps_per_epoch: Count | None = option(None, weights=True)
    """Optimizer steps per epoch. Default: all whole global batches."""

    seed: Whole = option(0, weights=True)
    """Seed of every random choice: initial weights, order, augmentation, dropout."""

    optimizer: OptimizerText | None = option(None, weights=True)
    """Optimizer: sgd, adamw, or MODULE:FUNCTION, called as the classes of torch.optim are, such as torch.optim:RMSprop.
    Without a recipe of the model's for it, --lr and --weight-decay are required. Default: the model's own."""

    optimizer_options: Options = option(dict, weights=True, only={"optimizer": (OWN,)})
    """Further keyword arguments of your own optimizer, such as --optimizer-options.alpha 0.9."""

    optimizer_source: str | None = option(None, weights=True, only={"optimizer": (OWN,)}, recorded=True)
    """SHA-256 of the file that defines it."""

    lr: Positive | None = option(None, weights=True)
    """Peak learning rate; with --lr-scaling, for the model's own global batch. Default: the model's own."""

    momentum: Share | None = option(None, weights=True)
    """Nesterov momentum of sgd. Default: the model's own."""

    weight_decay: NotNegative | None = option(None, weights=True)
    """Weight decay; not applied to biases and normalisation weights (speednet: not to the biases of its norms).
    Default: the model's own."""

    clip_norm: Positive | None = option(None, weights=True, only={"strategy": strategy.WHOLE_GRADIENT})
    """Clip the global gradient norm to this value. Default: no clipping."""

    ema: Share | None = option(None, weights=True, only={"strategy": strategy.AVERAGING})
    """Decay of an exponential moving average (EMA) of the weights, such as 0.999. The average is evaluated, saved and
    exported. Default: no average."""

    freeze: Texts = option((), weights=True, only={"strategy": strategy.FREEZING})
    """Parameters that do not learn, as shell patterns of their names or of what these begin with: layer1, layer? and
    features.*. Their modules stay in evaluation mode, so batch norm keeps its statistics. Default: all learn."""

    unfreeze_epoch: Count | None = option(None, weights=True, only={"strategy": strategy.UNFREEZING})
    """Epoch, counted from 1, at which to unfreeze the parameters of --freeze. Default: never."""

    lr_scale: Scales = option((), weights=True, only={"strategy": strategy.GROUPING})
    """PATTERN=NUMBER ...: multiply the learning rate of the parameters that a pattern matches, such as features=0.1.
    Patterns are as for --freeze; of several that match, the last counts."""

    schedule: ScheduleText | None = option(None, weights=True)
    """Learning-rate schedule after warm-up, or MODULE:FUNCTION from progress (0 to 1) to the share of the peak rate.
    Default: the model's own."""

    schedule_source: str | None = option(None, weights=True, only={"schedule": (OWN,)}, recorded=True)
    """SHA-256 of the file that defines your own schedule."""

    warmup_epochs: NotNegative | None = option(None, weights=True)
    """Epochs of linear warm-up of the learning rate from 0 (triangle: from a fifth of the peak), at most --epochs.
    Default: the model's own, at most a quarter of the run."""

    label_smoothing: Share | None = option(None, weights=True)
    """Label smoothing: share of the target spread evenly over all classes. Default: the model's own."""

    class_weights: Literal["none", "balanced"] = option("none", weights=True)
    """balanced: all classes count alike in the training loss, an image in inverse proportion to its class's images; the
    loss is the weighted mean over a global batch. Not with mixup or cutmix."""

    lr_scaling: Literal["none", "linear", "sqrt"] = option("none", weights=True)
    """Scale the learning rate with the global batch over the model's own: linearly, by its root, or not at all."""

    base_batch: Count | None = option(None, weights=True, recorded=True)
    """Global batch for which the model's recipe is meant."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = option("auto", weights=True)
    """Arithmetic of the forward and backward pass. 'auto' times both and uses bf16 if it is at least 15 % faster,
    decided once per run, or once per model of a sweep; fp32 with --strategy reproducible. fp16, for GPUs without bf16,
    scales the loss and skips a step whose gradients overflow."""

    convolutions: ConvolutionsName | None = option(None, weights=True, recorded=True)
    """How convolutions are computed, in place of the fastest way that is measured."""

    compile: bool = option(False, weights=True, only={"strategy": strategy.COMPILING})
    """Compile the forward and backward pass with torch.compile, which takes up to minutes before the first step; on
    GPUs they are CUDA graphs, which pay where launching kernels takes longer than they run. On CPUs it is slower."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Batch."""

    batch_size: Count | None = option(None, weights=False)
    """Images per worker in a micro-batch, in place of --global-batch-size; in a pipeline, whose workers see
    every image, the global batch divided by the workers. Default: a worker's share."""

    global_batch_size: Count | None = option(None, weights=True)
    """Images per optimizer step over all workers; --batch-size says it per worker. Default without either: 128; 1,024
    for speednet."""

    accumulate: Count = option(1, weights=False, only={"strategy": strategy.ACCUMULATING})
    """Micro-batches per optimizer step on each worker (gradient accumulation)."""
