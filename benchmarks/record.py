"""Where the benchmarks leave their figures, and docs/measurements/performance.md, which is made from them.

    python benchmarks/record.py     # writes docs/measurements/performance.md anew

Every other script here measures one claim, and calls :func:`save` with a row for each target. The raw figures lie
beside the rows in ``benchmarks/results/CLAIM.PROCESSOR.json``: a machine with another processor adds a file and
replaces none. What bounds a figure stands in ``CLAIM.PROCESSOR.md`` beside them, written by hand. ``--dry``, which every script
has from :func:`parser`, is for a trial run: it shows the rows and writes no file.
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
from collections.abc import Collection
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
INTRODUCTION = """# Performance

Each table is one claim: what it was meant to reach, what was measured, how often, and why it falls short where it
does. Times on shared machines are noisy: what is compared was measured in turn in one run, and a ratio is that of the
medians. `python benchmarks/record.py` makes this page from `benchmarks/results/`, which has every raw figure.
Flags in a table and in its command are those of the commit that the command's line names.
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


def machine(device: torch.device) -> dict[str, Any]:
    """The processor that was measured, and how much of it this process may use."""
    return {
        "processor": hardware.describe(device),
        "cpus": hardware.allowed_cpus(),
        "load": round(os.getloadavg()[0], 2),
    }


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


def percent(values: Collection[float]) -> str:
    """Their mean in %, with the standard deviation where there are several."""
    spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread} %"


def parser(docstring: str | None) -> argparse.ArgumentParser:
    """A command line for a script, with its docstring's first line and ``--dry``."""
    made = argparse.ArgumentParser(description=(docstring or "").partition("\n")[0], allow_abbrev=False)
    made.add_argument("--dry", action="store_true", help="print the rows, save nothing")
    return made


def save(
    claim: str, title: str, rows: list[Row], raw: Any, device: torch.device | None = None, dry: bool = False
) -> None:
    """Print one claim's rows, and write them with the raw figures.

    Args:
        claim: name of the file, the script's own name.
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
    device = device or torch.device("cpu")
    found = {
        "title": title,
        "command": " ".join(["python", *sys.argv]),
        "machine": machine(device),
        "versions": versions(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "rows": [dataclasses.asdict(row) for row in rows],
        "raw": raw,
    }
    slug = re.sub(r"[^a-z0-9]+", "-", found["machine"]["processor"].lower()).strip("-")
    path = RESULTS / f"{claim}.{slug}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(path)


def page() -> str:
    """docs/measurements/performance.md, from every file of results."""
    parts = [INTRODUCTION]
    results = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    titles = [found["title"] for found in results.values()]
    for path, found in results.items():
        where, versions = found["machine"], found["versions"]
        several = titles.count(found["title"]) > 1
        parts.append(f"\n## {found['title']}{', ' + where['processor'] if several else ''}\n\n")
        parts.append("| what | target | measured | n | remarks |\n|---|--:|--:|--:|---|\n")
        for row in found["rows"]:
            parts.append("| {what} | {target} | {measured} | {n} | {note} |\n".format(**row))
        remarks = path.with_suffix(".md")
        if remarks.exists():
            parts.append("\n" + remarks.read_text(encoding="utf-8"))
        libraries = ", ".join(f"{name} {number}" for name, number in versions.items() if name != "python")
        parts.append(
            f"\n`{found['command']}` on {where['processor']}, {where['cpus']} CPUs; {libraries}; "
            f"commit {found['commit']}, {found['date']}.\n"
        )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
