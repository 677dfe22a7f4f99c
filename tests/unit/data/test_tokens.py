"""The tokenizer of texts: learned of the training texts alone, the same every time, and without unknown characters."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import tokens

TEXTS = [
    f"The {kind} film number {number} was {mood}."
    for number in range(30)
    for kind, mood in (("new", "good"), ("OLD", "bad"))
]
OPTIONS = {"vocabulary": 320, "max_length": 24}


def test_training_gives_the_same_tokenizer_in_every_process() -> None:
    program = (
        "import hashlib; from tests.unit.data.test_tokens import OPTIONS, TEXTS; from cifar_ray.data import tokens\n"
        "print(hashlib.sha256(tokens.train(TEXTS, **OPTIONS).encode()).hexdigest())"
    )
    env = {**os.environ, "RAYON_NUM_THREADS": "3"}
    other = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == hashlib.sha256(tokens.train(TEXTS, **OPTIONS).encode()).hexdigest()


def test_any_text_becomes_tokens_of_the_vocabulary_and_is_read_back() -> None:
    tokenizer = tokens.train(TEXTS, **OPTIONS)
    texts = ["The new film was GOOD.", "naïve 漢字 🙂", "[PAD] <pad> \x00"]
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
    tokenizer = tokens.train(["acgt" * 1000] * 1500, **OPTIONS)
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
    with pytest.raises(ConfigError, match=r"dataset needs tokenizers; .* `pip install 'cifar-ray\[text\]'`"):
        tokens.library()


def test_a_vocabulary_has_room_for_every_byte() -> None:
    with pytest.raises(ConfigError, match=r"^text.vocabulary must be at least 257, got 100$"):
        tokens.complete(TrainConfig(dataset="text:reviews", text={"vocabulary": 100}))
