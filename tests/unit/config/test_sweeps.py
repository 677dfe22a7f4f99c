"""Grids, cells, and what a sweep refuses."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest

from cifar_ray.config import command_line, runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import Cell, Range, SweepConfig, cells, proposed
from cifar_ray.config.train import TrainConfig


def cells_of(**values: Any) -> list[Cell]:
    sweep = sweeps.from_mapping({"name": "s", **values})
    return cells(sweep, sweep.combinations)


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        cells_of(**values)
    return caught.value.as_flag()


PLACES = {"topology": ["1x1", "1x2"]}
PAPER = {"batch_size": [16, 64], "topology": ["1x1", "1x2", "2x2"]}
SIZES = {"batch_size": [16]}


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (
            {"grid": PAPER, "seeds": 3},
            [f"bs{batch} {place} seed{seed}" for seed in range(3) for batch in (16, 64) for place in PAPER["topology"]],
        ),
        ({"grid": SIZES, "train": {"seed": 5}, "seeds": 2}, ["bs16 1x1 seed5", "bs16 1x1 seed6"]),
        # The model, the data set and the strategy first; the grid's own batch, or that of all runs, before the topology.
        (
            {"grid": {"lr": [0.1, 0.2], "strategy": ["ddp"], "dataset": ["mnist"], "model": ["vit", "vgg11"]}},
            [f"{model} lr{lr} 1x1 seed0" for lr in (0.1, 0.2) for model in ("vit", "vgg11")],
        ),
        ({"grid": {"epochs": [1, 2]}, "train": {"batch_size": 8}}, ["epochs1 bs8 1x1 seed0", "epochs2 bs8 1x1 seed0"]),
        ({"grid": {"global_batch_size": [16], **PLACES}}, ["gbs16 1x1 seed0", "gbs16 1x2 seed0"]),
        # Three figures tell most numbers apart; where they do not, all are there.
        ({"grid": {"lr": [0.12345, 0.5]}}, ["lr0.123 1x1 seed0", "lr0.5 1x1 seed0"]),
        ({"grid": {"lr": [0.12345, 0.12346]}}, ["lr0.12345 1x1 seed0", "lr0.12346 1x1 seed0"]),
        ({"grid": {"lr": [0.1, 1e30]}}, ["lr0.1 1x1 seed0", "lr1e30 1x1 seed0"]),
        ({"grid": {"weight_decay": [0.5, 1.0]}}, ["weight-decay0.5 1x1 seed0", "weight-decay1 1x1 seed0"]),
        ({"grid": {"augment": ["crop", "mixup"]}}, ["augment-crop 1x1 seed0", "augment-mixup 1x1 seed0"]),
        ({"grid": {"dataset": ["folder:/a/one", "mnist"]}}, ["one 1x1 seed0", "mnist 1x1 seed0"]),
        (
            {"grid": {"dataset": ["folder:/a/one", "folder:/b/one"]}},
            ["folder:/a/one 1x1 seed0", "folder:/b/one 1x1 seed0"],
        ),
        (
            {
                "grid": [
                    {"model": "simple_cnn", "epochs": 10, "batch_size": [16, 64]},
                    {"model": "vit", "epochs": 1, "batch_size": [64], "model_options": {"depth": [2, 4]}},
                ]
            },
            [
                *("simple_cnn epochs10 bs16 1x1 seed0", "simple_cnn epochs10 bs64 1x1 seed0"),
                *("vit epochs1 depth2 bs64 1x1 seed0", "vit epochs1 depth4 bs64 1x1 seed0"),
            ],
        ),
        ({"grid": [{"lr": 0.1}, {"momentum": 0.5}]}, ["lr0.1 1x1 seed0", "momentum0.5 1x1 seed0"]),
    ],
)
def test_every_cell_is_named_after_what_tells_it_from_the_others(values: dict[str, Any], names: list[str]) -> None:
    cells = cells_of(**values)
    assert [cell.name for cell in cells] == names
    assert all(cell.config is not None and cell.config.seed == int(cell.name[-1]) for cell in cells)


def test_a_cell_has_its_own_values_and_those_of_all_runs() -> None:
    grids = [{"model": "text_transformer", "epochs": 3}, {"model": "vit", "model_options": {"depth": [2]}}]
    first, second = cells_of(grid=grids, train={"dataset": "digits", "model_options": {"heads": 6}})
    shared = {"dataset": "digits", "model": "text_transformer", "model_options": {"heads": 6}}
    assert first.config == TrainConfig(epochs=3, **shared)  # type: ignore[arg-type]
    assert second == Cell(
        "vit depth2 1x1 seed0",
        {"model": "vit", "model_options.depth": 2, "seed": 0},
        TrainConfig(dataset="digits", model="vit", model_options={"depth": 2, "heads": 6}),
    )


def test_what_all_runs_share_may_be_for_some_data_alone_and_not_for_some_strategies() -> None:
    """``image_size`` for all runs is no mistake of digits; another strategy's option would make the runs differ."""
    grid = {"dataset": ["folder:mine", "digits"]}
    found = cells_of(grid=grid, train={"image_size": 64, "optimizer_options": {"alpha": 1}})
    assert [(cell.config.image_size, cell.config.optimizer_options) for cell in found if cell.config] == [
        (64, {}),
        (32, {}),
    ]
    (cell,) = cells_of(grid={"image_size": [64]}, train={"dataset": "digits"})
    assert cell.reason.startswith("image_size is for --dataset folder:PATH, ")
    for train in ({"accumulate": 2}, {"bucket_cap_mb": 5.0}):
        (cell,) = cells_of(grid={"strategy": ["gpipe"]}, train={**train, "topology": "1x2"})
        assert cell.reason.startswith(f"{next(iter(train))} is for --strategy ")


