from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from pydantic.dataclasses import dataclass

from cifar_ray.config import schema, yaml
from cifar_ray.config.errors import ConfigError, some
from cifar_ray.config.schema import NO_OTHERS, Counts, Number, Options, Positive, Share, Whole, plainly


@plainly
@dataclass(frozen=True, config=NO_OTHERS)
class Outer:
    """An example."""

    name: str = "x"
    """Its name."""
    rate: Number = 0.5
    count: Whole | None = None
    step: Positive = 0.1
    share: Share = 0.0
    mode: Literal["a", "b"] = "a"
    fast: bool = False
    sizes: Counts = (1, 2)
    inner: Options = field(default_factory=dict)


@pytest.mark.parametrize(
    ("values", "begins"),
    [
        ({"nmae": "y"}, "unknown key 'nmae'; did you mean 'name'?"),
        ({1: "y"}, "unknown key 1"),
        ({"inner": 3}, "inner must be a mapping"),
        ({"inner": {"depth": {}}}, "inner.depth must be a number, true, false or a text"),
        ({"name": 3}, "name must be text"),
        ({"rate": True}, "rate must be a number"),
        ({"rate": "fast"}, "rate must be a finite number"),
        ({"rate": float("inf")}, "rate must be a finite number"),
        ({"count": 1.5}, "count must be a whole number"),
        ({"mode": "c"}, "mode must be a or b, got 'c'"),
        ({"fast": 2}, "fast must be true or false"),
        ({"sizes": []}, "sizes must be a list with at least one value"),
        ({"sizes": {1: 2}}, "sizes must be a list"),
        ({"sizes": "3 x"}, "sizes must be a whole number, got 'x'"),
        ({"count": -1}, "count must be at least 0"),
        ({"count": 2**63}, "count must be below 9.22337e+18"),
        ({"step": 0}, "step must be more than 0"),
        ({"share": "1"}, "share must be below 1"),
        ({"rate": {"x" * 1000: ["x" * 1000] * 1000}}, "rate must be "),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(values: dict[str, object], begins: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schema.build(Outer, values)
    assert str(caught.value).startswith(begins)
    assert len(str(caught.value)) <= 140


def test_values_are_taken_over_and_the_rest_stays() -> None:
    base = Outer(name="base", count=1, inner={"depth": 9})
    given = {"rate": "1e-3", "count": "None", "inner": {"sizes": ["3"]}}
    built = schema.build(Outer, schema.nest({**schema.flatten(schema.to_plain(base)), **schema.flatten(given)}))
    assert built == Outer(name="base", rate=1e-3, inner={"depth": 9, "sizes": (3,)})


def test_a_mistake_in_python_is_one_sentence_too() -> None:
    for values, key in (({"inner": 1}, "inner"), ({"count": np.float64(1.5)}, "count"), ({"nmae": "y"}, "unknown key")):
        with pytest.raises(ConfigError, match=rf"^{key} "):
            Outer(**values)  # type: ignore[arg-type]
    assert Outer(rate=1, sizes=[3]).sizes == (3,)  # type: ignore[arg-type]


def test_from_python_whatever_fits_is_taken() -> None:
    made = Outer(
        name=Path("a/b"), count=np.int64(3), rate=np.float32(0.5), fast=np.bool_(True),
        sizes=range(1, 3), inner={"depth": np.uint8(2)},
    )  # type: ignore[arg-type]  # fmt: skip
    assert made == Outer(name="a/b", count=3, rate=0.5, fast=True, sizes=(1, 2), inner={"depth": 2})
    kinds = {type(value) for value in (made.name, made.count, made.rate, made.fast, made.inner["depth"])}
    assert kinds == {str, int, float, bool}
    assert Outer("x", np.int64(4)) == Outer(rate=4)  # type: ignore[arg-type]
    assert Outer(sizes=np.array([3, 4])) == Outer(sizes=(3, 4))  # type: ignore[arg-type]


def test_a_value_is_checked_as_one_field() -> None:
    assert schema.field(Outer, "sizes", ["1", 2]) == (1, 2)
    assert schema.field(Outer, "inner.depth", "2") == 2
    with pytest.raises(ConfigError, match=r"^inner.depth must be a number, true, false or a text, got {}$"):
        schema.field(Outer, "inner.depth", {})


@pytest.mark.parametrize(
    "text", ["count: 2026-01-01", "name: !!timestamp 2026-01-01", "inner: 2026-01-01", "rate: 0x" + "f" * 5000]
)
def test_a_value_of_a_kind_that_yaml_alone_has_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"^{text.partition(':')[0]} must be .* got "):
        schema.build(Outer, yaml.read(tmp_path / "config.yaml"))


def test_flatten_joins_nested_keys() -> None:
    assert schema.flatten({"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": {}}) == {"a": 1, "b.c": 2, "b.d.e": 3, "f": {}}
    assert schema.to_plain(Outer(inner={"depth": 2})) == {
        **{"name": "x", "rate": 0.5, "count": None, "step": 0.1, "share": 0.0, "mode": "a", "fast": False},
        **{"sizes": [1, 2], "inner": {"depth": 2}},
    }


def test_the_help_of_a_class_has_that_of_its_fields() -> None:
    assert str(Outer.__doc__).startswith("An example.\n\nAttributes:\n    name: Its name.")


def test_of_many_names_the_first_20_are_listed() -> None:
    names = [str(number) for number in range(22)]
    assert [some(names[:1]), some(names[:3])] == ["0", "0, 1 and 2"]
    assert [some(names[:20]), some(names)] == [f"{', '.join(names[:19])} and 19", f"{', '.join(names[:20])} and 2 more"]
