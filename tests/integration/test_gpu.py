"""Training on a GPU, also two workers on one GPU, over gloo.

pytest -m gpu tests/integration/test_gpu.py
CIFAR_RAY_GPU_DRY_RUN=1 pytest -m gpu tests/integration/test_gpu.py    # on a CPU: everything but CUDA itself
python3 -m pytest --noconftest -m gpu tests/integration/test_gpu.py    # where there is no Ray and no MLflow
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray import data
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sections import AugmentName
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import loader
from cifar_ray.data.datasets import Dataset, Split
from cifar_ray.data.loader import DataShard, TrainLoader
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks.classification import Classification
from cifar_ray.training import arithmetic, checkpoint, recipe, setup
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import Launch, Row, SavedCheckpoint

HERE = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if HERE else torch.device("cpu")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not HERE and "CIFAR_RAY_GPU_DRY_RUN" not in os.environ,
        reason="needs a GPU; with CIFAR_RAY_GPU_DRY_RUN=1, everything but CUDA itself runs on a CPU",
    ),
]
ALONE = ["gather_scatter", "send_recv", "all_reduce", "local_sgd", "fsdp", "reproducible"]
TOGETHER = ["ddp", "all_reduce", "gather_scatter", "send_recv", "fsdp", "gpipe", "one_f_one_b", "model_parallel"]
IMAGE_MODELS = ["simple_cnn", "resnet", "resnet18", "resnet50", "vgg11", "speednet", "vit"]
AUGMENTS = [name for name in get_args(AugmentName) if name != "none"]


class Stopped(Exception):  # noqa: N818
    """The process ends here, as if it had been killed."""


class Recorder:
    """Keeps the losses; ends the loop after a step."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.losses: list[float] = []
        self.saved: list[Path] = []
        self._stop_after = stop_after
        self.started = self.epoch_done = self.traced = lambda event: None

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        if row is not None:
            self.losses.append(row.metrics["train/loss"])
        if step == self._stop_after:
            raise Stopped

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        self.saved.append(saved.path)


def config(strategy: str = "ddp", topology: str = "1x1", **values: Any) -> ResolvedConfig:
    usual: dict[str, Any] = {"dataset": "digits", "model": "simple_cnn", "epochs": 2, "precision": "fp32"}
    usual |= {"log_every": 1, "global_batch_size": 64, "cpus_per_worker": 1}
    return recipe.resolve(TrainConfig(**{**usual, "strategy": strategy, "topology": topology, **values}))


def prepared(config: ResolvedConfig, folder: Path, worker: Worker | None = None, dataset: Dataset | None = None) -> Any:
    here, launch = worker or Worker(device=DEVICE), Launch(time.time(), 0.0)
    return setup.prepare(config, Decided.asked(config), dataset or data.load("digits"), folder, here, launch)


def train(
    config: ResolvedConfig, folder: Path, worker: Worker | None = None, stop_after: int | None = None
) -> tuple[str, list[float]]:
    """SHA-256 of the newest checkpoint's weights, on rank 0, and the losses of every step."""
    recorder = Recorder(stop_after)
    with suppress(Stopped):
        fit(prepared(config, folder, worker), recorder)
    digest = checkpoint.read(recorder.saved[-1]).weights_sha256 if recorder.saved else ""
    return digest, recorder.losses


def losses(*arguments: Any, **values: Any) -> list[float]:
    """The losses of every step of :func:`train`."""
    return train(*arguments, **values)[1]


class OnItsWay:
    """A message over gloo, whose tensors are on the CPU meanwhile: gloo would read a GPU's addresses as its own."""

    def __init__(self, work: dist.Work, staged: list[Tensor], targets: list[Tensor]) -> None:
        self._work, self._staged, self._targets = work, staged, targets

    def wait(self) -> bool:
        done = self._work.wait()
        for target, staged in zip(self._targets, self._staged):
            target.copy_(staged)
        return done


_SEND, _RECV = dist.ProcessGroup.send, dist.ProcessGroup.recv


def _sent(group: dist.ProcessGroup, tensors: list[Tensor], *where: int) -> OnItsWay:
    staged = [tensor.cpu() for tensor in tensors]
    return OnItsWay(_SEND(group, staged, *where), staged, [])


def _received(group: dist.ProcessGroup, tensors: list[Tensor], *where: int) -> OnItsWay:
    staged = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
    return OnItsWay(_RECV(group, staged, *where), staged, tensors)


