"""A pipeline: as soon as a stage can, it takes one micro-batch forward and one backward by turns.

Label: close. As ``gpipe``, and bit-identical to it.
Source: Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", with the flush after
every global batch of Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training".
Cost per step: messages ``2 * M * (W - 1) + 1``, bytes ``2 * M * A + 4``. As ``gpipe``, over all ranks: M
micro-batches pass W - 1 cuts between W stages twice, A bytes for one micro-batch at all cuts, and the loss is
broadcast. Stage r of W, from 0, holds the activations of at most W - r micro-batches.
"""

from __future__ import annotations

from torch.distributed.pipelining import Schedule1F1B

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.pipeline import Pipeline


class OneFOneB(Pipeline):
    """See the module."""

    schedule = Schedule1F1B

    @classmethod
    def check(cls, config: ResolvedConfig, decided: Decided) -> None:
        super().check(config, decided)
        if cls.micro_batches(config) < decided.world_size:
            raise ConfigError(
                "strategy_options.micro_batches",
                f"must be at least the number of workers ({decided.world_size}) for --strategy one_f_one_b, "
                f"got {cls.micro_batches(config)}",
            )


STRATEGY = OneFOneB
