"""Check nodes: can they use a run's storage, before it is recorded or moves, can PyTorch use their GPUs, and what are
they."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import uuid
from collections.abc import Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cifar_ray import storage
from cifar_ray.config import errors
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.storage import Folder

_ANSWER_S = 120.0
_CHECKPOINTS = 2  # a new one is written before an old one is removed


def check_storage(folder: Folder, config: TrainConfig) -> None:
    """Check the folder of a run or a sweep from all nodes, since workers may move to any of them.

    Raises:
        ConfigError: naming a node that cannot use the folder, or a disk with too little room.
    """
    _check_room(folder, config)
    nodes = connection.nodes()
    if [node.node_id for node in nodes] != [ray.get_runtime_context().get_node_id()]:
        with storage.refusing(folder):
            for problem in problems(folder, config, nodes).values():
                raise problem


def problems(folder: Folder, config: TrainConfig, nodes: Sequence[Node]) -> dict[str, ConfigError]:
    """Have some nodes read a file that the driver has written, and write one that it can see.

    Returns:
        Node id -> what is wrong, for the nodes that cannot use the folder.

    Raises:
        OSError: the driver itself cannot use it.
    """
    if not nodes or config.local_nodes > 1:  # nodes started here are this machine
        return {}
    mark = f".seen-{uuid.uuid4().hex}"
    wanted = "folder that all nodes share and can write" if folder.local else "bucket that all nodes can read and write"
    faults = {}
    try:
        folder.write(mark, "")
        task = ray.remote(num_cpus=0, max_retries=0)(_try)
        answers = []
        for node in nodes:
            on_node = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False))
            answers.append(on_node.remote(folder, mark, f"{mark}-{node.node_id}"))
        for node, answer in zip(nodes, answers, strict=True):
            try:
                host, fault = ray.get(answer, timeout=_ANSWER_S)
                if not fault:
                    folder.read(f"{mark}-{node.node_id}")  # a listing may be a cached one
            except FileNotFoundError:
                fault = "writes what is not seen here to"
            except ray.exceptions.RayError as error:  # also when there is no answer in time
                reason = errors.first_line(error)
                faults[node.node_id] = ConfigError("storage", f"could not be checked on node {node.address}: {reason}")
                continue
            if fault:
                faults[node.node_id] = ConfigError(
                    "storage", f"must be a {wanted}; node {host} {fault} {folder.address}"
                )
        return faults
    finally:
        with contextlib.suppress(OSError):
            for name in (mark, *(f"{mark}-{node.node_id}" for node in nodes)):
                folder.delete(name)


def _try(folder: Folder, read: str, write: str) -> tuple[str, str]:
    """Use a folder from a node: the node's name and address, and what fails; empty when nothing does."""
    host = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
    try:
        folder.read(read)
    except FileNotFoundError:
        return host, "does not see"
    except OSError as error:
        return host, f"cannot read ({storage.reason(error)})"
    try:
        folder.write(write, "")
    except OSError as error:
        return host, f"cannot write to ({storage.reason(error)})"
    return host, ""


def gpu_problems(nodes: Sequence[Node]) -> list[str]:
    """Why PyTorch cannot compute on the GPUs that Ray counts, a sentence for each node where it cannot."""
    task = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(_unusable_gpus)  # its process would keep GPU memory
    asked = [
        (node, task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)))
        for node in nodes
        if node.gpus
    ]
    answers = [(node, on_node.remote(int(node.gpus))) for node, on_node in asked]
    problems = []
    for node, answer in answers:
        try:
            why = ray.get(answer, timeout=_ANSWER_S)
        except ray.exceptions.RayError as error:
            why = f"they could not be checked: {errors.first_line(error)}"
        if why:
            problems.append(f"Ray counts {errors.counted(int(node.gpus), 'GPU')} on node {node.address}, but {why}")
    return problems


def _unusable_gpus(count: int) -> str:
    from cifar_ray.training import hardware

    _show_gpus()
    return hardware.gpu_problem(range(count))


def hardware(node_id: str, device: str) -> str:
    """The name of what a node's workers compute on, on ``cpu`` or ``cuda``, as their runs record it.

    Raises:
        CommandFailedError: when the node does not say.
    """
    task = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(_described)  # its process would keep GPU memory
    on_node = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))
    try:
        name: str = ray.get(on_node.remote(device), timeout=_ANSWER_S)
    except ray.exceptions.RayError as error:
        problem = f"a node does not say what it computes on: {errors.first_line(error)}"
        raise CommandFailedError(problem) from None
    return name


def _described(device: str) -> str:
    import torch

    from cifar_ray.training import hardware

    _show_gpus()
    return hardware.describe(torch.device(device))


def _show_gpus() -> None:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # older Rays hide all from a task that asks for none
        del os.environ["CUDA_VISIBLE_DEVICES"]


def _check_room(folder: Folder, config: TrainConfig) -> None:
    path = folder.disk
    while not path.exists():
        path = path.parent
    free, needed = shutil.disk_usage(path).free, _CHECKPOINTS * checkpoint_bytes(config)
    if free < needed:
        wanted = f"{_CHECKPOINTS} checkpoints of {config.model}, {needed / 1e6:.1f} MB"
        raise ConfigError("storage", f"must have room for {wanted}; {folder.disk} has {free / 1e6:.1f} MB free")


def checkpoint_bytes(config: TrainConfig) -> int:
    """Size of a checkpoint on a disk: weights, buffers and the optimizer's moments."""
    from cifar_ray import data, models

    model = models.outline(config, data.facts(config))
    whole = sum(tensor.nbytes for tensor in model.state_dict().values())
    learned = sum(parameter.nbytes for parameter in model.parameters())
    moments = 2 if config.optimizer == "adamw" else int(bool(config.momentum))
    moments += config.ema is not None
    return whole + moments * learned
