"""Processes that begin as copies of one that has imported what commands and training need: seconds sooner than others."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

import cifar_ray

_IMPORTED = (
    "pytest",
    "tests.support.helpers",
    "sklearn.datasets",
    "torchvision.models",
    "torch.distributed.pipelining",
    "torch._dynamo",
    "mlflow.pyfunc",
    "mlflow.store.tracking.sqlalchemy_store",
    "matplotlib.pyplot",
)


@cache
def context() -> ForkServerContext:
    """Makes such processes. They have not imported Ray, which reads its settings from the environment at once."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(list(_IMPORTED))
    return made


def cifar_ray_command(
    words: Sequence[str], environment: dict[str, str], folder: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` of ``cifar-ray`` with these words, in this environment and folder."""
    with tempfile.TemporaryDirectory() as output:
        process = context().Process(target=_become, args=(words, environment, folder, Path(output)))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
        out, err = (Path(output, name).read_text() for name in ("1", "2"))
        if process.exitcode == -9:
            raise subprocess.TimeoutExpired(words, timeout, out, err)
        return subprocess.CompletedProcess(words, process.exitcode, out, err)


def _become(words: Sequence[str], environment: dict[str, str], folder: Path, output: Path) -> None:
    for stream in (1, 2):
        with (output / str(stream)).open("wb") as file:
            os.dup2(file.fileno(), stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [str(Path(cifar_ray.__file__).with_name("cli") / "__main__.py"), *words]
    cifar_ray.IMPORTED_AT = time.time()
    from cifar_ray.cli.main import program

    program()
