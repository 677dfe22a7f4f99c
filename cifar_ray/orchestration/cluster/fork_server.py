"""Worker processes that begin with their modules already imported.

A Ray worker spends seconds of a core on importing torch and torchmetrics, and a run needs a handful of new
processes. For the Ray started on this machine, one process imports those modules once and forks a copy of
itself whenever Ray wants a worker: Ray's ``py_executable`` starts ``fork_client.py`` in place of Python, which
asks for a copy and stands for it. The server knows nothing of Ray, whose compiled part reads its settings when
it is imported, and computes nothing, so that no thread or lock is lost in a fork.

Without an answer from the server, the client starts Python as Ray would have.
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
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

_PRELOADED = (
    "cifar_ray.training.loop",
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
_CLIENT = Path(__file__).with_name("fork_client.py")
_LENGTH_BYTES = 4


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """A server for the time of a Ray session; it ends with this process, however that ends.

    Args:
        folder: for its socket.

    Yields:
        The ``runtime_env`` with which Ray's workers are its copies; empty where forking is not safe.
    """
    if sys.platform != "linux":
        yield {}
        return
    address = str(folder / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)  # who asks while the server imports waits for its end
    with (
        listener,
        subprocess.Popen(
            [sys.executable, "-m", "cifar_ray.orchestration.cluster.fork_server", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,  # it ends when this end of the pipe closes
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # its threads would not survive a fork
            start_new_session=True,  # a Ctrl-C in the terminal is for the driver
        ) as server,
    ):
        listener.close()  # it is the server's now, and gone when the server is
        try:
            yield {"py_executable": shlex.join([sys.executable, "-I", "-S", str(_CLIENT), address])}
        finally:
            server.kill()


def main(descriptor: int) -> None:
    """Import, then fork a copy for every request until standard input closes.

    Args:
        descriptor: of a listening socket.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that end leave no zombie
    listener = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    gc.disable()  # none of what the modules are made of is ever garbage
    for name in _PRELOADED:
        importlib.import_module(name)
    assert "ray" not in sys.modules, "its settings would be those of this process in every copy"
    gc.freeze()  # collections in the copies leave these objects, and the memory they share, alone
    gc.enable()
    while True:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError, ValueError):  # a client that was killed meanwhile
            _serve(client, listener)


def _end_with_driver() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _serve(client: socket.socket, listener: socket.socket) -> None:
    """Fork a copy that has the client's standard input, output and error."""
    head, descriptors, _, _ = socket.recv_fds(client, _LENGTH_BYTES, 3)
    try:
        request = _receive(client, int.from_bytes(head, "big"))
        if os.fork() == 0:
            listener.close()
            _become(request, descriptors, client)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _receive(client: socket.socket, length: int) -> dict[str, object]:
    body = bytearray()
    while len(body) < length:
        part = client.recv(length - len(body))
        if not part:
            raise OSError("the client is gone")
        body += part
    return json.loads(body)


def _become(request: dict[str, object], descriptors: list[int], client: socket.socket) -> NoReturn:
    """Turn this fresh copy into the process that the client stands for. Never returns."""
    status = 1
    try:
        client.sendall(b"!")  # from here on the client does not start Python by itself
        os.setpgid(0, 0)  # Ray ends whole process groups
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        os.chdir(str(request["folder"]))
        threading.Thread(target=_end_with_client, args=[client], daemon=True).start()
        sys.argv = list(request["words"])  # type: ignore[call-overload]
        sys.path[0] = str(Path(sys.argv[0]).parent)
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


def _end_with_client(client: socket.socket) -> None:
    """Whoever kills the process that Ray has started means this one."""
    with contextlib.suppress(OSError):
        client.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
