from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image

from cifar_ray.reporting import charts, draw
from cifar_ray.reporting.contents import Chart
from cifar_ray.reporting.frame import Runs
from cifar_ray.tracking.study import Point, Run, Sweep
from tests.support import studies
from tests.support.helpers import png

EVERY = ["scaling", "accuracy", "training_time", "accuracy_by_time", "loss", "phases", "confusion"]
STRATEGIES = [
    *("gather_scatter", "send_recv", "all_reduce", "ddp", "local_sgd", "data_parallel", "fsdp", "gpipe"),
    *("one_f_one_b", "model_parallel", "parameter_server", "hogwild", "reproducible"),
]
PHASES = {"startup": 5.0, "data": 2.0, "training": 80.0, "evaluation": 8.0, "checkpoint": 1.0}


def trial(model: str = "resnet", topology: str = "1x1", batch: int = 16, seed: int = 1, accuracy: float = 0.5) -> Run:
    workers = int(topology[0]) * int(topology[2])
    history = {"test/accuracy": (0.3, accuracy), "test/loss": (1.9, 1.6), "train/epoch_loss": (2.0, 1.5)}
    history["epoch_s"] = (40.0 / workers + seed, 40.0 / workers)
    metrics = {f"time/{name}_s": seconds + seed for name, seconds in PHASES.items()}
    metrics |= {"test/accuracy": accuracy, "images_per_s": 1000.0 * workers**0.9}
    plain = studies.trial(topology, batch, seed, params={"model": model}, run_id=f"{model}{batch}{topology}{seed}")
    points = {name: curves(name, values=values)[name] for name, values in history.items()}
    given = {"confusion": [[8, 2], [3, 7]], "class_names": ("cat", "a_dog")}
    return replace(plain, metrics=metrics, history=points, **given)


def wrong(name: str) -> dict[str, Any]:
    pixels = base64.b64encode(png(np.zeros((8, 8, 3), np.uint8))).decode()
    return {"index": 3, "true": name, "predicted": "_$x$", "probability": 0.98765, "png": pixels}


def study(*trials: Run, hold: str = "batch") -> Sweep:
    return Sweep("grid", trials, "file:///store", "cifar-ray sweep", hold, ("model", "topology", "batch_size", "seed"))


def full(models: tuple[str, ...] = ("simple_cnn", "resnet", "vit")) -> Sweep:
    return study(*(trial(m, t, b, s) for m in models for t in ("1x1", "1x2", "2x2") for b in (16, 64) for s in (1, 2)))


def made(of: Sweep) -> dict[str, Chart]:
    return {chart.key: chart for chart in charts.charts(Runs(of))}


def heights(axes: Any) -> list[float]:
    return [bar.get_height() for container in axes.containers if hasattr(container, "patches") for bar in container]


def dots(axes: Any) -> list[float]:
    return [float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() in "os^"]


def axes_of(chart: Chart) -> list[Any]:
    return list(chart.draw("light").axes)


def styles(lines: list[Any]) -> set[tuple[Any, ...]]:
    return {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}


