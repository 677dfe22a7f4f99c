"""Images decoded once, to one size, and kept as arrays below ``--data-dir``; with ``stream`` they stay on disk."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError, first_line
from cifar_ray.config.facts import Facts
from cifar_ray.config.option import path_of
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays
from cifar_ray.data.datasets import Dataset, Split, folder
from cifar_ray.tasks.segmentation import Segmentation

if TYPE_CHECKING:
    from cifar_ray.data.source import Part, Source

Progress = Callable[[int, int], None]
"""Called with the number of images or texts that have been read, and that of all."""

_LAYOUT = 5  # of the decoded files; it changes when older ones would mean something else
_CHUNK = 256  # images that a thread decodes before it reports
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
    """The data set of a source's images, decoded unless they have been; a ConfigError says why they cannot be."""
    name = f"{_LAYOUT} {config.image_size} {config.dataset} {source.classes}"
    state = hashlib.sha256(name.encode(errors="surrogateescape"))
    for part in source.parts.values():
        state.update(b"\n")
        for sample, target in zip(part.samples, part.targets):
            state.update(_mark(sample) + target.tobytes())
    home = folder(config.data_dir) / "folders"
    kept = home / f"{Path(path_of(config.dataset)).name[:50]}-{state.hexdigest()[:16]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f".{kept.name}.lock"):
            if not kept.exists():
                _decode(source, config, kept, progress)
    except OSError as error:
        raise ConfigError("data_dir", f"must be writable, and {home} is not ({error.strerror})") from None
    splits, column = {}, source.column
    try:
        for name in source.parts:
            images = np.load(kept / f"{name}_images.npy", mmap_mode="r" if config.stream else None)
            splits[name] = Split({"images": images, column: np.load(kept / f"{name}_{column}.npy")})
        facts = schema.build(Facts, json.loads((kept / "facts.json").read_text()))
    except (ValueError, EOFError) as error:
        raise ConfigError("", f"decoded images in {kept} are damaged ({first_line(error)}); remove them") from None
    return arrays.made(config.dataset, splits, facts)


def _decode(source: Source, config: TrainConfig, kept: Path, progress: Progress) -> None:
    """Write all parts' images and labels to the folder ``kept``, which appears whole or not at all."""
    side, total, done = config.image_size, sum(map(len, source.parts.values())), 0
    has_masks = source.column == Segmentation.target
    size, what = total * side**2 * (3 + has_masks), f"{total:,} images of {side}x{side} pixels"
    check_room("image_size", 0 if config.stream else size, f"{what} without --stream")
    check_room("data_dir", size, what, shutil.disk_usage(kept.parent).free)

    def decode(part: Part, images: np.ndarray, targets: np.ndarray, begin: int) -> int:
        rows = range(begin, min(begin + _CHUNK, len(part)))
        for row in rows:
            pixels = source.read(part.samples[row], side)
            images[row] = pixels[..., :3]
            if has_masks:
                targets[row] = pixels[..., 3]
        return len(rows)

    partial = kept.with_name(f".{kept.name}.partial")
    partial.mkdir(exist_ok=True)  # a process that was killed may have left it
    try:
        splits = {}
        for name, part in source.parts.items():
            shape, begins = (len(part), side, side), range(0, len(part), _CHUNK)
            images = np.lib.format.open_memmap(partial / f"{name}_images.npy", "w+", np.uint8, (*shape, 3))
            targets = np.zeros(shape, np.uint8) if has_masks else part.targets
            with ThreadPoolExecutor() as pool:
                for count in pool.map(functools.partial(decode, part, images, targets), begins):
                    progress(done := done + count, total)
            images.flush()
            np.save(partial / f"{name}_{source.column}.npy", targets)
            splits[name] = Split({"images": images, source.column: targets})
        facts = arrays.facts_of(config.dataset, splits, source.classes)
        (partial / "facts.json").write_text(json.dumps(dataclasses.asdict(facts)))
        partial.rename(kept)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # it is there after an error


def check_room(option: str, size: int, what: str, room: float | None = None) -> None:
    """Refuse what would take more bytes than there is room, by default its share of the free memory."""
    import psutil

    room = _MEMORY * psutil.virtual_memory().available if room is None else room
    if size > room:
        raise ConfigError(option, f"must leave room for {what}: {size / 2**30:.1f} GiB, of {room / 2**30:.1f} GiB")
