"""What a person gives a model to answer for: image files, texts, rows of numbers; and where predicted masks go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, brief, one_of
from cifar_ray.data import Facts, folders, imagefiles, tables, texts, tokens

_LINES = ".txt"
_OF_TEXTS = (*texts.SUFFIXES, _LINES)
"""Ends of the names of files of texts, the last of those with a text on each line."""

_MOST_ROWS = 10_000  # that a request may have


def check(paths: Sequence[Path]) -> None:
    """Refuse what is neither an image, or a folder of images, nor a file of texts; nothing is decoded.

    Raises:
        ConfigError: naming it.
    """
    if absent := next((path for path in paths if path.suffix in _OF_TEXTS and not path.is_file()), None):
        raise ConfigError("", f"there is no file {absent}")
    if others := [path for path in paths if path.suffix not in _OF_TEXTS]:
        images(others)


def images(paths: Sequence[Path]) -> tuple[list[Path], str]:
    """The image files that paths name: each file, and below each folder its images, sorted; what is left out, in words.

    Files that are named are looked at; of those in a folder, any may be damaged.

    Raises:
        ConfigError: naming a file that is no image, or a folder without images.
    """
    found: list[Path] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        if path.is_dir():
            try:
                below = sorted(map(Path, folders.images(path, left_out)))
            except OSError as error:
                raise ConfigError("", f"cannot read folder {error.filename}: {error.strerror}") from None
            if not below:
                raise ConfigError("", f"there is no image in {path} {folders.no_image(left_out)}")
            found += below
        else:
            with imagefiles.named(path), imagefiles.opened(path) as image:
                image.verify()
            found.append(path)
    return found, folders.in_words(left_out)


def sentences(paths: Sequence[Path], words: Sequence[str]) -> list[str]:
    """The texts that a model is to answer for: ``words``, and those of files.

    Args:
        paths: files of CSV or JSONL with a column ``text``, or of plain text with one on each line.
        words: texts themselves.

    Raises:
        ConfigError: when a file cannot be read, a text is empty, or there is none.
    """
    if wrong := [text for text in words if not text.strip() or not tokens.is_unicode(text)]:
        raise ConfigError("text", f"must be a text in UTF-8, got {brief(wrong[0])}")
    found = list(words)
    for path in paths:
        if path.suffix not in _OF_TEXTS:
            raise ConfigError("", f"a file of texts must be {one_of(_OF_TEXTS)}, got {path}")
        try:
            if path.suffix == _LINES:
                # Not str.splitlines, for which a text may also end within a line, at a form feed or U+2028.
                found += filter(None, map(str.strip, path.read_text("utf-8-sig").split("\n")))
            else:
                found += (text for (text,) in texts.rows(path, ("text",)))
        except ConfigError as error:
            raise ConfigError("", f"a file of texts {error.problem}") from None
        except (UnicodeDecodeError, OSError) as error:
            raise ConfigError("", f"a file of texts must be readable, in UTF-8, and {path} is not: {error}") from None
    if not found:
        raise ConfigError("", "there is no text to classify; give --text, or a file with at least one")
    return found


def features(path: Path, spec: Facts) -> np.ndarray:
    """The features of a CSV file's rows, by their names: float64 (N, length). Other columns do not matter.

    Raises:
        ConfigError: when it is no such file, or lacks a column or a number.
    """
    if not path.is_file():
        raise ConfigError("", f"{path} is no file, and the model takes CSV files")
    try:
        return tables.numbers(tables.frame(path), spec.feature_names, path)
    except ConfigError as error:
        raise ConfigError("", f"a table {error.problem}") from None


def features_from_json(body: bytes, spec: Facts) -> np.ndarray:
    """The features, float64 (N, length), of a JSON object of numbers by name, or of a list of such.

    Raises:
        ValueError: saying what it must be.
    """
    import pandas as pd

    try:
        given = json.loads(body, parse_int=float)  # which takes whole numbers of any length
    except (ValueError, RecursionError):
        raise ValueError("it must be JSON") from None
    rows = given if isinstance(given, list) else [given]
    if len(rows) > _MOST_ROWS:
        raise ValueError(f"it must have at most {_MOST_ROWS:,} rows, and has {len(rows):,}")
    table = pd.DataFrame([row if isinstance(row, dict) else {} for row in rows], dtype=object)
    try:
        return tables.numbers(table.fillna("").astype(str), spec.feature_names, Path("the body"))
    except ConfigError as error:
        raise ValueError(f"it {error.problem}") from None


def places(found: Sequence[Path], given: Sequence[Path], out: Path | None, overwrite: bool = False) -> dict[Path, Path]:
    """The file of each image's mask: as the image is named, below the folder that was ``given``, but .png, in ``out``.

    Raises:
        ConfigError: when two have one file, or one is an image, or ``out`` has files and ``overwrite`` is not given.
    """
    out = out or Path("predicted_masks")
    roots = [path for path in given if path.is_dir()]
    known, of = {image.resolve() for image in found}, dict[Path, Path]()
    for image in found:
        root = next((path for path in roots if image.is_relative_to(path)), image.parent)
        place = (out / image.relative_to(root)).with_suffix(".png")
        if (other := of.setdefault(place, image)) != image:
            raise ConfigError("out", f"must have one mask for each image, and {place} is that of {other} and {image}")
        if place.resolve() in known:
            raise ConfigError("out", f"must be another folder than that of the images, and {place} is one of them")
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise ConfigError("out", f"must be a new or an empty folder, and {out} has files; --overwrite replaces masks")
    return {image: place for place, image in of.items()}


def write(path: Path, mask: bytes) -> None:
    """Write a mask whole, and the folders that it is in.

    Raises:
        ConfigError: when it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, mask)
    except OSError as error:
        problem = f"must be a folder that can be written, and {path} cannot be ({error.strerror})"
        raise ConfigError("out", problem) from None
