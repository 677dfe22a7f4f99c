"""What --freeze, --unfreeze-epoch and --lr-scale do to one worker's run, and what is refused."""

from __future__ import annotations

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
LONG = (pytest.mark.slow, pytest.mark.extended)
TRUNK = ("[0-3]", "4.conv1", "4.bn?")
"""All but the second block's last convolution and shortcut, and the last layer."""


def config(**values: object) -> Any:
    usual = {name: value for name, value in RESNET.items() if name != "model_options" or "model" not in values}
    return resolved(usual, **values)


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
        ("layer1.*", ["layer1.0.conv1.weight", "layer1.0.bn1.weight"]),
        ("*.conv1", ["layer1.0.conv1.weight", "layer2.0.conv1.weight"]),
        ("fc.bias", ["fc.bias"]),
        ("[!l]*", ["fc.weight", "fc.bias"]),
        ("layer", []),
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
    wanted = replace(config(), freeze=(pattern,))
    freezing.freeze(model, wanted)
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == matched
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, rule in zip(names, freezing.rules(model, wanted), strict=True) if rule.frozen] == matched


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
        {"optimizer": "sgd"},
        {"optimizer": "adamw", "ema": 0.9, "clip_norm": 1.0},
        {"optimizer": f"{LEARNING}:Lion", "lr": 1e-3, "weight_decay": 0.1},
        {"strategy": "reproducible"},
        {"strategy": "hogwild"},
    ],
    ids=["sgd", "adamw-ema", "own", "reproducible", "hogwild"],
)
def test_what_is_frozen_stays_to_the_last_byte_and_has_no_state(
    values: dict[str, object], digits: Dataset, tmp_path: Path
) -> None:
    """Batch norm's statistics, too. The rest learns, and the places of the optimizer's state are those of all."""
    wanted = config(freeze=TRUNK, **SHORT, **values)
    train_here(wanted, digits, tmp_path)
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


@pytest.mark.parametrize(
    ("values", "is_told"),
    [
        ({"freeze": TRUNK}, True),
        ({"freeze": TRUNK, "weights": "a_run"}, False),
        ({"freeze": ("0",), "model": "tests.support.nets:build"}, False),
        ({}, False),
    ],
)
def test_a_note_tells_of_random_weights_that_are_kept(values: dict[str, Any], is_told: bool) -> None:
    asked = TrainConfig(dataset="digits", **values)
    assert any("--freeze keeps random weights" in note for note in recipe.notes(asked, asked)) == is_told


def test_an_evaluation_leaves_the_trunk_in_evaluation_mode(digits: Dataset, tmp_path: Path) -> None:
    wanted = config(freeze=TRUNK, **SHORT)
    state = setup.prepare(wanted, Decided.asked(wanted), digits, tmp_path, Worker(), Launch(0.0, 0.0))
    before = {name: module.training for name, module in state.model.named_modules()}
    state.evaluator(state.model)
    assert {name: module.training for name, module in state.model.named_modules()} == before
    assert set(before.values()) == {True, False}


@pytest.mark.parametrize(
    ("values", "interrupted"),
    [
        pytest.param({"optimizer": "sgd"}, ((3, 7),), marks=pytest.mark.slow),
        ({"optimizer": "adamw", "ema": 0.9, "lr_scale": ("[0-3]=0.1",)}, ((4,),)),
        pytest.param({"optimizer": "sgd"}, ((2,), (4,), (5,), (11,)), marks=LONG),
        pytest.param({"model": "speednet", "freeze": ("2", "4")}, ((3, 7),), marks=LONG),
    ],
    ids=["sgd", "adamw-ema", "anywhere", "speednet"],
)
def test_it_learns_from_the_epoch_asked_for_interrupted_or_not(
    values: dict[str, object], interrupted: tuple[tuple[int, ...], ...], digits: Dataset, tmp_path: Path
) -> None:
    values = {"freeze": TRUNK, **values}
    wanted = config(unfreeze_epoch=2, checkpoint_every=3, keep_checkpoints=9, **SHORT, **values)
    whole = train_here(wanted, digits, tmp_path / "whole")
    still = config(checkpoint_every=3, keep_checkpoints=9, **SHORT, **values)
    train_here(still, digits, tmp_path / "still")
    assert digest(snapshot(tmp_path / "whole", 4)) == digest(snapshot(tmp_path / "still", 4))
    assert len(snapshot(tmp_path / "whole", 12).clock["steps"]) == 12 - 2  # the first, and that of the new strategy
    first, second = snapshot(tmp_path / "whole", 4), snapshot(tmp_path / "whole", 6)
    model = models.build(wanted, SPECS["digits"])
    each = zip(model.named_parameters(), freezing.rules(model, wanted), strict=True)
    frozen = [name for (name, parameter), rule in each if rule.frozen and parameter.requires_grad]
    assert frozen
    assert not equal(first.weights, second.weights) & {*frozen}
    assert len(second.optimizer["state"]) == len(first.optimizer["state"]) + len(frozen)
    for stops in interrupted:
        folder = tmp_path / "-".join(map(str, stops))
        for stop in stops:
            with pytest.raises(Stopped):
                train_here(wanted, digits, folder, Recorder(stop_after=stop))
        assert train_here(wanted, digits, folder).weights_sha256 == whole.weights_sha256
        assert digest(snapshot(folder, 12)) == digest(snapshot(tmp_path / "whole", 12))


