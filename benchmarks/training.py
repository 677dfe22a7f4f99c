"""Runs of the training loop under torchrun, for the benchmarks that read a run's own figures."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from cifar_ray.config import topology


def run(words: Sequence[str], shape: str = "1x1") -> dict[str, float]:
    """The figures that a run prints at its end, by their names in MLflow.

    Args:
        words: flags of ``python -m cifar_ray.training``.
        shape: topology, such as ``2x2``. The agents of all nodes are on this machine, which changes times and not
            accuracies.
    """
    wanted = topology.parse(shape)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = ["--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1])]
    launch = [f"--nnodes={wanted.nodes}", f"--nproc-per-node={wanted.workers_per_node}", *meeting]
    with tempfile.TemporaryDirectory() as folder:
        training = ["-m", "cifar_ray.training", *words, "--device", "cpu", "--storage", folder]
        agents = [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *launch, f"--node-rank={node}", *training],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in range(wanted.nodes)
        ]
        printed = [agent.communicate() for agent in agents]
    if any(agent.returncode for agent in agents):
        raise SystemExit(f"training failed:\n{''.join(complaint for _, complaint in printed)}")
    lines = "".join(output for output, _ in printed).splitlines()
    ends = (line for line in lines if line.startswith(("result: ", "times: ")))
    return {
        name: float(value)
        for line in ends
        for name, value in (pair.split() for pair in line.partition(": ")[2].split(", "))
    }
