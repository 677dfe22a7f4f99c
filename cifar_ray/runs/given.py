"""What a person gives a model to answer for: image files, texts, rows of numbers; and where predicted masks go."""

from __future__ import annotations

import abc
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, brief, one_of
from cifar_ray.config.facts import Facts, Inputs
from cifar_ray.data import folders, imagefiles, tables, texts, tokens
from cifar_ray.data.datasets import as_tensor
from cifar_ray.training import samples

_LINES = ".txt"  # the end of the name of a file with a text on each line
_AT_ONCE = 256  # inputs in one forward pass
_MOST_ROWS = 10_000  # that a request may have

Note = Callable[[str], None]
"""Called with sentences that a person should read beside the result."""

Size = tuple[int, int]
"""Width and height of an image; zeros of other samples."""

One = tuple[dict[str, Any], Tensor, Size]
"""A sample by name, such as ``{"image": path}``, the same as an input of a model, and its size."""


class Given(abc.ABC):
    """What people give a model of one modality.

    Attributes:
        facts: of the data that the model has learned from.
        encoding: that of its checkpoint.
        noun: one of what is given, with its article.
        has_lists: whether a request may have several.
        example: what ``curl --data-binary`` sends.
        about: what a server says of what it takes.
    """

    noun: ClassVar[str]
    has_lists: ClassVar[bool] = False
    example: str

    def __init__(self, facts: Facts, encoding: str) -> None:
        self.facts, self.encoding, self.about = facts, encoding, dict[str, Any]()

    @abc.abstractmethod
    def each(self, paths: Sequence[Path], words: Sequence[str], note: Note) -> Iterator[One]:
        """What files have, and ``words``; a ConfigError names what cannot be read, or is not for such a model."""

    @abc.abstractmethod
    def read(self, body: bytes) -> tuple[Tensor, Size]:
        """The body of a request as inputs (N, ...), and the size of an image; a ValueError says what is wrong."""

    def batches(
        self, paths: Sequence[Path], words: Sequence[str], note: Note
    ) -> Iterator[tuple[list[dict[str, Any]], Tensor, list[Size]]]:
        """All of :meth:`each`, in as large parts as pass through the model at once."""
        every = self.each(paths, words, note)
        while part := list(islice(every, _AT_ONCE)):
            named, inputs, sizes = map(list, zip(*part))
            yield named, self.shown(torch.stack(inputs)), sizes

    def shown(self, rows: Tensor) -> Tensor:
        """Inputs that pass through the model together, as it takes them."""
        return rows


class _Images(Given):
    noun = "an image"
    example = "@IMAGE"

    def each(self, paths: Sequence[Path], words: Sequence[str], note: Note) -> Iterator[One]:
        _refuse(words, "images")
        every, left_out = images(paths)
        if left_out:
            note(left_out)
        for path in every:
            try:
                image = imagefiles.read(path)
            except ConfigError as error:
                if path in paths:
                    raise
                note(f"left out: {error.problem}")
                continue
            row, size = samples.batch(self.facts, [image])[0], image.size
            del image  # a decoded photo takes tens of megabytes
            yield {"image": path}, row, size

    def read(self, body: bytes) -> tuple[Tensor, Size]:
        image = imagefiles.read(BytesIO(body))
        return samples.batch(self.facts, [image]), image.size


