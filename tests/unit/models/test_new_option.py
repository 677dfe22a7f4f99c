"""A keyword that is added to a function that builds a model is an option everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from cifar_ray import data
from cifar_ray.cli import main
from cifar_ray.config import runfile
from cifar_ray.config.train import TrainConfig
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training import recipe
from tests.support import mlflow_store, typed
from tests.support.helpers import decided_of

MODULE = """
from typing import Annotated

from pydantic import Field
from torch import nn


def build(image_size, channels, classes{}):
    return nn.Sequential(nn.Flatten(), nn.Linear(image_size * image_size * channels, classes))
"""
KEYWORD = ', *, depth: Annotated[int, Field(ge=1, description="Layers that are not there")] = 2'


def test_a_keyword_of_a_function_is_in_the_help_in_yaml_in_python_and_in_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "without_depth.py").write_text(MODULE.format(""))
    (tmp_path / "with_depth.py").write_text(MODULE.format(KEYWORD))
    words = ["--dataset", "digits", "--epochs", "1", "--model"]

    for name, expected in (("without_depth", "has no options of its own"), ("with_depth", "--model-options.depth INT")):
        assert main.main(["models", f"{name}:build"]) == 0
        assert expected in capsys.readouterr().out
    assert main.main(["train", *words, "without_depth:build", "--model-options.depth", "3"]) == 2
    assert "--model-options.depth is no option of without_depth:build, which has none" in capsys.readouterr().err
    assert main.main(["train", *words, "with_depth:build", "--model-options.depth", "0"]) == 2
    assert "--model-options.depth must be at least 1, got 0" in capsys.readouterr().err

    (tmp_path / "run.yaml").write_text("dataset: digits\nmodel: with_depth:build\nmodel_options: {depth: 3}\n")
    from_file = typed.run("--config", "run.yaml")
    from_python = TrainConfig(dataset="digits", model="with_depth:build", model_options={"depth": 3})
    assert from_file == from_python
    usual = recipe.resolve(TrainConfig(dataset="digits", model="with_depth:build"))
    assert usual.model_options == {"depth": 2}

    config = recipe.resolve(from_file)
    client, decided = mlflow_store.new_store(tmp_path), decided_of(config)
    named = {"name": "mine", "key": "key", "folder": "/there"}
    record = RunRecord(client, config, decided, **named, dataset=data.read(config), begun=0.0)
    record.end("FINISHED")
    assert client.get_run(record.run_id).data.params["model_options.depth"] == "3"
    assert "depth: 3" in runfile.to_yaml(config, decided)