def lines_of(axes: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def titles(chart: Chart) -> list[str]:
    return [axes.get_title() for axes in axes_of(chart)]


def curves(*names: str, values: tuple[float, ...], every: int = 1) -> dict[str, list[Point]]:
    return {name: [Point(n * every, n, value) for n, value in enumerate(values, 1)] for name in names}


@pytest.fixture(scope="module")
def vit() -> dict[str, Chart]:
    """The charts of a grid of one model."""
    return made(full(("vit",)))


def test_a_full_grid_has_every_chart_and_a_panel_for_every_model() -> None:
    found = made(full())
    assert list(found) == EVERY
    for key in ("training_time", "accuracy", "scaling", "accuracy_by_time"):
        assert titles(found[key]) == ["simple_cnn", "resnet", "vit"]
    assert all(re.fullmatch(r"\w+", chart.key) and chart.title and chart.caption for chart in found.values())


def test_bars_and_dots_are_means_over_the_seeds_with_their_spread() -> None:
    """Accuracies are dots on an axis of their range, the same in every panel."""
    (axes,) = axes_of(made(study(trial(seed=1), trial(seed=3)))["training_time"])
    assert heights(axes) == [82.0]
    spread = next(c for c in axes.containers if not hasattr(c, "patches"))
    assert spread.lines[2][0].get_segments()[0][:, 1] == pytest.approx([82 - 2**0.5, 82 + 2**0.5])
    runs = [trial(m, seed=n, accuracy=a + n / 100) for m, a in (("vit", 0.9), ("resnet", 0.95)) for n in (0, 1)]
    first, second = axes_of(made(study(*runs))["accuracy"])
    assert (heights(first), dots(first)) == ([], [90.5])
    assert first.get_ylim() == second.get_ylim()
    assert 85 < first.get_ylim()[0] < 90 < 96 < first.get_ylim()[1] < 100
    (spread,) = first.containers
    assert spread.lines[2][0].get_segments()[0][:, 1] == pytest.approx([90.5 - 0.5**0.5, 90.5 + 0.5**0.5])


def test_runs_with_validation_images_are_drawn_with_their_figures_by_epoch() -> None:
    def of(run: Run, accuracy: float) -> Run:
        history = {f"val/{name.removeprefix('test/')}": run.history[name] for name in ("test/accuracy", "test/loss")}
        known = {"val/accuracy": accuracy, "best/accuracy": accuracy, "val/loss": 1.0, "chosen/epoch": 1.0}
        history |= {name: run.history[name] for name in ("epoch_s", "train/epoch_loss")}
        history["test/loss"] = run.history["test/loss"][-1:]
        metrics = {**run.metrics, **known, "chosen/test/accuracy": run.metrics["test/accuracy"] - 0.01}
        return replace(run, history=history, metrics=metrics)

    found = made(study(of(trial(accuracy=0.5), 0.6), of(trial(topology="1x2", accuracy=0.4), 0.8)))
    assert found["accuracy_by_time"].title == "Validation accuracy against training time"
    assert "after the chosen epoch" in found["accuracy"].caption
    assert sorted(dots(axes_of(found["accuracy"])[0])) == [39.0, 49.0]
    assert titles(found["loss"]) == ["resnet: training loss", "resnet: validation loss"]
    assert "bs16 1x2 seed1, the best finished run by validation (39.00 %)" in found["confusion"].caption


def test_the_matrix_of_a_run_that_the_test_has_chosen_says_so() -> None:
    runs = [replace(trial(seed=seed), tags={"cifar_ray.chosen_by": "nothing"}) for seed in (1, 2)]
    assert "the best finished run, chosen on the test set (50.00 %)." in made(study(*runs))["confusion"].caption
    assert "chosen" not in made(study(runs[0]))["confusion"].caption


def test_what_was_not_measured_is_left_out() -> None:
    whole = trial(topology="2x2")
    untimed = {name: value for name, value in whole.metrics.items() if name != "time/training_s"}
    failed = replace(trial(batch=64, accuracy=0.9), status="FAILED")
    skipped = Run("bs64 2x2", "", "SKIPPED", params=trial("vit", "2x2", 64).params)
    some = made(study(trial(), failed, skipped, replace(whole, metrics=untimed)))
    (axes,) = axes_of(some["training_time"])
    assert (axes.get_title(), heights(axes)) == ("resnet", [81.0])
    assert "50.00 %" in some["confusion"].caption
    assert made(study()) == {}
    bare = replace(trial(), metrics={"test/accuracy": 0.5}, history={}, confusion=None)
    assert list(made(study(bare))) == ["accuracy"]
    assert "scaling" not in made(study(trial(), trial(batch=64)))  # one number of workers: nothing scales


def test_scaling_has_an_ideal_line_from_the_fewest_workers_and_a_spread() -> None:
    rates = [("2x2", 1, 3000.0), ("2x2", 2, 3200.0), ("4x1", 1, 100.0)]
    runs = [replace(trial(topology=top, seed=n), metrics={"images_per_s": rate}) for top, n, rate in rates]
    axes = axes_of(made(study(trial(), *runs))["scaling"])[0]
    # The fastest with four workers
    assert lines_of(axes) == [([1, 4], [1000, 3100]), ([1, 4], [1000, 4000])]
    assert axes.lines[1].get_linestyle() == ":"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1\n1x1", "4\n2x2\n4x1"]
    band = axes.collections[0].get_paths()[0].vertices
    assert max(band[:, 1]) == pytest.approx(3100 + 20000**0.5)


def test_accuracy_is_drawn_at_the_seconds_trained_and_phases_stack_up_to_the_whole_time() -> None:
    found = made(study(trial()))
    assert lines_of(axes_of(found["accuracy_by_time"])[0]) == [([41, 81], [30, 50])]
    (axes,) = axes_of(found["phases"])
    widths = [bar.get_width() for container in axes.containers for bar in container]
    assert widths == [seconds + 1 for seconds in PHASES.values()]
    assert [text.get_text() for text in axes.texts] == ["101.00 s"]


def test_losses_are_all_in_the_picture_and_not_flattened_by_the_first() -> None:
    names = ("test/loss", "train/epoch_loss")
    steep, gentle = (curves(*names, values=(first, 1.5, 1.0, 0.9)) for first in (90.0, 2.3))
    training, test = axes_of(made(study(replace(trial(), history=steep)))["loss"])
    assert training.get_ylim() == test.get_ylim()
    flat = axes_of(made(study(replace(trial(), history=gentle)))["loss"])[0]
    assert [axes.get_yscale() for axes in (training, test, flat)] == ["log", "log", "linear"]
    for axes in (training, test, flat):
        (low, high), (left, right) = axes.get_ylim(), axes.get_xlim()
        assert all(low < y < high for line in axes.lines for y in line.get_ydata())
        assert left < 1 < 4 < right  # no marker is halved


def test_losses_of_a_single_epoch_are_those_of_its_steps() -> None:
    history = curves("train/loss", values=(2.0, 3.0, 1.5), every=20)
    history |= curves("train/epoch_loss", "test/loss", values=(1.7,))
    chart = made(study(replace(trial(), history=history)))["loss"]
    (axes,) = axes_of(chart)
    assert lines_of(axes) == [([20, 40, 60], [2.0, 3.0, 1.5])]
    assert (chart.title, axes.get_xlabel()) == ("Loss by step", "optimizer step")


def test_a_colour_means_one_series_in_all_charts_and_series_differ_by_more(vit: dict[str, Chart]) -> None:
    pictures = {key: axes_of(vit[key])[0] for key in EVERY if key != "confusion"}
    boxes = [box for box in pictures["training_time"].containers if hasattr(box, "patches")]
    assert len({box[0].get_hatch() for box in boxes}) == 2
    bars = {box.get_label(): matplotlib.colors.to_hex(box[0].get_facecolor()) for box in boxes}
    assert len(set(bars.values())) == len(bars) == 2
    for key in ("scaling", "accuracy", "accuracy_by_time", "loss"):
        labelled = [line for line in pictures[key].lines if "batch" in line.get_label()]
        assert {(line.get_label()[-8:], line.get_color().lower()) for line in labelled} == set(bars.items())
    parts = {matplotlib.colors.to_hex(bar.get_facecolor()) for bar in pictures["phases"].patches}
    assert len(parts) == len(PHASES)
    assert not parts & set(bars.values())
    assert len(styles(pictures["accuracy_by_time"].lines)) == 6


def strategies() -> Sweep:
    runs = []
    for number, name in enumerate(STRATEGIES):
        for top, workers in (("1x1", 1), ("1x2", 2), ("1x4", 4)):
            seconds = (1 + number / 10) / workers
            parts = [seconds / 6] * 5
            runs.append(studies.of_strategy(name, top, seconds, parts=parts, accuracies=(0.1, 0.2)))
    return studies.of_strategies(*runs)


def test_thirteen_strategies_look_different_and_a_steps_parts_stack_up_to_the_iteration() -> None:
    found = made(strategies())
    assert list(found) == ["scaling", "accuracy", "training_time", "accuracy_by_time", "phases", "step"]
    (axes,) = axes_of(found["scaling"])
    lines = [line for line in axes.lines if line.get_marker() != "None"]
    assert len(styles(lines)) == len(lines) == 13
    by_time = found["accuracy_by_time"].draw("light")
    assert [one.get_title() for one in by_time.axes] == ["vgg11, 1x1", "vgg11, 1x2", "vgg11, 1x4"]
    assert [text.get_text() for text in by_time.legends[0].get_texts()] == STRATEGIES
    (axes,) = axes_of(found["step"])
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["gather_scatter, 1x1", "send_recv, 1x1"]
    first = [bar for container in axes.containers for bar in container if bar.get_y() < 0]
    assert [bar.get_width() for bar in first] == pytest.approx([1000 / 6] * 6)
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in first}) == 6
    assert axes.texts[0].get_text() == "1,000 ms"


