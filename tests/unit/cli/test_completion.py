"""A shell completes what it was given the script for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cifar_ray.cli import main

ASK = """
source "$1"; shift
COMP_WORDS=(cifar-ray "$@"); COMP_CWORD=$#; COMPREPLY=()
_shtab_cifar_ray; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main.main(["completion", "bash"]) == 0
    made = tmp_path / "script"
    made.write_text(capsys.readouterr().out)
    return made


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sw"], {"sweep"}),
        (["check-c"], {"check-cluster"}),
        (["train", "--model", "v"], {"vgg11", "vit"}),
        (["train", "--model-"], {"--model-options.NAME"}),
        (["train", "--help"], {"--help", "--help-all"}),
        (["train", "--epochs", ""], {""}),
        (["sweep", "cells"], {"cells.yaml"}),
        (["completion", ""], {"bash", "zsh"}),
    ],
)
def test_bash_completes_commands_flags_values_and_files(bash: Path, words: list[str], found: set[str]) -> None:
    (bash.parent / "cells.yaml").touch()
    asked = ["bash", "-c", ASK, "ask", str(bash), *words]
    said = subprocess.run(asked, cwd=bash.parent, capture_output=True, text=True, check=True).stdout
    assert set(said.rstrip("\n").split("\n")) == found


def test_zsh_has_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef cifar-ray")
    assert (
        "(simple_cnn resnet resnet18 resnet50 vgg11 speednet vit unet segnet textcnn lstm text_transformer mlp)"
        in script
    )
    if not shutil.which("zsh"):
        pytest.skip("no zsh here to read it")
    made = tmp_path / "script"
    made.write_text(script)
    subprocess.run(["zsh", "-n", str(made)], check=True)


def test_another_shell_is_refused_by_the_word_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", "fish"]) == 2
    assert capsys.readouterr().err == "error: SHELL must be bash or zsh, got 'fish'\n"
