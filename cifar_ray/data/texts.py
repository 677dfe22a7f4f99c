"""Texts with the names of their classes, ``--dataset text:PATH``.

PATH is a folder with train.csv and test.csv, and perhaps val.csv, each with the columns ``text`` and ``label`` under a
header; or with train.jsonl and so on, with a JSON object on each line. Or it is one such file, of which
``--test-share`` is kept for the test. Other columns are not read. The classes are the training labels, sorted.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cifar_ray.config.errors import ConfigError, brief, counted, one_of
from cifar_ray.config.sections import Images
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, decoded, folders, tables, tokens, validation
from cifar_ray.data.datasets import Dataset, Split, unusable

SUFFIXES = (".csv", ".jsonl")
LINES = ".txt"
"""Ends of the names of files of texts, and of those with a text on each line, which a model can answer for."""

_MOST_CLASSES, _FEWEST_OF_A_CLASS = 1_000, 10
"""Classes above which each must have so many training texts on average: labels that hardly repeat are something else,
such as a number of each text, and a confusion matrix has their square."""

_COLUMNS = ("text", "label")


@dataclass(frozen=True)
class Part:
    """Texts of one file, or of a share of it, with the numbers of their classes: int64, (N,)."""

    texts: tuple[str, ...]
    labels: np.ndarray


@dataclass(frozen=True)
class Listing:
    """All texts of a folder: the parts ``train``, ``test``, and ``val`` where there is validation."""

    classes: tuple[str, ...]
    parts: Mapping[str, Part]


def files(root: Path) -> dict[str, Path]:
    """The file of each part that a folder has; that to train with, where ``root`` is a file.

    Raises:
        ConfigError: when there is neither, or the folder has two files of one part, or none to train with.
    """
    if root.is_file() and root.suffix in SUFFIXES:
        return {"train": root}
    folders.check_there(root, f"a folder, or a {one_of(SUFFIXES)} file,")
    found: dict[str, Path] = {}
    for part in ("train", "test", "val"):
        paths = [path for suffix in SUFFIXES if (path := root / f"{part}{suffix}").is_file()]
        if len(paths) > 1:
            both = f"{paths[0].name} and {paths[1].name}"
            raise unusable(f"must have one file of each part, and {root} has {both}")
        if paths:
            found[part] = paths[0]
        elif part == "train":
            names = one_of(part + suffix for suffix in SUFFIXES)
            raise unusable(f"must have {names}, and {root} has none")
    return found


def look(config: TrainConfig, root: Path) -> Images:
    """What there is in the folder ``root``, without a tokenizer.

    Raises:
        ConfigError: when it cannot be learned from, or the library of tokenizers is not installed.
    """
    tokens.check_installed()
    found = listing(root, config.test_share, config.val_share or 0.0, stamp(root))
    counts = {part: len(each.texts) for part, each in found.parts.items()}
    return Images(
        len(found.classes),
        counts["train"],
        counts["test"],
        val=counts.get("val", 0),
        inputs="tokens",
        length=config.text.max_length,
        vocabulary=config.text.vocabulary,
    )


def load(config: TrainConfig, root: Path, progress: decoded.Progress, encoding: str = "") -> Dataset:
    """The texts of the folder ``root`` as tokens, by the tokenizer ``encoding`` or one that the training texts give.

    ``progress`` counts texts that are read for a tokenizer, and then those of each part as they become tokens.

    Raises:
        ConfigError: as :func:`look`.
    """
    found = listing(root, config.test_share, config.val_share or 0.0, stamp(root))
    length, cut, splits = config.text.max_length, 0, {}
    count = sum(len(part.texts) for part in found.parts.values())
    held, room = 4 * count * length, decoded.memory()  # int32
    if held > room:
        raise ConfigError(
            "text.max_length",
            f"must be smaller for {config.dataset}: its {count:,} texts of {length:,} tokens take "
            f"{held / 2**30:.1f} GiB, and {room / 2**30:.1f} GiB may be used here, half of the free memory",
        )
    encoding = encoding or tokens.train(found.parts["train"].texts, config.text, progress)
    for name, part in found.parts.items():
        rows, longer = tokens.encode(encoding, part.texts, length, progress)
        splits[name] = Split({"tokens": rows, "labels": part.labels})
        cut += longer
    listing.cache_clear()  # texts as strings take more memory than their tokens
    facts = arrays.facts_of(splits, len(found.classes))
    digest = hashlib.sha256(f"{facts.digest} {encoding}".encode()).hexdigest()[:16]
    facts = dataclasses.replace(facts, vocabulary=config.text.vocabulary, digest=digest)
    made = arrays.made(config.dataset, splits, found.classes, facts)
    words = f"{counted(cut, 'text')} longer than {length:,} tokens, cut there" if cut else ""
    return dataclasses.replace(made, left_out=words, encoding=encoding)


def stamp(root: Path) -> tuple[int, ...]:
    """What changes when a file of the folder does."""
    stats = [path.stat() for path in files(root).values()]
    return tuple(number for stat in stats for number in (stat.st_ctime_ns, stat.st_size))


@functools.lru_cache(maxsize=1)
def listing(root: Path, test_share: float, val_share: float, stamp: tuple[int, ...] = ()) -> Listing:
    """The texts of a folder or a file, in the order of their files; read again when ``stamp`` is another.

    Args:
        root: the folder, or the file.
        test_share: of each class's texts, for the test, by their SHA-256.
        val_share: of each class's training texts, for validation, likewise.
        stamp: of the folder.

    Raises:
        ConfigError: naming the file, and the line where there is one, that cannot be learned from.
    """
    found = files(root)
    if "val" in found and val_share:
        raise ConfigError("val_share", f"is for data without validation texts, and there is {found['val']}")
    if "test" not in found and not test_share:
        raise ConfigError("test_share", f"must be given, such as 0.2, for {root}, which has no texts for the test")
    if "test" in found and test_share:
        raise ConfigError("test_share", f"is for data without test texts, and there is {found['test']}")
    rows = {part: list(_rows(path)) for part, path in found.items()}
    for part, path in found.items():
        if not rows[part]:
            raise unusable(f"must have a text in {path}, which has none")
    classes = tuple(sorted({label for _, label in rows["train"]}))
    if len(classes) < 2:
        raise unusable(f"must have at least two classes, and all labels of {found['train']} are {brief(classes[0])}")
    texts = len(rows["train"])
    if len(classes) > _MOST_CLASSES and len(classes) > texts // _FEWEST_OF_A_CLASS:
        raise unusable(
            f"must have classes in the column label, and {found['train']} has {len(classes):,} different labels for "
            f"{texts:,} texts: above {_MOST_CLASSES:,}, a class must have {_FEWEST_OF_A_CLASS} texts on average"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    for part, path in found.items():
        if unknown := next((label for _, label in rows[part] if label not in numbers), None):
            raise unusable(
                f"must have the same classes in all files; {brief(unknown)} is in {path} and not in {found['train']}"
            )
    parts = {
        part: Part(tuple(text for text, _ in every), np.array([numbers[label] for _, label in every], dtype=np.int64))
        for part, every in rows.items()
    }
    for part, option, share in (("test", "test_share", test_share), ("val", "val_share", val_share)):
        if share:
            train = parts["train"]
            keys = [text.encode() for text in train.texts]
            same = [unicodedata.normalize("NFC", text).strip().lower() for text in train.texts]  # to the model
            kept = validation.rows(keys, same, train.labels, classes, share, option)
            parts |= {"train": _chosen(train, ~kept), part: _chosen(train, kept)}
    return Listing(classes, parts)


def _chosen(part: Part, rows: np.ndarray) -> Part:
    return Part(tuple(text for text, is_chosen in zip(part.texts, rows) if is_chosen), part.labels[rows])


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    """Text and label of every row of a file."""
    for where, row in records(path):
        if lacking := [name for name in _COLUMNS if name not in row]:
            raise unusable(f"must have the columns text and label, and {where} has no {lacking[0]}")
        label = row["label"]
        cells = {"text": row["text"], "label": str(label) if isinstance(label, int) else label}
        for name, value in cells.items():
            has = "" if isinstance(value, str) else f"{brief(value)} as {name}"
            if value is None or (not has and not value.strip()):
                has = f"an empty {name}"
            elif not has and not tokens.is_unicode(value):
                has = f"{brief(value)} as {name}, which is not Unicode"
            if has:
                raise unusable(f"must have a text and the name of its class in each row, and {where} has {has}")
        yield cells["text"], cells["label"].strip()


def records(path: Path, key: str = "dataset") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a file by column, each with its place in words: ``PATH, row 7``; of JSONL it is the line.

    Args:
        path: of a file whose name ends in one of :data:`SUFFIXES`.
        key: the option that a refusal names.

    Raises:
        ConfigError: when it cannot be read, is no UTF-8, or no such file.
    """
    yield from (_csv if path.suffix == ".csv" else _jsonl)(path, key)


