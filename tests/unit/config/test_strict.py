from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from cifar_ray.config import strict
from cifar_ray.config.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    depth: int = 2
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    rate: float = 0.5
    count: int | None = None
    mode: Literal["a", "b"] = "a"
    fast: bool = False
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"nmae": "y"}, "unknown key 'nmae'; did you mean 'name'?"),
        ({"inner": {"dept": 1}}, "unknown key 'inner.dept'; did you mean 'depth'?"),
        ({"inner": 3}, "inner must be a mapping of its options, got 3"),
        ({"name": 3}, "name must be text, got 3"),
        ({"rate": "fast"}, "rate must be a finite number, got 'fast'"),
        ({"rate": float("inf")}, "rate must be a finite number, got inf"),
        ({"rate": True}, "rate must be a finite number, got True"),
        ({"count": 1.5}, "count must be a whole number, got 1.5"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"mode": "c"}, "mode must be a or b, got 'c'"),
        ({"fast": 1}, "fast must be true or false, got 1"),
        ({"inner": {"sizes": []}}, "inner.sizes must be a list of whole numbers, got []"),
        ({"inner": {"sizes": [1, "b"]}}, "inner.sizes must be a whole number, got 'b'"),
        ({"rate": 10**400}, "rate must be a finite number, got 1" + "0" * 37 + "..." + "0" * 39),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        strict.build(Outer, values)
    assert str(caught.value) == sentence


def test_values_are_taken_over_and_the_rest_stays() -> None:
    base = Outer(name="base", inner=Inner(depth=9))
    built = strict.build(Outer, {"rate": "1e-3", "count": 4, "inner": {"sizes": [3]}}, base)
    assert built == Outer(name="base", rate=1e-3, count=4, inner=Inner(depth=9, sizes=(3,)))


def test_flags_and_mappings_give_the_same() -> None:
    words = ["--rate=0.25", "--count", "7", "--fast", "--inner.sizes", "4", "5", "--mode", "b"]
    assert strict.build(Outer, strict.parse_flags(Outer, words)) == Outer(
        rate=0.25, count=7, fast=True, mode="b", inner=Inner(sizes=(4, 5))
    )
    assert strict.build(Outer, strict.parse_flags(Outer, ["--no-fast"]), Outer(fast=True)) == Outer()
    assert strict.build(Outer, strict.parse_flags(Outer, ["--count", "None"]), Outer(count=1)) == Outer()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nmae", "y"], "unknown flag --nmae; did you mean --name?"),
        (["--inner.size", "y"], "unknown flag --inner.size; did you mean --inner.sizes?"),
        (["--count"], "count takes one value, got 0"),
        (["--count", "1", "2"], "count takes one value, got 2"),
        (["count", "1"], "unexpected word 'count'"),
    ],
)
def test_a_mistake_in_flags_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        strict.parse_flags(Outer, words)
    assert str(caught.value) == sentence


def test_a_mistake_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("batch_size", "must be at least 1, got 0")))
    assert (error.key, str(error)) == ("batch_size", "batch_size must be at least 1, got 0")


def bomb(*levels: int) -> str:
    """A mapping of a few lines in which every value is the one before, several times."""
    lines = ["a0: &a0 x"]
    for level, times in enumerate(levels):
        lines.append(f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * times)}]")
    return "\n".join([*lines, f"rate: *a{len(levels)}"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bomb(10, 10, 10, 10, 10), "it holds more than 100,000 values, its aliases (*) written out"),
        ("rate: &a [*a, *a]", "it holds more than 100,000 values, its aliases (*) written out"),
        ("rate: &a {b: *a}", "it holds more than 100,000 values, its aliases (*) written out"),
        ("rate: !!timestamp soon", "a value is not what its tag (!!) says"),
        ("fast: !!bool soon", "a value is not what its tag (!!) says"),
        ("rate: *nobody" + "x" * 1000, "found undefined alias 'nobody" + "x" * 51 + " in line 1"),
        ("name: 1\nname: 2", "it has the key 'name' twice"),
        ("? [a]\n: 1\n", "found unhashable key in line 1"),
        ("names: !!set [a]", "expected a mapping node, but found sequence in line 1"),
        ("names: !!map a", "expected a mapping node, but found scalar in line 1"),
    ],
)
def test_yaml_that_is_hostile_or_wrong_is_one_sentence(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        strict.read_yaml(file)
    assert str(caught.value) == f"cannot read config file {file}: {problem}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("count: 2026-01-01", "count must be a whole number, got datetime.date(2026, 1, 1)"),
        ("name: !!timestamp 2026-01-01", "name must be text, got datetime.date(2026, 1, 1)"),
        ("inner: 2026-01-01", "inner must be a mapping of its options, got datetime.date(2026, 1, 1)"),
        ("count: 0x" + "f" * 5000, "count must be a whole number, got a number of thousands of digits"),
        ("rate: 0x" + "f" * 5000, "rate must be a finite number, got a number of thousands of digits"),
    ],
)
def test_a_value_of_a_kind_that_yaml_alone_has_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        strict.build(Outer, strict.read_yaml(tmp_path / "config.yaml"))
    assert str(caught.value) == sentence


def test_aliases_that_repeat_a_little_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(bomb(10, 10, 10, 5))
    read = strict.read_yaml(tmp_path / "config.yaml")
    assert read["rate"][4][9][9][9] == "x"


LONG = "x" * 1000


@pytest.mark.parametrize(
    "values",
    [
        {"name": [LONG] * 1000},
        {"rate": {LONG: [LONG] * 1000}},
        {"count": LONG},
        {"mode": LONG},
        {"inner": LONG},
        {"inner": {"sizes": [LONG]}},
        {"inner": {LONG: 1}},
        {LONG: 1},
        {("a", LONG): 1},
    ],
)
def test_no_sentence_repeats_more_than_80_characters_of_a_value(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        strict.build(Outer, values)
    around = {"must be a whole number, got ", "must be a mapping of its options, got ", "unknown key "}
    assert len(str(caught.value)) <= 80 + max(map(len, around)) + len("inner.sizes ")


def test_flatten_joins_nested_keys() -> None:
    assert strict.flatten(strict.to_plain(Outer())) == {
        "name": "x",
        "rate": 0.5,
        "count": None,
        "mode": "a",
        "fast": False,
        "inner.depth": 2,
        "inner.sizes": [1, 2],
    }
