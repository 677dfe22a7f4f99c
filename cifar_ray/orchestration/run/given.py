"""What a person gives a model to answer for: image files, texts, rows of numbers; and where predicted masks go."""

from __future__ import annotations

import abc
import itertools
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, brief, one_of
from cifar_ray.config.facts import Facts, Inputs
from cifar_ray.data import folders, imagefiles, tables, texts, tokens
from cifar_ray.data.datasets import as_tensor
from cifar_ray.training import samples

if TYPE_CHECKING:  # what is refused before the start does without torch
    from torch import Tensor

_LINES = ".txt"
_OF_TEXTS = (*texts.SUFFIXES, _LINES)
"""Ends of the names of files of texts, the last of those with a text on each line."""

_AT_ONCE, _NOTE_EVERY = 256, 10_240  # inputs in one forward pass, and between notes on the progress
_MOST_ROWS = 10_000  # that a request may have
_NO_SIZES = itertools.repeat((0, 0))

Note = Callable[[str], None]
"""Called with sentences that a person should read beside the result."""

Size = tuple[int, int]
"""Width and height of an image; zeros of what is none."""

Batch: TypeAlias = "tuple[list[dict[str, Any]], Tensor, Iterable[Size]]"
"""Samples by name, such as ``{"image": path}``, the same as inputs of a model, and the size of each."""


class Given(abc.ABC):
    """What people give a model of one modality.

    Attributes:
        noun: one of it, with its article.
        example: what ``curl --data-binary`` sends of it.
        has_lists: whether a request may have several.
    """

    noun: ClassVar[str]
    has_lists: ClassVar[bool] = False

    def __init__(self, facts: Facts, encoding: str = "") -> None:
        self.facts, self.encoding, self.example = facts, encoding, ""

    @property
    def about(self) -> dict[str, Any]:
        """What a server says of what it takes."""
        return {}

    @abc.abstractmethod
    def batches(self, paths: Sequence[Path], words: Sequence[str], note: Note) -> Iterator[Batch]:
        """What files have, and ``words``; ``note`` is told of what is left out, and how far it is.

        Raises:
            ConfigError: naming what cannot be read, or is not for such a model.
        """

    @abc.abstractmethod
    def read(self, body: bytes) -> tuple[Tensor, Size]:
        """The body of a request as inputs of the model (N, ...), and the size of an image.

        Raises:
            ValueError: saying what is wrong with it.
        """

    def shown(self, rows: Tensor) -> Tensor:
        """Inputs that pass through the model together, as it takes them."""
        return rows


class _Images(Given):
    noun = "an image"

    def __init__(self, facts: Facts, encoding: str = "") -> None:
        super().__init__(facts)
        self.example = "@IMAGE"

    def batches(self, paths: Sequence[Path], words: Sequence[str], note: Note) -> Iterator[Batch]:
        import torch

        _refuse(words, "images")
        every, left_out = images(paths)
        if left_out:
            note(left_out)
        for begin in range(0, len(every), _AT_ONCE):
            if begin and begin % _NOTE_EVERY == 0:
                note(f"{begin:,} of {len(every):,} images")
            named, inputs, sizes = [], [], []
            for path in every[begin : begin + _AT_ONCE]:  # one at a time: a decoded photo takes tens of megabytes
                try:
                    image = imagefiles.read(path)
                except ConfigError as error:
                    if path in paths:
                        raise
                    note(f"left out: {error.problem}")
                    continue
                named.append({"image": path})
                inputs.append(samples.batch(self.facts, [image]))
                sizes.append(image.size)
                del image
            if named:
                yield named, torch.cat(inputs), sizes

    def read(self, body: bytes) -> tuple[Tensor, Size]:
        image = imagefiles.read(BytesIO(body))
        return samples.batch(self.facts, [image]), image.size


