"""What chooses a run's best checkpoint: the validation images, and never the test images."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cifar_ray import data, tasks
from cifar_ray.config import runfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.run import limits
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks import USUAL, choosing
from cifar_ray.training import checkpoint, predictor, recipe
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.observer import Outcome
from tests.support import typed
from tests.support.helpers import Recorder, digest, small_config, train_here
from tests.support.threads import train_everywhere, train_on_threads
from tests.unit.tasks.test_own_task import config as ink

SHORT = {"val_share": 0.2, "log_every": 1, "steps_per_epoch": 4, "lr": 0.2}
validated = partial(small_config, "reproducible", epochs=3, global_batch_size=32, **SHORT)


def of(**values: object) -> ResolvedConfig:
    return recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", **values))  # type: ignore[arg-type]


def shuffled(dataset: Dataset) -> Dataset:
    """The same with other labels in the test."""
    labels = np.roll(dataset.test["labels"], 7) * 3 % 10
    return replace(dataset, test=replace(dataset.test, columns={**dataset.test.columns, "labels": labels}))


def best(folder: Path) -> Path:
    path = checkpoint.best(folder)
    assert path is not None
    return path


def test_validation_is_measured_every_epoch_and_the_test_at_the_end(tmp_path: Path) -> None:
    """And a run whose epochs are all done is tested again when it is resumed."""
    config = validated("1x1")
    dataset = data.read(config)
    outcome = train_here(config, dataset, tmp_path, recorder := Recorder())
    assert dataset.val is not None
    measured = [record.row.metrics for record in recorder.epochs]
    assert all("val/accuracy" in row and not any(name.startswith("test/") for name in row) for row in measured)
    assert all(sum(map(sum, record.confusion)) == len(dataset.val) for record in recorder.epochs)
    accuracies = [row["val/accuracy"] for row in measured]
    epoch = accuracies.index(max(accuracies)) + 1
    metrics = outcome.metrics
    assert (metrics["best/accuracy"], metrics["chosen/epoch"]) == (max(accuracies), epoch)
    assert (metrics["val/images"], metrics["test/images"]) == (len(dataset.val), 360)
    assert [saved.score for saved in recorder.checkpoints] == accuracies
    assert best(tmp_path).name == f"step-{4 * epoch:08d}"
    for prefix, path in (("test/", Path(outcome.checkpoint)), ("chosen/test/", best(tmp_path))):
        model = predictor.of(path, checkpoint.load(path)).model
        alone = Evaluator(dataset, Worker(), tasks.build(config, dataset.spec))(model)
        assert {name: metrics[f"{prefix}{name}"] for name in alone.metrics} == alone.metrics
    assert (outcome.confusion, outcome.per_class) == (alone.confusion, alone.per_class)
    again = train_here(config, dataset, tmp_path)
    known = {name: value for name, value in metrics.items() if not name.startswith("peak_memory")}
    assert known.items() <= again.metrics.items()
    assert again.confusion == outcome.confusion


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "local_sgd", "gpipe"])
def test_ranks_that_hold_parts_test_the_chosen_checkpoint_whole(strategy: str, tmp_path: Path) -> None:
    config = small_config(strategy, "1x2", val_share=0.2, steps_per_epoch=2)
    dataset = data.read(config)
    ranks = train_on_threads(config, dataset, tmp_path)
    model = predictor.of(best(tmp_path), checkpoint.load(best(tmp_path))).model
    alone = Evaluator(dataset, Worker(), tasks.build(config, dataset.spec))(model)
    for outcome, _ in ranks:
        assert isinstance(outcome, Outcome)
        assert outcome.metrics["chosen/test/accuracy"] == alone.metrics["accuracy"]


def test_a_best_checkpoint_that_is_damaged_meanwhile_is_told_and_the_last_one_counts(tmp_path: Path) -> None:
    config = validated("1x1", lr=3.0, epochs=4)
    dataset = data.read(config)
    whole = train_here(config, dataset, tmp_path / "whole")
    epoch = int(whole.metrics["chosen/epoch"])
    assert epoch < 4

    class Damaging(Recorder):
        def step_done(self, *event: Any) -> None:
            super().step_done(*event)
            if event[1] == 15:
                path = tmp_path / "damaged" / f"step-{4 * epoch:08d}" / "weights.safetensors"
                path.write_bytes(path.read_bytes()[:-9])

    outcome = train_here(config, dataset, tmp_path / "damaged", Damaging())
    assert outcome.untested.startswith(f"the best checkpoint, of epoch {epoch}, cannot be tested: checkpoint ")
    assert str(tmp_path) not in outcome.untested
    assert outcome.weights_sha256 == whole.weights_sha256
    assert outcome.metrics["test/accuracy"] == whole.metrics["test/accuracy"]
    lost = {name for name in whole.metrics.keys() - outcome.metrics.keys() if not name.startswith(("peak", "epoch_s"))}
    assert lost == {name for name in whole.metrics if name.startswith(("chosen/", "best/"))}


def test_a_plain_run_chooses_nothing(small: TrainConfig, digits: Dataset, tmp_path: Path) -> None:
    config = replace(small, steps_per_epoch=2, keep_checkpoints=1)
    outcome = train_here(config, digits, tmp_path, recorder := Recorder())
    assert not any(name.startswith(("val/", "best/", "chosen/")) for name in outcome.metrics)
    assert not any(saved.best for saved in recorder.checkpoints)
    assert [path.name for path in checkpoint.every(tmp_path)] == ["step-00000004"]
    with pytest.raises(CheckpointError, match="--val-share"):
        checkpoint.chosen(tmp_path)


@pytest.mark.parametrize(
    ("values", "chooser", "share"),
    [
        ({}, "", None),
        ({"val_share": 0.0}, "", None),
        ({"log_models": "all"}, "", 0.1),
        ({"log_models": "best", "val_share": 0.3}, "", 0.3),
        ({}, "--scheduler asha", 0.1),
    ],
)
def test_a_share_is_taken_where_something_chooses(values: dict[str, object], chooser: str, share: float | None) -> None:
    asked = TrainConfig(dataset="digits", **values)  # type: ignore[arg-type]
    config = recipe.resolve(asked, chooser)
    assert config.val_share == share
    assert bool([*recipe.notes(config, asked)]) == (share == 0.1)
    assert recipe.resolve(runfile.resolved_from_mapping(runfile.to_mapping(config))) == config
    again = typed.run(*recipe.command(config).split()[2:])
    assert recipe.resolve(again) == replace(config, log_models=again.log_models)
    objective = choosing.objective(USUAL, data.facts(config))
    assert (objective and objective.metric) == ("val/accuracy" if share else None)


@pytest.mark.parametrize("values", [{"val_share": 0.0, "log_models": "best"}, {"val_share": 1.0}])
def test_what_leaves_nothing_to_choose_by_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as refused:
        of(**values)
    assert refused.value.key == "val_share"


EPOCHS = 30
impatient = partial(small_config, "reproducible", epochs=EPOCHS, **SHORT)


def after_the_best(accuracies: list[float]) -> int:
    return len(accuracies) - 1 - accuracies.index(max(accuracies))


@pytest.mark.parametrize(
    ("accuracies", "is_exhausted"),
    [
        ([0.5, 0.4], False),
        ([0.5, 0.4, 0.5], True),
        ([0.5, 0.4, 0.6], False),
        ([0.5, 0.6, 0.4, 0.55], True),
        ([0.5, math.nan, math.nan], True),
        ([math.nan, 0.1, math.nan], False),
    ],
)
def test_patience_counts_epochs_without_a_better_figure(accuracies: list[float], is_exhausted: bool) -> None:
    config, epochs = of(patience=2), [{"val/accuracy": value, "test/accuracy": 1.0} for value in accuracies]
    assert choosing.is_exhausted(config, USUAL, data.facts(config), epochs) == is_exhausted
    assert not choosing.is_exhausted(replace(config, patience=None), USUAL, data.facts(config), epochs)


def test_the_lowest_figure_of_ones_own_task_is_its_best() -> None:
    config = ink(val_share=0.2, patience=2)
    facts = data.facts(config)
    task = tasks.spec(config, facts)
    objective = choosing.objective(task, facts)
    assert objective is not None
    assert (objective.metric, objective.figure.better) == ("val/rmse", "min")
    for values, is_exhausted in (([3.0, 2.0, 1.0], False), ([1.0, 2.0, 3.0], True)):
        assert choosing.is_exhausted(config, task, facts, [{"val/rmse": value} for value in values]) == is_exhausted


def test_a_run_ends_as_after_its_last_epoch_whatever_the_test_labels_are(tmp_path: Path) -> None:
    """With other labels in the test, the weights, the checkpoints kept and the chosen epoch are the same."""
    config = impatient("1x1", patience=2, keep_checkpoints=1)
    dataset, outcomes = data.read(config), []
    for name, given in (("as they are", dataset), ("shuffled", shuffled(dataset))):
        outcome = train_here(config, given, tmp_path / name, recorder := Recorder())
        accuracies = [record.row.metrics["val/accuracy"] for record in recorder.epochs]
        assert outcome.epochs == len(accuracies) < EPOCHS
        waited = [after_the_best(accuracies[:epoch]) for epoch in range(1, outcome.epochs + 1)]
        assert (waited[-1], max(waited[:-1]) < 2) == (2, True)
        assert (outcome.stopped_by, outcome.metrics["chosen/epoch"]) == ("patience", outcome.epochs - 2)
        assert outcome.checkpoint.endswith(f"step-{4 * outcome.epochs:08d}")
        outcomes.append(outcome)
    first, other = outcomes
    assert (first.epochs, first.weights_sha256) == (other.epochs, other.weights_sha256)
    kept = [[path.name for path in checkpoint.every(folder)] for folder in tmp_path.iterdir()]
    assert kept[0] == kept[1]
    for name in ("chosen/epoch", "best/accuracy", "val/accuracy", "val/loss"):
        assert first.metrics[name] == other.metrics[name]
    for name in ("test/accuracy", "chosen/test/accuracy"):
        assert first.metrics[name] != other.metrics[name]


@pytest.mark.slow
def test_the_same_bits_and_end_at_any_number_of_workers_and_after_a_stop(tmp_path: Path) -> None:
    def asked(topology: str = "1x1", **values: object) -> Any:
        return impatient(topology, patience=2, **values)

    snapshots = train_everywhere(asked, tmp_path, stop_after=7)
    assert len({(snapshot.step, digest(snapshot)) for snapshot in snapshots}) == 1
    assert len({best(folder).name for folder in tmp_path.iterdir()}) == 1
    assert snapshots[0].step < 4 * EPOCHS


def test_more_patience_goes_on_to_the_same_bits_and_the_same_does_not(tmp_path: Path) -> None:
    few, many = (impatient("1x1", patience=patience) for patience in (1, 3))
    dataset = data.read(few)
    short = train_here(few, dataset, tmp_path / "resumed")
    again = train_here(few, dataset, tmp_path / "resumed", recorder := Recorder())
    assert (again.epochs, recorder.epochs) == (short.epochs, [])
    resumed, whole = (train_here(many, dataset, tmp_path / name) for name in ("resumed", "whole"))
    assert short.epochs < resumed.epochs == whole.epochs < EPOCHS
    assert len({digest(newest[1]) for folder in tmp_path.iterdir() if (newest := checkpoint.latest(folder))}) == 1
    assert best(tmp_path / "resumed").name == best(tmp_path / "whole").name
    with pytest.raises(ConfigError, match=r"patience must be more than .* run mine has ended, got 1"):
        limits.refuse_exhausted(few, short.history, "mine")
    limits.refuse_exhausted(many, short.history, "mine")


def test_less_patience_ends_a_run_after_the_epoch_that_it_is_in(tmp_path: Path) -> None:
    """And one that comes to its last epoch was not stopped."""
    config = impatient("1x1", patience=1)
    dataset = data.read(config)
    first = train_here(config, dataset, tmp_path / "one")
    longer = replace(config, topology="1x2", patience=9, checkpoint_every=3)
    train_on_threads(longer, dataset, tmp_path / "one", partial(Recorder, stop_after=4 * first.epochs + 3))
    ended = train_here(config, dataset, tmp_path / "one")
    assert first.epochs + 1 == ended.epochs < EPOCHS
    assert ended.checkpoint.endswith(f"step-{4 * ended.epochs:08d}")
    outcome = train_here(replace(config, epochs=2, patience=2), dataset, tmp_path / "whole")
    assert (outcome.epochs, outcome.stopped_by) == (2, "")


def test_patience_takes_a_share_for_validation_and_is_no_part_of_the_weights() -> None:
    asked = TrainConfig(dataset="digits", patience=3)
    config = recipe.resolve(asked)
    assert config.val_share == 0.1
    assert [*recipe.notes(config, asked)]
    assert recipe.resolve(runfile.resolved_from_mapping(runfile.to_mapping(config))) == config
    assert typed.run(*recipe.command(config).split()[2:]).patience == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--patience", "0"], "--patience must be at least 1, got 0"),
        (["--patience", "-2"], "--patience must be at least 1, got -2"),
        (["--patience", "1.5"], "--patience must be a whole number, got '1.5'"),
        (["--patience", "3", "--val-share", "0"], "--val-share must be above 0 for --patience 3, which chooses by "),
        (["--patience", "3", "--per-rank-test"], "--patience cannot go with --per-rank-test, "),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        recipe.resolve(typed.run("--dataset", "digits", *words))
    assert refused.value.as_flag().startswith(sentence)
