from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from cifar_ray import data, models, strategies
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset, augment, modality, order
from cifar_ray.orchestration.sweep import preparation
from cifar_ray.strategies.ddp import DDP
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import arithmetic, checkpoint, hardware, optimizer, recipe, setup
from cifar_ray.training.arithmetic import Choice
from cifar_ray.training.clock import Clock
from cifar_ray.training.errors import CheckpointError, DivergedError
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import EpochRecord, Launch, Outcome, Row, SavedCheckpoint, Started
from cifar_ray.training.rank_times import PHASES
from cifar_ray.training.setup import prepare
from tests.support.helpers import Recorder, Stopped, forge, resolved, train_here
from tests.support.images import folder_of_digits
from tests.support.threads import train_on_threads


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    return replace(digits, test=digits.test.at(slice(40)))


def test_a_run_learns_and_records(small: TrainConfig, digits: Dataset, tmp_path: Path) -> None:
    config = replace(small, epochs=3, steps_per_epoch=None)
    outcome = train_here(config, digits, tmp_path, recorder := Recorder())
    assert outcome.metrics["test/accuracy"] > 0.6
    decided = replace(Decided.asked(config), device="cpu", convolutions="channels_last", data=digits.spec)
    assert recorder.begun == [Started(decided, 0, 44, hardware=hardware.describe(torch.device("cpu")))]
    assert recorder.steps == list(range(1, 3 * 44 + 1))
    for row, step in zip(recorder.rows, range(5, 133, 5), strict=True):
        loss, lr = row.metrics["train/loss"], optimizer.learning_rate(config, step - 1, 44)
        assert (row.kind, row.step) == ("iteration", step)
        assert row.metrics == {"train/loss": loss, "train/lr": lr, "train/loss_rank0": loss}
    rows = [record.row for record in recorder.epochs]
    assert [(row.kind, row.step) for row in rows] == [("epoch", epoch) for epoch in range(1, 4)]
    last, final = recorder.epochs[-1], recorder.checkpoints[-1]
    memory = dict.fromkeys(("peak_memory_mib", "peak_memory_mib_rank0"), outcome.metrics["peak_memory_mib"])
    assert outcome.metrics == {**last.row.metrics, "test/images": 360, **memory}
    assert (outcome.epochs, outcome.per_class, outcome.confusion) == (3, last.per_class, last.confusion)
    assert outcome.history == tuple(
        sorted([*recorder.rows, *rows], key=lambda row: (row.timestamp_ms, row.kind == "epoch"))
    )
    assert (outcome.weights_sha256, outcome.checkpoint) == (final.weights_sha256, str(final.path))
    assert (final.step, final.epoch, final.score) == (132, 3, last.row.metrics["test/accuracy"])
    again = train_here(config, digits, tmp_path, recorder := Recorder())  # nothing is left to train
    assert (recorder.steps, len(recorder.begun[0].history)) == ([], 132 // 5 + 3)
    assert (again.metrics["test/accuracy"], again.confusion) == (outcome.metrics["test/accuracy"], outcome.confusion)
    assert again.times["time/training_s"] == outcome.times["time/training_s"]


def test_it_equals_a_plain_loop(small: TrainConfig, digits: Dataset, tmp_path: Path) -> None:
    """The same weights, to the last bit, as the obvious loop over the same batches."""
    config = replace(small, label_smoothing=0.1, schedule="constant", warmup_epochs=0.5)
    outcome = train_here(config, digits, tmp_path)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.build(config, digits.spec).to(memory_format=torch.channels_last)
    decay = [p for p in model.parameters() if p.ndim > 1]
    keep = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 5e-4}, {"params": keep, "weight_decay": 0.0}]
    sgd = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, fused=True)
    images, labels = torch.from_numpy(digits.train.inputs), torch.from_numpy(digits.train["labels"])
    normalise = modality.of(digits.spec).normaliser()
    for epoch in range(2):
        for step in range(11):
            for group in sgd.param_groups:
                group["lr"] = 0.05 * min((11 * epoch + step + 1) / 5.5, 1.0)
            batch = order.global_batch(order.permutation(0, epoch, 1437), step, 32)
            inputs = normalise(augment.crop_and_flip(images[batch], batch, 0, epoch, False))
            loss = torch.nn.functional.cross_entropy(model(inputs), labels[batch], label_smoothing=0.1)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    final = checkpoint.load(Path(outcome.checkpoint)).weights
    assert all(torch.equal(final[name], tensor) for name, tensor in model.state_dict().items())