class _Texts(Given):
    noun = "a text"

    def __init__(self, facts: Facts, encoding: str = "") -> None:
        super().__init__(facts, encoding)
        if not encoding:  # a function of the user's own has made its tokens
            raise ConfigError("", "the model takes tokens, and its tokenizer is not known")
        tokens.library()
        self.example = "TEXT"

    def batches(self, paths: Sequence[Path], words: Sequence[str], note: Note) -> Iterator[Batch]:
        every = sentences(paths, words)
        rows = self._encoded(every)
        for begin in range(0, len(every), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            yield [{"text": text} for text in every[part]], self.shown(rows[part]), _NO_SIZES

    def read(self, body: bytes) -> tuple[Tensor, Size]:
        """A plain text, or the value of ``text`` in a JSON object."""
        text: Any = body.decode(errors="surrogateescape")
        if text.lstrip().startswith("{"):
            with suppress(ValueError, RecursionError):
                text = json.loads(text).get("text")
        if not isinstance(text, str) or not text.strip() or not tokens.is_unicode(text):
            raise ValueError('it must be plain, or {"text": "..."}, in UTF-8 and not empty')
        return self._encoded([text]), (0, 0)

    def shown(self, rows: Tensor) -> Tensor:
        return as_tensor(tokens.cut(rows.numpy()))

    def _encoded(self, every: Sequence[str]) -> Tensor:
        return as_tensor(tokens.encode(self.encoding, every, self.facts.length)[0])


class _Rows(Given):
    noun = "a row"
    has_lists = True

    def __init__(self, facts: Facts, encoding: str = "") -> None:
        super().__init__(facts)
        self.example = shlex.quote(json.dumps(dict.fromkeys(facts.feature_names, 0)))

    @property
    def about(self) -> dict[str, Any]:
        return {"features": self.facts.feature_names}

    def batches(self, paths: Sequence[Path], words: Sequence[str], note: Note) -> Iterator[Batch]:
        _refuse(words, "rows of numbers")
        for path in paths:
            if not path.is_file():
                raise ConfigError("", f"{path} is no file, and the model takes CSV files")
            try:  # other columns do not matter
                rows = as_tensor(tables.numbers(tables.frame(path), self.facts.feature_names, path))
            except ConfigError as error:
                raise ConfigError("", f"a table {error.problem}") from None
            for begin in range(0, len(rows), _AT_ONCE):
                part = rows[begin : begin + _AT_ONCE]
                yield [{"table": path, "row": begin + row} for row in range(1, len(part) + 1)], part, _NO_SIZES

    def read(self, body: bytes) -> tuple[Tensor, Size]:
        """A JSON object of numbers by name, or a list of such."""
        import pandas as pd

        try:
            given = json.loads(body, parse_int=float)  # which takes whole numbers of any length
        except (ValueError, RecursionError):
            raise ValueError("it must be JSON") from None
        rows = given if isinstance(given, list) else [given]
        if len(rows) > _MOST_ROWS:
            raise ValueError(f"it must have at most {_MOST_ROWS:,} rows, and has {len(rows):,}")
        names = self.facts.feature_names  # others would make the table as wide as a request has names
        known = [{name: row[name] for name in names if name in row} if isinstance(row, dict) else {} for row in rows]
        table = pd.DataFrame(known, dtype=object)
        try:
            numbers = tables.numbers(table.fillna("").astype(str), names, Path("the body"))
        except ConfigError as error:
            raise ValueError(f"it {error.problem}") from None
        return as_tensor(numbers), (0, 0)


_KINDS: dict[Inputs, type[Given]] = {"images": _Images, "tokens": _Texts, "features": _Rows}


def of(facts: Facts, encoding: str = "") -> Given:
    """What a model is given that has learned of such data; ``encoding`` is that of its checkpoint.

    Raises:
        ConfigError: when people cannot give it, since its tokenizer is not known or not installed.
    """
    return _KINDS[facts.inputs](facts, encoding)


def _refuse(words: Sequence[str], takes: str) -> None:
    if words:
        raise ConfigError("text", f"is for models of texts, and this one takes {takes}")


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
                found += sorted(map(Path, folders.images(path, left_out)))
            except OSError as error:
                raise ConfigError("", f"cannot read folder {error.filename}: {error.strerror}") from None
        else:
            with imagefiles.opened(path) as image:
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