@pytest.mark.parametrize(
    ("values", "held", "sizes"),
    [
        ({"grid": {**SIZES, **PLACES}}, "batch", [(16, 16), (16, 32)]),
        ({"grid": PLACES, "train": {"batch_size": 8}}, "batch", [(8, 8), (8, 16)]),
        ({"grid": {"global_batch_size": [64]}, "train": {"batch_size": 8}}, "global_batch", [(None, 64)]),
        ({"grid": SIZES, "train": {"global_batch_size": 64}}, "batch", [(16, 16)]),
        ({"grid": PLACES}, "global_batch", [(None, None)] * 2),
    ],
)
def test_the_batch_that_is_held(values: dict[str, Any], held: str, sizes: list[tuple[int | None, int | None]]) -> None:
    assert sweeps.from_mapping({"name": "s", **values}).held == held
    found = [(cell.config.batch_size, cell.config.global_batch_size) for cell in cells_of(**values) if cell.config]
    assert found == sizes


def test_values_that_do_not_go_together_say_so() -> None:
    cells = cells_of(grid={"global_batch_size": [16], "topology": ["1x1", "1x3"]})
    assert [cell.config is None for cell in cells] == [False, True]
    assert (
        cells[1].reason == "global_batch_size must be a multiple of workers x accumulation (3 x 1), such as 15, got 16"
    )


@pytest.mark.parametrize(("name", "value"), [("storage", "/runs"), ("address", "h:1"), ("local_nodes", 2)])
def test_what_is_the_same_for_all_runs(name: str, value: Any) -> None:
    sweep = SweepConfig(name="s", grid=({"epochs": [1]},), train={"lr": 0.2, name: value})
    assert sweep.base == TrainConfig(**{name: value})


RANDOM = {"search": "random", "samples": 1}
OPTUNA = {"search": "optuna", "samples": 2}
NO_FIELD = "which is no field of a run"
ALONE = "is for cifar-ray train alone"


