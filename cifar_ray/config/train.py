"""What one run is: every choice a person can make, with what each may be.

``TrainConfig`` is the one source of the command line's flags and help, of the keys of a
YAML file, and of the parameters that MLflow shows.
"""

from __future__ import annotations

import re
import typing
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from cifar_ray.config import addresses, errors
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.schema import STRICT, Count, Counts, NotNegative, Numbers, Positive, Scalar, Share, Whole, plainly
from cifar_ray.config.topology import Topology, parse_range
from cifar_ray.config.topology import parse as parse_topology

DatasetName = Literal["cifar10", "cifar100", "mnist", "digits"]
ModelName = Literal["simple_cnn", "resnet", "resnet18", "resnet50", "vgg11", "speednet", "vit"]
StrategyName = Literal[
    "gather_scatter",
    "send_recv",
    "all_reduce",
    "ddp",
    "local_sgd",
    "data_parallel",
    "fsdp",
    "reproducible",
    "parameter_server",
    "hogwild",
    "gpipe",
    "one_f_one_b",
    "model_parallel",
]
AugmentName = Literal["none", "crop", "crop_flip", "randaugment", "trivialaugment", "mixup", "cutmix"]
OptimizerName = Literal["sgd", "adamw"]
ScheduleName = Literal["cosine", "constant", "triangle"]
WhichCheckpoint = Literal["last", "best"]
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
"""Names of runs and of sweeps: they are folders, too."""


FOLDER = "folder:"
"""What precedes the path of a folder of images in ``--dataset``."""

IMPORT_PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
"""``MODULE:FUNCTION``, such as ``mypackage.nets:build``."""


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text):
        raise ValueError(f"must be 1 to 120 letters, digits, '.', '_' or '-', got {errors.brief(text)}")
    return text


def _or_own(names: Any) -> AfterValidator:
    """One of ``names``, or a function of the user's own."""
    known = typing.get_args(names)

    def check(text: str) -> str:
        if text not in known and not re.fullmatch(IMPORT_PATH, text, re.ASCII):
            raise ValueError(f"must be {', '.join(known)} or MODULE:FUNCTION, got {errors.brief(text)}")
        return text

    return AfterValidator(check)


def _dataset(text: str) -> str:
    known = typing.get_args(DatasetName)
    is_folder = len(text) > len(FOLDER) and text.startswith(FOLDER)
    if text not in known and not is_folder and not re.fullmatch(IMPORT_PATH, text, re.ASCII):
        near = f"; did you mean {FOLDER}{text}?" * _is_folder(text)
        raise ValueError(f"must be {', '.join(known)}, {FOLDER}PATH or MODULE:FUNCTION, got {errors.brief(text)}{near}")
    return text


def _is_folder(text: str) -> bool:
    try:
        return Path(text).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # too long, nobody's home folder, a null byte
        return False


