"""Ports of this machine to listen on."""

from __future__ import annotations

import contextlib
import errno
import socket

from cifar_ray.config.errors import ConfigError


def check(host: str, port: int) -> None:
    """Refuse what nothing could listen on just now, as :func:`listen` does."""
    listen(host, port).close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigError: when the port is taken or not allowed, or the host is not an address of this machine.
    """
    if not 1 <= port <= 65535:
        raise ConfigError("port", f"must be from 1 to 65535, got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as on_error:
            listener = on_error.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            on_error.pop_all()
            return listener
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise ConfigError("port", f"must be a free port, and {port} is not ({error})") from None
        raise ConfigError("host", f"must be an address of this machine, got {host!r} ({error})") from None
