"""The readiness of gradients within a backward pass."""

from __future__ import annotations

import torch

from cifar_ray import data, models
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import probe, recipe


def test_gradients_are_ready_from_the_last_layer_to_the_first() -> None:
    config = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", precision="fp32"))
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    found = probe.readiness(config, "fp32", 4, 1)
    model = models.outline(config, data.facts(config))
    sizes = [parameter.nbytes for parameter in model.parameters()]
    assert sorted(found.sizes) == sorted(sizes)
    assert sorted(found.sizes[:2]) == sorted(sizes[-2:])
    assert sorted(found.sizes[-2:]) == sorted(sizes[:2])
    assert list(found.ready) == sorted(found.ready)
    assert 0 < found.ready[0] < found.ready[-1] <= 1
    assert found.buffer_bytes == sum(buffer.nbytes for buffer in model.buffers() if buffer.is_floating_point())
    assert (torch.random.get_rng_state().equal(state), torch.get_num_threads()) == (True, threads)
