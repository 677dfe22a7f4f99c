"""Texts with the names of their classes, ``--dataset text:PATH``.

PATH is a folder with train.csv and test.csv, and perhaps val.csv, each with the columns ``text`` and ``label`` under a
header; or with train.jsonl and so on, with a JSON object on each line. Or it is one such file, of which
``--test-share`` is kept for the test. Other columns are not read. The classes are the training labels, sorted.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cifar_ray.config.errors import ConfigError, brief, counted, first_line, some
from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, decoded, tables, tokens
from cifar_ray.data.datasets import Dataset, Split, unusable
from cifar_ray.data.source import PARTS, Files, Found, Part

SUFFIXES = (".csv", ".jsonl")
"""Ends of the names of files of texts."""


@dataclass(frozen=True)
class Texts(Files):
    """Files of texts by class."""

    def find(self) -> Found:
        tokens.check_installed()
        paths = self.parts(*SUFFIXES)
        of = {part: rows(path) for part, path in paths.items()}
        classes = sorted({label for _, label in of["train"]})
        if len(classes) < 2:
            has = f"all labels of {paths['train']} are {brief(classes[0])}"
            raise unusable(f"must have at least two classes, and {has}")
        numbers = {name: number for number, name in enumerate(classes)}
        for part, path in paths.items():
            if unknown := next((label for _, label in of[part] if label not in numbers), None):
                where = f"{brief(unknown)} is in {path} and not in {paths['train']}"
                raise unusable(f"must have the same classes in all files; {where}")
        parts = {
            part: Part([text for text, _ in every], np.array([numbers[label] for _, label in every], dtype=np.int64))
            for part, every in of.items()
        }
        return Found(tuple(classes), parts, kind="tokens")

    def keys(self, part: Part, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        return [text.encode() for text in part.samples]

    def contents(self, part: Part) -> Sequence[Hashable]:
        return [unicodedata.normalize("NFC", text).strip().lower() for text in part.samples]  # as the model sees them

    def look(self, config: TrainConfig, found: Found) -> Facts:
        train, test, val = (len(found.parts.get(name, ())) for name in PARTS)
        shape, vocabulary = (config.text.max_length,), config.text.vocabulary
        return Facts(len(found.classes), train, test, val, "tokens", shape, vocabulary=vocabulary)

    def load(self, config: TrainConfig, found: Found, progress: decoded.Progress, encoding: str) -> Dataset:
        """The texts as tokens, by the tokenizer ``encoding`` or one that the training texts give.

        ``progress`` counts texts that are read for a tokenizer, and then those of each part as they become tokens.
        """
        length, cut, splits = config.text.max_length, 0, {}
        count = sum(map(len, found.parts.values()))
        what = f"its {count:,} texts of {length:,} tokens"
        decoded.check_memory(config, "text.max_length", 4 * count * length, what)  # int32
        encoding = encoding or tokens.train([*found.parts["train"].samples], config.text, progress)
        for name, part in found.parts.items():
            rows, longer = tokens.encode(encoding, [*part.samples], length, progress)
            splits[name] = Split({"tokens": rows, "labels": part.targets})
            cut += longer
        facts = arrays.facts_of(config.dataset, splits, found.classes)
        digest = hashlib.sha256(f"{facts.digest} {encoding}".encode()).hexdigest()[:16]
        facts = replace(facts, vocabulary=config.text.vocabulary, digest=digest)
        made = arrays.made(config.dataset, splits, facts)
        words = f"{counted(cut, 'text')} longer than {length:,} tokens, cut there" if cut else ""
        return replace(made, left_out=words, encoding=encoding)


def rows(path: Path, columns: Sequence[str] = ("text", "label")) -> list[tuple[str, ...]]:
    """The texts, and their labels, of every row of a CSV or JSONL file.

    Raises:
        ConfigError: when it is no such file, or a row has no text or no label.
    """
    import pandas as pd

    try:
        if path.suffix == ".jsonl":
            # So that whole numbers stay such beside a row without one.
            found = pd.read_json(path, lines=True, dtype=False, dtype_backend="numpy_nullable", encoding="utf-8-sig")
        else:
            found = tables.frame(path, columns)
    except ConfigError:
        raise
    except ValueError as error:
        raise unusable(f"must have a JSON object on each line, and {path} has not ({first_line(error)})") from None
    if found.empty:
        raise unusable(f"must have rows, and {path} has none")
    if lacking := next((name for name in columns if name not in found), ""):
        raise unusable(f"must have the column {lacking}, and {path} has not")
    every = list(zip(*(found[name].tolist() for name in columns)))
    if "label" in columns:  # which may be whole numbers
        every = [(text, str(label) if isinstance(label, int) else label) for text, label in every]
    for number, row in enumerate(every, 1):
        if not all(isinstance(cell, str) and cell.strip() for cell in row):
            cells = ["nothing" if cell is pd.NA else brief(cell) for cell in row]
            has = f"{path} has {some(cells)} in row {number}"
            raise unusable(f"must have a {' and a '.join(columns)} in each row, and {has}")
    return [(text, *map(str.strip, label)) for text, *label in every]
