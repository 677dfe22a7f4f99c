"""What a command shows: that libraries load, and its result as words or as one JSON document."""

from __future__ import annotations

import errno
import json
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout

from pydantic_core import to_jsonable_python

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.display.run import Console


def progress(as_json: bool) -> AbstractContextManager[object]:
    """Context manager: what is printed goes to standard error with --json."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


@contextmanager
def loading(text: str, always: bool = False) -> Iterator[None]:
    """Context manager: show ``text`` while torch, Ray or MLflow is imported, which takes seconds.

    What a command can refuse, it refuses before. With ``always``, the text is shown without a terminal, too.
    """
    files.home()
    with Console() as console:
        if console.is_live or always:
            console.doing(text)
        yield


def show(result: object, as_json: bool, words: Callable[[], object] | None = None) -> None:
    """Print a result as JSON, or have ``words`` print it; None where they have been printed already."""
    if as_json:
        print(json.dumps(to_jsonable_python(result, inf_nan_mode="null", fallback=str), indent=1))
    elif words is not None:
        words()


def typed() -> str:
    """The command of this process, as it can be typed again."""
    return shlex.join(["cifar-ray", *sys.argv[1:]])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a port that is taken, or a host that is no address of this machine, is refused."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        key = "port" if getattr(error, "errno", 0) in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise ConfigError(key, f"must be a free port of this machine, got {port} at {host!r} ({error})") from None
