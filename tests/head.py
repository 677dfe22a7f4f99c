"""A Ray cluster of some nodes on this machine, started as ``ray start`` does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import ClassVar

from tests.person import Person


class Head:
    """A Ray cluster that is there before the command, and stays."""

    VARIABLES: ClassVar = {"RAY_AUTH_TOKEN": "a" * 64, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    """What a command needs to join it."""

    def __init__(self, person: Person) -> None:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._environment = {**person.environment, **self.VARIABLES, "RAY_AUTH_MODE": "token"}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._start("head", "--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false")

    def add(self, name: str) -> None:
        """Another node, of one CPU."""
        self._start(name, f"--address={self.address}", "--num-cpus=1")

    def remove(self, name: str) -> None:
        """Pull a node's plug."""
        process = self._nodes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self._nodes):
            self.remove(name)

    def says(self, code: str) -> str:
        """What a driver of the cluster prints."""
        script = f"import ray; ray.init({self.address!r}, log_to_driver=False, logging_level='ERROR')\n{code}"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=self._environment, timeout=60
        )
        return done.stdout.strip()

    def until_nodes(self, count: int) -> None:
        end = time.monotonic() + 60
        while self.says("print(sum(node['Alive'] for node in ray.nodes()))") != str(count):
            assert time.monotonic() < end
            time.sleep(1)

    def _start(self, name: str, *words: str) -> None:
        self._nodes[name] = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--block",
                "--object-store-memory=300000000",
                *words,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )
