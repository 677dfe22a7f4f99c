"""Folders on a disk through the class that serves buckets, too, and the lock on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray import storage
from cifar_ray.config.errors import ConfigError
from cifar_ray.storage import Folder, Lock

TAKEN = ConfigError("", "taken")
HOLDER = """
import sys, time
from cifar_ray import storage
folder = storage.at(sys.argv[1])
with storage.Lock(folder, RuntimeError("taken")), storage.scratch(sys.argv[2]) as scratch:
    print(scratch, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return storage.at(str(tmp_path / "some" / "folder"))


def test_files_are_written_read_listed_and_removed(folder: Folder, tmp_path: Path) -> None:
    assert (folder.exists(), folder.names()) == (False, [])
    folder.make()
    folder.below("deep").make()
    folder.write("a.txt", "first")
    folder.write("a.txt", "zweites, größer")
    assert (folder.read("a.txt"), folder.names()) == ("zweites, größer", ["a.txt", "deep"])
    with folder.on_disk("a.txt") as path:
        assert path == Path(folder.address) / "a.txt"
    with pytest.raises(FileNotFoundError):
        folder.read("none.txt")
    (tmp_path / "c.bin").write_bytes(bytes(range(256)) * 400)
    folder.below("deep").upload(tmp_path / "c.bin")
    folder.below("deep").download("c.bin", tmp_path / "below")
    assert (tmp_path / "below" / "c.bin").read_bytes() == (tmp_path / "c.bin").read_bytes()
    folder.delete("a.txt")
    folder.delete("a.txt")
    assert folder.names() == ["deep"]
    folder.remove()
    folder.remove()
    assert not folder.disk.exists()


def test_a_write_that_fails_leaves_what_was_there(folder: Folder) -> None:
    folder.make()
    folder.write("a.txt", "first")
    (folder.disk / ".a.txt.partial").mkdir()
    with pytest.raises(OSError, match=r"directory"):
        folder.write("a.txt", "second")
    assert folder.read("a.txt") == "first"


def test_a_folder_that_cannot_be_made_is_refused_in_a_few_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = storage.at(str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match=r"^storage must be .*: Not a directory$"), storage.refusing(folder):
        folder.make()


def test_a_folder_has_one_driver_until_it_ends_or_is_killed(folder: Folder, tmp_path: Path) -> None:
    folder.make()
    with Lock(folder, TAKEN), pytest.raises(ConfigError, match="taken"):
        Lock(folder, TAKEN)
    (tmp := tmp_path / "tmp").mkdir()
    words = [sys.executable, "-c", HOLDER, folder.address, str(tmp)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other, storage.scratch(str(tmp)) as used:
        left = Path(other.stdout.readline().strip())
        with pytest.raises(ConfigError, match="taken"):
            Lock(folder, TAKEN)
        with storage.scratch(str(tmp)):
            assert left.exists()
        other.kill()
        other.wait()
        with Lock(folder, TAKEN), storage.scratch(str(tmp)) as later:
            assert {*tmp.iterdir()} == {used, later}
    assert not [*tmp.iterdir()]
