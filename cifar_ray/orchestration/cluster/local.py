"""Ray started on this machine for one process: with nothing left of it afterwards."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from cifar_ray import storage
from cifar_ray.config import imports
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import CommandFailedError, first_line
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import fork_server, optional
from cifar_ray.training import hardware

_START_S = 300  # on a busy machine
_KILLED_S = 5.0
_LONGEST_FOLDER = 16  # a socket's path may have 107 bytes, and names below the folder take up to 91 of them
_OBJECT_STORE_BYTES = 1 << 30  # per node; CIFAR-10 takes 185 MB of it
_DAEMONS = ("gcs_server", "raylet")  # a Ray without one of them is lost


@contextmanager
def running(config: TrainConfig, room: Decided) -> Iterator[Callable[[], str]]:
    """Context manager: Ray on this machine for this process alone; it ends with the process, however that ends.

    Yields and raises as :func:`cifar_ray.orchestration.cluster.connection.connected`. Ray itself would wait for a
    process of its own that has ended.
    """
    sizes = {"num_cpus": cpus_per_node(config, room), "object_store_memory": _OBJECT_STORE_BYTES}
    if config.local_nodes > 1:  # each would count all GPUs of this machine as its own
        sizes["num_gpus"] = 0
    with (
        storage.scratch(_short()) as folder,
        optional.environment(_environment(folder)),
        fork_server.running(folder) as runtime_env,
        ExitStack() as nodes,
    ):
        started = _start(config, sizes, {**runtime_env, "worker_process_setup_hook": _path_hook()}, nodes)
        daemons = {process: name for process in started if (name := process.name()) in _DAEMONS}

        def ended() -> str:
            for process, name in daemons.items():
                with suppress(psutil.Error):
                    if process.status() != psutil.STATUS_ZOMBIE:
                        continue
                return f"Ray's {name} process on this machine"
            return ""

        try:
            yield ended
        finally:
            left = set(started)
            for process in started:
                with suppress(psutil.Error):
                    left.update(process.children(recursive=True))
            _shut_down(bool(ended()))
            _kill(left)  # Ray's agents end later, and would make their folders again


def _shut_down(is_lost: bool) -> None:
    atexit.unregister(ray.shutdown) if is_lost else ray.shutdown()  # which would wait for a process that has ended


def _path_hook() -> Callable[[], None]:
    """What each worker runs first: import from where this process does, and from the user's folders last.

    Ray puts the script's folder and the working folder first, where a file would hide a library.
    """
    users = {str(Path.cwd()), str(Path(os.path.realpath(sys.argv[0])).parent)}
    paths = [path for path in sys.path if path and path not in users]

    def users_folders_last() -> None:  # pickled whole, since it is in a function
        import sys

        class Paths(list):  # type: ignore[type-arg]
            def insert(self, place: Any, path: Any) -> None:
                super().insert(len(self) if path in users else place, path)

        every = dict.fromkeys([*paths, *sys.path])
        sys.path = Paths(sorted(every, key=users.__contains__))

    return users_folders_last


def _short() -> str:
    """A folder for Ray's files: its sockets need a short path, and in Ray's code ASCII only."""
    wanted = os.environ.get("TMPDIR", "/tmp")  # noqa: S108
    return wanted if len(wanted) <= _LONGEST_FOLDER and wanted.isascii() and wanted[:1] == "/" else "/tmp"  # noqa: S108


def _environment(folder: Path) -> dict[str, str]:
    variables = {"RAY_USAGE_STATS_ENABLED": "0", **optional.start_variables(str(folder))}
    if "RAY_AUTH_MODE" not in os.environ and optional.reread_environment():
        # Ray's default, where it has one, is a token in a file in the home folder.
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return variables


def _start(
    config: TrainConfig, sizes: dict[str, int], runtime_env: dict[str, Any], nodes: ExitStack, tries: int = 2
) -> set[psutil.Process]:
    """Start Ray and connect to it; return the processes that were started. Further nodes end with ``nodes``."""
    before = set(psutil.Process().children(recursive=True))
    arguments = {"include_dashboard": False, "runtime_env": runtime_env, **sizes, **quiet(config)}
    connecting = init(nodes, address="local", **arguments)
    try:
        connecting.result(_START_S)
        _add_nodes(config.local_nodes - 1, sizes, nodes)
        return set(psutil.Process().children()) - before
    except BaseException as error:
        _shut_down(not connecting.done())
        _kill(set(psutil.Process().children(recursive=True)) - before)  # Ray keeps no track of a start that failed
        if not isinstance(error, Exception):
            raise
        if connecting.done() and tries > 1:  # the machine may have been busy
            return _start(config, sizes, runtime_env, nodes, tries - 1)
        load = f"load {os.getloadavg()[0]:.0f} on {hardware.allowed_cpus()} CPUs"
        raise CommandFailedError(f"Ray did not start ({load}): {first_line(error)}") from None


def init(stack: ExitStack, **arguments: Any) -> Future[None]:
    """``ray.init`` in a thread of its own, which lasts until the end of ``stack``, since its daemons end with it.

    In the main thread, Ray would set its handler of SIGTERM, which exits at once, with locks held and the run open.
    """
    connecting, over = Future[None](), threading.Event()

    def connect() -> None:
        try:
            ray.init(**arguments)
        except BaseException as error:
            connecting.set_exception(error)
        else:
            connecting.set_result(None)
            over.wait()

    threading.Thread(target=connect, daemon=True, name="ray-init").start()
    stack.callback(over.set)
    return connecting


def _add_nodes(count: int, sizes: dict[str, int], stack: ExitStack) -> None:
    """Start further nodes by ``ray start``; they end with ``stack`` and this process."""
    head = ray.get_runtime_context().gcs_address
    words = ["start", "--block", f"--address={head}"]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    interpreter, flag, code, *words = imports.python("ray.scripts.scripts", *words)
    ending = "threading.Thread(target=lambda: os._exit(len(os.read(0, 1))), daemon=True).start()"  # with this process
    words = [interpreter, flag, f"import os, threading; {ending}; {code}", *words]
    nodes, out = [], subprocess.DEVNULL
    for _ in range(count):  # in sessions of their own, since a Ctrl-C in the terminal is for the driver
        node = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True)
        nodes.append(stack.enter_context(node))
    deadline = time.monotonic() + _START_S
    while sum(node["Alive"] for node in ray.nodes()) <= count:
        if time.monotonic() > deadline or any(node.poll() is not None for node in nodes):
            raise RuntimeError(f"{count} further nodes did not start")
        time.sleep(0.1)


def _kill(processes: Iterable[psutil.Process]) -> None:
    processes = list(processes)
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=_KILLED_S)


def cpus_per_node(config: TrainConfig, room: Decided) -> int:
    """CPUs of each node started here: an equal share of those that this process may use.

    Of several nodes, each counts as many as its workers need (``room``), whether there are so many or not.
    """
    share = hardware.allowed_cpus() // config.local_nodes
    return share if config.local_nodes == 1 else max(share, room.placement.workers_per_node * room.cpus)


def quiet(config: TrainConfig) -> dict[str, Any]:
    """Arguments of ``ray.init`` that show Ray's log with ``--verbose`` only."""
    level = logging.INFO if config.verbose else logging.ERROR
    return {"log_to_driver": config.verbose, "logging_level": level}
