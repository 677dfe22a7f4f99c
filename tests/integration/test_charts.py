from __future__ import annotations

import base64
import dataclasses
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
    return Run(
        f"bs{batch} {topology} seed{seed}",
        f"{model}{batch}{topology}{seed}",
        "FINISHED",
        params={
            "model": model,
            "dataset": "cifar10",
            "topology": topology,
            "batch_size": str(batch),
            "global_batch_size": str(batch * workers),
            "seed": str(seed),
            "device": "cpu",
        },
        metrics={
            **{f"time/{name}_s": seconds + seed for name, seconds in PHASES.items()},
            "test/accuracy": accuracy,
            "images_per_s": 1000.0 * workers**0.9,
        },
        history={k: [Point(step, step, value) for step, value in enumerate(v, 1)] for k, v in history.items()},
        confusion=[[8, 2], [3, 7]],
        class_names=("cat", "a_dog"),
    )


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


def test_a_full_grid_has_every_chart_and_a_panel_for_every_model() -> None:
    found = made(full())
    assert list(found) == EVERY
    for key in ("training_time", "accuracy", "scaling", "accuracy_by_time"):
        assert [axes.get_title() for axes in found[key].draw("light").axes] == ["simple_cnn", "resnet", "vit"]
    assert all(re.fullmatch(r"\w+", chart.key) and chart.title and chart.caption for chart in found.values())


def test_bars_are_means_over_the_seeds_with_their_spread() -> None:
    axes = made(study(trial(seed=1), trial(seed=3)))["training_time"].draw("light").axes[0]
    assert heights(axes) == [82.0]
    spread = next(c for c in axes.containers if not hasattr(c, "patches"))
    (segment,) = spread.lines[2][0].get_segments()
    assert segment[:, 1] == pytest.approx([82 - 2**0.5, 82 + 2**0.5])


def test_accuracies_are_dots_on_an_axis_of_their_range_in_every_panel() -> None:
    runs = [trial(m, seed=n, accuracy=a + n / 100) for m, a in (("vit", 0.9), ("resnet", 0.95)) for n in (0, 1)]
    chart = made(study(*runs))["accuracy"]
    first, second = chart.draw("light").axes
    assert heights(first) == []
    assert first.get_ylim() == second.get_ylim()
    assert 85 < first.get_ylim()[0] < 90 < 96 < first.get_ylim()[1] < 100
    assert heights_of_dots(first) == [90.5]
    (spread,) = first.containers
    (segment,) = spread.lines[2][0].get_segments()
    assert segment[:, 1] == pytest.approx([90.5 - 0.5**0.5, 90.5 + 0.5**0.5])


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
    assert sorted(heights_of_dots(found["accuracy"].draw("light").axes[0])) == [39.0, 49.0]
    titles = [axes.get_title() for axes in found["loss"].draw("light").axes]
    assert titles == ["resnet: training loss", "resnet: validation loss"]
    assert "bs16 1x2 seed1, the best finished run by validation (39.00 %)" in found["confusion"].caption


def test_the_matrix_of_a_run_that_the_test_has_chosen_says_so() -> None:
    runs = [replace(trial(seed=seed), tags={"cifar_ray.chosen_by": "nothing"}) for seed in (1, 2)]
    assert "the best finished run, chosen on the test set (50.00 %)." in made(study(*runs))["confusion"].caption
    assert "chosen" not in made(study(runs[0]))["confusion"].caption


def heights_of_dots(axes: Any) -> list[float]:
    return [float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() in "os^"]


def test_unfinished_runs_and_figures_that_were_not_measured_are_left_out() -> None:
    without = trial(topology="2x2")
    metrics = {name: value for name, value in without.metrics.items() if name != "time/training_s"}
    failed = dataclasses.replace(trial(batch=64, accuracy=0.9), status="FAILED")
    skipped = Run("bs64 2x2", "", "SKIPPED", params=trial("vit", "2x2", 64).params)
    some = study(trial(), failed, skipped, dataclasses.replace(without, metrics=metrics))
    axes = made(some)["training_time"].draw("light").axes
    assert [one.get_title() for one in axes] == ["resnet"]
    assert heights(axes[0]) == [81.0]
    assert "50.00 %" in made(some)["confusion"].caption


