"""The model cut into one stage per worker, and the whole global batch passed from one to the next and back.

Label: exact. Bit-identical to one worker with the whole global batch, batch norm included, where nothing is dropped:
on CPUs of one kind, with the same number of threads.
Source: Huang et al. 2019, "GPipe", which names it naive model parallelism: one stage computes while the others wait.
Cost per step: messages ``2 * (W - 1) + 1``, bytes ``2 * A + 4``. Over all ranks: the activations at the W - 1 cuts
between W stages, A bytes at all cuts together, are sent forward, and their gradients backward. At the end the loss is
broadcast.
"""

from __future__ import annotations

from torch.distributed.pipelining import ScheduleGPipe

from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.pipeline import Pipeline
from cifar_ray.strategies.protocol import StrategyContext


class ModelParallel(Pipeline):
    """See the module."""

    schedule = ScheduleGPipe
    cut = None

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)  # without options

    @staticmethod
    def micro_batches(config: ResolvedConfig) -> int:
        return 1


STRATEGY = ModelParallel
