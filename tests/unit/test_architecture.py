"""Who may import whom. The rooms and their order are those of docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "cifar_ray"
HEAVY = {"ray": "orchestration", "mlflow": "tracking", "pyarrow": "storage"}
# What each room may import of the package, besides itself.
BELOW = {
    "files": {"strict"},
    "strict": set(),
    "topology": set(),
    "config": {"strict", "topology"},
    "sweeps": {"config", "strict"},
    "sweeptext": {"config", "strict", "sweeps"},
    "data": {"config", "files", "strict"},
    "models": {"config", "data"},
    "place": set(),
    "ports": {"strict"},
    "strategies": {"config", "data", "models", "place", "strict"},
    "training": {"config", "data", "files", "models", "place", "strategies", "strict", "topology"},
    "storage": {"config", "files", "strict", "training"},
    "tracking": {"config", "data", "ports", "reporting", "strict", "sweeps", "sweeptext", "training"},
    "reporting": {"files", "strict"},
    "clusterfile": {"reporting", "strict"},
    "console": {"results", "strategies"},
    "board": {"console"},
    "results": {"config", "data", "place", "storage", "strict", "tracking", "training"},
    "orchestration": {
        "board",
        "clusterfile",
        "config",
        "console",
        "data",
        "files",
        "models",
        "place",
        "ports",
        "results",
        "runtext",
        "storage",
        "strategies",
        "strict",
        "sweeps",
        "sweeptext",
        "topology",
        "tracking",
        "training",
    },
    "doctor": {"config", "console", "data", "orchestration", "storage", "strict", "tracking", "training"},
    "flags": {"strict"},
    "commands": {"config"},
    "cluster_commands": {"config"},
    "runtext": {"commands", "config", "flags", "strict", "sweeps", "sweeptext"},
    "cluster_cli": {"cluster_commands", "config", "console", "flags", "orchestration", "results", "strict", "tracking"},
    "cli": {
        "cluster_cli",
        "commands",
        "config",
        "console",
        "doctor",
        "flags",
        "orchestration",
        "reporting",
        "results",
        "runtext",
        "strategies",
        "strict",
        "tracking",
        "training",
    },
}


def modules() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere, dotted."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_module_has_a_room() -> None:
    assert {room(path) for path in modules()} == set(BELOW)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    rooms = {name.split(".")[1] for name in imports(path) if name.startswith("cifar_ray.")}
    constants = {"IMPORTED_AT", "__version__"}
    assert rooms - constants - {room(path)} <= BELOW[room(path)]


@pytest.mark.parametrize(("library", "only"), HEAVY.items())
def test_only_one_room_knows_it(library: str, only: str) -> None:
    users = {room(path) for path in modules() if any(name.split(".")[0] == library for name in imports(path))}
    assert users == {only}


def test_the_loop_is_short_enough_to_be_read_at_once() -> None:
    assert len((PACKAGE / "training" / "loop.py").read_text().splitlines()) < 80
