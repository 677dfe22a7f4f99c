"""Ask nodes before a run begins or moves: can they use its storage, can PyTorch use their GPUs, and what are they."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any

import ray

from cifar_ray import storage
from cifar_ray.config import errors
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.storage import Folder

_ANSWER_S = 120.0


def check_storage(folder: Folder, config: TrainConfig) -> None:
    """Have all nodes read a file that the driver has written in a run's folder, and write one that it can see.

    Raises:
        ConfigError: naming a node that cannot use the folder.
        CommandFailedError: when a node does not answer.
    """
    node_ids = [node.node_id for node in connection.nodes()]
    if config.local_nodes > 1 or node_ids == [ray.get_runtime_context().get_node_id()]:  # they are this machine
        return
    mark = f".seen-{uuid.uuid4().hex}"
    wanted = "folder that all nodes share and can write" if folder.local else "bucket that all nodes can read and write"
    with storage.refusing(folder):
        try:
            folder.write(mark, "")
            for node_id, (host, fault) in zip(node_ids, _ask(node_ids, _use, folder, mark), strict=True):
                try:
                    folder.read(f"{mark}-{node_id}")  # a listing may be a cached one
                except FileNotFoundError:
                    fault = fault or f"writes to {folder.address} what is not seen here"
                if fault:
                    raise ConfigError("storage", f"must be a {wanted}; node {host} {fault}")
        finally:
            for name in (mark, *(f"{mark}-{node_id}" for node_id in node_ids)):
                folder.delete(name)


def _use(folder: Folder, mark: str) -> tuple[str, str]:
    """On a node: its name and address, and what fails; empty when nothing does."""
    host, doing = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})", "read"
    try:
        folder.read(mark)
        doing = "write to"
        folder.write(f"{mark}-{ray.get_runtime_context().get_node_id()}", "")
    except OSError as error:
        return host, f"cannot {doing} {folder.address} ({storage.reason(error)})"
    return host, ""


def gpu_problems(nodes: Sequence[Node]) -> list[str]:
    """Why PyTorch cannot compute on the GPUs that Ray counts, a sentence for each node where it cannot."""
    nodes = [node for node in nodes if node.gpus]
    answers = _ask([node.node_id for node in nodes], _examine, "cuda")
    return [
        f"Ray counts {errors.counted(int(node.gpus), 'GPU')} on node {node.address}, but {why}"
        for node, (_, why) in zip(nodes, answers, strict=True)
        if why
    ]


def check_gpus() -> None:
    """Refuse GPUs of the cluster that PyTorch cannot use.

    Raises:
        ConfigError: naming what is wrong with them.
    """
    if problems := gpu_problems(connection.nodes()):
        raise ConfigError("device", f"must be cpu here: {'; '.join(problems)}")


def hardware(node_id: str, device: str) -> str:
    """The name of what a node's workers compute on, on ``cpu`` or ``cuda``, as their runs record it.

    Raises:
        CommandFailedError: when the node does not say.
    """
    ((name, why),) = _ask([node_id], _examine, device)
    if why:
        raise CommandFailedError(f"a node cannot compute on its GPUs: {why}")
    return str(name)


def _examine(device: str) -> tuple[str, str]:
    """On a node: the name of what workers compute on, or why PyTorch cannot use its GPUs."""
    import torch

    from cifar_ray.training import hardware

    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # older Rays hide all from a task that asks for none
        del os.environ["CUDA_VISIBLE_DEVICES"]
    if device == "cuda" and (why := hardware.gpu_problem(range(max(torch.cuda.device_count(), 1)))):
        return "", why
    return hardware.describe(torch.device(device)), ""


def _ask(node_ids: Collection[str], question: Callable[..., Any], *args: Any) -> list[Any]:
    """Call a function on each node, and return the answers.

    Raises:
        CommandFailedError: when one does not come in time.
    """
    once = {"max_retries": 0, "max_calls": 1}  # its process would keep GPU memory
    tasks = [connection.on_node(question, node_id, **once) for node_id in node_ids]
    try:
        return ray.get([task.remote(*args) for task in tasks], timeout=_ANSWER_S)
    except ray.exceptions.RayError as error:
        raise CommandFailedError(f"a node does not answer: {errors.first_line(error)}") from None
