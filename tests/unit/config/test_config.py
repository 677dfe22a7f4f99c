from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from cifar_ray import data, models, strategies
from cifar_ray.config import flags, option, runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.model import ModelName
from cifar_ray.config.sections import DatasetName
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import recipe

SECRETS = {
    "tracking_uri": (
        *("http://SECRET@host:5000", "https://me:SEC/RET@host", "http://host:5000/#SECRET", "http:/me:SECRET@host"),
        *("postgresql://me:SECRET@host/mlflow", "postgresql://me:123/SECRET@host/mlflow", "http//me:SECRET@host"),
        "postgresql+psycopg2://host/mlflow?user=me&password=SECRET",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3DODBC%3BPWD%3DSECRET",
    ),
    "storage": ("s3://KEY:SEC/RET@bucket/runs", "s3://bucket/runs?secret_key=SECRET", "s3:/KEY:SECRET@bucket"),
    "address": ("ray:/me:SECRET@head:10001", "SECRET@head:6379", "head:6379?token=SECRET"),
}


@pytest.mark.parametrize(("key", "address"), [(key, one) for key, several in SECRETS.items() for one in several])
def test_an_address_with_a_secret_is_refused_and_not_repeated(key: str, address: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"{key}: '{address}'\n")
    for make in (lambda: TrainConfig(**{key: address}), lambda: runfile.load(tmp_path / "run.yaml")):
        with pytest.raises(ConfigError, match=f"{key} must not have a ") as caught:
            make()
        assert not re.search("SEC/?RET(?!_ACCESS)", str(caught.value))


def test_choices_are_the_registries() -> None:
    assert set(get_args(DatasetName)) == set(data.SPECS)
    files = Path(str(models.__file__)).parent.glob("*.py")
    assert {path.stem for path in files if "\nMODEL = " in path.read_text()} == set(get_args(ModelName))
    files = Path(str(strategies.__file__)).parent.glob("*.py")
    alone = {path.stem for path in files if "\nSTRATEGY = " in path.read_text()}
    assert alone <= set(strategies.NAMES)
    assert all(strategies.about(name).label for name in strategies.NAMES)


def test_batch_size_and_global_batch_size_say_the_same() -> None:
    by_worker = recipe.resolve(TrainConfig(batch_size=16, topology="2x2", accumulate=2))
    by_step = recipe.resolve(TrainConfig(global_batch_size=128, topology="2x2", accumulate=2))
    assert by_worker == by_step
    assert by_worker.global_batch_size == 128


def test_resolving_fills_in_the_models_recipe_and_keeps_what_was_given() -> None:
    resolved = recipe.resolve(TrainConfig(model="vit", lr=0.5))
    assert (resolved.optimizer, resolved.lr, resolved.images_per_worker) == ("adamw", 0.5, 128)
    assert recipe.resolve(resolved) == resolved


@pytest.mark.parametrize(
    ("values", "batch"),
    [({}, 128), ({"topology": "2x2", "accumulate": 2}, 16), ({"topology": "1x2", "strategy": "gpipe"}, 64)],
)
def test_by_default_a_step_has_128_images_over_all_workers(values: dict[str, Any], batch: int) -> None:
    resolved = recipe.resolve(TrainConfig(**values))
    assert (resolved.images_per_worker, resolved.global_batch_size) == (batch, 128)


def test_workers_that_cannot_share_the_default_batch_are_asked_for_another() -> None:
    with pytest.raises(ConfigError, match=r"^global_batch_size must be a multiple of "):
        recipe.resolve(TrainConfig(topology="1x2", accumulate=5))


@pytest.mark.parametrize(
    "given",
    [
        TrainConfig(topology="1x3", epochs=1, optimizer="adamw", batch_size=8, seed=3),
        TrainConfig(epochs=1, warmup_epochs=1.0),
        TrainConfig(optimizer="adamw", weight_decay=5e-4),
        TrainConfig(model="vgg11", optimizer="adamw", lr=0.05, weight_decay=5e-4),
    ],
)
def test_the_command_repeats_the_run(given: TrainConfig) -> None:
    told = recipe.command(recipe.resolve(given)).split()[2:]
    again = runfile.load(None, flags.parse(TrainConfig, told, "cifar-ray train"))
    assert recipe.resolve(again) == recipe.resolve(given)


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0.25), (4, 1.0), (10, 1.0)])
def test_a_models_warm_up_takes_a_quarter_of_the_run_at_most(epochs: int, warmup: float) -> None:
    assert recipe.resolve(TrainConfig(epochs=epochs)).warmup_epochs == warmup
    assert recipe.resolve(TrainConfig(epochs=epochs, warmup_epochs=0.9)).warmup_epochs == 0.9