def _on_rank(config: ResolvedConfig, folder: Path, rank: int) -> tuple[str, list[float]]:
    with joined("gloo", folder / "store", rank, config.world_size):
        return train(config, folder / "checkpoints", Worker(rank, config.world_size, rank, device=DEVICE))


def on_ranks(config: ResolvedConfig, folder: Path) -> tuple[str, list[float]]:
    """What rank 0 of several processes comes to, all on the one GPU."""
    folder.mkdir()
    with ProcessPoolExecutor(config.world_size, get_context("spawn")) as pool:
        ranks = [pool.submit(_on_rank, config, folder, rank) for rank in range(config.world_size)]
        return ranks[0].result(timeout=300)


@contextmanager
def joined(backend: str, store: Path, rank: int = 0, count: int = 1) -> Iterator[None]:
    """Context manager: this process is one of a group; over gloo, messages between two ranks pass through the CPU."""
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=count)
    with pytest.MonkeyPatch.context() as patched:
        if backend == "gloo":
            patched.setattr(dist.ProcessGroup, "send", _sent)
            patched.setattr(dist.ProcessGroup, "recv", _received)
        try:
            yield
        finally:
            dist.destroy_process_group()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one worker on the device."""
    return losses(config(), tmp_path_factory.mktemp("alone"))


def test_the_gpu_learns_what_the_cpu_learns(alone: list[float], tmp_path: Path) -> None:
    assert alone[-1] < alone[0]
    assert alone == pytest.approx(losses(config(device="cpu"), tmp_path, Worker()), rel=1e-2)


def colour_images() -> Dataset:
    """Random images like CIFAR-10's, which are flipped and cropped; digits have no flip."""
    spec, random = data.SPECS["cifar10"], np.random.default_rng(0)

    def split(size: int) -> Split:
        images = random.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
        return Split({"images": images, "labels": random.integers(0, spec.num_classes, size)})

    return Dataset("random", replace(spec, names=tuple("0123456789")), split(512), split(64))


@pytest.mark.parametrize(
    ("model", "arithmetic", "compiled"),
    [
        *((model, way, False) for model in ("simple_cnn", "resnet", "vit", "speednet") for way in ("fp32", "bf16")),
        ("simple_cnn", "bf16", True),
    ],
)
def test_nothing_waits_for_the_gpu_within_a_step(
    model: str, arithmetic: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "AHEAD", 128)  # a block is made in every second step
    asked = config(model=model, precision=arithmetic, dataset="cifar10", compile=compiled)
    state = prepared(asked, tmp_path, dataset=colour_images())
    strategy = state.strategy
    state.clock.start()
    if HERE:
        torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 6):
            loss = strategy.gradients(state.loader.micro_batches(0, step))
            strategy.step()
            state.epoch_loss += loss
            state.clock.lap()
    finally:
        if HERE:
            torch.cuda.set_sync_debug_mode("default")
    state.clock.stop()
    assert state.epoch_loss.item() > 0
    assert state.clock.iterations()["iteration_mean_s"] > 0


RESNET: dict[str, Any] = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}, "epochs": 1}
SHORT: dict[str, Any] = {"steps_per_epoch": 3, "epochs": 1, "lr": 1e-4}
COMPILED: dict[str, Any] = {"model": "resnet", "model_options": {"blocks": (1,), "width": 8}}
COMPILED |= {"augment": "none", "steps_per_epoch": 5}


