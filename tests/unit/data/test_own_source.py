"""A kind of data set that the package does not have, from examples/: one class, and one line that registers it."""

from __future__ import annotations

import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest

from cifar_ray import data
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.training import recipe

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_source.py"


def of(root: Path, **values: object) -> ResolvedConfig:
    usual = {"dataset": f"npy:{root}", "batch_size": 2, "model": "simple_cnn"}
    return recipe.resolve(TrainConfig(**{**usual, **values}))  # type: ignore[arg-type]


def test_a_kind_of_data_set_is_a_class_and_a_line(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"dataset must name a module that can be imported in .*, and npy fails: "):
        of(tmp_path)
    monkeypatch.setitem(data.SOURCES, "npy:", None)
    runpy.run_path(str(EXAMPLE))
    for part, split in (("train", digits.train), ("test", digits.test)):
        np.save(tmp_path / f"{part}_images.npy", split.inputs)
        np.save(tmp_path / f"{part}_labels.npy", split["labels"])
    whole, shared = (data.read(of(tmp_path, val_share=share)) for share in (0.0, 0.2))
    same = data.read(TrainConfig(dataset="digits", val_share=0.2))
    assert (whole.spec.digest, whole.spec.names, whole.spec.train_size) == (digits.spec.digest, digits.spec.names, 1437)
    assert (shared.spec.digest, shared.spec.val_size) == (same.spec.digest, same.spec.val_size)
    config: ResolvedConfig = pickle.loads(pickle.dumps(of(tmp_path)))
    assert (config.dataset_name, data.facts(config).digest) == (tmp_path.name, whole.spec.digest)
    (tmp_path / "train_images.npy").unlink()
    with pytest.raises(ConfigError, match=f"dataset must have train_images.npy, and {tmp_path} has none"):
        of(tmp_path)
    with pytest.raises(ConfigError, match=r"dataset must name a folder that is there, and .*/nowhere is none"):
        of(tmp_path / "nowhere")