@pytest.mark.parametrize("name", ["simple_cnn", "resnet18"])
def test_another_optimizer_comes_with_a_recipe_of_its_own(name: str) -> None:
    own = recipe.resolve(TrainConfig(model=name))  # type: ignore[arg-type]
    changed = recipe.resolve(TrainConfig(model=name, optimizer="adamw"))  # type: ignore[arg-type]
    assert (own.optimizer, changed.optimizer) == ("sgd", "adamw")
    # What trains with sgd is far too much for adamw, whose steps do not depend on the gradients' size.
    assert changed.lr <= own.lr / 10  # type: ignore[operator]
    assert changed.weight_decay >= 10 * own.weight_decay  # type: ignore[operator]
    assert recipe.resolve(TrainConfig(model=name, optimizer="sgd")) == own  # type: ignore[arg-type]
    assert recipe.resolve(TrainConfig(model=name, optimizer="adamw", lr=0.5)).lr == 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "other"), [("vit", "sgd"), ("vgg11", "adamw")])
def test_an_optimizer_without_a_recipe_needs_its_rate_and_decay(name: str, other: str) -> None:
    values: dict[str, Any] = {"model": name, "optimizer": other}
    for given in ({}, {"lr": 0.01}, {"weight_decay": 0.01}):
        with pytest.raises(ConfigError, match=r"^optimizer must come with "):
            recipe.resolve(TrainConfig(**values, **given))
    resolved = recipe.resolve(TrainConfig(**values, lr=0.01, weight_decay=0.02))
    assert (resolved.optimizer, resolved.lr, resolved.weight_decay) == (other, 0.01, 0.02)
    assert recipe.resolve(resolved) == resolved


def test_a_stored_config_starts_the_same_run_again(tmp_path: Path) -> None:
    given = {
        "model": "vit",
        "model_options": {"depth": 3},
        "topology": "1x2",
        "seed": 7,
        "run_name": "mine",
        "lr": 3e-4,
    }
    config = recipe.resolve(TrainConfig(**given))  # type: ignore[arg-type]
    path = tmp_path / "config.yaml"
    path.write_text(runfile.to_yaml(config))
    assert recipe.resolve(runfile.load(path)) == replace(config, run_name=None)
    stored = runfile.to_mapping(config)
    assert runfile.resolved_from_mapping(stored) == config
    with pytest.raises(ConfigError, match="global_batch_size must be a whole number, got None"):
        runfile.resolved_from_mapping({**stored, "global_batch_size": None})


def test_an_elastic_run_keeps_its_global_batch_and_begins_again_at_its_largest_topology() -> None:
    given = TrainConfig(elastic="1x1:2x2", topology="2x2", batch_size=16, accumulate=2)
    wide = recipe.resolve(given)
    assert recipe.resolve(replace(given, topology="1x1")) == wide
    small = replace(Decided.asked(wide), topology="1x1")
    assert (wide.share(small.world_size), wide.images_per_worker, wide.global_batch_size) == (64, 16, 128)
    recipe.check_place(wide, small)
    assert "--topology 2x2 --elastic 1x1:2x2" in recipe.command(wide)
    with pytest.raises(ConfigError, match="topology must share 128 equally, got 3x1"):
        recipe.check_place(wide, replace(small, topology="3x1"))


GROUP = {"global_batch_size": 64, "topology": "1x2"}


@pytest.mark.parametrize(
    "values",  # the refusal names the first of them
    [
        *({"epochs": 0}, {"lr": 0.0}, {"augment": "false"}, {"label_smoothing": 1.0}, {"topology": "0x2"}),
        *({"seed": -1}, {"seed": 2**63}, {"model": "lenet"}, {"dataset": "imagenet"}, {"model_options": None}),
        *({"run_name": "../x"}, {"run_name": "x" * 121}, {"warmup_epochs": 10.5}, {"elastic": "2x2"}),
        *({"local_nodes": 2, "address": "h:1"}, {"bucket_cap_mb": 5.0, "strategy": "fsdp"}, {"gpus_per_worker": 0}),
        *({**GROUP, "topology": "1x3"}, {**GROUP, "accumulate": 5}, {**GROUP, "batch_size": 16}),
        *({"gpus_per_worker": 2}, {"gpus_per_worker": 1.5, "strategy": "data_parallel"}),
        *({"gpus_per_worker": 0.5, "topology": "1x2"}, {"gpus_per_worker": 0.5, "device": "cpu"}),
    ],
)
def test_an_impossible_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**values)
    assert [caught.value.key, str(caught.value).split()[0]] == [next(iter(values))] * 2
    assert caught.value.problem


