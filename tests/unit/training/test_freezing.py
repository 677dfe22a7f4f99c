"""What --freeze, --unfreeze-epoch and --lr-scale do to one worker's run, and what is refused."""

from __future__ import annotations

import gc
import shlex
import weakref
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cifar_ray import models
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.optimisation import parse_scale
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS, Dataset
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import checkpoint, freezing, optimizer, recipe, setup
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.observer import Launch
from tests.support import typed
from tests.support.helpers import Recorder, Stopped, digest, resolved, train_here

LEARNING = "tests.support.learning"
DIGITS: dict[str, object] = {"dataset": "digits", "precision": "fp32"}
RESNET: dict[str, object] = {**DIGITS, "model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}}
SHORT: dict[str, object] = {"epochs": 3, "steps_per_epoch": 4, "global_batch_size": 32, "log_every": 1}

TRUNK = ("[0-3]", "4.conv1", "4.bn?")
"""All but the second block's last convolution and shortcut, and the last layer."""


def config(**values: object) -> Any:
    return resolved(RESNET, **values)


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    return replace(digits, test=digits.test.at(slice(40)))


def in_trunk(name: str) -> bool:
    return name[0] in "0123" or name.startswith(("4.conv1.", "4.bn1.", "4.bn2."))


def initial(wanted: Any) -> dict[str, Tensor]:
    torch.manual_seed(wanted.seed)
    return models.build(wanted, SPECS["digits"]).state_dict()


def snapshot(folder: Path, step: int) -> Snapshot:
    return checkpoint.load(folder / f"step-{step:08d}")


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    return {name for name in one if torch.equal(one[name], other[name])}


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("layer1", ["layer1.0.conv1.weight", "layer1.0.bn1.weight"]),
        ("layer?", ["layer1.0.conv1.weight", "layer1.0.bn1.weight", "layer2.0.conv1.weight"]),
        ("*.conv1", ["layer1.0.conv1.weight", "layer2.0.conv1.weight"]),
        ("fc.bias", ["fc.bias"]),
        ("[!l]*", ["fc.weight", "fc.bias"]),
        ("layer1.0.conv", []),
        ("conv1", []),
        ("FC", []),
    ],
)
def test_a_pattern_matches_a_name_or_whole_parts_at_its_beginning(pattern: str, matched: list[str]) -> None:
    block = OrderedDict(conv1=nn.Conv2d(1, 1, 1, bias=False), bn1=nn.BatchNorm2d(1))
    layers = OrderedDict(
        layer1=nn.Sequential(nn.Sequential(block)),
        layer2=nn.Sequential(nn.Sequential(OrderedDict(conv1=nn.Conv2d(1, 1, 1, bias=False)))),
        fc=nn.Linear(1, 1),
    )
    model = nn.Sequential(layers)
    model.layer1[0].bn1.bias = None
    freezing.freeze(model, replace(config(), freeze=(pattern,)))
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == matched


def test_what_lies_below_a_pattern_is_in_evaluation_mode_and_so_is_a_frozen_batch_norm() -> None:
    for patterns, expected in (
        (("3",), {"3", *(f"3.{name}" for name in ("conv1", "bn1", "conv2", "bn2", "shortcut", "relu"))}),
        (("*.weight", "1.bias"), {"1"}),
        (("*.conv1",), {"3.conv1", "4.conv1"}),
    ):
        model = models.build(config(), SPECS["digits"])
        freezing.freeze(model, config(freeze=patterns))
        assert {name for name, module in model.named_modules() if not module.training} == expected


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer": "adamw", "ema": 0.9, "clip_norm": 1.0},
        {"optimizer": f"{LEARNING}:Lion", "lr": 1e-3, "weight_decay": 0.1},
        {"strategy": "reproducible"},
        {"strategy": "hogwild"},
    ],
    ids=["adamw-ema", "own", "reproducible", "hogwild"],
)
def test_what_is_frozen_stays_and_has_no_state(values: dict[str, object], few: Dataset, tmp_path: Path) -> None:
    """Batch norm's statistics, too. The rest learns, and the places of the optimizer's state are those of all."""
    wanted = config(freeze=TRUNK, **SHORT, **values)
    train_here(wanted, few, tmp_path)
    kept, begun = snapshot(tmp_path, 12), initial(wanted)
    assert equal(kept.weights, begun) == {name for name in begun if in_trunk(name)}
    model = models.build(wanted, SPECS["digits"])
    places = {id(each): place for place, each in enumerate(parameters(optimizer.build(model, wanted)))}
    learned = {places[id(of)] for name, of in model.named_parameters() if not in_trunk(name)}
    assert kept.optimizer["state"].keys() == learned
    assert [len(group["params"]) for group in kept.optimizer["param_groups"]] == [
        len(group["params"]) for group in optimizer.build(model, config()).param_groups
    ]


def parameters(made: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in made.param_groups for parameter in group["params"]]


def test_a_note_tells_of_random_weights_that_are_kept() -> None:
    for values, is_told in (({}, True), ({"weights": "a_run"}, False), ({"model": "tests.support.nets:build"}, False)):
        asked = TrainConfig(dataset="digits", freeze=("0",), **values)  # type: ignore[arg-type]
        assert any("--freeze keeps random weights" in note for note in recipe.notes(asked, asked)) == is_told


def prepare(wanted: Any, dataset: Dataset, folder: Path) -> setup.TrainingState:
    return setup.prepare(wanted, Decided.asked(wanted), dataset, folder, Worker(), Launch(0.0, 0.0))


