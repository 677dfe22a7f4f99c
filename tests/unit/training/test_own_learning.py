"""Optimizers and courses of the learning rate of the user's own: made, tried, and held to their source."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cifar_ray.config import imports, runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.training import optimizer, recipe
from tests.support import typed
from tests.support.helpers import resolved
from tests.support.learning import Lion

HERE = "tests.support.learning"
DIGITS: dict[str, object] = {"dataset": "digits", "model": "simple_cnn"}
LION: dict[str, object] = {"optimizer": f"{HERE}:Lion", "lr": 1e-3, "weight_decay": 0.1}


def test_a_class_of_ones_own_gets_groups_rate_and_options() -> None:
    config = resolved(DIGITS, **LION, optimizer_options={"beta": 0.5})
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    made = optimizer.build(model, config)
    assert isinstance(made, Lion)
    assert [(group["lr"], group["beta"], group["weight_decay"]) for group in made.param_groups] == [
        (1e-3, 0.5, 0.1),
        (1e-3, 0.5, 0.0),  # biases and norms do not decay
    ]
    assert recipe.resolve(config) == config
    assert config.optimizer_source == imports.source(f"{HERE}:Lion", "optimizer")
    optimizer.schedule(made, config, config.epochs * 5, 10)
    assert 0 < made.param_groups[0]["lr"] < 1e-3


def test_torchs_classes_need_no_file_of_ones_own() -> None:
    config = resolved(DIGITS, optimizer="torch.optim:RMSprop", lr=1e-3, weight_decay=0.0)
    assert isinstance(optimizer.build(nn.Linear(2, 2), config), torch.optim.RMSprop)


def test_options_and_paths_come_from_words_and_go_into_them_again() -> None:
    words = f"--dataset digits --model simple_cnn --optimizer {HERE}:Lion --lr 0.001 --weight-decay 0.1"
    words += f" --optimizer-options.beta 0.5 --schedule {HERE}:falling"
    config = recipe.resolve(typed.run(*words.split()))
    assert recipe.resolve(typed.run(*shlex.split(recipe.command(config))[2:])) == config
    known = {"optimizer": f"{HERE}:Lion", "optimizer_options.beta": "0.5", "schedule": f"{HERE}:falling"}
    params = runfile.params(config, Decided.asked(config))
    assert known.items() <= params.items()
    assert len(params["optimizer_source"]) == len(params["schedule_source"]) == 64
    plain = resolved(DIGITS)
    assert not {"optimizer_source", "schedule_source"} & runfile.params(plain, Decided.asked(plain)).keys()


def test_a_course_follows_the_warm_up() -> None:
    config = resolved(DIGITS, schedule=f"{HERE}:falling", epochs=4, warmup_epochs=1.0, lr=0.2)
    rates = [optimizer.learning_rate(config, step, 5) for step in range(20)]
    assert rates[:5] == pytest.approx([0.04, 0.08, 0.12, 0.16, 0.2])
    assert rates[5:] == pytest.approx([0.2 * (1 - step / 15) ** 2 for step in range(15)])


@pytest.mark.parametrize(
    ("values", "key", "said"),
    [
        ({"optimizer": f"{HERE}:Lion"}, "optimizer", "must come with --lr and --weight-decay"),
        ({"optimizer": "lion"}, "optimizer", "sgd, adamw or MODULE:FUNCTION"),
        ({"schedule": "cosinus"}, "schedule", "cosine, constant, triangle or MODULE:FUNCTION"),
        (LION | {"optimizer": f"{HERE}:Lyon"}, "optimizer", "has no Lyon"),
        (LION | {"optimizer": f"{HERE}:no_optimizer"}, "optimizer", "must make a torch.optim.Optimizer"),
        (LION | {"optimizer": f"{HERE}:of_some"}, "optimizer", "must keep all parameters in the groups"),
        (LION | {"optimizer": f"{HERE}:Odd"}, "optimizer", "have a state of tensors"),
        (LION | {"optimizer": f"{HERE}:Asking"}, "optimizer", "must take steps without arguments"),
        (LION | {"optimizer": "torch.optim:LBFGS"}, "optimizer", "must make an optimizer of (groups, lr="),
        (LION | {"optimizer_options": {"alpha": 1}}, "optimizer", "must make an optimizer of (groups, lr="),
        ({"optimizer_options": {"beta": 1}}, "optimizer_options.beta", "is for --optimizer MODULE:FUNCTION only"),
        ({"schedule_source": "a"}, "schedule_source", "is for --schedule MODULE:FUNCTION only"),
        (LION | {"optimizer_source": "a"}, "optimizer", "must be as the run began with it"),
        ({"schedule": f"{HERE}:falling", "schedule_source": "a"}, "schedule", "must be as the run began with it"),
        ({"schedule": f"{HERE}:negative"}, "schedule", "must return a share of the peak, 0 or more"),
        ({"schedule": f"{HERE}:unknown"}, "schedule", "must return a share of the peak, 0 or more"),
        ({"schedule": f"{HERE}:failing"}, "schedule", "must be a function of one number"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(values: dict[str, object], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(DIGITS, **values)
    told = str(caught.value)
    assert (caught.value.key, said in told, "\n" in told) == (key, True, False)


def test_trying_leaves_torchs_generator_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    resolved(DIGITS, **LION)
    assert torch.equal(torch.get_rng_state(), before)


def test_files_of_all_functions_go_to_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "courses.py").write_text("def falling(done):\n    return 1 - done\n")
    config = resolved(DIGITS, **LION, schedule="courses:falling")
    shipped = {module.__name__ for module in imports.to_ship(imports.functions(config))}
    sys.modules.pop("courses")
    assert shipped == {"tests", "courses"}


def test_an_average_is_drawn_once_a_step_beside_that_of_lookahead() -> None:
    config = resolved({"dataset": "digits", "model": "speednet"}, ema=0.9)
    model = nn.Sequential(nn.Linear(3, 2))
    made = optimizer.build(model, config)
    weight, seen = model[0].weight, []
    for step in range(2):
        weight.grad, model[0].bias.grad = torch.ones_like(weight), torch.ones(2)
        optimizer.schedule(made, config, step, 20)
        made.step()
        seen.append(weight.detach().clone())
    torch.testing.assert_close(made.state[weight]["ema"], seen[1].lerp(seen[0], 2 / 11))
    for is_average in (True, False):
        optimizer.exchange(made)
        assert torch.equal(weight, seen[1]) is not is_average


def test_a_parameter_may_have_its_first_gradient_after_others() -> None:
    """As with experts of which a step leaves out some; torch's fused step would not take it."""
    config = resolved({"dataset": "digits", "model": "tests.support.nets:build"}, weight_decay=0.0)
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    made = optimizer.build(model, config)
    for layer in (model[0], model[1]):
        layer.weight.grad = torch.ones(1, 1)
        before = layer.weight.detach().clone()
        made.step()
        assert float(before - layer.weight.detach()) == pytest.approx(1.9 * config.lr, rel=1e-4)
        layer.weight.grad = None
    model[0].weight.grad = model[1].weight.grad = torch.ones(1, 1)
    made.step()
    assert len(made.state) == 2
