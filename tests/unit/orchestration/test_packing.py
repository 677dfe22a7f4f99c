"""What of a working folder goes to a cluster with a job."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env import packaging

from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.jobs import packing

FILES = [".env", ".venv/lib/module.py", "code/model.py", "data/data_batch_1", "link.yaml", "mine.yaml", "run.yaml"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"this is {name}")
    (folder / "link.yaml").unlink()
    (folder / "link.yaml").symlink_to(folder / "run.yaml")
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def packed(folder: Path, named: str | None, archive: Path) -> tuple[set[str], str]:
    """What Ray would upload, and what is said of it."""
    said: list[str] = []
    with packing.packed(folder, named, said.append) as environment:
        excludes = environment.get("excludes", [])
        packaging.create_package(environment["working_dir"], archive, include_gitignore=True, excludes=excludes)
    (sentence,) = said
    return {name for name in zipfile.ZipFile(archive).namelist() if not name.endswith("/")}, sentence


def test_what_git_tracks_goes_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("data/\nmine.yaml\n.venv\n")
    git(folder, "add", ".gitignore", "code", "run.yaml", "link.yaml")
    (folder / "code" / "gone.py").touch()
    git(folder, "add", "code")
    (folder / "code" / "gone.py").unlink()
    files, sentence = packed(folder, None, tmp_path / "tracked.zip")
    assert files == {"code/model.py", "run.yaml"}
    assert sentence == f"going along: 2 files of {folder} that git tracks; 1 untracked stay here"
    files, _ = packed(folder, str(folder / "mine.yaml"), tmp_path / "named.zip")
    assert files == {"code/model.py", "run.yaml", "mine.yaml"}
    files, _ = packed(folder / "code", None, tmp_path / "below.zip")
    assert files == {"model.py"}


def test_outside_git_all_goes_but_what_is_hidden_or_ignored(folder: Path, tmp_path: Path) -> None:
    (folder / ".rayignore").write_text("data/\n")
    files, sentence = packed(folder, None, tmp_path / "all.zip")
    assert files == {"code/model.py", "link.yaml", "mine.yaml", "run.yaml"}
    assert sentence.startswith(f"{folder} goes along without hidden files")


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_file_that_would_hide_a_library_does_not_go(folder: Path, tmp_path: Path, is_tracked: bool) -> None:
    (folder / "random.py").touch()
    if is_tracked:
        git(folder, "init", "-q")
        packed(folder, None, tmp_path / "untracked.zip")
        git(folder, "add", "random.py")
    with pytest.raises(ConfigError, match=r"^random\.py in the working folder .* rename it$"):
        packed(folder, None, tmp_path / "tracked.zip")


def test_a_folder_that_is_no_piece_of_work(folder: Path, home: Path) -> None:
    for wrong, problem in ((home, "holds everything"), (Path("/"), "holds everything"), (folder / "none", "a folder")):
        with pytest.raises(ConfigError, match=f"^working_dir must be .*{problem}"):
            packing.root(wrong)
    with pytest.raises(ConfigError, match="working_dir must be a folder with the file that the command names"):
        packing.inside(folder / "code", str(folder / "run.yaml"))
