"""A user's own model: found by its import path, checked once, and held to its source."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cifar_ray import models
from cifar_ray.config import imports, runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import cells as cells_of
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.models import own
from cifar_ray.training import recipe
from tests.support import nets, typed
from tests.support.helpers import resolved

NETS = "tests.support.nets"
DIGITS: dict[str, object] = {"dataset": "digits"}
LINE = nets.broken.__code__.co_firstlineno + 1


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module ``mine`` in the working folder, where it is not imported yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "def build(image_size, channels, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, classes))\n"
    )
    imports.source.cache_clear()
    yield file
    sys.modules.pop("mine", None)


def refusal(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(DIGITS, **values)
    return caught.value.as_flag()


def test_a_function_of_the_working_folder_builds_the_model(module: Path) -> None:
    config = resolved(DIGITS, model="mine:build")
    assert str(models.build(config, SPECS["digits"])) == str(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    assert (config.optimizer, config.lr, config.images_per_worker) == ("sgd", 0.05, 128)
    assert recipe.resolve(config) == config


def test_options_reach_the_function_from_words_files_and_axes() -> None:
    words = ["--dataset", "digits", "--model", f"{NETS}:build"]
    words += ["--model-options.width", "8", "--model-options.act=gelu", "--model-options.norm", "False"]
    config = typed.run(*words)
    assert config.model_options == {"width": 8, "act": "gelu", "norm": False}
    built = models.build(config, SPECS["digits"])
    assert (type(built[0]), built[1].out_channels, type(built[2])) == (nn.Identity, 8, nn.GELU)  # type: ignore[index]
    full = recipe.resolve(config)
    params = runfile.params(full, Decided.asked(full))
    assert (params["model_options.width"], params["model_options.act"]) == ("8", "gelu")
    assert runfile.resolved_from_mapping(runfile.to_mapping(full)) == full
    assert typed.run(*recipe.command(full).split()[2:]).model_options == config.model_options
    grid = sweeps.axes([f"model={NETS}:build", "model_options.width=4,8"])
    swept = sweeps.from_mapping({"name": "x", "grid": grid, "train": {"dataset": "digits"}})
    cells = cells_of(swept, swept.combinations)
    assert [cell.config.model_options for cell in cells if cell.config] == [{"width": 4}, {"width": 8}]


def test_options_that_are_necessary_are_repeated(module: Path) -> None:
    module.write_text(module.read_text().replace("classes)", "classes, depth, name: nn.Module = 'a b')", 1))
    config = resolved(DIGITS, model="mine:build", model_options={"depth": 2, "name": "c d"})
    assert "--model mine:build --model-options.depth 2 --model-options.name 'c d'" in recipe.command(config)


class OnlyEvaluated(nets.Whole):
    def forward(self, images: Tensor) -> Tensor:
        return images if self.training else super().forward(images)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "resnet9"}, "--model must be simple_cnn, .* or MODULE:FUNCTION, got 'resnet9'"),
        ({"model": "no_such_package.nets:build"}, "--model must name a module .* no_such_package.nets fails: Mod"),
        ({"model": f"{NETS}:biuld"}, f"--model must name a function, and {NETS} has no biuld; did you mean 'build'"),
        ({"model": f"{NETS}:A_NUMBER"}, f"--model must name a function, and {NETS}:A_NUMBER is 3"),
        ({"model": f"{NETS}:no_module"}, f"--model must return an nn.Module, and {NETS}:no_module returns 'a net'"),
        ({"model": f"{NETS}:too_many"}, r"--model must give float logits .* gives shape \(2, 11\) for 2 images"),
        ({"model": f"{__name__}:OnlyEvaluated"}, r"--model must give float logits .* gives shape \(2, 3, 32, 32\)"),
        ({"model": f"{NETS}:wrong_input"}, r"--model must give float logits .* RuntimeError: .*shapes cannot be"),
        ({"model": f"{NETS}:nothing_learns"}, f"--model must have weights that learn .* {NETS}:nothing_learns fails"),
        ({"model": f"{NETS}:lazy"}, f"--model must know its sizes when it is built, and {NETS}:lazy has lazy layers"),
        ({"model": f"{NETS}:Unused", "strategy": "fsdp"}, "--strategy must be other than fsdp for .* spare.weight"),
        ({"model": f"{NETS}:frozen", "topology": "1x2", "strategy": "parameter_server"}, "--strategy must be another"),
        ({"model": "time:sleep"}, "--model must name a function in a Python file, and time:sleep is in none"),
        ({"model": f"{NETS}:broken"}, rf"--model must build .*KeyError: 'no weights' \(nets.py, line {LINE}\)"),
        ({"model": f"{NETS}:build", "model_options": {"size": 3}}, "--model-options.size is no option .*, act, norm$"),
        ({"model": f"{NETS}:build", "model_options": {"width": "a"}}, "--model-options.width must be a whole number"),
        ({"model": f"{NETS}:Whole", "topology": "1x2", "strategy": "gpipe"}, "--strategy must keep .*stages"),
    ],
)
def test_what_cannot_be_a_model_is_refused(values: dict[str, object], sentence: str) -> None:
    assert re.match(sentence, refusal(**values))


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("import os\n1 / 0\n", "and mine fails: ZeroDivisionError: division by zero (mine.py, line 2)"),
        ("import sys\nsys.exit(3)\n", "and mine fails: SystemExit: 3 (mine.py, line 2)"),
        ("def build(\n", "and mine fails: SyntaxError: '(' was never closed (mine.py, line 1)"),
        ("from cifar_ray.config import imports\nimports.refuse_while_importing()\n", '`if __name__ == "__main__":` in mine'),
    ],
)  # fmt: skip
def test_a_module_that_fails_ends_the_program_or_trains_is_refused(text: str, fails: str, module: Path) -> None:
    module.write_text(text)
    found = refusal(model="mine:build")
    assert (found.startswith("--model must "), found.endswith(fails)) == (True, True)


def test_a_changed_source_is_refused(module: Path) -> None:
    config = resolved(DIGITS, model="mine:build")
    assert recipe.resolve(config) == config
    module.write_text(module.read_text() + "# another\n")
    assert recipe.resolve(config) == config  # this process has the earlier one
    imports.source.cache_clear()
    with pytest.raises(ConfigError, match="model must be as the run began with it"):
        recipe.resolve(config)
    assert recipe.resolve(dataclasses.replace(config, model_source=None)).model_source != config.model_source


@pytest.mark.parametrize("name", ["build", "Staged"])
def test_every_way_of_training_takes_it(name: str) -> None:
    ways = [{"topology": "1x2", "strategy": way} for way in ("gpipe", "parameter_server")]
    for values in (*ways, {"strategy": "reproducible"}, {"batch_size": 1}):
        assert resolved(DIGITS, model=f"{NETS}:{name}", **values).model_source


def test_looking_at_a_model_leaves_the_generator_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    own._tried.clear()
    resolved(DIGITS, model=f"{NETS}:Staged", topology="1x2", strategy="gpipe")
    assert torch.equal(torch.rand(3), wanted)


def test_layers_are_the_forward_pass() -> None:
    config, images = TrainConfig(model=f"{NETS}:Staged"), torch.rand(2, 3, 32, 32)
    model = models.build(config, SPECS["cifar10"])
    assert torch.equal(nn.Sequential(*models.layers(config, model))(images), model(images))


def test_a_function_has_the_path_that_finds_it() -> None:
    assert imports.load(imports.path_of(nets.build), "model") is nets.build
    assert imports.load(imports.path_of(nets.Whole), "model") is nets.Whole
    with pytest.raises(ConfigError, match="model must be a function at the top of a file"):
        imports.path_of(lambda image_size, channels, classes: nn.Identity())


def test_modules_of_the_user_are_sent_and_installed_ones_are_not(module: Path) -> None:
    sent = imports.to_ship(["mine:build", "torchvision.models:resnet18", f"{NETS}:build"])
    assert [each.__name__ for each in sent] == ["mine", "tests"]