def test_there_is_no_chart_without_data() -> None:
    assert made(study()) == {}
    bare = dataclasses.replace(trial(), metrics={"test/accuracy": 0.5}, history={}, confusion=None)
    assert list(made(study(bare))) == ["accuracy"]
    assert "scaling" not in made(study(trial(), trial(batch=64)))  # one number of workers: nothing scales


def test_scaling_has_an_ideal_line_from_the_fewest_workers_and_a_spread() -> None:
    fast = [
        dataclasses.replace(trial(topology="2x2", seed=n), metrics={"images_per_s": s})
        for n, s in ((1, 3000.0), (2, 3200.0))
    ]
    slow = dataclasses.replace(trial(topology="4x1"), metrics={"images_per_s": 100.0})
    axes = made(study(trial(), slow, *fast))["scaling"].draw("light").axes[0]
    line, ideal = axes.lines
    assert list(line.get_xdata()) == list(ideal.get_xdata()) == [1, 4]
    assert list(line.get_ydata()) == [1000, 3100]  # the fastest with four workers
    assert ideal.get_linestyle() == ":"
    assert list(ideal.get_ydata()) == [1000, 4000]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1\n1x1", "4\n2x2\n4x1"]
    band = axes.collections[0].get_paths()[0].vertices
    assert max(band[:, 1]) == pytest.approx(3100 + 20000**0.5)


def test_accuracy_is_drawn_at_the_seconds_trained_until_then() -> None:
    (line,) = made(study(trial()))["accuracy_by_time"].draw("light").axes[0].lines
    assert list(line.get_xdata()) == [41, 81]
    assert list(line.get_ydata()) == [30, 50]


def test_losses_are_all_in_the_picture_and_not_flattened_by_the_first() -> None:
    steep = {
        name: [Point(n, n, value) for n, value in enumerate((90.0, 1.5, 1.0, 0.9), 1)]
        for name in ("test/loss", "train/epoch_loss")
    }
    training, test = made(study(dataclasses.replace(trial(), history=steep)))["loss"].draw("light").axes
    assert {training.get_title(), test.get_title()} == {"resnet: training loss", "resnet: test loss"}
    assert training.get_ylim() == test.get_ylim()
    assert training.get_yscale() == test.get_yscale() == "log"
    gentle = {name: [Point(n, n, y) for n, y in enumerate((2.3, 1.1, 1.0, 0.9), 1)] for name in steep}
    flat = made(study(dataclasses.replace(trial(), history=gentle)))["loss"].draw("light").axes[0]
    assert flat.get_yscale() == "linear"
    for axes in (training, test, flat):
        (low, high), (left, right) = axes.get_ylim(), axes.get_xlim()
        assert all(low < y < high for line in axes.lines for y in line.get_ydata())
        assert left < 1 < 4 < right  # no marker is halved


def test_losses_of_a_single_epoch_are_those_of_its_steps() -> None:
    history = {
        "train/loss": [Point(step, step, value) for step, value in ((20, 2.0), (40, 3.0), (60, 1.5))],
        "train/epoch_loss": [Point(1, 1, 1.7)],
        "test/loss": [Point(1, 1, 1.2)],
    }
    chart = made(study(dataclasses.replace(trial(), history=history)))["loss"]
    (axes,) = chart.draw("light").axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[20, 40, 60]]
    assert [list(line.get_ydata()) for line in axes.lines] == [[2.0, 3.0, 1.5]]
    assert (chart.title, axes.get_xlabel()) == ("Loss by step", "optimizer step")


def test_phases_stack_up_to_the_whole_time() -> None:
    axes = made(study(trial()))["phases"].draw("light").axes[0]
    widths = [bar.get_width() for container in axes.containers for bar in container]
    assert widths == [seconds + 1 for seconds in PHASES.values()]
    assert [text.get_text() for text in axes.texts] == ["101.00 s"]


