from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor, nn

from cifar_ray import models
from cifar_ray.data import SPECS
from cifar_ray.strategies import stages, worker
from tests.support.helpers import resolved


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
