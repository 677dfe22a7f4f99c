"""What starting workers as copies of one process saves: start-up with and without, in turn.

    python benchmarks/startup.py --repeat 5

Each run is one epoch of digits on two workers in a process of its own, from the start of Python to the first
step. Prints every figure, and the ratio of the medians with n.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

RUN = """
import contextlib, sys
import cifar_ray
from cifar_ray.orchestration import forkserver
if sys.argv[1] == "new":
    forkserver.running = lambda folder: contextlib.nullcontext({})
config = cifar_ray.TrainConfig(dataset="digits", model="simple_cnn", epochs=1, topology="1x2")
result = cifar_ray.train(config, begun=cifar_ray.IMPORTED_AT)
print("startup", result.times["time/startup_s"])
"""


def startup_s(kind: str) -> float:
    """Seconds to the first step of one run, whose workers are ``copies`` or ``new`` processes."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-c", RUN, kind],
            env={**os.environ, "HOME": home},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure in turn, so that a busier hour is everybody's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind")
    repeat = parser.parse_args().repeat
    figures: dict[str, list[float]] = {"new": [], "copies": []}
    for _ in range(repeat):
        for kind, found in figures.items():
            found.append(startup_s(kind))
            print(f"{kind:<7} {found[-1]:5.1f} s", flush=True)
    medians = {kind: statistics.median(found) for kind, found in figures.items()}
    print(f"median start-up: new {medians['new']:.1f} s, copies {medians['copies']:.1f} s, ", end="")
    print(f"ratio {medians['copies'] / medians['new']:.2f}, n = {repeat} each")


if __name__ == "__main__":
    main()
