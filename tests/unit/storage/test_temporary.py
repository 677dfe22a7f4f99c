"""Temporary folders: gone at the end, or when the next process finds that nobody holds them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray.storage import temporary

HOLDER = """
import sys, time
from cifar_ray.storage import temporary
with temporary.scratch(sys.argv[1]) as folder:
    (folder / "socket").touch()
    (folder / "session").mkdir()
    (folder / "session" / "log").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


def holder(above: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(above)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    os.utime(folder / ".lock", (0, 0))
    return process, folder


def test_a_temporary_folder_is_gone_at_the_end(tmp_path: Path) -> None:
    with temporary.scratch(str(tmp_path)) as folder:
        (folder / "session").mkdir()
        (folder / "session" / "log").touch()
        (folder / "session_latest").symlink_to(folder / "session")
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_during_the_removal_is_left_for_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmtree = shutil.rmtree

    def late(path: Path, ignore_errors: bool) -> None:
        rmtree(path, ignore_errors)
        path.mkdir()

    with temporary.scratch(str(tmp_path)) as folder:
        (folder / "session").mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(temporary.shutil, "rmtree", late)
            temporary._empty(folder)
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "session"]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """Not a folder that another process holds, one without a lock, one just made, or one with another name."""
    others = [tmp_path / "cifar_ray-unlocked", tmp_path / "cifar_ray-new", tmp_path / "ray"]
    for folder in others:
        folder.mkdir()
    (tmp_path / "cifar_ray-new" / ".lock").touch()
    (tmp_path / "ray" / ".lock").touch()
    os.utime(tmp_path / "ray" / ".lock", (0, 0))
    killed, left = holder(tmp_path)
    killed.kill()
    killed.wait()
    living, held = holder(tmp_path)
    try:
        assert not left.exists()
        with temporary.scratch(str(tmp_path)) as own:
            assert set(tmp_path.iterdir()) == {*others, held, own}
            assert sorted(path.name for path in held.iterdir()) == [".lock", "session", "socket"]
    finally:
        living.kill()
        living.wait()
