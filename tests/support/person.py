"""Somebody who uses the command as it is meant to be used, and may pull the plug."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.support import warm

ELSEWHERE = ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
"""Variables that would lead a run elsewhere than to the home folder."""


@contextlib.contextmanager
def nothing_ignored() -> Iterator[None]:
    """Within it, processes begin as in a terminal: a background job, or nohup, has these signals ignored."""
    inherited = {signum: signal.signal(signum, signal.SIG_DFL) for signum in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in inherited.items():
            signal.signal(signum, handler)


class Person:
    """A home folder, and the ``cifar-ray`` command in it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.uri = f"sqlite:///{self.home}/.cifar_ray/mlflow.db"
        self.environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
        self.environment |= {"HOME": str(self.home), "COLUMNS": "200"}

    def torchrun(self, *words: str) -> list[tuple[int, str]]:
        """Train with two workers under torchrun; the step of each checkpoint, and the hash of its weights."""
        line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "cifar_ray.training"]
        done = subprocess.run(
            [*line, *words, "--storage", "alone"],
            env={**self.environment, "OMP_NUM_THREADS": "1"},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return [(int(step), sha256) for step, sha256 in re.findall(r"step-0*(\d+) sha256 (\w+)", done.stdout)]

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "cifar_ray.cli", *words]

    def runs(self, *words: str, timeout: float = 600, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end: as a copy of a warm process, unless its modules are to be found elsewhere."""
        environment = {**self.environment, **variables}
        if "PYTHONPATH" not in variables:
            return warm.cifar_ray_command(words, environment, self.home, timeout)
        command = self.command(*words)
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, cwd=self.home)

    def succeeds(self, *words: str, timeout: float = 600, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, which is a good one."""
        done = self.runs(*words, timeout=timeout, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def refused(self, *words: str, timeout: float = 300, **variables: str) -> str:
        """Run the command, which is a mistake; the one sentence on it."""
        done = self.runs(*words, timeout=timeout, **variables)
        assert (done.returncode, done.stderr[:7], done.stderr.count("\n")) == (2, "error: ", 1), done
        return done.stderr.removeprefix("error: ").rstrip()

    @contextlib.contextmanager
    def starts(self, *words: str, **variables: str) -> Iterator[Started]:
        """Start the command, to be watched and interfered with."""
        with self.starts_program(*self.command(*words), **variables) as started:
            yield started

    @contextlib.contextmanager
    def starts_program(self, *words: str, **variables: str) -> Iterator[Started]:
        """Start any program, to be watched and interfered with."""
        with (self.home / f"output-{time.monotonic_ns()}.txt").open("w+") as output:
            with nothing_ignored():
                process = subprocess.Popen(
                    words,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**self.environment, **variables},
                    cwd=self.home,
                    start_new_session=True,
                )
            try:
                yield Started(process, Path(output.name))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @property
    def mlflow(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def run_named(self, name: str) -> Run:
        """The one run of that name in MLflow."""
        client = self.mlflow
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        (run,) = client.search_runs(experiments, f"attributes.run_name = '{name}'")
        return run

    def steps(self, run: str, metric: str) -> list[int]:
        """Steps at which a run has a metric in MLflow."""
        return [point.step for point in self.mlflow.get_metric_history(self.run_named(run).info.run_id, metric)]

    def artifact(self, run: str, name: str) -> Path:
        """A run's file in MLflow."""
        return Path(self.mlflow.download_artifacts(self.run_named(run).info.run_id, name))

    def placement(self, run: str) -> list[dict[str, Any]]:
        """Where each worker of a run stands, by rank."""
        return json.loads(self.artifact(run, "placement.json").read_text())

    def leftovers(self) -> list[str]:
        """Processes that this person's commands have left running."""
        return [words[:100] for words in self.processes().values()]

    def processes(self) -> dict[int, str]:
        """Processes that this person's commands have started: pid -> command line."""
        mine = f"HOME={self.home}".encode()
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if mine in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    found[process.pid] = " ".join(process.cmdline())
        return found


class Started:
    """A command under way."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, text: str, timeout: float = 400) -> str:
        """Wait until the output contains ``text``."""
        end = time.monotonic() + timeout
        while text not in self.output:
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {text!r}:\n{self.output}"
            assert time.monotonic() < end, f"no {text!r} within {timeout} s:\n{self.output}"
            time.sleep(0.05)
        return self.output

    def end(self, timeout: float = 240) -> int:
        """Wait for the end; the exit status."""
        return self.process.wait(timeout)

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal to the command alone, not to what it has started."""
        os.kill(self.process.pid, signum)
