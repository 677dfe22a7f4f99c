"""One worker without a trainer, which would start a controller and more beside it: a plain actor does."""

from __future__ import annotations

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cifar_ray.orchestration.run.workers import Attempt


class LoneWorker:
    """The actor: its process is fresh for each attempt, and so are its peak memory and the user's globals in it."""

    def train(self, attempt: Attempt) -> None:
        """Train, as each of several workers does."""
        from cifar_ray.orchestration.run.train_worker import train_loop  # loads what the driver does without

        train_loop(attempt, 0)


def fit(attempt: Attempt) -> None:
    """Train to the end, or until the worker fails.

    Raises:
        ControllerError: as of Ray Train's trainer, when there is no room.
        WorkerGroupError: as of the trainer, when the worker fails.
    """
    from ray.train import ControllerError, WorkerGroupError  # takes seconds, which the actor's process need not spend

    bundle = attempt.bundle
    room = placement_group([bundle], bundle_label_selector=attempt.selectors)
    try:
        if not room.wait(attempt.start_s):
            raise ControllerError(TimeoutError("no room"))
        resources = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0)}
        where = PlacementGroupSchedulingStrategy(room)
        worker = ray.remote(LoneWorker).options(scheduling_strategy=where, **resources).remote()
        ray.get(worker.train.remote(attempt))
    except ray.exceptions.RayError as error:
        raise WorkerGroupError(str(error), {0: error}) from None
    finally:
        if ray.is_initialized():  # or Ray would start another
            remove_placement_group(room)  # and end the worker
