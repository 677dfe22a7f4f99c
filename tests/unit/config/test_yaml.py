from __future__ import annotations

from pathlib import Path

import pytest

from cifar_ray.config import yaml
from cifar_ray.config.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("run_name: 2025-02-30", "day is out of range for month"),
        ("rate: *nobody" + "x" * 1000, "found undefined alias 'nobody" + "x" * 51 + " in line 1"),
        ("name: 1\nname: 2", "it has the key 'name' twice"),
        ("? [a]\n: 1\n", "found unhashable key in line 1"),
        ("a: 1\nb: [1\n", "expected ',' or ']', but got '<stream end>' in line 3"),
        ("!!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
    ],
)
def test_yaml_that_is_hostile_or_wrong_is_one_sentence(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert refusal(file).startswith(f"cannot read config file {file}: {problem}")


def refusal(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        yaml.read(file)
    assert caught.value.as_flag() == str(caught.value)
    return str(caught.value)


def test_a_file_that_is_no_mapping_or_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"name: \xff")
    for wrong, told in ((file, "'utf-8' codec"), (tmp_path, "Is a directory"), (Path("/no/such.yaml"), "No such file")):
        assert refusal(wrong).startswith(f"cannot read config file {wrong}: {told}")
    file.write_text("- epochs\n")
    assert refusal(file) == f"{file} must be a mapping of keys to values"


def test_a_mapping_is_read_and_written_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    values = {"b": [1, 2.5], "a": {"c": None, "größe": "ß"}}
    file.write_text(yaml.dump(values), encoding="utf-8")
    assert list(yaml.read(str(file)).items()) == list(values.items())
    file.write_text("")
    assert yaml.read(file) == {}
    assert (yaml.mapping(values), yaml.mapping([1])) == (values, {})


def test_numbers_that_mean_what_they_look_like_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: [0, -0, 10, 0x10, 0b11, 1_000, 0.5, 00.5, .inf, 1e3]")
    assert yaml.read(tmp_path / "config.yaml")["a"] == [
        0, 0, 10, 16, 3, 1000, 0.5, 0.5, float("inf"), "1e3"
    ]  # fmt: skip
