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


@pytest.mark.parametrize("file", ["random.py", "torch.py", "numbers.py", "yaml.py", "pydantic/__init__.py"])
def test_a_file_that_would_hide_a_library_in_use_is_named(file: str, here: Path) -> None:
    (here / "nets.py").touch()
    (here / "json").mkdir()  # no package
    imports.refuse_hiding()
    (here / file).parent.mkdir(exist_ok=True)
    (here / file).touch()
    with pytest.raises(ConfigError, match=rf"^{here / file} has the name of a library, .* rename it$"):
        imports.refuse_hiding()


def test_a_library_itself_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(imports.__file__).parents[2])
    imports.refuse_hiding()


def test_helpers_and_modules_of_the_users_do_not_take_libraries_from_the_working_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "numbers", "json", "pydantic", "sqlite3", "tabnanny"):
        (here / f"{name}.py").write_text("raise SystemExit(3)\n")
    (here / "nets.py").write_text("import pydantic\nimport tabnanny\ndef build(): ...\n")
    subprocess.run(imports.python("cifar_ray.tracking.pages"), check=True, timeout=60)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert imports.load("nets:build", "model").__name__ == "build"
