"""Texts with the names of their classes, ``--dataset text:PATH``.

PATH is a folder with train.csv, test.csv and perhaps val.csv, or .jsonl files, with ``text`` and ``label`` in each row;
or one such file, of which ``--test-share`` is kept for the test. The classes are the training labels, sorted.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cifar_ray.config.errors import brief, counted, some
from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, decoded, tables, tokens
from cifar_ray.data.datasets import Dataset, Split, unusable
from cifar_ray.data.source import Files, Part

SUFFIXES = (".csv", ".jsonl")


class Texts(Files):
    """Files of texts by class; a sample is a text."""

    kind = "tokens"

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        tokens.library()
        self.options = tokens.complete(config)
        self.parts = {}
        for part, path in self.paths(*SUFFIXES).items():  # that to train with is the first
            texts, labels = zip(*((text, label.strip()) for text, label in rows(path)))
            if part == "train":
                self.classes = tuple(sorted({*labels}))
            if len(self.classes) < 2 or not {*labels} <= {*self.classes}:
                has = some(sorted({*labels} - {*self.classes} or {*labels}))
                raise unusable(f"must have two classes or more, and no others than to train on, and {path} has {has}")
            numbers = {name: number for number, name in enumerate(self.classes)}
            self.parts[part] = Part([*texts], np.array([numbers[label] for label in labels]))

    def keys(self, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        """The texts."""
        return [text.encode() for text in self.parts["train"].samples]

    def contents(self) -> Sequence[Hashable]:
        """The texts as the model sees them."""
        return [unicodedata.normalize("NFC", text).strip().lower() for text in self.parts["train"].samples]

    def look(self, config: TrainConfig) -> Facts:
        """The facts, as far as they are known without a tokenizer."""
        shape, vocabulary = (self.options["max_length"],), self.options["vocabulary"]
        return replace(super().look(config), inputs="tokens", shape=shape, vocabulary=vocabulary)

    def load(self, config: TrainConfig, progress: decoded.Progress, encoding: str) -> Dataset:
        """The texts as tokens, by the tokenizer ``encoding`` or one that the training texts give."""
        length, cut, splits = self.options["max_length"], 0, {}
        encoding = encoding or tokens.train([*self.parts["train"].samples], **self.options)
        for name, part in self.parts.items():
            encoded, longer = tokens.encode(encoding, [*part.samples], length)
            splits[name] = Split({"tokens": encoded, "labels": part.targets})
            cut += longer
        facts = arrays.facts_of(config.dataset, splits, self.classes)
        digest = hashlib.sha256(f"{facts.digest} {encoding}".encode()).hexdigest()[:16]
        facts = replace(facts, vocabulary=self.options["vocabulary"], digest=digest)
        words = f"{counted(cut, 'text')} longer than {length:,} tokens, cut there" if cut else ""
        return replace(arrays.made(config.dataset, splits, facts), left_out=words, encoding=encoding)


SOURCE = Texts


def rows(path: Path, columns: Sequence[str] = ("text", "label")) -> list[tuple[str, ...]]:
    """The texts, and their labels, of every row of a CSV or JSONL file; a refusal names the first row without."""
    made = []
    for number, row in enumerate(tables.cells(tables.frame(path), columns, path).tolist(), 1):
        made.append(tuple(str(cell) if isinstance(cell, str | int) else "" for cell in row))
        if not all(map(str.strip, made[-1])):
            raise unusable(f"must have {' and '.join(columns)} in each row; {path} has {brief(row)} in row {number}")
    return made
