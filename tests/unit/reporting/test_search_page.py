"""The report of a search, made of given figures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cifar_ray.reporting import chance, data, exported, importance, pages, report, search_charts
from cifar_ray.reporting.contents import Report, Table
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.search import Searched
from cifar_ray.tracking.study import CHOSEN_BY_TAG, Sweep
from tests.support.searches import ANY, AXES, drawn, searched, tried
from tests.support.studies import grid, of_another_task, trial

RATES = ("0.0123456", "0.1", "0.3")


def three(*values: float, images: int = 1000, stopped_at: int = 0) -> Sweep:
    """Three runs, of which the last may have been stopped early."""
    ends = (0, 0, stopped_at)
    runs = zip(range(3), values, RATES, ends, strict=True)
    return searched(
        [tried(number, value, {"lr": rate}, stopped_at=at, images=images) for number, value, rate, at in runs]
    )


def read(study: Sweep) -> Searched:
    return Searched(Runs(study.meant))


def trials(made: Report) -> Table:
    return made.sections[0].tables[0]


def column(table: Table, title: str) -> dict[str, str]:
    """A column by the names of the runs, which come last, or by the rows' labels."""
    at = table.columns.index(title) - 1
    return {
        entries[-1].text if table.columns[-1] == "Run" else label: entries[at].text for label, entries in table.rows
    }


def test_the_best_run_stands_first_with_the_chance_of_its_lead() -> None:
    made = report.build(three(0.9, 0.92, 0.85, stopped_at=2))
    assert (
        made.lead
        == data.whole(made)["best"]
        == (
            "The best run is t1: validation accuracy 92.00%, 2.00 points ahead of t0, the second of 2 runs that finished (by "
            "chance alone with p = 0.14). It was chosen among 3 trials, 1 of them stopped before the end."
        )
    )
    assert [(one.figure, one.configuration) for one in made.findings[0].highlights] == [
        *(("92.00 %", "t1"), ("2.00 points", "t0; not distinguishable"), ("91.00 %", "the best run")),
        ("3", "2 finished, 1 stopped"),
    ]
    html = pages.html(replace(made, charts=()))
    assert html.index('<p class="lead">The best run is t1') < html.index('<div class="cards">')
    of_a_grid = report.build(grid())
    assert (of_a_grid.lead, "best" in data.whole(of_a_grid)) == ("", False)


def test_more_images_tell_the_same_lead_from_luck_and_mark_it() -> None:
    for images, verdict, best in ((1000, "not distinguishable", False), (10000, "more than chance", True)):
        made = report.build(three(0.9, 0.92, 0.8, images=images))
        assert made.findings[0].highlights[1].configuration.endswith(verdict)
        assert trials(made).rows[0][1][0].best is best
    assert "tells it from 2 " in made.findings[0].sentences[0]


@pytest.mark.parametrize("among", [2, 20])
def test_of_equally_good_runs_the_first_is_told_from_the_second_at_most_once_in_twenty(among: int) -> None:
    shares = np.sort(np.random.default_rng(0).binomial(200, 0.8, size=(200, among)) / 200)
    told = [chance.of_shares(top, second, 200) < chance.CHANCE for second, top in shares[:, -2:]]
    assert 0 <= np.mean(told) <= 0.05
    luck = shares[:, -1].mean() - 0.8
    assert chance.best_by_luck(0.8, 200, among) == pytest.approx(luck, abs=0.005)


def test_trials_are_sorted_and_those_stopped_early_marked() -> None:
    table = trials(report.build(three(0.9, 0.92, 0.95, stopped_at=2)))
    found = {title: [*column(table, title).values()] for title in table.columns[1:]}
    expected = {
        "Run": ["t1", "t0", "t2"],
        "End": ["finished", "finished", "stopped"],
        "lr": ["0.1", "0.0123", "0.3"],
        "Epochs": ["3", "3", "2"],
        "Objective: validation accuracy (%)": ["92.00", "90.00", "95.00"],
        "Chosen epoch": ["2", "2", ""],
        "Test accuracy (%)": ["91.00", "89.00", ""],
    }
    assert {title: found[title] for title in expected} == expected
    assert [rank for rank, _ in table.rows] == ["1", "2", "-"]


@pytest.mark.parametrize(("count", "axes"), [(4, AXES[:3]), (40, AXES)])
def test_a_chart_has_a_panel_for_each_axis_and_each_trial_a_line(count: int, axes: tuple[str, ...]) -> None:
    made = search_charts.charts(read(drawn(count, axes, stopped=count > 4)))
    over, parallel = (chart.draw("light") for chart in made)
    assert [panel.get_title() for panel in over.axes] == list(axes)
    assert [panel.get_xscale() for panel in over.axes] == ["log", *["linear"] * (len(axes) - 1)]
    for panel in over.axes:
        assert sum(len(line.get_xdata()) for line in panel.lines) == count + 1  # the best is drawn once more
    (lines,) = parallel.axes
    assert sum(len(line.get_ydata()) == len(axes) + 1 for line in lines.lines) == count


