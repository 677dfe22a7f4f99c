"""One worker without a trainer, which would start a controller and more beside it: a plain actor does."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cifar_ray.config.train import ResolvedConfig


class LoneWorker:
    """The actor: its process is fresh for each attempt, and so are its peak memory and the user's globals in it."""

    def ready(self) -> None:
        """Return once the process runs."""

    def train(self, payload: dict[str, Any]) -> None:
        """Train, as each of several workers does."""
        from cifar_ray.orchestration.run.worker import train_loop  # loads what the driver does without

        train_loop(payload, 0, 1)


def fit(config: ResolvedConfig, node: str | None, start_s: float, payload: dict[str, Any]) -> None:
    """Train to the end, or until the worker fails.

    Args:
        config: the run's.
        node: Ray's id of the node; None for any.
        start_s: seconds to wait for room.
        payload: for the training loop.

    Raises:
        ControllerError: as of Ray Train's trainer, when there is no room.
        WorkerGroupError: as of the trainer, when the worker fails.
    """
    from ray.train import ControllerError, WorkerGroupError  # takes seconds, which the actor's process need not spend

    where = "DEFAULT" if node is None else NodeAffinitySchedulingStrategy(node, soft=False)
    resources = {"num_cpus": config.cpus_reserved, "num_gpus": config.gpus_reserved}
    worker = ray.remote(LoneWorker).options(scheduling_strategy=where, **resources).remote()
    try:
        ray.get(worker.ready.remote(), timeout=start_s)
    except ray.exceptions.RayError as error:
        if isinstance(error, TimeoutError):
            ray.kill(worker)
        raise ControllerError(error) from None
    try:
        ray.get(worker.train.remote(payload))
    except ray.exceptions.RayError as error:
        if isinstance(error, ray.exceptions.RayTaskError):  # the worker has raised, and its process is still there
            ray.kill(worker)
        raise WorkerGroupError(str(error), {0: error}) from None
    ray.kill(worker)
