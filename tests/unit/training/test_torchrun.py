"""Training under torchrun, without torchrun: one worker, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import __main__ as torchrun
from cifar_ray.training import recipe
from cifar_ray.training.observer import EpochRecord, Row, SavedCheckpoint, Started


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch)


def under(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Have torchrun say this, and no more."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def words(folder: Path, *more: str) -> list[str]:
    given = "--dataset digits --model simple_cnn --steps-per-epoch 2 --log-every 1 --precision fp32 --device cpu"
    return [*given.split(), "--storage", str(folder), *more]


@pytest.mark.slow
def test_one_worker_trains_prints_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.time() - 100
    first = torchrun.main(words(tmp_path, "--epochs", "1"), begun)
    shown = capsys.readouterr().out
    assert re.findall(r"^epoch (\d+) step (\d+): loss \d\.\d{4}$", shown, re.M) == [("1", "1"), ("1", "2")]
    assert f"result: test/loss {first.metrics['test/loss']:.4f}, " in shown
    folder = tmp_path / "simple_cnn-digits-1x1-seed0" / "checkpoints"
    assert f"checkpoint {folder}/step-00000002 sha256 {first.weights_sha256}\n" in shown
    assert first.times["time/startup_s"] >= 100
    again = torchrun.main(words(tmp_path, "--epochs", "1"), time.time())
    assert again.weights_sha256 == first.weights_sha256
    assert f"from step 2 ({folder}/step-00000002)" in capsys.readouterr().out
    named = torchrun.main(words(tmp_path, "--epochs", "1", "--run-name", "mine", "--seed", "1"), time.time())
    assert Path(named.checkpoint).parents[1] == tmp_path / "mine"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        *((flag, "under torchrun it follows") for flag in ("--topology 1x2", "--address auto", "--max-failures 1")),
        ("--strategy parameter_server", "needs a server"),
    ],
)
def test_what_torchrun_decides_or_ray_does_is_refused(flag: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        torchrun.main(words(tmp_path, *flag.split()), time.time())


def test_a_worker_stands_where_torchrun_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    under(monkeypatch, RANK="4", WORLD_SIZE="6", LOCAL_RANK="1", LOCAL_WORLD_SIZE="3", GROUP_RANK="7")
    monkeypatch.setattr(torch.distributed, "init_process_group", told.append)

    def prepare(config: TrainConfig, _: Any, dataset: Any, folder: Path, worker: Worker, launch: Any) -> Any:
        return worker, launch.begun, folder

    def fit(state: Any, printer: Any) -> Any:
        told.extend([*state, printer._quiet])
        raise KeyboardInterrupt

    monkeypatch.setattr(torchrun, "prepare", prepare)
    monkeypatch.setattr(torchrun, "fit", fit)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: told.append("waits for the others"))
    with pytest.raises(KeyboardInterrupt):
        torchrun.main(words(tmp_path, "--batch-size", "8"), 5.0)
    worker = Worker(4, 6, 1, "7", torch.device("cpu"))
    assert told == ["gloo", worker, 5.0, tmp_path / "simple_cnn-digits-2x3-seed0" / "checkpoints", True]


@pytest.mark.parametrize(
    ("device", "gpus", "each", "found"),
    [
        ("auto", 1, 1, ()),  # a GPU for each of the two workers, or for none
        ("auto", 3, 2, ()),
        ("auto", 4, 2, (2, 3)),
        ("auto", 2, 0.25, (1,)),
        ("cpu", 2, 1, ()),
        ("cuda", 2, 1, (1,)),
    ],
)
def test_every_worker_of_a_node_has_a_gpu_or_none_has(
    device: Any, gpus: int, each: float, found: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    config = TrainConfig(device=device, gpus_per_worker=each, strategy="data_parallel" if each > 1 else "ddp")
    assert torchrun._gpus(config, 1, 2) == found
    if device == "cuda":
        with pytest.raises(ConfigError, match="must be cpu or auto here: 3 GPUs needed, 2 found"):
            torchrun._gpus(config, 1, 3)


def test_rank_0_alone_prints(capsys: pytest.CaptureFixture[str]) -> None:
    config = recipe.resolve(TrainConfig(model="vit", dataset="digits", precision="bf16"))
    started = Started(Decided.asked(config), 4, 9, "/c", ("one is damaged",), (), "a CPU")
    shown = []
    for rank in (0, 1):
        printer = torchrun.Printer(rank, "vit")
        printer.started(started)
        printer.step_done(0, 3, Row("iteration", 3, 0, {"train/loss": 0.5}))
        printer.step_done(0, 4, None)
        printer.epoch_done(EpochRecord(Row("epoch", 1, 0, {"test/loss": 2.0}), [], {}))
        printer.checkpoint_ready(SavedCheckpoint(Path("/c"), 4, 0, "abc"))
        shown.append(capsys.readouterr().out.splitlines())
    assert [len(lines) for lines in shown] == [5, 3]  # the loop tells other ranks of no start and no checkpoint
    assert "epoch 1 step 3: loss 0.5000" in shown[0]


ENDS = """
import atexit, runpy, sys, time
import torch.distributed
atexit.register(time.sleep, 3600)  # as a process group may wait for the other ranks
sys.argv = ["cifar_ray.training", *sys.argv[1:]]
runpy.run_module("cifar_ray.training", run_name="__main__")
"""


@pytest.mark.slow
def test_a_rank_that_fails_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    words = [sys.executable, "-c", ENDS, "--epochs", "nonsense"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.startswith("error: --epochs must be")) == (2, True)
