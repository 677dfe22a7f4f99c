"""What is said of the run whose weights another starts from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cifar_ray import data, models
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import Cell
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.sweep import preparation
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.runs import weights
from cifar_ray.training import recipe
from tests.support.helpers import decided_of


@pytest.mark.parametrize(
    ("theirs", "ours", "overlap"),
    [
        ({}, {"val_share": 0.1}, True),
        ({"val_share": 0.1}, {"val_share": 0.2}, True),
        ({"val_share": 0.1}, {"val_share": 0.1}, False),
        ({"val_share": 0.1}, {}, False),
        ({"dataset": "mnist"}, {"val_share": 0.1}, False),
    ],
)
def test_validation_images_that_the_weights_have_seen_are_named(
    theirs: dict[str, object], ours: dict[str, object], overlap: bool
) -> None:
    source, config = (
        recipe.resolve(TrainConfig(**{"dataset": "digits", "normalise": "half", **values}))  # type: ignore[arg-type]
        for values in (theirs, ours)
    )
    snapshot: Any = SimpleNamespace(config=source, spec=data.SPECS[source.dataset])
    assert ("may have been trained on this run's validation images" in weights._differing(config, snapshot)) == overlap


def test_a_run_of_texts_goes_on_with_the_tokenizer_of_its_weights(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "fine,good\ndull,bad\n" * 8)
    usual = {"dataset": f"text:{tmp_path}", "model": "textcnn", "global_batch_size": 4}
    config = recipe.resolve(TrainConfig(**usual))  # type: ignore[arg-type]
    other = recipe.resolve(TrainConfig(**usual, text={"max_length": 9}))  # type: ignore[arg-type]
    theirs: Any = SimpleNamespace(config=config, encoding="their tokenizer")
    assert weights._encoding(config, theirs) == "their tokenizer"
    assert weights._encoding(recipe.resolve(TrainConfig(dataset="digits")), theirs) == ""
    with pytest.raises(ConfigError, match="weights must be those of a run with the same --text options, whose tok"):
        weights._encoding(other, theirs)
    torch.save(models.build(config, data.read(config).spec).state_dict(), tmp_path / "mine.pt")
    notes: list[str] = []
    found = weights.find_weights(dataclasses.replace(config, weights=f"{tmp_path}/mine.pt"), "", notes.append)
    assert (found[2], len(notes)) == ("", 2)
    assert notes[0].startswith(f"weights of {tmp_path}/mine.pt: a file has no tokenizer; only ")
    assert weights._encoding(config, theirs) == "their tokenizer"  # of a run that begins again, on other texts


@pytest.mark.parametrize("tokenizer", ["theirs", "another"])
def test_runs_of_a_sweep_need_weights_that_know_their_tokenizer(
    tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = recipe.resolve(TrainConfig(weights="first"))
    monkeypatch.setattr(preparation, "find_weights", lambda *_: (b"weights", "digest", "theirs"))
    cell = PlannedCell(0, Cell("one", {}), config, decided_of(config))
    board: Any = SimpleNamespace(line=print)
    kept: list[str] = []
    monkeypatch.setattr(preparation.checkpoints, "keep_initial", lambda _, digest, content: kept.append(digest))
    folder: Any = object()
    ready = Preparation(config, board, folder=folder)
    ready._read = {preparation._of_data(config): SimpleNamespace(encoding=tokenizer)}  # type: ignore[dict-item]
    ready.read_weights([cell])
    if tokenizer == "theirs":
        assert (kept, cell.decided.weights_digest, cell.state) == (["digest"], "digest", "waiting")
    else:
        assert (kept, cell.config) == ([], None)
        assert cell.row.shown.note == (
            "weights must be of a run with the same training texts in a sweep, whose runs share a tokenizer; first has "
            "others"
        )
