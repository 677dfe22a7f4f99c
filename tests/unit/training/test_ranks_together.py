"""What the loop writes down of several ranks, which are threads of this process."""

from __future__ import annotations

import copy
import threading
import time
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
from cifar_ray.training import checkpoint, hardware, record, stopping
from cifar_ray.training.clock import Clock
from cifar_ray.training.errors import DivergedError
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.observer import Outcome, Row, SavedCheckpoint
from cifar_ray.training.stopping import StoppedError
from tests.support.helpers import Recorder, resolved
from tests.support.threads import on_threads
from tests.support.threads import train_on_threads as train

USUAL = {
    "dataset": "digits", "model": "simple_cnn", "strategy": "all_reduce", "topology": "1x2", "global_batch_size": 64,
    "precision": "fp32", "log_every": 1, "steps_per_epoch": 4, "epochs": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    """Digits with few test images."""
    return replace(digits, test=digits.test.at(slice(61)))


def losses(rows: tuple[Row, ...] | list[Row]) -> dict[int, list[float]]:
    """The losses of both ranks by optimizer step."""
    rows = [row for row in rows if row.kind == "iteration"]
    return {row.step: [row.metrics[f"train/loss_rank{rank}"] for rank in range(2)] for row in rows}


def close(each: dict[int, list[float]]) -> dict[int, Any]:
    """Equal but for rounding; to the last bit, ranks that are processes show it."""
    return {step: pytest.approx(two, rel=1e-4) for step, two in each.items()}


@pytest.mark.parametrize("every", [0, 1, 3])
def test_an_epochs_loss_is_the_mean_over_all_ranks_and_steps(every: int, few: Dataset, tmp_path: Path) -> None:
    """However many checkpoints were written meanwhile."""
    (outcome, recorder), (other, heard) = train(resolved(USUAL, checkpoint_every=every), few, tmp_path)
    assert isinstance(outcome, Outcome)
    assert isinstance(other, Outcome)
    kept_steps = {0: [4, 8], 1: [1, 2, 3, 4, 5, 6, 7, 8], 3: [3, 4, 6, 8]}[every]
    assert [saved.step for saved in recorder.checkpoints] == kept_steps  # the end of an epoch has one, and no other
    each = losses(recorder.rows)
    assert each == losses(heard.rows)
    assert all(first != second for first, second in each.values())
    for record_, steps in zip(recorder.epochs, ((1, 2, 3, 4), (5, 6, 7, 8)), strict=True):
        mean = sum(sum(each[step]) for step in steps) / 8
        assert record_.row.metrics["train/epoch_loss"] == pytest.approx(mean, rel=1e-6)
        assert sum(map(sum, record_.confusion)) == len(few.test["labels"])
        assert [len(values) for values in record_.per_class.values()] == [10] * 4
    assert [row.metrics["train/loss"] for row in recorder.rows] == pytest.approx(
        [sum(two) / 2 for two in each.values()]
    )
    assert (other.weights_sha256, other.checkpoint) == (outcome.weights_sha256, outcome.checkpoint)
    assert outcome.weights_sha256 == recorder.checkpoints[-1].weights_sha256
    if every:
        step, first = (7, 5) if every == 1 else (6, 5)
        kept = checkpoint.load(tmp_path / f"step-{step:08d}")
        assert kept.epoch_loss == pytest.approx(sum(sum(each[n]) / 2 for n in range(first, step + 1)), rel=1e-6)
        assert (kept.epoch, kept.score) == (1, None)


def test_ranks_stop_after_the_same_step_and_go_on_as_if_they_had_not(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_MOST_STEPS", 1)
    config = resolved(USUAL)
    (whole, told), _ = train(config, few, tmp_path / "whole")
    assert isinstance(whole, Outcome)
    stopped = train(config, few, tmp_path / "parts", asked=lambda heard: len(heard.steps) >= 5)
    assert [(type(end), str(end)) for end, _ in stopped] == [(StoppedError, "stopped after step 6")] * 2
    (after, heard), (other, silent) = train(config, few, tmp_path / "parts")
    assert isinstance(after, Outcome)
    assert isinstance(other, Outcome)
    begun = heard.begun[0]
    assert (begun.step, begun.resumed_from, begun.skipped) == (6, str(tmp_path / "parts/step-00000006"), ())
    assert losses(list(begun.history)) == close({step: two for step, two in losses(told.rows).items() if step <= 6})
    assert silent.begun == []
    assert heard.steps == silent.steps == [7, 8]
    assert after.weights_sha256 == other.weights_sha256
    assert losses(after.history) == losses(other.history) == close(losses(whole.history))
    assert after.metrics["train/epoch_loss"] == other.metrics["train/epoch_loss"]
    assert after.metrics["train/epoch_loss"] == pytest.approx(whole.metrics["train/epoch_loss"], rel=1e-4)


def test_nobody_is_stopped_when_nothing_is_left_to_train(few: Dataset, tmp_path: Path) -> None:
    results = train(resolved(USUAL), few, tmp_path, asked=lambda heard: len(heard.steps) >= 7)
    assert [type(end) for end, _ in results] == [Outcome] * 2
    assert results[0][1].steps == list(range(1, 9))


def test_a_refusal_of_rank_0_ends_every_rank(few: Dataset, tmp_path: Path) -> None:
    (tmp_path / "step-00000004").mkdir()
    results = train(resolved(USUAL), few, tmp_path)
    first, second = (str(end) for end, _ in results)
    assert first.startswith(f"no usable checkpoint in {tmp_path}: checkpoint {tmp_path}/step-00000004 has a manifest")
    assert second == "rank 0 has failed, and its own error says why"


def test_when_rank_0_cannot_write_the_others_end_with_it(few: Dataset, tmp_path: Path) -> None:
    class Full(Recorder):
        def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
            raise OSError("no room")

    results = train(resolved(USUAL), few, tmp_path, Full)
    assert [str(end) for end, _ in results] == ["no room", "rank 0 has failed, and its own error says why"]


@pytest.mark.parametrize(
    ("strategy", "values"), [("all_reduce", {}), ("local_sgd", {"strategy_options": {"sync_every": 3}})]
)
def test_every_ranks_own_replica_is_tested_beside_the_model_they_share(
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
    config = resolved(
        USUAL,
        model="resnet",
        model_options={"blocks": (1,), "width": 4},
        strategy=strategy,
        per_rank_test=True,
        **values,
    )
    (outcome, recorder), (other, _) = train(config, few, tmp_path, Last)
    assert isinstance(outcome, Outcome)
    assert isinstance(other, Outcome)
    evaluator = Evaluator(few, Worker(), Classification(TrainConfig()))
    found = [
        (outcome.metrics[f"test/loss_rank{rank}"], outcome.metrics[f"test/accuracy_rank{rank}"]) for rank in (0, 1)
    ]
    for rank in (0, 1):
        alone = evaluator.alone(own[rank]).metrics
        assert found[rank] == pytest.approx((alone["loss"], alone["accuracy"]), rel=1e-4)
    assert found[0][0] != pytest.approx(found[1][0], rel=1e-3)
    assert not [name for name in recorder.epochs[0].row.metrics if "rank" in name]  # the last epoch alone
    shared = models.build(config, few.spec)
    shared.load_state_dict(checkpoint.load(Path(outcome.checkpoint)).weights)
    assert outcome.metrics["test/loss"] == pytest.approx(evaluator.alone(shared).metrics["loss"], rel=1e-4)
    assert [other.metrics[f"test/loss_rank{rank}"] for rank in (0, 1)] == [found[0][0], found[1][0]]


def test_nothing_is_a_ranks_own_unless_asked_for(few: Dataset, tmp_path: Path) -> None:
    (outcome, _), _ = train(resolved(USUAL), few, tmp_path)
    assert isinstance(outcome, Outcome)
    assert "test/loss_rank0" not in outcome.metrics


def test_where_nothing_is_a_ranks_own_each_has_the_figures_of_all(few: Dataset, tmp_path: Path) -> None:
    (outcome, _), _ = train(
        resolved(USUAL, strategy="reproducible", strategy_options={"shards": 2}, per_rank_test=True), few, tmp_path
    )
    assert isinstance(outcome, Outcome)
    for name in ("loss", "accuracy"):  # the sum of all ranks' shares may round otherwise than that of all images
        of_all = pytest.approx(outcome.metrics[f"test/{name}"], rel=1e-12)
        assert [outcome.metrics[f"test/{name}_rank{rank}"] for rank in (0, 1)] == [of_all, of_all]


def test_memory_is_told_of_every_rank(few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "peak_memory_mib", lambda device: 100.5 + dist.get_rank())
    results = train(resolved(USUAL, epochs=1), few, tmp_path)
    for outcome, _ in results:
        assert isinstance(outcome, Outcome)
        found = {name: value for name, value in outcome.metrics.items() if "memory" in name}
        assert found == {"peak_memory_mib": 101.5, "peak_memory_mib_rank0": 100.5, "peak_memory_mib_rank1": 101.5}


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


@pytest.mark.parametrize(("may_pause", "parts"), [(True, {}), (False, {"communication": 3.0})])
def test_a_wait_for_losses_is_communication_where_ranks_have_drifted_apart(
    may_pause: bool, parts: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def losses(loss: torch.Tensor) -> list[float]:
        nonlocal now
        now += 3.0
        return [1.0, 2.0]

    clock = Clock(torch.device("cpu"), 0.0)
    strategy = SimpleNamespace(losses=losses, synchronous=True, may_pause=may_pause)
    state: Any = SimpleNamespace(
        strategy=strategy, step=3, history=[], clock=clock, config=SimpleNamespace(log_every=1)
    )
    clock.start()
    clock.lap()  # the first does not count
    record.iteration(state, torch.tensor(1.0), 0.1)
    clock.lap()
    clock.stop()
    assert clock.iterations()["iteration_mean_s"] == 3
    assert clock.parts() == parts


@pytest.mark.parametrize(
    ("every", "step", "saved", "leaving", "due"),
    [
        (0, 8, 0, False, False),
        (0, 8, 0, True, True),
        (4, 3, 0, False, False),
        (4, 4, 0, False, True),
        (4, 5, 4, False, False),
        (4, 7, 4, False, False),
        (4, 8, 4, False, True),
        (4, 9, 7, False, True),  # due at step 8, where it had to wait
        (4, 9, 8, True, True),
    ],
)
def test_a_checkpoint_is_due_at_every_multiple_or_before_leaving(
    every: int, step: int, saved: int, leaving: bool, due: bool
) -> None:
    for may_pause in (True, False):
        state: Any = SimpleNamespace(
            config=SimpleNamespace(checkpoint_every=every), step=step, saved=saved,
            stopper=SimpleNamespace(leaving=leaving), strategy=SimpleNamespace(may_pause=may_pause),
        )  # fmt: skip
        assert record.due(state) == (due and may_pause)
