"""Figures of the test or of the validation samples, each counted exactly once at any world size.

Always in float32, whatever training computes in: the figures are those of the model as it is saved, exported and
served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from cifar_ray.config.facts import Facts
from cifar_ray.data import Dataset, Split, modality, order
from cifar_ray.data.datasets import as_tensor
from cifar_ray.strategies.gradients import gather
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks import Subset
from cifar_ray.tasks.protocol import Evaluation, Task
from cifar_ray.training import hardware
from cifar_ray.training.mistakes import Mistake, SurestMistakes

EVALUATION_BATCH = {"cpu": 128, "cuda": 512}
"""Test samples per forward pass; of images above 64x64 pixels, as many as have as many pixels. ResNet on one thread of
an AMD EPYC took 0.9 CPU seconds for 2,560 images with 128 at once, 1.3 with 256, 1.9 with 512 (medians, n = 3)."""


class Evaluator:
    """Evaluates a model on a data set's test or validation samples, each rank on its own share."""

    def __init__(self, dataset: Dataset, worker: Worker, task: Task, subset: Subset = "test") -> None:
        self._dataset, self._worker, self._task = dataset, worker, task
        samples = dataset.val if subset == "val" else dataset.test
        assert samples is not None
        self._samples = samples
        self._at_once = len(samples)
        self._wrongly = getattr(task, "wrongly", None) if subset == "test" else None  # where answers can be wrong
        self._mistakes: SurestMistakes | None = None
        with torch.inference_mode():  # what it imports counts as start-up
            shape = task.spec.outputs(dataset.spec.num_classes, dataset.spec.image_size)
            outputs = torch.zeros(1, *shape, device=worker.device)
            task.tally(outputs, as_tensor(samples[task.target][:1]).to(worker.device))

    def __call__(self, model: nn.Module) -> Evaluation:
        """Evaluate ``model``, whose weights and buffers are the same on every rank.

        The counts of all ranks are added up; every rank returns the same figures.
        """
        self._mistakes = SurestMistakes(len(self._samples), self._worker.device) if self._wrongly else None
        mine = self._tally(model, self._worker.rank, self._worker.world_size, self._mistakes)
        return self._evaluation({name: torch.stack(gather(mine[name])).sum(0) for name in sorted(mine)})

    def mistakes(self) -> tuple[Mistake, ...]:
        """The surest mistakes of the last model evaluated with all ranks; every rank calls this, and gets the same."""
        return self._mistakes.gathered() if self._mistakes else ()

    def alone(self, model: nn.Module) -> Evaluation:
        """Evaluate this rank's ``model`` on all samples, whatever the other ranks have."""
        return self._evaluation(self._tally(model, 0, 1))

    def _evaluation(self, tally: Mapping[str, Tensor]) -> Evaluation:
        on_cpu = {name: each.cpu() for name, each in tally.items()}
        evaluation = self._task.evaluation(on_cpu, len(self._samples))
        # Figures may be NumPy's numbers, which no checkpoint holds.
        metrics = {name: float(value) for name, value in evaluation.metrics.items()}
        return replace(evaluation, metrics=metrics)

    @torch.inference_mode()
    def _tally(
        self, model: nn.Module, rank: int, world_size: int, mistakes: SurestMistakes | None = None
    ) -> dict[str, Tensor]:
        """Counts over the share of ``rank``, whose mistakes are kept; the model is in evaluation mode meanwhile."""
        modes = {module: module.training for module in model.modules()}
        model.eval()
        total: dict[str, Tensor] = {}
        samples, spec, device = self._samples, self._dataset.spec, self._worker.device
        position = order.evaluation_range(len(samples), rank, world_size).start
        for inputs, targets in evaluation_batches(samples, self._task.target, spec, rank, world_size, device):
            outputs = self._forward(model, inputs)
            if mistakes is not None and self._wrongly is not None:
                predicted, probability = self._wrongly(outputs, targets)
                mistakes.add(predicted, probability, targets, position)
            position += len(targets)
            for name, count in self._task.tally(outputs, targets).items():
                total[name] = total[name] + count if name in total else count
        for module, mode in modes.items():  # what is frozen stays in evaluation mode
            module.training = mode
        return total

    def _forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """What the model gives for ``inputs``; where a GPU has no room for so many, in halves, from then on."""
        while True:
            try:
                with hardware.plain_float32():
                    parts = [model(part) for part in torch.split(inputs, self._at_once)]
                    return parts[0] if len(parts) == 1 else torch.cat(parts)
            except torch.OutOfMemoryError:
                if self._at_once == 1:
                    raise
            self._at_once = max(min(self._at_once, len(inputs)) // 2, 1)


def evaluation_batches(
    split: Split, target: str, facts: Facts, rank: int, world_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's share of ``split``: every sample is on exactly one rank, at any world size.

    Yields:
        Inputs as the model takes them (B, ...) and rows of the column ``target``, on ``device``.
    """
    inputs, targets, kind = as_tensor(split.inputs), as_tensor(split[target]), modality.of(facts)
    normalise, size = kind.normaliser().to(device), kind.at_once(EVALUATION_BATCH[device.type])
    mine = order.evaluation_range(len(targets), rank, world_size)
    for start in range(mine.start, mine.stop, size):
        part = slice(start, min(start + size, mine.stop))
        yield normalise(kind.shown(inputs[part]).to(device)), targets[part].to(device)
