"""Frozen parameters and groups of them at several workers: real processes over gloo."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from cifar_ray import models
from cifar_ray.config import strategy
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.training import checkpoint
from tests.support.helpers import cells_on_ranks, digest, small_config, train_on_ranks

NORM: dict[str, object] = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}}
PLAIN: dict[str, object] = {"model": "simple_cnn"}
CLOSE = 1e-5
config = partial(small_config, steps_per_epoch=6, global_batch_size=48, log_every=1, precision="fp32")
pytestmark = pytest.mark.slow


def last(folder: Path) -> checkpoint.Snapshot:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return newest[1]


def initial(wanted: TrainConfig) -> dict[str, torch.Tensor]:
    torch.manual_seed(wanted.seed)
    return models.build(wanted, SPECS["digits"]).state_dict()


def changed(folder: Path, wanted: TrainConfig) -> set[str]:
    begun = initial(wanted)
    return {name for name, weight in last(folder).weights.items() if not torch.equal(weight, begun[name])}


def test_the_same_to_the_last_bit_at_any_number_of_workers(tmp_path: Path) -> None:
    """With batch norm: frozen for an epoch of three, interrupted in it and after it, and resumed at other numbers."""
    made = partial(
        config, "reproducible", epochs=3, freeze=("[0-3]",), unfreeze_epoch=2, lr_scale=("7=2",), ema=0.9,
        checkpoint_every=2, **{**NORM, "global_batch_size": 32},
    )  # fmt: skip
    for topology in ("1x1", "1x2"):
        train_on_ranks(made(topology), tmp_path / topology)
    train_on_ranks(made("1x2"), tmp_path / "resumed", stop_after=5)
    train_on_ranks(made("2x2"), tmp_path / "resumed", stop_after=9)
    train_on_ranks(made("1x1"), tmp_path / "resumed")
    assert len({digest(last(tmp_path / name)) for name in ("1x1", "1x2", "resumed")}) == 1


def test_what_is_frozen_stays_and_learns_later_under_every_strategy(tmp_path: Path) -> None:
    """Batch norm's statistics, too. With a scaled loss, micro-batches and moving averages, where the strategy takes them.

    Two workers, all in the same two processes. A strategy that cannot freeze refuses the flag.
    """
    names = [name for name in strategy.FREEZING if name != "data_parallel"]  # which needs GPUs
    wanted = []
    for name in names:
        values: dict[str, object] = {**NORM, "freeze": ("[0-3]",), "steps_per_epoch": 3, "global_batch_size": 16}
        values |= {"precision": "fp16"} if name in strategy.SCALING else {}
        values |= {"accumulate": 2} if name in strategy.ACCUMULATING else {}
        values |= {"ema": 0.9} if name in strategy.AVERAGING else {}
        values |= {"strategy_options": {"sync_every": 2}} if name == "local_sgd" else {}
        values |= {"unfreeze_epoch": 2} if name in strategy.UNFREEZING else {}
        wanted.append(config(name, "1x2", **values, test_images=16))
    begun = initial(wanted[0])
    trunk = {name for name in begun if name[0] in "0123"}
    for number, (name, cell) in enumerate(zip(names, cells_on_ranks(wanted[0], wanted, tmp_path, None), strict=True)):
        assert cell.error == "", name
        assert len({*cell.digests}) == 1, name
        first = checkpoint.load(tmp_path / str(number) / "step-00000003").weights
        assert {key for key in begun if torch.equal(first[key], begun[key])} == trunk, name
        same = {key for key in begun if (cell.weights[key] == begun[key].numpy()).all()}
        assert same == (set() if name in strategy.UNFREEZING else trunk), name


def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """Before and after the epoch from which on all learns; until then the trunk is as it was, to the last byte."""
    wanted = config(
        "ddp", "1x2", epochs=3, freeze=("[0-3]",), unfreeze_epoch=2, checkpoint_every=2, keep_checkpoints=9,
        bucket_cap_mb=0.01, **NORM,
    )  # fmt: skip
    train_on_ranks(wanted, tmp_path / "whole")
    for stop in (3, 11):
        train_on_ranks(wanted, tmp_path / str(stop), stop_after=stop)
        train_on_ranks(wanted, tmp_path / str(stop))
    assert len({digest(last(tmp_path / name)) for name in ("whole", "3", "11")}) == 1
    begun, first = initial(wanted), checkpoint.load(tmp_path / "whole" / "step-00000006").weights
    trunk = {name for name in begun if name[0] in "0123"}
    assert {name for name in begun if torch.equal(first[name], begun[name])} == trunk
    assert changed(tmp_path / "whole", wanted) == begun.keys()


def apart(mine: checkpoint.Snapshot, alone: checkpoint.Snapshot) -> float:
    """The largest difference of a weight, relative to the largest weight of its tensor."""
    return max(
        float((mine.weights[name] - weight).abs().max() / weight.abs().max()) for name, weight in alone.weights.items()
    )


def test_strategies_that_are_close_are_so_with_frozen_parameters_and_groups(tmp_path: Path) -> None:
    values: dict[str, object] = {**PLAIN, "freeze": ("0",), "lr_scale": ("[!0]=0.5", "*.bias=2"), "epochs": 1}
    train_on_ranks(config("ddp", "1x1", **values), tmp_path / "alone")
    alone = last(tmp_path / "alone")
    for name in ("ddp", "fsdp"):
        wanted = config(name, "1x2", **values)
        train_on_ranks(wanted, tmp_path / name)
        mine = last(tmp_path / name)
        assert apart(mine, alone) < CLOSE, name
        assert mine.optimizer["state"].keys() == alone.optimizer["state"].keys()
        assert changed(tmp_path / name, wanted) == {key for key in alone.weights if key[0] != "0"}


def test_stages_learn_at_their_own_rates(tmp_path: Path) -> None:
    values: dict[str, object] = {**PLAIN, "epochs": 1, "lr_scale": ("0=0.1", "*.bias=2")}
    train_on_ranks(config("ddp", "1x1", **values), tmp_path / "alone")
    for name in ("gpipe", "model_parallel"):
        train_on_ranks(config(name, "1x2", **values), tmp_path / name)
        assert apart(last(tmp_path / name), last(tmp_path / "alone")) < CLOSE, name


def test_hogwild_leaves_what_is_frozen_alone(tmp_path: Path) -> None:
    """Three workers, whose mean of equal numbers may be another in the last bit."""
    wanted = config("hogwild", "1x3", freeze=("[0-3]",), lr_scale=("7=2",), epochs=2, **NORM)
    train_on_ranks(wanted, tmp_path)
    assert changed(tmp_path, wanted) == {name for name in initial(wanted) if name[0] not in "0123"}