def test_series_differ_by_more_than_colour() -> None:
    grouped = made(full())["training_time"].draw("light").axes[0]
    assert len({container[0].get_hatch() for container in grouped.containers if hasattr(container, "patches")}) == 2
    lines = made(full(("vit",)))["accuracy_by_time"].draw("light").axes[0].lines
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == 6


def test_a_colour_means_one_series_in_all_charts_of_a_report() -> None:
    found = made(full(("vit",)))
    pictures = {key: found[key].draw("light").axes[0] for key in EVERY if key != "confusion"}
    bars = {
        box.get_label(): matplotlib.colors.to_hex(box[0].get_facecolor())
        for box in pictures["training_time"].containers
        if hasattr(box, "patches")
    }
    assert len(set(bars.values())) == len(bars) == 2
    for key in ("scaling", "accuracy", "accuracy_by_time", "loss"):
        labelled = [line for line in pictures[key].lines if "batch" in line.get_label()]
        assert {(line.get_label()[-8:], line.get_color().lower()) for line in labelled} == set(bars.items())
    parts = {matplotlib.colors.to_hex(bar.get_facecolor()) for bar in pictures["phases"].patches}
    assert len(parts) == len(PHASES)
    assert not parts & set(bars.values())


def strategies() -> Sweep:
    runs = []
    for number, name in enumerate(STRATEGIES):
        for top, workers in (("1x1", 1), ("1x2", 2), ("1x4", 4)):
            seconds = (1 + number / 10) / workers
            parts = [seconds / 6] * 5
            runs.append(studies.of_strategy(name, top, seconds, parts=parts, accuracies=(0.1, 0.2)))
    return studies.of_strategies(*runs)


def test_thirteen_strategies_look_different_from_each_other() -> None:
    found = made(strategies())
    assert list(found) == ["scaling", "accuracy", "training_time", "accuracy_by_time", "phases", "step"]
    (axes,) = found["scaling"].draw("light").axes
    lines = [line for line in axes.lines if line.get_marker() != "None"]
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == len(lines) == 13
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()][:13] == STRATEGIES
    by_time = found["accuracy_by_time"].draw("light")
    assert [one.get_title() for one in by_time.axes] == ["vgg11, 1x1", "vgg11, 1x2", "vgg11, 1x4"]
    assert [text.get_text() for text in by_time.legends[0].get_texts()] == STRATEGIES


def test_a_steps_parts_are_stacked_up_to_the_iteration() -> None:
    (axes,) = made(strategies())["step"].draw("light").axes
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


@pytest.mark.parametrize(
    "make",
    [
        full,
        lambda: study(replace(trial(), mistakes=[wrong("hard-leaved pocket orchid")] * 16)),
        lambda: study(*many()),
        strategies,
        servers,
    ],
    ids=["grid", "one", "many", "strategies", "long names"],
)
def test_nothing_covers_anything(make: Callable[[], Sweep]) -> None:
    for chart in charts.charts(Runs(make())):
        figure = chart.draw("light")
        figure.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in figure.axes]
        covered = [(a, b) for a in boxes for b in boxes if a is not b and a.shrunk(0.98, 0.98).overlaps(b)]
        assert not covered, chart.key
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes), chart.key
            assert box.x0 >= 0, chart.key
            assert box.x1 <= figure.bbox.x1, chart.key


def many() -> list[Run]:
    return [
        trial(topology=f"{nodes}x{workers}", batch=b) for nodes in range(1, 5) for workers in (1, 2, 4) for b in (8, 16)
    ]


