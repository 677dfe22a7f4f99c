"""The ``cifar-ray`` command: a table of functions, whose signatures and docstrings are the flags and the help.

A command's module is imported when it is called, so that ``cifar-ray --help`` imports next to nothing.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from cifar_ray._version import __version__
from cifar_ray.config import errors
from cifar_ray.config.errors import CommandFailedError, ConfigError, InterruptedRunError, printable
from cifar_ray.training.errors import CheckpointError

COMMANDS = {
    "train": ("train", "train a model and record it in MLflow"),
    "resume": ("train", "continue a run that was interrupted or has failed"),
    "sweep": ("train", "train every combination of batch sizes, workers or other options"),
    "report": ("report", "write the results of sweeps or runs as a page, tables and charts"),
    "export": ("report", "write a sweep with its runs as one file"),
    "runs": ("records", "list the runs and sweeps that MLflow has"),
    "compare": ("report", "show what differs between runs, and their results"),
    "explain": ("records", "say what bounds a run: a slow rank, its data, the network"),
    "plan": ("plan", "say what a training would take on other machines"),
    "delete": ("records", "delete a run or a sweep: its MLflow runs, folder and checkpoints"),
    "models": ("models", "list the models of this package, torchvision and timm"),
    "strategies": ("models", "list the ways of keeping replicas in step, and what each costs"),
    "evaluate": ("trained", "evaluate a run's model on every test image"),
    "predict": ("trained", "answer for images, texts or rows with a run's model"),
    "serve": ("trained", "answer HTTP requests with a run's model"),
    "register": ("records", "register a run's model in MLflow's model registry"),
    "ui": ("records", "open MLflow's pages on the runs"),
    "doctor": ("doctor", "look at what this machine offers, and what would stop a run"),
    "submit": ("cluster", "train, resume or sweep on a Ray cluster, as a job"),
    "check-cluster": ("cluster", "check files for `ray up`, offline"),
}
"""Name -> the module below ``cifar_ray.cli`` that has a function of this name, and a summary."""


def function(name: str) -> Callable[..., Any]:
    """The function of a command."""
    if name not in COMMANDS:
        near = errors.suggestion(name, COMMANDS) or f"; it may be {errors.one_of(COMMANDS)}"
        raise ConfigError("", f"unknown command {errors.brief(name)}{near}")
    module = import_module(f"cifar_ray.cli.{COMMANDS[name][0]}")
    found: Callable[..., Any] = getattr(module, name.replace("-", "_"))
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 on success; 1 when a run or a check fails; 2 on a user's mistake; 128 + N on signal N.
    """
    words = list(sys.argv[1:] if words is None else words)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "--help-all"):
        print("usage: cifar-ray COMMAND [OPTIONS]\n\nDistributed training on Ray, tracked in MLflow.\n")
        for name, (_, summary) in COMMANDS.items():
            print(f"  {name:<13} {summary}")
        print("\n`cifar-ray COMMAND --help` lists a command's usual options, `--help-all` all;")
        print("`cifar-ray -V` shows the version.")
        return 0
    if words[0] in ("-V", "--version"):
        print(f"cifar-ray {__version__}")
        return 0
    try:
        from cifar_ray import tracking  # here, so that --help imports next to nothing
        from cifar_ray.config import command_line, flags
        from cifar_ray.orchestration.cluster import fork_server, servers
        from cifar_ray.tracking.variables import variables

        command_line.greet()
        with variables(servers.token_mode()), tracking.settings(), fork_server.discarded():
            return flags.call(function(words[0]), words[1:], words[0]) or 0
    except BrokenPipeError:  # the reader, such as `head`, is gone: drop the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, InterruptedRunError) as error:
        print(str(error) or "Stopped.", file=sys.stderr)
        return 128 + getattr(error, "signum", signal.SIGINT)
    except (ConfigError, CheckpointError, CommandFailedError) as error:
        sentence = error.as_flag() if isinstance(error, ConfigError) else str(error)
        print(f"error: {printable(sentence)}", file=sys.stderr)
        return 1 if isinstance(error, CommandFailedError) else 2


def program() -> NoReturn:
    """``main`` as a process of its own, which neither begins nor ends more slowly than it has to.

    torch, Ray and MLflow bring a million objects that are needed until the end: no garbage is collected among them
    while they are imported, and they are not taken apart at the end.
    """
    gc.set_threshold(100_000)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal of ASCII, and names that are not
    try:
        status = main()
    except SystemExit as stop:  # from --help
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):  # which says that nobody reads the output any more
                sys.excepthook(type(error), error, None)
            status = status or 1
    os._exit(status)
