"""The test of every rank's own replica, beside that of the model they share.

Replicas have the same weights, but where batch norm counts each worker's own images, every rank has running
statistics of its own. A checkpoint keeps those of rank 0; studies print a loss and an accuracy for every rank.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray.training.evaluate import Evaluation
from cifar_ray.training.setup import Job

Statistics = dict[str, Tensor]


def statistics(job: Job, epoch: int) -> Statistics | None:
    """This rank's own buffers at the end of the last epoch; None when they are not asked for."""
    if not job.config.per_rank_test or epoch + 1 < job.config.epochs:
        return None
    return {name: buffer.clone() for name, buffer in job.model.named_buffers()}


def evaluate(job: Job, own: Statistics | None) -> Evaluation:
    """Evaluate the shared model, and with ``own`` statistics also every rank's replica.

    Returns:
        The shared model's figures; with ``own`` also ``loss_rank0``, ``accuracy_rank0`` and so on, each over all
        test images.
    """
    shared = job.evaluator(job.model)
    if own is None:
        return shared
    names = ("loss", "accuracy")
    mine = [shared.metrics[name] for name in names]
    place = job.place
    if job.strategy.own_statistics and _differ(job, own):
        kept = {name: buffer.clone() for name, buffer in job.model.named_buffers()}
        job.model.load_state_dict(own, strict=False)
        mine = list(job.evaluator.alone(job.model))
        job.model.load_state_dict(kept, strict=False)
    figures = [torch.zeros(len(names), dtype=torch.float64, device=place.device) for _ in range(place.world_size)]
    figures[place.rank] += torch.tensor(mine, dtype=torch.float64, device=place.device)
    if place.world_size > 1:
        dist.all_gather(figures, figures[place.rank].clone())
    each = {f"{name}_rank{rank}": row[at].item() for rank, row in enumerate(figures) for at, name in enumerate(names)}
    return dataclasses.replace(shared, metrics={**shared.metrics, **each})


def _differ(job: Job, own: Statistics) -> bool:
    """Whether any rank's own statistics are others than the shared ones."""
    mine = any(not torch.equal(own[name], buffer) for name, buffer in job.model.named_buffers())
    anywhere = torch.tensor(int(mine), device=job.place.device)
    if job.place.world_size > 1:
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
    return bool(anywhere.item())
