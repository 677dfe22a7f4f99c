from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from cifar_ray.config import flags
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.flags import Positional
from cifar_ray.config.schema import Count, Counts


@dataclass(frozen=True)
class Inner:
    """Shape of the inside."""

    depth: Count = 2
    """How deep, at 100 % at most."""

    sizes: Counts = (1, 2)


@dataclass(frozen=True)
class Show:
    """Show images."""

    run: Positional[str]
    """The run."""

    images: Positional[tuple[Path, ...]]
    """Images of
    any size."""

    name: str
    mode: Literal["a", "b"] = "a"
    count: Count | None = None
    fast_one: bool = False
    """Whether it is quick."""

    inner: Inner = field(default_factory=Inner)


def test_only_what_is_given_is_there_as_text() -> None:
    words = ["--count=7", "r", "--fast-one", "--inner.sizes", "4", "5", "--name", "n", "x.png", "--mode", "b", "y.png"]
    assert flags.given(Show, words, "show") == {
        "run": "r",
        "images": ["x.png", "y.png"],
        "name": "n",
        "count": "7",
        "fast_one": True,
        "mode": "b",
        "inner": {"sizes": ["4", "5"]},
    }
    assert flags.given(Show, ["r", "i", "--name=a=b", "--no-fast_one", "--count", "-1"], "show") == {
        "run": "r",
        "images": ["i"],
        "name": "a=b",
        "fast_one": False,
        "count": "-1",
    }


def test_words_become_the_command() -> None:
    assert flags.read(Show, ["r", "x.png", "--name", "n", "--count", "3", "--inner.depth", "4"], "show") == Show(
        "r", (Path("x.png"),), "n", count=3, inner=Inner(depth=4)
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--nmae y", "unknown flag --nmae; did you mean --name?"),
        ("--nmae=y", "unknown flag --nmae; did you mean --name?"),
        ("--inner.size 3", "unknown flag --inner.size; did you mean --inner.sizes?"),
        ("--zzz r", "unknown flag --zzz"),
        ("--count", "--count: expected one argument; `cifar-ray show --help` tells what it takes"),
        ("--count --mode a", "--count: expected one argument; `cifar-ray show --help` tells what it takes"),
        ("--count ten", "--count must be a whole number, got 'ten'"),
        ("--inner.depth 0", "--inner.depth must be at least 1, got 0"),
        ("--mode c", "--mode must be a or b, got 'c'"),
        ("-x", "unexpected word '-x'"),
    ],
)
def test_a_mistake_in_flags_is_one_sentence(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flags.read(Show, ["r", "i", "--name", "n", *words.split()], "show")
    assert caught.value.as_flag() == sentence


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="the following arguments are required: images; `cifar-ray show --help`"):
        flags.read(Show, ["r", "--name", "n"], "show")
    with pytest.raises(ConfigError, match="the following arguments are required: --name; "):
        flags.read(Show, ["r", "i"], "show")


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_the_help_is_made_of_the_fields(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        flags.read(Show, ["r", word], "show")
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: cifar-ray show RUN IMAGES ... [OPTIONS] Show images.")
    for part in (
        "images Images of any size.",
        "--mode {a,b} (default: a)",
        "--fast-one, --no-fast-one Whether it is quick. (default: False)",
        "inner options: Shape of the inside. --inner.depth INT How deep, at 100 % at most. (default: 2)",
        "--inner.sizes INT [INT ...] (default: 1 2)",
    ):
        assert part in text
