"""CPU seconds of all processes of a run, with Ray's optional private parts and without: one epoch of digits, and a sweep.

    python benchmarks/cpu_seconds.py --repeat 7 --sweeps 3                 # about 40 minutes on 2 cores
    python benchmarks/cpu_seconds.py --repeat 1 --before ../cifar_ray-old  # beside another checkout

Every command runs in turn on each road: "public" with ``CIFAR_RAY_PLAIN_RAY=1``, "optional" without, and "before", the
package of another checkout. A control group of the command's own counts the CPU time of all processes, those that live
for a moment too; it needs root and cgroup v1's cpuacct or cgroup v2.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

EPOCH = ["train", "--dataset", "digits", "--model", "simple_cnn", "--epochs", "1"]
COMMANDS = {
    "one epoch of digits at 1x1": [*EPOCH, "--topology", "1x1"],
    "one epoch of digits at 1x2": [*EPOCH, "--topology", "1x2"],
    "the quick start's sweep": ["sweep", str(record.ROOT / "examples" / "digits_sweep.yaml"), "--name", "quick"],
}
_V1 = Path("/sys/fs/cgroup/cpuacct")


def measure(words: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """CPU seconds of a command and all that it starts, and its wall seconds."""
    group = (_V1 if _V1.is_dir() else Path("/sys/fs/cgroup")) / f"cifar_ray-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    with tempfile.TemporaryDirectory() as home:
        begun = time.perf_counter()
        done = subprocess.run(
            [
                "bash",
                "-c",
                f'echo $$ > "{group}/cgroup.procs"; exec "$@"',
                "bash",
                sys.executable,
                "-m",
                "cifar_ray.cli",
                *words,
            ],
            env={**os.environ, "HOME": home, **variables},
            cwd=home,
            capture_output=True,
            text=True,
        )
        wall = time.perf_counter() - begun
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    if _V1.is_dir():
        cpu = int((group / "cpuacct.usage").read_text()) / 1e9
    else:
        cpu = int((group / "cpu.stat").read_text().split()[1]) / 1e6
    while (group / "cgroup.procs").read_text():  # MLflow's guard ends a moment later
        time.sleep(0.1)
    group.rmdir()
    return cpu, wall


def shown(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f}) s"


def main() -> None:
    """Measure everything, and save the rows."""
    parser = record.parser(__doc__)
    parser.add_argument("--repeat", type=int, default=7, help="measurements of one epoch on each road")
    parser.add_argument("--sweeps", type=int, default=3, help="sweeps on each road; 0 for none")
    parser.add_argument("--before", type=Path, help="another checkout")
    given = parser.parse_args()
    roads = {"public": {"CIFAR_RAY_PLAIN_RAY": "1"}, "optional": {}}
    if given.before is not None:
        roads = {"before": {"PYTHONPATH": str(given.before.resolve())}, **roads}
    raw: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for number in range(max(given.repeat, given.sweeps)):
        for name, words in COMMANDS.items():
            if number < (given.sweeps if words[0] == "sweep" else given.repeat):
                for road, variables in roads.items():
                    raw.setdefault(name, {}).setdefault(road, []).append(measure(words, variables))
                    print(f"{name}, {road}: {raw[name][road][-1][0]:.1f} s of CPU time", flush=True)
    rows = [
        record.Row(
            f"{name}, {road}",
            "",
            shown([cpu for cpu, _ in times]),
            len(times),
            f"wall {shown([wall for _, wall in times])}",
        )
        for name, of in raw.items()
        for road, times in of.items()
    ]
    record.save("cpu_seconds", "CPU time of all processes of a command", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