def _content(path: Path, key: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(key, f"{_files(key)} be UTF-8, and {path}, line {line} is not") from None
    except OSError as error:
        raise _unreadable(path, key, error) from None


def _unreadable(path: Path, key: str, error: OSError) -> ConfigError:
    return ConfigError(key, f"{_files(key)} be readable, and {path} is not ({error.strerror})")


def _files(key: str) -> str:
    """How a rule begins where an option names files, and where none does."""
    return "must" if key else "files of texts must"


def check_given(paths: Sequence[Path]) -> None:
    """Refuse what is neither an image, or a folder of images, nor a file of texts; nothing is decoded.

    Raises:
        ConfigError: naming it.
    """
    of_texts = [path for path in paths if path.suffix in (*SUFFIXES, LINES)]
    if absent := next((path for path in of_texts if not path.is_file()), None):
        raise ConfigError("", f"there is no file {absent}")
    if images := [path for path in paths if path not in of_texts]:
        folders.given(images)


def given(paths: Sequence[Path], words: Sequence[str]) -> list[str]:
    """The texts that a model is to answer for: ``words``, and those of files.

    Args:
        paths: files of CSV or JSONL with a column ``text``, or of plain text with one on each line.
        words: texts themselves.

    Raises:
        ConfigError: when a file cannot be read, a text is empty, or there is none.
    """
    found = list(words)
    if "" in map(str.strip, words):
        raise ConfigError("text", "must not be empty")
    if broken := next((text for text in words if not tokens.is_unicode(text)), None):
        raise ConfigError("text", f"must be UTF-8, got {brief(broken)}")
    for path in paths:
        if path.suffix not in (*SUFFIXES, LINES):
            raise ConfigError("", f"a file of texts must be {one_of((*SUFFIXES, LINES))}, got {path}")
        if path.suffix == LINES:
            # Not str.splitlines, for which a text may also end within a line, at a form feed or U+2028.
            found += (line.strip() for line in _content(path, "").split("\n") if line.strip())
            continue
        for where, row in records(path, ""):
            text = row.get("text")
            if not isinstance(text, str) or not text.strip():
                raise ConfigError("", f"each row must have a text in its column text, and {where} has none")
            if not tokens.is_unicode(text):
                raise ConfigError("", f"texts must be Unicode, and {where} has {brief(text)}")
            found.append(text)
    if not found:
        raise ConfigError("", "there is no text to classify; give --text, or a file with at least one")
    return found


def _csv(path: Path, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        rows = tables.frame(path, _COLUMNS).fillna("")
    except ConfigError as error:
        raise ConfigError(key, error.problem if key else f"files of texts {error.problem}") from None
    except OSError as error:
        raise _unreadable(path, key, error) from None
    read = rows[[name for name in _COLUMNS if name in rows]].to_dict("records")
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(read, 1))


def _jsonl(path: Path, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for line, words in enumerate(_content(path, key).split("\n"), 1):
        if not words.strip():
            continue
        try:
            row = json.loads(words)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ConfigError(key, f"{_files(key)} have a JSON object on each line, and {path}, line {line} is none")
        yield f"{path}, line {line}", row
