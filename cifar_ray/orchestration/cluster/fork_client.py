"""Ask the fork server for a Ray worker, and exit when that ends; see ``fork_server.py``.

Ray runs this file as the Python of its workers: SOCKET is the server's, and what follows is for Python.
"""

import json
import os
import socket
import sys


def main(address: str, words: list[str]) -> None:
    """Ask for a copy that runs ``words``, and return when it has ended; without a server at ``address``, run them here.

    They are Ray's worker script and its arguments; before them, flags of Python's such as ``-s``.
    """
    script = next(place for place, word in enumerate(words) if not word.startswith("-"))
    request = {"words": words[script:], "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109  no imports
    body = json.dumps(request).encode()
    server = socket.socket(socket.AF_UNIX)
    copied = b""
    try:
        server.connect(address)
        socket.send_fds(server, [len(body).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(body)
        copied = server.recv(1)
    except OSError:
        pass
    if not copied:
        os.execv(sys.executable, [sys.executable, *words])
    server.recv(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