def test_an_evaluation_leaves_the_trunk_in_evaluation_mode(few: Dataset, tmp_path: Path) -> None:
    state = prepare(config(freeze=TRUNK, **SHORT), few, tmp_path)
    before = {name: module.training for name, module in state.model.named_modules()}
    state.evaluator(state.model)
    assert {name: module.training for name, module in state.model.named_modules()} == before
    assert set(before.values()) == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "stops"),
    [
        ({"optimizer": "sgd"}, (4, 11)),
        ({"optimizer": "adamw", "ema": 0.9, "lr_scale": ("[0-3]=0.1",)}, (3, 7)),
    ],
    ids=["sgd", "adamw-ema"],
)
def test_it_learns_from_the_epoch_asked_for(
    values: dict[str, object], stops: tuple[int, ...], few: Dataset, tmp_path: Path
) -> None:
    wanted = config(freeze=TRUNK, unfreeze_epoch=2, checkpoint_every=3, keep_checkpoints=9, **SHORT, **values)
    whole = train_here(wanted, few, tmp_path / "whole")
    first, second, last = (snapshot(tmp_path / "whole", step) for step in (4, 6, 12))
    begun = initial(wanted)
    assert equal(first.weights, begun) == {name for name in begun if in_trunk(name)}
    assert len(last.clock["steps"]) == 12 - 2  # the first, and that of the new strategy
    model = models.build(wanted, SPECS["digits"])
    frozen = {name for name, _ in model.named_parameters() if in_trunk(name)}
    assert not equal(first.weights, second.weights) & frozen
    assert len(second.optimizer["state"]) == len(first.optimizer["state"]) + len(frozen)
    for stop in stops:
        with pytest.raises(Stopped):
            train_here(wanted, few, tmp_path / "parts", Recorder(stop_after=stop))
    assert train_here(wanted, few, tmp_path / "parts").weights_sha256 == whole.weights_sha256
    assert digest(snapshot(tmp_path / "parts", 12)) == digest(last)


def test_a_strategy_that_is_built_again_leaves_nothing_of_the_one_before(few: Dataset, tmp_path: Path) -> None:
    gc.freeze()  # to collect what other tests have left would take seconds
    state = prepare(config(freeze=TRUNK, unfreeze_epoch=2, **SHORT), few, tmp_path)
    before, weights = state.strategy, {name: each.clone() for name, each in state.model.state_dict().items()}
    model, optimized = weakref.ref(state.model), weakref.ref(state.strategy.optimizer)
    setup.unfreeze(state, 0)
    assert state.strategy is before
    del before
    setup.unfreeze(state, 1)
    assert (model(), optimized()) == (None, None)
    torch.testing.assert_close(dict(state.model.state_dict()), weights, rtol=0, atol=0)


def test_groups_learn_at_their_own_rates() -> None:
    """Of several patterns the last counts; what decays and what does not stay apart."""
    wanted = config(lr_scale=("*=0.5", "4=0.1", "4.bn1=2", "7=1"), lr=0.3, weight_decay=0.01)
    model = models.build(wanted, SPECS["digits"])
    made = optimizer.build(model, wanted)
    optimizer.schedule(made, wanted, 50, 10)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    lr = optimizer.learning_rate(wanted, 50, 10)
    for group in made.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            expected = 2.0 if name.startswith("4.bn1") else 0.1 if name[0] == "4" else 1.0 if name[0] == "7" else 0.5
            assert group["lr"] == pytest.approx(expected * lr), name
            assert group["weight_decay"] == (0.01 if parameter.ndim > 1 else 0.0)
    assert len(parameters(made)) == len(names)


def test_a_fields_words_go_into_files_and_commands_and_back() -> None:
    words = "--dataset digits --model resnet --freeze '[0-3]' 4.conv1 --unfreeze-epoch 2 --lr-scale 9=2 '[0-3]=0.1'"
    made = recipe.resolve(typed.run(*shlex.split(words)))
    assert (made.freeze, made.unfreeze_epoch, made.lr_scale) == (("[0-3]", "4.conv1"), 2, ("9=2", "[0-3]=0.1"))
    assert recipe.resolve(typed.run(*shlex.split(recipe.command(made))[2:])) == made
    assert runfile.resolved_from_mapping(runfile.to_mapping(made)) == made
    assert parse_scale("a=b=0.5") == ("a=b", 0.5)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"freeze": ("0", "8.*")}, "freeze"),
        ({"lr_scale": ("8=0.1",)}, "lr_scale"),
        ({"freeze": ("0", "1", "3", "4", "7"), "unfreeze_epoch": 2}, "freeze"),  # all
        ({"unfreeze_epoch": 2}, "unfreeze_epoch"),  # of nothing
        *(({"freeze": ("0",), "unfreeze_epoch": epoch}, "unfreeze_epoch") for epoch in (1, 11)),
        *(({"lr_scale": (words,)}, "lr_scale") for words in ("0", "0=0", "0=nan", "=0.1")),
        ({"lr_scale": ("0=0.1",), "optimizer": f"{LEARNING}:merged", "lr": 0.1, "weight_decay": 0.0}, "optimizer"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**values)
    assert caught.value.key == key
    assert "None" not in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        *((name, {"freeze": ("0",)}) for name in ("gpipe", "one_f_one_b", "model_parallel", "parameter_server")),
        *((name, {"freeze": ("0",), "unfreeze_epoch": 2}) for name in ("fsdp", "hogwild")),
        ("parameter_server", {"lr_scale": ("0=0.1",)}),
    ],
)
def test_strategies_that_cannot_say_so(strategy: str, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(strategy=strategy, topology="1x2", **values)
    assert caught.value.key == [*values][-1]
    assert "None" not in str(caught.value)
