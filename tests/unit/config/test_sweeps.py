"""Grids, cells, and what a sweep refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cifar_ray.config import sweep as sweeps
from cifar_ray.config import sweepfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import Cell, Range, SweepConfig
from cifar_ray.training import recipe


def cells_of(**values: Any) -> list[Cell]:
    sweep = sweepfile.from_mapping({"name": "s", **values})
    return sweeps.cells(sweep, sweeps.combinations(sweep))


def names_of(**values: Any) -> list[str]:
    return [cell.name for cell in cells_of(**values)]


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        cells_of(**values)
    return caught.value.as_flag()


PLACES = {"topology": ["1x1", "1x2"]}
PAPER = {"batch_size": [16, 64], "topology": ["1x1", "1x2", "2x2"]}


def test_every_combination_with_every_seed() -> None:
    cells = cells_of(grid=PAPER, seeds=3)
    assert len(cells) == 2 * 3 * 3
    assert cells[7].name == "bs16 2x2 seed1"
    assert {cell.name for cell in cells} == {
        f"bs{batch} {topology} seed{seed}"
        for batch in PAPER["batch_size"]
        for topology in PAPER["topology"]
        for seed in range(3)
    }
    assert all(cell.config is not None and cell.config.seed == int(cell.name[-1]) for cell in cells)


def test_seeds_count_up_from_that_of_all_runs() -> None:
    assert names_of(grid={"batch_size": [16]}, train={"seed": 5}, seeds=2) == ["bs16 1x1 seed5", "bs16 1x1 seed6"]


def test_several_grids_with_settings_of_their_own() -> None:
    grids = [
        {"model": "simple_cnn", "epochs": 10, "batch_size": [16, 64]},
        {"model": "vit", "epochs": 1, "batch_size": [64], "vit": {"depth": [2, 4]}},
    ]
    cells = cells_of(grid=grids)
    assert [cell.name for cell in cells] == [
        "simple_cnn bs16 1x1 seed0",
        "simple_cnn bs64 1x1 seed0",
        "vit depth2 bs64 1x1 seed0",
        "vit depth4 bs64 1x1 seed0",
    ]
    assert [cell.config.epochs for cell in cells if cell.config] == [10, 10, 1, 1]
    assert cells[3].config is not None
    assert cells[3].config.vit.depth == 4


def test_an_option_of_another_model_is_no_axis() -> None:
    cells = cells_of(grid={"vit.depth": [2, 3]}, train={"model": "simple_cnn"})
    assert [cell.config for cell in cells] == [None, None]
    assert "vit options are for --model vit only" in cells[0].reason


def test_what_follows_from_the_grid_is_named_where_nothing_else_tells_cells_apart() -> None:
    grids = [{"epochs": 1, "batch_size": [16]}, {"epochs": 2, "batch_size": [16]}]
    assert names_of(grid=grids) == ["epochs1 bs16 1x1 seed0", "epochs2 bs16 1x1 seed0"]


def test_options_of_another_model_do_not_stand_in_the_way() -> None:
    cells = cells_of(grid={"model": ["simple_cnn", "vit"]}, train={"vit": {"depth": 2}})
    assert [cell.reason for cell in cells] == ["", ""]
    assert cells[1].config is not None
    assert cells[1].config.vit.depth == 2


def test_a_batch_that_is_held_per_worker_grows_with_the_workers() -> None:
    sizes = [(cell.config.batch_size, cell.config.global_batch_size) for cell in cells_of(grid=PAPER) if cell.config]
    assert sizes == [(16, None)] * 3 + [(64, None)] * 3


def test_a_global_batch_that_is_held_is_that_of_one_worker() -> None:
    cells = cells_of(grid=PAPER, hold="global_batch")
    assert [cell.name for cell in cells][:3] == ["gbs16 1x1 seed0", "gbs16 1x2 seed0", "gbs16 2x2 seed0"]
    assert {cell.config.global_batch_size for cell in cells[:3] if cell.config} == {16}
    assert {cell.config.batch_size for cell in cells if cell.config} == {None}


def test_a_global_batch_on_an_axis_is_held() -> None:
    sweep = sweepfile.from_mapping({"name": "s", "grid": {"global_batch_size": [64], "topology": ["1x1", "1x2"]}})
    assert sweep.held == "global_batch"


def test_a_held_global_batch_has_every_micro_batch_in_it() -> None:
    grid = {"batch_size": [16], "accumulate": [1, 3], "topology": ["1x1", "1x2"]}
    sizes = [cell.config.global_batch_size for cell in cells_of(grid=grid, hold="global_batch") if cell.config]
    assert sizes == [16, 16, 48, 48]


def test_where_no_batch_is_named_the_global_batch_is_held() -> None:
    sweep = sweepfile.from_mapping({"name": "s", "grid": {"topology": ["1x1", "1x2"]}})
    assert sweep.held == "global_batch"
    sizes = [recipe.resolve(cell.config).images_per_step for cell in cells_of(grid=PLACES) if cell.config]
    assert sizes == [128, 128]


def test_values_that_do_not_go_together_say_so() -> None:
    cells = cells_of(grid={"batch_size": [16], "topology": ["1x1", "1x3"]}, hold="global_batch")
    assert cells[0].config is not None
    assert cells[1].config is None
    assert "must be a multiple of workers x accumulation (3 x 1), got 16" in cells[1].reason


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"grid": {"bach_size": [16]}},
            "--grid has 'bach_size', which is no field of a run; did you mean 'batch_size'?",
        ),
        ({"grid": {}}, "--grid must name at least one field with its values, such as batch_size=16,64"),
        ({}, "--grid must name at least one field with its values, such as batch_size=16,64"),
        ({"grid": {"lr": []}}, "--grid must have at least one value for lr"),
        ({"grid": {"lr": [0.1, 0.1]}}, "--grid must not have the same cell twice; it has 'lr0.1 1x1 seed0' twice"),
        ({"grid": {"batch_size": ["many"]}}, "--batch-size must be a whole number, got 'many'"),
        (
            {"grid": {"storage": ["/a", "/b"]}},
            "--grid must not have storage, which is the same for all runs of a sweep",
        ),
        (
            {"grid": PLACES, "hold": "batch"},
            "--grid must have batch_size where the batch per worker is held, unless all runs share one (--batch-size)",
        ),
        ({"grid": [PLACES, {**PLACES, "batch_size": [16]}]}, "--grid must have batch_size where the"),
        ({"grid": {"seed": [1, 2]}, "seeds": 2}, "--seeds must be 1 where seed is an axis"),
        ({"grid": {"lr": [0.1]}, "seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"grid": {"lr": {"uniform": [0.1, 1]}}}, "--grid must list the values of lr; ranges are for --search random"),
        (
            {"grid": {"lr": {"uniform": [1, 0.1]}}, "search": "random", "samples": 2},
            "--grid must have a range of positive numbers for lr, the lower one first",
        ),
        ({"grid": {"lr": [0.1]}, "search": "random"}, "--samples must be given for --search random"),
        ({"grid": {"lr": [0.1]}, "samples": 2}, "--samples must be given for --search random"),
        (
            {"grid": {"global_batch_size": [16]}, "hold": "batch"},
            "--hold must be global_batch where global_batch_size is given",
        ),
        ({"grid": {"lr": [0.1]}, "train": {"epoch": 3}}, "--train has 'epoch', which is no field of a run"),
        ({"grid": {"batch_size": [16, 64]}, "train": {"lr": "fast"}}, "--lr must be a finite number, got 'fast'"),
        (
            {"grid": {"batch_size": [16, 64]}, "train": {"batch_size": 32}},
            "--grid has batch_size, which is given for all runs, too; give it once",
        ),
        ({"grid": {"lr": [0.1]}, "train": {"run_name": "x"}}, "--train must not have run_name"),
        ({"grid": {"lr": [0.1]}, "train": {"elastic": "1x1:1x2"}}, "--elastic is for cifar-ray train"),
        ({"grid": {"lr": [0.1]}, "hold": "it"}, "--hold must be batch or global_batch, got 'it'"),
        ({"grid": {"lr": [0.1]}, "seed": 3}, "unknown key 'seed'; did you mean 'seeds'?"),
        ({"grid": {"lr": [0.1]}, "name": "a b"}, "--name must be 1 to 120 letters, digits, '.', '_' or '-', got 'a b'"),
    ],
)
def test_bad_input_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    assert refusal(**values).startswith(sentence)


def test_the_yaml_makes_the_same_runs_again(tmp_path: Path) -> None:
    sweep = sweepfile.from_mapping(
        {
            "name": "s",
            "grid": [{"lr": {"loguniform": [0.01, 0.1]}, "resnet": {"blocks": [[1, 1], [2, 2]]}}, {"epochs": 2}],
            "train": {"resnet": {"width": 8}, "batch_size": 8},
            "search": "random",
            "samples": 3,
        }
    )
    assert sweep.grid[0]["lr"] == Range("loguniform", 0.01, 0.1)
    assert sweep.grid[0]["resnet.blocks"] == [(1, 1), (2, 2)]
    (tmp_path / "s.yaml").write_text(sweepfile.to_yaml(sweep))
    assert sweepfile.from_mapping(sweepfile.load(tmp_path / "s.yaml")) == sweep


def test_words_of_the_command_line() -> None:
    assert sweepfile.read_axes(["batch_size=16,64", "vit.depth=2", "lr=loguniform:0.01:0.3"]) == {
        "batch_size": ["16", "64"],
        "vit.depth": ["2"],
        "lr": {"loguniform": ["0.01", "0.3"]},
    }
    for words, sentence in (
        (["batch_size"], "--grid must be FIELD=VALUE,VALUE ..., got 'batch_size'"),
        (["lr=1", "lr=2"], "--grid must name every field once, and lr comes twice"),
    ):
        with pytest.raises(ConfigError) as caught:
            sweepfile.read_axes(words)
        assert caught.value.as_flag() == sentence


def test_flags_lie_on_top_of_a_file() -> None:
    base = {"grid": {"lr": [0.1]}, "train": {"epochs": 5, "batch_size": 16}, "seeds": 2}
    flags = {"epochs": "1", "global_batch_size": "32", "seeds": "1", "vit": {"depth": "2"}}
    merged = sweepfile.merge(base, flags, "folder/lrs.yaml")
    assert merged == {
        "grid": {"lr": [0.1]},
        "name": "lrs",
        "seeds": "1",
        "train": {"epochs": 5, "global_batch_size": "32", "vit": {"depth": "2"}} | {"epochs": "1"},
    }
    sweep = sweepfile.from_mapping(merged)
    assert isinstance(sweep, SweepConfig)
    assert sweep.train["epochs"] == 1


def test_a_file_whose_shared_options_are_no_mapping() -> None:
    with pytest.raises(ConfigError, match="train must be a mapping of fields to values, got 'fast'"):
        sweepfile.merge({"train": "fast"}, {}, None)


def test_a_batch_that_is_left_open_is_no_mistake() -> None:
    (cell,) = cells_of(grid={"lr": [0.1]}, train={"batch_size": None}, hold="global_batch")
    assert cell.reason == ""


def test_cells_of_several_grids_are_told_apart_in_a_random_search_too() -> None:
    sweep = sweepfile.from_mapping(
        {
            "name": "s",
            "grid": [{"weight_decay": 0.1, "batch_size": [16]}, {"weight_decay": 0.2, "batch_size": [16]}],
            "search": "random",
            "samples": 1,
        }
    )
    names = [
        cell.name
        for cell in sweeps.cells(
            sweep, [{"weight_decay": 0.1, "batch_size": 16}, {"weight_decay": 0.2, "batch_size": 16}]
        )
    ]
    assert names == ["weight-decay0.1 bs16 1x1 seed0", "weight-decay0.2 bs16 1x1 seed0"]


def test_shared_options_are_for_the_strategies_that_have_them() -> None:
    """As with models: ``sync_every`` for all runs is local_sgd's, and no mistake of ddp's."""
    sweep = SweepConfig(
        name="s", grid=({"strategy": ["ddp", "local_sgd"]},), train={"sync_every": 4, "bucket_cap_mb": 5.0}
    )
    ddp, local = sweeps.cells(sweep, sweeps.combinations(sweep))
    assert ddp.config is not None
    assert local.config is not None
    assert (ddp.config.sync_every, ddp.config.bucket_cap_mb) == (8, 5.0)
    assert (local.config.sync_every, local.config.bucket_cap_mb) == (4, 25.0)
    other = SweepConfig(name="s", grid=({"strategy": ["ddp", "gpipe"], "topology": ["1x2"]},), train={"accumulate": 2})
    assert "accumulate is for --strategy" in sweeps.cells(other, sweeps.combinations(other))[1].reason
