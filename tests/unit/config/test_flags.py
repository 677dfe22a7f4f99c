"""A command is a function: its flags, its help and its values are those of its signature and docstring."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from cifar_ray.cli.train import sweep, train
from cifar_ray.config import flags
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.flags import Given, Of
from cifar_ray.config.keywords import checked, complete
from cifar_ray.config.schema import Count, Counts
from cifar_ray.config.train import TrainConfig


@dataclass(frozen=True)
class Shape:
    """A config."""

    fast_one: bool = False
    """Whether it is quick."""

    hidden: int = 1
    depth: Count = 2
    """How deep, at 100 % at most."""

    sizes: Counts = (1, 2)
    others: dict[str, Any] = field(default_factory=dict)


def show(
    run: str,
    *images: Path,
    name: str,
    mode: Literal["a", "b"] = "a",
    count: Count | None = None,
    loud: bool = False,
    seed: int = 0,
    options: Annotated[Given, Of(Shape, without=("hidden",))],
) -> tuple[Any, ...]:
    """Show images.

    Examples:
        cifar-ray show one

    Args:
        run: The run.
        images: Images of
            any size.
        loud: Say more.
    """
    return run, images, name, mode, count, loud, options


def test_only_what_is_given_is_there_as_text() -> None:
    words = ["--count=7", "r", "--fast-one", "--sizes", "4", "5", "--name", "n", "x.png", "--mode", "b", "y.png"]
    assert flags.parse(show, [*words, "--others.some-one", "3"], "show") == {
        **{"run": "r", "images": ["x.png", "y.png"], "name": "n", "count": "7", "fast_one": True, "mode": "b"},
        **{"sizes": ["4", "5"], "others": {"some_one": "3"}},
    }
    assert flags.parse(show, ["r", "--name=a=b", "--no-fast-one", "--count", "-1", "--", "i", "--x"], "show") == {
        **{"run": "r", "images": ["i", "--x"], "name": "a=b", "fast_one": False, "count": "-1"}
    }
    assert flags.parse(Shape, ["--depth", "3", "--others.kind", "4"], "show") == {"depth": "3", "others": {"kind": "4"}}


def test_words_become_the_arguments_of_the_command() -> None:
    words = ["r", "x.png", "--name", "n", "--count", "3", "--loud", "--others.kind", "4"]
    given = {"others": {"kind": "4"}}
    assert flags.call(show, words, "show") == ("r", (Path("x.png"),), "n", "a", 3, True, given)
    assert flags.call(show, ["r", "--name", "n"], "show") == ("r", (), "n", "a", None, False, {})


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("r i --name n --nmae=y", "unknown flag --nmae; did you mean --name?"),
        ("r i --name n --hidden 3", "unknown flag --hidden"),
        ("r i --name n --no-loud", "unknown flag --no-loud; did you mean --loud?"),
        ("r i --name n --count --mode a", "--count: expected one argument; "),
        ("r i --name n --count ten", "--count must be a whole number, got 'ten'"),
        ("r i --name n --mode c", "--mode must be a or b, got 'c'"),
        ("r i --name n -x", "unexpected word '-x'"),
        ("--name n", "run must be given; "),
        ("r i", "--name must be given; "),
    ],
)
def test_a_mistake_in_flags_is_one_sentence(words: str, begins: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flags.call(show, words.split(), "show")
    assert caught.value.as_flag().startswith(begins)


def helped(command: Any, word: str, capsys: pytest.CaptureFixture[str], name: str = "show") -> str:
    with pytest.raises(SystemExit) as stopped:
        flags.parse(command, ["r", word], f"cifar-ray {name}")
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_the_help_is_made_of_the_signature_and_the_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(helped(show, "-h", capsys).split())
    assert text == " ".join(helped(show, "--help", capsys).split())
    assert text.startswith("usage: cifar-ray show RUN IMAGES ... [OPTIONS] Show images. cifar-ray show one ")
    for part in (
        *("images Images of any size.", "--mode NAME One of a or b. (default: a)", "--loud Say more."),
        "--seed INT Seed of ",  # as a run's
        "--fast-one, --no-fast-one Whether it is quick. (default: off)",
        *("--depth INT How deep, at 100 % at most. (default: 2)", "--sizes INT [INT ...] (default: 1 2)"),
    ):
        assert part in text


@checked
def measured(*runs: str, digits: Count = 3) -> tuple[tuple[str, ...], int]:
    """Measure runs.

    Args:
        runs: Names of runs.
        digits: Digits to show.
    """
    return runs, digits


def measure(*runs: str, json: bool = False, options: Annotated[Given, Of(measured)]) -> Any:
    """Measure runs, and print it."""
    return json, measured(*runs, **options)


def test_a_keyword_of_a_function_is_a_flag_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    """To add one takes the keyword and a line of the docstring."""
    assert "--digits INT Digits to show. (default: 3)" in " ".join(helped(measure, "--help", capsys).split())
    assert flags.call(measure, ["a", "b", "--json", "--digits", "5"], "show") == (True, (("a", "b"), 5))
    assert measured("a", digits=5) == (("a",), 5)
    for call in (lambda: flags.call(measure, ["a", "--digits", "0"], "show"), lambda: measured("a", digits=0)):
        with pytest.raises(ConfigError, match=r"^digits must be at least 1, got 0$"):
            call()
    for nothing in (measured, lambda: flags.call(measure, [], "show")):
        with pytest.raises(ConfigError, match=r"^(runs|RUNS) must be given, one or more$"):
            nothing()


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("command", [train, sweep])
def test_the_help_of_a_run_has_every_option_at_every_width(
    command: Any, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = helped(command, "--help-all", capsys)
    assert max(map(len, text.splitlines())) <= min(columns, 100)
    usual = helped(command, "--help", capsys)
    assert all(f"--{name.replace('_', '-')} " in usual for name in command.usual if name not in ("file", "config"))
    for one in fields(TrainConfig):
        assert (
            one.metadata["recorded"]
            or one.name in ("elastic", "run_name")
            or f"  --{one.name.replace('_', '-')}" in text
        )
    words = " ".join(text.split())
    assert "Size of DDP's gradient buckets in MiB. Only with --strategy ddp. (default: 25)" in words
    assert not [word for word in ("None", "True", "False") if word in words]


def test_a_default_that_a_file_would_change_is_left_to_the_function() -> None:
    """A run's file gives each option back as it was, or does not have it."""

    def build(side: int, *, tag: str = "1", most: float = float("inf"), pairs: Any = ((1, 2),), width: int = 4) -> None:
        pass

    assert complete("model_options", "build", build, 1, {}) == {"pairs": ((1, 2),), "width": 4}


@pytest.mark.parametrize("given", ["3,4", "3 4", [3, 4]])
def test_words_are_several_values_where_the_keyword_takes_several(given: Any) -> None:
    def build(side: int, *, sizes: tuple[int, ...] = (8,), plain=(8,), text: str = "") -> None:  # type: ignore[no-untyped-def]
        pass

    values = {"sizes": (3, 4), "plain": (3, 4), "text": ""}
    assert complete("model_options", "build", build, 1, {"sizes": given, "plain": given}) == values
    assert complete("model_options", "build", build, 1, {"sizes": 3, "text": "3 4"})["sizes"] == (3,)
