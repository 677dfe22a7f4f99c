"""Texts as tokens: byte-pair encoding over bytes, learned of the training texts alone.

Source: Sennrich et al. 2016; over bytes, Radford et al. 2019. The library's other trainers differ between processes.
A token is the tokenizer's own number plus 1: 0 is padding, and no text can contain it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from cifar_ray.config import keywords
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import TEXT_PATH
from cifar_ray.config.schema import Count
from cifar_ray.config.train import TrainConfig

PADDING = 0
_AT_ONCE = 1024  # texts that are encoded together


def library() -> Any:
    """The module ``tokenizers``; a ConfigError names the extra where it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise ConfigError("dataset", "needs tokenizers; install it with `pip install 'cifar-ray[text]'`") from None
    return tokenizers


def is_unicode(text: str) -> bool:
    """Whether the library takes a text: JSON and a command line may have half of a surrogate pair."""
    return text.encode(errors="ignore").decode() == text


Vocabulary = Annotated[Count, Field(ge=257)]  # with 256 bytes, and padding


def train(texts: Sequence[str], *, vocabulary: Vocabulary = 8000, max_length: Count = 256) -> str:
    """A tokenizer of these texts as JSON, in the library's own format; equal texts give equal ones.

    The keywords are the options ``--text.vocabulary`` and ``--text.max-length``.
    """
    of = library()
    normalizers, words = of.normalizers, of.pre_tokenizers
    made = of.Tokenizer(of.models.BPE())
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip(), normalizers.Lowercase()])
    made.decoder = of.decoders.ByteLevel()
    whole = words.ByteLevel(add_prefix_space=True)
    # A word is learned in parts of 256 bytes: the time to learn one grows with its square.
    made.pre_tokenizer = words.Sequence([whole, words.Split(of.Regex(".{256}"), "isolated")])
    size, alphabet = vocabulary - 1, sorted(words.ByteLevel.alphabet())
    trainer = of.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    made.pre_tokenizer = whole
    made.enable_truncation(max_length)
    return str(made.to_str())


def complete(config: TrainConfig) -> dict[str, Any]:
    """The options of texts: those that are given, checked, and the defaults of the others."""
    return keywords.complete("text", TEXT_PATH, train, 1, config.text)


@functools.lru_cache(maxsize=4)
def _of(json: str) -> Any:
    return library().Tokenizer.from_str(json)


def encode(json: str, texts: Sequence[str], length: int) -> tuple[np.ndarray, int]:
    """Tokens of texts, cut at and padded to ``length``: int32, (N, length); and how many texts were cut."""
    rows, cut = np.full((len(texts), length), PADDING, dtype=np.int32), 0
    for begin in range(0, len(texts), _AT_ONCE):
        for row, encoding in zip(rows[begin:], _of(json).encode_batch([*texts[begin : begin + _AT_ONCE]])):
            row[: len(encoding.ids)] = np.add(encoding.ids, 1)
            cut += bool(encoding.overflowing)
    return rows, cut


def decode(json: str, row: np.ndarray) -> str:
    """The text of a row of tokens, as far as the model sees it: shortened, and in lower case where the tokenizer is."""
    return str(_of(json).decode((row[row != PADDING] - 1).tolist())).strip()


def lengths(rows: np.ndarray) -> np.ndarray:
    """Tokens of each row that are no padding: int64, (N,)."""
    return np.asarray((rows != PADDING).sum(1), dtype=np.int64)


def cut(rows: np.ndarray) -> np.ndarray:
    """Rows (N, length) as short as they can be padded together: int32, (N, their largest width)."""
    return np.ascontiguousarray(rows[:, : int(widths(rows).max())])


def widths(rows: np.ndarray) -> np.ndarray:
    """What each row is padded to at least, 16, 24, 32, 48, 64, ... or the length of all rows: int64, (N,)."""
    steps = 16 << np.arange(rows.shape[1].bit_length())
    known = np.unique(np.minimum([steps, steps * 3 // 2], rows.shape[1]))
    return known[np.searchsorted(known, lengths(rows))]