def servers() -> Sweep:
    names = [f"strategy_options.{name}" for name in ("push_every", "servers", "staleness_weighting")]
    options = [{**dict(zip(names, ("1", str(n), "inverse"))), "lr": "0.05"} for n in (1, 2)]
    runs = [trial(topology="1x2"), *(trial(topology="1x2", batch=32) for _ in options)]
    runs[1:] = [replace(run, params={**run.params, **one}) for run, one in zip(runs[1:], options)]
    axes = ("strategy", "batch_size", "lr", *names, "seed")
    return replace(study(*runs), axes=axes)


def many() -> Sweep:
    places = [f"{nodes}x{workers}" for nodes in range(1, 5) for workers in (1, 2, 4)]
    return study(*(trial(topology=place, batch=batch) for place in places for batch in (8, 16)))


def one() -> Sweep:
    return study(replace(trial(), mistakes=[wrong("hard-leaved pocket orchid")] * 16))


@pytest.mark.parametrize("make", [full, one, many, strategies, servers])
def test_nothing_covers_anything(make: Callable[[], Sweep]) -> None:
    for key, chart in made(make()).items():
        figure = chart.draw("light")
        figure.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in figure.axes]
        assert not [a for a in boxes for b in boxes if a is not b and a.shrunk(0.98, 0.98).overlaps(b)], key
        for box in (legend.get_window_extent() for legend in figure.legends):
            assert not any(box.overlaps(other) for other in boxes), key
            assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1, key


