"""A Ray cluster of several nodes on this machine, with or without an autoscaler that starts them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from cifar_ray.orchestration.cluster import optional
from tests.support.person import Person
from tests.support.ports import free_port

TOKEN = "a" * 64
"""Of every cluster that is started here."""

PATIENCE_S = 600
_STARTED = "Ray runtime started"
_HEAD_ID = "f" * 51 + "00000"
_HEAD_TYPE = "ray.head.default"
LAUNCHED = {
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
    "RAY_NODE_TYPE_NAME": _HEAD_TYPE,
}
"""What Ray's launcher sets on a head that it starts, and what its provider for one machine needs beside it."""


def _autoscaling(types: dict[str, Any], port: int) -> dict[str, Any]:
    """A cluster file for Ray's own provider that starts nodes as processes of this machine.

    It is named as an external one: for a built-in name, Ray wants a file of defaults that its wheel lacks.
    """
    return {
        "cluster_name": "here",
        "max_workers": sum(kind["max_workers"] for kind in types.values()),
        "idle_timeout_minutes": 0.02,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": f"{ray.util.get_node_ip_address()}:{port}",
            "launch_multiple": True,
            "head_node_id": _HEAD_ID,
        },
        "auth": {},
        "cluster_synced_files": [],
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "upscaling_speed": 1,
        "head_node_type": _HEAD_TYPE,
        "available_node_types": {
            _HEAD_TYPE: {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            **{name: {"node_config": {}, "min_workers": 0, **kind} for name, kind in types.items()},
        },
        **{name: [] for name in ("initialization_commands", "setup_commands", "head_setup_commands")},
        **{name: [] for name in ("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")},
    }


class Head:
    """A Ray cluster that is there before the command, and stays."""

    VARIABLES: ClassVar = {"RAY_AUTH_TOKEN": TOKEN, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    """What a command needs to join it."""

    def __init__(self, person: Person, autoscaling: dict[str, Any] | None = None) -> None:
        """Args: ``autoscaling``, the node types that an autoscaler may start, with ``max_workers`` each; none if None."""
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._environment = {**person.environment, **self.VARIABLES, "RAY_AUTH_MODE": "token"}
        self._home = person.home
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        words = ["--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
        variables = {}
        if autoscaling is not None:
            config = person.home / "autoscaling.json"
            config.write_text(json.dumps(_autoscaling(autoscaling, port)))
            words, variables = [*words, f"--autoscaling-config={config}"], LAUNCHED
        self._until_started("head", words, variables)

    def add(self, name: str, *within: str) -> None:
        """Another node, of one CPU, once it is there; ``within`` is a command that starts it in its own way."""
        words = [f"--address={self.address}", "--num-cpus=1"]
        variables = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": self.node_id(name)}
        self._until_started(name, words, variables, within)

    @staticmethod
    def node_id(name: str) -> str:
        """Ray's id of a node that is added under this name."""
        return hashlib.sha224(name.encode()).hexdigest()

    def remove(self, name: str) -> None:
        """Pull a node's plug."""
        process = self._nodes.pop(name)
        with contextlib.suppress(ProcessLookupError):  # it has ended, and nothing that it started is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self._nodes):
            self.remove(name)

    def says(self, code: str) -> str:
        """What a driver of the cluster prints."""
        script = f"import ray; ray.init({self.address!r}, log_to_driver=False, logging_level='ERROR')\n{code}"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=self._environment, timeout=120
        )
        return done.stdout.strip()

    def alive(self) -> set[str]:
        """Ids of the nodes that are there."""
        with optional.environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, optional.PLAIN: "0"}):
            try:
                nodes = GcsClient(address=self.address).get_all_node_info(timeout=30)
            except ray.exceptions.RayError:  # the head is only just starting
                return set()
        return {info.node_id.hex() for info in nodes.values() if info.state == GcsNodeInfo.ALIVE}

    def until_nodes(self, count: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while len(self.alive()) != count:
            assert time.monotonic() < end
            time.sleep(0.5)

    def _until_started(
        self, name: str, words: list[str], variables: Mapping[str, str], within: Sequence[str] = ()
    ) -> None:
        end = time.monotonic() + PATIENCE_S
        self._start(name, *words, within=within, **variables)
        while _STARTED not in self._log(name).read_text(errors="replace"):
            if self._nodes[name].poll() is not None:  # Ray gives a node 30 s to start, which a busy machine may exceed
                self.remove(name)
                self._start(name, *words, within=within, **variables)
            if time.monotonic() >= end:
                self.close()
                raise AssertionError(f"node {name!r} has not started: {self._log(name).read_text(errors='replace')}")
            time.sleep(0.5)

    def _log(self, name: str) -> Path:
        """What ``ray start`` says of a node."""
        return self._home / f"ray-start-{name}.log"

    def _start(self, name: str, *words: str, within: Sequence[str] = (), **variables: str) -> None:
        with self._log(name).open("wb") as log:
            self._nodes[name] = subprocess.Popen(
                [
                    *within,
                    sys.executable,
                    "-m",
                    "ray.scripts.scripts",
                    "start",
                    "--block",
                    "--object-store-memory=300000000",
                    *words,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, "PYTHONUNBUFFERED": "1", **variables},
                start_new_session=True,
            )
