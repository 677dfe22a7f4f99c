"""What ``import cifar_ray`` offers to those who train from Python, also in a notebook."""

from __future__ import annotations

import builtins
import pydoc
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

import cifar_ray
from cifar_ray import SweepConfig, TrainConfig, TrainResult, data
from cifar_ray.config.decided import Decided
from cifar_ray.display.run import Console
from cifar_ray.runs.folder import RunFolder
from tests.support.helpers import Recorder, train_here


def test_the_package_lists_what_it_offers() -> None:
    assert dir(cifar_ray) == sorted([*cifar_ray.__all__, "__version__"])
    assert all(getattr(cifar_ray, name) is not None for name in dir(cifar_ray))


@pytest.mark.parametrize("kind", [TrainConfig, SweepConfig])
def test_help_explains_every_option(kind: type) -> None:
    shown = pydoc.plaintext.document(kind)
    assert all(re.search(rf"  {field.name}[:.]", shown) for field in fields(kind))


def test_a_result_has_the_model_and_the_way_to_its_page(small: TrainConfig, digits: data.Dataset, home: Path) -> None:
    run, held = RunFolder.create(TrainConfig(run_name="mine"), Decided.asked(TrainConfig(run_name="mine")))
    config = replace(small, val_share=0.2)
    outcome = train_here(config, data.read(config), run.folder.disk / "checkpoints", Recorder())
    held.release()
    rows = [{"epoch": row.step, **row.metrics} for row in outcome.history if row.kind == "epoch"]
    uri = f"sqlite:///{home}/.cifar_ray/mlflow.db"
    result = TrainResult(
        "mine", "id", uri, None, run.folder.address, {**outcome.metrics, "chosen/test/accuracy": 0.5},
        {**outcome.times, "time/training_s": 2.25}, rows, outcome.weights_sha256, outcome.checkpoint,
    )  # fmt: skip
    assert repr(result) == "<run mine: test accuracy 50.00%, training 2.2 s; open in MLflow: cifar-ray ui>"
    images = torch.as_tensor(digits.test.inputs)
    for best in (False, True):
        with torch.inference_mode():
            found = result.load_model(best)(images).argmax(1)
        right = (found == torch.as_tensor(digits.test["labels"])).float().mean().item()
        assert right == pytest.approx(outcome.metrics["chosen/test/accuracy" if best else "test/accuracy"])


@pytest.mark.parametrize("widgets", [True, False])
def test_progress_in_a_notebook_is_a_widget_where_there_are_any(widgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich draws it; without ipywidgets it would only warn at each step."""
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    monkeypatch.setattr("cifar_ray.display.terminal.find_spec", {"ipywidgets": widgets}.get)
    shown: list[object] = []
    display = SimpleNamespace(display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipywidgets", SimpleNamespace(Output=MagicMock))
    with Console() as console:
        assert console.is_live == widgets
        console.doing("reading digits")
        if widgets:
            console.live.refresh()
    assert any(isinstance(one, MagicMock) for one in shown) == widgets
    assert widgets or "reading digits" in shown[0].text  # type: ignore[attr-defined]
