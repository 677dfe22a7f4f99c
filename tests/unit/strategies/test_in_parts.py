"""Strategies whose ranks hold parts of the model: what they learn is what one worker learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cifar_ray import models
from cifar_ray.data import Dataset
from cifar_ray.training import checkpoint
from cifar_ray.training.observer import Outcome
from tests.support.helpers import resolved
from tests.support.threads import train_on_threads

USUAL = {
    "dataset": "digits", "model": "simple_cnn", "topology": "1x2", "global_batch_size": 64, "precision": "fp32",
    "log_every": 1, "steps_per_epoch": 3, "epochs": 2,
}  # fmt: skip
ADAM = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01}
RESNET = {"model": "resnet", "model_options": {"blocks": (1,), "width": 4}}


def learned(outcome: Any) -> tuple[list[float], float, checkpoint.Snapshot]:
    """The loss of every step, that of the test, and the last checkpoint."""
    assert isinstance(outcome, Outcome)
    losses = [row.metrics["train/loss"] for row in outcome.history if row.kind == "iteration"]
    return losses, outcome.metrics["test/loss"], checkpoint.load(Path(outcome.checkpoint))


@pytest.mark.parametrize(
    ("strategy", "values", "bubble"),
    [
        pytest.param("model_parallel", {**RESNET, "precision": "bf16"}, 1 / 2, marks=pytest.mark.slow),
        ("gpipe", {"strategy_options": {"micro_batches": 4}}, 1 / 5),
        ("one_f_one_b", {"strategy_options": {"micro_batches": 2}, **ADAM}, 1 / 3),
        ("fsdp", {"accumulate": 2, **ADAM}, None),
    ],
)
def test_a_model_in_parts_learns_what_one_worker_learns(
    strategy: str, values: dict[str, object], bubble: float | None, digits: Dataset, tmp_path: Path
) -> None:
    """Also when it is stopped in between and goes on: its checkpoints are whole."""
    few = replace(digits, test=digits.test.at(slice(32)))
    wanted = resolved(USUAL, strategy=strategy, **values)
    alone = {name: value for name, value in values.items() if name not in ("strategy_options", "accumulate")}
    (plain, _), *_ = train_on_threads(resolved(USUAL, strategy="ddp", topology="1x1", **alone), few, tmp_path / "plain")
    stopped = train_on_threads(wanted, few, tmp_path / "parts", asked=lambda heard: len(heard.steps) >= 3)
    assert [str(end) for end, _ in stopped] == ["stopped after step 4"] * 2
    expected, tested, whole = learned(plain)
    parameters = dict(models.build(wanted, digits.spec).named_parameters())
    for outcome, _ in train_on_threads(wanted, few, tmp_path / "parts"):
        losses, test_loss, found = learned(outcome)
        assert [*losses, test_loss] == pytest.approx([*expected, tested], rel=1e-4)
        assert found.weights.keys() == whole.weights.keys()
        for name in parameters:
            torch.testing.assert_close(found.weights[name], whole.weights[name], rtol=1e-3, atol=2e-4)
        assert list(found.optimizer["state"]) == list(range(len(parameters)))
        for number, kept in whole.optimizer["state"].items():
            for name, value in kept.items():
                torch.testing.assert_close(found.optimizer["state"][number][name], value, rtol=1e-2, atol=1e-3)
        assert isinstance(outcome, Outcome)
        assert outcome.metrics.get("bubble/theory") == (None if bubble is None else pytest.approx(bubble))
        assert bubble is None or 0 < outcome.metrics["bubble/measured"] < 1
        parts = {name[10:-2] for name in outcome.times if name.startswith("time/step_")}
        assert parts == {"data", "forward", "backward", "communication", "optimizer"}
        assert outcome.steps is not None
        assert [rank.steps for rank in outcome.steps.ranks] == [outcome.steps.ranks[0].steps] * 2
        assert ("pipeline" in outcome.steps.incomparable) == (bubble is not None)