@pytest.mark.parametrize(
    "values",
    [{}, {"strategy": "all_reduce", "accumulate": 2, "ema": 0.9, "clip_norm": 1.0}, {"precision": "bf16"}],
    ids=["plain", "accumulate", "bf16"],
)
def test_a_compiled_network_learns_what_it_learns_without(values: dict[str, Any], tmp_path: Path) -> None:
    """Over two epochs, with an evaluation and a checkpoint between; all of it in one graph, which CUDA can repeat."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    compiled = losses(config(**COMPILED, **values, compile=True), tmp_path / "compiled")
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["inductor"]["cudagraph_skips"] == 0
    plain = losses(config(**COMPILED, **values), tmp_path / "plain")
    assert compiled == pytest.approx(plain, rel=0.05 if "precision" in values else 2e-3)


@pytest.mark.parametrize("values", [{}, {"accumulate": 2}], ids=["plain", "accumulate"])
def test_two_compiled_workers_learn_what_they_learn_without(values: dict[str, Any], tmp_path: Path) -> None:
    compiled, plain = (
        on_ranks(config("ddp", "1x2", **COMPILED, **values, compile=on), tmp_path / str(on))[1] for on in (True, False)
    )
    assert compiled == pytest.approx(plain, rel=2e-3)


@pytest.mark.parametrize("model", ["simple_cnn", "resnet"])
@pytest.mark.parametrize("values", [{}, {"clip_norm": 1.0, "accumulate": 2}], ids=["plain", "clip-accumulate"])
def test_a_model_begins_in_float16_as_in_float32(model: str, values: dict[str, Any], tmp_path: Path) -> None:
    asked = {"model": model, **SHORT, **values}
    fp16, fp32 = (losses(config(precision=each, **asked), tmp_path / each) for each in ("fp16", "fp32"))
    assert fp16 == pytest.approx(fp32, rel=0.02)


@pytest.mark.parametrize("model", IMAGE_MODELS)
def test_every_model_begins_in_bfloat16_as_in_float32(model: str, tmp_path: Path) -> None:
    bf16, fp32 = (losses(config(model=model, precision=each, **SHORT), tmp_path / each) for each in ("bf16", "fp32"))
    assert bf16 == pytest.approx(fp32, rel=0.15)  # of resnet50


def test_a_network_that_fills_the_gpu_trains_in_bfloat16() -> None:
    asked = config(dataset="cifar10", model="resnet18", global_batch_size=512 if HERE else 8, precision="auto")
    chosen = arithmetic.choose(asked, Worker(device=DEVICE))
    assert chosen.precision == "bf16" or not HERE, chosen.measured


@pytest.mark.parametrize("augment", AUGMENTS)
def test_the_gpu_is_shown_the_images_that_the_cpu_is_shown(augment: str) -> None:
    asked = config(dataset="cifar10", augment=augment)
    on_cpu, on_device = (
        next(TrainLoader(asked, Decided.asked(asked), colour_images(), DataShard(), device).micro_batches(1, 2))
        for device in (torch.device("cpu"), DEVICE)
    )
    assert on_device.seed == on_cpu.seed
    assert torch.allclose(on_device.targets.cpu(), on_cpu.targets)
    apart = (on_device.inputs.cpu() - on_cpu.inputs).abs() > 0.02  # a step of 255 is 0.015 to 0.016 here
    assert apart.float().mean().item() < 1e-3


@pytest.mark.parametrize("augment", ["crop", "mixup"])
def test_the_gpu_is_shown_images_that_stay_on_disk(
    augment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "AHEAD", 128)  # several blocks, of which one is gathered while another is shown
    asked, whole = config(dataset="cifar10", augment=augment), colour_images()
    on_disk = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.uint8, whole.train.inputs.shape)
    on_disk[:] = whole.train.inputs
    train = Split({"images": on_disk, "labels": whole.train["labels"]})
    assert train.file
    in_memory, streamed = (
        TrainLoader(asked, Decided.asked(asked), dataset, DataShard(), DEVICE)
        for dataset in (whole, replace(whole, train=train))
    )
    for step in range(8):
        ((shown, labels, *_),), ((same, alike, *_),) = (each.micro_batches(0, step) for each in (in_memory, streamed))
        assert torch.equal(shown, same)
        assert torch.equal(labels, alike)


@pytest.mark.parametrize("strategy", ALONE)
def test_one_worker_of_any_strategy_comes_to_the_losses_of_plain_training(
    strategy: str, alone: list[float], tmp_path: Path
) -> None:
    assert losses(config(strategy), tmp_path) == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "torch.optim:RMSprop"])
def test_replicas_that_average_now_and_then(optimizer: str, tmp_path: Path) -> None:
    values = {"optimizer": optimizer, "lr": 1e-3, "weight_decay": 0.0} if optimizer != "sgd" else {}
    found = on_ranks(config("local_sgd", "1x2", **values), tmp_path / "two")[1]
    assert np.isfinite(found).all()
    assert found[-1] < found[0]


def test_a_model_and_an_optimizer_of_ones_own(tmp_path: Path) -> None:
    own = {"model": "tests.support.nets:build", "optimizer": "torch.optim:RMSprop", "weight_decay": 0.0, "lr": 1e-3}
    asked = config(**own, epochs=1)
    assert losses(asked, tmp_path / "here") == pytest.approx(losses(asked, tmp_path / "cpu", Worker()), rel=1e-2)


@pytest.mark.parametrize("hook", ["fp16", "bf16", "powersgd"])
def test_gradients_that_are_compressed(hook: str, alone: list[float], tmp_path: Path) -> None:
    found = on_ranks(config("ddp", "1x2", strategy_options={"comm_hook": hook}), tmp_path / "two")[1]
    assert found[:20] == pytest.approx(alone[:20], rel=0.1)
    assert found[-1] < found[0]


@pytest.mark.parametrize(
    "values", [{"accumulate": 2}, {"ema": 0.9}, {"clip_norm": 0.5}], ids=lambda values: next(iter(values))
)
def test_two_workers_with_an_option_come_to_the_losses_of_one(values: dict[str, Any], tmp_path: Path) -> None:
    one = losses(config(**values), tmp_path / "one")
    assert on_ranks(config("ddp", "1x2", **values), tmp_path / "two")[1] == pytest.approx(one, rel=1e-3)


@pytest.mark.parametrize("strategy", TOGETHER)
def test_two_workers_on_one_gpu_come_to_the_losses_of_one(strategy: str, alone: list[float], tmp_path: Path) -> None:
    if HERE and strategy == "fsdp":
        pytest.skip("gloo crashes as it gathers DTensors of a GPU (pytorch/pytorch#152645)")
    assert on_ranks(config(strategy, "1x2"), tmp_path / "two")[1] == pytest.approx(alone, rel=1e-3)


def test_nccl_with_one_rank(tmp_path: Path, alone: list[float]) -> None:
    with joined("nccl" if HERE else "gloo", tmp_path / "store"):
        one = torch.ones(3, device=DEVICE)
        dist.all_reduce(one)
        assert one.tolist() == [1, 1, 1]
        assert losses(config(), tmp_path / "run") == pytest.approx(alone, rel=1e-3)


def test_batch_norm_over_all_workers(tmp_path: Path) -> None:
    if not HERE:
        with pytest.raises(ConfigError, match="needs GPUs"):
            train(config(sync_batchnorm=True, **RESNET), tmp_path)
        return
    one = losses(config(**RESNET, steps_per_epoch=5), tmp_path / "one")
    two = on_ranks(config("ddp", "1x2", sync_batchnorm=True, **RESNET, steps_per_epoch=5), tmp_path / "two")[1]
    assert two == pytest.approx(one, rel=1e-2)


@pytest.mark.skipif(HERE and torch.cuda.device_count() < 2, reason="data_parallel needs two GPUs")
def test_one_process_with_two_gpus(alone: list[float], tmp_path: Path) -> None:
    asked = config("data_parallel", gpus_per_worker=2)
    if not HERE:  # tests/unit/strategies has its passes, with a stand-in for the replicas
        with pytest.raises(ConfigError, match="needs several GPUs"):
            train(asked, tmp_path)
        return
    assert losses(asked, tmp_path, Worker(device=DEVICE, gpus=(0, 1))) == pytest.approx(alone, rel=1e-3)


def test_a_run_goes_on_from_its_checkpoint(alone: list[float], tmp_path: Path) -> None:
    asked = config(checkpoint_every=5)
    begun = losses(asked, tmp_path, stop_after=17)[:15]
    assert begun + losses(asked, tmp_path) == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("model", ["simple_cnn", "vit", "speednet"])
def test_a_checkpoint_goes_from_the_gpu_to_a_cpu_and_back(model: str, tmp_path: Path) -> None:
    """With SGD and momentum, with AdamW and its count of steps, and with averaged weights."""
    asked = config(model=model, checkpoint_every=5, epochs=1)
    moved = losses(asked, tmp_path / "moves", stop_after=7)[:5]
    moved += losses(asked, tmp_path / "moves", Worker(), stop_after=12)[:5]
    moved += losses(asked, tmp_path / "moves")
    assert moved == pytest.approx(losses(asked, tmp_path / "stays"), rel=2e-2)


def test_the_test_set_is_counted_alike_on_both(tmp_path: Path) -> None:
    model = prepared(config(epochs=1), tmp_path).strategy.model
    digits, task = data.load("digits"), Classification(TrainConfig())
    on_device = Evaluator(digits, Worker(device=DEVICE), task)(model)
    on_cpu = Evaluator(digits, Worker(), task)(model.cpu())
    assert on_device.confusion == on_cpu.confusion
    assert on_device.metrics["loss"] == pytest.approx(on_cpu.metrics["loss"], rel=1e-5)


def test_reproducible_has_the_same_bits_on_one_worker_and_two(tmp_path: Path) -> None:
    one = train(config("reproducible", **RESNET, steps_per_epoch=10), tmp_path / "one")
    assert on_ranks(config("reproducible", "1x2", **RESNET, steps_per_epoch=10), tmp_path / "two") == one
