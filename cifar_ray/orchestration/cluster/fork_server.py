"""Fork Ray's worker processes from one that has imported their modules.

A Ray worker spends seconds of a core on importing torch, and a run starts several. For a Ray started on this
machine, the fork server imports those modules once and forks a copy of itself for each worker: the runtime
environment's ``py_executable``, with which Ray starts its workers, is ``fork_client.py``, which asks for a copy and
exits when the copy does. The server does not import Ray, whose compiled part reads its settings at import, and computes
nothing, so that a fork copies no held lock and loses no thread.

A command has it import while it imports itself (:func:`prepare`), and then it has time for more modules.

Without an answer from the server, the client runs Ray's script.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from cifar_ray.config import imports

_PRELOADED = (
    "cifar_ray.training.loop",
    "cifar_ray.tasks.confusion",
    "torch._dynamo",  # torch.optim imports it at its first step
    "psutil",
    # What ray.train and ray.tune import, but for Ray itself
    "fsspec",
    "jsonschema",
    "pandas",
    "pyarrow.fs",
    "pydantic",
    "requests",
)
_SWEEPS = (
    "mlflow.pytorch",
    "mlflow.store.tracking.sqlalchemy_store",
    "torch.export",
    "rich.progress",
    "click",
    "prometheus_client",
    "cifar_ray.display.sweep",
)
_CLIENT = Path(__file__).with_name("fork_client.py")
_LENGTH_BYTES = 4


class _Server(NamedTuple):
    """A server that imports, and waits to be told that ``listener``, a socket that it shares, listens."""

    listener: socket.socket
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        with self.listener, self.process:
            self.process.kill()


_prepared: list[_Server] = []


def prepare() -> None:
    """Start the fork server that :func:`running` will take, with all that the processes of a sweep import."""
    if sys.platform == "linux" and not _prepared:
        _prepared.append(_start([*_PRELOADED, *_SWEEPS]))


@contextlib.contextmanager
def discarded() -> Iterator[None]:
    """Context manager for a command, at whose end there is no server that was prepared and that nothing has taken."""
    try:
        yield
    finally:
        while _prepared:
            _prepared.pop().end()


def _start(modules: Sequence[str]) -> _Server:
    listener = socket.socket(socket.AF_UNIX)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # its threads would not survive a fork
    environment.pop("PYTHONWARNINGS", None)  # a warning that is an error would end it, or a worker
    server = subprocess.Popen(
        imports.python("cifar_ray.orchestration.cluster.fork_server", str(listener.fileno()), *modules),
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,  # it ends when this end of the pipe closes
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # a Ctrl-C in the terminal is for the driver
    )
    return _Server(listener, server)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Context manager: a fork server for one Ray session, with its socket in ``folder``; it ends with this process.

    Yields:
        The part of a runtime environment that makes workers copies; empty where forking is not safe.
    """
    if sys.platform != "linux":
        yield {}
        return
    address = str(folder / "socket")
    server = _prepared.pop() if _prepared else _start(_PRELOADED)
    try:
        server.listener.bind(address)
        server.listener.listen(64)  # clients wait while the server imports
        assert server.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(server.process.stdin.fileno(), b"!")
        server.listener.close()  # the server has its own, which closes when the server ends
        client = [sys.executable, "-I", "-S", str(_CLIENT), address]  # it needs no site-packages
        yield {"py_executable": shlex.join(client)}
    finally:
        server.end()


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Import, then fork a copy for every request to a socket, once it listens, until standard input closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies leave no zombies
    listener = socket.socket(fileno=descriptor)
    gc.disable()  # the modules are never garbage
    for name in modules:
        with contextlib.suppress(Exception):  # the copies say what is wrong
            importlib.import_module(name)
    if not os.read(0, 1):  # not sys.stdin, whose lock would be held in every copy
        return
    threading.Thread(target=_end_with, args=[0], daemon=True).start()
    assert "ray" not in sys.modules, "every copy would have the settings of this process"
    gc.freeze()  # collections in the copies leave these objects in shared memory
    gc.enable()
    while True:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError, ValueError):  # the client was killed
            _serve(client, listener)


def _end_with(descriptor: int) -> None:
    """Exit when the other end of a pipe or socket is closed: with the driver, or the process that Ray has started."""
    with contextlib.suppress(OSError):
        os.read(descriptor, 1)
    os._exit(1)


def _serve(client: socket.socket, listener: socket.socket) -> None:
    """Fork a copy that has the client's standard streams, and becomes the process that it stands for."""
    head, descriptors, _, _ = socket.recv_fds(client, _LENGTH_BYTES, 3)
    try:
        request = json.loads(client.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        if os.fork() == 0:
            listener.close()
            _become(request, descriptors, client)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _become(request: dict[str, Any], descriptors: list[int], client: socket.socket) -> NoReturn:
    status = 1
    try:
        client.sendall(b"!")  # from here on the client does not start Python itself
        os.setpgid(0, 0)  # Ray ends whole process groups
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        threading.Thread(target=_end_with, args=[client.fileno()], daemon=True).start()
        sys.argv = request["words"]
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
