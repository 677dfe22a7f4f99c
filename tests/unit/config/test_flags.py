"""A command is a function: its flags, its help and its values are those of its signature and docstring."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from cifar_ray.cli.report import compare
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
        "run": "r",
        "images": ["x.png", "y.png"],
        "name": "n",
        "count": "7",
        "fast_one": True,
        "mode": "b",
        "sizes": ["4", "5"],
        "others": {"some_one": "3"},
    }
    assert flags.parse(show, ["r", "--name=a=b", "--no-fast-one", "--count", "-1", "--", "i", "--x"], "show") == {
        "run": "r",
        "images": ["i", "--x"],
        "name": "a=b",
        "fast_one": False,
        "count": "-1",
    }
    assert flags.parse(Shape, ["--depth", "3", "--others.kind", "4"], "show") == {"depth": "3", "others": {"kind": "4"}}


def test_words_become_the_arguments_of_the_command() -> None:
    words = ["r", "x.png", "--name", "n", "--count", "3", "--loud", "--others.kind", "4"]
    given = {"others": {"kind": "4"}}
    assert flags.call(show, words, "show") == ("r", (Path("x.png"),), "n", "a", 3, True, given)
    assert flags.call(show, ["r", "--name", "n"], "show") == ("r", (), "n", "a", None, False, {})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--nmae y", "unknown flag --nmae; did you mean --name?"),
        ("--nmae=y", "unknown flag --nmae; did you mean --name?"),
        ("--size 3", "unknown flag --size; did you mean --sizes?"),
        ("--hidden 3", "unknown flag --hidden"),
        ("--zzz r", "unknown flag --zzz"),
        ("--no-loud", "unknown flag --no-loud; did you mean --loud?"),
        ("--count", "--count: expected one argument; `cifar-ray show --help` tells what it takes"),
        ("--count --mode a", "--count: expected one argument; `cifar-ray show --help` tells what it takes"),
        ("--count ten", "--count must be a whole number, got 'ten'"),
        ("--mode c", "--mode must be a or b, got 'c'"),
        ("-x", "unexpected word '-x'"),
    ],
)
def test_a_mistake_in_flags_is_one_sentence(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flags.call(show, ["r", "i", "--name", "n", *words.split()], "show")
    assert caught.value.as_flag() == sentence


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="run must be given; `cifar-ray show --help`"):
        flags.call(show, ["--name", "n"], "show")
    with pytest.raises(ConfigError, match="--name must be given; "):
        flags.call(show, ["r", "i"], "show")


def helped(command: Any, word: str, capsys: pytest.CaptureFixture[str], name: str = "show") -> str:
    with pytest.raises(SystemExit) as stopped:
        flags.parse(command, ["r", word], f"cifar-ray {name}")
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_the_help_is_made_of_the_signature_and_the_docstring(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(helped(show, word, capsys).split())
    assert text.startswith("usage: cifar-ray show RUN IMAGES ... [OPTIONS] Show images. cifar-ray show one ")
    for part in (
        "images Images of any size.",
        "--mode NAME One of a or b. (default: a)",
        "--loud Say more.",
        "--seed INT Seed of ",  # as a run's
        "--fast-one, --no-fast-one Whether it is quick. (default: off)",
        "--depth INT How deep, at 100 % at most. (default: 2)",
        "--sizes INT [INT ...] (default: 1 2)",
        "--others.NAME TEXT",
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


def test_a_keyword_of_a_function_is_a_flag_its_help_and_an_argument_from_python(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """To add one takes the keyword and a line of the docstring."""

    text = " ".join(helped(measure, "--help", capsys).split())
    assert "runs Names of runs." in text
    assert "--digits INT Digits to show. (default: 3)" in text
    assert flags.call(measure, ["a", "b", "--json", "--digits", "5"], "show") == (True, (("a", "b"), 5))
    assert measured("a", digits=5) == (("a",), 5)
    for call in (lambda: flags.call(measure, ["a", "--digits", "0"], "show"), lambda: measured("a", digits=0)):
        with pytest.raises(ConfigError, match=r"^digits must be at least 1, got 0$"):
            call()
    with pytest.raises(ConfigError, match=r"^runs must be given$"):
        measured()
    with pytest.raises(ConfigError, match=r"^RUNS must be given$"):
        flags.call(measure, [], "show")


@pytest.mark.parametrize("command", [train, sweep])
def test_the_help_is_three_examples_and_the_usual_ten_options(
    command: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    examples, options = re.split(
        r"\n(?:positional arguments|options):\n", helped(command, "--help", capsys), maxsplit=1
    )
    assert examples.count("\n  cifar-ray ") == 3
    shown = [name.replace("-", "_") for name in re.findall(r"^  (?:--)?([a-z][a-z-]*) ", options, flags=re.MULTILINE)]
    assert [name for name in shown if name != "help_all"] == list(command.usual)  # type: ignore[attr-defined]
    assert len(command.usual) == 10  # type: ignore[attr-defined]


@pytest.mark.parametrize("columns", [80, 100, 200])
@pytest.mark.parametrize("command", [train, sweep])
def test_the_help_of_a_run_is_in_columns_at_every_width(
    command: Any, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = helped(command, "--help-all", capsys).splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    options = [line for line in lines if line.startswith("  -")]
    assert len(options) > sum(not one.metadata["recorded"] for one in fields(TrainConfig))
    for line in options:  # what a long flag does stands below it
        flag = re.match(r"  \S+(?: \S+)*", line)
        assert flag is not None
        assert line == flag[0] if len(flag[0]) > 31 else line[31:33] == "  " and line[33] != " "


def test_the_help_of_a_run_groups_its_options_and_says_whose_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(train, "--help-all", capsys)
    titles = re.findall(r"^(\S.*):$", text, flags=re.MULTILINE)
    runs = ["Data", "Task", "Model", "Optimisation", "Batch", "Where it runs", "Strategy"]
    runs += ["Limits in time, money and patience", "Tracking"]
    assert [title for title in titles if not title.endswith("options")] == runs
    words = " ".join(text.split())
    for told in (
        "--image-size INT Side of the images in pixels: the shorter side is resized to it, and the centre is cropped. Only with --dataset folder:PATH, masks:PATH, coco:PATH, torchvision:NAME or table:PATH.",
        "--model-options.NAME TEXT Options of the model, such as --model-options.depth 4: `cifar-ray models NAME` lists",
        "Needs GPUs. Only with --strategy gather_scatter, send_recv, all_reduce, ddp or fsdp.",
        "--bucket-cap-mb FLOAT Size of DDP's gradient buckets in MiB. Only with --strategy ddp. (default: 25)",
        "--text.NAME TEXT Options of texts: --text.vocabulary (8000), the tokens that there are: ",
        "beyond which it is cut. Only with --dataset text:PATH.",
    ):
        assert told in words
    assert "None" not in words
    assert "True" not in words
    assert "False" not in words


def test_an_option_without_a_default_says_what_happens_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    said = re.split(r"\n  (?=--)", helped(TrainConfig, "--help", capsys))
    for one in fields(TrainConfig):
        if one.default is None and not one.metadata.get("recorded"):
            flag = f"--{one.name.replace('_', '-')} "
            (doc,) = (" ".join(part.split()) for part in said if part.startswith(flag))
            assert re.search(r"Default: |Default without either: |, else |in place of", doc), doc


def test_a_switch_has_no_opposite() -> None:
    assert flags.read(compare, ["a", "b", "--json"], "compare")["json"]
    with pytest.raises(ConfigError, match="unknown flag --no-json"):
        flags.read(compare, ["a", "b", "--no-json"], "compare")


def test_a_default_that_a_file_would_change_is_left_to_the_function() -> None:
    """A run's file gives each option back as it was, or does not have it."""

    def build(side: int, *, tag: str = "1", most: float = float("inf"), pairs: Any = ((1, 2),), width: int = 4) -> None:
        pass

    assert complete("model_options", "build", build, 1, {}) == {"pairs": ((1, 2),), "width": 4}


@pytest.mark.parametrize("given", ["3,4", "3 4", [3, 4], (3, 4)])
def test_words_are_several_values_where_the_keyword_takes_several(given: Any) -> None:
    def build(side: int, *, sizes: tuple[int, ...] = (8,), plain=(8,), text: str = "") -> None:  # type: ignore[no-untyped-def]
        pass

    assert complete("model_options", "build", build, 1, {"sizes": given, "plain": given}) == {
        **{"sizes": (3, 4), "plain": (3, 4)},
        "text": "",
    }
    assert complete("model_options", "build", build, 1, {"sizes": 3, "text": "3 4"})["sizes"] == (3,)
