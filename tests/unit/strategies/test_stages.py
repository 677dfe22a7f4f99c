from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cifar_ray import models
from cifar_ray.data import SPECS, Dataset
from cifar_ray.strategies import stages, worker
from cifar_ray.training import checkpoint
from cifar_ray.training.observer import Outcome
from tests.support.helpers import resolved
from tests.support.threads import train_on_threads


@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_other_cut_has_a_faster_slowest_stage(count: int) -> None:
    drawn = random.Random(count)
    for units in range(count, 8):
        seconds = [drawn.random() for _ in range(units)]
        slices = stages.cut(seconds, count)
        assert [number for part in slices for number in range(units)[part]] == list(range(units))
        assert all(part.stop > part.start for part in slices)
        starts = itertools.combinations(range(1, units), count - 1)
        others = [[slice(a, b) for a, b in itertools.pairwise((0, *inner, units))] for inner in starts]
        slowest, *_ = sorted(max(sum(seconds[part]) for part in each) for each in others)
        assert max(sum(seconds[part]) for part in slices) == pytest.approx(slowest)


def test_every_unit_begins_with_something_to_train() -> None:
    layers = [nn.Linear(2, 2), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.ReLU()]
    found = [[type(layer).__name__ for layer in unit.children()] for unit in stages.units(layers)]
    assert found == [["Linear", "ReLU", "Flatten"], ["BatchNorm1d"], ["Linear", "ReLU"]]


def test_measuring_changes_nothing_and_tells_what_is_handed_on() -> None:
    config = resolved({"dataset": "digits", "model": "resnet"}, model_options={"blocks": (1,), "width": 4})
    model = models.build(config, SPECS["cifar10"]).to(memory_format=torch.channels_last)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    units = stages.units(models.layers(config, model))
    costs = stages.measure(units, torch.rand(2, 3, 32, 32), "bf16")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(cost.seconds > 0 for cost in costs)
    handed = [(cost.shape, cost.dtype) for cost in costs]
    assert handed == [((2, 32, 32, 4), torch.bfloat16), *handed[1:-1], ((2, 10), torch.bfloat16)]


class Partly(nn.Module):
    """A layer beside one that its forward pass leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out, self.used = nn.Linear(3, 3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Any:
        return self.used(x)


def test_a_unit_that_leaves_parameters_out_is_measured() -> None:
    (cost,) = stages.measure([Partly()], torch.rand(2, 3), "fp32")
    assert (cost.shape, cost.dtype) == ((2, 5), torch.float32)


class Seeded(nn.Module):
    """A layer that notes what torch's generator was seeded with."""

    def __init__(self, seeds: list[int]) -> None:
        super().__init__()
        self.seeds = seeds

    def forward(self, x: Tensor) -> Tensor:
        self.seeds.append(torch.default_generator.initial_seed())
        return x


@pytest.mark.parametrize("starts", [[0], [0, 1, 2]])
def test_layers_compute_and_draw_the_same_wherever_the_model_is_cut(starts: list[int]) -> None:
    """Every unit of every micro-batch draws from a seed of its own; between stages, activations are channels last."""
    seeds: list[int] = []
    torch.manual_seed(0)
    units = [
        nn.Sequential(nn.Conv2d(3, 4, 1), Seeded(seeds)),
        nn.Sequential(nn.Conv2d(4, 5, 1), Seeded(seeds)),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2), Seeded(seeds)),
    ]
    images = torch.rand(2, 3, 4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        expected = nn.Sequential(*units)(images)
    seeds.clear()
    for chunk in range(2):
        x = images
        for start, stop in zip(starts, (*starts[1:], 3)):
            part = stages.Layers(units, slice(start, stop), "bf16", torch.device("cpu"))
            part.seed, part.chunk = 100, chunk
            x = part(x)
            assert x.shape == {1: (2, 4, 6, 4), 2: (2, 4, 6, 5), 3: (2, 2)}[stop]
            assert x.is_contiguous()
        assert x.dtype == torch.bfloat16
        assert torch.equal(x, expected)
    assert seeds == [100, 101, 102, 103, 104, 105]


def test_what_is_sent_is_contiguous_and_not_copied_when_it_is_channels_last() -> None:
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    sent = stages.packed(x)
    assert sent.is_contiguous()
    assert sent.data_ptr() == x.data_ptr()
    assert stages.packed(torch.rand(2, 4, 3).transpose(1, 2)).is_contiguous()


def test_a_pass_that_fails_leaves_the_model_as_it_was() -> None:
    norm = nn.BatchNorm1d(3)
    with pytest.raises(RuntimeError), worker.unchanged(norm):
        nn.Sequential(norm, nn.Linear(2, 1))(torch.ones(2, 3))
    assert norm.num_batches_tracked == 0


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
@pytest.mark.slow
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
