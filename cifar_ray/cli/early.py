"""What a command refuses before it imports torch, Ray and MLflow, which takes seconds, and what it shows meanwhile."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cifar_ray import storage
from cifar_ray.config import files, runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.run import Console
from cifar_ray.runs.folder import CONFIG, SWEEP


@contextmanager
def loading(text: str, always: bool = False) -> Iterator[None]:
    """Context manager: show ``text`` while libraries load; with ``always``, also where there is no terminal."""
    files.home()
    with Console() as console:
        if console.is_live or always:
            console.doing(text)
        yield


def known_config(name: str) -> TrainConfig | None:
    """The config of a run, or what all runs of a sweep share, from its folder; None where only the store knows that."""
    folder = storage.at(name) if "/" in name else storage.at(None).below(name)
    with suppress(ConfigError, OSError):
        if (path := folder.disk / CONFIG).is_file():
            return runfile.load(path)
        if (path := folder.disk / SWEEP).is_file():
            return sweeps.from_mapping(runfile.read(path)).base
    return None


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a port that is taken, or a host that is no address of this machine, is refused."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        key = "port" if getattr(error, "errno", 0) in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise ConfigError(key, f"must be a free port of this machine, got {port} at {host!r} ({error})") from None
