"""One worker without a trainer, which would start a controller and more beside it: a plain actor does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class LoneWorker:
    """The actor: its process is fresh for each attempt, and so are its peak memory and the user's globals in it."""

    def train(self, payload: dict[str, Any]) -> None:
        """Train, as each of several workers does."""
        from cifar_ray.orchestration.run.train_worker import train_loop  # loads what the driver does without

        train_loop(payload, 0, 1)


def fit(cpus: int, gpus: float, where: Mapping[str, str] | None, start_s: float, payload: dict[str, Any]) -> None:
    """Train to the end, or until the worker fails, with so many CPUs and GPUs, on the node with these labels, if any.

    Raises:
        ControllerError: as of Ray Train's trainer, when there is no room.
        WorkerGroupError: as of the trainer, when the worker fails.
    """
    from ray.train import ControllerError, WorkerGroupError  # takes seconds, which the actor's process need not spend

    bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    room = placement_group([bundle], bundle_label_selector=None if where is None else [dict(where)])
    try:
        if not room.wait(start_s):
            raise ControllerError(TimeoutError("no room"))
        strategy = PlacementGroupSchedulingStrategy(room)
        worker = ray.remote(LoneWorker).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy).remote()
        ray.get(worker.train.remote(payload))
    except ray.exceptions.RayError as error:
        raise WorkerGroupError(str(error), {0: error}) from None
    finally:
        if ray.is_initialized():  # or Ray would start another
            remove_placement_group(room)  # and end the worker