def _options(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if not name.isidentifier():
            raise ValueError(f"must have names as Python's arguments have them, got {errors.brief(name)}")
    return values


def _topology(text: str) -> str:
    parse_topology(text)
    return text


def _range(text: str) -> str:
    parse_range(text)
    return text


Name = Annotated[str, AfterValidator(_name)]
DatasetText = Annotated[str, AfterValidator(_dataset), DatasetName]
ModelText = Annotated[str, _or_own(ModelName), ModelName]
OptimizerText = Annotated[str, _or_own(OptimizerName), OptimizerName]
ScheduleText = Annotated[str, _or_own(ScheduleName), ScheduleName]
Options = Annotated[dict[str, Scalar], AfterValidator(_options)]
TopologyText = Annotated[str, AfterValidator(_topology)]
RangeText = Annotated[str, AfterValidator(_range)]


@plainly
@dataclass(frozen=True, config=STRICT)
class Images:
    """Contents of a data set of your own. Recorded; a run continues with the same images only."""

    classes: Whole = 0
    """Classes."""

    train: Whole = 0
    """Training images."""

    test: Whole = 0
    """Test images."""

    side: Whole = 0
    """Side of an image in pixels."""

    mean: Numbers = ()
    """Mean of the training pixels per channel, on a scale of 0 to 1; known once they have been read."""

    std: Numbers = ()
    """Standard deviation of the training pixels per channel, on the same scale; known once they have been read."""

    digest: str | None = None
    """First 16 hex digits of the SHA-256 over all images and labels; known once they have been read."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ResNetOptions:
    """Only with ``--model resnet``."""

    blocks: Counts = (1, 1, 1, 1)
    """BasicBlocks in each stage. Every stage after the first halves the image and doubles the filters."""

    width: Count = 16
    """Filters of the stem and of the first stage."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ResNet50Options:
    """Only with ``--model resnet50``."""

    stem: Literal["imagenet", "cifar"] = "imagenet"
    """'imagenet' is torchvision's own 7x7 stride-2 convolution and max-pool: a 32x32 image is 8x8 before the first
    block. 'cifar' is a 3x3 stride-1 convolution without a pool: it keeps 32x32, at about 16 times the arithmetic."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ViTOptions:
    """Only with ``--model vit``."""

    patch_size: Count = 4
    """Side of a square patch in pixels; it must divide the image's side."""

    dim: Count = 192
    """Width of a token; a multiple of the number of heads."""

    depth: Count = 6
    """Transformer blocks."""

    heads: Count = 3
    """Attention heads."""

    mlp_ratio: Count = 2
    """Width of a block's hidden layer as a multiple of dim."""

    dropout: Share = 0.0
    """Share of activations dropped after the embedding, in attention and in the MLP."""

    stochastic_depth: Share = 0.1
    """Probability of skipping the last block for a sample; it rises linearly from 0 at the first block."""


MODEL_OPTIONS: dict[str, str] = {"resnet": "resnet", "resnet50": "resnet50", "vit": "vit"}
"""Model name -> the field of TrainConfig that shapes it. Other models have no options."""

OF_OWN: dict[str, tuple[str, ...]] = {
    "model": ("model_options", "model_source"),
    "optimizer": ("optimizer_options", "optimizer_source"),
    "schedule": ("schedule_source",),
}
"""Field of TrainConfig that may be MODULE:FUNCTION -> the fields that are for such a function."""

OF_FOLDER = ("image_size", "test_share", "stream")
"""Fields of TrainConfig that are for ``--dataset folder:PATH``."""

OWN_IMAGES = (*OF_FOLDER, "images")
"""Fields of TrainConfig that are for data sets of the user's own."""

_EXCHANGING = ("gather_scatter", "send_recv", "all_reduce", "ddp", "fsdp")
_WHOLE_GRADIENT = (*_EXCHANGING, "local_sgd", "data_parallel", "reproducible")
STRATEGY_OPTIONS: dict[str, tuple[str, ...]] = {
    "bucket_cap_mb": ("ddp",),
    "comm_hook": ("ddp",),
    "sync_batchnorm": _EXCHANGING,
    "accumulate": (*_EXCHANGING, "local_sgd", "data_parallel", "parameter_server", "hogwild"),
    "sync_every": ("local_sgd",),
    "gpus_per_worker": ("data_parallel",),
    "micro_batches": ("gpipe", "one_f_one_b"),
    "push_every": ("parameter_server",),
    "servers": ("parameter_server",),
    "max_staleness": ("parameter_server",),
    "staleness_weighting": ("parameter_server",),
    "shards": ("reproducible",),
    "clip_norm": _WHOLE_GRADIENT,
    "ema": (*_WHOLE_GRADIENT, "gpipe", "one_f_one_b", "model_parallel"),
}
"""Field of TrainConfig -> the strategies that it is for. What is not here is for every strategy."""

MIXING = ("mixup", "cutmix")
"""Values of ``augment`` that mix images, and so labels."""

SAME_WORK = ("accumulate", "sync_batchnorm", "clip_norm", "ema")
"""Those of them without which a strategy would do other work than the rest of a comparison."""


def is_own(name: str | None) -> bool:
    """Whether a field names one of the user's own, and none of this package."""
    return name is not None and ":" in name


CHOICES = ("dataset", "model", "strategy", "optimizer", "schedule")
"""Fields of TrainConfig that decide which other fields say something of a run."""


def options_of_others(
    dataset: str, model: str, strategy: str, optimizer: str | None = None, schedule: str | None = None
) -> set[str]:
    """Fields of TrainConfig that say nothing of a run with these :data:`CHOICES`."""
    models = {group for name, group in MODEL_OPTIONS.items() if name != model}
    for name, chosen in (("model", model), ("optimizer", optimizer), ("schedule", schedule)):
        models |= set() if is_own(chosen) else set(OF_OWN[name])
    images = set() if is_own(dataset) else {"images"}
    images |= set() if dataset.startswith(FOLDER) else set(OF_FOLDER)
    strategies = {name for name, owners in STRATEGY_OPTIONS.items() if strategy not in owners} - set(SAME_WORK)
    return images | models | strategies


@plainly
@dataclass(frozen=True, config=STRICT)
class TrainConfig:
    """Train one image classifier on one topology."""

    # Data
    dataset: DatasetText = "cifar10"
    """Data set: one of this package ('digits' comes with scikit-learn and needs no network); folder:PATH, a folder with
    one subfolder of images per class; or MODULE:FUNCTION, a function of your own that returns arrays."""

    data_dir: str | None = None
    """Where data sets are read from, downloaded to, and where decoded copies of folder:PATH are cached
    (CIFAR_RAY_DATA_DIR, else ~/.cache/cifar_ray)."""

    image_size: Count = 32
    """Side in pixels of the images of folder:PATH: the shorter side is resized to it, and the centre is cropped."""

    test_share: Share = 0.0
    """Share of each class's images of folder:PATH to keep for the test, if the folder has no test/ or val/."""

    stream: bool = False
    """Keep the decoded images of folder:PATH on disk, below --data-dir, which all nodes must share, and read them ahead
    of the steps. For folders larger than memory."""

    images: Images = field(default_factory=Images, metadata={"recorded": True})
    """Contents of a data set of your own."""

    augment: AugmentName | None = None
    """Augmentation of training images. 'crop': random crop after padding by 4 pixels. 'crop_flip': also mirrors half of
    them. The others follow that crop: 'randaugment' and 'trivialaugment' change shapes and colours, 'mixup' and
    'cutmix' mix two images. Default: crop_flip; crop for mnist and digits, whose mirror images are wrong."""

    normalise: Literal["dataset", "half"] = "dataset"
    """Normalise pixels by the mean and standard deviation of the training images, or by 0.5 and 0.5."""

    # Model
    model: ModelText = "resnet"
    """Architecture: one of this package, or MODULE:FUNCTION, a function of your own that is called as build(image_size,
    channels, classes) and returns an nn.Module."""

    model_options: Options = field(default_factory=dict)
    """Keyword arguments of your own function, such as --model-options.depth 4."""

    model_source: str | None = field(default=None, metadata={"recorded": True})
    """SHA-256 of the file that defines your own function."""

    resnet: ResNetOptions = field(default_factory=ResNetOptions)
    """Shape of --model resnet."""

    resnet50: ResNet50Options = field(default_factory=ResNet50Options)
    """Shape of --model resnet50."""

    vit: ViTOptions = field(default_factory=ViTOptions)
    """Shape of --model vit."""

    # Optimisation. None means: the model's documented default.
    epochs: Count = 10
    """Passes over the training images."""

    steps_per_epoch: Count | None = None
    """Optimizer steps per epoch. Default: all whole global batches."""

    seed: Whole = 0
    """Seed of every random choice: initial weights, order, augmentation, dropout."""

    optimizer: OptimizerText | None = None
    """Optimizer: sgd, adamw, or MODULE:FUNCTION, called as the classes of torch.optim are, such as torch.optim:RMSprop.
    Default: the model's own. Options not given follow the model's recipe for the optimizer; if it has none, --lr and
    --weight-decay are required."""

    optimizer_options: Options = field(default_factory=dict)
    """Further keyword arguments of your own optimizer, such as --optimizer-options.alpha 0.9."""

    optimizer_source: str | None = field(default=None, metadata={"recorded": True})
    """SHA-256 of the file that defines it."""

    lr: Positive | None = None
    """Peak learning rate at --base-batch images per step. Default: the model's own."""

    momentum: Share | None = None
    """Momentum of sgd. Default: the model's own."""

    nesterov: bool = True
    """Use Nesterov momentum."""

    weight_decay: NotNegative | None = None
    """Weight decay; not applied to biases and normalisation weights (speednet: not to the biases of its norms).
    Default: the model's own."""

    clip_norm: Positive | None = None
    """Clip the global gradient norm to this value. Default: no clipping."""

    ema: Share | None = None
    """Decay of an exponential moving average (EMA) of the weights, such as 0.999. The average is evaluated, saved and
    exported. Default: no average."""

    schedule: ScheduleText | None = None
    """Learning-rate schedule after the warm-up, or MODULE:FUNCTION, a function from progress (0 to 1) to the share of
    the peak rate. Default: the model's own."""

    schedule_source: str | None = field(default=None, metadata={"recorded": True})
    """SHA-256 of the file that defines your own schedule."""

    warmup_epochs: NotNegative | None = None
    """Epochs of linear warm-up of the learning rate from 0 (triangle: from a fifth of the peak), at most --epochs.
    Default: the model's own, at most a quarter of the run."""

    label_smoothing: Share | None = None
    """Label smoothing: share of the target spread evenly over all classes. Default: the model's own."""

    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Scale the learning rate with global batch / base batch: linearly, by its square root, or not at all."""

    base_batch: Count | None = None
    """Global batch for which --lr is meant. Default: the model's own."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the forward and backward pass. 'auto' times both and uses bf16 if it is at least 15 % faster,
    decided once per run, or once per model of a sweep; fp32 with --strategy reproducible."""

    # Batch
    batch_size: Count | None = None
    """Images per worker and micro-batch. Default: the worker's share of --global-batch-size. In a pipeline, where all
    workers see every image, the global batch divided by the workers."""

    global_batch_size: Count | None = None
    """Images per optimizer step over all workers, in place of --batch-size. Default without either: 128; 1,024 for
    speednet."""

    accumulate: Count = 1
    """Micro-batches per optimizer step on each worker (gradient accumulation)."""

    # Where it runs
    topology: TopologyText = "1x1"
    """NODESxWORKERS: 1x2 is two workers on one node, 2x2 two workers on each of two nodes."""

    elastic: RangeText | None = None
    """MIN:MAX in place of --topology, such as 1x1:2x2: use as many workers as there is room for, and grow or shrink
    between two steps when nodes come or go. The global batch stays that of MAX."""

    cpus_per_worker: Count | None = None
    """CPUs that each worker reserves, and its threads. Default: an equal share of the node's CPUs, in a sweep of what
    its concurrent runs leave; 1 with --strategy reproducible."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """'auto' gives each worker one GPU if the cluster has enough, else CPUs only; with too few GPUs the run says so."""

    address: str | None = None
    """Ray cluster to join (RAY_ADDRESS). Default: start Ray on this machine."""

    local_nodes: Count = 1
    """Ray nodes to start on this machine, to try several nodes. Times are not a cluster's."""

    oversubscribe: bool = False
    """Let the Ray started here count more CPUs than the machine has. Times are not a cluster's."""

    max_failures: Whole = 3
    """Worker failures to recover from before the run fails."""

    start_timeout_s: Positive = 900.0
    """Seconds to wait for nodes, and then for room for the workers, before the run fails. A GPU machine in a cloud
    takes 3 to 10 minutes from the request to its first worker."""

    hang_timeout_s: Positive = 300.0
    """Seconds without an answer from a worker's process after which all workers are restarted, as after any failure.
    Workers wait for each other twice as long."""

    # Strategy
    strategy: StrategyName = "ddp"
    """How to keep the replicas in step; `cifar-ray strategies` describes each."""

    bucket_cap_mb: Positive = 25.0
    """Size of DDP's gradient buckets in MiB."""

    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Compression of gradients by DDP before it sends them."""

    sync_every: Count = 8
    """Optimizer steps between averages of weights and momentum in local_sgd. Checkpoints are made at an average."""

    gpus_per_worker: Count = 1
    """GPUs of the single process of data_parallel."""

    micro_batches: Count = 4
    """Micro-batches per global batch in gpipe and one_f_one_b."""

    push_every: Count = 1
    """Local optimizer steps between a worker's pushes and pulls in parameter_server."""

    servers: Count = 1
    """Parameter servers, each with some of the parameters, on the workers' nodes in turn."""

    max_staleness: Whole | None = None
    """Pushes that the fastest worker of parameter_server may be ahead of the slowest. Default: no limit."""

    staleness_weighting: Literal["none", "inverse"] = "none"
    """Weight of a gradient in parameter_server: 'inverse' is 1 / (1 + updates by others since its weights were
    pulled)."""

    shards: Count = 4
    """Shards of a global batch in reproducible, at any number of workers; a power of two."""

    sync_batchnorm: bool = False
    """Compute batch-norm statistics over all workers' images. Needs GPUs."""

    # Tracking
    checkpoint_every: Whole = 0
    """Optimizer steps between checkpoints, in addition to one after every epoch (0: only those)."""

    keep_checkpoints: Count = 2
    """Newest checkpoints to keep, in addition to the best one."""

    log_models: Literal["final", "best", "all", "none"] = "final"
    """Checkpoints to log to MLflow as models: the final one, the one with the highest test accuracy, both, or none.
    Every checkpoint is listed in MLflow in any case, with its path, step and SHA-256."""

    test_images: Count | None = None
    """Test images per evaluation, spread evenly over the test set. Default: all. For runs made for their times."""

    per_rank_test: bool = False
    """After the last epoch, also test every rank's own replica on the same images."""

    log_every: Count = 20
    """Optimizer steps between two records of every rank's loss."""

    run_name: Name | None = None
    """Name of the run, new in its storage folder. Default: made from the configuration and the time."""

    experiment: str | None = None
    """MLflow experiment of the run. Default: cifar_ray/DATASET; cifar_ray for a sweep over several data sets."""

    tracking_uri: str | None = None
    """MLflow tracking store: http(s)://... or sqlite:////absolute/path (MLFLOW_TRACKING_URI, else
    ~/.cifar_ray/mlflow.db)."""

    storage: str | None = None
    """Where runs and checkpoints are kept: a folder that all nodes share, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX.
    Default: ~/.cifar_ray/runs."""

    verbose: bool = False
    """Also show messages of Ray and MLflow."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def placement(self) -> Topology:
        """The parsed topology."""
        return parse_topology(self.topology)

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return self.placement.world_size

    @property
    def model_name(self) -> str:
        """The model as a part of names: of runs, and so of folders."""
        return self.model.replace(":", ".")

    @property
    def dataset_name(self) -> str:
        """The data set as a part of names; of a folder, the folder's name."""
        name = self.dataset.removeprefix(FOLDER).rstrip("/").rpartition("/")[2]
        return re.sub("[^A-Za-z0-9._-]", ".", name).lstrip(".") or "images"

    @property
    def dataset_key(self) -> str:
        """What tells the data set from others, once it has been read: folders may be read in several sizes."""
        return self.images.digest or self.dataset

    @property
    def cpus_reserved(self) -> int:
        """CPUs that each worker reserves, once the nodes are known; until then, the least that it needs."""
        return self.cpus_per_worker or 1

    @property
    def gpus_reserved(self) -> int:
        """GPUs that each worker reserves, once the device is decided."""
        return self.gpus_per_worker if self.device == "cuda" else 0


@plainly
@dataclass(frozen=True, kw_only=True, config=STRICT)
class ResolvedConfig(TrainConfig):
    """A run with the batch of each worker and the model's recipe filled in; ``recipe.resolve`` makes it."""

    augment: AugmentName
    batch_size: Count
    optimizer: OptimizerText
    lr: Positive
    momentum: Share
    weight_decay: NotNegative
    schedule: ScheduleText
    warmup_epochs: NotNegative
    label_smoothing: Share
    base_batch: Count
    cpus_follow: bool = False
    """Whether ``cpus_per_worker`` was not given and follows from the nodes, so that other nodes may change it."""

    @property
    def images_per_step(self) -> int:
        """The global batch, in images."""
        return self.batch_size * self.world_size * self.accumulate


SECTIONS = {
    "dataset": "Data",
    "model": "Model",
    "epochs": "Optimisation",
    "batch_size": "Batch",
    "topology": "Where it runs",
    "strategy": "Strategy",
    "checkpoint_every": "Tracking",
}
"""The first field of each section of the help -> the section's title."""

LEARNING = (
    "dataset",
    *(name for name in OWN_IMAGES if name != "stream"),
    "model",
    *OF_OWN["model"],
    *MODEL_OPTIONS.values(),
    "epochs",
    "images_per_step",
    "steps_per_epoch",
    "strategy",
    "comm_hook",
    "sync_every",
    "micro_batches",
    "push_every",
    "servers",
    "max_staleness",
    "staleness_weighting",
    "shards",
    "sync_batchnorm",
    "precision",
    "optimizer",
    *OF_OWN["optimizer"],
    "lr",
    "momentum",
    "nesterov",
    "weight_decay",
    "clip_norm",
    "ema",
    "schedule",
    *OF_OWN["schedule"],
    "warmup_epochs",
    "label_smoothing",
    "lr_scaling",
    "base_batch",
    "augment",
    "normalise",
    "seed",
)
"""What decides the weights of a resolved config; a run keeps it from its first step to its last."""


def _check(config: TrainConfig) -> None:
    """Refuse values that do not go together, each in a sentence that names a field and what it may be."""
    if config.warmup_epochs is not None and config.warmup_epochs > config.epochs:
        raise ConfigError(
            "warmup_epochs",
            f"must be at most epochs ({config.epochs}), got {config.warmup_epochs:g}",
        )
    if config.vit.dim % config.vit.heads:
        raise ConfigError("vit.dim", f"must be a multiple of vit.heads ({config.vit.heads}), got {config.vit.dim}")
    for key in addresses.KEYS:
        addresses.check(key, getattr(config, key))
    if config.experiment is not None and not config.experiment.strip():
        raise ConfigError("experiment", "must not be empty")
    if config.local_nodes > 1 and config.address is not None:
        raise ConfigError("local_nodes", "starts nodes on this machine and cannot go with --address")
    if config.oversubscribe and config.address is not None:
        raise ConfigError("oversubscribe", "is for the Ray started here and cannot go with --address")
    _check_batch(config)
    _check_options(config)


def _check_options(config: TrainConfig) -> None:
    """Refuse options of other data sets, models and strategies."""
    if not config.dataset.startswith(FOLDER):
        for name in OF_FOLDER:
            if getattr(config, name) != getattr(TrainConfig, name):
                raise ConfigError(name, f"is for --dataset {FOLDER}PATH only, and the data set is {config.dataset}")
    for kind, options in OF_OWN.items():
        chosen = getattr(config, kind)
        given = [name for name in options if getattr(config, name)]
        if given and not is_own(chosen):
            now = chosen or "the model's own"
            raise ConfigError(given[0], f"is for --{kind} MODULE:FUNCTION only, and the {kind} is {now}")
    for model, group in MODEL_OPTIONS.items():
        if config.model != model and getattr(config, group) != type(getattr(config, group))():
            raise ConfigError(group, f"options are for --model {model} only, and the model is {config.model}")
    for name, owners in STRATEGY_OPTIONS.items():
        if config.strategy not in owners and getattr(config, name) != getattr(TrainConfig, name):
            raise ConfigError(
                name, f"is for --strategy {errors.one_of(owners)} only, and the strategy is {config.strategy}"
            )


def _check_batch(config: TrainConfig) -> None:
    if config.global_batch_size is None:
        return
    ways = config.world_size * config.accumulate
    if config.global_batch_size % ways:
        raise ConfigError(
            "global_batch_size",
            f"must be a multiple of workers x accumulation ({config.world_size} x {config.accumulate}), "
            f"got {config.global_batch_size}",
        )
    if config.batch_size is not None and config.batch_size * ways != config.global_batch_size:
        raise ConfigError(
            "global_batch_size",
            f"must be batch size x workers x accumulation "
            f"({config.batch_size} x {config.world_size} x {config.accumulate} = {config.batch_size * ways}), "
            f"got {config.global_batch_size}; give one of the two",
        )
