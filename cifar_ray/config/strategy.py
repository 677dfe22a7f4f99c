"""The options that choose a strategy, and which strategies take which others."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from cifar_ray.config.option import option
from cifar_ray.config.schema import Options, Positive

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

SCALING = (*EXCHANGING, "data_parallel")
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


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Strategy."""

    strategy: StrategyName = option("ddp", weights=True)
    """How to keep the replicas in step; `cifar-ray strategies` describes each."""

    sync_batchnorm: bool = option(False, weights=True, only={"strategy": EXCHANGING})
    """Compute batch-norm statistics over all workers' images. Needs GPUs."""

    strategy_options: Options = option(dict, weights=True)
    """Options of the strategy, such as --strategy-options.sync-every 4: `cifar-ray strategies NAME` lists them."""

    bucket_cap_mb: Positive = option(25.0, weights=False, only={"strategy": ("ddp",)})
    """Size of DDP's gradient buckets in MiB."""

    gpus_per_worker: Positive = option(1.0, weights=False)
    """GPUs of each worker: several for data_parallel, whose one process has them all; or a part of one, such as 0.25
    for four runs of a sweep on one GPU, of topology 1x1, each with at most a quarter of its memory. Reports ignore the
    times of such runs."""
