"""Files of the user's that have the names of libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


LIBRARIES = ["cloudpickle", "code", "filelock", "numbers", "random", "sqlite3", "statistics", "torch", "torchmetrics"]


@pytest.mark.parametrize("file", [*(f"{name}.py" for name in LIBRARIES), "pydantic/__init__.py"])
def test_a_file_that_would_hide_a_library_is_named_whether_this_process_has_imported_that_or_not(
    file: str, here: Path
) -> None:
    (here / file).parent.mkdir(exist_ok=True)
    (here / file).touch()
    name = file.removesuffix("/__init__.py").removesuffix(".py")
    imports.refuse_hiding(here, lambda: {name})
    with pytest.raises(ConfigError, match=rf"^{file} in the .* has the name of a library, {name}, .* rename it$"):
        imports.refuse_hiding(here, lambda: {"os"})


def test_other_files_hide_nothing(here: Path) -> None:
    for name in ("nets", "test", "example", "utils", "sys"):  # the last one is not in a file
        (here / f"{name}.py").touch()
    (here / "json").mkdir()  # no package
    imports.refuse_hiding(here)
    imports.refuse_hiding(Path(imports.__file__).parents[2])
    imports.refuse_hiding(Path(pytest.__file__).parents[1])


@pytest.mark.slow
def test_helpers_and_modules_of_the_users_do_not_take_libraries_from_the_working_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "numbers", "json", "pydantic", "sqlite3", "tabnanny"):
        (here / f"{name}.py").write_text("raise SystemExit(3)\n")
    (here / "nets.py").write_text("import pydantic\nimport tabnanny\ndef build(): ...\n")
    subprocess.run(imports.python("cifar_ray.tracking.pages"), check=True, timeout=60)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert imports.load("nets:build", "model").__name__ == "build"
