"""Weights that a run starts from: read without executing code, compared with the model, and checked again."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cifar_ray import models
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import SPECS, Dataset
from cifar_ray.training import checkpoint, initial_weights, recipe
from cifar_ray.training.errors import CheckpointError
from tests.support.helpers import train_here

STATE = {"0.weight": torch.arange(6.0).view(2, 3), "0.bias": torch.ones(2)}


def network(classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10), nn.Linear(10, classes))


class Harmful:
    """What a careless reader would execute."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.file,)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_state_dict_is_read_however_it_was_written(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "plain.safetensors")
    optimizer = torch.optim.SGD([torch.zeros(2)], momentum=0.9).state_dict()
    for name, written in {
        "plain.pt": STATE,
        "compiled.pt": {f"_orig_mod.{name}": value for name, value in STATE.items()},
        "among.pt": {"epoch": 3, "state_dict": STATE},
        "other.pth": {"model": STATE, "model_ema": {"a": torch.ones(2)}, "optimizer": {"lr": 0.1}},
        "saving.tar": {"epoch": 3, "model_state_dict": STATE, "optimizer_state_dict": optimizer, "loss": 0.4},
        "tuned.pt": {"net": STATE, "optimizer": optimizer},
    }.items():
        torch.save(written, tmp_path / name)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 7
    assert all(same(initial_weights.read(file), STATE) for file in files)


def test_a_prefix_is_stripped_only_where_more_fits_without_it() -> None:
    plain = network(3)
    wrapped = nn.ModuleDict({"module": plain, "head": nn.Linear(3, 2)})  # the model itself has the name
    averaged = torch.optim.swa_utils.AveragedModel(nn.ModuleDict({"net": plain}))  # and `n_averaged` beside it
    for weights, model in ((averaged, plain), (plain, plain), (wrapped, wrapped), (nn.DataParallel(wrapped), wrapped)):
        assert same(initial_weights.named_alike(weights.state_dict(), model), model.state_dict())
    for names in itertools.permutations(("student", "teacher", "frozen_")):  # all fit alike: the first in the file
        several = nn.ModuleDict({name: network(3) for name in names})
        taken = initial_weights.named_alike(several.state_dict(), plain)
        assert same(taken, several[names[0]].state_dict())


def test_code_and_truncated_files_are_refused_and_nothing_is_executed(tmp_path: Path) -> None:
    torch.save({**STATE, "code": Harmful(tmp_path / "harmed")}, tmp_path / "bad.pt")
    torch.save(STATE, tmp_path / "cut.pt")
    save_file(STATE, tmp_path / "cut.safetensors")
    for file in tmp_path.iterdir():
        if file.stem == "cut":
            file.write_bytes(file.read_bytes()[:-40])
        with pytest.raises(ConfigError, match=f"^weights must be a file that loads .*; {re.escape(str(file))}: .+$"):
            initial_weights.read(file)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "content",
    [{"epoch": 3}, {"generator": STATE, "discriminator": STATE}, [torch.ones(2)], {0: torch.ones(2)}],
)
def test_what_is_no_state_dict_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match="weights must be a state dict"):
        initial_weights.read(tmp_path / "other.pt")


def given(**values: object) -> ResolvedConfig:
    return recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", weights="them", **values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [network(5).state_dict(), {"2.weight": torch.ones(3, 9), "2.bias": torch.ones(3)}],
    ids=["both", "weight"],
)
def test_layers_of_another_shape_are_named_and_stay_fresh(changes: dict[str, Tensor]) -> None:
    """A bias is not taken without its weight."""
    weights, model = {**network(3).state_dict(), **changes}, network(3)
    fresh = copy.deepcopy(model[2].state_dict())
    told = initial_weights.compared(model, weights, given())
    assert told == f"weights of them: {130 / 163:.1%} of the parameters; randomly initialised: 2"
    content, digest = initial_weights.pack(weights)
    initial_weights.load(model, digest, content)
    assert torch.equal(model[0].weight, weights["0.weight"])
    assert torch.equal(model[1].running_var, weights["1.running_var"])
    assert same(model[2].state_dict(), fresh)


def test_weights_of_another_model_and_damaged_ones_are_refused() -> None:
    weights = {**network(3).state_dict(), "0.weight": torch.ones(10, 9)}
    with pytest.raises(ConfigError, match=r"^weights must fit at least half .* 32\.5% of them"):
        initial_weights.compared(network(3), weights, given())
    content, digest = initial_weights.pack(STATE)
    with pytest.raises(CheckpointError, match="damaged"):
        initial_weights.load(network(3), digest, content[:-1])


def test_a_run_begins_with_them_and_has_them_in_its_record(tmp_path: Path, digits: Dataset) -> None:
    """A learning rate of next to nothing leaves them as they are."""
    usual: dict[str, Any] = {"lr": 1e-30, "weight_decay": 0.0, "precision": "fp32", "epochs": 1, "cpus_per_worker": 1}
    torch.manual_seed(7)
    content, digest = initial_weights.pack(models.build(given(), SPECS["digits"]).state_dict())
    config = given(steps_per_epoch=1, **usual)
    outcome = train_here(config, digits, tmp_path, initial=content)
    assert outcome.weights_sha256 == digest
    newest = checkpoint.latest(tmp_path, config)
    assert newest is not None
    assert (newest[1].config.weights, newest[1].decided.weights_digest) == ("them", digest)
    other = dataclasses.replace(Decided.asked(config), weights_digest="0" * 64)
    with pytest.raises(CheckpointError, match="was made with weights_digest"):
        checkpoint.latest(tmp_path, config, other)
    assert runfile.params(config, newest[1].decided)["weights_digest"] == digest
    assert "--weights them" in recipe.command(config)
