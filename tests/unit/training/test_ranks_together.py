"""What the loop writes down of several ranks, which are threads of this process."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cifar_ray import models, strategies
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.strategies.protocol import Strategy, StrategyContext
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks.classification import Classification
from cifar_ray.training import checkpoint, hardware, record
from cifar_ray.training.errors import DivergedError
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.observer import Outcome, Row, SavedCheckpoint
from cifar_ray.training.stopping import StoppedError
from tests.support.helpers import Recorder, resolved
from tests.support.threads import on_threads
from tests.support.threads import train_on_threads as train

pytestmark = pytest.mark.slow

USUAL = {
    "dataset": "digits", "model": "simple_cnn", "strategy": "all_reduce", "topology": "1x2", "global_batch_size": 64,
    "precision": "fp32", "log_every": 1, "steps_per_epoch": 4, "epochs": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    """Digits with few test images."""
    return replace(digits, test=digits.test.at(slice(61)))


def done(results: list[tuple[Outcome | Exception, Recorder]]) -> list[Outcome]:
    """The outcomes of ranks that have all come to their end."""
    ends = [end for end, _ in results if isinstance(end, Outcome)]
    assert len(ends) == len(results)
    return ends


def losses(rows: tuple[Row, ...] | list[Row]) -> dict[int, list[float]]:
    """The losses of both ranks by optimizer step."""
    rows = [row for row in rows if row.kind == "iteration"]
    return {row.step: [row.metrics[f"train/loss_rank{rank}"] for rank in range(2)] for row in rows}


def close(each: dict[int, list[float]]) -> dict[int, Any]:
    """Equal but for rounding; to the last bit, ranks that are processes show it."""
    return {step: pytest.approx(two, rel=1e-4) for step, two in each.items()}


@pytest.mark.parametrize("every", [0, 3])
def test_an_epochs_loss_is_the_mean(every: int, few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many checkpoints were written meanwhile."""
    monkeypatch.setattr(hardware, "peak_memory_mib", lambda device: 100.5 + dist.get_rank())
    results = train(resolved(USUAL, checkpoint_every=every), few, tmp_path)
    (outcome, other), (recorder, heard) = done(results), (heard for _, heard in results)
    kept_steps = {0: [4, 8], 3: [3, 4, 6, 8]}[every]
    assert [saved.step for saved in recorder.checkpoints] == kept_steps  # the end of an epoch has one, and no other
    each = losses(recorder.rows)
    assert each == losses(heard.rows)
    assert all(first != second for first, second in each.values())
    for record_, steps in zip(recorder.epochs, ((1, 2, 3, 4), (5, 6, 7, 8)), strict=True):
        mean = sum(sum(each[step]) for step in steps) / 8
        assert record_.row.metrics["train/epoch_loss"] == pytest.approx(mean, rel=1e-6)
        assert sum(map(sum, record_.confusion)) == len(few.test["labels"])
        assert [len(values) for values in record_.per_class.values()] == [10] * 4
    means = [sum(two) / 2 for two in each.values()]
    assert [row.metrics["train/loss"] for row in recorder.rows] == pytest.approx(means)
    assert (other.weights_sha256, other.checkpoint) == (outcome.weights_sha256, outcome.checkpoint)
    assert outcome.weights_sha256 == recorder.checkpoints[-1].weights_sha256
    for end in (outcome, other):
        memory = {name: value for name, value in end.metrics.items() if "memory" in name}
        assert memory == {"peak_memory_mib": 101.5, "peak_memory_mib_rank0": 100.5, "peak_memory_mib_rank1": 101.5}
        assert "test/loss_rank0" not in end.metrics
    if every:
        kept = checkpoint.load(tmp_path / "step-00000006")
        assert kept.epoch_loss == pytest.approx(sum(means[4:6]), rel=1e-6)
        assert (kept.epoch, kept.score) == (1, None)


def test_ranks_stop_after_the_same_step_and_go_on_as_if_they_had_not(few: Dataset, tmp_path: Path) -> None:
    """But not when nothing is left to train."""
    config = resolved(USUAL)
    results = train(config, few, tmp_path / "whole", asked=lambda heard: len(heard.steps) >= 7)
    whole, told = done(results)[0], results[0][1]
    assert told.steps == list(range(1, 9))
    stopped = train(config, few, tmp_path / "parts", asked=lambda heard: len(heard.steps) >= 5)
    assert [(type(end), str(end)) for end, _ in stopped] == [(StoppedError, "stopped after step 6")] * 2
    results = train(config, few, tmp_path / "parts")
    (after, other), (heard, silent) = done(results), (heard for _, heard in results)
    begun = heard.begun[0]
    assert (begun.step, begun.resumed_from, begun.skipped) == (6, str(tmp_path / "parts/step-00000006"), ())
    assert losses(list(begun.history)) == close({step: two for step, two in losses(told.rows).items() if step <= 6})
    assert (silent.begun, heard.steps, silent.steps) == ([], [7, 8], [7, 8])
    assert after.weights_sha256 == other.weights_sha256
    assert losses(after.history) == losses(other.history) == close(losses(whole.history))
    assert after.metrics["train/epoch_loss"] == other.metrics["train/epoch_loss"]
    assert after.metrics["train/epoch_loss"] == pytest.approx(whole.metrics["train/epoch_loss"], rel=1e-4)


