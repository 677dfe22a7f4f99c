"""Evaluate every rank's own replica beside the shared model.

Without synchronised batch norm every rank has its own running statistics, and in some strategies its own weights
between two averages. A checkpoint holds one model; studies print figures for every rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cifar_ray.strategies.gradients import gather
from cifar_ray.tasks import LOSS
from cifar_ray.tasks.protocol import Evaluation
from cifar_ray.training.setup import TrainingState


def replica(state: TrainingState, epoch: int) -> dict[str, Tensor] | None:
    """This rank's unsynchronised state at the end of the last epoch; None without ``--per-rank-test``."""
    if not state.config.per_rank_test or epoch + 1 < state.config.epochs:
        return None
    return {name: tensor.clone() for name, tensor in _own(state).items()}


def evaluate(state: TrainingState, own: dict[str, Tensor] | None) -> tuple[Evaluation, dict[str, float]]:
    """Evaluate the shared model, and with ``own`` also every rank's replica.

    Returns:
        The shared model's figures, as they are measured after every epoch; with ``own`` also the metrics of the loss
        and the primary figure of every rank, such as ``test/loss_rank0``, each over all test images.
    """
    evaluation = state.evaluator(state.model)
    if own is None:
        return evaluation, {}
    kept = {name: tensor.clone() for name, tensor in _own(state).items()}
    state.model.load_state_dict(own, strict=False)
    alone = state.tester.alone(state.model)
    state.model.load_state_dict(kept, strict=False)
    names = (LOSS.name, state.task.spec.primary.name)
    mine = [alone.metrics[name] for name in names]
    figures = gather(torch.tensor(mine, dtype=torch.float64, device=state.worker.device))
    return evaluation, {
        f"test/{name}_rank{rank}": row[at].item() for rank, row in enumerate(figures) for at, name in enumerate(names)
    }


def _own(state: TrainingState) -> dict[str, Tensor]:
    """The part of the model that may differ between ranks."""
    kinds = {"nothing": {}, "statistics": dict(state.model.named_buffers()), "weights": state.model.state_dict()}
    return kinds[state.strategy.differs]
