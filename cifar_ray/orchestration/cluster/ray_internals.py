"""Ray's private parts: everything this program uses of Ray that Ray does not promise to keep.

Each entry says what it is for, and what breaks without it. They are looked up when they are used, so that a command
loads only what it needs. pyproject.toml caps Ray to the versions in which all of them are there.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

_AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")

INTERNALS: dict[str, tuple[str, str]] = {
    # Start Ray on this machine
    "_global_node": ("ray._private.worker", "a head that was killed would be waited for, for a minute"),
    "ENABLE_RAY_CLUSTER": ("ray._private.ray_constants", "a Ray for one run would listen on every interface"),
    "ENABLE_RAY_CLUSTERS_ENV_VAR": ("ray._private.ray_constants", "workers would look for the head elsewhere"),
    "PROCESS_TYPE_GCS_SERVER": ("ray._private.ray_constants", "a head that was killed would be waited for"),
    "PROCESS_TYPE_RAYLET": ("ray._private.ray_constants", "a node that was killed would be waited for"),
    "get_node": ("ray._private.services", "Ray would wait only 30 s for its node, too short on a busy machine"),
    "start_ray_process": ("ray._private.services", "the raylet would wait only 15 s for its agents, and die"),
    "RAY_PATH": ("ray._private.services", "every node would have an agent that collects figures for nobody"),
    "start_api_server": ("ray._private.services", "a Ray for one run would start a server that nobody asks"),
    "RayParams": ("ray._private.parameter", "the agents' ports could not be chosen, and the raylet would wait"),
    "Cluster": ("ray.cluster_utils", "--local-nodes could not start several nodes on one machine"),
    "get_default_system_temp_dir": ("ray._common.utils", "Ray's folder would not be where Ray has its others"),
    # Join a Ray that is there
    "Config": ("ray._raylet", "settings made after Ray's import would be ignored"),
    "AuthenticationTokenLoader": ("ray._raylet", "a token chosen after Ray's import would be ignored"),
}
"""Name -> its module, and what breaks without it."""

MEMBERS: dict[str, tuple[str, str, str]] = {
    "all_processes": ("ray._private.node", "Node", "a head that was killed would be waited for"),
    "_temp_dir": ("ray._private.worker", "init", "Ray's folder would stay behind in the system's"),
    "_serialize": ("ray.job_config", "JobConfig", "a file of the user's would hide a library from workers"),
    "_py_driver_sys_path": ("ray._private.worker", "connect", "a file of the user's would hide a library from workers"),
}
"""Attribute or argument -> the module and class or function that has it, and what breaks without it."""


def find(name: str) -> Any:
    """A private part of the installed Ray.

    Raises:
        ImportError: when this version of Ray does not have it.
    """
    module, without = INTERNALS[name]
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{_ray()} has no {module}.{name}; without it, {without} ({error})") from error


def check_member(name: str) -> None:
    """Check that the installed Ray still has an entry of :data:`MEMBERS`.

    Raises:
        ImportError: when it does not.
    """
    import inspect

    module, owner, without = MEMBERS[name]
    try:
        source = inspect.getsource(getattr(importlib.import_module(module), owner))
    except (ImportError, AttributeError):
        source = ""
    if not re.search(rf"\b{name}\b", source):
        raise ImportError(f"{_ray()} has no {name} in {module}.{owner}; without it, {without}")


def _ray() -> str:
    return f"Ray {importlib.import_module('ray').__version__}"


def __getattr__(name: str) -> Any:
    if name not in INTERNALS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return find(name)


@contextmanager
def _replaced(**replacements: Any) -> Iterator[None]:
    """Context manager: replace entries of :data:`INTERNALS` in Ray's own modules."""
    before = {name: find(name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(importlib.import_module(INTERNALS[name][0]), name, replacement)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(importlib.import_module(INTERNALS[name][0]), name, original)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Context manager: set environment variables for Ray, which reads them when it is imported and never again."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _reread_environment()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _reread_environment()


def _reread_environment() -> None:
    find("Config").initialize("")
    find("AuthenticationTokenLoader").instance().reset_cache()


def on_loopback() -> Any:
    """Context manager: Ray listens on the loopback interface only, by its switch for machines without clusters."""
    return _replaced(ENABLE_RAY_CLUSTER=False)


@contextmanager
def patient_start(timeout_s: float) -> Iterator[None]:
    """Context manager: wait up to ``timeout_s`` for a node to start. Ray has no setting for its own 30 s.

    The node waits 15 s for its agents, two more Python processes, to report their ports, and then dies. It does not
    wait for agents whose ports it was given.
    """
    get_node, params, start = find("get_node"), find("RayParams"), find("start_ray_process")

    def patiently(address: str, node_id: str) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return get_node(address, node_id)
            except RuntimeError:  # not registered yet, or never will be
                ended = any(child.status() == psutil.STATUS_ZOMBIE for child in psutil.Process().children())
                if ended or time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def with_ports(**given: Any) -> Any:
        with ExitStack() as held:
            taken = [held.enter_context(socket.create_server(("", 0))) for _ in _AGENT_PORTS]
            ports = {name: each.getsockname()[1] for name, each in zip(_AGENT_PORTS, taken, strict=True)}
        return params(**{**given, **ports})

    def start_process(command: list[str], kind: str, **rest: Any) -> Any:
        if kind == find("PROCESS_TYPE_RAYLET"):  # Ray gives this port to the agent only
            port = re.search(r"--listen-port=(\d+)", " ".join(command))
            command = [*command, f"--dashboard_agent_listen_port={port[1]}"] if port else command
        return start(command, kind, **rest)

    with _replaced(get_node=patiently, RayParams=with_ports, start_ray_process=start_process):
        yield


@contextmanager
def lean_start(setup_worker: Path | None, show_output: bool, sockets: Path) -> Iterator[None]:
    """Context manager: start only those of Ray's processes that a run on one machine needs.

    Left out are the autoscaler's monitor, the API server, which counts usage where there is no dashboard, the
    dashboard's agent, and the log monitor where nobody reads the workers' output.

    Args:
        setup_worker: what Python runs for each of Ray's workers; Ray's own script when None.
        show_output: whether the driver shows the workers' output.
        sockets: folder of the nodes' sockets, whose paths must be short.
    """
    params, start = find("RayParams"), find("start_ray_process")
    given: dict[str, Any] = {"no_monitor": True, "include_log_monitor": show_output}
    if setup_worker is not None:
        given["setup_worker_path"] = str(setup_worker)
    agent = str(Path(find("RAY_PATH"), "dashboard", "agent.py"))
    stand_in = str(Path(__file__).with_name("stand_in.py"))

    numbers = itertools.count()

    def with_sockets(**rest: Any) -> Any:
        if "gcs_address" in rest:  # a driver that joins a node
            return params(**{**rest, **given})
        number = next(numbers)
        names = {f"{kind}_socket_name": str(sockets / f"{kind}.{number}") for kind in ("plasma_store", "raylet")}
        return params(**{**rest, **given, **names})

    def start_process(command: list[str], kind: str, **rest: Any) -> Any:
        # Cluster lets the agents of its further nodes choose a port (0), and the raylet would wait to be told which.
        command = [word.replace(agent, stand_in).replace("--listen-port=0 ", "--listen-port=1 ") for word in command]
        return start(command, kind, **rest)

    with _replaced(
        RayParams=with_sockets,
        start_ray_process=start_process,
        start_api_server=lambda *_, **__: (None, None),
    ):
        yield


def ended_process(head: Any) -> str:
    """The kind of a process that a cluster cannot do without and that has ended; empty when none has.

    Args:
        head: the ``ray._private.node.Node`` started by this process.
    """
    for kind in (find("PROCESS_TYPE_GCS_SERVER"), find("PROCESS_TYPE_RAYLET")):
        if any(info.process.poll() is not None for info in head.all_processes.get(kind, ())):
            return str(kind)
    return ""