def test_no_trial_has_finished() -> None:
    failed = tried(0, 0.9, {"lr": "0.1"}, status="FAILED", reason="out of memory", metrics={}, history={})
    skipped = tried(1, 0.9, {"lr": "2"}, status="SKIPPED", run_id="", reason="lr is too high", metrics={}, history={})
    made = report.build(searched([failed, skipped]))
    assert (made.lead, made.charts, len(made.findings[0].sentences)) == ("", [], 1)
    assert column(trials(made), "End") == {"t0": "failed", "t1": "skipped"}
    assert "out of memory" in trials(made).footnotes
    alone = report.build(searched([tried(0, 0.9, {"lr": "0.1"})]))
    assert alone.lead.startswith("The best run is t0: validation accuracy 90.00%, the only run that finished.")
    alone.charts[0].draw("light")


def test_a_figure_that_is_no_number_wins_nothing() -> None:
    study = three(0.9, 0.8, 0.7)
    nan = {"val/accuracy": math.nan, "best/accuracy": math.nan}
    lost = replace(study.trials[0], metrics={**study.trials[0].metrics, **nan})
    made = report.build(replace(study, trials=[lost, *study.trials[1:]]))
    assert "The best run is t1" in made.lead
    rank, entries = trials(made).rows[-1]
    assert (rank, entries[0].text, entries[0].note, entries[-1].text) == ("-", "", "no finite val/accuracy", "t0")


def test_the_lowest_is_the_best() -> None:
    runs = [of_another_task(trial(accuracies=(0.9, value))) for value in (0.32, 0.31, 0.5)]
    runs = [
        replace(run, name=f"t{number}", run_id=f"id{number}", params={**run.params, "lr": f"0.{number + 1}"})
        for number, run in enumerate(runs)
    ]
    made = report.build(searched(runs, search={**ANY, "objective": "test/rmse:min"}))
    assert made.lead.startswith("The best run is t1: test rmse 3.1000, 0.1000 ahead of t0, the second of 3 runs")
    assert "It was chosen on the test set among 3 trials." in made.lead
    assert list(column(trials(made), "Objective: test RMSE")) == ["t1", "t0", "t2"]
    assert "by chance" not in made.lead


def test_the_best_run_is_compared_by_its_other_seeds() -> None:
    study = three(0.9, 0.95, 0.7)
    again = [tried(number, value, {"lr": "0.1", "seed": "1"}, repeats="t1") for number, value in ((3, 0.84), (4, 0.86))]
    made = report.build(replace(study, trials=[*study.trials, *again]))
    assert "with 2 other seeds 85.00% (standard deviation 1.41 points), 5.00 points behind t0" in made.lead
    assert "among 3 trials" in made.lead
    ends = column(trials(made), "End")
    assert [*ends.items()][2:] == [("t2", "finished"), ("t3", "other seed"), ("t4", "other seed")]


def test_a_search_on_the_test_set_says_so() -> None:
    study = three(0.9, 0.92, 0.8)
    kept = [{k: v for k, v in run.metrics.items() if not k.startswith(("val/", "chosen/"))} for run in study.trials]
    tested = {CHOSEN_BY_TAG: "test"}
    runs = [replace(run, tags={**run.tags, **tested}, metrics=of) for run, of in zip(study.trials, kept)]
    made = report.build(replace(study, trials=runs))
    assert "test accuracy 90.00%" in made.lead
    assert "It was chosen on the test set among 3 trials." in made.lead


def test_an_optimum_in_the_middle_explains_much() -> None:
    pytest.importorskip("optuna", reason="needs the extra `optuna`")
    rates = 10 ** np.random.default_rng(0).uniform(-4, 0, 40)
    runs = [
        tried(number, 0.9 - 0.1 * (math.log10(rate) + 2) ** 2, {"lr": repr(float(rate)), "warmup": str(number % 5)})
        for number, rate in enumerate(rates)
    ]
    study = searched(runs, ("lr", "warmup"), {**ANY, "ranges": {"lr": "loguniform", "warmup": "int"}})
    explained = importance.explained(read(study))
    rate, warmup = explained.loc["lr"], explained.loc["warmup"]
    assert rate.alone > 0.9 > 0.1 > warmup.alone


def test_axes_are_compared_at_the_last_epoch_that_all_trials_had() -> None:
    study = three(0.9, 0.6, 0.3, stopped_at=1)
    epoch, compared = read(study).compared
    assert epoch == 1
    assert list(compared) == pytest.approx([0.3, 0.2, 0.1])
    assert read(three(0.9, 0.6, 0.3)).compared[0] is None


def test_a_search_stays_one_in_a_file(tmp_path: Path) -> None:
    study = replace(
        drawn(4), search="optuna", scheduler="median", objective="val/accuracy:max", ranges={"lr": "loguniform"}
    )
    (tmp_path / "search.json").write_text(exported.text(study))
    known = exported.read(tmp_path / "search.json")
    assert known.search == study.search
    assert report.build(known).lead == report.build(study).lead
    assert exported.together([known, grid()]).search is None
