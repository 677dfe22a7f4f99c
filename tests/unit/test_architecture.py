"""Who may import whom. The rooms and their order are those of docs/architecture.md."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "cifar_ray"
HEAVY = {"ray": "orchestration", "mlflow": "tracking", "pyarrow": "storage"}
# What each room may import of the package, besides itself.
DOMAIN = {"config", "tasks", "data", "models", "strategies", "training"}
BELOW = {
    "config": set(),
    "tasks": {"config"},
    "data": {"config", "tasks"},
    "models": {"config", "data", "tasks"},
    "strategies": {"config", "data", "models", "tasks"},
    "training": {"config", "data", "models", "strategies", "tasks"},
    "storage": {"config"},
    "tracking": {"config", "data", "tasks", "training"},
    "reporting": {"config", "tasks", "tracking", "training"},
    "planning": {"config", "data", "reporting", "tracking", "training"},
    "display": {"config", "data", "strategies", "tasks", "training"},
    "runs": {*DOMAIN, "display", "storage", "tracking"},
    "orchestration.cluster": {*DOMAIN, "storage", "tracking"},
    "orchestration.run": {*DOMAIN, "display", "orchestration.cluster", "reporting", "runs", "storage", "tracking"},
    "orchestration.sweep": {
        *DOMAIN,
        *(
            "display",
            "orchestration.cluster",
            "orchestration.run",
            "planning",
            "reporting",
            "runs",
            "storage",
            "tracking",
        ),
    },
    "orchestration.jobs": {*DOMAIN, "display", "orchestration.cluster", "tracking"},
    "serving": {*DOMAIN, "runs"},
    "cli": {
        *DOMAIN,
        *("display", "orchestration.cluster", "orchestration.jobs", "orchestration.run", "orchestration.sweep"),
        *("planning", "reporting", "runs", "serving", "storage", "tracking"),
    },
}


def modules() -> list[Path]:
    outer = {PACKAGE / "__init__.py", PACKAGE / "_version.py", PACKAGE / "orchestration" / "__init__.py"}
    return [path for path in PACKAGE.rglob("*.py") if path not in outer]


def room(path: Path) -> str:
    return room_of(path.relative_to(PACKAGE).parts)


def room_of(parts: tuple[str, ...]) -> str:
    return ".".join(parts[: 2 if parts[0] == "orchestration" else 1])


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere, dotted."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_module_has_a_room() -> None:
    assert {room(path) for path in modules()} == set(BELOW)


def test_imports_point_one_way() -> None:
    constants = {"IMPORTED_AT", "_version", "orchestration"}
    for path in modules():
        names = {tuple(name.split(".")[1:]) for name in imports(path) if name.startswith("cifar_ray.")}
        wrong = {room_of(parts) for parts in names} - constants - {room(path)} - BELOW[room(path)]
        assert wrong == set(), path


@pytest.mark.parametrize(("library", "only"), HEAVY.items())
def test_only_one_room_knows_it(library: str, only: str) -> None:
    users = {
        room(path).split(".")[0] for path in modules() if any(name.split(".")[0] == library for name in imports(path))
    }
    assert users == {only}


def test_the_loop_is_short_enough_to_be_read_at_once() -> None:
    assert len((PACKAGE / "training" / "loop.py").read_text().splitlines()) < 80


KINDS = {"images", "features", "tokens", "classes", "values", "masks"}
KIND_OF = {"inputs", "answer", "names", "kind"}


def asks_for_a_kind(node: ast.AST) -> bool:
    """Whether code compares what samples or answers are, in place of asking a modality or a task what to do."""
    if isinstance(node, ast.match_case):
        return any(isinstance(part, ast.Constant) and part.value in KINDS for part in ast.walk(node.pattern))
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    constants = {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)}
    named = {getattr(side, "attr", getattr(side, "id", "")) for side in sides}
    return bool(KINDS & constants and KIND_OF & named)


def test_only_data_and_tasks_ask_which_kind_samples_and_answers_are() -> None:
    asked = [
        f"{path.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for path in modules()
        if room(path) not in ("data", "tasks")
        for node in ast.walk(tree(path))
        if asks_for_a_kind(node)
    ]
    assert asks_for_a_kind(ast.parse("facts.inputs != 'images'", mode="eval").body)
    assert asked == []


def test_test_files_have_names_of_their_own() -> None:
    """pytest collects two files of one name only apart."""
    names = [path.name for path in Path(__file__).parents[1].rglob("test_*.py")]
    assert len(names) == len(set(names))
