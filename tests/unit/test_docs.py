"""What the documents say is what the program is."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from cifar_ray import models, strategies
from cifar_ray.cli import main
from cifar_ray.cli import train as commands
from cifar_ray.config import command_line, errors, flags, keywords, runfile, schema
from cifar_ray.config.sweep import cells as cells_of
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS, tokens

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "docs/measurements", "examples/*")
PAGES = [page for folder in FOLDERS for page in sorted(ROOT.glob(f"{folder}/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.fixture(scope="module")
def record() -> ModuleType:
    """benchmarks/record.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("record", ROOT / "benchmarks" / "record.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["record"] = found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_trial_run_of_a_benchmark_shows_its_rows_and_replaces_no_result(
    record: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    rows = [record.Row("what", "> 1", "2", 3)]
    record.save("claim", "Title", rows, {}, dry=record.parser("Doc.").parse_args(["--dry"]).dry)
    assert "what: 2 (> 1), n = 3" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    record.save("claim", "Title", rows, {}, dry=record.parser("Doc.").parse_args([]).dry)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_page_of_performance_is_made_from_the_results(record: ModuleType) -> None:
    assert record.PAGE.read_text() == record.page(), "run python benchmarks/record.py"


def lines_of(page: Path) -> str:
    """A page with the commands that go on in the next line in one."""
    return page.read_text().replace("\\\n", " ")


def ours(block: str) -> list[str]:
    """The commands of this program in a block of shell, from its name on, and their flags."""
    return re.findall(r"(?:^|'|nohup )(cifar-ray [a-z].*)", block, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_exist(page: Path) -> None:
    known = {errors.flag_of(flag.name) for name in main.COMMANDS for flag in flags.of(main.function(name))}
    sizes = {"features": 2, "images": 3, "tokens": 3}
    owners = [("model_options", each.build, sizes[each.inputs]) for each in models.registry().values()]
    owners += [("text", tokens.train, 1)]
    owners += [("strategy_options", strategies.named(name), strategies.CONTEXT) for name in strategies.NAMES]
    known |= {errors.flag_of(f"{key}.{one.name}") for key, of, taken in owners for one in keywords.of(of, taken) or ()}
    known |= {"--model-options.hidden", "--strategy-options.kind"} if page.name == "architecture.md" else set()
    known |= {"--help", "--help-all", "--no-compile"}
    known |= {"--no-augment"}  # it is gone, as CHANGELOG.md says
    others = {"--extra", "--universal", "--python-version", "--no-header", "--no-annotate"}  # uv's
    others |= {"--nproc-per-node"}  # torchrun's
    others |= {"--noconftest"}  # pytest's
    others |= {"--index-url"}  # pip's
    others |= {"--num-gpus", "--follow"}  # ray's
    others |= {"--data-binary"}  # curl's
    others |= {"--backend-store-uri", "--artifacts-destination", "--host", "--allowed-hosts", "--workers"}  # mlflow's
    others |= {"--model-uri", "--env-manager", "--output-directory"}  # mlflow's, too
    others |= {"--sample"}  # of benchmarks/mutants.py
    others |= {"--model-options.drop-path-rate"}  # of timm's networks
    others |= {"--optimizer-options.alpha"}  # of torch.optim.RMSprop
    others |= {"--rate", "--share"}  # of benchmarks/emulated_cluster.py
    others |= {"--preserve-env"}  # of sudo
    # A line of a shell that has no command of this program has flags of another one.
    lines = re.sub(r"```bash\n.*?```", lambda block: "\n".join(ours(block[0])), page.read_text(), flags=re.DOTALL)
    others |= {"--yes"}  # of Ray's launcher
    lines = re.sub(r"`python benchmarks/[^`]*`", "", lines)
    found = set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9.-]*[a-z0-9]", lines))
    assert found - known - others == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_train_commands_are_read(page: Path) -> None:
    """Every complete ``cifar-ray train`` command, as the program reads it."""
    for line in re.findall(r"(?:^|`)cifar-ray train([^`#\n]*)", lines_of(page), flags=re.MULTILINE):
        words = shlex.split(line)
        if words in (["--help"], ["--help-all"]):
            continue
        given = flags.read(commands.train, words, "train")
        runfile.load(ROOT / given["config"] if "config" in given else None, given["options"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sweep_commands_are_read(page: Path) -> None:
    """Every complete ``cifar-ray sweep`` command, as the program reads it."""
    for line in re.findall(r"(?:^|`)cifar-ray sweep([^`#\n]*)", lines_of(page), flags=re.MULTILINE):
        given = flags.read(commands.sweep, shlex.split(line), "sweep")
        if "resume" in given or not line.strip():  # the command's name alone is no use of it
            continue
        file = str(ROOT / given["file"]) if "file" in given else None
        asked = command_line.sweep(file, given["options"])
        if asked.search == "grid":
            assert all(cell.config for cell in cells_of(asked, asked.combinations))


def built(page: str, folder: Path) -> str:
    """A page of docs/ as Sphinx makes it, as text."""
    build = pytest.importorskip("sphinx.cmd.build", reason="needs the extra `docs`")
    pages, out, alone = folder / "pages", folder / "text", ["-D", f"root_doc={page}"]
    pages.mkdir()
    (pages / f"{page}.md").write_text((ROOT / "docs" / f"{page}.md").read_text())
    assert build.build_main(["-q", *alone, "-b", "text", "-c", str(ROOT / "docs"), str(pages), str(out)]) == 0
    return (out / f"{page}.txt").read_text()


def test_the_page_of_commands_has_every_flag(tmp_path: Path) -> None:
    parts = re.split(r"^(cifar-ray [a-z -]+)\n=+$", built("commands", tmp_path), flags=re.MULTILINE)[1:]
    described = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(described) == [f"cifar-ray {name}" for name in main.COMMANDS]
    of_run = {flag.title for flag in flags.of(TrainConfig)}
    for name in main.COMMANDS:
        for flag in flags.of(main.function(name)):
            there = described["cifar-ray train" if flag.title in of_run else f"cifar-ray {name}"]
            heading = rf"^({re.escape(errors.flag_of(flag.name))}|{re.escape(flag.name.upper())})(?=[ ,.\n])"
            assert re.search(rf"{heading}.*\n\n   \S", there, flags=re.MULTILINE), flag.name


def test_the_api_page_describes_fields_as_help_does(tmp_path: Path) -> None:
    page = " ".join(built("api", tmp_path).split())
    for name, doc in schema.docstrings(TrainConfig).items():
        assert "." in name or f"* **{name}** -- {doc[:20].replace('  ', ' ')}" in page, name
    assert "Annotated" not in page
    assert "PydanticUndefined" not in page


def test_the_readme_of_a_package_has_no_relative_link() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text, page = (ROOT / "README.md").read_text(), config["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for each in page["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    source = config["project"]["urls"]["Source"]
    assert f"]({source}/raw/main/docs/images/report.png)" in text
    assert f"]({source}/blob/main/docs/start.md)" in text
    assert all(target.startswith("https://") for target in re.findall(r"\]\(([^)]+)\)", text))


def test_quick_start_is_two_commands() -> None:
    block = re.search(r"## Quick start\n.*?```\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert block is not None
    assert block[1].splitlines() == ["make quickstart", "make test"]


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The table whose first column is titled ``heading``: code in the first cell -> the other cells."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    table = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        table[first.strip("`")] = rest
    return table


def test_the_table_of_models_is_the_registry() -> None:
    table = rows("models.md", "`--model`")
    assert set(table) == set(models.registry())
    for name, (_, size, optimizer, lr, decay, warmup, smoothing) in table.items():
        recipe, *others = models.registry()[name].recipes
        inputs = models.registry()[name].inputs
        shape = {"images": (3, 32, 32), "features": (256,), "tokens": (256,)}[inputs]
        spec = replace(SPECS["cifar10"], inputs=inputs, shape=shape, vocabulary=8000)
        network = models.build(TrainConfig(model=name), spec)  # type: ignore[arg-type]
        assert int(size.replace(",", "")) == sum(parameter.numel() for parameter in network.parameters())
        assert optimizer == recipe.optimizer
        stated = (float(lr), float(decay), float(warmup.split()[0]), float(smoothing))
        assert stated == (recipe.lr, recipe.weight_decay, recipe.warmup_epochs, recipe.label_smoothing)
        usual = ("triangle", 1024, 0.85) if name == "speednet" else ("cosine", 128, 0.9)
        usual = ("cosine", 16, 0.9) if models.registry()[name].has_masks else usual
        usual = ("cosine", 32, 0.9) if inputs != "images" else usual
        assert (recipe.schedule, recipe.base_batch, recipe.momentum) == usual
        other = replace(recipe, optimizer="adamw", lr=3e-3, weight_decay=0.05)  # as the text says
        if models.registry()[name].has_masks:
            assert others == [replace(recipe, optimizer="sgd", lr=0.1, weight_decay=5e-4)]
        else:
            assert others == ([other] if name in ("simple_cnn", "resnet", "resnet18") else [])


def test_the_table_of_data_sets_is_the_registry() -> None:
    table = rows("models.md", "`--dataset`")
    assert set(table) == set(SPECS)
    for name, (train, test, published, _, mirrored) in table.items():
        spec = SPECS[name]
        assert (int(train.replace(",", "")), int(test.replace(",", ""))) == (spec.train_size, spec.test_size)
        assert published.startswith(f"{spec.native_size}x{spec.native_size} {'grey' if spec.grey else 'colour'}")
        assert mirrored == ("yes" if spec.flip else "no")
