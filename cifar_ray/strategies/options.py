"""The strategies by name, and their options. Nothing here imports torch, so that ``--help`` is quick."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from pydantic.dataclasses import dataclass

from cifar_ray.config.option import option
from cifar_ray.config.schema import STRICT, Count, Positive, Whole, plainly

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
NAMES: tuple[str, ...] = get_args(StrategyName)
EXCHANGING = ("gather_scatter", "send_recv", "all_reduce", "ddp", "fsdp")
"""Strategies of replicas that exchange gradients in every step: they take ``--sync-batchnorm``, too."""

WHOLE_GRADIENT = (*EXCHANGING, "local_sgd", "data_parallel", "reproducible")
"""Strategies in which the whole gradient is on every rank before its step, so that they take ``--clip-norm``."""

SCALING = (*EXCHANGING, "local_sgd", "data_parallel")
"""Strategies that take ``--precision fp16``, whose loss is scaled."""

COMPILING = ("gather_scatter", "send_recv", "all_reduce", "ddp", "local_sgd")
"""Strategies that take ``--compile``: on each rank, a plain pass through the whole model."""

PIPELINES = ("gpipe", "one_f_one_b")

ACCUMULATING = (*EXCHANGING, "local_sgd", "data_parallel", "parameter_server", "hogwild")
"""Strategies that take ``--accumulate``."""

AVERAGING = (*WHOLE_GRADIENT, *PIPELINES, "model_parallel")
"""Strategies that take ``--ema``."""

FREEZING = (*WHOLE_GRADIENT, "hogwild")
"""Strategies that take ``--freeze``: every worker has the whole model, and sends nothing of what has no gradient."""

UNFREEZING = tuple(name for name in FREEZING if name not in ("fsdp", "hogwild"))
"""Strategies that take ``--unfreeze-epoch``: every worker has the optimizer's whole state, to go on from."""

GROUPING = (*AVERAGING, "hogwild")
"""Strategies that take ``--lr-scale``."""


@plainly
@dataclass(frozen=True, config=STRICT)
class DdpOptions:
    """Only with ``--strategy ddp``."""

    bucket_cap_mb: Positive = option(25.0, weights=False, formerly="bucket_cap_mb")
    """Size of DDP's gradient buckets in MiB."""

    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = option("none", weights=True, formerly="comm_hook")
    """Compression of gradients by DDP before it sends them."""


@plainly
@dataclass(frozen=True, config=STRICT)
class LocalSgdOptions:
    """Only with ``--strategy local_sgd``."""

    sync_every: Count = option(8, weights=True, formerly="sync_every")
    """Optimizer steps between averages of weights and momentum. Checkpoints are made at an average."""


@plainly
@dataclass(frozen=True, config=STRICT)
class DataParallelOptions:
    """Only with ``--strategy data_parallel``."""

    gpus_per_worker: Count = option(1, weights=False, formerly="gpus_per_worker")
    """GPUs of the single process."""


@plainly
@dataclass(frozen=True, config=STRICT)
class PipelineOptions:
    """Only with ``--strategy gpipe`` or ``one_f_one_b``."""

    micro_batches: Count = option(4, weights=True, formerly="micro_batches")
    """Micro-batches per global batch."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ParameterServerOptions:
    """Only with ``--strategy parameter_server``."""

    push_every: Count = option(1, weights=True, formerly="push_every")
    """Local optimizer steps between a worker's pushes and pulls."""

    servers: Count = option(1, weights=True, formerly="servers")
    """Parameter servers, each with some of the parameters, on the workers' nodes in turn."""

    max_staleness: Whole | None = option(None, weights=True, formerly="max_staleness")
    """Pushes that the fastest worker may be ahead of the slowest. Default: no limit."""

    staleness_weighting: Literal["none", "inverse"] = option("none", weights=True, formerly="staleness_weighting")
    """Weight of a gradient: 'inverse' is 1 / (1 + updates by others since its weights were pulled)."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ReproducibleOptions:
    """Only with ``--strategy reproducible``."""

    shards: Count = option(4, weights=True, formerly="shards")
    """Shards of a global batch, at any number of workers; a power of two."""


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Strategy."""

    strategy: StrategyName = option("ddp", weights=True)
    """How to keep the replicas in step; `cifar-ray strategies` describes each."""

    sync_batchnorm: bool = option(False, weights=True, only={"strategy": EXCHANGING}, shared=True)
    """Compute batch-norm statistics over all workers' images. Needs GPUs."""

    ddp: DdpOptions = option(DdpOptions, weights=None, only={"strategy": ("ddp",)})
    local_sgd: LocalSgdOptions = option(LocalSgdOptions, weights=None, only={"strategy": ("local_sgd",)})
    data_parallel: DataParallelOptions = option(
        DataParallelOptions, weights=None, only={"strategy": ("data_parallel",)}
    )
    pipeline: PipelineOptions = option(PipelineOptions, weights=None, only={"strategy": PIPELINES})
    parameter_server: ParameterServerOptions = option(
        ParameterServerOptions, weights=None, only={"strategy": ("parameter_server",)}
    )
    reproducible: ReproducibleOptions = option(ReproducibleOptions, weights=None, only={"strategy": ("reproducible",)})
