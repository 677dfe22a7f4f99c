"""``cifar-ray doctor``: what this machine offers to a run, and what would stop one."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from cifar_ray import data, storage
from cifar_ray._version import __version__
from cifar_ray.cli import output
from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.flags import AsJson
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.display.run import Console

_LEAST_FREE_GB = 2.0


@dataclass(frozen=True)
class Check:
    """What has been checked; ``problem`` says what to do when it is wrong."""

    subject: str
    state: str
    problem: str = ""


def doctor(
    *,
    data_dir: str | None = None,
    storage: str | None = None,
    tracking_uri: str | None = None,
    address: str | None = None,
    json: AsJson = False,
) -> int:
    """Check what this machine offers to a run, and what would stop one."""
    config = TrainConfig(data_dir=data_dir, storage=storage, tracking_uri=tracking_uri, address=address)
    with output.progress(json):
        console, checks = Console(), []
        for check in examine(config):
            checks.append(check)
            console.line(f"{'!!' if check.problem else 'ok'}  {check.subject:<18} {check.state}")
            if check.problem:
                console.line(f"    {'':<18} {check.problem}")
        is_unfit = any(check.problem for check in checks)
        console.line("see to the lines marked !! first" if is_unfit else "nothing stands in the way of a run")
    output.show(checks, json)
    return int(is_unfit)


def examine(config: TrainConfig) -> Iterator[Check]:
    """Look at everything that a run with this config would use. Nothing is started or changed."""
    packages = ("torch", "torchvision", "torchmetrics", "ray", "mlflow")
    looks: dict[str, Callable[[], str]] = {
        "cifar_ray": lambda: __version__,
        "python": lambda: f"{platform.python_version()} on {platform.platform()}",
        **{package: partial(metadata.version, package) for package in packages},
        "processor": _processor,
        "GPUs": _gpus,
        "memory": _memory,
        **{f"data set {name}": partial(_dataset, name, config) for name in SPECS},
        "storage": partial(_storage, config),
        "tracking store": partial(_store, config),
        "Ray": partial(_ray, config),
    }
    for subject, look in looks.items():
        try:
            yield Check(subject, look())
        except ConfigError as error:
            yield Check(subject, "not usable", error.as_flag())
        except (ImportError, metadata.PackageNotFoundError) as error:
            yield Check(subject, "not usable", f"{error}; install it")
        except OSError as error:
            yield Check(subject, "not usable", str(error))


def _dataset(name: str, config: TrainConfig) -> str:
    if name == "digits":
        return "bundled with scikit-learn"
    where = str(data.folder(config.data_dir))
    return where if data.present(name, config.data_dir) else f"not in {where}; downloaded at first use"


def _processor() -> str:
    import torch

    from cifar_ray.training import hardware

    cpu = torch.device("cpu")
    allowed, count = hardware.allowed_cpus(), os.cpu_count()
    cpus = f"{count} CPUs" if allowed == count else f"{allowed} of {count} CPUs may be used"
    return f"{hardware.describe(cpu)}, {cpus}"


def _gpus() -> str:
    import torch

    from cifar_ray.training import hardware

    cards, visible = hardware.nvml(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return f"{cards}, hidden by CUDA_VISIBLE_DEVICES" if cards.names else "none"
    if cards.names or cards.error:
        seen = torch.cuda.device_count() if visible else len(cards.names)
        if why := hardware.gpu_problem(range(max(seen, 1))):
            raise ConfigError("", f"{cards}: {why}")
    elif torch.cuda.is_available():  # those of another maker
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return str(cards)


def _memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    state = f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB"
    shared = Path("/dev/shm")  # noqa: S108  Ray keeps its objects there
    return state + f"; shared memory {shutil.disk_usage(shared).free / 1e9:.1f} GB free" * shared.is_dir()


def _storage(config: TrainConfig) -> str:
    folder = storage.at(config.storage)
    if not folder.local:
        with storage.refusing(folder):
            folder.names()
        return f"{folder.address} answers; whether it can be written is seen when a run begins"
    existing = folder.disk
    while not os.path.lexists(existing):
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 1e9
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError("storage", f"must be a folder that can be written, and {existing} is not")
    if free < _LEAST_FREE_GB:
        raise ConfigError("storage", f"must have {_LEAST_FREE_GB:g} GB free, and {folder.disk} has {free:.1f} GB")
    return f"{folder.disk}, {free:.1f} GB free"


def _store(config: TrainConfig) -> str:
    files.home()  # MLflow needs one
    from cifar_ray import tracking
    from cifar_ray.tracking import store

    tracking.quieten(config.verbose)
    uri = store.resolve_uri(config.tracking_uri)
    if not store.exists(uri):
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
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    if unusable:
        raise ConfigError("", "; ".join(unusable))
    return f"{head} answers: {counted(len(nodes), 'node')}, {counted(int(cpus), 'CPU')}, {counted(int(gpus), 'GPU')}"