@pytest.mark.parametrize(
    ("values", "flag", "told"),
    [
        ({"grid": {"bach_size": [16]}}, "--grid", f"has 'bach_size', {NO_FIELD}; did you mean 'batch_size'?"),
        ({}, "--grid", "must name at least one field"),
        ({"grid": {"lr": []}}, "--grid", "must have at least one value for lr"),
        ({"grid": {"lr": [0.1, 0.1]}}, "--grid", "must not have the same combination twice"),
        ({"grid": {"batch_size": ["many"]}}, "--batch-size", "must be a whole number"),
        ({"grid": {"storage": ["/a", "/b"]}}, "--grid", "must not have storage"),
        ({"grid": [PLACES, {**PLACES, "batch_size": [16]}]}, "--grid", "must have batch_size in every grid"),
        ({"grid": {"lr": [0.1]}, "seeds": 0}, "--seeds", "must be at least 1"),
        ({"grid": {"lr": [0.1]}, "search": "random"}, "--samples", "must be given for --search random"),
        ({"grid": {"lr": [0.1]}, "train": []}, "--train", "must be a mapping"),
        ({"grid": {"lr": [0.1]}, "train": {"measure": "times"}}, "--train", f"has 'measure', {NO_FIELD}"),
        ({"grid": {"batch_size": [16, 64]}, "train": {"lr": "fast"}}, "--lr", "must be a finite number"),
        ({"grid": [{"lr": [0.1]}, {"lr": [0.2]}], "train": {"lr": 0.3}}, "--grid", "has lr, which is given for all"),
        ({"grid": {"lr": [0.1]}, "train": {"run_name": "x"}}, "--run-name", ALONE),
        ({"grid": {"lr": [0.1]}, "train": {"elastic": "1x1:1x2"}}, "--elastic", ALONE),
        ({"grid": {"lr": "uniform:0.1:1"}}, "--grid", "must list the values of lr; ranges are for --search"),
        ({"grid": {"epochs": "uniform:1:5"}, **RANDOM}, "--grid", "must list the values of epochs, or have a "),
        ({"grid": {"epochs": "int:1.5:3"}, **RANDOM}, "--epochs", "must be a whole number"),
        ({"grid": {"epochs": "int:3:3"}, **RANDOM}, "--grid", "must have the lower number first"),
        ({"grid": {"lr": "uniform:0:1"}, **RANDOM}, "--lr", "must be more than 0"),
        ({"grid": {"weight_decay": "loguniform:0:1"}, **RANDOM}, "--grid", "must have the lower number first"),
        ({"grid": {"model_options": {"dropout": "uniform:0.1"}}}, "--grid", "must have two numbers for the range of "),
        ({"grid": [{"lr": [0.1, 0.2]}, {"epochs": [1]}], **OPTUNA}, "--grid", "must be one grid for --search optuna"),
        ({"grid": {"val_share": "uniform:0.1:0.2"}, **OPTUNA}, "--grid", "must list the values of val_share"),
        ({"grid": {"lr": [0.1, 0.2]}, **OPTUNA, "seeds": 2}, "--seeds", "must be 1 for --search optuna"),
        ({"grid": {"seed": [1, 2]}, "seeds": 2}, "--seeds", "must be 1 for --search optuna, and where seed is an axis"),
        ({"grid": ["lr"]}, "--grid", "must be FIELD=VALUE,VALUE"),
        ({"grid": {"lr": [0.1]}, "objective": "images_per_s"}, "--objective", "must be NAME:min or NAME:max"),
        ({"grid": {"lr": [0.1]}, "objective": ":max"}, "--objective", "must be NAME:min or NAME:max"),
        ({"grid": {"lr": [0.1]}, "repeat": 3}, "--repeat", "is for a search"),
        ({"grid": {"lr": [0.1]}, "asha_grace": 2}, "--asha-grace", "is for --scheduler asha only"),
        ({"grid": {"lr": [0.1]}, "scheduler": "asha", "asha_reduction": 1}, "--asha-reduction", "must be at least 2"),
        ({"grid": {"lr": {"gauss": [0.1, 1]}}}, "--grid", f"has 'lr.gauss', {NO_FIELD}"),
        ({"grid": 3}, "--grid", "must be a list"),
        ({"grid": {"lr": [0.1]}, "name": "a b"}, "--name", "must be 1 to 120 letters"),
        # More runs than anyone means are refused before they are written out.
        ({"grid": {"lr": [0.1, 0.2]}, "seeds": 5001}, "--grid", "must make at most 10,000 runs"),
        ({"grid": {name: [*range(1, 2000)] for name in ("epochs", "seed")}}, "--grid", "must make at most"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(values: dict[str, Any], flag: str, told: str) -> None:
    assert refusal(**values).startswith(f"{flag} {told}")
    assert "None" not in refusal(**values)


@pytest.mark.parametrize(
    ("grid", "values", "begins"),
    [
        ([{"lr": [0.1]}], {"train": {"epoch": 3}}, "train has 'epoch', "),
        ([{"bach_size": [1]}], {}, "grid has 'bach_size', "),
        ([{"lr": 0}], {}, "lr must be more than 0"),
        ([{}, {}], {}, "grid must name at least one field"),
        ([{"lr": [0.1]}], {"train": {"address": "a:1", "local_nodes": 2}}, "local_nodes starts nodes on this machine"),
    ],
)
def test_a_sweep_made_in_python_is_checked_too(grid: list[Any], values: dict[str, Any], begins: str) -> None:
    with pytest.raises(ConfigError, match=f"^{begins}"):
        SweepConfig(name="s", grid=tuple(grid), **values)


def test_a_sweep_made_in_python_takes_whatever_fits() -> None:
    """The same sweep as from a file, whatever the values' own types are."""
    grid = {"batch_size": [16, 17], "model_options.blocks": [[1, 1], [2, 2]], "lr": [0.5], "dataset": ["folder:/a"], "seed": [3]}  # fmt: skip
    train = {"data_dir": "/data", "model_options": {"width": 8}, "momentum": 0.5}
    usual = sweeps.from_mapping({"name": "s", "grid": grid, "train": train, "search": "random", "samples": 2})
    axes = {
        "batch_size": range(16, 18), "model_options": {"blocks": [(1, 1), [2, 2]]}, "lr": np.float64(0.5),
        "dataset": [PurePath("folder:/a")], "seed": np.array([3]),
    }  # fmt: skip
    numpy = {"data_dir": PurePath("/data"), "model_options": {"width": np.int64(8)}, "momentum": np.float32(0.5)}
    for given in (axes, [axes], (axes,)):
        for shared in (numpy, train, TrainConfig(**train)):  # type: ignore[arg-type]
            made = SweepConfig("s", given, shared, search="random", samples=np.int64(2))  # type: ignore[arg-type]
            assert made == usual
            assert sweeps.to_yaml(made) == sweeps.to_yaml(usual)  # YAML has no word for numpy's numbers
    for spelled in ("loguniform:0.5:1", ["loguniform:0.5:1"]):  # as flags take it
        (found,) = SweepConfig("s", {"lr": spelled}, search="random", samples=1).grid
        assert found == {"lr": Range("loguniform", 0.5, 1.0)}


def test_the_yaml_makes_the_same_runs_again(tmp_path: Path) -> None:
    grid = [
        {"lr": "loguniform:0.01:0.1", "model_options": {"blocks": [[1, 1], [2, 2]]}},
        {"epochs": "int:2:5", "momentum": "uniform:0:0.9"},
    ]
    train = {"model_options": {"width": 8}, "batch_size": 8}
    search = {"search": "random", "samples": 3, "scheduler": "asha", "asha_grace": 2}
    sweep = sweeps.from_mapping({"name": "s", "grid": grid, "train": train, **search})
    assert sweep.grid == (
        {"lr": Range("loguniform", 0.01, 0.1), "model_options.blocks": [(1, 1), (2, 2)]},
        {"epochs": Range("int", 2, 5), "momentum": Range("uniform", 0.0, 0.9)},
    )
    assert (sweep.asha_grace, sweep.asha_reduction) == (2, 4)
    (tmp_path / "s.yaml").write_text(sweeps.to_yaml(sweep))
    assert sweeps.from_mapping(runfile.read(tmp_path / "s.yaml")) == sweep


def test_a_plus_joins_the_words_of_one_value() -> None:
    axes = sweeps.axes(["freeze=0,0+1", "lr-scale=0=0.1"])
    sweep = sweeps.from_mapping({"name": "s", "train": {"dataset": "digits", "model": "resnet"}, "grid": axes})
    assert sweep.grid[0] == {"freeze": [("0",), ("0", "1")], "lr_scale": [("0=0.1",)]}
    names = [cell.name for cell in cells(sweep, sweep.combinations)]
    assert names == ["freeze0 1x1 seed0", "freeze0+1 1x1 seed0"]


def test_words_of_the_command_line() -> None:
    words = ["batch-size=16,64", "model_options.depth=2", "lr=loguniform:0.01:0.3", "storage=uniform", "lr2=a:b=c"]
    assert sweeps.axes(words) == {
        **{"batch_size": ["16", "64"], "model_options.depth": ["2"], "lr": ["loguniform:0.01:0.3"]},
        **{"storage": ["uniform"], "lr2": ["a:b=c"]},
    }
    for wrong, told in ((["batch_size"], "FIELD=VALUE,VALUE"), (["lr=1", "lr=2"], "lr comes twice")):
        with pytest.raises(ConfigError, match=f"^grid must .*{told}"):
            sweeps.axes(wrong)


OF_SWEEP = {"name": "n", "seeds": "2", "measure": "times", "search": "random", "samples": "3", "scheduler": "asha"}


@pytest.mark.parametrize(
    ("base", "given", "file", "merged"),
    [
        ({}, {}, None, {"train": {}}),
        ({"train": None}, {}, "folder/lrs.yaml", {"name": "lrs", "train": {}}),
        ({"name": "mine", "seeds": 1}, OF_SWEEP, "lrs.yaml", {**OF_SWEEP, "train": {}}),
        ({"asha_grace": 2}, {"samples": "1", "lr": "1"}, None, {"asha_grace": 2, "samples": "1", "train": {"lr": "1"}}),
        ({"grid": {"lr": [0.1]}}, {"grid": ["epochs=1"]}, None, {"grid": ["epochs=1"], "train": {}}),
        # Of the two ways to give the batch, the one given last counts.
        (
            {"train": {"epochs": 5, "batch_size": 16, "model_options": {"heads": 1}}},
            {"global_batch_size": "32", "epochs": "1", "model_options": {"depth": "2"}},
            None,
            {"train": {"epochs": "1", "global_batch_size": "32", "model_options": {"heads": 1, "depth": "2"}}},
        ),
        ({"train": {"global_batch_size": 9}}, {"batch_size": "3"}, None, {"train": {"batch_size": "3"}}),
    ],
)
def test_flags_lie_on_top_of_a_file(
    base: dict[str, Any], given: dict[str, Any], file: str | None, merged: dict[str, Any]
) -> None:
    before = (repr(base), repr(given))
    assert command_line.merged(base, given, file) == merged
    assert (repr(base), repr(given)) == before


def test_a_proposed_cell_has_a_name_that_is_new_and_is_no_other_cell_again() -> None:
    values = {"grid": {"lr": "loguniform:0.01:0.1", "batch_size": [16, 32]}, "search": "optuna", "samples": 4}
    sweep = sweeps.from_mapping({"name": "s", "train": {"seed": 3, "topology": "1x2"}, **values})
    earlier: list[Cell] = []
    for lr, name in ((0.012341, "lr0.0123"), (0.012342, "lr0.012342"), (0.05, "lr0.05")):
        cell = proposed(sweep, {"lr": lr, "batch_size": 16}, earlier)
        assert cell is not None
        assert cell.config is not None
        assert (cell.name, cell.config.lr, cell.config.world_size) == (f"{name} bs16 1x2 seed3", lr, 2)
        earlier.append(cell)
    assert proposed(sweep, {"lr": 0.05, "batch_size": 16}, earlier) is None
