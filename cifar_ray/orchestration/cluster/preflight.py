"""Whether a run's storage can be used from its nodes, found out before anything is recorded and before it moves."""

from __future__ import annotations

import contextlib
import shutil
import socket
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cifar_ray import storage
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.storage import Folder

_ANSWER_S = 120.0
_CHECKPOINTS_AT_ONCE = 2  # a new one is written before an old one is removed


@dataclass(frozen=True)
class Seen:
    """What a node has found.

    Attributes:
        host: the node's name and address.
        problem: what it cannot do; empty when all is well.
        free: bytes on the disk that checkpoints are written to.
    """

    host: str
    problem: str
    free: int


def check_storage(folder: Folder, config: TrainConfig) -> None:
    """Have every node read what the driver has written below ``folder``, and write what the driver can read.

    Workers may come to stand on any node after a failure, so all that are alive are asked.

    Args:
        folder: a run's or a sweep's, which the driver has made.
        config: a resolved config.

    Raises:
        ConfigError: naming the node from which the folder cannot be used, or that has too little room.
    """
    nodes, here = connection.nodes(), ray.get_runtime_context().get_node_id()
    # Nodes that are started here are all this machine, which has just made the folder.
    alone = connection.is_made_up(config) or [node.node_id for node in nodes] == [here]
    if folder.local or alone:
        _check_room(_free(folder.disk), folder.address if folder.local else str(Path.home()), config)
    if alone:
        return
    with storage.refusing(folder):
        found = problems(folder, config, [node.node_id for node in nodes])
    for problem in found.values():
        raise problem


def problems(folder: Folder, config: TrainConfig, node_ids: Collection[str]) -> dict[str, ConfigError]:
    """As :func:`check_storage`, for some nodes that are alive, and with all that is wrong.

    Returns:
        Node id -> what is wrong, of the nodes from which the folder cannot be used.

    Raises:
        OSError: when the driver itself cannot use it.
    """
    if not node_ids or connection.is_made_up(config):
        return {}
    nodes = [node for node in connection.nodes() if node.node_id in node_ids]
    token = uuid.uuid4().hex
    mark = f".seen-{token}"
    found = {}
    try:
        folder.write(mark, token)
        look = ray.remote(_look)
        looked = []
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
            options = look.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            looked.append(options.remote(folder, mark, node.node_id))
        for node, reference in zip(nodes, looked):
            try:
                seen = _answer(reference, node.address)
                if seen.problem:
                    raise ConfigError("storage", f"{_wanted(folder)}; node {seen.host} {seen.problem} {folder.address}")
                if not _is_there(folder, f"{mark}-{node.node_id}"):
                    raise ConfigError(
                        "storage",
                        f"{_wanted(folder)}; what node {seen.host} writes to {folder.address} is not seen here",
                    )
                if not folder.local:
                    _check_room(seen.free, f"node {seen.host}, below its home folder,", config)
            except ConfigError as error:
                found[node.node_id] = error
        return found
    finally:
        with contextlib.suppress(OSError):
            for name in (mark, *(f"{mark}-{node.node_id}" for node in nodes)):
                folder.delete(name)


def _is_there(folder: Folder, name: str) -> bool:
    try:
        folder.read(name)
    except FileNotFoundError:
        return False
    return True


def _wanted(folder: Folder) -> str:
    if folder.local:
        return "must be a folder that all nodes share and can write"
    return "must be a place that all nodes can read and write"


def _look(folder: Folder, mark: str, node_id: str) -> Seen:
    """Runs on each node."""
    host = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
    free = 0 if folder.local else _free(folder.disk)
    try:
        token = folder.read(mark)
    except FileNotFoundError:
        return Seen(host, "does not see", free)
    except OSError as error:
        return Seen(host, f"cannot read ({storage.reason(error)})", free)
    try:
        folder.write(f"{mark}-{node_id}", token)
    except OSError as error:
        return Seen(host, f"cannot write to ({storage.reason(error)})", free)
    return Seen(host, "", free)


def _answer(reference: ray.ObjectRef, address: str) -> Seen:
    try:
        return ray.get(reference, timeout=_ANSWER_S)
    except ray.exceptions.GetTimeoutError:
        raise ConfigError(
            "storage", f"could not be checked: node {address} gave no answer in {_ANSWER_S:g} s"
        ) from None
    except ray.exceptions.RayError as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError("storage", f"could not be checked on node {address}: {first}") from None


def _free(path: Path) -> int:
    """Bytes that can still be written where ``path`` is or would be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _check_room(free: int, where: str, config: TrainConfig) -> None:
    needed = _CHECKPOINTS_AT_ONCE * checkpoint_bytes(config)
    if free < needed:
        raise ConfigError(
            "storage",
            f"must have room for {_CHECKPOINTS_AT_ONCE} checkpoints of {config.model}, {needed / 1e6:.1f} MB; "
            f"{where} has {free / 1e6:.1f} MB free",
        )


def checkpoint_bytes(config: TrainConfig) -> int:
    """What a checkpoint takes on a disk: weights, buffers and the optimizer's moments; the rest is little."""
    import torch

    from cifar_ray import models
    from cifar_ray.data import SPECS

    with torch.device("meta"):
        model = models.build(config, SPECS[config.dataset])
    whole = sum(tensor.nbytes for tensor in model.state_dict().values())
    learned = sum(parameter.nbytes for parameter in model.parameters())
    moments = 2 if config.optimizer == "adamw" else int(bool(config.momentum))
    return whole + moments * learned