@pytest.mark.parametrize(
    "values",
    [
        *({"local_nodes": 2}, {"local_nodes": 1, "address": "h:1"}, {"seed": 2**63 - 1}, {"run_name": "x" * 120}),
        *({"warmup_epochs": 10.0}, {**GROUP, "batch_size": 16, "accumulate": 2}, {"gpus_per_worker": 0.5}),
        *({"tracking_uri": "http://127.0.0.1:5000/mlflow"}, {"address": "10.0.0.5:6379"}, {"storage": "runs@2"}),
        *({"tracking_uri": "sqlite:////home/me@work/m.db?timeout=5"}, {"storage": "/home/me:you@work/runs"}),
        {"tracking_uri": "postgresql+psycopg2://me@host:5432/mlflow?sslmode=require&passfile=/home/me/.pgpass"},
    ],
)
def test_what_just_goes_together_is_taken(values: dict[str, Any]) -> None:
    config = TrainConfig(**values)
    assert {name: getattr(config, name) for name in values} == values


@pytest.mark.parametrize(
    ("values", "begins"),
    [
        ({"model": "resnet18", "model_options": {"depth": 3}}, "model_options.depth is no option of resnet18"),
        ({"model_options": {"widht": 8}}, "model_options.widht is no option of resnet, "),
        ({"model_options": {"blocks": (1, 0)}}, "model_options.blocks must be at least 1"),
        ({"model": "vit", "model_options": {"depth": "deep"}}, "model_options.depth must be a whole number"),
        ({"model": "vit", "model_options": {"dim": 10, "heads": 3}}, "model_options.dim must be a multiple"),
        ({"model": "vit", "model_options": {"patch_size": 5}}, "model_options.patch_size must divide"),
        ({"dataset": "text:none", "text": {"vocabulary": 99}}, "text.vocabulary must be at least 257"),
        ({"strategy": "parameter_server", "strategy_options": {"servers": 0}}, "strategy_options.servers must be "),
        ({"strategy_options": {"comm_hook": "fp8"}}, "strategy_options.comm_hook must be none, fp16, "),
    ],
)
def test_options_are_checked_when_the_run_is_resolved(values: dict[str, Any], begins: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe.resolve(TrainConfig(**values))
    assert str(caught.value).startswith(begins)


def test_workers_and_gpus_follow_from_the_topology() -> None:
    config = TrainConfig(strategy="data_parallel", gpus_per_worker=2, device="cuda")
    decided = Decided.asked(config)
    assert (decided.gpus(config), replace(decided, device="cpu").gpus(config)) == (2, 0)
    assert [replace(decided, cpus_per_worker=count).cpus for count in (None, 3)] == [1, 3]
    assert (TrainConfig(topology="2x3").placement, TrainConfig(topology="2x3").world_size) == (Topology(2, 3), 6)


OF_CHOICES = {
    *("image_size", "test_share", "stream", "text", "target", "features", "image_column"),
    *("model_source", "optimizer_options", "optimizer_source", "schedule_source", "task_source"),
}


@pytest.mark.parametrize(
    ("chosen", "used"),
    [
        ({"dataset": "mine:load"}, set()),
        ({"dataset": "folder:mine"}, {"image_size", "test_share", "stream"}),
        (
            {"dataset": "table:mine", "model": "mlp"},
            {"image_size", "target", "features", "image_column", "test_share", "stream"},
        ),
        ({"model": "my:net", "schedule": "mine:course"}, {"model_source", "schedule_source"}),
        ({"optimizer": "torch.optim:Adam"}, {"optimizer_options", "optimizer_source"}),
    ],
)
def test_options_that_say_nothing_of_a_run(chosen: dict[str, str], used: set[str]) -> None:
    assert option.left_out(TrainConfig, chosen) == OF_CHOICES - used


def test_every_option_says_whether_it_decides_the_weights() -> None:
    marks = {field.name: field.metadata.get("weights") for field in fields(TrainConfig)}
    assert {name for name, mark in marks.items() if not isinstance(mark, bool)} == set()
    others = {name for name, mark in marks.items() if not mark}
    assert {"bucket_cap_mb", "gpus_per_worker", "stream", "topology", "run_name"} < others
    assert not {"strategy_options", "global_batch_size", "model_options", "images", "precision"} & others


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("epochs: 3\nmodle: vit\n", ": unknown key 'modle'; did you mean 'model'?"),
        ("epochs: many\n", ": epochs must be a whole number"),
        ("model_options: 3\nmodel_options.width: 5\n", ": model_options must be a mapping"),
        ("model_options.width: 5\nmodel_options: 3\n", ": model_options must be given once"),
        ("- epochs\n", " must be a mapping"),
        ("version: 99\n", ": version must be 2, got 99"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        runfile.load(path)
    assert caught.value.as_flag().startswith(f"{path}{told}")


def test_values_of_a_file_and_of_flags(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    config = TrainConfig(lr=1e-3, weight_decay=0, model_options={"blocks": (2, 2)}, global_batch_size=64)
    for blocks in ("model_options: {blocks: [2, 2]}", "model_options.blocks: [2, 2]"):
        path.write_text(f"version: 2\nlr: 1e-3\nweight_decay: 0\n{blocks}\nglobal_batch_size: 64\n")
        assert runfile.load(path) == config
    # Of the two ways to give the batch, the one given last counts.
    small = runfile.load(path, {"batch_size": "8", "model_options": {"width": "4"}})
    assert small == replace(config, batch_size=8, global_batch_size=8, model_options={"blocks": (2, 2), "width": 4})
    path.write_text("batch_size: 8\n")
    assert runfile.load(path, {"global_batch_size": 64}) == TrainConfig(global_batch_size=64)
    both = {"batch_size": "32", "global_batch_size": "64"}
    assert runfile.load(path, {"topology": "1x2", **both}).global_batch_size == 64
    for given in ("2", 2, [2]):  # one value of several is a list, too
        assert recipe.resolve(runfile.load(None, {"model_options": {"blocks": given}})).model_options["blocks"] == (2,)


def test_parameters_in_mlflow_are_flat_and_of_the_runs_own_model_and_strategy() -> None:
    config = recipe.resolve(
        TrainConfig(model="vit", topology="2x4", batch_size=8, strategy="reproducible", strategy_options={"shards": 8})
    )
    params = runfile.params(config, Decided.asked(config))
    expected = {
        **{"global_batch_size": "64", "nodes": "2", "workers_per_node": "4", "world_size": "8", "lr": str(config.lr)},
        **{"strategy_options.shards": "8", "model_options.depth": "6", "model_options.dropout": "0.0"},
    }
    assert expected.items() <= params.items()
    no_choices = {"version", "verbose", "hang_timeout_s", "run_name", "storage", "model_options", *OF_CHOICES}
    assert not no_choices & params.keys()
    written = yaml.safe_load(runfile.to_yaml(config))
    assert written.keys() == runfile.to_mapping(config).keys() - {"run_name", *OF_CHOICES}


def test_what_was_recorded_of_a_function_is_forgotten_where_another_is_given() -> None:
    recorded = {"dataset": "digits", "model": "mine:build", "model_source": "0" * 64}
    assert "model_source" not in runfile.merge(recorded, {"model": "resnet"})
    assert runfile.merge(recorded, {"epochs": 3})["model_source"] == "0" * 64
    several = {**recorded, "batch_size": 8, "model_options": {"width": 4}}
    assert runfile.merge(several, {"model": "resnet", "global_batch_size": 16}) == {
        **{"dataset": "digits", "model": "resnet", "global_batch_size": 16}
    }


def test_what_was_decided_of_a_run_is_in_its_file(tmp_path: Path) -> None:
    config = recipe.resolve(TrainConfig(dataset="digits", topology="1x2"))
    decided = replace(Decided.asked(config), device="cpu", cpus_per_worker=3, precision="bf16", weights_digest="ab")
    path = tmp_path / "config.yaml"
    for known in (decided, None):
        path.write_text(runfile.to_yaml(config, known))
        assert (recipe.resolve(runfile.load(path)), runfile.decided(path)) == (config, known)


@pytest.mark.parametrize(("kind", "other"), [("model", "vit"), ("strategy", "ddp")])
def test_another_model_or_strategy_forgets_the_options(kind: str, other: str, tmp_path: Path) -> None:
    first = recipe.resolve(TrainConfig(dataset="digits", strategy="reproducible", global_batch_size=64))
    file = tmp_path / "run.yaml"
    file.write_text(runfile.to_yaml(first))
    assert recipe.resolve(runfile.load(file, {kind: other})) != first
    assert recipe.resolve(runfile.load(file, {kind: getattr(first, kind)})) == first
