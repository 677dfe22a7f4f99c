from __future__ import annotations

from pathlib import Path

import pytest

from cifar_ray.config import yaml
from cifar_ray.config.errors import ConfigError


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
        yaml.read(file)
    assert str(caught.value) == f"cannot read config file {file}: {problem}"


def test_aliases_that_repeat_a_little_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(bomb(10, 10, 10, 5))
    read = yaml.read(tmp_path / "config.yaml")
    assert read["rate"][4][9][9][9] == "x"