def test_a_strategy_that_is_built_again_leaves_nothing_of_the_one_before(digits: Dataset, tmp_path: Path) -> None:
    state = setup.prepare(
        config(freeze=TRUNK, unfreeze_epoch=2, **SHORT),
        Decided.asked(config(freeze=TRUNK, unfreeze_epoch=2, **SHORT)),
        digits,
        tmp_path,
        Worker(),
        Launch(0.0, 0.0),
    )
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
    optimizer.schedule(made, wanted, 100, 10)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    lr = optimizer.learning_rate(wanted, 100, 10)
    for group in made.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            expected = 2.0 if name.startswith("4.bn1") else 0.1 if name[0] == "4" else 1.0 if name[0] == "7" else 0.5
            assert group["lr"] == pytest.approx(expected * lr), name
            assert group["weight_decay"] == (0.01 if parameter.ndim > 1 else 0.0)
    assert len(parameters(made)) == len(names)


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw", f"{LEARNING}:Lion", "torch.optim:RMSprop"])
def test_a_scaled_step_is_that_much_shorter(optimizer_name: str) -> None:
    usual = {"optimizer": optimizer_name, "lr": 0.01, "weight_decay": 0.0}
    moved = []
    for scales in ((), ("0=0.25",)):
        wanted = resolved({**DIGITS, "model": "simple_cnn"}, lr_scale=scales, **usual)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        made = optimizer.build(model, wanted, freezing.rules(model, wanted))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.schedule(made, wanted, 100, 11)
        made.step()
        moved.append(
            [float((after - then).detach().mean()) for after, then in zip(model.parameters(), before, strict=True)]
        )
    plain, scaled = moved
    assert scaled == pytest.approx([plain[0] / 4, plain[1] / 4, *plain[2:]], rel=1e-3)


def test_a_fields_words_go_into_files_and_commands_and_back() -> None:
    words = "--dataset digits --model resnet --freeze '[0-3]' 4.conv1 --unfreeze-epoch 2 --lr-scale 9=2 '[0-3]=0.1'"
    made = recipe.resolve(typed.run(*shlex.split(words)))
    assert (made.freeze, made.unfreeze_epoch, made.lr_scale) == (("[0-3]", "4.conv1"), 2, ("9=2", "[0-3]=0.1"))
    again = shlex.split(recipe.command(made))[2:]
    assert recipe.resolve(typed.run(*again)) == made
    assert runfile.resolved_from_mapping(runfile.to_mapping(made)) == made
    assert {"freeze": "['[0-3]', '4.conv1']", "unfreeze_epoch": "2"}.items() <= runfile.params(
        made, Decided.asked(made)
    ).items()


ALL = "--freeze must leave resnet a parameter to learn, and * matches all"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"freeze": ("features",)}, "--freeze must match parameters of resnet, whose names begin with 0, 1, 3, 4 and 7; 'features' matches none"),
        ({"freeze": ("0", "8.*")}, "--freeze must match parameters of resnet, whose names begin with 0, 1, 3, 4 and 7; '8.*' matches none"),
        ({"lr_scale": ("8=0.1",)}, "--lr-scale must match parameters of resnet, whose names begin with 0, 1, 3, 4 and 7; '8' matches none"),
        ({"freeze": ("*",)}, ALL),
        ({"freeze": ("*",), "unfreeze_epoch": 2}, ALL),
        ({"freeze": ("0", "1", "3", "4", "7")}, "--freeze must leave resnet a parameter to learn, and 0 1 3 4 7 matches all"),
        ({"freeze": ("[1-9]*", "0.bias"), "model": "speednet"}, "--freeze must leave speednet a parameter to learn, and [1-9]* 0.bias matches all"),
        ({"unfreeze_epoch": 2}, "--unfreeze-epoch must be 2 or more, at most epochs (10), and given with --freeze, got 2"),
        ({"freeze": ("0",), "unfreeze_epoch": 1}, "--unfreeze-epoch must be 2 or more, at most epochs (10), and given with --freeze, got 1"),
        ({"freeze": ("0",), "unfreeze_epoch": 11}, "--unfreeze-epoch must be 2 or more, at most epochs (10), and given with --freeze, got 11"),
        ({"lr_scale": ("0",)}, "--lr-scale must be PATTERN=NUMBER with a number above 0, such as features=0.1, got '0'"),
        ({"lr_scale": ("0=0",)}, "--lr-scale must be PATTERN=NUMBER with a number above 0, such as features=0.1, got '0=0'"),
        ({"lr_scale": ("0=nan",)}, "--lr-scale must be PATTERN=NUMBER with a number above 0, such as features=0.1, got '0=nan'"),
        ({"lr_scale": ("=0.1",)}, "--lr-scale must be PATTERN=NUMBER with a number above 0, such as features=0.1, got '=0.1'"),
        ({"lr_scale": ("0=0.1",), "optimizer": f"{LEARNING}:merged", "lr": 0.1, "weight_decay": 0.0}, f"--optimizer must keep all parameters in the groups that it is given; {LEARNING}:merged does not"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**values)
    assert caught.value.as_flag() == sentence


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
    flag = {"freeze": "--freeze", "unfreeze_epoch": "--unfreeze-epoch", "lr_scale": "--lr-scale"}[list(values)[-1]]
    assert caught.value.as_flag().startswith(f"{flag} is for --strategy gather_scatter, ")
    assert caught.value.as_flag().endswith(f" only, and the strategy is {strategy}")


def test_a_run_goes_on_with_its_own_patterns_alone(digits: Dataset, tmp_path: Path) -> None:
    wanted = config(freeze=("0",), **SHORT)
    with pytest.raises(Stopped):
        train_here(wanted, digits, tmp_path, Recorder(stop_after=5))
    other = config(freeze=("1",), **SHORT)
    with pytest.raises(checkpoint.CheckpointError, match=r"was made with freeze \('0',\), and this run has \('1',\)"):
        train_here(other, digits, tmp_path)
