from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image

from cifar_ray.reporting import charts
from cifar_ray.reporting.contents import Chart
from cifar_ray.tracking.study import Point, Study, Trial
from tests.support import studies

EVERY = ["training_time", "accuracy", "scaling", "accuracy_by_time", "loss", "phases", "confusion"]
PHASES = {"startup": 5.0, "data": 2.0, "training": 80.0, "evaluation": 8.0, "checkpoint": 1.0}


def trial(model: str = "resnet", topology: str = "1x1", batch: int = 16, seed: int = 1, accuracy: float = 0.5) -> Trial:
    workers = int(topology[0]) * int(topology[2])
    history = {"test/accuracy": (0.3, accuracy), "test/loss": (1.9, 1.6), "train/epoch_loss": (2.0, 1.5)}
    history["epoch_s"] = (40.0 / workers + seed, 40.0 / workers)
    return Trial(
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


def study(*trials: Trial, hold: str = "batch") -> Study:
    return Study("grid", trials, "file:///store", "cifar-ray sweep", hold, ("model", "topology", "batch_size", "seed"))


def full(models: tuple[str, ...] = ("simple_cnn", "resnet", "vit")) -> Study:
    return study(*(trial(m, t, b, s) for m in models for t in ("1x1", "1x2", "2x2") for b in (16, 64) for s in (1, 2)))


def made(of: Study) -> dict[str, Chart]:
    return {chart.key: chart for chart in charts.charts(of, None)}


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
    (spread,) = [c for c in axes.containers if not hasattr(c, "patches")]
    (segment,) = spread.lines[2][0].get_segments()
    assert segment[:, 1] == pytest.approx([82 - 2**0.5, 82 + 2**0.5])


def test_charts_of_unequal_work_say_so() -> None:
    def cautioned(of: Study) -> set[str]:
        told = " The runs trained on different numbers of images ("
        return {chart.key for chart in charts.charts(of, None) if told in chart.caption}

    assert cautioned(studies.grid()) == set()
    less = replace(studies.grid(), trials=[*studies.grid().trials, studies.trial("1x4", images=20000)])
    assert cautioned(less) == {"training_time", "accuracy", "phases"}
    of_all = [studies.of_strategy("ddp", "1x2"), studies.of_strategy("fsdp", "1x2", images=20 * 256)]
    assert cautioned(studies.of_strategies(*of_all)) == {
        *("training_time", "test_loss_by_rank", "test_accuracy_by_rank", "phases")
    }


def test_one_seed_has_no_error_bar() -> None:
    chart = made(study(trial()))["accuracy"]
    axes = chart.draw("light").axes[0]
    assert heights(axes) == [50.0]
    assert len(axes.containers) == 1
    assert "error bars" not in chart.caption


def test_unfinished_runs_and_figures_that_were_not_measured_are_left_out() -> None:
    without = trial(topology="2x2")
    metrics = {name: value for name, value in without.metrics.items() if name != "time/training_s"}
    failed = dataclasses.replace(trial(batch=64, accuracy=0.9), status="FAILED")
    skipped = Trial("bs64 2x2", "", "SKIPPED", params=trial("vit", "2x2", 64).params)
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


def test_scaling_has_an_ideal_line_from_the_fewest_workers() -> None:
    axes = made(study(trial(), trial(topology="2x2")))["scaling"].draw("light").axes[0]
    ideal = next(line for line in axes.lines if line.get_linestyle() == ":")
    assert list(ideal.get_xdata()) == [1, 4]
    assert list(ideal.get_ydata()) == [1000, 4000]


def test_accuracy_is_drawn_at_the_seconds_trained_until_then() -> None:
    (line,) = made(study(trial()))["accuracy_by_time"].draw("light").axes[0].lines
    assert list(line.get_xdata()) == [41, 81]
    assert list(line.get_ydata()) == [30, 50]


def test_both_losses_of_a_model_have_the_same_range() -> None:
    training, test = made(study(trial()))["loss"].draw("light").axes
    assert (training.get_title(), test.get_title()) == ("resnet: training loss", "resnet: test loss")
    assert training.get_ylim() == test.get_ylim()


def test_phases_stack_up_to_the_whole_time() -> None:
    axes = made(study(trial()))["phases"].draw("light").axes[0]
    widths = [bar.get_width() for container in axes.containers for bar in container]
    assert widths == [seconds + 1 for seconds in PHASES.values()]
    assert [text.get_text() for text in axes.texts] == ["101 s"]


def test_series_differ_by_more_than_colour() -> None:
    grouped = made(full())["training_time"].draw("light").axes[0]
    assert len({container[0].get_hatch() for container in grouped.containers if hasattr(container, "patches")}) == 2
    lines = made(full(("vit",)))["accuracy_by_time"].draw("light").axes[0].lines
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 6


@pytest.mark.parametrize("make", [full, lambda: study(trial()), lambda: study(*many())], ids=["grid", "one", "many"])
def test_the_legend_covers_no_panel(make: Callable[[], Study]) -> None:
    for chart in charts.charts(make(), None):
        figure = chart.draw("light")
        figure.draw_without_rendering()
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes), chart.key
            assert box.x0 >= 0, chart.key
            assert box.x1 <= figure.bbox.x1, chart.key


def many() -> list[Trial]:
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
    paths = charts.save(chart, tmp_path)
    assert [path.name for path in paths] == ["scaling.png", "scaling.svg"]
    with Image.open(paths[0]) as picture:
        assert picture.info["dpi"] == pytest.approx((160, 160), abs=0.1)
    text = paths[1].read_text()
    assert "<text" in text
    assert "<dc:date>" not in text
    charts.save(chart, tmp_path)
    assert paths[1].read_text() == text


def test_embedded_svg_has_ids_of_its_own_that_all_its_references_find() -> None:
    chart = made(full(("vit",)))["phases"]
    ids: dict[str, list[str]] = {}
    for theme in ("light", "dark"):
        text = charts.svg(chart, theme)  # type: ignore[arg-type]
        tree = ElementTree.fromstring(text)
        ids[theme] = [found for element in tree.iter() if (found := element.get("id"))]
        wanted = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)
        assert wanted
        assert {"".join(one) for one in wanted} <= set(ids[theme])
        assert len(set(ids[theme])) == len(ids[theme])
        assert "<style" not in text
        assert text == charts.svg(chart, theme)  # type: ignore[arg-type]
    assert not set(ids["light"]) & set(ids["dark"])


def test_names_are_no_formulas() -> None:
    strange = dataclasses.replace(trial(), class_names=("$x", "_y $z$"))
    text = charts.svg(made(study(strange))["confusion"], "light")
    assert "$x" in text
    assert "_y $z$" in text