def test_a_run_interrupted_twice_equals_an_uninterrupted_one(small: TrainConfig, few: Dataset, tmp_path: Path) -> None:
    """Also where the newest checkpoint was given another rate, and is passed over."""
    config = replace(small, checkpoint_every=4)
    whole = train_here(config, few, tmp_path / "whole")
    for stop in (6, 13):
        with pytest.raises(Stopped):
            train_here(config, few, tmp_path / "parts", Recorder(stop_after=stop))
    shutil.copytree(tmp_path / "parts", tmp_path / "forged")
    newest = checkpoint.every(tmp_path / "forged")[-1]
    forge(newest, config=runfile.to_mapping(replace(checkpoint.load(newest).config, lr=0.15)))
    for name, step, skipped in (("parts", 12, ()), ("forged", 11, (str(newest),))):
        outcome = train_here(config, few, tmp_path / name, recorder := Recorder())
        (begun,) = recorder.begun
        assert (begun.step, len(begun.skipped)) == (step, len(skipped))
        assert all(path in told and "was made with lr 0.15" in told for path, told in zip(skipped, begun.skipped))
        assert recorder.steps == list(range(step + 1, 23))
        assert outcome.weights_sha256 == whole.weights_sha256


def test_accumulation_is_one_large_batch(small: TrainConfig, few: Dataset, tmp_path: Path) -> None:
    once = train_here(small, few, tmp_path / "once", one := Recorder())
    parts = train_here(replace(small, accumulate=4), few, tmp_path / "parts", four := Recorder())
    for a, b in zip(one.rows, four.rows, strict=True):
        assert a.metrics["train/loss"] == pytest.approx(b.metrics["train/loss"], rel=1e-4)
    assert once.metrics["test/loss"] == pytest.approx(parts.metrics["test/loss"], rel=1e-3)
    figures = four.epochs[0].row.metrics
    assert figures["epoch_images_per_s"] == pytest.approx(11 * 32 / figures["epoch_s"])


def test_a_loss_that_is_not_finite_ends_the_run(small: TrainConfig, few: Dataset, tmp_path: Path) -> None:
    """Of one step, the loss is that of before it."""
    wild = replace(small, lr=1e30, warmup_epochs=0.0)
    one = {"global_batch_size": 1437, "steps_per_epoch": 1, "epochs": 1}
    for values, step in (({}, 5), ({"log_every": 1000}, 11), ({"log_every": 1000, **one}, 1)):
        with pytest.raises(DivergedError, match=f"not a finite number at step {step}; a lower --lr may help"):
            train_here(replace(wild, **values), few, tmp_path)
    assert checkpoint.every(tmp_path) == []