def test_text_has_the_colour_of_the_theme_and_the_page_shines_through() -> None:
    chart = made(study(trial()))["accuracy"]
    light, dark = chart.draw("light"), chart.draw("dark")
    assert light.axes[0].yaxis.label.get_color() == "#1f2328"
    assert dark.axes[0].yaxis.label.get_color() == "#e4e7eb"
    assert all(figure.get_facecolor()[3] == 0 == figure.axes[0].get_facecolor()[3] for figure in (light, dark))
    assert matplotlib.rcParams["text.color"] == "black"  # nobody else's figures change


def test_save_writes_the_same_two_files_every_time(tmp_path: Path) -> None:
    chart = made(full(("vit",)))["scaling"]
    paths = draw.save(chart, tmp_path)
    assert [path.name for path in paths] == ["scaling.png", "scaling.svg"]
    with Image.open(paths[0]) as picture:
        assert picture.info["dpi"] == pytest.approx((160, 160), abs=0.1)
    text = paths[1].read_text()
    assert "<text" in text
    assert "<dc:date>" not in text
    draw.save(chart, tmp_path)
    assert paths[1].read_text() == text


def test_a_chart_for_print_has_its_fonts_and_no_title(tmp_path: Path) -> None:
    chart = made(full())["scaling"]
    path = draw.save(chart, tmp_path, pdf=True)[-1]
    assert path.name == "scaling.pdf"
    text = path.read_bytes()
    assert b"/FontFile2" in text  # TrueType, whole in the file
    assert b"/Type3" not in text
    draw.save(chart, tmp_path, pdf=True)
    assert path.read_bytes() == text


def test_embedded_svg_has_ids_of_its_own_that_all_its_references_find() -> None:
    chart = made(full(("vit",)))["phases"]
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
    titles = [axes.get_title() for axes in chart.draw("light").axes]
    assert titles == ["cat\nas _$x$\n98.77 %", "a name that is f\nas _$x$\n98.77 %"] * 5
    assert "a name that is " in draw.svg(chart, "dark")
    draw.save(chart, tmp_path)
    assert "mistakes" not in made(study(trial(accuracy=0.6), replace(trial(seed=2), mistakes=[wrong("dog")])))


def test_names_are_no_formulas(tmp_path: Path) -> None:
    strange = dataclasses.replace(trial(), class_names=("$a^$", "_y $z$ \udce9\n"))
    chart = made(study(strange))["confusion"]
    text = draw.svg(chart, "light")
    assert "$a^$" in text
    assert "_y $z$ \ufffd\ufffd" in text
    draw.save(chart, tmp_path)


CHANGED = {"text.usetex": True, "figure.facecolor": "red", "lines.linewidth": 9, "savefig.bbox": "tight"}


def drawn(folder: Path) -> list[bytes]:
    folder.mkdir(exist_ok=True)
    return [path.read_bytes() for chart in charts.charts(Runs(full(("vit",)))) for path in draw.save(chart, folder)]


def test_what_a_user_has_set_of_matplotlib_changes_nothing(tmp_path: Path) -> None:
    plain = drawn(tmp_path / "plain")
    with matplotlib.rc_context(CHANGED):
        assert drawn(tmp_path / "changed") == plain
        assert {name: matplotlib.rcParams[name] for name in CHANGED} == CHANGED
    other = tmp_path / "other"
    other.mkdir()
    (other / "matplotlibrc").write_text("\n".join(f"{name}: {value}" for name, value in CHANGED.items()))
    program = "from tests.integration.test_charts import drawn; from pathlib import Path; drawn(Path('made'))"
    root = Path(__file__).parents[2]
    backend = "module://matplotlib_inline.backend_inline"  # what Jupyter exports, without the package
    environment = {**os.environ, "MPLBACKEND": backend, "PYTHONPATH": str(root), "PYTHONWARNINGS": "error"}
    program = f"from cifar_ray.tracking import drawing\nwith drawing.settings(): pass\n{program}"
    subprocess.run([sys.executable, "-c", program], cwd=other, env=environment, check=True, timeout=120)
    names = [path.name for path in (tmp_path / "plain").iterdir()]
    assert all((other / "made" / one).read_bytes() == (tmp_path / "plain" / one).read_bytes() for one in names)
