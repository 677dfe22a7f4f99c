from __future__ import annotations

import os
import re
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


def complaint(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says on a mistake: one sentence on standard error, and exit status 2."""
    assert main.main(words.split()) == 2
    captured = capsys.readouterr()
    assert re.fullmatch(r"(.+: loading PyTorch and Ray\n)?", captured.out)
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "train --model lenet",
            "--model must be simple_cnn, resnet, resnet18, resnet50, vgg11, speednet, vit, unet, segnet, textcnn, lstm, text_transformer, mlp, torchvision:NAME, timm:NAME or MODULE:FUNCTION, got 'lenet'",
        ),
        (
            "train --dataset imagenet",
            "--dataset must be cifar10, cifar100, mnist, digits, torchvision:NAME, folder:PATH, masks:PATH, coco:PATH, text:PATH, table:PATH or MODULE:FUNCTION, got 'imagenet'",
        ),
        ("train --modle vit", "unknown flag --modle; did you mean --model?"),
        ("train vit", "unexpected word 'vit'"),
        ("train --epochs", "--epochs: expected one argument; `cifar-ray train --help` tells what it takes"),
        ("train --epochs ten", "--epochs must be a whole number, got 'ten'"),
        ("train --lr nan", "--lr must be a finite number, got 'nan'"),
        (
            "train --topology 0x2",
            "--topology must be NODESxWORKERS with whole numbers of at least 1, such as 1x2 or 2x2, got '0x2'",
        ),
        (
            "train --topology 2",
            "--topology must be NODESxWORKERS with whole numbers of at least 1, such as 1x2 or 2x2, got '2'",
        ),
        (
            "train --topology axb",
            "--topology must be NODESxWORKERS with whole numbers of at least 1, such as 1x2 or 2x2, got 'axb'",
        ),
        ("train --batch-size 0", "--batch-size must be at least 1, got 0"),
        (
            "train --global-batch-size 100 --topology 1x3",
            "--global-batch-size must be a multiple of workers x accumulation (3 x 1), got 100",
        ),
        (
            "train --model-options.depth 2",
            "--model-options.depth is no option of resnet, which has blocks, width; did you mean 'width'?",
        ),
        ("train --model-options.blocks 1,x", "--model-options.blocks must be a whole number, got 'x'"),
        ("train --config", "--config: expected one argument; `cifar-ray train --help` tells what it takes"),
        ("train --no-compile true", "unexpected word 'true'"),
        ("predict run image.png --top 0", "--top must be at least 1, got 0"),
        ("ui --port 0", "--port must be at least 1, got 0"),
        (
            "train --strategy gpipe",
            "--topology must have at least 2 workers for --strategy gpipe, got 1x1: a pipeline of one stage is plain "
            "training, --strategy ddp",
        ),
        (
            "train --strategy model_parallel --model simple_cnn --topology 1x5 --batch-size 16",
            "--topology must have at most 4 workers for --strategy model_parallel with this simple_cnn, one for each "
            "layer that has parameters, got 1x5",
        ),
        (
            "train --strategy gpipe --topology 1x2 --global-batch-size 62",
            "--strategy-options.micro-batches must divide the global batch of 62 images, got 4",
        ),
        (
            "train --strategy data_parallel --device cpu",
            "--strategy data_parallel needs several GPUs in one process; on CPUs, use ddp",
        ),
        (
            "train --strategy reproducible --strategy-options.shards 6",
            "--strategy-options.shards must be a power of two, got 6",
        ),
        (
            "train --strategy reproducible --topology 1x8",
            "--strategy-options.shards must be a multiple of the workers, so that each has as many, got 4 for 8",
        ),
        (
            "train --strategy-options.shards 8",
            "--strategy-options.shards is no option of ddp, which has comm_hook",
        ),
        (
            "train --model vit --model-options.dim 10 --model-options.heads 3",
            "--model-options.dim must be a multiple of model_options.heads (3), got 10",
        ),
        (
            "train --strategy local_sgd --strategy-options.sync-every 0",
            "--strategy-options.sync-every must be at least 1, got 0",
        ),
        ("train --config /none.yaml", "cannot read config file /none.yaml: No such file or directory"),
        (
            "trian",
            "unknown command 'trian'; did you mean 'train'?",
        ),
        (
            "fit",
            "unknown command 'fit'; it may be train, resume, sweep, report, export, runs, compare, explain, plan, delete, models, strategies, evaluate, predict, serve, register, ui, doctor, submit or check-cluster",
        ),
        (
            "sweep --grid bach_size=16,32 --name s",
            "--grid has 'bach_size', which is no field of a run; did you mean 'batch_size'?",
        ),
        (
            "sweep --grid batch_size=16,16 --name s",
            "--grid must not have the same cell twice; it has 'bs16 1x1 seed0' twice",
        ),
        ("sweep --grid batch_size= --name s", "--grid must have at least one value for batch_size"),
        ("sweep --name s", "--grid must name at least one field with its values, such as batch_size=16,64"),
        (
            "sweep --grid batch_size=16 --name s --topology x",
            "--topology must be NODESxWORKERS with whole numbers of at least 1, such as 1x2 or 2x2, got 'x'",
        ),
        ("sweep none.yaml", "cannot read config file none.yaml: No such file or directory"),
        ("sweep a.yaml --resume s", "--resume goes on as the sweep was begun, and takes no file beside it"),
        ("sweep --resume s --epochs 3", "--resume goes on as the sweep was begun, and takes no epochs beside it"),
        (
            "sweep --retry-failed --name s --grid batch_size=16",
            "--retry-failed needs --resume NAME, the sweep whose failed runs are to go on",
        ),
        ("resume", "run must be given; `cifar-ray resume --help` tells what it takes"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(words, capsys) == sentence


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("evaluate a b", "unexpected word 'b'"),
        ("predict", "run must be given"),
        ("predict run --images x.png", "unknown flag --images"),
        ("predict run", "images must be given"),
        ("ui --port x", "--port must be a whole number, got 'x'"),
        ("ui --port=x", "--port must be a whole number, got 'x'"),
        ("evaluate run --checkpoint --data-dir d", "--checkpoint: expected one argument; `cifar-ray evaluate --help`"),
        ("serve", "run must be given; `cifar-ray serve --help`"),
        ("serve run --checkpoint any", "--checkpoint must be last or best, got 'any'"),
        ("register run", "--name must be given; `cifar-ray register --help`"),
        ("doctor --nope", "unknown flag --nope"),
    ],
)
def test_a_mistake_in_a_smaller_command_is_one_sentence_too(
    words: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in complaint(words, capsys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("modle: vit", "unknown key 'modle'; did you mean 'model'?"),
        ("epochs: ten", "epochs must be a whole number, got 'ten'"),
        ("version: 7", "version must be 2, got 7: the file was written by another version of cifar_ray"),
        ("topology: 3", "topology must be text, got 3"),
    ],
)
def test_a_mistake_in_a_file_names_the_file_and_the_key(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert complaint(f"train --config {file}", capsys) == f"{file}: {sentence}"


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("epochs: 3\nseed: 1\nepochs: 5")
    assert (
        complaint(f"train --config {file}", capsys) == f"cannot read config file {file}: it has the key 'epochs' twice"
    )


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
    words = (
        "--model resnet --model-options.blocks 2,2 --augment none --per-rank-test --lr 1e-3 --seed 3 --run-name a.b-c"
    )
    config = parsed(words, monkeypatch)
    assert recipe.resolve(config).model_options["blocks"] == (2, 2)
    assert (config.augment, config.per_rank_test, config.lr, config.seed, config.run_name) == (
        "none",
        True,
        1e-3,
        3,
        "a.b-c",
    )


def test_help_lists_every_option_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["train", "--help-all"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for flag in (
        "--config",
        "--batch-size",
        "--model-options.NAME",
        "--strategy-options.NAME",
        "--local-nodes",
        "--verbose, --no-verbose",
    ):
        assert flag in text
    assert "YAML file with any of these options; flags override it." in " ".join(text.replace("│", " ").split())


def test_the_overview_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["help"], ["--help-all"]):
        assert main.main(words) == 0
        text = capsys.readouterr().out
        assert all(f"\n  {name} " in text for name in main.COMMANDS)
        assert max(map(len, text.splitlines())) <= 80
    for flag in ("-V", "--version"):
        assert main.main([flag]) == 0
        assert capsys.readouterr().out.startswith("cifar-ray 0.")


def test_help_and_a_command_is_the_commands_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["help", "check-cluster"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("usage: cifar-ray check-cluster FILES ... [OPTIONS]")
    assert complaint("help trian", capsys).startswith("unknown command 'trian'; ")


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
    [
        ("return 3", 3, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit()", 0, ""),
        ("raise KeyError('a fault of ours')", 1, "KeyError: 'a fault of ours'\n"),
    ],
)
def test_the_process_ends_at_once_and_loses_no_output(end: str, status: int, complaint: str) -> None:
    with nothing_ignored():
        done = subprocess.run(
            [sys.executable, "-c", ENDING.format(end=end)],
            capture_output=True,
            text=True,
            timeout=60,
        )
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
        done = subprocess.run(
            [sys.executable, "-m", "cifar_ray.cli"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.endswith("OSError: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("advice", "last"),
    [
        ("Stopped after epoch 1. Continue with: cifar-ray resume mine",) * 2,
        ("", "Stopped by SIGINT before training began."),
    ],
)
def test_the_last_line_after_ctrl_c_says_how_to_continue(
    advice: str, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> int:
        raise InterruptedRunError(signal.SIGINT, advice)

    monkeypatch.setattr("cifar_ray.cli.train.train", run)
    assert main.main(["train"]) == 130
    assert capsys.readouterr().err == f"{last}\n"
