"""A user's own model: found by its import path, checked once, and held to its source."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

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
    assert runfile.params(full, Decided.asked(full)) | {
        "model_options.width": "8",
        "model_options.act": "gelu",
    } == runfile.params(full, Decided.asked(full))
    assert runfile.resolved_from_mapping(runfile.to_mapping(full)) == full
    assert typed.run(*recipe.command(full).split()[2:]).model_options == config.model_options
    swept = sweeps.from_mapping(
        {
            "name": "x",
            "grid": sweeps.axes([f"model={NETS}:build", "model_options.width=4,8"]),
            "train": {"dataset": "digits"},
        }
    )
    cells = cells_of(swept, swept.combinations)
    assert [cell.config.model_options for cell in cells if cell.config] == [{"width": 4}, {"width": 8}]


def test_options_that_are_necessary_are_repeated(module: Path) -> None:
    module.write_text(module.read_text().replace("classes)", "classes, depth, name: nn.Module = 'a b')", 1))
    config = resolved(DIGITS, model="mine:build", model_options={"depth": 2, "name": "c d"})
    assert "--model mine:build --model-options.depth 2 --model-options.name 'c d'" in recipe.command(config)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "resnet9"}, "--model must be simple_cnn, resnet, resnet18, resnet50, vgg11, speednet, vit, unet, segnet, textcnn, lstm, text_transformer, mlp, torchvision:NAME, timm:NAME or MODULE:FUNCTION, got 'resnet9'"),
        ({"model": "no_such_package.nets:build"}, "--model must name a module that can be imported in FOLDER, and no_such_package.nets fails: ModuleNotFoundError: No module named 'no_such_package'"),
        ({"model": f"{NETS}:biuld"}, f"--model must name a function, and {NETS} has no biuld; did you mean 'build'?"),
        ({"model": f"{NETS}:A_NUMBER"}, f"--model must name a function, and {NETS}:A_NUMBER is 3"),
        ({"model": f"{NETS}:no_module"}, f"--model must return an nn.Module, and {NETS}:no_module returns 'a net'"),
        ({"model": f"{NETS}:too_many"}, f"--model must give float logits (B, 10) for images (B, 3, 32, 32), and {NETS}:too_many gives shape (2, 11) for 2 images"),
        ({"model": f"{NETS}:lazy"}, f"--model must know its sizes when it is built, and {NETS}:lazy has lazy layers"),
        ({"model": f"{NETS}:Unused", "strategy": "fsdp"}, f"--strategy must be other than fsdp for {NETS}:Unused, which does not use its parameter spare.weight in every step"),
        ({"model": f"{NETS}:frozen", "topology": "1x2", "strategy": "parameter_server"}, f"--strategy must be another for {NETS}:frozen, some of whose weights do not learn"),
        ({"model": "time:sleep"}, "--model must name a function in a Python file, and time:sleep is in none"),
        ({"model": f"{NETS}:broken"}, f"--model must build a model when called with (32, 3, 10), the data set's sizes, and {NETS}:broken fails: KeyError: 'no weights' (nets.py, line LINE)"),
        ({"model": f"{NETS}:build", "model_options": {"size": 3}}, f"--model-options.size is no option of {NETS}:build, which has width, act, norm"),
        ({"model": f"{NETS}:build", "model_options": {"width": "wide"}}, "--model-options.width must be a whole number, got 'wide'"),
        ({"model": f"{NETS}:Whole", "topology": "1x2", "strategy": "gpipe"}, f"--strategy must keep the model whole for --model {NETS}:Whole, which is no nn.Sequential and has no stages()"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_model_is_refused(values: dict[str, object], sentence: str) -> None:
    line = str(nets.broken.__code__.co_firstlineno + 1)
    assert refusal(**values) == sentence.replace("FOLDER", str(Path.cwd())).replace("LINE", line)


def test_a_model_without_weights_to_learn_is_refused() -> None:
    assert refusal(model=f"{NETS}:nothing_learns").startswith(
        f"--model must have weights that learn from its logits, and {NETS}:nothing_learns fails: RuntimeError: "
    )


def test_a_model_that_takes_other_images_is_refused() -> None:
    found = refusal(model=f"{NETS}:wrong_input")
    assert found.startswith(
        "--model must give float logits (B, 10) for images (B, 3, 32, 32), and tests.support.nets:wrong_input fails: "
        "RuntimeError: addmm: mat1 and mat2 shapes cannot be multiplied"
    )


def test_a_module_that_fails_is_named_with_the_line(module: Path) -> None:
    module.write_text("import os\n1 / 0\n")
    assert refusal(model="mine:build") == (
        f"--model must name a module that can be imported in {module.parent}, and mine fails: "
        "ZeroDivisionError: division by zero "
        "(mine.py, line 2)"
    )


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (mine.py, line 2)"),
        ("def build(\n", "SyntaxError: '(' was never closed (mine.py, line 1)"),
    ],
)
def test_a_module_that_ends_the_program_or_is_no_python_is_refused(text: str, fails: str, module: Path) -> None:
    module.write_text(text)
    rule = f"--model must name a module that can be imported in {module.parent}"
    assert refusal(model="mine:build") == f"{rule}, and mine fails: {fails}"


def test_a_changed_source_is_refused(module: Path) -> None:
    config = resolved(DIGITS, model="mine:build")
    assert recipe.resolve(config) == config
    module.write_text(module.read_text() + "# another\n")
    assert recipe.resolve(config) == config  # this process has the earlier one
    imports.source.cache_clear()
    with pytest.raises(
        ConfigError, match="model must be as the run began with it: the file of mine:build has changed since"
    ):
        recipe.resolve(config)
    assert recipe.resolve(dataclasses.replace(config, model_source=None)).model_source != config.model_source


def test_every_way_of_training_takes_it() -> None:
    for values in (
        {"topology": "1x2", "strategy": "gpipe"},
        {"topology": "1x2", "strategy": "parameter_server"},
        {"strategy": "reproducible"},
        {"batch_size": 1},
    ):
        for name in ("build", "Staged"):
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


def test_a_script_that_trains_while_it_is_imported_is_refused(module: Path) -> None:
    module.write_text(
        "from cifar_ray.config import imports\n"
        "def build(image_size, channels, classes):\n"
        "    pass\n"
        "imports.refuse_while_importing()\n"
    )
    assert refusal(model="mine:build") == (
        "--model must be in a file that can be imported without training: put calls below `if __name__ == "
        '"__main__":` in mine'
    )