def test_a_run_is_not_continued_as_another(
    small: TrainConfig, few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(small, steps_per_epoch=2)
    train_here(config, few, tmp_path)
    for values in ({"lr": 0.01}, {"global_batch_size": 64}):
        with pytest.raises(CheckpointError, match=f"was made with {next(iter(values))} .*, and this run has "):
            train_here(replace(config, **values), few, tmp_path)  # type: ignore[arg-type]
    train_here(replace(config, accumulate=4), few, tmp_path)  # the same images per step
    monkeypatch.setattr(checkpoint, "_LOCK_WAIT_S", 0.1)
    with checkpoint.lock(tmp_path), pytest.raises(CheckpointError, match="another process is training into"):
        train_here(config, few, tmp_path)


PRODUCTS = "channels_last; 1x8x8>4 k3 p1: weight"


@pytest.mark.parametrize("begins", [0, 1])
def test_a_run_computes_as_it_began_on_another_kind_of_processor(
    begins: int, small: TrainConfig, few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [Choice("fp32", "contiguous", "measured"), Choice("bf16", PRODUCTS, "measured")]
    undecided, first = replace(small, precision="auto", steps_per_epoch=4), chosen.pop(begins)
    monkeypatch.setattr(arithmetic, "choose", lambda config, worker: first)
    with pytest.raises(Stopped):
        train_here(undecided, few, tmp_path, Recorder(stop_after=5))
    monkeypatch.setattr(arithmetic, "choose", lambda config, worker: chosen[0])
    train_here(undecided, few, tmp_path, after := Recorder())
    began = after.begun[0]
    assert (after.steps[0], began.measured) == (5, "")
    assert (began.decided.precision, began.decided.convolutions) == (first.precision, first.convolutions)


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A time that stands still but for the seconds that this function is told."""
    now = [1_000_000.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return advance


def test_every_second_is_in_its_phase(
    small: TrainConfig,
    digits: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passing: Callable[[float], None],
) -> None:
    """One worker, 11 steps, checkpoints after the 4th, the 8th and the last; each thing takes a time of its own."""

    def slow(of: type, name: str, seconds: float) -> None:
        function = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *arguments: (passing(seconds), function(*arguments))[1])

    class Slow(Recorder):
        def step_done(self, epoch: int, step: int, row: Row | None) -> None:
            passing(10)

        def epoch_done(self, record: EpochRecord) -> None:
            passing(200)

        def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
            passing(3000)

    def asked() -> bool:
        passing(40_000)
        return False

    slow(DDP, "step", 1)
    slow(DDP, "state", 500_000)
    slow(DDP, "consolidate", 6_000_000)
    slow(Evaluator, "__call__", 70_000_000)
    launch = Launch(time.time(), data_s=5.0)
    passing(12)  # 5 of them with the data set
    config = replace(small, epochs=1, checkpoint_every=4)
    state = prepare(config, Decided.asked(config), digits, tmp_path, Worker(), launch, None, asked)
    times = fit(state, Slow()).at(time.time()).times
    assert {name: round(seconds, 3) for name, seconds in times.items() if name[5:-2] in (*PHASES, "wall", "other")} == {
        "time/startup_s": 7,
        "time/data_s": 5,
        # After three steps nothing of a stretch follows.
        "time/training_s": 11 * 1 + 8 * 10 + 8 * 40_000 + 3 * 6_000_000,
        "time/evaluation_s": 70_000_000,
        "time/checkpoint_s": 3 * 503_000,
        "time/other_s": 3 * 10 + 3 * 40_000 + 200,
        "time/wall_s": 12 + 11 + 11 * 40_010 + 3 * 6_503_000 + 70_000_000 + 200,
    }
    # The first step does not count as an iteration; the agreement to stop is communication.
    parts = {name[10:-2]: seconds for name, seconds in times.items() if name.startswith("time/step_")}
    assert parts == {"communication": 8 * 40_000 / 10, "optimizer": 1}
    iterations = {name: seconds for name, seconds in times.items() if "iteration" in name or name[5:] == "epoch_mean_s"}
    assert iterations == pytest.approx(
        {
            "time/iteration_mean_s": 1 + 8 * 40_010 / 10,
            "time/iteration_median_s": 40_011,
            "time/iteration_p95_s": 40_011,
            "time/epoch_mean_s": times["time/training_s"],
        }
    )
    assert times["images_per_s"] == pytest.approx(32 / (1 + 8 * 4_001))


def test_the_speed_of_workers_out_of_step_counts_their_pauses(
    small: TrainConfig, few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clock, "pace", lambda self: 4.0)
    for together in (True, False):
        monkeypatch.setattr(DDP, "synchronous", together)
        times = train_here(replace(small, epochs=1), few, tmp_path / str(together)).times
        seconds = times["time/iteration_mean_s"] if together else 4.0
        assert times["images_per_s"] == pytest.approx(32 / seconds)


def test_threads_and_seed_are_those_asked_for(small: TrainConfig, few: Dataset, tmp_path: Path) -> None:
    hashes = []
    for run, (threads, seed) in enumerate(((2, 1), (1, 1), (1, 1), (1, 2))):
        config = replace(small, epochs=1, steps_per_epoch=2, cpus_per_worker=threads, seed=seed)
        hashes.append(train_here(config, few, tmp_path / str(run)).weights_sha256)
        assert torch.get_num_threads() == threads
    assert hashes[1] == hashes[2] != hashes[3]


def prepared(model: str, dataset: Dataset, folder: Path) -> setup.TrainingState:
    """What a run of ``model`` on digits starts from."""
    config = resolved({"dataset": "digits", "model": model, "precision": "fp32"}, global_batch_size=32)
    return setup.prepare(config, Decided.asked(config), dataset, folder, Worker(), Launch(0.0, 0.0))


def test_batch_norms_are_synchronised(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built, not run: it needs GPUs."""
    monkeypatch.setattr(recipe, "check_place", lambda *_: None)
    small = {"dataset": "digits", "model": "resnet", "model_options": {"blocks": (1,), "width": 4}, "precision": "fp32"}
    for synchronised in (True, False):
        wanted = resolved(small, sync_batchnorm=synchronised)
        monkeypatch.setattr(strategies.of(wanted), "warm_ups", 0)
        job = setup.prepare(
            wanted, Decided.asked(wanted), digits, tmp_path / str(synchronised), Worker(), Launch(0.0, 0.0)
        )
        norms = [layer for layer in job.model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        assert {type(layer) for layer in norms} == {nn.SyncBatchNorm if synchronised else nn.BatchNorm2d}
        assert job.model.training
        weights = [parameter for parameter in job.model.parameters() if parameter.ndim == 4]
        assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_images_vary_as_the_recipe_says(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def crop_and_flip(images: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(rest[-2])
        return images

    monkeypatch.setattr(augment, "crop_and_flip", crop_and_flip)
    for model, variation in (("speednet", augment.Variation(2, True, True)), ("resnet", augment.USUAL)):
        prepared(model, digits, tmp_path)
        assert seen.pop() == variation


class Counts(nn.Linear):
    """Its count of passes is in no checkpoint."""

    passes: torch.Tensor

    def __init__(self) -> None:
        super().__init__(3, 10)
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(images.mean((2, 3)))


def test_passes_that_only_set_up_change_nothing(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.models, "build", lambda config, spec: Counts())
    job = prepared("simple_cnn", digits, tmp_path)
    assert job.model.passes == 0
    job.strategy.gradients(job.loader.micro_batches(0, 0))
    assert job.model.passes == 1


def test_a_worker_needs_no_folder_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another node there may be none, and nobody has looked at it."""
    folder_of_digits(tmp_path / "images", 40)
    usual = {"dataset": f"folder:{tmp_path / 'images'}", "data_dir": str(tmp_path), "model": "simple_cnn", "epochs": 1}
    config = resolved(usual, strategy="gpipe", topology="1x2", global_batch_size=20, precision="fp32")
    dataset = data.read(config)
    shutil.rmtree(tmp_path / "images")
    monkeypatch.setattr(data, "_known", {})
    for outcome, _ in train_on_threads(config, dataset, tmp_path / "run"):
        assert isinstance(outcome, Outcome)
    monkeypatch.setattr(data, "_known", {})
    assert preparation._measure(config, dataset.spec, "cpu", 1).precision == "fp32"