class _Texts(Given):
    noun = "a text"
    example = "TEXT"

    def __init__(self, facts: Facts, encoding: str) -> None:
        super().__init__(facts, encoding)
        if not encoding:  # a function of the user's own has made its tokens
            raise ConfigError("", "the model takes tokens, and its tokenizer is not known")
        tokens.library()

    def each(self, paths: Sequence[Path], words: Sequence[str], note: Note) -> Iterator[One]:
        every = sentences(paths, words)
        for text, row in zip(every, self._encoded(every)):
            yield {"text": text}, row, (0, 0)

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

    def __init__(self, facts: Facts, encoding: str) -> None:
        super().__init__(facts, encoding)
        self.example = shlex.quote(json.dumps(dict.fromkeys(facts.feature_names, 0)))
        self.about = {"features": facts.feature_names}

    def each(self, paths: Sequence[Path], words: Sequence[str], note: Note) -> Iterator[One]:
        _refuse(words, "rows of numbers")
        for path in paths:
            if not path.is_file():
                raise ConfigError("", f"{path} is no file, and the model takes CSV files")
            try:  # other columns do not matter
                rows = as_tensor(tables.numbers(tables.frame(path), self.facts.feature_names, path))
            except ConfigError as error:
                raise ConfigError("", f"a table {error.problem}") from None
            for number, row in enumerate(rows, 1):
                yield {"table": path, "row": number}, row, (0, 0)

    def read(self, body: bytes) -> tuple[Tensor, Size]:
        """A JSON object of numbers by name, or a list of such."""
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
    """What a model is given that has learned of such data; refused where its tokenizer is not known or installed."""
    return _KINDS[facts.inputs](facts, encoding)


def _refuse(words: Sequence[str], takes: str) -> None:
    if words:
        raise ConfigError("text", f"is for models of texts, and this one takes {takes}")


def images(paths: Sequence[Path]) -> tuple[list[Path], str]:
    """The files that paths name: each file, and below each folder its images, sorted; what is left out, in words.

    Raises:
        ConfigError: naming a folder without images, or that cannot be read.
    """
    found: list[Path] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        try:
            found += sorted(map(Path, folders.images(path, left_out))) if path.is_dir() else [path]
        except OSError as error:
            raise ConfigError("", f"cannot read folder {error.filename}: {error.strerror}") from None
    return found, folders.in_words(left_out)


def sentences(paths: Sequence[Path], words: Sequence[str]) -> list[str]:
    """The texts that a model is to answer for: ``words``, and those of CSV, JSONL (column ``text``) or plain files.

    Raises:
        ConfigError: when a file cannot be read, a text is empty, or there is none.
    """
    if wrong := [text for text in words if not text.strip() or not tokens.is_unicode(text)]:
        raise ConfigError("text", f"must be a text in UTF-8, got {brief(wrong[0])}")
    found = list(words)
    for path in paths:
        try:
            if path.suffix == _LINES:
                # Not str.splitlines, for which a text may also end within a line, at a form feed or U+2028.
                found += filter(None, map(str.strip, path.read_text("utf-8-sig").split("\n")))
            elif path.suffix in texts.SUFFIXES:
                found += (text for (text,) in texts.rows(path, ("text",)))
            else:
                raise ConfigError("", f"must be {one_of([*texts.SUFFIXES, _LINES])}, got {path}")
        except (ValueError, OSError) as error:
            why = getattr(error, "problem", f"must be readable, in UTF-8, and {path} is not: {error}")
            raise ConfigError("", f"a file of texts {why}") from None
    if not found:
        raise ConfigError("", "there is no text to classify; give --text, or a file with at least one")
    return found


def places(found: Sequence[Path], given: Sequence[Path], out: Path | None, overwrite: bool = False) -> dict[Path, Path]:
    """The file of each image's mask: as the image is named, below the folder that was ``given``, but .png, in ``out``.

    Raises:
        ConfigError: when two have one file, or one is an image, or ``out`` has files and ``overwrite`` is not given.
    """
    out = out or Path("predicted_masks")
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise ConfigError("out", f"must be a new or an empty folder, and {out} has files; --overwrite replaces masks")
    roots, taken = [path for path in given if path.is_dir()], {image.resolve() for image in found}
    masks: dict[Path, Path] = {}
    for image in dict.fromkeys(found):
        root = next((path for path in roots if image.is_relative_to(path)), image.parent)
        mask = masks[image] = (out / image.relative_to(root)).with_suffix(".png")
        if mask.resolve() in taken:
            raise ConfigError("out", f"must have one file for each mask, and {mask} is another's, or an image")
        taken.add(mask.resolve())
    return masks


def write(path: Path, mask: bytes) -> None:
    """Write a mask whole, and the folders that it is in.

    Raises:
        ConfigError: when it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, mask)
    except OSError as error:
        raise ConfigError("out", f"must be a folder that can be written; {path}: {error.strerror}") from None
