"""Reports on a task of one's own, whose primary figure is no share and better if it is low."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import compare, exported, pages, report, task
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking.study import TASK_TAG, Run, Sweep, task_of
from tests.support.studies import DEPTH, grid, of_another_task, study, trial, twice

FIGURES = TaskFigures(task_of({TASK_TAG: json.dumps(DEPTH)}))


def depths(of: Sweep) -> Sweep:
    return replace(of, trials=tuple(map(of_another_task, of.trials)))


def test_the_lowest_is_the_best() -> None:
    made = report.build(depths(twice(grid())))
    (finding,) = made.findings
    assert [(tile.figure, tile.configuration) for tile in finding.highlights[:2]] == [
        ("60.00 s", "2x2 with batch 64"),
        ("6.50", "2x2 with batch 64"),
    ]
    assert finding.sentences[1] == ("Best RMSE: 2x2 with batch 64 (6.50), 1.50 better than 1x1 with batch 16 (8.00).")
    assert any("0.575 better in RMSE on average (95 % interval 0.432 to 0.718)" in line for line in finding.sentences)
    (main,) = made.sections[0].tables
    at = main.columns.index("RMSE") - 1
    assert [row[at].text for _, row in main.rows if row[at].best] == ["6.50 ± 0.00"]


def test_its_figures_are_named_and_no_others() -> None:
    made = report.build(depths(grid()), targets=[7.5])
    quality, to_target = (
        next(table for table in made.sections[0].folded if table.key.endswith(key)) for key in ("quality", "to_7_5")
    )
    assert (quality.columns[1:], to_target.rows[-1][1][0].text) == (["Within 1 m (%)"], "20.00")
    shown = {chart.key: chart for chart in made.charts}
    assert list(shown)[:2] == ["scaling", "test_rmse"]
    assert [axes.get_ylabel() for axes in shown["test_rmse"].draw("light").axes] == ["RMSE"]
    assert {"test_rmse", "near_percent", "rows_per_s", "to_7.5_s"} <= set(made.data["figures"].figure)
    assert not re.search("accura|image|recall", pages.markdown(made) + repr(compare.build(made.study)), re.IGNORECASE)


def test_a_target_is_reached_from_above_and_may_be_any_number() -> None:
    run = of_another_task(trial(training_s=90.0, accuracies=(0.9, 0.5, 0.7)))
    assert (task.best(run), task.epochs_to(run, 5.0), task.epochs_to(run, 4.9)) == (5.0, 2.0, None)
    FIGURES.check([60.0, -1.0])
    assert FIGURES.default_target([run]) is None
    with pytest.raises(ConfigError, match=r"must be a test accuracy above 0 and below 1, such as 0\.6, got 60"):
        TaskFigures(trial().task).check([60.0])


def test_runs_of_different_tasks_are_each_compared_with_those_of_their_own(tmp_path: Path) -> None:
    images = study(*(trial(top, seed=seed) for seed in (0, 1) for top in ("1x1", "1x2")), run_id="a")
    other = depths(
        replace(images, run_id="b", trials=[replace(run, run_id=f"b {run.run_id}") for run in images.trials])
    )
    files = [tmp_path / "images.json", tmp_path / "depths.json"]
    for path, of in zip(files, (images, other)):
        path.write_text(exported.text(of))
    for option in ({"target": [0.6]}, {"baseline": "rangoju_katneni_2025"}):
        with pytest.raises(ConfigError, match=r"^runs of different tasks cannot be compared: "):
            report.report(*map(str, files), **option)  # type: ignore[arg-type]
    made, *alone = map(report.build, (exported.together([images, other]), images, other))
    assert [finding.title.partition(":")[0] for finding in made.findings] == ["classification", "nets"]
    assert [finding.sentences for finding in made.findings] == [one.findings[0].sentences for one in alone]
    assert len(made.data["runs"]) == 8
    keys = [chart.key for chart in made.charts]
    assert keys[:2] == ["classification_scaling", "nets_Depth_scaling"]
    assert len(set(keys)) == len(keys) == sum(len(one.charts) for one in alone)


def test_tasks_of_one_name_are_told_apart_by_data_sets_or_by_number() -> None:
    def depth(dataset: str, unit: str = "rows") -> Run:
        one = of_another_task(trial("1x1", 16))
        task = json.dumps({**json.loads(one.tags[TASK_TAG]), "unit": unit})
        return replace(one, params={**one.params, "dataset": dataset}, tags={**one.tags, TASK_TAG: task})

    def labels(*runs: Run) -> list[str]:
        made = report.build(study(*runs))
        assert len({chart.key for chart in made.charts}) == len(made.charts)
        return [finding.title.rpartition(": ")[0].removeprefix("nets:Depth of ") for finding in made.findings]

    wells = depth("wells", "images")
    assert labels(wells, depth("folder:/far/away/lakes")) == ["wells", "folder:lakes"]
    assert labels(wells, depth("wells")) == ["wells", "wells (2)"]
    several = [depth(name) for name in ("wells", "lakes", "seas")]
    assert set(labels(*several, wells)) == {"wells", "wells and lakes and seas"}
