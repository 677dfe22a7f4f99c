"""Paths, files, ports, YAML, and the words of errors."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path

import pytest

from cifar_ray import data
from cifar_ray.cli import output
from cifar_ray.config import errors, files, yaml
from cifar_ray.config.errors import ConfigError, InterruptedRunError


def test_a_path_that_a_person_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    assert files.absolute("storage", "~/runs") == Path("/home/me/runs")
    assert [files.storage(given) for given in ("runs", None)] == [tmp_path / "runs", Path("/home/me/.cifar_ray/runs")]
    for path in ("s3://b", "~nobody-at-all/x"):
        with pytest.raises(ConfigError, match=f"^storage must .* got {path!r}$"):
            files.storage(path)
    with pytest.raises(ConfigError, match=r"^dataset must begin with the home folder"):
        data.absolute("folder:~nobody-at-all/x")


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "text"
    files.write_whole(file, "größe" * 300_000)
    assert (file.read_text(encoding="utf-8"), list(tmp_path.iterdir())) == ("größe" * 300_000, [file])
    (tmp_path / ".text.partial").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        files.write_whole(file, "new")
    assert file.stat().st_size == 7 * 300_000


def test_a_port_is_free_taken_or_none_at_all() -> None:
    def refused(host: str, key: str) -> None:
        with pytest.raises(ConfigError) as caught:
            output.listen(host, taken)
        assert (caught.value.key, str(taken) in str(caught.value)) == (key, True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        refused("127.0.0.1", "port")
    output.listen("127.0.0.1", taken).close()
    output.listen("127.0.0.1", 65535).close()
    refused("192.0.2.1", "host")  # of nobody
    refused("a" * 70, "host")  # too long for a name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 78, repr("x" * 78)),
        ("x" * 79, repr("x" * 37)[:-1] + "..." + repr("x" * 38)[1:]),
        ([["y" * 30] * 2, "z" * 30], str([["y" * 30] * 2, "z" * 30])[:77] + "..."),
        ([1] * 26, "[1, 1, 1, 1, 1, 1, ...]"),
    ],
)
def test_a_value_in_a_sentence_is_brief(value: object, text: str) -> None:
    assert errors.brief(value) == text


def test_the_words_of_errors() -> None:
    assert errors.brief(10**5000) == "a number of thousands of digits"
    assert [errors.one_of(words) for words in (["a"], ["a", 1], ["a", "b", "c"])] == ["a", "a or 1", "a, b or c"]
    assert errors.flag_of("model_options.patch_size") == "--model-options.patch-size"
    assert errors.suggestion("abcde", ["abcxy"]) == "; did you mean 'abcxy'?"  # just alike enough
    assert errors.suggestion("abcd", ["abxy"]) == ""
    assert errors.suggestion("epochs" + "x" * 1000, ["epochs" + "x" * 74]) != ""
    assert errors.printable("a\x1b[2J\x9b\0\x7f\u202e\udcff\rb") == r"a\x1b[2J\x9b\x00\x7f\u202e\xff\rb"
    assert errors.printable(kept := "größe 猫 \N{FAMILY}\t\r\n") == kept
    assert (str(InterruptedRunError(15))[:18], InterruptedRunError(15).signum) == ("Stopped by SIGTERM", 15)


def test_a_mistake_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("batch_size", "must be 1")))
    assert (error.key, error.problem, str(error)) == ("batch_size", "must be 1", "batch_size must be 1")
    assert (error.as_flag(), ConfigError("", "must be 1").as_flag()) == ("--batch-size must be 1", "must be 1")


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
