"""Ray started on this machine for one process: with nothing left of it afterwards."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from cifar_ray import storage
from cifar_ray.config import imports
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import CommandFailedError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import fork_server, optional
from cifar_ray.training import hardware

_START_S = 120  # for further nodes, on a busy machine
_STARTS = 2
_KILLED_S = 5.0
_LOOK_S = 0.5
_GIVEN_UP_S = 60.0  # of a daemon that has ended; Ray itself gives up a raylet after 30 s
_LONGEST_FOLDER = 16  # a socket's path may have 107 bytes, and names below the folder take up to 91 of them
_OBJECT_STORE_BYTES = 1 << 30  # per node; CIFAR-10 takes 185 MB of it
_DAEMONS = ("gcs_server", "raylet")  # a Ray without one of them is lost


class NotStartedError(CommandFailedError):
    """Ray did not start on this machine; the sentence says why."""


@contextmanager
def running(config: TrainConfig, room: Decided) -> Iterator[Callable[[], str]]:
    """Context manager: Ray on this machine for this process alone; it ends with the process, however that ends.

    Yields:
        A function that names the Ray process that has ended, or returns an empty string while all run. Ray itself
        would wait for it.

    Raises:
        ConfigError: when this machine has too few CPUs for the nodes.
        NotStartedError: when Ray does not start.
    """
    sizes = {"num_cpus": cpus_per_node(config, room), "object_store_memory": _OBJECT_STORE_BYTES}
    if config.local_nodes > 1:  # each would count all GPUs of this machine as its own
        sizes["num_gpus"] = 0
    with (
        storage.scratch(_short()) as short,
        _files(short) as folder,
        optional.environment(_environment(folder)),
        fork_server.running(folder) as runtime_env,
        ExitStack() as nodes,
    ):
        daemons, further = _start(config, sizes, {**runtime_env, "worker_process_setup_hook": _path_hook()}, nodes)
        gcs = ray.get_runtime_context().gcs_address

        def ended() -> str:
            kind = next((name for name, process in daemons if not _lives(process)), "")
            kind = kind or ("gcs_server" if _is_closed(gcs) else "")
            return f"Ray's {kind} process on this machine" if kind else ""

        try:
            yield ended
        finally:
            left = _using(folder, {*further, *(process for _, process in daemons)})
            if ended():
                atexit.unregister(ray.shutdown)  # it would wait for the process that ended
            else:
                ray.shutdown()
            _kill(left)  # Ray's agents end later, and would make their folders again


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


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


def _is_closed(address: str) -> bool:
    """Whether nobody listens at an address, as at that of a process that is ending."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError as error:  # any other, and it is only busy
        return isinstance(error, ConnectionRefusedError)
    return False


def _short() -> str:
    """A folder for Ray's sockets, which need a short path, and in Ray's code ASCII only."""
    wanted = _wanted()
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


def _wanted() -> str:
    return os.environ.get("TMPDIR") or tempfile.gettempdir()


@contextmanager
def _files(short: Path) -> Iterator[Path]:
    """The folder of Ray's files: ``short``, or a link there to one in a TMPDIR that is too long for sockets."""
    wanted = Path(_wanted())
    if not wanted.is_absolute() or wanted == short.parent:
        yield short
        return
    with storage.scratch(str(wanted)) as folder:
        link = short / "r"
        link.symlink_to(folder)
        yield link


def _environment(folder: Path) -> dict[str, str]:
    variables = {"RAY_USAGE_STATS_ENABLED": "0", **optional.start_variables(str(folder))}
    if "RAY_AUTH_MODE" not in os.environ and optional.reread_environment():
        # Ray's default, where it has one, is a token in a file in the home folder.
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return variables


