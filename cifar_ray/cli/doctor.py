"""``cifar-ray doctor``: what this machine offers to a run, and what would stop one."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from cifar_ray import data, storage
from cifar_ray._version import __version__
from cifar_ray.cli import output
from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.flags import AsJson
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS, cgroups
from cifar_ray.display.run import Check, Console

_LEAST_FREE_GB = 2.0


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
        checks = Console().checks(examine(config))
    output.show(checks, json)
    return 1 if any(check.problem for check in checks) else 0


def examine(config: TrainConfig) -> Iterator[Check]:
    """Look at everything that a run with this config would use. Nothing is started or changed."""
    yield Check("cifar_ray", __version__)
    yield Check("python", f"{platform.python_version()} on {platform.platform()}")
    for package in ("torch", "torchvision", "torchmetrics", "ray", "mlflow"):
        yield _guarded(package, lambda package=package: metadata.version(package))  # type: ignore[misc]
    yield _guarded("processor", _processor)
    yield _guarded("GPUs", _gpus)
    yield _memory()
    for name in SPECS:
        yield _guarded(f"data set {name}", lambda name=name: _dataset(name, config))  # type: ignore[misc]
    yield _storage(config)
    yield _guarded("tracking store", lambda: _store(config))
    yield _guarded("Ray", lambda: _ray(config))


def _guarded(subject: str, look: Callable[[], str]) -> Check:
    try:
        return Check(subject, look())
    except ConfigError as error:
        return Check(subject, "not usable", error.as_flag())
    except (ImportError, metadata.PackageNotFoundError) as error:
        return Check(subject, "not usable", f"{error}; install it")
    except OSError as error:
        return Check(subject, "not usable", str(error))


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


def _memory() -> Check:
    import psutil

    state = f"{cgroups.free_memory() / 1e9:.1f} GB free of {psutil.virtual_memory().total / 1e9:.1f} GB"
    shared = Path("/dev/shm")  # noqa: S108  Ray keeps its objects there
    if shared.is_dir():
        state += f"; shared memory {shutil.disk_usage(shared).free / 1e9:.1f} GB free"
    return Check("memory", state)


def _storage(config: TrainConfig) -> Check:
    try:
        folder = storage.at(config.storage)
        if folder.local:
            return _folder(folder.disk)
        with storage.refusing(folder):
            folder.names()
    except ConfigError as error:
        return Check("storage", str(config.storage), error.as_flag())
    return Check("storage", f"{folder.address} answers; whether it can be written is seen when a run begins")


def _folder(path: Path) -> Check:
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 1e9
    state = f"{path}, {free:.1f} GB free"
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Check("storage", state, f"{existing} cannot be written; choose another --storage")
    if free < _LEAST_FREE_GB:
        return Check("storage", state, f"less than {_LEAST_FREE_GB:g} GB is free; choose another --storage")
    return Check("storage", state)


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