def test_text_has_the_colour_of_the_theme_and_the_page_shines_through() -> None:
    chart = made(study(trial()))["accuracy"]
    light, dark = chart.draw("light"), chart.draw("dark")
    assert light.axes[0].yaxis.label.get_color() == "#1f2328"
    assert dark.axes[0].yaxis.label.get_color() == "#e4e7eb"
    assert all(figure.get_facecolor()[3] == 0 == figure.axes[0].get_facecolor()[3] for figure in (light, dark))
    assert matplotlib.rcParams["text.color"] == "black"  # nobody else's figures change


def test_files_are_the_same_every_time(vit: dict[str, Chart], tmp_path: Path) -> None:
    """One for print has its fonts, and no title."""
    png_file, svg_file, pdf_file = paths = draw.save(vit["scaling"], tmp_path, pdf=True)
    assert [path.name for path in paths] == ["scaling.png", "scaling.svg", "scaling.pdf"]
    with Image.open(png_file) as picture:
        assert picture.info["dpi"] == pytest.approx((160, 160), abs=0.1)
    before = [path.read_bytes() for path in paths]
    text = svg_file.read_text()
    assert ("<text" in text, "<dc:date>" in text) == (True, False)
    pdf = pdf_file.read_bytes()
    assert (b"/FontFile2" in pdf, b"/Type3" in pdf) == (True, False)  # TrueType, whole in the file
    draw.save(vit["scaling"], tmp_path, pdf=True)
    assert [path.read_bytes() for path in paths] == before


