"""Ports of this machine to listen on."""

from __future__ import annotations

import errno
import os
import socket

from cifar_ray.config.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigError: when the port is taken or not allowed, or the host is not an address of this machine.
    """
    if not 1 <= port <= 65535:
        raise ConfigError("port", f"must be from 1 to 65535, got {port}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise ConfigError("port", f"must be a free port, and {port} is not ({os.strerror(error.errno)})") from None
        raise ConfigError("host", f"must be an address of this machine, got {host!r} ({error})") from None
