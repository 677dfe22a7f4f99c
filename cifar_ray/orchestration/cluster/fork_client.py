"""Ask the fork server for a Ray worker, and exit when that ends; see ``fork_server.py``.

Ray's raylet runs this file, by a link beside the server's socket, in place of Ray's ``setup_worker.py``, which imports
Ray for what is done here without.
"""

import json
import os
import re
import socket
import sys
from typing import Any

_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="


def main(link: str, words: list[str]) -> None:
    """Ask for a copy that runs ``words``, and return when it has ended.

    Args:
        link: this file, as Ray was told.
        words: Ray's worker script and its arguments, with those for ``setup_worker.py`` among them; before them,
            flags of Python's such as ``-s``.
    """
    while words[0].startswith("-"):
        words = words[1:]
    context: dict[str, Any] = next(
        (json.loads(word.removeprefix(_CONTEXT)) for word in words if word.startswith(_CONTEXT)), {}
    )
    plain = not context.get("command_prefix") and not context.get("override_worker_entrypoint")
    server = socket.socket(socket.AF_UNIX)
    copied = b""
    if plain and context.get("py_executable", sys.executable) == sys.executable:
        environment = _with(dict(os.environ), context.get("env_vars", {}))
        rest = [word for word in words if not word.startswith((_CONTEXT, _LANGUAGE))]
        request = {"words": rest, "environment": environment, "folder": os.getcwd()}  # noqa: PTH109  no imports
        body = json.dumps(request).encode()
        try:
            server.connect(os.path.join(os.path.dirname(link), "socket"))  # noqa: PTH118, PTH120
            socket.send_fds(server, [len(body).to_bytes(4, "big")], [0, 1, 2])
            server.sendall(body)
            copied = server.recv(1)
        except OSError:
            pass
    if not copied:
        rays = os.path.join(os.path.dirname(words[0]), "setup_worker.py")  # noqa: PTH118, PTH120
        os.execv(sys.executable, [sys.executable, rays, *words])
    server.recv(1)


def _with(environment: dict[str, str], variables: dict[str, str]) -> dict[str, str]:
    """Add a runtime environment's variables as Ray does: ``${NAME}`` is replaced, by nothing when there is none."""
    for name, value in variables.items():
        environment[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    return environment


if __name__ == "__main__":
    main(sys.argv[0], sys.argv[1:])
