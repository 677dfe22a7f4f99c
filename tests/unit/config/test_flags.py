from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from cifar_ray.config import commands, flags
from cifar_ray.config.errors import ConfigError, one_of
from cifar_ray.config.flags import Positional
from cifar_ray.config.schema import Count, Counts, flat_fields
from cifar_ray.config.strategy import NAMES
from cifar_ray.config.train import TrainConfig


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
    assert flags.parse(Show, words, "show") == {
        "run": "r",
        "images": ["x.png", "y.png"],
        "name": "n",
        "count": "7",
        "fast_one": True,
        "mode": "b",
        "inner": {"sizes": ["4", "5"]},
    }
    assert flags.parse(Show, ["r", "i", "--name=a=b", "--no-fast_one", "--count", "-1"], "show") == {
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
    with pytest.raises(ConfigError, match="images must be given; `cifar-ray show --help`"):
        flags.read(Show, ["r", "--name", "n"], "show")
    with pytest.raises(ConfigError, match="--name must be given; "):
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
        "--mode NAME One of a or b. (default: a)",
        "--[no-]fast-one Whether it is quick. (default: off)",
        "inner options: Shape of the inside. --inner.depth INT How deep, at 100 % at most. (default: 2)",
        "--inner.sizes INT ... (default: 1 2)",
    ):
        assert part in text


@pytest.mark.parametrize("kind", [commands.TrainCommand, commands.SweepCommand])
def test_the_help_is_three_examples_and_the_usual_ten_options(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.read(kind, ["--help"], "train")
    examples, options = re.split(r"\n(?:positional arguments|options):\n", capsys.readouterr().out, maxsplit=1)
    assert examples.count("\n  cifar-ray ") == 3
    shown = [name.replace("-", "_") for name in re.findall(r"^  (?:--)?([a-z][a-z-]*) ", options, flags=re.MULTILINE)]
    assert [name for name in shown if name != "help_all"] == list(kind.USUAL)
    assert len(kind.USUAL) == 10


@pytest.mark.parametrize("columns", [80, 100, 200])
@pytest.mark.parametrize("kind", [commands.TrainCommand, commands.SweepCommand])
def test_the_help_of_a_run_is_in_columns_at_every_width(
    kind: type, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        flags.read(kind, ["--help-all"], "train")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    options = [line for line in lines if line.startswith("  -")]
    assert len(options) > sum(not one.metadata["recorded"] for _, one in flat_fields(TrainConfig))
    for line in options:  # what a long flag does stands below it
        flag = re.match(r"  \S+(?: \S+)*", line)
        assert flag is not None
        assert line == flag[0] if len(flag[0]) > 31 else line[31:33] == "  " and line[33] != " "


def test_the_help_of_a_run_groups_its_options_and_says_whose_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.read(commands.TrainCommand, ["--help-all"], "train")
    text = capsys.readouterr().out
    titles = re.findall(r"^(\S.*):$", text, flags=re.MULTILINE)
    runs = ["Data", "Task", "Model", "Optimisation", "Batch", "Where it runs", "Strategy"]
    runs += ["Limits in time, money and patience", "Tracking"]
    assert [title for title in titles if not title.endswith("options")] == runs
    words = " ".join(text.split())
    for name, owners in (
        ("accumulate", {"gpipe", "one_f_one_b", "model_parallel", "reproducible"}),
        ("ema", {"parameter_server", "hogwild"}),
    ):
        assert (
            f"Not with --strategy {one_of(each for each in NAMES if each in owners)}."
            in words.partition(f"--{name} ")[2][:400]
        )
    for told in (
        "--image-size INT Side in pixels of the images of folder:PATH, masks:PATH, coco:PATH, torchvision:NAME and table:PATH: the shorter side is "
        "resized to it, and the centre is cropped. Not with --dataset cifar10, cifar100, mnist or digits.",
        "--model-options.NAME TEXT Options of the model, such as --model-options.depth 4: `cifar-ray models NAME` lists",
        "Needs GPUs. Only with --strategy gather_scatter, send_recv, all_reduce, ddp or fsdp.",
        "--bucket-cap-mb FLOAT Size of DDP's gradient buckets in MiB. Only with --strategy ddp. (default: 25)",
        "text options: Only with --dataset text:PATH. --text.vocabulary INT",
    ):
        assert told in words
    assert "None" not in words
    assert "True" not in words
    assert "False" not in words


def test_an_option_without_a_default_says_what_happens_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.read(TrainConfig, ["--help"], "train")
    said = re.split(r"\n  (?=--)", capsys.readouterr().out)
    for one in fields(TrainConfig):
        if one.default is None and not one.metadata.get("recorded"):
            flag = f"--{one.name.replace('_', '-')} "
            (doc,) = (" ".join(part.split()) for part in said if part.startswith(flag))
            assert re.search(r"Default: |Default without either: |, else |in place of", doc), doc


def test_a_switch_has_no_opposite() -> None:
    assert flags.read(commands.CompareCommand, ["a", "b", "--json"], "compare").json
    assert not flags.read(commands.CompareCommand, ["a", "b"], "compare").json
    with pytest.raises(ConfigError, match="unknown flag --no-json"):
        flags.read(commands.CompareCommand, ["a", "b", "--no-json"], "compare")
