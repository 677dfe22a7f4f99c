"""Images decoded once, to one size, and kept as arrays below ``--data-dir``; with ``stream`` they stay on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.facts import Facts
from cifar_ray.config.option import path_of
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, imagefiles
from cifar_ray.data.datasets import Dataset, Split, folder
from cifar_ray.tasks.segmentation import Segmentation

if TYPE_CHECKING:
    from cifar_ray.data.source import Source

Progress = Callable[[int, int], None]
"""Called with the number of images or texts that have been read, and that of all."""

_LAYOUT = 5  # of the decoded files; it changes when older ones would mean something else
_CHUNK = 256  # images that a thread decodes before it reports
_DECODED = re.compile(r"-[0-9a-f]{16}$")
_UNUSED_S = 30 * 86400
_MEMORY = 0.5  # share of the free memory that a data set may take: the object store has its own copy


def _mark(sample: Any) -> bytes:
    """What tells a sample from others: the states of its files, or its pixels."""
    if isinstance(sample, tuple):
        return b"".join(map(_mark, sample))
    if not isinstance(sample, str):
        return np.asarray(sample).tobytes()
    stat = Path(sample).stat()
    # `cp -p` and `rsync -a` bring size and time of a file along. They cannot set the time of the change itself.
    state = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    return f"{sample} {state}\n".encode(errors="surrogateescape")


def provide(config: TrainConfig, source: Source, progress: Progress) -> Dataset:
    """The data set of images that a source has found, decoded unless they have been.

    Raises:
        ConfigError: when an image cannot be read, the folder cannot be written, or there is no room.
    """
    name = f"{_LAYOUT} {config.image_size} {config.dataset} {source.classes}"
    state = hashlib.sha256(name.encode(errors="surrogateescape"))
    for part in source.parts.values():
        state.update(b"\n")
        for sample, target in zip(part.samples, part.targets):
            state.update(_mark(sample) + target.tobytes())
    name = os.fsencode(Path(path_of(config.dataset)).name)[:100].decode(errors="ignore")  # no character is cut
    home = folder(config.data_dir) / "folders"
    kept = home / f"{name}-{state.hexdigest()[:16]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f".{kept.name}.lock"):
            if kept.exists():
                with suppress(PermissionError):  # somebody else has decoded it
                    os.utime(kept)
            else:
                _decode(source, config, kept, progress)
                _remove_unused(home)
    except OSError as error:
        problem = f"must be a folder that can be written, and {home} cannot be ({error.strerror})"
        raise ConfigError("data_dir", problem) from None
    try:
        splits = {name: _kept(kept, name, config.stream, source.column) for name in source.parts}
        facts = schema.build(Facts, json.loads((kept / "facts.json").read_text()))
    except (OSError, ValueError, EOFError):
        problem = f"must have whole files, and those in {kept} are not; remove that folder"
        raise ConfigError("data_dir", problem) from None
    return arrays.made(config.dataset, splits, facts)


def _remove_unused(home: Path) -> None:
    """Remove decoded folders that no run has used for a month: a folder that changes leaves one behind each time."""
    for path in home.iterdir():
        if _DECODED.search(path.name) and (path / "facts.json").exists():
            # In use, or somebody else's, it stays.
            with suppress(OSError), FileLock(home / f".{path.name}.lock", timeout=0):
                if time.time() - path.stat().st_mtime > _UNUSED_S:
                    doomed = path.rename(home / f".{path.name}.partial")  # it goes whole or not at all
                    shutil.rmtree(doomed)


def _kept(folder: Path, half: str, on_disk: bool, column: str) -> Split:
    images = np.load(folder / f"{half}_images.npy", mmap_mode="r" if on_disk else None)
    return Split({"images": images, column: np.load(folder / f"{half}_{column}.npy")})


def _decode(source: Source, config: TrainConfig, kept: Path, progress: Progress) -> None:
    """Write all parts' images and labels to the folder ``kept``, which appears whole or not at all."""
    side, total = config.image_size, sum(map(len, source.parts.values()))
    has_masks = source.column == Segmentation.target
    labels = total * side**2 if has_masks else sum(part.targets.nbytes for part in source.parts.values())
    size, what = total * side**2 * 3 + labels, f"its {total:,} images of {side}x{side} pixels"
    if config.stream:
        check_memory(config, "image_size", labels, f"the masks of {what}")
    else:
        check_memory(config, "image_size", size, what, ", or come with --stream")
    if size > (free := shutil.disk_usage(kept.parent).free):
        needs = f"{what} take {size / 2**30:.1f} GiB, and {kept.parent} has {free / 2**30:.1f} GiB"
        raise ConfigError("data_dir", f"must have room for {config.dataset}: {needs}")
    unreadable: list[imagefiles.UnreadableError] = []
    partial = kept.with_name(f".{kept.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    done = 0
    try:
        for half, part in source.parts.items():
            shape = (len(part), side, side, 3)
            images = np.lib.format.open_memmap(partial / f"{half}_images.npy", "w+", np.uint8, shape)
            targets = np.zeros(shape[:3], np.uint8) if has_masks else part.targets

            def decode(rows: range, samples: Any = part.samples, images: Any = images, targets: Any = targets) -> int:
                for row in rows:
                    try:
                        pixels = source.read(samples[row], side)
                    except imagefiles.UnreadableError as error:
                        unreadable.append(error)
                        continue
                    images[row] = pixels[..., :3]
                    if has_masks:
                        targets[row] = pixels[..., 3]
                return len(rows)

            every = range(len(part))
            with ThreadPoolExecutor() as pool:
                for count in pool.map(decode, (every[begin : begin + _CHUNK] for begin in every[::_CHUNK])):
                    progress(done := done + count, total)
            images.flush()
            np.save(partial / f"{half}_{source.column}.npy", targets)
        imagefiles.refuse(unreadable, total)
        splits = {half: _kept(partial, half, True, source.column) for half in source.parts}
        facts = arrays.facts_of(config.dataset, splits, source.classes)
        (partial / "facts.json").write_text(json.dumps(dataclasses.asdict(facts)))
        partial.rename(kept)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def check_memory(config: TrainConfig, option: str, size: int, what: str, remedy: str = "") -> None:
    """Refuse what would take more than its share of the free memory: so many bytes, which ``option`` decides."""
    import psutil  # not at the top: under torchrun, data in memory do without it

    if size > (room := _MEMORY * psutil.virtual_memory().available):
        raise ConfigError(
            option,
            f"must be smaller for {config.dataset}{remedy}: {what} take {size / 2**30:.1f} GiB, and "
            f"{room / 2**30:.1f} GiB may be used here, half of the free memory",
        )
