"""Text classification: batches by length, and the same weights at any number of workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cifar_ray import data, tasks
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import order, tokens
from cifar_ray.data.loader import DataShard, TrainLoader
from cifar_ray.tracking import artifacts
from cifar_ray.training import checkpoint, predictor, recipe
from cifar_ray.training.observer import Outcome
from examples.text import make_texts
from tests.support.helpers import contents, resolved, train_here
from tests.support.threads import evaluated, train_everywhere, train_on_threads

USUAL: dict[str, object] = {"model": "textcnn", "model_options": {"dim": 8, "filters": 8, "dropout": 0.0}}
USUAL |= {"text": {"vocabulary": 400, "max_length": 40}, "optimizer": "adamw", "lr": 0.01, "weight_decay": 0.0}
USUAL |= {"precision": "fp32", "global_batch_size": 16, "epochs": 2, "warmup_epochs": 0.0}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """192 reviews for training, and 48 for the test."""
    folder = tmp_path_factory.mktemp("texts") / "reviews"
    make_texts.make(folder, 240)
    return {**USUAL, "dataset": f"text:{folder}"}


def batches(asked: ResolvedConfig, shard: DataShard, epoch: int) -> list[Tensor]:
    loader = TrainLoader(asked, Decided.asked(asked), data.read(asked), shard, torch.device("cpu"))
    return [micro.inputs for step in range(loader.steps_per_epoch) for micro in loader.micro_batches(epoch, step)]


def test_a_global_batch_is_as_long_as_its_longest_text_at_any_number_of_workers(usual: dict[str, object]) -> None:
    asked = resolved(usual)
    rows = data.read(asked).train.inputs
    whole = batches(asked, DataShard(), epoch=1)
    assert len(whole) == order.steps_per_epoch(192, 16) == 12
    shares = [batches(asked, DataShard(rank, 4), epoch=1) for rank in range(4)]
    for batch, *parts in zip(whole, *shares):
        assert torch.equal(torch.cat(parts), batch)
        assert batch.shape[1] == tokens.widths(np.pad(batch.numpy(), ((0, 0), (0, 40 - batch.shape[1])))).max()
    assert len({batch.shape[1] for batch in whole}) > 1
    seen = {tuple(text[text > 0].tolist()) for batch in whole for text in batch}
    assert seen == {tuple(row[row > 0].tolist()) for row in rows}


def test_stages_of_fixed_shapes_get_texts_of_one_length(usual: dict[str, object]) -> None:
    assert {batch.shape for batch in batches(resolved(usual), DataShard(one_shape=True), epoch=0)} == {(16, 40)}


@pytest.mark.slow
def test_weights_are_the_same_at_any_world_size_and_after_a_stop(usual: dict[str, object], tmp_path: Path) -> None:
    more: dict[str, object] = {"strategy": "reproducible", "ema": 0.9, "val_share": 0.2, "class_weights": "balanced"}
    snapshots = train_everywhere(
        partial(resolved, usual, **more, steps_per_epoch=2, log_every=1), tmp_path, stop_after=3
    )
    assert len({snapshot.encoding for snapshot in snapshots}) == 1


@pytest.mark.parametrize(("strategy", "padding"), [("ddp", 0.3), ("gpipe", 0.7), ("local_sgd", 0.3)])
def test_other_strategies_train_it(strategy: str, padding: float, usual: dict[str, object], tmp_path: Path) -> None:
    asked = resolved(usual, topology="1x2", strategy=strategy)
    (outcome, _), *_ = train_on_threads(asked, data.read(asked), tmp_path)
    assert isinstance(outcome, Outcome)
    assert outcome.metrics["test/loss"] < 0.8
    assert outcome.times["tokens_per_s"] > 5 * outcome.times["texts_per_s"]
    assert 0 < outcome.times["padding_share"] < padding


def test_figures_are_those_of_all_workers_together(usual: dict[str, object]) -> None:
    assert evaluated(resolved(usual)).images == 48  # type: ignore[arg-type]


def test_a_checkpoint_has_the_tokenizer_and_answers_for_texts(usual: dict[str, object], tmp_path: Path) -> None:
    asked = resolved(usual)
    dataset = data.read(asked)
    outcome = train_here(asked, dataset, tmp_path)
    snapshot = checkpoint.load(checkpoint.every(tmp_path)[-1])
    assert snapshot.encoding == dataset.encoding
    again = data.read(snapshot.config, encoding=snapshot.encoding)
    found = recipe.settle(snapshot.config, Decided.asked(snapshot.config), again).facts
    assert (found.digest, found.mean, found.length, found.vocabulary) == (again.spec.digest, (), 40, 400)
    rows = tokens.cut(dataset.test.inputs)
    with torch.inference_mode():
        answers = predictor.of(checkpoint.every(tmp_path)[-1])(torch.from_numpy(rows))
    right = answers.argmax(1).numpy() == dataset.test["labels"]
    assert right.mean() == pytest.approx(outcome.metrics["test/accuracy"])
    wrong = artifacts.mistakes(outcome.mistakes, dataset)
    assert len(wrong) == min(16, (~right).sum())
    first = outcome.mistakes[0]
    assert wrong[0]["true"] == dataset.spec.names[dataset.test["labels"][first.position]]
    assert wrong[0]["text"] == tokens.decode(dataset.encoding, dataset.test.inputs[first.position])


def test_another_tokenizer_makes_other_data(usual: dict[str, object]) -> None:
    asked = resolved(usual)
    found = recipe.settle(asked, Decided.asked(asked), data.read(asked))
    other = data.read(asked, encoding=tokens.train(["another text"], **asked.text))
    with pytest.raises(ConfigError, match=r"dataset must have the .* that the run began with"):
        recipe.settle(asked, found, other)


def test_a_text_is_cut_and_counted(usual: dict[str, object]) -> None:
    asked = resolved(usual, text={"vocabulary": 400, "max_length": 12})
    dataset = data.read(asked)
    assert dataset.train.inputs.shape == (192, 12)
    assert contents(dataset, tasks.spec(asked, dataset.spec)).endswith(" texts longer than 12 tokens, cut there")


DIGITS: dict[str, object] = {"dataset": "digits", "text": {}, "model_options": {}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"image_size": 64}, "^image_size is for --dataset folder:PATH, .* only"),
        ({"model": "resnet", "model_options": {}}, "^model must be textcnn, lstm, text_transformer or one of your own"),
        ({"task": "segmentation"}, "^task must learn the labels of text:.*, and segmentation learns masks"),
        *(({**DIGITS, "model": model}, "^model must be simple_cnn, ") for model in ("lstm", "unet")),
        ({"dataset": "digits"}, r"^text.* is for --dataset text:PATH only, and the dataset is digits"),
    ],
)
def test_what_does_not_fit_texts_is_refused(values: dict[str, object], sentence: str, usual: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolved(usual, **values)


def test_top_five_of_two_classes_is_no_figure(usual: dict[str, object]) -> None:
    asked = resolved(usual)
    task = tasks.spec(asked, data.facts(asked))
    assert task.unit == "texts"
    assert [tasks.has_optional(task, classes) for classes in (2, 21)] == [False, True]
