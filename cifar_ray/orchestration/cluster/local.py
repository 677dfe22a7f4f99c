"""Ray started on this machine for one process: as patient as a busy machine needs, and with nothing left of it."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.job_config import JobConfig

from cifar_ray import storage
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import fork_server, ray_internals
from cifar_ray.training import hardware

_START_S = 120  # for each part of Ray; its own 30 s are too short for a busy machine
_STARTS = 2
_KILLED_S = 5.0
_LONGEST_FOLDER = 64
_HERE = "CIFAR_RAY_STARTED_RAY"
_OBJECT_STORE_BYTES = 1 << 30  # per node; CIFAR-10 takes 185 MB of it


class _UserFoldersLast(JobConfig):  # type: ignore[misc]
    """Workers import from where this process does, and from the user's folders last. Ray would look there first."""

    def _serialize(self) -> str:
        users: list[str] = self._py_driver_sys_path  # type: ignore[has-type]  # the script's folder and the working folder
        first = [path for path in sys.path if path and path not in users]
        self._py_driver_sys_path = [*users, *reversed(first)]  # each worker puts one after the other at the beginning
        return super()._serialize()  # type: ignore[no-any-return]


class NotStartedError(CommandFailedError):
    """Ray did not start on this machine; the sentence says why."""


@contextmanager
def running(config: TrainConfig) -> Iterator[Callable[[], str]]:
    """Context manager: Ray on this machine for this process alone; it ends with the process, however that ends.

    Yields:
        A function that names the Ray process that has ended, or returns an empty string while all run. Ray itself
        would wait for it, and end this process after a minute.

    Raises:
        ConfigError: when this machine has too few CPUs for the nodes.
        NotStartedError: when Ray does not start.
    """
    sizes: dict[str, Any] = {
        "num_cpus": cpus_per_node(config),
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    with (
        ray_internals.environment(_environment()),
        ray_internals.on_loopback(),
        storage.scratch(_short()) as sockets,
        _data_folder(sockets) as folder,
        # Cluster writes its address in the default folder, over that of another Ray.
        ray_internals.environment({"RAY_TMPDIR": str(folder)}),
        fork_server.running(sockets) as setup_worker,
    ):
        with ray_internals.patient_start(_START_S), ray_internals.lean_start(setup_worker, config.verbose, sockets):
            head, stop = _start(config, sizes, folder)

        def ended() -> str:
            kind = ray_internals.ended_process(head) or ("gcs_server" if _is_closed(head.gcs_address) else "")
            return f"Ray's {kind} process on this machine" if kind else ""

        try:
            yield ended
        finally:
            left = _using(folder)
            if ended():
                atexit.unregister(ray.shutdown)  # it would wait for the process that ended, then end this one
            else:
                stop()
            _kill(left)  # Ray's agents end later, and would make their folders again


def _is_closed(address: str) -> bool:
    """Whether nobody listens at an address, as at that of a process that is ending."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError as error:  # any other, and it is only busy
        return isinstance(error, ConnectionRefusedError)
    return False


def _short() -> str:
    """A folder for sockets, whose whole path may have 107 bytes, and in Ray's code ASCII only.

    Raises:
        NotStartedError: when there is none.
    """
    wanted = ray_internals.get_default_system_temp_dir()
    for folder in (wanted, "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108
        if len(folder) <= _LONGEST_FOLDER and folder.isascii() and Path(folder).is_absolute():
            with suppress(OSError):
                Path(folder).mkdir(parents=True, exist_ok=True)
                if os.access(folder, os.W_OK | os.X_OK):
                    return folder
    raise NotStartedError(
        f"Ray needs a folder for its sockets: TMPDIR must be an absolute path in ASCII of at most {_LONGEST_FOLDER} "
        f"characters that can be written, got {wanted}, and neither can /tmp"
    )


def _data_folder(sockets: Path) -> AbstractContextManager[Path]:
    """The folder of Ray's files: that of its sockets, unless TMPDIR is only too long for sockets."""
    wanted = ray_internals.get_default_system_temp_dir()
    apart = Path(wanted).is_absolute() and wanted.isascii() and Path(wanted) != sockets.parent
    return storage.scratch(wanted) if apart else nullcontext(sockets)


def here() -> bool:
    """Whether this process belongs to a Ray that :func:`running` has started; no node of it is ever taken away."""
    return _HERE in os.environ


def _environment() -> dict[str, str]:
    """Variables for Ray. Its token is passed on in memory; Ray's default is a file in the home folder."""
    variables = {
        _HERE: "1",  # for all of Ray's processes, which inherit it
        "RAY_enable_metrics_collection": "0",  # nobody reads them without a dashboard
        "RAY_USAGE_STATS_ENABLED": "0",
        ray_internals.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
        "RAY_prestart_worker_first_driver": "0",  # a Python per CPU, none of them a copy of the fork server
        "RAY_gcs_server_port_wait_time_s": str(_START_S),
        "RAY_agent_register_timeout_ms": str(1000 * _START_S),
    }
    if "RAY_AUTH_MODE" not in os.environ:
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return variables


def _start(config: TrainConfig, sizes: dict[str, Any], folder: Path) -> tuple[Any, Callable[[], None]]:
    """Start Ray and connect to it; try once more if that fails.

    Returns:
        Its head, and a function that ends it.

    Raises:
        NotStartedError: when it fails again.
    """
    begun = time.monotonic()
    for left in reversed(range(_STARTS)):
        before = set(psutil.Process().children(recursive=True))
        try:
            return _try(config, sizes, folder)
        except BaseException as error:
            # Ray does not keep track of the processes of a start that failed.
            ray.shutdown()
            _kill(set(psutil.Process().children(recursive=True)) - before)
            if not isinstance(error, Exception):
                raise
            if not left:
                if config.verbose:
                    traceback.print_exception(error)
                raise NotStartedError(
                    f"Ray did not start, tried {_STARTS} times in {time.monotonic() - begun:.0f} s "
                    f"(load {os.getloadavg()[0]:.0f} on {hardware.allowed_cpus()} CPUs): try again"
                    + ("" if config.verbose else ", or with --verbose to see what Ray says")
                ) from error
    raise AssertionError("the last failure was raised")


def _try(config: TrainConfig, sizes: dict[str, Any], folder: Path) -> tuple[Any, Callable[[], None]]:
    if config.local_nodes == 1:
        ray.init(address="local", **sizes, **quiet(config), job_config=_UserFoldersLast(), _temp_dir=str(folder))
        return ray_internals._global_node, ray.shutdown
    logging.getLogger("ray").setLevel(logging.INFO if config.verbose else logging.ERROR)
    (folder / "ray").mkdir(exist_ok=True)  # Cluster writes its address there
    cluster = ray_internals.Cluster(initialize_head=True, head_node_args={**sizes, "temp_dir": str(folder)})
    for _ in range(config.local_nodes - 1):
        cluster.add_node(**sizes)
    ray.init(address=cluster.address, **quiet(config), job_config=_UserFoldersLast())

    def stop() -> None:
        ray.shutdown()
        cluster.shutdown()

    return cluster.head_node, stop


def _using(folder: Path) -> list[psutil.Process]:
    """This process's descendants started with a path in ``folder``: Ray's, not the caller's."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process)
    return found


def _kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, and wait a moment until they have ended."""
    processes = list(processes)
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=_KILLED_S)


def cpus_per_node(config: TrainConfig) -> int:
    """CPUs of each node started here: an equal share of those that this process may use.

    Raises:
        ConfigError: when there are fewer of them than nodes.
    """
    needed = config.placement.workers_per_node * config.cpus_reserved
    there = hardware.allowed_cpus()
    if config.oversubscribe:
        return max(needed, there // config.local_nodes)
    if there < config.local_nodes:
        raise ConfigError(
            "local_nodes",
            f"must be at most the CPUs that may be used ({there}) without --oversubscribe, got {config.local_nodes}",
        )
    return there // config.local_nodes


def quiet(config: TrainConfig) -> dict[str, Any]:
    """Arguments of ``ray.init`` that show Ray's log with ``--verbose`` only."""
    level = logging.INFO if config.verbose else logging.ERROR
    return {"log_to_driver": config.verbose, "logging_level": level}
