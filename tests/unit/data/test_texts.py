"""Files of texts: what is read of them, and what is refused in a sentence that names the file and the line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cifar_ray import data
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.source import Source
from cifar_ray.runs import given

ROWS = [("A fine film.", "good"), ("It drags,\nand drags.", "bad"), ('He said "no".', "bad"), ("Ünusual 🙂", "good")]


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file).writerows([("label", "text"), *((label, text) for text, label in rows)])
    else:
        path.write_text("".join(json.dumps({"text": text, "label": label, "more": 1}) + "\n" for text, label in rows))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "test.jsonl", ROWS[:2])
    return tmp_path


def listed(root: Path, val_share: float = 0.0, test_share: float = 0.0) -> Source:
    return data.find(TrainConfig(dataset=f"text:{root}", val_share=val_share, test_share=test_share))


def test_csv_and_jsonl_are_the_same_texts(root: Path) -> None:
    write(root / "val.csv", ROWS[1:])
    found = listed(root)
    assert found.classes == ("bad", "good")
    assert list(zip(found.parts["train"].samples, found.parts["train"].targets.tolist())) == [
        (text, ("bad", "good").index(label)) for text, label in ROWS
    ]
    assert found.parts["test"].samples == [text for text, _ in ROWS[:2]]
    assert found.parts["val"].targets.tolist() == [0, 0, 1]


def test_labels_may_be_whole_numbers_and_other_lines_may_be_empty(root: Path) -> None:
    (root / "train.csv").unlink()
    (root / "train.jsonl").write_text('{"text": "one", "label": 1}\n\n{"text": "two", "label": 0}\n')
    (root / "test.jsonl").write_text('{"text": "three", "label": "1"}')
    found = listed(root)
    assert (found.classes, found.parts["test"].targets.tolist()) == (("0", "1"), [1])


def test_a_share_for_validation_leaves_equal_texts_together(root: Path) -> None:
    rows = [(f"text {number % 30}", "good" if number % 2 else "bad") for number in range(60)]
    write(root / "train.csv", rows)
    parts = listed(root, val_share=0.2).parts
    assert not set(parts["train"].samples) & set(parts["val"].samples)
    assert (len(parts["train"].samples), len(parts["val"].samples)) == (48, 12)
    assert sorted(parts["val"].targets.tolist()) == [0] * 6 + [1] * 6
    write(root / "train.csv", rows[::-1])
    assert set(listed(root, val_share=0.2).parts["val"].samples) == set(parts["val"].samples)


BAD = {
    "no column": ("train.csv", "text,class\nx,good\n", "must have each column once, with a name, and {} has 0 named 'label'"),
    "no column in JSON": ("train.jsonl", '{"label": "a"}', "must have each column once, with a name, and {} has 0 named 'text'"),
    "empty text": ("train.csv", 'text,label\nx,good\n"  \n ",bad\n', "must have text and label in each row; {} has [' \\n ', 'bad'] in row 2"),
    "no label": ("train.jsonl", '{"text": "x", "label": null}', "in each row; {} has ['x', <NA>] in row 1"),
    "not UTF-8": ("train.csv", b"text,label\nx,good\n\xe9t\xe9,bad\n", "must be CSV or JSONL in UTF-8, and {} is not: 'utf-8' codec can't decode"),
    "one class": ("train.csv", "text,label\nx,good\ny,good\n", "must have two classes or more, and no others than to train on, and {} has good"),
    "class of the test alone": ("test.jsonl", '{"text": "x", "label": "odd"}', "must have two classes or more, and no others than to train on, and {} has odd"),
    "malformed line": ("train.jsonl", '{"text": "x", "label": "a"}\n{"text": "y", \n', "must be CSV or JSONL in UTF-8, and {} is not: Expected object or value at position "),
    "list for object": ("train.jsonl", '["x", "a"]', "must have each column once, with a name, and {} has 0 named 'text'"),
    "cells": ("train.csv", "text,label\nx,y,good\n", "must be CSV or JSONL in UTF-8, and {} is not: Error tokenizing data. C error: Expected 2 fields in line 2, saw 3"),
    "open quote": ("train.csv", 'text,label\n"x,good\n', "must be CSV or JSONL in UTF-8, and {} is not: Error tokenizing data. C error: EOF inside string starting at row 1"),
    "nothing": ("train.csv", "", "must be CSV or JSONL in UTF-8, and {} is not: No columns to parse from file"),
    "a cell too few": ("train.csv", "text,label\nx\n", "in each row; {} has ['x', ''] in row 1"),
    "a column twice": ("train.csv", "text,text,label\nx,y,good\n", "must have each column once, with a name, and {} has 2 named 'text'"),
    "header alone": ("test.jsonl", "\n", "{} is not: there are no rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_learned_from_is_refused(case: str, root: Path) -> None:
    name, content, sentence = BAD[case]
    if name == "train.jsonl":
        (root / "train.csv").unlink()
    path = root / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as refused:
        listed(root)
    assert str(refused.value).startswith("dataset must ")
    assert sentence.format(path) in str(refused.value)


def test_one_file_gives_a_share_for_the_test_and_equal_texts_stay_together(tmp_path: Path) -> None:
    rows = [(f"text {number % 30}", "good" if number % 2 else "bad") for number in range(60)]
    write(tmp_path / "reviews.csv", rows)
    write(tmp_path / "reviews.jsonl", rows)
    parts = listed(tmp_path / "reviews.csv", 0.2, 0.2).parts
    assert {part: len(each.samples) for part, each in parts.items()} == {"train": 36, "test": 12, "val": 12}
    assert len({text for each in parts.values() for text in set(each.samples)}) == 30
    assert sum(len(set(each.samples)) for each in parts.values()) == 30
    assert listed(tmp_path / "reviews.jsonl", 0.2, 0.2).parts["test"].samples == parts["test"].samples
    write(
        tmp_path / "loud.csv",
        [(f"{text.upper()} " if at > 29 else text, label) for at, (text, label) in enumerate(rows)],
    )
    loud = listed(tmp_path / "loud.csv", 0.2, 0.2).parts.values()  # capitals and spaces are nothing to the model
    assert sum(len({text.strip().lower() for text in each.samples}) for each in loud) == 30
    with pytest.raises(ConfigError, match=r"test_share must be given, such as 0.2, .* and text:.*reviews.csv has none"):
        listed(tmp_path / "reviews.csv")
    rule = (
        r"dataset must be a file, or have train.csv or train.jsonl and one file of each part, and .*none\.csv has not"
    )
    with pytest.raises(ConfigError, match=f"^{rule}$"):
        listed(tmp_path / "none.csv")


def test_each_part_is_one_file_and_there_is_a_test(root: Path) -> None:
    write(root / "train.jsonl", ROWS)
    with pytest.raises(
        ConfigError, match=r"or have train.csv or train.jsonl and one file of each part, and .* has not"
    ):
        listed(root)
    (root / "train.jsonl").unlink()
    (root / "test.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"test_share must be given, .* has none"):
        listed(root)
    (root / "train.csv").unlink()
    with pytest.raises(
        ConfigError, match=r"or have train.csv or train.jsonl and one file of each part, and .* has not"
    ):
        listed(root)


def test_validation_is_a_file_or_a_share(root: Path) -> None:
    write(root / "val.csv", ROWS)
    with pytest.raises(ConfigError, match=r"val_share is for data without validation samples, and text:.* has some"):
        listed(root, val_share=0.1)


def test_a_long_text_is_read_and_other_columns_may_have_any_names(root: Path) -> None:
    (root / "train.csv").write_text(f',x,x,text,label\n0,,,{"word " * 100_000},good\n1,,,"a\r\nb",bad\n', newline="")
    assert [len(text) for text in listed(root).parts["train"].samples] == [500_000, 4]


def test_texts_to_answer_for_are_words_columns_and_lines(root: Path) -> None:
    (root / "lines.txt").write_text("one\n\n  two \n3\u20283\n", encoding="utf-8")
    (root / "more.jsonl").write_text('{"text": "three"}\n')
    paths = [root / "lines.txt", root / "train.csv", root / "more.jsonl"]
    assert given.sentences(paths, ["zero"]) == ["zero", "one", "two", "3\u20283", *(text for text, _ in ROWS), "three"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "words\nx\n", "a file of texts must have each column once, with a name, and {} has 0 named 'text'"),
        ("a.jsonl", '{"text": " "}', "a file of texts must have text in each row; {} has [' '] in row 1"),
        (
            "a.jsonl",
            "text",
            "a file of texts must be CSV or JSONL in UTF-8, and {} is not: Unexpected ",
        ),
        (
            "a.txt",
            b"one\n\xff",
            "a file of texts must be readable, in UTF-8, and {} is not: 'utf-8' codec can't decode",
        ),
        ("a.txt", "\n", "there is no text to classify; give --text, or a file with at least one"),
        ("a.png", "x", "a file of texts must be .csv, .jsonl or .txt, got {}"),
    ],
)
def test_a_file_without_texts_to_answer_for_is_refused(
    name: str, content: str | bytes, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as refused:
        given.sentences([path], [])
    assert str(refused.value).startswith(sentence.format(path))
    with pytest.raises(ConfigError, match="text must be a text in UTF-8, got ' '"):
        given.sentences([], ["x", " "])
    with pytest.raises(ConfigError, match=r"text must be a text in UTF-8, got 'x\\udcff'"):
        given.sentences([], ["x\udcff"])
