"""What the benchmarks share: a command line, measuring in turn, figures of trainings, and the page of results.

    python benchmarks/record.py     # writes docs/measurements/performance.md anew

Every other script here measures one claim, opens with its command and with what came out, and calls :func:`save` with a
row for each target. Its raw figures lie beside the rows in ``benchmarks/results/CLAIM.PROCESSOR.json``; what bounds a
figure stands in ``CLAIM.PROCESSOR.md``, written by hand. ``--dry``, which every script has from :func:`parser`, shows
the rows and writes no file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from cifar_ray.training import hardware

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "measurements" / "performance.md"
CLAIMS = ("throughput", "convolutions", "image_folder", "scaling", "time_to_94", "gpu", "startup", "bottlenecks")
CLAIMS += ("overhead", "emulated_cluster", "planned", "validated", "published")
"""In the order of the page."""
INTRODUCTION = """# Performance

Each table is one claim: the target, the measured figure, and what bounds it. Times on shared machines are noisy: what
is compared was measured in turn in one run, and a ratio is that of the medians. `python benchmarks/record.py` makes
this page from `benchmarks/results/`, which has every raw figure. Flags in a table and in its command are those of the
commit that the command's line names.
"""


@dataclass(frozen=True)
class Row:
    """One line of a claim's table.

    Attributes:
        what: what was measured, such as ``resnet, batch 64``.
        target: what it should be, with its unit; empty where there is none.
        measured: the figure, with its unit and spread.
        n: how often it was measured.
        note: what bounds it or how to read it, in a sentence.
    """

    what: str
    target: str
    measured: str
    n: int
    note: str = ""


def parser(docstring: str | None, rounds: int = 0) -> argparse.ArgumentParser:
    """A command line for a script, with its docstring's first line, ``--dry`` and, given a default, ``--rounds``."""
    made = argparse.ArgumentParser(description=(docstring or "").partition("\n")[0], allow_abbrev=False)
    made.add_argument("--dry", action="store_true", help="print the rows, save nothing")
    if rounds:
        made.add_argument("--rounds", type=int, default=rounds, help="measurements of each (%(default)s)")
    return made


def in_turn(rounds: int, measured: Mapping[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Call every function in each round, so that a busier minute is everybody's; print and return what they return."""
    found: dict[str, list[Any]] = {name: [] for name in measured}
    for turn in range(rounds):
        for name, measure in measured.items():
            found[name].append(value := measure())
            print(f"round {turn + 1}, {name}: {f'{value:,.2f}' if isinstance(value, float) else value}", flush=True)
    return found


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each."""
    return {name: statistics.median(values) for name, values in found.items()}


def spread(values: Collection[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def printed(words: Sequence[str], **options: Any) -> str:
    """What a command prints; it ends this program if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def answers(words: Sequence[str]) -> list[Any]:
    """The lines of JSON that a script prints in a process of its own."""
    return [json.loads(line) for line in printed([sys.executable, *words]).splitlines() if line.startswith(("[", "{"))]


def training(words: Sequence[str], folder: str) -> list[str]:
    """The command of one worker that trains on the CPU without Ray."""
    return [sys.executable, "-m", "cifar_ray.training", *words, "--device", "cpu", "--storage", folder]


def figures(output: str) -> dict[str, float]:
    """The figures that a training without Ray prints at its end, by their names in MLflow."""
    ends = [line.partition(": ")[2] for line in output.splitlines() if line.startswith(("result: ", "times: "))]
    return {name: float(value) for end in ends for name, value in (pair.split() for pair in end.split(", "))}


def train(words: Sequence[str], root: Path = ROOT, **variables: str) -> dict[str, float]:
    """The figures of one worker that trains without Ray, with the program of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": str(root), **variables}
        return figures(printed(training(words, folder), cwd=root, env=env))


def versions() -> dict[str, str]:
    """Versions of what does the work, where it is installed."""
    found = {"python": sys.version.split()[0]}
    for package in ("torch", "torchvision", "ray", "mlflow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured, with ``+`` when files differ from it; empty outside of git."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def save(
    claim: str, title: str, rows: list[Row], raw: Any, device: torch.device | None = None, dry: bool = False
) -> None:
    """Print one claim's rows, and write them with the raw figures.

    Args:
        claim: name of the file; :data:`CLAIMS` has its place on the page.
        title: heading of its table, a sentence that says what is compared.
        rows: lines of the table.
        raw: every single figure, as JSON has it.
        device: what was measured; the CPU when not given.
        dry: whether to write nothing.
    """
    for row in rows:
        print(f"{row.what}: {row.measured}" + (f" ({row.target})" if row.target else "") + f", n = {row.n}; {row.note}")
    if dry:
        return
    processor = hardware.describe(device or torch.device("cpu"))
    load = round(os.getloadavg()[0], 2)
    found = {
        "title": title,
        "command": " ".join(["python", *sys.argv]),
        "machine": {"processor": processor, "cpus": hardware.allowed_cpus(), "load": load},
        "versions": versions(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "rows": [dataclasses.asdict(row) for row in rows],
        "raw": raw,
    }
    slug = re.sub(r"[^a-z0-9]+", "-", processor.lower()).strip("-")
    path = RESULTS / f"{claim}.{slug}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(path)


def page() -> str:
    """docs/measurements/performance.md, from every file of results."""
    parts = [INTRODUCTION]
    order = {claim: number for number, claim in enumerate(CLAIMS)}
    paths = sorted(RESULTS.glob("*.json"), key=lambda path: (order.get(path.name.partition(".")[0], 99), path.name))
    results = {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    titles = [found["title"] for found in results.values()]
    for path, found in results.items():
        where, several = found["machine"], titles.count(found["title"]) > 1
        parts.append(f"\n## {found['title']}{', ' + where['processor'] if several else ''}\n\n")
        parts.append("| what | target | measured | n | remarks |\n|---|--:|--:|--:|---|\n")
        parts += ["| {what} | {target} | {measured} | {n} | {note} |\n".format(**row) for row in found["rows"]]
        remarks = path.with_suffix(".md")
        if remarks.exists():
            parts.append("\n" + remarks.read_text(encoding="utf-8"))
        libraries = ", ".join(f"{name} {number}" for name, number in found["versions"].items() if name != "python")
        parts.append(
            f"\n`{found['command']}` on {where['processor']}, {where['cpus']} CPUs; {libraries}; "
            f"commit {found['commit']}, {found['date']}.\n"
        )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