def test_embedded_svg_has_ids_of_its_own_that_all_its_references_find(vit: dict[str, Chart]) -> None:
    chart = vit["phases"]
    ids: dict[str, list[str]] = {}
    for theme in ("light", "dark"):
        text = draw.svg(chart, theme)  # type: ignore[arg-type]
        tree = ElementTree.fromstring(text)
        ids[theme] = [found for element in tree.iter() if (found := element.get("id"))]
        wanted = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)
        assert wanted
        assert {"".join(one) for one in wanted} <= set(ids[theme])
        assert len(set(ids[theme])) == len(ids[theme])
        assert text == draw.svg(chart, theme)  # type: ignore[arg-type]
    assert not set(ids["light"]) & set(ids["dark"])


def test_the_images_most_surely_wrong_are_those_of_the_best_run(tmp_path: Path) -> None:
    best = replace(trial(accuracy=0.6), mistakes=[wrong("cat"), wrong("a name that is far too long for it")] * 5)
    chart = made(study(best, replace(trial(seed=2), mistakes=[wrong("dog")])))["mistakes"]
    assert "resnet, bs16 1x1 seed1, the best finished run, chosen on the test set (60.00 %)" in chart.caption
    assert titles(chart) == ["cat\nas _$x$\n98.77 %", "a name that is f\nas _$x$\n98.77 %"] * 5
    assert "a name that is " in draw.svg(chart, "dark")
    draw.save(chart, tmp_path)
    assert "mistakes" not in made(study(trial(accuracy=0.6), replace(trial(seed=2), mistakes=[wrong("dog")])))


def test_names_are_no_formulas(tmp_path: Path) -> None:
    strange = replace(trial(), class_names=("$a^$", "_y $z$ \udce9\n"))
    chart = made(study(strange))["confusion"]
    text = draw.svg(chart, "light")
    assert "$a^$" in text
    assert "_y $z$ \ufffd\ufffd" in text
    draw.save(chart, tmp_path)


CHANGED = {"text.usetex": True, "figure.facecolor": "red", "lines.linewidth": 9, "savefig.bbox": "tight"}
PROGRAM = """
from pathlib import Path
from cifar_ray.tracking import drawing
with drawing.settings(): pass
from tests.integration.test_charts import drawn
drawn(Path("made"))
"""


def drawn(folder: Path) -> list[bytes]:
    folder.mkdir(exist_ok=True)
    found = made(full(("vit",)))
    return [path.read_bytes() for key in ("scaling", "confusion") for path in draw.save(found[key], folder)]


def test_what_a_user_has_set_of_matplotlib_changes_nothing(tmp_path: Path) -> None:
    plain = drawn(tmp_path / "plain")
    with matplotlib.rc_context(CHANGED):
        assert drawn(tmp_path / "changed") == plain
        assert {name: matplotlib.rcParams[name] for name in CHANGED} == CHANGED
    (tmp_path / "matplotlibrc").write_text("\n".join(f"{name}: {value}" for name, value in CHANGED.items()))
    backend = "module://matplotlib_inline.backend_inline"  # what Jupyter exports, without the package
    environment = {"MPLBACKEND": backend, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONWARNINGS": "error"}
    environment = {**os.environ, **environment}
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, check=True, timeout=120)
    names = [path.name for path in (tmp_path / "plain").iterdir()]
    assert all((tmp_path / "made" / one).read_bytes() == (tmp_path / "plain" / one).read_bytes() for one in names)
