"""``cifar-ray doctor``: what this machine offers to a run, and what would stop one."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated

from cifar_ray import storage
from cifar_ray._version import __version__
from cifar_ray.cli import output
from cifar_ray.config import files, runfile
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.flags import AsJson, Given, Of
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.run import Console


@dataclass(frozen=True)
class Check:
    """What has been checked; ``problem`` says what to do when it is wrong."""

    subject: str
    state: str
    problem: str = ""


def doctor(
    *, json: AsJson = False, options: Annotated[Given, Of(TrainConfig, only=("storage", "tracking_uri", "address"))]
) -> int:
    """Check what this machine offers to a run, and what would stop one."""
    config = runfile.load(None, options)
    with output.progress(json):
        console, checks = Console(), []
        for check in examine(config):
            checks.append(check)
            console.line(f"{'!!' if check.problem else 'ok'}  {check.subject:<14} {check.state}")
            if check.problem:
                console.line(f"    {'':<14} {check.problem}")
        is_unfit = any(check.problem for check in checks)
        console.line("see to the lines marked !! first" if is_unfit else "nothing stands in the way of a run")
    output.show(checks, json)
    return int(is_unfit)


def examine(config: TrainConfig) -> Iterator[Check]:
    """Look at everything that a run with this config would use. Nothing is started or changed."""
    looks = {"cifar_ray": _packages, "processor": _processor, "GPUs": _gpus}
    looks |= {"storage": _storage, "tracking store": _store, "Ray": _ray}
    for subject, look in looks.items():
        try:
            yield Check(subject, look(config))
        except (ConfigError, ImportError, OSError) as error:
            yield Check(subject, "not usable", error.as_flag() if isinstance(error, ConfigError) else str(error))


def _packages(config: TrainConfig) -> str:
    packages = [f"{name} {metadata.version(name)}" for name in ("torch", "torchvision", "ray", "mlflow")]
    return f"{__version__}, Python {platform.python_version()}, {', '.join(packages)}"


def _processor(config: TrainConfig) -> str:
    import psutil
    import torch

    from cifar_ray.training import hardware

    cpus = f"{hardware.allowed_cpus()} of {os.cpu_count()} CPUs may be used"
    memory = f"{psutil.virtual_memory().available / 1e9:.1f} GB of memory free"
    return f"{hardware.describe(torch.device('cpu'))}, {cpus}, {memory}"


def _gpus(config: TrainConfig) -> str:
    import torch

    from cifar_ray.training import hardware

    cards, _ = hardware.nvml()
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return f"{cards}, hidden by CUDA_VISIBLE_DEVICES" if cards else "none"
    if cards:
        if why := hardware.gpu_problem(range(max(torch.cuda.device_count(), 1))):
            raise ConfigError("", f"{cards}: {why}")
        return cards
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]  # of another maker
    return ", ".join(names) or "none"


def _storage(config: TrainConfig) -> str:
    folder = storage.at(config.storage)
    if not folder.local:
        with storage.refusing(folder):
            folder.names()
        return f"{folder.address} answers; whether it can be written is seen when a run begins"
    existing = next(path for path in (folder.disk, *folder.disk.parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError("storage", f"must be a folder that can be written, and {existing} is not")
    return f"{folder.disk}, {shutil.disk_usage(existing).free / 1e9:.1f} GB free"


def _store(config: TrainConfig) -> str:
    files.home()  # MLflow needs one
    from cifar_ray import tracking
    from cifar_ray.tracking import store
    from cifar_ray.tracking.uri import exists, resolve_uri

    tracking.quieten(verbose=False)
    uri = resolve_uri(config.tracking_uri)
    if not exists(uri):
        return f"{uri} is made at first use"
    store.connect(uri)
    return f"{uri} answers"


def _ray(config: TrainConfig) -> str:
    from cifar_ray.orchestration.cluster import connection, preflight

    head = connection.address(config)
    if head is None:
        return "is started on this machine for each run (no --address, no RAY_ADDRESS)"
    with connection.connected(config):
        nodes = connection.nodes()
        unusable = preflight.gpu_problems(nodes)
    if unusable:
        raise ConfigError("", "; ".join(unusable))
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    return f"{head} answers: {counted(len(nodes), 'node')}, {counted(int(cpus), 'CPU')}, {counted(int(gpus), 'GPU')}"
