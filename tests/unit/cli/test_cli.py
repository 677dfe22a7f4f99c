from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cifar_ray.cli import main
from cifar_ray.config.errors import InterruptedRunError
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import recipe
from tests.support.person import nothing_ignored
from tests.support.typed import Said

DIGITS = "--dataset digits --model simple_cnn"
NO_MODEL = "tests.support.networks:build --model-options.kind nosuch"


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("trian", "unknown command 'trian'; did you mean 'train'?"),
        ("fit", "unknown command 'fit'; it may be train, resume, "),
        ("train vit", "unexpected word 'vit'"),
        ("train --modle vit", "unknown flag --modle; did you mean --model?"),
        ("train --model lenet", "--model must be simple_cnn, "),
        ("train --epochs", "--epochs: expected one argument; `cifar-ray train --help` tells"),
        ("train --epochs ten", "--epochs must be a whole number, got 'ten'"),
        ("train --lr nan", "--lr must be a finite number, got 'nan'"),
        ("train --topology 0x2", "--topology must be NODESxWORKERS "),
        ("train --batch-size 0", "--batch-size must be at least 1, got 0"),
        ("train --global-batch-size 100 --topology 1x3", "--global-batch-size must be a multiple of workers"),
        ("train --model-options.depth 2", "--model-options.depth is no option of resnet"),
        ("train --model-options.blocks 1,x", "--model-options.blocks must be a whole number, got 'x'"),
        ("train --no-compile true", "unexpected word 'true'"),
        ("train --strategy gpipe", "--topology must have at least 2 workers for --strategy gpipe, got 1x1"),
        ("train --strategy reproducible --strategy-options.shards 6", "--strategy-options.shards must be a power of"),
        ("train --config /none.yaml", "cannot read config file /none.yaml: No such file or directory"),
        ("sweep --grid bach_size=16,32 --name s", "--grid has 'bach_size', which is no field of a run; did you mean"),
        ("sweep --grid batch_size=16,16 --name s", "--grid must not have the same combination twice"),
        ("sweep --grid batch_size= --name s", "--grid must have at least one value for batch_size"),
        ("sweep --name s", "--grid must name at least one field"),
        ("sweep --resume s --epochs 3", "--resume goes on as the sweep was begun, and takes no epochs"),
        ("sweep --retry-failed --name s --grid batch_size=16", "--retry-failed needs --resume NAME"),
        ("sweep --grid lr=0.1 --json", "--json is for --dry-run"),
        ("sweep --resume nosuch --dry-run", "there is no run or sweep 'nosuch' in "),
        (f"sweep --dataset digits --grid lr=0.1 --dry-run --model {NO_MODEL}", "--grid must have a cell that can run"),
        (f"plan {DIGITS} --link 10gbps", "--link must be RATE or RATE:LATENCY"),
        (f"plan {DIGITS} --nodes 1,2", "--link must be given for --nodes of more than 1"),
        (f"plan {DIGITS} --link 10gbit --host fast", "--host must be RATE or RATE:LATENCY"),
        (f"plan {DIGITS} --price nosuch", "--price must be a finite number"),
        (f"plan {DIGITS} --nodes 1,0", "--nodes must be at least 1, got 0"),
        (f"plan {DIGITS} --topology 1x2", "unknown flag --topology"),
        (f"plan {DIGITS} --strategy parameter_server", "--strategy must be ddp, all_reduce, gather_scatter, "),
        (f"plan {DIGITS} --link 1gbit --sync-batchnorm", "--sync-batchnorm cannot be planned"),
        (f"plan {DIGITS} --global-batch-size 64 --nodes 3 --link 1gbit", "--global-batch-size must be a multiple of"),
        ("resume", "run must be given; `cifar-ray resume --help` tells"),
        ("ui --port=x", "--port must be a whole number, got 'x'"),
        ("serve run --checkpoint any", "--checkpoint must be last or best, got 'any'"),
        ("register run", "--name must be given; `cifar-ray register --help`"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, start: str, home: Path, said: Said) -> None:
    assert said(words, 2)[1].startswith(start)