def test_when_rank_0_is_refused_or_cannot_write_the_others_end_with_it(few: Dataset, tmp_path: Path) -> None:
    class Full(Recorder):
        def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
            raise OSError("no room")

    (tmp_path / "refused" / "step-00000004").mkdir(parents=True)
    for name, said in (("refused", "no usable checkpoint in "), ("full", "no room")):
        first, second = (str(end) for end, _ in train(resolved(USUAL), few, tmp_path / name, Full))
        assert first.startswith(said)
        assert second.startswith("rank 0 has failed")


@pytest.mark.parametrize(
    ("strategy", "values"), [("all_reduce", {}), ("local_sgd", {"strategy_options": {"sync_every": 3}})]
)
def test_every_ranks_own_replica_is_tested(
    strategy: str, values: dict[str, object], few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[int, nn.Module] = {}
    build = strategies.build

    def kept(context: StrategyContext) -> Strategy:
        mine.model = context.model
        return build(context)

    class Last(Recorder):
        def step_done(self, epoch: int, step: int, row: Row | None) -> None:
            if step == 8:
                for buffer in mine.model.buffers():  # so few steps would leave them much alike
                    buffer += dist.get_rank()
                own[dist.get_rank()] = copy.deepcopy(mine.model)

    mine = threading.local()
    monkeypatch.setattr(strategies, "build", kept)
    small = {"model": "resnet", "model_options": {"blocks": (1,), "width": 4}, "per_rank_test": True}
    config = resolved(USUAL, strategy=strategy, **small, **values)
    results = train(config, few, tmp_path, Last)
    outcome, other = done(results)
    evaluator = Evaluator(few, Worker(), Classification(TrainConfig()))
    for rank in (0, 1):
        alone = evaluator.alone(own[rank]).metrics
        found = (outcome.metrics[f"test/loss_rank{rank}"], outcome.metrics[f"test/accuracy_rank{rank}"])
        assert found == pytest.approx((alone["loss"], alone["accuracy"]), rel=1e-4)
        assert other.metrics[f"test/loss_rank{rank}"] == found[0]
    assert outcome.metrics["test/loss_rank0"] != pytest.approx(outcome.metrics["test/loss_rank1"], rel=1e-3)
    assert not [name for name in results[0][1].epochs[0].row.metrics if "rank" in name]  # the last epoch alone
    shared = models.build(config, few.spec)
    shared.load_state_dict(checkpoint.load(Path(outcome.checkpoint)).weights)
    assert outcome.metrics["test/loss"] == pytest.approx(evaluator.alone(shared).metrics["loss"], rel=1e-4)


def test_where_nothing_is_a_ranks_own_each_has_the_figures_of_all(few: Dataset, tmp_path: Path) -> None:
    shards = {"strategy": "reproducible", "strategy_options": {"shards": 2}, "steps_per_epoch": 1}
    outcome, _ = done(train(resolved(USUAL, per_rank_test=True, **shards), few, tmp_path))
    for name in ("loss", "accuracy"):  # the sum of all ranks' shares may round otherwise than that of all images
        of_all = pytest.approx(outcome.metrics[f"test/{name}"], rel=1e-12)
        assert [outcome.metrics[f"test/{name}_rank{rank}"] for rank in (0, 1)] == [of_all, of_all]


def test_one_ranks_loss_that_is_not_finite_ends_them_all() -> None:
    def one(worker: Worker) -> int:
        loss = torch.tensor(float("nan") if worker.rank == 1 else 2.0, dtype=torch.float64)
        state: Any = SimpleNamespace(worker=worker, epoch_loss=loss, step=7)
        with pytest.raises(DivergedError, match="at step 7;"):
            record._sum_losses(state)
        return worker.rank

    assert on_threads(2, one) == [0, 1]


@pytest.mark.parametrize("seen", [[1.0, float("inf")], [float("nan"), 1.0]])
def test_a_logged_loss_of_any_rank_that_is_not_finite_ends_the_run(seen: list[float]) -> None:
    strategy = SimpleNamespace(losses=lambda loss: seen, synchronous=True, may_pause=True)
    state: Any = SimpleNamespace(strategy=strategy, step=3, history=[], config=SimpleNamespace(log_every=1))
    with pytest.raises(DivergedError, match="at step 3;"):
        record.iteration(state, torch.tensor(1.0), 0.1)
    assert state.history == []


def test_a_checkpoint_is_due_at_every_multiple_or_before_leaving() -> None:
    due_at = {(4, 4, 0, False), (4, 9, 7, False), (4, 9, 8, True), (0, 8, 0, True)}  # 9 after 7: it had to wait at 8
    for each in {*due_at, (0, 8, 0, False), (4, 3, 0, False), (4, 7, 4, False)}:
        every, step, saved, leaving = each
        for may_pause in (True, False):
            state: Any = SimpleNamespace(
                config=SimpleNamespace(checkpoint_every=every), step=step, saved=saved,
                stopper=SimpleNamespace(leaving=leaving), strategy=SimpleNamespace(may_pause=may_pause),
            )  # fmt: skip
            assert record.due(state) == (each in due_at and may_pause), each
