"""The short runs that ``cifar-ray plan`` trains where it is given no finished ones."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cifar_ray import IMPORTED_AT, tracking
from cifar_ray.cli import early
from cifar_ray.config import servers
from cifar_ray.config.command_line import PlanRequest
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.display.sweep import FINISHED
from cifar_ray.planning import probing
from cifar_ray.planning.measured import Measured


@dataclass(frozen=True)
class Probe:
    """Runs that have been trained to plan from.

    Attributes:
        name: of their sweep.
        tracking_uri: the store that has it.
        training: what is planned.
    """

    name: str
    tracking_uri: str
    training: ResolvedConfig


def run(
    asked: PlanRequest,
    training: TrainConfig,
    topologies: Sequence[Topology],
    words: Sequence[str],
    check: Callable[[ResolvedConfig, Measured | None], object],
    is_machine_checked: bool,
) -> Probe:
    """Train them, once a cluster has told what is asked of it.

    Args:
        asked: what the command is asked for.
        training: what is planned, as it is asked for.
        topologies: what it is planned for.
        words: those of the command.
        check: refuses what cannot be planned, also when it knows what the runs are trained on.
        is_machine_checked: whether it may refuse what they are trained on, so that a cluster is asked for that.

    Raises:
        ConfigError: on a user's mistake, before anything has been trained.
        CommandFailedError: when no run has finished.
    """
    servers.reach_chosen(training.address)
    name = asked.options.name or f"plan-{training.model_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    is_here = servers.ray_head(training.address) is None
    with early.loading(f"sweep {name}: loading PyTorch and Ray", always=True), servers.before_ray(training):
        import torch

        from cifar_ray import data
        from cifar_ray.training import hardware, recipe

        with tracking.unchanged():
            planned = recipe.resolve(training)
        device = torch.device("cuda" if torch.cuda.is_available() and training.device != "cpu" else "cpu")
        here = Measured((), hardware.describe(device), device.type, is_fixed=False)
        check(planned, here if is_here else None)
        train, given = asked.train, training.device
        cpus = room = None
        if is_here:
            if training.device == "auto":  # with which a run that there are too few GPUs for would have CPUs
                given = "cuda" if device.type == "cuda" else "cpu"
                train = {**train, "device": given}
            all_cpus = hardware.allowed_cpus()
            if (training.cpus_per_worker or 1) > all_cpus:
                problem = f"must be at most {all_cpus}, the CPUs of this machine, got {training.cpus_per_worker}"
                raise ConfigError("cpus_per_worker", problem)
            cpus = all_cpus if training.cpus_per_worker is None else None
            is_on_gpus = given == "cuda"
            room = torch.cuda.device_count() if is_on_gpus else all_cpus // (training.cpus_per_worker or 1)
        grid = probing.cells(planned, given, topologies, data.spec(planned).train_size, cpus, room)
        config = probing.sweep(name, train, grid)
        from cifar_ray.orchestration.run import machine
        from cifar_ray.orchestration.sweep import dry_run
        from cifar_ray.orchestration.sweep.runner import sweep

    if not is_here and (is_machine_checked or training.device == "auto"):
        dry_run.of_new(config)  # refuses what the sweep would, before the cluster is asked
        hardware_there, device_there = machine.ask(planned)
        check(planned, Measured((), hardware_there, device_there, is_fixed=False))
        config = probing.sweep(name, {**train, "device": device_there}, grid)  # with auto, each run would choose
    result = sweep(config, shlex.join(["cifar-ray", "plan", *words]), begun=IMPORTED_AT)
    if FINISHED not in result.states.values():
        raise CommandFailedError(f"sweep {name}: no run has finished, so there is nothing to plan from")
    return Probe(name, result.tracking_uri, planned)