def test_a_mistake_in_a_file_names_the_file_and_the_key(tmp_path: Path, said: Said) -> None:
    file = tmp_path / "run.yaml"
    for text, start in {
        "modle: vit": "unknown key 'modle'; did you mean 'model'?",
        "epochs: ten": "epochs must be a whole number, got 'ten'",
        "version: 7": "version must be 2, got 7",
        "epochs: 3\nseed: 1\nepochs: 5": "it has the key 'epochs' twice",
    }.items():
        file.write_text(text)
        assert f"{file}: {start}" in said(f"train --config {file}", 2)[1]


def parsed(words: str, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """The config that a command line comes to, with nothing trained."""
    seen: list[TrainConfig] = []
    from cifar_ray.orchestration.run import driver

    monkeypatch.setattr(driver, "train", lambda config, begun: seen.append(config))
    assert main.main(["train", *words.split()]) == 0
    return seen[0]


def test_flags_override_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "vgg.yaml"
    file.write_text("model: vgg11\nglobal_batch_size: 256\ntopology: 1x4\nepochs: 1\n")
    asked = TrainConfig(model="vgg11", global_batch_size=256, topology="1x4", epochs=1)
    assert parsed(f"--config {file}", monkeypatch) == recipe.resolve(asked)
    asked = TrainConfig(model="vgg11", batch_size=32, topology="1x4", epochs=2)
    assert parsed(f"--config={file} --batch-size 32 --epochs 2", monkeypatch) == recipe.resolve(asked)
    file.write_text("batch_size: 64")
    asked = TrainConfig(global_batch_size=32)
    assert parsed(f"--global-batch-size 32 --config {file}", monkeypatch) == recipe.resolve(asked)


def test_every_kind_of_flag_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--model-options.blocks 2,2 --augment none --per-rank-test --lr 1e-3 --seed 3 --run-name a.b-c"
    config = parsed(f"--model resnet {words}", monkeypatch)
    assert recipe.resolve(config).model_options["blocks"] == (2, 2)
    assert (config.augment, config.per_rank_test, config.lr, config.seed) == ("none", True, 1e-3, 3)
    assert config.run_name == "a.b-c"


def test_help_lists_every_option(said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["train", "--help-all"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    flags = ("--config", "--batch-size", "--model-options.NAME", "--strategy-options.NAME", "--verbose, --no-verbose")
    assert all(flag in text for flag in flags)
    with pytest.raises(SystemExit):
        main.main(["help", "check-cluster"])
    assert capsys.readouterr().out.startswith("usage: cifar-ray check-cluster FILES ... [OPTIONS]")
    assert said("help trian", 2)[1].startswith("unknown command 'trian'; ")


def test_the_overview_lists_the_commands(said: Said) -> None:
    for words in ("", "--help", "help", "--help-all"):
        text = said(words)[0]
        assert all(f"\n  {name} " in text for name in main.COMMANDS)
    for flag in ("-V", "--version"):
        assert said(flag)[0].startswith("cifar-ray 0.")


ENDING = """
import sys
from cifar_ray.cli import main as cli

def main():
    sys.stdout.write("said")
    sys.stderr.write("a note without an end of line")
    {end}

cli.main = main
cli.program()
"""


@pytest.mark.parametrize(
    ("end", "status", "complaint"),
    [("return 3", 3, ""), ("sys.exit()", 0, ""), ("raise KeyError('a fault')", 1, "KeyError: 'a fault'\n")],
)
def test_the_process_ends_at_once_and_loses_no_output(end: str, status: int, complaint: str) -> None:
    command = [sys.executable, "-c", ENDING.format(end=end)]
    with nothing_ignored():
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, "said")
    told = done.stderr.removeprefix("a note without an end of line")
    assert told != done.stderr
    assert told.endswith(complaint)
    assert bool(told) == bool(complaint)


def test_a_command_without_an_output_ends_well() -> None:
    command = f"exec {shlex.quote(sys.executable)} -m cifar_ray.cli strategies >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written_is_told() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "cifar_ray.cli"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("OSError: [Errno 28] No space left on device\n")


def test_the_last_line_after_ctrl_c_says_how_to_continue(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    for advice, last in (("Continue with: this", "Continue with: this"), ("", "Stopped by SIGINT before training")):

        def run(advice: str = advice) -> int:
            raise InterruptedRunError(signal.SIGINT, advice)

        monkeypatch.setattr("cifar_ray.cli.train.train", run)
        assert said("train", 130)[1].startswith(last)
