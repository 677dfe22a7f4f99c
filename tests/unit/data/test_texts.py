"""Files of texts, what is refused of them, and the tokenizer, which is the same every time."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from cifar_ray import data
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import tokens
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


COLUMNS, CSV = "must have each column once, with a name, and {} has", "must be CSV or JSONL in UTF-8, and {} is not: "
CLASSES = "must have two classes or more, and no others than to train on, and {} has"
BAD = {
    "no column": ("train.csv", "text,class\nx,good\n", f"{COLUMNS} 0 named 'label'"),
    "empty text": ("train.csv", 'text,label\nx,good\n"  \n ",bad\n', "{} has [' \\n ', 'bad'] in row 2"),
    "one class": ("train.csv", "text,label\nx,good\ny,good\n", f"{CLASSES} good"),
    "class of the test alone": ("test.jsonl", '{"text": "x", "label": "odd"}', f"{CLASSES} odd"),
    "malformed line": ("train.jsonl", '{"text": "x", "label": "a"}\n{"text": "y", \n', CSV),
    "list for object": ("train.jsonl", '["x", "a"]', f"{COLUMNS} 0 named 'text'"),
    "open quote": ("train.csv", 'text,label\n"x,good\n', CSV),
    "a cell too few": ("train.csv", "text,label\nx\n", "{} has ['x', ''] in row 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_learned_from_is_refused(case: str, root: Path) -> None:
    name, content, sentence = BAD[case]
    if name == "train.jsonl":
        (root / "train.csv").unlink()
    path = root / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as refused:
        listed(root)
    assert (refused.value.key, sentence.format(path) in str(refused.value)) == ("dataset", True)


def test_one_file_gives_a_share_for_the_test_and_equal_texts_stay_together(tmp_path: Path) -> None:
    rows = [(f"text {number % 30}", "good" if number % 2 else "bad") for number in range(60)]
    write(tmp_path / "reviews.csv", rows)
    write(tmp_path / "reviews.jsonl", rows[::-1])
    parts = listed(tmp_path / "reviews.csv", 0.2, 0.2).parts
    assert {part: len(each.samples) for part, each in parts.items()} == {"train": 36, "test": 12, "val": 12}
    assert len({text for each in parts.values() for text in set(each.samples)}) == 30
    assert sum(len(set(each.samples)) for each in parts.values()) == 30
    turned = listed(tmp_path / "reviews.jsonl", 0.2, 0.2).parts
    assert all(set(turned[part].samples) == set(each.samples) for part, each in parts.items())
    assert sorted(parts["val"].targets.tolist()) == [0] * 6 + [1] * 6
    shouted = [(f"{text.upper()} " if at > 29 else text, label) for at, (text, label) in enumerate(rows)]
    write(tmp_path / "loud.csv", shouted)
    loud = listed(tmp_path / "loud.csv", 0.2, 0.2).parts.values()  # capitals and spaces are nothing to the model
    assert sum(len({text.strip().lower() for text in each.samples}) for each in loud) == 30
    for name, sentence in (
        ("reviews.csv", "^test_share must be given"),
        ("none.csv", f"^{FILES} .*none.csv is not there"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            listed(tmp_path / name)


FILES = "dataset must be a file, or have train.csv or train.jsonl and one file of each part, and"


def test_each_part_is_one_file_and_there_is_a_test(root: Path) -> None:
    write(root / "train.jsonl", ROWS)
    write(root / "val.csv", ROWS)
    for unlinked, sentence in (
        ("val.csv", FILES),  # two files of training
        ("train.jsonl", ""),
        ("test.jsonl", "test_share must be given"),
        ("train.csv", FILES),
    ):
        (root / unlinked).unlink()
        with pytest.raises(ConfigError, match=f"^{sentence}") if sentence else contextlib.nullcontext():
            listed(root)


def test_validation_is_a_file_or_a_share(root: Path) -> None:
    write(root / "val.csv", ROWS)
    with pytest.raises(ConfigError, match=r"^val_share is for data without validation samples"):
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
        ("a.csv", "words\nx\n", "a file of texts must have each column once, .* 0 named 'text'"),
        ("a.jsonl", '{"text": " "}', r"a file of texts must have text in each row; .* has \[' '\] in row 1"),
        ("a.jsonl", "text", "a file of texts must be CSV or JSONL in UTF-8"),
        ("a.txt", b"one\n\xff", "a file of texts must be readable, in UTF-8"),
        ("a.txt", "\n", "there is no text to classify"),
        ("a.png", "x", "a file of texts must be .csv, .jsonl or .txt"),
    ],
)
def test_a_file_without_texts_is_refused(name: str, content: str | bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        given.sentences([path], [])


@pytest.mark.parametrize("text", [" ", "x\udcff"])
def test_what_is_no_text_to_answer_for_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^text must be a text in UTF-8, got "):
        given.sentences([], ["x", text])


TEXTS = [
    f"The {kind} film number {number} was {mood}."
    for number in range(30)
    for kind, mood in (("new", "good"), ("OLD", "bad"))
]
OPTIONS = {"vocabulary": 320, "max_length": 24}


def test_training_gives_the_same_tokenizer_in_every_process() -> None:
    program = (
        "import hashlib; from cifar_ray.data import tokens\n"
        f"print(hashlib.sha256(tokens.train({TEXTS}, **{OPTIONS}).encode()).hexdigest())"
    )
    env = {**os.environ, "RAYON_NUM_THREADS": "3"}
    other = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == hashlib.sha256(tokens.train(TEXTS, **OPTIONS).encode()).hexdigest()


def test_any_text_becomes_tokens_of_the_vocabulary_and_is_read_back() -> None:
    tokenizer = tokens.train(TEXTS, **OPTIONS)
    texts = ["The new film was GOOD.", "nai\u0308ve 漢字 🙂", "[PAD] <pad> \x00"]
    rows, cut = tokens.encode(tokenizer, texts, 24)
    assert (rows.dtype, rows.shape, cut) == (np.int32, (3, 24), 0)
    assert 0 < rows.max() < 320
    for text, row, length in zip(texts, rows, tokens.lengths(rows)):
        assert (row[:length] > 0).all()
        assert (row[length:] == tokens.PADDING).all()
        assert tokens.decode(tokenizer, row) == unicodedata.normalize("NFC", text.lower())


def test_frequent_pieces_are_one_token_and_a_long_text_is_cut_and_counted() -> None:
    tokenizer = tokens.train(TEXTS, **OPTIONS)
    rows, cut = tokens.encode(tokenizer, ["the film was good", "film " * 40, "zq"], 24)
    assert tokens.lengths(rows).tolist() == [4, 24, 3]
    assert cut == 1


def test_a_word_without_end_is_learned_in_parts() -> None:
    tokenizer = tokens.train(["acgt" * 500] * 500, **OPTIONS)
    assert max(map(len, json.loads(tokenizer)["model"]["vocab"])) == 256


def test_texts_are_padded_to_few_lengths_and_by_a_third_at_most() -> None:
    rows = np.zeros((100, 100), dtype=np.int32)
    for length, row in enumerate(rows, 1):
        row[:length] = 1
    widths = tokens.widths(rows)
    assert sorted(set(widths.tolist())) == [16, 24, 32, 48, 64, 96, 100]
    assert (widths >= tokens.lengths(rows)).all()
    assert (widths[16:] < 1.5 * tokens.lengths(rows)[16:]).all()
    assert tokens.widths(rows[:5, :10]).tolist() == [10] * 5


def test_texts_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"^dataset needs tokenizers"):
        tokens.library()


def test_a_vocabulary_has_room_for_every_byte() -> None:
    with pytest.raises(ConfigError, match=r"^text.vocabulary must be at least 257"):
        tokens.complete(TrainConfig(dataset="text:reviews", text={"vocabulary": 100}))
