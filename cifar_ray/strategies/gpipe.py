"""A pipeline: all micro-batches pass forward through the stages, then all of them backward.

Label: close. The gradient is that of one worker with the whole global batch, added up over the micro-batches;
batch-norm statistics are those of each micro-batch, and dropout draws otherwise. It is bit-identical at any number
of stages, and to one worker with ``--accumulate`` micro-batches where their number is a power of two and nothing is
dropped.
Source: Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism".
Cost per step: messages ``2 * M * (W - 1) + 1``, bytes ``2 * M * A + 4``. Over all ranks: each of M micro-batches
passes the W - 1 cuts between W stages as an activation and again as its gradient, of the same size; A bytes are the
activations of one micro-batch at all cuts. At the end the loss is broadcast. A rank holds the activations of M
micro-batches.
"""

from __future__ import annotations

from torch.distributed.pipelining import ScheduleGPipe

from cifar_ray.strategies.pipeline import Pipeline


class GPipe(Pipeline):
    """See the module."""

    schedule = ScheduleGPipe


STRATEGY = GPipe
