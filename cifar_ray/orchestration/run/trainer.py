"""Ray Train's ``TorchTrainer`` for one attempt at a run."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchTrainer

from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import local
from cifar_ray.orchestration.cluster.allocation import Allocation
from cifar_ray.orchestration.cluster.ray_internals import (
    DatasetsCallback,
    PlacementGroupCleanerCallback,
)
from cifar_ray.orchestration.run.callbacks import NODE_ID_LABEL, Failures, Placement, Silence
from cifar_ray.orchestration.run.collectives import Collectives
from cifar_ray.orchestration.run.events import Mailbox, Stopped, WorkersFailed
from cifar_ray.storage import Folder
from cifar_ray.training.observer import Launch, Outcome

_PLACEMENT_TRY_S = 15.0


@dataclass(frozen=True)
class Attempt:
    """One start of a run's workers on nodes chosen for them; Ray Train may restart them there.

    Attributes:
        allocation: config and nodes.
        dataset: the data in Ray's object store.
        folder: the run's.
        launch: what the driver has done so far.
        stoppable: whether the driver may ask the workers to stop between two steps.
        failed: the last failure of the run's workers.
    """

    allocation: Allocation
    dataset: ray.ObjectRef
    folder: Folder
    launch: Launch
    stoppable: bool = False
    failed: WorkersFailed | None = None


def build(attempt: Attempt, mailbox: Mailbox) -> TorchTrainer:
    """Make the trainer of an attempt, whose events go to ``mailbox``."""
    config = attempt.allocation.config
    _set_environment(config, attempt.stoppable)
    placement = Placement(
        config.placement,
        config.cpus_reserved,
        config.gpus_reserved,
        config.start_timeout_s,
        mailbox,
        chosen=None if config.elastic is None else attempt.allocation.nodes,
    )
    return _Trainer(
        _train_loop,
        train_loop_config={
            "config": config,
            "dataset": attempt.dataset,
            "folder": attempt.folder,
            "mailbox": mailbox,
            "stoppable": attempt.stoppable,
        },
        torch_config=Collectives(timeout_s=math.ceil(2 * config.hang_timeout_s)),
        scaling_config=_scaling(attempt.allocation),
        run_config=ray.train.RunConfig(
            name=f"attempt-{time.time_ns()}",
            storage_path=str(attempt.folder.disk / "ray_train"),
            failure_config=ray.train.FailureConfig(
                # An elastic run may go on with fewer workers, which its driver decides.
                max_failures=0 if config.elastic else config.max_failures,
                controller_failure_limit=-1,  # of starts; Placement has the deadline
            ),
            callbacks=[placement, Failures(mailbox, attempt.failed), Silence(mailbox, config.hang_timeout_s)],
            logging_config=ray.train.LoggingConfig(log_level="INFO" if config.verbose else "ERROR"),
        ),
    )


def _set_environment(config: ResolvedConfig, stoppable: bool) -> None:
    """Set the variables that Ray Train reads when the run starts."""
    # Ray Train's own preemption watcher polls every 5 s, stops the workers at a barrier, and starts again at the same
    # size. Where workers can stop between two steps, the driver watches instead, since it chooses the nodes and may
    # change the topology; with both, the run would start twice. Elsewhere (asynchronous strategies, the runs of a
    # sweep) Ray Train's watcher stays on, but for a Ray started here, whose nodes nobody takes away.
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0" if stoppable or local.here() else "1"
    # The default of 2 s between polls would delay every epoch's report.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(min(_PLACEMENT_TRY_S, config.start_timeout_s))
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(config.hang_timeout_s)


def _scaling(allocation: Allocation) -> ray.train.ScalingConfig:
    config = allocation.config
    anywhere = config.placement.nodes == 1 and config.elastic is None
    gpus = config.gpus_reserved
    return ray.train.ScalingConfig(
        num_workers=config.world_size,
        use_gpu=bool(gpus),
        resources_per_worker={"CPU": config.cpus_reserved, **({"GPU": gpus} if gpus else {})},
        placement_strategy="STRICT_PACK" if anywhere else "PACK",
        label_selector=None if anywhere else [{NODE_ID_LABEL: node_id} for node_id in allocation.nodes],
    )


def _train_loop(payload: dict[str, Any]) -> Outcome | Stopped | None:
    # Imported in the worker only: the driver and Ray's controller do not need what it loads.
    from cifar_ray.orchestration.run.worker import train_loop

    return train_loop(payload)


class _Trainer(TorchTrainer):
    """TorchTrainer without the processes that would do nothing.

    The one for Ray Data has no data set here. The placement-group cleaner asks the dashboard whether the controller is
    alive; :func:`cifar_ray.orchestration.cluster.reservations.remove_abandoned` needs none.
    """

    def _create_default_callbacks(self) -> list[Any]:
        idle = (DatasetsCallback, PlacementGroupCleanerCallback)
        return [callback for callback in super()._create_default_callbacks() if not isinstance(callback, idle)]