def _start(
    config: TrainConfig, sizes: dict[str, int], runtime_env: dict[str, Any], nodes: ExitStack
) -> tuple[list[tuple[str, psutil.Process]], list[psutil.Process]]:
    """Start Ray and connect to it; try once more if that fails. Further nodes end with ``nodes``.

    Returns:
        The head's daemons, with their kinds, and the processes that have started further nodes.
    """
    begun = time.monotonic()
    for left in reversed(range(_STARTS)):
        before = set(psutil.Process().children(recursive=True))
        try:
            _init(nodes, include_dashboard=False, runtime_env=runtime_env, **sizes, **quiet(config))
            started = set(psutil.Process().children()) - before
            further = _add_nodes(config.local_nodes - 1, sizes, nodes) if config.local_nodes > 1 else []
            return [(process.name(), process) for process in started if process.name() in _DAEMONS], further
        except BaseException as error:
            # Ray does not keep track of the processes of a start that failed.
            if isinstance(error, NotStartedError):
                atexit.unregister(ray.shutdown)  # it would wait for the process that ended
            else:
                ray.shutdown()
            _kill(set(psutil.Process().children(recursive=True)) - before)
            if not isinstance(error, Exception) or isinstance(error, NotStartedError):
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


def _init(stack: ExitStack, **arguments: Any) -> None:
    """``ray.init`` in a thread of its own, which lasts until the end of ``stack``: its daemons end with it.

    Raises:
        NotStartedError: when a daemon has ended and Ray, as many of its calls would, waits for it for ever. The thread
            is left alone then, and may still change what Ray has in common for all threads, so that this process
            does not try again.
    """
    before, started, over = set(psutil.Process().children()), Future[None](), threading.Event()

    def init() -> None:
        try:
            ray.init(address="local", **arguments)
        except BaseException as error:
            started.set_exception(error)
        else:
            started.set_result(None)
            over.wait()

    threading.Thread(target=init, daemon=True, name="ray-init").start()
    stack.callback(over.set)
    while not wait([started], _LOOK_S).done:
        for process in set(psutil.Process().children()) - before:
            with suppress(psutil.Error):
                ended = (kind := process.name()) in _DAEMONS and not _lives(process)
                if ended and not wait([started], _GIVEN_UP_S).done:
                    raise NotStartedError(f"Ray did not start, since its {kind} process has ended: try again")
    started.result()


def _add_nodes(count: int, sizes: dict[str, int], stack: ExitStack) -> list[psutil.Process]:
    """Start further nodes by ``ray start``, in the processes returned; they end with ``stack`` and this process."""
    head = ray.get_runtime_context().gcs_address
    words = ["start", "--block", f"--address={head}"]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    interpreter, flag, code, *words = imports.python("ray.scripts.scripts", *words)
    ending = "threading.Thread(target=lambda: os._exit(len(os.read(0, 1))), daemon=True).start()"  # with this process
    code = f"import os, threading; {ending}; {code}"
    nodes = []
    for _ in range(count):
        node = subprocess.Popen(
            [interpreter, flag, code, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is for the driver
        )
        nodes.append(stack.enter_context(node))
    deadline = time.monotonic() + _START_S
    while sum(node["Alive"] for node in ray.nodes()) <= count:
        if time.monotonic() > deadline or any(node.poll() is not None for node in nodes):
            raise RuntimeError(f"{count} further nodes did not start")
        time.sleep(0.1)
    return [psutil.Process(node.pid) for node in nodes]


def _using(folder: Path, known: set[psutil.Process]) -> set[psutil.Process]:
    """Ray's processes among this one's descendants: those known or with a path in ``folder``, and their descendants.

    An agent has another title, in which there is no path.
    """
    processes = set(known)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                processes.add(process)
    for process in set(processes):
        with suppress(psutil.Error):
            processes.update(process.children(recursive=True))
    return processes


def _kill(processes: Iterable[psutil.Process]) -> None:
    processes = list(processes)
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=_KILLED_S)


def cpus_per_node(config: TrainConfig, room: Decided) -> int:
    """CPUs of each node started here: an equal share of those that this process may use; ``room`` is what is needed.

    Of several nodes, each counts as many as its workers need, whether there are so many or not.
    """
    share = hardware.allowed_cpus() // config.local_nodes
    needed = room.placement.workers_per_node * room.cpus
    return share if config.local_nodes == 1 else max(needed, share)


def quiet(config: TrainConfig) -> dict[str, Any]:
    """Arguments of ``ray.init`` that show Ray's log with ``--verbose`` only."""
    level = logging.INFO if config.verbose else logging.ERROR
    return {"log_to_driver": config.verbose, "logging_level": level}
